//! Serving many clients: order under pipelining, and clients that cannot disturb another.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixListener;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use zmq::{Context, DEALER, PollEvents, ROUTER, SocketEvent};

use crate::harness::{Server, spindle};
use crate::peer::{Frames, Peer};
use crate::seeded_rng::SeededRng;

const OK: &[u8] = &[1];
const ERROR: &[u8] = &[0];
const PING: &[&[u8]] = &[&[5]];
/// A server, and a client with a table `t` in it.
fn serve(flags: &[&str]) -> (Server, Context, Peer) {
    let server = Server::start(flags);
    let context = Context::new();
    let peer = Peer::connect(&context, server.kv());
    assert_eq!(peer.call(&[&[0], b"t"]), [OK]);
    (server, context, peer)
}

/// The content of the table if one request is executed after the other.
#[derive(Default)]
struct Sequential(HashMap<Vec<u8>, Vec<u8>>);

impl Sequential {
    /// A request drawn at random, and its reply without the versions.
    fn step(&mut self, rng: &mut SeededRng, number: u32) -> (Frames, Frames) {
        let key = vec![rng.pick(b"abcde")];
        let value = number.to_be_bytes().to_vec();
        let request = |code: u8, rest: &[&[u8]]| {
            let head = [vec![code], b"t".to_vec(), key.clone()];
            head.into_iter().chain(rest.iter().map(|frame| frame.to_vec())).collect()
        };
        let not_found = || vec![ERROR.to_vec(), b"KEY NOT FOUND".to_vec()];
        let found = |value: Vec<u8>| vec![OK.to_vec(), value];
        match rng.index(6) {
            0 | 1 => {
                self.0.insert(key.clone(), value.clone());
                (request(2, &[&value]), vec![OK.to_vec()])
            }
            2 => {
                let reply = self.0.remove(&key).map_or_else(not_found, found);
                (request(3, &[]), reply)
            }
            3 if self.0.contains_key(&key) => {
                (request(7, &[&[0; 8], &value]), vec![ERROR.to_vec(), b"VERSION MISMATCH".to_vec()])
            }
            3 => {
                self.0.insert(key.clone(), value.clone());
                (request(7, &[&[0; 8], &value]), vec![OK.to_vec()])
            }
            _ => {
                let reply = self.0.get(&key).cloned().map_or_else(not_found, found);
                (request(4, &[]), reply)
            }
        }
    }
}

#[test]
fn pipelined_requests_of_one_client_are_executed_and_answered_in_order() {
    let (server, _context, peer) = serve(&["--workers", "4"]);
    let mut rng = SeededRng(7);
    let mut sequential = Sequential::default();
    let steps: Vec<_> = (0..20_000).map(|number| sequential.step(&mut rng, number)).collect();
    for (request, _) in &steps {
        let frames: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();
        peer.ask(&frames);
    }
    for (number, (request, expected)) in steps.iter().enumerate() {
        let mut reply = peer.answer();
        // The value of a version depends on the clock. Other tests check that there is one.
        if request[0] == [7] {
            reply.pop();
        }
        assert_eq!(&reply, expected, "reply {number} to {request:?}");
    }
    server.stop();
}

/// Fills the table with a hundred long values, each of which names its key.
fn fill(peer: &Peer) {
    for key in 0..100_u8 {
        assert_eq!(peer.call(&[&[2], b"t", &[key], &[key; 1000]]), [OK]);
    }
}

fn small_buffers(socket: &zmq::Socket) {
    socket.set_rcvhwm(1).unwrap();
    socket.set_rcvbuf(4096).unwrap();
}

#[test]
fn a_client_that_does_not_read_is_not_read_from_and_loses_nothing() {
    const ASKED: u32 = 200_000;
    let server = Server::start(&["--workers", "1"]);
    let context = Context::new();
    let peer = Peer::connect(&context, server.kv());
    assert_eq!(peer.call(&[&[0], b"t"]), [OK]);
    assert_eq!(peer.call(&[&[2], b"t", b"k", &[7; 1_000]]), [OK]);
    let stalled = Peer::connect_with(&context, server.kv(), |socket| {
        socket.set_sndhwm(0).unwrap();
        socket.set_rcvhwm(1).unwrap();
        socket.set_rcvbuf(4_096).unwrap();
    });
    (0..ASKED).for_each(|_| stalled.ask(&[&[4], b"t", b"k"]));
    // The only worker has others to serve, and does.
    (0..1_000).for_each(|_| assert_eq!(peer.call(PING), [OK]));
    assert_eq!(peer.clients("cut_off"), 0);
    assert!(peer.clients("outstanding_bytes") < 16 << 20, "200 MB would be");
    for number in 0..ASKED {
        assert_eq!(stalled.answer(), [OK.to_vec(), vec![7; 1_000]], "{number}");
    }
    server.stop();
}

