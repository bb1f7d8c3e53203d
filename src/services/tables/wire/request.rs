//! The commands and their requests. Each has one row here, from which its frames are read and written.

use std::ops::Deref;

use super::fields::{
    Count, Cursor, Delta, DurabilityByte, Field, FrameCount, FrameSink, Key, Keys, Optional, Options, Pairs, Position,
    Prefix, RowFields, Table, TimeToLive, TtlOrEmpty, Value, Version,
};
use super::{Fault, FieldLimits, Reason, ReplyShape, ScanFields, TableName, TableOptions};
use crate::clock::Ttl;
use crate::feed::FeedPosition;
use crate::security::Access;
use crate::tables::Durability;

/// What a command may change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Nothing,
    Tables,
    Elements,
    /// An element, whose value is in the reply.
    ReturnedElement,
}

/// Makes the commands of a list, and their requests. A row has the command's description, its variant, its code on the
/// wire, its name on the page, its effect, the access that a user needs (`None`: any user may send it), and the fields
/// of its request in their order on the wire.
macro_rules! commands {
    ($(
        $(#[$doc:meta])*
        $command:ident = $code:literal, $name:literal, $effect:ident, $access:expr
        $(, { $($(#[$field_doc:meta])* $field:ident: $value:ty as $kind:ty),* })?;
    )*) => {
        /// The command of a request. The discriminant is the code on the wire.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Command {
            $($(#[$doc])* $command = $code,)*
        }

        /// The places of the commands in their list.
        #[derive(Clone, Copy)]
        enum Place {
            $($command,)*
        }

        impl Command {
            /// The command of a code, if there is one.
            #[must_use]
            pub const fn by_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$command),)*
                    _ => None,
                }
            }

            /// The index in [`Command::ALL`]. Not every code has a command.
            #[must_use]
            pub const fn index(self) -> usize {
                match self {
                    $(Self::$command => Place::$command as usize,)*
                }
            }

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

        /// A client's request. `F` is a frame: a message of libzmq, or a slice.
        ///
        /// [`Request::decode`] returns only requests whose fields are within their limits and whose lists have 1–1024
        /// members.
        #[derive(Debug, PartialEq, Eq)]
        pub enum Request<'m, F = &'m [u8]> {
            $($(#[$doc])* $command $({
                $(
                    #[doc = concat!("The field `", stringify!($field), "`.")]
                    $(#[$field_doc])*
                    $field: $value,
                )*
            })?,)*
        }

        #[allow(unused_variables, reason = "a request has more fields than its table and its key")]
        impl<'m, F> Request<'m, F> {
            /// The table's name and the key, if the request is for one element.
            #[must_use]
            pub fn element(&self) -> Option<(&'m [u8], &'m [u8])> {
                match *self {
                    $(Self::$command $({ $($field),* })? => element_of!($($($field $field)*)?),)*
                }
            }

            /// The table that the request is about, if it is about one.
            #[must_use]
            pub const fn table(&self) -> Option<TableName<'m>> {
                match *self {
                    $(Self::$command $({ $($field),* })? => table_of!($($($field $field)*)?),)*
                }
            }

            /// The command of the request.
            #[must_use]
            pub const fn command(&self) -> Command {
                match self {
                    $(Self::$command { .. } => Command::$command,)*
                }
            }
        }

        impl<'m, F: Deref<Target = [u8]>> Request<'m, F> {
            /// Decodes the fields after the command: first their number is checked, then each from left to right.
            #[inline]
            fn decode_fields(command: Command, mut fields: &'m [F], limits: FieldLimits) -> Result<Self, Reason> {
                match command {
                    $(Command::$command => {
                        let expected = FrameCount::NONE $($(.and(<$kind as Field<'m, F>>::FRAMES))*)?;
                        expected.check(fields.len())?;
                        Ok(Self::$command $({ $($field: <$kind as Field<'m, F>>::decode(&mut fields, limits)?),* })?)
                    })*
                }
            }

            /// Hands the frames of the body to `sink`, without any check: a client may send a request that the server
            /// refuses.
            pub fn encode(&self, sink: impl FnMut(&[u8], bool)) {
                match *self {
                    $(Self::$command $({ $($field),* })? => {
                        let left = 1 $($(+ <$kind as Field<'m, F>>::frames($field))*)?;
                        let mut frames = FrameSink { sink, left };
                        frames.send(&[$code]);
                        $($(<$kind as Field<'m, F>>::encode($field, &mut frames);)*)?
                    })*
                }
            }
        }
    };
}

/// The field `table` among the fields of a request, each given twice.
macro_rules! table_of {
    (table $table:ident $($others:ident)*) => {
        Some($table)
    };
    ($($others:ident)*) => {
        None
    };
}

/// The fields `table` and `key` among the fields of a request.
macro_rules! element_of {
    (table $table:ident key $key:ident $($others:ident)*) => {
        Some(($table.name(), $key))
    };
    ($($others:ident)*) => {
        None
    };
}

commands! {
    /// Makes an empty table.
    CreateTable = 0, "CREATE_TABLE", Tables, Some(Access::Admin), {
        table: TableName<'m> as Table,
        /// `None`: as the server says.
        options: Option<TableOptions> as Optional<Options>
    };
    /// Removes a table with all its elements.
    DeleteTable = 1, "DELETE_TABLE", Tables, Some(Access::Admin), {
        table: TableName<'m> as Table
    };
    /// Adds or replaces an element.
    Update = 2, "UPDATE", Elements, Some(Access::Write), {
        table: TableName<'m> as Table, key: &'m [u8] as Key, value: &'m [u8] as Value,
        /// `None` keeps the deadline, [`Ttl::NONE`] removes it.
        ttl: Option<Ttl> as Optional<TimeToLive>
    };
    /// Deletes an element and returns its value.
    Delete = 3, "DELETE", ReturnedElement, Some(Access::Write), {
        table: TableName<'m> as Table, key: &'m [u8] as Key
    };
    /// Reads a value.
    Get = 4, "GET", Nothing, Some(Access::Read), {
        table: TableName<'m> as Table, key: &'m [u8] as Key
    };
    /// Asks whether the server is there.
    Ping = 5, "PING", Nothing, None;
    /// Reads a value with its version and remaining time to live.
    GetEntry = 6, "GET_ENTRY", Nothing, Some(Access::Read), {
        table: TableName<'m> as Table, key: &'m [u8] as Key
    };
    /// Writes a value if the element has the expected version.
    CompareAndSwap = 7, "COMPARE_AND_SWAP", Elements, Some(Access::Write), {
        table: TableName<'m> as Table, key: &'m [u8] as Key,
        /// The version that it must have; 0 if it must be absent.
        expected: u64 as Version,
        value: &'m [u8] as Value,
        /// `None` keeps the deadline, [`Ttl::NONE`] removes it.
        ttl: Option<Ttl> as Optional<TimeToLive>
    };
    /// Deletes an element if it has the expected version.
    CompareAndDelete = 8, "COMPARE_AND_DELETE", ReturnedElement, Some(Access::Write), {
        table: TableName<'m> as Table, key: &'m [u8] as Key,
        /// The version that it must have.
        expected: u64 as Version
    };
    /// Sets the time to live of an element.
    Touch = 9, "TOUCH", Elements, Some(Access::Write), {
        table: TableName<'m> as Table, key: &'m [u8] as Key,
        /// [`Ttl::NONE`] removes the deadline.
        ttl: Ttl as TimeToLive
    };
    /// Reads up to 1024 values.
    GetMany = 10, "GET_MANY", Nothing, Some(Access::Read), {
        table: TableName<'m> as Table, keys: &'m [F] as Keys
    };
    /// Writes up to 1024 values.
    UpdateMany = 11, "UPDATE_MANY", Elements, Some(Access::Write), {
        table: TableName<'m> as Table,
        /// For each of them. `None` keeps the deadlines, [`Ttl::NONE`] removes them.
        ttl: Option<Ttl> as TtlOrEmpty,
        /// Keys, each with its new value.
        pairs: &'m [[F; 2]] as Pairs
    };
    /// Names the tables.
    ListTables = 12, "LIST_TABLES", Nothing, None;
    /// Describes the server as JSON.
    Stats = 13, "STATS", Nothing, Some(Access::Admin);
    /// Reads a table page by page.
    Scan = 14, "SCAN", Nothing, Some(Access::Read), {
        table: TableName<'m> as Table,
        /// The cursor of the page before. Empty: the first page.
        cursor: &'m [u8] as Cursor,
        /// The number of elements to look at.
        count: u32 as Count,
        /// The fields of each row.
        fields: ScanFields as RowFields,
        /// The beginning of the keys that are wanted. Empty: all keys.
        prefix: &'m [u8] as Prefix
    };
    /// Adds to a number.
    Increment = 15, "INCREMENT", Elements, Some(Access::Write), {
        table: TableName<'m> as Table, key: &'m [u8] as Key,
        /// The number to add.
        delta: i64 as Delta,
        /// For an element that this request makes. `None` or [`Ttl::NONE`] is without a deadline.
        ttl: Option<Ttl> as Optional<TimeToLive>
    };
    /// Reads a value and sets the time to live of its element.
    GetAndTouch = 16, "GET_AND_TOUCH", ReturnedElement, Some(Access::Write), {
        table: TableName<'m> as Table, key: &'m [u8] as Key,
        /// [`Ttl::NONE`] removes the deadline.
        ttl: Ttl as TimeToLive
    };
    /// Deletes up to 1024 elements.
    DeleteMany = 17, "DELETE_MANY", Elements, Some(Access::Write), {
        table: TableName<'m> as Table, keys: &'m [F] as Keys
    };
    /// Reads how far the feed of a table is.
    FeedState = 18, "FEED_STATE", Nothing, Some(Access::Read), {
        table: TableName<'m> as Table
    };
    /// Reads what the feed has published before.
    Changes = 19, "CHANGES", Nothing, Some(Access::Read), {
        table: TableName<'m> as Table,
        /// The first change that is wanted.
        position: FeedPosition as Position
    };
    /// Changes what is on disk of a table.
    AlterTable = 20, "ALTER_TABLE", Tables, Some(Access::Admin), {
        table: TableName<'m> as Table,
        /// What is to be on disk from now on.
        durability: Durability as DurabilityByte
    };
    /// Stores an element with the version that it had elsewhere.
    Restore = 22, "RESTORE", Elements, Some(Access::Write), {
        table: TableName<'m> as Table, key: &'m [u8] as Key, value: &'m [u8] as Value,
        /// The version that it had elsewhere.
        version: u64 as Version,
        /// [`Ttl::NONE`] is without a deadline.
        ttl: Ttl as TimeToLive
    };
}

impl Command {
    /// The code on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
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

impl<'m, F: Deref<Target = [u8]>> Request<'m, F> {
    /// Decodes a body (see [`super::split`]), whose keys and values are within the limits.
    ///
    /// # Errors
    /// The first [`Fault`], in the order of `PROTOCOL.md`.
    ///
    /// ```
    /// use spindle::services::tables::wire::{FieldLimits, Reason, Request, TableName};
    ///
    /// let body: [&[u8]; 3] = [b"\x04", b"users", b"ada"];
    /// let table = TableName::spelt(b"users");
    /// assert_eq!(Request::decode(&body, FieldLimits::DEFAULT), Ok(Request::Get { table, key: b"ada" }));
    ///
    /// let short: [&[u8]; 2] = [b"\x04", b"users"];
    /// assert_eq!(Request::decode(&short, FieldLimits::DEFAULT).unwrap_err().reason, Reason::BadRequest);
    /// ```
    #[inline]
    pub fn decode(body: &'m [F], limits: FieldLimits) -> Result<Self, Fault> {
        let (code, fields) = split_command(body).ok_or(Fault { command: None, reason: Reason::BadRequest })?;
        let command = Command::by_code(code).ok_or(Fault { command: None, reason: Reason::UnknownCommand })?;
        Self::decode_fields(command, fields, limits).map_err(|reason| Fault { command: Some(command), reason })
    }

    /// What a reply to the request looks like.
    #[must_use]
    pub const fn reply_shape(&self) -> ReplyShape {
        let command = self.command();
        match self {
            Self::Scan { fields, .. } => ReplyShape { command, fields: *fields },
            _ => ReplyShape { command, fields: ScanFields::Key },
        }
    }

    /// Whether the body must follow a delimiter: the server would take its command before an empty table for an
    /// envelope.
    #[must_use]
    pub const fn needs_delimiter(&self) -> bool {
        match self.table() {
            Some(table) => table.spelling().is_empty(),
            None => false,
        }
    }
}

/// The code and the fields after it, if the first frame has one byte.
fn split_command<F: Deref<Target = [u8]>>(body: &[F]) -> Option<(u8, &[F])> {
    let (first, fields) = body.split_first()?;
    match **first {
        [code] => Some((code, fields)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
