//! `DUMP` and `RESTORE` against their own format, against payloads that Redis 7.0 made, and against damage.

#![allow(clippy::indexing_slicing, reason = "a test that fails should say where")]

use super::RestoreError::{Checksum, Format, NotAString, TooLong};
use super::*;
use crate::seeded_rng::SeededRng;

const VALUE_MAX: usize = 1 << 20;

/// A payload with this body and a right footer.
fn sealed(body: &[u8], version: u16) -> Vec<u8> {
    let checked = [body, &version.to_le_bytes()].concat();
    let checksum = crc64(&checked).to_le_bytes();
    [&checked[..], &checksum].concat()
}

fn restored(body: &[u8]) -> Result<Vec<u8>, RestoreError> {
    restore(&sealed(body, 9), VALUE_MAX)
}

#[test]
fn a_dump_begins_as_redis_writes_it() {
    for (value, body) in [
        (&b""[..], &b"\0\x00"[..]),
        (b"a", b"\0\x01a"),
        (b"0", b"\0\xc0\x00"),
        (b"-128", b"\0\xc0\x80"),
        (b"128", b"\0\xc1\x80\x00"),
        (b"-32768", b"\0\xc1\x00\x80"),
        (b"32768", b"\0\xc2\x00\x80\x00\x00"),
        (b"-2147483648", b"\0\xc2\x00\x00\x00\x80"),
        (b"2147483648", b"\0\x0a2147483648"),
        (b"-0", b"\0\x02-0"),
        (b"007", b"\0\x03007"),
    ] {
        assert_eq!(dump(value), sealed(body, 9), "{value:?}");
        assert_eq!(restored(body).as_deref(), Ok(value));
    }
}

#[test]
fn what_is_dumped_is_restored() {
    for length in [0, 1, 63, 64, 16_383, 16_384, 65_535, 65_536, VALUE_MAX] {
        let value = vec![b'x'; length];
        let payload = dump(&value);
        assert_eq!(restore(&payload, length), Ok(value));
        if length > 0 {
            assert_eq!(restore(&payload, length - 1), Err(TooLong));
        }
    }
}

#[test]
fn payloads_that_redis_made_are_restored() {
    // DUMP of "aaaaaaaaaaaaaaaaaaaaaaaa", compressed, and of "hello", by redis-server 7.0.15.
    let compressed = b"\0\xc3\x09\x18\x01aa\xe0\x0b\x00\x01aa\x0a\x00\x58\x5c\xed\xc3\x8b\xe5\x46\xa5";
    let plain = b"\0\x05hello\x0a\x00\x63\x72\xdf\x76\x65\x34\x20\x0a";
    assert_eq!(restore(compressed, 24), Ok(vec![b'a'; 24]));
    assert_eq!(restore(compressed, 23), Err(TooLong));
    assert_eq!(restore(plain, 5), Ok(b"hello".to_vec()));
}

#[test]
fn a_wrong_footer_is_a_wrong_checksum() {
    let payload = sealed(b"\0\x01a", 9);
    for index in 0..payload.len() {
        let mut damaged = payload.clone();
        damaged[index] ^= 1;
        assert_eq!(restore(&damaged, VALUE_MAX), Err(Checksum));
        assert_eq!(restore(&payload[..index], VALUE_MAX), Err(Checksum));
    }
    assert_eq!(restore(&sealed(b"\0\x01a", 80), VALUE_MAX), Ok(b"a".to_vec()));
    assert_eq!(restore(&sealed(b"\0\x01a", 81), VALUE_MAX), Err(Checksum));
}

#[test]
fn other_kinds_are_no_strings() {
    for kind in (1..=7).chain(9..=25) {
        assert_eq!(restored(&[kind, 1, b'a']), Err(NotAString));
    }
    for kind in [8, 26, 255] {
        assert_eq!(restored(&[kind, 1, b'a']), Err(Format));
    }
}

#[test]
fn a_malformed_string_is_a_bad_format() {
    for body in [
        &b""[..],
        b"\0",
        b"\0\x01",
        b"\0\xc0",
        b"\0\xc4a",
        b"\0\xff",
        b"\0\x82\0\0\0\x01a",
        b"\0\x80\xff\xff\xff\xffa",
        b"\0\x81\xff\xff\xff\xff\xff\xff\xff\xffa",
        b"\0\xc3\x02\x02\x00a",
        b"\0\xc3\x04\x04\x00a\x20\x01",
        b"\0\xc3\x05\x0b\x00a\xe0\x00\x00",
        b"\0\xc3\x05\x01\x00a\xe0\x00\x00",
        b"\0\xc3\x81\xff\xff\xff\xff\xff\xff\xff\xff\x01a",
    ] {
        assert_eq!(restored(body), Err(Format), "{body:?}");
    }
}

#[test]
fn unusual_lengths_are_read_as_redis_reads_them() {
    for body in [
        &b"\0\x40\x01a"[..],
        b"\0\x80\0\0\0\x01a",
        b"\0\x81\0\0\0\0\0\0\0\x01a",
        b"\0\xc3\xc2\xc1\x00a",
        b"\0\x01a and bytes that nobody reads",
    ] {
        assert_eq!(restored(body), Ok(b"a".to_vec()));
    }
    assert_eq!(restored(b"\0\xc3\x02\x00\x00a"), Ok(vec![]));
}

#[test]
fn a_bomb_is_refused_before_it_is_unpacked() {
    let stream = [b"\x00a".to_vec(), b"\xe0\xff\x00".repeat(1 << 20)].concat();
    let length = |length: usize| [&[LENGTH_64][..], &(length as u64).to_be_bytes()].concat();
    let unpacked = 1 + 264 * (1 << 20);
    let body = |announced| [b"\0\xc3".to_vec(), length(stream.len()), length(announced), stream.clone()].concat();
    assert_eq!(restored(&body(unpacked)), Err(TooLong));
    assert_eq!(restored(&body(unpacked - 1)), Err(Format));
    assert_eq!(restored(&body(1)), Err(Format));
}

#[test]
fn damaged_payloads_never_panic() {
    let mut rng = SeededRng(6);
    let seeds: [&[u8]; 6] = [
        b"\0\x05hello",
        b"\0\xc0\x05",
        b"\0\xc2\x05\x06\x07\x08",
        b"\0\xc3\x05\x0a\x00a\xe0\x00\x00",
        b"\0\xc3\x0b\x40\x0e\x05abcdef\x60\x05\x20\x01",
        b"\0\x80\0\0\0\x02ab",
    ];
    let mut counts = [0; 5];
    for _ in 0..1_000_000 {
        let mut body = rng.pick(&seeds).to_vec();
        for _ in 0..rng.below(4) {
            let at = rng.index(body.len());
            match rng.below(3) {
                0 => body[at] = rng.next().to_le_bytes()[0],
                1 => body.truncate(at.max(1)),
                _ => body.insert(at, rng.pick(b"\0\x01\x40\x80\x81\xc0\xc3\xe0\xff")),
            }
        }
        let mut payload = sealed(&body, 9);
        if rng.one_in(8) {
            let at = rng.index(payload.len());
            payload[at] ^= 1 << rng.below(8);
        }
        let index = match restore(&payload, 12) {
            Ok(value) => {
                assert!(value.len() <= 12);
                0
            }
            Err(Checksum) => 1,
            Err(Format) => 2,
            Err(NotAString) => 3,
            Err(TooLong) => 4,
        };
        counts[index] += 1;
    }
    assert!(counts.iter().all(|&count| count > 100), "{counts:?}");
}
