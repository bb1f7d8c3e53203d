//! Bytes of a login that were changed on their way: CURVE, PLAIN and NULL between a client and a server, lines of
//! `AUTH`, a hello of TLS, and heads of HTTP.
//!
//! `SPINDLE_INPUTS` says how many of each, and `SPINDLE_SEED` is the first seed: `perf/fuzz` runs millions.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use spindle::services::jobs::wire::{DecodedAuth, decode_auth};
use spindle::zmtp::{
    Claim, ClaimRefusal, ClientHandshake, Credentials, Handshake, HandshakeStep, Mechanisms, ProtocolError, SecretKey,
    SocketType,
};

use crate::attack::mutation::mutate;
use crate::harness::number_of;
use crate::seeded_rng::SeededRng;
use crate::tls::Folder;
use crate::users_tcp::ROOT;

/// Bytes of a greeting, of which some may be anything.
const GREETING_BYTES: usize = 64;
/// The minor version and the padding of the HELLO of CURVE, which may be anything: bytes from the start.
const FREE_IN_HELLO: Range<usize> = 73..146;
/// The most bytes that one side of a handshake may say.
const SAID_MAX: usize = 1_024;
/// How long a socket may be silent. No check depends on it.
const SILENCE: Duration = Duration::from_secs(20);

/// Runs with each seed, and says how many inputs there were, and for how many `run` was true: they were admitted, read
/// or answered.
pub(crate) fn each_input(what: &str, count: u64, mut run: impl FnMut(SeededRng) -> bool) {
    let count = number_of("SPINDLE_INPUTS").unwrap_or(count);
    let first = number_of("SPINDLE_SEED").unwrap_or(0);
    let mut taken = 0;
    for seed in first..first + count {
        taken += u64::from(run(SeededRng(seed)));
    }
    println!("{what}: {count} inputs, {taken} admitted, read or answered, 0 wrong");
}

/// One direction of a connection, and what is changed on it.
struct Link {
    rng: SeededRng,
    /// Whether there is something to change.
    changes: bool,
    /// Bytes until the change.
    until: usize,
    passed: usize,
    /// Where the bytes that arrive first differ from those that were sent.
    differs_at: Option<usize>,
    arrived: Vec<u8>,
    all: Vec<u8>,
}

impl Link {
    fn new(rng: &mut SeededRng, changes: bool) -> Self {
        let until = rng.index(320);
        let rng = SeededRng(rng.next());
        Self { rng, changes, until, passed: 0, differs_at: None, arrived: Vec::new(), all: Vec::new() }
    }

    /// Carries the bytes to the other end.
    fn carry(&mut self, sent: &mut Vec<u8>) {
        let mut bytes = std::mem::take(sent);
        let before = bytes.clone();
        if self.changes && self.passed + bytes.len() > self.until {
            self.changes = false;
            let mut rest = bytes.split_off(self.until - self.passed);
            mutate(&mut self.rng, &mut rest, &before);
            bytes.extend(rest);
            let same = bytes.iter().zip(&before).take_while(|(one, other)| one == other).count();
            if bytes != before {
                self.differs_at = Some(self.passed + same);
            }
        }
        self.passed += before.len();
        self.arrived.extend_from_slice(&bytes);
        self.all.extend(bytes);
    }

    /// Whether the commands of the handshake have changed. What follows the last of them is no part of it.
    fn commands_differ(&self) -> bool {
        self.differs_at.is_some_and(|at| (GREETING_BYTES..self.passed).contains(&at))
    }
}

/// What came of a handshake.
struct Met {
    claim: Option<Claim>,
    served: bool,
    met: bool,
    to_server: Link,
    to_client: Link,
}

/// A client and a server whose bytes are changed between them. The server admits `right` alone.
fn meet(mut rng: SeededRng, credentials: Credentials, mechanisms: &Arc<Mechanisms>, right: &Claim) -> Met {
    let which = rng.index(3);
    let (mut near, mut far) = (Vec::new(), Vec::new());
    let mut client = Some(ClientHandshake::begin(SocketType::Dealer, credentials, &mut near));
    let mut server = Some(Handshake::serve(SocketType::Router, mechanisms, &mut far));
    let to_server = Link::new(&mut rng, which != 0);
    let to_client = Link::new(&mut rng, which != 1);
    let mut met = Met { claim: None, served: false, met: false, to_server, to_client };
    loop {
        let moves = !near.is_empty() || !far.is_empty();
        met.to_server.carry(&mut near);
        met.to_client.carry(&mut far);
        if let Some(handshake) = &mut server
            && !advance_server(handshake, &mut met, right, &mut far)
        {
            server = None;
        }
        if let Some(handshake) = &mut client {
            match handshake.advance(&met.to_client.arrived, &mut near) {
                Ok((taken, peer)) => {
                    met.to_client.arrived.drain(..taken);
                    met.met |= peer.is_some();
                    client = client.filter(|_| peer.is_none());
                }
                Err(_) => client = None,
            }
        }
        assert!(met.to_server.passed <= SAID_MAX && met.to_client.passed <= SAID_MAX, "a side says more and more");
        if !moves && near.is_empty() && far.is_empty() {
            return met;
        }
    }
}

