//! All queues, by index and by name. A queue of a family is created by its first task and removed with its last.
//!
//! ```text
//! index   0         1         2       3            names: name ─► index
//!         spiderq   jobs/a    free    jobs/b       free:  2, used before a new index
//! ```
//! The index of a queue (`place`) is also its number in the store. A removed queue takes its record with it. Its index
//! is given to a new queue in a later batch, so a batch never names a record twice.
//!
//! This module does not change tasks and grants no leases; see `queue.rs` and `engine.rs`.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use ahash::RandomState;

use super::metrics::{FamilyMetrics, QueueMetrics, TaskMetrics};
use super::order::LeaseOrder;
use super::queue::{Effect, TaskCounts, TaskQueue};
use super::record::{QueueRecord, queue_key, task_key};
use super::{Policy, Ticket};
use crate::limits::{QUEUES_LISTED, QUEUES_MAX};
use crate::store::{Space, WriteBatch};

/// A request that waits for a task.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingLease {
    pub(super) ticket: Ticket,
    /// The length of its lease, in milliseconds.
    pub(super) timeout: u64,
}

/// A queue with its name, policy, waiting requests and metrics.
#[derive(Debug)]
pub(super) struct QueueEntry {
    pub(super) queue: TaskQueue,
    name: Arc<[u8]>,
    pub(super) policy: Policy,
    /// First come, first served. Empty while a task is ready.
    pub(super) waiters: VecDeque<WaitingLease>,
    /// Serial and last number as they are stored. `None` if the queue is not stored.
    stored: Option<(u64, u64)>,
    /// Whether it is among the queues that may have changed.
    pub(super) marked: bool,
    /// The index of its family, if it belongs to one.
    family: Option<usize>,
    /// The counts of this queue that are included in the metrics of its family.
    counted: TaskCounts,
    /// `None` if the queue is not listed.
    metrics: Option<Arc<QueueMetrics>>,
}

/// A family: queues with a common prefix.
#[derive(Debug)]
struct QueueKind {
    /// The prefix of their names.
    prefix: Box<[u8]>,
    order: LeaseOrder,
    policy: Policy,
    /// The number of its queues that are listed in the metrics.
    listed: usize,
    metrics: Arc<FamilyMetrics>,
}

/// All queues.
#[derive(Debug)]
pub(super) struct Queues {
    places: Vec<Option<Box<QueueEntry>>>,
    free: Vec<usize>,
    names: HashMap<Arc<[u8]>, usize, RandomState>,
    kinds: Vec<QueueKind>,
    metrics: Arc<TaskMetrics>,
}

