//! One connection: bytes in and out, and the requests that wait for replies.
//!
//! The set-up (connecting, the handshake, the table) blocks. After [`LoadConnection::go`] the connection does not
//! block.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::dialect::{Dialect, Payloads, Protocol, ReplyKind, create_table};
use super::source::{LoadRequest, RequestKind};
use super::{Error, Workload};

/// How long a server may take to accept a connection, and to answer in the handshake.
const SET_UP_TIMEOUT: Duration = Duration::from_secs(5);
/// Initial bytes of the inbox. At least half of them are free for each read.
const READ_BYTES: usize = 64 << 10;

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
    stream: TcpStream,
    address: String,
    dialect: Dialect,
    /// Received bytes: `inbox[read..came]` is not decoded yet.
    inbox: Vec<u8>,
    read: usize,
    came: usize,
    /// Bytes to be sent: `outbox[sent..]`.
    outbox: Vec<u8>,
    sent: usize,
    /// Requests without a reply, oldest first.
    waiting: VecDeque<OutstandingRequest>,
}

impl LoadConnection {
    /// Connects within `timeout`, and completes the handshake.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Lost`].
    pub(super) fn open(address: &str, protocol: Protocol, table: &[u8], timeout: Duration) -> Result<Self, Error> {
        let unreachable = |error| Error::Unreachable { address: address.to_owned(), error };
        let stream = connect(address, timeout).map_err(unreachable)?;
        stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(SET_UP_TIMEOUT))).map_err(unreachable)?;
        let mut outbox = Vec::new();
        let dialect = Dialect::new(protocol, table, &mut outbox);
        let mut connection = Self {
            stream,
            address: address.to_owned(),
            dialect,
            inbox: vec![0; READ_BYTES],
            read: 0,
            came: 0,
            outbox,
            sent: 0,
            waiting: VecDeque::new(),
        };
        while !connection.dialect.is_ready() {
            connection.flush()?;
            connection.receive()?;
            connection.shake()?;
        }
        connection.flush()?;
        Ok(connection)
    }

    fn shake(&mut self) -> Result<(), Error> {
        let bytes = self.inbox.get(self.read..self.came).unwrap_or_default();
        let taken = self.dialect.shake(bytes, &mut self.outbox);
        self.read += taken.map_err(|why| self.lost(why))?;
        Ok(())
    }

    /// Creates the table of the requests if it is missing. To be called before [`LoadConnection::go`].
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Lost`].
    pub(super) fn create_table(&mut self, table: &[u8]) -> Result<(), Error> {
        create_table(table, &mut self.outbox);
        self.waiting.push_back(OutstandingRequest { verb: RequestKind::Set, key: 0, due: 0 });
        self.flush()?;
        let mut refused = None;
        while !self.waiting.is_empty() {
            self.receive()?;
            self.answers(|_, outcome| {
                if let ReplyKind::Refused(reason, _) = outcome {
                    refused = (reason != b"TABLE EXISTS").then(|| reason.escape_ascii().to_string());
                }
            })?;
        }
        let refusal = |why| Err(Error::Refused { address: self.address.clone(), why: format!("the table: {why}") });
        refused.map_or(Ok(()), refusal)
    }

    /// Makes the connection non-blocking.
    ///
    /// # Errors
    /// [`Error::Lost`].
    pub(super) fn go(&mut self) -> Result<(), Error> {
        self.stream.set_nonblocking(true).map_err(|error| self.lost(error))
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
        self.dialect.encode(ask, work, words, expected, &mut self.outbox);
        self.waiting.push_back(OutstandingRequest { verb: ask.verb, key: ask.key, due });
    }

    /// Sends as many bytes as the system takes. Returns whether all are sent.
    ///
    /// # Errors
    /// [`Error::Lost`].
    pub(super) fn flush(&mut self) -> Result<bool, Error> {
        while let Some(rest) = self.outbox.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(0) => return Err(self.lost("it takes no more bytes")),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.lost(error)),
            }
        }
        self.outbox.clear();
        self.sent = 0;
        Ok(true)
    }

    /// Receives the bytes that are there, up to the room of the inbox.
    ///
    /// # Errors
    /// [`Error::Lost`], also when the server has closed the connection.
    pub(super) fn receive(&mut self) -> Result<(), Error> {
        self.make_room();
        let room = self.inbox.get_mut(self.came..).unwrap_or_default();
        match self.stream.read(room) {
            Ok(0) => Err(self.lost("the server has closed it")),
            Ok(count) => {
                self.came += count;
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock && !self.dialect.is_ready() => {
                Err(self.lost("no answer to the handshake within 5 s"))
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(()),
            Err(error) => Err(self.lost(error)),
        }
    }

    /// Moves the bytes that are not decoded yet to the front, and doubles the inbox if less than half of `READ_BYTES`
    /// is free.
    fn make_room(&mut self) {
        if self.read > 0 {
            self.inbox.copy_within(self.read..self.came, 0);
            self.came -= self.read;
            self.read = 0;
        }
        if self.inbox.len() - self.came < READ_BYTES / 2 {
            self.inbox.resize(self.inbox.len() * 2, 0);
        }
    }

    /// Hands each complete reply to `each`, with its request.
    ///
    /// # Errors
    /// [`Error::Lost`] if the server violates its protocol.
    pub(super) fn answers(&mut self, mut each: impl FnMut(OutstandingRequest, ReplyKind<'_>)) -> Result<(), Error> {
        while let Some(waiting) = self.waiting.front().copied() {
            let bytes = self.inbox.get(self.read..self.came).unwrap_or_default();
            match self.dialect.decode(waiting.verb, bytes, &mut self.outbox) {
                Ok(None) => return Ok(()),
                Ok(Some((taken, outcome))) => {
                    self.read += taken;
                    if outcome != ReplyKind::Nothing {
                        self.waiting.pop_front();
                        each(waiting, outcome);
                    }
                }
                Err(why) => return Err(self.lost(why)),
            }
        }
        Ok(())
    }
}

impl AsFd for LoadConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Connects to the first address of the name that accepts.
fn connect(address: &str, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
