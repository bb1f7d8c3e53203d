//! Certificates that are trusted as themselves, since the file of the authorities holds them.
//!
//! ```text
//! certificate ─► leads to an authority, and has the name ───────────────────────────────────────► trusted
//!                └─ refused ─► is in the file to the byte, in its time, and has the name or none ─► trusted
//! ```
//! `openssl req -x509` makes such certificates: each is an authority of its own, which RFC 5280 allows no server to be,
//! and often has no names but its subject. Whoever holds the key of a certificate that the user has named is the server
//! that the user means.
//!
//! This module checks no signature itself.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

/// Verifies what leads to an authority, and what is in the file itself.
#[derive(Debug)]
pub(super) struct OwnCertificateVerifier {
    authorities: Arc<WebPkiServerVerifier>,
    /// The certificates in the file.
    own: Vec<CertificateDer<'static>>,
}

impl OwnCertificateVerifier {
    /// A verifier for these authorities, which are also the certificates.
    ///
    /// # Errors
    /// One line that says what is wrong.
    pub(super) fn new(
        authorities: RootCertStore,
        own: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, String> {
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(authorities), provider).build();
        Ok(Self { authorities: verifier.map_err(|error| error.to_string())?, own })
    }
}

impl ServerCertVerifier for OwnCertificateVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.authorities.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            Err(Error::InvalidCertificate(problem)) if !is_of_time(&problem) && self.own.contains(end_entity) => {
                has_name_or_none(end_entity, server_name)
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}

/// Whether a certificate is refused for its time, which is checked before all else.
fn is_of_time(problem: &CertificateError) -> bool {
    matches!(
        problem,
        CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. }
    )
}

/// Refuses a certificate that has names, and not this one.
fn has_name_or_none(certificate: &CertificateDer<'_>, name: &ServerName<'_>) -> Result<ServerCertVerified, Error> {
    match verify_server_name(&ParsedCertificate::try_from(certificate)?, name) {
        Err(Error::InvalidCertificate(CertificateError::NotValidForNameContext { presented, .. }))
            if presented.is_empty() =>
        {
            Ok(ServerCertVerified::assertion())
        }
        checked => checked.map(|()| ServerCertVerified::assertion()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};
    use rustls::crypto::ring;

    use super::*;

    /// As `openssl req -x509` makes it: signed by itself, and an authority.
    fn made(names: &[&str], until: i32) -> CertificateDer<'static> {
        let mut params =
            CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params.not_before, params.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(until, 1, 1));
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().into()
    }

    fn verified(own: &CertificateDer<'static>, shown: &CertificateDer<'_>, name: &str) -> Result<(), Error> {
        let mut roots = RootCertStore::empty();
        roots.add(own.clone()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let verifier = OwnCertificateVerifier::new(roots, vec![own.clone()], provider).unwrap();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(1_800_000_000));
        let name = ServerName::try_from(name.to_owned()).unwrap();
        verifier.verify_server_cert(shown, &[], &name, &[], now).map(drop)
    }

    /// curl has always taken them.
    #[test]
    fn a_certificate_that_is_in_the_file_is_trusted_as_itself() {
        let (named, unnamed, expired) = (made(&["localhost"], 4000), made(&[], 4000), made(&["localhost"], 2001));
        assert_eq!(verified(&named, &named, "localhost"), Ok(()));
        assert_eq!(verified(&unnamed, &unnamed, "localhost"), Ok(()));
        assert!(verified(&named, &named, "other").is_err(), "it has another name");
        assert!(verified(&named, &unnamed, "localhost").is_err(), "it is not in the file");
        assert!(verified(&expired, &expired, "localhost").is_err(), "its time is over");
        assert!(verified(&named, &made(&["localhost"], 4000), "localhost").is_err(), "it is another one");
    }
}
