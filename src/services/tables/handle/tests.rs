//! Requests against the tables, and their replies.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use super::*;
use crate::clock::Ttl;
use crate::feed::FeedPosition;
use crate::limits::{REPLY_BYTES_MAX, SCAN_BYTES_MAX};
use crate::services::tables::wire::{Command, EntryRow, MirrorRow, RowMark, ScanFields, ScanRows, TableName};
use crate::tables::{Durability, Restored, Session, Tables, TablesConfig};

const NOW: Now = Now::from_millis(1_000);
const T: TableName<'static> = TableName::spelt(b"t\0");
const K: &[u8] = b"k";
const V: &[u8] = b"v";

fn session(changes_per_writer: usize) -> Session {
    let (tables, _backstage) = Tables::new(TablesConfig {
        expected_keys: 0,
        memory_max: 1 << 30,
        tables_max: 1,
        durability: Durability::None,
        changes_per_writer,
        version_base: 0,
        clock_start: 0,
    });
    tables.session()
}

fn context<'c>(stats: &'c dyn Fn() -> String, now: &'c dyn Fn() -> Now) -> HandlerContext<'c> {
    HandlerContext {
        stats,
        now,
        reply_bytes_max: REPLY_BYTES_MAX,
        page_bytes_max: SCAN_BYTES_MAX,
        value_max: 1_024,
        clock_start: 0,
        may_read: None,
    }
}

/// The reply to a request that has none of its reply yet.
fn once<'b>(
    request: &Request<'_>,
    batch: &'b mut Batch<'_>,
    context: &HandlerContext<'_>,
) -> Result<Reply<'b>, NotDone> {
    handle(request, batch, context, &mut ManyProgress::default()).or_else(refused)
}

/// The replies to requests of one batch, in order, as text.
fn replies(requests: &[Request<'_>]) -> Vec<String> {
    let mut session = session(64);
    let mut batch = session.batch(NOW);
    let stats = || "{}".to_owned();
    let context = context(&stats, &|| NOW);
    requests.iter().map(|request| format!("{:?}", once(request, &mut batch, &context).unwrap())).collect()
}

fn text(reply: &Reply<'_>) -> String {
    format!("{reply:?}")
}

/// The frames of a reply.
fn frames_of(reply: &Reply<'_>) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    reply.encode(|frame, _| frames.push(frame.to_vec()));
    frames
}

/// Frames that differ from these: one is missing or comes twice, is a byte shorter, or a byte longer if it is not empty.
fn changed(frames: &[Vec<u8>]) -> Vec<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    for (place, frame) in frames.iter().enumerate() {
        let with = |new: &[Vec<u8>]| [&frames[..place], new, &frames[place + 1..]].concat();
        all.extend([with(&[]), with(&[frame.clone(), frame.clone()])]);
        if let [shorter @ .., _] = &frame[..] {
            all.extend([with(&[shorter.to_vec()]), with(&[[frame, &[0][..]].concat()])]);
        }
    }
    all
}

