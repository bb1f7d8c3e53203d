//! Durable queues of tasks with leases.
//!
//! A queue has a name and an order. A task has a key, unique in its queue, and a value. `queue.rs` draws the states of
//! a task, `order.rs` defines which task is leased next, and `record.rs` defines the stored records. The path of a
//! request:
//!
//! ```text
//! frontend: Tasks::submit ─► inbox ─► committer: expire leases ─► apply … ─► one batch, one sync ─► ReplySink::deliver
//!           Tasks::try_commit, if the committer is idle ─► the same steps in the frontend's thread ─► returned
//! ```
//! The committer is a thread, and commits are its work. While it is idle, a frontend may commit by itself: it takes the
//! committer's lock, commits its own requests as one batch, and gets the answers back. That spares two thread switches.
//!
//! # Promises
//!
//! - **One order.** The committer applies requests one after the other. All answers are as if there were no other
//!   thread.
//! - **Durable before the answer.** A change of a queue with [`Policy::Always`] is on disk before it is answered, and
//!   no answer shows a state that is not on disk. The faster policies state what a crash may lose.
//! - **Effects are stored**: the position, the deadline, the token. After a restart the same tasks are there in the
//!   same order, and the same leases are held until the same deadlines. `clock/lasting.rs` defines their clock.
//! - **Tokens never repeat**, under any policy. They come from a block whose reservation was synced first.
//! - **An error of the store is final.** The committer answers nothing more and returns the error.
//!
//! Keys, order and leases are in memory, about 150 bytes for a task and its key. The store keeps the places of its
//! records besides. Values are on disk. A value that is
//! not part of the current batch is read by the frontend, from a snapshot at that point of the order, and not by the
//! committer.
//!
//! This module knows no byte of a protocol and opens no files; see `services` and `store`.
//!
#![doc = include_str!("GUARANTEES.md")]

mod committer;
mod engine;
mod inbox;
mod metrics;
mod order;
mod queue;
mod queues;
mod record;
mod room;
mod slow_disk;
mod state;
mod submission;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use committer::{Committer, open, open_with};
pub use inbox::{CommitAttempt, Tasks};
pub use metrics::{FamilyMetrics, QueueMetrics, TaskMetrics};
pub use order::{LeaseOrder, QueueEnd, Settlement};
pub use record::Damaged;
#[cfg(test)]
pub(crate) use record::task_key;
pub use room::RoomWait;
pub use submission::Submission;

use crate::store::{self, StoreSnapshot, TaskKey, Value};

/// When the changes of a queue are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Before they are answered.
    Always,
    /// At most this many milliseconds after they were answered. A crash of the system may lose that many milliseconds.
    Within(u64),
    /// When the system writes them. A crash of the system may lose the answers of about the last half minute.
    Never,
}

/// The name of a queue, valid for the committer that returned it or its family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueName(NameKind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum NameKind {
    /// A queue that [`Committer::queue`] has opened, by its index. It exists as long as the committer.
    Opened(usize),
    /// A queue of a family. It need not exist.
    OfFamily {
        /// The index of the family.
        family: usize,
        /// With the prefix of the family.
        name: Box<[u8]>,
    },
}

/// All queues whose names begin with one prefix. Each exists as long as it has a task, and an empty one takes no
/// memory.
#[derive(Clone, Debug)]
pub struct Family {
    /// Its index among the families of its committer.
    number: usize,
    /// The prefix of the names of its queues.
    prefix: Arc<[u8]>,
}

impl Family {
    /// The queue of this name.
    #[must_use]
    pub fn queue(&self, name: &[u8]) -> QueueName {
        QueueName(NameKind::OfFamily { family: self.number, name: [&self.prefix, name].concat().into() })
    }
}

/// The receiver of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The index of the [`ReplySink`], as the committer returned it.
    pub sink: usize,
    /// The frontend's own number for the request.
    pub number: u64,
}

