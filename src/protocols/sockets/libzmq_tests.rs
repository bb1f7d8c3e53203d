//! Behaviour of the built libzmq (`.cargo/libzmq`) that the server relies on, tested with clients that speak ZMTP 3.0
//! byte by byte (rfc.zeromq.org/spec/23).

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::net::sockopt;

use super::unfinished::unfinished_bytes;
use super::{Addressed, Frame, FrameOrigin, Socket, SocketContext, received_bytes};
use crate::limits::{KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES};

mod hostile;

const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));

/// A router and its address.
fn router() -> (SocketContext, Socket, String) {
    let context = SocketContext::new(1);
    let mut router = context.router(1_000).unwrap();
    let endpoint = router.bind("tcp://127.0.0.1:*").unwrap();
    let address = endpoint.strip_prefix("tcp://").unwrap().to_owned();
    (context, router, address)
}

/// A DEALER with this routing id, through with its handshake.
fn dealer(address: &str, id: &[u8]) -> TcpStream {
    dealer_of(address, id, 0)
}

/// The same, of ZMTP 3.0 or 3.1.
fn dealer_of(address: &str, id: &[u8], minor: u8) -> TcpStream {
    let mut stream = greeted(address, minor);
    stream.write_all(&ready(id)).unwrap();
    let mut theirs = [0; 64 + 2];
    stream.read_exact(&mut theirs).unwrap();
    let mut ready = vec![0; usize::from(theirs[65])];
    stream.read_exact(&mut ready).unwrap();
    stream
}

/// A connection of ZMTP 3.0 or 3.1 that has sent its greeting.
fn greeted(address: &str, minor: u8) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(PATIENCE).unwrap();
    let mut greeting = [0; 64];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    (greeting[10], greeting[11]) = (3, minor);
    greeting[12..16].copy_from_slice(b"NULL");
    stream.write_all(&greeting).unwrap();
    stream
}

/// The READY of a DEALER with this routing id.
fn ready(id: &[u8]) -> Vec<u8> {
    let mut ready = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity".to_vec();
    ready.extend_from_slice(&u32::try_from(id.len()).unwrap().to_be_bytes());
    ready.extend_from_slice(id);
    command(&ready)
}

/// A command of ZMTP 3.
fn command(body: &[u8]) -> Vec<u8> {
    [&[6][..], &(body.len() as u64).to_be_bytes(), body].concat()
}

/// The routing id under which the router knows a client that has sent one frame.
fn heard(router: &Socket) -> Vec<u8> {
    let (mut id, mut frame) = (Frame::new(), Frame::new());
    router.receive_waiting(&mut id);
    router.receive_waiting(&mut frame);
    assert_eq!(&*frame, b"hello");
    id.to_vec()
}

const HELLO: &[u8] = b"\0\x05hello";

/// A router assigns ids of a zero byte and four others, one after the other. If a client may choose such an id, the
/// router aborts the process when it comes to that id itself, and a client that chooses the id of another takes its
/// place.
#[test]
fn no_peer_chooses_an_id_that_the_router_may_give() {
    let (_context, router, address) = router();
    let mut first = dealer(&address, b"");
    first.write_all(HELLO).unwrap();
    let given = heard(&router);
    let [0, number @ ..] = <[u8; 5]>::try_from(given.as_slice()).unwrap() else {
        panic!("{given:?} is no id of a router")
    };
    let number = u32::from_be_bytes(number);
    let id = |ahead: u32| [&[0][..], &number.wrapping_add(ahead).to_be_bytes()].concat();
    let mut others: Vec<TcpStream> =
        [id(0), id(3), id(4), vec![0], vec![0; 200]].map(|id| dealer(&address, &id)).into();
    others.extend((0..8).map(|_| dealer(&address, b"")));
    let mut known = vec![given];
    for stream in &mut others {
        stream.write_all(HELLO).unwrap();
        known.push(heard(&router));
    }
    for (number, id) in known.iter().enumerate() {
        assert_eq!((id.len(), id[0]), (5, 0), "{id:?} is one that the router gave");
        assert!(!known[..number].contains(id), "{id:?} is given twice");
        assert_eq!(router.address(id), Addressed::Ready);
        router.send_bytes(&[u8::try_from(number).unwrap()], false);
    }
    for (number, stream) in std::iter::once(&mut first).chain(&mut others).enumerate() {
        let mut answer = [9; 3];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [0, 1, u8::try_from(number).unwrap()], "each has its own answer");
    }
}

