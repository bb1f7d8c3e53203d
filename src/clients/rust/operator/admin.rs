//! A blocking client of the operator's service: one connection for each request.

use std::fmt;
use std::io::{self, Read, Write};
use std::time::Duration;

use thiserror::Error;

use crate::clients::rust::stream::{Authorities, ConnectFault, ServerStream, TlsFault, UnknownHost, or_late};
use crate::net::http::authorization;
use crate::services::operator::admin::queues::CHANGE;

/// Bytes of the longest reply that the client reads: STATS of as many tables as a server has at most.
const REPLY_BYTES_MAX: u64 = 64 << 20;
/// The status of a reply that has what was asked for.
const OK: &str = "200";

/// Why there is no document.
#[derive(Debug, Error)]
pub enum Error {
    /// No server has accepted the connection, or it did not reply in time.
    #[error("no answer from {address} ({source}): is a server with --admin running there?")]
    NoAnswer {
        /// The address of the server.
        address: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The name in the address is that of no host.
    #[error(transparent)]
    UnknownHost(UnknownHost),
    /// Client and server do not agree about TLS.
    #[error(transparent)]
    Tls(TlsFault),
    /// The server refuses the request.
    #[error("{address} answers {status}: {reason}")]
    Refused {
        /// The address of the server.
        address: String,
        /// The status code.
        status: String,
        /// The body of the reply.
        reason: String,
    },
    /// The other end does not speak HTTP.
    #[error("{address} does not answer as --admin does: is it the right address?")]
    Malformed {
        /// The address that answered.
        address: String,
    },
}

/// A client of one server.
#[derive(Clone)]
pub struct AdminClient {
    address: String,
    /// How long connecting may take.
    connect_timeout: Duration,
    /// How long each wait for the server may take.
    timeout: Duration,
    /// If the connections are encrypted.
    authorities: Option<Authorities>,
    /// The header that names the user, and its line's end. Empty: no user is named.
    authorization: String,
}

/// It shows no password.
impl fmt::Debug for AdminClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AdminClient({})", self.address)
    }
}

impl AdminClient {
    /// A client of the server at `address`, which is HOST:PORT. Connecting and each wait may take this long.
    #[must_use]
    pub fn new(address: &str, connect_timeout: Duration, timeout: Duration) -> Self {
        Self { address: address.to_owned(), connect_timeout, timeout, authorities: None, authorization: String::new() }
    }

    /// The same with encrypted connections, to a server whose certificate leads to one of these authorities and has the
    /// host of its address.
    #[must_use]
    pub fn encrypted(self, authorities: &Authorities) -> Self {
        Self { authorities: Some(authorities.clone()), ..self }
    }

    /// The same for a server that asks for a user. The password is encrypted only if the connections are.
    #[must_use]
    pub fn with_user(self, name: &str, password: &str) -> Self {
        Self { authorization: format!("Authorization: {}\r\n", authorization(name, password)), ..self }
    }

    /// The address of the server.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The body of a page, such as `/stats`.
    ///
    /// # Errors
    /// [`Error`] if the server does not answer, or refuses.
    pub fn get(&self, path: &str) -> Result<String, Error> {
        self.ask("GET", path, "")
    }

    /// Has the server change something, as `/queues/kick`. Returns the body of its reply.
    ///
    /// # Errors
    /// [`Error`] if the server does not answer, or refuses.
    pub fn change(&self, path: &str) -> Result<String, Error> {
        self.ask("POST", path, &format!("Content-Length: 0\r\n{CHANGE}: yes\r\n"))
    }

    /// Sets how long each wait for the server may take from now on.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    fn ask(&self, method: &str, path: &str, headers: &str) -> Result<String, Error> {
        let reply = self.exchange(method, path, headers)?;
        if let Some(fault) = TlsFault::of_reply(&reply, &self.address) {
            return Err(Error::Tls(fault));
        }
        let malformed = || Error::Malformed { address: self.address.clone() };
        let text = String::from_utf8(reply).map_err(|_| malformed())?;
        let (head, body) = text.split_once("\r\n\r\n").ok_or_else(malformed)?;
        let status = head.strip_prefix("HTTP/1.1 ").and_then(|line| line.split([' ', '\r']).next());
        match status.ok_or_else(malformed)? {
            OK => Ok(body.to_owned()),
            status => {
                let (address, status) = (self.address.clone(), status.to_owned());
                Err(Error::Refused { address, status, reason: body.to_owned() })
            }
        }
    }

    fn exchange(&self, method: &str, path: &str, headers: &str) -> Result<Vec<u8>, Error> {
        let Self { address, authorities, authorization, .. } = self;
        let no_answer = |source| Error::NoAnswer { address: address.clone(), source: or_late(source, self.timeout) };
        let connected = ServerStream::connect(address, self.connect_timeout, self.timeout, authorities.as_ref());
        let mut stream = connected.map_err(|fault| match fault {
            ConnectFault::Unknown(unknown) => Error::UnknownHost(unknown),
            ConnectFault::Address(source) | ConnectFault::NoAnswer(source) => no_answer(source),
            ConnectFault::Tls(fault) => Error::Tls(fault),
        })?;
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}{authorization}\r\n");
        let mut reply = Vec::new();
        stream.write_all(head.as_bytes()).map_err(no_answer)?;
        stream.take(REPLY_BYTES_MAX).read_to_end(&mut reply).map_err(no_answer)?;
        Ok(reply)
    }
}
