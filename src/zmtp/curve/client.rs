//! The handshake of CURVE on the side of the client.

use dryoc::rng::copy_randombytes;

use super::*;

/// The number of the INITIATE among the boxes of a client. The HELLO is the first.
const INITIATE_NUMBER: u64 = 2;

/// A client that has made its HELLO.
pub(in crate::zmtp) struct CurveHello {
    own: SecretKey,
    /// The key of this connection.
    session: SecretKey,
    server: PublicKey,
    key: SharedKey,
}

/// A client that has made its INITIATE.
pub(in crate::zmtp) struct CurveSession {
    key: SharedKey,
}

impl CurveHello {
    /// Makes a key for the connection, and the body of the HELLO.
    ///
    /// # Errors
    /// [`ProtocolError::Command`] if the server's key is one that no server can have.
    pub(in crate::zmtp) fn new(own: SecretKey, server: PublicKey) -> Result<(Self, Vec<u8>), ProtocolError> {
        Self::with_zeros(own, server, [0; HELLO_ZEROS])
    }

    fn with_zeros(
        own: SecretKey,
        server: PublicKey,
        mut zeros: [u8; HELLO_ZEROS],
    ) -> Result<(Self, Vec<u8>), ProtocolError> {
        let session = SecretKey::generate();
        let key = SharedKey::of(&server, &session).ok_or(wrong("the key of the server is none"))?;
        let counter = 1_u64.to_be_bytes();
        let tag = key.close(&mut zeros, &nonce(b"CurveZMQHELLO---", &counter));
        let public = session.public_key();
        let body = [b"\x05HELLO\x01\0", &[0; HELLO_PADDING - 2][..], &public.0, &counter, &tag, &zeros].concat();
        Ok((Self { own, session, server, key }, body))
    }

    /// Reads a WELCOME, and makes the body of the INITIATE with these properties.
    ///
    /// # Errors
    /// [`ProtocolError::Command`] if the WELCOME is of another server, or of another connection.
    pub(in crate::zmtp) fn initiate(
        &self,
        welcome: &[u8],
        properties: &[u8],
    ) -> Result<(CurveSession, Vec<u8>), ProtocolError> {
        self.initiate_vouching(welcome, [self.session.public_key(), self.server], INITIATE_NUMBER, properties)
    }

    /// The same, with a vouch for these keys, and this number in the nonce.
    fn initiate_vouching(
        &self,
        welcome: &[u8],
        vouched: [PublicKey; 2],
        number: u64,
        properties: &[u8],
    ) -> Result<(CurveSession, Vec<u8>), ProtocolError> {
        const CUT: ProtocolError = wrong("a WELCOME is cut off");
        let rest = welcome.strip_prefix(b"\x07WELCOME").ok_or(wrong("this is no WELCOME"))?;
        let (welcome_nonce, sealed) = rest.split_first_chunk::<LONG_NONCE_BYTES>().ok_or(CUT)?;
        let content = open(&self.key, sealed, &nonce(b"WELCOME-", welcome_nonce));
        let content = content.ok_or(wrong("the box of a WELCOME is closed"))?;
        let (theirs, cookie) = split_key(&content)?;
        let cookie = cookie.as_array::<COOKIE_BYTES>().ok_or(wrong("a cookie has another length"))?;
        const NO_KEY: ProtocolError = wrong("a WELCOME has a key that is none");
        let mut vouch_nonce = [0; LONG_NONCE_BYTES];
        copy_randombytes(&mut vouch_nonce);
        let mut vouch = vouched.map(|key| key.0).concat();
        let vouch_tag =
            SharedKey::of(&theirs, &self.own).ok_or(NO_KEY)?.close(&mut vouch, &nonce(b"VOUCH---", &vouch_nonce));
        let key = SharedKey::of(&theirs, &self.session).ok_or(NO_KEY)?;
        let counter = number.to_be_bytes();
        let mut inside = [&self.own.public_key().0[..], &vouch_nonce, &vouch_tag, &vouch, properties].concat();
        let tag = key.close(&mut inside, &nonce(b"CurveZMQINITIATE", &counter));
        Ok((CurveSession { key }, [b"\x08INITIATE", &cookie[..], &counter, &tag, &inside].concat()))
    }
}

impl CurveSession {
    /// Reads a READY: the server's properties, and the cipher of the messages.
    ///
    /// # Errors
    /// [`ProtocolError::Command`]
    pub(in crate::zmtp) fn ready(self, body: &[u8]) -> Result<(Vec<u8>, Cipher), ProtocolError> {
        let rest = body.strip_prefix(b"\x05READY").ok_or(wrong("this is no READY"))?;
        let (counter, sealed) = rest.split_first_chunk::<NONCE_BYTES>().ok_or(wrong("a READY is cut off"))?;
        let properties = open(&self.key, sealed, &nonce(b"CurveZMQREADY---", counter));
        let properties = properties.ok_or(wrong("the box of a READY is closed"))?;
        Ok((properties, Cipher::of_client(self.key, u64::from_be_bytes(*counter), INITIATE_NUMBER)))
    }
}

/// A client that can also lie.
#[cfg(test)]
impl CurveHello {
    pub(in crate::zmtp) fn of_unknown(server: PublicKey) -> (Self, Vec<u8>) {
        Self::new(SecretKey::generate(), server).expect("the key of the server is one")
    }

    pub(in crate::zmtp) fn own(&self) -> PublicKey {
        self.own.public_key()
    }

    /// The keys of a true vouch.
    pub(in crate::zmtp) fn vouched(&self) -> [PublicKey; 2] {
        [self.session.public_key(), self.server]
    }

    pub(in crate::zmtp) fn lie(&self, welcome: &[u8], vouched: [PublicKey; 2], properties: &[u8]) -> Vec<u8> {
        self.initiate_vouching(welcome, vouched, INITIATE_NUMBER, properties).expect("the WELCOME is one").1
    }

    /// A true INITIATE with this number in its nonce.
    pub(in crate::zmtp) fn initiate_numbered(&self, welcome: &[u8], number: u64, properties: &[u8]) -> Vec<u8> {
        self.initiate_vouching(welcome, self.vouched(), number, properties).expect("the WELCOME is one").1
    }

    /// The body of a HELLO whose box has no zeros.
    pub(in crate::zmtp) fn without_zeros(server: PublicKey) -> Vec<u8> {
        Self::with_zeros(SecretKey::generate(), server, [1; HELLO_ZEROS]).expect("the key of the server is one").1
    }
}

#[cfg(test)]
impl CurveSession {
    /// A cipher whose nonces begin anew.
    pub(in crate::zmtp) fn begun_anew(&self) -> Cipher {
        Cipher::of_client(self.key.clone(), 0, 0)
    }
}
