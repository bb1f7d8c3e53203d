//! ZMTP as a client writes and reads it, from RFC 23 and 37 alone, so that a fault in the server's code is not shared.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use super::connections::PATIENCE;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
const GREETING_BYTES: usize = 64;

pub(crate) type Frames = Vec<Vec<u8>>;

pub(crate) fn greeting() -> Vec<u8> {
    greeting_of(b"NULL")
}

fn greeting_of(mechanism: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; GREETING_BYTES];
    bytes[..12].copy_from_slice(b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01");
    bytes[12..12 + mechanism.len()].copy_from_slice(mechanism);
    bytes
}

/// Greeting and HELLO of a client that says who it is by PLAIN.
pub(crate) fn plain(name: &str, password: &str) -> Vec<u8> {
    let field = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    [greeting_of(b"PLAIN"), command(b"HELLO", &[field(name), field(password)].concat())].concat()
}

fn push(out: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(length) => out.extend([flags, length]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend((body.len() as u64).to_be_bytes());
        }
    }
    out.extend(body);
}

/// A message.
pub(crate) fn message(frames: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, frame) in frames.iter().enumerate() {
        push(&mut out, if number + 1 < frames.len() { MORE } else { 0 }, frame);
    }
    out
}

/// A command.
pub(crate) fn command(name: &[u8], data: &[u8]) -> Vec<u8> {
    let mut body = vec![u8::try_from(name.len()).unwrap()];
    body.extend(name);
    body.extend(data);
    let mut out = Vec::new();
    push(&mut out, COMMAND, &body);
    out
}

/// READY of a socket of this type, with an identity of its own if one is given.
pub(crate) fn ready(socket_type: &[u8], identity: Option<&[u8]>) -> Vec<u8> {
    command(b"READY", &properties(socket_type, identity))
}

fn properties(socket_type: &[u8], identity: Option<&[u8]>) -> Vec<u8> {
    let mut data = Vec::new();
    let mut property = |name: &[u8], value: &[u8]| {
        data.push(u8::try_from(name.len()).unwrap());
        data.extend(name);
        data.extend(u32::try_from(value.len()).unwrap().to_be_bytes());
        data.extend(value);
    };
    property(b"Socket-Type", socket_type);
    identity.into_iter().for_each(|identity| property(b"Identity", identity));
    data
}

/// Greeting and READY.
pub(crate) fn hello(socket_type: &[u8]) -> Vec<u8> {
    [greeting(), ready(socket_type, None)].concat()
}

/// A DEALER or a SUB on a plain socket. A missing answer is an error.
pub(crate) struct Client {
    stream: TcpStream,
    bytes: Vec<u8>,
    at: usize,
}

impl Client {
    /// Connects and shakes hands.
    pub(crate) fn meet(address: &str, socket_type: &[u8]) -> io::Result<Self> {
        Self::greeted(TcpStream::connect(address)?, &hello(socket_type))?.shaken(b"READY")
    }

    /// Connects, and logs in by PLAIN. `ResourceBusy`: the server says that it has no time to check the password now.
    pub(crate) fn log_in(address: &str, socket_type: &[u8], name: &str, password: &str) -> io::Result<Self> {
        let mut client = Self::greeted(TcpStream::connect(address)?, &plain(name, password))?.shaken(b"WELCOME")?;
        client.send(&command(b"INITIATE", &properties(socket_type, None)))?;
        client.shaken(b"READY")
    }

    /// Sends a greeting with what comes after it, and receives the server's greeting.
    fn greeted(stream: TcpStream, hello: &[u8]) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut client = Self { stream, bytes: Vec::new(), at: 0 };
        client.send(hello)?;
        while client.bytes.len() < GREETING_BYTES {
            client.read()?;
        }
        client.at = GREETING_BYTES;
        Ok(client)
    }

    /// Expects this command of the handshake.
    fn shaken(mut self, name: &[u8]) -> io::Result<Self> {
        let (flags, body) = self.part()?;
        let is = |name: &[u8]| flags & COMMAND != 0 && body.get(1..).is_some_and(|body| body.starts_with(name));
        match () {
            () if is(name) => Ok(self),
            () if is(b"ERROR\x03300") => Err(io::Error::new(ErrorKind::ResourceBusy, "the server is busy")),
            () => Err(io::Error::new(ErrorKind::InvalidData, "the handshake was refused")),
        }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// The next message.
    pub(crate) fn receive(&mut self) -> io::Result<Frames> {
        let mut frames = Vec::new();
        loop {
            let (flags, body) = self.part()?;
            if flags & COMMAND != 0 {
                self.answer_ping(&body)?;
                continue;
            }
            frames.push(body);
            if flags & MORE == 0 {
                return Ok(frames);
            }
        }
    }

    /// The context of the next PONG.
    pub(crate) fn receive_pong(&mut self) -> io::Result<Vec<u8>> {
        loop {
            let (flags, body) = self.part()?;
            match body.strip_prefix(b"\x04PONG") {
                Some(context) if flags & COMMAND != 0 => return Ok(context.to_vec()),
                _ => {}
            }
        }
    }

    fn answer_ping(&mut self, body: &[u8]) -> io::Result<()> {
        match body.strip_prefix(b"\x04PING").and_then(|data| data.get(2..)) {
            Some(context) => self.send(&command(b"PONG", context)),
            None => Ok(()),
        }
    }

    /// Flags and body of the next frame.
    fn part(&mut self) -> io::Result<(u8, Vec<u8>)> {
        loop {
            let bytes = &self.bytes[self.at..];
            let head = match bytes {
                [flags, rest @ ..] if flags & LONG != 0 && rest.len() >= 8 => {
                    let length = u64::from_be_bytes(rest[..8].try_into().unwrap());
                    Some((*flags, 9, usize::try_from(length).unwrap()))
                }
                [flags, length, ..] if flags & LONG == 0 => Some((*flags, 2, usize::from(*length))),
                _ => None,
            };
            match head {
                Some((flags, start, length)) if bytes.len() - start >= length => {
                    let body = bytes[start..start + length].to_vec();
                    self.at += start + length;
                    return Ok((flags, body));
                }
                _ => self.read()?,
            }
        }
    }

    fn read(&mut self) -> io::Result<()> {
        self.bytes.drain(..self.at);
        self.at = 0;
        let mut some = [0; 16 << 10];
        match self.stream.read(&mut some)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            count => {
                self.bytes.extend_from_slice(&some[..count]);
                Ok(())
            }
        }
    }
}
