//! The server's certificate: it is read at the start, and again when the operator asks for it.
//!
//! A file that is wrong at the start is an error. One that is wrong later is logged, and the certificate stays as it
//! was. Connections keep the certificate that they began with.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use super::client_certificate::AnyClientCertificate;
use crate::lock::Mutex;
use crate::security::Fingerprint;
use crate::security::users::is_read_by_others;

/// A certificate and its key. Clones are the same.
#[derive(Clone)]
pub struct Certificate(Arc<CertificateFiles>);

struct CertificateFiles {
    chain: PathBuf,
    key: PathBuf,
    /// Whether clients are asked for certificates of their own.
    asks_clients: bool,
    config: Mutex<Arc<ServerConfig>>,
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Certificate({})", self.0.chain.display())
    }
}

impl Certificate {
    /// Reads the certificate with those that lead from it to an authority, and its key. Both files are PEM. A client is
    /// asked for a certificate of its own if `asks_clients`, and need not have one.
    ///
    /// # Errors
    /// One line that names the file, and what is wrong.
    pub fn open(chain: &Path, key: &Path, asks_clients: bool) -> Result<Self, String> {
        let config = Mutex::new(read(chain, key, asks_clients)?);
        Ok(Self(Arc::new(CertificateFiles { chain: chain.to_owned(), key: key.to_owned(), asks_clients, config })))
    }

    /// Reads the files again. If they are wrong, the certificate stays as it was.
    pub fn reread(&self) {
        let CertificateFiles { chain, key, asks_clients, config } = &*self.0;
        match read(chain, key, *asks_clients) {
            Ok(latest) => {
                *config.lock() = latest;
                tracing::info!("{}: the certificate is read again", chain.display());
            }
            Err(why) => tracing::error!("{why}; the certificate stays as it was"),
        }
    }

    /// Begins connections with the certificate as it is now.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config())
    }

    /// What connections begin with now.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.config.lock())
    }
}

fn of(file: &Path, what: &str) -> String {
    format!("{}: {what}", file.display())
}

fn wrong(file: &Path, error: PemError) -> String {
    match error {
        PemError::Io(error) => of(file, &format!("it cannot be read: {error}")),
        _ => of(file, "it is not in the form of PEM"),
    }
}

/// The certificates in a file in PEM.
fn read_chain(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let chain = chain.map_err(|error| wrong(file, error))?;
    if chain.is_empty() { Err(of(file, "it has no certificate")) } else { Ok(chain) }
}

/// The fingerprint of the first certificate in a file in PEM.
///
/// # Errors
/// One line that names the file, and what is wrong.
pub fn fingerprint_of_file(file: &Path) -> Result<Fingerprint, String> {
    let first = CertificateDer::from_pem_file(file).map_err(|error| match error {
        PemError::NoItemsFound => of(file, "it has no certificate"),
        error => wrong(file, error),
    })?;
    Ok(Fingerprint::of(&first))
}

fn read(chain_file: &Path, key_file: &Path, asks_clients: bool) -> Result<Arc<ServerConfig>, String> {
    let chain = read_chain(chain_file)?;
    let key = PrivateKeyDer::from_pem_file(key_file).map_err(|error| match error {
        PemError::NoItemsFound => of(key_file, "it has no private key"),
        error => wrong(key_file, error),
    })?;
    if is_read_by_others(key_file) {
        tracing::warn!("{}: others can read this key: chmod 640", key_file.display());
    }
    let versions = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let config = match asks_clients {
        true => versions.with_client_cert_verifier(Arc::new(AnyClientCertificate::new())),
        false => versions.with_no_client_auth(),
    };
    let config = config.with_single_cert(chain, key);
    let unfit = |error| match error {
        rustls::Error::InconsistentKeys(_) => {
            of(key_file, &format!("it is not the key of the certificate in {}", chain_file.display()))
        }
        error => format!("{} and {}: {error}", chain_file.display(), key_file.display()),
    };
    config.map(Arc::new).map_err(unfit)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::fs;

    use rcgen::generate_simple_self_signed;

    use super::*;

    #[test]
    fn a_file_that_is_no_certificate_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let empty = file("empty", "");
        let noise = file("noise", "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n");
        let nothing = file("nothing", "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n");
        let rows = [
            (folder.path().join("missing"), &empty, "missing: it cannot be read"),
            (empty.clone(), &empty, "empty: it has no certificate"),
            (noise, &empty, "noise: it is not in the form of PEM"),
            (nothing, &empty, "empty: it has no private key"),
        ];
        for (chain, key, about) in rows {
            let why = Certificate::open(&chain, key, false).unwrap_err();
            assert!(why.contains(about), "{why}");
        }
    }

    #[test]
    fn a_file_has_the_fingerprint_of_its_first_certificate() {
        let pem = [generate_simple_self_signed(["a".to_owned()]), generate_simple_self_signed(["b".to_owned()])]
            .map(|made| made.unwrap().cert);
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), pem.each_ref().map(|one| one.pem()).concat()).unwrap();
        assert_eq!(fingerprint_of_file(file.path()), Ok(Fingerprint::of(pem[0].der())));
        fs::write(file.path(), "").unwrap();
        assert!(fingerprint_of_file(file.path()).unwrap_err().contains("it has no certificate"));
    }
}
