//! Room in the store: requests that make it larger are refused when it has none.
//!
//! ```text
//! Add, Push, Append                        need room for key, value and records, and for a task more
//! Configure of a queue without a record    needs room for its name and its record
//! Update and Settle with a larger value    need room for the value
//! the same with another value              need a place for the batch: the store prepares it
//! GiveBack and Bury with a reason          need none: the reason is left out
//! all others                               need none: removals are applied
//! ```
//! A value that is not larger than the one before takes no more room in the end: the cleaner gives the old one back.
//! Until then both are there. Where room is short, the store is asked for a place before the value is taken.
//!
//! This module does not know the bounds; see `store/log/admission.rs`.

use super::Engine;
use crate::store::Store;
use crate::tasks::queues::{QueueEntry, number_of};
use crate::tasks::record::task_key;
use crate::tasks::request::bytes_of;
use crate::tasks::settings::QueueSettings;
use crate::tasks::terms::REASON_BYTES_MAX;
use crate::tasks::{NameKind, Outcome, QueueName, Request};

/// The most bytes that a request writes beside its value and its key: its records, and one of its queue.
const RECORDS_BYTES: u64 = 512;
/// The bytes that an add writes at least beside its value and its key.
const ADD_BYTES: u64 = 128;

/// The value that a request replaces, and its new value, in bytes.
struct ReplacedValue {
    before: u64,
    after: u64,
}

/// The room of the requests of one batch.
#[derive(Debug)]
pub(super) struct BatchRoom {
    /// The bytes that new and larger values may still have.
    adds: u64,
    /// An upper bound of the bytes that the requests write.
    written: u64,
    /// The most tasks of all queues together, in any state.
    tasks_max: u64,
    /// The tasks that the requests have added, less those that they have removed.
    added: i64,
}

impl Default for BatchRoom {
    fn default() -> Self {
        Self { adds: u64::MAX, written: 0, tasks_max: u64::MAX, added: 0 }
    }
}

impl BatchRoom {
    pub(super) fn bound_tasks(&mut self, most: u64) {
        self.tasks_max = most;
    }

    /// A request has changed the number of tasks in a queue.
    pub(super) fn note_tasks(&mut self, before: usize, after: usize) {
        self.added += after as i64 - before as i64;
    }

    /// All tasks are counted again.
    pub(super) fn has_counted(&mut self) {
        self.added = 0;
    }

    /// Whether no task may come to these, which were counted last.
    fn is_full(&self, counted: u64) -> bool {
        counted.saturating_add_signed(self.added) >= self.tasks_max
    }

    /// Takes the room of an add. False: there is too little. An add without bytes needs room too.
    fn take_add(&mut self, bytes: u64) -> bool {
        let left = self.adds.checked_sub(bytes).filter(|_| self.adds > 0);
        self.adds = left.unwrap_or(self.adds);
        left.is_some()
    }
}

impl Engine {
    /// The new and larger values of the requests until the next call may have this many bytes together, with the keys
    /// of those that are added.
    pub(in crate::tasks) fn bound_adds(&mut self, bytes: u64) {
        (self.room.adds, self.room.written) = (bytes, 0);
    }

    /// Cuts a reason to its bound, and leaves it out if there is no room for it: whatever takes a task away continues.
    pub(super) fn bound_reason(&mut self, request: &mut Request) {
        let (Request::GiveBack { reason, .. } | Request::Bury { reason, .. }) = request else { return };
        if reason.len() > REASON_BYTES_MAX {
            *reason = reason.iter().take(REASON_BYTES_MAX).copied().collect();
        }
        if !reason.is_empty() && !self.room.take_add(reason.len() as u64) {
            *reason = Box::default();
        }
    }

