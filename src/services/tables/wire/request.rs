//! The body of a request and its encoding. [`super::decode`] is the way back.
//!
//! ```text
//!  0 │ table                              7 │ table │ key │ version │ value │ [ttl]
//!  1 │ table                              8 │ table │ key │ version
//!  2 │ table │ key │ value │ [ttl]        9 │ table │ key │ ttl
//!  3 │ table │ key                       10 │ table │ key …               1–1024 keys
//!  4 │ table │ key                       11 │ table │ ttl or empty │ key │ value …    1–1024 pairs
//!  5 │                                   12 │
//!  6 │ table │ key                       13 │
//!
//! 14 │ table │ cursor │ count │ fields │ [prefix]
//! 15 │ table │ key │ delta │ [ttl]
//! 16 │ table │ key │ ttl
//! 17 │ table │ key …               1–1024 keys
//! 18 │ table
//! 19 │ table │ epoch │ incarnation │ sequence
//! 20 │ table │ key │ value │ version │ ttl
//! ```

use std::ops::Deref;

use super::{Command, ReplyShape, ScanFields, TableName, TtlField};
use crate::clock::Ttl;
use crate::feed::FeedPosition;

/// A client's request. `F` is a frame: a message of libzmq, or a slice.
///
/// [`Request::decode`] returns only requests whose fields are within their limits and whose lists have 1–1024 members.
#[derive(Debug, PartialEq, Eq)]
pub enum Request<'m, F = &'m [u8]> {
    /// CREATE_TABLE
    CreateTable {
        /// The table to make.
        table: TableName<'m>,
    },
    /// DELETE_TABLE
    DeleteTable {
        /// The table to remove.
        table: TableName<'m>,
    },
    /// UPDATE
    Update {
        /// The table.
        table: TableName<'m>,
        /// The element.
        key: &'m [u8],
        /// Its new value.
        value: &'m [u8],
        /// `None` keeps the deadline, [`Ttl::NONE`] removes it.
        ttl: Option<Ttl>,
    },
    /// DELETE
    Delete {
        /// The table.
        table: TableName<'m>,
        /// The element.
        key: &'m [u8],
    },
    /// GET
    Get {
        /// The table.
        table: TableName<'m>,
        /// The element.
        key: &'m [u8],
    },
    /// PING
    Ping,
    /// GET_ENTRY
    GetEntry {
        /// The table.
        table: TableName<'m>,
        /// The element.
        key: &'m [u8],
    },
    /// COMPARE_AND_SWAP
    CompareAndSwap {
        /// The table.
        table: TableName<'m>,
        /// The element.
        key: &'m [u8],
        /// The version that it must have; 0 if it must be absent.
        expected: u64,
        /// Its new value.
        value: &'m [u8],
        /// `None` keeps the deadline, [`Ttl::NONE`] removes it.
        ttl: Option<Ttl>,
    },
    /// COMPARE_AND_DELETE
    CompareAndDelete {
        /// The table.
        table: TableName<'m>,
        /// The element.
        key: &'m [u8],
        /// The version that it must have.
        expected: u64,
    },
    /// TOUCH
    Touch {
        /// The table.
        table: TableName<'m>,
        /// The element.
        key: &'m [u8],
        /// [`Ttl::NONE`] removes the deadline.
        ttl: Ttl,
    },
    /// GET_MANY
    GetMany {
        /// The table.
        table: TableName<'m>,
        /// The elements.
        keys: &'m [F],
    },
    /// UPDATE_MANY
    UpdateMany {
        /// The table.
        table: TableName<'m>,
        /// For each of them. `None` keeps the deadlines, [`Ttl::NONE`] removes them.
        ttl: Option<Ttl>,
        /// Keys, each with its new value.
        pairs: &'m [[F; 2]],
    },
    /// LIST_TABLES
    ListTables,
    /// STATS
    Stats,
    /// SCAN
    Scan {
        /// The table.
        table: TableName<'m>,
        /// The cursor of the page before. Empty: the first page.
        cursor: &'m [u8],
        /// The number of elements to look at.
        count: u32,
        /// The fields of each row.
        fields: ScanFields,
        /// The beginning of the keys that are wanted. Empty: all keys.
        prefix: &'m [u8],
    },
    /// INCREMENT
    Increment {
        /// The table.
        table: TableName<'m>,
        /// The element.
        key: &'m [u8],
        /// The number to add.
        delta: i64,
        /// For an element that this request makes. `None` or [`Ttl::NONE`] is without a deadline.
        ttl: Option<Ttl>,
    },
    /// GET_AND_TOUCH
    GetAndTouch {
        /// The table.
        table: TableName<'m>,
        /// The element.
        key: &'m [u8],
        /// [`Ttl::NONE`] removes the deadline.
        ttl: Ttl,
    },
    /// DELETE_MANY
    DeleteMany {
        /// The table.
        table: TableName<'m>,
        /// The elements.
        keys: &'m [F],
    },
    /// FEED_STATE
    FeedState {
        /// The table.
        table: TableName<'m>,
    },
    /// CHANGES
    Changes {
        /// The table.
        table: TableName<'m>,
        /// The first change that is wanted.
        position: FeedPosition,
    },
    /// RESTORE
    Restore {
        /// The table.
        table: TableName<'m>,
        /// The element.
        key: &'m [u8],
        /// Its value.
        value: &'m [u8],
        /// The version that it had elsewhere.
        version: u64,
        /// [`Ttl::NONE`] is without a deadline.
        ttl: Ttl,
    },
}

