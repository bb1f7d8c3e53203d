//! The holes that evictions leave, and that writes fill again.
//!
//! An evicted element leaves a hole in a page that other elements share, so the process keeps the memory. Without eviction
//! such holes count against the limit until elements are moved together. With it the tables stay full for ever: each write
//! would wait for moves. So the budget counts no hole that evictions have left, as long as writes fill these holes again.
//!
//! ```text
//! level = bytes used + excess                              excess that counts
//! below the reserve, and nothing was evicted lately        all of it; noted
//! beyond that                                              what was noted, and GAIN times the bytes in the reserve
//! beyond the limit                                         all of it
//! ```
//! If new elements have other sizes than the evicted ones, the process grows into the reserve. For each byte of that growth
//! the reaper evicts GAIN bytes. When the reserve is taken, a quarter of the memory is holes, and the compactor moves
//! elements together.
//!
//! This module measures nothing.

use std::sync::atomic::Ordering;

use super::{Compactor, MemoryLevel};

/// Bytes that are evicted for each byte by which the process grows into the reserve, of a 32nd of the limit.
const GAIN: i64 = 8;

/// The excess without the holes of evictions.
#[derive(Debug, Default)]
pub(super) struct EvictedHoles {
    /// The excess when nothing had been evicted lately.
    excess_before: i64,
    /// Elements that had been evicted at the last look.
    evicted: u64,
}

impl Compactor {
    /// The part of the excess that counts while tables may lose elements. Asks for moves if too much of it is holes.
    pub(super) fn without_holes(&mut self, level: MemoryLevel, excess: i64) -> i64 {
        let budget = &self.shared.memory_budget;
        let beyond = level.used + excess.max(0) + budget.reserve() - budget.limit();
        let evicted = self.shared.evictor.evicted();
        let is_calm = std::mem::replace(&mut self.holes.evicted, evicted) == evicted;
        if is_calm && beyond <= -budget.reserve() {
            self.holes.excess_before = excess.max(0);
        } else {
            self.holes.excess_before = self.holes.excess_before.min(excess.max(0));
        }
        let shared = &self.shared.compactor;
        if beyond > budget.reserve() / 2 && !shared.exhausted.load(Ordering::Relaxed) {
            shared.wanted.store(true, Ordering::Relaxed);
        }
        if beyond > budget.reserve() { excess } else { excess.min(self.holes.excess_before + GAIN * beyond.max(0)) }
    }
}
