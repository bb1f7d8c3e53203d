//! Changes that are taken from the rings and not announced. Either their memory is on its way, or they wait for another
//! change.
//!
//! This module announces nothing.

use std::collections::VecDeque;

use ahash::{AHashMap, AHashSet};
use crossbeam::epoch::Guard;

use super::rings::{DrainedRing, Rings};
use crate::feed::Cause;
use crate::feed::limits::FEED_CHANGES_MAX;
use crate::tables::change::{Change, Committed};
use crate::tables::feed::KeptState;

/// Changes that are taken together from a ring: so many slots, and the entries of as many others, are on their way at a
/// time. The processor fetches as many lines at once, and so many changes take longer than a fetch.
const LOOK_AHEAD: usize = 16;

/// A change, and the number of the ring that its credit goes back to.
pub(super) struct HeldChange {
    pub(super) change: Change,
    pub(super) ring: u64,
    /// Whether it has not to wait for the disk any more.
    pub(super) is_on_disk: bool,
    /// What its element was when it began to wait for the disk, if there is a feed.
    pub(super) kept: Option<Box<KeptState>>,
}

/// All changes that are taken and not announced.
pub(super) struct PendingChanges {
    /// Changes that arrived before their predecessor, by slot address and version. The slot of such a change stays, so the
    /// address is not reused.
    held: AHashMap<(usize, u32), HeldChange>,
    /// Changes that wait for the last change of a slot of an older table, by the address of that slot.
    blocked: AHashMap<usize, Vec<HeldChange>>,
    /// Changes of the ring that is drained, from the oldest on. Of the first the memory has come, of the next the
    /// slots, while their entries are on their way. Of the last the slots are on their way. Empty between two rings.
    ahead: VecDeque<HeldChange>,
    /// How many changes at the front of `ahead` have their memory here, so that their turn may have come.
    ready: usize,
    /// How many changes behind them have their entries fetched.
    entries_fetched: usize,
    /// Changes that were held back and whose turn may have come. They go before `ahead`.
    work: VecDeque<HeldChange>,
    /// How many changes say more than that the element has a value or none.
    specific_causes: usize,
    /// Whether there is a feed, which reads the entries.
    has_feed: bool,
}

impl PendingChanges {
    pub(super) fn new(has_feed: bool) -> Self {
        Self {
            held: AHashMap::new(),
            blocked: AHashMap::new(),
            // Their lengths are bounded, and known before the first table.
            ahead: VecDeque::with_capacity(3 * LOOK_AHEAD),
            ready: 0,
            entries_fetched: 0,
            work: VecDeque::with_capacity(FEED_CHANGES_MAX),
            specific_causes: 0,
            has_feed,
        }
    }

    /// The next change whose turn may have come.
    #[inline]
    pub(super) fn next(&mut self, rings: &mut Rings, source: &mut DrainedRing, guard: &Guard) -> Option<HeldChange> {
        if let Some(held) = self.work.pop_front() {
            return Some(held);
        }
        while self.ready == 0 {
            if !self.look_ahead(rings, source, guard) {
                return None;
            }
        }
        self.ready -= 1;
        self.ahead.pop_front()
    }

    /// Takes a few changes from a ring, and asks the processor to fetch their slots. With a feed it asks for the entries
    /// of those that were taken before. A change is ready when its memory has had the time of the changes before it to
    /// come. So the cache misses overlap with each other and with the work. Returns whether there may be more changes.
    fn look_ahead(&mut self, rings: &mut Rings, source: &mut DrainedRing, guard: &Guard) -> bool {
        debug_assert_eq!(self.ready, 0, "the ready ones have had their turns");
        let (slots_fetched, ring) = (self.ahead.len(), source.ring);
        rings.take(source, LOOK_AHEAD, |change| {
            change.slot.slot().prefetch();
            self.specific_causes += usize::from(change.committed().has_specific_cause());
            self.ahead.push_back(HeldChange { change, ring, is_on_disk: false, kept: None });
        });
        self.ready = slots_fetched;
        if self.has_feed {
            let fresh = self.ahead.range(self.entries_fetched..slots_fetched);
            fresh.for_each(|held| held.change.slot.slot().prefetch_entry(guard));
            let entries_fetched = slots_fetched - self.entries_fetched;
            self.ready = std::mem::replace(&mut self.entries_fetched, entries_fetched);
        }
        !self.ahead.is_empty()
    }

    /// Keeps a change whose predecessor has not come.
    pub(super) fn hold_back(&mut self, held: HeldChange) {
        self.held.insert((held.change.slot.slot().address(), held.change.version), held);
    }

    /// Keeps a change until the last change of the slot at this address is dealt with.
    pub(super) fn block(&mut self, predecessor: usize, held: HeldChange) {
        self.blocked.entry(predecessor).or_default().push(held);
    }

    /// Puts changes to work that have waited for the disk.
    pub(super) fn begin_again(&mut self, synced: impl Iterator<Item = HeldChange>) {
        self.work.extend(synced);
    }

    /// The slot at this address has ended: puts the changes that wait for it back to work.
    pub(super) fn unblock(&mut self, address: usize) {
        self.work.extend(self.blocked.remove(&address).unwrap_or_default());
    }

    /// A version of the slot at this address is announced: puts the next one back to work, if it was held back.
    #[inline]
    pub(super) fn follow(&mut self, address: usize, version: u32) {
        if !self.held.is_empty() {
            self.work.extend(self.held.remove(&(address, version.wrapping_add(1))));
        }
    }

    /// A change is announced, or dealt with otherwise.
    #[inline]
    pub(super) fn note_done(&mut self, committed: Committed) {
        self.specific_causes -= usize::from(committed.has_specific_cause());
    }

    /// The cause of a change of this slot that has come and whose turn has not, if it says more than that the element
    /// has a value or none.
    pub(super) fn cause_of(&self, address: usize, version: u32) -> Option<Cause> {
        if self.specific_causes == 0 {
            return None;
        }
        let is_it = |held: &&HeldChange| held.change.slot.slot().address() == address && held.change.version == version;
        let found = self.held.get(&(address, version)).or_else(|| self.work.iter().chain(&self.ahead).find(is_it));
        found.and_then(|held| held.change.committed().changes())
    }

    /// Takes out the changes of these tables. The caller is between two drains.
    pub(super) fn extract(&mut self, tables: &AHashSet<u32>) -> Vec<HeldChange> {
        debug_assert!(self.ahead.is_empty() && self.work.is_empty(), "a drain leaves nothing there");
        let is_selected = |held: &HeldChange| tables.contains(&held.change.table());
        let mut found: Vec<_> = self.held.extract_if(|_, held| is_selected(held)).map(|(_, held)| held).collect();
        for waiting in self.blocked.values_mut() {
            found.extend(waiting.extract_if(.., |held| is_selected(held)));
        }
        self.blocked.retain(|_, waiting| !waiting.is_empty());
        found
    }
}
