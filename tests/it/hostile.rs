//! A server receives SIGTERM while peers do their worst at each of its endpoints: it ends with status 0, and soon.
//!
//! Each endpoint has a peer that stays silent, one that stops in the middle of its greeting, one that asks and never
//! reads, one that sends a byte now and then, and one that sends as fast as it can.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::process::Signal;
use spindle::limits::STOP_MAX;
use spindle::zmtp::{SocketType, encode_frame};

use crate::harness::Server;
use crate::zmtp::Plain;

/// How long the end may take here: three times the server's promise, since other processes use the machine too.
const END: Timespec = Timespec { tv_sec: 3 * STOP_MAX.as_secs().cast_signed(), tv_nsec: 0 };
/// Pause between two bytes of a slow peer.
const TRICKLE: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// The bytes of a peer at one endpoint.
struct Dialect {
    /// Its socket type for the handshake, if there are handshakes.
    hands: Option<SocketType>,
    /// The beginning of a peer's first bytes, cut off.
    begun: Vec<u8>,
    /// A whole request, or bytes that count as one.
    request: Vec<u8>,
    /// The beginning of a request that never ends.
    endless: Vec<u8>,
}

fn message(frames: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (number, frame) in frames.iter().enumerate() {
        encode_frame(&mut bytes, frame, number + 1 < frames.len());
    }
    bytes
}

impl Dialect {
    fn zmtp(hands: SocketType, request: &[&[u8]]) -> Self {
        // A long frame of 1,000,000 bytes, of which none has come.
        let endless = [&[2][..], &1_000_000_u64.to_be_bytes()].concat();
        Self { hands: Some(hands), begun: vec![0xff, 0, 0, 0, 0], request: message(request), endless }
    }

    fn plain(begun: &str, request: &str, endless: &str) -> Self {
        let [begun, request, endless] = [begun, request, endless].map(|text| text.as_bytes().to_vec());
        Self { hands: None, begun, request, endless }
    }

    fn connect(&self, address: &str) -> TcpStream {
        let stream = TcpStream::connect(address.trim_start_matches("tcp://")).unwrap();
        set_socket_recv_buffer_size(&stream, 4_096).unwrap();
        let Some(hands) = self.hands else { return stream };
        let copy = stream.try_clone().unwrap();
        Plain::meet(stream, hands).unwrap();
        copy
    }
}

/// Sends until the system takes no more for now. The answers are never read.
fn fill(stream: &TcpStream, bytes: &[u8]) {
    stream.set_nonblocking(true).unwrap();
    // Cut where the system takes no more: the rest of a request never comes.
    for _ in 0..20_000 {
        match (&*stream).write(bytes) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            // A frontend may close a connection after its answer.
            Err(_) => return,
        }
    }
}

/// Sends this again and again, with or without a pause, until the server is gone.
fn send_for_ever(mut stream: TcpStream, bytes: Vec<u8>, pause: Option<Timespec>) -> JoinHandle<()> {
    std::thread::Builder::new()
        .spawn(move || {
            while stream.write_all(&bytes).is_ok() {
                let gone = PollFlags::HUP | PollFlags::ERR;
                if let Some(pause) = pause
                    && poll(&mut [PollFd::from_borrowed_fd(stream.as_fd(), gone)], Some(&pause)) != Ok(0)
                {
                    return;
                }
            }
        })
        .unwrap()
}

/// All of these peers at one endpoint: connections to be kept, and threads that end when the server does.
fn surround(address: &str, dialect: &Dialect) -> (Vec<TcpStream>, Vec<JoinHandle<()>>) {
    let raw = || TcpStream::connect(address.trim_start_matches("tcp://")).unwrap();
    let silent = raw();
    let mut half = raw();
    half.write_all(&dialect.begun).unwrap();
    let met = dialect.connect(address);
    let stalled = dialect.connect(address);
    fill(&stalled, &dialect.request);
    let mut slow = dialect.connect(address);
    slow.write_all(&dialect.endless).unwrap();
    let slow = send_for_ever(slow, vec![b'x'], Some(TRICKLE));
    let flood = send_for_ever(dialect.connect(address), dialect.request.repeat(100), None);
    (vec![silent, half, met, stalled], vec![slow, flood])
}

