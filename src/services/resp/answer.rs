//! What a command comes to: a reply, a refusal, or that it must be tried again.
//!
//! A reply may borrow from the batch in which it was made, so it is encoded before the next command is carried out.

use std::borrow::Cow;

use crate::resp3::{ReplyWriter, RespVersion};
use crate::tables::Refusal;

/// A reply. Its form depends on the version that the connection speaks.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reply<'b> {
    /// A short text, such as `OK`.
    Simple(&'static str),
    /// A number.
    Integer(i64),
    /// A string of any bytes.
    Bulk(Cow<'b, [u8]>),
    /// No value.
    Null,
    /// No value, where an array might have been.
    NullArray,
    /// A text for people.
    Text(String),
    /// Values of several keys, each of which may have none.
    Values {
        /// How many there are altogether, if these are the first of them.
        total: Option<usize>,
        /// Those that have come until now.
        values: Vec<Option<&'b [u8]>>,
        /// Whether no others follow.
        is_last: bool,
    },
    /// Replies that are one, in order.
    Array(Vec<Reply<'b>>),
    /// Replies that are one, without order.
    Set(Vec<Reply<'b>>),
    /// Pairs of replies that are one: each key, then its value.
    Map(Vec<Reply<'b>>),
    /// Replies that are one, and that are no reply to a command where the version says so.
    Push(Vec<Reply<'b>>),
    /// Several replies, one after the other.
    Frames {
        /// Those that have come until now.
        replies: Vec<Reply<'b>>,
        /// How many names of the command they answer, if others follow.
        portion: Option<usize>,
    },
    /// A reply in the version that the client has just chosen.
    In(RespVersion, Box<Reply<'b>>),
    /// A command that asks for no reply.
    Nothing,
}

pub(super) const OK: Reply<'static> = Reply::Simple("OK");

/// What a command comes to.
pub(super) type Answer<'b> = Result<Reply<'b>, Failure>;

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The command is refused, with a code in capitals and what is wrong. It has changed nothing.
    Refused(Cow<'static, [u8]>),
    /// The table does not exist. Whoever may write makes it, and the command is tried again.
    NoTable,
    /// The tables have no room for it at the moment.
    Busy,
    /// A portion of it was carried out. Others have their turns first.
    Unfinished,
    /// It has asked the publisher for something. It comes again when that is there.
    Waits,
    /// The client claims to be a user. The command comes again when that is decided.
    Claims,
}

pub(super) const SYNTAX: Failure = Failure::Refused(Cow::Borrowed(b"ERR syntax error"));
pub(super) const NOT_AN_INTEGER: Failure =
    Failure::Refused(Cow::Borrowed(b"ERR value is not an integer or out of range"));
pub(super) const TOO_LONG: Failure =
    Failure::Refused(Cow::Borrowed(b"ERR string exceeds maximum allowed size (proto-max-bulk-len)"));
pub(super) const OUT_OF_MEMORY: Failure =
    Failure::Refused(Cow::Borrowed(b"OOM command not allowed when used memory > 'maxmemory'."));

/// A refusal with these words.
pub(super) fn refused(words: impl Into<Vec<u8>>) -> Failure {
    Failure::Refused(Cow::Owned(words.into()))
}

/// A refusal with words in which a client's bytes stand.
pub(super) fn refused_with(before: &str, bytes: &[u8], behind: &str) -> Failure {
    refused([before.as_bytes(), bytes, behind.as_bytes()].concat())
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::TableNotFound => Self::NoTable,
            Refusal::Busy => Self::Busy,
            Refusal::Unfinished => Self::Unfinished,
            Refusal::OutOfMemory => OUT_OF_MEMORY,
            Refusal::TooManyTables => refused("ERR there are as many tables as there may be: raise --max-tables"),
            Refusal::OutOfDisk => {
                refused("MISCONF the disk of the durable tables is full: delete something, or raise --max-disk")
            }
            Refusal::DiskFailed => {
                refused("MISCONF the disk of the durable tables has failed: look at the server's log")
            }
            Refusal::KeyNotFound => refused("ERR no such key"),
            Refusal::NotANumber => NOT_AN_INTEGER,
            Refusal::OutOfRange => refused("ERR increment or decrement would overflow"),
            Refusal::ValueTooLong => TOO_LONG,
            Refusal::TableExists
            | Refusal::VersionMismatch { .. }
            | Refusal::VersionRefused
            | Refusal::BadCursor
            | Refusal::FeedOff
            | Refusal::Compacted { .. } => refused("ERR the tables refuse this"),
        }
    }
}

impl From<bool> for Reply<'_> {
    fn from(is_true: bool) -> Self {
        Self::Integer(is_true.into())
    }
}

impl<'b> From<Option<&'b [u8]>> for Reply<'b> {
    fn from(value: Option<&'b [u8]>) -> Self {
        value.map_or(Self::Null, Self::bulk)
    }
}

impl<'b> Reply<'b> {
    /// A string of these bytes.
    pub(super) fn bulk(bytes: impl Into<Cow<'b, [u8]>>) -> Self {
        Self::Bulk(bytes.into())
    }

    /// A string.
    pub(super) fn string(text: &'b str) -> Self {
        Self::bulk(text.as_bytes())
    }

    /// A string that was just made.
    pub(super) fn owned(text: String) -> Self {
        Self::bulk(text.into_bytes())
    }

    /// A count.
    pub(super) fn count(count: usize) -> Self {
        Self::Integer(i64::try_from(count).unwrap_or(i64::MAX))
    }

    /// Appends the reply to `out`.
    pub(super) fn encode(&self, out: &mut Vec<u8>, version: RespVersion) {
        let (reply, version) = if let Self::In(chosen, reply) = self { (&**reply, *chosen) } else { (self, version) };
        reply.write(&mut ReplyWriter::new(out, version));
    }

    /// Bytes of the values in it, for a reply that may be long.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Bulk(bytes) => bytes.len(),
            Self::Values { values, .. } => values.iter().flatten().map(|value| value.len()).sum(),
            Self::Array(replies) => replies.iter().map(Self::bytes).sum(),
            _ => 0,
        }
    }

    fn write(&self, writer: &mut ReplyWriter<'_>) {
        match self {
            Self::Simple(text) => writer.simple(text),
            Self::Integer(number) => writer.integer(*number),
            Self::Bulk(bytes) => writer.bulk(bytes),
            Self::Null => writer.null(),
            Self::NullArray => writer.null_array(),
            Self::Text(text) => writer.text(text),
            Self::Values { total, values, .. } => {
                if let Some(total) = total {
                    writer.array(*total);
                }
                for value in values {
                    match value {
                        Some(bytes) => writer.bulk(bytes),
                        None => writer.null(),
                    }
                }
            }
            Self::Array(replies) => {
                writer.array(replies.len());
                replies.iter().for_each(|reply| reply.write(writer));
            }
            Self::Set(replies) => {
                writer.set(replies.len());
                replies.iter().for_each(|reply| reply.write(writer));
            }
            Self::Map(replies) => {
                writer.map(replies.len() / 2);
                replies.iter().for_each(|reply| reply.write(writer));
            }
            Self::Push(replies) => {
                writer.push(replies.len());
                replies.iter().for_each(|reply| reply.write(writer));
            }
            Self::Frames { replies, .. } => replies.iter().for_each(|reply| reply.write(writer)),
            Self::In(_, reply) => reply.write(writer),
            Self::Nothing => {}
        }
    }
}
