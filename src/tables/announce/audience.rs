//! The audience of a table: whether anybody can receive its changes. Without one a stored value costs no push and no
//! work of the publisher.
//!
//! What is committed without an audience is *quiet*: the entry or the absence that it leaves says so. A value that is
//! stored quietly is not pushed. Deletions, expiries and seals are pushed in any case, since the publisher retires slots
//! and settles tables, but they are not announced. With a feed every table has an audience.
//!
//! ```text
//! a subscription comes ► its tables get an audience ► wait for the guards ► the subscriber is answered
//! a table is created ──► with an audience if there is any subscription ─┐
//! a subscription goes ──────────────────────────────────────────────────┴► review, some tables at a time:
//!                            tables without a subscriber are silenced ► wait ► what is on its way
//! ```
//! Only the publisher's thread decides. So a subscription and a review do not overlap.
//!
//! # Order
//!
//! A change says whether the one before it, of the same slot, was quiet. Then it is the next of its slot by itself. Any
//! other follows a change that is announced, or comes. The version that a slot keeps as announced counts only while no
//! quiet change has come later. The writer of the first quiet change says so in the slot (`SlotRef::replace`), and the
//! publisher makes the version count again with the next change that it announces. So a version that is left from
//! before a silence is never taken for one of now, however many quiet changes came between.
//!
//! - **The audience of a table begins.** The publisher sets its state, and waits until all guards of before are gone
//!   ([`Guards`]). From then on every change is pushed and announced. A quiet one that still is in a ring comes
//!   before or after its successor, which does not matter: see below.
//! - **It ends.** The publisher sets the state, and waits as before. All changes of the table that are to be announced are
//!   in the rings then. It takes all that is there, announces none of them, and lets the last version of each slot count as
//!   announced (`SlotRef::catch_up`). They may come in any order, as quiet ones may. Changes of other tables that are met
//!   on the way are announced as ever.
//!
//! The state is read after the word that a CAS is to replace. So a change that follows a quiet one, or the quiet seal of
//! its key in an older table, is quiet itself until an audience begins.
//!
//! # Quiet changes
//!
//! They are dealt with as they come, in any order. Only the deletion that the slot still shows retires it. Until then its
//! table is registered: the slot is not dead, so the table is not settled. A seal holds its table until its own change
//! has come.
//!
//! To announce an end to an audience of ends alone, the publisher needs the name of the table too. The slot may be
//! sealed before the end itself has come, so its table may settle. A settled table stays registered until all is taken
//! that was committed before ([`Changes::let_go`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam::epoch::{self, Guard};

use super::{Changes, HeldChange, LeavingTables, RUN_CHANGES};
use crate::tables::TablesShared;
use crate::tables::change::{AnnouncedChange, ChangeSink};
use crate::tables::sleeper::Sleeper;
use crate::tables::table::Table;
use crate::tables::table_audience::AudienceKind;

/// How often the publisher looks whether all guards of before are gone.
const GUARDS_RECHECK: Duration = Duration::from_micros(20);
/// Names of tables in one step of a review.
const REVIEWED_NAMES: usize = 1_024;

/// The guards of one moment. When they are gone, all writers have pushed what they committed before, under the old
/// states of tables, and commit under the new ones. Guards are short: a thread that holds one waits for nothing.
///
/// The reason is the same as for every epoch. The deferred call runs after each guard is gone that may not have seen
/// the new state, as memory is freed after each guard is gone that may have seen its link.
#[derive(Default)]
pub(super) struct Guards {
    are_gone: AtomicBool,
    sleeper: Sleeper,
}

impl Guards {
    /// Those of now. The caller, the publisher's thread, holds none.
    pub(super) fn of_now() -> Arc<Self> {
        let guards = Arc::new(Self::default());
        let gone = Arc::clone(&guards);
        let guard = epoch::pin();
        guard.defer(move || {
            // Release: pairs with the Acquire below. All pushes under the guards that are gone are visible.
            gone.are_gone.store(true, Ordering::Release);
            gone.sleeper.wake();
        });
        guard.flush();
        guards
    }

