//! Handshakes that are cut, slow, refused, or none.

use std::net::Ipv6Addr;
use std::os::unix::net::UnixListener;

use super::*;
use crate::zmtp::encode_error;

/// Opens connections to a server that sends only so many bytes of its handshake: one more each time, until it is whole.
/// Returns how many bytes that are.
fn cut_everywhere((credentials, mechanisms): (Credentials, Mechanisms)) -> usize {
    for most in 0..2_000 {
        let mechanisms = mechanisms.clone();
        let (endpoint, server) = playing(move |stream| {
            Peer::greet(stream, SocketType::Router, &mechanisms, most, usize::MAX).map(Peer::echo)
        });
        match open_as(&endpoint, credentials.clone()) {
            Err(error) => assert!(matches!(error, ShakeError::Ended(_)), "{most}: {error:?}"),
            Ok(mut socket) => {
                say(&mut socket, &[b"a", b"b"]).unwrap();
                assert_eq!(receive_message(&mut socket).unwrap(), [b"a", b"b"]);
                drop(socket);
                assert!(server.join().unwrap().is_some());
                return most;
            }
        }
        assert!(server.join().unwrap().is_none());
    }
    panic!("the handshake does not end");
}

#[test]
fn a_handshake_that_is_cut_anywhere_is_reported_as_closed() {
    let greeting = 64;
    assert!(cut_everywhere(null()) > greeting);
    assert!(cut_everywhere(plain()) > greeting);
    assert!(cut_everywhere(curve()) > greeting);
}

#[test]
fn a_server_that_sends_byte_by_byte_is_understood() {
    for (credentials, mechanisms) in [null(), plain(), curve()] {
        let (endpoint, server) = playing(move |stream| {
            let mut peer = Peer::greet(stream, SocketType::Router, &mechanisms, usize::MAX, 1).unwrap();
            let received = peer.receive_message();
            let mut bytes = Vec::new();
            encode_frame(&mut bytes, b"one", true);
            encode_frame(&mut bytes, b"two", false);
            let mut wire = Vec::new();
            match &mut peer.cipher {
                None => wire = bytes,
                Some(cipher) => drop(cipher.sealer.seal(&bytes, usize::MAX, &mut wire)),
            }
            wire.chunks(1).for_each(|byte| peer.stream.write_all(byte).unwrap());
            received
        });
        let mut socket = open_as(&endpoint, credentials).unwrap();
        say(&mut socket, &[b"ask"]).unwrap();
        assert_eq!(receive_message(&mut socket).unwrap(), [b"one", b"two"]);
        assert_eq!(server.join().unwrap().unwrap(), [b"ask"]);
    }
}

#[test]
fn a_server_that_accepts_and_says_nothing_is_late_and_one_that_is_silent_is_unreached() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
    let timeouts = ClientTimeouts { answer: MOMENT, connect: MOMENT / 2, retries: false };
    let late = ClientSocket::open(&ConnectTarget::requests(&endpoint), timeouts);
    assert_eq!(late.err(), Some(ConnectError::Late));
    drop(listener);
    assert_eq!(ClientSocket::open(&ConnectTarget::requests(&endpoint), timeouts).err(), Some(ConnectError::Refused));
    let retries = ClientTimeouts { retries: true, ..timeouts };
    assert_eq!(ClientSocket::open(&ConnectTarget::requests(&endpoint), retries).err(), Some(ConnectError::Unreached));
}

/// Connects to a server that sends these bytes and closes.
fn error_after(bytes: Vec<u8>) -> ConnectError {
    let (endpoint, server) = playing(move |mut stream| {
        stream.write_all(&bytes).unwrap();
        // The client's bytes are taken, so that no reset overtakes the words.
        while receive(&mut stream, &mut Vec::new()) {}
    });
    let error = open(&endpoint).err().unwrap();
    server.join().unwrap();
    error
}

/// The greeting of a server that then sends an ERROR with this reason.
fn refusing(reason: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _greeted = Handshake::begin(SocketType::Router, &mut bytes);
    encode_error(&mut bytes, reason);
    bytes
}

#[test]
fn a_refusal_of_the_user_and_another_error_are_different() {
    assert_eq!(error_after(refusing("400")), ConnectError::Denied);
    let ConnectError::Foreign(problem) = error_after(refusing("no more today")) else { panic!("a reason of its own") };
    assert!(problem.contains("no more today"), "{problem}");
}

#[test]
fn another_mechanism_is_a_denial() {
    let (_, mechanisms) = plain();
    let (endpoint, server) =
        playing(move |stream| Peer::greet(stream, SocketType::Router, &mechanisms, usize::MAX, usize::MAX).is_none());
    assert_eq!(open(&endpoint).err(), Some(ConnectError::Denied));
    assert!(server.join().unwrap());
    let (endpoint, _server) = playing(Peer::router);
    assert!(matches!(open_as(&endpoint, plain().0).err(), Some(ShakeError::Denied(_))));
}

#[test]
fn what_another_server_speaks_is_reported() {
    let rows: [(&[u8], &str); 5] = [
        (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "HTTP/1.1 400 Bad Request"),
        (b"-ERR unknown command\r\n", "-ERR unknown command"),
        (b"\x15\x03\x03\x00\x02\x02\x32\r\n", r"\x15\x03\x03"),
        (b"\xff\0\0\0\0\0\0\0\x01\x7f\x01\x05\0\0", "ZMTP"),
        (b"\x01\x00", "ZMTP"),
    ];
    for (bytes, problem) in rows {
        let ConnectError::Foreign(reported) = error_after(bytes.to_vec()) else { panic!("{problem}") };
        assert!(reported.contains(problem) && reported.contains("ZMTP"), "{reported}");
    }
    let (endpoint, _server) =
        playing(|stream| Peer::greet(stream, SocketType::XPub, &Mechanisms::Open, usize::MAX, usize::MAX).is_none());
    let Some(ConnectError::Foreign(reported)) = open(&endpoint).err() else {
        panic!("a publisher answers no requests")
    };
    assert!(reported.contains("XPUB"), "{reported}");
}

#[test]
fn ipv6_and_unix_sockets_are_connected_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let client = spawn(move || open(&format!("ipc://{}", path.display())).unwrap());
    let (mut stream, _) = listener.accept().unwrap();
    let mut said = vec![0; 64];
    stream.read_exact(&mut said).unwrap();
    let mut words = Vec::new();
    Handshake::begin(SocketType::Router, &mut words).advance(&said, &mut words).unwrap();
    stream.write_all(&words).unwrap();
    client.join().unwrap();
    let Ok(listener) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) else { return };
    let port = listener.local_addr().unwrap().port();
    let server = spawn(move || (0..2).for_each(|_| Peer::router(listener.accept().unwrap().0).echo()));
    for host in ["[::1]", "localhost"] {
        let mut socket = open(&format!("tcp://{host}:{port}")).unwrap();
        say(&mut socket, &[host.as_bytes()]).unwrap();
        assert_eq!(receive_message(&mut socket).unwrap(), [host.as_bytes()]);
    }
    server.join().unwrap();
}

#[test]
fn a_server_that_closes_in_the_handshake_is_tried_again_if_asked_to() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
    let server = spawn(move || {
        drop(listener.accept().unwrap());
        Peer::router(listener.accept().unwrap().0).echo();
    });
    let mut socket = ClientSocket::open(&ConnectTarget::requests(&endpoint), PATIENCE).unwrap();
    say(&mut socket, &[b"again"]).unwrap();
    assert_eq!(receive_message(&mut socket).unwrap(), [b"again"]);
    drop(socket);
    server.join().unwrap();
}
