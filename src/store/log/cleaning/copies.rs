//! Cleaning: copies what counts in an old segment into the batches that go out anyway, then retires it.
//!
//! ```text
//! old segment ─► next records ─► live? ─► copies, at the front of the next batch ─► written: the cleaner continues,
//!                                                                                    and retires what it has left
//! ```
//! The owner of the records says whether one is live, that is the last of its key. It says so in the step that gives
//! the copies their places, so no newer record can come between. Removals in the oldest segment are never copied: all
//! that they remove stood in it or before it. Which segment is cleaned: `choice.rs`.
//!
//! The end of the copies travels in their batch. If that batch is never written, the next call returns the same
//! records.
//!
//! A record of `Meta` is written from the owner's memory. All others are read and verified. If its bytes are lost, the
//! record is set aside: a record that says so takes the place of the copy, and cleaning continues. The state of a task
//! is read too, although the engine has it: the owner of the log does not, and does no harm by reading. A state that is
//! lost is reported to the engine, which stores it again from its memory.
//!
//! This module writes nothing; see `log.rs`.

use std::sync::Arc;

use super::position::{COPY_BYTES_MAX, OldBatch, OldRecord, UnreadableRange, next_batch, read_batch};
use crate::limits::LOOK_AHEAD;
use crate::store::encoding::batch_bytes;
use crate::store::errors::Error;
use crate::store::fault::{Fault, planted};
use crate::store::format::{SECTOR, Space};
use crate::store::log::Log;
use crate::store::record::{Body, Cleaned, CleanedUpTo, Record, RecordBatch, Value, record_bytes};
use crate::store::segment::Place;
use crate::store::table::records_within;

/// The bytes of copies in a batch of an idle log.
const IDLE_COPY_BYTES: u64 = 1 << 20;
/// The files of an idle log of which little is live, in segments: that which is written, two laid out, and room for
/// summaries.
const FILES_DRAINED: u64 = 4;
/// The ratio of the bytes of copies to the bytes of a batch that is always allowed: with fewer, used bytes could grow
/// beyond three times the live ones.
const OWN_SHARE_MIN: u64 = 2;
/// The largest ratio of the bytes that are looked at to the bytes of copies.
const LOOK_MAX: u64 = 8;
/// The number of segments that an idle log leaves alone, however small they are.
const SEGMENTS_LEFT: u64 = 8;
/// The ratio of the bytes of copies to the bytes of a batch while space is short: a segment of the reserve is half empty
/// or more.
const SHORT_SHARE: u64 = 4;

/// What the owner knows of a record at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// It is not the last of its key, or its key is gone.
    Dead,
    /// It is the last of its key.
    Live,
    /// It is the last of its key, and the owner has its bytes.
    Known(Value),
}

/// The owner's judgement of the records of old segments.
pub(in crate::store) trait RecordJudge {
    /// Whether the record of a key at a place is live. The removal of a key has no place. It is live as long as the key is
    /// gone.
    fn judge(&mut self, space: Space, key: &[u8], place: Option<Place>) -> Liveness;

    /// The records of these keys, [`LOOK_AHEAD`] at most, are judged next.
    fn foresee(&mut self, _keys: &mut dyn Iterator<Item = (Space, &[u8])>) {}
}

impl<F: FnMut(Space, &[u8], Option<Place>) -> Liveness> RecordJudge for F {
    fn judge(&mut self, space: Space, key: &[u8], place: Option<Place>) -> Liveness {
        self(space, key, place)
    }
}

/// Copies of live records, and what was found on the way.
#[derive(Debug, Default)]
pub struct Copies {
    /// The copies. The owner adds its records behind them and writes the batch.
    pub batch: RecordBatch,
    /// Whether the copies fill a batch of their own: the owner writes them before the batch with its records.
    pub is_apart: bool,
    /// The values among the copies that are set aside, since their bytes are lost: space, key and old place.
    pub set_aside: Vec<(Space, Box<[u8]>, Place)>,
    /// Parts whose tables cannot be read. The owner writes its records of these places again in this batch: from
    /// memory, or with [`Log::value`], since the bodies may be right, or as [`Body::SetAside`].
    pub unreadable: Vec<UnreadableRange>,
}

