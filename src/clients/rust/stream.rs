//! A blocking connection to a service over plain TCP: as it is, or with TLS.
//!
//! ```text
//! address ─► connect to the first that accepts ─┬─ without authorities ─────────────────────────► ServerStream
//!                                               └─ handshake: its certificate leads to one ─────► ServerStream
//! ```
//! With TLS a client trusts the authorities in one file alone, and the name of the host has to be in the certificate. The
//! file may also hold the server's own certificate, as in [`own_certificate`].
//!
//! This module does not interpret the bytes of a connection.

mod own_certificate;

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use own_certificate::OwnCertificateVerifier;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustls::crypto::ring;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use thiserror::Error;

pub use super::socket::UnknownHost;

/// The beginning of an alert (RFC 8446, section 5.1): a server that speaks TLS answers so to other bytes.
const TLS_ALERT: &[u8] = &[0x15, 0x03];

/// The authorities whose certificates a client trusts. Clones are the same.
#[derive(Clone)]
pub struct Authorities(Arc<ClientConfig>);

impl fmt::Debug for Authorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authorities")
    }
}

impl Authorities {
    /// Reads the certificates of authorities from a file in PEM.
    ///
    /// # Errors
    /// One line that names the file, and what is wrong.
    pub fn open(file: &Path) -> Result<Self, String> {
        let of = |what: String| format!("{}: {what}", file.display());
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
        let certificates = certificates.map_err(|error| match error {
            PemError::Io(error) => of(format!("it cannot be read: {error}")),
            _ => of("it is not in the form of PEM".to_owned()),
        })?;
        let mut roots = RootCertStore::empty();
        let (known, _) = roots.add_parsable_certificates(certificates.iter().cloned());
        if known == 0 {
            return Err(of("it has no certificate".to_owned()));
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = OwnCertificateVerifier::new(roots, certificates, Arc::clone(&provider)).map_err(of)?;
        let versions = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let config = versions.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }
}

/// Why client and server do not agree about TLS, by the caller's remedy.
#[derive(Debug, Error)]
pub enum TlsFault {
    /// The certificate leads to no authority that the client trusts, is of another host, or has expired.
    #[error(
        "the certificate of {address} is not trusted ({problem}): give the file of its authority as --tls-ca, and the host \
         by a name that is in the certificate"
    )]
    Untrusted {
        /// The address of the server.
        address: String,
        /// The problem of the certificate.
        problem: String,
    },
    /// The handshake has failed: the server does not speak TLS, or no version that the client does.
    #[error(
        "{address} does not speak TLS as this client does ({problem}): leave out --tls-ca, or name another address"
    )]
    NotSpoken {
        /// The address of the server.
        address: String,
        /// The problem of the handshake.
        problem: String,
    },
    /// The server answers bytes that are no TLS with an alert.
    #[error("{0} speaks TLS: give the file of the authority that has signed its certificate as --tls-ca")]
    Needed(String),
}

impl TlsFault {
    /// Whether a reply to bytes that are no TLS is an alert.
    pub(crate) fn of_reply(reply: &[u8], address: &str) -> Option<Self> {
        reply.starts_with(TLS_ALERT).then(|| Self::Needed(address.to_owned()))
    }