/// Each reply is compared byte by byte, and decoded. Frames that differ are refused, or are the frames of another reply.
#[test]
fn every_command_has_its_reply() {
    const OK: &[u8] = &[1];
    const NO: &[u8] = &[0];
    const NOT_FOUND: &[&[u8]] = &[NO, b"TABLE NOT FOUND"];
    let update = || Request::Update { table: T, key: K, value: V, ttl: Some(Ttl::from_secs(1)) };
    let page = |fields| Request::Scan { table: T, cursor: b"", count: 1, fields, prefix: b"" };
    let restore = |version| Request::Restore { table: T, key: b"old", value: V, version, ttl: Ttl::NONE };
    let position = FeedPosition { epoch: 1, incarnation: 1, sequence: 1 };
    let [one, six, seven, eight] = [1_u64, 6, 7, 8].map(u64::to_be_bytes);
    let script: [(Request<'_>, &[&[u8]]); 33] = [
        (Request::CreateTable { table: T, options: None }, &[OK]),
        (update(), &[OK]),
        (Request::Get { table: T, key: K }, &[OK, V]),
        (Request::Touch { table: T, key: K, ttl: Ttl::NONE }, &[OK]),
        (Request::GetMany { table: T, keys: &[b"j", K] }, &[OK, NO, b"", OK, V]),
        (Request::ListTables, &[OK, b"t\0", &one]),
        (Request::Delete { table: T, key: K }, &[OK, V]),
        (Request::UpdateMany { table: T, ttl: None, pairs: &[[K, V]] }, &[OK]),
        (Request::Get { table: T, key: K }, &[OK, V]),
        (Request::Ping, &[OK]),
        (Request::Stats, &[OK, b"{}"]),
        (page(ScanFields::Value), &[OK, b"", K, V]),
        (Request::DeleteMany { table: T, keys: &[b"j", K] }, &[OK, NO, OK]),
        (page(ScanFields::Key), &[OK, b""]),
        (Request::Increment { table: T, key: K, delta: 1, ttl: None }, &[OK, b"1", &six]),
        (Request::GetAndTouch { table: T, key: K, ttl: Ttl::NONE }, &[OK, b"1"]),
        (Request::GetAndTouch { table: T, key: b"j", ttl: Ttl::NONE }, &[NO, b"KEY NOT FOUND"]),
        (
            Request::Scan { table: T, cursor: b"forged", count: 1, fields: ScanFields::Key, prefix: b"" },
            &[NO, b"BAD CURSOR"],
        ),
        (Request::AlterTable { table: T, durability: Durability::None }, &[OK]),
        (restore(0), &[NO, b"OUT OF RANGE"]),
        (restore(u64::MAX), &[NO, b"OUT OF RANGE"]),
        (Request::DeleteTable { table: T }, &[OK]),
        (Request::AlterTable { table: T, durability: Durability::Soon }, NOT_FOUND),
        (restore(7), NOT_FOUND),
        (update(), NOT_FOUND),
        (Request::DeleteTable { table: T }, NOT_FOUND),
        (Request::CreateTable { table: T, options: None }, &[OK]),
        (restore(7), &[OK, b"\x01"]),
        (Request::GetEntry { table: T, key: b"old" }, &[OK, V, &seven, &[255; 8]]),
        (Request::CompareAndSwap { table: T, key: b"old", expected: 7, value: V, ttl: None }, &[OK, &eight]),
        (Request::CompareAndDelete { table: T, key: b"old", expected: 8 }, &[OK, V]),
        (Request::FeedState { table: T }, &[NO, b"FEED OFF"]),
        (Request::Changes { table: T, position }, &[NO, b"FEED OFF"]),
    ];
    let mut session = session(64);
    let mut batch = session.batch(NOW);
    let stats = || "{}".to_owned();
    let context = context(&stats, &|| NOW);
    for (request, expected) in &script {
        let shape = request.reply_shape();
        let reply = once(request, &mut batch, &context).unwrap();
        let frames = frames_of(&reply);
        assert_eq!(frames, *expected, "{request:?}");
        assert_eq!(Reply::decode(shape, &frames).as_ref(), Ok(&reply));
        for wrong in changed(&frames) {
            let read = Reply::decode(shape, &wrong).map(|reply| frames_of(&reply));
            assert!(read.as_ref().is_ok_and(|again| *again == wrong) || read.is_err(), "{request:?} {wrong:?}");
        }
    }
    for command in Command::ALL {
        assert!(script.iter().any(|(request, _)| request.command() == command), "{command:?} has no row");
    }
}

#[test]
fn a_version_goes_out_and_comes_back() {
    let mut session = session(64);
    let mut batch = session.batch(NOW);
    let stats = String::new;
    let context = context(&stats, &|| NOW);
    let mut answer = |request: Request<'_>| match once(&request, &mut batch, &context).unwrap() {
        Reply::Version(version) | Reply::Entry { version, .. } => version,
        Reply::Refused(Reason::VersionMismatch { current }) => current,
        Reply::Done | Reply::Value(_) => 0,
        Reply::Restored(restored) => u64::from(restored == Restored::AsItWas),
        other => panic!("{other:?}"),
    };
    let swap = |expected| Request::CompareAndSwap { table: T, key: K, expected, value: V, ttl: None };
    answer(Request::CreateTable { table: T, options: None });
    let absent = answer(swap(7));
    assert_eq!(absent, 0);
    let first = answer(swap(0));
    assert!(first > 0);
    assert_eq!(answer(swap(0)), first);
    assert_eq!(answer(Request::GetEntry { table: T, key: K }), first);
    let second = answer(swap(first));
    assert!(second > first);
    let delete = |expected| Request::CompareAndDelete { table: T, key: K, expected };
    assert_eq!(answer(delete(first)), second);
    assert_eq!(answer(delete(second)), 0);
    let restore = |key, version| Request::Restore { table: T, key, value: V, version, ttl: Ttl::from_secs(1) };
    let (stored, kept) = (answer(restore(b"old", second + 1_000)), answer(restore(b"old", second)));
    assert_eq!((stored, kept), (1, 0));
    assert_eq!(answer(Request::GetEntry { table: T, key: b"old" }), second + 1_000);
}

