//! Metrics of the committer and its queues. Written by the committing thread, read by any thread.

use std::sync::Arc;

use super::queue::TaskCounts;
use crate::clock::ClockReading;
use crate::lock::Mutex;
use crate::stats::{Counter, Gauge, SharedCounter};
use crate::store::LogMetrics;

/// The value of `oldest` for a queue without a ready task.
const NONE: u64 = u64::MAX;

/// Metrics of one queue, as of its last batch.
#[derive(Debug)]
pub struct QueueMetrics {
    name: Box<[u8]>,
    ready: Gauge,
    leased: Gauge,
    dropped: Gauge,
    unread: Gauge,
    ran_out: Gauge,
    waiting: Gauge,
    oldest: Gauge,
}

impl QueueMetrics {
    pub(super) fn new(name: &[u8]) -> Self {
        let oldest = Gauge::default();
        oldest.set(NONE);
        let [ready, leased, dropped, unread, ran_out, waiting] = std::array::from_fn(|_| Gauge::default());
        Self { name: name.into(), ready, leased, dropped, unread, ran_out, waiting, oldest }
    }

    pub(super) fn set(&self, counts: TaskCounts, waiting: usize, oldest: Option<u64>) {
        self.ready.set(counts.ready);
        self.leased.set(counts.leased);
        self.dropped.set(counts.dropped);
        self.unread.set(counts.unread);
        self.ran_out.set(counts.ran_out);
        self.waiting.set(waiting as u64);
        self.oldest.set(oldest.unwrap_or(NONE));
    }

    /// The name of the queue.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The number of tasks in each state.
    #[must_use]
    pub fn counts(&self) -> TaskCounts {
        let [ready, leased, dropped, unread, ran_out] =
            [&self.ready, &self.leased, &self.dropped, &self.unread, &self.ran_out].map(Gauge::get);
        TaskCounts { ready, leased, dropped, unread, ran_out }
    }

    /// The number of requests that wait for a task.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.waiting.get()
    }

    /// When the oldest ready task became ready, by [`TaskMetrics::time`].
    #[must_use]
    pub fn oldest(&self) -> Option<u64> {
        Some(self.oldest.get()).filter(|since| *since != NONE)
    }
}

/// The sums over all queues of a family.
#[derive(Debug)]
pub struct FamilyMetrics {
    name: Box<[u8]>,
    pub(super) queues: Gauge,
    ready: Gauge,
    leased: Gauge,
    unread: Gauge,
    ran_out: Gauge,
}

impl FamilyMetrics {
    fn new(name: &[u8]) -> Self {
        let [queues, ready, leased, unread, ran_out] = std::array::from_fn(|_| Gauge::default());
        Self { name: name.into(), queues, ready, leased, unread, ran_out }
    }

    /// Replaces the counts of one queue in the sums.
    pub(super) fn recount(&self, before: TaskCounts, now: TaskCounts) {
        let change = |gauge: &Gauge, before: u64, now: u64| gauge.set(gauge.get() + now - before);
        change(&self.ready, before.ready, now.ready);
        change(&self.leased, before.leased, now.leased);
        change(&self.unread, before.unread, now.unread);
        change(&self.ran_out, before.ran_out, now.ran_out);
    }

    /// The prefix of the names of its queues.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The number of queues.
    #[must_use]
    pub fn queues(&self) -> u64 {
        self.queues.get()
    }

    /// The number of tasks in each state. `dropped` is 0. Expired leases include those of removed queues.
    #[must_use]
    pub fn counts(&self) -> TaskCounts {
        let [ready, leased, unread, ran_out] = [&self.ready, &self.leased, &self.unread, &self.ran_out].map(Gauge::get);
        TaskCounts { ready, leased, dropped: 0, unread, ran_out }
    }
}

/// Metrics of all queues and of the committer.
#[derive(Debug, Default)]
pub struct TaskMetrics {
    queues: Mutex<Vec<Arc<QueueMetrics>>>,
    families: Mutex<Vec<Arc<FamilyMetrics>>>,
    /// See `LastingClock::ahead_of_uptime`. Written when the store is opened.
    pub(super) clock_ahead_of_uptime: Gauge,
    /// Batches that were stored.
    pub(super) commits: Counter,
    /// Syncs, with and without a batch.
    pub(super) syncs: Counter,
    /// The metrics of the store.
    pub(super) store: Mutex<LogMetrics>,
    /// How often a frontend had to wait for room.
    pub(super) waits: SharedCounter,
    /// How often a frontend was notified of room and not woken, or found room without a notification.
    pub(super) lost_wakeups: SharedCounter,
}

impl TaskMetrics {
    /// Lists a queue with this name.
    pub(super) fn list(&self, name: &[u8]) -> Arc<QueueMetrics> {
        let queue = Arc::new(QueueMetrics::new(name));
        self.queues.lock().push(Arc::clone(&queue));
        queue
    }

    /// Removes a queue from the list.
    pub(super) fn strike(&self, queue: &Arc<QueueMetrics>) {
        self.queues.lock().retain(|other| !Arc::ptr_eq(other, queue));
    }

    /// Lists a family.
    pub(super) fn family(&self, name: &[u8]) -> Arc<FamilyMetrics> {
        let family = Arc::new(FamilyMetrics::new(name));
        self.families.lock().push(Arc::clone(&family));
        family
    }

    /// The leases' clock at a reading of this system start, in milliseconds.
    #[must_use]
    pub fn time(&self, now: ClockReading) -> u64 {
        self.clock_ahead_of_uptime.get().wrapping_add(now.up / 1_000_000)
    }

    /// Metrics of each queue outside a family, and of a bounded number of queues of each family.
    #[must_use]
    pub fn queues(&self) -> Vec<Arc<QueueMetrics>> {
        self.queues.lock().clone()
    }

    /// Metrics of each family.
    #[must_use]
    pub fn families(&self) -> Vec<Arc<FamilyMetrics>> {
        self.families.lock().clone()
    }

    /// The number of batches that were stored.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.commits.get()
    }

    /// The number of syncs of the store.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.syncs.get()
    }

    /// The metrics of the store, as of the last batch.
    #[must_use]
    pub fn store(&self) -> LogMetrics {
        *self.store.lock()
    }

    /// How often a frontend had to wait until the committer had made room.
    #[must_use]
    pub fn waits(&self) -> u64 {
        self.waits.get()
    }

    /// How often a frontend was notified of room and not woken, or found room without a notification. Each is a bug.
    #[must_use]
    pub fn lost_wakeups(&self) -> u64 {
        self.lost_wakeups.get()
    }
}
