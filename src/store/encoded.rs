//! Records that their owner has encoded: as they stand in a batch, without an allocation for each.
//!
//! ```text
//! heads    record, record …     as in the table of a batch, without its pieces
//! bodies   body, body …         of the same records, one behind the other
//! ```
//! Any number of them make a batch: their heads go into its table, their bodies behind it.
//!
//! This module writes no file.

use super::format::{Kind, Space, checksum};
use super::table::{BODY_HEAD, BodyHead, RECORD_HEAD, RecordHead};
use crate::byte_reader::ByteReader;

/// Encoded records, in the order in which they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodedRecords {
    heads: Vec<u8>,
    bodies: Vec<u8>,
}

impl EncodedRecords {
    /// The bytes that a record with a key and a body of these lengths takes here, at most.
    #[must_use]
    pub const fn bytes_of(key: usize, body: usize) -> usize {
        RECORD_HEAD + BODY_HEAD + key + body
    }

    /// Adds a record with a body. The key is put together from its parts, which have at most 65,535 bytes.
    ///
    /// # Panics
    /// If key or body are longer than the format can hold.
    pub fn put(&mut self, space: Space, key: [&[u8]; 2], body: &[u8]) {
        self.head(Kind::Bytes, 1, space, key);
        let length = u32::try_from(body.len()).expect("a body has less than 4 GiB");
        self.heads.extend(BodyHead { length, checksum: checksum(body) }.encode());
        key.into_iter().for_each(|part| self.heads.extend_from_slice(part));
        self.bodies.extend_from_slice(body);
    }

    /// Adds a record that removes its key.
    ///
    /// # Panics
    /// As [`EncodedRecords::put`].
    pub fn remove(&mut self, space: Space, key: [&[u8]; 2]) {
        self.head(Kind::Removed, 0, space, key);
        key.into_iter().for_each(|part| self.heads.extend_from_slice(part));
    }

    fn head(&mut self, kind: Kind, bodies: u8, space: Space, key: [&[u8]; 2]) {
        let length: usize = key.iter().map(|part| part.len()).sum();
        let length = u16::try_from(length).expect("a key has at most 65,535 bytes");
        self.heads.extend([kind as u8 | bodies << 4, space as u8]);
        self.heads.extend(length.to_le_bytes());
    }

    /// The heads of all records.
    pub(super) fn heads(&self) -> &[u8] {
        &self.heads
    }

    /// The keys of all records, with their spaces.
    pub fn keys(&self) -> impl Iterator<Item = (Space, &[u8])> {
        let mut heads = ByteReader::new(&self.heads);
        std::iter::from_fn(move || {
            RecordHead::decode(&mut heads).ok().map(|RecordHead { space, key, .. }| (space, key))
        })
    }

    /// The bodies of all records.
    pub(super) fn bodies(&self) -> &[u8] {
        &self.bodies
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.heads.len() + self.bodies.len()
    }

    /// Whether it has no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Removes all records, and gives memory back beyond this many bytes.
    pub fn clear(&mut self, kept: usize) {
        for bytes in [&mut self.heads, &mut self.bodies] {
            bytes.clear();
            bytes.shrink_to(kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::encoding::{encode, lengths};
    use crate::store::format::BatchHead;
    use crate::store::record::{Body, Record, RecordBatch, Value};

    #[test]
    fn encoded_records_make_the_batch_that_they_would_make_one_by_one() {
        let (mut records, mut parts) = (Vec::new(), Vec::new());
        for number in 0..400_usize {
            let key = vec![b'k'; number * 7 % 300];
            let body = vec![b'b'; number * 13 % 200];
            let space = if number.is_multiple_of(2) { Space::Elements } else { Space::Touches };
            let is_removed = number % 5 == 0;
            if number % 100 == 0 {
                parts.push(EncodedRecords::default());
            }
            let encoded = parts.last_mut().expect("one was pushed");
            let halves = key.split_at(key.len() / 2);
            match is_removed {
                true => encoded.remove(space, [halves.0, halves.1]),
                false => encoded.put(space, [halves.0, halves.1], &body),
            }
            let body = if is_removed { Body::Removed } else { Body::Bytes(Value::from(body)) };
            records.push(Record { space, key: key.into(), body });
        }
        let second = records.split_off(100);
        let alone = RecordBatch::from([records.clone(), second].concat());
        let mixed = RecordBatch { records, encoded: parts.split_off(1), cleaned: None };
        assert_eq!(lengths(&alone), lengths(&mixed));
        let (table, bodies) = lengths(&alone);
        let keys = mixed.encoded.iter().flat_map(EncodedRecords::keys);
        assert!(keys.eq(alone.records.iter().skip(100).map(|record| (record.space, &*record.key))));
        let (store, nonce, marks) = ([1; 16], [2; 16], [0; 4]);
        let head =
            BatchHead { store, nonce, segment: 1, offset: 512, number: 1, table, bodies, synced: 0, oldest: 1, marks };
        let (mut one, mut other) = (Vec::new(), Vec::new());
        encode(&head, &alone, &mut one);
        encode(&head, &mixed, &mut other);
        assert!(one == other && one.len() > 3 * 4_096);
    }
}
