//! The publisher's end of the change queue: it drains the writers' rings, puts each slot's changes in order, and
//! announces them.
//!
//! The caller's closure sends the messages. The writers' credits bound the changes that are held back.
//!
//! # Order
//!
//! A writer pushes after its CAS, so two changes of one slot may arrive in either order. Versions of a slot grow by
//! one. If a change arrives first whose predecessor has not been announced, the publisher holds it back by slot and
//! version. When the predecessor has arrived and is announced, the publisher announces the held change next. Credits
//! guarantee that the predecessor arrives: its writer does not wait between CAS and push. A change that follows one
//! without an audience says so, and is held back for none.
//!
//! A change of a new table's slot waits likewise for the last change of the same key in an older table of the name. If
//! that one is announced first, the new change is announced at once. If not, the publisher keeps it in `blocked`, and
//! the announcement of the last change puts it back to work.
//!
//! # The audience
//!
//! While nobody can receive them, changes that store values are not pushed, and changes that end elements are not put
//! in order: see `announce/audience.rs`.
//!
//! # The feed
//!
//! With a feed (`feed.rs`) each change is told to it before it is marked as announced, under the feed's lock. The
//! messages are handed on without the lock.
//!
//! # Retirement
//!
//! After it has announced a slot's deletion the publisher retires the slot by a CAS from Absent to Dead, unless the
//! slot already has a newer change. `Changes::retire` writes its races out.
//!
//! This module encodes no message and knows no socket: see `src/net/zeromq/publish`.

mod audience;
mod ending;
mod holds;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ahash::{AHashMap, AHashSet};
use crossbeam::epoch::{self, Guard};

use super::change::{AnnouncedChange, Change, ChangeQueue, ChangeRing, ChangeSink};
use super::feed::TurnedChange;
use super::reaper::RetireSender;
use super::registry::Registry;
use super::sleep_state::{WAKE_FOR_ANY, WAKE_FOR_URGENT};
use super::slot::{RingReader, SlotHandle};
use super::table::Table;
use super::{ChangeKind, Drained};
use crate::feed::limits::FEED_CHANGES_MAX;
use crate::feed::{Cause, PublishedMessage, table_of_topic};
use audience::Review;
pub use audience::{Audience, Unheard};
use ending::LeavingTables;
pub use holds::AudienceHold;
pub(super) use holds::AudienceHolds;

/// Changes that are taken together from a ring: so many slots, and the entries of as many others, are on their way at a
/// time. The processor fetches as many lines at once, and so many changes take longer than a fetch.
const LOOK_AHEAD: usize = 16;
/// Changes of one run, whose messages of the feed are kept and counted together. An instruction that counts references
/// waits for all earlier stores, and a message is copied to memory that no cache has.
const RUN_CHANGES: usize = 4 * FEED_CHANGES_MAX;

/// Sends one notification: the table's name as it was created, the kind of the change, the key.
type Announce<'a> = dyn FnMut(&[u8], ChangeKind, &[u8]) + 'a;

/// Sends notifications alone.
struct AnnounceOnly<'s, 'a>(&'s mut Announce<'a>);

impl ChangeSink for AnnounceOnly<'_, '_> {
    fn announce(&mut self, change: &AnnouncedChange<'_>) {
        if let Some(kind) = ChangeKind::of(change.cause) {
            (self.0)(change.table, kind, change.key);
        }
    }

    fn tell(&mut self, _message: &PublishedMessage) {}
}

/// The publisher's record of a ring.
struct RingState {
    ring: Arc<ChangeRing>,
    changes: RingReader<Change>,
    /// Changes of this ring whose credits have been given back after they were announced.
    announced: u64,
    /// Changes taken from the ring. Those not announced are held back.
    taken: u64,
}

/// The ring that is drained.
struct Source {
    ring: u64,
    /// Changes that may still be taken from it.
    left: usize,
    /// It was found empty.
    is_dry: bool,
}

/// Announced changes whose credits have yet to be given back to a ring.
struct OwedCredits {
    ring: u64,
    changes: u64,
}

/// A change, and the number of the ring that its credit goes back to.
struct HeldChange {
    change: Change,
    ring: u64,
}

/// A slot or a table that has ended. The publisher hands it to the reaper without a guard, since that may wait.
enum Retired {
    /// With the number of its table.
    Slot(SlotHandle, u32),
    /// The table's number.
    Table(u32),
}

