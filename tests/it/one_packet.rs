//! A client that sends its greeting, READY and a request in one packet, or each byte by itself, is answered.
//!
//! Where a packet ends is seen from outside: another client's PING is answered after the server has read all that had
//! come before, since one thread serves both.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::attack::zmtp::{Client, command, greeting, ready};
use crate::endpoints::{Endpoint, all, start};
use crate::harness::{FRONTENDS, spindle_reads};

/// How long a client waits for bytes.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes that a server sends before it has read any.
const FIRST_BYTES: usize = 12;

/// How the clients introduce themselves.
#[derive(Clone, Copy)]
enum Introduction {
    Null,
    /// As ada, whose password is heron.
    Plain,
}

impl Introduction {
    /// All that a client sends before its request, when it waits for nothing.
    fn bytes(self, socket_type: &[u8]) -> Vec<u8> {
        let ready = ready(socket_type, None);
        match self {
            Self::Null => [greeting(), ready].concat(),
            Self::Plain => {
                let mut greeting = greeting();
                greeting[12..17].copy_from_slice(b"PLAIN");
                let properties = &ready[2 + b"\x05READY".len()..];
                [greeting, command(b"HELLO", b"\x03ada\x05heron"), command(b"INITIATE", properties)].concat()
            }
        }
    }
}

/// A client whose PINGs show that the server has read what came before them.
struct Witness(Option<Client>);

impl Witness {
    fn of(endpoint: &Endpoint, introduction: Introduction) -> Self {
        match introduction {
            Introduction::Null => Self(Some(Client::meet(endpoint.address(), endpoint.socket_type).unwrap())),
            // One packet needs no witness.
            Introduction::Plain => Self(None),
        }
    }

    fn sees_all_read(&mut self) {
        let Some(client) = &mut self.0 else { return };
        client.send(&command(b"PING", b"\0\x64seen")).unwrap();
        assert_eq!(client.receive_pong().unwrap(), b"seen");
    }
}

/// Sends these pieces, each when the server has read the last, and waits for the reply.
fn answered(endpoint: &Endpoint, pieces: &[&[u8]], witness: &mut Witness) {
    let mut stream = TcpStream::connect(endpoint.address()).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut received = vec![0; FIRST_BYTES];
    if pieces.len() > 1 {
        // The thread that serves the witness has the connection.
        stream.read_exact(&mut received).unwrap();
    }
    for piece in pieces {
        stream.write_all(piece).unwrap();
        witness.sees_all_read();
    }
    while !received.ends_with(&endpoint.reply) {
        let mut some = [0; 4_096];
        let count = stream.read(&mut some).unwrap();
        assert!(count > 0, "{}: closed after {}", endpoint.flag, received.escape_ascii());
        received.extend_from_slice(&some[..count]);
    }
}

/// Each endpoint of a server that its clients meet by this introduction, and a client's bytes there.
fn at_every_endpoint(flags: &[&str], introduction: Introduction, check: impl Fn(&Endpoint, &[u8], &mut Witness)) {
    for frontend in FRONTENDS {
        let folder = tempfile::tempdir().unwrap();
        let server = start(frontend, folder.path(), flags);
        for endpoint in all(&server) {
            let bytes = [introduction.bytes(endpoint.socket_type), endpoint.request.clone()].concat();
            check(&endpoint, &bytes, &mut Witness::of(&endpoint, introduction));
        }
        server.stop();
    }
}

#[test]
fn greeting_ready_and_a_request_in_one_packet_are_answered() {
    at_every_endpoint(&[], Introduction::Null, |endpoint, bytes, witness| answered(endpoint, &[bytes], witness));
}

#[test]
fn a_password_and_a_request_in_one_packet_are_answered() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users").to_str().unwrap().to_owned();
    let added = spindle_reads(&["user", "add", "--users", &users, "ada", "--admin", "--password-stdin"], b"heron");
    assert!(added.status.success());
    at_every_endpoint(&["--users", &users], Introduction::Plain, |endpoint, bytes, witness| {
        answered(endpoint, &[bytes], witness);
    });
}

#[test]
fn two_packets_are_answered_wherever_the_first_ends() {
    at_every_endpoint(&[], Introduction::Null, |endpoint, bytes, witness| {
        for cut in 1..bytes.len() {
            answered(endpoint, &[&bytes[..cut], &bytes[cut..]], witness);
        }
    });
}

#[test]
fn a_client_that_sends_each_byte_by_itself_is_answered() {
    at_every_endpoint(&[], Introduction::Null, |endpoint, bytes, witness| {
        answered(endpoint, &bytes.chunks(1).collect::<Vec<_>>(), witness);
    });
}
