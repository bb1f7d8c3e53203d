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
mod cost;
mod counts;
mod engine;
mod inbox;
mod keys;
mod metrics;
mod order;
mod outcome;
mod payload;
mod queue;
mod queues;
mod reading;
mod record;
mod request;
mod reservation;
mod room;
mod settings;
mod shown;
mod slow_disk;
mod state;
mod submission;
mod sweep;
mod terms;
#[cfg(test)]
mod tests;
mod waits;

use std::sync::Arc;

pub use committer::{Committer, open, open_with};
pub use cost::{list_cost, looks_cost, page_cost};
pub use counts::{TaskCounts, TaskTotals};
pub use inbox::{CommitAttempt, Tasks};
pub use metrics::{FamilyMetrics, QueueMetrics, TaskMetrics};
pub use order::{LeaseOrder, QueueEnd, Settlement};
pub use outcome::{GrantedLease, Outcome};
pub use payload::Payload;
pub use reading::ReadOutcome;
pub use record::Damaged;
#[cfg(test)]
pub(crate) use record::task_key;
pub use request::Request;
pub use reservation::{JobState, ReservationEnd, ShownJob};
pub use room::RoomWait;
pub use shown::{Browse, BrowsePlace, BrowsedPage, BrowsedState, BrowsedTask, ListedQueue, ShownReason};
pub use submission::Submission;
pub use sweep::{Sweep, SweptStates};
pub use terms::{AddTerms, Backoff, QueueChange, QueueTerms, REASON_BYTES_MAX, Rate, URGENT_CLASS, USUAL_CLASS};

use crate::store::{self, StoreSnapshot, Value};

/// The name of the queue of tasks that requests without a name speak of.
pub const DEFAULT_TASKS: &[u8] = b"spiderq";
/// The beginning of the names of the other queues of tasks.
pub const NAMED_TASKS: &[u8] = b"tasks/";
/// The beginning of the names of the queues of jobs.
pub const JOBS: &[u8] = b"jobs/";

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
    /// The queue of a family in which a job has this id, whatever its name.
    OfId {
        id: u64,
        /// Its name begins with one of these.
        prefixes: Arc<[Box<[u8]>]>,
    },
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

    /// The queue that has the job of this id, if its name begins with one of these, the prefix of the family included.
    #[must_use]
    pub fn queue_of(&self, id: u64, prefixes: &Arc<[Box<[u8]>]>) -> QueueName {
        QueueName(NameKind::OfId { id, prefixes: Arc::clone(prefixes) })
    }

    /// The prefix of the names of its queues.
    #[must_use]
    pub fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// The token of a connection with this number: no lease has it but its own.
    #[must_use]
    pub fn holder(number: u64) -> u64 {
        reservation::RESERVATIONS | number
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
