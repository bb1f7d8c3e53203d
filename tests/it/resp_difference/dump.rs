//! The payload of DUMP and RESTORE for strings: built with each encoding, and decoded to its string.
//!
//! ```text
//! type 0 │ string: length and bytes, or C0 i8, C1 i16, C2 i32, C3 packed length, length, LZF │ version, 2 │ CRC-64, 8
//! ```
//! Source: `rdb.c`, `lzf_d.c` and `crc64.c` of Redis 7.0. The numbers of the footer are little-endian.

/// The version that Redis 7.0 writes.
const VERSION: u16 = 10;
/// The bytes of the footer: version and checksum.
const FOOTER_BYTES: usize = 10;
/// The reflected polynomial of Jones.
const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;

/// How a payload holds its string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Raw,
    /// As a number, if the string is one of 32 bits. Else raw.
    Integer,
    /// As LZF without any reference, in parts of 32 bytes.
    Literals,
}

/// A valid payload of this string.
pub(crate) fn payload(string: &[u8], encoding: Encoding) -> Vec<u8> {
    let mut body = vec![0];
    let integer = std::str::from_utf8(string).ok().and_then(|text| text.parse::<i32>().ok());
    match (encoding, integer) {
        (Encoding::Integer, Some(number)) => append_integer(number, &mut body),
        (Encoding::Literals, _) if !string.is_empty() => {
            let mut packed = Vec::new();
            for part in string.chunks(32) {
                packed.push(u8::try_from(part.len() - 1).expect("a part is short"));
                packed.extend_from_slice(part);
            }
            body.push(0xc3);
            append_length(packed.len(), &mut body);
            append_length(string.len(), &mut body);
            body.extend_from_slice(&packed);
        }
        _ => {
            append_length(string.len(), &mut body);
            body.extend_from_slice(string);
        }
    }
    sealed(body)
}

/// A body with its footer.
pub(crate) fn sealed(mut body: Vec<u8>) -> Vec<u8> {
    body.extend_from_slice(&VERSION.to_le_bytes());
    let sum = checksum(&body);
    body.extend_from_slice(&sum.to_le_bytes());
    body
}

fn append_integer(number: i32, body: &mut Vec<u8>) {
    if let Ok(small) = i8::try_from(number) {
        body.push(0xc0);
        body.extend_from_slice(&small.to_le_bytes());
    } else if let Ok(middle) = i16::try_from(number) {
        body.push(0xc1);
        body.extend_from_slice(&middle.to_le_bytes());
    } else {
        body.push(0xc2);
        body.extend_from_slice(&number.to_le_bytes());
    }
}

fn append_length(length: usize, body: &mut Vec<u8>) {
    match u16::try_from(length) {
        Ok(small @ ..64) => body.push(small.to_le_bytes()[0]),
        Ok(middle @ ..0x4000) => body.extend_from_slice(&(middle | 0x4000).to_be_bytes()),
        _ => {
            body.push(0x80);
            body.extend_from_slice(&u32::try_from(length).expect("a string is short").to_be_bytes());
        }
    }
}

/// The string of a payload, if all of it is valid.
pub(crate) fn string_of(payload: &[u8]) -> Option<Vec<u8>> {
    let (body, footer) = payload.split_at_checked(payload.len().checked_sub(FOOTER_BYTES)?)?;
    let version = u16::from_le_bytes([footer[0], footer[1]]);
    let sum = u64::from_le_bytes(footer[2..].try_into().ok()?);
    let (first, mut rest) = body.split_first()?;
    if version > VERSION || sum != checksum(&payload[..payload.len() - 8]) || *first != 0 {
        return None;
    }
    let string = match *rest.first()? {
        0xc0 => i8::from_le_bytes([*rest.get(1)?]).to_string().into_bytes(),
        0xc1 => i16::from_le_bytes(rest.get(1..3)?.try_into().ok()?).to_string().into_bytes(),
        0xc2 => i32::from_le_bytes(rest.get(1..5)?.try_into().ok()?).to_string().into_bytes(),
        0xc3 => {
            rest = &rest[1..];
            let packed = length(&mut rest)?;
            let full = length(&mut rest)?;
            unpacked(rest.get(..packed)?, full)?
        }
        _ => {
            let count = length(&mut rest)?;
            rest.get(..count)?.to_vec()
        }
    };
    Some(string)
}

fn length(rest: &mut &[u8]) -> Option<usize> {
    let first = *rest.first()?;
    let (count, value) = match first >> 6 {
        0 => (1, u64::from(first)),
        1 => (2, u64::from(u16::from_be_bytes(rest.get(..2)?.try_into().ok()?) & 0x3fff)),
        _ if first == 0x80 => (5, u64::from(u32::from_be_bytes(rest.get(1..5)?.try_into().ok()?))),
        _ if first == 0x81 => (9, u64::from_be_bytes(rest.get(1..9)?.try_into().ok()?)),
        _ => return None,
    };
    *rest = rest.get(count..)?;
    usize::try_from(value).ok()
}

/// Bytes that LZF has packed, if they have this length.
fn unpacked(mut packed: &[u8], full: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some((control, rest)) = packed.split_first() {
        packed = rest;
        let control = usize::from(*control);
        if control < 32 {
            bytes.extend_from_slice(packed.get(..=control)?);
            packed = &packed[control + 1..];
            continue;
        }
        let mut count = control >> 5;
        if count == 7 {
            count += usize::from(*packed.first()?);
            packed = &packed[1..];
        }
        let back = ((control & 31) << 8) + usize::from(*packed.first()?) + 1;
        packed = &packed[1..];
        let start = bytes.len().checked_sub(back)?;
        for place in start..start + count + 2 {
            bytes.push(*bytes.get(place)?);
        }
    }
    (bytes.len() == full).then_some(bytes)
}

fn checksum(bytes: &[u8]) -> u64 {
    static TABLE: [u64; 256] = table();
    bytes.iter().fold(0, |sum, byte| TABLE[usize::from(*byte ^ sum.to_le_bytes()[0])] ^ (sum >> 8))
}

const fn table() -> [u64; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut sum = index as u64;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 { (sum >> 1) ^ POLYNOMIAL } else { sum >> 1 };
            bit += 1;
        }
        table[index] = sum;
        index += 1;
    }
    table
}

#[test]
fn a_payload_of_each_encoding_has_its_string() {
    assert_eq!(checksum(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    let long = vec![7; 20_000];
    for string in [&b""[..], b"-128", b"300", b"-70000", b"abc", &long] {
        for encoding in [Encoding::Raw, Encoding::Integer, Encoding::Literals] {
            let payload = payload(string, encoding);
            assert_eq!(string_of(&payload).as_deref(), Some(string), "{encoding:?}");
            assert_eq!(string_of(&payload[1..]), None);
        }
    }
    assert_eq!(unpacked(&[1, b'a', b'b', 0x20, 1], 5), Some(b"ababa".to_vec()));
}
