//! Metrics of the committer and its queues. Written by the committing thread, read by any thread.

use std::sync::Arc;

use super::counts::{COUNTS, TaskCounts};
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
    counts: [Gauge; COUNTS],
    waiting: Gauge,
    groups: Gauge,
    oldest: Gauge,
}

impl QueueMetrics {
    pub(super) fn new(name: &[u8]) -> Self {
        let oldest = Gauge::default();
        oldest.set(NONE);
        Self {
            name: name.into(),
            counts: Default::default(),
            waiting: Gauge::default(),
            groups: Gauge::default(),
            oldest,
        }
    }

    pub(super) fn set(&self, counts: TaskCounts, waiting: usize, groups: u64, oldest: Option<u64>) {
        self.counts.iter().zip(counts.all_counts()).for_each(|(gauge, count)| gauge.set(count));
        self.waiting.set(waiting as u64);
        self.groups.set(groups);
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
        TaskCounts::of(self.counts.each_ref().map(Gauge::get))
    }

    /// The number of requests that wait for a task.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.waiting.get()
    }

    /// The number of groups that have tasks.
    #[must_use]
    pub fn groups(&self) -> u64 {
        self.groups.get()
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
    counts: [Gauge; COUNTS],
}

impl FamilyMetrics {
    fn new(name: &[u8]) -> Self {
        Self { name: name.into(), queues: Gauge::default(), counts: Default::default() }
    }

    /// Replaces the counts of one queue in the sums.
    pub(super) fn recount(&self, before: TaskCounts, now: TaskCounts) {
        let changes = before.all_counts().into_iter().zip(now.all_counts());
        self.counts.iter().zip(changes).for_each(|(gauge, (before, now))| gauge.set(gauge.get() + now - before));
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

    /// The number of tasks in each state. What has happened since the start includes what has in removed queues.
    #[must_use]
    pub fn counts(&self) -> TaskCounts {
        TaskCounts::of(self.counts.each_ref().map(Gauge::get))
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
