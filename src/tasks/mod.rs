//! Durable queues of tasks with leases.
//!
//! A queue has a name and an order; a task has a key, unique in its queue, and a value. `queue.rs` draws the states that a task
//! goes through, `order.rs` says who is next, `record.rs` what is stored. A request goes so:
//!
//! ```text
//! face: Tasks::ask ─► inbox ─► committer: run out leases ─► apply … ─► one batch, one sync ─► answers ─► Face::deliver
//!       Tasks::ask_now, with nothing else to do ─► the same in its own thread ─────────────────────────► given back
//! ```
//! # What is promised
//!
//! - **One order.** The committer applies requests one after the other; all that is answered is as if there were no other
//!   thread.
//! - **Durable before the answer.** What changes a queue whose policy is [`Policy::Always`] is on disk before it is answered, and
//!   no answer shows a state that is not. The faster policies say what they may lose.
//! - **Effects are stored**: the position, the deadline by the wall clock, the token. Opened again, the same tasks are there in
//!   the same order, and the same leases are held until the same deadlines.
//! - **Tokens never repeat**, under any policy: they come from a block whose reservation was synced first.
//! - **An error of the store is the end**: nothing more is answered, and the committer returns it.
//!
//! Keys, order and leases are in memory, about 150 bytes a task and its key; values are on disk. A value that is not fresh is
//! read by the face, as it was at that point of the order, and not by the committer.
//!
//! What is not here: any byte of a protocol, and the files (`store`).
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
#[cfg(test)]
mod trials;

use std::sync::Arc;

pub use committer::{Committer, open};
pub use inbox::{SlowDiskBackoff, Submission, Tasks};
pub use metrics::{FamilyMetrics, QueueMetrics, TaskMetrics};
pub use order::{LeaseOrder, QueueEnd, Settlement};
pub use record::Damaged;
pub use room::RoomWait;

use crate::store::{self, Space, StoreSnapshot, Value};

/// When the changes of a queue are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Before they are answered.
    Always,
    /// At most so many milliseconds after they were answered: a crash of the system may lose as much.
    Within(u64),
    /// When the system sees fit: a crash of the system may lose what was answered in the last half minute or so.
    Never,
}

/// A queue of the committer that gave it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueId(usize);

/// Queues of one kind, named at will: each is there as long as it has a task, and takes nothing when it has none.
#[derive(Clone, Debug)]
pub struct Family {
    /// Its place among the families of the committer that gave it out.
    number: usize,
    /// How the names of its queues begin.
    prefix: Arc<[u8]>,
}

impl Family {
    /// The queue of this name.
    #[must_use]
    pub fn queue(&self, name: &[u8]) -> QueueName {
        QueueName { family: self.number, name: [&self.prefix, name].concat().into() }
    }
}

/// A queue of a family, which may not be there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueueName {
    family: usize,
    /// With the prefix of its family.
    name: Box<[u8]>,
}

/// Whom an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// Which of the faces asks.
    pub sink: usize,
    /// What the face knows the request by.
    pub number: u64,
}

/// What is asked of a queue. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A new task: [`Outcome::Added`], or [`Outcome::Kept`] if the key is known.
    Add {
        /// Its key.
        key: Box<[u8]>,
        /// Its value.
        value: Value,
        /// At which end.
        end: QueueEnd,
    },
    /// A new task at the tail, of which the key is a number that no other ever has, as 8 bytes big-endian: [`Outcome::Pushed`].
    Push {
        /// Its value.
        value: Value,
    },
    /// A new task of which the key is its number in the queue, in decimal: [`Outcome::Added`], or [`Outcome::Kept`] if somebody
    /// has added this key before.
    Append {
        /// Its value.
        value: Value,
        /// Whether it is dropped at once, as if somebody had leased it and settled it with this value.
        dropped: bool,
    },
    /// Another value for a task in any state: [`Outcome::Updated`], [`Outcome::NotFound`].
    Update {
        /// The key of the task.
        key: Box<[u8]>,
        /// The value.
        value: Value,
    },
    /// The next task for so long: [`Outcome::Leased`]; if there is none and `wait` is not set, or too many wait already,
    /// [`Outcome::Empty`].
    Lease {
        /// How long, from when it is granted.
        timeout: u64,
        /// Whether to wait for a task.
        wait: bool,
    },
    /// The end of a lease: [`Outcome::Settled`], or [`Outcome::NotFound`] if it is not held.
    Settle {
        /// The token of the lease.
        token: u64,
        /// The key of the task.
        key: Box<[u8]>,
        /// A new value, if it has one.
        value: Option<Value>,
        /// Where the task goes.
        how: Settlement,
    },
    /// Another deadline for a lease, so long from now: [`Outcome::Extended`], or [`Outcome::Skipped`] if it is not held.
    Extend {
        /// The token of the lease.
        token: u64,
        /// The key of the task.
        key: Box<[u8]>,
        /// How long from now; 0 ends it as if it had run out.
        timeout: u64,
    },
    /// The end of a lease of which its holder has not heard; the task is where it was: [`Outcome::Undone`],
    /// [`Outcome::NotFound`].
    Undo {
        /// The token of the lease.
        token: u64,
        /// The key of the task.
        key: Box<[u8]>,
    },
    /// No more than an answer in its turn: [`Outcome::Nothing`].
    Nothing,
    /// The end of waiting for these requests of the same face: [`Outcome::Nothing`]; each that waits is answered [`Outcome::Empty`].
    Withdraw {
        /// Numbers of their tickets.
        tickets: Vec<u64>,
    },
    /// How many tasks are ready: [`Outcome::Counted`].
    Count,
    /// How many tasks there are, in any state: [`Outcome::Counted`].
    CountAll,
    /// The value of a task in any state: [`Outcome::Found`], [`Outcome::Absent`].
    Look {
        /// The key of the task.
        key: Box<[u8]>,
    },
    /// The value of a task that was dropped: [`Outcome::Found`]; [`Outcome::Present`] if it is in another state,
    /// [`Outcome::Absent`].
    LookDropped {
        /// The key of the task.
        key: Box<[u8]>,
    },
    /// Whether there is a task of this key, in any state: [`Outcome::Present`], [`Outcome::Absent`].
    Has {
        /// The key of the task.
        key: Box<[u8]>,
    },
    /// Everything before it is on disk: [`Outcome::Synced`].
    Sync,
    /// No such task any more, whatever its state: [`Outcome::Removed`], [`Outcome::NotRemoved`].
    Remove {
        /// The key of the task.
        key: Box<[u8]>,
    },
    /// No such task any more if it is leased, whoever holds it: [`Outcome::Removed`], [`Outcome::NotRemoved`].
    Finish {
        /// The key of the task.
        key: Box<[u8]>,
    },
}

