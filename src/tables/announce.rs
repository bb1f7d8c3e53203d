//! The publisher's end of the change queue: takes the writers' rings, puts each slot's changes in order, announces.
//!
//! It serialises nothing and knows no socket: the caller's closure does the telling. What it holds back is bounded by
//! the writers' credits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ahash::AHashMap;
use crossbeam::epoch::{self, Guard};

use super::change::{Change, ChangeQueue, ChangeRing, Committed, lock};
use super::reaper::RetireSender;
use super::registry::Registry;
use super::sleep_state::{BUT_FOR_URGENT, SOUND};
use super::slot::{SlotHandle, SlotState};
use super::table::Table;
use super::{ChangeKind, Drained};
use crate::limits::LOOK_AHEAD;

/// Tells subscribers: the table's name as it was created, what happened, the key.
type Announce<'a> = dyn FnMut(&[u8], ChangeKind, &[u8]) + 'a;

/// A ring as the publisher knows it.
struct RingState {
    ring: Arc<ChangeRing>,
    /// Announced changes of this ring: what the credits are counted by.
    announced: u64,
    /// Some of them have not been given back yet; the lane is in `owed`.
    owes: bool,
    /// Taken from the ring; the difference is held back.
    taken: u64,
}

/// A change, and the lane that its credit goes back to.
struct HeldChange {
    change: Change,
    lane: u64,
}

/// What has come to its end and is not handed on yet: that may wait, so it is done without a guard.
enum Retired {
    Slot(SlotHandle),
    /// By its number.
    Table(u32),
}

/// The publisher's end of the change queue. One thread owns it.
pub struct Changes {
    change_queue: Arc<ChangeQueue>,
    generation: usize,
    lanes: AHashMap<u64, RingState>,
    /// The lanes' numbers in the order in which they are served.
    order: Vec<u64>,
    /// Empty between drains; in one, the lanes that may have more to give.
    turn: Vec<u64>,
    next_lane: u64,
    /// Lanes whose credits are to be given back at the end of the drain.
    owed: Vec<u64>,
    /// By the address of the slot and the version: changes that came before their predecessor. A slot that has one is
    /// kept by its handle, so its address is not used again.
    held: AHashMap<(usize, u32), HeldChange>,
    /// By the address of a slot of an older table: changes that wait for its last one.
    blocked: AHashMap<usize, Vec<HeldChange>>,
    work: VecDeque<HeldChange>,
    ended: Vec<Retired>,
    registry: Arc<Registry>,
    retire: RetireSender,
}

impl Changes {
    pub(super) fn new(change_queue: Arc<ChangeQueue>, registry: Arc<Registry>, retire: RetireSender) -> Self {
        Self {
            change_queue,
            generation: usize::MAX,
            lanes: AHashMap::new(),
            order: Vec::new(),
            turn: Vec::new(),
            next_lane: 0,
            owed: Vec::new(),
            held: AHashMap::new(),
            blocked: AHashMap::new(),
            work: VecDeque::new(),
            ended: Vec::new(),
            registry,
            retire,
        }
    }

    /// How the publisher is woken: called by writers, from any thread, while it is asleep. The first one set stays.
    pub fn set_waker(&mut self, wake: Box<dyn Fn() + Send + Sync>) {
        // A second waker is refused by the cell; the first keeps working.
        let _already_set = self.change_queue.waker.set(wake);
    }

    /// Takes what waits, at most about `limit` changes, and calls `announce(table, kind, key)` for each that
    /// subscribers should hear of, in each key's commit order. Credits go back before it returns.
    ///
    /// `table` is the name exactly as it was created. `announce` is called under a guard: it does not wait for anything.
    pub fn drain(&mut self, limit: usize, announce: &mut Announce<'_>) -> Drained {
        self.change_queue.sleep_state.end();
        // SeqCst: pairs with the store in `close`. A lane goes only when its writer is gone and all is announced.
        let closed = self.change_queue.closed.load(Ordering::SeqCst);
        self.refresh();
        let taken = self.drain_lanes(limit, announce);
        self.give_back();
        Drained { taken, closed: closed && self.lanes.is_empty() }
    }

