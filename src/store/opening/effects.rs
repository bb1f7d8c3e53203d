//! Reading a log of effects: several threads hand its records, in no order, to their owner.
//!
//! This module judges no record. It reads the batches of a segment by `history.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::batches::BatchSink;
use super::history::{BLOCK_BYTES, FoundSegment, HistoryReader, Purpose, ReadHistory, ReadRecord};
use crate::lock::Mutex;
use crate::store::encoded::EncodedRecords;
use crate::store::errors::Error;
use crate::store::format::{BatchHead, Space};
use crate::store::log::in_use::UsedSegment;
use crate::store::segment::OpenFiles;
use crate::store::summary::SummaryRecord;
use crate::threads;

/// A record of a log of effects, as an opening finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundEffect<'b> {
    /// Its space.
    pub space: Space,
    /// Its key, as its owner encoded it.
    pub key: &'b [u8],
    /// What it says.
    pub body: FoundBody<'b>,
}

/// What a record of a log of effects says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundBody<'b> {
    /// That its key has this value.
    Value(&'b [u8]),
    /// That its key is gone.
    Removed,
    /// It has said something, and its bytes are lost.
    Lost,
}

/// Takes records of a log of effects, in no order. Each thread has its own.
pub trait EffectReader {
    /// Takes a record.
    fn take(&mut self, effect: FoundEffect<'_>);
}

/// The owner of a log of effects while that is being opened.
pub trait EffectOwner: Send + Sync {
    /// A reader for one thread. Dropping the reader adds its totals to the owner's.
    fn reader(&self) -> Box<dyn EffectReader + '_>;

    /// So many segments are read, of all.
    fn report(&self, _read: usize, _all: usize) {}

    /// The number and the bytes of the records that count. Asked when all were taken.
    fn live(&self) -> (u64, u64);

    /// Encodes all records that count, in portions of at most so many bytes, or of one record. For a repair.
    ///
    /// # Errors
    /// Those of `write`.
    fn encode_all(&self, bytes: usize, write: &mut dyn FnMut(EncodedRecords) -> Result<(), Error>)
    -> Result<(), Error>;
}

/// Reads the history of a log of effects, with so many threads. The owner takes each record up to the last batch known
/// synced.
///
/// # Errors
/// As [`read`].
pub(in crate::store) fn read_effects(
    files: &Arc<OpenFiles>,
    purpose: Purpose,
    synced: u64,
    readers: usize,
    owner: &Arc<dyn EffectOwner>,
) -> Result<ReadHistory, Error> {
    let reader = HistoryReader::new(files, purpose, synced, BLOCK_BYTES);
    let (mut history, found) = reader.begin()?;
    let shared = Arc::new(SharedReading { found, taken: AtomicUsize::new(0), parts: Mutex::default() });
    let read = {
        let (shared, files, owner) = (Arc::clone(&shared), Arc::clone(files), Arc::clone(owner));
        let synced = history.known.synced;
        move || shared.read(&HistoryReader::new(&files, purpose, synced, BLOCK_BYTES), &*owner)
    };
    let spawn = |number| threads::spawn(&format!("store-open-{number}"), None, read.clone());
    let threads: Vec<_> = (1..readers.min(shared.found.len()))
        .map(spawn)
        .collect::<Result<_, _>>()
        .map_err(|error| reader.explain(&error))?;
    read();
    threads.into_iter().for_each(|thread| drop(thread.join()));
    let mut parts = std::mem::take(&mut *shared.parts.lock());
    parts.sort_by_key(|(index, _)| *index);
    for (_, part) in parts {
        history.add(part?);
    }
    reader.end(&mut history);
    Ok(history)
}

/// Passes the records behind the last batch known synced.
pub(super) fn take_behind(history: &ReadHistory, owner: &dyn EffectOwner) {
    let mut reader = owner.reader();
    for ReadRecord { space, key, place, body } in &history.behind {
        hand_over(&mut *reader, SummaryRecord { space: *space, key, place: *place, body: body.as_deref() });
    }
}

/// Passes the records of the newest segment that has some.
///
/// # Errors
/// As [`read`].
pub(in crate::store) fn read_newest(
    files: &Arc<OpenFiles>,
    purpose: Purpose,
    synced: u64,
    effects: &mut dyn EffectReader,
) -> Result<(), Error> {
    let reader = HistoryReader::new(files, purpose, synced, BLOCK_BYTES);
    let (history, found) = reader.begin()?;
    for found in found.iter().rev() {
        let mut part = ReadHistory::default();
        part.known.synced = history.known.synced;
        let mut counted = CountedRecords { effects, count: 0 };
        reader.read_effects(found, &mut part, &mut counted)?;
        for ReadRecord { space, key, place, body } in &part.behind {
            hand_over(&mut counted, SummaryRecord { space: *space, key, place: *place, body: body.as_deref() });
        }
        // The first batch of a segment, and that of a rest, may have none.
        if counted.count > 0 {
            break;
        }
    }
    Ok(())
}

/// Counts the records that a reader takes.
struct CountedRecords<'e> {
    effects: &'e mut dyn EffectReader,
    count: u64,
}

