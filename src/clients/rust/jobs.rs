//! A blocking client: one method for each request, one connection for each call.
//!
//! The client never sends a request twice. If no reply comes, it is unknown whether the server has executed the
//! request. The caller may repeat an Add, after which there may be two jobs. The caller may repeat an Ack, and the
//! second one answers that there is no job to acknowledge. If the reply to a Get is lost, its job comes back when the
//! lease ends.

use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use thiserror::Error;

use crate::clients::rust::stream::{Authorities, ConnectFault, ServerStream, TlsFault, UnknownHost, or_late};
use crate::limits::JOB_DATA_BYTES_MAX;
use crate::services::jobs::wire::{Fault, JobId, Malformed, Reply, Request, Verb, encode_auth};

/// How long the client waits for a connection and for each reply, unless [`JobsClient::set_timeout`] sets another time.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

/// Bytes that the client reads of a reply: more than an id, a length, two spaces and the longest data.
const ANSWER_BYTES_MAX: u64 = JOB_DATA_BYTES_MAX as u64 + 64;

/// An id that no job has: those of jobs have 20 digits.
const NO_JOB: &[u8] = b"0";

/// Why a request has no good reply, sorted by the action that the caller can take.
#[derive(Debug, Error)]
pub enum Error {
    /// The address is malformed: correct it.
    #[error("cannot use address {0}: it should look like HOST:PORT")]
    Address(String),
    /// No server has accepted the connection or replied in time: start the server, or wait longer. If the request was
    /// sent, it is unknown whether the server has executed it.
    #[error("no answer from {address} ({source}): is a server with --jobs running there?")]
    NoAnswer {
        /// The address of the server.
        address: String,
        /// Whether the request may have been sent. It was not if the server did not accept the connection.
        is_sent: bool,
        /// The error of the system.
        source: io::Error,
    },
    /// The name in the address is that of no host: correct it.
    #[error(transparent)]
    UnknownHost(UnknownHost),
    /// Client and server do not agree about TLS.
    #[error(transparent)]
    Tls(TlsFault),
    /// The protocol cannot express the request. It was not sent.
    #[error("this request cannot be made: {0}")]
    Unwritable(Fault),
    /// No line of the protocol can have this name or password. Nothing was sent.
    #[error("a user's name has no white space, and its password at most 255 bytes on one line")]
    Login,
    /// The server refuses this client, or its user has no permission for the request: name a user who has.
    #[error(
        "{0} denies permission: name a user with --user, and its password in SPINDLE_PASSWORD, or see \
         `spindle user list` on the server's host for its permissions"
    )]
    Denied(String),
    /// The server was too busy to check the password, and has not carried out the request: ask again.
    #[error("{0} is busy with other passwords, or slows down wrong ones: try again in some seconds")]
    Busy(String),
    /// The server has no users, and so it does not understand the line that names one: log in nowhere.
    #[error("{0} has no users: leave out --user")]
    NoUsers(String),
    /// The server has not carried out the request, for another reason than its user.
    #[error("{0} refuses this request: is its disk full, the queue full or the job damaged? its log says so")]
    Refused(String),
    /// The other end does not speak this protocol, or closed the connection within its reply.
    #[error("{address} does not speak this protocol ({malformed}): is it the right address?")]
    Malformed {
        /// The address that answered.
        address: String,
        /// The fault of the reply.
        malformed: Malformed,
    },
}

/// A job that the server has handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The id, which [`JobsClient::ack`] takes.
    pub id: JobId,
    /// The data of the job.
    pub data: Vec<u8>,
    /// The leases since it was added or kicked, this one included, if that was asked for.
    pub tries: Option<u32>,
}

/// A client of one server.
///
/// ```no_run
/// use spindle::clients::rust::jobs::{JobsClient, Error};
///
/// # fn main() -> Result<(), Error> {
/// let client = JobsClient::new("127.0.0.1:8080");
/// let id = client.add(b"mail", b"to ada")?;
/// while let Some(job) = client.get(b"mail")? {
///     println!("{}: {} bytes", job.id, job.data.len());
///     client.ack(b"mail", job.id)?;
/// }
/// assert!(!client.is_in(b"mail", id)?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct JobsClient {
    address: String,
    /// The line that names the user, if one is named.
    login: Vec<u8>,
    /// If the connections are encrypted.
    authorities: Option<Authorities>,
    /// How long connecting may take.
    connect_timeout: Duration,
    /// How long each wait for the server may take.
    timeout: Duration,
}