#[test]
fn a_device_in_between_makes_no_difference() {
    const CLIENTS: usize = 8;
    let server = Server::start(&["--workers", "2"]);
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
#[expect(clippy::host_endian_bytes, reason = "libzmq reports events in the byte order of the host")]
fn libzmq_finds_its_heartbeats_answered() {
    let server = Server::start(&[]);
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
    let first = Server::start(&[]);
    let endpoint = first.kv().to_owned();
    let context = Context::new();
    let peers: Vec<Peer> = (0..20).map(|_| Peer::connect(&context, &endpoint)).collect();
    peers.iter().for_each(|peer| assert_eq!(peer.call(PING), [OK]));
    first.signal(Signal::KILL);
    assert!(!first.wait().0.success());
    let second = Server::start_exactly(&["--kv", &endpoint, "--publish", "off"]);
    peers.iter().for_each(|peer| assert_eq!(peer.call_again(PING), [OK]));
    second.stop();
}

/// A frontend of libzmq would give the id to the second connection, and end the first.
#[test]
fn two_connections_with_one_routing_id_are_two_clients() {
    let (server, context, _peer) = serve(&["--workers", "2"]);
    let clients: Vec<Peer> = (0..4).map(|_| Peer::connect_as(&context, server.kv(), b"same")).collect();
    for round in 0..100_u8 {
        for (number, client) in (0_u8..).zip(&clients) {
            client.ask(&[&[2], b"t", &[number], &[round, number]]);
            client.ask(&[&[4], b"t", &[number]]);
        }
        for (number, client) in (0_u8..).zip(&clients) {
            assert_eq!((client.answer(), client.answer()), (vec![OK.to_vec()], vec![OK.to_vec(), vec![round, number]]));
        }
    }
    server.stop();
}

#[test]
fn who_takes_over_an_id_does_not_get_the_answers_of_who_had_it() {
    let (server, context, peer) = serve(&["--workers", "2"]);
    fill(&peer);
    for _ in 0..30 {
        // The end of a context waits until its connections are closed: the second does not begin before the first has
        // ended.
        let of_first = Context::new();
        let first = Peer::connect_as(&of_first, server.kv(), b"same");
        assert_eq!(first.call(PING), [OK]);
        for key in 0..100 {
            first.ask(&[&[4], b"t", &[key]]);
        }
        drop((first, of_first));
        let second = Peer::connect_as(&context, server.kv(), b"same");
        assert_eq!(second.call(PING), [OK]);
    }
    server.stop();
}

#[test]
fn a_slow_reader_of_large_values_is_not_cut_off() {
    let (server, context, peer) = serve(&["--max-value", "1M"]);
    let value = vec![7; 1 << 20];
    assert_eq!(peer.call(&[&[2], b"t", b"large", &value]), [OK]);
    let slow = Peer::connect_with(&context, server.kv(), small_buffers);
    for _ in 0..150 {
        slow.ask(&[&[4], b"t", b"large"]);
    }
    for _ in 0..150 {
        assert!(slow.answer() == [OK, &value]);
    }
    assert_eq!(peer.clients("cut_off"), 0);
    server.stop();
}

#[test]
fn a_reply_that_is_too_long_is_refused() {
    let (server, _context, peer) = serve(&["--max-value", "16M"]);
    let value = vec![7; (16 << 20) - 1];
    assert_eq!(peer.call(&[&[2], b"t", b"large", &value]), [OK]);
    let mut request: Vec<&[u8]> = vec![b"cookie", b"", &[10], b"t"];
    request.extend([&b"large"[..]; 1_024]);
    (0..10).for_each(|_| peer.ask(&request));
    for _ in 0..10 {
        assert_eq!(peer.answer(), [&b"cookie"[..], b"", ERROR, b"REPLY TOO LONG"]);
    }
    assert!(peer.call(&request[2..6])[2..] == [&value[..], OK, &value[..]], "two of them are a reply");
    assert_eq!(server.stats()["commands"]["GET_MANY"]["errors"]["REPLY TOO LONG"], 10);
    server.stop();
}

/// Tables whose listing takes some milliseconds.
const MANY_TABLES: usize = 10_000;

#[test]
fn others_go_on_while_a_client_asks_for_report_after_report() {
    const REPORTS: usize = 300;
    let (server, context, peer) = serve(&["--workers", "1"]);
    for number in 0..MANY_TABLES {
        peer.ask(&[&[0], format!("{number:x}").as_bytes()]);
    }
    (0..MANY_TABLES).for_each(|_| assert_eq!(peer.answer(), [OK]));
    let lister = Peer::connect(&context, server.kv());
    assert_eq!(lister.call(PING), [OK]);
    for number in 0..REPORTS {
        lister.ask(&[&[if number % 2 == 0 { 12 } else { 13 }]]);
    }
    lister.ask(PING);
    let mut reports = 0;
    let take = |reports: &mut usize, patience| {
        let Some(reply) = lister.answer_within(patience) else { return false };
        let frames = if reports.is_multiple_of(2) { 1 + 2 * (1 + MANY_TABLES) } else { 2 };
        assert_eq!(reply.len(), frames, "report {reports}");
        *reports += 1;
        true
    };
    assert!(take(&mut reports, Duration::from_secs(20)));
    for _ in 0..100 {
        assert_eq!(peer.call(PING), [OK]);
        while reports < REPORTS && take(&mut reports, Duration::ZERO) {}
    }
    assert!(reports < REPORTS, "a hundred round trips do not wait for {REPORTS} reports");
    while reports < REPORTS {
        assert!(take(&mut reports, Duration::from_secs(20)));
    }
    assert_eq!(lister.answer(), [OK], "what was asked after them is answered after them");
    server.stop();
}

#[test]
fn a_report_includes_all_that_its_client_has_done_before() {
    let (server, _context, peer) = serve(&["--workers", "2"]);
    for number in 1..=200_u8 {
        peer.ask(&[&[0], &[b'u', number]]);
        peer.ask(&[&[2], b"t", &[number], b""]);
        peer.ask(&[&[12]]);
        peer.ask(&[&[13]]);
    }
    for number in 1..=200_u8 {
        assert_eq!((peer.answer(), peer.answer()), (vec![OK.to_vec()], vec![OK.to_vec()]));
        let tables = peer.answer();
        assert_eq!(tables.len(), 1 + 2 * (1 + usize::from(number)));
        assert_eq!(tables[1..3], [b"t".to_vec(), u64::from(number).to_be_bytes().to_vec()]);
        let stats: serde_json::Value = serde_json::from_slice(&peer.answer()[1]).unwrap();
        assert_eq!(stats["tables"][0]["elements"], number);
    }
    server.stop();
}

#[test]
fn a_client_that_reads_but_asks_too_fast_is_slowed_down_and_not_cut_off() {
    let (server, _context, peer) = serve(&["--client-bytes-max", "8M", "--workers", "2"]);
    let mut answered = 0;
    for number in 0..30_000_u32 {
        peer.ask(&[&[2], b"t", &(number % 10).to_be_bytes(), &[0; 1000]]);
        while let Some(reply) = peer.answer_within(Duration::ZERO) {
            assert_eq!(reply, [OK]);
            answered += 1;
        }
    }
    for _ in answered..30_000 {
        assert_eq!(peer.answer(), [OK]);
    }
    assert_eq!(peer.clients("cut_off"), 0);
    server.stop();
}

#[test]
fn a_message_that_is_too_long_is_refused_in_its_turn() {
    let (server, _context, peer) = serve(&[]);
    let many = vec![&b"k"[..]; 4_000];
    let large = vec![0; 8 << 20];
    let mut too_many: Vec<&[u8]> = vec![b"cookie", b"", &[10], b"t"];
    too_many.extend(&many);
    for _ in 0..3 {
        peer.ask(PING);
        peer.ask(&too_many);
        peer.ask(&[&[2], b"t", b"k", &large]);
        peer.ask(&[&[2], b"t", b"k", b"v"]);
    }
    for _ in 0..3 {
        assert_eq!(peer.answer(), [OK]);
        assert_eq!(peer.answer(), [&b"cookie"[..], b"", ERROR, b"BAD REQUEST"]);
        assert_eq!(peer.answer(), [ERROR, b"BAD REQUEST"]);
        assert_eq!(peer.answer(), [OK]);
    }
    server.stop();
}

/// A connection after the handshake of a DEALER by ZMTP 3.0 (rfc.zeromq.org/spec/23): greetings, then READY both ways.
fn shake_hands(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let mut greeting = [0; 64];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    let ready = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER";
    stream.write_all(&greeting).unwrap();
    stream.write_all(&[4, u8::try_from(ready.len()).unwrap()]).unwrap();
    stream.write_all(ready).unwrap();
    let mut theirs = [0; 64 + 2];
    stream.read_exact(&mut theirs).unwrap();
    let mut ready = vec![0; usize::from(theirs[65])];
    stream.read_exact(&mut ready).unwrap();
    stream
}

#[test]
fn a_client_that_vanishes_in_the_middle_of_a_message_disturbs_nobody() {
    let (server, _context, peer) = serve(&["--workers", "2"]);
    let address = server.kv().strip_prefix("tcp://").unwrap();
    for cut in 0..40 {
        let mut stream = shake_hands(address);
        stream.write_all(&[0, 1, 5]).unwrap();
        let mut answer = [0; 3];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [0, 1, 1]);
        // UPDATE of `half`, only a part of which is sent.
        let update = b"\x01\x01\x02\x01\x01t\x01\x04half\x00\x20values of 32 bytes, of which";
        stream.write_all(&update[..cut.min(update.len())]).unwrap();
        drop(stream);
        assert_eq!(peer.call(PING), [OK]);
    }
    assert_eq!(peer.call(&[&[4], b"t", b"half"]), [ERROR, b"KEY NOT FOUND"]);
    server.stop();
}

