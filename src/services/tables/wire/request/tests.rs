//! Requests byte by byte: frames that are decoded, and fields at their limits.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use super::*;
use crate::services::tables::wire::fuzz::EncodedFrames;

const LIMITS: FieldLimits = FieldLimits::DEFAULT;
const VALUE_MAX: usize = LIMITS.value;

fn reason(body: &[&[u8]]) -> Option<Reason> {
    Request::decode(body, LIMITS).err().map(|fault| fault.reason)
}

#[test]
fn the_command_frame_is_one_byte_and_known() {
    assert_eq!(reason(&[]), Some(Reason::BadRequest));
    assert_eq!(reason(&[b""]), Some(Reason::BadRequest));
    assert_eq!(reason(&[b"\x05\x05"]), Some(Reason::BadRequest));
    for code in (0..=255).filter(|code| Command::by_code(*code).is_none()) {
        let code = [code];
        assert_eq!(reason(&[&code]), Some(Reason::UnknownCommand));
        assert_eq!(reason(&[&code, b"", b""]), Some(Reason::UnknownCommand));
    }
    assert_eq!(reason(&[b"\x05"]), None);
}

#[test]
fn commands_without_arguments_take_none() {
    for command in [[5], [12], [13]] {
        assert_eq!(reason(&[&command]), None);
        assert_eq!(reason(&[&command, b""]), Some(Reason::BadRequest));
    }
}

#[test]
fn a_name_has_1_to_254_bytes_and_may_end_with_one_nul() {
    let name = |table: &[u8]| reason(&[&[0], table]);
    assert_eq!(name(b"tab"), None);
    assert_eq!(name(b"tab\0"), None);
    assert_eq!(name(&[b't'; 254]), None);
    assert_eq!(name(&[&[b't'; 254][..], b"\0"].concat()), None);
    assert_eq!(name(&[b't'; 255]), Some(Reason::BadTableName));
    assert_eq!(name(&[&[b't'; 255][..], b"\0"].concat()), Some(Reason::BadTableName));
    for bad in [&b""[..], b"\0", b"t\0b", b"\0tab", b"tab\0\0"] {
        assert_eq!(name(bad), Some(Reason::BadTableName), "{bad:?}");
    }
}

#[test]
fn a_name_and_its_spelling_are_two_things() {
    let body = [&[0][..], b"tab\0"];
    let Ok(Request::CreateTable { table, options: None }) = Request::decode(&body, LIMITS) else {
        panic!("no CREATE_TABLE");
    };
    assert_eq!((table.name(), table.spelling()), (&b"tab"[..], &b"tab\0"[..]));
}

#[test]
fn a_table_has_options_of_one_byte_or_none() {
    let options = |frame: &[u8]| match Request::decode(&[&[0][..], b"tab", frame], LIMITS) {
        Ok(Request::CreateTable { options, .. }) => Ok(options),
        other => Err(other.unwrap_err().reason),
    };
    let known = [TableOptions::InMemory, TableOptions::Soon, TableOptions::Always, TableOptions::MayEvict];
    assert_eq!([&[0], &[1], &[2], &[3]].map(|byte| options(byte)), known.map(|options| Ok(Some(options))));
    for byte in 4..=u8::MAX {
        assert_eq!(options(&[byte]), Err(Reason::BadRequest), "{byte}");
    }
    assert_eq!([&b""[..], &[3, 3]].map(options), [Err(Reason::BadRequest); 2]);
    assert_eq!(reason(&[&[0], b"tab", &[3], &[3]]), Some(Reason::BadRequest));
}

#[test]
fn a_durability_is_one_byte_of_three() {
    let durability = |frame: &[u8]| match Request::decode(&[&[20][..], b"tab", frame], LIMITS) {
        Ok(Request::AlterTable { durability, .. }) => Ok(durability),
        other => Err(other.unwrap_err().reason),
    };
    let known = [Durability::None, Durability::Soon, Durability::Always];
    assert_eq!([&[0], &[1], &[2]].map(|byte| durability(byte)), known.map(Ok));
    for byte in 3..=u8::MAX {
        assert_eq!(durability(&[byte]), Err(Reason::BadRequest), "{byte}");
    }
    assert_eq!([&b""[..], &[1, 1]].map(durability), [Err(Reason::BadRequest); 2]);
    assert_eq!(reason(&[&[20], b"tab"]), Some(Reason::BadRequest), "it has no default");
    let request: Request<'_> = Request::AlterTable { table: TableName::spelt(b"tab"), durability: Durability::Always };
    let expected: [&[u8]; 3] = [&[20], b"tab", &[2]];
    assert_eq!(encoded(&request).slices(), expected);
}

