//! Requests about queues by name, one method for each, with results of their own.
//!
//! A server that does not know these queues refuses them as [`Field::UnknownTag`](crate::services::tasks::wire::Field).
//! This module keeps no connection.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::{BLOCKED, Error, TasksClient};
use crate::services::tasks::wire::{
    AnyReply, AnyRequest, ItemResult, Kicked, LeaseEnd, LendMode, Malformed, NamedLease, QueueReply, QueueRequest,
    Reply, Request, SeenQueue, SeenTask,
};
use crate::tasks::{BrowsePlace, QueueChange, SweptStates};

/// A task of one of some queues that the server has lent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LentOf {
    /// Which of the queues of the request it is of, from 0.
    pub queue: usize,
    /// The lend key of the lease.
    pub lend_key: u64,
    /// The leases since it was added, kicked or repaid, this one included.
    pub tries: u32,
    /// The key of the task.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
}

impl TasksClient {
    /// Adds a task to each queue of an [`QueueRequest::AddMany`]. Returns one result for each.
    ///
    /// # Errors
    /// [`Error`]
    pub fn add_many(&mut self, request: QueueRequest<'_>) -> Result<Vec<ItemResult>, Error> {
        self.ask_of_queues(request, items)
    }

    /// Leases up to `count` tasks of these queues, in their order, and waits for one for `wait_ms` milliseconds at most.
    /// Empty: there is none.
    ///
    /// # Errors
    /// [`Error`]
    pub fn lend_many(
        &mut self,
        queues: &[&[u8]],
        count: u32,
        timeout_ms: u64,
        wait_ms: u64,
    ) -> Result<Vec<LentOf>, Error> {
        self.ask_any(&lend_request(queues, count, timeout_ms, wait_ms), lent)
    }

    /// As [`TasksClient::lend_many`] of one task, which waits for as long as `over` is not readable. `None`: `over` is
    /// readable, or the server ends. When `over` is readable, the client drops the connection, and a task that the server
    /// lends on it goes back to its queue.
    ///
    /// # Errors
    /// [`Error`]
    pub fn lend_of_unless(
        &mut self,
        queues: &[&[u8]],
        timeout_ms: u64,
        over: BorrowedFd<'_>,
    ) -> Result<Option<LentOf>, Error> {
        let wait_ms = u64::try_from(BLOCKED.as_millis()).unwrap_or(u64::MAX);
        self.send_any(&lend_request(queues, 1, timeout_ms, wait_ms))?;
        if !self.pipeline.wait_unless(over)? {
            return Ok(None);
        }
        Ok(self.receive_of_queues(Duration::ZERO, lent)?.into_iter().next())
    }

    /// Ends leases, each in its way. Returns one result for each.
    ///
    /// # Errors
    /// [`Error`]
    pub fn settle_many(&mut self, ends: Vec<(NamedLease<'_>, LeaseEnd<'_>)>) -> Result<Vec<ItemResult>, Error> {
        self.ask_of_queues(QueueRequest::SettleMany(ends), items)
    }

