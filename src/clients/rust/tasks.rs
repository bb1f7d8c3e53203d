//! A blocking client: one method for each request, and a pipeline of [`TasksClient::send`] and [`TasksClient::receive`].
//!
//! The client is a DEALER that sends the request frame alone, the cheapest form that the protocol has. Only the order
//! of the replies shows which request each answers. After a timeout, a loss or a malformed reply the client drops
//! the connection, and the next request connects again. The client never sends a request twice. If the connection is
//! dropped before the server has sent the reply to a Lend, the task goes back to the queue.

mod queues;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use thiserror::Error;

use crate::clients::rust::socket::{Pipeline, ReplyError};
use crate::services::tasks::wire::{
    AddMode, AnyReply, AnyRequest, Counters, Fault, LendMode, Malformed, RepayStatus, Reply, Request,
};

pub use crate::clients::rust::socket::{ClientTimeouts, Disconnected};
pub use queues::LentOf;

/// How long the client waits for a connection and for each reply, unless [`TasksClient::set_timeout`] sets another time.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

/// How long a blocking Lend waits: 20 days.
const BLOCKED: Duration = Duration::from_secs(20 * 86_400);

/// Why a request has no good reply, sorted by the action that the caller can take.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// There is no connection, or no reply came.
    #[error(transparent)]
    Disconnected(#[from] Disconnected),
    /// The server refuses the request: the key or the value is too long, or the server does not allow the request.
    #[error("the server refuses this request: {0}")]
    Refused(Fault),
    /// The other end does not speak this protocol: check the endpoint.
    #[error("{endpoint} does not speak this protocol ({malformed}): is it the right endpoint?")]
    Malformed {
        /// The endpoint that answered.
        endpoint: String,
        /// The fault of the reply.
        malformed: Malformed,
    },
}

impl From<ReplyError<Malformed>> for Error {
    fn from(error: ReplyError<Malformed>) -> Self {
        match error {
            ReplyError::Disconnected(disconnected) => Self::Disconnected(disconnected),
            ReplyError::Malformed { endpoint, malformed } => Self::Malformed { endpoint, malformed },
        }
    }
}

/// A task that the server has lent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lent {
    /// The lend key, which Repay and Heartbeat need.
    pub lend_key: u64,
    /// The key of the task.
    pub key: Vec<u8>,
    /// The value of the task.
    pub value: Vec<u8>,
}

/// One connection to a server.
///
/// ```no_run
/// use spindle::clients::rust::tasks::{TasksClient, Error};
/// use spindle::services::tasks::wire::{AddMode, LendMode};
///
/// # fn main() -> Result<(), Error> {
/// let mut client = TasksClient::connect("tcp://127.0.0.1:5557")?;
/// client.add(b"page-1", b"https://example.com", AddMode::Tail)?;
/// if let Some(task) = client.lend(60_000, LendMode::Poll)? {
///     client.done(task.lend_key, &task.key)?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// The methods for single requests wait for their own reply, so no other request may be in flight. They panic
/// otherwise.
pub struct TasksClient {
    pipeline: Pipeline<()>,
    /// Buffer for the request that is being sent.
    bytes: Vec<u8>,
    /// The queue of the methods for single requests. `None`: that without a name.
    queue: Option<Vec<u8>>,
}

impl TasksClient {
    /// Connects, and waits up to [`TIMEOUT_DEFAULT`] for a server.
    ///
    /// # Errors
    /// [`Error::Disconnected`]
    pub fn connect(endpoint: &str) -> Result<Self, Error> {
        Self::connect_within(endpoint, TIMEOUT_DEFAULT)
    }

    /// Connects, and waits so long for a server to be there.
    ///
    /// A `Duration` bounds the connecting, and afterwards the wait for each reply. [`ClientTimeouts`] bounds
    /// each separately.
    ///
    /// # Errors
    /// [`Error::Disconnected`]
    pub fn connect_within(endpoint: &str, timeouts: impl Into<ClientTimeouts>) -> Result<Self, Error> {
        let mut client = Self::within(endpoint, timeouts);
        client.pipeline.connect()?;
        Ok(client)
    }

