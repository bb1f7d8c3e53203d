//! Clients over real sockets of this host, which the tests speak for byte by byte.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

mod connection;
mod endpoints;
mod gated;
mod gathered;
mod idle;
mod large;
mod late;
mod memory;
mod out;
mod stopping;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use super::{BoundListener, Closed, ConnectionId, ConnectionState, Connections, TurnOutcome, WaitingReply};
use crate::clock::Now;
use crate::limits::{BUFFER_KEPT_BYTES, HANDSHAKE_TIMEOUT, HELD_BYTES_MAX, OUTBOX_BYTES_MAX};
use crate::net::budget::Budget;
use crate::net::sockets::WakeSignal;
use crate::zmtp::{Handshake, MessageBounds, Part, SocketType, ZmtpCommand, encode_error, encode_frame};

const BOUNDS: MessageBounds = MessageBounds { frame_bytes: 1 << 20, frames: 8, bytes: 2 << 20 };
const PATIENCE: Option<Duration> = Some(Duration::from_secs(10));

impl ConnectionState for () {}
impl ConnectionState for u32 {}

/// A server that echoes every message, and counts the messages of each connection.
struct Echo {
    connections: Connections<u32>,
    wake_signal: WakeSignal,
    now: Now,
    address: String,
    /// The connections that have sent a message, in the order of coming.
    received: Vec<ConnectionId>,
    gone: Vec<Closed<u32>>,
    /// Whether memory was tight at the last turn, and how often a reply had to wait for it.
    was_tight: bool,
    starved: u32,
    /// The epoch for which each reply waits. 0: for none.
    epoch: u64,
}

impl Echo {
    fn start() -> Self {
        Self::start_within(&Budget::new(HELD_BYTES_MAX))
    }

    fn start_within(budget: &Arc<Budget>) -> Self {
        let wake_signal = WakeSignal::new().unwrap();
        let mut connections = Connections::new(&wake_signal, BOUNDS, budget, None).unwrap();
        let listener = BoundListener::bind("tcp://127.0.0.1:*").unwrap();
        let address = listener.endpoint().strip_prefix("tcp://").unwrap().to_owned();
        connections.listen(listener).unwrap();
        let (received, gone) = (Vec::new(), Vec::new());
        Self {
            connections,
            wake_signal,
            now: Now::from_millis(1),
            address,
            received,
            gone,
            was_tight: false,
            starved: 0,
            epoch: 0,
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// One pass of the loop.
    fn pass(&mut self) -> bool {
        let now = self.now;
        let raised = self.connections.wait(PATIENCE, || now);
        self.turns();
        raised
    }

    /// The turns after a wait.
    fn turns(&mut self) {
        let Self { received, was_tight, starved, epoch, .. } = self;
        let mut echo =
            |id, count: &mut u32, outbox: &mut super::ReplyBuffer, messages: crate::zmtp::MessageView<'_>| {
                *was_tight = outbox.is_tight();
                for (number, message) in messages.iter().enumerate() {
                    if outbox.is_tight() && message.frames().map(<[u8]>::len).sum::<usize>() > BUFFER_KEPT_BYTES {
                        *starved += 1;
                        return TurnOutcome::Starved(number);
                    }
                    *count += 1;
                    received.push(id);
                    let (last, begin) = (message.frames().len() - 1, outbox.end());
                    message.frames().enumerate().for_each(|(number, frame)| outbox.push(frame, number < last));
                    if *epoch > 0 {
                        outbox.hold_back(WaitingReply { begin, epoch: *epoch, envelope: Some(0) });
                    }
                }
                TurnOutcome::All
            };
        loop {
            self.connections.gather(4, || self.now);
            if self.connections.receive(4, &mut echo).is_none() {
                break;
            }
        }
        self.connections.flush();
        while self.connections.drained().is_some() {}
        while let Some(gone) = self.connections.gone() {
            self.gone.push(gone);
        }
    }

    /// Runs passes until `count` messages were received.
    fn receive(&mut self, count: usize) {
        while self.received.len() < count {
            self.pass();
        }
    }
}

/// The bytes that a socket of this kind sends until it is ready.
pub(crate) fn introduction(kind: SocketType) -> Vec<u8> {
    let (mut said, mut theirs) = (Vec::new(), Vec::new());
    let mut handshake = Handshake::begin(kind, &mut said);
    let _other = Handshake::begin(SocketType::Router, &mut theirs);
    handshake.advance(&theirs, &mut said).unwrap();
    said
}

pub(crate) fn message(frames: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frames.iter().enumerate().for_each(|(number, frame)| encode_frame(&mut bytes, frame, number + 1 < frames.len()));
    bytes
}

/// Reads the bytes that the server sends until it is ready.
fn introduced(stream: &mut TcpStream) {
    let length = introduction(SocketType::Router).len();
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, introduction(SocketType::Router));
}