/// The room for copies in a batch.
struct CopyRoom {
    /// The bytes of the owner's records, and of those that are in the same batch.
    own: u64,
    beside: u64,
    copied: u64,
    /// The most bytes of a batch.
    most: u64,
    /// The bytes that are left in the newest segment, if all of them are to be used.
    room: u64,
    /// The least bytes of a record that begins a segment although another one has room for smaller ones.
    large: u64,
    /// Whether the owner's records come behind the copies in a batch of their own.
    is_apart: bool,
    /// Whether the owner has no records.
    is_alone: bool,
}

impl CopyRoom {
    /// Whether the batch takes a copy of so many bytes.
    fn takes(&mut self, bytes: u64) -> bool {
        let begins = self.is_apart || (self.is_alone && bytes < self.most / 8);
        if self.copied == 0 && begins && self.beside.saturating_add(bytes) > self.room {
            // All of them go to the next segment.
            (self.beside, self.room, self.is_apart) = (self.own, self.most, false);
        }
        let all = self.beside.saturating_add(self.copied).saturating_add(bytes);
        let is_full = all > self.most;
        if (is_full && self.copied > 0) || (all > self.room && (self.is_alone || bytes < self.large)) {
            return false;
        }
        if is_full {
            // Beside batches that are almost as large as a batch may be, no copy would ever find room.
            (self.beside, self.is_apart) = (0, true);
        }
        self.copied += bytes;
        true
    }
}

/// Whether an idle log still has space to give back.
fn is_idle_work(used: u64, live: u64, slack: u64) -> bool {
    used > live.saturating_add(live / 4).saturating_add(slack)
}

/// The body of a record that is to be copied, if the owner has it. `None`: it is not copied.
fn body_of(record: OldRecord<'_>, is_oldest: bool, judge: &mut dyn RecordJudge) -> Option<Option<Value>> {
    if record.place.is_none() && (is_oldest || planted(Fault::RemovalsForgotten)) {
        return None;
    }
    match judge.judge(record.space, record.key, record.place) {
        Liveness::Dead => None,
        Liveness::Live => Some(None),
        Liveness::Known(body) => Some(Some(body)),
    }
}

impl Log {
    /// Returns the copies that the next batch with these records carries. The owner says which records are live.
    ///
    /// # Errors
    /// [`Error`] if the oldest segment cannot be read.
    pub(in crate::store) fn copies(
        &mut self,
        records: &RecordBatch,
        judge: &mut dyn RecordJudge,
    ) -> Result<Copies, Error> {
        let own = batch_bytes(records);
        let most = own.saturating_mul(OWN_SHARE_MIN).max(self.copies_in_a_segment());
        let budget = match self.is_space_short() {
            false => self.pressure().copy_budget(own),
            true if self.lacking() > 1 => COPY_BYTES_MAX,
            true => own.saturating_mul(SHORT_SHARE),
        };
        self.copy_some(budget.min(COPY_BYTES_MAX).min(most), own, judge)
    }

    /// Returns the copies that an idle log writes. It writes them even if there are none: the batch may retire a
    /// segment. Without [`Log::may_shrink`] nothing is left to do.
    ///
    /// # Errors
    /// As [`Log::copies`].
    pub(in crate::store) fn idle_copies(&mut self, judge: &mut dyn RecordJudge) -> Result<Copies, Error> {
        let most = IDLE_COPY_BYTES.min(self.copies_in_a_segment());
        let budget = if self.may_shrink() { most } else { 0 };
        self.copy_some(budget, 0, judge)
    }

