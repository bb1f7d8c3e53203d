//! The handshake of CURVE (RFC 26), on the side of the server; the client's is in `curve/client.rs`.
//!
//! ```text
//! C, S      the long-term keys; C', S' those of this connection
//! HELLO     05 "HELLO" │ 01 00 │ 72 zeros │ C' │ nonce (8) │ Box[64 zeros](C'→S)                     200 bytes
//! WELCOME   07 "WELCOME" │ nonce (16) │ Box[S' │ cookie](S→C')                                       168 bytes
//! cookie    nonce (16) │ Box[C' │ s'](K), where only this connection knows K                          96 bytes
//! INITIATE  08 "INITIATE" │ cookie │ nonce (8) │ Box[C │ vouch │ properties](C'→S')
//! vouch     nonce (16) │ Box[C' │ S](C→S')                                                            96 bytes
//! READY     05 "READY" │ nonce (8) │ Box[properties](S'→C')
//! ```
//! Between WELCOME and INITIATE the server keeps K alone: what it made is in the cookie. K is new for each connection, so
//! a recorded INITIATE is of no use on another one.

pub(super) mod client;

use dryoc::classic::crypto_secretbox::{crypto_secretbox_easy, crypto_secretbox_open_easy};
use dryoc::rng::copy_randombytes;

use super::ProtocolError;
use super::cipher::{Cipher, NONCE_BYTES, SharedKey, TAG_BYTES, nonce};
use super::curve_key::{KEY_BYTES, PublicKey, SecretKey};

const LONG_NONCE_BYTES: usize = 16;
const HELLO_BYTES: usize = 200;
const HELLO_ZEROS: usize = 64;
/// The version, and zeros, so that a HELLO is longer than its WELCOME.
const HELLO_PADDING: usize = 74;
const COOKIE_BYTES: usize = LONG_NONCE_BYTES + TAG_BYTES + 2 * KEY_BYTES;
const VOUCH_BYTES: usize = LONG_NONCE_BYTES + TAG_BYTES + 2 * KEY_BYTES;

const fn wrong(what: &'static str) -> ProtocolError {
    ProtocolError::Command { what }
}

/// The server's state between WELCOME and INITIATE.
pub(super) struct Welcomed {
    cookie_key: [u8; KEY_BYTES],
    /// The nonce of the HELLO.
    received: u64,
}

/// A client that has proved to have the secret key of `client`.
pub(super) struct Initiated {
    /// The client's long-term key.
    pub(super) client: PublicKey,
    /// The client's properties.
    pub(super) properties: Vec<u8>,
    key: SharedKey,
    received: u64,
}

/// Reads a HELLO, whose name is taken already from `body`'s length, and appends the body of the WELCOME.
///
/// # Errors
/// [`ProtocolError::Command`]
pub(super) fn welcome(body: &[u8], ours: &SecretKey, out: &mut Vec<u8>) -> Result<Welcomed, ProtocolError> {
    let rest =
        body.strip_prefix(b"\x05HELLO").filter(|_| body.len() == HELLO_BYTES).ok_or(wrong("this is no HELLO"))?;
    let (head, rest) = rest.split_at_checked(HELLO_PADDING).ok_or(wrong("a HELLO is cut off"))?;
    if head.first() != Some(&1) {
        return Err(wrong("a HELLO has another version than 1"));
    }
    let (theirs, rest) = split_key(rest)?;
    let (counter, sealed) = rest.split_first_chunk::<NONCE_BYTES>().ok_or(wrong("a HELLO is cut off"))?;
    let key = SharedKey::of(&theirs, ours).ok_or(wrong("a HELLO has a key that is none"))?;
    let zeros =
        open(&key, sealed, &nonce(b"CurveZMQHELLO---", counter)).ok_or(wrong("the box of a HELLO is closed"))?;
    if zeros != [0; HELLO_ZEROS] {
        return Err(wrong("the box of a HELLO has no zeros"));
    }
    let session = SecretKey::generate();
    let (mut cookie_key, mut cookie_nonce, mut welcome_nonce) =
        ([0; KEY_BYTES], [0; LONG_NONCE_BYTES], [0; LONG_NONCE_BYTES]);
    copy_randombytes(&mut cookie_key);
    copy_randombytes(&mut cookie_nonce);
    copy_randombytes(&mut welcome_nonce);
    let mut cookie = [0; COOKIE_BYTES - LONG_NONCE_BYTES];
    let inside = [theirs.0, session.0].concat();
    crypto_secretbox_easy(&mut cookie, &inside, &nonce(b"COOKIE--", &cookie_nonce), &cookie_key)
        .expect("the lengths are valid");
    let mut content = [&session.public_key().0[..], &cookie_nonce, &cookie].concat();
    let tag = key.close(&mut content, &nonce(b"WELCOME-", &welcome_nonce));
    out.extend_from_slice(b"\x07WELCOME");
    out.extend_from_slice(&welcome_nonce);
    out.extend_from_slice(&tag);
    out.extend_from_slice(&content);
    Ok(Welcomed { cookie_key, received: u64::from_be_bytes(*counter) })
}