/// False: the handshake is over.
fn advance_server(handshake: &mut Handshake, met: &mut Met, right: &Claim, out: &mut Vec<u8>) -> bool {
    let step: Result<(usize, HandshakeStep), ProtocolError> = handshake.advance(&met.to_server.arrived, out);
    let Ok((taken, mut step)) = step else { return false };
    met.to_server.arrived.drain(..taken);
    if let HandshakeStep::Claimed(claim) = step {
        assert!(met.claim.is_none(), "a second claim");
        let is_right = claim == *right;
        met.claim = Some(claim);
        if !is_right {
            handshake.refuse(ClaimRefusal::Wrong, out);
            return false;
        }
        let Ok(next) = handshake.admit(out) else { return false };
        step = next;
        if step == HandshakeStep::More {
            return advance_server(handshake, met, right, out);
        }
    }
    met.served |= matches!(step, HandshakeStep::Done(_));
    !met.served
}

#[test]
fn a_changed_handshake_of_curve_lets_no_other_in() {
    let (own, key) = (SecretKey::generate(), SecretKey::generate());
    let right = Claim::Curve(own.public_key());
    let mechanisms = Arc::new(Mechanisms::Users { plain: true, curve: Some(key.clone()) });
    each_input("CURVE", 300, |rng| {
        let curve = Credentials::Curve { own: own.clone(), server: key.public_key() };
        let met = meet(rng.clone(), curve, &mechanisms, &right);
        assert!(met.claim.as_ref().is_none_or(|claim| *claim == right), "{rng:?}");
        let free = met.to_server.differs_at.is_some_and(|at| FREE_IN_HELLO.contains(&at));
        assert!(!met.served || free || !met.to_server.commands_differ(), "{rng:?}");
        assert!(!met.met || !met.to_client.commands_differ(), "{rng:?}");
        assert!(!met.met || met.served, "{rng:?}: no other peer can answer for the server");
        met.served
    });
}

#[test]
fn a_changed_handshake_of_plain_lets_in_only_with_name_and_password() {
    let right = Claim::Plain { name: b"ada".to_vec(), password: b"heron".to_vec() };
    let mechanisms = Arc::new(Mechanisms::Users { plain: true, curve: Some(SecretKey::generate()) });
    each_input("PLAIN", 20_000, |rng| {
        // One in two has a password that is nearly right.
        let password = if rng.clone().next() % 2 == 0 { "heron" } else { "heroN" };
        let plain = Credentials::Plain { name: "ada".to_owned(), password: password.to_owned() };
        let met = meet(rng.clone(), plain, &mechanisms, &right);
        let said = met.to_server.all.windows(16).any(|window| window == b"\x05HELLO\x03ada\x05heron");
        assert!(said || !met.served, "{rng:?}");
        met.served
    });
}

#[test]
fn a_changed_handshake_of_null_lets_in_where_no_user_is_needed() {
    let right = Claim::Plain { name: b"ada".to_vec(), password: b"heron".to_vec() };
    let open = Arc::new(Mechanisms::Open);
    let users = Arc::new(Mechanisms::Users { plain: true, curve: None });
    each_input("NULL", 20_000, |rng| {
        let met = meet(rng.clone(), Credentials::None, &users, &right);
        assert!(!met.served && !met.met && met.claim.is_none(), "{rng:?}");
        let met = meet(rng.clone(), Credentials::None, &open, &right);
        assert!(met.claim.is_none(), "{rng:?}");
        assert!(met.served || met.to_server.differs_at.is_some() || met.to_client.differs_at.is_some(), "{rng:?}");
        met.served
    });
}

/// What a client says until it needs an answer other than a greeting.
fn first_words(credentials: Credentials, mechanisms: &Arc<Mechanisms>) -> Vec<u8> {
    let (mut near, mut far) = (Vec::new(), Vec::new());
    let mut client = ClientHandshake::begin(SocketType::Dealer, credentials, &mut near);
    let mut server = Handshake::serve(SocketType::Router, mechanisms, &mut far);
    server.advance(&near, &mut far).unwrap();
    client.advance(&far, &mut near).unwrap();
    near
}

