//! A client's connection: plain, or with TLS.
//!
//! ```text
//! accept ─► Accepted ─► open: the handshake, if there is a certificate ─► ClientStream ─► a conversation
//!                        └─ wrong, not done within HANDSHAKE_TIMEOUT, or slow while others wait: closed
//! ```
//! A handshake takes place in the task of its connection. A client that does not finish its handshake costs its own
//! connection. The frontend has a bounded number of connections, and closes this one first when others wait (`idle`).

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

use super::certificate::Certificate;
use super::idle::IdleEntry;
use super::unless;
use crate::limits::HANDSHAKE_TIMEOUT;
use crate::security::{Fingerprint, PeerAddress};

/// A connection that was accepted, before its handshake.
pub(crate) struct Accepted {
    pub(super) stream: ClientStream,
    /// Which of the addresses of the frontend it came to, from 0.
    pub(crate) listener: usize,
    /// If it is to be encrypted.
    pub(super) certificate: Option<Certificate>,
    /// Rests during the handshake.
    pub(super) idle: IdleEntry,
    /// Its place belongs to the reserve of the protocol for requests that are always answered.
    pub(crate) is_reserved: bool,
}

impl Accepted {
    /// Where the client connects from.
    pub(crate) fn peer(&self) -> PeerAddress {
        self.stream.peer()
    }

    /// Makes the handshake, if the server has a certificate. None: it has failed, or the server ends before.
    pub(crate) async fn open(self, ending: impl Future<Output = ()>) -> Option<(ClientStream, IdleEntry)> {
        unless(self.shake(), ending).await.flatten()
    }

    async fn shake(self) -> Option<(ClientStream, IdleEntry)> {
        let Self { stream, certificate, mut idle, .. } = self;
        let (stream, certificate) = match (stream, certificate) {
            (ClientStream::Plain(stream), Some(certificate)) => (stream, certificate),
            // A socket of this host needs no encryption.
            (stream, _) => return Some((stream, idle)),
        };
        // What the handshake needs is sent at once.
        let _gone = stream.set_nodelay(true);
        let shaken = timeout(HANDSHAKE_TIMEOUT, certificate.acceptor().accept(stream));
        match idle.unless_lost(shaken).await? {
            Ok(Ok(stream)) => {
                idle.work();
                Some((ClientStream::Tls(Box::new(stream)), idle))
            }
            Ok(Err(error)) => {
                tracing::debug!("a handshake of TLS has failed: {error}");
                None
            }
            Err(_) => None,
        }
    }
}

/// A connection that requests come from.
pub(crate) enum ClientStream {
    /// As the system has it.
    Plain(TcpStream),
    /// As the system has it, over a socket of this host.
    Local(UnixStream),
    /// Encrypted.
    Tls(Box<TlsStream<TcpStream>>),
}

impl ClientStream {
    /// Has the system send what is written at once. Otherwise a reply may wait for the acknowledgement of the one before.
    pub(crate) fn hurry(&self) {
        // A socket of this host does so anyway.
        let _gone = sockopt::set_tcp_nodelay(self, true);
    }

    /// The host and the port that the client connects from. None if it has gone, or is on this host.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Plain(stream) => stream.peer_addr().ok(),
            Self::Local(_) => None,
            Self::Tls(stream) => stream.get_ref().0.peer_addr().ok(),
        }
    }

    /// Where the client connects from.
    pub(crate) fn peer(&self) -> PeerAddress {
        match self {
            Self::Local(_) => PeerAddress::Local,
            _ => PeerAddress::of_client(self.address()),
        }
    }

    /// The client as log lines name it.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Local(_) => "local".to_owned(),
            _ => client_name(self.address()),
        }
    }

    /// The fingerprint of the certificate whose key the client has. None: it has shown none, or was not asked.
    pub(crate) fn certificate(&self) -> Option<Fingerprint> {
        let Self::Tls(stream) = self else { return None };
        stream.get_ref().1.peer_certificates()?.first().map(|own| Fingerprint::of(own))
    }
}

/// A client over TCP as log lines name it.
pub(crate) fn client_name(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "gone".to_owned(), |address| address.to_string())
}

impl AsFd for ClientStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain(stream) => stream.as_fd(),
            Self::Local(stream) => stream.as_fd(),
            Self::Tls(stream) => stream.get_ref().0.as_fd(),
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Local(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Local(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Local(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Local(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
