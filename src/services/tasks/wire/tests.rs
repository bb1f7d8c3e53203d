//! The tables of `PROTOCOL.md`, byte by byte.

#![allow(clippy::indexing_slicing, reason = "a test that fails should say where")]

use super::*;
use std::num::NonZeroU32;

use crate::limits::{TASK_KEY_BYTES_MAX, TASK_VALUE_BYTES_MAX};
use crate::tasks::{AddTerms, Backoff, BrowsePlace, BrowsedState, Policy, QueueChange, QueueTerms, Rate, SweptStates};

const TIMEOUT: [u8; 8] = [0, 0, 0, 0, 0, 0, 0, 7];
const LEND_KEY: [u8; 8] = [0, 0, 0, 0, 0, 0, 0, 9];
const KEY: [u8; 5] = [0, 0, 0, 1, b'k'];
const VALUE: [u8; 6] = [0, 0, 0, 2, b'v', b'w'];

/// Every request and its bytes.
fn requests() -> Vec<(Request<'static>, Vec<u8>)> {
    let repay = |status, byte: u8| {
        let request = Request::Repay { lend_key: 9, key: b"k", value: b"vw", status };
        (request, [&[5][..], &LEND_KEY, &KEY, &VALUE, &[byte]].concat())
    };
    vec![
        (Request::Ping, vec![0x0B]),
        (Request::Count, vec![0x01]),
        (Request::Add { key: b"k", value: b"vw", mode: AddMode::Tail }, [&[2][..], &KEY, &VALUE].concat()),
        (Request::Add { key: b"k", value: b"vw", mode: AddMode::Head }, [&[2][..], &KEY, &VALUE, &[1]].concat()),
        (Request::Update { key: b"k", value: b"vw" }, [&[3][..], &KEY, &VALUE].concat()),
        (Request::Lend { timeout_ms: 7, mode: LendMode::Block }, [&[4][..], &TIMEOUT, &[1]].concat()),
        (Request::Lend { timeout_ms: 7, mode: LendMode::Poll }, [&[4][..], &TIMEOUT, &[2]].concat()),
        repay(RepayStatus::Penalty, 1),
        repay(RepayStatus::Reward, 2),
        repay(RepayStatus::Front, 3),
        repay(RepayStatus::Drop, 4),
        repay(RepayStatus::Done, 7),
        (Request::Heartbeat { lend_key: 9, key: b"k", timeout_ms: 7 }, [&[6][..], &LEND_KEY, &KEY, &TIMEOUT].concat()),
        (Request::Stats, vec![0x07]),
        (Request::Terminate, vec![0x08]),
        (Request::Lookup { key: b"k" }, [&[9][..], &KEY].concat()),
        (Request::Flush, vec![0x0A]),
        (Request::Remove { key: b"k" }, [&[0x0C][..], &KEY].concat()),
    ]
}

/// Every reply and its bytes.
fn replies() -> Vec<(Reply<'static>, Vec<u8>)> {
    let numbers = |count: u64| (1..=count).flat_map(u64::to_be_bytes).collect::<Vec<_>>();
    let truncated = Fault::Truncated { field: Field::AddKeyLength, required: 4, given: 1 };
    vec![
        (Reply::Pong, vec![0x11]),
        (Reply::Counted(258), vec![0x01, 0, 0, 1, 2]),
        (Reply::Added, vec![0x02]),
        (Reply::Kept, vec![0x03]),
        (Reply::Updated, vec![0x04]),
        (Reply::NotFound, vec![0x05]),
        (Reply::Lent { lend_key: 9, key: b"k", value: b"vw" }, [&[6][..], &LEND_KEY, &KEY, &VALUE].concat()),
        (Reply::QueueEmpty, vec![0x10]),
        (Reply::Repaid, vec![0x07]),
        (Reply::Heartbeaten, vec![0x08]),
        (Reply::Skipped, vec![0x09]),
        (Reply::StatsGot(Counters::Eight([1, 2, 3, 4, 5, 6, 7, 8])), [vec![0x0A], numbers(8)].concat()),
        (Reply::StatsGot(Counters::Ten([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])), [vec![0x0A], numbers(10)].concat()),
        (Reply::Terminated, vec![0x0C]),
        (Reply::ValueFound(b"vw"), [&[0x0D][..], &VALUE].concat()),
        (Reply::ValueNotFound, vec![0x0E]),
        (Reply::Flushed, vec![0x0F]),
        (Reply::Removed, vec![0x12]),
        (Reply::NotRemoved, vec![0x13]),
        (Reply::Error(truncated), vec![0x0B, 3, 0, 0, 0, 4, 0, 0, 0, 1]),
        (Reply::Error(Fault::Offending { field: Field::UnknownTag, offending: 0xFF }), vec![0x0B, 2, 0xFF]),
    ]
}

