//! What a log of durable tables holds, for a check of a folder that no server uses.
//!
//! This file changes nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::judge::CLOCK;
use super::records::{END, ElementHead, TableHead, element_bytes};
use crate::lock::{Mutex, MutexGuard};
use crate::store::{
    CheckReport, EffectOwner, EffectReader, EncodedRecords, Error, Folder, FoundBody, FoundEffect, Space, check_effects,
};

/// The newest record of a key.
#[derive(Default)]
struct NewestRecord {
    version: u64,
    /// `None`: the key is gone.
    bytes: Option<usize>,
    is_lost: bool,
}

/// What was read.
#[derive(Default)]
struct CheckedLog {
    records: u64,
    /// By the life of the table, and the key.
    newest: HashMap<(u64, Box<[u8]>), NewestRecord>,
    /// The number of the last record of each life, and whether the life has a name.
    tables: BTreeMap<u64, (u64, bool)>,
}

/// The owner of a log that is checked.
#[derive(Default)]
struct Checker(Mutex<CheckedLog>);

/// Reads all of the log of durable tables in a folder. The caller has locked it. A touch of a value counts as none of its
/// own: the value's record has its bytes.
///
/// # Errors
/// [`Error`] if the folder cannot be read, or holds no log of this kind and format. Damage is no error: the report names
/// it.
pub fn check_log(folder: &Arc<dyn Folder>) -> Result<CheckReport, Error> {
    let checker = Arc::new(Checker::default());
    let mut report = check_effects(folder, &(Arc::clone(&checker) as Arc<dyn EffectOwner>))?;
    let log = checker.log();
    report.counts.records = log.records;
    let lost = log.newest.iter().filter(|((life, _), newest)| newest.is_lost && log.is_named(*life));
    report.lost_values = lost.map(|((_, key), _)| format!("the element {}", key.escape_ascii())).collect();
    report.lost_values.sort();
    Ok(report)
}

impl CheckedLog {
    fn is_named(&self, life: u64) -> bool {
        self.tables.get(&life).is_some_and(|(_, is_named)| *is_named)
    }

    fn take(&mut self, FoundEffect { space, key, body }: FoundEffect<'_>) {
        self.records += 1;
        if space == Space::Tables {
            let Some(TableHead { incarnation, number }) = TableHead::decode(key) else { return };
            let last = self.tables.entry(incarnation).or_default();
            if number >= last.0 && !matches!(incarnation, CLOCK | END) {
                *last = (number, matches!(body, FoundBody::Value(_)));
            }
        } else if let Some((head, key)) = ElementHead::decode(key).filter(|_| space == Space::Elements) {
            let newest = self.newest.entry((head.incarnation, key.into())).or_default();
            if head.version >= newest.version {
                let bytes = match body {
                    FoundBody::Value(value) => Some(element_bytes(key.len(), value.len())),
                    FoundBody::Removed | FoundBody::Lost => None,
                };
                *newest = NewestRecord { version: head.version, bytes, is_lost: body == FoundBody::Lost };
            }
        }
    }
}

/// Takes the records of one thread.
struct CheckReader<'c>(&'c Checker);

impl EffectReader for CheckReader<'_> {
    fn take(&mut self, effect: FoundEffect<'_>) {
        self.0.log().take(effect);
    }
}

impl Checker {
    fn log(&self) -> MutexGuard<'_, CheckedLog> {
        self.0.lock()
    }
}

impl EffectOwner for Checker {
    fn reader(&self) -> Box<dyn EffectReader + '_> {
        Box::new(CheckReader(self))
    }

    fn live(&self) -> (u64, u64) {
        let log = self.log();
        let live = log.newest.iter().filter(|((life, _), _)| log.is_named(*life));
        live.filter_map(|(_, newest)| newest.bytes).fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes as u64))
    }

    /// A check writes nothing.
    fn encode_all(&self, _: usize, _: &mut dyn FnMut(EncodedRecords) -> Result<(), Error>) -> Result<(), Error> {
        Ok(())
    }
}
