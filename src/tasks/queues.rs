//! All queues, by index and by name. A queue of a family is created by its first task and removed with its last.
//!
//! ```text
//! index   0         1         2       3            names: name ─► index
//!         spiderq   jobs/a    free    jobs/b       free:  2, used before a new index
//! ```
//! The index of a queue is also its number in the store. A removed queue takes its record with it. Its index is given to
//! a new queue in a later batch, so a batch never names a record twice. The numbers of the new queue's tasks are above
//! those of all queues that were removed (`floor`). So a record of an old task, which a repair may find, never becomes a
//! task of another queue.
//!
//! This module does not change tasks and grants no leases; see `queue.rs` and `engine.rs`.

mod ids;

use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU32;
use std::sync::Arc;

use ahash::RandomState;

use ids::IdPlace;

use super::Policy;
use super::counts::TaskCounts;
use super::keys::KeyTable;
use super::metrics::{FamilyMetrics, QueueMetrics, TaskMetrics};
use super::order::LeaseOrder;
use super::queue::{Effect, TaskQueue};
use super::record::{QueueCounters, QueueRecord, queue_key, task_key};
use super::settings::QueueSettings;
use super::waits::{QueueWaits, WaitNumber};
use crate::limits::{QUEUES_LISTED, QUEUES_MAX};
use crate::store::{Space, WriteBatch};
use crate::wheel::TimerId;

/// Places for queues that are kept when there are none.
const KEPT: usize = 1 << 10;

/// Queues that may be stored: an earlier version made more.
pub(super) const STORED_MAX: usize = QUEUES_MAX << 2;
const _: () = assert!(STORED_MAX < u32::MAX as usize);

/// What is stored of a queue beside its tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StoredQueue {
    counters: QueueCounters,
    settings: QueueSettings,
}

/// What keeps a queue in memory without a task, beside requests that wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QueueHolds {
    /// Kicks and purges that go on in it.
    pub(super) sweeps: u32,
    /// Whether a frontend keeps it.
    pub(super) is_kept: bool,
}

/// A queue with its name, policy, waiting requests and metrics.
#[derive(Debug)]
pub(super) struct QueueEntry {
    pub(super) queue: TaskQueue,
    pub(super) name: Arc<[u8]>,
    policy: Policy,
    /// First come, first served. Empty while a task may be leased.
    pub(super) waiters: QueueWaits,
    pub(super) holds: QueueHolds,
    /// When something happens in it by itself, with the timer for that.
    pub(super) alarm: Option<(u64, TimerId)>,
    /// What is stored of it. `None` if the queue is not stored.
    stored: Option<StoredQueue>,
    /// Whether it is among the queues that may have changed.
    pub(super) marked: bool,
    /// The index of its family, if it belongs to one.
    family: Option<usize>,
    /// The counts of this queue that are included in the metrics of its family.
    counted: TaskCounts,
    /// The tasks of this queue that are included in [`Queues::tasks`].
    tasks: u64,
    /// `None` if the queue is not listed.
    metrics: Option<Arc<QueueMetrics>>,
}

/// A family: queues with a common prefix.
#[derive(Debug)]
struct FamilyEntry {
    /// The prefix of their names.
    prefix: Box<[u8]>,
    order: LeaseOrder,
    policy: Policy,
    /// See [`TaskQueue::bound_tries`].
    tries: Option<NonZeroU32>,
    /// The number of its queues that are listed in the metrics.
    listed: usize,
    metrics: Arc<FamilyMetrics>,
}

/// All queues.
#[derive(Debug)]
pub(super) struct Queues {
    entries: Vec<Option<Box<QueueEntry>>>,
    /// The lowest is used first, so that the memory of the higher ones can go back.
    free: BTreeSet<usize>,
    names: HashMap<Arc<[u8]>, usize, RandomState>,
    /// The tasks of all queues of ids.
    ids: KeyTable<IdPlace>,
    families: Vec<FamilyEntry>,
    /// Beyond so many queues none is made.
    most: usize,
    metrics: Arc<TaskMetrics>,
    /// The numbers of tasks in later queues of a family are above this one. At least 1: 0 is for queues of no family.
    floor: u64,
    /// The tasks of all queues, as of the last [`Queues::recount`] of each.
    tasks: u64,
}

