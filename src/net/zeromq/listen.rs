//! Endpoints that clients connect to: `tcp://ADDRESS:PORT` and `ipc://PATH`, as libzmq writes them.
//!
//! ```text
//! tcp://127.0.0.1:5557    tcp://*:5557 (all of IPv4)    tcp://127.0.0.1:* (a free port)
//! tcp://[::1]:5557        tcp://[::]:5557 (all of IPv6 and of IPv4)
//! tcp://localhost:5557 (127.0.0.1)    tcp://eth0:5557 (the first address of IPv4 that an interface has)
//! ipc:///run/spindle      ipc://@name (without a file)
//! ```
//! `[::]` listens to both versions, whatever `net.ipv6.bindv6only` says. The peers of IPv4 then have addresses such as
//! `::ffff:10.0.0.1`, which count as those of IPv4 everywhere.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt;

use super::interface::address_of;
use super::protocol::{Arrival, ConnectionProtocol};
use super::tls::TlsSession;
use crate::descriptors::ConnectionDescriptor;
use crate::limits::ACCEPT_BACKLOG;
use crate::net::sockets::{BindError, ListenAddress, ListeningSocket, bind_error, keep_alive};
use crate::net::tcp::Certificate;

/// A listening socket. Dropping it stops listening and removes its file.
#[derive(Debug)]
pub struct BoundListener {
    socket: ListeningSocket,
    endpoint: String,
    /// What its connections speak.
    protocol: ConnectionProtocol,
    /// With TLS, what they are encrypted with.
    certificate: Option<Certificate>,
}

impl BoundListener {
    /// Listens at an endpoint. It replaces the file of a socket whose server was killed, and no other file.
    ///
    /// # Errors
    /// [`BindError`] if the endpoint cannot be listened at.
    pub fn bind(endpoint: &str) -> Result<Self, BindError> {
        let socket = ListeningSocket::bind(&parse(endpoint)?, ACCEPT_BACKLOG).map_err(|error| error.about(endpoint))?;
        let endpoint = match &socket.address {
            ListenAddress::Tcp(address) => format!("tcp://{address}"),
            ListenAddress::Local(path) => format!("ipc://{path}"),
        };
        Ok(Self { socket, endpoint, protocol: ConnectionProtocol::Zmtp, certificate: None })
    }

    fn is_tcp(&self) -> bool {
        matches!(self.socket.address, ListenAddress::Tcp(_))
    }

    /// The same listener, whose connections speak this protocol.
    #[must_use]
    pub fn speaking(self, protocol: ConnectionProtocol) -> Self {
        Self { protocol, ..self }
    }

    /// The same listener, whose connections are encrypted if there is a certificate. Those of this host's own sockets never
    /// are.
    #[must_use]
    pub fn encrypted_by(self, certificate: Option<&Certificate>) -> Self {
        let certificate = certificate.filter(|_| self.is_tcp()).cloned();
        Self { certificate, ..self }
    }

    /// The beginning of an accepted connection. `None`: TLS cannot begin, so it is closed.
    pub(super) fn arrival(&self, descriptor: ConnectionDescriptor) -> Option<Arrival> {
        let tls = self.certificate.as_ref().map(|certificate| TlsSession::begin(certificate.config())).transpose();
        let tls = tls.inspect_err(|fault| tracing::warn!("a connection ends: {fault}")).ok()?;
        Some(Arrival { descriptor, protocol: self.protocol, tls })
    }

    /// The endpoint, with the port that the system chose.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Accepts a connection that has come, if there is one. Its descriptor does not block.
    ///
    /// # Errors
    /// The system's error: it is out of descriptors or memory.
    pub fn accept(&self) -> Result<Option<OwnedFd>, Errno> {
        let accepted = self.socket.accept()?;
        if let Some(descriptor) = accepted.as_ref().filter(|_| self.is_tcp()) {
            // An option that the system refuses costs time. The connection works without it.
            let _slower = prepare(descriptor);
        }
        Ok(accepted)
    }
}

impl AsFd for BoundListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Replies leave as soon as they are written, and keepalive notices a host that has vanished.
pub(crate) fn prepare(descriptor: &OwnedFd) -> Result<(), Errno> {
    sockopt::set_tcp_nodelay(descriptor, true)?;
    keep_alive(descriptor)
}

/// What an endpoint says.
fn parse(endpoint: &str) -> Result<ListenAddress, BindError> {
    let not_one = || BindError::NotAnEndpoint { endpoint: endpoint.to_owned() };
    match endpoint.split_once("://").filter(|(_, rest)| !rest.contains('\0')) {
        Some(("tcp", rest)) => {
            let (host, port) = rest.rsplit_once(':').ok_or_else(not_one)?;
            let port = if port == "*" { 0 } else { port.parse().map_err(|_| not_one())? };
            let host = address(host).ok_or_else(|| bind_error(endpoint, Errno::ADDRNOTAVAIL.raw_os_error()))?;
            Ok(SocketAddr::new(host, port).into())
        }
        Some(("ipc", name)) if name != "*" => ListenAddress::local(name).map_err(|_| not_one()),
        _ => Err(not_one()),
    }
}

/// Whether only this host can reach an endpoint: one of loopback, or a socket of this host.
#[must_use]
pub fn is_local(endpoint: &str) -> bool {
    match endpoint.split_once("://") {
        Some(("ipc", _)) => true,
        Some(("tcp", rest)) => {
            rest.rsplit_once(':').and_then(|(host, _)| address(host)).is_some_and(|address| address.is_loopback())
        }
        _ => false,
    }
}

/// The address of a host as an endpoint has it. An address of IPv4 in the form of IPv6 is one of IPv4.
fn address(host: &str) -> Option<IpAddr> {
    match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(host) => host.parse::<Ipv6Addr>().ok().map(|address| address.to_canonical()),
        None if host == "*" => Some(Ipv4Addr::UNSPECIFIED.into()),
        None if host.eq_ignore_ascii_case("localhost") => Some(Ipv4Addr::LOCALHOST.into()),
        None => host.parse().ok().or_else(|| address_of(host)).map(IpAddr::V4),
    }
}
