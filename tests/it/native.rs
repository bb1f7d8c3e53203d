//! Native workers serve a client as the proxy does, except that they never cut a client off.

use std::process::{Command, Stdio};
use std::thread;

use rustix::process::Signal;
use zmq::{Context, DEALER, PollEvents, ROUTER, SocketEvent};

use crate::harness::{FRONTEND, Server};
use crate::peer::Peer;

const PING: &[&[u8]] = &[&[5]];
const OK: &[u8] = &[1];

/// Chapters that hold over either frontend.
const CHAPTERS: &[&str] = &[
    "conformance::",
    "deaf::",
    "dump::",
    "ending::",
    "feed::",
    "lifecycle::",
    "linearizability::racing_clients",
    "mirror::",
    "pyzmq::",
    "scanning::scans_over",
    "scanning::a_scan",
    "serving::",
    "taking_down::",
];

/// The proxy's way with a client that does not read.
const OF_THE_QUEUE: &[&str] = &["is_cut_off_and_others_go_on", "is_served_again_when_it_reconnects"];

fn start(flags: &[&str]) -> Server {
    Server::start(&[&["--frontend", "native"], flags].concat())
}

#[test]
fn all_that_holds_over_the_queue_holds_without_it() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(CHAPTERS).args(OF_THE_QUEUE.iter().flat_map(|name| ["--skip", name]));
    let output = command.env(FRONTEND, "native").stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("test pyzmq::") && text.contains("test serving::"), "{text}");
}

#[test]
fn a_client_that_does_not_read_is_not_read_from_and_loses_nothing() {
    const ASKED: u32 = 200_000;
    let server = start(&["--workers", "1"]);
    let context = Context::new();
    let peer = Peer::connect(&context, server.kv());
    assert_eq!(peer.call(&[&[0], b"t"]), [OK]);
    assert_eq!(peer.call(&[&[2], b"t", b"k", &[7; 1_000]]), [OK]);
    let deaf = Peer::connect_with(&context, server.kv(), |socket| {
        socket.set_sndhwm(0).unwrap();
        socket.set_rcvhwm(1).unwrap();
        socket.set_rcvbuf(4_096).unwrap();
    });
    (0..ASKED).for_each(|_| deaf.ask(&[&[4], b"t", b"k"]));
    // The only worker has others to serve, and does.
    (0..1_000).for_each(|_| assert_eq!(peer.call(PING), [OK]));
    assert_eq!(peer.clients("cut_off"), 0);
    assert!(peer.clients("outstanding_bytes") < 16 << 20, "200 MB would be");
    for number in 0..ASKED {
        assert_eq!(deaf.answer(), [OK.to_vec(), vec![7; 1_000]], "{number}");
    }
    server.stop();
}

#[test]
fn a_few_connections_are_enough_for_all_workers() {
    let server = start(&["--workers", "4"]);
    let context = Context::new();
    let peers: Vec<Peer> = (0..4).map(|_| Peer::connect(&context, server.kv())).collect();
    peers.iter().for_each(|peer| assert_eq!(peer.call(PING), [OK]));
    let stats = server.stats();
    let requests = |worker: &serde_json::Value| worker["requests"].as_u64().unwrap();
    let workers = stats["workers"].as_array().unwrap();
    assert!(workers.iter().all(|worker| requests(worker) > 0), "{workers:?}");
    drop(peers);
    server.stop();
}

#[test]
fn a_device_in_between_makes_no_difference() {
    const CLIENTS: usize = 8;
    let server = start(&["--workers", "2"]);
    let context = Context::new();
    let (front, back) = (context.socket(ROUTER).unwrap(), context.socket(DEALER).unwrap());
    // Messages that the device still holds at the end must not keep the context from ending.
    front.set_linger(0).unwrap();
    back.set_linger(0).unwrap();
    front.bind("tcp://127.0.0.1:*").unwrap();
    back.connect(server.kv()).unwrap();
    let endpoint = front.get_last_endpoint().unwrap().unwrap();
    let (mut stop, stopped) = (context.socket(zmq::PAIR).unwrap(), context.socket(zmq::PAIR).unwrap());
    stop.bind("inproc://stop").unwrap();
    stopped.connect("inproc://stop").unwrap();
    let device = thread::spawn(move || {
        let (mut front, mut back) = (front, back);
        zmq::proxy_steerable(&mut front, &mut back, &mut stop).unwrap();
    });
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (context, endpoint) = (&context, &endpoint);
            scope.spawn(move || {
                let peer = Peer::connect(context, endpoint);
                for number in 0..2_000_usize {
                    let cookie = format!("{client}/{number}");
                    peer.ask(&[cookie.as_bytes(), b"", &[5]]);
                    if number >= 100 {
                        let before = format!("{client}/{}", number - 100);
                        assert_eq!(peer.answer(), [before.as_bytes(), b"", OK]);
                    }
                }
            });
        }
    });
    stopped.send("TERMINATE", 0).unwrap();
    device.join().unwrap();
    server.stop();
}

#[test]
#[expect(clippy::host_endian_bytes, reason = "libzmq tells of events in the byte order of the host")]
fn libzmq_finds_its_heartbeats_answered() {
    let server = start(&[]);
    let context = Context::new();
    let socket = context.socket(DEALER).unwrap();
    socket.set_linger(0).unwrap();
    socket.set_heartbeat_ivl(20).unwrap();
    socket.set_heartbeat_timeout(500).unwrap();
    let monitored = SocketEvent::HANDSHAKE_SUCCEEDED.to_raw() | SocketEvent::DISCONNECTED.to_raw();
    socket.monitor("inproc://monitor", i32::from(monitored)).unwrap();
    let monitor = context.socket(zmq::PAIR).unwrap();
    monitor.connect("inproc://monitor").unwrap();
    socket.connect(server.kv()).unwrap();
    let event = monitor.recv_multipart(0).unwrap();
    assert_eq!(event[0][..2], SocketEvent::HANDSHAKE_SUCCEEDED.to_raw().to_ne_bytes());
    // Three times as long as it would wait for an answer.
    assert_eq!(monitor.poll(PollEvents::POLLIN, 1_500), Ok(0), "it was disconnected");
    server.stop();
}

#[test]
fn clients_of_a_server_that_was_killed_find_the_next_one() {
    let first = start(&[]);
    let endpoint = first.kv().to_owned();
    let context = Context::new();
    let peers: Vec<Peer> = (0..20).map(|_| Peer::connect(&context, &endpoint)).collect();
    peers.iter().for_each(|peer| assert_eq!(peer.call(PING), [OK]));
    first.signal(Signal::KILL);
    assert!(!first.wait().0.success());
    let second = Server::start_exactly(&["--frontend", "native", "--kv", &endpoint, "--publish", "off"]);
    peers.iter().for_each(|peer| assert_eq!(peer.call(PING), [OK]));
    second.stop();
}