    /// A handshake that has ended with this error. The error of the system comes back if TLS has no part in it.
    fn of_handshake(error: io::Error, address: &str) -> Result<Self, io::Error> {
        let address = address.to_owned();
        match error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>()) {
            Some(rustls::Error::InvalidCertificate(problem)) => {
                Ok(Self::Untrusted { address, problem: problem.to_string() })
            }
            Some(problem) => Ok(Self::NotSpoken { address, problem: problem.to_string() }),
            // The service has answered, or closed, instead of a handshake.
            None if error.kind() == ErrorKind::UnexpectedEof => {
                Ok(Self::NotSpoken { address, problem: "it has closed the connection".to_owned() })
            }
            None => Err(error),
        }
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum ConnectFault {
    /// The address is malformed.
    Address(io::Error),
    /// The host is unknown.
    Unknown(UnknownHost),
    /// No server accepts the connection, or it does not answer in time.
    NoAnswer(io::Error),
    /// Client and server do not agree about TLS.
    Tls(TlsFault),
}

/// A connection to a server.
pub(crate) enum ServerStream {
    /// As the system has it.
    Plain(TcpStream),
    /// Encrypted.
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl ServerStream {
    /// Connects to the first address of the host that accepts within `connect`. Each wait for the server may then take
    /// `answer`.
    pub(crate) fn connect(
        address: &str,
        connect: Duration,
        answer: Duration,
        authorities: Option<&Authorities>,
    ) -> Result<Self, ConnectFault> {
        let tcp = accepted(address, connect)?;
        let within = || {
            tcp.set_read_timeout(Some(answer))?;
            tcp.set_write_timeout(Some(answer))
        };
        within().map_err(ConnectFault::NoAnswer)?;
        let Some(Authorities(config)) = authorities else { return Ok(Self::Plain(tcp)) };
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let name =
            ServerName::try_from(host.to_owned()).map_err(|error| ConnectFault::Address(io::Error::other(error)))?;
        let connection = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other);
        let mut stream = StreamOwned::new(connection.map_err(ConnectFault::NoAnswer)?, tcp);
        while stream.conn.is_handshaking() {
            if let Err(error) = stream.conn.complete_io(&mut stream.sock) {
                let fault = TlsFault::of_handshake(or_late(error, answer), address);
                return Err(fault.map_or_else(ConnectFault::NoAnswer, ConnectFault::Tls));
            }
        }
        Ok(Self::Tls(Box::new(stream)))
    }
}

/// Waiting for the first byte of a reply.
impl ServerStream {
    /// Waits at most `time` until the server has sent something or closed. False: `over` is readable before.
    ///
    /// # Errors
    /// The error of the system, or that the server was silent.
    pub(crate) fn wait_unless(&mut self, over: BorrowedFd<'_>, time: Duration) -> io::Result<bool> {
        loop {
            let socket = match self {
                Self::Plain(stream) => stream,
                Self::Tls(stream) => &stream.sock,
            };
            let mut polled = [PollFd::new(socket, PollFlags::IN), PollFd::from_borrowed_fd(over, PollFlags::IN)];
            let ready = poll(&mut polled, Timespec::try_from(time).ok().as_ref());
            let [has_come, is_over] = polled.map(|polled| !polled.revents().is_empty());
            match ready {
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
                Ok(0) => return Err(ErrorKind::TimedOut.into()),
                Ok(_) if is_over => return Ok(false),
                Ok(_) if !has_come => continue,
                Ok(_) => {}
            }
            let Self::Tls(stream) = self else { return Ok(true) };
            // What has come may be for the encryption alone.
            let read = stream.conn.read_tls(&mut stream.sock)?;
            let state = stream.conn.process_new_packets().map_err(io::Error::other)?;
            if read == 0 || state.plaintext_bytes_to_read() > 0 || state.peer_has_closed() {
                return Ok(true);
            }
        }
    }
}

fn accepted(address: &str, time: Duration) -> Result<TcpStream, ConnectFault> {
    let mut refused = io::Error::other("its host has no address");
    let found = address.to_socket_addrs().map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => ConnectFault::Address(error),
        _ => ConnectFault::Unknown(UnknownHost { address: address.to_owned(), problem: error.to_string() }),
    });
    for address in found? {
        match TcpStream::connect_timeout(&address, time) {
            Ok(stream) => return Ok(stream),
            Err(error) => refused = or_late(error, time),
        }
    }
    Err(ConnectFault::NoAnswer(refused))
}

/// An error of a connection. One whose time is over says so: the system calls it a lack of resources.
pub(crate) fn or_late(error: io::Error, time: Duration) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            io::Error::new(ErrorKind::TimedOut, format!("it was silent for {} s", time.as_secs_f64()))
        }
        _ => error,
    }
}

impl Read for ServerStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for ServerStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::fs;

    use super::*;

    #[test]
    fn a_file_without_an_authority_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let rows = [
            ("missing", None, "missing: it cannot be read"),
            ("empty", Some(""), "empty: it has no certificate"),
            (
                "noise",
                Some("-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n"),
                "noise: it is not in the form",
            ),
            ("nothing", Some("-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"), "nothing: it has no"),
        ];
        for (name, text, about) in rows {
            let path = folder.path().join(name);
            text.iter().for_each(|text| fs::write(&path, text).unwrap());
            let why = Authorities::open(&path).unwrap_err();
            assert!(why.contains(about), "{why}");
        }
    }

    #[test]
    fn an_alert_to_bytes_that_are_no_tls_is_known() {
        assert!(TlsFault::of_reply(b"\x15\x03\x03\x00\x02\x02\x32", "h:1").is_some());
        for reply in [&b"NONE"[..], b"", b"\x15"] {
            assert!(TlsFault::of_reply(reply, "h:1").is_none());
        }
    }
}
