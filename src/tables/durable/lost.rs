//! The records that were not on disk when the log failed.
//!
//! ```text
//! log: a write or a sync fails ─► no writer enters any more ─► the open epoch is left ─► the records of both epochs are lost
//!      ─► the log has failed, for all to see
//! ```
//! A change waits for the last epoch that its table had when the publisher took it, which may be later than its own. So
//! the publisher asks here which of the changes are lost. The others are announced, and their elements are read.
//!
//! This file knows no element, and gives nothing up: see `announce/unsynced.rs`.

use ahash::AHashSet;

use super::records::ElementHead;
use crate::feed::Cause;
use crate::store::{EncodedRecords, Space};
use crate::tables::table::Table;

/// The records that were not on disk when the log failed.
#[derive(Default)]
pub(in crate::tables) struct LostRecords(AHashSet<LostRecord>);

/// The incarnation of a table, the low half of a version, and the key.
type LostRecord = (u64, u32, Box<[u8]>);

impl LostRecords {
    /// These are lost.
    pub(super) fn add(&mut self, records: &EncodedRecords) {
        let elements = records.keys().filter(|(space, _)| *space != Space::Tables);
        self.0.extend(elements.filter_map(|(_, key)| {
            let (ElementHead { incarnation, version, .. }, key) = ElementHead::decode(key)?;
            Some((incarnation, low(version), key.into()))
        }));
    }

    /// Whether the change of this key that has this version, of which it carries the low half, is lost. An expiry has no
    /// record, and neither has a deletion with the table: nobody knows whether what they wait for is on disk.
    pub(in crate::tables) fn has(&self, table: &Table, key: &[u8], version: u32, cause: Cause) -> bool {
        let has_record = !matches!(cause, Cause::Expire | Cause::DeleteWithTable);
        !has_record || self.0.contains(&(table.durability.incarnation(), version, key.into()))
    }
}

/// The half of a version that a change carries.
#[expect(clippy::cast_possible_truncation, reason = "the low half is what a change carries")]
fn low(version: u64) -> u32 {
    version as u32
}