/// It shows no password.
impl std::fmt::Debug for JobsClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "JobsClient({})", self.address)
    }
}

impl JobsClient {
    /// A client of the server at `address`, which is HOST:PORT. It connects with each request.
    #[must_use]
    pub fn new(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            login: Vec::new(),
            authorities: None,
            connect_timeout: TIMEOUT_DEFAULT,
            timeout: TIMEOUT_DEFAULT,
        }
    }

    /// Connections from now on are encrypted, to a server whose certificate leads to one of these authorities and has
    /// the host of its address.
    pub fn encrypt(&mut self, authorities: &Authorities) {
        self.authorities = Some(authorities.clone());
    }

    /// Each request from now on is this user's. The password is encrypted only if the connections are.
    ///
    /// # Errors
    /// [`Error::Login`] if the protocol cannot express the name or the password.
    pub fn log_in(&mut self, user: &str, password: &str) -> Result<(), Error> {
        let mut login = Vec::new();
        if !encode_auth(user.as_bytes(), password.as_bytes(), &mut login) {
            return Err(Error::Login);
        }
        self.login = login;
        Ok(())
    }

    /// Sets how long connecting and each wait for the server may take from now on.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
        self.connect_timeout = timeout;
    }

    /// Sets how long connecting alone may take from now on. A server whose host accepts is there, however busy it is.
    pub fn set_connect_timeout(&mut self, timeout: Duration) {
        self.connect_timeout = timeout;
    }

    /// Adds a job at the end of a queue. The name of the queue has 1–255 bytes without white space, and the data has at
    /// most 1,000,000 bytes. The job is on disk when this returns.
    ///
    /// # Errors
    /// [`Error`]
    pub fn add(&self, queue: &[u8], data: &[u8]) -> Result<JobId, Error> {
        self.call(&Request::Add { queue, data }, |reply| match reply {
            Reply::Added(id) => Some(id),
            _ => None,
        })
    }

    /// Leases the first job of a queue that is not handed out, for the lease that the server is configured with. None:
    /// there is no such job.
    ///
    /// # Errors
    /// [`Error`]
    pub fn get(&self, queue: &[u8]) -> Result<Option<Job>, Error> {
        self.call(&Request::Get { queue }, job)
    }

    /// Adds a job as [`JobsClient::add`] does, with options: `-`, or `name=value` with commas between, see the protocol. With
    /// a `key` that a job of the queue has, nothing is added, and the id is that of this job.
    ///
    /// # Errors
    /// [`Error`]
    pub fn add_with(&self, queue: &[u8], options: &[u8], data: &[u8]) -> Result<JobId, Error> {
        self.call(&Request::AddX { queue, options, data }, |reply| match reply {
            Reply::Added(id) => Some(id),
            _ => None,
        })
    }

    /// Leases the first job of the first of these queues that has one, as [`JobsClient::get`] does, and waits for one for so
    /// many seconds at most. No queue may have a comma in its name.
    ///
    /// # Errors
    /// [`Error`]
    pub fn wait(&self, queues: &[&[u8]], seconds: u32) -> Result<Option<Job>, Error> {
        let mut patient = self.clone();
        patient.timeout = self.timeout.saturating_add(Duration::from_secs(u64::from(seconds)));
        let request = Request::Wait { queues: &queues.join(&b","[..]), seconds, with_tries: false };
        patient.call(&request, job)
    }

    /// As [`JobsClient::wait`] for a job of one queue, with its tries, for as long as `over` is not readable. When `over` is
    /// readable, the client drops the connection, and a job that the server sends on it goes back to its queue.
    ///
    /// # Errors
    /// [`Error`]
    pub fn wait_unless(&self, queue: &[u8], seconds: u32, over: BorrowedFd<'_>) -> Result<Option<Job>, Error> {
        let mut patient = self.clone();
        patient.timeout = self.timeout.saturating_add(Duration::from_secs(u64::from(seconds)));
        let request = Request::Wait { queues: queue, seconds, with_tries: true };
        let answer = patient.exchange_unless(&patient.encoded(&request)?, Some(over))?;
        answer.map_or(Ok(None), |answer| self.read(&request, &answer, job))
    }

    /// Gives a job back, which has failed for this reason, on one line of up to 256 bytes. It is handed out again after
    /// `delay` milliseconds, or as its backoff says, or is dead after its last try. False: the job is not handed out.
    ///
    /// # Errors
    /// [`Error`]
    pub fn nack(&self, queue: &[u8], id: JobId, delay: Option<u32>, reason: &[u8]) -> Result<bool, Error> {
        let id = id.to_string();
        self.call(&Request::Nack { queue, id: id.as_bytes(), delay, reason }, |reply| match reply {
            Reply::Done(done) => Some(done),
            _ => None,
        })
    }

    /// Has the lease of a job end so many seconds from now. False: the job is not handed out.
    ///
    /// # Errors
    /// [`Error`]
    pub fn touch(&self, queue: &[u8], id: JobId, seconds: u32) -> Result<bool, Error> {
        let id = id.to_string();
        self.call(&Request::Touch { queue, id: id.as_bytes(), seconds }, |reply| match reply {
            Reply::Done(done) => Some(done),
            _ => None,
        })
    }

    /// Marks a job as done. It is gone for good when this returns. False: the job is not handed out, or not in the
    /// queue. The server does not check which client holds the job: if a job has come back and was handed out again,
    /// its first client can still acknowledge it.
    ///
    /// # Errors
    /// [`Error`]
    pub fn ack(&self, queue: &[u8], id: JobId) -> Result<bool, Error> {
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
    pub fn is_in(&self, queue: &[u8], id: JobId) -> Result<bool, Error> {
        let id = id.to_string();
        self.call(&Request::In { queue, id: id.as_bytes() }, |reply| match reply {
            Reply::In(there) => Some(there),
            _ => None,
        })
    }

    /// Sends a request. `read` converts the reply, and returns `None` for a reply to another kind of request.
    fn call<T>(&self, request: &Request<'_>, read: impl FnOnce(Reply<'_>) -> Option<T>) -> Result<T, Error> {
        let answer = self.exchange(&self.encoded(request)?)?;
        self.read(request, &answer, read)
    }

    /// The bytes of a request, behind the line of the user.
    fn encoded(&self, request: &Request<'_>) -> Result<Vec<u8>, Error> {
        request.check().map_err(Error::Unwritable)?;
        let mut bytes = self.login.clone();
        request.encode(&mut bytes);
        Ok(bytes)
    }

    /// Reads the answer to a request.
    fn read<T>(
        &self,
        request: &Request<'_>,
        answer: &[u8],
        read: impl FnOnce(Reply<'_>) -> Option<T>,
    ) -> Result<T, Error> {
        let address = || self.address.clone();
        let decoded = match request {
            Request::Wait { with_tries: true, .. } => Reply::decode_with_tries(answer),
            _ => Reply::decode(request.verb(), answer),
        };
        match decoded {
            Ok(Reply::Error) => Err(self.refusal(request)),
            Ok(Reply::Busy) => Err(Error::Busy(address())),
            Ok(reply) => {
                read(reply).ok_or_else(|| Error::Malformed { address: address(), malformed: Malformed::Words })
            }
            Err(malformed) => Err(Error::Malformed { address: address(), malformed }),
        }
    }

    /// Why a well-formed request was answered with ERROR. The protocol has no other word, so the client asks for a job
    /// that cannot be. An ACK of this job, or an IN, needs the same permission and changes nothing. A user who has the
    /// permission gets NO. The first question names no user, so that it cannot be slowed down.
    fn refusal(&self, refused: &Request<'_>) -> Error {
        let (queue, id) = (refused.queue(), NO_JOB);
        let question = match refused.verb() {
            Verb::In => Request::In { queue, id },
            Verb::Add | Verb::Get | Verb::Ack | Verb::AddX | Verb::Wait | Verb::Nack | Verb::Touch => {
                Request::Ack { queue, id }
            }
        };
        let address = self.address.clone();
        match (self.understands(&[], &question), self.login.is_empty()) {
            (None, _) | (Some(true), true) => Error::Refused(address),
            (Some(true), false) => Error::NoUsers(address),
            (Some(false), true) => Error::Denied(address),
            // A wrong password that comes again is no new guess. A server that takes its time for a user alone has been
            // given one.
            (Some(false), false) => match self.understands(&self.login, &question) {
                Some(true) => Error::Refused(address),
                Some(false) | None => Error::Denied(address),
            },
        }
    }

    /// Whether the reply to a request of this user is another one than ERROR. None: there is no reply, or the user was not
    /// checked.
    fn understands(&self, login: &[u8], request: &Request<'_>) -> Option<bool> {
        let mut bytes = login.to_vec();
        request.encode(&mut bytes);
        let answer = self.exchange(&bytes).ok()?;
        match Reply::decode(request.verb(), &answer).ok()? {
            Reply::Busy => None,
            reply => Some(reply != Reply::Error),
        }
    }

    /// Sends these bytes over a connection of their own, and reads the whole reply.
    fn exchange(&self, request: &[u8]) -> Result<Vec<u8>, Error> {
        Ok(self.exchange_unless(request, None)?.unwrap_or_default())
    }

    /// As [`JobsClient::exchange`]. None: `over` is readable before the reply.
    fn exchange_unless(&self, request: &[u8], over: Option<BorrowedFd<'_>>) -> Result<Option<Vec<u8>>, Error> {
        let address = || self.address.clone();
        let mut stream = self.connect()?;
        let answered = || {
            stream.write_all(request)?;
            if let Some(over) = over
                && !stream.wait_unless(over, self.timeout)?
            {
                return Ok(None);
            }
            let mut answer = Vec::new();
            stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
            Ok(Some(answer))
        };
        let answer = answered().map_err(|source| {
            let source = or_late(source, self.timeout);
            Error::NoAnswer { address: address(), is_sent: true, source }
        })?;
        match answer.as_ref().and_then(|answer| TlsFault::of_reply(answer, &self.address)) {
            Some(fault) => Err(Error::Tls(fault)),
            None => Ok(answer),
        }
    }

    fn connect(&self) -> Result<ServerStream, Error> {
        let (address, authorities) = (self.address.clone(), self.authorities.as_ref());
        let connected = ServerStream::connect(&self.address, self.connect_timeout, self.timeout, authorities);
        connected.map_err(|fault| match fault {
            ConnectFault::Address(_) => Error::Address(address),
            ConnectFault::Unknown(unknown) => Error::UnknownHost(unknown),
            ConnectFault::NoAnswer(source) => Error::NoAnswer { address, is_sent: false, source },
            ConnectFault::Tls(fault) => Error::Tls(fault),
        })
    }
}

