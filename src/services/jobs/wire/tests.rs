//! Each row of `PROTOCOL.md` as bytes, cut at every byte, and arbitrary bytes.

#![allow(clippy::indexing_slicing, reason = "a test that fails should say where")]

use super::request::is_queue;
use super::{AckWording, Decoded, Fault, JobId, Malformed, Reply, Request, Verb, decode, read_options};
use crate::limits::{JOB_DATA_BYTES_MAX, JOB_LINE_BYTES_MAX};

const ID: &[u8] = b"00000000000000000007";

/// Complete requests as they are sent without an end.
fn requests() -> Vec<(&'static [u8], Request<'static>)> {
    vec![
        (b"ADD q 3 abc", Request::Add { queue: b"q", data: b"abc" }),
        (b"ADD q 0 ", Request::Add { queue: b"q", data: b"" }),
        (b"ADD q 003 abc", Request::Add { queue: b"q", data: b"abc" }),
        (b"ADD q 14 GET q\r\nADD q 1", Request::Add { queue: b"q", data: b"GET q\r\nADD q 1" }),
        (b"ADD \x00\xff\x85 1 \n", Request::Add { queue: b"\x00\xff\x85", data: b"\n" }),
        (b"GET q", Request::Get { queue: b"q" }),
        (b"GET ADD", Request::Get { queue: b"ADD" }),
        (b"ACK q 00000000000000000007", Request::Ack { queue: b"q", id: ID }),
        (b"ACK q x", Request::Ack { queue: b"q", id: b"x" }),
        (b"IN q 00000000000000000007", Request::In { queue: b"q", id: ID }),
        (b"ADDX q - 3 abc", Request::AddX { queue: b"q", options: b"-", data: b"abc" }),
        (b"ADDX q delay=5s,key=a=b 0 ", Request::AddX { queue: b"q", options: b"delay=5s,key=a=b", data: b"" }),
        (b"WAIT q 60", Request::Wait { queues: b"q", seconds: 60, with_tries: false }),
        (b"WAIT q 60 tries", Request::Wait { queues: b"q", seconds: 60, with_tries: true }),
        (b"WAIT q,r,ADD 0", Request::Wait { queues: b"q,r,ADD", seconds: 0, with_tries: false }),
        (b"NACK q x", Request::Nack { queue: b"q", id: b"x", delay: None, reason: b"" }),
        (b"NACK q x 500", Request::Nack { queue: b"q", id: b"x", delay: Some(500), reason: b"" }),
        (b"NACK q x - no such  host ", Request::Nack { queue: b"q", id: b"x", delay: None, reason: b"no such  host " }),
        (b"TOUCH q x 4294967295", Request::Touch { queue: b"q", id: b"x", seconds: u32::MAX }),
    ]
}

#[test]
fn every_request_is_read_with_each_end_and_without() {
    for (bytes, request) in requests() {
        for end in [&b""[..], b"\n", b"\r\n"] {
            let ended = [bytes, end].concat();
            assert_eq!(decode(&ended, true), Decoded::Whole(request), "{}", ended.escape_ascii());
            let at_once = matches!(request.verb(), Verb::Add | Verb::AddX) || !end.is_empty();
            let expected = if at_once { Decoded::Whole(request) } else { Decoded::Pausing };
            assert_eq!(decode(&ended, false), expected, "{}", ended.escape_ascii());
        }
    }
}

/// The most common request of clients of this protocol that was refused.
#[test]
fn save_is_a_request_without_a_queue() {
    for cut in 0..4 {
        assert_eq!(decode(&b"SAVE"[..cut], false), Decoded::Short { missing: 1 });
        assert!(matches!(decode(&b"SAVE"[..cut], true), Decoded::Wrong(_)));
    }
    for (bytes, at_once) in [("SAVE", false), ("SAVE\r", false), ("SAVE\n", true), ("SAVE\r\n", true)] {
        let expected = if at_once { Decoded::Save } else { Decoded::Pausing };
        assert_eq!((decode(bytes.as_bytes(), false), decode(bytes.as_bytes(), true)), (expected, Decoded::Save));
    }
    for wrong in ["SAVED", "SAVE q\n", "SAVE \n", "SAVE\nGET q\n", "save\n"] {
        assert_eq!(decode(wrong.as_bytes(), false), Decoded::Wrong(Fault::Command), "{wrong:?}");
    }
    let written = |words| {
        let mut bytes = Vec::new();
        Reply::Saved.encode(words, &mut bytes);
        bytes
    };
    assert_eq!((written(AckWording::YesNo), written(AckWording::OkNo)), (b"OK".to_vec(), b"ERROR".to_vec()));
}