/// A request about one queue, and its possible outcomes. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Adds a task: [`Outcome::Added`], or [`Outcome::Refused`] if the key exists or there are too many queues.
    Add {
        /// Its key.
        key: Box<[u8]>,
        /// Its value.
        value: Value,
        /// The end at which it is added.
        end: QueueEnd,
    },
    /// Adds a task at the tail. Its key is a number that no other task ever has, as 8 bytes big-endian:
    /// [`Outcome::Added`], or [`Outcome::Refused`] if there are too many queues.
    Push {
        /// Its value.
        value: Value,
    },
    /// Adds a task at the tail whose key is its number in the queue, in decimal: [`Outcome::Added`], or
    /// [`Outcome::Refused`] if a task with this key exists or there are too many queues.
    Append {
        /// Its value.
        value: Value,
        /// Whether the task is dropped at once, as if a client had leased it and settled it with this value.
        dropped: bool,
    },
    /// Replaces the value of a task in any state: [`Outcome::Done`], [`Outcome::Refused`] if there is none, or
    /// [`Outcome::NoRoom`] for a larger value.
    Update {
        /// The key of the task.
        key: Box<[u8]>,
        /// The value.
        value: Value,
    },
    /// Leases the next task: [`Outcome::Leased`]. If no task is ready, and `wait` is not set or too many requests wait
    /// already: [`Outcome::Refused`].
    Lease {
        /// The length of the lease, counted from when it is granted.
        timeout: u64,
        /// Whether to wait for a task.
        wait: bool,
    },
    /// Ends a lease: [`Outcome::Done`], [`Outcome::Refused`] if it is not held, or [`Outcome::NoRoom`] for a larger
    /// value: then it is still held.
    Settle {
        /// The token of the lease.
        token: u64,
        /// The key of the task.
        key: Box<[u8]>,
        /// A new value, if the holder sends one.
        value: Option<Value>,
        /// The new position of the task, or its end.
        how: Settlement,
    },
    /// Gives a lease a new deadline: [`Outcome::Done`], or [`Outcome::Refused`] if it is not held.
    Extend {
        /// The token of the lease.
        token: u64,
        /// The key of the task.
        key: Box<[u8]>,
        /// The time from now to the new deadline. 0 ends the lease as if it had expired.
        timeout: u64,
    },
    /// Ends a lease whose value could not be read, and leases the next task to the same request, before all requests that
    /// wait: [`Outcome::Leased`], or as [`Request::Lease`]. The task is out of the order for a pause, which grows with
    /// each try, and then in its old position. If its value is lost, it is dropped.
    LeaseNext {
        /// The token of the lease.
        token: u64,
        /// The key of the task.
        key: Box<[u8]>,
        /// The length of the next lease.
        timeout: u64,
        /// Whether to wait for a task.
        wait: bool,
    },
    /// Ends a lease whose holder never received it. The task keeps its position: [`Outcome::Done`], or
    /// [`Outcome::Refused`] if the lease is not held.
    Undo {
        /// The token of the lease.
        token: u64,
        /// The key of the task.
        key: Box<[u8]>,
    },
    /// Changes nothing and is answered in its turn: [`Outcome::Done`].
    Nothing,
    /// Changes nothing and is answered in its turn: [`Outcome::Refused`]. The frontend itself refuses a request so.
    Refuse,
    /// Ends the waiting of these requests of the same sink: [`Outcome::Done`]. Each of them that waits is answered
    /// [`Outcome::Refused`].
    Withdraw {
        /// The numbers of their tickets.
        tickets: Vec<u64>,
    },
    /// Counts the ready tasks: [`Outcome::Counted`].
    Count,
    /// Counts the tasks in all states: [`Outcome::Counted`].
    CountAll,
    /// Reads the value of a task in any state: [`Outcome::Found`], or [`Outcome::Refused`] if there is none.
    Look {
        /// The key of the task.
        key: Box<[u8]>,
    },
    /// Reads the value of a dropped task: [`Outcome::Found`], without the value if the task is in another state, or
    /// [`Outcome::Refused`] if there is none.
    LookDropped {
        /// The key of the task.
        key: Box<[u8]>,
    },
    /// Asks whether a task with this key exists, in any state: [`Outcome::Found`] without its value, or
    /// [`Outcome::Refused`].
    Has {
        /// The key of the task.
        key: Box<[u8]>,
    },
    /// Has all earlier changes on disk: [`Outcome::Done`].
    Sync,
    /// Removes a task in any state: [`Outcome::Done`], or [`Outcome::Refused`] if there is none.
    Remove {
        /// The key of the task.
        key: Box<[u8]>,
    },
    /// Removes a task if it is leased, by any holder: [`Outcome::Done`], [`Outcome::Refused`].
    Finish {
        /// The key of the task.
        key: Box<[u8]>,
    },
}

impl Request {
    /// Whether the request adds a task.
    fn adds(&self) -> bool {
        matches!(self, Self::Add { .. } | Self::Push { .. } | Self::Append { .. })
    }

    /// The memory that the request takes while it waits, approximately.
    fn bytes(&self) -> u64 {
        let (key, value) = match self {
            Self::Add { key, value, .. } | Self::Update { key, value } => (key.len(), value.len()),
            Self::Settle { key, value, .. } => (key.len(), value.as_ref().map_or(0, |value| value.len())),
            Self::Push { value } | Self::Append { value, .. } => (0, value.len()),
            Self::Extend { key, .. }
            | Self::Undo { key, .. }
            | Self::LeaseNext { key, .. }
            | Self::Look { key }
            | Self::LookDropped { key }
            | Self::Has { key }
            | Self::Remove { key }
            | Self::Finish { key } => (key.len(), 0),
            Self::Withdraw { tickets } => (tickets.len() * size_of::<u64>(), 0),
            Self::Lease { .. } | Self::Nothing | Self::Refuse | Self::Count | Self::CountAll | Self::Sync => (0, 0),
        };
        (size_of::<Self>() + key + value) as u64
    }
}