#[test]
fn a_key_has_up_to_64_bytes_and_a_value_up_to_the_limit() {
    assert_eq!(reason(&[&[4], b"tab", b""]), None);
    assert_eq!(reason(&[&[4], b"tab", &[0; 64]]), None);
    assert_eq!(reason(&[&[4], b"tab", &[0; 65]]), Some(Reason::KeyTooLong));
    assert_eq!(reason(&[&[2], b"tab", b"key", b""]), None);
    assert_eq!(reason(&[&[2], b"tab", b"key", &[0; VALUE_MAX]]), None);
    assert_eq!(reason(&[&[2], b"tab", b"key", &[0; VALUE_MAX + 1]]), Some(Reason::ValueTooLong));
}

#[test]
fn a_ttl_is_seconds_or_milliseconds_wherever_there_is_one() {
    let (seconds, millis, bad) = ([0, 0, 0, 0, 0, 0, 0, 60], [1, 0, 0, 0, 0, 0, 0, 5, 220], [0; 9]);
    let version = [0; 8];
    type Frames<'f> = &'f [&'f [u8]];
    let bodies: [(Frames<'_>, Frames<'_>); 7] = [
        (&[&[2], b"tab", b"key", b"value"], &[]),
        (&[&[7], b"tab", b"key", &version, b"value"], &[]),
        (&[&[9], b"tab", b"key"], &[]),
        (&[&[11], b"tab"], &[b"key", b"value"]),
        (&[&[15], b"tab", b"key", &version], &[]),
        (&[&[16], b"tab", b"key"], &[]),
        (&[&[22], b"tab", b"key", b"value", &version], &[]),
    ];
    for (head, tail) in bodies {
        let ttl_of = |field: &[u8]| {
            let body = [head, &[field], tail].concat();
            Request::decode(&body, LIMITS).map_err(|fault| fault.reason).map(|request| match request {
                Request::Update { ttl, .. }
                | Request::CompareAndSwap { ttl, .. }
                | Request::UpdateMany { ttl, .. }
                | Request::Increment { ttl, .. } => ttl.map(Ttl::millis),
                Request::Touch { ttl, .. } | Request::GetAndTouch { ttl, .. } | Request::Restore { ttl, .. } => {
                    Some(ttl.millis())
                }
                _ => None,
            })
        };
        assert_eq!(ttl_of(&seconds), Ok(Some(60_000)), "{head:?}");
        assert_eq!(ttl_of(&millis), Ok(Some(1_500)), "{head:?}");
        assert_eq!(ttl_of(&bad), Err(Reason::BadTtl), "{head:?}");
    }
}

#[test]
fn an_empty_ttl_is_none_in_update_many_and_bad_elsewhere() {
    let body: [&[u8]; 5] = [&[11], b"tab", b"", b"key", b"value"];
    let many = Request::decode(&body, LIMITS);
    let pairs = [[&b"key"[..], b"value"]];
    let table = TableName::spelt(b"tab");
    assert_eq!(many, Ok(Request::UpdateMany { table, ttl: None, pairs: &pairs }));
    assert_eq!(reason(&[&[2], b"tab", b"key", b"value", b""]), Some(Reason::BadTtl));
    let swap: [&[u8]; 6] = [&[7], b"tab", b"key", &[0; 8], b"value", b""];
    assert_eq!(reason(&swap), Some(Reason::BadTtl));
    assert_eq!(reason(&[&[9], b"tab", b"key", b""]), Some(Reason::BadTtl));
    let restore: [&[u8]; 6] = [&[22], b"tab", b"key", b"value", &[0; 8], b""];
    assert_eq!((reason(&restore), reason(&restore[..5])), (Some(Reason::BadTtl), Some(Reason::BadRequest)));
}

#[test]
fn a_version_is_8_bytes_big_endian() {
    let body: [&[u8]; 4] = [&[8], b"tab", b"key", &[0, 0, 0, 0, 0, 0, 1, 2]];
    let table = TableName::spelt(b"tab");
    let request = Request::CompareAndDelete { table, key: b"key", expected: 0x0102 };
    assert_eq!(Request::decode(&body, LIMITS), Ok(request));
    assert_eq!(reason(&[&[8], b"tab", b"key", &[0; 7]]), Some(Reason::BadRequest));
    assert_eq!(reason(&[&[8], b"tab", b"key", b""]), Some(Reason::BadRequest));
}

#[test]
fn get_many_takes_1_to_1024_keys() {
    let many = |keys: usize| {
        let mut body = vec![&[10][..], b"tab"];
        body.resize(2 + keys, b"key");
        reason(&body)
    };
    assert_eq!(many(0), Some(Reason::BadRequest));
    assert_eq!(many(1), None);
    assert_eq!(many(1024), None);
    assert_eq!(many(1025), Some(Reason::BadRequest));
}

#[test]
fn delete_many_takes_1_to_1024_keys() {
    for (keys, expected) in [(0, Some(Reason::BadRequest)), (1, None), (1024, None), (1025, Some(Reason::BadRequest))] {
        assert_eq!(reason(&[&[&[17][..], b"tab"], &vec![&b"key"[..]; keys][..]].concat()), expected, "{keys}");
    }
    assert_eq!(reason(&[&[17], b"tab", b"key", &[0; 65]]), Some(Reason::KeyTooLong));
}

#[test]
fn a_delta_is_8_bytes_with_a_sign() {
    let table = TableName::spelt(b"tab");
    for (delta, frame) in [(258, [0, 0, 0, 0, 0, 0, 1, 2]), (-1, [255; 8]), (i64::MIN, [128, 0, 0, 0, 0, 0, 0, 0])] {
        let body: [&[u8]; 4] = [&[15], b"tab", b"key", &frame];
        let request = Request::Increment { table, key: b"key", delta, ttl: None };
        assert_eq!(Request::decode(&body, LIMITS), Ok(request));
    }
    assert_eq!(reason(&[&[15], b"tab", b"key", &[0; 7]]), Some(Reason::BadRequest));
    assert_eq!(reason(&[&[15], b"tab", b"key", &[0; 8], b""]), Some(Reason::BadTtl));
}

#[test]
fn a_scan_has_a_cursor_a_count_and_fields_within_their_limits() {
    let [one, most, more] = [1, 10_000, 10_001].map(u64::to_be_bytes);
    let scan = |cursor: &[u8], count: &[u8], fields: &[u8]| reason(&[&[14], b"tab", cursor, count, fields]);
    for count in [&one, &most] {
        assert_eq!((scan(b"", count, &[0]), scan(&[7; 32], count, &[3])), (None, None));
    }
    assert_eq!(scan(&[7; 33], &one, &[0]), Some(Reason::BadCursor));
    for count in [&[0; 8][..], &more, &[255; 8], &[1, 0, 0, 0, 0, 0, 0, 1], &one[1..], b""] {
        assert_eq!(scan(b"", count, &[0]), Some(Reason::BadRequest), "{count:?}");
    }
    for fields in [&[4][..], &[255], b"", &[0, 0]] {
        assert_eq!(scan(b"", &one, fields), Some(Reason::BadRequest), "{fields:?}");
    }
    assert_eq!(reason(&[&[14], b"tab", b"", &one, &[0], &[0; 64]]), None);
    assert_eq!(reason(&[&[14], b"tab", b"", &one, &[0], &[0; 65]]), Some(Reason::KeyTooLong));
    assert_eq!(reason(&[&[14], b"tab", b"", &one]), Some(Reason::BadRequest));
}

#[test]
fn update_many_takes_1_to_1024_whole_pairs() {
    let many = |frames: usize| {
        let mut body = vec![&[11][..], b"tab", b""];
        body.resize(3 + frames, b"key or value");
        reason(&body)
    };
    assert_eq!(many(0), Some(Reason::BadRequest));
    assert_eq!(many(1), Some(Reason::BadRequest));
    assert_eq!(many(2), None);
    assert_eq!(many(3), Some(Reason::BadRequest));
    assert_eq!(many(2048), None);
    assert_eq!(many(2049), Some(Reason::BadRequest));
    assert_eq!(many(2050), Some(Reason::BadRequest));
}

#[test]
fn the_first_fault_is_the_leftmost_after_the_number_of_frames() {
    let long = [0; 65];
    assert_eq!(reason(&[&[3], b"", &long, b""]), Some(Reason::BadRequest));
    assert_eq!(reason(&[&[3], b"", &long]), Some(Reason::BadTableName));
    assert_eq!(reason(&[&[9], b"tab", &long, b""]), Some(Reason::KeyTooLong));
    let swap: [&[u8]; 6] = [&[7], b"tab", b"key", b"", &[0; VALUE_MAX + 1], b""];
    assert_eq!(reason(&swap), Some(Reason::BadRequest));
    let many: [&[u8]; 7] = [&[11], b"tab", b"bad ttl!", &long, b"", b"", b""];
    assert_eq!(reason(&many), Some(Reason::BadTtl));
}

#[test]
fn a_fault_names_the_command_once_that_is_known() {
    let fault = Request::decode(&[&[4][..], b"tab"], LIMITS).unwrap_err();
    assert_eq!(fault.command, Some(Command::Get));
    let fault = Request::decode(&[&[255][..]], LIMITS).unwrap_err();
    assert_eq!(fault.command, None);
}

fn encoded(request: &Request<'_>) -> EncodedFrames {
    let mut frames = EncodedFrames::default();
    request.encode(frames.sink());
    frames
}

#[test]
fn the_frames_are_those_of_the_specification() {
    let table = TableName::spelt(b"tab\0");
    let frames = encoded(&Request::CompareAndSwap {
        table,
        key: b"key",
        expected: 258,
        value: b"value",
        ttl: Some(Ttl::from_secs(60)),
    });
    let version = [0, 0, 0, 0, 0, 0, 1, 2];
    let ttl = [0, 0, 0, 0, 0, 0, 0, 60];
    let expected: [&[u8]; 6] = [&[7], b"tab\0", b"key", &version, b"value", &ttl];
    assert_eq!(frames.slices(), expected);
    assert_eq!(encoded(&Request::Ping).slices(), [&[5]]);
    let frames = encoded(&Request::Increment { table, key: b"key", delta: -2, ttl: None });
    let delta = [255, 255, 255, 255, 255, 255, 255, 254];
    let expected: [&[u8]; 4] = [&[15], b"tab\0", b"key", &delta];
    assert_eq!(frames.slices(), expected);
    let ttl = Ttl::from_secs(60);
    let frames = encoded(&Request::Restore { table, key: b"key", value: b"value", version: 258, ttl });
    let expected: [&[u8]; 6] = [&[22], b"tab\0", b"key", b"value", &version, &[0, 0, 0, 0, 0, 0, 0, 60]];
    assert_eq!(frames.slices(), expected);
    let scan = |prefix| encoded(&Request::Scan { table, cursor: b"c", count: 258, fields: ScanFields::Entry, prefix });
    let expected: [&[u8]; 6] = [&[14], b"tab\0", b"c", &[0, 0, 0, 0, 0, 0, 1, 2], &[2], b"k"];
    assert_eq!(scan(b"k").slices(), expected);
    assert_eq!(scan(b"").slices(), expected[..5]);
}

#[test]
fn a_client_may_send_what_a_server_refuses() {
    let table = TableName::spelt(b"");
    let empty: [&[u8]; 2] = [&[10], b""];
    assert_eq!(encoded(&Request::GetMany { table, keys: &[] }).slices(), empty);
    let empty: [&[u8]; 3] = [&[11], b"", b""];
    let request = Request::UpdateMany { table, ttl: None, pairs: &[] };
    assert_eq!(encoded(&request).slices(), empty);
}