#[test]
fn a_request_that_is_cut_anywhere_continues() {
    for (bytes, request) in requests() {
        for end in [&b"\n"[..], b"\r\n"] {
            let ended = [bytes, end].concat();
            for cut in 0..ended.len() {
                match decode(&ended[..cut], false) {
                    Decoded::Wrong(fault) => panic!("{}: {fault}", ended[..cut].escape_ascii()),
                    Decoded::Whole(whole) => assert!(whole == request && cut >= bytes.len()),
                    Decoded::Short { missing } => assert!(missing >= 1 && cut + missing <= bytes.len()),
                    Decoded::Pausing => assert!(!matches!(request.verb(), Verb::Add | Verb::AddX)),
                    Decoded::Save => panic!("{} is no SAVE", ended[..cut].escape_ascii()),
                }
            }
        }
    }
}

#[test]
fn data_is_counted_and_never_looked_at() {
    assert_eq!(decode(b"ADD q 5 ab", false), Decoded::Short { missing: 3 });
    assert_eq!(decode(b"ADD q 5 ab", true), Decoded::Wrong(Fault::Data));
    for more in ["abcd", "abc\n\n", "abc\r\r", "abc\r\n\n", "abc\nGET q\n", "abc "] {
        let request = format!("ADD q 3 {more}");
        assert_eq!(decode(request.as_bytes(), false), Decoded::Wrong(Fault::Data), "{more:?}");
    }
    // The first half of a CRLF. The other half is on its way, and the decoder does not wait for it.
    assert_eq!(decode(b"ADD q 1 a\r", false), Decoded::Whole(Request::Add { queue: b"q", data: b"a" }));
    let longest = [&b"ADD q 1000000 "[..], &vec![b' '; JOB_DATA_BYTES_MAX]].concat();
    assert!(matches!(decode(&longest, false), Decoded::Whole(Request::Add { data, .. }) if data.len() == 1_000_000));
    assert_eq!(decode(b"ADD q 1000001 ", false), Decoded::Wrong(Fault::Length));
}

#[test]
fn what_can_be_no_request_is_refused_at_once() {
    let long = "q".repeat(256);
    let endless = format!("ACK q {}", "1".repeat(JOB_LINE_BYTES_MAX));
    let bad = [
        ("X", Fault::Command),
        ("get q", Fault::Command),
        ("GETT", Fault::Command),
        ("\n", Fault::Command),
        (" GET q", Fault::Command),
        ("ADD\n", Fault::Fields),
        ("ADD  3 abc", Fault::Queue),
        ("ADD q\n", Fault::Queue),
        ("ADD q\t 3 abc", Fault::Queue),
        (&format!("ADD {long}"), Fault::Queue),
        (&format!("ADD {long} 1 a"), Fault::Queue),
        ("ADD q  abc", Fault::Length),
        ("ADD q x", Fault::Length),
        ("ADD q 1x abc", Fault::Length),
        ("ADD q -1 ", Fault::Length),
        ("ADD q +1 a", Fault::Length),
        ("ADD q 1.0 a", Fault::Length),
        ("ADD q 0\n", Fault::Length),
        ("ADD q 99999999999999999999 ", Fault::Length),
        ("ADD q 000000000000000000001 a", Fault::Length),
        ("GET\n", Fault::Fields),
        ("GET \n", Fault::Queue),
        ("GET  q", Fault::Fields),
        ("GET q ", Fault::Fields),
        ("GET q 1\n", Fault::Fields),
        ("GET q\nGET q\n", Fault::Fields),
        ("GET q\t\n", Fault::Queue),
        (&format!("GET {long}"), Fault::Queue),
        ("ACK q\n", Fault::Fields),
        ("ACK q \n", Fault::Fields),
        ("ACK  1\n", Fault::Queue),
        ("ACK q 1 2", Fault::Fields),
        (&endless, Fault::Fields),
        ("IN q\r\n", Fault::Fields),
        ("IN q 1\t", Fault::Fields),
        ("ADDX\n", Fault::Fields),
        ("ADDX q x 1 a", Fault::Options),
        ("ADDX q - x a", Fault::Length),
        ("ADDX q delay=1s\t", Fault::Options),
        (&format!("ADDX q {}", "x".repeat(JOB_LINE_BYTES_MAX + 1)), Fault::Options),
        ("WAIT q\n", Fault::Fields),
        ("WAIT q,,r 1\n", Fault::Queue),
        ("WAIT q -1\n", Fault::Time),
        ("WAIT q 4294967296\n", Fault::Time),
        ("WAIT q 1 2\n", Fault::Fields),
        (&format!("WAIT {}q 1\n", "q,".repeat(1_024)), Fault::Queue),
        (&format!("WAIT {}", "q".repeat(16 << 10)), Fault::Fields),
        ("NACK q\n", Fault::Fields),
        ("NACK  x\n", Fault::Queue),
        ("NACK q x \n", Fault::Time),
        ("TOUCH q x\n", Fault::Fields),
        ("TOUCH q x 1s\n", Fault::Time),
    ];
    for (text, fault) in bad {
        assert_eq!(decode(text.as_bytes(), false), Decoded::Wrong(fault), "{text:?}");
        assert_eq!(decode(text.as_bytes(), true), Decoded::Wrong(fault), "{text:?}");
    }
    for text in ["", "A", "ADD", "ADD ", "ADD q", "ADD q ", "ADD q 1", "GET", "GET ", "ACK q", "ACK q ", "IN"] {
        assert!(matches!(decode(text.as_bytes(), true), Decoded::Wrong(_)), "{text:?}");
    }
}

