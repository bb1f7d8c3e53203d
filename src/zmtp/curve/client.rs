//! The other side of the handshake, for tests: a client that can also lie.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use super::*;

/// A client with its keys.
pub(in crate::zmtp) struct CurveClient {
    pub(in crate::zmtp) own: SecretKey,
    pub(in crate::zmtp) session: SecretKey,
    pub(in crate::zmtp) server: PublicKey,
}

impl CurveClient {
    pub(in crate::zmtp) fn new(server: PublicKey) -> Self {
        Self { own: SecretKey::generate(), session: SecretKey::generate(), server }
    }

    /// The body of a HELLO.
    pub(in crate::zmtp) fn hello(&self) -> Vec<u8> {
        let key = SharedKey::of(&self.server, &self.session).unwrap();
        let counter = 1_u64.to_be_bytes();
        let mut zeros = [0; HELLO_ZEROS];
        let tag = key.close(&mut zeros, &nonce(b"CurveZMQHELLO---", &counter));
        [b"\x05HELLO\x01\0", &[0; 72][..], &self.session.public_key().0, &counter, &tag, &zeros].concat()
    }

    /// The session key of the server, and the body of an INITIATE in which `vouched` are the keys of the vouch.
    pub(in crate::zmtp) fn initiate(
        &self,
        welcome: &[u8],
        vouched: [PublicKey; 2],
        properties: &[u8],
    ) -> (PublicKey, Vec<u8>) {
        let rest = welcome.strip_prefix(b"\x07WELCOME").unwrap();
        let key = SharedKey::of(&self.server, &self.session).unwrap();
        let content = open(&key, &rest[16..], &nonce(b"WELCOME-", &rest[..16])).unwrap();
        let (theirs, cookie) = split_key(&content).unwrap();
        let mut vouch = [vouched[0].0, vouched[1].0].concat();
        let vouch_key = SharedKey::of(&theirs, &self.own).unwrap();
        let vouch_tag = vouch_key.close(&mut vouch, &nonce(b"VOUCH---", &[7; 16]));
        let counter = 2_u64.to_be_bytes();
        let mut inside = [&self.own.public_key().0[..], &[7; 16], &vouch_tag, &vouch, properties].concat();
        let tag =
            SharedKey::of(&theirs, &self.session).unwrap().close(&mut inside, &nonce(b"CurveZMQINITIATE", &counter));
        (theirs, [b"\x08INITIATE", cookie, &counter, &tag, &inside].concat())
    }

    /// The properties in a READY, and the cipher of the messages.
    pub(in crate::zmtp) fn ready(&self, theirs: &PublicKey, ready: &[u8]) -> (Vec<u8>, Cipher) {
        let rest = ready.strip_prefix(b"\x05READY").unwrap();
        let key = SharedKey::of(theirs, &self.session).unwrap();
        let properties = open(&key, &rest[8..], &nonce(b"CurveZMQREADY---", &rest[..8])).unwrap();
        (properties, Cipher::of_client(key, 1, 2))
    }
}
