//! The audience: whether anybody can hear of changes. Without one a stored value costs no push and no work of the
//! publisher.
//!
//! What is committed without an audience is *quiet*: the entry or the absence that it leaves says so. A value that is
//! stored quietly is not pushed. Deletions, expiries and seals are pushed in any case, since the publisher retires slots
//! and settles tables, but they are not announced. With a feed there always is an audience.
//!
//! # Order
//!
//! A change says whether the one before it, of the same slot, was quiet. Then it is the next of its slot by itself, and
//! the version that the slot keeps as announced means nothing before it. All others follow a change that is announced,
//! or comes.
//!
//! - **The audience begins.** The publisher sets the state, and waits until all guards of before are gone ([`set`]). From
//!   then on every change is pushed and announced. A quiet one that still is in a ring comes before or after its
//!   successor, which does not matter: see below.
//! - **The audience ends.** The publisher first deals with all that is in the rings, so that no quiet change of an earlier
//!   time is left. Then it sets the state, and waits as before. All changes that are to be announced are in the rings
//!   then. It takes all that is there, and works on these first, seals after others. So nothing ends a slot, or a table,
//!   of which a change is on the way that is to be announced.
//!
//! The state is read after the word that a CAS is to replace. So a change that follows a quiet one, or the quiet seal of
//! its key in an older table, is quiet itself until an audience begins.
//!
//! A slot keeps 25 bits of the version that is announced, and quiet changes do not count it on. After an exact multiple
//! of 2^25 quiet changes it may seem to be at a version of now, if two changes of then come in the opposite order.
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

use super::{Announce, AnnounceOnly, Changes, HeldChange, Retired, Source};
use crate::tables::change::ChangeQueue;
use crate::tables::sleeper::Sleeper;
use crate::tables::slot::SlotState;

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
        let earlier = self.take_all();
        self.work.extend(earlier);
        self.work_off();
        set(&self.change_queue, false);
        let (mut first, mut rest): (Vec<_>, Vec<_>) =
            self.take_all().into_iter().partition(|held| !held.change.is_quiet() && !held.change.kind().is_last());
        self.work.extend(first.drain(..));
        self.work_off();
        // A heard seal may let changes go that wait for it. They come before the quiet seals of their own slots.
        for is_quiet in [false, true] {
            self.work.extend(rest.extract_if(.., |held| held.change.is_quiet() == is_quiet));
            self.work_off();
        }
        debug_assert!(self.held.is_empty() && self.blocked.is_empty(), "all changes of before have come");
        debug_assert_eq!(self.telling, 0, "they are dealt with");
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

    fn work_off(&mut self) {
        let nobody: &mut Announce<'_> = &mut |_, _, _| {};
        let mut none = Source { ring: 0, left: 0, is_dry: true };
        while self.run(&mut none, &mut AnnounceOnly(nobody)) {}
    }

    /// Deals with a quiet change.
    pub(super) fn settle(&mut self, held: HeldChange, guard: &Guard) {
        let HeldChange { change, ring } = held;
        self.telling -= usize::from(change.kind().is_telling());
        self.owe(ring);
        let slot = change.slot.slot();
        let registry = Arc::clone(&self.registry);
        if change.kind().is_last() {
            slot.set_announced(change.version);
            self.work.extend(self.blocked.remove(&slot.address()).unwrap_or_default());
            let Some(table) = registry.get(change.table(), guard) else {
                unreachable!("a seal holds its table until its change has come");
            };
            if table.release_unsettled() {
                self.ended.push(Retired::Table(table.number()));
            }
        } else if let SlotState::Absent(version) = slot.load(guard).state()
            && version & u64::from(u32::MAX) == u64::from(change.version)
            && let Some(table) = registry.get(change.table(), guard)
        {
            // A retired slot counts as announced.
            slot.set_announced(change.version);
            self.retire(table, change.slot.into_handle(), guard);
        }
    }
}
