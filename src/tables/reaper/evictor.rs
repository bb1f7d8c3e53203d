//! The reaper's part of the eviction: it gives each table its share, and moves the hands of the tables on.
//!
//! This file decides no policy, and knows no writer: `eviction.rs` has the races.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam::epoch;

use crate::allocator::size_class;
use crate::clock::Now;
use crate::feed::Cause;
use crate::limits::REAPER_CHUNK;
use crate::tables::TablesShared;
use crate::tables::batch::Session;
use crate::tables::failpoint::{Failpoint, reach};
use crate::tables::index::CELLS;
use crate::tables::memory_budget::{TIMER_BYTES, entry_cost, signed};
use crate::tables::ops::Ops;
use crate::tables::slot::{NEVER, SlotRef, SlotState};
use crate::tables::table::Table;

/// Rounds of the hand after which it evicts what is used as well: readers use a small table faster than the hand goes
/// round.
const ROUNDS_OF_CHOICE: u32 = 3;
/// Rounds after which the rest of a share is dropped, and the next plan follows.
const ROUNDS_MAX: u32 = 5;
/// A plan evicts the reserve divided by this more than it must, so that plans are few.
const SURPLUS_SHARE: i64 = 8;

/// The bytes that a table is to lose.
struct Share {
    table: Arc<Table>,
    bytes: i64,
    /// How often the hand has come to the end of the index meanwhile.
    rounds: u32,
}

/// How far the hand has come with a share.
enum Progress {
    Done,
    /// The turn is over.
    More,
    OutOfCredits,
    /// A session holds the latch of the table.
    Latched,
}

/// What the evictions wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvictorNeeds {
    /// There is nothing to do.
    Nothing,
    /// Another turn.
    Turn,
    /// A latch is released soon.
    Latch,
}

/// The reaper's part of the eviction.
#[derive(Default)]
pub(super) struct Evictor {
    shares: VecDeque<Share>,
    /// The last plan is carried out, and another one follows.
    plans_again: bool,
    meets_latch: bool,
}

impl Evictor {
    /// What it waits for, if the last step had credits.
    pub(super) fn needs(&self) -> EvictorNeeds {
        match (self.shares.is_empty() && !self.plans_again, self.meets_latch) {
            (true, _) => EvictorNeeds::Nothing,
            (false, true) => EvictorNeeds::Latch,
            (false, false) => EvictorNeeds::Turn,
        }
    }

    /// Looks at some elements of tables that are to lose some. False: it is out of credits.
    pub(super) fn step(&mut self, shared: &TablesShared, session: &mut Session, now: Now) -> bool {
        self.meets_latch = false;
        if self.shares.is_empty() && !self.plan(shared) {
            return true;
        }
        let mut left = REAPER_CHUNK;
        let mut batch = session.batch(now);
        let mut ops = batch.ops();
        while let Some(share) = self.shares.front_mut() {
            match advance(&mut ops, share, &mut left) {
                Progress::More => return true,
                Progress::OutOfCredits => return false,
                Progress::Latched => self.meets_latch = true,
                Progress::Done => {}
            }
            self.shares.pop_front();
        }
        drop(batch);
        // Only a look shows the room to writers.
        shared.compactor.want_look();
        true
    }

    /// Gives each table its share, if the reserve is touched or a write finds no room. False: there is nothing to do.
    fn plan(&mut self, shared: &TablesShared) -> bool {
        if !shared.evictor.take_call() && !self.plans_again {
            return false;
        }
        let budget = &shared.memory_budget;
        let missing = budget.beyond_reserve() + shared.evictor.wanted.load(Ordering::Relaxed);
        let tables = if missing > 0 { evictable(shared) } else { Vec::new() };
        self.plans_again = !tables.is_empty();
        if tables.is_empty() {
            // A write may raise `wanted` before this store. The write waits for the look, and raises `wanted` anew if there is
            // still no room.
            shared.evictor.wanted.store(0, Ordering::Relaxed);
            shared.compactor.want_look();
            return false;
        }
        let all: i64 = tables.iter().map(|(_, bytes)| bytes).sum();
        let goal = (missing + budget.reserve() / SURPLUS_SHARE).min(all);
        for (table, bytes) in tables {
            let share = i64::try_from(i128::from(goal) * i128::from(bytes) / i128::from(all)).unwrap_or(goal);
            // Relaxed, both: the reaper alone reads and writes it.
            let left = share - table.hand().beyond.load(Ordering::Relaxed);
            table.hand().beyond.store((-left).max(0), Ordering::Relaxed);
            if left > 0 {
                self.shares.push_back(Share { table, bytes: left, rounds: 0 });
            }
        }
        !self.shares.is_empty()
    }
}