fn fault(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    Reply::Error(Request::decode(bytes).expect_err("it is not whole")).encode(&mut out);
    out
}

#[test]
fn requests_are_written_and_read_as_specified() {
    for (request, bytes) in requests() {
        let mut out = Vec::new();
        request.encode(&mut out);
        assert_eq!(out, bytes, "{request:?}");
        assert_eq!(Request::decode(&bytes), Ok(request));
    }
}

#[test]
fn replies_are_written_and_read_as_specified() {
    for (reply, bytes) in replies() {
        let mut out = Vec::new();
        reply.encode(&mut out);
        assert_eq!(out, bytes, "{reply:?}");
        assert_eq!(Reply::decode(&bytes), Ok(reply));
    }
}

#[test]
fn bytes_behind_a_request_are_ignored_but_for_the_mode_of_an_add() {
    for (request, bytes) in requests() {
        let longer = [&bytes[..], &[0xEE]].concat();
        match request {
            Request::Add { mode: AddMode::Tail, .. } => {
                assert_eq!(fault(&longer), [0x0B, 54, 0xEE]);
                let said = [&bytes[..], &[2, 0xEE]].concat();
                assert_eq!(Request::decode(&said), Ok(request), "what is behind the mode");
            }
            _ => assert_eq!(Request::decode(&longer), Ok(request)),
        }
    }
}

#[test]
fn every_cut_is_answered_with_its_field_and_what_it_needs() {
    // For each tag: the offset and the number of each field. The last field ends with the request.
    let key_and_value =
        |first: u8, at: usize| vec![(at, first), (at + 4, first + 1), (at + 5, first + 2), (at + 9, first + 3)];
    let fields: Vec<(u8, Vec<(usize, u8)>)> = vec![
        (0x02, key_and_value(3, 1)),
        (0x03, key_and_value(39, 1)),
        (0x04, vec![(1, 7), (9, 51)]),
        (0x05, [vec![(1, 8)], key_and_value(9, 9), vec![(20, 13)]].concat()),
        (0x06, vec![(1, 43), (9, 44), (13, 45), (14, 46)]),
        (0x09, vec![(1, 47), (5, 48)]),
        (0x0C, vec![(1, 57), (5, 58)]),
    ];
    assert_eq!(fault(&[]), [0x0B, 1, 0, 0, 0, 1, 0, 0, 0, 0]);
    for (tag, fields) in fields {
        let (_, whole) = requests().into_iter().find(|(request, _)| request.tag() == tag).expect("it is there");
        for cut in 1..whole.len() {
            let (start, number) = *fields.iter().rfind(|(start, _)| *start <= cut).expect("fields begin at 1");
            let end = fields.iter().map(|(next, _)| *next).find(|next| *next > start).unwrap_or(whole.len());
            let lengths = [end - start, cut - start].map(|bytes| u32::try_from(bytes).expect("they are few"));
            let expected = [&[0x0B, number][..], lengths.map(u32::to_be_bytes).as_flattened()].concat();
            assert_eq!(fault(&whole[..cut]), expected, "tag {tag}, cut at {cut}");
        }
    }
    assert_eq!(fault(&[2, 0]), [0x0B, 3, 0, 0, 0, 4, 0, 0, 0, 1], "the example of PROTOCOL.md");
}

