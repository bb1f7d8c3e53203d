//! A log between whose steps the clients go on: memory is newer than the disk whenever it judges a record.

use std::sync::Arc;

use super::clients::Clients;
use crate::lock::Mutex;
use crate::store::{AddsRefused, EffectJudge, EffectState, EncodedRecords, Error, LogMetrics, Space, StoreBackup};
use crate::tables::durable::log::EffectLog;

/// A log between whose steps the clients make changes.
pub(super) struct InterruptedLog {
    pub(super) log: Box<dyn EffectLog>,
    pub(super) clients: Arc<Mutex<Clients>>,
}

/// A judge between whose looks the clients make changes.
struct InterruptedJudge<'j> {
    judge: &'j mut dyn EffectJudge,
    clients: &'j Mutex<Clients>,
}

impl EffectJudge for InterruptedJudge<'_> {
    fn judge(&mut self, space: Space, key: &[u8]) -> EffectState {
        let mut clients = self.clients.lock();
        if clients.rng.one_in(4) {
            clients.steps(3);
        }
        drop(clients);
        self.judge.judge(space, key)
    }

    fn lost(&mut self, space: Space, key: &[u8]) {
        self.judge.lost(space, key);
    }

    fn all_lost(&mut self) -> bool {
        self.judge.all_lost()
    }
}

impl EffectLog for InterruptedLog {
    fn append(&mut self, epoch: &mut Vec<EncodedRecords>, live: u64, judge: &mut dyn EffectJudge) -> Result<(), Error> {
        let mut clients = self.clients.lock();
        clients.batches += 1;
        clients.steps(5);
        drop(clients);
        self.log.append(epoch, live, &mut InterruptedJudge { judge, clients: &self.clients })
    }

    fn sync(&mut self) -> Result<(), Error> {
        self.clients.lock().steps(3);
        self.log.sync()
    }

    fn rest(&mut self) -> Result<(), Error> {
        self.log.rest()
    }

    fn raise(&mut self, mark: usize, value: u64) {
        self.log.raise(mark, value);
    }

    fn adds_room(&self) -> Result<u64, AddsRefused> {
        self.log.adds_room()
    }

    fn backup(&mut self) -> Result<Box<dyn StoreBackup>, Error> {
        self.log.backup()
    }

    fn may_shrink(&self) -> bool {
        self.log.may_shrink()
    }

    fn waits_for_files(&self) -> bool {
        self.log.waits_for_files()
    }

    fn metrics(&self) -> LogMetrics {
        self.log.metrics()
    }
}
