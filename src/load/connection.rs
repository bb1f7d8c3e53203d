//! One connection: bytes in and out, and the requests that wait for replies.
//!
//! The set-up (connecting, the handshake, the table) blocks. After [`LoadConnection::go`] the connection does not
//! block.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::dialect::{Dialect, Payloads, ReplyKind, create_table};
use super::sealed::SealedBytes;
use super::source::{LoadRequest, RequestKind};
use super::{Error, Plan, Workload};
use crate::zmtp::{Cipher, ClaimRefusal, ProtocolError};

/// How long a server may take to accept a connection, and to answer in the handshake.
const SET_UP_TIMEOUT: Duration = Duration::from_secs(5);
/// Refusals of a table's creation with which a run goes on.
const GOES_ON: [&[u8]; 2] = [b"TABLE EXISTS", b"DENIED"];
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
    /// What stands between these two and the wire, on an encrypted connection.
    sealed: Option<SealedBytes>,
    /// Requests without a reply, oldest first.
    waiting: VecDeque<OutstandingRequest>,
}

impl LoadConnection {
    /// Connects to the plan's server, and completes the handshake.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Denied`], [`Error::Lost`].
    pub(super) fn open(plan: &Plan) -> Result<Self, Error> {
        let Plan { address, table, credentials, .. } = plan;
        let unreachable = |error| Error::Unreachable { address: address.to_owned(), error };
        let stream = connect(address, plan.connect_timeout).map_err(unreachable)?;
        stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(SET_UP_TIMEOUT))).map_err(unreachable)?;
        let mut outbox = Vec::new();
        let dialect = Dialect::new(plan.protocol, table, credentials, &mut outbox);
        let mut connection = Self {
            stream,
            address: address.to_owned(),
            dialect,
            inbox: vec![0; READ_BYTES],
            read: 0,
            came: 0,
            outbox,
            sent: 0,
            sealed: None,
            waiting: VecDeque::new(),
        };
        while !connection.dialect.is_ready() {
            connection.flush()?;
            connection.receive()?;
            connection.shake()?;
        }
        connection.flush()?;
        if let Some(cipher) = connection.dialect.cipher() {
            connection.seal_from_now(cipher)?;
        }
        Ok(connection)
    }

    fn shake(&mut self) -> Result<(), Error> {
        let bytes = self.inbox.get(self.read..self.came).unwrap_or_default();
        let taken = self.dialect.shake(bytes, &mut self.outbox);
        self.read += taken.map_err(|why| match why {
            ProtocolError::Refused { ref reason } if reason == ClaimRefusal::Busy.status() => {
                Error::Busy { address: self.address.clone() }
            }
            ProtocolError::Refused { .. } | ProtocolError::Mechanism { .. } => {
                Error::Denied { address: self.address.clone(), why: why.to_string() }
            }
            why => self.lost(why),
        })?;
        Ok(())
    }

    /// The handshake is over, and what was received behind it is sealed.
    fn seal_from_now(&mut self, cipher: Box<Cipher>) -> Result<(), Error> {
        let behind = self.inbox.get(self.read..self.came).unwrap_or_default();
        let mut sealed = SealedBytes::new(cipher, behind);
        self.inbox.clear();
        (self.read, self.came) = (0, 0);
        let opened = sealed.open(&mut self.inbox);
        self.sealed = Some(sealed);
        self.came = self.inbox.len();
        opened.map_err(|fault| self.lost(fault))
    }

    /// Creates the table of the requests if it is missing, and if the user may create it. To be called before
    /// [`LoadConnection::go`].
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
                    refused = (!GOES_ON.contains(&reason)).then(|| reason.escape_ascii().to_string());
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
        let Self { stream, outbox, sent, sealed, .. } = self;
        let result = match sealed {
            None => write(stream, outbox, sent),
            Some(sealed) => write(stream, sealed.seal(outbox), sent),
        };
        result.map_err(|error| self.lost(error))
    }

    /// Receives the bytes that are there, up to the room of the inbox.
    ///
    /// # Errors
    /// [`Error::Lost`], also when the server has closed the connection.
    pub(super) fn receive(&mut self) -> Result<(), Error> {
        let count = match &mut self.sealed {
            None => {
                self.make_room();
                self.stream.read(self.inbox.get_mut(self.came..).unwrap_or_default())
            }
            Some(sealed) => sealed.read(&mut self.stream),
        };
        match count {
            Ok(0) => Err(self.lost("the server has closed it")),
            Ok(count) => self.received(count),
            Err(error) if error.kind() == ErrorKind::WouldBlock && !self.dialect.is_ready() => {
                Err(self.lost("no answer to the handshake within 5 s"))
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(()),
            Err(error) => Err(self.lost(error)),
        }
    }

    fn received(&mut self, count: usize) -> Result<(), Error> {
        let Some(sealed) = &mut self.sealed else {
            self.came += count;
            return Ok(());
        };
        self.inbox.drain(..self.read);
        self.read = 0;
        let opened = sealed.open(&mut self.inbox);
        self.came = self.inbox.len();
        opened.map_err(|fault| self.lost(fault))
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

/// Sends as many of `bytes[sent..]` as the system takes. Returns whether all are sent; `bytes` is then empty.
fn write(stream: &mut TcpStream, bytes: &mut Vec<u8>, sent: &mut usize) -> io::Result<bool> {
    while let Some(rest) = bytes.get(*sent..).filter(|rest| !rest.is_empty()) {
        match stream.write(rest) {
            Ok(0) => return Err(io::Error::new(ErrorKind::WriteZero, "it takes no more bytes")),
            Ok(count) => *sent += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.clear();
    *sent = 0;
    Ok(true)
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