impl Queues {
    /// Without a queue.
    pub(super) fn new(metrics: Arc<TaskMetrics>) -> Self {
        let (entries, free, names, families) = (Vec::new(), BTreeSet::new(), HashMap::default(), Vec::new());
        let (ids, most) = (KeyTable::default(), QUEUES_MAX);
        Self { entries, free, names, ids, families, most, metrics, floor: 1, tasks: 0 }
    }

    /// Beyond so many queues none is made, and beyond [`QUEUES_MAX`].
    pub(super) fn bound(&mut self, most: usize) {
        self.most = most.min(QUEUES_MAX);
    }

    /// The highest number of a task in any queue of no family.
    pub(super) fn last(&self) -> u64 {
        let counters = self.entries.iter().flatten().map(|entry| entry.queue.counters());
        counters.filter(|counters| counters.first == 0).map(|counters| counters.last).max().unwrap_or(0)
    }

    /// The number above which the tasks of later queues of a family have theirs.
    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// Numbers up to this one may have been given to tasks of queues that were removed.
    pub(super) fn raise_floor(&mut self, last: u64) {
        self.floor = self.floor.max(last);
    }

    /// The tasks of all queues, in all states, as of the last [`Queues::recount`] of each.
    pub(super) fn tasks(&self) -> u64 {
        self.tasks
    }

    /// Counts the tasks of a queue again.
    pub(super) fn recount(&mut self, queue_index: usize) {
        let Some(entry) = self.entries.get_mut(queue_index).and_then(|entry| entry.as_deref_mut()) else { return };
        let now = entry.queue.len() as u64;
        self.tasks = self.tasks + now - std::mem::replace(&mut entry.tasks, now);
    }

    /// The indices in use.
    pub(super) fn indices(&self) -> Vec<usize> {
        self.names.values().copied().collect()
    }

    /// The first index that no queue has, nor any above it.
    pub(super) fn end(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&self, queue_index: usize) -> Option<&QueueEntry> {
        self.entries.get(queue_index)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, queue_index: usize) -> Option<&mut QueueEntry> {
        self.entries.get_mut(queue_index)?.as_deref_mut()
    }

    /// The index of the queue with this name.
    pub(super) fn find(&self, name: &[u8]) -> Option<usize> {
        self.names.get(name).copied()
    }

    // --------------------------------------------------------------------------------------------------------- coming

    /// Restores a queue from its record. Queues come in the order of their numbers. False: the record is invalid.
    pub(super) fn restore(&mut self, number: u32, record: &QueueRecord<'_>) -> bool {
        let queue_index = number as usize;
        if queue_index < self.entries.len() || queue_index >= STORED_MAX || self.names.contains_key(record.name) {
            return false;
        }
        self.free.extend(self.entries.len()..queue_index);
        self.entries.resize_with(queue_index, || None);
        let &QueueRecord { order, counters, settings, name } = record;
        let queue = TaskQueue::new(number, order, counters, settings);
        self.put(queue_index, queue, name, Some(StoredQueue { counters, settings }));
        true
    }

    /// Makes room for this many tasks of a queue, which are restored next.
    pub(super) fn reserve(&mut self, number: u32, tasks: usize) {
        let Some(entry) = self.get_mut(number as usize) else { return };
        match entry.queue.has_ids() {
            true => self.ids.reserve(tasks),
            false => entry.queue.reserve(tasks),
        }
    }