#[test]
fn two_thousand_clients_are_served_at_once() {
    let (server, _context, peer) = serve(&["--workers", "2"]);
    // libzmq gives a context 1,023 sockets.
    let contexts: Vec<_> = (0..4).map(|_| Context::new()).collect();
    let connect = |number: usize| Peer::connect(&contexts[number % 4], server.kv());
    let peers: Vec<Peer> = (0..2_000).map(connect).collect();
    for round in 0..2_u8 {
        for (number, one) in peers.iter().enumerate() {
            one.ask(&[&[2], b"t", &number.to_be_bytes(), &[round]]);
            one.ask(&[&[4], b"t", &number.to_be_bytes()]);
        }
        for one in &peers {
            assert_eq!(one.answer(), [OK]);
            assert_eq!(one.answer(), [OK, &[round]]);
        }
    }
    assert!(peer.clients("known") > 2_000);
    server.stop();
}

#[test]
fn a_socket_in_the_file_system_serves_like_any_other() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kv");
    let endpoint = format!("ipc://{}", path.display());
    // The file that a killed server leaves behind.
    drop(UnixListener::bind(&path).unwrap());
    let server = Server::start_exactly(&["--kv", &endpoint, "--kv", "tcp://127.0.0.1:*", "--publish", "off"]);
    let context = Context::new();
    for endpoint in server.kv_all() {
        let peer = Peer::connect(&context, endpoint);
        for number in 0..3_000_u32 {
            peer.ask(&[b"cookie", &number.to_be_bytes(), b"", &[5]]);
        }
        for number in 0..3_000_u32 {
            assert_eq!(peer.answer(), [&b"cookie"[..], &number.to_be_bytes(), b"", OK]);
        }
    }
    let second = spindle(&["serve", "--kv", &endpoint, "--publish", "off"]);
    assert_refuses(&second, &endpoint);
    let peer = Peer::connect(&context, &endpoint);
    assert_eq!(peer.call(PING), [OK], "the first is served");
    server.stop();
}