impl<'m, F> Request<'m, F> {
    /// The table's name and the key, if the request is for one element.
    #[must_use]
    pub fn element(&self) -> Option<(&'m [u8], &'m [u8])> {
        match *self {
            Self::Update { table, key, .. }
            | Self::Delete { table, key }
            | Self::Get { table, key }
            | Self::GetEntry { table, key }
            | Self::CompareAndSwap { table, key, .. }
            | Self::CompareAndDelete { table, key, .. }
            | Self::Touch { table, key, .. }
            | Self::Increment { table, key, .. }
            | Self::GetAndTouch { table, key, .. }
            | Self::Restore { table, key, .. } => Some((table.name(), key)),
            Self::CreateTable { .. }
            | Self::DeleteTable { .. }
            | Self::Ping
            | Self::GetMany { .. }
            | Self::UpdateMany { .. }
            | Self::ListTables
            | Self::Stats
            | Self::Scan { .. }
            | Self::DeleteMany { .. }
            | Self::FeedState { .. }
            | Self::Changes { .. } => None,
        }
    }
}

impl<'m, F: Deref<Target = [u8]>> Request<'m, F> {
    /// The table that the request is about, if it is about one.
    #[must_use]
    pub const fn table(&self) -> Option<TableName<'m>> {
        match self {
            Self::CreateTable { table }
            | Self::DeleteTable { table }
            | Self::Update { table, .. }
            | Self::Delete { table, .. }
            | Self::Get { table, .. }
            | Self::GetEntry { table, .. }
            | Self::CompareAndSwap { table, .. }
            | Self::CompareAndDelete { table, .. }
            | Self::Touch { table, .. }
            | Self::GetMany { table, .. }
            | Self::UpdateMany { table, .. }
            | Self::Scan { table, .. }
            | Self::Increment { table, .. }
            | Self::GetAndTouch { table, .. }
            | Self::DeleteMany { table, .. }
            | Self::FeedState { table }
            | Self::Changes { table, .. }
            | Self::Restore { table, .. } => Some(*table),
            Self::Ping | Self::ListTables | Self::Stats => None,
        }
    }

    /// The command of the request.
    #[must_use]
    pub const fn command(&self) -> Command {
        match self {
            Self::CreateTable { .. } => Command::CreateTable,
            Self::DeleteTable { .. } => Command::DeleteTable,
            Self::Update { .. } => Command::Update,
            Self::Delete { .. } => Command::Delete,
            Self::Get { .. } => Command::Get,
            Self::Ping => Command::Ping,
            Self::GetEntry { .. } => Command::GetEntry,
            Self::CompareAndSwap { .. } => Command::CompareAndSwap,
            Self::CompareAndDelete { .. } => Command::CompareAndDelete,
            Self::Touch { .. } => Command::Touch,
            Self::GetMany { .. } => Command::GetMany,
            Self::UpdateMany { .. } => Command::UpdateMany,
            Self::ListTables => Command::ListTables,
            Self::Stats => Command::Stats,
            Self::Scan { .. } => Command::Scan,
            Self::Increment { .. } => Command::Increment,
            Self::GetAndTouch { .. } => Command::GetAndTouch,
            Self::DeleteMany { .. } => Command::DeleteMany,
            Self::FeedState { .. } => Command::FeedState,
            Self::Changes { .. } => Command::Changes,
            Self::Restore { .. } => Command::Restore,
        }
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

    /// Hands the frames of the body to `sink`, without any check: a client may send a request that the server refuses.
    pub fn encode(&self, mut sink: impl FnMut(&[u8], bool)) {
        let command = [self.command().code()];
        match *self {
            Self::CreateTable { table } | Self::DeleteTable { table } | Self::FeedState { table } => {
                send(&mut sink, &[&command, table.spelling()]);
            }
            Self::Delete { table, key } | Self::Get { table, key } | Self::GetEntry { table, key } => {
                send(&mut sink, &[&command, table.spelling(), key]);
            }
            Self::Update { table, key, value, ttl } => {
                let fields = [&command, table.spelling(), key, value];
                send_with_ttl(&mut sink, &fields, ttl);
            }
            Self::CompareAndSwap { table, key, expected, value, ttl } => {
                let fields = [&command, table.spelling(), key, &expected.to_be_bytes(), value];
                send_with_ttl(&mut sink, &fields, ttl);
            }
            Self::CompareAndDelete { table, key, expected } => {
                send(&mut sink, &[&command, table.spelling(), key, &expected.to_be_bytes()]);
            }
            Self::Touch { table, key, ttl } | Self::GetAndTouch { table, key, ttl } => {
                send(&mut sink, &[&command, table.spelling(), key, TtlField::new(ttl).bytes()]);
            }
            Self::GetMany { table, keys } | Self::DeleteMany { table, keys } => {
                sink(&command, true);
                sink(table.spelling(), !keys.is_empty());
                send_all(&mut sink, keys);
            }
            Self::UpdateMany { table, ttl, pairs } => {
                let ttl = ttl.map(TtlField::new);
                sink(&command, true);
                sink(table.spelling(), true);
                sink(ttl.as_ref().map_or(&[], TtlField::bytes), !pairs.is_empty());
                send_all(&mut sink, pairs.as_flattened());
            }
            Self::Scan { table, cursor, count, fields, prefix } => {
                let (count, fields) = (u64::from(count).to_be_bytes(), [fields.code()]);
                let fields = [&command, table.spelling(), cursor, &count, &fields, prefix];
                send(&mut sink, fields.get(..if prefix.is_empty() { 5 } else { 6 }).unwrap_or(&fields));
            }
            Self::Increment { table, key, delta, ttl } => {
                send_with_ttl(&mut sink, &[&command, table.spelling(), key, &delta.to_be_bytes()], ttl);
            }
            Self::Changes { table, position: FeedPosition { epoch, incarnation, sequence } } => {
                let [epoch, incarnation, sequence] = [epoch, incarnation, sequence].map(u64::to_be_bytes);
                send(&mut sink, &[&command, table.spelling(), &epoch, &incarnation, &sequence]);
            }
            Self::Restore { table, key, value, version, ttl } => {
                let fields = [&command, table.spelling(), key, value, &version.to_be_bytes()];
                send_with_ttl(&mut sink, &fields, Some(ttl));
            }
            Self::Ping | Self::ListTables | Self::Stats => sink(&command, false),
        }
    }
}

