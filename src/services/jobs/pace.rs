//! How fast each conversation goes, and which one loses its place to others.
//!
//! A conversation holds a connection, and room for the bytes of a large request or answer. While there is enough of
//! both, every client may take the time that the protocol grants. When another client waits for them, a conversation
//! that has moved less than [`JOB_PACE_BYTES`] in a period of [`JOB_PACE_TIME`] loses its place: its request ends with
//! the bytes that have come.
//!
//! ```text
//! Reading ─► Waiting for room ─► Reading ─► Busy (the committer) ─► Sending ─► Leaving
//!    └── slow, and others wait: lost ◄──────────────────────────────────┴─────────┘
//! ```
//! A conversation that waits for room, or for the committer, is not slow. If all that hold room for requests wait for
//! more, none of them would ever get it. Then the last to come loses its place.
//!
//! The caller passes the time in. This module does not read, send or wait.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Now;
use crate::descriptors;
use crate::limits::{JOB_PACE_BYTES, JOB_PACE_CHECK, JOB_PACE_TIME, PLACE_SILENT_TIME, PLACES_AT_ONCE};
use crate::net::budget::Budget;

/// The stage of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PaceStage {
    /// The client sends its request.
    Reading,
    /// Room is awaited.
    Waiting,
    /// The committer has the request.
    Busy,
    /// The client waits for a job.
    Awaiting,
    /// The client reads its answer.
    Sending,
    /// The client has its answer, and has not closed yet.
    Leaving,
}

/// The pace of one conversation. Written by the conversation, but for `is_lost`, which [`Paces`] sets.
pub(super) struct Pace {
    stage: Cell<PaceStage>,
    /// Bytes of room, which `budget` counts too.
    held: Cell<usize>,
    budget: Arc<Budget>,
    /// The start of the period, and the bytes that have moved in it.
    since: Cell<Now>,
    moved: Cell<usize>,
    /// Whether the period before this one was slow.
    was_slow: Cell<bool>,
    /// Whether nothing has come.
    is_silent: Cell<bool>,
    is_lost: Cell<bool>,
    /// Notified when `is_lost` is set.
    lost: Notify,
}

impl Pace {
    /// Enters a stage.
    pub(super) fn enter(&self, stage: PaceStage, now: Now) {
        self.stage.set(stage);
        self.since.set(now);
        self.moved.set(0);
        // Who has its answer has given its room up, and may lose its connection.
        if stage == PaceStage::Leaving {
            self.is_lost.set(false);
        }
    }

    /// The bytes of room that the conversation holds.
    pub(super) fn hold(&self, bytes: usize) {
        self.budget.change(self.held.replace(bytes) as u64, bytes as u64);
    }

    /// These bytes have come, or have been sent.
    pub(super) fn moved(&self, bytes: usize, now: Now) {
        self.is_silent.set(false);
        self.moved.set(self.moved.get() + bytes);
        if self.since.get().time_until(now) >= JOB_PACE_TIME {
            self.was_slow.set(self.is_slow_since(now));
            self.since.set(now);
            self.moved.set(0);
        }
    }