#[test]
fn a_page_has_the_fields_that_were_asked_for() {
    let mut session = session(64);
    let stats = String::new;
    let later = || Now::from_millis(1_500);
    let context = HandlerContext { clock_start: 7_000, ..context(&stats, &later) };
    let mut batch = session.batch(NOW);
    let update: Request<'_> = Request::Update { table: T, key: K, value: V, ttl: Some(Ttl::from_secs(2)) };
    for request in [Request::CreateTable { table: T, options: None }, update] {
        assert_eq!(text(&once(&request, &mut batch, &context).unwrap()), text(&Reply::Done));
    }
    let entry = EntryRow { key: K, value: V, version: 1, remaining_millis: Some(1_500) };
    let mirror = MirrorRow { key: K, value: V, version: 1, deadline_millis: Some(10_000), mark: RowMark::Ahead };
    for (fields, rows) in [
        (ScanFields::Key, ScanRows::Key(vec![K])),
        (ScanFields::Value, ScanRows::Value(vec![[K, V]])),
        (ScanFields::Entry, ScanRows::Entry(vec![entry])),
        (ScanFields::Mirror, ScanRows::Mirror(vec![mirror])),
    ] {
        let request: Request<'_> = Request::Scan { table: T, cursor: b"", count: 10, fields, prefix: b"k" };
        let expected = text(&Reply::Page { next: Vec::new(), rows });
        assert_eq!(text(&once(&request, &mut batch, &context).unwrap()), expected);
    }
}

#[test]
fn a_reply_that_is_too_long_is_refused_before_it_is_built() {
    const VALUE: &[u8] = &[7; 16 << 20];
    let mut session = session(64);
    let mut batch = session.batch(NOW);
    let stats = String::new;
    let context = context(&stats, &|| NOW);
    let update: Request<'_> = Request::Update { table: T, key: K, value: VALUE, ttl: None };
    for request in [Request::CreateTable { table: T, options: None }, update] {
        assert_eq!(text(&once(&request, &mut batch, &context).unwrap()), text(&Reply::Done));
    }
    let mut ask = |keys: &[&[u8]]| {
        let (mut progress, mut count) = (ManyProgress::default(), 0);
        loop {
            match handle(&Request::GetMany { table: T, keys }, &mut batch, &context, &mut progress).or_else(refused) {
                Ok(Reply::SomeValues { values, is_first, is_last }) => {
                    assert_eq!(is_first, count == 0);
                    let some = values.iter().flatten().count();
                    assert!(some <= 1, "each is a portion");
                    count += some;
                    progress.advance(values.len());
                    if is_last {
                        return Ok(count);
                    }
                }
                other => return Err(format!("{other:?}")),
            }
        }
    };
    assert_eq!(ask(&[K; 64]), Ok(64), "a gigabyte");
    assert_eq!(ask(&[K; 65]), Err(format!("{:?}", Ok::<_, NotDone>(Reply::Refused(Reason::ReplyTooLong)))));
    assert_eq!(ask(&[&[K][..], &[&b"absent"[..]; 1023]].concat()), Ok(1));
}