/// One line on standard error that names the endpoint, and status 1.
fn assert_refuses(output: &std::process::Output, endpoint: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains(endpoint), "{said}");
    assert!(output.stdout.is_empty(), "nothing is ready");
}

#[test]
fn an_endpoint_that_cannot_be_had_is_named() {
    let server = Server::start(&[]);
    let taken = server.kv();
    assert_refuses(&spindle(&["serve", "--kv", taken, "--publish", "off"]), taken);
    assert_refuses(&spindle(&["serve", "--kv", "tcp://127.0.0.1:*", "--publish", taken]), taken);
    let elsewhere = "tcp://192.0.2.1:5555";
    assert_refuses(&spindle(&["serve", "--open", "--kv", elsewhere, "--publish", "off"]), elsewhere);
    server.stop();
}

#[test]
fn frames_of_every_size_come_back_as_they_were_sent_in_every_envelope() {
    let (server, _context, peer) = serve(&[]);
    let bytes: Vec<u8> = (0..=255).cycle().take(1024).collect();
    let (cookie, long, ttl) = (&bytes[..3], &bytes[..300], 60_u64.to_be_bytes());
    let envelopes: [&[&[u8]]; 4] = [&[], &[b""], &[cookie, b""], &[long, cookie, cookie, b""]];
    for envelope in envelopes {
        for key in [0, 1, 15, 16, 17, 31, 32, 33, 64].map(|length| &bytes[..length]) {
            for value in [0, 1, 5, 6, 7, 8, 31, 32, 33, 34, 64, 254, 255, 256, 1024].map(|length| &bytes[..length]) {
                let returned: Frames = envelope.iter().map(|frame| frame.to_vec()).collect();
                let update = [envelope, &[&[2], b"t", key, value, &ttl]].concat();
                assert_eq!(
                    peer.call(&update),
                    [&returned[..], &[OK.to_vec()]].concat(),
                    "{} {}",
                    key.len(),
                    value.len()
                );
                let get = [envelope, &[&[4], b"t", key]].concat();
                let expected = [&returned[..], &[OK.to_vec(), value.to_vec()]].concat();
                assert_eq!(peer.call(&get), expected, "{} {}", key.len(), value.len());
            }
        }
    }
    server.stop();
}
