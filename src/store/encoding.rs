//! The bytes of a batch with its records.
//!
//! This module writes no file; see `log.rs`.

use super::errors::Error;
use super::format::{BATCH_HEAD, BatchHead, CHECKSUM, Kind, RECORD_HEAD, RecordHead, align, checksum, index, seal};
use super::record::{Body, Record, RecordBatch};
use super::segment::{Place, short};

/// Refuses a batch that the format cannot hold.
pub(super) fn check_bounds(batch: &RecordBatch, batch_most: u64) -> Result<(), Error> {
    let check = |what, given, most| if given <= most { Ok(()) } else { Err(Error::TooLarge { what, given, most }) };
    for record in &batch.records {
        check("key", record.key.len() as u64, u64::from(u16::MAX))?;
        check("body", record.body.bytes().len() as u64, u64::from(u32::MAX))?;
    }
    check("batch", batch_bytes(batch), batch_most)
}

/// The bytes of a batch in its segment.
pub(super) fn batch_bytes(batch: &RecordBatch) -> u64 {
    let (table, bodies) = lengths(batch);
    align(BATCH_HEAD as u64 + table + bodies)
}

/// The lengths of a batch's table, with its checksum, and of its bodies.
pub(super) fn lengths(batch: &RecordBatch) -> (u64, u64) {
    let table: usize = batch.records.iter().map(|record| RECORD_HEAD + record.key.len()).sum();
    let bodies: usize = batch.records.iter().map(|record| record.body.bytes().len()).sum();
    ((table + CHECKSUM) as u64, bodies as u64)
}

/// Writes a batch into `buffer`, and returns the places of its bodies.
pub(super) fn encode(head: &BatchHead, batch: &RecordBatch, buffer: &mut Vec<u8>) -> Vec<Option<Place>> {
    buffer.clear();
    head.encode(buffer);
    let table = buffer.len();
    let mut offset = head.offset + BATCH_HEAD as u64 + head.table;
    let mut places = Vec::with_capacity(batch.records.len());
    for Record { space, key, body } in &batch.records {
        let bytes = body.bytes();
        // `check_bounds` has refused longer ones.
        let (length, sum) = (u32::try_from(bytes.len()).unwrap_or(u32::MAX), checksum(bytes));
        let (kind, place) = match body {
            Body::Bytes(_) => (Kind::Bytes, Some(Place::new(head.segment, offset, length, short(sum)))),
            Body::SetAside => (Kind::SetAside, Some(Place::of_set_aside(head.segment, offset))),
            Body::Removed => (Kind::Removed, None),
        };
        RecordHead { kind, space: *space, key, body: length, checksum: sum }.encode(buffer);
        places.push(place);
        offset += u64::from(length);
    }
    seal(buffer, table);
    batch.records.iter().for_each(|record| buffer.extend_from_slice(record.body.bytes()));
    buffer.resize(index(head.length()), 0);
    places
}
