//! Bytes that the server holds for its clients: one [`Budget`] for each kind of them in a service.
//!
//! ```text
//! Connections of thread 0: ThreadShare ─┐ in portions                  > most: all threads are woken, and tight
//! Connections of thread 1: ThreadShare ─┼────────────► Budget ────────┤
//! Connections of thread 2: ThreadShare ─┘                              ≤ ¾ of most: all threads are woken
//! owned by one thread: queues of subscribers, replies of tasks, conversations ─► Budget, counted at once
//! ```
//! A thread adds to a common count only when its own count has changed by a portion. The cache line of the common count
//! is therefore written once for thousands of requests, and otherwise only read. The common count is exact but for one
//! portion of each thread. Each connection knows its own bytes.
//!
//! The composition root adds up all budgets, for the memory limit of the tables. What a service does when a budget is
//! used up is its own decision:
//!
//! | budget | used up |
//! |---|---|
//! | buffers of requests and replies: tables, tasks, lock-step | large connections wait; a connection that stands still is closed (`zeromq/connections/memory.rs`) |
//! | queues of subscribers: notifications, feed, lock-step | a subscriber above its share loses its newest messages (`zeromq/publish`) |
//! | values of lock-step conversations | a conversation gets half of the rest; large ones that stand still are closed (`services/lockstep/memory.rs`) |
//! | unsent replies of tasks | the client with the most is closed (`services/tasks/serve/answers.rs`) |
//! | envelopes of unanswered requests of tasks | no request is taken; from half on a Lend does not wait (`services/tasks/responder.rs`) |
//! | mail to workers with subscribers of their own: counted with the buffers of requests and replies | a worker's mail has a bound of its own, and what is beyond it is lost (`mail.rs`) |
//! | larger requests and answers of jobs | they wait for room, and slow ones lose theirs (`services/jobs/pace.rs`) |
//!
//! Topics of subscribers have bounds of their own (`limits.rs`), and so have changes on their way (`tables/change.rs`).
//! HTTP keeps a head and a body of bounded size for each connection, and the number of connections bounds the sum.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::utils::CachePadded;

use crate::limits::HELD_PORTION_BYTES;
use crate::lock::Mutex;
use crate::net::sockets::WakeSignal;

/// The bytes of one kind that a service holds for its clients, and the most of them.
#[derive(Debug)]
pub struct Budget {
    /// Bytes that all threads have counted. Written by each thread, read by each thread at each turn.
    held: CachePadded<AtomicU64>,
    /// Above this many bytes, everything that can wait waits.
    most: u64,
    /// Bytes by which a thread may hold more, or less, than it has counted.
    portion: u64,
    /// The wake signals of the threads.
    wake_signals: Mutex<Vec<WakeSignal>>,
}

impl Budget {
    /// A budget of `most` bytes.
    #[must_use]
    pub fn new(most: u64) -> Arc<Self> {
        let portion = HELD_PORTION_BYTES.min(most / 64).max(1);
        Arc::new(Self { held: CachePadded::new(AtomicU64::new(0)), most, portion, wake_signals: Mutex::default() })
    }

    /// The share of a thread that this signal wakes.
    pub(crate) fn share(self: &Arc<Self>, wake_signal: &WakeSignal) -> ThreadShare {
        self.wake_signals.lock().push(wake_signal.clone());
        ThreadShare { budget: Arc::clone(self), own: 0, counted: 0 }
    }

    /// The count, in bytes, at which waiting connections continue.
    fn enough(&self) -> u64 {
        self.most / 4 * 3
    }

    /// Bytes that all threads have counted.
    #[must_use]
    pub fn held(&self) -> u64 {
        // SeqCst: pairs with `add` and `subtract`. A thread reads the count and then sleeps. If another thread crosses
        // an edge before that read, the read sees it. If it crosses the edge after the read, it raises the sleeper's
        // signal, and the signal stays raised until the sleeper wakes.
        self.held.load(Ordering::SeqCst)
    }

    /// The most bytes.
    pub(crate) fn most(&self) -> u64 {
        self.most
    }

    /// Whether so many bytes more are within it.
    pub(crate) fn has_room_for(&self, bytes: usize) -> bool {
        self.held() + bytes as u64 <= self.most
    }

    /// Bytes that may still come.
    pub(crate) fn left(&self) -> u64 {
        self.most.saturating_sub(self.held())
    }

