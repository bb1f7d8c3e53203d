//! The sums over the live records that decide what is reserved, and the records whose bytes are lost.
//!
//! This module decides nothing: see `admission.rs`.

use std::collections::BTreeSet;

use crate::store::format::Space;
use crate::store::record::{Body, RecordBatch, record_bytes, removal_bytes};

/// The bytes by which the state of a task may grow: by the number of its leases and the token and deadline of one, or by
/// the end of a delay and a reason of the server's own.
const STATE_GROWTH: u64 = 32;
/// The bytes by which the record of a queue may grow: all settings have 61.
const QUEUE_GROWTH: u64 = 64;

/// The live records.
#[derive(Debug, Default)]
pub(in crate::store) struct LiveRecords {
    /// The bytes of the states of all tasks, or of their removals.
    pub(in crate::store) reserved: u64,
    /// The records whose bytes are lost.
    pub(in crate::store) set_aside: BTreeSet<(Space, Box<[u8]>)>,
}

impl LiveRecords {
    /// Notes a batch that was written. Returns the bytes of its records and of its removals.
    pub(super) fn wrote(&mut self, batch: &RecordBatch) -> (u64, u64) {
        let (mut live, mut removals) = (0, 0);
        for record in &batch.records {
            let key = record.key.len();
            match record.body {
                Body::Removed => removals += removal_bytes(key),
                Body::Bytes(_) | Body::SetAside => {
                    live += record.bytes();
                    self.reserved += reserve_of(record.space, key, record.body.bytes().len() as u64);
                }
            }
            match record.body {
                Body::SetAside => drop(self.set_aside.insert((record.space, record.key.clone()))),
                Body::Bytes(_) | Body::Removed if self.set_aside.is_empty() => {}
                Body::Bytes(_) | Body::Removed => drop(self.set_aside.remove(&(record.space, record.key.clone()))),
            }
        }
        (live, removals)
    }
}

/// The most bytes that may come for a live record: the state of a task, or the removals of both of its records.
pub(in crate::store) fn reserve_of(space: Space, key: usize, body: u64) -> u64 {
    match space {
        Space::Meta => (record_bytes(key, body) + QUEUE_GROWTH).max(removal_bytes(key)),
        Space::Tasks => (record_bytes(key, body) + STATE_GROWTH).max(2 * removal_bytes(key)),
        Space::Values | Space::Tables | Space::Elements | Space::Touches => 0,
    }
}