/// A portion is written while others change what it is about.
#[test]
fn a_reply_that_has_begun_continues_whatever_becomes_of_its_table() {
    let long = vec![7; PORTION_BYTES];
    let mut session = session(256);
    let stats = String::new;
    let context = HandlerContext { reply_bytes_max: 3 * PORTION_BYTES, ..context(&stats, &|| NOW) };
    let keys: [&[u8]; 4] = [b"a", b"b", b"none", b"c"];
    let get: Request<'_> = Request::GetMany { table: T, keys: &keys };
    let changes: [Request<'_>; 3] =
        [Request::Ping, Request::Delete { table: T, key: b"b" }, Request::DeleteTable { table: T }];
    for change in &changes {
        let mut batch = session.batch(NOW);
        let [create, drop]: [Request<'_>; 2] =
            [Request::CreateTable { table: T, options: None }, Request::DeleteTable { table: T }];
        let _made = once(&create, &mut batch, &context);
        let pairs: [[&[u8]; 2]; 3] = [[b"a", &long], [b"b", &long], [b"c", &long]];
        let mut progress = ManyProgress::default();
        let update: Request<'_> = Request::UpdateMany { table: T, ttl: None, pairs: &pairs };
        while handle(&update, &mut batch, &context, &mut progress) == Err(Refusal::Unfinished) {}
        let mut progress = ManyProgress::default();
        let mut frames = Vec::new();
        let mut count = 0;
        while !matches!(frames.last(), Some((_, false))) {
            let reply = handle(&get, &mut batch, &context, &mut progress).unwrap();
            reply.encode(|frame, more| frames.push((frame.len(), more)));
            let Reply::SomeValues { values, .. } = &reply else { panic!("{reply:?}") };
            let sent = values.len();
            progress.advance(sent);
            count += 1;
            if count == 1 {
                once(change, &mut batch, &context).unwrap();
            }
        }
        let lengths: Vec<_> = frames.iter().skip(2).step_by(2).map(|(length, _)| *length).collect();
        let whole = PORTION_BYTES;
        let expected = match change {
            Request::Ping => [whole, whole, 0, whole],
            Request::Delete { .. } => [whole, 0, 0, whole],
            _ => [whole, 0, 0, 0],
        };
        assert_eq!((frames.len(), &lengths[..]), (9, &expected[..]), "{change:?}");
        let _dropped = once(&drop, &mut batch, &context);
    }
}

/// The bound was a gigabyte, however little memory there was.
#[test]
fn a_reply_that_is_too_long_for_the_memory_is_refused() {
    let mut session = session(64);
    let mut batch = session.batch(NOW);
    let stats = String::new;
    let context = HandlerContext { reply_bytes_max: 30, ..context(&stats, &|| NOW) };
    let mut answer = |request: Request<'_>| text(&once(&request, &mut batch, &context).unwrap());
    let too_long = text(&Reply::Refused(Reason::ReplyTooLong));
    answer(Request::CreateTable { table: T, options: None });
    answer(Request::Update { table: T, key: K, value: &[7; 15], ttl: None });
    assert_eq!(answer(Request::GetMany { table: T, keys: &[K; 2] }), text(&Reply::Values(vec![Some(&[7; 15]); 2])));
    assert_eq!(answer(Request::GetMany { table: T, keys: &[K; 3] }), too_long);
    assert_ne!(answer(Request::ListTables), too_long);
    let summary = TableSummary {
        durability: Durability::None,
        name: Box::from([b'n'; 23]),
        elements: 1,
        bytes: 1,
        expiring: 0,
        mean_deadline: Now::from_millis(0),
    };
    assert_eq!(text(&tables(vec![summary], context.reply_bytes_max)), too_long);
}

#[test]
fn the_name_is_one_however_it_is_spelt() {
    let bare = TableName::spelt(b"t");
    let requests = [
        Request::CreateTable { table: T, options: None },
        Request::CreateTable { table: bare, options: None },
        Request::Get { table: bare, key: K },
        Request::CreateTable { table: TableName::spelt(b"u"), options: None },
    ];
    let expected = [
        Reply::Done,
        Reply::Refused(Reason::TableExists),
        Reply::Refused(Reason::KeyNotFound),
        Reply::Refused(Reason::TooManyTables),
    ];
    assert_eq!(replies(&requests), expected.map(|reply| text(&reply)));
}

#[test]
fn a_deadline_that_has_passed_is_absent() {
    let mut session = session(64);
    let stats = String::new;
    let context = context(&stats, &|| NOW);
    let mut at = |millis, request: Request<'_>| {
        let mut batch = session.batch(Now::from_millis(millis));
        text(&once(&request, &mut batch, &context).unwrap())
    };
    at(1_000, Request::CreateTable { table: T, options: None });
    at(1_000, Request::Update { table: T, key: K, value: V, ttl: Some(Ttl::from_secs(2)) });
    let get = || Request::Get { table: T, key: K };
    assert_eq!(at(2_999, get()), text(&Reply::Value(V)));
    assert_eq!(at(3_000, get()), text(&Reply::Refused(Reason::KeyNotFound)));
}

#[test]
fn a_busy_request_has_not_been_looked_at() {
    let mut session = session(64);
    let stats = String::new;
    let context = context(&stats, &|| NOW);
    let mut batch = session.batch(NOW);
    let create: Request<'_> = Request::CreateTable { table: T, options: None };
    once(&create, &mut batch, &context).unwrap();
    let values: Vec<[u8; 1]> = (0..=255).map(|number| [number]).collect();
    let mut last: &[u8] = &[];
    for value in &values {
        let update: Request<'_> = Request::Update { table: T, key: K, value, ttl: None };
        match once(&update, &mut batch, &context) {
            Ok(reply) => assert_eq!(reply, Reply::Done),
            Err(_) => break,
        }
        last = value;
    }
    assert!(last.len() == 1 && last < &[255][..], "nobody announces, so the changes are used up");
    let get: Request<'_> = Request::Get { table: T, key: K };
    assert_eq!(once(&get, &mut batch, &context), Ok(Reply::Value(last)));
}
