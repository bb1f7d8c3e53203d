//! The bytes of a batch with its records.
//!
//! This module writes no file; see `log.rs`.

use super::errors::Error;
use super::format::{BatchHead, Kind, batch_length, checksum, index};
use super::record::{Body, Record, RecordBatch};
use super::segment::Place;
use super::table::{BODY_HEAD, BodyHead, BodyHeads, RECORD_HEAD, RecordHead, TableRecords, table_length};

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
    batch_length(table, bodies)
}

/// The lengths of a batch's table, and of its bodies.
pub(super) fn lengths(batch: &RecordBatch) -> (u64, u64) {
    let head = |record: &Record| match record.body {
        Body::Bytes(_) => RECORD_HEAD + BODY_HEAD,
        Body::Removed | Body::SetAside => RECORD_HEAD,
    };
    let records: usize = batch.records.iter().map(|record| head(record) + record.key.len()).sum();
    let bodies: usize = batch.records.iter().map(|record| record.body.bytes().len()).sum();
    let (heads, more) = batch
        .encoded
        .iter()
        .fold((0, 0), |(heads, bodies), encoded| (heads + encoded.heads().len(), bodies + encoded.bodies().len()));
    (table_length((records + heads) as u64), (bodies + more) as u64)
}

/// Writes a batch into `buffer`, and returns the places of the bodies of its records, those that were encoded before
/// left out.
pub(super) fn encode(head: &BatchHead, batch: &RecordBatch, buffer: &mut Vec<u8>) -> Vec<Option<Place>> {
    buffer.clear();
    buffer.reserve_exact(index(head.length()));
    head.encode(buffer);
    let (mut table, first) = (TableRecords::with_bytes(index(head.table)), head.bodies_at());
    let mut places = Vec::with_capacity(batch.records.len());
    for Record { space, key, body } in &batch.records {
        let bytes = body.bytes();
        // `check_bounds` has refused longer ones.
        let (length, sum) = (u32::try_from(bytes.len()).unwrap_or(u32::MAX), checksum(bytes));
        let encoded = BodyHead { length, checksum: sum }.encode();
        let (kind, bodies) = match body {
            Body::Bytes(_) => (Kind::Bytes, BodyHeads::of(&encoded)),
            Body::SetAside => (Kind::SetAside, BodyHeads::default()),
            Body::Removed => (Kind::Removed, BodyHeads::default()),
        };
        let record = RecordHead { kind, space: *space, key, bodies };
        let offset = first + table.add(&record);
        places.push(Place::of_record(&record, head.segment, offset));
    }
    batch.encoded.iter().for_each(|encoded| table.append(encoded.heads()));
    table.encode(head, buffer);
    batch.records.iter().for_each(|record| buffer.extend_from_slice(record.body.bytes()));
    batch.encoded.iter().for_each(|encoded| buffer.extend_from_slice(encoded.bodies()));
    buffer.resize(index(head.length()), 0);
    places
}
