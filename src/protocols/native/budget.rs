//! What the connections of a frontend hold in memory, whatever thread has them.
//!
//! ```text
//! Peers of thread 0: Share ─┐ in portions           > most: all threads are woken, and tight
//! Peers of thread 1: Share ─┼────────────► Budget ──┤
//! Peers of thread 2: Share ─┘                       ≤ ¾ of most: all threads are woken
//! ```
//! A thread adds to the common count only when what it holds has changed by a portion: the line that has the count is written once
//! for thousands of requests, and otherwise only read. So the count is right but for a portion of each thread.
//!
//! What is not here: what a thread does while it is tight.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam::utils::CachePadded;

use crate::limits::HELD_PORTION_BYTES;
use crate::protocols::sockets::WakeSignal;

/// The common count of a frontend.
#[derive(Debug)]
pub struct BufferBudget {
    /// What all threads have counted. Written by each of them; read by each of them at each turn.
    held: CachePadded<AtomicU64>,
    /// Above it there is nothing for what can wait.
    most: u64,
    /// What a thread may hold more, or less, than it has counted.
    portion: u64,
    /// The threads.
    bells: Mutex<Vec<WakeSignal>>,
}

impl BufferBudget {
    /// Of so many bytes.
    #[must_use]
    pub fn new(most: u64) -> Arc<Self> {
        let portion = HELD_PORTION_BYTES.min(most / 64).max(1);
        Arc::new(Self { held: CachePadded::new(AtomicU64::new(0)), most, portion, bells: Mutex::default() })
    }

    /// For a thread that is woken by this bell.
    pub(super) fn share(self: &Arc<Self>, bell: &WakeSignal) -> ThreadShare {
        self.bells.lock().unwrap_or_else(PoisonError::into_inner).push(bell.clone());
        ThreadShare { budget: Arc::clone(self), own: 0, counted: 0 }
    }

    /// What is held again so that those that had to wait go on.
    fn enough(&self) -> u64 {
        self.most / 4 * 3
    }

    /// What all threads have counted, in bytes.
    #[must_use]
    pub fn held(&self) -> u64 {
        // SeqCst: pairs with those in `add` and `subtract`. A thread that has looked, and then sleeps, is woken by the one that
        // goes over an edge after that: its bell is rung then, and keeps.
        self.held.load(Ordering::SeqCst)
    }

    fn add(&self, bytes: u64) {
        // SeqCst: as in `held`. One thread alone goes over an edge, each time.
        let before = self.held.fetch_add(bytes, Ordering::SeqCst);
        if before <= self.most && before + bytes > self.most {
            self.wake_all();
        }
    }

    fn subtract(&self, bytes: u64) {
        // SeqCst: as in `held`.
        let before = self.held.fetch_sub(bytes, Ordering::SeqCst);
        if before > self.enough() && before - bytes <= self.enough() {
            self.wake_all();
        }
    }

    fn wake_all(&self) {
        self.bells.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(WakeSignal::ring);
    }
}

/// What one thread holds.
#[derive(Debug)]
pub(super) struct ThreadShare {
    budget: Arc<BufferBudget>,
    own: u64,
    /// What of it is in the common count.
    counted: u64,
}

impl ThreadShare {
    /// What the thread holds.
    pub(super) fn bytes(&self) -> u64 {
        self.own
    }

    /// The thread holds `more` bytes, and no longer `less`.
    #[inline]
    pub(super) fn change(&mut self, more: usize, less: usize) {
        self.own = self.own + more as u64 - less as u64;
        if self.own.abs_diff(self.counted) >= self.budget.portion {
            self.count();
        }
    }

    fn count(&mut self) {
        if self.own >= self.counted {
            self.budget.add(self.own - self.counted);
        } else {
            self.budget.subtract(self.counted - self.own);
        }
        self.counted = self.own;
    }

    /// Whether all threads together hold too much.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.budget.held() > self.budget.most
    }

    /// Whether they hold so little that those that had to wait go on.
    pub(super) fn is_enough(&self) -> bool {
        self.budget.held() <= self.budget.enough()
    }
}

impl Drop for ThreadShare {
    fn drop(&mut self) {
        self.own = 0;
        self.count();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;

    #[test]
    fn threads_share_a_count_to_which_they_add_in_portions() {
        let budget = BufferBudget::new(64_000);
        let bell = WakeSignal::new().unwrap();
        let (mut one, mut other) = (budget.share(&bell), budget.share(&bell));
        one.change(999, 0);
        assert_eq!(budget.held(), 0);
        one.change(1, 0);
        assert_eq!(budget.held(), 1_000);
        other.change(63_000, 0);
        assert!(!one.is_over() && !one.is_enough());
        one.change(1_000, 0);
        assert!(one.is_over() && other.is_over());
        other.change(0, 17_000);
        assert!(other.is_enough());
        drop(other);
        assert_eq!((one.bytes(), budget.held()), (2_000, 2_000));
        drop(one);
        assert_eq!(budget.held(), 0);
    }
}
