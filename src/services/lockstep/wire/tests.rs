//! Arguments, TTLs and notifications at their edges.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use super::*;
use crate::clock::Ttl;
use crate::net::zeromq::tests::message;
use crate::zmtp::{MessageCutter, Messages};

const VALUE_MAX: usize = 1024;

/// Cuts one message out of its bytes, and looks at it.
fn look<R>(frames: &[&[u8]], value_max: usize, look: impl FnOnce(&Message<'_>) -> R) -> R {
    let bytes = message(frames);
    let mut messages = Messages::default();
    let bounds = message_bounds(value_max);
    MessageCutter::default().cut(&bytes, &bounds, 64, &mut messages, &mut Vec::new()).unwrap();
    let message = messages.iter(&bytes).next().unwrap();
    look(&message)
}

#[test]
fn an_argument_is_the_one_frame_behind_an_empty_delimiter() {
    let argument = |frames: &[&[u8]]| look(frames, VALUE_MAX, |message| format!("{:?}", Argument::of(message)));
    let frame = |bytes: &[u8]| format!("{:?}", Argument::Frame(bytes));
    assert_eq!(argument(&[b"", b"7\0"]), frame(b"7\0"));
    assert_eq!(argument(&[b"", b""]), frame(b""));
    let misshapen: [&[&[u8]]; 6] =
        [&[b""], &[b"7"], &[b"7\0", b""], &[b"7", b"7"], &[b"", b"7", b""], &[b"id", b"", b"7\0"]];
    for frames in misshapen {
        assert_eq!(argument(frames), "Misshapen", "{frames:?}");
    }
    let many = [&b""[..]; 2 * ENVELOPE_FRAMES_MAX];
    assert_eq!(argument(&many), "Misshapen");
}

#[test]
fn the_longest_value_is_kept_whole_and_a_much_longer_one_is_not() {
    let size = |value_max: usize, bytes: usize| {
        look(&[b"", &vec![b'v'; bytes]], value_max, |message| match Argument::of(message) {
            Argument::Frame(frame) => Some(frame.len()),
            argument => {
                assert_eq!(argument, Argument::TooLong);
                None
            }
        })
    };
    for value_max in [0, VALUE_MAX, FRAME_BYTES_MAX] {
        assert_eq!(size(value_max, value_max + 1), Some(value_max + 1), "its NUL included");
    }
    assert_eq!(size(VALUE_MAX, VALUE_MAX + ENVELOPE_BYTES_MAX), None);
}

#[test]
fn a_reply_carries_back_the_frames_up_to_the_first_empty_one() {
    let envelope = |frames: &[&[u8]]| look(frames, VALUE_MAX, envelope_frames);
    assert_eq!(envelope(&[b"", b"7\0"]), 1);
    assert_eq!(envelope(&[b"id", b"", b"", b"x"]), 2);
    assert_eq!(envelope(&[b"7\0"]), 0);
    assert_eq!(envelope(&[b"7\0", b"8"]), 0);
    let long = [[&b"hop"[..]; ENVELOPE_FRAMES_MAX].as_slice(), &[b""]].concat();
    assert_eq!((envelope(&long), envelope(&long[1..])), (0, ENVELOPE_FRAMES_MAX));
}

#[test]
fn one_nul_ends_an_argument_or_none() {
    for (frame, opening) in [
        (&b"7\0"[..], Ok(Opening::Hello)),
        (b"7", Ok(Opening::Hello)),
        (b"6\0", Ok(Opening::SecondPart)),
        (b"0\0", Ok(Opening::Command(Verb::CreateTable))),
        (b"1", Ok(Opening::Command(Verb::DeleteTable))),
        (b"2\0", Ok(Opening::Command(Verb::Update))),
        (b"3\0", Ok(Opening::Command(Verb::Delete))),
        (b"4\0", Ok(Opening::Command(Verb::Get))),
        (b"7\0\0", Err(Reason::UnknownCommand)),
        (b"", Err(Reason::UnknownCommand)),
        (b"\0", Err(Reason::UnknownCommand)),
        (b"5", Err(Reason::UnknownCommand)),
        (b"8\0", Err(Reason::UnknownCommand)),
        (b"07", Err(Reason::UnknownCommand)),
        (b"\x07", Err(Reason::UnknownCommand)),
    ] {
        assert_eq!(Argument::Frame(frame).opening(), opening, "{frame:?}");
    }
    assert_eq!(Argument::Frame(b"key\0").key(), Ok(&b"key"[..]));
    assert_eq!(Argument::Frame(b"key\0\0").key(), Ok(&b"key\0"[..]));
    assert_eq!(Argument::Frame(b"\0").value(VALUE_MAX), Ok(&b""[..]));
    assert_eq!(Argument::Frame(b"t\0").table(), Ok(TableName::spelt(b"t\0")));
    assert_eq!(Argument::Frame(b"t\0\0").table(), Err(Reason::BadTableName));
}

#[test]
fn arguments_have_limits_that_do_not_count_their_nul() {
    let bytes = [b'x'; 2 * VALUE_MAX];
    let ended = |length: usize| [&bytes[..length], b"\0"].concat();
    let table = |frame: &[u8]| Argument::Frame(frame).table().map(|table| table.name().len());
    assert_eq!((table(&ended(254)), table(&bytes[..254])), (Ok(254), Ok(254)));
    assert_eq!((table(&ended(255)), table(&bytes[..255])), (Err(Reason::BadTableName), Err(Reason::BadTableName)));
    assert_eq!((table(b""), table(b"\0")), (Err(Reason::BadTableName), Err(Reason::BadTableName)));
    let key = |frame: &[u8]| Argument::Frame(frame).key().map(<[u8]>::len);
    assert_eq!((key(&ended(64)), key(&ended(65)), key(b"")), (Ok(64), Err(Reason::KeyTooLong), Ok(0)));
    let value = |frame: &[u8]| Argument::Frame(frame).value(VALUE_MAX).map(<[u8]>::len);
    assert_eq!((value(&ended(1_024)), value(&ended(1_025))), (Ok(1_024), Err(Reason::ValueTooLong)));
}

#[test]
fn an_argument_that_was_not_kept_has_the_reason_of_its_place() {
    let reasons = |argument: Argument<'_>| {
        let (opening, table) = (argument.opening().unwrap_err(), argument.table().unwrap_err());
        [opening, table, argument.key().unwrap_err(), argument.value(9).unwrap_err(), argument.ttl().unwrap_err()]
    };
    assert_eq!(reasons(Argument::Misshapen), [Reason::BadRequest; 5]);
    let long = [Reason::UnknownCommand, Reason::BadTableName, Reason::KeyTooLong, Reason::ValueTooLong, Reason::BadTtl];
    assert_eq!(reasons(Argument::TooLong), long);
}