    pub(super) fn are_gone(&self) -> bool {
        epoch::pin().flush();
        self.are_gone.load(Ordering::Acquire)
    }

    /// Waits until they are gone, as a rule for less than a millisecond.
    pub(super) fn wait(&self) {
        self.sleeper.park(GUARDS_RECHECK, || self.are_gone());
    }
}

/// Notifies the tables that somebody will receive changes.
#[derive(Clone)]
pub struct Audience(Arc<TablesShared>);

impl Audience {
    /// Each table that one of these topics touches has an audience from now on, also a table that is created later.
    /// Each change of such a table is announced if it is committed after this call returns. A topic touches a table if
    /// one of the topic and the table's name, with a NUL behind it, begins with the other. It waits for the batches of
    /// all sessions, as a rule for less than a millisecond.
    ///
    /// The publisher's thread calls it, and holds no batch.
    pub fn begin<'t>(&self, topics: impl IntoIterator<Item = &'t [u8]>) {
        begin(&self.0, topics, AudienceKind::Changes);
    }
}

/// Begins an audience, as [`Audience::begin`].
fn begin<'t>(shared: &TablesShared, topics: impl IntoIterator<Item = &'t [u8]>, kind: AudienceKind) {
    let is_new = shared.catalog.begin_audience(topics, kind, &epoch::pin());
    if is_new && kind == AudienceKind::Changes {
        Guards::of_now().wait();
    }
}

/// The progress of a review of all tables.
#[derive(Default)]
pub(super) struct Review {
    /// The last name that was looked at, while the review continues.
    at: Option<Box<[u8]>>,
    /// The life of the table that was the last when it began.
    generation: u64,
}

/// Tables with an audience and without a subscriber or a holder. [`Changes::silence`] ends their audience.
#[must_use]
pub struct Unsubscribed(Vec<Arc<Table>>);

impl Changes {
    /// The handle by which the publisher begins audiences for subscriptions.
    #[must_use]
    pub fn audience(&self) -> Audience {
        Audience(Arc::clone(&self.retire.0))
    }

    /// Whether a review has begun and has tables left.
    #[must_use]
    pub fn reviews(&self) -> bool {
        self.review.at.is_some()
    }

    /// Whether a review has tables left, or tables with an audience were created since the last one, or a hold has gone.
    #[must_use]
    pub fn wants_review(&self) -> bool {
        let shared = &self.retire.0;
        let has_new = shared.catalog.expects_audience() && self.review.generation != shared.catalog.generation();
        shared.feed.is_none() && (self.reviews() || has_new || shared.audience_holds.is_given_up())
    }

    /// Whether anybody holds an audience ([`Session::hold_audience`](crate::tables::Session::hold_audience)).
    #[must_use]
    pub fn is_held(&self) -> bool {
        let holds = &self.retire.0.audience_holds;
        holds.has_any(AudienceKind::Changes) || holds.has_any(AudienceKind::Ends)
    }

    /// Begins the audiences that other threads have asked for, and notifies these threads.
    pub(super) fn begin_asked(&mut self, sink: &mut dyn ChangeSink) {
        let shared = Arc::clone(&self.retire.0);
        let asked = shared.audience_holds.take_asked();
        if self.leaving.is_none() && asked.iter().any(|asked| asked.kind == AudienceKind::Ends) {
            self.leaving = Some(LeavingTables::default());
            // Ends of tables that are forgotten already. Their numbers may name others by now.
            Guards::of_now().wait();
            self.drain_present(sink);
        }
        for kind in [AudienceKind::Ends, AudienceKind::Changes] {
            let mut topics = asked.iter().filter(|asked| asked.kind == kind).map(|asked| &*asked.topic).peekable();
            if topics.peek().is_some() {
                begin(&shared, topics, kind);
            }
        }
        if !asked.is_empty() {
            // Then nobody takes a change of before for a change behind the begin.
            self.drain_present(sink);
        }
        asked.into_iter().for_each(|asked| (asked.begun)());
    }