    /// Takes equal shares of the lanes, and what some have left of theirs from those that have more. The cost is linear in
    /// the lanes and in the changes: a lane that is looked at again had a full share to give.
    fn drain_lanes(&mut self, limit: usize, announce: &mut Announce<'_>) -> usize {
        let mut lanes = std::mem::take(&mut self.turn);
        lanes.extend_from_slice(&self.order);
        let mut taken = 0;
        while taken < limit && !lanes.is_empty() {
            let share = ((limit - taken) / lanes.len()).max(1);
            lanes.retain(|lane| {
                let count = self.drain_lane(*lane, share, announce);
                taken += count;
                count == share
            });
        }
        lanes.clear();
        self.turn = lanes;
        taken
    }

    fn drain_lane(&mut self, number: u64, share: usize, announce: &mut Announce<'_>) -> usize {
        let Some(ring) = self.lanes.get(&number).map(|lane| Arc::clone(&lane.ring)) else { return 0 };
        let mut taken = 0;
        while taken < share {
            let count = self.take(&ring, number, LOOK_AHEAD.min(share - taken));
            if count == 0 {
                break;
            }
            taken += count;
            self.run(announce);
        }
        if let Some(lane) = self.lanes.get_mut(&number) {
            lane.taken += taken as u64;
        }
        taken
    }

    /// Takes a few changes from a ring, and has the processor fetch their slots, so that the cache misses overlap.
    fn take(&mut self, ring: &ChangeRing, number: u64, count: usize) -> usize {
        let before = self.work.len();
        for change in std::iter::from_fn(|| ring.queue.pop()).take(count) {
            change.slot.slot().prefetch();
            self.work.push_back(HeldChange { change, lane: number });
        }
        self.work.len() - before
    }

    /// Announces what can be announced of the work at hand, and what that sets free.
    fn run(&mut self, announce: &mut Announce<'_>) {
        let registry = Arc::clone(&self.registry);
        let guard = epoch::pin();
        while let Some(held) = self.work.pop_front() {
            let slot = held.change.slot.slot();
            let (address, version) = (slot.address(), held.change.version);
            if slot.announced().wrapping_add(1) != version {
                self.held.insert((address, version), held);
                continue;
            }
            let Some(table) = registry.get(slot.table(), &guard) else {
                unreachable!("a slot with a change to announce keeps its table unsettled, and so registered");
            };
            match table.unsettled_predecessor(slot.key()) {
                Some(predecessor) => self.blocked.entry(predecessor).or_default().push(held),
                None => {
                    self.announce(held, table, &guard, announce);
                    self.work.extend(self.held.remove(&(address, version.wrapping_add(1))));
                }
            }
        }
        drop(guard);
        self.hand_on();
    }

    fn announce(&mut self, held: HeldChange, table: &Table, guard: &Guard, announce: &mut Announce<'_>) {
        let HeldChange { change, lane } = held;
        let slot = change.slot.slot();
        if let Some(kind) = change.kind.told_as() {
            announce(table.announced_name(), kind, slot.key());
        }
        slot.set_announced(change.version);
        if let Some(owner) = self.lanes.get_mut(&lane) {
            owner.announced += 1;
            if !std::mem::replace(&mut owner.owes, true) {
                self.owed.push(lane);
            }
        }
        if change.kind == Committed::Deleted {
            self.retire(table, change.slot, guard);
        } else if change.kind.is_last() {
            self.work.extend(self.blocked.remove(&slot.address()).unwrap_or_default());
            if table.release_unsettled() {
                self.ended.push(Retired::Table(table.number()));
            }
        }
    }