    /// Returns the index of the queue with this name, creates it if there is none, and lists it. `None`: there are too
    /// many.
    pub(super) fn open(&mut self, name: &[u8], order: LeaseOrder, policy: Policy) -> Option<usize> {
        let queue_index = self.find(name).or_else(|| self.create(name, order, 0))?;
        let metrics = &self.metrics;
        let entry = self.entries.get_mut(queue_index)?.as_deref_mut()?;
        entry.policy = policy;
        entry.metrics.get_or_insert_with(|| metrics.list(name));
        Some(queue_index)
    }

    /// Makes a family of all queues whose names begin with `prefix`, those in the store included. Returns its index.
    /// `None`: one of them has another order.
    pub(super) fn family(&mut self, prefix: &[u8], order: LeaseOrder, policy: Policy) -> Option<usize> {
        let metrics = self.metrics.family(prefix);
        let family = self.families.len();
        self.families.push(FamilyEntry { prefix: prefix.into(), order, policy, tries: None, listed: 0, metrics });
        for queue_index in 0..self.entries.len() {
            let Some(entry) = self.get(queue_index).filter(|entry| entry.name.starts_with(prefix)) else { continue };
            if entry.queue.order() != order {
                return None;
            }
            self.join(queue_index, family);
            self.report(queue_index);
        }
        Some(family)
    }

    /// Tasks of the queues of a family are dead after so many leases, where nothing else is said.
    pub(super) fn bound_tries(&mut self, family: usize, tries: Option<NonZeroU32>) {
        let Some(family_entry) = self.families.get_mut(family) else { return };
        family_entry.tries = tries;
        for entry in self.entries.iter_mut().flatten().filter(|entry| entry.family == Some(family)) {
            entry.queue.bound_tries(tries);
        }
    }

    /// Returns the index of a queue of a family, and creates the queue if there is none. `None`: there are too many.
    pub(super) fn find_or_create(&mut self, family: usize, name: &[u8]) -> Option<usize> {
        if let Some(queue_index) = self.find(name) {
            return Some(queue_index);
        }
        let order = self.families.get(family)?.order;
        let queue_index = self.create(name, order, self.floor)?;
        self.join(queue_index, family);
        Some(queue_index)
    }

    /// Creates a queue whose tasks have numbers above `first`.
    fn create(&mut self, name: &[u8], order: LeaseOrder, first: u64) -> Option<usize> {
        let queue_index = match self.free.pop_first() {
            Some(queue_index) => queue_index,
            None if self.entries.len() < self.most => self.entries.len(),
            None => return None,
        };
        let (counters, settings) = (QueueCounters::above(first), QueueSettings::default());
        let queue = TaskQueue::new(number_of(queue_index), order, counters, settings);
        self.put(queue_index, queue, name, None);
        Some(queue_index)
    }

    fn put(&mut self, queue_index: usize, queue: TaskQueue, name: &[u8], stored: Option<StoredQueue>) {
        let name: Arc<[u8]> = name.into();
        self.names.insert(Arc::clone(&name), queue_index);
        let entry = Box::new(QueueEntry {
            queue,
            name,
            policy: Policy::Always,
            waiters: QueueWaits::new(),
            holds: QueueHolds::default(),
            alarm: None,
            stored,
            marked: false,
            family: None,
            counted: TaskCounts::default(),
            tasks: 0,
            metrics: None,
        });
        match self.entries.get_mut(queue_index) {
            Some(free) => *free = Some(entry),
            None => self.entries.push(Some(entry)),
        }
    }

    fn join(&mut self, queue_index: usize, family: usize) {
        let entry = self.entries.get_mut(queue_index).and_then(|entry| entry.as_deref_mut());
        let (Some(entry), Some(family_entry)) = (entry, self.families.get_mut(family)) else { return };
        debug_assert!(entry.name.starts_with(&family_entry.prefix), "a family knows its queues by their names");
        (entry.family, entry.policy) = (Some(family), family_entry.policy);
        entry.queue.bound_tries(family_entry.tries);
        family_entry.metrics.queues.set(family_entry.metrics.queues.get() + 1);
        if family_entry.listed < QUEUES_LISTED {
            family_entry.listed += 1;
            entry.metrics = Some(self.metrics.list(&entry.name));
        }
    }