#[test]
fn replies_are_written_as_specified_and_read_again() {
    let job = Reply::Job { id: JobId(7), data: b"a b\n", tries: None };
    let empty = Reply::Job { id: JobId(u64::MAX), data: b"", tries: None };
    let rows: Vec<(Verb, Reply<'_>, &[u8])> = vec![
        (Verb::Add, Reply::Added(JobId(7)), ID),
        (Verb::Get, job, b"00000000000000000007 4 a b\n"),
        (Verb::Get, empty, b"18446744073709551615 0 "),
        (Verb::Get, Reply::Nothing, b"NONE"),
        (Verb::Ack, Reply::Done(true), b"OK"),
        (Verb::Ack, Reply::Done(false), b"NO"),
        (Verb::In, Reply::In(true), b"YES"),
        (Verb::In, Reply::In(false), b"NO"),
        (Verb::Add, Reply::Error, b"ERROR"),
        (Verb::Get, Reply::Error, b"ERROR"),
        (Verb::In, Reply::Busy, b"BUSY"),
        (Verb::AddX, Reply::Added(JobId(7)), ID),
        (Verb::Wait, job, b"00000000000000000007 4 a b\n"),
        (Verb::Wait, Reply::Nothing, b"NONE"),
        (Verb::Nack, Reply::Done(true), b"OK"),
        (Verb::Touch, Reply::Done(false), b"NO"),
    ];
    for (verb, reply, expected) in rows {
        let mut bytes = Vec::new();
        reply.encode(AckWording::OkNo, &mut bytes);
        assert_eq!(bytes, expected);
        assert_eq!(Reply::decode(verb, &bytes), Ok(reply));
    }
    let mut bytes = Vec::new();
    Reply::Done(true).encode(AckWording::YesNo, &mut bytes);
    assert_eq!((&*bytes, Reply::decode(Verb::Ack, &bytes)), (&b"YES"[..], Ok(Reply::Done(true))));
    let tried = Reply::Job { id: JobId(7), data: b"a b\n", tries: Some(3) };
    bytes.clear();
    tried.encode(AckWording::OkNo, &mut bytes);
    assert_eq!((&*bytes, Reply::decode_with_tries(&bytes)), (&b"00000000000000000007 4 3 a b\n"[..], Ok(tried)));
    assert_eq!(Reply::decode_with_tries(b"NONE"), Ok(Reply::Nothing));
    assert_eq!(tried.without_tries(), job);
    for wrong in [&b"00000000000000000007 1 x a"[..], b"00000000000000000007 1 3 ab"] {
        assert_eq!(Reply::decode_with_tries(wrong), Err(Malformed::Words));
    }
    assert_eq!(Reply::decode_with_tries(b"00000000000000000007 4 3"), Err(Malformed::Cut));
}

