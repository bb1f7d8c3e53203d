//! A blocking client: one connection that is kept, and one method for each request.
//!
//! It is for tests and benches. Any other HTTP client works as well. This client never sends a request twice: after an
//! error it drops the connection, and the next request connects again.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;
use thiserror::Error;

use crate::services::events::wire::Event;

/// How long the client waits for a connection and for each reply: longer than the server waits for its database.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Why a request has no good reply.
#[derive(Debug, Error)]
pub enum Error {
    /// There is no connection, or no reply came. It is unknown whether the server has executed the request.
    #[error("no answer from the server: {0}")]
    Disconnected(#[from] io::Error),
    /// The server refuses the request.
    #[error("the server answers {status}: {error}")]
    Refused {
        /// The status code.
        status: u16,
        /// The reason that the server gives.
        error: String,
    },
    /// The other end does not speak this protocol.
    #[error("the answer is not what was asked for: is it the right address?")]
    Malformed,
}

/// A reply of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The names of the headers in lower case, and their values.
    pub headers: Vec<(String, String)>,
    /// The bytes behind the head.
    pub body: Vec<u8>,
}

impl Response {
    /// The value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| &**value)
    }

    /// The body as JSON, or null if it is no JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// One connection to a server.
pub struct EventsClient {
    address: SocketAddr,
    /// None before the first request, and after an error until the next request.
    connection: Option<BufReader<TcpStream>>,
}

impl EventsClient {
    /// A client of the server at this address. It connects with the first request.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Self { address, connection: None }
    }

    /// Creates an event with a generated value.
    ///
    /// # Errors
    /// [`Error`]
    pub fn create(&mut self) -> Result<Event, Error> {
        let body = self.expect(201, "POST", "/events")?;
        event(&body).filter(|event| event.value.is_some()).ok_or(Error::Malformed)
    }

    /// Creates an event that waits for a worker. Returns its id.
    ///
    /// # Errors
    /// [`Error`]
    pub fn defer(&mut self) -> Result<u64, Error> {
        number(&self.expect(202, "POST", "/events/async")?, "id").ok_or(Error::Malformed)
    }

    /// The number of events.
    ///
    /// # Errors
    /// [`Error`]
    pub fn count(&mut self) -> Result<u64, Error> {
        number(&self.expect(200, "GET", "/events")?, "count").ok_or(Error::Malformed)
    }

    /// The event of this id, or `None` if there is none.
    ///
    /// # Errors
    /// [`Error`]
    pub fn find(&mut self, id: u64) -> Result<Option<Event>, Error> {
        match self.expect(200, "GET", &format!("/events/{id}")) {
            Err(Error::Refused { status: 404, .. }) => Ok(None),
            other => event(&other?).map(Some).ok_or(Error::Malformed),
        }
    }

    /// Checks that the store answers.
    ///
    /// # Errors
    /// [`Error`]. It is [`Error::Refused`] with the reason if the store does not answer.
    pub fn health(&mut self) -> Result<(), Error> {
        self.expect(200, "GET", "/health").map(drop)
    }

    fn expect(&mut self, status: u16, method: &str, path: &str) -> Result<Value, Error> {
        let response = self.request(method, path, b"")?;
        let body = response.json();
        if response.status == status {
            return Ok(body);
        }
        let error = body.get("error").and_then(Value::as_str).unwrap_or_default().to_owned();
        Err(Error::Refused { status: response.status, error })
    }

    /// Sends any request.
    ///
    /// # Errors
    /// [`Error::Disconnected`]
    pub fn request(&mut self, method: &str, path: &str, body: &[u8]) -> Result<Response, Error> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect()?,
        };
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n\r\n", self.address, body.len());
        connection.get_mut().write_all(&[head.as_bytes(), body].concat())?;
        let response = read(&mut connection, method == "HEAD")?;
        if response.header("connection") != Some("close") {
            self.connection = Some(connection);
        }
        Ok(response)
    }

    fn connect(&self) -> io::Result<BufReader<TcpStream>> {
        let stream = TcpStream::connect_timeout(&self.address, TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(BufReader::new(stream))
    }
}

fn read(connection: &mut BufReader<TcpStream>, headless: bool) -> io::Result<Response> {
    let nonsense = || io::Error::from(io::ErrorKind::InvalidData);
    let first = line(connection)?;
    let status = first.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(nonsense)?;
    let mut headers = Vec::new();
    loop {
        let line = line(connection)?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').ok_or_else(nonsense)?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut response = Response { status, headers, body: Vec::new() };
    let length = response.header("content-length").and_then(|length| length.parse().ok());
    if !headless {
        response.body = vec![0; length.unwrap_or(0)];
        connection.read_exact(&mut response.body)?;
    }
    Ok(response)
}

/// A line without its end.
fn line(connection: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    if connection.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    line.truncate(line.trim_end().len());
    Ok(line)
}

fn number(body: &Value, name: &str) -> Option<u64> {
    body.get(name)?.as_u64()
}

fn event(body: &Value) -> Option<Event> {
    let value = body.get("value")?;
    Some(Event { id: number(body, "id")?, value: value.as_str().map(str::to_owned) })
}