impl Queues {
    /// Without a queue.
    pub(super) fn new(metrics: Arc<TaskMetrics>) -> Self {
        let (places, free, kinds) = (Vec::new(), Vec::new(), Vec::new());
        Self { places, free, names: HashMap::default(), kinds, metrics }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &QueueEntry> {
        self.places.iter().flatten().map(|entry| &**entry)
    }

    /// The indices in use.
    pub(super) fn taken(&self) -> Vec<usize> {
        self.names.values().copied().collect()
    }

    pub(super) fn get(&self, place: usize) -> Option<&QueueEntry> {
        self.places.get(place)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, place: usize) -> Option<&mut QueueEntry> {
        self.places.get_mut(place)?.as_deref_mut()
    }

    /// The index of the queue with this name.
    pub(super) fn find(&self, name: &[u8]) -> Option<usize> {
        self.names.get(name).copied()
    }

    // --------------------------------------------------------------------------------------------------------- coming

    /// Restores a queue from its record. Queues come in the order of their numbers. False: the record is invalid.
    pub(super) fn restore(&mut self, number: u32, record: &QueueRecord<'_>) -> bool {
        let place = number as usize;
        if place < self.places.len() || place >= QUEUES_MAX || self.names.contains_key(record.name) {
            return false;
        }
        self.free.extend(self.places.len()..place);
        self.places.resize_with(place, || None);
        let &QueueRecord { order, serial, last, name } = record;
        self.put(place, TaskQueue::new(number, order, serial, last), name, Some((serial, last)));
        true
    }

    /// Returns the index of the queue with this name, creates it if there is none, and lists it. `None`: there are too
    /// many.
    pub(super) fn open(&mut self, name: &[u8], order: LeaseOrder, policy: Policy) -> Option<usize> {
        let place = self.find(name).or_else(|| self.create(name, order))?;
        let metrics = &self.metrics;
        let entry = self.places.get_mut(place)?.as_deref_mut()?;
        entry.policy = policy;
        entry.metrics.get_or_insert_with(|| metrics.list(name));
        Some(place)
    }

    /// Makes a family of all queues whose names begin with `prefix`, those in the store included. Returns its index.
    /// `None`: one of them has another order.
    pub(super) fn family(&mut self, prefix: &[u8], order: LeaseOrder, policy: Policy) -> Option<usize> {
        let metrics = self.metrics.family(prefix);
        let family = self.kinds.len();
        self.kinds.push(QueueKind { prefix: prefix.into(), order, policy, listed: 0, metrics });
        for place in 0..self.places.len() {
            let Some(entry) = self.get(place).filter(|entry| entry.name.starts_with(prefix)) else { continue };
            if entry.queue.order() != order {
                return None;
            }
            self.join(place, family);
            self.report(place);
        }
        Some(family)
    }

    /// Returns the index of a queue of a family, and creates the queue if there is none. `None`: there are too many.
    pub(super) fn come(&mut self, family: usize, name: &[u8]) -> Option<usize> {
        if let Some(place) = self.find(name) {
            return Some(place);
        }
        let order = self.kinds.get(family)?.order;
        let place = self.create(name, order)?;
        self.join(place, family);
        Some(place)
    }

    fn create(&mut self, name: &[u8], order: LeaseOrder) -> Option<usize> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.places.len() < QUEUES_MAX => self.places.len(),
            None => return None,
        };
        self.put(place, TaskQueue::new(number_of(place), order, 0, 0), name, None);
        Some(place)
    }

    fn put(&mut self, place: usize, queue: TaskQueue, name: &[u8], stored: Option<(u64, u64)>) {
        let name: Arc<[u8]> = name.into();
        self.names.insert(Arc::clone(&name), place);
        let entry = Box::new(QueueEntry {
            queue,
            name,
            policy: Policy::Always,
            waiters: VecDeque::new(),
            stored,
            marked: false,
            family: None,
            counted: TaskCounts::default(),
            metrics: None,
        });
        match self.places.get_mut(place) {
            Some(free) => *free = Some(entry),
            None => self.places.push(Some(entry)),
        }
    }

    fn join(&mut self, place: usize, family: usize) {
        let entry = self.places.get_mut(place).and_then(|entry| entry.as_deref_mut());
        let (Some(entry), Some(kind)) = (entry, self.kinds.get_mut(family)) else { return };
        debug_assert!(entry.name.starts_with(&kind.prefix), "a family knows its queues by their names");
        (entry.family, entry.policy) = (Some(family), kind.policy);
        kind.metrics.queues.set(kind.metrics.queues.get() + 1);
        if kind.listed < QUEUES_LISTED {
            kind.listed += 1;
            entry.metrics = Some(self.metrics.list(&entry.name));
        }
    }

    // ---------------------------------------------------------------------------------------------------------- going

    /// The drained changes of this queue are stored: updates the metrics, and removes a queue that is over.
    pub(super) fn stored(&mut self, place: usize) {
        self.report(place);
        if self.get(place).is_some_and(QueueEntry::is_over) {
            self.forget(place);
        }
    }

    fn report(&mut self, place: usize) {
        let Some(entry) = self.places.get_mut(place).and_then(|entry| entry.as_deref_mut()) else { return };
        let counts = entry.queue.counts();
        if let Some(metrics) = &entry.metrics {
            metrics.set(counts, entry.waiters.len(), entry.queue.oldest());
        }
        if let Some(kind) = entry.family.and_then(|family| self.kinds.get(family)) {
            kind.metrics.recount(entry.counted, counts);
            entry.counted = counts;
        }
    }

    fn forget(&mut self, place: usize) {
        let Some(entry) = self.places.get_mut(place).and_then(Option::take) else { return };
        self.names.remove(&entry.name);
        self.free.push(place);
        let Some(kind) = entry.family.and_then(|family| self.kinds.get_mut(family)) else { return };
        kind.metrics.queues.set(kind.metrics.queues.get() - 1);
        if let Some(metrics) = entry.metrics {
            kind.listed -= 1;
            self.metrics.strike(&metrics);
        }
    }
}

/// The number of a queue in the store, from its index.
pub(super) fn number_of(place: usize) -> u32 {
    u32::try_from(place).expect("there are fewer than 2^32 queues")
}

impl QueueEntry {
    /// Whether the queue is to be removed: it is of a family, its last task is gone, and no request waits.
    fn is_over(&self) -> bool {
        self.family.is_some() && self.queue.is_empty() && self.waiters.is_empty()
    }

    /// Moves all changes to store into the batch.
    pub(super) fn drain(&mut self, number: u32, batch: &mut WriteBatch) {
        self.marked = false;
        let state = Some((self.queue.serial(), self.queue.last())).filter(|_| !self.is_over());
        if self.stored != state {
            match state {
                Some((serial, last)) => {
                    let record = QueueRecord { order: self.queue.order(), serial, last, name: &self.name };
                    batch.put(Space::Meta, &queue_key(number), &record.encode());
                }
                None => batch.delete(Space::Meta, &queue_key(number)),
            }
            self.stored = state;
        }
        self.queue.drain(|effect| match effect {
            Effect::Task(task, record) => batch.put(Space::Tasks, &task_key(number, task), &record.encode()),
            Effect::Value(task, value) => batch.put_value(Space::Values, &task_key(number, task), value),
            Effect::Gone(task) => {
                batch.delete(Space::Tasks, &task_key(number, task));
                batch.delete(Space::Values, &task_key(number, task));
            }
        });
    }
}