#[test]
fn changed_first_words_are_refused_over_a_socket() {
    let folder = Folder::new();
    let (server, key) = folder.start_tables();
    let address = server.kv().strip_prefix("tcp://").unwrap();
    let users = Arc::new(Mechanisms::Users { plain: true, curve: Some(SecretKey::generate()) });
    let words = [
        first_words(Credentials::Plain { name: String::new(), password: String::new() }, &users),
        first_words(Credentials::Curve { own: SecretKey::generate(), server: key }, &users),
        first_words(Credentials::None, &Arc::new(Mechanisms::Open)),
    ];
    each_input("first words", 300, |mut rng| {
        let mut bytes = words[rng.index(words.len())].clone();
        let other = &words[rng.index(words.len())];
        mutate(&mut rng, &mut bytes, other);
        let reply = exchange(address, &bytes);
        let says = |what: &[u8]| reply.windows(what.len()).any(|window| window == what);
        assert!(!says(b"\x05READY"), "{rng:?}: {}", reply.escape_ascii());
        // CURVE says WELCOME before it knows its peer.
        assert!(!says(b"\x04\x08\x07WELCOME"), "{rng:?}: {}", reply.escape_ascii());
        !reply.is_empty()
    });
    folder.ask_tables(&server);
    server.stop();
}

#[test]
fn a_changed_line_of_auth_says_what_it_says() {
    each_input("AUTH", 20_000, |mut rng| {
        let mut line = b"AUTH ada two words\r\nGET mail\n".to_vec();
        mutate(&mut rng, &mut line, b"AUTH bob egret\nADD mail 4 text\n");
        let decoded = decode_auth(&line);
        for end in (0..line.len()).rev().take(64) {
            let beginning = decode_auth(&line[..end]);
            assert!(beginning == DecodedAuth::Short || beginning == decoded, "{}: {end}", line.escape_ascii());
        }
        let DecodedAuth::Whole { name, password, length } = decoded else { return false };
        let said = [b"AUTH ", name, b" ", password].concat();
        assert!(line.starts_with(&said) && !name.contains(&b' ') && !name.is_empty(), "{}", line.escape_ascii());
        let end = &line[said.len()..length];
        assert!(end == b"\n" || end == b"\r\n", "{}", line.escape_ascii());
        true
    });
}

/// Sends bytes, ends the sending, and returns all that comes.
fn exchange(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(SILENCE)).unwrap();
    // The server may close before it has read all.
    let _closed_early = stream.write_all(bytes).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
    let mut reply = Vec::new();
    let _reset = stream.read_to_end(&mut reply);
    reply
}

/// The first bytes of a client of TLS.
fn hello() -> Vec<u8> {
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_changed_hello_of_tls_is_answered_with_tls_or_nothing() {
    let folder = Folder::new();
    let server = folder.start();
    let hello = hello();
    let addresses = [server.jobs(), server.events(), server.admin()];
    each_input("TLS", 300, |mut rng| {
        let mut bytes = hello.clone();
        mutate(&mut rng, &mut bytes, b"GET /stats HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let reply = exchange(rng.pick(&addresses), &bytes);
        let mut rest = &reply[..];
        while let [kind, 3, _, high, low, ..] = *rest {
            assert!((0x14..=0x17).contains(&kind), "{rng:?}: {}", reply.escape_ascii());
            let length = 5 + usize::from(high) * 256 + usize::from(low);
            rest = rest.get(length..).unwrap_or_default();
        }
        assert!(rest.is_empty(), "{rng:?}: {}", reply.escape_ascii());
        reply.first() == Some(&0x16)
    });
    folder.run("served", &server);
    server.stop();
}

#[test]
fn a_changed_head_of_http_is_served_to_a_user_alone() {
    let folder = Folder::new();
    let server = folder.start_plain();
    let addresses = [server.events(), server.admin()];
    let heads = [
        &b"GET /stats HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic \r\nConnection: close\r\n\r\n"[..],
        b"POST /events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer cm9vdDpoZXJvbg==\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Digest username=\"root\"\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n",
    ];
    each_input("HTTP", 300, |mut rng| {
        let mut bytes = rng.pick(&heads).to_vec();
        let other = rng.pick(&heads);
        mutate(&mut rng, &mut bytes, other);
        let reply = exchange(rng.pick(&addresses), &bytes);
        let is_refusal = [&b"HTTP/1.1 4"[..], b"HTTP/1.0 4", b"HTTP/1.1 501", b"HTTP/1.1 505"];
        // A splice may join the scheme of one head and the right words of another.
        if bytes.windows(ROOT.len()).any(|window| window.eq_ignore_ascii_case(ROOT.as_bytes())) {
            return true;
        }
        let is_refused = reply.is_empty() || is_refusal.iter().any(|refusal| reply.starts_with(refusal));
        assert!(is_refused, "{rng:?}: {} {}", bytes.escape_ascii(), reply.escape_ascii());
        // A second request on the connection is no better than the first.
        assert!(!reply.windows(12).any(|window| window == b"HTTP/1.1 200"), "{rng:?}");
        !reply.is_empty()
    });
    server.stop();
}
