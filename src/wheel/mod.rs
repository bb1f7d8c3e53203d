//! A hierarchical timing wheel: millions of timers with ticks of a millisecond, in any order, at the price of a few
//! cache misses each.
//!
//! A pure data structure. It is told the time and never reads a clock, never sleeps, spawns or locks, and holds no
//! `unsafe`. It gives no memory back: it keeps what its largest number of timers took.
//!
//! ```text
//!                    slot         window              the ring holds two windows
//! level 0            1 ms         4.1 s               | . . . . ▲ x . x | x . . . . . . . |
//! level 1            4.1 s        4.7 h               | . . ▲ ○ x . . x | . . x . . . . . |
//! level 2            4.7 h        2.2 years             ▲ now, in slots of the level
//! level 3            2.2 years    8,900 years           ○ emptied ahead of time: the window that level 0 has as its next
//! ```
//! A timer is filed at the lowest level whose ring reaches its deadline: [`Wheel::arm`] computes the slot and appends
//! the record to the slot's chain. A window of one level is one slot of the level above. Timers go down when their slot
//! becomes the window *after* the current one of the level below, so there is a whole window of time for moving them, a
//! few at a time: [`Wheel::advance`] first fires what is due, then moves timers down with what its budget leaves. Only
//! if it was told nothing for a whole window (or was given no budget for it) are timers moved at the last moment; that
//! too happens within the budget. A deadline beyond the top ring waits in the ring's last slot and is filed again.
//!
//! # Order
//!
//! Timers come up by tick, never before their deadline. Timers of the same tick come up in any order. A deadline that has
//! passed already belongs to the tick at which the wheel stands.
//!
//! # Cost
//!
//! 21 bytes for a record in its chunk, 4 in the table of ids, if the payload has 8 bytes and a niche, as a pointer has; a
//! slot wastes at most one chunk of 128 bytes. Arming touches one chunk that was lately in use and one word of the table;
//! cancelling, one word and one chunk that may both be far; coming up and moving down run through chunks and write one
//! word of the table each.
//!
//! # Files
//!
//! `slots.rs` (rings and their bits) and `chains.rs` (the records of a slot; `chunks.rs` is its storage, `ids.rs` its
//! table of ids) know nothing of time; this file does the arithmetic of ticks and decides. `tests.rs` holds it to its
//! promises one by one, `model.rs` compares it with an ordered map.

mod chains;
mod chunks;
mod ids;
#[cfg(test)]
mod model;
mod slots;
#[cfg(test)]
mod tests;

use chains::{Chains, RemovedTimer};
use slots::{LEVELS, Occupied, WINDOW_BITS, WheelSlot};

/// Stands for the slot in which a level's position is now.
const CURRENT: u64 = 0;
/// Stands for the slot after that: the next window of the level below.
const NEXT: u64 = 1;

/// The name of an armed timer. When the timer has come up or was cancelled, the next one may get the same name.
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

/// Whether [`Wheel::advance`] has done all that could be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Progress {
    /// All that was due has come up: sleep until [`Wheel::next_wake`].
    Done,
    /// The budget ended first: call again, with a new reading of the clock.
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
    /// Where the wheel stands: no tick before it holds anything, and it is not later than the last time that was told.
    now: u64,
    /// Timers in all slots.
    armed: usize,
    /// The slots whose chains are not empty. Those of the higher levels at their `CURRENT` and `NEXT` position are empty
    /// too, unless a call of `advance` ended with `More`.
    occupied: Occupied,
    chains: Chains<T>,
}

impl<T> Wheel<T> {
    /// An empty wheel that stands at tick `now`.
    #[must_use]
    pub fn new(now: u64) -> Self {
        Self { now, armed: 0, occupied: Occupied::none(), chains: Chains::new() }
    }

    /// Arms a timer for tick `deadline`. One whose deadline has passed comes up in the next call of `advance`.
    ///
    /// Cheapest when the wheel was told the time lately: levels are chosen by the tick at which it stands.
    ///
    /// # Panics
    /// When there are more timers than ids and places can name, which is beyond 1.6 billion.
    pub fn arm(&mut self, deadline: u64, payload: T) -> TimerId {
        let slot = self.slot_for(deadline);
        self.occupied.insert(slot);
        self.armed += 1;
        TimerId(self.chains.insert(slot, deadline, payload))
    }

    /// Disarms a timer and gives its payload back; none if no timer has this id.
    ///
    /// An id that was kept after its timer came up may name another timer by now: who keeps ids forgets them in `due`.
    pub fn cancel(&mut self, id: TimerId) -> Option<T> {
        let (slot, taken) = self.chains.remove(id.0)?;
        self.armed -= 1;
        if taken.emptied {
            self.occupied.remove(slot);
        }
        Some(taken.entry.payload)
    }

    /// Lets the time be `now`: what is due comes up by tick, as calls of `due` with id, deadline and payload.
    ///
    /// At most `budget` timers come up or are moved to a lower level, so a call never takes long. A timer is out of the
    /// wheel before `due` sees it. Time does not go back: an earlier `now` than the wheel has seen counts as that one.
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

    /// The earliest tick at which `advance` finds something to do; none if there are no timers.
    ///
    /// That is the next deadline if it is near, and otherwise the tick from which timers may move down: at least one
    /// window of the lowest level earlier than they are due. After `Progress::More` it is a tick that has passed.
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

    /// Timers that are armed.
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

    /// The slot for a deadline: at the lowest level that has its window as the current or the next one.
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

    /// The next tick at which timers are due, or have to move down because their slot begins.
    fn next_event(&self) -> Option<u64> {
        self.first_in_window().or_else(|| (0..LEVELS).filter_map(|level| self.first_start(level, CURRENT)).min())
    }

    /// The first tick of the current window that holds something. Nothing of a higher level is earlier, unless it has to
    /// move down at once.
    fn first_in_window(&self) -> Option<u64> {
        let last = self.now | ((1 << WINDOW_BITS) - 1);
        self.occupied.first_from(0, self.now).filter(|&tick| tick <= last)
    }

    /// The tick at which the first occupied slot of a level begins, or the slot that is `ahead` before it, if that is
    /// not in the past.
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

    /// Moves the timers of the higher levels' slots at `ahead` down; false if the budget ended first.
    fn move_down(&mut self, ahead: u64, budget: &mut AdvanceBudget) -> bool {
        (1..LEVELS).all(|level| {
            let slot = self.slot(level, ahead);
            !self.occupied.contains(slot) || self.empty(slot, budget)
        })
    }

    /// Files the timers of a slot anew; false if the budget ended first.
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

    /// Lets the timers of the current tick come up; false if the budget ended first.
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

    /// The slot of a level that is `ahead` of its position.
    fn slot(&self, level: u32, ahead: u64) -> WheelSlot {
        WheelSlot::at(level, self.position(level) + ahead)
    }

    /// Where the wheel stands, in slots of a level.
    fn position(&self, level: u32) -> u64 {
        self.now >> shift(level)
    }
}

/// What a call of `advance` may still do, in timers that come up or move.
struct AdvanceBudget(usize);

impl AdvanceBudget {
    /// Spends one; false if nothing is left.
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
