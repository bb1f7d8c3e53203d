//! TLS of a connection that waits in an epoll: what comes is opened, and what goes is sealed.
//!
//! ```text
//! received ─► TlsSession::open ─► bytes of messages       replies ─► TlsSession::seal ─► sent
//!                  └── answers of the handshake, alerts ──────────────────▲
//! ```
//! The two buffers of a connection share a session. Its thread alone uses it, so the lock is never waited for.
//!
//! This module has no socket.

use std::fmt;
use std::io::{Read, Write};
use std::sync::Arc;

use rustls::{ServerConfig, ServerConnection};

use crate::lock::Mutex;
use crate::security::Fingerprint;

/// Bytes that are sealed at once: those of the longest record.
const RECORD_BYTES: usize = 16 << 10;

/// Bytes that a session takes, measured with 900 idle ones: most of them are buffers of the library.
pub(super) const TLS_SESSION_BYTES: usize = 22 << 10;

/// A session. Clones are the same.
#[derive(Clone)]
pub(super) struct TlsSession(Arc<Mutex<ServerConnection>>);

/// Why a session ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TlsFault(String);

impl fmt::Display for TlsFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TLS: {}", self.0)
    }
}

impl fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSession").finish_non_exhaustive()
    }
}

impl TlsSession {
    /// A session before its handshake.
    ///
    /// # Errors
    /// That of the library: it cannot make one of this configuration.
    pub(super) fn begin(config: Arc<ServerConfig>) -> Result<Self, TlsFault> {
        let connection = ServerConnection::new(config).map_err(|error| TlsFault(error.to_string()))?;
        Ok(Self(Arc::new(Mutex::new(connection))))
    }

    /// Whether the handshake is under way.
    pub(super) fn is_shaking(&self) -> bool {
        self.0.lock().is_handshaking()
    }

    /// The fingerprint of the certificate whose key the client has. None: it has shown none, or was not asked.
    pub(super) fn certificate(&self) -> Option<Fingerprint> {
        self.0.lock().peer_certificates()?.first().map(|own| Fingerprint::of(own))
    }

    /// Opens received bytes, and appends what they hold to `out`. The rest of a record that has not come whole is kept.
    ///
    /// # Errors
    /// The fault that ends the session. An alert about it waits to be sent.
    pub(super) fn open(&self, mut bytes: &[u8], out: &mut Vec<u8>) -> Result<(), TlsFault> {
        let mut session = self.0.lock();
        while !bytes.is_empty() {
            session.read_tls(&mut bytes).map_err(|error| TlsFault(error.to_string()))?;
            let state = session.process_new_packets().map_err(|error| TlsFault(error.to_string()))?;
            let from = out.len();
            out.resize(from + state.plaintext_bytes_to_read(), 0);
            let opened = out.get_mut(from..).unwrap_or_default();
            session.reader().read_exact(opened).map_err(|error| TlsFault(error.to_string()))?;
            if state.peer_has_closed() {
                // What a client sends after its last word is not read, and it may wait for ours.
                session.send_close_notify();
                return Ok(());
            }
        }
        Ok(())
    }

    /// Seals the first of these bytes, and appends the records to `out`, behind what the session has to say itself.
    /// Returns how many bytes are sealed.
    pub(super) fn seal(&self, bytes: &[u8], out: &mut Vec<u8>) -> usize {
        let mut session = self.0.lock();
        let some = bytes.get(..RECORD_BYTES).unwrap_or(bytes);
        // The session has a buffer for more than that, and a vector takes all.
        let taken = session.writer().write(some).unwrap_or(0);
        while session.wants_write() && session.write_tls(out).is_ok() {}
        taken
    }

    /// Whether the session has to say something itself.
    pub(super) fn has_output(&self) -> bool {
        self.0.lock().wants_write()
    }

    /// Announces the end to the client.
    pub(super) fn close(&self) {
        self.0.lock().send_close_notify();
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use rustls::crypto::ring::default_provider;
    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;

    /// The two ends of a connection before its handshake.
    pub(in super::super) fn ends() -> (TlsSession, ClientConnection) {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
        let provider = Arc::new(default_provider());
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
        let server = server.unwrap().with_no_client_auth().with_single_cert(vec![cert.der().clone()], key).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone()).unwrap();
        let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let client = client.with_root_certificates(roots).with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
        client.set_buffer_limit(None);
        (TlsSession::begin(Arc::new(server)).unwrap(), client)
    }

    /// What the client sends now, and what the server makes of it.
    fn pass(client: &mut ClientConnection, session: &TlsSession, out: &mut Vec<u8>, step: usize) {
        let mut sent = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut sent).unwrap();
        }
        sent.chunks(step).for_each(|some| session.open(some, out).unwrap());
    }

    /// What the server has to say, and has to say itself.
    fn answer(client: &mut ClientConnection, session: &TlsSession, mut replies: &[u8]) {
        let mut sent = Vec::new();
        while session.has_output() || !replies.is_empty() {
            let taken = session.seal(replies, &mut sent);
            replies = replies.get(taken..).unwrap();
        }
        let mut sent = &sent[..];
        let mut got = Vec::new();
        while !sent.is_empty() {
            client.read_tls(&mut sent).unwrap();
            let state = client.process_new_packets().unwrap();
            let from = got.len();
            got.resize(from + state.plaintext_bytes_to_read(), 0);
            client.reader().read_exact(got.get_mut(from..).unwrap()).unwrap();
        }
        client.writer().write_all(&got).unwrap();
    }

    #[test]
    fn what_comes_is_opened_and_what_goes_is_sealed_whatever_its_portions() {
        for step in [1, 7, 4_096, 1 << 20] {
            let (session, mut client) = ends();
            let mut out = Vec::new();
            while session.is_shaking() || client.is_handshaking() {
                pass(&mut client, &session, &mut out, step);
                answer(&mut client, &session, b"");
            }
            let all: Vec<u8> = (0..100_000_u32).map(|number| number.to_le_bytes()[0]).collect();
            answer(&mut client, &session, &all);
            // The client sends it back.
            pass(&mut client, &session, &mut out, step);
            while out.len() < all.len() {
                pass(&mut client, &session, &mut out, step);
            }
            assert!(out == all, "{step}");
        }
    }

    #[test]
    fn noise_instead_of_a_handshake_is_answered_by_an_alert() {
        for noise in [&b"*1\r\n$4\r\nPING\r\n"[..], b"GET / HTTP/1.1\r\n\r\n", &[0; 64], &[0x16, 3, 1, 0xff, 0xff, 1]] {
            let (session, _) = ends();
            let mut out = Vec::new();
            assert!(session.open(noise, &mut out).is_err() && session.has_output(), "{noise:?}");
            assert!(out.is_empty());
            session.seal(b"", &mut out);
            assert_eq!(out.first(), Some(&0x15), "an alert");
        }
    }
}
