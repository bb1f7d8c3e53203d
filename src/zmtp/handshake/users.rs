//! Handshakes of peers that claim an identity, and the sealed messages after them.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use super::*;
use crate::zmtp::curve::client::CurveHello;
use crate::zmtp::{PublicKey, SecretKey, encode_frame};

fn users(plain: bool, curve: Option<SecretKey>) -> Arc<Mechanisms> {
    Arc::new(Mechanisms::Users { plain, curve })
}

/// A server that has got this greeting, and what it has sent.
fn greeted(mechanisms: &Arc<Mechanisms>, mechanism: Mechanism) -> (Result<Handshake, ProtocolError>, Vec<u8>) {
    let mut out = Vec::new();
    let mut handshake = Handshake::serve(SocketType::Router, mechanisms, &mut out);
    let step = handshake.advance(&greeting_of(mechanism), &mut out);
    (step.map(|_| handshake), out)
}

/// The bodies of the commands in these bytes.
fn bodies(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    while let Some((body, length)) = command_body(bytes, 10_000).unwrap() {
        found.push(body.to_vec());
        bytes = &bytes[length..];
    }
    assert!(bytes.is_empty());
    found
}

fn command(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_body(&mut out, body);
    out
}

fn dealer() -> Vec<u8> {
    encode_properties(&[("Socket-Type", b"DEALER"), ("Identity", b"me")])
}

#[test]
fn the_server_shows_the_mechanism_that_its_peer_wants_if_it_takes_it() {
    let both = users(true, Some(SecretKey::generate()));
    for mechanism in [Mechanism::Plain, Mechanism::Curve] {
        let (handshake, out) = greeted(&both, mechanism);
        assert!(handshake.is_ok());
        assert_eq!(out, greeting_of(mechanism));
    }
    let rows = [
        (users(true, None), Mechanism::Curve, Mechanism::Plain),
        (users(false, Some(SecretKey::generate())), Mechanism::Plain, Mechanism::Curve),
        (both, Mechanism::Null, Mechanism::Curve),
        (Arc::new(Mechanisms::Open), Mechanism::Plain, Mechanism::Null),
    ];
    for (mechanisms, wanted, shown) in rows {
        let (refused, out) = greeted(&mechanisms, wanted);
        assert_eq!(refused.err(), Some(ProtocolError::Mechanism { mechanism: wanted.name().to_owned() }));
        assert_eq!(out, greeting_of(shown));
    }
}

#[test]
fn a_name_and_a_password_are_claimed_before_anything_is_ready() {
    let (handshake, _) = greeted(&users(true, None), Mechanism::Plain);
    let (mut handshake, mut out) = (handshake.unwrap(), Vec::new());
    let hello = command(b"\x05HELLO\x03ada\x05heron");
    let claim = Claim::Plain { name: b"ada".to_vec(), password: b"heron".to_vec() };
    assert!(!format!("{claim:?}").contains("heron"));
    assert_eq!(handshake.advance(&hello, &mut out), Ok((hello.len(), HandshakeStep::Claimed(claim))));
    let initiate = command(&[b"\x08INITIATE", &dealer()[..]].concat());
    assert_eq!(handshake.advance(&initiate, &mut out), Ok((0, HandshakeStep::More)), "it waits for the decision");
    assert!(out.is_empty());
    assert_eq!(handshake.admit(&mut out), Ok(HandshakeStep::More));
    let peer = HandshakePeer { socket_type: SocketType::Dealer, identity: b"me".to_vec() };
    assert_eq!(handshake.advance(&initiate, &mut out), Ok((initiate.len(), HandshakeStep::Done(peer))));
    let [welcome, ready] = &bodies(&out)[..] else { panic!("{out:?}") };
    assert_eq!(welcome, b"\x07WELCOME");
    assert!(ready.starts_with(b"\x05READY\x0bSocket-Type\0\0\0\x06ROUTER"));
    assert!(handshake.cipher().is_none());
}

#[test]
fn a_peer_that_is_refused_gets_the_reason_and_cannot_continue() {
    for (why, sent) in [(ClaimRefusal::Wrong, b"\x05ERROR\x03400"), (ClaimRefusal::Busy, b"\x05ERROR\x03300")] {
        let (handshake, _) = greeted(&users(true, None), Mechanism::Plain);
        let (mut handshake, mut out) = (handshake.unwrap(), Vec::new());
        handshake.advance(&command(b"\x05HELLO\x01a\x01b"), &mut out).unwrap();
        handshake.refuse(why, &mut out);
        assert_eq!(bodies(&out), [sent.to_vec()]);
        assert!(handshake.admit(&mut out).is_err());
        let initiate = command(&[b"\x08INITIATE", &dealer()[..]].concat());
        assert_eq!(handshake.advance(&initiate, &mut out), Ok((0, HandshakeStep::More)));
    }
}

