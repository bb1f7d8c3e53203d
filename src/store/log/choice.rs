//! Which segment is cleaned next.
//!
//! ```text
//! there is space    the oldest one
//! space is short    of those that nobody reads the one that gives back most for its copies, unless removals take more
//!                   than the reserve: then the oldest one
//! ```
//! A segment that is cleaned before an older one leaves a gap in the numbers, and its removals are copied. The oldest one
//! goes with its removals, so many of them are a reason to clean it, whatever its copies take.
//!
//! This module reads nothing of a segment and copies nothing.

use crate::store::format::SECTOR;
use crate::store::log::Log;
use crate::store::log::in_use::UsedSegment;
use crate::store::record::CleanedUpTo;

/// The least share of a segment that is worth its copies: with less, they and what is written meanwhile fill a segment.
const LEAST_GAIN: u64 = 4;
/// Cleaned segments that readers hold, above which nothing more is cleaned: it would give nothing back.
const HELD_MAX: usize = 1;

impl Log {
    /// Where the cleaner goes on in a segment that it has begun.
    pub(in crate::store) fn resumed(&self) -> Option<CleanedUpTo> {
        self.cleaner.at.filter(|at| self.used(at.segment).is_some_and(|used| self.is_open(used)))
    }

    /// The beginning of the next segment to clean, if it is worth it. `finished` are cleaned with the next batch.
    pub(in crate::store) fn next_to_clean(&self, finished: &[u32]) -> Option<CleanedUpTo> {
        let chosen = match self.is_space_short() {
            false => self.oldest_open(finished),
            true => self.cheapest(finished),
        };
        chosen.map(|used| CleanedUpTo { segment: used.number(), offset: SECTOR, record: 0 })
    }

    /// Whether no segment before this one stays when the finished segments are retired, with one batch. A cleaned segment
    /// that waits for a head may stay for longer than a later segment.
    pub(in crate::store) fn is_oldest(&self, number: u32, finished: &[u32]) -> bool {
        let mut before = self.segments.iter().take_while(|used| used.number() < number);
        before.all(|used| finished.contains(&used.number()))
    }

    /// The segments that lack, beside those that the next head gives back.
    pub(in crate::store) fn lacking(&self) -> usize {
        self.chores.missing().saturating_sub(self.segments.cleaned_count())
    }

    /// Whether a segment is closed and not cleaned.
    fn is_open(&self, used: &UsedSegment) -> bool {
        !used.is_cleaned && used.number() != self.written_segment()
    }

    fn oldest_open(&self, finished: &[u32]) -> Option<&UsedSegment> {
        self.segments.iter().find(|used| self.is_open(used) && !finished.contains(&used.number()))
    }

    /// The segment that gives back most for its copies.
    fn cheapest(&self, finished: &[u32]) -> Option<&UsedSegment> {
        if self.held() > HELD_MAX {
            return None;
        }
        let oldest = self.oldest_open(finished)?;
        let is_front = self.is_oldest(oldest.number(), finished);
        if is_front && self.segments.removals() > self.reserved + 2 * self.config.segment_bytes {
            return Some(oldest);
        }
        let mut gaps = self.gaps.clone();
        let cleaned = self.segments.iter().filter(|used| used.is_cleaned || finished.contains(&used.number()));
        cleaned.for_each(|used| gaps.add(used.number(), used.segment.head.first));
        let kept = |used: &UsedSegment| match used.number() == oldest.number() && is_front {
            true => used.live,
            false => used.live + used.removals,
        };
        let open = self.segments.iter().filter(|used| self.is_open(used) && !finished.contains(&used.number()));
        let gives = open.filter(|used| {
            let number = used.number();
            let is_worth = used.end.saturating_sub(kept(used)).saturating_mul(LEAST_GAIN) >= used.end;
            let is_free = !used.is_read() && !used.is_linked;
            let is_front = number == oldest.number() && is_front;
            is_worth && is_free && (is_front || !self.cleaner.unfit.contains(&number) && gaps.has_room_for(number))
        });
        gives.min_by(|one, other| {
            let share = |used: &UsedSegment, of: &UsedSegment| u128::from(kept(used)) * u128::from(of.end);
            share(one, other).cmp(&share(other, one))
        })
    }

    /// The cleaned segments that readers hold.
    fn held(&self) -> usize {
        let cleaned = self.segments.iter().filter(|used| used.is_cleaned && used.is_read());
        let retired = self.retired.iter().filter(|retired| retired.is_read());
        cleaned.count() + retired.count()
    }
}