    /// Whether all threads together hold too much.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.held() > self.most
    }

    /// Something takes `now` bytes that took `before`. It is counted at once.
    pub(crate) fn change(&self, before: u64, now: u64) {
        if now >= before {
            self.add(now - before);
        } else {
            self.subtract(before - now);
        }
    }

    fn add(&self, bytes: u64) {
        // SeqCst: pairs with `held`. Each time the count crosses the edge, exactly one thread's addition crosses it.
        let before = self.held.fetch_add(bytes, Ordering::SeqCst);
        if before <= self.most && before + bytes > self.most {
            self.wake_all();
        }
    }

    fn subtract(&self, bytes: u64) {
        // SeqCst: pairs with `held`. Exactly one thread's subtraction crosses the edge.
        let before = self.held.fetch_sub(bytes, Ordering::SeqCst);
        if before > self.enough() && before - bytes <= self.enough() {
            self.wake_all();
        }
    }

    fn wake_all(&self) {
        self.wake_signals.lock().iter().for_each(WakeSignal::raise);
    }
}

/// Bytes of all these budgets.
#[must_use]
pub fn held_by(budgets: &[Arc<Budget>]) -> u64 {
    budgets.iter().map(|budget| budget.held()).sum()
}

/// The bytes that one thread holds.
#[derive(Debug)]
pub(crate) struct ThreadShare {
    budget: Arc<Budget>,
    own: u64,
    /// Part of `own` that is in the common count.
    counted: u64,
}

impl ThreadShare {
    /// Bytes that the thread holds.
    pub(crate) fn bytes(&self) -> u64 {
        self.own
    }

    /// Counts `more` bytes as held by the thread and `less` bytes as released.
    #[inline]
    pub(crate) fn change(&mut self, more: usize, less: usize) {
        self.own = self.own + more as u64 - less as u64;
        if self.own.abs_diff(self.counted) >= self.budget.portion {
            self.count();
        }
    }

    fn count(&mut self) {
        self.budget.change(self.counted, self.own);
        self.counted = self.own;
    }

    /// Whether all threads together hold too much.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.budget.is_over()
    }

    /// Counts what a worker has counted, and hands over, as held by this thread.
    pub(crate) fn absorb(&mut self, share: &mut WorkerShare) {
        let WorkerShare { own, counted } = std::mem::take(share);
        self.own += own;
        self.counted += counted;
        self.change(0, 0);
    }

    /// Whether they hold so little that waiting connections continue.
    pub(crate) fn is_enough(&self) -> bool {
        self.budget.held() <= self.budget.enough()
    }
}

/// The bytes of replies that a worker has made for the connections of another thread. It goes there with the replies.
#[derive(Debug, Default)]
pub(crate) struct WorkerShare {
    own: u64,
    /// Part of `own` that is in the common count.
    counted: u64,
}

impl WorkerShare {
    /// Counts bytes in the common count, in portions.
    #[inline]
    pub(crate) fn add(&mut self, budget: &Budget, bytes: usize) {
        self.own += bytes as u64;
        if self.own - self.counted >= budget.portion {
            budget.add(self.own - self.counted);
            self.counted = self.own;
        }
    }

    /// Bytes that it has counted.
    pub(crate) fn bytes(&self) -> usize {
        usize::try_from(self.own).unwrap_or(usize::MAX)
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
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;
    use crate::net::sockets::timespec;

    #[test]
    fn threads_share_a_count_to_which_they_add_in_portions() {
        let budget = Budget::new(64_000);
        let wake_signal = WakeSignal::new().unwrap();
        let (mut one, mut other) = (budget.share(&wake_signal), budget.share(&wake_signal));
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

    /// Whether the signal was raised. It is cleared afterwards.
    fn was_raised(wake_signal: &WakeSignal) -> bool {
        let mut polled = [PollFd::new(wake_signal, PollFlags::IN)];
        let ready = poll(&mut polled, Some(&timespec(Duration::ZERO))).unwrap();
        wake_signal.clear();
        ready == 1
    }

    #[test]
    fn threads_are_woken_when_the_count_crosses_an_edge_and_only_then() {
        let budget = Budget::new(64_000);
        let wake_signals = [WakeSignal::new().unwrap(), WakeSignal::new().unwrap()];
        let mut shares = wake_signals.each_ref().map(|wake_signal| budget.share(wake_signal));
        let mut raised = |more, less| {
            shares[0].change(more, less);
            let raised = wake_signals.each_ref().map(was_raised);
            assert_eq!(raised[0], raised[1]);
            raised[0]
        };
        assert!(!raised(1_000, 0));
        assert!(!raised(63_000, 0), "as much as may be");
        assert!(raised(1_000, 0));
        assert!(!raised(1_000, 0), "they know it");
        assert!(!raised(0, 2_000), "more than three quarters");
        assert!(!raised(0, 15_000));
        assert!(raised(0, 1_000), "three quarters");
        assert!(!raised(0, 1_000), "they know it");
    }
}
