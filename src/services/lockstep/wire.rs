//! The bytes of the `lockstep` protocol. This module does no I/O, and arguments borrow from the input.
//!
//! ```text
//! request       "" │ argument (its bytes, and a NUL or none)
//! reply         "" │ "ok", "error", a value or a reason            a NUL behind each with --lockstep-nul
//! notification       table 00 kind key                             kind: 30 00 updated, 31 00 deleted
//!
//! 0  CREATE_TABLE  table                       4  GET     table, key
//! 1  DELETE_TABLE  table                       6          the second part of the reply before
//! 2  UPDATE        table, key, value, ttl      7          hello
//! 3  DELETE        table, key
//! ```
//! The tables, keys and values are those of [`kv`](crate::services::tables::wire), and so are the reasons.

#[cfg(test)]
mod tests;

use crate::clock::Ttl;
use crate::limits::{ENVELOPE_BYTES_MAX, ENVELOPE_FRAMES_MAX, FRAME_BYTES_MAX, KEY_BYTES_DEFAULT};
use crate::services::tables::wire::{
    Command, Notification, NotificationKind, Reason, TableName, decode_key, decode_table, decode_value,
};
use crate::zmtp::{Message, MessageBounds};

/// The reply to an argument that is taken, and to a command that has succeeded.
pub const OK: &[u8] = b"ok";
/// The reply to a command that has failed.
pub const ERROR: &[u8] = b"error";
/// Digits of the longest TTL.
pub const TTL_DIGITS_MAX: usize = 64;
/// The end of an argument.
const NUL: u8 = 0;

/// The bounds of a message whose value may have `value_max` bytes. A longer message is not kept whole, and is answered.
#[must_use]
pub const fn message_bounds(value_max: usize) -> MessageBounds {
    MessageBounds {
        // The longest value that any flag allows, and its NUL.
        frame_bytes: FRAME_BYTES_MAX as u64 + 1,
        frames: ENVELOPE_FRAMES_MAX,
        bytes: ENVELOPE_BYTES_MAX + value_max,
    }
}

/// One request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument<'m> {
    /// A frame, as it came.
    Frame(&'m [u8]),
    /// A frame that is longer than any argument.
    TooLong,
    /// The message is not an empty delimiter and one frame.
    Misshapen,
}

impl<'m> Argument<'m> {
    /// The argument in a message.
    #[must_use]
    pub fn of(message: &Message<'m>) -> Self {
        let mut frames = message.frames();
        let has_delimiter = frames.next().is_some_and(<[u8]>::is_empty);
        match (frames.next(), frames.next()) {
            (Some(frame), None) if has_delimiter && message.is_whole() => Self::Frame(frame),
            (None, None) if has_delimiter && !message.is_whole() => Self::TooLong,
            _ => Self::Misshapen,
        }
    }

