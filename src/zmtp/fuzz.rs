//! Any bytes, from a broken or hostile peer. No input panics, no byte is consumed twice, and the split of the bytes
//! does not change the result.

use bolero::check;

use super::{Handshake, HandshakeStep, MessageBounds, MessageCutter, Messages, Part, ProtocolError, SocketType};

const BYTES_MAX: u64 = 64;

/// Runs a handshake over bytes that come in pieces of this size. Returns the bytes that it took, its outcome, and the
/// bytes that it sent.
fn shake(bytes: &[u8], size: usize) -> (usize, Result<HandshakeStep, ProtocolError>, Vec<u8>) {
    let mut out = Vec::new();
    let mut handshake = Handshake::begin(SocketType::Router, &mut out);
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
        let greeting = if *greeted { &super::greeting::GREETING[..] } else { &[] };
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