    /// Whether the conversation has lost its place.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.get()
    }

    /// Whether nothing has come.
    pub(super) fn is_silent(&self) -> bool {
        self.is_silent.get()
    }

    /// Ready when the conversation has lost its place.
    pub(super) async fn lost(&self) {
        let mut lost = pin!(self.lost.notified());
        poll_fn(|context| {
            // `lost` is polled before `is_lost` is read, so that no notice is missed.
            if lost.as_mut().poll(context).is_ready() || self.is_lost.get() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn is_slow(&self, now: Now) -> bool {
        let is_judged = self.since.get().time_until(now) >= JOB_PACE_TIME;
        if is_judged { self.is_slow_since(now) } else { self.was_slow.get() }
    }

    /// Whether fewer bytes have moved since the start of the period than the pace asks for.
    fn is_slow_since(&self, now: Now) -> bool {
        let nanos = u128::from(self.since.get().nanos_until(now));
        (self.moved.get() as u128) * JOB_PACE_TIME.as_nanos() < JOB_PACE_BYTES as u128 * nanos
    }

    fn lose(&self) {
        self.is_lost.set(true);
        self.lost.notify_waiters();
    }
}

/// The paces of all conversations, in the order in which they came.
pub(super) struct Paces {
    /// What all of them hold.
    budget: Arc<Budget>,
    all: RefCell<BTreeMap<u64, Rc<Pace>>>,
    next: Cell<u64>,
    coming: RoomQueue,
    going: RoomQueue,
}

/// The conversations that wait for room of one kind.
#[derive(Default)]
struct RoomQueue {
    /// Bytes that they wait for.
    wanted: Cell<usize>,
    /// The time of the last search for a conversation to lose its place.
    searched: Cell<Option<Now>>,
}

/// The kinds of room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoomKind {
    /// For requests.
    Coming,
    /// For answers.
    Going,
}

impl RoomKind {
    /// The stage in which a conversation gives such room up.
    fn stage(self) -> PaceStage {
        match self {
            Self::Coming => PaceStage::Reading,
            Self::Going => PaceStage::Sending,
        }
    }
}

impl Paces {
    /// No conversations yet. What they hold is counted there.
    pub(super) fn new(budget: Arc<Budget>) -> Rc<Self> {
        let (coming, going) = (RoomQueue::default(), RoomQueue::default());
        Rc::new(Self { budget, all: RefCell::default(), next: Cell::new(0), coming, going })
    }

    /// A conversation begins.
    pub(super) fn begin(self: &Rc<Self>, now: Now) -> PaceEntry {
        let number = self.next.replace(self.next.get() + 1);
        let pace = Rc::new(Pace {
            stage: Cell::new(PaceStage::Reading),
            held: Cell::new(0),
            budget: Arc::clone(&self.budget),
            since: Cell::new(now),
            moved: Cell::new(0),
            was_slow: Cell::new(false),
            is_silent: Cell::new(true),
            is_lost: Cell::new(false),
            lost: Notify::new(),
        });
        self.all.borrow_mut().insert(number, Rc::clone(&pace));
        PaceEntry { paces: Rc::clone(self), number, pace }
    }

    /// A conversation waits for `bytes` of room until the result is dropped.
    pub(super) fn want(&self, kind: RoomKind, bytes: usize) -> WantedRoom<'_> {
        let wanted = &self.queue(kind).wanted;
        wanted.set(wanted.get() + bytes);
        WantedRoom(wanted, bytes)
    }

    fn queue(&self, kind: RoomKind) -> &RoomQueue {
        match kind {
            RoomKind::Coming => &self.coming,
            RoomKind::Going => &self.going,
        }
    }

    /// Slow conversations lose as much room as others wait for. It searches once in [`JOB_PACE_CHECK`] at most, however
    /// many conversations wait.
    pub(super) fn make_room(&self, kind: RoomKind, now: Now) {
        let RoomQueue { wanted, searched } = self.queue(kind);
        if searched.get().is_some_and(|last| last.time_until(now) < JOB_PACE_CHECK) {
            return;
        }
        searched.set(Some(now));
        let all = self.all.borrow();
        let wanted = wanted.get();
        let holds = |pace: &&Rc<Pace>| pace.held.get() > 0;
        let of_kind = |pace: &&Rc<Pace>| pace.stage.get() == kind.stage();
        // The room of those who have lost their places is on its way.
        let mut freed: usize = all.values().filter(|pace| pace.is_lost()).map(|pace| pace.held.get()).sum();
        let mut slow: Vec<&Rc<Pace>> =
            all.values().filter(holds).filter(of_kind).filter(|pace| !pace.is_lost() && pace.is_slow(now)).collect();
        slow.sort_by_key(|pace| pace.moved.get());
        for pace in slow {
            if freed >= wanted {
                return;
            }
            freed += pace.held.get();
            pace.lose();
        }
        let mut requests = all.values().filter(holds).filter(|pace| pace.stage.get() != PaceStage::Sending);
        let is_stuck = requests.clone().all(|pace| pace.stage.get() == PaceStage::Waiting && !pace.is_lost());
        if kind == RoomKind::Coming
            && is_stuck
            && let Some(last) = requests.next_back()
        {
            last.lose();
        }
    }

    /// Slow conversations lose their connections, because clients wait for some: [`PLACES_AT_ONCE`] of them, first the
    /// answered ones, then the slowest, at last those that wait for a job. Of equal ones the oldest go. Clients send their
    /// requests at once, so one that has sent nothing is slow soon.
    pub(super) fn make_place(&self, now: Now) {
        let all = self.all.borrow();
        if all.values().any(|pace| pace.is_lost()) {
            return;
        }
        let may_go = |pace: &&Rc<Pace>| match pace.stage.get() {
            PaceStage::Reading if pace.is_silent() => pace.since.get().time_until(now) >= PLACE_SILENT_TIME,
            PaceStage::Reading | PaceStage::Sending => pace.is_slow(now),
            PaceStage::Leaving => pace.since.get().time_until(now) >= JOB_PACE_TIME,
            PaceStage::Awaiting => pace.since.get().time_until(now) >= PLACE_SILENT_TIME,
            PaceStage::Waiting | PaceStage::Busy => false,
        };
        let mut slow: Vec<&Rc<Pace>> = all.values().filter(may_go).collect();
        let rank = |stage| match stage {
            PaceStage::Leaving => 0,
            PaceStage::Awaiting => 2,
            _ => 1,
        };
        slow.sort_by_key(|pace| (rank(pace.stage.get()), pace.moved.get()));
        for pace in slow.into_iter().take(PLACES_AT_ONCE) {
            descriptors::made_place();
            pace.lose();
        }
    }
}