impl Request {
    /// What it takes in memory while it waits, about.
    fn bytes(&self) -> u64 {
        let (key, value) = match self {
            Self::Add { key, value, .. } | Self::Update { key, value } => (key.len(), value.len()),
            Self::Settle { key, value, .. } => (key.len(), value.as_ref().map_or(0, |value| value.len())),
            Self::Push { value } | Self::Append { value, .. } => (0, value.len()),
            Self::Extend { key, .. }
            | Self::Undo { key, .. }
            | Self::Look { key }
            | Self::LookDropped { key }
            | Self::Has { key }
            | Self::Remove { key }
            | Self::Finish { key } => (key.len(), 0),
            Self::Withdraw { tickets } => (tickets.len() * size_of::<u64>(), 0),
            Self::Lease { .. } | Self::Nothing | Self::Count | Self::CountAll | Self::Sync => (0, 0),
        };
        (size_of::<Self>() + key + value) as u64
    }
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The task is in the queue; its number grows by one with each that is added to the queue.
    Added(u64),
    /// The task is in the queue, under this number.
    Pushed(u64),
    /// There are too many queues, and nothing has changed.
    Refused,
    /// There is a task of this key, and nothing has changed.
    Kept,
    /// The value is replaced.
    Updated,
    /// There is no such task, or no such lease, and nothing has changed.
    NotFound,
    /// The next task.
    Leased {
        /// Names this lease; larger than all before.
        token: u64,
        /// The key of the task.
        key: Box<[u8]>,
        /// Its value.
        payload: Payload,
    },
    /// No task is ready.
    Empty,
    /// The lease has ended.
    Settled,
    /// The lease has a new deadline.
    Extended,
    /// No such lease is held, and nothing has changed.
    Skipped,
    /// The task is where it was before the lease.
    Undone,
    /// What was asked for.
    Nothing,
    /// So many tasks are ready, or are there.
    Counted(u64),
    /// The value of the task.
    Found(Payload),
    /// There is such a task, or one that is not dropped.
    Present,
    /// There is no such task.
    Absent,
    /// It is on disk.
    Synced,
    /// The task is gone.
    Removed,
    /// There was no such task.
    NotRemoved,
}

impl Outcome {
    /// The value that it brings, if it brings one.
    #[must_use]
    pub fn payload(&self) -> Option<&Payload> {
        match self {
            Self::Leased { payload, .. } | Self::Found(payload) => Some(payload),
            _ => None,
        }
    }
}

/// A value, or where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// It came with the batch.
    Fresh(Value),
    /// It was in the store before the batch, under this key.
    Stored([u8; 12]),
}

impl Payload {
    /// The value. `before` is what came with it. May read the disk.
    ///
    /// # Errors
    /// [`store::Error`] if it cannot be read, or is not where it should be.
    ///
    /// # Panics
    /// If the store did not come with a payload that refers to it.
    pub fn read(&self, before: Option<&dyn StoreSnapshot>) -> Result<Value, store::Error> {
        match self {
            Self::Fresh(value) => Ok(value.clone()),
            Self::Stored(key) => {
                let before = before.expect("stored values bring the store");
                before.get(Space::Values, key)?.ok_or_else(|| before.damaged("the value of a task is missing"))
            }
        }
    }
}

/// Answers of one batch, for one face.
pub struct Delivery {
    /// The number of the ticket, and what is answered.
    pub answers: Vec<(u64, Outcome)>,
    /// The store before the batch; there if an answer refers to it.
    pub before: Option<Arc<dyn StoreSnapshot>>,
}

impl Delivery {
    /// The value of an answer. May read the disk.
    ///
    /// # Errors
    /// [`store::Error`] if it cannot be read, or is not where it should be.
    ///
    /// # Panics
    /// If the payload is of another delivery.
    pub fn read(&self, payload: &Payload) -> Result<Value, store::Error> {
        payload.read(self.before.as_deref())
    }
}

/// Who asks, and hears the answers. Called by who commits, and waits meanwhile: it must not take long.
pub trait ReplySink: Send {
    /// Takes the answers of a batch.
    fn deliver(&self, delivery: Delivery);

    /// There is room again for what the face asks, which [`Tasks::has_room`] had denied.
    fn go_on(&self);
}