    /// The bytes without the NUL that may end them. `too_long` is the reason for an argument that was not kept.
    fn text(self, too_long: Reason) -> Result<&'m [u8], Reason> {
        self.frame(too_long).map(|frame| frame.strip_suffix(&[NUL]).unwrap_or(frame))
    }

    fn frame(self, too_long: Reason) -> Result<&'m [u8], Reason> {
        match self {
            Self::Frame(frame) => Ok(frame),
            Self::TooLong => Err(too_long),
            Self::Misshapen => Err(Reason::BadRequest),
        }
    }

    /// What the argument asks for, outside of a command.
    ///
    /// # Errors
    /// The reason for the client.
    pub fn opening(self) -> Result<Opening, Reason> {
        match self.text(Reason::UnknownCommand)? {
            b"0" => Ok(Opening::Command(Verb::CreateTable)),
            b"1" => Ok(Opening::Command(Verb::DeleteTable)),
            b"2" => Ok(Opening::Command(Verb::Update)),
            b"3" => Ok(Opening::Command(Verb::Delete)),
            b"4" => Ok(Opening::Command(Verb::Get)),
            b"6" => Ok(Opening::SecondPart),
            b"7" => Ok(Opening::Hello),
            _ => Err(Reason::UnknownCommand),
        }
    }

    /// The argument as a table.
    ///
    /// # Errors
    /// `BadTableName`, or `BadRequest` for a message of another shape.
    pub fn table(self) -> Result<TableName<'m>, Reason> {
        decode_table(self.frame(Reason::BadTableName)?)
    }

    /// The argument as a key.
    ///
    /// # Errors
    /// `KeyTooLong`, or `BadRequest` for a message of another shape.
    pub fn key(self) -> Result<&'m [u8], Reason> {
        decode_key(self.text(Reason::KeyTooLong)?, KEY_BYTES_DEFAULT)
    }

    /// The argument as a value.
    ///
    /// # Errors
    /// `ValueTooLong`, or `BadRequest` for a message of another shape.
    pub fn value(self, value_max: usize) -> Result<&'m [u8], Reason> {
        decode_value(self.text(Reason::ValueTooLong)?, value_max)
    }

    /// The argument as a TTL, which has whole seconds. `None`: the client gives none.
    ///
    /// # Errors
    /// `BadTtl`, or `BadRequest` for a message of another shape.
    pub fn ttl(self) -> Result<Option<Ttl>, Reason> {
        let text = self.text(Reason::BadTtl)?;
        if matches!(text, b"a" | b"\x01") {
            return Ok(None);
        }
        if text.is_empty() || text.len() > TTL_DIGITS_MAX || !text.iter().all(u8::is_ascii_digit) {
            return Err(Reason::BadTtl);
        }
        let digit = |seconds: u32, byte: &u8| seconds.checked_mul(10)?.checked_add(u32::from(byte - b'0'));
        let seconds = text.iter().try_fold(0, digit).ok_or(Reason::BadTtl)?;
        Ok(Some(Ttl::from_secs(seconds)).filter(|ttl| *ttl != Ttl::NONE))
    }
}

/// A request outside of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// The client begins anew.
    Hello,
    /// The client asks for the value or the reason behind the reply before.
    SecondPart,
    /// A command begins.
    Command(Verb),
}

/// A command that takes arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// A table.
    CreateTable,
    /// A table.
    DeleteTable,
    /// A table, a key, a value and a TTL.
    Update,
    /// A table and a key.
    Delete,
    /// A table and a key.
    Get,
}

impl Verb {
    /// How many arguments it takes.
    #[must_use]
    pub const fn arguments(self) -> usize {
        match self {
            Self::CreateTable | Self::DeleteTable => 1,
            Self::Delete | Self::Get => 2,
            Self::Update => 4,
        }
    }

    /// The command of the tables.
    #[must_use]
    pub const fn command(self) -> Command {
        match self {
            Self::CreateTable => Command::CreateTable,
            Self::DeleteTable => Command::DeleteTable,
            Self::Update => Command::Update,
            Self::Delete => Command::Delete,
            Self::Get => Command::Get,
        }
    }
}

/// How many frames of a message its reply carries back: those up to the first empty one.
#[must_use]
pub fn envelope_frames(message: &Message<'_>) -> usize {
    let mut frames = message.frames().take(ENVELOPE_FRAMES_MAX);
    frames.position(<[u8]>::is_empty).map_or(0, |delimiter| delimiter + 1)
}

/// Appends the frame of a notification. Returns false, and appends nothing, for a change that the clients cannot read:
/// they take the table for text, and a NUL for an end, and have no longer keys than by default.
pub fn encode_notification(notification: &Notification<'_>, out: &mut Vec<u8>) -> bool {
    let table = TableName::spelt(notification.table).name();
    let is_key = notification.key.len() <= KEY_BYTES_DEFAULT && !notification.key.contains(&NUL);
    if str::from_utf8(table).is_err() || !is_key {
        return false;
    }
    let kind = match notification.kind {
        NotificationKind::Updated => b'0',
        NotificationKind::Deleted => b'1',
    };
    out.extend_from_slice(table);
    out.extend_from_slice(&[NUL, kind, NUL]);
    out.extend_from_slice(notification.key);
    true
}
