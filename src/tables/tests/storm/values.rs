//! Keys and values of a storm, and its seed. A value says which key and which write it is of.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::feed::Digest;
use crate::seeded_rng::SeededRng;

/// Keys of a table. The last [`COUNTERS`] of them have decimal numbers as values.
pub(super) const KEYS: usize = 12;
const COUNTERS: usize = 2;
/// The lengths of keys: the empty key, a key that fits into the slot's own bits, longer keys, and the longest.
const KEY_BYTES: [usize; KEYS - COUNTERS] = [0, 1, 2, 8, 16, 64, 126, 127, 300, 4_096];
/// Bytes of the checksum of a long value, and of the number of its write.
const SUM_BYTES: usize = 8;
/// The longest value.
const VALUE_BYTES_MAX: usize = 1 << 20;

/// A seed that differs from run to run.
pub(super) fn seed_of_now() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() & u128::from(u32::MAX)).unwrap()
}

/// The key of this number.
pub(super) fn key_of(number: usize) -> Vec<u8> {
    match KEY_BYTES.get(number) {
        Some(&bytes) => vec![b'a' + u8::try_from(number).unwrap(); bytes],
        None => format!("n{number}").into_bytes(),
    }
}

/// Whether the values of the key are decimal numbers.
pub(super) fn is_counter(number: usize) -> bool {
    number >= KEYS - COUNTERS
}

/// The length of a value: most are short, few are very long.
pub(super) fn random_length(random: &mut SeededRng) -> usize {
    match random.below(1_000) {
        0..150 => 0,
        150..400 => random.index(2 * SUM_BYTES),
        400..880 => random.index(200),
        880..985 => random.index(5_000),
        985..997 => random.index(100_000),
        _ => random.index(VALUE_BYTES_MAX),
    }
}

fn hash(bytes: &[u8], seed: u64) -> u64 {
    let mut digest = Digest::default();
    digest.add(bytes, seed);
    digest.sum
}

/// The value of this key that the write of this number stores.
pub(super) fn value_of(key: usize, write: u64, length: usize) -> Vec<u8> {
    if is_counter(key) {
        return (write % 1_000_000).to_string().into_bytes();
    }
    if length < 2 * SUM_BYTES {
        return vec![u8::try_from((key * 16 + length) & 0xff).unwrap(); length];
    }
    let mut value: Vec<u8> = write.to_le_bytes().into_iter().cycle().take(length - SUM_BYTES).collect();
    let sum = hash(&value, key as u64);
    value.extend(sum.to_le_bytes());
    value
}

/// The number that identifies a value of the key. Panics if the value is torn or of another key.
pub(super) fn checked(key: usize, value: &[u8]) -> u64 {
    if is_counter(key) {
        let text = std::str::from_utf8(value).expect("a counter is text");
        return text.parse::<i64>().unwrap_or_else(|_| panic!("{text:?} is no number")).cast_unsigned();
    }
    let length = value.len();
    if length < 2 * SUM_BYTES {
        assert_eq!(value, value_of(key, 0, length), "a short value of key {key}");
        return length as u64;
    }
    let (body, sum) = value.split_at(length - SUM_BYTES);
    assert_eq!(sum, hash(body, key as u64).to_le_bytes(), "a value of key {key} with {length} bytes is torn");
    u64::from_le_bytes(body[..SUM_BYTES].try_into().unwrap())
}