/// The publisher's end of the change queue. One thread owns it.
pub struct Changes {
    change_queue: Arc<ChangeQueue>,
    generation: usize,
    rings: AHashMap<u64, RingState>,
    /// The rings' numbers in the order in which they are served.
    order: Vec<u64>,
    /// During a drain, the rings that may have more changes to take. Empty otherwise.
    turn: Vec<u64>,
    next_ring: u64,
    /// Credits that are given back at the end of the drain. Changes of one ring come in runs, so a ring may be there
    /// more than once, and the list is short.
    owed: Vec<OwedCredits>,
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
    /// How many of the changes that are taken and not announced say more than that the element has a value or none.
    telling: usize,
    ended: Vec<Retired>,
    /// Settled tables, if somebody has ever held an audience of ends alone.
    leaving: Option<LeavingTables>,
    /// While the audience of some tables ends: their numbers.
    silenced: AHashSet<u32>,
    review: Review,
    registry: Arc<Registry>,
    retire: RetireSender,
}

impl Changes {
    pub(super) fn new(change_queue: Arc<ChangeQueue>, registry: Arc<Registry>, retire: RetireSender) -> Self {
        Self {
            change_queue,
            generation: usize::MAX,
            rings: AHashMap::new(),
            order: Vec::new(),
            turn: Vec::new(),
            next_ring: 0,
            owed: Vec::new(),
            held: AHashMap::new(),
            blocked: AHashMap::new(),
            // Their lengths are bounded, and known before the first table.
            ahead: VecDeque::with_capacity(3 * LOOK_AHEAD),
            ready: 0,
            entries_fetched: 0,
            work: VecDeque::with_capacity(FEED_CHANGES_MAX),
            telling: 0,
            ended: Vec::new(),
            leaving: None,
            silenced: AHashSet::new(),
            review: Review::default(),
            registry,
            retire,
        }
    }

    /// Sets the waker of the publisher. Writers call it, from any thread, while the publisher is asleep. The first
    /// waker stays.
    pub fn set_waker(&mut self, wake: Box<dyn Fn() + Send + Sync>) {
        // The cell refuses a second waker. The first one keeps working.
        let _already_set = self.change_queue.waker.set(wake);
    }

    /// Takes about `limit` waiting changes at most, and calls `announce(table, kind, key)` for each that subscribers
    /// receive, in each key's commit order, and for each end that a holder of ends alone receives. Credits are given
    /// back before it returns.
    ///
    /// `table` is the name exactly as it was created. `announce` is called under a guard, so it must not wait.
    pub fn drain(&mut self, limit: usize, announce: &mut Announce<'_>) -> Drained {
        self.drain_to(limit, &mut AnnounceOnly(announce))
    }

    /// Like [`Changes::drain`], and hands the feed's messages to `sink` too. Each holds changes that were drained
    /// together, and all of a key's changes are told in its commit order.
    pub fn drain_to(&mut self, limit: usize, sink: &mut dyn ChangeSink) -> Drained {
        self.change_queue.sleep_state.end();
        self.begin_asked(sink);
        // SeqCst: pairs with the store in `close`. Read before the list of rings: no ring comes after the close, so an
        // empty list is final. A ring leaves the list when its writer is gone and all its changes are announced.
        let closing = self.change_queue.closed.load(Ordering::SeqCst);
        self.refresh();
        let taken = self.drain_rings(limit, sink);
        self.let_go(taken == 0, sink);
        if let Some(feed) = &self.retire.0.feed {
            feed.tell_dropped(sink);
        }
        self.give_back();
        let left = self.rings.values().map(|state| state.ring.queue.len()).sum();
        Drained { taken, left, closing, closed: closing && self.rings.is_empty() }
    }

    /// Takes equal shares of the rings, and gives the unused part of a share to the rings that have more. The cost is
    /// linear in the rings and the changes, since a ring that is visited again had a full share to give.
    fn drain_rings(&mut self, limit: usize, sink: &mut dyn ChangeSink) -> usize {
        let mut numbers = std::mem::take(&mut self.turn);
        numbers.extend_from_slice(&self.order);
        let mut taken = 0;
        while taken < limit && !numbers.is_empty() {
            let share = ((limit - taken) / numbers.len()).max(1);
            numbers.retain(|number| {
                let count = self.drain_ring(*number, share, sink);
                taken += count;
                count == share
            });
        }
        numbers.clear();
        self.turn = numbers;
        taken
    }

    fn drain_ring(&mut self, number: u64, share: usize, sink: &mut dyn ChangeSink) -> usize {
        if self.rings.get(&number).is_none_or(|state| state.ring.queue.is_empty()) {
            return 0;
        }
        let mut source = Source { ring: number, left: share, is_dry: false };
        while self.run(&mut source, sink) {}
        share - source.left
    }

