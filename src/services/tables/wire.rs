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
//!
//! field     bytes        content
//! table     1–255        no NUL but one that may end it, which is no part of the name
//! key       0–max_key    any, 64 unless set otherwise
//! value     0–max_value  any
//! ttl       8 or 9       seconds below 2^32, or milliseconds below 2^42 (`wire/ttl.rs`)
//! version   8            big-endian; 0 is absent
//! delta     8            big-endian, two's complement
//! cursor    0–32         opaque; empty at the first page
//! count     8            big-endian, 1–10,000
//! epoch, incarnation, sequence    8 each, big-endian
//! ```
//!
//! A sink is a `FnMut(&[u8], bool)`: the bytes of one frame, and whether more frames of the message follow.
//!
//! This module does no I/O and knows no table.

mod decode;
mod envelope;
mod feed;
mod notification;
mod page;
mod reply;
mod request;
mod table_name;
mod ttl;

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "a test that fails should say where")]
mod fuzz;

use thiserror::Error;

use crate::limits::{KEY_BYTES_DEFAULT, VALUE_BYTES_DEFAULT};
use crate::security::Access;

pub(crate) use decode::{decode_key, decode_table, decode_value};
pub use envelope::{SplitMessage, split};
pub use feed::{FeedEvent, FeedState, Payload};
pub use notification::{Notification, NotificationKind};
pub(crate) use page::check_progress;
pub use page::{EntryRow, MirrorRow, RowMark, ScanFields, ScanRows};
pub use reply::{Reply, ReplyShape, TableLine};
pub use request::Request;
pub use table_name::TableName;
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

/// What a command may change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Nothing,
    Tables,
    Elements,
    /// An element, whose value is in the reply.
    ReturnedElement,
}

/// Makes the commands of a list. A row has the command's description, its variant, its code on the wire, its name on
/// the page, its effect, and the access that a user needs. `None`: any user may send it.
macro_rules! commands {
    ($($(#[$doc:meta])* $command:ident = $code:literal, $name:literal, $effect:ident, $access:expr;)*) => {
        /// The command of a request. The discriminant is the code on the wire.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Command {
            $($(#[$doc])* $command = $code,)*
        }

        impl Command {
            /// The number of commands.
            pub const COUNT: usize = [$($code),*].len();

            /// All commands by their code.
            pub const ALL: [Self; Self::COUNT] = [$(Self::$command),*];

            /// The name that `PROTOCOL.md` uses.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$command => $name,)*
                }
            }

            /// The access that the command needs. None: any user may send it.
            #[must_use]
            pub const fn access(self) -> Option<Access> {
                match self {
                    $(Self::$command => $access,)*
                }
            }

            #[inline]
            const fn effect(self) -> Effect {
                match self {
                    $(Self::$command => Effect::$effect,)*
                }
            }
        }
    };
}

commands! {
    /// Makes an empty table.
    CreateTable = 0, "CREATE_TABLE", Tables, Some(Access::Admin);
    /// Removes a table with all its elements.
    DeleteTable = 1, "DELETE_TABLE", Tables, Some(Access::Admin);
    /// Adds or replaces an element.
    Update = 2, "UPDATE", Elements, Some(Access::Write);
    /// Deletes an element and returns its value.
    Delete = 3, "DELETE", ReturnedElement, Some(Access::Write);
    /// Reads a value.
    Get = 4, "GET", Nothing, Some(Access::Read);
    /// Asks whether the server is there.
    Ping = 5, "PING", Nothing, None;
    /// Reads a value with its version and remaining time to live.
    GetEntry = 6, "GET_ENTRY", Nothing, Some(Access::Read);
    /// Writes a value if the element has the expected version.
    CompareAndSwap = 7, "COMPARE_AND_SWAP", Elements, Some(Access::Write);
    /// Deletes an element if it has the expected version.
    CompareAndDelete = 8, "COMPARE_AND_DELETE", ReturnedElement, Some(Access::Write);
    /// Sets the time to live of an element.
    Touch = 9, "TOUCH", Elements, Some(Access::Write);
    /// Reads up to 1024 values.
    GetMany = 10, "GET_MANY", Nothing, Some(Access::Read);
    /// Writes up to 1024 values.
    UpdateMany = 11, "UPDATE_MANY", Elements, Some(Access::Write);
    /// Names the tables.
    ListTables = 12, "LIST_TABLES", Nothing, None;
    /// Describes the server as JSON.
    Stats = 13, "STATS", Nothing, Some(Access::Admin);
    /// Reads a table page by page.
    Scan = 14, "SCAN", Nothing, Some(Access::Read);
    /// Adds to a number.
    Increment = 15, "INCREMENT", Elements, Some(Access::Write);
    /// Reads a value and sets the time to live of its element.
    GetAndTouch = 16, "GET_AND_TOUCH", ReturnedElement, Some(Access::Write);
    /// Deletes up to 1024 elements.
    DeleteMany = 17, "DELETE_MANY", Elements, Some(Access::Write);
    /// Reads how far the feed of a table is.
    FeedState = 18, "FEED_STATE", Nothing, Some(Access::Read);
    /// Reads what the feed has published before.
    Changes = 19, "CHANGES", Nothing, Some(Access::Read);
    /// Stores an element with the version that it had elsewhere.
    Restore = 20, "RESTORE", Elements, Some(Access::Write);
}

impl Command {
    /// The code on the wire, which is also the index in [`Command::ALL`].
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The command of a code, if there is one.
    #[must_use]
    pub fn by_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Whether the command may change elements or tables.
    #[must_use]
    pub const fn changes_something(self) -> bool {
        !matches!(self.effect(), Effect::Nothing)
    }

    /// Whether the command may change elements, and so needs the tables to have room for changes.
    #[must_use]
    pub const fn may_change_elements(self) -> bool {
        matches!(self.effect(), Effect::Elements | Effect::ReturnedElement)
    }

    /// Whether the reply to a change has the value that was there.
    pub(crate) const fn returns_value(self) -> bool {
        matches!(self.effect(), Effect::ReturnedElement)
    }
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
            assert_eq!(usize::from(command.code()), place);
            assert_eq!(Command::by_code(command.code()), Some(command));
        }
        assert!((0..=255).skip(Command::COUNT).all(|code| Command::by_code(code).is_none()));
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
