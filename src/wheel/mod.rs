//! A hierarchical timing wheel: millions of timers with ticks of a millisecond, in any order, at the price of a few
//! cache misses each.
//!
//! ```text
//!                    slot         window              the ring holds two windows
//! level 0            1 ms         4.1 s               | . . . . ▲ x . x | x . . . . . . . |
//! level 1            4.1 s        4.7 h               | . . ▲ ○ x . . x | . . x . . . . . |
//! level 2            4.7 h        2.2 years             ▲ now, in slots of the level
//! level 3            2.2 years    8,900 years           ○ emptied ahead of time: the next window of level 0
//! ```
//! A timer is filed at the lowest level whose ring reaches its deadline: [`Wheel::arm`] computes the slot and appends
//! the record to the slot's chain. A window of one level is one slot of the level above.
//!
//! Timers move down when their slot becomes the window *after* the current one of the level below. So there is a whole
//! window of time to move them, a few at a time: [`Wheel::advance`] first fires the timers that are due, then moves
//! timers down with the rest of its budget. If the wheel was not called for a whole window, or got no budget for the
//! moves, `advance` moves the timers at the last moment. These moves count against the budget as well. A deadline
//! beyond the top ring waits in the ring's last slot and is filed again.
//!
//! # Order
//!
//! Timers come up by tick, never before their deadline. Timers of the same tick come up in any order. A deadline that
//! has passed already belongs to the tick at which the wheel stands.
//!
//! # Cost
//!
//! A record takes 21 bytes in its chunk and 4 in the table of ids, if the payload has 8 bytes and a niche, as a pointer
//! has. A slot wastes at most one chunk of 128 bytes. Arming touches one chunk that was lately in use and one word of
//! the table. Cancelling touches one word and one chunk, and both may be far. Coming up and moving down run through
//! chunks and write one word of the table for each timer.
//!
//! # Files
//!
//! `slots.rs` has the rings and their bits. `chains.rs` has the records of a slot, with `chunks.rs` as their storage
//! and `ids.rs` as their table of ids, both in `pool.rs`, which gives memory back. These files know no time. This file computes with ticks and decides. `tests.rs`
//! tests the promises one by one, and `model.rs` compares the wheel with an ordered map.
//!
//! # Scope
//!
//! The wheel is a pure data structure. The caller passes the time in. The wheel reads no clock, does not sleep, spawn
//! or lock, and holds no `unsafe`. It gives no memory back: it keeps the memory of its largest number of timers.

mod chains;
mod chunks;
mod ids;
mod pool;
mod slots;
#[cfg(test)]
mod tests;

use chains::{Chains, RemovedTimer};
use slots::{LEVELS, Occupied, WINDOW_BITS, WheelSlot};

/// The distance to a level's current position.
const CURRENT: u64 = 0;
/// The distance to the position after that: the next window of the level below.
const NEXT: u64 = 1;

/// The name of an armed timer. After the timer has come up or was cancelled, a new timer may get the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerId(u32);

impl TimerId {
    /// The id as a number below 2^31, for holders that pack it into a word of their own.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The id that gave `number`.
    #[must_use]
    pub const fn from_number(number: u32) -> Self {
        Self(number)
    }
}

/// Whether [`Wheel::advance`] has done all it could.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Progress {
    /// All timers that were due have come up. The caller sleeps until [`Wheel::next_wake`].
    Done,
    /// The budget ended first. The caller calls again, with a new reading of the clock.
    More,
}

/// Timers, each with a payload.
///
/// ```
/// use spindle::wheel::{Progress, Wheel};
///
/// let mut wheel = Wheel::new(0);
/// wheel.arm(20, "tea");
/// let eggs = wheel.arm(10, "eggs");
/// wheel.arm(5_000, "bread");
/// assert_eq!(wheel.cancel(eggs), Some("eggs"));
///
/// assert_eq!(wheel.next_wake(), Some(20));
/// let mut up = Vec::new();
/// let progress = wheel.advance(25, 100, |_, deadline, what| up.push((deadline, what)));
/// assert_eq!((up, progress), (vec![(20, "tea")], Progress::Done));
/// assert_eq!(wheel.len(), 1);
/// ```
#[derive(Debug)]
pub struct Wheel<T> {
    /// The tick at which the wheel stands. All earlier ticks are empty, and it is not later than the last time that
    /// `advance` got.
    now: u64,
    /// Timers in all slots.
    armed: usize,
    /// The slots whose chains are not empty. On the higher levels, the slots at the `CURRENT` and `NEXT` position are
    /// empty too, unless a call of `advance` ended with `More`.
    occupied: Occupied,
    chains: Chains<T>,
}

