//! Our ZMTP against libzmq itself, in both roles: we understand the bytes of libzmq, and it understands ours.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use spindle::zmtp::{
    Handshake, HandshakePeer, HandshakeStep, Part, ProtocolError, SocketType, ZmtpCommand, encode_frame, encode_pong,
    encode_subscribe,
};

const BYTES_MAX: u64 = 1 << 24;

/// One side of a connection, with our ZMTP over a plain socket.
pub(crate) struct Plain {
    stream: TcpStream,
    bytes: Vec<u8>,
    pings: usize,
}

impl Plain {
    /// Shakes hands with the peer, or returns the reason why not.
    pub(crate) fn meet(stream: TcpStream, ours: SocketType) -> Result<(Self, HandshakePeer), ProtocolError> {
        let mut plain = Self { stream, bytes: Vec::new(), pings: 0 };
        let mut out = Vec::new();
        let mut handshake = Handshake::begin(ours, &mut out);
        loop {
            plain.stream.write_all(&std::mem::take(&mut out)).unwrap();
            plain.read();
            let (taken, step) = match handshake.advance(&plain.bytes, &mut out) {
                Ok(went_on) => went_on,
                Err(fault) => {
                    let _closed = plain.stream.write_all(&out);
                    return Err(fault);
                }
            };
            plain.bytes.drain(..taken);
            if let HandshakeStep::Done(peer) = step {
                plain.stream.write_all(&out).unwrap();
                return Ok((plain, peer));
            }
        }
    }

    fn read(&mut self) {
        let mut some = [0; 4096];
        let count = self.stream.read(&mut some).unwrap();
        assert!(count > 0, "the peer has closed the connection");
        self.bytes.extend_from_slice(&some[..count]);
    }

    /// Sends bytes unchanged. False: the peer has closed the connection.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// The messages until the peer closes the connection, and ERRORs with their reason.
    pub(crate) fn rest(mut self) -> Vec<Vec<Vec<u8>>> {
        // A connection that is reset has sent all that it had to send.
        let _reset = self.stream.read_to_end(&mut self.bytes);
        let (mut at, mut said, mut frames) = (0, Vec::new(), Vec::new());
        while let Ok(Some((part, length))) = Part::decode(&self.bytes[at..], BYTES_MAX) {
            at += length;
            match part {
                Part::Frame { body, more } => {
                    frames.push(body.to_vec());
                    if !more {
                        said.push(std::mem::take(&mut frames));
                    }
                }
                Part::Command(ZmtpCommand::Error { reason }) => said.push(vec![b"ERROR".to_vec(), reason.to_vec()]),
                Part::Command(_) => {}
            }
        }
        assert_eq!(at, self.bytes.len(), "nothing is cut off");
        said
    }

    fn send(&mut self, frames: &[&[u8]]) {
        self.send_all(&[frames]);
    }

    /// Sends messages together.
    pub(crate) fn send_all(&mut self, messages: &[&[&[u8]]]) {
        let mut out = Vec::new();
        for frames in messages {
            for (number, frame) in frames.iter().enumerate() {
                encode_frame(&mut out, frame, number + 1 < frames.len());
            }
        }
        self.stream.write_all(&out).unwrap();
    }

    /// The next message. Pings before it are answered.
    pub(crate) fn receive(&mut self) -> Vec<Vec<u8>> {
        let mut message = Vec::new();
        loop {
            let Some((part, length)) = Part::decode(&self.bytes, BYTES_MAX).unwrap() else {
                self.read();
                continue;
            };
            let mut last = false;
            match part {
                Part::Frame { body, more } => {
                    message.push(body.to_vec());
                    last = !more;
                }
                Part::Command(ZmtpCommand::Ping { context }) => {
                    let mut out = Vec::new();
                    encode_pong(&mut out, context);
                    self.stream.write_all(&out).unwrap();
                    self.pings += 1;
                }
                Part::Command(_) => {}
            }
            self.bytes.drain(..length);
            if last {
                return message;
            }
        }
    }
}

impl Plain {
    /// How many messages come until the peer closes the connection.
    pub(crate) fn count_until_closed(mut self) -> usize {
        // A reset ends it as well.
        let _reset = self.stream.read_to_end(&mut self.bytes);
        let (mut rest, mut count) = (&self.bytes[..], 0);
        while let Ok(Some((part, length))) = Part::decode(rest, BYTES_MAX) {
            count += usize::from(matches!(part, Part::Frame { more: false, .. }));
            rest = &rest[length..];
        }
        count
    }
}

/// A socket of libzmq that does not linger when it is closed.
fn socket(context: &zmq::Context, kind: zmq::SocketType) -> zmq::Socket {
    let socket = context.socket(kind).unwrap();
    socket.set_linger(0).unwrap();
    socket
}

