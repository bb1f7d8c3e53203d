//! Sockets that listen: at a port of TCP, or at a path of this host.
//!
//! This module does not know how endpoints are written, and what the connections speak.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, getsockname, listen, socket_with,
    sockopt,
};

use super::socket_file::{ListenError, SocketFile};

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// Where a socket listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// A port of TCP. 0: one that the system chooses.
    Tcp(SocketAddr),
    /// A path, or behind `@` a name without a file. Only this host reaches it.
    Local(String),
}

impl ListenAddress {
    /// A path, or a name behind `@`.
    ///
    /// # Errors
    /// If no socket can have it.
    pub fn local(path: &str) -> Result<Self, String> {
        if matches!(path, "" | "@") || path.contains('\0') {
            return Err("behind unix: stands the path of the socket".to_owned());
        }
        Ok(Self::Local(path.to_owned()))
    }

    /// Whether only this host can reach it.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Local(_) => true,
        }
    }
}

impl From<SocketAddr> for ListenAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Local(path) => write!(f, "unix:{path}"),
        }
    }
}

/// A listening socket. Dropping it stops listening and removes its file.
#[derive(Debug)]
pub(crate) struct ListeningSocket {
    /// The file of the socket. It is dropped first: a server that finds the file of a closed socket replaces it.
    pub(crate) file: Option<SocketFile>,
    pub(crate) descriptor: OwnedFd,
    /// With the port that the system chose.
    pub(crate) address: ListenAddress,
}

impl ListeningSocket {
    /// Listens. It replaces the file of a socket whose server was killed, and no other file. `[::]` is all of IPv4 too,
    /// whatever the system's default is. The system holds up to `backlog` connections until they are accepted.
    pub(crate) fn bind(address: &ListenAddress, backlog: i32) -> Result<Self, ListenError> {
        let bound = match address {
            ListenAddress::Tcp(address) => Self::tcp(*address)?,
            ListenAddress::Local(path) => Self::local(path)?,
        };
        listen(&bound.descriptor, backlog)?;
        Ok(bound)
    }

    fn tcp(address: SocketAddr) -> Result<Self, Errno> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let descriptor = socket_with(family, SocketType::STREAM, FLAGS, None)?;
        // A restarted server binds while connections of its predecessor are still winding up.
        sockopt::set_socket_reuseaddr(&descriptor, true)?;
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&descriptor, false)?;
        }
        bind(&descriptor, &address)?;
        let address = ListenAddress::Tcp(SocketAddr::try_from(getsockname(&descriptor)?)?);
        Ok(Self { file: None, descriptor, address })
    }

    fn local(path: &str) -> Result<Self, ListenError> {
        let descriptor = socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
        let file = match path.strip_prefix('@') {
            Some(name) => {
                bind(&descriptor, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
                None
            }
            None => Some(SocketFile::bind(&descriptor, path)?),
        };
        Ok(Self { file, descriptor, address: ListenAddress::Local(path.to_owned()) })
    }

    /// Accepts a connection that has come, if there is one. Its descriptor does not block.
    ///
    /// # Errors
    /// The system's error: it is out of descriptors or memory.
    pub(crate) fn accept(&self) -> Result<Option<OwnedFd>, Errno> {
        loop {
            match accept_with(&self.descriptor, FLAGS) {
                Ok(descriptor) => return Ok(Some(descriptor)),
                Err(Errno::AGAIN) => return Ok(None),
                // The connection was gone before it was accepted, or a signal came.
                Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO | Errno::NETDOWN | Errno::HOSTUNREACH) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for ListeningSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
