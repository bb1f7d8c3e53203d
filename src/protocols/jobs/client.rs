//! A blocking client: one method for each request, one connection for each call.
//!
//! Nothing is ever sent twice: if an answer does not come, whether the request was executed is unknown. An Add may then be made again
//! (there may be two jobs), an Ack too (the second is answered that there is nothing to acknowledge); a job of a Get that was not heard
//! comes back when its lease ends.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use thiserror::Error;

use super::wire::{Fault, Id, Malformed, Reply, Request};
use crate::limits::JOB_DATA_BYTES_MAX;

/// How long a client waits for a connection, and for each answer, unless it is told otherwise.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

/// Bytes of the longest answer: an id, a length, two spaces, and data; and one more, which is too much.
const ANSWER_BYTES_MAX: u64 = JOB_DATA_BYTES_MAX as u64 + 64;

/// Why there is no good answer, by what the caller can do about it.
#[derive(Debug, Error)]
pub enum Error {
    /// It is not an address: correct it.
    #[error("cannot use address {address}: it should look like HOST:PORT")]
    Address {
        /// As it was given.
        address: String,
    },
    /// Nobody connected or answered in time: start the server, or wait longer. Whether what was asked has been done is unknown.
    #[error("no answer from {address} ({source}): is a server with --jobs running there?")]
    NoAnswer {
        /// Where the server should be.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// The request cannot be written so: nothing was sent.
    #[error("this request cannot be made: {0}")]
    Unwritable(Fault),
    /// The server does not understand the request.
    #[error("{address} refuses this request: is it a server of another kind?")]
    Refused {
        /// Where the server is.
        address: String,
    },
    /// What answers is no server of this protocol, or went away while it answered.
    #[error("{address} does not speak this protocol ({malformed}): is it the right address?")]
    Malformed {
        /// Who answered.
        address: String,
        /// What was wrong with the answer.
        malformed: Malformed,
    },
}

/// A job that was handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// What to acknowledge it by.
    pub id: Id,
    /// What it is about.
    pub data: Vec<u8>,
}

/// A server, as a client finds it.
///
/// ```no_run
/// use spindle::protocols::jobs::client::{Client, Error};
///
/// # fn main() -> Result<(), Error> {
/// let client = Client::new("127.0.0.1:8080");
/// let id = client.add(b"mail", b"to ada")?;
/// while let Some(job) = client.get(b"mail")? {
///     println!("{}: {} bytes", job.id, job.data.len());
///     client.ack(b"mail", job.id)?;
/// }
/// assert!(!client.is_in(b"mail", id)?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    address: String,
    timeout: Duration,
}

impl Client {
    /// A client of the server at `address`, which is HOST:PORT. Nothing is connected before the first request.
    #[must_use]
    pub fn new(address: &str) -> Self {
        Self { address: address.to_owned(), timeout: TIMEOUT_DEFAULT }
    }

    /// From now on, how long connecting, and each wait for the server, may take.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Adds a job at the end of a queue of 1–255 bytes without white space, with at most 1,000,000 bytes of data. It is on disk
    /// when this returns.
    ///
    /// # Errors
    /// [`Error`]
    pub fn add(&self, queue: &[u8], data: &[u8]) -> Result<Id, Error> {
        self.call(&Request::Add { queue, data }, |reply| match reply {
            Reply::Added(id) => Some(id),
            _ => None,
        })
    }

    /// Takes the first job of a queue that is not handed out, for as long as the server lends jobs out. None: there is none.
    ///
    /// # Errors
    /// [`Error`]
    pub fn get(&self, queue: &[u8]) -> Result<Option<Job>, Error> {
        self.call(&Request::Get { queue }, |reply| match reply {
            Reply::Job { id, data } => Some(Some(Job { id, data: data.to_vec() })),
            Reply::Nothing => Some(None),
            _ => None,
        })
    }

    /// Says that a job is done: it is gone for good when this returns. False: it is not handed out, or not in the queue. (Who holds it
    /// is not asked for: a job that has come back and was handed out again is acknowledged all the same.)
    ///
    /// # Errors
    /// [`Error`]
    pub fn ack(&self, queue: &[u8], id: Id) -> Result<bool, Error> {
        let id = id.to_string();
        self.call(&Request::Ack { queue, id: id.as_bytes() }, |reply| match reply {
            Reply::Done(done) => Some(done),
            _ => None,
        })
    }

    /// Whether a job is in a queue, handed out or not.
    ///
    /// # Errors
    /// [`Error`]
    pub fn is_in(&self, queue: &[u8], id: Id) -> Result<bool, Error> {
        let id = id.to_string();
        self.call(&Request::In { queue, id: id.as_bytes() }, |reply| match reply {
            Reply::In(there) => Some(there),
            _ => None,
        })
    }

    /// Asks, and makes something of the answer, unless it is one to another question.
    fn call<T>(&self, request: &Request<'_>, read: impl FnOnce(Reply<'_>) -> Option<T>) -> Result<T, Error> {
        request.check().map_err(Error::Unwritable)?;
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        let answer = self.exchange(&bytes)?;
        let address = || self.address.clone();
        match Reply::decode(request.verb(), &answer) {
            Ok(Reply::Error) => Err(Error::Refused { address: address() }),
            Ok(reply) => {
                read(reply).ok_or_else(|| Error::Malformed { address: address(), malformed: Malformed::Words })
            }
            Err(malformed) => Err(Error::Malformed { address: address(), malformed }),
        }
    }

    /// Sends these bytes over a connection of their own, and reads all that comes back.
    fn exchange(&self, request: &[u8]) -> Result<Vec<u8>, Error> {
        let stream = self.connect()?;
        let answered = || {
            let mut answer = Vec::new();
            stream.set_read_timeout(Some(self.timeout))?;
            stream.set_write_timeout(Some(self.timeout))?;
            (&stream).write_all(request)?;
            (&stream).take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
            Ok(answer)
        };
        answered().map_err(|source| Error::NoAnswer { address: self.address.clone(), source })
    }

    /// Connects to the first of the addresses that listens.
    fn connect(&self) -> Result<TcpStream, Error> {
        let wrong = || Error::Address { address: self.address.clone() };
        let mut refused = None;
        for address in self.address.to_socket_addrs().map_err(|_| wrong())? {
            match TcpStream::connect_timeout(&address, self.timeout) {
                Ok(stream) => return Ok(stream),
                Err(error) => refused = Some(error),
            }
        }
        let source = refused.unwrap_or_else(|| ErrorKind::AddrNotAvailable.into());
        Err(Error::NoAnswer { address: self.address.clone(), source })
    }
}