    /// Whether an idle log has space to give back, or more segments than its bytes need.
    #[must_use]
    pub fn may_shrink(&self) -> bool {
        if self.is_space_short() {
            return self.resumed().or_else(|| self.next_to_clean(&[])).is_some();
        }
        let (used, live) = self.bytes();
        let segments = self.segments.len() as u64;
        let is_split = segments > SEGMENTS_LEFT + 2 * used / self.config.segment_bytes.max(1);
        let is_pressed = self.pressure().excess > 0 && is_idle_work(used, live, self.config.segment_bytes);
        segments > 1 && (is_split || is_pressed || self.is_drained(live) || is_idle_work(used, live, self.slack()))
    }

    /// Whether so little is live that nearly all files could go, and there are more than an empty log needs.
    fn is_drained(&self, live: u64) -> bool {
        live < self.config.segment_bytes / 4 && self.disk_bytes() > FILES_DRAINED * self.config.segment_bytes
    }

    /// The bytes of copies that leave room in a segment. A larger batch would need a larger segment, and this segment
    /// as much room when it is cleaned.
    fn copies_in_a_segment(&self) -> u64 {
        self.config.segment_bytes / 4
    }

    /// The bytes above the live ones that are no reason to clean.
    pub(in crate::store) fn slack(&self) -> u64 {
        self.config.segment_bytes * 2
    }

    /// The room for copies beside records of these bytes. Without space no segment is left before it is full: copies
    /// fill its rest before a batch for the next segment.
    fn copy_room(&self, own: u64) -> CopyRoom {
        let segment = self.config.segment_bytes;
        let (most, room) = match self.is_space_short() {
            false => (self.writer.batch_bytes_max, u64::MAX),
            true => (segment - SECTOR, self.room()),
        };
        let (is_apart, is_alone) = (own > room, own == 0 && room < u64::MAX);
        let (beside, most) = (if is_apart { 0 } else { own }, records_within(most));
        let room = if room < u64::MAX { records_within(room) } else { room };
        CopyRoom { own, beside, copied: 0, most, room, large: segment / 2, is_apart, is_alone }
    }

    fn copy_some(&mut self, budget: u64, own: u64, judge: &mut dyn RecordJudge) -> Result<Copies, Error> {
        let (mut copies, mut room, mut read) = (Copies::default(), self.copy_room(own), 0);
        if budget == 0 || self.cleaner.pause.covers_batch() {
            return Ok(copies);
        }
        let mut finished = Vec::new();
        let mut judged: Option<(u32, bool)> = None;
        let mut next = self.resumed().or_else(|| self.next_to_clean(&finished));
        while room.copied < budget
            && read < budget.saturating_mul(LOOK_MAX)
            && let Some(at) = next
        {
            let loaded = self.load(at);
            let Some(loaded) = self.unless_unread(loaded)? else { break };
            let Some(bytes) = loaded else {
                self.finish(at.segment, &copies, &mut finished);
                next = self.next_to_clean(&finished);
                continue;
            };
            // Tables count once, when they are read.
            read += bytes;
            if judged.is_none_or(|(segment, _)| segment != at.segment) {
                judged = Some((at.segment, self.is_oldest(at.segment, &finished)));
            }
            let is_oldest = judged.is_some_and(|(_, is_oldest)| is_oldest);
            let Some(batch) = &self.cleaner.batch else { break };
            if batch.is_damaged && !is_oldest {
                self.cleaner.unfit.insert(at.segment);
                next = self.next_to_clean(&finished);
                continue;
            }
            let Some(record) = batch.records_from(at.record).next() else {
                if batch.is_damaged {
                    copies.unreadable.push(UnreadableRange { segment: at.segment, from: at.offset, to: batch.next });
                }
                next = Some(CleanedUpTo { offset: batch.next, record: 0, ..at });
                continue;
            };
            if at.record.is_multiple_of(LOOK_AHEAD) {
                let ahead = batch.records_from(at.record).take(LOOK_AHEAD);
                judge.foresee(&mut ahead.map(|record| (record.space, record.key)));
            }
            let bytes = record_bytes(record.key.len(), record.place.map_or(0, |place| u64::from(place.length)));
            read += bytes;
            if let Some(body) = body_of(record, is_oldest, judge) {
                if !room.takes(bytes) {
                    break;
                }
                let copy = self.copy(record, body, &mut copies);
                if self.unless_unread(copy)?.is_none() {
                    break;
                }
                self.cleaner.pause.end();
            }
            next = Some(CleanedUpTo { record: at.record + 1, ..at });
        }
        if planted(Fault::CopiesLost) {
            self.cleaner.at = next;
        }
        self.counters.copies += copies.batch.records.len() as u64;
        self.counters.copied += room.copied;
        copies.is_apart = room.is_apart && room.copied > 0;
        copies.batch.cleaned = Some(Cleaned { finished, at: next });
        Ok(copies)
    }

