//! Who takes the records that an opening reads: the last record of each key in memory, or the owner of a log of effects.
//!
//! This module reads nothing by itself.

use std::collections::HashSet;
use std::sync::Arc;

use ahash::RandomState;

use super::effects::{EffectOwner, read_effects, take_behind};
use super::history::{Purpose, ReadHistory, read};
use super::plant_faults;
use super::repair::copy_winners;
use super::winners::Winners;
use crate::store::errors::Error;
use crate::store::log::Log;
use crate::store::log::live::{LiveRecords, reserve_of};
use crate::store::record::{RecordBatch, record_bytes};
use crate::store::segment::OpenFiles;
use crate::store::summary::SummaryRecord;

/// Takes the records of a log.
pub(in crate::store) trait RecordTaker {
    /// Reads the history, and takes all records up to the last batch known synced.
    fn read(&mut self, files: &Arc<OpenFiles>, purpose: Purpose, synced: u64) -> Result<ReadHistory, Error>;

    /// The closed segments of which nothing counts, and the reserve of the records.
    fn counted(&self, history: &ReadHistory) -> (Vec<u32>, u64);

    /// The bytes of all records that count.
    fn bytes(&self) -> u64;

    /// Writes a batch of records, and takes them.
    fn write(&mut self, log: &mut Log, batch: RecordBatch) -> Result<(), Error>;

    /// Writes all records that count of the old segments. Names those that are lost.
    fn write_all(&mut self, log: &mut Log, history: &ReadHistory, lost: &mut Vec<String>) -> Result<(), Error>;

    /// Has the log count the records, and no others, as live.
    fn count_live(&self, log: &mut Log);

    /// The number of records that count.
    fn records(&self) -> u64;
}

impl RecordTaker for Winners {
    fn read(&mut self, files: &Arc<OpenFiles>, purpose: Purpose, synced: u64) -> Result<ReadHistory, Error> {
        let mut history = read(files, purpose, synced, &mut |SummaryRecord { space, key, place, body }| {
            self.earlier(space, key, place, body)
        })?;
        self.finish();
        plant_faults(&mut history, self);
        Ok(history)
    }

    /// The newest segment may have batches behind the last known sync.
    fn counted(&self, history: &ReadHistory) -> (Vec<u32>, u64) {
        let (mut living, mut reserved) = (HashSet::<u32, RandomState>::default(), 0);
        self.each(|space, key, place| {
            living.insert(place.segment);
            reserved += reserve_of(space, key.len(), u64::from(place.length));
        });
        let closed = history.segments.split_last().map_or(&[][..], |(_, closed)| closed);
        let numbers = closed.iter().filter(|read| read.removals == 0).map(|read| read.segment.head.number);
        (numbers.filter(|number| !living.contains(number)).collect(), reserved)
    }

    fn bytes(&self) -> u64 {
        let mut bytes = 0;
        self.each(|_, key, place| bytes += record_bytes(key.len(), u64::from(place.length)));
        bytes
    }

    fn write(&mut self, log: &mut Log, batch: RecordBatch) -> Result<(), Error> {
        self.write_and_take(log, batch)
    }

    fn write_all(&mut self, log: &mut Log, history: &ReadHistory, lost: &mut Vec<String>) -> Result<(), Error> {
        copy_winners(log, &history.segments, self, lost)
    }

    fn count_live(&self, log: &mut Log) {
        log.segments.forget_live();
        log.live = LiveRecords::default();
        self.each(|space, key, place| {
            log.revived(space, place, key.len());
            if place.is_set_aside() {
                log.live.set_aside.insert((space, key.into()));
            }
        });
    }

    fn records(&self) -> u64 {
        self.len() as u64
    }
}

/// The bytes of a batch that a repair writes.
const PORTION_BYTES: usize = 8 << 20;

/// The owner of a log of effects, and the number of threads that read for it.
pub(in crate::store) struct EffectTaker {
    pub(in crate::store) owner: Arc<dyn EffectOwner>,
    pub(in crate::store) readers: usize,
}

impl RecordTaker for EffectTaker {
    fn read(&mut self, files: &Arc<OpenFiles>, purpose: Purpose, synced: u64) -> Result<ReadHistory, Error> {
        let history = read_effects(files, purpose, synced, self.readers, &self.owner)?;
        take_behind(&history, &*self.owner);
        Ok(history)
    }

    fn counted(&self, _history: &ReadHistory) -> (Vec<u32>, u64) {
        (Vec::new(), 0)
    }

    fn bytes(&self) -> u64 {
        self.owner.live().1
    }

    /// They were taken when they were read.
    fn write(&mut self, log: &mut Log, batch: RecordBatch) -> Result<(), Error> {
        log.append(&batch).map(drop)
    }

    fn write_all(&mut self, log: &mut Log, _history: &ReadHistory, _lost: &mut Vec<String>) -> Result<(), Error> {
        self.owner.encode_all(PORTION_BYTES, &mut |encoded| {
            log.append(&RecordBatch { encoded: vec![encoded], ..RecordBatch::default() }).map(drop)
        })?;
        log.replace_old()
    }

    fn count_live(&self, log: &mut Log) {
        log.set_live_bytes(self.owner.live().1);
    }

    fn records(&self) -> u64 {
        self.owner.live().0
    }
}