fn bound(socket: &zmq::Socket) -> TcpStream {
    socket.bind("tcp://127.0.0.1:*").unwrap();
    let endpoint = socket.get_last_endpoint().unwrap().unwrap();
    TcpStream::connect(endpoint.strip_prefix("tcp://").unwrap()).unwrap()
}

/// A socket of libzmq that connects to us, and our end of the connection.
fn accepted(socket: &zmq::Socket) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    socket.connect(&format!("tcp://{}", listener.local_addr().unwrap())).unwrap();
    listener.accept().unwrap().0
}

/// Lengths at the edges of frame sizes.
const LENGTHS: [usize; 6] = [0, 1, 255, 256, 8_192, 1_000_000];

#[test]
fn as_a_dealer_we_talk_to_a_router_of_libzmq() {
    let context = zmq::Context::new();
    let router = socket(&context, zmq::ROUTER);
    let (mut plain, peer) = Plain::meet(bound(&router), SocketType::Dealer).unwrap();
    assert_eq!(peer.socket_type, SocketType::Router);
    for length in LENGTHS {
        let body = vec![7; length];
        plain.send(&[b"", &body]);
        let mut message = router.recv_multipart(0).unwrap();
        assert_eq!(message[1..], [Vec::new(), body.clone()], "{length}");
        message[2].push(8);
        router.send_multipart(message, 0).unwrap();
        assert_eq!(plain.receive(), [Vec::new(), [&body[..], &[8]].concat()], "{length}");
    }
}

#[test]
fn as_a_router_we_talk_to_clients_of_libzmq() {
    let context = zmq::Context::new();
    for (kind, expected) in
        [(zmq::REQ, SocketType::Req), (zmq::DEALER, SocketType::Dealer), (zmq::ROUTER, SocketType::Router)]
    {
        let client = socket(&context, kind);
        client.set_identity(b"its own id").unwrap();
        let (mut plain, peer) = Plain::meet(accepted(&client), SocketType::Router).unwrap();
        assert_eq!((peer.socket_type, peer.identity.as_slice()), (expected, &b"its own id"[..]));
        // A router needs a name for us, which it invents when our handshake arrives.
        let us = (kind == zmq::ROUTER).then(|| {
            plain.send(&[b"hello"]);
            client.recv_multipart(0).unwrap().swap_remove(0)
        });
        for length in LENGTHS {
            let body = vec![9; length];
            let message: Vec<&[u8]> = us.iter().map(Vec::as_slice).chain([&body[..]]).collect();
            client.send_multipart(message, 0).unwrap();
            let received = plain.receive();
            let expected = if kind == zmq::REQ { vec![Vec::new(), body.clone()] } else { vec![body.clone()] };
            assert_eq!(received, expected, "{kind:?} {length}");
            let frames: Vec<&[u8]> = received.iter().map(Vec::as_slice).collect();
            plain.send(&frames);
            assert_eq!(client.recv_multipart(0).unwrap().last(), Some(&body), "{kind:?} {length}");
        }
    }
}

#[test]
fn as_a_subscriber_we_receive_what_we_asked_for() {
    let context = zmq::Context::new();
    let publisher = socket(&context, zmq::XPUB);
    let (mut plain, peer) = Plain::meet(bound(&publisher), SocketType::Sub).unwrap();
    assert_eq!(peer.socket_type, SocketType::XPub);
    let mut out = Vec::new();
    encode_subscribe(&mut out, b"birds");
    plain.stream.write_all(&out).unwrap();
    assert_eq!(publisher.recv_bytes(0).unwrap(), b"\x01birds");
    publisher.send_multipart([&b"fish"[..], b"carp"], 0).unwrap();
    publisher.send_multipart([&b"birds"[..], b"heron"], 0).unwrap();
    assert_eq!(plain.receive(), [&b"birds"[..], b"heron"]);
}

#[test]
fn a_libzmq_that_pings_is_answered_and_stays() {
    let context = zmq::Context::new();
    let client = socket(&context, zmq::DEALER);
    client.set_heartbeat_ivl(20).unwrap();
    client.set_heartbeat_timeout(10_000).unwrap();
    let (mut plain, _) = Plain::meet(accepted(&client), SocketType::Router).unwrap();
    while plain.pings < 3 {
        client.send("hello", 0).unwrap();
        assert_eq!(plain.receive(), [b"hello"]);
    }
}

#[test]
fn sockets_that_do_not_fit_are_refused_by_both() {
    let context = zmq::Context::new();
    let publisher = socket(&context, zmq::PUB);
    let refused = Plain::meet(accepted(&publisher), SocketType::Router).map(|(_, peer)| peer);
    assert_eq!(refused, Err(ProtocolError::SocketType { theirs: "PUB".to_owned(), ours: SocketType::Router }));
    let pull = socket(&context, zmq::PULL);
    let refused = Plain::meet(bound(&pull), SocketType::Dealer).map(|(_, peer)| peer);
    assert!(matches!(refused, Err(ProtocolError::SocketType { .. } | ProtocolError::Refused { .. })), "{refused:?}");
}
