//! Any bytes, from a broken or hostile peer. No input panics, no byte is consumed twice, and the split of the bytes
//! does not change the result.

use std::sync::Arc;

use bolero::check;

use crate::zmtp::curve::client::CurveHello;
use crate::zmtp::greeting::greeting_of;
use crate::zmtp::mechanism::Mechanism;
use crate::zmtp::{ClientHandshake, Credentials, Mechanisms, SecretKey, encode_frame};
use crate::zmtp::{Handshake, HandshakeStep, MessageBounds, MessageCutter, Messages, Part, ProtocolError, SocketType};

const BYTES_MAX: u64 = 64;

/// Runs a handshake over bytes that come in pieces of this size. Returns the number of bytes that it took, its outcome,
/// and its output.
fn shake(bytes: &[u8], size: usize) -> (usize, Result<HandshakeStep, ProtocolError>, Vec<u8>) {
    let mut out = Vec::new();
    let mut handshake = Handshake::open(SocketType::Router, &mut out);
    let (mut taken, mut came) = (0, 0);
    loop {
        came = (came + size).min(bytes.len());
        match handshake.advance(bytes.get(taken..came).unwrap_or_default(), &mut out) {
            Ok((more, step)) => {
                taken += more;
                assert!(taken <= came);
                if came == bytes.len() || step != HandshakeStep::More {
                    return (taken, Ok(step), out);
                }
            }
            Err(fault) => return (taken, Err(fault), out),
        }
    }
}

#[test]
fn any_handshake_is_met_or_refused_however_it_is_split() {
    check!().with_type().for_each(|(bytes, greeted, size): &(Vec<u8>, bool, u8)| {
        let greeting = if *greeted { &crate::zmtp::greeting::GREETING[..] } else { &[] };
        let bytes = [greeting, bytes].concat();
        let (taken, whole, _) = shake(&bytes, bytes.len().max(1));
        let (taken_in_pieces, in_pieces, _) = shake(&bytes, usize::from(*size).max(1));
        match (whole, in_pieces) {
            (Ok(whole), Ok(in_pieces)) => assert_eq!((taken, whole), (taken_in_pieces, in_pieces)),
            (Err(_), Err(_)) => {}
            other => panic!("{other:?}"),
        }
    });
}

/// Lets each peer in, and returns whether the handshake came to an end.
fn shake_with_users(mechanisms: &Arc<Mechanisms>, bytes: &[u8], size: usize) -> (usize, Result<bool, ProtocolError>) {
    let mut out = Vec::new();
    let mut handshake = Handshake::serve(SocketType::Router, mechanisms, &mut out);
    let (mut taken, mut came) = (0, 0);
    loop {
        came = (came + size).min(bytes.len());
        let mut step = match handshake.advance(bytes.get(taken..came).unwrap_or_default(), &mut out) {
            Ok((more, step)) => {
                taken += more;
                Ok(step)
            }
            Err(fault) => Err(fault),
        };
        if let Ok(HandshakeStep::Claimed(_)) = step {
            step = handshake.admit(&mut out);
            came = came.saturating_sub(size);
        }
        assert!(taken <= bytes.len());
        match step {
            Ok(HandshakeStep::Done(_)) => return (taken, Ok(true)),
            Ok(_) if came == bytes.len() => return (taken, Ok(false)),
            Ok(_) => {}
            Err(fault) => return (taken, Err(fault)),
        }
    }
}

#[test]
fn any_handshake_with_users_is_met_or_refused_however_it_is_split() {
    let key = SecretKey::generate();
    let (_, curve_hello) = CurveHello::of_unknown(key.public_key());
    let mechanisms = Arc::new(Mechanisms::Users { plain: true, curve: Some(key) });
    let hello = |body: &[u8]| [&[4, u8::try_from(body.len()).unwrap_or(0)], body].concat();
    let starts = [
        greeting_of(Mechanism::Plain).to_vec(),
        greeting_of(Mechanism::Curve).to_vec(),
        [&greeting_of(Mechanism::Plain)[..], &hello(b"\x05HELLO\x01a\x01b")].concat(),
        [&greeting_of(Mechanism::Curve)[..], &hello(&curve_hello)].concat(),
    ];
    check!().with_type().for_each(|(start, bytes, size): &(u8, Vec<u8>, u8)| {
        let start = starts.get(usize::from(*start) % starts.len()).cloned().unwrap_or_default();
        let bytes = [start, bytes.clone()].concat();
        let whole = shake_with_users(&mechanisms, &bytes, bytes.len());
        let in_pieces = shake_with_users(&mechanisms, &bytes, usize::from(*size).max(1));
        match (whole, in_pieces) {
            ((_, Err(_)), (_, Err(_))) => {}
            (whole, in_pieces) => assert_eq!(whole, in_pieces),
        }
    });
}