    /// A deletion has been announced: if the slot is still vacant it dies. Only the winner of the CAS hands it over.
    fn retire(&mut self, table: &Table, handle: SlotHandle, guard: &Guard) {
        let slot = handle.slot();
        let seen = slot.load(guard);
        let SlotState::Absent(version) = seen.state() else { return };
        if !is_low_half(version, slot.announced()) {
            return;
        }
        // Before the CAS: the table must not be forgotten while the slot is on its way to the reaper.
        if !table.hold_unsettled() {
            return;
        }
        if slot.kill(seen, version, guard) {
            self.ended.push(Retired::Slot(handle));
        } else if table.release_unsettled() {
            self.ended.push(Retired::Table(table.number()));
        }
    }

    /// Hands on what has come to its end. It may wait for the reaper, so no guard is held.
    fn hand_on(&mut self) {
        for ended in self.ended.drain(..) {
            match ended {
                Retired::Slot(slot) => self.retire.retire_slot(slot),
                Retired::Table(number) => self.retire.settle_table(number),
            }
        }
    }

    /// Gives back the credits of what was announced in this drain, once for each ring, and wakes writers whose portion is
    /// there.
    fn give_back(&mut self) {
        for number in self.owed.drain(..) {
            let Some(lane) = self.lanes.get_mut(&number) else { continue };
            lane.owes = false;
            if lane.ring.credits.give_back(lane.announced) {
                lane.ring.sleeper.wake();
            }
        }
        self.change_queue.has_given_back();
    }

    /// Takes up new rings and lets go of finished ones.
    fn refresh(&mut self) {
        // SeqCst: pairs with the additions where rings come and go, also in `Writer::drop`.
        let generation = self.change_queue.generation.load(Ordering::SeqCst);
        if generation == self.generation {
            return;
        }
        let mut rings = lock(&self.change_queue.rings);
        for ring in rings.iter() {
            if !self.lanes.values().any(|lane| Arc::ptr_eq(&lane.ring, ring)) {
                self.lanes
                    .insert(self.next_lane, RingState { ring: Arc::clone(ring), announced: 0, owes: false, taken: 0 });
                self.next_lane += 1;
            }
        }
        let finished = |lane: &RingState| {
            // Acquire: pairs with the Release in `Writer::drop`: an empty ring stays empty.
            lane.ring.abandoned.load(Ordering::Acquire) && lane.ring.queue.is_empty() && lane.taken == lane.announced
        };
        rings.retain(|ring| !self.lanes.values().any(|lane| Arc::ptr_eq(&lane.ring, ring) && finished(lane)));
        self.lanes.retain(|_, lane| !finished(lane));
        let all_alive = !rings.iter().any(|ring| ring.abandoned.load(Ordering::Relaxed));
        drop(rings);
        self.order = self.lanes.keys().copied().collect();
        self.order.sort_unstable();
        if all_alive {
            self.generation = generation;
        }
    }

    /// Announces the intention to sleep. False: something has come, do not sleep. True: the waker will be called.
    ///
    /// `lazily`: nobody subscribes, so writers wake the publisher only when a ring is half full; the caller then
    /// sleeps with a time-out.
    pub fn prepare_sleep(&mut self, lazily: bool) -> bool {
        let change_queue = Arc::clone(&self.change_queue);
        let level = if lazily { BUT_FOR_URGENT } else { SOUND };
        change_queue.sleep_state.prepare(level, || {
            self.refresh();
            let wants = |ring: &ChangeRing| !ring.queue.is_empty() && ring.urgency(change_queue.capacity) < level;
            // SeqCst: pairs with the store in `close`. As long as there are writers, the last of them wakes the publisher.
            let is_over = change_queue.closed.load(Ordering::SeqCst) && self.lanes.is_empty();
            is_over || self.lanes.values().any(|lane| wants(&lane.ring))
        })
    }
}

/// Whether `low` is the low half of `version`.
pub(super) fn is_low_half(version: u64, low: u32) -> bool {
    version & u64::from(u32::MAX) == u64::from(low)
}