/// Room that is waited for.
pub(super) struct WantedRoom<'p>(&'p Cell<usize>, usize);

impl Drop for WantedRoom<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - self.1);
    }
}

/// The pace of one conversation, to its end.
pub(super) struct PaceEntry {
    paces: Rc<Paces>,
    number: u64,
    pace: Rc<Pace>,
}

impl std::ops::Deref for PaceEntry {
    type Target = Pace;

    fn deref(&self) -> &Pace {
        &self.pace
    }
}

impl Drop for PaceEntry {
    fn drop(&mut self) {
        self.pace.hold(0);
        self.paces.all.borrow_mut().remove(&self.number);
    }
}

/// The time between two looks of a conversation that waits for room.
pub(super) const LOOK: Duration = JOB_PACE_CHECK;

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing, reason = "a test that fails should say where")]

    use super::*;

    const SECOND: u64 = 1_000;
    const MEGABYTE: usize = 1_000_000;

    fn at(millis: u64) -> Now {
        Now::from_millis(millis)
    }

    fn holders(paces: &Rc<Paces>, count: usize) -> Vec<PaceEntry> {
        let holder = |_| {
            let entry = paces.begin(at(0));
            entry.hold(MEGABYTE);
            entry
        };
        (0..count).map(holder).collect()
    }

    fn lost(entries: &[PaceEntry]) -> Vec<usize> {
        (0..entries.len()).filter(|index| entries[*index].is_lost()).collect()
    }

    #[test]
    fn the_budget_counts_what_all_hold_and_what_has_ended_no_more() {
        let budget = Budget::new(1 << 30);
        let paces = Paces::new(Arc::clone(&budget));
        let mut entries = holders(&paces, 3);
        assert_eq!(budget.held(), 3 * MEGABYTE as u64);
        entries[0].hold(10);
        entries.truncate(2);
        assert_eq!(budget.held(), MEGABYTE as u64 + 10);
        drop(entries);
        assert_eq!(budget.held(), 0);
    }

    /// A small request waited for a minute behind 300 clients that sent a byte every three seconds.
    #[test]
    fn who_trickles_loses_as_much_room_as_others_wait_for() {
        let paces = Paces::new(Budget::new(1 << 30));
        let tricklers = holders(&paces, 300);
        let mut now = 0;
        while now < 6 * SECOND {
            now += 500;
            tricklers.iter().for_each(|trickler| trickler.moved(1, at(now)));
        }
        assert_eq!(lost(&tricklers), [0; 0], "while none waits they have their time");
        let _wanted = paces.want(RoomKind::Coming, 2_500);
        // Just behind a byte, in the middle of a period.
        paces.make_room(RoomKind::Coming, at(now + 1));
        assert_eq!(lost(&tricklers).len(), 1, "one of them has more than that");
        paces.make_room(RoomKind::Coming, at(now + SECOND));
        assert_eq!(lost(&tricklers).len(), 1, "its room is on its way");
        let _more = paces.want(RoomKind::Coming, 3 * MEGABYTE);
        paces.make_room(RoomKind::Coming, at(now + 2 * SECOND));
        assert_eq!(lost(&tricklers).len(), 4);
    }

    #[test]
    fn who_is_not_slow_keeps_its_room_however_many_wait() {
        let paces = Paces::new(Budget::new(1 << 30));
        let entries = holders(&paces, 3);
        let _wanted = paces.want(RoomKind::Coming, 300 * MEGABYTE);
        for now in (0..60 * SECOND).step_by(200) {
            entries[0].moved(JOB_PACE_BYTES / 5 + 1, at(now));
            entries[1].moved(1, at(now));
            entries[2].enter(PaceStage::Busy, at(0));
            paces.make_room(RoomKind::Coming, at(now));
        }
        assert_eq!(lost(&entries), [1], "neither the first, nor one that waits for the committer");
    }

    #[test]
    fn a_client_is_judged_after_a_whole_period_and_may_recover() {
        let paces = Paces::new(Budget::new(1 << 30));
        let entries = holders(&paces, 1);
        let _wanted = paces.want(RoomKind::Coming, 1);
        paces.make_room(RoomKind::Coming, at(SECOND - 1));
        assert_eq!(lost(&entries), [0; 0]);
        entries[0].moved(1, at(2 * SECOND));
        entries[0].moved(2 * JOB_PACE_BYTES, at(3 * SECOND));
        paces.make_room(RoomKind::Coming, at(3 * SECOND + 1));
        assert_eq!(lost(&entries), [0; 0]);
    }

    #[test]
    fn if_all_wait_for_one_another_the_last_to_come_loses_its_place() {
        let paces = Paces::new(Budget::new(1 << 30));
        let entries = holders(&paces, 3);
        let _wanted = paces.want(RoomKind::Coming, 3 * MEGABYTE);
        entries.iter().for_each(|entry| entry.enter(PaceStage::Waiting, at(0)));
        paces.make_room(RoomKind::Coming, at(1));
        paces.make_room(RoomKind::Coming, at(SECOND));
        assert_eq!(lost(&entries), [2], "its room is on its way");
        let entries = holders(&Paces::new(Budget::new(1 << 30)), 3);
        let paces = Rc::clone(&entries[0].paces);
        entries[1].enter(PaceStage::Waiting, at(0));
        entries[0].enter(PaceStage::Waiting, at(0));
        paces.make_room(RoomKind::Coming, at(1));
        assert_eq!(lost(&entries), [0; 0], "the third continues");
    }

    #[test]
    fn room_for_requests_and_for_answers_is_given_up_by_those_who_hold_it() {
        let paces = Paces::new(Budget::new(1 << 30));
        let entries = holders(&paces, 2);
        entries[1].enter(PaceStage::Sending, at(0));
        let _wanted = paces.want(RoomKind::Going, 1);
        paces.make_room(RoomKind::Going, at(SECOND));
        assert_eq!(lost(&entries), [1]);
    }

    #[test]
    fn when_all_connections_are_taken_those_that_have_sent_nothing_go_soon() {
        let paces = Paces::new(Budget::new(1 << 30));
        let entries = holders(&paces, 2);
        entries[0].moved(1, at(1));
        paces.make_place(at(99));
        assert_eq!(lost(&entries), [0; 0]);
        paces.make_place(at(100));
        assert_eq!(lost(&entries), [1]);
    }

    #[test]
    fn when_all_connections_are_taken_the_slowest_go() {
        let paces = Paces::new(Budget::new(1 << 30));
        let entries = holders(&paces, PLACES_AT_ONCE + 4);
        entries[0].enter(PaceStage::Busy, at(0));
        entries[1].moved(5, at(1));
        entries[2].moved(JOB_PACE_BYTES, at(1));
        entries[3..].iter().for_each(|entry| entry.moved(0, at(1)));
        paces.make_place(at(SECOND - 1));
        assert_eq!(lost(&entries), [0; 0], "none is judged yet");
        paces.make_place(at(SECOND));
        paces.make_place(at(SECOND));
        assert_eq!(lost(&entries), (3..PLACES_AT_ONCE + 3).collect::<Vec<_>>(), "the oldest of the silent ones");
        entries[3..].iter().for_each(|entry| entry.enter(PaceStage::Leaving, at(SECOND)));
        assert_eq!(lost(&entries), [0; 0], "they have their answers");
        entries[3..].iter().for_each(|entry| entry.enter(PaceStage::Busy, at(SECOND)));
        entries[5].enter(PaceStage::Leaving, at(SECOND));
        paces.make_place(at(2 * SECOND));
        assert_eq!(lost(&entries), [1, 2, 5]);
    }

    #[test]
    fn who_waits_for_a_job_makes_place_at_last() {
        let paces = Paces::new(Budget::new(1 << 30));
        let entries: Vec<PaceEntry> = (0..PLACES_AT_ONCE + 1).map(|_| paces.begin(at(0))).collect();
        entries.iter().for_each(|entry| entry.enter(PaceStage::Awaiting, at(0)));
        entries[PLACES_AT_ONCE].enter(PaceStage::Leaving, at(0));
        paces.make_place(at(0));
        assert_eq!(lost(&entries), [0; 0], "all have just come");
        paces.make_place(at(2 * SECOND));
        let expected: Vec<usize> = (0..PLACES_AT_ONCE - 1).chain([PLACES_AT_ONCE]).collect();
        assert_eq!(lost(&entries), expected, "who has its answer goes first, then the oldest of those that wait");
    }
}