    /// All that counts in this segment is in batches that are written, or in the copies.
    fn finish(&mut self, segment: u32, copies: &Copies, finished: &mut Vec<u32>) {
        // What the owner records of unreadable parts is in the next batch, or in a later one.
        if copies.batch.records.is_empty() && copies.unreadable.is_empty() && finished.is_empty() {
            // The next batch need not be written for it.
            self.cleaner.at = None;
            self.note_cleaned(segment);
        } else {
            finished.push(segment);
        }
    }

    /// Copies a live record, from the owner's memory if it is there.
    fn copy(&self, record: OldRecord<'_>, known: Option<Value>, copies: &mut Copies) -> Result<(), Error> {
        let (OldRecord { space, place, .. }, key) = (record, Box::<[u8]>::from(record.key));
        let body = match (known, place) {
            (Some(body), _) => Body::Bytes(body),
            (None, Some(place)) => self.read_again(place)?,
            (None, None) => Body::Removed,
        };
        if let Some(place) = place.filter(|place| body == Body::SetAside && !place.is_set_aside()) {
            copies.set_aside.push((space, key.clone(), place));
        }
        copies.batch.records.push(Record { space, key, body });
        Ok(())
    }

    /// The result of a read for the cleaner. `None`: the oldest segment cannot be read at present. Cleaning stops there,
    /// and tries again after a pause.
    ///
    /// # Errors
    /// All other errors.
    pub(in crate::store) fn unless_unread<T>(&mut self, read: Result<T, Error>) -> Result<Option<T>, Error> {
        match read {
            Err(error) if error.may_pass() => {
                if !self.cleaner.pause.is_on() {
                    tracing::warn!("cleaning stops: {error}");
                }
                self.cleaner.pause.begin();
                self.counters.unread += 1;
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    /// Whether the cleaner waits because the oldest segment could not be read.
    #[must_use]
    pub fn waits_for_reads(&self) -> bool {
        self.cleaner.pause.is_on()
    }

    /// The bytes at this place. It is set aside if they have changed.
    pub(in crate::store) fn read_again(&self, place: Place) -> Result<Body, Error> {
        self.value(place).map_or(Ok(Body::SetAside), |value| value.read_body())
    }

    /// Has the batch at this position in `self.cleaner`. Returns the bytes that were read for it, `None` behind the end
    /// of the segment.
    fn load(&mut self, at: CleanedUpTo) -> Result<Option<u64>, Error> {
        let Some(used) = self.used(at.segment).filter(|used| at.offset < used.end) else { return Ok(None) };
        let loaded = &self.cleaner.batch;
        if loaded.as_ref().is_some_and(|batch| (batch.segment, batch.offset) == (at.segment, at.offset)) {
            return Ok(Some(0));
        }
        let segment = Arc::clone(&used.segment);
        let end = used.end;
        let batch = match read_batch(&segment, at.offset)? {
            Some(batch) => batch,
            None => {
                let next = next_batch(&segment, at.offset + SECTOR, end)?;
                OldBatch::damaged(at.segment, at.offset, next)
            }
        };
        let read = batch.read;
        self.cleaner.batch = Some(batch);
        Ok(Some(read))
    }
}