fn ends_soon(server: Server, endpoints: &[(&str, Dialect)]) {
    let peers: Vec<_> = endpoints.iter().map(|(address, dialect)| surround(address, dialect)).collect();
    server.signal(Signal::TERM);
    let (status, _) = server.wait_for_at_most(&END);
    assert_eq!(status.code(), Some(0), "{status}");
    for (connections, threads) in peers {
        drop(connections);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

fn tables(frontend: &str) {
    let server = Server::start(&["--frontend", frontend]);
    let [kv, publish] = [server.kv(), server.publish()].map(str::to_owned);
    let (stats, subscribe): (&[&[u8]], &[&[u8]]) = (&[&[13]], &[b"\x01topic"]);
    let endpoints =
        [(&*kv, Dialect::zmtp(SocketType::Dealer, stats)), (&*publish, Dialect::zmtp(SocketType::Sub, subscribe))];
    ends_soon(server, &endpoints);
}

#[test]
fn the_queue_and_the_publisher() {
    tables("queue");
}

#[test]
fn the_native_frontend_and_the_publisher() {
    tables("native");
}

#[test]
fn silent_connections_end_with_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let any = "tcp://127.0.0.1:*";
    let flags = ["--kv", any, "--publish", "off", "--tasks", any, "--jobs", "0", "--events", "127.0.0.1:0"];
    let native = ["--frontend", "native", "--events-queue", any, "--data", data];
    let server = Server::start_exactly(&[&flags[..], &native].concat());
    let zmtp = [server.kv(), server.tasks(), server.events_queue()];
    let silent = |endpoint: &str| TcpStream::connect(endpoint.trim_start_matches("tcp://")).unwrap();
    let mut plain = [server.jobs(), server.events()].map(silent);
    let mut greeted = zmtp.map(silent);
    // A connection that has been greeted is known to be served. So are all connections accepted before one that is
    // answered.
    for (endpoint, request) in [(server.jobs(), &b"GET q\n"[..]), (server.events(), b"GET / HTTP/1.0\r\n\r\n")] {
        let mut later = silent(endpoint);
        later.write_all(request).unwrap();
        assert!(later.read_to_end(&mut Vec::new()).unwrap() > 0, "{endpoint}");
    }
    for stream in &mut greeted {
        stream.read_exact(&mut [0; 12]).unwrap();
    }
    let met = zmtp.map(|endpoint| Dialect::zmtp(SocketType::Dealer, &[b""]).connect(endpoint));
    server.signal(Signal::TERM);
    // A client of the jobs is always answered: an empty request is malformed.
    for (stream, answer) in plain.iter_mut().zip(["ERROR", ""]) {
        let mut received = Vec::new();
        let read = stream.read_to_end(&mut received);
        assert!(read.is_ok() && received == answer.as_bytes(), "{read:?}: {}", String::from_utf8_lossy(&received));
    }
    for stream in greeted.iter_mut().chain(&mut met.iter().map(|met| met.try_clone().unwrap()).collect::<Vec<_>>()) {
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        assert!(received.is_empty(), "{received:?}");
    }
    // None of them has closed its end.
    let (status, _) = server.wait_for_at_most(&END);
    assert_eq!(status.code(), Some(0), "{status}");
    drop((plain, greeted, met));
}

#[test]
fn tasks_jobs_and_events() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let any = "tcp://127.0.0.1:*";
    let flags = ["--kv", "off", "--publish", "off", "--tasks", any, "--jobs", "0", "--events", "127.0.0.1:0"];
    let server = Server::start_exactly(&[&flags[..], &["--events-queue", any, "--data", data]].concat());
    let [tasks, jobs, events, queue] =
        [server.tasks(), server.jobs(), server.events(), server.events_queue()].map(str::to_owned);
    let stats: &[&[u8]] = &[&[7]];
    let post = "POST /events HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n";
    let endpoints = [
        (&*tasks, Dialect::zmtp(SocketType::Dealer, stats)),
        (&*queue, Dialect::zmtp(SocketType::Dealer, stats)),
        (&*jobs, Dialect::plain("AD", "ADD q 5 abcde", "ADD q 1000000 ")),
        (&*events, Dialect::plain("POST /ev", post, "POST /events HTTP/1.1\r\nX: ")),
    ];
    ends_soon(server, &endpoints);
}
