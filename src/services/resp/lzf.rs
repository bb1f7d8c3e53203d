//! Unpacks LZF, the compression that Redis uses for long strings in dumps.
//!
//! ```text
//! stream  = *( literal | copy )
//! literal = 000LLLLL, L + 1 bytes                    L + 1 bytes as they stand
//! copy    = NNNDDDDD DDDDDDDD            N in 1…6    N + 2 bytes from D + 1 bytes before the end of the output
//!         | 111DDDDD NNNNNNNN DDDDDDDD               N + 9 bytes from there
//! ```
//! A copy may overlap its own output, and then repeats it. The source is the format of LibLZF (Lehmann). A stream is
//! measured before it is unpacked, so that a stream which grows too much costs no memory. This module does not
//! compress.

use crate::byte_reader::ByteReader;

/// One instruction of a stream.
enum Step<'c> {
    Literal(&'c [u8]),
    Copy { length: usize, distance: usize },
}

/// The bytes that the stream unpacks to, or none if the stream is malformed. Takes no memory.
pub(super) fn unpacked_length(compressed: &[u8]) -> Option<usize> {
    let mut reader = ByteReader::new(compressed);
    let mut unpacked = 0_usize;
    while !reader.is_empty() {
        let grown = match step(&mut reader)? {
            Step::Literal(bytes) => bytes.len(),
            Step::Copy { length, distance } => {
                unpacked.checked_sub(distance)?;
                length
            }
        };
        unpacked = unpacked.checked_add(grown)?;
    }
    Some(unpacked)
}

/// The bytes that the stream unpacks to. The caller has measured them: `length` is what [`unpacked_length`] returned.
pub(super) fn unpack(compressed: &[u8], length: usize) -> Option<Vec<u8>> {
    let mut reader = ByteReader::new(compressed);
    let mut unpacked = Vec::with_capacity(length);
    while !reader.is_empty() {
        match step(&mut reader)? {
            Step::Literal(bytes) => unpacked.extend_from_slice(bytes),
            Step::Copy { length, distance } => repeat(&mut unpacked, length, distance)?,
        }
    }
    debug_assert_eq!(unpacked.len(), length, "the stream was measured");
    Some(unpacked)
}

/// The next instruction.
fn step<'c>(reader: &mut ByteReader<'c>) -> Option<Step<'c>> {
    let control = usize::from(reader.byte()?);
    let (kind, high) = (control >> 5, control & 0x1f);
    let length = match kind {
        0 => return reader.take(control + 1).map(Step::Literal),
        7 => 9 + usize::from(reader.byte()?),
        _ => kind + 2,
    };
    let low = usize::from(reader.byte()?);
    Some(Step::Copy { length, distance: (high << 8) + low + 1 })
}

/// Appends the bytes that begin `distance` before the end, and goes around where they overlap the end.
fn repeat(unpacked: &mut Vec<u8>, length: usize, distance: usize) -> Option<()> {
    let start = unpacked.len().checked_sub(distance)?;
    let mut missing = length;
    while missing > 0 {
        // What is appended has the period `distance`, so each turn may copy all that is there since `start`.
        let part = missing.min(unpacked.len() - start);
        unpacked.extend_from_within(start..start + part);
        missing -= part;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeded_rng::SeededRng;

    fn unpacked(stream: &[u8]) -> Option<Vec<u8>> {
        let length = unpacked_length(stream)?;
        let unpacked = unpack(stream, length)?;
        assert_eq!(unpacked.len(), length);
        Some(unpacked)
    }

    #[test]
    fn literals_and_copies_unpack() {
        assert_eq!(unpacked(b""), Some(vec![]));
        assert_eq!(unpacked(b"\x02abc"), Some(b"abc".to_vec()));
        assert_eq!(unpacked(b"\x02abc\x20\x02"), Some(b"abcabc".to_vec()));
        assert_eq!(unpacked(b"\x00a\x20\x00"), Some(b"aaaa".to_vec()));
        assert_eq!(unpacked(b"\x01ab\xe0\x00\x01"), Some(b"abababababa".to_vec()));
        assert_eq!(unpacked(b"\x00a\xe0\xff\x00"), Some(vec![b'a'; 265]));
    }

    #[test]
    fn a_stream_that_ends_early_or_copies_from_before_its_start_is_refused() {
        for stream in
            [&b"\x00"[..], b"\x02ab", b"\x20\x00", b"\x00a\x20", b"\x00a\x20\x01", b"\x00a\xe0\x00", b"\x00a\x21\x00"]
        {
            assert_eq!(unpacked(stream), None);
        }
    }

    #[test]
    fn a_bomb_is_measured_without_being_unpacked() {
        let bomb = [b"\x00a".to_vec(), b"\xe0\xff\x00".repeat(1 << 20)].concat();
        assert_eq!(unpacked_length(&bomb), Some(1 + 264 * (1 << 20)));
    }

    #[test]
    fn random_streams_unpack_to_their_measure_or_are_refused() {
        let mut rng = SeededRng(5);
        let mut read = 0;
        for _ in 0..300_000 {
            let stream: Vec<u8> =
                (0..rng.below(12)).map(|_| rng.pick(b"\0\0\0\x01\x01\x02\x1f\x20\x40\xe0\xff")).collect();
            read += u32::from(unpacked(&stream).is_some());
        }
        assert!(read > 10_000, "{read} streams were well-formed");
    }
}
