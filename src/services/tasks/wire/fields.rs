//! Reads and writes the fields that requests and replies share.

use super::fault::{Fault, Field};
use crate::byte_reader::ByteReader;
use crate::limits::{TASK_KEY_BYTES_MAX, TASK_VALUE_BYTES_MAX};

/// Reads fields. A field that lacks bytes is a fault.
pub(super) struct Fields<'b>(ByteReader<'b>);

impl<'b> Fields<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Self {
        Self(ByteReader::new(bytes))
    }

    /// The next byte, if there is one.
    pub(super) fn optional(&mut self) -> Option<u8> {
        self.0.byte()
    }

    pub(super) fn byte(&mut self, field: Field) -> Result<u8, Fault> {
        self.array::<1>(field).map(|[byte]| byte)
    }

    pub(super) fn long(&mut self, field: Field) -> Result<u64, Fault> {
        self.array(field).map(u64::from_be_bytes)
    }

    /// A key: its length, and that many bytes.
    pub(super) fn key(&mut self, length: Field, key: Field) -> Result<&'b [u8], Fault> {
        self.run(length, key, TASK_KEY_BYTES_MAX)
    }

    /// A value: its length, and that many bytes.
    pub(super) fn value(&mut self, length: Field, value: Field) -> Result<&'b [u8], Fault> {
        self.run(length, value, TASK_VALUE_BYTES_MAX)
    }

    fn run(&mut self, length: Field, field: Field, most: usize) -> Result<&'b [u8], Fault> {
        let required = self.array(length).map(u32::from_be_bytes)?;
        if required as usize > most {
            return Err(Fault::Truncated { field, required, given: count(most) });
        }
        let run = self.0.take(required as usize);
        run.ok_or_else(|| Fault::Truncated { field, required, given: count(self.0.rest().len()) })
    }

    fn array<const N: usize>(&mut self, field: Field) -> Result<[u8; N], Fault> {
        let array = self.0.array();
        array.ok_or_else(|| Fault::Truncated { field, required: count(N), given: count(self.0.rest().len()) })
    }
}

/// Appends a length, and that many bytes.
///
/// # Panics
/// If `bytes` has 4 GiB or more.
pub(super) fn encode_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    let length = u32::try_from(bytes.len()).expect("keys and values are shorter than 4 GiB");
    out.extend(length.to_be_bytes());
    out.extend(bytes);
}

fn count(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