/// The tables that may lose elements, and the bytes that they have.
fn evictable(shared: &TablesShared) -> Vec<(Arc<Table>, i64)> {
    let guard = epoch::pin();
    let registry = shared.catalog.registry();
    let tables = shared.catalog.numbers().into_iter().filter_map(|number| registry.share(number, &guard));
    tables.map(|table| (Arc::clone(&table), table.evictable_bytes())).filter(|(_, bytes)| *bytes > 0).collect()
}

/// Moves the hand of a table on, until the table has lost its share or `left` elements are looked at.
fn advance(ops: &mut Ops<'_>, share: &mut Share, left: &mut usize) -> Progress {
    let table = Arc::clone(&share.table);
    if table.is_closed() {
        return Progress::Done;
    }
    if ops.is_latched(&table) {
        return Progress::Latched;
    }
    // Behind the latch: a table that becomes durable does so under it.
    if !table.eviction.is_allowed() {
        return Progress::Done;
    }
    let (hand, guard) = (table.hand(), ops.guard);
    let walk = table.index().walk(guard);
    let mut slots = Vec::new();
    while share.bytes > 0 && share.rounds < ROUNDS_MAX {
        if *left == 0 {
            return Progress::More;
        }
        if ops.credits(CELLS).is_err() {
            return Progress::OutOfCredits;
        }
        // Relaxed, here and below: the reaper alone reads and writes it.
        let next = walk.read(hand.position.load(Ordering::Relaxed), guard, |key| table.hash(key), &mut slots);
        *left = left.saturating_sub(slots.len() + 1);
        let mut rest = slots.iter();
        while share.bytes > 0
            && let Some((_, slot)) = rest.next()
        {
            share.bytes -= come_by(ops, &table, *slot, share.rounds >= ROUNDS_OF_CHOICE);
        }
        let next = rest.next().map(|(at, _)| *at).or(next);
        share.rounds += u32::from(next.is_none());
        hand.position.store(next.unwrap_or(0), Ordering::Relaxed);
    }
    hand.beyond.store((-share.bytes).max(0), Ordering::Relaxed);
    Progress::Done
}

/// The hand comes by an element. Returns the bytes that it gives back, if it goes. The caller has a credit.
fn come_by(ops: &mut Ops<'_>, table: &Table, slot: SlotRef<'_>, is_forced: bool) -> i64 {
    let seen = slot.load(ops.guard);
    let (SlotState::Live(entry) | SlotState::Expired(entry)) = seen.state() else { return 0 };
    let deadline = entry.deadline();
    let is_overdue = deadline <= ops.now.millis() || matches!(seen.state(), SlotState::Expired(_));
    if is_overdue {
        let expired = ops.expire(table, slot, seen);
        debug_assert!(expired.is_ok(), "a bucket's worth of credits was there");
    } else if !slot.is_unused() && !is_forced {
        return 0;
    } else {
        reach(Failpoint::BeforeEvict);
        if !ops.vacate(table, slot, seen, entry, Cause::Evict) {
            return 0;
        }
        ops.shared.evictor.evicted.add(1);
    }
    let timer = if deadline == NEVER { 0 } else { TIMER_BYTES };
    entry_cost(entry) + signed(size_class(slot.bytes())) + timer
}