/// Sends frames, and marks the last one as the end of the message.
fn send_all<F: Deref<Target = [u8]>>(sink: &mut impl FnMut(&[u8], bool), frames: &[F]) {
    if let Some((last, others)) = frames.split_last() {
        others.iter().for_each(|frame| sink(frame, true));
        sink(last, false);
    }
}

fn send(sink: &mut impl FnMut(&[u8], bool), frames: &[&[u8]]) {
    send_all(sink, frames);
}

fn send_with_ttl(sink: &mut impl FnMut(&[u8], bool), frames: &[&[u8]], ttl: Option<Ttl>) {
    match ttl {
        None => send_all(sink, frames),
        Some(ttl) => {
            frames.iter().for_each(|frame| sink(frame, true));
            sink(TtlField::new(ttl).bytes(), false);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing, reason = "a test that fails should say where")]

    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;
    use crate::limits::TTL_MILLIS_MAX;
    use crate::services::tables::wire::FieldLimits;
    use crate::services::tables::wire::fuzz::EncodedFrames;

    fn encoded(request: &Request<'_>) -> EncodedFrames {
        let mut frames = EncodedFrames::default();
        request.encode(frames.sink());
        frames
    }

    #[test]
    fn the_frames_are_those_of_the_specification() {
        let table = TableName::spelt(b"tab\0");
        let frames = encoded(&Request::CompareAndSwap {
            table,
            key: b"key",
            expected: 258,
            value: b"value",
            ttl: Some(Ttl::from_secs(60)),
        });
        let version = [0, 0, 0, 0, 0, 0, 1, 2];
        let ttl = [0, 0, 0, 0, 0, 0, 0, 60];
        let expected: [&[u8]; 6] = [&[7], b"tab\0", b"key", &version, b"value", &ttl];
        assert_eq!(frames.slices(), expected);
        assert_eq!(encoded(&Request::Ping).slices(), [&[5]]);
        let frames = encoded(&Request::Increment { table, key: b"key", delta: -2, ttl: None });
        let delta = [255, 255, 255, 255, 255, 255, 255, 254];
        let expected: [&[u8]; 4] = [&[15], b"tab\0", b"key", &delta];
        assert_eq!(frames.slices(), expected);
        let ttl = Ttl::from_secs(60);
        let frames = encoded(&Request::Restore { table, key: b"key", value: b"value", version: 258, ttl });
        let expected: [&[u8]; 6] = [&[20], b"tab\0", b"key", b"value", &version, &[0, 0, 0, 0, 0, 0, 0, 60]];
        assert_eq!(frames.slices(), expected);
        let scan =
            |prefix| encoded(&Request::Scan { table, cursor: b"c", count: 258, fields: ScanFields::Entry, prefix });
        let expected: [&[u8]; 6] = [&[14], b"tab\0", b"c", &[0, 0, 0, 0, 0, 0, 1, 2], &[2], b"k"];
        assert_eq!(scan(b"k").slices(), expected);
        assert_eq!(scan(b"").slices(), expected[..5]);
    }

    #[test]
    fn a_client_may_send_what_a_server_refuses() {
        let table = TableName::spelt(b"");
        let empty: [&[u8]; 2] = [&[10], b""];
        assert_eq!(encoded(&Request::GetMany { table, keys: &[] }).slices(), empty);
        let empty: [&[u8]; 3] = [&[11], b"", b""];
        let request = Request::UpdateMany { table, ttl: None, pairs: &[] };
        assert_eq!(encoded(&request).slices(), empty);
    }

    fn comes_back(request: &Request<'_>) {
        let frames = encoded(request);
        assert_eq!(Request::decode(&frames.slices(), FieldLimits::DEFAULT).as_ref(), Ok(request));
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            table in vec(1u8.., 1..=254),
            keys in vec(vec(any::<u8>(), 0..=64), 1..20),
            value in vec(any::<u8>(), 0..=1024),
            ttl in option::of(0..=TTL_MILLIS_MAX),
            expected: u64,
            seconds: u32,
            delta: i64,
            cursor in vec(any::<u8>(), 0..=32),
            count in 1_u32..=10_000,
            fields in 0..4_u8,
        ) {
            let table = TableName::spelt(&table);
            let ttl = ttl.and_then(Ttl::from_millis);
            let (key, value) = (&*keys[0], &*value);
            let slices: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            let pairs: Vec<[&[u8]; 2]> = slices.iter().map(|key| [*key, value]).collect();
            comes_back(&Request::CreateTable { table });
            comes_back(&Request::DeleteTable { table });
            comes_back(&Request::Update { table, key, value, ttl });
            comes_back(&Request::Delete { table, key });
            comes_back(&Request::Get { table, key });
            comes_back(&Request::Ping);
            comes_back(&Request::GetEntry { table, key });
            comes_back(&Request::CompareAndSwap { table, key, expected, value, ttl });
            comes_back(&Request::CompareAndDelete { table, key, expected });
            comes_back(&Request::Touch { table, key, ttl: Ttl::from_secs(seconds) });
            comes_back(&Request::GetMany { table, keys: &slices });
            comes_back(&Request::UpdateMany { table, ttl, pairs: &pairs });
            comes_back(&Request::ListTables);
            comes_back(&Request::Stats);
            let (cursor, fields) = (&*cursor, ScanFields::by_code(fields).unwrap_or_default());
            comes_back(&Request::Scan { table, cursor, count, fields, prefix: key });
            comes_back(&Request::Increment { table, key, delta, ttl });
            comes_back(&Request::GetAndTouch { table, key, ttl: Ttl::from_secs(seconds) });
            comes_back(&Request::DeleteMany { table, keys: &slices });
            comes_back(&Request::FeedState { table });
            let position = FeedPosition { epoch: expected, incarnation: u64::from(seconds), sequence: expected / 2 };
            comes_back(&Request::Changes { table, position });
            let ttl = ttl.unwrap_or(Ttl::NONE);
            comes_back(&Request::Restore { table, key, value, version: expected, ttl });
        }
    }
}
