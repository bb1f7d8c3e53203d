//! Clients that meet our own servers, and servers that are not what they seem.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::sync::Arc;

use super::*;
use crate::zmtp::mechanism::{Claim, Mechanisms};
use crate::zmtp::{Handshake, HandshakeStep, encode_error, encode_frame};

fn plain() -> Credentials {
    Credentials::Plain { name: "ada".to_owned(), password: "heron".to_owned() }
}

/// The claim, and the ciphers of the client and of the server.
type Met = (Option<Claim>, Option<Box<Cipher>>, Option<Box<Cipher>>);

/// Both sides of a handshake, whose bytes pass `size` at a time.
fn meet(credentials: Credentials, mechanisms: Mechanisms, size: usize) -> Result<Met, ProtocolError> {
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    let mut client = ClientHandshake::begin(SocketType::Dealer, credentials, &mut to_server);
    let mut server = Handshake::serve(SocketType::Router, &Arc::new(mechanisms), &mut to_client);
    let (mut claim, mut claims_done, mut served, mut met) = (None, false, false, false);
    for _ in 0..2_000 {
        let piece = &to_server[..size.min(to_server.len())];
        let mut step = server.advance(piece, &mut to_client);
        if let Ok((taken, HandshakeStep::Claimed(claimed))) = step {
            assert!(!std::mem::replace(&mut claims_done, true));
            claim = Some(claimed);
            step = server.admit(&mut to_client).map(|step| (taken, step));
        }
        let ended = step.as_ref().err().cloned();
        if let Ok((taken, step)) = step {
            to_server.drain(..taken);
            served |= matches!(step, HandshakeStep::Done(_));
        }
        // What is not taken yet comes again with what follows it.
        let come = to_client.len().min(size.max(1_000));
        let (taken, peer) = client.advance(&to_client[..come], &mut to_server)?;
        to_client.drain(..taken);
        met |= peer.is_some_and(|peer| peer.socket_type == SocketType::Router);
        if met && served {
            return Ok((claim, client.cipher(), server.cipher()));
        }
        if let Some(why) = ended {
            return Err(why);
        }
    }
    panic!("the two sides wait for each other");
}

#[test]
fn each_mechanism_is_met() {
    let (own, key) = (SecretKey::generate(), SecretKey::generate());
    let users = || Mechanisms::Users { plain: true, curve: Some(key.clone()) };
    for size in [1_000, usize::MAX] {
        let (claim, near, far) = meet(Credentials::None, Mechanisms::Open, size).unwrap();
        assert!(claim.is_none() && near.is_none() && far.is_none());
        let (claim, near, far) = meet(plain(), users(), size).unwrap();
        assert_eq!(claim, Some(Claim::Plain { name: b"ada".to_vec(), password: b"heron".to_vec() }));
        assert!(near.is_none() && far.is_none());
        let curve = Credentials::Curve { own: own.clone(), server: key.public_key() };
        let (claim, near, far) = meet(curve, users(), size).unwrap();
        assert_eq!(claim, Some(Claim::Curve(own.public_key())));
        let (mut near, mut far) = (near.unwrap(), far.unwrap());
        let mut frames = Vec::new();
        encode_frame(&mut frames, b"over the wire", false);
        for (sealer, opener) in [(&mut near.sealer, &mut far.opener), (&mut far.sealer, &mut near.opener)] {
            let (mut sealed, mut opened) = (Vec::new(), Vec::new());
            sealer.seal(&frames, usize::MAX, &mut sealed);
            opener.open(&sealed, 100, &mut opened).unwrap();
            assert_eq!(opened, frames);
        }
    }
}

#[test]
fn a_server_with_another_mechanism_learns_nothing_of_the_user() {
    let key = SecretKey::generate();
    let curve = Credentials::Curve { own: SecretKey::generate(), server: key.public_key() };
    for credentials in [plain(), curve] {
        let mut out = Vec::new();
        let mut client = ClientHandshake::begin(SocketType::Dealer, credentials, &mut out);
        out.clear();
        let refused = client.advance(&crate::zmtp::greeting::GREETING, &mut out);
        assert_eq!(refused.unwrap_err(), ProtocolError::Mechanism { mechanism: "NULL".to_owned() });
        assert!(out.is_empty());
    }
}

#[test]
fn a_server_with_another_key_does_not_learn_the_user_s_key() {
    let curve = Credentials::Curve { own: SecretKey::generate(), server: SecretKey::generate().public_key() };
    let other = Mechanisms::Users { plain: false, curve: Some(SecretKey::generate()) };
    assert!(meet(curve, other, 1_000).is_err());
    let low_order = Credentials::Curve { own: SecretKey::generate(), server: PublicKey::of_bytes([0; 32]) };
    let mut client = ClientHandshake::begin(SocketType::Dealer, low_order, &mut Vec::new());
    let greeting = crate::zmtp::greeting::greeting_of(Mechanism::Curve);
    assert!(matches!(client.advance(&greeting, &mut Vec::new()), Err(ProtocolError::Command { .. })));
}

#[test]
fn a_refusal_may_come_in_place_of_each_answer() {
    let key = SecretKey::generate();
    let curve = || Credentials::Curve { own: SecretKey::generate(), server: key.public_key() };
    let rows = [(Credentials::None, Mechanism::Null), (plain(), Mechanism::Plain), (curve(), Mechanism::Curve)];
    for (credentials, mechanism) in rows {
        let mut client = ClientHandshake::begin(SocketType::Dealer, credentials, &mut Vec::new());
        let mut bytes = crate::zmtp::greeting::greeting_of(mechanism).to_vec();
        encode_error(&mut bytes, "400");
        let refused = client.advance(&bytes, &mut Vec::new());
        assert_eq!(refused.unwrap_err(), ProtocolError::Refused { reason: "400".to_owned() });
    }
}

#[test]
fn nothing_out_of_order_is_taken() {
    let mut bytes = crate::zmtp::greeting::greeting_of(Mechanism::Plain).to_vec();
    encode_ready(&mut bytes, &[("Socket-Type", b"ROUTER")]);
    let mut client = ClientHandshake::begin(SocketType::Dealer, plain(), &mut Vec::new());
    assert!(matches!(client.advance(&bytes, &mut Vec::new()), Err(ProtocolError::Command { .. })));
    let long = Credentials::Plain { name: "a".repeat(256), password: String::new() };
    let mut client = ClientHandshake::begin(SocketType::Dealer, long, &mut Vec::new());
    let greeting = crate::zmtp::greeting::greeting_of(Mechanism::Plain);
    assert!(matches!(client.advance(&greeting, &mut Vec::new()), Err(ProtocolError::Command { .. })));
}

#[test]
fn no_secret_is_shown() {
    let own = SecretKey::generate();
    let shown = [plain(), Credentials::Curve { own: own.clone(), server: own.public_key() }].map(|c| format!("{c:?}"));
    assert_eq!(shown, ["Plain(ada)".to_owned(), format!("Curve({})", own.public_key())]);
}
