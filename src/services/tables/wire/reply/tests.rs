//! Replies that are encoded and decoded again, and frames that no server would send.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::services::tables::wire::fuzz::EncodedFrames;
use crate::services::tables::wire::{EntryRow, MirrorRow, RowMark};

fn encoded(reply: &Reply<'_>) -> EncodedFrames {
    let mut frames = EncodedFrames::default();
    reply.encode(frames.sink());
    frames
}

fn comes_back(shape: impl Into<ReplyShape>, reply: &Reply<'_>) {
    let frames = encoded(reply);
    assert_eq!(Reply::decode(shape, &frames.slices()).as_ref(), Ok(reply));
}

#[test]
fn the_frames_are_those_of_the_specification() {
    assert_eq!(encoded(&Reply::Done).slices(), [&[1]]);
    let entry = Reply::Entry { value: b"v", version: 258, remaining_millis: None };
    let frames: [&[u8]; 4] = [&[1], b"v", &[0, 0, 0, 0, 0, 0, 1, 2], &[255; 8]];
    assert_eq!(encoded(&entry).slices(), frames);
    let values = Reply::Values(vec![Some(b"v"), None, Some(b"")]);
    let frames: [&[u8]; 7] = [&[1], &[1], b"v", &[0], b"", &[1], b""];
    assert_eq!(encoded(&values).slices(), frames);
    assert_eq!(encoded(&Reply::Tables(Vec::new())).slices(), [&[1]]);
}

#[test]
fn every_reason_comes_back_as_it_was_sent() {
    for reason in Reason::ALL {
        for command in Command::ALL {
            comes_back(command, &Reply::Refused(reason));
        }
    }
    let mismatch = Reply::Refused(Reason::VersionMismatch { current: 7 });
    let frames: [&[u8]; 3] = [&[0], b"VERSION MISMATCH", &[0, 0, 0, 0, 0, 0, 0, 7]];
    assert_eq!(encoded(&mismatch).slices(), frames);
    comes_back(Command::CompareAndSwap, &mismatch);
}

#[test]
fn what_no_server_would_say_is_malformed() {
    let nonsense: [(Command, &[&[u8]]); 21] = [
        (Command::Ping, &[]),
        (Command::Ping, &[b""]),
        (Command::Ping, &[b"\x02"]),
        (Command::Ping, &[b"\x01\x01"]),
        (Command::Ping, &[b"\x01", b""]),
        (Command::Get, &[b"\x01"]),
        (Command::GetEntry, &[b"\x01", b"v", b"", b""]),
        (Command::CompareAndSwap, &[b"\x01", b"four"]),
        (Command::GetMany, &[b"\x01", b"\x01"]),
        (Command::GetMany, &[b"\x01", b"?", b"v"]),
        (Command::ListTables, &[b"\x01", b"tab", b"1"]),
        (Command::Stats, &[b"\x01", b"\xff"]),
        (Command::Scan, &[b"\x01"]),
        (Command::Increment, &[b"\x01", b"1"]),
        (Command::Increment, &[b"\x01", b"one", &[0; 8]]),
        (Command::DeleteMany, &[b"\x01", b"\x02"]),
        (Command::Restore, &[b"\x01"]),
        (Command::Restore, &[b"\x01", b"\x03"]),
        (Command::Restore, &[b"\x01", b"\x01", b"\x01"]),
        (Command::Get, &[b"\x00", b"NO REASON"]),
        (Command::Get, &[b"\x00", b"VERSION MISMATCH", b"old"]),
    ];
    for (command, frames) in nonsense {
        assert!(Reply::decode(command, frames).is_err(), "{command:?} {frames:?}");
    }
    let frames: [&[u8]; 3] = [&[1], b"v", b"w"];
    let malformed = Reply::decode(Command::Get, &frames).unwrap_err();
    assert_eq!(malformed.to_string(), "this reply has a status and 1 frame, not 2");
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(
        values in vec(option::of(vec(any::<u8>(), 0..=64)), 0..20),
        version: u64,
        millis in option::of(0..u64::MAX),
        json: String,
        sum: i64,
    ) {
        let slices: Vec<Option<&[u8]>> = values.iter().map(Option::as_deref).collect();
        let value = slices.iter().find_map(|value| *value).unwrap_or_default();
        let line = |value: &&[u8]| TableLine { name: Box::from(*value), elements: version };
        let tables = slices.iter().flatten().map(line).collect();
        comes_back(Command::UpdateMany, &Reply::Done);
        comes_back(Command::Get, &Reply::Value(value));
        comes_back(Command::GetEntry, &Reply::Entry { value, version, remaining_millis: millis });
        comes_back(Command::CompareAndSwap, &Reply::Version(version));
        comes_back(Command::GetMany, &Reply::Values(slices.clone()));
        comes_back(Command::ListTables, &Reply::Tables(tables));
        comes_back(Command::Stats, &Reply::Stats(json));
        comes_back(Command::Increment, &Reply::Sum { sum, version });
        comes_back(Command::DeleteMany, &Reply::Statuses(slices.iter().map(Option::is_some).collect()));
        let restored = [Restored::AsItWas, Restored::Anew, Restored::Not][slices.len() % 3];
        comes_back(Command::Restore, &Reply::Restored(restored));
        let keys: Vec<&[u8]> = slices.iter().flatten().copied().collect();
        let pairs = keys.iter().map(|key| [*key, value]).collect();
        let entries = keys.iter().map(|key| EntryRow { key, value, version, remaining_millis: millis }).collect();
        let deadline_millis = millis.filter(|millis| *millis > 0);
        let mark = [RowMark::Published, RowMark::Ahead, RowMark::Deleted][keys.len() % 3];
        let mirror = keys.iter().map(|key| MirrorRow { key, value, version, deadline_millis, mark }).collect();
        let all = [ScanRows::Key(keys.clone()), ScanRows::Value(pairs), ScanRows::Entry(entries), ScanRows::Mirror(mirror)];
        for (fields, rows) in ScanFields::ALL.into_iter().zip(all) {
            let next = version.to_be_bytes()[..keys.len() % 9].to_vec();
            comes_back(ReplyShape { command: Command::Scan, fields }, &Reply::Page { next, rows });
        }
    }

    #[test]
    fn nothing_that_a_server_says_panics(command in 0..Command::COUNT, fields in 0..4_u8, frames: Vec<Vec<u8>>) {
        let command = Command::ALL[command];
        let _any = Reply::decode(command, &frames);
        let granted: Vec<Vec<u8>> = [vec![OK]].into_iter().chain(frames).collect();
        let fields = ScanFields::by_code(fields).unwrap();
        let _any = Reply::decode(ReplyShape { command, fields }, &granted);
    }
}
