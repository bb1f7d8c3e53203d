//! The checksum of `DUMP`: CRC-64 with Jones's polynomial, as in Redis.
//!
//! ```text
//! polynomial 0xad93d23594c935a9, reflected in and out, begins with 0, no final XOR
//! crc64("123456789") = 0xe9c6d914c4b8d9ca
//! ```
//! Eight bytes are taken at a time, each with a table of its own ("slicing by 8", Kounavis and Berry, 2005). This
//! module does not know where a payload keeps its checksum.

/// The polynomial with its bits reversed.
const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;

/// What each value of a byte adds to a checksum.
type Table = [u64; 256];

/// The first table is for the last of eight bytes, the last table for the first of them.
static TABLES: [Table; 8] = tables();

/// The checksum of these bytes.
pub(super) fn crc64(bytes: &[u8]) -> u64 {
    let (chunks, rest) = bytes.as_chunks::<8>();
    let crc = chunks.iter().fold(0, |crc: u64, chunk| {
        let mixed = (crc ^ u64::from_le_bytes(*chunk)).to_le_bytes();
        TABLES.iter().rev().zip(mixed).fold(0, |sum, (table, byte)| sum ^ entry(table, byte))
    });
    let [first, ..] = &TABLES;
    rest.iter().fold(crc, |crc, &byte| {
        let [low, ..] = crc.to_le_bytes();
        (crc >> 8) ^ entry(first, low ^ byte)
    })
}

/// The table's entry for a byte.
fn entry(table: &Table, byte: u8) -> u64 {
    table.get(usize::from(byte)).copied().unwrap_or_default()
}

/// All tables.
const fn tables() -> [Table; 8] {
    let mut tables = [[0; 256]; 8];
    let mut zeros = 0;
    let mut rest: &mut [Table] = &mut tables;
    while let Some((table, behind)) = rest.split_first_mut() {
        fill(table, zeros);
        zeros += 1;
        rest = behind;
    }
    tables
}

/// Fills the table for a byte with so many bytes behind it.
const fn fill(table: &mut Table, zeros: u32) {
    let mut byte = 0;
    let mut rest: &mut [u64] = table;
    while let Some((slot, behind)) = rest.split_first_mut() {
        *slot = byte;
        let mut bits = (zeros + 1) * 8;
        while bits > 0 {
            *slot = (*slot >> 1) ^ if *slot & 1 == 1 { POLYNOMIAL } else { 0 };
            bits -= 1;
        }
        byte += 1;
        rest = behind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeded_rng::SeededRng;

    #[test]
    fn the_check_value_is_the_published_one() {
        assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
        assert_eq!(crc64(b""), 0);
    }

    #[test]
    fn eight_bytes_at_a_time_give_the_same_as_bit_by_bit() {
        let mut rng = SeededRng(4);
        for length in 0..200 {
            let bytes: Vec<u8> = (0..length).map(|_| rng.pick(b"\0\x01\x7f\x80\xffabc")).collect();
            let slow = bytes.iter().fold(0, |crc: u64, &byte| {
                (0..8).fold(crc ^ u64::from(byte), |crc, _| (crc >> 1) ^ (POLYNOMIAL * (crc & 1)))
            });
            assert_eq!(crc64(&bytes), slow);
        }
    }
}
