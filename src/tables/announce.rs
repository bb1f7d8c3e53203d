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
//! With a feed (`feed.rs`) the publisher publishes each change there before it marks the change as announced, under the
//! feed's lock. It hands the messages on without the lock.
//!
//! # Retirement
//!
//! After it has announced a slot's deletion the publisher retires the slot by a CAS from Absent to Dead, unless the
//! slot already has a newer change. `Changes::retire` writes its races out.
//!
//! # The disk
//!
//! A change of a table that is always on disk has its turn when it is there: see `announce/unsynced.rs`.
//!
//! This module encodes no message and knows no socket: see `src/net/zeromq/publish`.

mod audience;
mod ending;
mod holds;
mod pending;
mod rings;
mod unsynced;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ahash::AHashSet;
use crossbeam::epoch::{self, Guard};

use super::change::{AnnouncedChange, ChangeQueue, ChangeSink};
use super::feed::TurnedChange;
use super::reaper::RetireSender;
use super::registry::Registry;
use super::sleep_state::{WAKE_FOR_ANY, WAKE_FOR_URGENT};
use super::slot::SlotHandle;
use super::table::Table;
use super::{ChangeKind, Drained};
use crate::feed::limits::FEED_CHANGES_MAX;
use crate::feed::{PublishedMessage, table_of_topic};
use audience::Review;
pub use audience::{Audience, Unsubscribed};
use ending::LeavingTables;
pub(super) use holds::AudienceHolds;
pub use holds::{AudienceHold, TopicCounts};
use pending::{HeldChange, PendingChanges};
use rings::{DrainedRing, Rings};
use unsynced::UnsyncedChanges;

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

    fn publish(&mut self, _message: &PublishedMessage) {}
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
    rings: Rings,
    pending: PendingChanges,
    /// Changes that wait for the disk.
    unsynced: UnsyncedChanges,
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
            rings: Rings::default(),
            pending: PendingChanges::new(retire.0.feed.is_some()),
            unsynced: UnsyncedChanges::default(),
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
        let change_queue = Arc::clone(&self.change_queue);
        self.unsynced.sleeper.set_waker(Box::new(move || change_queue.nudge()));
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
    /// together, and all of a key's changes come in its commit order.
    pub fn drain_to(&mut self, limit: usize, sink: &mut dyn ChangeSink) -> Drained {
        self.change_queue.sleep_state.end();
        self.begin_asked(sink);
        // SeqCst: pairs with the store in `close`. Read before the list of rings: no ring comes after the close, so an
        // empty list is final. A ring leaves the list when its writer is gone and all its changes are announced.
        let closing = self.change_queue.closed.load(Ordering::SeqCst);
        self.rings.refresh(&self.change_queue);
        let taken = self.drain_rings(limit, sink);
        self.announce_synced(sink);
        self.let_go(taken == 0, sink);
        if let Some(feed) = &self.retire.0.feed {
            feed.publish_dropped(sink);
        }
        self.rings.give_back();
        Drained { taken, left: self.rings.waiting(), closing, closed: closing && self.rings.is_empty() }
    }

    /// Takes equal shares of the rings, and gives the unused part of a share to the rings that have more. The cost is
    /// linear in the rings and the changes, since a ring that is visited again had a full share to give.
    fn drain_rings(&mut self, limit: usize, sink: &mut dyn ChangeSink) -> usize {
        let mut numbers = self.rings.begin_turns();
        let mut taken = 0;
        while taken < limit && !numbers.is_empty() {
            let share = ((limit - taken) / numbers.len()).max(1);
            numbers.retain(|number| {
                let count = self.drain_ring(*number, share, sink);
                taken += count;
                count == share
            });
        }
        self.rings.end_turns(numbers);
        taken
    }

    fn drain_ring(&mut self, number: u64, share: usize, sink: &mut dyn ChangeSink) -> usize {
        if self.rings.waiting_in(number) == 0 || self.unsynced.are_too_many() {
            return 0;
        }
        let mut source = DrainedRing { ring: number, left: share, is_dry: false };
        while self.run(&mut source, sink) {}
        share - source.left
    }

    /// Announces some changes whose turn has come, and the held changes that follow them.
    /// Returns whether there may be more. A run is short, and with a feed it ends when the changes have many bytes:
    /// other threads wait for its guard and for the feed.
    fn run(&mut self, source: &mut DrainedRing, sink: &mut dyn ChangeSink) -> bool {
        let (registry, shared) = (Arc::clone(&self.registry), Arc::clone(&self.retire.0));
        sink.begin();
        let guard = epoch::pin();
        let mut feed = shared.feed.as_ref().map(|feed| (feed, feed.log()));
        let (mut count, mut is_over) = (0, false);
        while count < RUN_CHANGES && feed.as_ref().is_none_or(|(_, log)| !log.ends_batch()) {
            let Some(held) = self.pending.next(&mut self.rings, source, &guard) else {
                is_over = true;
                break;
            };
            count += 1;
            let Some(held) = self.hold_unsynced(held, &guard) else { continue };
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
                self.pending.hold_back(held);
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
                Some(predecessor) => self.pending.block(predecessor, held),
                None => {
                    if let Some((feed, log)) = &mut feed {
                        let version = held.change.version;
                        let (committed, kept) = (held.change.committed(), held.kept.as_deref());
                        let change = TurnedChange { table, slot, version, committed, kept };
                        feed.publish(log, &change, &guard, |version| self.pending.cause_of(address, version));
                    }
                    self.announce(held, table, &guard, sink);
                    self.pending.follow(address, version);
                }
            }
        }
        drop(guard);
        if let Some((feed, log)) = feed {
            feed.send_batch(log, sink);
        }
        self.hand_on();
        !is_over
    }

    fn announce(&mut self, held: HeldChange, table: &Table, guard: &Guard, sink: &mut dyn ChangeSink) {
        let HeldChange { change, ring, .. } = held;
        let slot = change.slot.slot();
        let committed = change.committed();
        self.pending.note_done(committed);
        if let Some(announced) = AnnouncedChange::new(table.announced_name(), &change, guard) {
            sink.announce(&announced);
        }
        // After the message: the compactor takes the version that stands here as announced, and may move the slot.
        slot.set_announced(change.version);
        self.rings.owe(ring);
        if committed.vacates() {
            self.retire(table, change, guard);
        } else if committed.is_last() {
            self.end(slot, table);
        }
    }

    /// Takes all that is in a ring now, and no more: writers continue to push.
    fn drain_present(&mut self, sink: &mut dyn ChangeSink) {
        self.rings.refresh(&self.change_queue);
        for (number, count) in self.rings.all_waiting() {
            self.drain_ring(number, count, sink);
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
        self.watch_unsynced(lazily);
        change_queue.sleep_state.prepare(level, || {
            self.rings.refresh(&change_queue);
            // SeqCst: pairs with the store in `close`. As long as there are writers, the last one to go wakes the
            // publisher.
            let is_over = change_queue.closed.load(Ordering::SeqCst) && self.rings.is_empty();
            is_over
                || self.has_synced()
                || self.leaving.as_ref().is_some_and(LeavingTables::are_left)
                || self.rings.are_urgent(change_queue.capacity, level)
        })
    }
}
