//! The bytes of a connection: lines, bodies, and what is thrown away.
//!
//! ```text
//! Line ─► a line of at most 224 bytes ─► a command ─► Line
//!  │                                └─► put ─► Body: it and two bytes ─► Line
//!  │                                       └─► too long, or refused ─► Skip ─► the answer
//!  └─► longer ─► Rest: to its end ─► BAD_FORMAT
//! ```
//! A line ends with the first CR of 224 bytes if an LF is behind it. So a line with another CR in it has no end before those
//! 224 bytes, as in beanstalkd.
//!
//! This module reads no sockets.

use super::command::{Command, LineFault, PutLine, Verb, read_line};

/// The longest line with its end, and the bytes of a portion in which an end is looked for.
const LINE_BYTES_MAX: usize = 224;
/// Behind a body.
const END: &[u8] = b"\r\n";

/// The bytes of a connection that are not read yet.
#[derive(Debug, Default)]
pub(super) struct Input {
    /// The unread ones begin at `from`.
    pub(super) bytes: Vec<u8>,
    from: usize,
    state: InputState,
    /// Bodies that have begun.
    bodies: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum InputState {
    #[default]
    Line,
    Rest,
    Body(PutLine),
    /// So many bytes are thrown away, for this reason.
    Skip(u64, InputFault),
}

/// What the bytes say.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said<'i> {
    Command(Verb, Command<'i>),
    Put(PutLine, &'i [u8]),
    Fault(InputFault),
    /// More bytes have to come: at least so many.
    Short(usize),
}

/// Why there is no command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputFault {
    Line(LineFault),
    /// Of a put with something behind its numbers.
    PutLine,
    /// Of a put.
    TooBig,
    /// Of a put.
    NoEnd,
    /// Of a put: the client may not put.
    Refused,
}

impl Input {
    /// The unread bytes.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.from
    }

    /// The number of the body that has begun and is not whole, and the bytes that it needs altogether.
    pub(super) fn body(&self) -> Option<(u64, usize)> {
        if let InputState::Body(put) = self.state { Some((self.bodies, put.bytes as usize + END.len())) } else { None }
    }

    /// Gives the memory of read bytes back, and has room for so many more.
    pub(super) fn make_room(&mut self, more: usize) {
        self.bytes.drain(..self.from);
        self.from = 0;
        if self.bytes.is_empty() && self.bytes.capacity() > more {
            self.bytes = Vec::new();
        }
        self.bytes.reserve_exact(more.saturating_sub(self.bytes.capacity() - self.bytes.len()));
    }

    /// The next command. Bodies have at most so many bytes. None: no body is wanted.
    pub(super) fn next(&mut self, body_bytes_max: Option<u32>) -> Said<'_> {
        loop {
            let unread = self.bytes.get(self.from..).unwrap_or_default();
            let portion = unread.get(..LINE_BYTES_MAX).unwrap_or(unread);
            match self.state {
                InputState::Skip(left, fault) => {
                    let skipped = left.min(unread.len() as u64);
                    self.from += usize::try_from(skipped).unwrap_or(usize::MAX);
                    self.state = InputState::Skip(left - skipped, fault);
                    if left > skipped {
                        return Said::Short(1);
                    }
                    self.state = InputState::Line;
                    return Said::Fault(fault);
                }
                InputState::Body(put) => {
                    let whole = put.bytes as usize + END.len();
                    let (from, missing) = (self.from, whole.saturating_sub(unread.len()));
                    if missing > 0 {
                        return Said::Short(missing);
                    }
                    self.from += whole;
                    self.state = InputState::Line;
                    let whole = self.bytes.get(from..from + whole).unwrap_or_default();
                    return match whole.strip_suffix(END) {
                        Some(body) => Said::Put(put, body),
                        None => Said::Fault(InputFault::NoEnd),
                    };
                }
                InputState::Line | InputState::Rest => {}
            }
            let Some(length) = line_length(portion) else {
                if portion.len() < LINE_BYTES_MAX {
                    return Said::Short(1);
                }
                self.from += LINE_BYTES_MAX;
                self.state = InputState::Rest;
                continue;
            };
            let from = self.from;
            self.from += length + END.len();
            if self.state == InputState::Rest {
                self.state = InputState::Line;
                return Said::Fault(InputFault::Line(LineFault::Malformed));
            }
            let line = self.bytes.get(from..from + length).unwrap_or_default();
            match read_line(line) {
                Ok((_, Command::Put(put))) if body_bytes_max.is_some_and(|most| put.bytes > most) => {
                    self.state = InputState::Skip(u64::from(put.bytes) + END.len() as u64, InputFault::TooBig);
                }
                Ok((_, Command::Put(put))) if put.has_more => {
                    return Said::Fault(InputFault::PutLine);
                }
                Ok((_, Command::Put(put))) if body_bytes_max.is_none() => {
                    self.state = InputState::Skip(u64::from(put.bytes) + END.len() as u64, InputFault::Refused);
                }
                Ok((_, Command::Put(put))) => {
                    self.state = InputState::Body(put);
                    self.bodies += 1;
                }
                Ok((verb, command)) => return Said::Command(verb, command),
                Err(fault) => return Said::Fault(InputFault::Line(fault)),
            }
        }
    }
}

/// The bytes of the line in this portion, if its end is there.
fn line_length(portion: &[u8]) -> Option<usize> {
    let looked_at = portion.get(..portion.len().checked_sub(1)?)?;
    let length = looked_at.iter().position(|byte| *byte == b'\r')?;
    (portion.get(length + 1) == Some(&b'\n')).then_some(length)
}