impl<T> Wheel<T> {
    /// An empty wheel that stands at tick `now`.
    #[must_use]
    pub fn new(now: u64) -> Self {
        Self { now, armed: 0, occupied: Occupied::none(), chains: Chains::new() }
    }

    /// Arms a timer for tick `deadline`. A timer whose deadline has passed comes up in the next call of `advance`.
    ///
    /// Arming is cheapest if `advance` was called lately: the wheel chooses levels by the tick at which it stands.
    ///
    /// # Panics
    /// If there are more timers than ids and positions can name, which is beyond 1.6 billion.
    pub fn arm(&mut self, deadline: u64, payload: T) -> TimerId {
        let slot = self.slot_for(deadline);
        self.occupied.insert(slot);
        self.armed += 1;
        TimerId(self.chains.insert(slot, deadline, payload))
    }

    /// Disarms a timer and returns its payload. `None` if no timer has this id.
    ///
    /// An id that was kept after its timer came up may name another timer by now. So a caller that keeps ids forgets
    /// them in `due`.
    pub fn cancel(&mut self, id: TimerId) -> Option<T> {
        let (slot, taken) = self.chains.remove(id.0)?;
        self.armed -= 1;
        if taken.emptied {
            self.occupied.remove(slot);
        }
        Some(taken.entry.payload)
    }

    /// Sets the time to `now`. Timers that are due come up by tick: each is a call of `due` with id, deadline and
    /// payload.
    ///
    /// At most `budget` timers come up or move to a lower level, so a call never takes long. A timer is out of the
    /// wheel before `due` gets it. Time does not go back: a `now` that is earlier than the wheel's tick counts as that
    /// tick.
    pub fn advance(&mut self, now: u64, budget: usize, mut due: impl FnMut(TimerId, u64, T)) -> Progress {
        let now = now.max(self.now);
        let mut budget = AdvanceBudget(budget);
        if !self.move_down(CURRENT, &mut budget) {
            return Progress::More;
        }
        while let Some(tick) = self.next_event().filter(|&tick| tick <= now) {
            self.now = tick;
            if !self.move_down(CURRENT, &mut budget) || !self.fire(&mut budget, &mut due) {
                return Progress::More;
            }
        }
        self.now = now;
        if self.move_down(NEXT, &mut budget) { Progress::Done } else { Progress::More }
    }

    /// The earliest tick at which `advance` has work. `None` if there are no timers.
    ///
    /// This tick is the next deadline if that is near. Otherwise it is the tick from which timers may move down: at
    /// least one window of the lowest level before they are due. After `Progress::More` it is a tick that has passed.
    #[must_use]
    pub fn next_wake(&self) -> Option<u64> {
        if self.is_behind() {
            return Some(self.now);
        }
        self.first_in_window().or_else(|| {
            let higher = (1..LEVELS).filter_map(|level| self.first_start(level, NEXT));
            higher.chain(self.first_start(0, CURRENT)).min()
        })
    }