    // ---------------------------------------------------------------------------------------------------------- going

    /// The drained changes of this queue are stored: updates the metrics, and removes a queue that is over.
    pub(super) fn stored(&mut self, queue_index: usize) {
        self.report(queue_index);
        if self.get(queue_index).is_some_and(QueueEntry::is_over) {
            self.forget(queue_index);
        }
    }

    fn report(&mut self, queue_index: usize) {
        let Some(entry) = self.entries.get_mut(queue_index).and_then(|entry| entry.as_deref_mut()) else { return };
        let counts = entry.queue.counts();
        if let Some(metrics) = &entry.metrics {
            metrics.set(counts, entry.waiters.len(), entry.queue.groups(), entry.queue.oldest());
        }
        if let Some(family_entry) = entry.family.and_then(|family| self.families.get(family)) {
            family_entry.metrics.recount(entry.counted, counts);
            entry.counted = counts;
        }
    }

    /// After many queues were removed their memory goes back.
    fn give_back(&mut self) {
        while self.entries.last().is_some_and(Option::is_none) {
            self.entries.pop();
            self.free.remove(&self.entries.len());
        }
        if self.entries.capacity() > KEPT && self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len() * 2);
        }
        if self.names.capacity() > KEPT && self.names.len() < self.names.capacity() / 8 {
            self.names.shrink_to(self.names.len() * 2);
        }
    }

    fn forget(&mut self, queue_index: usize) {
        let Some(entry) = self.entries.get_mut(queue_index).and_then(Option::take) else { return };
        self.names.remove(&entry.name);
        self.free.insert(queue_index);
        self.give_back();
        let Some(family_entry) = entry.family.and_then(|family| self.families.get_mut(family)) else { return };
        family_entry.metrics.queues.set(family_entry.metrics.queues.get() - 1);
        if let Some(metrics) = entry.metrics {
            family_entry.listed -= 1;
            self.metrics.strike(&metrics);
        }
    }
}

/// The number of a queue in the store, from its index.
pub(super) fn number_of(queue_index: usize) -> u32 {
    u32::try_from(queue_index).expect("there are fewer than 2^32 queues")
}

impl QueueEntry {
    /// Whether the queue is to be removed: it is of a family, its last task is gone, nothing is set, and no request waits.
    pub(super) fn is_over(&self) -> bool {
        !self.is_stored() && self.waiters.is_empty() && self.holds == QueueHolds::default()
    }

    /// Whether the store keeps it. A queue that has nothing but requests that wait is in memory alone.
    pub(super) fn is_stored(&self) -> bool {
        self.is_permanent() || !self.queue.is_empty() || self.queue.is_set()
    }

    /// The request that has waited for longest.
    pub(super) fn first_waiting(&self) -> Option<WaitNumber> {
        self.waiters.first_key_value().map(|(_, number)| *number)
    }

    /// When its changes have to be on disk.
    pub(super) fn policy(&self) -> Policy {
        self.queue.settings().sync.unwrap_or(self.policy)
    }

    /// Whether it stays also without a task: it is of no family.
    pub(super) fn is_permanent(&self) -> bool {
        self.family.is_none()
    }

    /// Moves all changes to store into the batch.
    pub(super) fn drain(&mut self, number: u32, batch: &mut WriteBatch) {
        self.marked = false;
        let (counters, settings) = (self.queue.counters(), *self.queue.settings());
        let state = Some(StoredQueue { counters, settings }).filter(|_| self.is_stored());
        if self.stored != state {
            match state {
                Some(StoredQueue { counters, settings }) => {
                    let record = QueueRecord { order: self.queue.order(), counters, settings, name: &self.name };
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
