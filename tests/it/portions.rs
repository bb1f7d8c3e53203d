//! Long replies and long requests go in portions: others have their turns in between, and nothing of a reply is made before
//! its client reads what came before.

use std::io::{Read, Write};
use std::net::TcpStream;

use spindle::clients::rust::tables::Client;
use spindle::zmtp::{Part, SocketType, ZmtpCommand, encode_frame};

use crate::admin::awaited;
use crate::harness::Server;
use crate::memory::status;
use crate::zmtp::Plain;

const MEBIBYTE: usize = 1 << 20;
const OK: &[u8] = &[1];
/// Elements of the table, of one MiB each.
const ELEMENTS: u8 = 16;
/// Keys of the request. Its reply has as many MiB: a client may have 64 outstanding.
const KEYS: usize = 60;

/// With an allocator that gives back at once what another thread has freed.
fn flags(frontend: &str) -> [&str; 8] {
    ["--frontend", frontend, "--workers", "1", "--max-value", "1M", "--allocator", "system"]
}

/// A server with a table of long values, and a client of it.
fn serve(frontend: &str) -> (Server, Client) {
    let server = Server::start(&flags(frontend));
    let mut client = Client::connect(server.kv()).unwrap();
    client.create_table(b"t").unwrap();
    let values: Vec<[u8; 1]> = (0..ELEMENTS).map(|number| [number]).collect();
    let long: Vec<Vec<u8>> = values.iter().map(|[number]| vec![*number; MEBIBYTE]).collect();
    let pairs: Vec<[&[u8]; 2]> = values.iter().zip(&long).map(|(key, value)| [&key[..], &value[..]]).collect();
    client.update_many(b"t", None, &pairs).unwrap();
    (server, client)
}

fn key(number: usize) -> [u8; 1] {
    [u8::try_from(number % usize::from(ELEMENTS)).unwrap()]
}

/// GET_MANY for as many MiB as there are `KEYS`, with a PING and a GET behind it.
fn long_question() -> Vec<u8> {
    let keys: Vec<[u8; 1]> = (0..KEYS).map(key).collect();
    let frames: Vec<&[u8]> = [&[10_u8][..], b"t"].into_iter().chain(keys.iter().map(|key| &key[..])).collect();
    let mut bytes = Vec::new();
    for (number, frame) in frames.iter().enumerate() {
        encode_frame(&mut bytes, frame, number + 1 < frames.len());
    }
    bytes.extend([&[4, 9][..], b"\x04PING\0\0hi"].concat());
    [&[4][..], b"t", &[3]]
        .iter()
        .zip([true, true, false])
        .for_each(|(frame, more)| encode_frame(&mut bytes, frame, more));
    bytes
}

/// Reads parts, and calls `look` with each until it says that this was the last.
fn read_parts(stream: &mut TcpStream, mut look: impl FnMut(Part<'_>) -> bool) {
    let (mut bytes, mut some) = (Vec::new(), vec![0; MEBIBYTE]);
    loop {
        let mut at = 0;
        while let Some((part, length)) = Part::decode(&bytes[at..], u64::MAX).unwrap() {
            at += length;
            if look(part) {
                return;
            }
        }
        bytes.drain(..at);
        let count = stream.read(&mut some).unwrap();
        assert!(count > 0, "the connection is closed");
        bytes.extend_from_slice(&some[..count]);
    }
}

/// A connection of a DEALER.
fn dealer(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.kv().trim_start_matches("tcp://")).unwrap();
    let copy = stream.try_clone().unwrap();
    Plain::meet(stream, SocketType::Dealer).unwrap();
    copy
}

/// The reply took its length in memory, and all other clients of the worker waited for it.
fn a_long_reply_is_made_as_its_client_reads(frontend: &str) {
    let (server, mut other) = serve(frontend);
    let before = status(server.pid(), "VmHWM");
    let mut stream = dealer(&server);
    stream.write_all(&long_question()).unwrap();
    // Its first portions are there, and it reads nothing.
    stream.peek(&mut [0]).unwrap();
    for number in 0..64 {
        assert_eq!(other.get(b"t", &key(number)).unwrap().len(), MEBIBYTE);
    }
    let peak = status(server.pid(), "VmHWM");
    assert!(peak < before + (24 << 20), "{frontend}: {peak} bytes at most, {before} before");
    let (mut frames, mut is_within, mut pongs) = (0, false, 0);
    read_parts(&mut stream, |part| {
        match part {
            Part::Frame { body, more } => {
                let place = frames % 2;
                if frames == 0 {
                    assert_eq!(body, OK);
                } else if frames <= 2 * KEYS && place == 1 {
                    assert_eq!(body, OK, "{frames}");
                } else if frames <= 2 * KEYS {
                    let expected = key(frames / 2 - 1)[0];
                    assert!(body.len() == MEBIBYTE && body.iter().all(|byte| *byte == expected), "{frames}");
                }
                assert_eq!(more, frames != 2 * KEYS && frames != 2 * KEYS + 2, "{frames}");
                is_within = more;
                frames += 1;
            }
            Part::Command(command) => {
                assert!(!is_within, "a command between two frames of a message, after {frames}");
                pongs += usize::from(command == ZmtpCommand::Pong);
            }
        }
        frames == 2 * KEYS + 3
    });
    assert_eq!(pongs, 1);
    server.stop();
}

#[test]
fn a_long_reply_is_made_as_its_client_reads_behind_the_queue() {
    a_long_reply_is_made_as_its_client_reads("queue");
}

#[test]
fn a_long_reply_is_made_as_its_client_reads_without_the_queue() {
    a_long_reply_is_made_as_its_client_reads("native");
}

/// Of a client that leaves in the middle nothing is kept, and the next ones are served.
#[test]
fn clients_that_leave_within_a_long_reply_leave_nothing() {
    for frontend in ["queue", "native"] {
        let (server, mut other) = serve(frontend);
        for _ in 0..20 {
            let mut stream = dealer(&server);
            stream.write_all(&long_question()).unwrap();
            stream.peek(&mut [0]).unwrap();
        }
        // The one that is asked for here is the second.
        awaited("the end of their connections", || (server.stats()["connections"]["connections"] == 2).then_some(()));
        assert_eq!(other.get(b"t", &key(3)).unwrap(), vec![3; MEBIBYTE]);
        server.stop();
    }
}

/// What a client has sent whole is stored, also if it is gone before the last portion.
#[test]
fn a_long_request_of_a_client_that_leaves_is_carried_out_to_its_end() {
    for frontend in ["queue", "native"] {
        let server = Server::start(&flags(frontend));
        let mut other = Client::connect(server.kv()).unwrap();
        other.create_table(b"t").unwrap();
        let mut bytes = Vec::new();
        let value = vec![7; MEBIBYTE / 2];
        let keys: Vec<[u8; 1]> = (0..24).map(|number| [number]).collect();
        let frames: Vec<&[u8]> =
            [&[11_u8][..], b"t", b""].into_iter().chain(keys.iter().flat_map(|key| [&key[..], &value[..]])).collect();
        for (number, frame) in frames.iter().enumerate() {
            encode_frame(&mut bytes, frame, number + 1 < frames.len());
        }
        let mut stream = dealer(&server);
        stream.write_all(&bytes).unwrap();
        drop(stream);
        awaited("its last element", || other.get(b"t", &[23]).ok());
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let stored = other.get_many(b"t", &keys).unwrap();
        assert!(stored.iter().all(|one| one.as_ref() == Some(&value)), "{frontend}");
        server.stop();
    }
}
