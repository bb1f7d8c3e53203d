//! A client that speaks RESP byte by byte, and sees each byte of the replies.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use spindle::resp3::reply_length;

/// How long a due reply may take.
const PATIENCE: Duration = Duration::from_secs(30);

trait Stream: Read + Write {}

impl<S: Read + Write> Stream for S {}

/// A connection.
pub(crate) struct RespClient {
    stream: Box<dyn Stream + Send>,
    /// Bytes behind the last reply.
    input: Vec<u8>,
}

/// A command as an array of bulk strings.
pub(crate) fn command(arguments: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        bytes.extend(format!("${}\r\n", argument.len()).bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

impl RespClient {
    /// Connects to an address of TCP, or to a Unix socket as the server prints it.
    pub(crate) fn connect(address: &str) -> Self {
        Self::try_to_connect(address).unwrap()
    }

    /// As [`RespClient::connect`], to a server that may end.
    pub(crate) fn try_to_connect(address: &str) -> io::Result<Self> {
        let stream: Box<dyn Stream + Send> = if let Some(path) = address.strip_prefix("ipc://") {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            Box::new(stream)
        } else {
            let stream = TcpStream::connect(address)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        };
        Ok(Self { stream, input: Vec::new() })
    }

    /// Sends these bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The bytes of the next reply.
    pub(crate) fn reply(&mut self) -> Vec<u8> {
        self.next().unwrap()
    }

    /// The reply to a command.
    pub(crate) fn call(&mut self, arguments: &[&[u8]]) -> Vec<u8> {
        self.ask(arguments).unwrap()
    }

    /// As [`RespClient::call`], of a server that may end.
    pub(crate) fn ask(&mut self, arguments: &[&[u8]]) -> io::Result<Vec<u8>> {
        self.stream.write_all(&command(arguments))?;
        self.next()
    }

    fn next(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(length) = reply_length(&self.input) {
                return Ok(self.input.drain(..length).collect());
            }
            if self.read()? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// The reply to the words of a line, as text without its end.
    pub(crate) fn say(&mut self, line: &str) -> String {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        String::from_utf8(self.call(&words)).unwrap().trim_end().to_owned()
    }

    /// All that comes until the server closes the connection.
    pub(crate) fn rest(mut self) -> String {
        while self.read().unwrap() > 0 {}
        String::from_utf8(self.input).unwrap()
    }

    /// A reset is an end too: the server has not read all.
    fn read(&mut self) -> io::Result<usize> {
        let mut bytes = vec![0; 64 << 10];
        let count = match self.stream.read(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
            read => read?,
        };
        self.input.extend_from_slice(&bytes[..count]);
        Ok(count)
    }
}