    /// Takes a few changes from a ring, and asks the processor to fetch their slots. With a feed it asks for the entries
    /// of those that were taken before. A change is ready when its memory has had the time of the changes before it to
    /// come. So the cache misses overlap with each other and with the work. Returns whether there may be more changes.
    fn look_ahead(&mut self, source: &mut Source, guard: &Guard) -> bool {
        debug_assert_eq!(self.ready, 0, "the ready ones have had their turns");
        let slots_fetched = self.ahead.len();
        self.take(source);
        self.ready = slots_fetched;
        if self.retire.0.feed.is_some() {
            let fresh = self.ahead.range(self.entries_fetched..slots_fetched);
            fresh.for_each(|held| held.change.slot.slot().prefetch_entry(guard));
            let entries_fetched = slots_fetched - self.entries_fetched;
            self.ready = std::mem::replace(&mut self.entries_fetched, entries_fetched);
        }
        !self.ahead.is_empty()
    }

    fn take(&mut self, source: &mut Source) {
        let count = LOOK_AHEAD.min(source.left);
        let Some(state) = self.rings.get_mut(&source.ring).filter(|_| count > 0 && !source.is_dry) else { return };
        let mut taken = 0;
        while taken < count
            && let Some(change) = state.changes.pop()
        {
            change.slot.slot().prefetch();
            self.telling += usize::from(change.committed().is_telling());
            self.ahead.push_back(HeldChange { change, ring: source.ring });
            taken += 1;
        }
        state.taken += taken as u64;
        source.left -= taken;
        // What comes meanwhile has its turn in the next drain.
        source.is_dry = taken < count;
    }

    /// The next change whose turn may have come.
    fn next(&mut self, source: &mut Source, guard: &Guard) -> Option<HeldChange> {
        if let Some(held) = self.work.pop_front() {
            return Some(held);
        }
        while self.ready == 0 {
            if !self.look_ahead(source, guard) {
                return None;
            }
        }
        self.ready -= 1;
        self.ahead.pop_front()
    }

    /// Announces some changes whose turn has come, of `work` and of the ring, and the held changes that follow them.
    /// Returns whether there may be more. A run is short, and with a feed it ends when the changes have many bytes:
    /// other threads wait for its guard and for the feed.
    fn run(&mut self, source: &mut Source, sink: &mut dyn ChangeSink) -> bool {
        let (registry, shared) = (Arc::clone(&self.registry), Arc::clone(&self.retire.0));
        sink.begin();
        let guard = epoch::pin();
        let mut feed = shared.feed.as_ref().map(|feed| (feed, feed.log()));
        let (mut count, mut is_over) = (0, false);
        while count < RUN_CHANGES && feed.as_ref().is_none_or(|(_, log)| !log.ends_batch()) {
            let Some(held) = self.next(source, &guard) else {
                is_over = true;
                break;
            };
            count += 1;
            if held.change.is_quiet() || self.silenced.contains(&held.change.table()) {
                self.settle(held, sink, &guard);
                continue;
            }
            let slot = held.change.slot.slot();
            let (address, version) = (slot.address(), held.change.version);
            // Two writers have pushed in the opposite order of their commits, in two rings or in one that was read
            // first. The predecessor's writer holds a credit and does not wait before its push, so the predecessor
            // comes.
            if !held.change.follows_quiet() && !slot.announced().is_followed_by(version) {
                self.held.insert((address, version), held);
                continue;
            }
            let Some(table) = registry.get(held.change.table(), &guard) else {
                unreachable!("a slot with a change to announce keeps its table unsettled, and so registered");
            };
            // A writer of this table has sealed the key in each older table before its commit, so the older slot's last
            // change is committed, and pushed or about to be. If it is announced already, nothing is found here. If it
            // is announced later, `announce` puts this change back to work. This thread does both, so no change is
            // blocked behind one that it has just announced.
            match table.unsettled_predecessor(slot.key()) {
                Some(predecessor) => self.blocked.entry(predecessor).or_default().push(held),
                None => {
                    if let Some((feed, log)) = &mut feed {
                        let version = held.change.version;
                        let change = TurnedChange { table, slot, version, committed: held.change.committed() };
                        feed.tell(log, &change, &guard, |version| self.cause_of(address, version));
                    }
                    self.announce(held, table, &guard, sink);
                    if !self.held.is_empty() {
                        self.work.extend(self.held.remove(&(address, version.wrapping_add(1))));
                    }
                }
            }
        }
        drop(guard);
        if let Some((feed, log)) = feed {
            feed.publish(log, sink);
        }
        self.hand_on();
        !is_over
    }

    /// The cause of a change of this slot that has come and whose turn has not, if it says more than that the element
    /// has a value or none.
    fn cause_of(&self, address: usize, version: u32) -> Option<Cause> {
        if self.telling == 0 {
            return None;
        }
        let is_it = |held: &&HeldChange| held.change.slot.slot().address() == address && held.change.version == version;
        let found = self.held.get(&(address, version)).or_else(|| self.work.iter().chain(&self.ahead).find(is_it));
        found.and_then(|held| held.change.committed().changes())
    }