    /// A client that connects with its first request, within `timeout`.
    #[must_use]
    pub fn later(endpoint: &str, timeout: Duration) -> Self {
        Self::within(endpoint, timeout)
    }

    fn within(endpoint: &str, timeouts: impl Into<ClientTimeouts>) -> Self {
        Self { pipeline: Pipeline::new(endpoint, timeouts), bytes: Vec::new(), queue: None }
    }

    /// The methods for single requests speak of the queue with this name from now on.
    pub fn use_queue(&mut self, name: &[u8]) {
        self.queue = Some(name.to_vec());
    }

    /// Sets how long a new connection and each reply may take from now on.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.pipeline.set_timeout(timeout);
    }

    /// The number of requests without a reply.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.pipeline.in_flight()
    }

    /// Sends a request without waiting for its reply. Replies come in the order of the requests, except for those to
    /// Lends that block: do not mix these with other requests.
    ///
    /// # Errors
    /// [`Error::Disconnected`]. Afterwards no request is in flight.
    pub fn send(&mut self, request: &Request<'_>) -> Result<(), Error> {
        self.send_any(&AnyRequest::Plain(*request))
    }

    /// Waits for the reply to the oldest request in flight. An error of the protocol is a reply, [`Reply::Error`].
    ///
    /// # Errors
    /// [`Error::Disconnected`], [`Error::Malformed`]. Afterwards no request is in flight.
    ///
    /// # Panics
    /// If no request is in flight.
    pub fn receive(&mut self) -> Result<Reply<'_>, Error> {
        self.receive_within(self.pipeline.timeout())
    }

    fn receive_within(&mut self, timeout: Duration) -> Result<Reply<'_>, Error> {
        self.decoded_within(timeout, Reply::decode)
    }

    /// Makes any request, also about queues by name, and waits for its reply within [`TasksClient::set_timeout`], and the
    /// time for which the request itself waits. An error of the protocol is a reply. Servers before those queues answer
    /// that they do not know the tag.
    ///
    /// # Errors
    /// [`Error::Disconnected`], [`Error::Malformed`]
    ///
    /// # Panics
    /// If another request is in flight.
    pub fn ask(&mut self, request: &AnyRequest<'_>) -> Result<AnyReply<'_>, Error> {
        assert_eq!(self.in_flight(), 0, "another request is in flight");
        self.send_any(request)?;
        let waits = queues::waits_for(request);
        self.receive_any_within(self.pipeline.timeout().saturating_add(waits))
    }

    /// As [`TasksClient::send`], for any request.
    ///
    /// # Errors
    /// [`Error::Disconnected`]. Afterwards no request is in flight.
    pub fn send_any(&mut self, request: &AnyRequest<'_>) -> Result<(), Error> {
        let Self { pipeline, bytes, .. } = self;
        bytes.clear();
        request.encode(bytes);
        Ok(pipeline.send((), |sink| sink(bytes, false))?)
    }

    /// As [`TasksClient::receive`], for any reply.
    ///
    /// # Errors
    /// [`Error::Disconnected`], [`Error::Malformed`]. Afterwards no request is in flight.
    ///
    /// # Panics
    /// If no request is in flight.
    pub fn receive_any(&mut self) -> Result<AnyReply<'_>, Error> {
        self.receive_any_within(self.pipeline.timeout())
    }

    fn receive_any_within(&mut self, timeout: Duration) -> Result<AnyReply<'_>, Error> {
        self.decoded_within(timeout, AnyReply::decode)
    }

    /// The next reply, by this decoder.
    fn decoded_within<'c, R>(
        &'c mut self,
        timeout: Duration,
        decode: impl FnOnce(&'c [u8]) -> Result<R, Malformed>,
    ) -> Result<R, Error> {
        Ok(self.pipeline.receive(timeout, |(), frames| decode(frames.last().map_or(&[][..], |frame| frame)))?)
    }

    // ------------------------------------------------------------------------------------------------------- requests

    /// Checks that the server answers.
    ///
    /// # Errors
    /// [`Error`]
    pub fn ping(&mut self) -> Result<(), Error> {
        self.call(&Request::Ping, |reply| (reply == Reply::Pong).then_some(()))
    }

    /// The number of tasks that are ready to be lent.
    ///
    /// # Errors
    /// [`Error`]
    pub fn count(&mut self) -> Result<u32, Error> {
        self.call(&Request::Count, |reply| match reply {
            Reply::Counted(total) => Some(total),
            _ => None,
        })
    }

    /// Adds a task. False: the key exists, and the queue is unchanged.
    ///
    /// # Errors
    /// [`Error`]
    pub fn add(&mut self, key: &[u8], value: &[u8], mode: AddMode) -> Result<bool, Error> {
        self.call(&Request::Add { key, value, mode }, |reply| either(reply, Reply::Added, Reply::Kept))
    }

    /// Replaces the value of a task. False: there is no such task.
    ///
    /// # Errors
    /// [`Error`]
    pub fn update(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        self.call(&Request::Update { key, value }, |reply| either(reply, Reply::Updated, Reply::NotFound))
    }

    /// Leases the next task for `timeout_ms` milliseconds. With [`LendMode::Block`] the call waits for a task, up to 20
    /// days. None: there is no task, or the server ends.
    ///
    /// # Errors
    /// [`Error`]
    pub fn lend(&mut self, timeout_ms: u64, mode: LendMode) -> Result<Option<Lent>, Error> {
        let patience = if mode == LendMode::Block { BLOCKED } else { self.pipeline.timeout() };
        self.call_within(patience, &Request::Lend { timeout_ms, mode }, lent)
    }

    /// Like [`TasksClient::lend`] with [`LendMode::Block`], for as long as `over` is not readable. None: `over` is readable,
    /// or the server ends. When `over` is readable, the client drops the connection, and a task that the server lends
    /// on it goes back to the queue.
    ///
    /// # Errors
    /// [`Error`]
    pub fn lend_unless(&mut self, timeout_ms: u64, over: BorrowedFd<'_>) -> Result<Option<Lent>, Error> {
        self.send_in_queue(&Request::Lend { timeout_ms, mode: LendMode::Block })?;
        if !self.pipeline.wait_unless(over)? {
            return Ok(None);
        }
        self.receive_reply(self.pipeline.timeout(), lent)
    }

    /// Gives a task back. False: the task is not lent with this lend key, and the queue is unchanged.
    ///
    /// # Errors
    /// [`Error`]
    pub fn repay(&mut self, lend_key: u64, key: &[u8], value: &[u8], status: RepayStatus) -> Result<bool, Error> {
        let request = Request::Repay { lend_key, key, value, status };
        self.call(&request, |reply| either(reply, Reply::Repaid, Reply::NotFound))
    }

    /// Ends a task that is done: it is gone with its key and value. False: as for [`TasksClient::repay`].
    ///
    /// # Errors
    /// [`Error`]. A server that does not know the status refuses it as [`Field::BadRepayStatus`](crate::services::tasks::wire::Field::BadRepayStatus).
    pub fn done(&mut self, lend_key: u64, key: &[u8]) -> Result<bool, Error> {
        self.repay(lend_key, key, b"", RepayStatus::Done)
    }

    /// Sets the deadline of a lease to `timeout_ms` milliseconds from now. False: the task is not lent with this lend
    /// key, and the queue is unchanged.
    ///
    /// # Errors
    /// [`Error`]
    pub fn heartbeat(&mut self, lend_key: u64, key: &[u8], timeout_ms: u64) -> Result<bool, Error> {
        let request = Request::Heartbeat { lend_key, key, timeout_ms };
        self.call(&request, |reply| either(reply, Reply::Heartbeaten, Reply::Skipped))
    }

    /// How many requests of each kind the server has answered.
    ///
    /// # Errors
    /// [`Error`]
    pub fn stats(&mut self) -> Result<Counters, Error> {
        self.call(&Request::Stats, |reply| match reply {
            Reply::StatsGot(counters) => Some(counters),
            _ => None,
        })
    }

    /// Ends the server after everything acknowledged is on disk.
    ///
    /// # Errors
    /// [`Error`]. It is [`Error::Refused`] if the server does not allow Terminate.
    pub fn terminate(&mut self) -> Result<(), Error> {
        self.call(&Request::Terminate, |reply| (reply == Reply::Terminated).then_some(()))
    }

    /// The value of a task in any state, or `None` if there is no such task.
    ///
    /// # Errors
    /// [`Error`]
    pub fn lookup(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.call(&Request::Lookup { key }, |reply| match reply {
            Reply::ValueFound(value) => Some(Some(value.to_vec())),
            Reply::ValueNotFound => Some(None),
            _ => None,
        })
    }

    /// Returns after everything is on disk.
    ///
    /// # Errors
    /// [`Error`]
    pub fn flush(&mut self) -> Result<(), Error> {
        self.call(&Request::Flush, |reply| (reply == Reply::Flushed).then_some(()))
    }

    /// Removes a task in any state. False: there is no such task.
    ///
    /// # Errors
    /// [`Error`]
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, Error> {
        self.call(&Request::Remove { key }, |reply| either(reply, Reply::Removed, Reply::NotRemoved))
    }

    // --------------------------------------------------------------------------------------------------------- pieces

    fn call<T>(&mut self, request: &Request<'_>, read: impl FnOnce(Reply<'_>) -> Option<T>) -> Result<T, Error> {
        self.call_within(self.pipeline.timeout(), request, read)
    }

    /// Sends one request and waits for its reply. `read` converts the reply, and returns `None` for a reply to another
    /// kind of request.
    fn call_within<T>(
        &mut self,
        patience: Duration,
        request: &Request<'_>,
        read: impl FnOnce(Reply<'_>) -> Option<T>,
    ) -> Result<T, Error> {
        assert!(self.in_flight() == 0, "receive what is in flight first");
        self.send_in_queue(request)?;
        self.receive_reply(patience, read)
    }

    /// Sends a request about the queue of the client.
    fn send_in_queue(&mut self, request: &Request<'_>) -> Result<(), Error> {
        match self.queue.take() {
            None => self.send(request),
            Some(queue) => {
                let sent = self.send_any(&AnyRequest::InQueue(&queue, *request));
                self.queue = Some(queue);
                sent
            }
        }
    }

    /// Waits for the reply to the only request in flight.
    fn receive_reply<T>(&mut self, patience: Duration, read: impl FnOnce(Reply<'_>) -> Option<T>) -> Result<T, Error> {
        let read = match self.receive_within(patience)? {
            Reply::Error(fault) => return Err(Error::Refused(fault)),
            reply => read(reply),
        };
        read.ok_or_else(|| self.pipeline.refuse(|_| Malformed::Tag).into())
    }
}

fn lent(reply: Reply<'_>) -> Option<Option<Lent>> {
    match reply {
        Reply::Lent { lend_key, key, value } => Some(Some(Lent { lend_key, key: key.to_vec(), value: value.to_vec() })),
        Reply::QueueEmpty => Some(None),
        _ => None,
    }
}

fn either(reply: Reply<'_>, yes: Reply<'_>, no: Reply<'_>) -> Option<bool> {
    if reply == yes { Some(true) } else { (reply == no).then_some(false) }
}
