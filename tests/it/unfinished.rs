//! Requests that never come to their end are bounded in memory. Regression: libzmq kept all of them for a proxy,
//! and nothing counted them.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use spindle::limits::HELD_BYTES_MAX;
use spindle::zmtp::{SocketType, encode_frame};

use crate::harness::Server;
use crate::memory::status;
use crate::peer::Peer;
use crate::zmtp::Plain;

const OK: &[u8] = &[1];
const MEBIBYTE: usize = 1 << 20;
/// Bytes that unfinished requests may take on any host, and a third: buffers that grow leave pieces, which the allocator
/// keeps for the next ones.
const UNFINISHED_MAX: u64 = HELD_BYTES_MAX / 3 * 4;
/// Bytes of the process beside them.
const BESIDE: u64 = 128 << 20;
/// How long a client waits until the server takes more of its bytes.
const PATIENCE: Duration = Duration::from_millis(200);

/// A connection after its handshake.
fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.kv().trim_start_matches("tcp://")).unwrap();
    let copy = stream.try_clone().unwrap();
    Plain::meet(stream, SocketType::Dealer).unwrap();
    copy.set_write_timeout(Some(PATIENCE)).unwrap();
    copy
}

/// The head of a frame of 16 MiB, the last of a message.
fn long_frame() -> Vec<u8> {
    [&[2][..], &(16_u64 << 20).to_be_bytes()].concat()
}

/// A server, while `attack` runs and after it: others are answered, and its memory stays within the bound.
fn others_are_answered(frontend: &str, attack: impl FnOnce(&Server) -> Vec<TcpStream>) {
    let server = Server::start(&["--frontend", frontend, "--workers", "1"]);
    let context = zmq::Context::new();
    let other = Peer::connect(&context, server.kv());
    assert_eq!(other.call(&[&[0], b"t"]), [OK]);
    let attackers = attack(&server);
    assert_eq!(other.call(&[&[2], b"t", b"key", &vec![7; 1_024]]), [OK]);
    assert_eq!(other.call(&[&[10], b"t", b"key"])[0], OK);
    let peak = status(server.pid(), "VmHWM");
    assert!(peak < UNFINISHED_MAX + BESIDE, "the server has had {peak} bytes");
    drop(attackers);
    assert_eq!(other.call(&[&[2], b"t", b"key", b"value"]), [OK]);
    server.stop();
}

/// Each of these clients sends all but the last MiB of a frame, together more than unfinished requests may take.
fn frames_without_an_end(server: &Server) -> Vec<TcpStream> {
    let piece = vec![7; MEBIBYTE];
    let client = |_| {
        let mut client = connect(server);
        client.write_all(&long_frame()).unwrap();
        // The server may end the connection meanwhile, or read no more of it.
        let _refused = (0..15).any(|_| client.write_all(&piece).is_err());
        client
    };
    (0..112).map(client).collect()
}

/// A client sends frame after frame of one message.
fn a_message_without_an_end(server: &Server) -> Vec<TcpStream> {
    let mut client = connect(server);
    let mut frame = Vec::new();
    encode_frame(&mut frame, &vec![7; MEBIBYTE / 8], true);
    let frames = 8 * usize::try_from(UNFINISHED_MAX >> 20).unwrap();
    // What is above the longest request is dropped.
    let _refused = (0..frames).any(|_| client.write_all(&frame).is_err());
    vec![client]
}

/// Each of these clients sends a command that is whole and means nothing, and waits. Regression: libzmq kept it.
fn commands_that_mean_nothing(server: &Server) -> Vec<TcpStream> {
    let body = vec![7; 16 * MEBIBYTE - 1];
    let client = |_| {
        let mut client = connect(server);
        client.write_all(&[&[6][..], &(body.len() as u64 + 1).to_be_bytes(), b"\0"].concat()).unwrap();
        // The server may end the connection meanwhile.
        let _refused = client.write_all(&body);
        client
    };
    (0..48).map(client).collect()
}

#[test]
fn commands_that_mean_nothing_are_not_kept_by_the_queue() {
    others_are_answered("queue", commands_that_mean_nothing);
}

#[test]
fn frames_without_an_end_are_bounded_by_the_queue() {
    others_are_answered("queue", frames_without_an_end);
}

#[test]
fn a_message_without_an_end_is_bounded_by_the_queue() {
    others_are_answered("queue", a_message_without_an_end);
}

#[test]
fn frames_without_an_end_are_bounded_by_workers_with_connections() {
    others_are_answered("native", frames_without_an_end);
}

#[test]
fn a_message_without_an_end_is_bounded_by_workers_with_connections() {
    others_are_answered("native", a_message_without_an_end);
}