/// The answer to a [`Request`]. The request determines its meaning: a frontend makes its reply from both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request is carried out, and has no result.
    Done,
    /// The task is in the queue, under this number: the number in the key of [`Request::Push`], and otherwise its
    /// number in the queue. The latter is higher by 1 than the number of the task that was added before.
    Added(u64),
    /// The next task.
    Leased {
        /// The token of this lease, larger than all tokens before it.
        token: u64,
        /// The key of the task.
        key: Box<[u8]>,
        /// Its value.
        payload: Payload,
    },
    /// The number of tasks that were counted.
    Counted(u64),
    /// There is such a task. Its value, if the request reads it.
    Found(Option<Payload>),
    /// Nothing has changed: there is no such task or lease, no task is ready, the key exists, or there are too many
    /// queues.
    Refused,
    /// Nothing has changed: the store takes nothing that makes it larger. Removals are applied.
    NoRoom {
        /// The bytes of key and value that were to be added, or of the larger value.
        bytes: u64,
    },
}

impl Outcome {
    /// Whether the request was refused.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Refused)
    }

    /// The number of the task that was added, if one was.
    #[must_use]
    pub fn added(&self) -> Option<u64> {
        if let Self::Added(number) = self { Some(*number) } else { None }
    }

    /// The token and the key of the lease that was granted, if one was.
    #[must_use]
    pub fn lease(&self) -> Option<(u64, &[u8])> {
        if let Self::Leased { token, key, .. } = self { Some((*token, key)) } else { None }
    }

    /// The number of tasks that were counted. 0 if none were.
    #[must_use]
    pub fn counted(&self) -> u64 {
        if let Self::Counted(count) = self { *count } else { 0 }
    }

    /// The value in this answer, if it has one.
    #[must_use]
    pub fn payload(&self) -> Option<&Payload> {
        match self {
            Self::Leased { payload, .. } => Some(payload),
            Self::Found(payload) => payload.as_ref(),
            Self::Done | Self::Added(_) | Self::Counted(_) | Self::Refused | Self::NoRoom { .. } => None,
        }
    }
}

/// A value, or its location in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// The value is part of the batch.
    Fresh(Value),
    /// The value was in the store before the batch, under this key.
    Stored(TaskKey),
}

impl Payload {
    /// The length of the value. `before` is the snapshot from the same delivery.
    #[must_use]
    pub fn bytes(&self, before: Option<&dyn StoreSnapshot>) -> usize {
        match self {
            Self::Fresh(value) => value.len(),
            Self::Stored(key) => before.map_or(0, |before| before.bytes(key)),
        }
    }

    /// Returns the value if it is in memory. `before` is the snapshot from the same delivery. `None`: see
    /// [`Tasks::read`].
    ///
    /// # Errors
    /// As [`Payload::read`].
    ///
    /// # Panics
    /// If the payload refers to the store and `before` is `None`.
    #[must_use]
    pub fn read_now(&self, before: Option<&dyn StoreSnapshot>) -> Option<Result<Value, store::Error>> {
        match self {
            Self::Fresh(value) => Some(Ok(value.clone())),
            Self::Stored(key) => {
                let before = before.expect(BROUGHT);
                before.get_now(key).map(|read| found(read, before))
            }
        }
    }

    /// Returns the value. `before` is the snapshot from the same delivery. May read the disk.
    ///
    /// # Errors
    /// [`store::Error`] if the value cannot be read or is missing. If [`store::Error::loses_one_value`], the next batch
    /// sets the task aside, and the store continues. If [`store::Error::may_pass`], the value may be read later.
    ///
    /// # Panics
    /// If the payload refers to the store and `before` is `None`.
    pub fn read(&self, before: Option<&dyn StoreSnapshot>) -> Result<Value, store::Error> {
        match self {
            Self::Fresh(value) => Ok(value.clone()),
            Self::Stored(key) => {
                let before = before.expect(BROUGHT);
                found(before.get(key), before)
            }
        }
    }
}

/// Why a payload that is in the store comes with it.
const BROUGHT: &str = "stored values bring the store";

fn found(read: store::ReadResult, before: &dyn StoreSnapshot) -> Result<Value, store::Error> {
    read?.ok_or_else(|| before.damaged("the value of a task is missing"))
}

/// The answers of one batch for one sink.
pub struct Delivery {
    /// The number of the ticket, and the answer.
    pub answers: Vec<(u64, Outcome)>,
    /// The store before the batch. `Some` if an answer refers to it.
    pub before: Option<Arc<dyn StoreSnapshot>>,
}

impl Delivery {
    /// Returns the value of an answer. May read the disk.
    ///
    /// # Errors
    /// [`store::Error`] if the value cannot be read or is missing.
    ///
    /// # Panics
    /// If the payload is from another delivery.
    pub fn read(&self, payload: &Payload) -> Result<Value, store::Error> {
        payload.read(self.before.as_deref())
    }
}

/// Receives the answers for one frontend. The committing thread calls it and waits meanwhile, so it must return
/// quickly.
pub trait ReplySink: Send {
    /// Takes the answers of a batch.
    fn deliver(&self, delivery: Delivery);

    /// Wakes the frontend, which checks [`Tasks::has_room`] again. Called after that has returned false.
    fn notify_room(&self);
}
