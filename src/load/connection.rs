//! One connection: bytes in and out, and the requests that wait for replies.
//!
//! The set-up (connecting, the handshake, the table) waits for the server. Nothing else does.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::dialect::{Dialect, Payloads, ReplyKind, create_table};
use super::source::{LoadRequest, RequestKind};
use super::{Error, LoadTarget, Protocol, Workload};
use crate::clients::rust::socket::{ByteStream, Dialing, ShakeError, Shaking, resolve};
use crate::limits::FRAME_BYTES_MAX;
use crate::zmtp::SocketType;

/// How long a server may take for each answer in the handshake and about the table.
const SET_UP_TIMEOUT: Duration = Duration::from_secs(5);
/// Refusals of a table's creation after which a run continues.
const GOES_ON: [&[u8]; 2] = [b"TABLE EXISTS", b"DENIED"];

/// A request without a reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutstandingRequest {
    pub(super) verb: RequestKind,
    pub(super) key: u32,
    /// When the request was due, or sent in a closed loop, in nanoseconds of the clock.
    pub(super) due: u64,
}

/// A connection to the server.
pub(super) struct LoadConnection {
    stream: ByteStream,
    address: String,
    dialect: Dialect,
    /// Requests without a reply, oldest first.
    waiting: VecDeque<OutstandingRequest>,
    /// It waits until the system takes more of its bytes.
    is_blocked: bool,
}

impl LoadConnection {
    /// Connects to the server, and completes the handshake.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Denied`], [`Error::Lost`].
    pub(super) fn open(server: &LoadTarget) -> Result<Self, Error> {
        let LoadTarget { address, connect_timeout, protocol, credentials, table } = server;
        let addresses = resolve(&format!("tcp://{address}"));
        let dialled = addresses.and_then(|addresses| Dialing::start(addresses, *connect_timeout).wait());
        let descriptor = dialled.map_err(|error| Error::Unreachable { address: address.clone(), error })?;
        let stream = match protocol {
            Protocol::Other(_) => ByteStream::new(descriptor),
            Protocol::Kv => {
                let frame_bytes = FRAME_BYTES_MAX as u64;
                let shaking = Shaking::begin(descriptor, SocketType::Dealer, credentials.clone(), frame_bytes);
                let address = address.clone();
                shaking.wait(SET_UP_TIMEOUT).map_err(|error| match error {
                    ShakeError::Busy => Error::Busy(address),
                    ShakeError::Denied(why) => Error::Denied { address, why: why.to_string() },
                    why => Error::Lost { address, why: why.to_string() },
                })?
            }
        };
        let dialect = Dialect::new(*protocol, table);
        Ok(Self { stream, address: address.clone(), dialect, waiting: VecDeque::new(), is_blocked: false })
    }

    /// Creates the table of the requests if it is missing, and if the user may create it.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Lost`].
    pub(super) fn create_table(&mut self, table: &[u8]) -> Result<(), Error> {
        create_table(table, self.stream.outbox());
        self.waiting.push_back(OutstandingRequest { verb: RequestKind::Set, key: 0, due: 0 });
        let mut refused = None;
        while !self.waiting.is_empty() {
            self.flush()?;
            if !self.stream.wait(SET_UP_TIMEOUT).map_err(|error| self.lost(error))? {
                return Err(self.lost("no answer about the table"));
            }
            self.receive()?;
            self.answers(|_, outcome| {
                if let ReplyKind::Refused(reason, _) = outcome {
                    refused = (!GOES_ON.contains(&reason)).then(|| reason.escape_ascii().to_string());
                }
            })?;
        }
        let refusal = |why| Err(Error::Refused { address: self.address.clone(), why: format!("the table: {why}") });
        refused.map_or(Ok(()), refusal)
    }

    fn lost(&self, why: impl ToString) -> Error {
        Error::Lost { address: self.address.clone(), why: why.to_string() }
    }

    /// The number of requests without a reply.
    pub(super) fn outstanding(&self) -> usize {
        self.waiting.len()
    }

    /// Encodes a request, to be flushed. Its latency counts from `due`.
    pub(super) fn ask(&mut self, ask: LoadRequest, due: u64, work: &Workload, words: &mut Payloads, expected: u64) {
        self.dialect.encode(ask, work, words, expected, self.stream.outbox());
        self.waiting.push_back(OutstandingRequest { verb: ask.verb, key: ask.key, due });
    }

    /// Sends as many bytes as the system takes. Returns whether some are left, if it was otherwise before.
    ///
    /// # Errors
    /// [`Error::Lost`].
    pub(super) fn flush(&mut self) -> Result<Option<bool>, Error> {
        let is_blocked = !self.stream.flush().map_err(|end| self.lost(end))?;
        let was_blocked = std::mem::replace(&mut self.is_blocked, is_blocked);
        Ok((is_blocked != was_blocked).then_some(is_blocked))
    }

    /// Receives once the bytes that are there.
    ///
    /// # Errors
    /// [`Error::Lost`], also when the server has closed the connection.
    pub(super) fn receive(&mut self) -> Result<(), Error> {
        self.stream.receive().map(drop).map_err(|end| self.lost(end))
    }

    /// Hands each complete reply to `each`, with its request.
    ///
    /// # Errors
    /// [`Error::Lost`] if the server violates its protocol.
    pub(super) fn answers(&mut self, mut each: impl FnMut(OutstandingRequest, ReplyKind<'_>)) -> Result<(), Error> {
        while let Some(waiting) = self.waiting.front().copied() {
            let (bytes, outbox) = self.stream.unused();
            let taken = match self.dialect.decode(waiting.verb, bytes, outbox) {
                Ok(None) => return Ok(()),
                Ok(Some((taken, ReplyKind::Nothing))) => taken,
                Ok(Some((taken, outcome))) => {
                    self.waiting.pop_front();
                    each(waiting, outcome);
                    taken
                }
                Err(why) => return Err(self.lost(why)),
            };
            self.stream.consume(taken);
        }
        Ok(())
    }
}

impl AsFd for LoadConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