#[test]
fn an_id_has_twenty_digits_and_no_part_of_it_is_one() {
    assert_eq!(JobId::read(ID), Some(JobId(7)));
    assert_eq!(JobId::read(JobId(u64::MAX).to_string().as_bytes()), Some(JobId(u64::MAX)));
    for bad in [&ID[1..], &ID[..19], b"", b"+0000000000000000007", b"18446744073709551616", b"0000000000000000000x"] {
        assert_eq!(JobId::read(bad), None, "{}", bad.escape_ascii());
    }
}

#[test]
fn answers_of_somebody_else_are_malformed() {
    assert_eq!(Reply::decode(Verb::Add, b"OK"), Err(Malformed::Words));
    assert_eq!(Reply::decode(Verb::Get, b"HTTP/1.1 400 Bad Request\r\n"), Err(Malformed::Words));
    assert_eq!(Reply::decode(Verb::Get, b"00000000000000000007 1 ab"), Err(Malformed::Words));
    for cut in [&b""[..], b"00000000000000000007", b"00000000000000000007 4", b"00000000000000000007 4 abc"] {
        assert_eq!(Reply::decode(Verb::Get, cut), Err(Malformed::Cut), "{}", cut.escape_ascii());
    }
    assert_eq!(Reply::decode(Verb::In, b"OK"), Err(Malformed::Words));
}

#[test]
fn a_request_that_cannot_be_written_is_found_out_before() {
    assert_eq!(Request::Get { queue: b"a b" }.check(), Err(Fault::Queue));
    assert_eq!(Request::Ack { queue: b"q", id: b"" }.check(), Err(Fault::Fields));
    assert_eq!(Request::Add { queue: b"q", data: &vec![0; JOB_DATA_BYTES_MAX + 1] }.check(), Err(Fault::Length));
    assert_eq!(Request::In { queue: b"q", id: b"1" }.check(), Ok(()));
    assert_eq!(Request::AddX { queue: b"q", options: b"x", data: b"" }.check(), Err(Fault::Options));
    assert_eq!(Request::Wait { queues: b"q,a b", seconds: 1, with_tries: false }.check(), Err(Fault::Queue));
    assert_eq!(
        Request::Wait { queues: "q,".repeat(1_025).as_bytes(), seconds: 1, with_tries: false }.check(),
        Err(Fault::Queue)
    );
    assert_eq!(Request::Nack { queue: b"q", id: b"1", delay: None, reason: b"a\nb" }.check(), Err(Fault::Fields));
    assert_eq!(Request::Nack { queue: b"q", id: b"1", delay: None, reason: &[b'r'; 257] }.check(), Err(Fault::Fields));
}

/// A slow, plain decoder of a request that has ended. It shares only `is_queue` with the other decoder.
fn read_plainly(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let text = bytes.strip_suffix(b"\n").map_or(bytes, |text| text);
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    if let Some(rest) = bytes.strip_prefix(b"ADD ") {
        let mut fields = rest.splitn(3, |byte| *byte == b' ');
        let (queue, length, data) = (fields.next()?, fields.next()?, fields.next()?);
        let digits = (1..=20).contains(&length.len()) && length.iter().all(u8::is_ascii_digit);
        let length = std::str::from_utf8(length).ok()?.parse::<usize>().ok().filter(|_| digits)?;
        let tail = data.get(length..)?;
        let good = is_queue(queue) && length <= 1_000_000 && matches!(tail, b"" | b"\n" | b"\r\n" | b"\r");
        return good.then(|| vec![b"ADD".to_vec(), queue.to_vec(), data[..length].to_vec()]);
    }
    if let Some(rest) = bytes.strip_prefix(b"ADDX ") {
        let mut fields = rest.splitn(3, |byte| *byte == b' ');
        let (queue, options, rest) = (fields.next()?, fields.next()?, fields.next()?);
        let plain = read_plainly(&[b"ADD ", queue, b" ", rest].concat())?;
        let is_good = options.len() <= JOB_LINE_BYTES_MAX && read_options(options).is_some();
        return is_good.then(|| [&[b"ADDX".to_vec()], &plain[1..], &[options.to_vec()]].concat());
    }
    let is_time = |text: &[u8]| {
        let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
        let number = std::str::from_utf8(text).unwrap_or_default().trim_start_matches('0');
        digits && (number.is_empty() || number.parse::<u32>().is_ok())
    };
    if let Some(rest) =
        text.strip_prefix(b"NACK ").filter(|_| !text.contains(&b'\n') && text.len() < JOB_LINE_BYTES_MAX)
    {
        let fields: Vec<&[u8]> = rest.splitn(4, |byte| *byte == b' ').collect();
        let is_job = |queue, id: &[u8]| is_queue(queue) && (id.len() > 255 || is_queue(id));
        let is_good = match fields[..] {
            [queue, id] => is_job(queue, id),
            [queue, id, delay] | [queue, id, delay, _] => is_job(queue, id) && (delay == b"-" || is_time(delay)),
            _ => false,
        };
        return is_good.then(|| [&[&b"NACK"[..]], &fields[..]].concat().into_iter().map(<[u8]>::to_vec).collect());
    }
    let fields: Vec<&[u8]> = text.split(|byte| *byte == b' ').collect();
    let good = match fields[..] {
        [b"SAVE"] => true,
        [b"GET", queue] => is_queue(queue),
        [b"ACK" | b"IN", queue, id] => is_queue(queue) && (id.len() > 255 || is_queue(id)),
        [b"WAIT", queues, seconds] | [b"WAIT", queues, seconds, b"tries"] => {
            queues.split(|byte| *byte == b',').all(is_queue) && is_time(seconds)
        }
        [b"TOUCH", queue, id, seconds] => is_queue(queue) && (id.len() > 255 || is_queue(id)) && is_time(seconds),
        _ => false,
    };
    good.then(|| fields.into_iter().map(<[u8]>::to_vec).collect())
}

