//! The answers of the queues.
//!
//! This module carries nothing out; see `engine.rs`.

#[cfg(doc)]
use super::Request;
use super::payload::Payload;
use super::reservation::ShownJob;
use super::shown::{BrowsedPage, ListedQueue};

/// The answer to a [`Request`]. The request determines its meaning: a frontend makes its reply from both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request is carried out, and has no result.
    Done,
    /// The task is in the queue, under this number: the number in the key of [`Request::Push`], and otherwise its
    /// number in the queue. The latter is higher by 1 than the number of the task that was added before.
    Added(u64),
    /// The lease is ended, and its task is dead.
    Died,
    /// A job that is looked at.
    Peeked {
        /// Its id, big-endian.
        key: Box<[u8]>,
        /// Its value.
        payload: Payload,
    },
    /// What is known of a job.
    Shown {
        /// All but its value.
        job: Box<ShownJob>,
        /// Its value.
        payload: Payload,
    },
    /// A task with this unique name is there: its key.
    Kept(Box<[u8]>),
    /// The next task.
    Leased {
        /// The token of this lease, larger than all tokens before it.
        token: u64,
        /// The key of the task.
        key: Box<[u8]>,
        /// The leases since it was added, kicked or repaid, this one included.
        lent: u32,
        /// The length of this lease, in milliseconds.
        lease: u64,
        /// Its value.
        payload: Payload,
    },
    /// The next tasks, at least one.
    LeasedMany(Vec<GrantedLease>),
    /// A page.
    Browsed(BrowsedPage),
    /// A page of queues, in no order. It may have fewer than asked for, also none, and not be the last one.
    Queues {
        /// The queues.
        queues: Vec<ListedQueue>,
        /// Where the next page begins. `None`: this was the last one.
        next: Option<u32>,
    },
    /// The answers to the requests of [`Request::Many`], in their order.
    Many(Vec<Outcome>),
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

/// One of several leases in an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantedLease {
    /// Which of the queues of the request it is of, from 0.
    pub queue: usize,
    /// The token of this lease, larger than all tokens before it.
    pub token: u64,
    /// The key of the task.
    pub key: Box<[u8]>,
    /// The leases since it was added, kicked or repaid, this one included.
    pub lent: u32,
    /// The length of this lease, in milliseconds.
    pub lease: u64,
    /// Its value.
    pub payload: Payload,
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
            Self::Leased { payload, .. } | Self::Peeked { payload, .. } | Self::Shown { payload, .. } => Some(payload),
            Self::Found(payload) => payload.as_ref(),
            Self::LeasedMany(_) | Self::Many(_) | Self::Browsed(_) | Self::Queues { .. } => None,
            Self::Done | Self::Added(_) | Self::Kept(_) | Self::Died | Self::Counted(_) | Self::Refused => None,
            Self::NoRoom { .. } => None,
        }
    }
}
