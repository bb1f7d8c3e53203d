//! All queues, by their place and by their name; and families, whose queues come with their first task and go with their last.
//!
//! ```text
//! place   0         1         2       3            names: name ─► place
//!         spiderq   jobs/a    free    jobs/b       free:  2, used before a new place
//! ```
//! The place of a queue is the number that the store knows it by. A queue that goes takes its record with it, and its place
//! is given to the next one, in a later batch: a batch never names a record twice.
//!
//! What is not here: what happens in a queue, and whose turn it is.

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

/// Who waits for a task.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingLease {
    pub(super) ticket: Ticket,
    /// How long its lease is to be, in milliseconds.
    pub(super) timeout: u64,
}

/// A queue, and what is around it.
#[derive(Debug)]
pub(super) struct QueueEntry {
    pub(super) queue: TaskQueue,
    name: Arc<[u8]>,
    pub(super) policy: Policy,
    /// First come, first served; empty while a task is ready.
    pub(super) waiters: VecDeque<WaitingLease>,
    /// Serial and last number as they are stored; none if the queue is not.
    stored: Option<(u64, u64)>,
    /// Whether it is among those in which something may have changed.
    pub(super) marked: bool,
    /// The place of its family, if it is of one.
    family: Option<usize>,
    /// What the figures of its family count of it.
    counted: TaskCounts,
    /// None if it is not listed.
    metrics: Option<Arc<QueueMetrics>>,
}

/// Queues of one kind.
#[derive(Debug)]
struct QueueKind {
    /// How their names begin.
    prefix: Box<[u8]>,
    order: LeaseOrder,
    policy: Policy,
    /// How many are listed in the figures.
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

    /// The places that are taken.
    pub(super) fn taken(&self) -> Vec<usize> {
        self.names.values().copied().collect()
    }

    pub(super) fn get(&self, place: usize) -> Option<&QueueEntry> {
        self.places.get(place)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, place: usize) -> Option<&mut QueueEntry> {
        self.places.get_mut(place)?.as_deref_mut()
    }

    /// The place of the queue of this name.
    pub(super) fn find(&self, name: &[u8]) -> Option<usize> {
        self.names.get(name).copied()
    }

    // --------------------------------------------------------------------------------------------------------- coming

    /// Brings a queue back as it was stored. Queues come by growing numbers; false: this one cannot be.
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

    /// The place of the queue of this name, which is made if there is none, and is listed. None: there are too many.
    pub(super) fn open(&mut self, name: &[u8], order: LeaseOrder, policy: Policy) -> Option<usize> {
        let place = self.find(name).or_else(|| self.create(name, order))?;
        let metrics = &self.metrics;
        let entry = self.places.get_mut(place)?.as_deref_mut()?;
        entry.policy = policy;
        entry.metrics.get_or_insert_with(|| metrics.list(name));
        Some(place)
    }

    /// Makes a family of all queues whose names begin so; there may be some. Its place, or none if one of these has another order.
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

    /// The queue of this name in a family, made if there is none. None: there are too many.
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

    /// What was drained of this queue is stored: the figures may show it, and a queue that has gone is forgotten.
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

/// What the store knows the queue at this place by.
pub(super) fn number_of(place: usize) -> u32 {
    u32::try_from(place).expect("there are fewer than 2^32 queues")
}

impl QueueEntry {
    /// Whether it goes: its last task has gone, and nobody waits for another.
    fn is_over(&self) -> bool {
        self.family.is_some() && self.queue.is_empty() && self.waiters.is_empty()
    }

    /// Hands over all that is to be stored.
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