#[test]
fn unknown_bytes_are_named() {
    for tag in [0x00, 0x0D, 0x80, 0xFF] {
        assert_eq!(fault(&[tag]), [0x0B, 2, tag]);
    }
    for mode in [0, 3, 0xFF] {
        assert_eq!(fault(&[&[4][..], &TIMEOUT, &[mode]].concat()), [0x0B, 52, mode]);
        assert_eq!(fault(&[&[2][..], &KEY, &VALUE, &[mode]].concat()), [0x0B, 54, mode]);
    }
    for status in [0, 5, 0xFF] {
        assert_eq!(fault(&[&[5][..], &LEND_KEY, &KEY, &VALUE, &[status]].concat()), [0x0B, 14, status]);
    }
}

#[test]
fn what_is_too_long_is_answered_with_its_length_and_the_limit() {
    let length = |bytes: usize| u32::try_from(bytes).expect("it is a length").to_be_bytes();
    let answer = |field: u8, given: usize, limit: usize| [&[0x0B, field][..], &length(given), &length(limit)].concat();
    let (key, value) = (TASK_KEY_BYTES_MAX, TASK_VALUE_BYTES_MAX);
    for (tag, before, field) in
        [(0x02, 0, 4), (0x03, 0, 40), (0x05, 8, 10), (0x06, 8, 45), (0x09, 0, 48), (0x0C, 0, 58)]
    {
        let request = [&[tag][..], &vec![0; before], &length(key + 1)].concat();
        assert_eq!(fault(&request), answer(field, key + 1, key), "tag {tag}");
    }
    for (tag, before, field) in [(0x02, 0, 6), (0x03, 0, 42), (0x05, 8, 12)] {
        let request = [&[tag][..], &vec![0; before], &KEY, &length(value + 1)].concat();
        assert_eq!(fault(&request), answer(field, value + 1, value), "tag {tag}");
    }
    let longest = [&[0x09][..], &length(key), &vec![7; key]].concat();
    assert_eq!(Request::decode(&longest), Ok(Request::Lookup { key: &vec![7; key] }));
}

#[test]
fn answers_of_somebody_else_are_malformed() {
    for (reply, bytes) in replies() {
        assert_eq!(Reply::decode(&[&bytes[..], &[0]].concat()), Err(Malformed::Length), "{reply:?}");
        // Ten counters that are cut after 65 bytes are eight counters.
        for cut in (0..bytes.len()).filter(|cut| bytes[0] != 0x0A || *cut != 65) {
            assert!(Reply::decode(&bytes[..cut]).is_err(), "{reply:?} cut at {cut}");
        }
    }
    assert_eq!(Reply::decode(&[0x14]), Err(Malformed::Tag));
    assert_eq!(Reply::decode(&[0x0B, 15, 0]), Err(Malformed::Field));
}

#[test]
fn whatever_comes_is_read_or_refused() {
    bolero::check!().for_each(|bytes: &[u8]| {
        if let Ok(request) = Request::decode(bytes) {
            let mut out = Vec::new();
            request.encode(&mut out);
            assert_eq!(Request::decode(&out), Ok(request));
        }
        if let Ok(reply) = Reply::decode(bytes) {
            let mut out = Vec::new();
            reply.encode(&mut out);
            assert_eq!(out, bytes);
        }
    });
}

// -------------------------------------------------------------------------------------------------------- queues by name

fn terms() -> AddTerms {
    AddTerms {
        class: 3,
        delay: 4,
        lifetime: Some(5),
        tries: Some(None),
        backoff: Some(Backoff { first: 6, most: 7 }),
        group: Box::from(*b"acme"),
        ..AddTerms::default()
    }
}