fn expect(stream: &mut TcpStream, bytes: &[u8]) {
    let mut got = vec![0; bytes.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(got, bytes);
}

#[test]
fn it_does_not_matter_how_what_a_peer_sends_is_split() {
    let mut echo = Echo::start();
    let sent = [introduction(SocketType::Dealer), message(&[b"cookie", b"", &[7; 300]])].concat();
    for size in [1, 2, 3, 7, 63, 64, 65, 100, sent.len()] {
        let mut stream = echo.connect();
        for part in sent.chunks(size) {
            stream.write_all(part).unwrap();
            echo.pass();
        }
        echo.receive(1);
        introduced(&mut stream);
        expect(&mut stream, &message(&[b"cookie", b"", &[7; 300]]));
        echo.received.clear();
    }
    while echo.gone.len() < 9 {
        echo.pass();
    }
    assert!(echo.connections.is_empty());
    assert!(echo.gone.iter().all(|gone| gone.state == 1));
}

#[test]
fn requests_of_a_peer_that_closes_are_handled_before_it_is_gone() {
    let mut echo = Echo::start();
    let mut stream = echo.connect();
    stream.write_all(&introduction(SocketType::Req)).unwrap();
    stream.write_all(&message(&[b"", b"x"]).repeat(1_000)).unwrap();
    introduced_while(&mut echo, &mut stream);
    drop(stream);
    while echo.gone.is_empty() {
        echo.pass();
    }
    assert_eq!((echo.received.len(), echo.gone[0].state), (1_000, 1_000));
}

/// Runs passes until the server has introduced itself.
fn introduced_while(echo: &mut Echo, stream: &mut TcpStream) {
    while echo.connections.is_empty() || echo.received.is_empty() {
        echo.pass();
    }
    introduced(stream);
}

#[test]
fn an_unknown_peer_gets_the_reason_and_is_disconnected() {
    let mut echo = Echo::start();
    let mut stream = echo.connect();
    stream.write_all(&introduction(SocketType::Sub)).unwrap();
    while echo.gone.is_empty() {
        echo.pass();
    }
    let mut said = Vec::new();
    let mut reader = stream.try_clone().unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    reader.read_to_end(&mut said).unwrap();
    let reason = "a SUB socket does not talk to a ROUTER socket";
    let mut error = Vec::new();
    encode_error(&mut error, reason);
    assert!(said.ends_with(&error), "{:?}", said.escape_ascii().to_string());
    while !echo.connections.is_empty() {
        echo.pass();
    }
    for bytes in [&b"\x01\0"[..], b"\xff\0\0\0\0\0\0\0\x01\x7f\x01\x05", b"GET / HTTP/1.1\r\n\r\n"] {
        let mut stream = echo.connect();
        stream.write_all(bytes).unwrap();
        let mut said = Vec::new();
        echo.gone.clear();
        while echo.gone.is_empty() {
            echo.pass();
        }
        stream.read_to_end(&mut said).unwrap();
        assert!(said.len() <= 64, "a greeting, and no more");
    }
}

#[test]
fn a_frame_that_is_too_long_ends_the_connection_and_what_came_before_is_answered() {
    let mut echo = Echo::start();
    let mut stream = echo.connect();
    stream.write_all(&introduction(SocketType::Dealer)).unwrap();
    stream.write_all(&message(&[b"good"])).unwrap();
    stream.write_all(b"\x02\0\0\0\0\xff\0\0\0 and so on").unwrap();
    while echo.gone.is_empty() {
        echo.pass();
    }
    introduced(&mut stream);
    expect(&mut stream, &message(&[b"good"]));
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
    assert!(echo.connections.connection(echo.gone[0].id).is_none(), "nothing is sent to it any more");
}

#[test]
fn a_ping_is_answered_also_in_the_middle_of_a_message() {
    let mut echo = Echo::start();
    let mut stream = echo.connect();
    stream.write_all(&introduction(SocketType::Dealer)).unwrap();
    stream.write_all(b"\x01\x01a\x04\x0a\x04PING\0\x00abc\x00\x01b").unwrap();
    echo.receive(1);
    introduced(&mut stream);
    let mut bytes = [0; 16];
    stream.read_exact(&mut bytes).unwrap();
    let (part, length) = Part::decode(&bytes, 100).unwrap().unwrap();
    assert_eq!(part, Part::Command(ZmtpCommand::Pong));
    assert_eq!(bytes[length..], message(&[b"a", b"b"])[..]);
}

#[test]
fn of_a_peer_that_does_not_read_no_more_is_taken_until_it_does() {
    const MESSAGES: usize = 400;
    let mut echo = Echo::start();
    let mut stream = echo.connect();
    let body = vec![7; 100_000];
    let mut sent = [introduction(SocketType::Dealer), message(&[&body]).repeat(MESSAGES)].concat();
    stream.set_nonblocking(true).unwrap();
    // Until neither side moves: the client has written as much as there is room for, and the server does not read it.
    let mut stuck = 0;
    while stuck < 20 && !sent.is_empty() {
        match stream.write(&sent) {
            Ok(count) => {
                sent.drain(..count);
                stuck = 0;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => stuck += 1,
            Err(error) => panic!("{error}"),
        }
        echo.wake_signal.raise();
        echo.pass();
    }
    let received = echo.received.len();
    assert!(received < MESSAGES, "it kept on taking");
    let (_, outbox) = echo.connections.connection(echo.received[0]).unwrap();
    assert!(outbox.len() <= 2 * OUTBOX_BYTES_MAX, "{}", outbox.len());
    // Another client is served meanwhile.
    let mut other = echo.connect();
    other.write_all(&[introduction(SocketType::Req), message(&[b"", b"other"])].concat()).unwrap();
    while echo.received.len() == received {
        echo.pass();
    }
    introduced(&mut other);
    expect(&mut other, &message(&[b"", b"other"]));
    // Now the client reads, and gets everything.
    let expected = introduction(SocketType::Router).len() + message(&[&body]).len() * MESSAGES;
    let (mut got, mut some) = (0, vec![0; 1 << 20]);
    while got < expected {
        if let Ok(count) = stream.write(&sent) {
            sent.drain(..count);
        }
        got += stream.read(&mut some).unwrap_or(0);
        echo.wake_signal.raise();
        echo.pass();
    }
    assert_eq!(echo.received.len(), MESSAGES + 1);
}

#[test]
fn who_is_slow_with_the_handshake_is_closed() {
    let mut echo = Echo::start();
    let mut silent = echo.connect();
    let mut trickling = echo.connect();
    trickling.write_all(&introduction(SocketType::Req)[..70]).unwrap();
    while echo.connections.len() < 2 {
        echo.pass();
    }
    let mut good = echo.connect();
    good.write_all(&[introduction(SocketType::Req), message(&[b"", b"x"])].concat()).unwrap();
    echo.receive(1);
    echo.now = echo.now.after(HANDSHAKE_TIMEOUT);
    echo.wake_signal.raise();
    assert!(echo.pass());
    assert_eq!((echo.gone.len(), echo.connections.len()), (2, 1));
    for stream in [&mut silent, &mut trickling] {
        // It reads the server's bytes and the end, or a reset if the server had not read everything.
        let _ended = stream.read_to_end(&mut Vec::new());
    }
    good.write_all(&message(&[b"", b"y"])).unwrap();
    echo.receive(2);
}

#[test]
fn who_comes_after_a_long_silence_has_all_its_time() {
    let mut echo = Echo::start();
    let mut stream = echo.connect();
    // An hour passes during the wait.
    echo.now = Now::from_millis(3_600_000);
    echo.connections.wait(PATIENCE, || Now::from_millis(3_600_000));
    stream.write_all(&[introduction(SocketType::Req), message(&[b"", b"x"])].concat()).unwrap();
    echo.receive(1);
    assert!(echo.gone.is_empty());
}

#[test]
fn what_the_system_has_not_taken_is_reported_when_a_peer_is_gone() {
    let mut echo = Echo::start();
    let mut stream = echo.connect();
    stream.write_all(&[introduction(SocketType::Dealer), message(&[b"x"])].concat()).unwrap();
    echo.receive(1);
    let id = echo.received[0];
    let (count, outbox) = echo.connections.connection(id).unwrap();
    *count = 77;
    outbox.push(&vec![0; 64 << 20], false);
    let end = outbox.end();
    echo.connections.flush();
    drop(stream);
    while echo.gone.is_empty() {
        echo.pass();
    }
    let gone = echo.gone.pop().unwrap();
    assert_eq!((gone.id, gone.state), (id, 77));
    assert!(gone.sent < end, "{} of {end}", gone.sent);
    assert!(echo.connections.connection(id).is_none());
    let mut next = echo.connect();
    next.write_all(&[introduction(SocketType::Dealer), message(&[b"x"])].concat()).unwrap();
    echo.receive(2);
    assert_ne!(echo.received[1], id, "its place is taken, its name is not");
}

#[test]
fn all_are_parted_with_when_they_have_read_what_was_sent() {
    let mut echo = Echo::start();
    let mut streams: Vec<TcpStream> = (0..5).map(|_| echo.connect()).collect();
    for stream in &mut streams {
        stream.write_all(&[introduction(SocketType::Dealer), message(&[&[7; 100_000]])].concat()).unwrap();
    }
    echo.receive(5);
    echo.connections.disconnect_all();
    // The server throws later input away, and that does not break the connection.
    streams.iter_mut().for_each(|stream| stream.write_all(&message(&[b"late"])).unwrap());
    let readers: Vec<_> = streams
        .into_iter()
        .map(|mut stream| {
            let mut all = Vec::new();
            echo.pass();
            stream.read_to_end(&mut all).unwrap();
            all
        })
        .collect();
    for all in readers {
        assert_eq!(all, [introduction(SocketType::Router), message(&[&[7; 100_000]])].concat());
    }
    while !echo.connections.is_empty() {
        echo.pass();
    }
    assert_eq!((echo.received.len(), echo.gone.len()), (5, 5));
    assert!(TcpStream::connect(&echo.address).is_err(), "nobody listens any more");
}

#[test]
fn while_nothing_is_received_what_peers_send_wakes_nobody_and_is_there_afterwards() {
    let mut echo = Echo::start();
    let mut streams = [echo.connect(), echo.connect(), echo.connect()];
    for stream in &mut streams {
        stream.write_all(&introduction(SocketType::Dealer)).unwrap();
        stream.write_all(&message(&[b"first"])).unwrap();
    }
    echo.receive(3);
    streams.iter_mut().for_each(introduced);
    for stream in &mut streams {
        expect(stream, &message(&[b"first"]));
        stream.write_all(&message(&[b"second"])).unwrap();
    }
    // The second and the third connection have both input and an end.
    let [mut first, second, third] = streams;
    second.shutdown(std::net::Shutdown::Write).unwrap();
    reset(third);
    let (now, before) = (echo.now, std::time::Instant::now());
    let reads = std::cell::Cell::new(0);
    let mut wait = |timeout| {
        reads.set(reads.get() + 1);
        echo.connections.wait_without_receiving(Some(timeout), || now)
    };
    // The system reports each connection's input once or twice at most. Then the wait lasts.
    let pause = Duration::from_millis(50);
    while before.elapsed() < 4 * pause {
        assert!(!wait(pause));
    }
    assert!(reads.get() < 4 + 3 * 3, "{} waits", reads.get());
    assert_eq!(echo.received.len(), 3);
    echo.wake_signal.raise();
    assert!(echo.connections.wait_without_receiving(PATIENCE, || now), "the wake signal is seen");
    echo.receive(5);
    while echo.gone.len() < 2 {
        echo.pass();
    }
    expect(&mut first, &message(&[b"second"]));
    assert_eq!(echo.connections.len(), 1);
}

/// Resets a connection at once, with the bytes on their way.
fn reset(stream: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
}

#[test]
fn a_fault_behind_a_message_that_waits_wakes_nobody_until_the_message_continues() {
    let mut echo = Echo::start();
    let mut stream = echo.connect();
    stream.write_all(&introduction(SocketType::Dealer)).unwrap();
    stream.write_all(&message(&[b"first"])).unwrap();
    echo.receive(1);
    introduced(&mut stream);
    expect(&mut stream, &message(&[b"first"]));
    stream.write_all(&[message(&[b"waits"]), vec![0xff; 300_000]].concat()).unwrap();
    let (now, mut parked) = (echo.now, None);
    while parked.is_none() {
        echo.connections.wait(PATIENCE, || now);
        while echo
            .connections
            .receive(4, |id, _, _, _| {
                parked = Some(id);
                TurnOutcome::Parked(0)
            })
            .is_some()
        {}
    }
    let (before, mut waits) = (std::time::Instant::now(), 0);
    while before.elapsed() < Duration::from_millis(100) {
        echo.connections.wait(Some(Duration::from_millis(50)), || now);
        waits += 1;
    }
    assert!(waits < 10, "{waits} waits");
    let mut taken = 0;
    echo.connections.resume(parked.unwrap(), |_, _, _, messages| {
        taken = messages.iter().count();
        TurnOutcome::All
    });
    assert_eq!(taken, 1);
    while echo.gone.is_empty() {
        echo.pass();
    }
}
