//! The requests in flight on one connection, and their replies in the same order.
//!
//! ```text
//! send ──► send ──► send ──► receive ──► receive ──► receive      replies in the order of the requests
//!       lost, late or malformed: the connection is dropped, nothing is in flight any more
//! ```
//! Only the order shows which request a reply answers, so the pipeline uses a connection only as long as no reply can
//! be missing. After an error it drops the connection, and the next request connects again. It never sends a request
//! twice.
//!
//! This module does not know the bytes of a request or a reply; see the clients.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::{ClientSocket, ClientTimeouts, ConnectError, ConnectTarget, Disconnected};

/// Why there is no reply. `M` is the fault of a reply that cannot be decoded.
pub(crate) enum ReplyError<M> {
    /// There is no connection, or no reply came.
    Disconnected(Disconnected),
    /// The reply cannot be decoded.
    Malformed {
        /// The endpoint that sent it.
        endpoint: String,
        /// Its fault.
        malformed: M,
    },
}

/// A connection to a server. For each request in flight it keeps an `A`, with which the reply is decoded.
pub(crate) struct Pipeline<A> {
    target: ConnectTarget,
    timeouts: ClientTimeouts,
    /// `None` before the first request, and after an error until the next request.
    connection: Option<ClientSocket>,
    /// The requests without a reply, oldest first.
    in_flight: VecDeque<A>,
    /// The last message received. Replies borrow from it.
    frames: Vec<Vec<u8>>,
}

impl<A: Copy> Pipeline<A> {
    /// A pipeline that connects with its first request.
    pub(crate) fn new(endpoint: &str, timeouts: impl Into<ClientTimeouts>) -> Self {
        let target = ConnectTarget::requests(endpoint);
        Self { target, timeouts: timeouts.into(), connection: None, in_flight: VecDeque::new(), frames: Vec::new() }
    }

    /// Connects, if there is no connection.
    pub(crate) fn connect(&mut self) -> Result<(), Disconnected> {
        self.connection().map(drop)
    }

    /// How long each reply may take.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeouts.answer
    }

    /// Sets how long a new connection and each reply may take from now on.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeouts = timeout.into();
    }

    /// The number of requests without a reply.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Sends a request, whose frames `encode` hands on with whether more follow.
    pub(crate) fn send(
        &mut self,
        asked: A,
        encode: impl FnOnce(&mut dyn FnMut(&[u8], bool)),
    ) -> Result<(), Disconnected> {
        let timeout = self.timeouts.answer;
        let connection = self.connection()?;
        let sent = connection.send(encode, timeout);
        self.in_flight.push_back(asked);
        sent.map_err(|error| self.give_up(error))
    }

    /// Waits for the reply to the oldest request in flight, and decodes it.
    ///
    /// # Panics
    /// If no request is in flight.
    pub(crate) fn receive<'p, R, M>(
        &'p mut self,
        timeout: Duration,
        decode: impl FnOnce(A, &'p [Vec<u8>]) -> Result<R, M>,
    ) -> Result<R, ReplyError<M>> {
        let asked = self.in_flight.front().copied();
        let asked = asked.expect("receive is for what was asked");
        let Some(connection) = self.connection.as_mut() else {
            return Err(ReplyError::Disconnected(self.give_up(ConnectError::Lost)));
        };
        if let Err(error) = connection.receive(&mut self.frames, timeout) {
            return Err(ReplyError::Disconnected(self.give_up(error)));
        }
        match decode(asked, &self.frames) {
            Ok(reply) => {
                self.in_flight.pop_front();
                Ok(reply)
            }
            Err(malformed) => {
                self.connection = None;
                self.in_flight.clear();
                Err(ReplyError::Malformed { endpoint: self.target.endpoint().to_owned(), malformed })
            }
        }
    }

    /// Waits until a reply may have come or the connection is gone. False: `over` became readable before that. Then the
    /// connection is dropped, with the requests in flight.
    pub(crate) fn wait_unless(&mut self, over: BorrowedFd<'_>) -> Result<bool, Disconnected> {
        while let Some(connection) = &mut self.connection {
            if connection.has_come() {
                break;
            }
            match connection.wait_unless(over) {
                Ok(false) => {}
                Ok(true) => {
                    self.drop_connection();
                    return Ok(false);
                }
                Err(error) => return Err(self.give_up(error)),
            }
        }
        Ok(true)
    }

    /// The error for a decoded reply that does not answer its request. Drops the connection.
    pub(crate) fn refuse<M>(&mut self, malformed: impl FnOnce(usize) -> M) -> ReplyError<M> {
        self.drop_connection();
        let malformed = malformed(self.frames.len());
        ReplyError::Malformed { endpoint: self.target.endpoint().to_owned(), malformed }
    }

    /// The connection. Connects again if the last connection is gone.
    fn connection(&mut self) -> Result<&mut ClientSocket, Disconnected> {
        if self.connection.is_none() {
            let made = ClientSocket::open(&self.target, self.timeouts);
            self.connection = Some(made.map_err(|error| self.give_up(error))?);
        }
        self.connection.as_mut().ok_or_else(|| self.target.error(ConnectError::Lost, 0, self.timeouts))
    }

    /// Drops the connection and all requests in flight.
    fn give_up(&mut self, error: ConnectError) -> Disconnected {
        let unanswered = self.in_flight.len();
        self.drop_connection();
        self.target.error(error, unanswered, self.timeouts)
    }

    fn drop_connection(&mut self) {
        self.connection = None;
        self.in_flight.clear();
    }
}