/// The context of a PING follows its time to live. If the time to live was missing, libzmq answered with sixteen bytes
/// from behind the command: memory that had held other clients' values.
#[test]
fn a_ping_without_its_time_to_live_is_answered_with_nothing_of_others() {
    let (_context, router, address) = router();
    for cut in [b"\x04\x05\x04PING".as_slice(), b"\x04\x06\x04PING\0"] {
        let mut stream = dealer(&address, b"");
        stream.write_all(cut).unwrap();
        stream.write_all(b"\x04\x09\x04PING\0\0me").unwrap();
        stream.write_all(HELLO).unwrap();
        let id = heard(&router);
        assert_eq!(router.address(&id), Addressed::Ready);
        router.send_bytes(b"answer", false);
        let mut came = [0; 9 + 8];
        stream.read_exact(&mut came).unwrap();
        assert_eq!(came.escape_ascii().to_string(), b"\x04\x07\x04PONGme\0\x06answer".escape_ascii().to_string());
    }
}

/// A DEALER of ZMTP 1.0 has no greeting: it begins with the frame of its routing id.
fn old_dealer(address: &str) -> TcpStream {
    old_dealer_with(address, b"")
}

/// The same with a routing id.
fn old_dealer_with(address: &str, id: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(PATIENCE).unwrap();
    stream.write_all(&encoded_as_of_old(&[id.to_vec()])).unwrap();
    let mut theirs = [0; 10 + 2];
    stream.read_exact(&mut theirs[..10]).unwrap();
    stream
}

/// The frames of a message, encoded as in ZMTP 3.0.
fn encoded(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (number, frame) in frames.iter().enumerate() {
        crate::zmtp::encode_frame(&mut bytes, frame, number + 1 < frames.len());
    }
    bytes
}

/// The same as in ZMTP 1.0 (rfc.zeromq.org/spec/13).
fn encoded_as_of_old(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (number, frame) in frames.iter().enumerate() {
        match u8::try_from(frame.len() + 1) {
            Ok(length) if length < 255 => bytes.push(length),
            _ => {
                bytes.push(255);
                bytes.extend_from_slice(&(frame.len() as u64 + 1).to_be_bytes());
            }
        }
        bytes.push(u8::from(number + 1 < frames.len()));
        bytes.extend_from_slice(frame);
    }
    bytes
}

/// A router sent the frames of a long message one by one, and no other message in between.
#[test]
fn a_message_that_was_encoded_before_comes_as_its_frames() {
    let (_context, router, address) = router();
    let frames = [0, 1, 253, 254, 255, 256, 70_000, 3].map(|length| vec![7; length]);
    let answer = |mut stream: TcpStream, hello: &[u8], expected: &[u8]| {
        stream.write_all(hello).unwrap();
        let id = heard(&router);
        // The next message comes behind it.
        for _ in 0..2 {
            assert_eq!(router.address(&id), Addressed::Ready);
            router.send(&mut Frame::encoded(&encoded(&frames)), false);
            assert_eq!(router.address(&id), Addressed::Ready);
            router.send_bytes(b"next", false);
        }
        let mut came = vec![0; 2 * expected.len()];
        stream.read_exact(&mut came).unwrap();
        assert!(came == [expected, expected].concat(), "{} bytes", came.len());
    };
    answer(dealer(&address, b""), HELLO, &[encoded(&frames), b"\0\x04next".to_vec()].concat());
    answer(dealer_of(&address, b"", 1), HELLO, &[encoded(&frames), b"\0\x04next".to_vec()].concat());
    let old = [encoded_as_of_old(&frames), b"\x05\0next".to_vec()].concat();
    answer(old_dealer(&address), b"\x06\0hello", &old);
}

