//! Records, and batches of them.
//!
//! A record is the whole state of a key: its bytes, that it was removed, or that its bytes are lost.
//!
//! This module writes nothing.

use std::ops::Deref;
use std::sync::Arc;

use super::encoded::EncodedRecords;
use super::format::Space;
use super::table::{BODY_HEAD, RECORD_HEAD};

/// A run of bytes that is cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Value(Arc<[u8]>);

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// The state of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// It has these bytes, of less than 4 GiB.
    Bytes(Value),
    /// It is no longer there.
    Removed,
    /// It is there, and its bytes are lost: the device has changed them. The key stays listed until the owner writes or
    /// removes it.
    SetAside,
}

impl Body {
    /// The bytes, none if there are none.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Removed | Self::SetAside => &[],
        }
    }
}

/// The new state of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The space of the record.
    pub space: Space,
    /// Its key, of at most 65,535 bytes.
    pub key: Box<[u8]>,
    /// Its state.
    pub body: Body,
}

impl Record {
    /// The bytes that it takes in the log.
    pub(super) fn bytes(&self) -> u64 {
        record_bytes(self.key.len(), self.body.bytes().len() as u64)
    }
}

/// How far copies go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// The segments that need no more copies: everything that counts is in earlier batches, or in this batch.
    pub(super) finished: Vec<u32>,
    /// The place in the next one, if one is begun.
    pub(super) at: Option<CleanedUpTo>,
}

/// The end of copies: all live records of the segment before it are in batches that were written before, or in this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CleanedUpTo {
    pub(super) segment: u32,
    /// The offset of a batch.
    pub(super) offset: u64,
    /// The index of a record in that batch.
    pub(super) record: usize,
}

/// Records that are written together. The later one of a key counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordBatch {
    /// In the order in which they are written.
    pub records: Vec<Record>,
    /// Records that come behind them.
    pub encoded: Vec<EncodedRecords>,
    /// The end of the copies in front of the records, as [`super::Log::copies`] returned it.
    pub cleaned: Option<Cleaned>,
}

impl From<Vec<Record>> for RecordBatch {
    fn from(records: Vec<Record>) -> Self {
        Self { records, ..Self::default() }
    }
}

impl RecordBatch {
    /// Whether it has no record.
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.encoded.iter().all(EncodedRecords::is_empty)
    }
}

/// The bytes that a record takes in a segment, at most.
pub(super) fn record_bytes(key: usize, body: u64) -> u64 {
    (RECORD_HEAD + BODY_HEAD + key) as u64 + body
}

/// The bytes that the removal of a record takes in a segment, at most.
pub(super) fn removal_bytes(key: usize) -> u64 {
    record_bytes(key, 0)
}