    /// Gives leases new deadlines, in milliseconds from now. Returns one result for each.
    ///
    /// # Errors
    /// [`Error`]
    pub fn extend_many(&mut self, leases: Vec<(NamedLease<'_>, u64)>) -> Result<Vec<ItemResult>, Error> {
        self.ask_of_queues(QueueRequest::ExtendMany(leases), items)
    }

    /// Shows the page of a [`QueueRequest::Browse`]. `read` sees each of its tasks. Returns where the next page begins.
    ///
    /// # Errors
    /// [`Error`]
    pub fn browse(
        &mut self,
        request: QueueRequest<'_>,
        read: impl FnMut(&SeenTask<'_>),
    ) -> Result<Option<BrowsePlace>, Error> {
        self.ask_of_queues(request, |reply| match reply {
            QueueReply::Browsed(tasks, next) => {
                tasks.iter().for_each(read);
                Some(next)
            }
            _ => None,
        })
    }

    /// Makes tasks of a queue ready. Returns their number.
    ///
    /// # Errors
    /// [`Error`]
    pub fn kick(&mut self, queue: &[u8], what: Kicked<'_>) -> Result<u64, Error> {
        self.ask_of_queues(QueueRequest::Kick { queue, what }, counted)
    }

    /// Removes tasks that have been in one of these states for so many milliseconds. Returns their number.
    ///
    /// # Errors
    /// [`Error`]
    pub fn purge(&mut self, queue: &[u8], states: SweptStates, age_ms: u64) -> Result<u64, Error> {
        self.ask_of_queues(QueueRequest::Purge { queue, states, age_ms }, counted)
    }

    /// Changes the settings of a queue.
    ///
    /// # Errors
    /// [`Error`]
    pub fn configure(&mut self, queue: &[u8], change: QueueChange) -> Result<(), Error> {
        let request = QueueRequest::Configure { queue, change };
        self.ask_of_queues(request, |reply| (reply == QueueReply::Configured).then_some(()))
    }

    /// Lists a page of queues, which `read` sees. Returns where the next page begins.
    ///
    /// # Errors
    /// [`Error`]
    pub fn queues(&mut self, from: u32, most: u32, read: impl FnMut(&SeenQueue<'_>)) -> Result<Option<u32>, Error> {
        self.ask_of_queues(QueueRequest::Queues { from, most }, |reply| match reply {
            QueueReply::Queues(queues, next) => {
                queues.iter().for_each(read);
                Some(next)
            }
            _ => None,
        })
    }

    fn ask_of_queues<T>(
        &mut self,
        request: QueueRequest<'_>,
        read: impl FnOnce(QueueReply<'_>) -> Option<T>,
    ) -> Result<T, Error> {
        self.ask_any(&AnyRequest::OfQueues(request), |reply| match reply {
            AnyReply::OfQueues(reply) => read(reply),
            AnyReply::Plain(_) => None,
        })
    }

    fn ask_any<T>(
        &mut self,
        request: &AnyRequest<'_>,
        read: impl FnOnce(AnyReply<'_>) -> Option<T>,
    ) -> Result<T, Error> {
        assert_eq!(self.in_flight(), 0, "another request is in flight");
        self.send_any(request)?;
        self.receive_of_queues(waits_for(request), read)
    }

    /// The reply to the only request in flight, which itself waits for so long. `read` returns `None` for a reply to
    /// another kind of request.
    fn receive_of_queues<T>(
        &mut self,
        waits: Duration,
        read: impl FnOnce(AnyReply<'_>) -> Option<T>,
    ) -> Result<T, Error> {
        let read = match self.receive_any_within(self.pipeline.timeout().saturating_add(waits))? {
            AnyReply::Plain(Reply::Error(fault)) => return Err(Error::Refused(fault)),
            reply => read(reply),
        };
        read.ok_or_else(|| self.pipeline.refuse(|_| Malformed::Tag).into())
    }
}

/// The time for which a request itself waits.
pub(super) fn waits_for(request: &AnyRequest<'_>) -> Duration {
    match request {
        AnyRequest::OfQueues(QueueRequest::LendMany { wait_ms, .. }) => Duration::from_millis(*wait_ms).min(BLOCKED),
        AnyRequest::InQueue(_, Request::Lend { mode: LendMode::Block, .. }) => BLOCKED,
        _ => Duration::ZERO,
    }
}

fn lend_request<'b>(queues: &[&'b [u8]], count: u32, timeout_ms: u64, wait_ms: u64) -> AnyRequest<'b> {
    AnyRequest::OfQueues(QueueRequest::LendMany { queues: queues.to_vec(), count, timeout_ms, wait_ms })
}

fn items(reply: QueueReply<'_>) -> Option<Vec<ItemResult>> {
    if let QueueReply::Items(_, items) = reply { Some(items) } else { None }
}

fn counted(reply: QueueReply<'_>) -> Option<u64> {
    if let QueueReply::Counted(_, count) = reply { Some(count) } else { None }
}

fn lent(reply: AnyReply<'_>) -> Option<Vec<LentOf>> {
    match reply {
        AnyReply::Plain(Reply::QueueEmpty) => Some(Vec::new()),
        AnyReply::OfQueues(QueueReply::Lent(tasks)) => {
            let own = tasks.into_iter().map(|task| LentOf {
                queue: usize::from(task.queue),
                lend_key: task.lend_key,
                tries: task.tries,
                key: task.key.to_vec(),
                value: task.value.to_vec(),
            });
            Some(own.collect())
        }
        _ => None,
    }
}