    /// One step of a review: looks at some tables, and returns those that have an audience for nothing. `is_subscribed`
    /// is asked with a table's name and a NUL behind it. `has_any`: there is any subscription, so tables that are created
    /// have an audience. With a feed it finds none.
    pub fn review(&mut self, has_any: bool, is_subscribed: impl Fn(&[u8]) -> bool) -> Unsubscribed {
        let shared = Arc::clone(&self.retire.0);
        if shared.feed.is_some() {
            return Unsubscribed(Vec::new());
        }
        if !self.reviews() {
            self.review.generation = shared.catalog.generation();
            shared.audience_holds.begin_review();
        }
        let holds = &shared.audience_holds;
        let [has_ends, has_changes] = [AudienceKind::Ends, AudienceKind::Changes].map(|kind| holds.has_any(kind));
        shared.catalog.expect_audience(has_any || has_changes, has_ends);
        let some = shared.catalog.tables_behind(self.review.at.as_deref(), REVIEWED_NAMES, &epoch::pin());
        self.review.at = some.last;
        let is_held = |table: &Table, kind| holds.touches(&table.topic(), kind);
        for table in some.tables.iter().filter(|table| table.audience.has_ends()) {
            table.audience.set_ends(has_ends && is_held(table, AudienceKind::Ends));
        }
        let is_unsubscribed = |table: &Arc<Table>| {
            let is_subscribed =
                has_any && is_subscribed(&table.topic()) || has_changes && is_held(table, AudienceKind::Changes);
            table.audience.is_subscribed() && !is_subscribed
        };
        Unsubscribed(some.tables.into_iter().filter(is_unsubscribed).collect())
    }

    /// Ends the audience of these tables, until [`Audience::begin`]. It waits as that does. Their changes on the way are
    /// announced to nobody, those of other tables to `sink`.
    pub fn silence(&mut self, Unsubscribed(mut tables): Unsubscribed, sink: &mut dyn ChangeSink) {
        // A table whose changes are pushed for itself goes on. One that has settled emits nothing more. The hold keeps the
        // number of any other from being used again.
        tables.retain(|table| table.audience.end_changes() && table.hold_unsettled());
        if tables.is_empty() {
            return;
        }
        self.silenced.extend(tables.iter().map(|table| table.number()));
        Guards::of_now().wait();
        let mut stuck = self.pending.extract(&self.silenced);
        while !stuck.is_empty() {
            // Other threads wait for the guard, and the slots that have ended are handed on without one.
            let guard = epoch::pin();
            let left = stuck.len().saturating_sub(RUN_CHANGES);
            stuck.drain(left..).for_each(|held| self.settle(held, sink, &guard));
            drop(guard);
            self.hand_on();
        }
        self.drain_present(sink);
        // What the changes above have put to work, if no ring had any.
        self.run_waiting(sink);
        self.silenced.clear();
        tables.iter().for_each(|table| table.audience.note_ended());
        tables.iter().for_each(|table| self.release(table));
        self.hand_on();
        self.rings.give_back();
    }

    /// Deals with a change without an audience: a quiet change, or a change that was on its way when the audience
    /// ended. Those of a slot may come in any order. An end is announced to audiences of ends alone. To others it would
    /// seem to follow what was announced to them before, if their audience has just begun.
    pub(super) fn settle(&mut self, held: HeldChange, sink: &mut dyn ChangeSink, guard: &Guard) {
        let HeldChange { change, ring, .. } = held;
        self.pending.note_done(change.committed());
        self.rings.owe(ring);
        let slot = change.slot.slot();
        if !change.is_quiet() {
            slot.catch_up(guard);
        }
        let (registry, committed) = (Arc::clone(&self.registry), change.committed());
        let is_end = committed.is_last() || committed.vacates();
        let Some(table) = is_end.then(|| registry.get(change.table(), guard)).flatten() else {
            debug_assert!(!committed.is_last(), "a seal holds its table until its change has come");
            return;
        };
        if table.audience.has_ends()
            && let Some(announced) = AnnouncedChange::new(table.announced_name(), &change, guard)
        {
            sink.announce(&announced.out_of_order());
        }
        if committed.is_last() {
            self.end(slot, table);
        } else {
            self.retire(table, change, guard);
        }
    }
}