impl EffectReader for CountedRecords<'_> {
    fn take(&mut self, effect: FoundEffect<'_>) {
        self.count += 1;
        self.effects.take(effect);
    }
}

/// The segments that several threads read.
struct SharedReading {
    found: Vec<FoundSegment>,
    /// How many were taken for reading, from the end of the list.
    taken: AtomicUsize,
    parts: Mutex<Vec<(usize, Result<ReadHistory, Error>)>>,
}

impl SharedReading {
    /// Reads segments until none is left, the newest first: so the owner stores few records that a newer one replaces.
    fn read(&self, reader: &HistoryReader<'_>, owner: &dyn EffectOwner) {
        let mut effects = owner.reader();
        // Relaxed: each index is taken once, and the segments do not change.
        while let Some(index) = self.found.len().checked_sub(1 + self.taken.fetch_add(1, Ordering::Relaxed))
            && let Some(found) = self.found.get(index)
        {
            let mut part = ReadHistory::default();
            part.known.synced = reader.synced;
            let read = reader.read_effects(found, &mut part, &mut *effects);
            part.damage.lost.extend(reader.unreadable.take());
            part.shape.bytes = reader.bytes.take();
            let read_so_far = {
                let mut parts = self.parts.lock();
                parts.push((index, read.map(|()| part)));
                parts.len()
            };
            owner.report(read_so_far, self.found.len());
        }
    }
}

impl ReadHistory {
    /// Adds what was read of the next segment.
    fn add(&mut self, part: Self) {
        let Self { segments, known, behind, cut, damage, shape, .. } = part;
        self.segments.extend(segments);
        self.known.raise_marks(&known.marks);
        self.known.raise_oldest(known.oldest);
        self.behind.extend(behind);
        self.cut.extend(cut);
        self.damage.lost.extend(damage.lost);
        self.damage.harmless.extend(damage.harmless);
        self.shape.batches += shape.batches;
        self.shape.behind += shape.behind;
        self.shape.bytes += shape.bytes;
    }
}

/// Hands records on.
struct EffectSink<'e>(&'e mut dyn EffectReader);

impl BatchSink for EffectSink<'_> {
    fn record(&mut self, record: SummaryRecord<'_>) {
        hand_over(self.0, record);
    }

    fn head(&mut self, _head: &BatchHead) {}
}

impl HistoryReader<'_> {
    /// Reads a segment of effects, up to the batch numbered `limit`, or to the end.
    fn read_effects(
        &self,
        found: &FoundSegment,
        history: &mut ReadHistory,
        effects: &mut dyn EffectReader,
    ) -> Result<(), Error> {
        let FoundSegment { segment, limit } = found;
        let (disk, is_linked) = self.file_of(segment)?;
        let end = self.read_batches(segment, *limit, history, &mut EffectSink(effects))?;
        let unread = UsedSegment::new(Arc::clone(segment), disk);
        history.segments.push(UsedSegment { end, is_linked, ..unread });
        Ok(())
    }
}

/// Hands a record to a reader.
fn hand_over(reader: &mut dyn EffectReader, record: SummaryRecord<'_>) {
    let SummaryRecord { space, key, place, body } = record;
    let body = match (place, body) {
        (None, _) => FoundBody::Removed,
        (Some(_), Some(body)) => FoundBody::Value(body),
        (Some(_), None) => FoundBody::Lost,
    };
    reader.take(FoundEffect { space, key, body });
}