/// A client that is held back loses no message, and other clients do not notice.
#[test]
fn a_router_takes_nothing_from_a_peer_that_is_held_back() {
    let (_context, router, address) = router();
    let mut held = dealer(&address, b"held");
    held.write_all(HELLO).unwrap();
    assert_eq!(heard(&router), b"held");
    router.hold_back(b"held", true);
    router.hold_back(b"held", true);
    (0..50).for_each(|_| held.write_all(HELLO).unwrap());
    for _ in 0..50 {
        dealer(&address, b"other").write_all(HELLO).unwrap();
        assert_eq!(heard(&router), b"other");
    }
    // The router can answer it meanwhile.
    assert_eq!(router.address(b"held"), Addressed::Ready);
    router.send_bytes(b"answer", false);
    let mut came = [0; 8];
    held.read_exact(&mut came).unwrap();
    assert_eq!(&came, b"\0\x06answer");
    router.hold_back(b"held", false);
    router.hold_back(b"held", false);
    (0..50).for_each(|_| assert_eq!(heard(&router), b"held"));
    // Another connection takes its id over while it is held back. The new connection is not held back.
    router.hold_back(b"held", true);
    let mut second = dealer(&address, b"held");
    second.write_all(HELLO).unwrap();
    assert_eq!(heard(&router), b"held");
    // It leaves while it is held back.
    router.hold_back(b"held", true);
    drop(second);
    router.hold_back(b"held", false);
    router.hold_back(b"nobody", true);
}

#[test]
#[expect(unsafe_code, reason = "libzmq tells of a descriptor as a number")]
fn a_host_that_vanishes_is_noticed() {
    let (_context, router, address) = router();
    let mut stream = dealer(&address, b"");
    stream.write_all(HELLO).unwrap();
    let mut frame = Frame::new();
    router.receive_waiting(&mut frame);
    let descriptor = frame.property(c"__fd").unwrap().to_str().unwrap().parse().unwrap();
    // SAFETY: the connection is open until `stream` is dropped.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    assert!(sockopt::socket_keepalive(descriptor).unwrap());
    assert_eq!(sockopt::tcp_keepidle(descriptor).unwrap(), KEEPALIVE_IDLE);
    assert_eq!(sockopt::tcp_keepintvl(descriptor).unwrap(), KEEPALIVE_INTERVAL);
    assert_eq!(sockopt::tcp_keepcnt(descriptor).unwrap(), KEEPALIVE_PROBES);
}

/// Writes these messages until the connection takes no more, then has the router receive them, and writes the rest.
/// Returns the bytes that were taken while the router received nothing.
fn write_while_the_router_waits(messages: &[Vec<Vec<u8>>]) -> usize {
    let (_context, router, address) = {
        let context = SocketContext::new(1);
        let mut router = context.router(1_000).unwrap();
        router.options.set_rcvbuf(64 << 10).unwrap();
        let endpoint = router.bind("tcp://127.0.0.1:*").unwrap();
        (context, router, endpoint.strip_prefix("tcp://").unwrap().to_owned())
    };
    let mut stream = dealer(&address, b"");
    sockopt::set_socket_send_buffer_size(&stream, 64 << 10).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let bytes: Vec<u8> = messages.iter().flat_map(|frames| encoded(frames)).collect();
    let mut taken = 0;
    while taken < bytes.len()
        && let Ok(written) = stream.write(&bytes[taken..])
    {
        taken += written;
    }
    let writer = std::thread::spawn(move || {
        stream.set_write_timeout(None).unwrap();
        stream.write_all(&bytes[taken..]).unwrap();
        stream
    });
    let (mut id, mut frame) = (Frame::new(), Frame::new());
    for message in messages {
        router.receive_waiting(&mut id);
        for (number, expected) in message.iter().enumerate() {
            router.receive_rest(&mut frame);
            assert!(*frame == **expected, "frame {number}");
            assert_eq!(frame.more(), number + 1 < message.len());
        }
    }
    drop(writer.join().unwrap());
    taken
}

/// The pipe from a client was bounded by a number of messages, whatever their size.
#[test]
fn a_router_that_receives_nothing_leaves_large_requests_with_their_client() {
    // The pipe, a message more, what is read of the next, and the system's buffers.
    let most = (1_000 << 10) + 2 * (1 << 20) + (1 << 20);
    let large: Vec<Vec<Vec<u8>>> = (0..40).map(|number| vec![vec![], vec![number; 1 << 20]]).collect();
    assert!(write_while_the_router_waits(&large) < most);
    // Messages of many frames, none of which is large.
    let many: Vec<Vec<Vec<u8>>> =
        (0..400).map(|number| vec![vec![u8::try_from(number % 251).unwrap(); 100]; 500]).collect();
    assert!(write_while_the_router_waits(&many) < most);
    // Messages that are smaller than their structure.
    let small: Vec<Vec<Vec<u8>>> = vec![vec![vec![], vec![1], b"table".to_vec(), vec![7; 8]]; 200_000];
    assert!(write_while_the_router_waits(&small) < 1 << 20);
}