/// Runs a client's handshake over bytes that come in pieces of this size. Returns the bytes that it took, and whether it
/// came to an end.
fn shake_as_client(credentials: &Credentials, bytes: &[u8], size: usize) -> (usize, Result<bool, ProtocolError>) {
    let mut out = Vec::new();
    let mut handshake = ClientHandshake::begin(SocketType::Dealer, credentials.clone(), &mut out);
    let (mut taken, mut came) = (0, 0);
    loop {
        came = (came + size).min(bytes.len());
        match handshake.advance(bytes.get(taken..came).unwrap_or_default(), &mut out) {
            Ok((more, peer)) => {
                taken += more;
                assert!(taken <= came);
                if came == bytes.len() || peer.is_some() {
                    return (taken, Ok(peer.is_some()));
                }
            }
            Err(fault) => return (taken, Err(fault)),
        }
    }
}

#[test]
fn any_server_is_met_or_refused_however_its_bytes_are_split() {
    let (own, server) = (SecretKey::generate(), SecretKey::generate().public_key());
    let all = [
        Credentials::None,
        Credentials::Plain { name: "ada".to_owned(), password: "heron".to_owned() },
        Credentials::Curve { own, server },
    ];
    let mechanisms = [Mechanism::Null, Mechanism::Plain, Mechanism::Curve];
    let welcome = b"\x04\x08\x07WELCOME";
    check!().with_type().for_each(|(which, begun, bytes, size): &(u8, u8, Vec<u8>, u8)| {
        let which = usize::from(*which) % all.len();
        let (Some(credentials), Some(mechanism)) = (all.get(which), mechanisms.get(which)) else { return };
        let bytes = match begun % 3 {
            0 => bytes.clone(),
            1 => [&greeting_of(*mechanism)[..], bytes].concat(),
            _ => [&greeting_of(*mechanism)[..], welcome, bytes].concat(),
        };
        let whole = shake_as_client(credentials, &bytes, bytes.len().max(1));
        let in_pieces = shake_as_client(credentials, &bytes, usize::from(*size).max(1));
        match (whole, in_pieces) {
            ((_, Err(_)), (_, Err(_))) => {}
            (whole, in_pieces) => assert_eq!(whole, in_pieces),
        }
    });
}

#[test]
fn any_sealed_bytes_are_frames_or_a_fault() {
    check!().with_type().for_each(|(bytes, prefix): &(Vec<u8>, bool)| {
        let (one, other) = (SecretKey::generate(), SecretKey::generate());
        let mut cipher = crate::zmtp::cipher::Cipher::between(&other.public_key(), &one);
        let mut sealed = Vec::new();
        let body = if *prefix { [b"\x07MESSAGE", &bytes[..]].concat() } else { bytes.clone() };
        encode_frame(&mut sealed, &body, false);
        let mut opened = Vec::new();
        assert!(cipher.opener.open(&sealed, BYTES_MAX, &mut opened).is_err() && opened.is_empty());
        let taken = cipher.opener.open(bytes, BYTES_MAX, &mut opened);
        assert!(taken.is_err() || taken == Ok(0), "nobody else can seal");
    });
}

#[test]
fn any_bytes_are_parts_or_a_fault_and_a_longer_beginning_changes_nothing() {
    check!().with_type().for_each(|bytes: &Vec<u8>| {
        let whole = Part::decode(bytes, BYTES_MAX);
        for end in 0..bytes.len() {
            let beginning = Part::decode(bytes.get(..end).unwrap_or_default(), BYTES_MAX);
            if let Ok(None) = beginning {
                continue;
            }
            assert_eq!(beginning, whole, "{end}");
        }
        if let Ok(Some((_, length))) = whole {
            assert!((2..=bytes.len()).contains(&length));
        }
    });
}

/// A message's frames, and whether it was whole.
type FoundMessage = (Vec<Vec<u8>>, bool);

/// Cuts messages out of bytes that come in pieces of this size. Returns the messages, the error that ended the run, and
/// the bytes to send.
fn cut(bytes: &[u8], size: usize) -> (Vec<FoundMessage>, Option<ProtocolError>, Vec<u8>) {
    let bounds = MessageBounds { frame_bytes: BYTES_MAX, frames: 4, bytes: 100 };
    let (mut cutter, mut messages, mut said) = (MessageCutter::default(), Messages::default(), Vec::new());
    let (mut held, mut found) = (Vec::new(), Vec::new());
    for piece in bytes.chunks(size) {
        held.extend_from_slice(piece);
        let left = cutter.cut(&held, &bounds, usize::MAX, &mut messages, &mut said);
        let whole = messages.iter(&held).map(|message| {
            let frames = message.frames().map(<[u8]>::to_vec).collect();
            (frames, message.is_whole())
        });
        found.extend(whole);
        match left {
            Ok(left) => {
                let begun = held.get(left.begun).unwrap_or_default();
                held = [begun, held.get(left.rest..).unwrap_or_default()].concat();
            }
            Err(fault) => return (found, Some(fault), said),
        }
    }
    (found, None, said)
}

#[test]
fn any_bytes_are_the_same_messages_however_they_are_split() {
    check!().with_type().for_each(|(bytes, size): &(Vec<u8>, u8)| {
        assert_eq!(cut(bytes, bytes.len().max(1)), cut(bytes, usize::from(*size).max(1)));
    });
}