fn job(reply: Reply<'_>) -> Option<Option<Job>> {
    match reply {
        Reply::Job { id, data, tries } => Some(Some(Job { id, data: data.to_vec(), tries })),
        Reply::Nothing => Some(None),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// The reply to an ADD and to the questions behind it: none is a connection that is closed without one. Returns the
    /// client's result, and the last lines that the client has sent.
    fn added(user: Option<&str>, replies: &'static [&str]) -> (Error, Vec<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = JobsClient::new(&listener.local_addr().unwrap().to_string());
        user.iter().for_each(|user| client.log_in(user, "heron").unwrap());
        let lines = if user.is_some() { 2 } else { 1 };
        let server = thread::spawn(move || {
            let answer = |(number, reply): (usize, &&str)| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut input = BufReader::new(stream.try_clone().unwrap());
                let mut last = String::new();
                let lines = if number == 1 { 1 } else { lines };
                for _ in 0..lines {
                    last.clear();
                    input.read_line(&mut last).unwrap();
                }
                stream.write_all(reply.as_bytes()).unwrap();
                last
            };
            replies.iter().enumerate().map(answer).collect()
        });
        let error = client.add(b"mail", b"to ada\n").unwrap_err();
        (error, server.join().unwrap())
    }

    #[test]
    fn an_error_is_a_denial_only_if_a_question_that_needs_the_same_permission_is_denied_too() {
        let is_denied = |user, replies| match added(user, replies).0 {
            Error::Denied { .. } => true,
            Error::Refused { .. } => false,
            other => panic!("{other}"),
        };
        assert!(is_denied(Some("ada"), &["ERROR", "ERROR", "ERROR"]));
        assert!(is_denied(Some("ada"), &["ERROR", "ERROR", ""]), "slowed down");
        assert!(is_denied(Some("ada"), &["ERROR", "ERROR", "BUSY"]), "slowed down");
        assert!(!is_denied(Some("ada"), &["ERROR", "ERROR", "NO"]));
        assert!(!is_denied(Some("ada"), &["ERROR", ""]));
        assert!(is_denied(None, &["ERROR", "ERROR"]));
        assert!(!is_denied(None, &["ERROR", "NO"]));
        assert!(matches!(added(Some("ada"), &["BUSY"]).0, Error::Busy { .. }), "and it asks nothing more");
        let (no_users, sent) = added(Some("ada"), &["ERROR", "NO"]);
        assert!(matches!(no_users, Error::NoUsers { .. }));
        assert_eq!(sent.last().unwrap(), "ACK mail 0\n");
    }
}
