//! Which segment is cleaned next.
//!
//! ```text
//! there is space    the oldest one
//! space is short    of those that nobody reads the one that gives back most for its copies, a quarter or more
//!                   no gap is left for one: of those between two gaps, so that two gaps become one
//!                   none gives a quarter, and removals take more than the reserve: the oldest one
//! ```
//! A segment that is cleaned before an older one leaves a gap in the numbers, and its removals are copied. The oldest one
//! goes with its removals, so many of them are a reason to clean it, whatever its copies take.
//!
//! Where space is short a segment gives back its file, however little of it was written: the file becomes a spare. A file
//! that lacks blocks, or is larger, becomes none: what it gives back others may take. It goes when nothing in it is live.
//!
//! This module reads nothing of a segment and copies nothing.

use std::collections::BTreeMap;

use crate::store::format::LogKind;
use crate::store::format::SECTOR;
use crate::store::gaps::Gaps;
use crate::store::log::Log;
use crate::store::log::in_use::UsedSegment;
use crate::store::record::CleanedUpTo;

/// The least share of a segment that is worth its copies, see `admission.rs`.
const LEAST_GAIN: u64 = 4;
/// A segment for the next opening, a segment for the copies, and a segment for what is written meanwhile.
const TIGHT: usize = 3;

impl Log {
    /// Where the cleaner continues in a segment that it has begun. Where space is short it leaves a segment that others
    /// have begun to read: this segment would give nothing back.
    pub(in crate::store) fn resumed(&self) -> Option<CleanedUpTo> {
        let is_resumed = |used: &UsedSegment| self.is_open(used) && (!self.is_space_short() || self.is_given(used));
        self.cleaner.at.filter(|at| self.used(at.segment).is_some_and(is_resumed))
    }

    /// The beginning of the next segment to clean, if it is worth it. `finished` are cleaned with the next batch.
    pub(in crate::store) fn next_to_clean(&self, finished: &[u32]) -> Option<CleanedUpTo> {
        let chosen = match self.is_space_short() {
            true if self.config.kind == LogKind::States => self.cheapest(finished),
            _ => self.open(finished).next(),
        };
        chosen.map(|used| CleanedUpTo { segment: used.number(), offset: SECTOR, record: 0 })
    }

    /// Whether no segment before this one stays when the finished segments are retired, with one batch. A cleaned segment
    /// that waits for a head may stay for longer than a later segment.
    pub(in crate::store) fn is_oldest(&self, number: u32, finished: &[u32]) -> bool {
        let mut before = self.segments.iter().take_while(|used| used.number() < number);
        before.all(|used| finished.contains(&used.number()) || self.is_leaving(used))
    }

    /// The segments that lack, beside those that the next head gives back.
    pub(in crate::store) fn lacking(&self) -> usize {
        self.chores.missing().saturating_sub(self.segments.cleaned_count())
    }

    /// Whether no more than [`TIGHT`] segments are laid out or cleaned, and others lack: segments are cleaned before
    /// anything else is written.
    pub(in crate::store) fn is_tight(&self) -> bool {
        self.is_space_short() && self.lacking() > 0 && self.spares_needed() <= self.lacking() + TIGHT
    }

    /// Whether a segment is closed and not cleaned.
    fn is_open(&self, used: &UsedSegment) -> bool {
        !used.is_cleaned && used.number() != self.written_segment() && !self.is_leaving(used)
    }

    /// Whether a segment is cleaned, and goes in a later epoch.
    fn is_leaving(&self, used: &UsedSegment) -> bool {
        self.cleaner.leaving.iter().any(|leaving| leaving.number == used.number())
    }

    /// The segments that are closed and not cleaned, the oldest first.
    fn open<'s>(&'s self, finished: &'s [u32]) -> impl Iterator<Item = &'s UsedSegment> {
        self.segments.iter().filter(|used| self.is_open(used) && !finished.contains(&used.number()))
    }

    /// The segment that gives back most for its copies.
    fn cheapest<'s>(&'s self, finished: &'s [u32]) -> Option<&'s UsedSegment> {
        let oldest = self.open(finished).next()?.number();
        let front = self.is_oldest(oldest, finished).then_some(oldest);
        let mut gaps = self.heads.gaps.clone();
        let cleaned = self.segments.iter().filter(|used| used.is_cleaned || finished.contains(&used.number()));
        cleaned.for_each(|used| gaps.add(used.number(), used.segment.head.first));
        let is_fit = |used: &UsedSegment| {
            self.is_given(used) && (front == Some(used.number()) || !self.cleaner.unfit.contains(&used.number()))
        };
        let kept = |used: &UsedSegment| used.live + if front == Some(used.number()) { 0 } else { used.removals };
        let is_worth = |used: &&UsedSegment| {
            let (gives, kept) = (self.gives(used), kept(used));
            // Two of those that are half empty fit into one file. What is left behind others is perhaps too little again.
            let whole = if 2 * kept <= gives { gives } else { used.end };
            is_fit(used) && kept + gives / LEAST_GAIN <= whole
        };
        let share = |one: &UsedSegment, other: &UsedSegment| u128::from(kept(one)) * u128::from(self.gives(other));
        let cheaper = |one: &&UsedSegment, other: &&UsedSegment| share(one, other).cmp(&share(other, one));
        let has_gap = |used: &&UsedSegment| front == Some(used.number()) || gaps.has_room_for(used.number());
        if let Some(cheapest) = self.open(finished).filter(is_worth).filter(has_gap).min_by(cheaper) {
            return Some(cheapest);
        }
        if self.lacking() > 0 && self.open(finished).any(|used| is_worth(&used)) {
            return self.joining(&gaps, finished, |used| is_fit(used).then(|| kept(used)));
        }
        let is_full = self.segments.removals() > self.live.reserved + 2 * self.config.segment_bytes;
        self.open(finished).next().filter(|used| front == Some(used.number()) && is_full && is_fit(used))
    }

    /// The first segment of the shortest run between two gaps. `None` of `kept`: it has to stay.
    fn joining<'s>(
        &'s self,
        gaps: &Gaps,
        finished: &'s [u32],
        kept: impl Fn(&UsedSegment) -> Option<u64>,
    ) -> Option<&'s UsedSegment> {
        let mut runs: BTreeMap<usize, (u64, &UsedSegment)> = BTreeMap::new();
        for used in self.segments.iter().filter(|used| !used.is_cleaned && !finished.contains(&used.number())) {
            let run = runs.entry(gaps.before(used.number())).or_insert((0, used));
            let most = Some(used).filter(|used| self.is_open(used)).and_then(&kept);
            run.0 = run.0.saturating_add(most.unwrap_or(u64::MAX));
        }
        let between = runs.range(1..gaps.len()).map(|(_, run)| run).filter(|(kept, _)| *kept < u64::MAX);
        between.min_by_key(|(kept, _)| *kept).map(|(_, first)| *first)
    }

    /// The bytes that the log has back when a segment is cleaned.
    fn gives(&self, used: &UsedSegment) -> u64 {
        let segment = self.config.segment_bytes;
        if used.segment.head.size == segment && used.disk >= segment { segment } else { 0 }
    }

    /// Whether the log has the bytes of a segment back as soon as it is cleaned.
    fn is_given(&self, used: &UsedSegment) -> bool {
        !used.is_read() && !used.is_linked && (used.live == 0 || self.gives(used) > 0)
    }
}
