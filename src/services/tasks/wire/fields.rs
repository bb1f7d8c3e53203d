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

    pub(super) fn short(&mut self, field: Field) -> Result<u16, Fault> {
        self.array(field).map(u16::from_be_bytes)
    }

    pub(super) fn int(&mut self, field: Field) -> Result<u32, Fault> {
        self.array(field).map(u32::from_be_bytes)
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

    /// A length of one byte, and that many bytes.
    pub(super) fn short_run(&mut self, field: Field) -> Result<&'b [u8], Fault> {
        let [length] = self.array(field)?;
        self.take(usize::from(length), field)
    }

    /// A length of two bytes, and that many bytes.
    pub(super) fn long_run(&mut self, field: Field) -> Result<&'b [u8], Fault> {
        let length = self.short(field)?;
        self.take(usize::from(length), field)
    }

    /// What is not read yet.
    pub(super) fn rest(&self) -> &'b [u8] {
        self.0.rest()
    }

    fn take(&mut self, length: usize, field: Field) -> Result<&'b [u8], Fault> {
        let run = self.0.take(length);
        run.ok_or_else(|| Fault::Truncated { field, required: count(length), given: count(self.0.rest().len()) })
    }

    fn run(&mut self, length: Field, field: Field, most: usize) -> Result<&'b [u8], Fault> {
        let required = self.array(length).map(u32::from_be_bytes)?;
        if required as usize > most {
            return Err(Fault::Truncated { field, required, given: count(most) });
        }
        self.take(required as usize, field)
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

/// Appends a length of one byte and the name.
///
/// # Panics
/// If it has more than 255 bytes.
pub(super) fn encode_name(name: &[u8], out: &mut Vec<u8>) {
    out.push(u8::try_from(name.len()).expect("a name has at most 255 bytes"));
    out.extend(name);
}

/// Appends a tag and its value.
pub(super) fn encode_tagged(tag: u8, value: &[u8], out: &mut Vec<u8>) {
    out.push(tag);
    out.extend(value);
}

fn count(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