/// A server with CURVE, its key, and a client that has sent its HELLO and got the WELCOME.
fn welcomed() -> (Handshake, CurveHello, Vec<u8>) {
    let key = SecretKey::generate();
    let (client, hello) = CurveHello::of_unknown(key.public_key());
    let (handshake, _) = greeted(&users(false, Some(key)), Mechanism::Curve);
    let (mut handshake, mut out) = (handshake.unwrap(), Vec::new());
    let sent = command(&hello);
    assert_eq!(handshake.advance(&sent, &mut out), Ok((sent.len(), HandshakeStep::More)));
    let welcome = bodies(&out).pop().unwrap();
    assert_eq!((hello.len(), welcome.len()), (200, 168));
    (handshake, client, welcome)
}

#[test]
fn two_sides_of_curve_meet_and_their_messages_are_sealed() {
    let (mut handshake, client, welcome) = welcomed();
    let (session, initiate) = client.initiate(&welcome, &dealer()).unwrap();
    let (initiate, mut out) = (command(&initiate), Vec::new());
    let claim = HandshakeStep::Claimed(Claim::Curve(client.own()));
    assert_eq!(handshake.advance(&initiate, &mut out), Ok((initiate.len(), claim)));
    assert!(out.is_empty());
    assert!(matches!(handshake.admit(&mut out), Ok(HandshakeStep::Done(peer)) if peer.identity == b"me"));
    let (properties, mut near) = session.ready(&bodies(&out)[0]).unwrap();
    assert!(properties.starts_with(b"\x0bSocket-Type\0\0\0\x06ROUTER"));
    let mut far = handshake.cipher().unwrap();

    let mut frames = Vec::new();
    for (length, more) in [(0, true), (1, true), (222, true), (255, true), (256, true), (70_000, false)] {
        encode_frame(&mut frames, &vec![7; length], more);
    }
    encode_body(&mut frames, b"\x04PING\0\0abc");
    for (sealer, opener) in [(&mut near.sealer, &mut far.opener), (&mut far.sealer, &mut near.opener)] {
        let mut sealed = Vec::new();
        assert_eq!(sealer.seal(&frames, usize::MAX, &mut sealed), frames.len());
        let (mut opened, mut taken) = (Vec::new(), 0);
        for came in (0..sealed.len()).step_by(97).chain([sealed.len()]) {
            taken += opener.open(&sealed[taken..came], 70_000, &mut opened).unwrap();
        }
        assert!(taken == sealed.len() && opened == frames);
        assert!(opener.open(&sealed, 70_000, &mut opened).is_err(), "no box twice");
        assert_eq!(opened, frames);
        let mut one = Vec::new();
        sealer.seal(&frames, 1, &mut one);
        let mut changed = one.clone();
        *changed.last_mut().unwrap() ^= 1;
        assert!(opener.open(&changed, 70_000, &mut opened).is_err());
        assert!(opener.open(&frames, 70_000, &mut opened).is_err(), "nothing in the clear");
        assert_eq!(opened, frames);
        assert_eq!(opener.open(&one, 70_000, &mut opened), Ok(one.len()));
        let mut long = Vec::new();
        sealer.seal(&frames, usize::MAX, &mut long);
        assert!(matches!(opener.open(&long, 69_999, &mut Vec::new()), Err(ProtocolError::TooLong { .. })));
    }
}

#[test]
fn a_client_that_lies_is_not_believed() {
    let lies: [fn([PublicKey; 2]) -> [PublicKey; 2]; 3] = [
        |[_, server]| [SecretKey::generate().public_key(), server],
        |[session, _]| [session, SecretKey::generate().public_key()],
        |[session, server]| [server, session],
    ];
    for lie in lies {
        let (mut handshake, client, welcome) = welcomed();
        let initiate = client.lie(&welcome, lie(client.vouched()), &dealer());
        assert!(matches!(handshake.advance(&command(&initiate), &mut Vec::new()), Err(ProtocolError::Command { .. })));
    }
    let (_, client, welcome) = welcomed();
    let (_, good) = client.initiate(&welcome, &dealer()).unwrap();
    let (mut another, _, _) = welcomed();
    assert!(another.advance(&command(&good), &mut Vec::new()).is_err(), "the cookie is of one connection");
    for at in [9, 40, 105, 112, 120, 130, good.len() - 1] {
        let (mut handshake, client, welcome) = welcomed();
        let (_, mut bad) = client.initiate(&welcome, &dealer()).unwrap();
        bad[at] ^= 1;
        assert!(handshake.advance(&command(&bad), &mut Vec::new()).is_err(), "{at}");
        let (mut handshake, client, welcome) = welcomed();
        let (_, mut short) = client.initiate(&welcome, &dealer()).unwrap();
        short.truncate(at);
        assert!(handshake.advance(&command(&short), &mut Vec::new()).is_err(), "{at}");
    }
}