fn compare(bytes: &[u8]) {
    let fields = match decode(bytes, true) {
        Decoded::Whole(request) => Some(match request {
            Request::Add { queue, data } => vec![b"ADD".to_vec(), queue.to_vec(), data.to_vec()],
            Request::Get { queue } => vec![b"GET".to_vec(), queue.to_vec()],
            Request::Ack { queue, id } => vec![b"ACK".to_vec(), queue.to_vec(), id.to_vec()],
            Request::In { queue, id } => vec![b"IN".to_vec(), queue.to_vec(), id.to_vec()],
            Request::AddX { queue, options, data } => {
                vec![b"ADDX".to_vec(), queue.to_vec(), data.to_vec(), options.to_vec()]
            }
            // As they were written: the times are compared as numbers.
            Request::Wait { .. } | Request::Nack { .. } | Request::Touch { .. } => {
                let plain = read_plainly(bytes).expect("the plain decoder refuses it");
                let text = plain.join(&b' ');
                let written = |request: &Request<'_>| {
                    let mut bytes = Vec::new();
                    request.encode(&mut bytes);
                    bytes
                };
                assert!(matches!(decode(&text, true), Decoded::Whole(same) if written(&same) == written(&request)));
                plain
            }
        }),
        Decoded::Save => Some(vec![b"SAVE".to_vec()]),
        Decoded::Wrong(_) => None,
        undecided => panic!("{undecided:?}: {}", bytes.escape_ascii()),
    };
    assert_eq!(fields, read_plainly(bytes), "{}", bytes.escape_ascii());
    for cut in 0..bytes.len().min(300) {
        if let Decoded::Wrong(_) = decode(&bytes[..cut], false) {
            assert!(fields.is_none(), "given up too early: {}", bytes.escape_ascii());
        }
    }
}

#[test]
fn whatever_comes_is_read_as_the_specification_says() {
    let words: [&[u8]; 23] = [
        b"ADD", b"GET", b"ACK", b"IN", b" ", b" ", b" ", b"q", b"3", b"0", b"abc", b"\n", b"\r", b"\r\n", b"1000001",
        ID, b"X", b"WAIT ", b"NACK ", b"TOUCH ", b",", b"-", b" tries",
    ];
    bolero::check!().with_iterations(50_000).for_each(|bytes: &[u8]| {
        compare(bytes);
        let spoken: Vec<u8> = bytes.iter().flat_map(|byte| words[usize::from(*byte) % words.len()]).copied().collect();
        compare(&spoken);
        for verb in Verb::ALL {
            if let Ok(reply) = Reply::decode(verb, bytes) {
                let mut out = Vec::new();
                reply.encode(if bytes == b"YES" { AckWording::YesNo } else { AckWording::OkNo }, &mut out);
                let length = |bytes: &[u8]| bytes.splitn(3, |byte| *byte == b' ').nth(1).map(<[u8]>::to_vec);
                assert!(out == bytes || length(&out) != length(bytes), "{}", bytes.escape_ascii());
            }
        }
    });
}
