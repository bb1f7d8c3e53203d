//! What the committer tells of its queues, for any thread to read.

use std::sync::{Arc, Mutex, PoisonError};

use super::queue::Counts;
use crate::stats::{Counter, Gauge};

/// `oldest` of a queue without a ready task.
const NONE: u64 = u64::MAX;

/// Figures of one queue, as of its last batch.
#[derive(Debug)]
pub struct QueueFigures {
    name: Box<[u8]>,
    ready: Gauge,
    leased: Gauge,
    dropped: Gauge,
    ran_out: Gauge,
    waiting: Gauge,
    oldest: Gauge,
}

impl QueueFigures {
    pub(super) fn new(name: &[u8]) -> Self {
        let oldest = Gauge::default();
        oldest.set(NONE);
        let [ready, leased, dropped, ran_out, waiting] = std::array::from_fn(|_| Gauge::default());
        Self { name: name.into(), ready, leased, dropped, ran_out, waiting, oldest }
    }

    pub(super) fn set(&self, counts: Counts, waiting: usize, oldest: Option<u64>) {
        self.ready.set(counts.ready);
        self.leased.set(counts.leased);
        self.dropped.set(counts.dropped);
        self.ran_out.set(counts.ran_out);
        self.waiting.set(waiting as u64);
        self.oldest.set(oldest.unwrap_or(NONE));
    }

    /// The name of the queue.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// How many tasks are in which state.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let Self { ready, leased, dropped, ran_out, .. } = self;
        Counts { ready: ready.get(), leased: leased.get(), dropped: dropped.get(), ran_out: ran_out.get() }
    }

    /// How many wait for a task.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.waiting.get()
    }

    /// When the oldest ready task became ready, in milliseconds of the wall clock.
    #[must_use]
    pub fn oldest(&self) -> Option<u64> {
        Some(self.oldest.get()).filter(|since| *since != NONE)
    }
}

/// Figures of all queues and of the committer.
#[derive(Debug, Default)]
pub struct Figures {
    queues: Mutex<Vec<Arc<QueueFigures>>>,
    /// Batches that were stored.
    pub(super) commits: Counter,
    /// Batches and moments after which all was synced.
    pub(super) syncs: Counter,
}

impl Figures {
    pub(super) fn add(&self, queue: Arc<QueueFigures>) {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner).push(queue);
    }

    /// Figures of each queue.
    #[must_use]
    pub fn queues(&self) -> Vec<Arc<QueueFigures>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many batches were stored.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.commits.get()
    }

    /// How often the store was synced.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.syncs.get()
    }
}
