//! Eviction: tables that may lose elements give way when the memory is full.
//!
//! The reaper (`reaper/evictor.rs`) evicts before the limit is met, so that a reserve stays free. A writer that finds no
//! room waits until the reaper has evicted enough, and is refused only if nothing is left that could go.
//!
//! ```text
//! writer: the budget rises into the reserve ──┐
//! writer: no room for so many bytes ──────────┼─► plan: a share for each table, in proportion to its bytes
//! compactor: a look shows less room ──────────┘     └─► the hand of a table goes round its index: elements go, or stay
//!                                                        └─► all shares are evicted ─► a look ─► plan again
//! ```
//! # The policy
//!
//! Each table has a hand, which goes up the positions of its index (`index/walk.rs`) and begins again at its end. An element
//! that was used since the hand last came by stays, and stays one round more. An element that was not used goes
//! (`slot/recency.rs`). So a new element that nobody uses goes first, and a scan of many new elements does not drive out
//! those in use. This is CLOCK with a second chance for what has proved itself. `perf/eviction.md` compares it with others.
//!
//! # Races
//!
//! - **An eviction and a writer, an expiry, a seal or a move.** An eviction is a deletion: one CAS on the slot's word. The
//!   races are those of `Ops::remove`. If the CAS fails, the hand goes on, and the element stays for this round.
//! - **An eviction and a latch.** The hand asks for the latch of the table in each batch, after the batch has begun. If the
//!   latch is set later, its holder waits for the end of this batch (`latch.rs`).
//! - **A change of the policy.** The catalog's lock orders the change with CREATE_TABLE and DELETE_TABLE. If a hand has found a
//!   table allowed, it may evict the rest of the table's share.
//!
//! This module knows no epochs and no resident size: the compactor reports what the process has (`compactor.rs`).

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};

use crossbeam::epoch;

use super::TablesShared;
use crate::stats::SharedCounter;

/// What becomes of the elements of a table when the memory is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictionPolicy {
    /// They stay, and writes are refused.
    #[default]
    None,
    /// Those go that were not used for long.
    Lru,
}

/// The policy of tables that do not say, and the number of tables that may lose elements. Written under the catalog's lock.
#[derive(Default)]
pub(super) struct EvictionDefault {
    is_lru: AtomicBool,
    tables: AtomicUsize,
}

/// Whether a table may lose elements.
pub(super) struct TableEviction {
    /// What CREATE_TABLE said. `None`: as the server says.
    said: Option<EvictionPolicy>,
    /// A durable table loses no element. Written under the catalog's lock.
    is_durable: AtomicBool,
    /// Written under the catalog's lock, read by each use of an element.
    is_allowed: AtomicBool,
}

/// How far the eviction has come in a table. The reaper alone reads and writes it.
#[derive(Default)]
pub(super) struct EvictionHand {
    pub(super) position: AtomicU64,
    /// Bytes evicted beyond the shares of the table.
    pub(super) beyond: AtomicI64,
}

// Relaxed, all accesses: the flags carry no other data. If a thread reads a policy late, it acts as if it had read earlier.
impl EvictionDefault {
    pub(super) fn policy(&self) -> EvictionPolicy {
        if self.is_lru.load(Ordering::Relaxed) { EvictionPolicy::Lru } else { EvictionPolicy::None }
    }

    /// Whether there is a table that may lose elements.
    #[inline]
    pub(super) fn has_tables(&self) -> bool {
        self.tables.load(Ordering::Relaxed) > 0
    }

    /// The eviction of a new table.
    pub(super) fn of_new(&self, said: Option<EvictionPolicy>, is_durable: bool) -> TableEviction {
        let is_durable = AtomicBool::new(is_durable);
        let table = TableEviction { said, is_durable, is_allowed: AtomicBool::new(false) };
        self.apply(&table);
        table
    }

    /// A table has become durable, or is in memory again.
    pub(super) fn set_durable(&self, table: &TableEviction, is_durable: bool) {
        table.is_durable.store(is_durable, Ordering::Relaxed);
        self.apply(table);
    }

    /// A table loses its name.
    pub(super) fn leave(&self, table: &TableEviction) {
        if table.is_allowed() {
            self.tables.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Sets the policy, of these tables too.
    pub(super) fn set<'t>(&self, policy: EvictionPolicy, tables: impl Iterator<Item = &'t TableEviction>) {
        self.is_lru.store(policy == EvictionPolicy::Lru, Ordering::Relaxed);
        tables.for_each(|table| self.apply(table));
    }

    fn apply(&self, table: &TableEviction) {
        let is_durable = table.is_durable.load(Ordering::Relaxed);
        let is_allowed = !is_durable && table.said.unwrap_or(self.policy()) == EvictionPolicy::Lru;
        if table.is_allowed.swap(is_allowed, Ordering::Relaxed) != is_allowed {
            if is_allowed {
                self.tables.fetch_add(1, Ordering::Relaxed);
            } else {
                self.tables.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

impl TableEviction {
    /// Whether elements of the table may be evicted.
    #[inline]
    pub(super) fn is_allowed(&self) -> bool {
        self.is_allowed.load(Ordering::Relaxed)
    }

    pub(super) fn said(&self) -> Option<EvictionPolicy> {
        self.said
    }
}

/// The part of the eviction that all threads share.
#[derive(Default)]
pub(super) struct EvictorShared {
    /// Whether the reaper is to plan. Set by writers and the compactor, cleared by the reaper.
    is_awake: AtomicBool,
    /// Bytes of the largest write that finds no room. Raised by writers, cleared by the reaper.
    pub(super) wanted: AtomicI64,
    /// Elements that were evicted. Added to by the reaper.
    pub(super) evicted: SharedCounter,
}

impl EvictorShared {
    pub(super) fn evicted(&self) -> u64 {
        self.evicted.get()
    }

    /// Whether a write waits for room.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0
    }

    /// Returns whether the reaper was to plan.
    pub(super) fn take_call(&self) -> bool {
        // Acquire: pairs with the Release in `wake_evictor`. The plan sees the bytes for which it was called, or the caller
        // finds the flag cleared and sends a message.
        self.is_awake.load(Ordering::Relaxed) && self.is_awake.swap(false, Ordering::Acquire)
    }
}

impl TablesShared {
    /// A write of so many bytes finds no room. Returns whether evictions can make it, and has them begin.
    #[cold]
    pub(super) fn evicts_for(&self, bytes: i64) -> bool {
        if !self.catalog.eviction.has_tables() {
            return false;
        }
        let evictable = self.catalog.evictable_bytes(&epoch::pin());
        let is_enough = evictable > 0 && self.memory_budget.used() - evictable + bytes <= self.memory_budget.limit();
        if is_enough {
            self.evictor.wanted.fetch_max(bytes, Ordering::Relaxed);
            self.wake_evictor();
        }
        is_enough
    }

    /// Has the reaper evict if the reserve is touched.
    #[cold]
    pub(super) fn wake_evictor_if_full(&self) {
        if self.catalog.eviction.has_tables() && self.memory_budget.beyond_reserve() > 0 {
            self.wake_evictor();
        }
    }

    fn wake_evictor(&self) {
        // Release: pairs with the Acquire in `take_call`. Whoever finds the flag set leaves the bytes to the next plan.
        if !self.evictor.is_awake.swap(true, Ordering::Release) {
            self.reaper.nudge();
        }
    }
}
