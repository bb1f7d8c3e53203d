//! Reads the fields of a format from its bytes, first to last, and never beyond their end.
//!
//! This module knows no format. A field that lacks bytes is `None`, and what that means is up to the reader's owner.

/// The bytes that are not read yet. A read that fails leaves them as they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByteReader<'b>(&'b [u8]);

impl<'b> ByteReader<'b> {
    /// A reader that begins with the first of these bytes.
    #[inline]
    pub(crate) fn new(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    /// The bytes that are not read yet.
    #[inline]
    pub(crate) fn rest(self) -> &'b [u8] {
        self.0
    }

    /// Whether all bytes are read.
    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The next `count` bytes.
    #[inline]
    pub(crate) fn take(&mut self, count: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// The next `N` bytes.
    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    /// The next byte.
    #[inline]
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    /// A big-endian integer of 2 bytes.
    #[inline]
    pub(crate) fn u16_be(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// A big-endian integer of 4 bytes.
    #[inline]
    pub(crate) fn u32_be(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// A big-endian integer of 8 bytes.
    #[inline]
    pub(crate) fn u64_be(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A little-endian integer of 2 bytes.
    #[inline]
    pub(crate) fn u16_le(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// A little-endian integer of 4 bytes.
    #[inline]
    pub(crate) fn u32_le(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// A little-endian integer of 8 bytes.
    #[inline]
    pub(crate) fn u64_le(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// As many bytes as the byte before them says.
    #[inline]
    pub(crate) fn run_u8(&mut self) -> Option<&'b [u8]> {
        let mut reader = *self;
        let count = usize::from(reader.byte()?);
        let run = reader.take(count)?;
        *self = reader;
        Some(run)
    }

    /// As many bytes as the big-endian integer of 2 bytes before them says.
    #[inline]
    pub(crate) fn run_u16_be(&mut self) -> Option<&'b [u8]> {
        let mut reader = *self;
        let count = usize::from(reader.u16_be()?);
        let run = reader.take(count)?;
        *self = reader;
        Some(run)
    }

    /// As many bytes as the big-endian integer of 4 bytes before them says.
    #[inline]
    pub(crate) fn run_u32_be(&mut self) -> Option<&'b [u8]> {
        let mut reader = *self;
        let count = usize::try_from(reader.u32_be()?).ok()?;
        let run = reader.take(count)?;
        *self = reader;
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; 15] = [1, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4];

    #[test]
    fn fields_come_in_their_order() {
        let mut reader = ByteReader::new(&BYTES);
        assert_eq!(
            (reader.byte(), reader.u16_be(), reader.u32_be(), reader.u64_be()),
            (Some(1), Some(2), Some(3), Some(4))
        );
        assert!(reader.is_empty());
        let mut reader = ByteReader::new(&BYTES);
        assert_eq!((reader.take(14).map(<[u8]>::len), reader.rest()), (Some(14), &[4][..]));
    }

    #[test]
    fn a_field_that_lacks_bytes_reads_none() {
        for length in 0..8 {
            let bytes = BYTES.get(..length).unwrap_or_default();
            let mut reader = ByteReader::new(bytes);
            assert_eq!((reader.u64_be(), reader.take(length + 1), reader.array::<8>()), (None, None, None));
            assert_eq!(reader.take(length), Some(bytes));
            assert_eq!((reader.byte(), reader.take(0)), (None, Some(&[][..])));
        }
    }

    #[test]
    fn a_run_has_its_length_before_it() {
        let mut reader = ByteReader::new(b"\x02ab\0\0\0\x01c\0\x01d");
        assert_eq!((reader.run_u8(), reader.run_u32_be()), (Some(&b"ab"[..]), Some(&b"c"[..])));
        assert_eq!((reader.run_u16_be(), reader.is_empty()), (Some(&b"d"[..]), true));
        for cut in [&b""[..], b"\x02a", b"\0\0\0", b"\0\0\0\x02a", b"\xff\xff\xff\xff"] {
            let mut reader = ByteReader::new(cut);
            assert_eq!(reader.run_u32_be(), None);
            assert_eq!(reader.rest(), cut, "a run that is cut is not read");
        }
        let mut reader = ByteReader::new(b"\0\x02a");
        assert_eq!((reader.run_u16_be(), reader.rest()), (None, &b"\0\x02a"[..]));
        assert_eq!(ByteReader::new(b"\x02a").run_u8(), None);
    }
}
