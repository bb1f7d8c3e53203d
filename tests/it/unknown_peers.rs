//! Peers that no ZeroMQ endpoint can serve: they are refused alike everywhere, and the log says what they speak.
//!
//! Each peer connects from an address of its own on loopback, since the log names an address once a second.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use crate::attack::zmtp::{greeting, hello};
use crate::endpoints::{all, log_of, start};
use crate::harness::FRONTENDS;

/// How long a peer waits until its connection is closed.
const PATIENCE: Duration = Duration::from_secs(20);
/// A SUB of ZMTP 2.0: its signature, version, socket type and an empty identity.
const ZMTP_2: &[u8] = b"\xff\0\0\0\0\0\0\0\x01\x7f\x01\x02\0\0";

/// What peers send first, and what the log says of them.
const OTHERS: [(&[u8], &str); 7] = [
    (ZMTP_2, "the peer speaks ZMTP 2.0, and ZMTP 3.0 is needed (libzmq 4.0 or later)"),
    (b"\x01\0", "the peer speaks ZMTP 1.0, and"),
    (b"\x04\0abc", "the peer speaks ZMTP 1.0, and"),
    (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "the peer speaks HTTP, and"),
    (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", "the peer speaks TLS, and"),
    (b"*1\r\n$4\r\nPING\r\n", "the peer speaks RESP, as clients of Redis do, and"),
    (b"PING\r\n", "the peer speaks lines of text, as inline commands of Redis are, and"),
];

fn source(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 1, u8::try_from(number).unwrap())
}

/// Sends these bytes from an address, and waits until the server has closed the connection.
fn refused(from: Ipv4Addr, address: &str, bytes: &[u8]) {
    let address: SocketAddr = address.parse().unwrap();
    let descriptor = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&descriptor, &SocketAddr::new(from.into(), 0)).unwrap();
    connect(&descriptor, &address).unwrap();
    let mut stream = TcpStream::from(descriptor);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(bytes).unwrap();
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{}", bytes.escape_ascii()),
    }
}

/// The lines of a log that is complete, about peers that were refused.
fn lines(folder: &Path) -> Vec<String> {
    let log = std::fs::read_to_string(log_of(folder)).unwrap();
    log.lines().filter(|line| line.contains(": refused at ")).map(str::to_owned).collect()
}

#[test]
fn a_peer_that_speaks_something_else_is_closed_and_the_log_says_what_it_speaks() {
    for frontend in FRONTENDS {
        let folder = tempfile::tempdir().unwrap();
        let server = start(frontend, folder.path(), &[]);
        let wrong = [&greeting()[..12], b"PLAIN", &[0; 47]].concat();
        let sub = hello(b"SUB");
        let peers = OTHERS.into_iter().chain([
            (&*wrong, "the peer wants the mechanism PLAIN, and it is not taken here"),
            (&*sub, "a SUB socket does not talk to a ROUTER socket"),
        ]);
        let kv = server.kv().to_owned();
        for (number, (bytes, _)) in peers.clone().enumerate() {
            refused(source(number), kv.trim_start_matches("tcp://"), bytes);
        }
        server.stop();
        let lines = lines(folder.path());
        for (number, (_, said)) in peers.enumerate() {
            let expected = format!("{}: refused at {kv}: {said}", source(number));
            assert_eq!(lines.iter().filter(|line| line.contains(&expected)).count(), 1, "{expected}: {lines:#?}");
        }
    }
}

/// A SUB of ZMTP 2.0 had a connection for ever, on which nothing came.
#[test]
fn a_peer_of_zmtp_2_is_refused_at_every_endpoint() {
    for frontend in FRONTENDS {
        let folder = tempfile::tempdir().unwrap();
        let server = start(frontend, folder.path(), &[]);
        let endpoints = all(&server);
        for (number, endpoint) in endpoints.iter().enumerate() {
            refused(source(number), endpoint.address(), ZMTP_2);
        }
        server.stop();
        let lines = lines(folder.path());
        for (number, endpoint) in endpoints.iter().enumerate() {
            let expected = format!("{}: refused at {}: the peer speaks ZMTP 2.0", source(number), endpoint.at);
            assert!(lines.iter().any(|line| line.contains(&expected)), "{}: {lines:#?}", endpoint.flag);
        }
    }
}

#[test]
fn peers_that_come_again_and_again_cause_few_lines() {
    for frontend in FRONTENDS {
        let folder = tempfile::tempdir().unwrap();
        let server = start(frontend, folder.path(), &[]);
        let endpoints = all(&server);
        let begin = Instant::now();
        for number in 0..100 {
            endpoints.iter().for_each(|endpoint| refused(source(number), endpoint.address(), b"PING\r\n"));
        }
        let seconds = usize::try_from(begin.elapsed().as_secs()).unwrap() + 1;
        server.stop();
        let lines = lines(folder.path());
        assert!((10..=10 * seconds).contains(&lines.len()), "{seconds} s: {lines:#?}");
        let first = format!("{}: refused", source(0));
        let of_first = lines.iter().filter(|line| line.contains(&first)).count();
        assert!((1..=seconds).contains(&of_first), "{seconds} s: {lines:#?}");
    }
}