/// A server with this key, which has got a HELLO, and its WELCOME.
fn welcomed_by(key: &SecretKey) -> (Handshake, CurveHello, Vec<u8>) {
    let (client, hello) = CurveHello::of_unknown(key.public_key());
    let mut handshake = greeted(&users(false, Some(key.clone())), Mechanism::Curve).0.unwrap();
    let mut out = Vec::new();
    handshake.advance(&command(&hello), &mut out).unwrap();
    (handshake, client, bodies(&out).pop().unwrap())
}

#[test]
fn the_nonces_of_a_client_grow_from_its_hello_on() {
    let key = SecretKey::generate();
    for (number, expected) in [(0, false), (1, false), (2, true), (3, true)] {
        let (mut handshake, client, welcome) = welcomed_by(&key);
        let initiate = client.initiate_numbered(&welcome, number, &dealer());
        assert_eq!(handshake.advance(&command(&initiate), &mut Vec::new()).is_ok(), expected, "{number}");
    }
    let (mut handshake, client, welcome) = welcomed_by(&key);
    let (session, initiate) = client.initiate(&welcome, &dealer()).unwrap();
    handshake.advance(&command(&initiate), &mut Vec::new()).unwrap();
    handshake.admit(&mut Vec::new()).unwrap();
    let (mut near, mut far) = (session.begun_anew(), handshake.cipher().unwrap());
    for expected in [false, false, true] {
        let (mut frame, mut sealed) = (Vec::new(), Vec::new());
        encode_frame(&mut frame, b"x", false);
        near.sealer.seal(&frame, 1, &mut sealed);
        assert_eq!(far.opener.open(&sealed, 1, &mut Vec::new()).is_ok(), expected, "that of the INITIATE was 2");
    }
}

#[test]
fn a_cookie_is_of_one_connection_and_not_of_the_server() {
    let key = SecretKey::generate();
    let (mut first, client, welcome) = welcomed_by(&key);
    let (mut second, _, _) = welcomed_by(&key);
    let (_, initiate) = client.initiate(&welcome, &dealer()).unwrap();
    assert!(second.advance(&command(&initiate), &mut Vec::new()).is_err());
    assert!(first.advance(&command(&initiate), &mut Vec::new()).is_ok());
}

#[test]
fn a_command_of_a_handshake_is_bounded_before_it_has_come() {
    let both = users(true, Some(SecretKey::generate()));
    for mechanism in [Mechanism::Plain, Mechanism::Curve] {
        for (bytes, expected) in [(HANDSHAKE_BYTES_MAX, true), (HANDSHAKE_BYTES_MAX + 1, false)] {
            let mut handshake = greeted(&both, mechanism).0.unwrap();
            let head = [&[0b110][..], &bytes.to_be_bytes()].concat();
            assert_eq!(handshake.advance(&head, &mut Vec::new()).is_ok(), expected, "{bytes}");
        }
    }
}

#[test]
fn a_hello_for_another_server_or_of_another_shape_is_refused() {
    let key = SecretKey::generate();
    let mechanisms = users(false, Some(key.clone()));
    let good = CurveHello::of_unknown(key.public_key()).1;
    let changed = |at: usize, to: u8| {
        let mut hello = good.clone();
        hello[at] = to;
        hello
    };
    let low_order = [&good[..80], &[0; 32], &good[112..]].concat();
    let bad = [
        CurveHello::of_unknown(SecretKey::generate().public_key()).1,
        changed(6, 2),
        changed(199, good[199] ^ 1),
        good[..199].to_vec(),
        [&good[..], b"x"].concat(),
        low_order,
        CurveHello::without_zeros(key.public_key()),
        b"\x05HELLO\x03ada\x05heron".to_vec(),
    ];
    for hello in bad {
        let mut handshake = greeted(&mechanisms, Mechanism::Curve).0.unwrap();
        assert!(handshake.advance(&command(&hello), &mut Vec::new()).is_err());
    }
    let mut handshake = greeted(&mechanisms, Mechanism::Curve).0.unwrap();
    assert!(handshake.advance(&command(&good), &mut Vec::new()).is_ok());
    let mut frame = Vec::new();
    encode_frame(&mut frame, &good, false);
    let mut handshake = greeted(&mechanisms, Mechanism::Curve).0.unwrap();
    assert!(handshake.advance(&frame, &mut Vec::new()).is_err(), "a message is no command");
}