fn long(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

fn int(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// The bytes of [`terms`].
fn options() -> Vec<u8> {
    [
        vec![6, 1],
        int(3),
        vec![2],
        long(4),
        vec![3],
        int(0),
        vec![4],
        [int(6), int(7)].concat(),
        vec![6],
        long(5),
        b"\x05\x04acme".to_vec(),
    ]
    .concat()
}

/// Settings, and their bytes.
fn settings() -> (QueueChange, Vec<u8>) {
    let change = QueueChange {
        tries: Some(Some(NonZeroU32::new(2))),
        backoff: Some(None),
        group_limit: Some(NonZeroU32::new(8)),
        rate: Some(Rate::of(1, 1_000, 5)),
        pause: Some(7),
        sync: Some(Some(Policy::Never)),
    };
    let settings = [
        vec![6, 1],
        int(2),
        vec![0x82, 3],
        int(8),
        vec![4],
        [int(1), int(1_000), int(5)].concat(),
        vec![5],
        long(7),
        vec![6],
        long(u64::MAX),
    ];
    (change, settings.concat())
}

const LEASE: NamedLease<'_> = NamedLease { queue: b"mail", lend_key: 9, key: b"k" };

fn lease_bytes() -> Vec<u8> {
    [&b"\x04mail"[..], &LEND_KEY, &KEY].concat()
}

/// The end of many leases, and its bytes.
fn ends() -> (QueueRequest<'static>, Vec<u8>) {
    let ends = vec![
        (LEASE, LeaseEnd::Repay(RepayStatus::Drop, b"vw")),
        (LEASE, LeaseEnd::Repay(RepayStatus::Done, b"")),
        (LEASE, LeaseEnd::GiveBack { delay_ms: None, reason: b"why" }),
        (LEASE, LeaseEnd::Bury { reason: b"" }),
        (LEASE, LeaseEnd::NotBegun),
    ];
    let end_bytes: [&[u8]; 5] =
        [&[4, 0, 0, 0, 2, b'v', b'w'], &[7], b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\0\x03why", &[9, 0, 0], &[10]];
    let settled = end_bytes.iter().flat_map(|end| [&lease_bytes()[..], end].concat());
    (QueueRequest::SettleMany(ends), [vec![0x23, 0, 5], settled.collect()].concat())
}

/// Requests about queues by name, and their bytes.
fn queue_requests() -> Vec<(AnyRequest<'static>, Vec<u8>)> {
    let of = AnyRequest::OfQueues;
    let ((ends, end_bytes), (change, settings)) = (ends(), settings());
    let add = QueueRequest::AddMany {
        queues: vec![b"mail", b"post"],
        key: b"k",
        value: b"vw",
        mode: AddMode::Tail,
        terms: terms(),
    };
    let lend = QueueRequest::LendMany { queues: vec![b"mail"], count: 64, timeout_ms: 7, wait_ms: 9 };
    let browse = QueueRequest::Browse {
        queue: b"mail",
        state: BrowsedState::Dead,
        group: Some(b"acme"),
        from: BrowsePlace([1, 2, 3, 4]),
        most: 10,
        first_bytes: 16,
    };
    let states = SweptStates { ready: true, dropped: true, ..SweptStates::default() };
    vec![
        (AnyRequest::InQueue(b"mail", Request::Lookup { key: b"k" }), [&b"\x20\x04mail\x09"[..], &KEY].concat()),
        (of(add), [&b"\x21\0\x02\x04mail\x04post"[..], &KEY, &VALUE, &[2], &options()].concat()),
        (of(lend), [&b"\x22\0\x01\x04mail"[..], &int(64), &long(7), &long(9)].concat()),
        (of(ends), end_bytes),
        (of(QueueRequest::ExtendMany(vec![(LEASE, 7)])), [&[0x24, 0, 1][..], &lease_bytes(), &long(7)].concat()),
        (
            of(browse),
            [&b"\x25\x04mail\x04\x01\x04acme"[..], &[1, 2, 3, 4].map(u64::to_be_bytes).concat(), &int(10), &int(16)]
                .concat(),
        ),
        (of(QueueRequest::Kick { queue: b"mail", what: Kicked::One(b"k") }), [&b"\x26\x04mail\0"[..], &KEY].concat()),
        (
            of(QueueRequest::Kick { queue: b"mail", what: Kicked::Delayed(5) }),
            [&b"\x26\x04mail\x02"[..], &long(5)].concat(),
        ),
        (of(QueueRequest::Purge { queue: b"mail", states, age_ms: 3 }), [&b"\x27\x04mail\x09"[..], &long(3)].concat()),
        (of(QueueRequest::Configure { queue: b"mail", change }), [&b"\x28\x04mail"[..], &settings].concat()),
        (of(QueueRequest::Queues { from: 1, most: 2 }), [&[0x29][..], &int(1), &int(2)].concat()),
    ]
}

#[test]
fn requests_about_queues_have_the_bytes_of_the_protocol() {
    for (request, expected) in queue_requests() {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        assert_eq!(bytes, expected, "{request:?}");
        assert_eq!(AnyRequest::decode(&bytes), Ok(request.clone()));
        assert_eq!(bytes[0] == tag::IN_QUEUE, matches!(request, AnyRequest::InQueue(..)));
        for length in 1..bytes.len() {
            let fault = AnyRequest::decode(&bytes[..length]).expect_err("it is cut short");
            assert!(matches!(fault, Fault::Truncated { .. }), "{request:?} {length}: {fault:?}");
        }
    }
}

#[test]
fn what_has_no_meaning_in_a_request_about_queues_is_named() {
    let offending = |field, offending| Err(Fault::Offending { field, offending });
    let truncated = |field, required, given| Err(Fault::Truncated { field, required, given });
    let rows: [(&[u8], Result<AnyRequest<'_>, Fault>); 12] = [
        (b"\x20\0\x01", truncated(Field::QueueName, 1, 0)),
        (b"\x20\x01q\x08", offending(Field::UnknownTag, 0x08)),
        (b"\x20\x01q\x20", offending(Field::UnknownTag, 0x20)),
        (b"\x2a", offending(Field::UnknownTag, 0x2a)),
        (b"\x22\0\0", truncated(Field::List, 0, 1_024)),
        (b"\x22\x04\x01", truncated(Field::List, 1_025, 1_024)),
        (b"\x21\0\x01\x01q\0\0\0\x01k\0\0\0\0\x02\x01\x07", offending(Field::BadOption, 7)),
        (b"\x21\0\x01\x01q\0\0\0\x01k\0\0\0\0\x03\0", offending(Field::BadAddMode, 3)),
        (b"\x28\x01q\x01\x07", offending(Field::BadOption, 7)),
        (b"\x28\x01q\x01\x04\0\0\0\0\0\0\0\x01\0\0\0\x01", offending(Field::BadOption, 4)),
        (b"\x27\x01q\0", offending(Field::BadChoice, 0)),
        (b"\x25\x01q\x06", offending(Field::BadChoice, 6)),
    ];
    for (bytes, expected) in rows {
        assert_eq!(AnyRequest::decode(bytes), expected, "{bytes:02x?}");
    }
}

/// A request that adds a value of 16 MiB to 1,024 queues would write 16 GiB at once.
#[test]
fn what_a_request_adds_to_all_of_its_queues_is_bounded() {
    let value = vec![7; TASK_VALUE_BYTES_MAX];
    let add = |queues: usize, value: &[u8]| {
        let mut bytes = Vec::new();
        let terms = AddTerms::default();
        let request =
            QueueRequest::AddMany { queues: vec![b"q"; queues], key: b"k", value, mode: AddMode::Tail, terms };
        AnyRequest::OfQueues(request).encode(&mut bytes);
        AnyRequest::decode(&bytes).err()
    };
    assert_eq!((add(2, &value), add(LIST_MAX, &value[..32_000])), (None, None));
    let [required, given] = [3 * (value.len() + 1), 2 * (TASK_KEY_BYTES_MAX + TASK_VALUE_BYTES_MAX)];
    let [required, given] = [required, given].map(|bytes| u32::try_from(bytes).unwrap_or_default());
    assert_eq!(add(3, &value), Some(Fault::Truncated { field: Field::Value, required, given }));
}

#[test]
fn replies_about_queues_come_back_and_are_refused_when_they_are_cut_short() {
    let task = SeenTask {
        key: b"k",
        class: 3,
        tries: 4,
        group: b"acme",
        age_ms: 5,
        left_ms: Some(6),
        reason: &[b'r'; 256],
        bytes: 7,
        first: b"vw",
    };
    let settings = SeenSettings {
        terms: QueueTerms { tries: Some(None), backoff: None, group_limit: NonZeroU32::new(2) },
        rate: Rate::of(1, 2, 3),
        sync: Some(Policy::Within(9)),
    };
    let queue =
        SeenQueue { name: b"mail", figures: QueueFigures([7; 15]), oldest_ms: None, paused_ms: Some(8), settings };
    let lent = LentTask { queue: 1, lend_key: 9, tries: 2, key: b"k", value: b"vw" };
    let items = vec![ItemResult::Done, ItemResult::Refused, ItemResult::NoRoom];
    let replies = [
        QueueReply::Items(Verb::AddMany, items.clone()),
        QueueReply::Items(Verb::SettleMany, items.clone()),
        QueueReply::Items(Verb::ExtendMany, items),
        QueueReply::Lent(vec![lent; 3]),
        QueueReply::Browsed(vec![task, SeenTask { left_ms: None, ..task }], Some(BrowsePlace([1, 2, 3, 4]))),
        QueueReply::Browsed(vec![], None),
        QueueReply::Counted(Verb::Kick, 5),
        QueueReply::Counted(Verb::Purge, 6),
        QueueReply::Configured,
        QueueReply::Queues(vec![queue, SeenQueue { paused_ms: None, oldest_ms: Some(1), ..queue }], Some(4)),
    ];
    for reply in replies.map(AnyReply::OfQueues) {
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        assert_eq!(bytes.len(), reply.encoded_len(), "{reply:?}");
        assert_eq!(AnyReply::decode(&bytes), Ok(reply.clone()));
        for length in 1..bytes.len() {
            assert!(AnyReply::decode(&bytes[..length]).is_err(), "{reply:?} {length}");
        }
        assert!(AnyReply::decode(&[&bytes[..], &[0]].concat()).is_err(), "{reply:?}");
    }
    assert_eq!(AnyReply::decode(&[0x2a]), Err(Malformed::Tag));
    assert_eq!(AnyReply::decode(&[0x10]), Ok(AnyReply::Plain(Reply::QueueEmpty)));
}

/// Any bytes, and real requests and replies with a few bytes changed.
#[test]
fn no_bytes_about_queues_confuse_the_decoders_and_what_they_take_is_encoded_the_same() {
    let mut samples: Vec<Vec<u8>> = queue_requests().into_iter().map(|(_, bytes)| bytes).collect();
    samples.push(vec![0x22, 0, 0, 0, 1]);
    bolero::check!().with_iterations(50_000).with_type::<(u8, u16, u8, Vec<u8>)>().for_each(
        |(which, at, byte, garbage): &(u8, u16, u8, Vec<u8>)| {
            let mut bytes = samples[usize::from(*which) % samples.len()].clone();
            let at = usize::from(*at) % bytes.len();
            match which % 3 {
                0 => bytes[at] = *byte,
                1 => drop(bytes.splice(at.., garbage.iter().copied())),
                _ => bytes.clone_from(garbage),
            }
            if let Ok(request) = AnyRequest::decode(&bytes) {
                let mut again = Vec::new();
                request.encode(&mut again);
                assert_eq!(AnyRequest::decode(&again), Ok(request));
            }
            if let Ok(reply) = AnyReply::decode(&bytes) {
                let mut again = Vec::new();
                reply.encode(&mut again);
                assert_eq!(AnyReply::decode(&again), Ok(reply));
            }
        },
    );
}
