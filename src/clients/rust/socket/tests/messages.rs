//! Messages on a connection: many, large, lost, and those that nobody has asked for yet.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;

use rustix::io::ioctl_fionread;

use super::*;

#[test]
fn ten_thousand_requests_are_sent_before_a_reply_is_read() {
    const REQUESTS: u32 = 10_000;
    let (endpoint, server) = playing(|stream| Peer::router(stream).echo());
    let mut socket = open(&endpoint).unwrap();
    // Both directions together are many times what the system holds, so a client that only writes would wait for ever.
    let body = vec![b'x'; 4_000];
    for number in 0..REQUESTS {
        say(&mut socket, &[&number.to_be_bytes(), &body]).unwrap();
    }
    for number in 0..REQUESTS {
        let reply = receive_message(&mut socket).unwrap();
        assert!(reply[0] == number.to_be_bytes() && reply[1] == body, "{number}");
    }
    drop(socket);
    server.join().unwrap();
}

#[test]
fn replies_larger_than_every_buffer_come_whole() {
    for (credentials, mechanisms) in [null(), curve()] {
        let (endpoint, server) = playing(move |stream| {
            Peer::greet(stream, SocketType::Router, &mechanisms, usize::MAX, usize::MAX).unwrap().echo();
        });
        let mut socket = open_as(&endpoint, credentials).unwrap();
        for bytes in [0, 1, 255, 256, 65_535, 65_536, 70_000, 3 << 20, 20 << 20, 5] {
            let body: Vec<u8> = (0..bytes).map(|byte: u32| byte.to_le_bytes()[0] ^ 7).collect();
            say(&mut socket, &[b"first", &body, b""]).unwrap();
            let reply = receive_message(&mut socket).unwrap();
            assert!(reply.len() == 3 && reply[0] == b"first" && reply[1] == body && reply[2].is_empty(), "{bytes}");
        }
        let many: Vec<Vec<u8>> = (0..3_000_u32).map(|number| number.to_be_bytes().to_vec()).collect();
        say(&mut socket, &many.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
        assert_eq!(receive_message(&mut socket).unwrap(), many);
        drop(socket);
        server.join().unwrap();
    }
}

/// The client read nothing of it: it received the error first, or waited for ever.
#[test]
fn replies_that_came_before_a_loss_are_read_before_it_is_reported() {
    let (endpoint, server) = playing(|stream| {
        let mut peer = Peer::router(stream);
        peer.receive_message();
        (0..100_u8).for_each(|number| peer.say(&[&[number], &[number; 300]]));
        // The last message is cut.
        peer.stream.write_all(b"\x01\x05ab").unwrap();
    });
    let mut socket = open(&endpoint).unwrap();
    say(&mut socket, &[b"ask"]).unwrap();
    server.join().unwrap();
    let bytes = 100 * (3 + 9 + 300) + 4;
    while ioctl_fionread(&socket.stream).unwrap() < bytes {}
    // The server has closed its end: these are lost, and the loss is reported behind what has come.
    for _ in 0..100 {
        say(&mut socket, &[b"more", &[0; 100_000]]).unwrap();
    }
    for number in 0..100_u8 {
        assert_eq!(receive_message(&mut socket).unwrap(), [&[number][..], &[number; 300]]);
    }
    assert!(!socket.find() && socket.has_come());
    assert_eq!(receive_message(&mut socket), Err(ConnectError::Lost));
    assert_eq!(receive_message(&mut socket), Err(ConnectError::Lost));
}

#[test]
fn a_server_that_takes_nothing_is_late() {
    let (ready, released) = channel::<()>();
    let (endpoint, server) = playing(move |stream| {
        let peer = Peer::router(stream);
        released.recv().unwrap_err();
        drop(peer);
    });
    let mut socket = open(&endpoint).unwrap();
    let sent = (0..100_000).map(|_| socket.send(|sink| sink(&[0; 10_000], false), MOMENT)).find(Result::is_err);
    assert_eq!(sent, Some(Err(ConnectError::Late)));
    drop(ready);
    server.join().unwrap();
}

#[test]
fn nothing_is_received_before_it_is_asked_for() {
    const FRAME: usize = 100_000;
    let (endpoint, server) = playing(|stream| {
        let mut peer = Peer::router(stream);
        (0..3).for_each(|_| peer.say(&[&[1; FRAME]]));
        peer
    });
    let mut socket = open(&endpoint).unwrap();
    let _peer = server.join().unwrap();
    let mut frames = Vec::new();
    assert_eq!(socket.receive(&mut frames, PATIENCE), Ok(()));
    assert!(ioctl_fionread(&socket.stream).unwrap() > 0, "the rest is left to the system");
    assert!(socket.stream.unused().0.len() < FRAME);
    for _ in 0..2 {
        assert_eq!(receive_message(&mut socket).unwrap(), [[1; FRAME]]);
    }
    assert_eq!(socket.receive(&mut frames, Duration::ZERO), Err(ConnectError::Late));
}

#[test]
fn a_frame_beyond_the_bound_ends_the_connection_behind_the_messages_before_it() {
    let (endpoint, server) = playing(|stream| {
        let mut peer = Peer::router(stream);
        peer.say(&[b"short"]);
        peer.say(&[&[0; 11]]);
        peer
    });
    let mut socket = ClientSocket::open(&ConnectTarget::requests(&endpoint).with_frames_of(10), ONCE).unwrap();
    let _peer = server.join().unwrap();
    assert_eq!(receive_message(&mut socket).unwrap(), [b"short"]);
    assert_eq!(receive_message(&mut socket), Err(ConnectError::Lost));
}

#[test]
fn a_ping_of_the_server_is_answered_wherever_it_stands() {
    let (endpoint, server) = playing(|stream| {
        let mut peer = Peer::router(stream);
        let ping = b"\x04\x09\x04PING\0\0ab";
        peer.say_bytes(&[&ping[..], b"\x01\x01a", ping, b"\x00\x01b", ping].concat());
        let mut pongs = Vec::new();
        encode_pong(&mut pongs, b"ab");
        let expected = [pongs.repeat(3), b"\x00\x04done".to_vec()].concat();
        let mut come = peer.come;
        while come.len() < expected.len() && receive(&mut peer.stream, &mut come) {}
        come == expected
    });
    let mut socket = open(&endpoint).unwrap();
    assert_eq!(receive_message(&mut socket).unwrap(), [b"a", b"b"]);
    let mut frames = Vec::new();
    assert_eq!(socket.receive(&mut frames, MOMENT), Err(ConnectError::Late));
    say(&mut socket, &[b"done"]).unwrap();
    assert!(server.join().unwrap());
}

#[test]
fn a_subscriber_says_what_it_wants() {
    let (endpoint, server) = playing(|stream| {
        let mut peer = Peer::greet(stream, SocketType::XPub, &Mechanisms::Open, usize::MAX, usize::MAX).unwrap();
        let mut expected = Vec::new();
        [&b"users"[..], b""].iter().for_each(|prefix| crate::zmtp::encode_subscribe(&mut expected, prefix));
        while peer.come.len() < expected.len() && receive(&mut peer.stream, &mut peer.come) {}
        peer.say(&[b"users", b"news"]);
        peer.come == expected
    });
    let target = ConnectTarget::notifications(&endpoint, &[b"users", b""]);
    let mut socket = ClientSocket::open(&target, ONCE).unwrap();
    assert_eq!(receive_message(&mut socket).unwrap(), [&b"users"[..], b"news"]);
    assert!(server.join().unwrap());
}

#[test]
fn a_wait_ends_when_a_message_comes_or_the_other_descriptor_is_ready() {
    let (signal, signals) = channel::<()>();
    let (endpoint, server) = playing(move |stream| {
        let mut peer = Peer::router(stream);
        signals.recv().unwrap();
        peer.say(&[b"come"]);
        signals.recv().unwrap_err();
    });
    let mut socket = open(&endpoint).unwrap();
    let (over, mut other) = UnixStream::pair().unwrap();
    signal.send(()).unwrap();
    while !socket.has_come() {
        assert_eq!(socket.wait_unless(over.as_fd()), Ok(false));
    }
    assert_eq!(receive_message(&mut socket).unwrap(), [b"come"]);
    other.write_all(b"x").unwrap();
    assert_eq!(socket.wait_unless(over.as_fd()), Ok(true));
    assert!(!socket.has_come());
    drop(signal);
    server.join().unwrap();
    while !socket.has_come() {
        socket.wait_unless(over.as_fd()).unwrap();
    }
    assert_eq!(receive_message(&mut socket), Err(ConnectError::Lost));
}
