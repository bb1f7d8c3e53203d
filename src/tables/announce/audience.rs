//! The audience: whether anybody can hear of changes. Without one a stored value costs no push and no work of the
//! publisher.
//!
//! What is committed without an audience is *quiet*: the entry or the absence that it leaves says so. A value that is
//! stored quietly is not pushed. Deletions, expiries and seals are pushed in any case, since the publisher retires slots
//! and settles tables, but they are not announced. With a feed there always is an audience.
//!
//! # Order
//!
//! A change says whether the one before it, of the same slot, was quiet. Then it is the next of its slot by itself. Any
//! other follows a change that is announced, or comes. The version that a slot keeps as announced counts only while no
//! quiet change has come behind it: the writer of the first quiet one says so in the slot (`SlotRef::replace`), and the
//! publisher makes it count again with the next change that it announces. So a version that is left from before a
//! silence is never taken for one of now, however many quiet changes came between.
//!
//! - **The audience begins.** The publisher sets the state, and waits until all guards of before are gone ([`set`]). From
//!   then on every change is pushed and announced. A quiet one that still is in a ring comes before or after its
//!   successor, which does not matter: see below.
//! - **The audience ends.** The publisher sets the state, and waits as before. All changes that are to be announced are in
//!   the rings then. It takes all that is there, tells nobody of them, and lets the last version of each slot count as
//!   announced (`SlotRef::catch_up`). They may come in any order, as quiet ones may.
//!
//! The state is read after the word that a CAS is to replace. So a change that follows a quiet one, or the quiet seal of
//! its key in an older table, is quiet itself until an audience begins.
//!
//! # Quiet changes
//!
//! They are dealt with as they come, in any order. Only the deletion that the slot still shows retires it. Until then its
//! table is registered: the slot is not dead, so the table is not settled. A seal holds its table until its own change
//! has come.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam::epoch::{self, Guard};

use super::{Changes, HeldChange, RUN_CHANGES};
use crate::tables::change::ChangeQueue;
use crate::tables::sleeper::Sleeper;

/// How often the publisher looks whether all guards of before are gone.
const GUARDS_RECHECK: Duration = Duration::from_micros(20);

/// Begins or ends the audience, and waits until all guards are gone that were there before. So all writers have pushed
/// by then what they committed under the old state, and commit under the new one. Guards are short: a thread that holds
/// one waits for nothing. The caller, the publisher's thread, holds none.
///
/// The reason is that of every epoch: the deferred call runs after each guard is gone that may not have seen the new
/// state, as memory is freed after each guard is gone that may have seen it linked.
fn set(queue: &ChangeQueue, has_audience: bool) {
    // A store is avoided, since all writers read the line.
    if queue.has_audience() == has_audience {
        return;
    }
    // SeqCst, and the pin's fence behind it: a guard that is pinned later sees the store.
    queue.audience.store(has_audience, Ordering::SeqCst);
    let (are_gone, sleeper) = (Arc::new(AtomicBool::new(false)), Arc::new(Sleeper::default()));
    let guard = epoch::pin();
    let (gone, awake) = (Arc::clone(&are_gone), Arc::clone(&sleeper));
    guard.defer(move || {
        // Release: pairs with the Acquire below. All pushes under the guards that are gone are visible.
        gone.store(true, Ordering::Release);
        awake.wake();
    });
    guard.flush();
    drop(guard);
    sleeper.park(GUARDS_RECHECK, || {
        epoch::pin().flush();
        are_gone.load(Ordering::Acquire)
    });
}

/// Tells the tables that somebody will hear of changes.
#[derive(Clone)]
pub struct Audience(Arc<ChangeQueue>);

impl Audience {
    /// There is an audience from now on: each change that is committed after this call returns is announced. It waits
    /// for the batches of all sessions, as a rule for less than a millisecond.
    ///
    /// The publisher's thread calls it, and holds no batch.
    pub fn begin(&self) {
        set(&self.0, true);
    }
}

impl Changes {
    /// Through this the publisher tells of a first subscription.
    #[must_use]
    pub fn audience(&self) -> Audience {
        Audience(Arc::clone(&self.change_queue))
    }

    /// Nobody hears of changes from now on, until [`Audience::begin`]. It waits as that does. The changes on the way are
    /// announced to nobody. Without effect if there is a feed, or no audience.
    pub fn end_audience(&mut self) {
        if self.retire.0.feed.is_some() || !self.change_queue.has_audience() {
            return;
        }
        set(&self.change_queue, false);
        let mut all = self.take_all();
        all.extend(self.held.drain().map(|(_, held)| held));
        all.extend(self.blocked.drain().flat_map(|(_, held)| held));
        debug_assert!(self.ahead.is_empty() && self.work.is_empty(), "a drain leaves nothing there");
        while !all.is_empty() {
            // Other threads wait for the guard, and the slots that have ended are handed on without one.
            let guard = epoch::pin();
            let left = all.len().saturating_sub(RUN_CHANGES);
            all.drain(left..).for_each(|held| self.settle(held, &guard));
            drop(guard);
            self.hand_on();
        }
        debug_assert_eq!(self.telling, 0, "all are dealt with");
        self.give_back();
    }

    /// Takes all changes that are in the rings now.
    fn take_all(&mut self) -> Vec<HeldChange> {
        self.refresh();
        let mut all = Vec::new();
        for (number, state) in &mut self.rings {
            // A ring has no more than that of now, and writers go on pushing.
            let some = std::iter::from_fn(|| state.changes.pop()).take(self.change_queue.capacity);
            let before = all.len();
            all.extend(some.map(|change| HeldChange { change, ring: *number }));
            state.taken += (all.len() - before) as u64;
        }
        self.telling += all.iter().filter(|held| held.change.kind().is_telling()).count();
        all
    }

    /// Deals with a change that nobody hears of: a quiet one, or one that was on its way when the audience ended. Those
    /// of a slot may come in any order.
    pub(super) fn settle(&mut self, held: HeldChange, guard: &Guard) {
        let HeldChange { change, ring } = held;
        self.telling -= usize::from(change.kind().is_telling());
        self.owe(ring);
        let slot = change.slot.slot();
        if !change.is_quiet() {
            slot.catch_up(guard);
        }
        let registry = Arc::clone(&self.registry);
        if change.kind().is_last() {
            let Some(table) = registry.get(change.table(), guard) else {
                unreachable!("a seal holds its table until its change has come");
            };
            self.end(slot, table);
        } else if change.kind().vacates()
            && let Some(table) = registry.get(change.table(), guard)
        {
            self.retire(table, change, guard);
        }
    }
}
