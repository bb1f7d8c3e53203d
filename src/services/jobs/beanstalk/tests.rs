//! The bytes of clients: every line, every cut, and whatever stands between commands.

#![allow(clippy::indexing_slicing, reason = "a test that fails should say where")]

use super::command::{Command, LineFault, PutLine, Verb, read_line};
use super::input::{Input, InputFault, Said};
use super::reply::{self, JobPlace};
use super::tubes::{TubeFigures, TubePauses};
use crate::tasks::{JobState, ShownJob};

const BODY_BYTES_MAX: u32 = 20;

/// The commands and faults in these portions, as debug prints them.
fn said<'b>(portions: impl IntoIterator<Item = &'b [u8]>) -> Vec<String> {
    let (mut input, mut all) = (Input::default(), Vec::new());
    for portion in portions {
        input.make_room(portion.len());
        input.bytes.extend_from_slice(portion);
        loop {
            match input.next(Some(BODY_BYTES_MAX)) {
                Said::Short(missing) => {
                    assert!(missing > 0, "it would wait for ever");
                    break;
                }
                said => all.push(format!("{said:?}")),
            }
        }
    }
    all
}

#[test]
fn every_line_is_read_as_beanstalkd_reads_it() {
    let put = PutLine { class: 1, delay: 2, lease: 3, bytes: 4, has_more: false };
    let rows: [(&[u8], Verb, Command<'_>); 30] = [
        (b"put 1 2 3 4", Verb::Put, Command::Put(put)),
        (b"put  1  2   3 4", Verb::Put, Command::Put(put)),
        (b"put 1 2 3 4x", Verb::Put, Command::Put(PutLine { has_more: true, ..put })),
        (b"peek 18446744073709551615", Verb::Peek, Command::Peek(u64::MAX)),
        (b"peek-ready", Verb::PeekReady, Command::PeekReady),
        (b"peek-delayed", Verb::PeekDelayed, Command::PeekDelayed),
        (b"peek-buried", Verb::PeekBuried, Command::PeekBuried),
        (b"reserve", Verb::Reserve, Command::Reserve),
        (b"reserve-with-timeout 7", Verb::ReserveWithTimeout, Command::ReserveWithTimeout(Some(7))),
        (b"reserve-with-timeout ", Verb::ReserveWithTimeout, Command::ReserveWithTimeout(Some(0))),
        (b"reserve-with-timeout -1", Verb::ReserveWithTimeout, Command::ReserveWithTimeout(None)),
        (b"reserve-with-timeout 4294967295", Verb::ReserveWithTimeout, Command::ReserveWithTimeout(None)),
        (b"reserve-with-timeout 4294967297", Verb::ReserveWithTimeout, Command::ReserveWithTimeout(Some(1))),
        (b"reserve-job 007", Verb::ReserveJob, Command::ReserveJob(7)),
        (b"delete 7", Verb::Delete, Command::Delete(7)),
        (b"release 7 8 9", Verb::Release, Command::Release { id: 7, class: 8, delay: 9 }),
        (b"bury 7 4294967295", Verb::Bury, Command::Bury { id: 7, class: u32::MAX }),
        (b"kick 3", Verb::Kick, Command::Kick(3)),
        (b"kick +3 and more", Verb::Kick, Command::Kick(3)),
        (b"kick -1", Verb::Kick, Command::Kick(u64::from(u32::MAX))),
        (b"kick-job 7", Verb::KickJob, Command::KickJob(7)),
        (b"touch 7", Verb::Touch, Command::Touch(7)),
        (b"stats", Verb::Stats, Command::Stats),
        (b"stats-job 7", Verb::StatsJob, Command::StatsJob(7)),
        (b"stats-tube a", Verb::StatsTube, Command::StatsTube(b"a")),
        (b"list-tubes", Verb::ListTubes, Command::ListTubes),
        (b"list-tubes-watched", Verb::ListTubesWatched, Command::ListTubesWatched),
        (b"pause-tube  a  5", Verb::PauseTube, Command::PauseTube { tube: b"a", delay: 5 }),
        (b"quitter", Verb::Quit, Command::Quit),
        (b"auth ada a secret", Verb::Auth, Command::Auth { name: b"ada", password: b"a secret" }),
    ];
    for (line, verb, command) in rows {
        assert_eq!(read_line(line), Ok((verb, command)), "{}", line.escape_ascii());
        assert_eq!(Verb::ALL[verb.number()], verb);
    }
    let longest = [b"use ", "x".repeat(200).as_bytes()].concat();
    assert!(read_line(&longest).is_ok() && read_line(&[&longest[..], b"x"].concat()).is_err());
}

#[test]
fn a_line_that_is_no_command_is_unknown_or_malformed() {
    let malformed: [&[u8]; 22] = [
        b"put 1 2 3",
        b"put 1 2 3 ",
        b"put -1 2 3 4",
        b"put 4294967296 2 3 4",
        b"peek x",
        b"peek 18446744073709551616",
        b"peek 7 ",
        b"peek-readyx",
        b"reserve-job",
        b"reserve-with-timeout 9223372036854775808",
        b"release 7 8",
        b"bury 7",
        b"kick ",
        b"kick x",
        b"kick 18446744073709551616",
        b"stats-tube -a",
        b"stats-tube ",
        b"use a b",
        b"pause-tube",
        b"pause-tube a",
        b"auth ada",
        b"list-tubes\0",
    ];
    for line in malformed {
        assert_eq!(read_line(line), Err(LineFault::Malformed), "{}", line.escape_ascii());
    }
    for line in [&b""[..], b"PUT 1 2 3 4", b"put", b"peek", b"use", b" stats", b"kick-jo 7", b"list-tube"] {
        assert_eq!(read_line(line), Err(LineFault::Unknown), "{}", line.escape_ascii());
    }
}

#[test]
fn bodies_and_lines_that_are_too_long_end_where_the_next_command_begins() {
    let next: &[u8] = b"list-tube-used\r\n";
    let rows: [(&[u8], &str); 8] = [
        (b"put 1 2 3 4\r\na\r\nb\r\n", "Put"),
        (b"put 1 2 3 0\r\n\r\n", "Put"),
        (b"put 1 2 3 2\r\nabcd", "NoEnd"),
        (b"put 1 2 3 21\r\n123456789012345678901\r\n", "TooBig"),
        (b"put 1 2 3 4 \r\n", "PutLine"),
        (&[b'z'; 222], ""),
        (&[b'z'; 224], ""),
        (&[b'z'; 1_000], ""),
    ];
    for (bytes, word) in rows {
        let line = if word.is_empty() { [bytes, b"\r\n"].concat() } else { bytes.to_vec() };
        let all = said([&line[..], next]);
        let expected = match bytes.len() {
            222 => "Unknown",
            _ if word.is_empty() => "Malformed",
            _ => word,
        };
        assert!(all.len() == 2 && all[0].contains(expected), "{expected}: {all:?}");
        assert!(all[1].contains("ListTubeUsed"), "{all:?}");
    }
}

#[test]
fn however_the_bytes_are_cut_they_say_the_same() {
    let words: [&[u8]; 20] = [
        b"put ",
        b"1 ",
        b"0 ",
        b"3 ",
        b"5",
        b"\r\n",
        b"\r\n",
        b"\r\n",
        b"\r",
        b"\n",
        b"abc",
        b"\0",
        b"delete 7",
        b"stats",
        b"use a",
        b"reserve-with-timeout 0",
        b"put 1 2 3 2\r\n",
        b"ab\r\n",
        b"put 1 2 3 30\r\n",
        b"zzzzzzzzzzzzzzzzzzzzzzzzzz",
    ];
    bolero::check!().with_iterations(20_000).for_each(|bytes: &[u8]| {
        for spoken in
            [bytes.to_vec(), bytes.iter().flat_map(|byte| words[usize::from(*byte) % words.len()]).copied().collect()]
        {
            let whole = said([&spoken[..]]);
            assert_eq!(whole, said(spoken.chunks(1)), "{}", spoken.escape_ascii());
            let middle = spoken.len() / 2;
            assert_eq!(whole, said([&spoken[..middle], &spoken[middle..]]), "{}", spoken.escape_ascii());
        }
    });
}

#[test]
fn figures_have_the_fields_of_beanstalkd_in_its_order() {
    let job = ShownJob {
        queue: Box::default(),
        state: JobState::Delayed,
        class: 5,
        age: 1_999,
        delay: 7,
        lease: None,
        left: 2_999,
        reserves: 1,
        timeouts: 2,
        releases: 3,
        buries: 4,
        kicks: 6,
    };
    let text =
        String::from_utf8(reply::stats_job(9, b"mail", &job, JobPlace { file: 3, lease: 300_000 })).unwrap_or_default();
    let body = "---\nid: 9\ntube: mail\nstate: delayed\npri: 5\nage: 1\ndelay: 7\nttr: 300\ntime-left: 2\nfile: 3\nreserves: \
                1\ntimeouts: 2\nreleases: 3\nburies: 4\nkicks: 6\n";
    assert_eq!(text, format!("OK {}\r\n{body}\r\n", body.len()));
    let tube = TubeFigures { used: 1, watched: 2, waited: 3, kept: 0 };
    let pauses = TubePauses { count: 4, seconds: 5 };
    let text = String::from_utf8(reply::stats_tube(b"mail", None, tube, pauses)).unwrap_or_default();
    let values: Vec<&str> = text.lines().skip(2).filter_map(|line| line.split(": ").nth(1)).collect();
    assert_eq!(values, ["mail", "0", "0", "0", "0", "0", "0", "1", "2", "3", "0", "4", "0", "0"]);
    assert_eq!(reply::list([&b"a"[..], b"b"]), b"OK 12\r\n---\n- a\n- b\n\r\n");
}

/// The body of a client that may not put takes no memory.
#[test]
fn a_body_that_is_refused_is_thrown_away_as_it_comes() {
    let mut input = Input::default();
    input.bytes.extend_from_slice(b"put 1 0 9 1000000\r\nx");
    assert!(matches!(input.next(None), Said::Short(1)) && input.body().is_none() && input.len() == 0);
    let rest = [&[b'y'; 999_999][..], b"\r\nstats\r\n"].concat();
    for portion in rest.chunks(1_000) {
        input.make_room(portion.len());
        input.bytes.extend_from_slice(portion);
        match input.next(None) {
            Said::Short(1) => assert!(input.len() == 0 && input.bytes.capacity() < 10_000),
            said => assert_eq!(said, Said::Fault(InputFault::Refused)),
        }
    }
    assert_eq!(input.next(None), Said::Command(Verb::Stats, Command::Stats));
}

/// All bodies of a client that sent one after the other had the time and the room of the first.
#[test]
fn each_body_has_a_number_of_its_own() {
    let mut input = Input::default();
    let mut numbers = Vec::new();
    for portion in [&b"put 1 0 9 3\r\na"[..], b"bc\r\nput 1 0 9 3\r\n", b"abc\r\nput 1 0 9 3\r\na"] {
        input.bytes.extend_from_slice(portion);
        while !matches!(input.next(Some(BODY_BYTES_MAX)), Said::Short(_)) {}
        numbers.extend(input.body());
    }
    assert_eq!(numbers, [(1, 5), (2, 5), (3, 5)]);
}
