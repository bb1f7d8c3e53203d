//! What a frontend may ask of the queues. `outcome.rs` has the answers.
//!
//! This module carries nothing out; see `engine.rs`.

use std::sync::Arc;

#[cfg(doc)]
use super::Outcome;
use super::cost::{list_cost, looks_cost, page_cost};
use super::reservation::ReservationEnd;
use super::shown::{Browse, BrowsedState};
use super::sweep::Sweep;
use super::{AddTerms, NameKind, QueueChange, QueueEnd, QueueName, Settlement};
use crate::store::Value;

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
        /// `None`: the usual ones.
        terms: Option<Box<AddTerms>>,
    },
    /// Adds a task at the tail. Its key is a number that no other task ever has, as 8 bytes big-endian:
    /// [`Outcome::Added`], [`Outcome::Kept`] if a task has its unique name, or [`Outcome::Refused`] if there are too many
    /// queues.
    Push {
        /// Its value.
        value: Value,
        /// `None`: the usual ones.
        terms: Option<Box<AddTerms>>,
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
    /// Leases tasks of these queues, in their order: [`Outcome::LeasedMany`] with at least one, or [`Outcome::Refused`] if
    /// there is none, or there was none for so long.
    LeaseMany {
        /// The queues, each once.
        queues: Arc<[QueueName]>,
        /// The most tasks, at least 1.
        count: u32,
        /// The length of each lease, counted from when it is granted.
        timeout: u64,
        /// The longest time to wait for one. 0: not at all.
        wait: u64,
    },
    /// Leases the most urgent job of these queues, and of those the one with the lowest id, to a connection:
    /// [`Outcome::LeasedMany`] with one, or [`Outcome::Refused`] if there is none, or there was none for so long. The lease
    /// is not stored.
    ReserveNext {
        /// The queues, each once.
        queues: Arc<[QueueName]>,
        /// The token of the connection: see [`Family::holder`](super::Family::holder).
        holder: u64,
        /// The length of a lease whose job has none of its own.
        timeout: u64,
        /// The longest time to wait for one. 0: not at all. `u64::MAX`: for ever.
        wait: u64,
    },
    /// Leases this job to a connection, if it is ready, delayed or dead: as [`Request::ReserveNext`], without a wait.
    Reserve {
        /// The id of the job, big-endian.
        key: Box<[u8]>,
        /// The token of the connection.
        holder: u64,
        /// The length of a lease whose job has none of its own.
        timeout: u64,
    },
    /// Ends a reservation: [`Outcome::Done`], [`Outcome::Died`], or [`Outcome::Refused`] if it is not held.
    EndReservation {
        /// The id of the job, big-endian.
        key: Box<[u8]>,
        /// The token of the connection.
        holder: u64,
        /// How it ends.
        how: ReservationEnd,
    },
    /// Has a reservation last as long again as when it began: [`Outcome::Done`], or [`Outcome::Refused`] if it is not held.
    Touch {
        /// The id of the job, big-endian.
        key: Box<[u8]>,
        /// The token of the connection.
        holder: u64,
        /// The length of a lease whose job has none of its own.
        timeout: u64,
    },
    /// Removes a job, unless somebody else holds it: [`Outcome::Done`], or [`Outcome::Refused`].
    Delete {
        /// The id of the job, big-endian.
        key: Box<[u8]>,
        /// The token of the connection.
        holder: u64,
    },
    /// Shows the first job of a state: [`Outcome::Peeked`], or [`Outcome::Refused`] if there is none.
    Peek {
        /// Ready, delayed or dead.
        state: BrowsedState,
    },
    /// Shows the queue: [`Outcome::Queues`] with it, or without a queue if there is none.
    ShowQueue,
    /// Shows what is known of a job: [`Outcome::Shown`], or [`Outcome::Refused`] if there is none.
    Show {
        /// The id of the job, big-endian.
        key: Box<[u8]>,
    },
    /// Several requests about any queues, which do not wait, in one batch: [`Outcome::Many`].
    Many {
        /// The requests.
        requests: Vec<(QueueName, Request)>,
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
        /// The token of the lease. `None`: whoever holds it.
        token: Option<u64>,
        /// The key of the task.
        key: Box<[u8]>,
        /// The time from now to the new deadline. 0 ends the lease as if it had expired.
        timeout: u64,
    },
    /// Ends a lease whose value could not be read, and leases the next task to the same request, before all requests that
    /// wait: [`Outcome::Leased`], or as [`Request::Lease`]. The task is out of the order for a pause, which grows with
    /// each try, and then in its old position. If its value is lost, it is dead.
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
    /// Ends a lease whose value could not be read, as [`Request::LeaseNext`] does: [`Outcome::Done`], or
    /// [`Outcome::Refused`] if it is not held.
    SetUnread {
        /// The token of the lease.
        token: u64,
        /// The key of the task.
        key: Box<[u8]>,
    },
    /// Ends a lease whose holder never received it. The task keeps its position: [`Outcome::Done`], or
    /// [`Outcome::Refused`] if the lease is not held.
    Undo {
        /// The token of the lease.
        token: u64,
        /// The key of the task.
        key: Box<[u8]>,
    },
    /// Ends a lease whose task has failed: it is ready after its backoff, or dead after its last try. [`Outcome::Done`],
    /// or [`Outcome::Refused`] if the lease is not held.
    GiveBack {
        /// The token of the lease. `None`: whoever holds it.
        token: Option<u64>,
        /// The key of the task.
        key: Box<[u8]>,
        /// The time until it is ready, in place of the backoff.
        delay: Option<u64>,
        /// Why it has failed: the first 256 bytes are kept, if the disk has room for them.
        reason: Box<[u8]>,
    },
    /// Ends a lease, whose task is dead from then on: [`Outcome::Done`], or [`Outcome::Refused`] if the lease is not held.
    Bury {
        /// The token of the lease.
        token: u64,
        /// The key of the task.
        key: Box<[u8]>,
        /// As in [`Request::GiveBack`].
        reason: Box<[u8]>,
    },
    /// Makes a dead or delayed task ready, as one that was never leased: [`Outcome::Done`], or [`Outcome::Refused`] if there
    /// is none.
    Kick {
        /// The key of the task.
        key: Box<[u8]>,
    },
    /// Kicks or purges many tasks that are there: [`Outcome::Counted`] at the end, or when the server ends.
    Sweep {
        /// Which of them.
        sweep: Sweep,
        /// The client of the sink. Its sweeps have their turns one after the other.
        client: u64,
    },
    /// Looks at tasks without taking them, a page at a time: [`Outcome::Browsed`]. What stays in its state throughout is
    /// shown once.
    Browse(Browse),
    /// Lists queues, a page at a time: [`Outcome::Queues`]. The queue of the request does not matter.
    ListQueues {
        /// Their names begin with one of these.
        prefixes: Vec<Box<[u8]>>,
        /// Where the page before ended. 0: from the first one on.
        from: u32,
        /// The most queues.
        most: u32,
    },
    /// Changes settings of the queue: [`Outcome::Done`], or [`Outcome::Refused`] if there are too many queues.
    Configure {
        /// What is changed.
        change: Box<QueueChange>,
    },
    /// Keeps the queue in memory while it has no task, with what it has counted: [`Outcome::Done`], or
    /// [`Outcome::Refused`] if there are too many queues.
    Keep {
        /// Whether it is kept from now on.
        kept: bool,
    },
    /// Changes nothing and is answered in its turn: [`Outcome::Done`].
    Nothing,
    /// Changes nothing and is answered in its turn: [`Outcome::Refused`]. The frontend itself refuses a request so.
    Refuse,
    /// Ends the waiting of these requests of the same sink, and their sweeps: [`Outcome::Done`]. Each of them that waits is
    /// answered [`Outcome::Refused`], and each sweep as at its end.
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

impl QueueName {
    /// The memory that the name takes in a request, approximately.
    fn bytes(&self) -> usize {
        let name = if let NameKind::OfFamily { name, .. } = &self.0 { name.len() } else { 0 };
        size_of::<Self>() + name
    }
}

impl Request {
    /// Whether the request may wait for a task.
    pub(super) fn may_wait(&self) -> bool {
        let waits = match self {
            Self::Lease { wait, .. } | Self::LeaseNext { wait, .. } => *wait,
            Self::LeaseMany { wait, .. } | Self::ReserveNext { wait, .. } => *wait > 0,
            _ => false,
        };
        waits || matches!(self, Self::Many { .. } | Self::Sweep { .. })
    }

    /// Whether the request makes its queue of a family if there is none.
    pub(super) fn creates(&self) -> bool {
        self.adds()
            || matches!(self, Self::Lease { wait: true, .. } | Self::Configure { .. } | Self::Keep { kept: true })
    }

    /// The key in a request about a task that exists.
    pub(super) fn key(&self) -> Option<&[u8]> {
        match self {
            Self::Update { key, .. }
            | Self::Settle { key, .. }
            | Self::Extend { key, .. }
            | Self::Undo { key, .. }
            | Self::SetUnread { key, .. }
            | Self::LeaseNext { key, .. }
            | Self::GiveBack { key, .. }
            | Self::Bury { key, .. }
            | Self::Reserve { key, .. }
            | Self::EndReservation { key, .. }
            | Self::Touch { key, .. }
            | Self::Delete { key, .. }
            | Self::Show { key }
            | Self::Look { key }
            | Self::LookDropped { key }
            | Self::Kick { key }
            | Self::Has { key }
            | Self::Remove { key }
            | Self::Finish { key } => Some(key),
            _ => None,
        }
    }

    /// Whether the request adds a task.
    pub(super) fn adds(&self) -> bool {
        matches!(self, Self::Add { .. } | Self::Push { .. } | Self::Append { .. })
    }

    /// The bytes for which the request counts in a batch, approximately: its memory while it waits, the cost of its looks
    /// and of its page.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let (key, value) = match self {
            Self::Add { key, value, terms, .. } => (key.len() + bytes_of(terms), value.len()),
            Self::Update { key, value } => (key.len(), value.len()),
            Self::Settle { key, value, .. } => (key.len(), value.as_ref().map_or(0, |value| value.len())),
            Self::Push { value, terms } => (bytes_of(terms), value.len()),
            Self::Append { value, .. } => (0, value.len()),
            Self::GiveBack { key, reason, .. } | Self::Bury { key, reason, .. } => (key.len() + reason.len(), 0),
            Self::Withdraw { tickets } => (tickets.len() * size_of::<u64>(), 0),
            Self::LeaseMany { queues, .. } | Self::ReserveNext { queues, .. } => {
                (queues.iter().map(QueueName::bytes).sum::<usize>() + looks_cost(queues.len()), 0)
            }
            Self::Many { requests } => {
                let of_one = |(queue, request): &(QueueName, Self)| {
                    queue.bytes() + usize::try_from(request.bytes()).unwrap_or(usize::MAX)
                };
                (requests.iter().map(of_one).sum(), 0)
            }
            Self::ListQueues { prefixes, most, .. } => {
                (prefixes.iter().map(|prefix| prefix.len()).sum::<usize>() + list_cost(*most), 0)
            }
            Self::Configure { change } => (size_of_val(&**change), 0),
            Self::Browse(Browse { group, most, first_bytes, .. }) => {
                let group_bytes = group.as_ref().map_or(0, |group| group.len());
                (group_bytes + page_cost(group.is_some(), *most, *first_bytes), 0)
            }
            other => (other.key().map_or(0, <[u8]>::len), 0),
        };
        (size_of::<Self>() + key + value) as u64
    }
}

/// The bytes of the names in these terms.
pub(super) fn bytes_of(terms: &Option<Box<AddTerms>>) -> usize {
    terms.as_ref().map_or(0, |terms| terms.group.len() + terms.unique.len())
}