impl Welcomed {
    /// Reads an INITIATE.
    ///
    /// # Errors
    /// [`ProtocolError::Command`]
    pub(super) fn initiate(&self, body: &[u8], ours: &SecretKey) -> Result<Initiated, ProtocolError> {
        const CUT: ProtocolError = wrong("an INITIATE is cut off");
        let rest = body.strip_prefix(b"\x08INITIATE").ok_or(wrong("this is no INITIATE"))?;
        let (cookie, rest) = rest.split_first_chunk::<COOKIE_BYTES>().ok_or(CUT)?;
        let (theirs, session) = self.open_cookie(cookie).ok_or(wrong("an INITIATE has another's cookie"))?;
        let (counter, sealed) = rest.split_first_chunk::<NONCE_BYTES>().ok_or(CUT)?;
        let received = u64::from_be_bytes(*counter);
        if received <= self.received {
            return Err(wrong("the nonce of an INITIATE is out of order"));
        }
        let key = SharedKey::of(&theirs, &session).ok_or(wrong("an INITIATE has a key that is none"))?;
        let content = open(&key, sealed, &nonce(b"CurveZMQINITIATE", counter));
        let content = content.ok_or(wrong("the box of an INITIATE is closed"))?;
        let (client, rest) = split_key(&content)?;
        let (vouch, properties) = rest.split_first_chunk::<VOUCH_BYTES>().ok_or(CUT)?;
        let (vouch_nonce, vouch) = vouch.split_first_chunk::<LONG_NONCE_BYTES>().ok_or(CUT)?;
        let vouch_key = SharedKey::of(&client, &session).ok_or(wrong("an INITIATE has a key that is none"))?;
        let vouched = open(&vouch_key, vouch, &nonce(b"VOUCH---", vouch_nonce)).ok_or(wrong("a vouch is closed"))?;
        if vouched != [theirs.0, ours.public_key().0].concat() {
            return Err(wrong("a vouch is for other keys"));
        }
        Ok(Initiated { client, properties: properties.to_vec(), key, received })
    }

    fn open_cookie(&self, cookie: &[u8; COOKIE_BYTES]) -> Option<(PublicKey, SecretKey)> {
        let (cookie_nonce, sealed) = cookie.split_first_chunk::<LONG_NONCE_BYTES>()?;
        let mut inside = [0; 2 * KEY_BYTES];
        crypto_secretbox_open_easy(&mut inside, sealed, &nonce(b"COOKIE--", cookie_nonce), &self.cookie_key).ok()?;
        let (theirs, session) = inside.split_first_chunk::<KEY_BYTES>()?;
        Some((PublicKey(*theirs), SecretKey(*session.first_chunk()?)))
    }
}

impl Initiated {
    /// Appends the body of the READY with these properties, and returns the cipher of the messages.
    pub(super) fn ready(self, properties: &[u8], out: &mut Vec<u8>) -> Cipher {
        const FIRST: u64 = 1;
        let mut content = properties.to_vec();
        let tag = self.key.close(&mut content, &nonce(b"CurveZMQREADY---", &FIRST.to_be_bytes()));
        out.extend_from_slice(b"\x05READY");
        out.extend_from_slice(&FIRST.to_be_bytes());
        out.extend_from_slice(&tag);
        out.extend_from_slice(&content);
        Cipher::of_server(self.key, self.received, FIRST)
    }
}

fn split_key(bytes: &[u8]) -> Result<(PublicKey, &[u8]), ProtocolError> {
    let (key, rest) = bytes.split_first_chunk::<KEY_BYTES>().ok_or(wrong("a key is cut off"))?;
    Ok((PublicKey(*key), rest))
}

/// The content of a box.
fn open(key: &SharedKey, sealed: &[u8], nonce: &[u8; 24]) -> Option<Vec<u8>> {
    let (tag, content) = sealed.split_first_chunk::<TAG_BYTES>()?;
    let mut content = content.to_vec();
    key.open(&mut content, tag, nonce).then_some(content)
}
