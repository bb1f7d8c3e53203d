//! Certificates of clients: each that TLS can check is taken, and the users say later whose it is.
//!
//! ```text
//! handshake ─► CertificateRequest without names ─► no certificate ─► nobody
//!                                               └► a certificate, signed with its key ─► Fingerprint ─► a user │ nobody
//! ```
//! The signature proves that the client has the key. The file of users names the certificate itself, so its issuer, its
//! names and its time are not looked at. A session that is resumed has the certificate of its first handshake: the
//! library keeps it with the session.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use crate::security::limits::CLIENT_CERTIFICATES_BYTES_MAX;

/// Asks a client for a certificate, and takes any with whose key the client signs.
#[derive(Debug)]
pub(super) struct AnyClientCertificate {
    algorithms: WebPkiSupportedAlgorithms,
}

impl AnyClientCertificate {
    pub(super) fn new() -> Self {
        Self { algorithms: ring::default_provider().signature_verification_algorithms }
    }
}

impl ClientCertVerifier for AnyClientCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let bytes: usize = intermediates.iter().chain([certificate]).map(|one| one.len()).sum();
        // The library keeps all of them as long as the connection, whoever the client is.
        if bytes > CLIENT_CERTIFICATES_BYTES_MAX {
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::sync::Arc;

    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use rustls::client::WantsClientCert;
    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use rustls::sign::{CertifiedKey as SignedWith, SingleCertAndKey};
    use rustls::{
        ClientConfig, ClientConnection, ConfigBuilder, RootCertStore, ServerConfig, ServerConnection,
        SupportedProtocolVersion,
    };

    use super::*;

    fn made() -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        (cert.der().clone(), PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap())
    }

    /// A server that asks for certificates.
    fn server(certificate: &CertificateDer<'static>, key: PrivateKeyDer<'static>) -> Arc<ServerConfig> {
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = config.with_client_cert_verifier(Arc::new(AnyClientCertificate::new()));
        Arc::new(config.with_single_cert(vec![certificate.clone()], key).unwrap())
    }

    /// A client of one version that trusts this certificate.
    fn client(
        certificate: &CertificateDer<'static>,
        version: &'static SupportedProtocolVersion,
    ) -> ConfigBuilder<ClientConfig, WantsClientCert> {
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        client.with_protocol_versions(&[version]).unwrap().with_root_certificates(roots)
    }

    /// Lets the two speak until neither has more to say. An error is the server's.
    fn shake(config: &Arc<ClientConfig>, server: &Arc<ServerConfig>) -> Result<ServerConnection, Error> {
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(Arc::clone(config), name).unwrap();
        let mut server = ServerConnection::new(Arc::clone(server)).unwrap();
        while client.wants_write() || server.wants_write() {
            let (mut sent, mut answered) = (Vec::new(), Vec::new());
            while client.wants_write() {
                client.write_tls(&mut sent).unwrap();
            }
            let mut sent = &sent[..];
            while !sent.is_empty() {
                server.read_tls(&mut sent).unwrap();
                server.process_new_packets()?;
            }
            while server.wants_write() {
                server.write_tls(&mut answered).unwrap();
            }
            let mut answered = &answered[..];
            while !answered.is_empty() {
                client.read_tls(&mut answered).unwrap();
                client.process_new_packets().unwrap();
            }
        }
        Ok(server)
    }

    #[test]
    fn a_resumed_session_has_the_certificate_of_its_first_handshake() {
        let ((certificate, key), (own, own_key)) = (made(), made());
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let server = server(&certificate, key.clone_key());
            let client = client(&certificate, version).with_client_auth_cert(vec![own.clone()], own_key.clone_key());
            let client = Arc::new(client.unwrap());
            for is_resumed in [false, true] {
                let shaken = shake(&client, &server).unwrap();
                let kind = shaken.handshake_kind().unwrap();
                assert_eq!(kind == rustls::HandshakeKind::Resumed, is_resumed, "{version:?}");
                assert_eq!(shaken.peer_certificates().unwrap(), std::slice::from_ref(&own), "{version:?}");
            }
        }
    }

    #[test]
    fn a_certificate_counts_with_its_own_key_alone() {
        let ((certificate, key), (own, own_key), (_, other_key)) = (made(), made(), made());
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let server = server(&certificate, key.clone_key());
            for (key, is_right) in [(&own_key, true), (&other_key, false)] {
                let key = ring::default_provider().key_provider.load_private_key(key.clone_key()).unwrap();
                let shown = SingleCertAndKey::from(SignedWith::new(vec![own.clone()], key));
                let client = client(&certificate, version).with_client_cert_resolver(Arc::new(shown));
                assert_eq!(shake(&Arc::new(client), &server).is_ok(), is_right, "{version:?}");
            }
        }
    }

    #[test]
    fn certificates_beyond_the_bound_are_refused() {
        let (certificate, _) = made();
        let checked = |bytes: usize| {
            let rest = CertificateDer::from(vec![0; bytes - certificate.len()]);
            AnyClientCertificate::new().verify_client_cert(&certificate, &[rest], UnixTime::now())
        };
        assert!(checked(CLIENT_CERTIFICATES_BYTES_MAX).is_ok());
        assert!(checked(CLIENT_CERTIFICATES_BYTES_MAX + 1).is_err());
    }
}
