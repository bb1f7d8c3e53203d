//! One connection to one server: writes, and frames of replies. It does not know commands.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::reply::{Scan, confirmation, is_message, scan, without_messages};

/// The longest that one read or write waits before the other direction has its turn.
const TURN: Duration = Duration::from_millis(20);
/// The bytes for which a read has room, at least.
const READ_BYTES: usize = 16 * 1024;

/// Where a server listens.
#[derive(Clone, Debug)]
pub(crate) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// When the replies of a step are complete.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until<'a> {
    /// With the reply to the PING of this token.
    Token(&'a [u8]),
    /// With this many replies, without confirmations: inside MULTI a PING would be queued.
    Count(usize),
}

/// Why no more replies of a step are expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum End {
    #[default]
    Complete,
    Closed,
    Silent,
    Malformed,
}

/// The frames that one server sent in a step.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    bytes: Vec<u8>,
    /// The replies, in order, as places in `bytes`.
    replies: Vec<Range<usize>>,
    pub(crate) end: End,
}

impl Transcript {
    /// Forgets the frames, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.replies.clear();
        self.end = End::Complete;
    }

    /// The number of replies.
    pub(crate) fn count(&self) -> usize {
        self.replies.len()
    }

    /// The frame of the reply at this place.
    pub(crate) fn reply(&self, place: usize) -> Option<&[u8]> {
        self.replies.get(place).map(|range| &self.bytes[range.clone()])
    }

    /// Whether both are the same, byte for byte.
    pub(crate) fn equals(&self, other: &Self) -> bool {
        self.end == other.end && self.bytes == other.bytes
    }

    fn push(&mut self, frame: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(frame);
        self.replies.push(start..self.bytes.len());
    }
}

/// A connection.
pub(crate) struct Link {
    stream: Stream,
    /// Bytes that were read, up to `end`, from `begin` on not yet taken as frames. The rest is room.
    input: Vec<u8>,
    begin: usize,
    end: usize,
    is_closed: bool,
    /// Messages of subscriptions that no comparison has taken yet.
    pub(crate) messages: Vec<Vec<u8>>,
}

impl Link {
    /// Connects. `None` if the server refuses.
    pub(crate) fn open(address: &Address) -> Option<Self> {
        let stream = match address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address).ok()?;
                stream.set_nodelay(true).ok()?;
                stream.set_read_timeout(Some(TURN)).ok()?;
                stream.set_write_timeout(Some(TURN)).ok()?;
                Stream::Tcp(stream)
            }
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).ok()?;
                stream.set_read_timeout(Some(TURN)).ok()?;
                stream.set_write_timeout(Some(TURN)).ok()?;
                Stream::Unix(stream)
            }
        };
        Some(Self { stream, input: Vec::new(), begin: 0, end: 0, is_closed: false, messages: Vec::new() })
    }

    /// Writes these bytes, cut at these places. While the server takes none, its replies are read.
    pub(crate) fn send(&mut self, bytes: &[u8], cuts: &[u16], patience: Duration) {
        let place = |cut: &u16| (bytes.len() * usize::from(*cut)) >> 16;
        let mut start = 0;
        for end in cuts.iter().map(place).chain([bytes.len()]) {
            self.send_part(&bytes[start..end.max(start)], patience);
            start = end.max(start);
        }
    }

    fn send_part(&mut self, mut bytes: &[u8], patience: Duration) {
        let begin = Instant::now();
        while !bytes.is_empty() && !self.is_closed && begin.elapsed() < patience {
            let written = match &mut self.stream {
                Stream::Tcp(stream) => stream.write(bytes),
                Stream::Unix(stream) => stream.write(bytes),
            };
            match written {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if is_a_turn(error.kind()) => self.fill(),
                // The replies before the close can still be read.
                Err(_) => return,
            }
        }
    }

    /// Reads once. Nothing comes if the server is silent.
    fn fill(&mut self) {
        if self.begin == self.end || self.input.len() - self.end < READ_BYTES {
            self.input.copy_within(self.begin..self.end, 0);
            self.end -= self.begin;
            self.begin = 0;
        }
        if self.input.len() - self.end < READ_BYTES {
            self.input.resize(2 * self.input.len() + READ_BYTES, 0);
        }
        let room = &mut self.input[self.end..];
        let read = match &mut self.stream {
            Stream::Tcp(stream) => stream.read(room),
            Stream::Unix(stream) => stream.read(room),
        };
        let count = match read {
            Ok(0) => {
                self.is_closed = true;
                0
            }
            Ok(count) => count,
            Err(error) => {
                self.is_closed |= !is_a_turn(error.kind());
                0
            }
        };
        self.end += count;
    }

    /// Adds the replies of a step to `transcript` until they are complete, and keeps messages apart.
    pub(crate) fn collect(&mut self, until: Until<'_>, patience: Duration, transcript: &mut Transcript) {
        let begin = Instant::now();
        let mut counted = 0;
        loop {
            if matches!(until, Until::Count(count) if counted >= count) {
                return;
            }
            match scan(&self.input[..self.end], self.begin) {
                Scan::Whole(end) => {
                    let frame = &self.input[self.begin..end];
                    self.begin = end;
                    if is_message(frame) {
                        self.messages.push(frame.to_vec());
                        continue;
                    }
                    let frame = &*without_messages(frame, &mut self.messages);
                    transcript.push(frame);
                    counted += usize::from(confirmation(frame).is_none());
                    if matches!(until, Until::Token(token) if is_reply_to(frame, token)) {
                        return;
                    }
                }
                Scan::Malformed => {
                    transcript.push(&self.input[self.begin..self.end]);
                    transcript.end = End::Malformed;
                    return;
                }
                Scan::Partial if self.is_closed => {
                    transcript.end = End::Closed;
                    return;
                }
                Scan::Partial if begin.elapsed() > patience => {
                    transcript.end = End::Silent;
                    return;
                }
                Scan::Partial => self.fill(),
            }
        }
    }

    /// Reads until there are this many messages. False if patience ends first, or a reply comes.
    pub(crate) fn collect_messages(&mut self, count: usize, patience: Duration) -> bool {
        let begin = Instant::now();
        while self.messages.len() < count && begin.elapsed() < patience && !self.is_closed {
            match scan(&self.input[..self.end], self.begin) {
                Scan::Whole(end) if is_message(&self.input[self.begin..end]) => {
                    self.messages.push(self.input[self.begin..end].to_vec());
                    self.begin = end;
                }
                Scan::Whole(_) | Scan::Malformed => return false,
                Scan::Partial => self.fill(),
            }
        }
        self.messages.len() >= count
    }

    /// Sends nothing more, and waits until the server has closed its end: then the server has forgotten the connection.
    pub(crate) fn finish(mut self, patience: Duration) {
        let _closed_already = match &self.stream {
            Stream::Tcp(stream) => stream.shutdown(std::net::Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(std::net::Shutdown::Write),
        };
        let begin = Instant::now();
        while !self.is_closed && begin.elapsed() < patience {
            self.begin = self.end;
            self.fill();
        }
    }

    /// Whether the server has closed it.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }
}

fn is_a_turn(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Whether this is the reply to the PING of this token, with or without a subscription.
fn is_reply_to(frame: &[u8], token: &[u8]) -> bool {
    let Some(frame) = frame.strip_suffix(b"\r\n").and_then(|frame| frame.strip_suffix(token)) else { return false };
    frame.len() < 32 && (frame.starts_with(b"$") || frame.starts_with(b"*2\r\n$4\r\npong\r\n$"))
}