    fn announce(&mut self, held: HeldChange, table: &Table, guard: &Guard, sink: &mut dyn ChangeSink) {
        let HeldChange { change, ring } = held;
        let slot = change.slot.slot();
        let committed = change.committed();
        self.telling -= usize::from(committed.is_telling());
        if let Some(announced) = AnnouncedChange::new(table.announced_name(), &change, guard) {
            sink.announce(&announced);
        }
        // After the message: the compactor takes the version that stands here as announced, and may move the slot.
        slot.set_announced(change.version);
        self.owe(ring);
        if committed.vacates() {
            self.retire(table, change, guard);
        } else if committed.is_last() {
            self.end(slot, table);
        }
    }

    /// Notes that a credit goes back to this ring.
    fn owe(&mut self, ring: u64) {
        match self.owed.last_mut().filter(|owed| owed.ring == ring) {
            Some(owed) => owed.changes += 1,
            None => self.owed.push(OwedCredits { ring, changes: 1 }),
        }
    }

    /// Takes all that is in a ring now, and no more: writers go on pushing.
    fn drain_present(&mut self, sink: &mut dyn ChangeSink) {
        self.refresh();
        let present: Vec<_> =
            self.order.iter().filter_map(|number| Some((*number, self.rings.get(number)?.ring.queue.len()))).collect();
        for (number, count) in present {
            self.drain_ring(number, count, sink);
        }
    }

    /// Gives back the credits of the changes announced in this drain, and wakes the writers whose portion of credits is
    /// complete.
    fn give_back(&mut self) {
        for OwedCredits { ring, changes } in self.owed.drain(..) {
            let Some(state) = self.rings.get_mut(&ring) else { continue };
            state.announced += changes;
            if state.ring.credits.give_back(state.announced) {
                state.ring.sleeper.wake();
            }
        }
    }

    /// Adds new rings and removes finished ones.
    fn refresh(&mut self) {
        // SeqCst: pairs with the additions in `ChangeQueue::writer` and in the drop of `ChangeWriter`.
        let generation = self.change_queue.generation.load(Ordering::SeqCst);
        if generation == self.generation {
            return;
        }
        let mut rings = self.change_queue.rings.lock();
        for ring in rings.iter() {
            if let Some(changes) = ring.reader.lock().take() {
                let ring = Arc::clone(ring);
                self.rings.insert(self.next_ring, RingState { ring, changes, announced: 0, taken: 0 });
                self.next_ring += 1;
            }
        }
        let finished = |state: &RingState| {
            // Acquire: pairs with the Release in the drop of `ChangeWriter`. Its pushes are visible, so an empty ring
            // stays empty.
            state.ring.abandoned.load(Ordering::Acquire)
                && state.ring.queue.is_empty()
                && state.taken == state.announced
        };
        rings.retain(|ring| !self.rings.values().any(|state| Arc::ptr_eq(&state.ring, ring) && finished(state)));
        self.rings.retain(|_, state| !finished(state));
        // While an abandoned ring still has changes, the generation is not noted, and the next drain looks again.
        // Relaxed: a writer that goes later raises the generation, so a later drain looks again.
        let all_alive = !rings.iter().any(|ring| ring.abandoned.load(Ordering::Relaxed));
        drop(rings);
        self.order = self.rings.keys().copied().collect();
        self.order.sort_unstable();
        if all_alive {
            self.generation = generation;
        }
    }

    /// A bookmark of the newest life of the table of a whole topic, as a payload. `None`: there is no feed, or no
    /// table can have the topic.
    #[must_use]
    pub fn bookmark(&self, topic: &[u8]) -> Option<Vec<u8>> {
        self.retire.0.bookmark(topic, table_of_topic(topic)?)
    }

    /// Prepares to sleep. True: the publisher sleeps, and a writer calls the waker. False: a change has arrived, or the
    /// queue is closed and drained, and the publisher stays awake.
    ///
    /// `lazily`: there are no subscribers, so writers wake the publisher only when a ring is half full or a writer
    /// waits. The caller then sleeps with a time-out.
    ///
    /// The race with a writer is written out in `sleep_state.rs`: either this call sees the change, or the writer sees
    /// the level.
    pub fn prepare_sleep(&mut self, lazily: bool) -> bool {
        let change_queue = Arc::clone(&self.change_queue);
        let level = if lazily { WAKE_FOR_URGENT } else { WAKE_FOR_ANY };
        change_queue.sleep_state.prepare(level, || {
            self.refresh();
            let wants = |ring: &ChangeRing| !ring.queue.is_empty() && ring.urgency(change_queue.capacity) < level;
            // SeqCst: pairs with the store in `close`. As long as there are writers, the last one to go wakes the
            // publisher.
            let is_over = change_queue.closed.load(Ordering::SeqCst) && self.rings.is_empty();
            is_over
                || self.leaving.as_ref().is_some_and(LeavingTables::are_left)
                || self.rings.values().any(|state| wants(&state.ring))
        })
    }
}
