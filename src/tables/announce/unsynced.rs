//! Changes of tables that are always on disk, from the moment when they are taken from the rings until they are on disk.
//!
//! ```text
//! ring ─► look: which epoch is the last of the table? ─► on disk: its turn
//!                                                   └──► here, in the order of taking ─► the log has synced it: its turn
//! ```
//! The epoch of a change is not after the last one of its table, which the publisher reads when it has taken the change.
//! Nobody else waits for these changes, but for one case: their values are kept for the feed, and beyond some bytes the
//! publisher takes no further change.
//!
//! If the log fails, the publisher gives up the changes that are not on disk: nobody is notified, and their credits go back. So
//! their elements are never taken for elements on disk. The other changes have their turn. Slots that a given-up change has
//! emptied stay until the restart. Nothing is added to such tables any more, so the slots are no more than at the failure, and
//! the memory of the tables does not grow.

use std::collections::VecDeque;
use std::sync::Arc;

use crossbeam::epoch::Guard;

use super::{Changes, DrainedRing, HeldChange};
use crate::tables::TablesShared;
use crate::tables::change::ChangeSink;
use crate::tables::feed::KeptState;
use crate::tables::registry::Registry;
use crate::tables::sleeper::Sleeper;

/// Bytes of values that are kept for the feed, beyond which no change is taken.
const KEPT_BYTES: usize = 64 << 20;

/// Changes that wait for the disk.
#[derive(Default)]
pub(super) struct UnsyncedChanges {
    /// With the epochs for which they wait, which do not decrease.
    queue: VecDeque<(u64, HeldChange)>,
    /// Bytes of the values that are kept.
    bytes: usize,
    /// Wakes the publisher behind a sync.
    pub(super) sleeper: Arc<Sleeper>,
}

impl UnsyncedChanges {
    fn hold(&mut self, epoch: u64, held: HeldChange) {
        let last = self.queue.back().map_or(0, |(last, _)| *last);
        self.bytes += held.kept.as_ref().map_or(0, |kept| kept.bytes());
        self.queue.push_back((epoch.max(last), held));
    }

    /// Those that wait for an epoch up to this one.
    fn release(&mut self, synced: u64) -> impl Iterator<Item = HeldChange> {
        std::iter::from_fn(move || {
            let (_, held) = self.queue.pop_front_if(|(epoch, _)| *epoch <= synced)?;
            self.bytes -= held.kept.as_ref().map_or(0, |kept| kept.bytes());
            Some(held)
        })
    }

    /// Whether no further change is taken.
    pub(super) fn are_too_many(&self) -> bool {
        self.bytes > KEPT_BYTES
    }
}

impl Changes {
    /// Keeps a change that was just taken if its table is always on disk, and has records that are not. Otherwise it is
    /// returned.
    #[inline]
    pub(super) fn hold_unsynced(&mut self, mut held: HeldChange, guard: &Guard) -> Option<HeldChange> {
        if held.is_on_disk || !self.retire.0.epochs.has_always() {
            return Some(held);
        }
        held.is_on_disk = true;
        let table = self.registry.get(held.change.table(), guard).filter(|table| table.is_always());
        let Some(table) = table else { return Some(held) };
        if self.retire.0.feed.is_some() {
            // Before the epoch is read, which has this state. Later the element may have a value of another epoch.
            held.kept = Some(Box::new(KeptState::of(held.change.slot.slot(), guard)));
        }
        let Some(epoch) = self.retire.0.epochs.awaited_of(table) else { return Some(held) };
        self.unsynced.hold(epoch, held);
        None
    }

    /// Announces the changes that have come to the disk.
    pub(super) fn announce_synced(&mut self, sink: &mut dyn ChangeSink) {
        if self.unsynced.queue.is_empty() {
            return;
        }
        let disk = self.retire.0.epochs.disk_state();
        self.pending.begin_again(self.unsynced.release(disk.synced));
        self.run_waiting(sink);
        if disk.has_failed {
            let guard = crossbeam::epoch::pin();
            let (lost, on_disk): (Vec<_>, Vec<_>) =
                self.unsynced.release(u64::MAX).partition(|held| is_lost(held, &self.registry, &self.retire.0, &guard));
            drop(guard);
            self.pending.begin_again(on_disk.into_iter());
            self.run_waiting(sink);
            self.give_up(lost);
            self.run_waiting(sink);
        }
    }

    /// Before a sleep: has the log hasten for the changes that wait, and wake the publisher behind its next sync. A lazy
    /// sleep has a time-out, and somebody waits for its changes only if a writer has no credits.
    pub(super) fn watch_unsynced(&self, lazily: bool) {
        if let Some((last, _)) = self.unsynced.queue.back()
            && (!lazily || self.rings.are_awaited())
        {
            self.retire.0.epochs.watch_disk(*last, &self.unsynced.sleeper);
        }
    }

    /// Whether a change that was held can be dealt with.
    pub(in crate::tables) fn has_synced(&self) -> bool {
        let first = self.unsynced.queue.front();
        first.is_some_and(|(first, _)| self.retire.0.epochs.is_decided(*first))
    }

    /// Deals with the changes whose turn may have come, and takes none from a ring.
    pub(super) fn run_waiting(&mut self, sink: &mut dyn ChangeSink) {
        while self.run(&mut DrainedRing { ring: u64::MAX, left: 0, is_dry: true }, sink) {}
    }

    /// These changes will never be on disk.
    fn give_up(&mut self, mut given_up: Vec<HeldChange>) {
        // Changes that wait for one of them.
        let tables = given_up.iter().map(|held| held.change.table()).collect();
        given_up.extend(self.pending.extract(&tables));
        let (registry, guard) = (Arc::clone(&self.registry), crossbeam::epoch::pin());
        for HeldChange { change, ring, .. } in given_up {
            let committed = change.committed();
            self.pending.note_done(committed);
            self.rings.owe(ring);
            if committed.is_last()
                && let Some(table) = registry.get(change.table(), &guard)
            {
                // A younger table of the name waits for it.
                self.end(change.slot.slot(), table);
            }
        }
        drop(guard);
        self.hand_on();
    }
}

/// Whether a change was not on disk when the log failed.
fn is_lost(held: &HeldChange, registry: &Registry, shared: &TablesShared, guard: &Guard) -> bool {
    let change = &held.change;
    let lost = shared.epochs.lost().zip(registry.get(change.table(), guard));
    lost.is_none_or(|(lost, table)| lost.has(table, change.slot.slot().key(), change.version, change.committed().cause))
}