    /// Takes the room that a request needs. `Some`: there is none, and this is the answer.
    pub(super) fn take_room(&mut self, queue: &QueueName, request: &Request, store: &mut dyn Store) -> Option<Outcome> {
        let Some(bytes) = request.written_bytes() else {
            self.room.written += RECORDS_BYTES;
            let has_room = !self.makes_record(queue, request) || self.room.take_add(RECORDS_BYTES);
            return (!has_room).then_some(Outcome::NoRoom { bytes: RECORDS_BYTES });
        };
        let is_full = request.adds() && self.room.is_full(self.queues.tasks());
        let written = self.room.written + bytes + RECORDS_BYTES + request.key_bytes();
        let records = if request.adds() { ADD_BYTES + self.new_name_bytes(queue) } else { 0 };
        if !is_full && self.room.take_add(bytes + records) {
            self.room.written = written;
            return None;
        }
        // Only here the length of the value before is looked up: where room is short.
        if request.adds() {
            let is_kept = self.index_of(queue).is_some_and(|queue_index| self.is_kept(queue_index, request));
            return (!is_kept).then_some(Outcome::NoRoom { bytes });
        }
        let has_room = match self.replaced(queue, request, store) {
            // A request about no task, or no lease, changes nothing.
            None => return None,
            Some(ReplacedValue { before, after }) => after <= before && store.prepare(written),
        };
        if !has_room {
            return Some(Outcome::NoRoom { bytes });
        }
        self.room.written = written;
        None
    }

    /// Whether the request sets something for a queue of which the store has nothing. The record of another one may grow by
    /// all its settings: the log has reserved that.
    fn makes_record(&self, queue: &QueueName, request: &Request) -> bool {
        let Request::Configure { change } = request else { return false };
        let is_stored = |queue_index| self.queues.get(queue_index).is_some_and(QueueEntry::is_stored);
        let mut settings = QueueSettings::default();
        settings.change(change, self.timers.now);
        settings.is_set(self.timers.now) && !self.index_of(queue).is_some_and(is_stored)
    }

    /// The bytes of the name if there is no such queue.
    fn new_name_bytes(&self, queue: &QueueName) -> u64 {
        match queue {
            QueueName(NameKind::OfFamily { name, .. }) if self.queues.find(name).is_none() => name.len() as u64,
            _ => 0,
        }
    }

    /// The value that the request replaces, if it replaces one.
    fn replaced(&self, queue: &QueueName, request: &Request, store: &dyn Store) -> Option<ReplacedValue> {
        let queue_index = self.index_of(queue)?;
        let task_index = self.queues.find_task(queue_index, request.key()?)?;
        let queue = &self.queues.get(queue_index)?.queue;
        let value = match request {
            Request::Update { value, .. } => value,
            Request::Settle { token, value: Some(value), .. } if queue.is_held(task_index, *token) => value,
            _ => return None,
        };
        let number = queue.number_of(task_index);
        let before = match queue.fresh(number) {
            Some(value) => value.len() as u64,
            None => store.value_bytes(&task_key(number_of(queue_index), number)),
        };
        Some(ReplacedValue { before, after: value.len() as u64 })
    }

    /// Whether the task that is to be added is there.
    fn is_kept(&self, queue_index: usize, request: &Request) -> bool {
        let named = |name| self.queues.get(queue_index).is_some_and(|entry| entry.queue.key_named(name).is_some());
        match request {
            Request::Add { key, .. } => self.queues.find_task(queue_index, key).is_some(),
            Request::Push { terms: Some(terms), .. } => named(&terms.unique),
            _ => false,
        }
    }

    /// The index of a queue, if it exists.
    pub(super) fn index_of(&self, queue: &QueueName) -> Option<usize> {
        match queue {
            QueueName(NameKind::Opened(queue_index)) => Some(*queue_index),
            QueueName(NameKind::OfFamily { name, .. }) => self.queues.find(name),
            QueueName(NameKind::OfId { id, prefixes }) => {
                let queue_index = self.queues.find_id(*id)?;
                let name = &self.queues.get(queue_index)?.name;
                prefixes.iter().any(|prefix| name.starts_with(prefix)).then_some(queue_index)
            }
        }
    }
}

impl Request {
    /// The bytes of key and value that the request adds, or the bytes of its value if it replaces another value.
    /// `None`: it does neither.
    fn written_bytes(&self) -> Option<u64> {
        let bytes = match self {
            Self::Add { key, value, terms, .. } => key.len() + value.len() + bytes_of(terms),
            Self::Push { value, terms } => value.len() + bytes_of(terms),
            Self::Append { value, .. } | Self::Update { value, .. } => value.len(),
            Self::Settle { value: Some(value), .. } => value.len(),
            _ => return None,
        };
        Some(bytes as u64)
    }

    /// The bytes of the key in the records of a request that writes a value.
    fn key_bytes(&self) -> u64 {
        match self {
            Self::Add { key, .. } | Self::Update { key, .. } | Self::Settle { key, .. } => key.len() as u64,
            _ => 0,
        }
    }
}