#[test]
fn each_row_of_the_ttls() {
    let longest = [b'0'; TTL_DIGITS_MAX - 1];
    let zeros = |end: &[u8]| [&longest, end].concat();
    type Row<'r> = (&'r [u8], Result<Option<u32>, Reason>);
    let rows: [Row<'_>; 25] = [
        (b"a", Ok(None)),
        (b"a\0", Ok(None)),
        (b"\x01", Ok(None)),
        (b"\x01\0", Ok(None)),
        (b"0", Ok(None)),
        (b"0\0", Ok(None)),
        (b"000", Ok(None)),
        (b"1\0", Ok(Some(1))),
        (b"300\0", Ok(Some(300))),
        (b"007", Ok(Some(7))),
        (&zeros(b"7"), Ok(Some(7))),
        (&zeros(b"7\0"), Ok(Some(7))),
        (b"4294967295\0", Ok(Some(u32::MAX))),
        (&zeros(b"07"), Err(Reason::BadTtl)),
        (b"4294967296\0", Err(Reason::BadTtl)),
        (b"18446744073709551617", Err(Reason::BadTtl)),
        (b"", Err(Reason::BadTtl)),
        (b"\0", Err(Reason::BadTtl)),
        (b"\x01\x01", Err(Reason::BadTtl)),
        (b"A", Err(Reason::BadTtl)),
        (b"aa", Err(Reason::BadTtl)),
        (b"-1", Err(Reason::BadTtl)),
        (b"+1", Err(Reason::BadTtl)),
        (b" 1", Err(Reason::BadTtl)),
        (b"1\0\0", Err(Reason::BadTtl)),
    ];
    for (frame, expected) in rows {
        assert_eq!(Argument::Frame(frame).ttl(), expected.map(|seconds| seconds.map(Ttl::from_secs)), "{frame:?}");
    }
}

#[test]
fn a_notification_is_one_frame_that_the_client_can_read_or_none() {
    let frame = |table: &[u8], kind, key: &[u8]| {
        let mut out = Vec::new();
        let is_there = encode_notification(&Notification { table, kind, key }, &mut out);
        assert!(is_there || out.is_empty());
        is_there.then_some(out)
    };
    use NotificationKind::{Deleted, Updated};
    assert_eq!(frame(b"birds\0", Updated, b"heron").unwrap(), b"birds\x000\x00heron");
    assert_eq!(frame(b"birds", Deleted, b"heron").unwrap(), b"birds\x001\x00heron");
    assert_eq!(
        frame("vögel\0".as_bytes(), Updated, b"\xff").unwrap(),
        "vögel\x000\x00".bytes().chain([0xff]).collect::<Vec<_>>()
    );
    assert_eq!(frame(b"t", Updated, b"").unwrap(), b"t\x000\x00");
    assert_eq!(frame(b"\xff\0", Updated, b"heron"), None);
    assert_eq!(frame(b"birds\0", Updated, b"he\0ron"), None);
    assert_eq!(frame(b"birds\0", Deleted, b"heron\0"), None);
}
