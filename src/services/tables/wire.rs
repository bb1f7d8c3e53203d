//! The frames of the `kv` protocol: requests, replies and notifications, byte by byte.
//!
//! Decoding borrows from the received frames, and encoding hands each frame to a sink, so neither allocates for a
//! request. A frame is any type that derefs to bytes, so the same code decodes messages of libzmq and plain slices.
//!
//! ```text
//! request       envelope… │ command (1) │ field…
//! reply         envelope… │ status (1)  │ field…            status 1: OK, 0: ERROR
//! error         envelope… │ 0           │ reason (ASCII) │ after VERSION MISMATCH: current version (8)
//!                                                        │ after COMPACTED: oldest sequence kept (8)
//! notification              table       │ kind (1) │ key    kind 0: UPDATED, 1: DELETED
//! ```
//!
//! A sink is a `FnMut(&[u8], bool)`: the bytes of one frame, and whether more frames of the message follow.
//!
//! This module does no I/O and knows no table.

mod envelope;
mod feed;
mod fields;
mod notification;
mod page;
mod reply;
mod request;
mod table_name;
mod ttl;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]
mod fuzz;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that fails should say where")]
pub(super) mod specified;

use thiserror::Error;

use crate::limits::{KEY_BYTES_DEFAULT, VALUE_BYTES_DEFAULT};

pub use envelope::{SplitMessage, split};
pub use feed::{FeedEvent, FeedState, Payload};
pub(crate) use fields::{decode_key, decode_table, decode_value};
pub use notification::{Notification, NotificationKind};
pub(crate) use page::check_progress;
pub use page::{EntryRow, MirrorRow, RowMark, ScanFields, ScanRows};
pub use reply::{Reply, ReplyShape, TableLine};
pub use request::{Command, Request};
pub use table_name::{TableName, TableOptions};
pub use ttl::TtlField;

/// Status byte of a reply that grants the request.
const OK: u8 = 1;
/// Status byte of a reply that refuses the request.
const ERROR: u8 = 0;

/// The longest key and the longest value that a server takes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldLimits {
    /// Of a key, and of a prefix of keys.
    pub key: usize,
    /// Of a value.
    pub value: usize,
}

impl FieldLimits {
    /// The limits of a server without `--max-key` and `--max-value`.
    pub const DEFAULT: Self = Self { key: KEY_BYTES_DEFAULT, value: VALUE_BYTES_DEFAULT };
}

/// Makes the reasons of a list: what each says, and the second frame of the error reply.
macro_rules! reasons {
    ($($(#[$doc:meta])* $reason:ident $({ $(#[$field_doc:meta])* $field:ident })? = $text:literal;)*) => {
        /// The reason why a request was refused. A refused request has changed nothing.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[$doc])* $reason $({
                $(#[$field_doc])*
                $field: u64,
            })?,)*
        }

        impl Reason {
            /// All reasons, in the order of `PROTOCOL.md`.
            pub const ALL: [Self; [$($text),*].len()] = [$(Self::$reason $({ $field: 0 })?),*];

            /// The second frame of the error reply.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$reason $({ $field: _ })? => $text,)*
                }
            }
        }
    };
}

reasons! {
    /// Wrong number or shape of frames.
    BadRequest = "BAD REQUEST";
    /// No command has this code.
    UnknownCommand = "UNKNOWN COMMAND";
    /// The name is empty, too long, or holds a NUL that does not end it.
    BadTableName = "BAD TABLE NAME";
    /// CREATE_TABLE of a name that is taken.
    TableExists = "TABLE EXISTS";
    /// There is no table of this name.
    TableNotFound = "TABLE NOT FOUND";
    /// The key is longer than the server's `--max-key`.
    KeyTooLong = "KEY TOO LONG";
    /// The element is absent, or its deadline has passed.
    KeyNotFound = "KEY NOT FOUND";
    /// The value is longer than the server allows.
    ValueTooLong = "VALUE TOO LONG";
    /// The TTL is neither 8 bytes below 2^32 in either byte order, nor 9 bytes of which the first is 1.
    BadTtl = "BAD TTL";
    /// The element has another version than the expected one.
    VersionMismatch {
        /// The version of the element; 0 if it is absent.
        current
    } = "VERSION MISMATCH";
    /// The tables have reached their memory limit.
    OutOfMemory = "OUT OF MEMORY";
    /// The reply would be longer than the protocol allows.
    ReplyTooLong = "REPLY TOO LONG";
    /// The cursor is not one of this life of the table and this start of the server.
    BadCursor = "BAD CURSOR";
    /// The value is no decimal number of 64 bits.
    NotANumber = "NOT A NUMBER";
    /// The sum is beyond 64 bits, or the table does not take the version.
    OutOfRange = "OUT OF RANGE";
    /// The server has no feed.
    FeedOff = "FEED OFF";
    /// The feed does not have this change: it was evicted, is of another life of the table, or has not come.
    Compacted {
        /// The oldest sequence that is kept of the present life.
        oldest
    } = "COMPACTED";
    /// The server has as many tables as its limit allows.
    TooManyTables = "TOO MANY TABLES";
    /// The table is durable, and its log has no room on the disk.
    OutOfDisk = "OUT OF DISK";
    /// The table is durable, and the disk of its log has failed. Nothing was changed.
    DiskFailed = "DISK FAILED";
    /// The disk has failed. A change was perhaps made, once. What a read would show is perhaps lost.
    Unavailable = "UNAVAILABLE";
    /// The user may not do this.
    Denied = "DENIED";
}

/// The first fault of a request that could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The command, if the request names a known one.
    pub command: Option<Command>,
    /// The reason to answer.
    pub reason: Reason,
}

/// A reply or notification that the protocol does not allow: the sender is no server of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{rule}, not {given}")]
pub struct Malformed {
    /// The rule of the protocol, with the unit of `given`.
    pub rule: &'static str,
    /// The number that came instead.
    pub given: usize,
}

/// Reads a version or another number of 8 bytes, big-endian.
fn number(frame: &[u8]) -> Option<u64> {
    frame.try_into().ok().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_names_its_command_and_no_other() {
        for (place, command) in Command::ALL.into_iter().enumerate() {
            assert_eq!(command.index(), place);
            assert_eq!(Command::by_code(command.code()), Some(command));
        }
        assert!(Command::ALL.is_sorted_by_key(|command| command.code()));
        assert_eq!((0..=255).filter_map(Command::by_code).count(), Command::COUNT);
    }

    #[test]
    fn reasons_and_names_are_unambiguous() {
        let mut texts = Reason::ALL.map(Reason::text).to_vec();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), Reason::ALL.len());
        let mut names = Command::ALL.map(Command::name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Command::COUNT);
    }
}