    /// The number of armed timers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.armed
    }

    /// Whether no timer is armed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.armed == 0
    }

    /// Memory held, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.chains.bytes()
    }

    /// Memory held for records, in bytes.
    #[must_use]
    pub fn record_bytes(&self) -> usize {
        self.chains.record_bytes()
    }

    /// The slot for a deadline: at the lowest level that has the deadline's window as its current or next one.
    fn slot_for(&self, deadline: u64) -> WheelSlot {
        let deadline = deadline.max(self.now);
        for level in 0..LEVELS {
            let window = shift(level + 1);
            if (deadline >> window) - (self.now >> window) <= NEXT {
                return WheelSlot::at(level, deadline >> shift(level));
            }
        }
        let end_of_ring = (self.now >> shift(LEVELS)) + NEXT + 1;
        WheelSlot::at(LEVELS - 1, (end_of_ring << WINDOW_BITS) - 1)
    }

    /// The next tick at which timers are due, or must move down because their slot begins.
    fn next_event(&self) -> Option<u64> {
        self.first_in_window().or_else(|| (0..LEVELS).filter_map(|level| self.first_start(level, CURRENT)).min())
    }

    /// The first tick of the current window that has a timer. No timer of a higher level is earlier, unless it must
    /// move down at once.
    fn first_in_window(&self) -> Option<u64> {
        let last = self.now | ((1 << WINDOW_BITS) - 1);
        self.occupied.first_from(0, self.now).filter(|&tick| tick <= last)
    }

    /// The tick at which the first occupied slot of a level begins, or the slot `ahead` positions before it. If that
    /// tick has passed, the tick at which the wheel stands.
    fn first_start(&self, level: u32, ahead: u64) -> Option<u64> {
        let position = self.occupied.first_from(level, self.position(level))?;
        Some((position.saturating_sub(ahead) << shift(level)).max(self.now))
    }

    /// Whether timers could move down now.
    fn is_behind(&self) -> bool {
        (1..LEVELS).any(|level| {
            self.occupied.contains(self.slot(level, CURRENT)) || self.occupied.contains(self.slot(level, NEXT))
        })
    }

    /// Moves the timers down that are in the higher levels' slots at `ahead`. False if the budget ended first.
    fn move_down(&mut self, ahead: u64, budget: &mut AdvanceBudget) -> bool {
        (1..LEVELS).all(|level| {
            let slot = self.slot(level, ahead);
            !self.occupied.contains(slot) || self.empty(slot, budget)
        })
    }

    /// Files the timers of a slot again. False if the budget ended first.
    fn empty(&mut self, slot: WheelSlot, budget: &mut AdvanceBudget) -> bool {
        while budget.spend() {
            let Some(taken) = self.take(slot) else {
                return true;
            };
            let lower = self.slot_for(taken.entry.deadline);
            self.occupied.insert(lower);
            self.chains.file(lower, taken.entry);
            if taken.emptied {
                return true;
            }
        }
        false
    }

    /// Lets the timers of the current tick come up. False if the budget ended first.
    fn fire(&mut self, budget: &mut AdvanceBudget, due: &mut impl FnMut(TimerId, u64, T)) -> bool {
        let slot = self.slot(0, CURRENT);
        if !self.occupied.contains(slot) {
            return true;
        }
        while budget.spend() {
            let Some(taken) = self.take(slot) else {
                return true;
            };
            self.armed -= 1;
            self.chains.release(taken.entry.id);
            due(TimerId(taken.entry.id), taken.entry.deadline, taken.entry.payload);
            if taken.emptied {
                return true;
            }
        }
        false
    }

    /// Takes a timer out of a slot.
    fn take(&mut self, slot: WheelSlot) -> Option<RemovedTimer<T>> {
        let taken = self.chains.take(slot)?;
        if taken.emptied {
            self.occupied.remove(slot);
        }
        Some(taken)
    }

    /// The slot of a level that is `ahead` positions after the current one.
    fn slot(&self, level: u32, ahead: u64) -> WheelSlot {
        WheelSlot::at(level, self.position(level) + ahead)
    }

    /// The tick at which the wheel stands, in slots of a level.
    fn position(&self, level: u32) -> u64 {
        self.now >> shift(level)
    }
}

/// The timers that a call of `advance` may still let come up or move.
struct AdvanceBudget(usize);

impl AdvanceBudget {
    /// Spends one timer. False if the budget is used up.
    fn spend(&mut self) -> bool {
        let has_one = self.0 > 0;
        self.0 = self.0.saturating_sub(1);
        has_one
    }
}

/// Bits of a tick that do not matter for its position at `level`.
const fn shift(level: u32) -> u32 {
    level * WINDOW_BITS
}
