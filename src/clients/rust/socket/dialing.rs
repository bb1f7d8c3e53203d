//! From an endpoint to a connected socket: the addresses of its name, one after the other.
//!
//! ```text
//! tcp://HOST:PORT   all addresses of the host, IPv6 and IPv4         ipc://PATH   ipc://@NAME (without a file)
//!
//! resolve ─► address 1 ── refused, or its part of the time is over ──► address 2 ── … ──► the last refusal
//!               └─► accepted: a socket that does not block
//! ```
//! The time that is left is divided evenly among the addresses that are left, so a silent address does not use up the
//! time of the next one. This file knows nothing of ZMTP.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use std::vec::IntoIter;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, getpeername, getsockname, socket_with,
};

use super::sleep;
use crate::clock::{Clock, Now};
use crate::net::zeromq::prepare_tcp;

/// Pause before a Unix socket whose server has a full backlog is tried again: no event reports room in it.
const BACKLOG_PAUSE: Duration = Duration::from_millis(2);

/// One address of an endpoint.
#[derive(Clone, Debug)]
pub(crate) enum DialAddress {
    Internet(SocketAddr),
    Unix(SocketAddrUnix),
}

/// The addresses of an endpoint. The name of a host is looked up, which takes as long as the system takes.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] with the mistake, if this is no endpoint. Any other kind: the host is unknown.
pub(crate) fn resolve(endpoint: &str) -> io::Result<Vec<DialAddress>> {
    const NO_PORT: &str = "it has no port";
    let invalid = |what: &'static str| io::Error::new(ErrorKind::InvalidInput, what);
    if endpoint.contains('\0') {
        return Err(invalid("it has a NUL"));
    }
    match endpoint.split_once("://") {
        Some(("tcp", rest)) => {
            let (host, port) = rest.rsplit_once(':').ok_or_else(|| invalid(NO_PORT))?;
            let port: u16 = port.parse().map_err(|_| invalid(NO_PORT))?;
            let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
            if matches!(host, "" | "*") {
                return Err(invalid("it has no host"));
            }
            if host.eq_ignore_ascii_case("localhost") {
                return Ok(loopback(port));
            }
            Ok((host, port).to_socket_addrs()?.map(DialAddress::Internet).collect())
        }
        Some(("ipc", "")) => Err(invalid("it has no path")),
        Some(("ipc", name)) => {
            let address = match name.strip_prefix('@') {
                Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes()),
                None => SocketAddrUnix::new(name),
            };
            Ok(vec![DialAddress::Unix(address.map_err(|_| invalid("its path has more than 107 bytes"))?)])
        }
        _ => Err(invalid("it has no known transport")),
    }
}

/// The addresses of `localhost` (RFC 6761, section 6.3), also where the system knows only one of them.
fn loopback(port: u16) -> Vec<DialAddress> {
    let both: [IpAddr; 2] = [Ipv6Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()];
    both.map(|address| DialAddress::Internet(SocketAddr::new(address, port))).to_vec()
}

/// A connection that is being made.
pub(crate) struct Dialing {
    clock: Clock,
    /// When the last address is given up.
    end: Now,
    /// The addresses that were not tried yet.
    rest: IntoIter<DialAddress>,
    attempt: Option<DialAttempt>,
    /// Why the last address is none.
    refusal: io::Error,
}

/// A try to connect to one address.
struct DialAttempt {
    address: DialAddress,
    descriptor: OwnedFd,
    /// When the next address is tried.
    until: Now,
}

impl DialAttempt {
    /// Connects, or continues. Returns whether the connection is there.
    fn step(&self) -> Result<bool, Errno> {
        let connected = match &self.address {
            DialAddress::Internet(address) => connect(&self.descriptor, address),
            DialAddress::Unix(address) => connect(&self.descriptor, address),
        };
        match connected {
            Ok(()) | Err(Errno::ISCONN) if is_own(&self.descriptor) => Err(Errno::CONNREFUSED),
            Ok(()) | Err(Errno::ISCONN) => Ok(true),
            Err(Errno::INPROGRESS | Errno::ALREADY | Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Dialing {
    /// Begins to connect to these addresses, within this time.
    pub(crate) fn start(addresses: Vec<DialAddress>, within: Duration) -> Self {
        let clock = Clock::start();
        let refusal = io::Error::new(ErrorKind::NotFound, "the name has no address");
        Self { clock, end: clock.now().after(within), rest: addresses.into_iter(), attempt: None, refusal }
    }

    /// Continues, without waiting. Returns the socket once an address has accepted.
    ///
    /// # Errors
    /// Why the last address is none. [`ErrorKind::TimedOut`]: it is silent.
    pub(crate) fn step(&mut self) -> io::Result<Option<OwnedFd>> {
        loop {
            let now = self.clock.now();
            if let Some(attempt) = self.attempt.take() {
                match attempt.step() {
                    Ok(true) => return Ok(Some(attempt.descriptor)),
                    Ok(false) if now < attempt.until => {
                        self.attempt = Some(attempt);
                        return Ok(None);
                    }
                    Ok(false) => self.refusal = Errno::TIMEDOUT.into(),
                    Err(error) => self.refusal = error.into(),
                }
            }
            let part = now.time_until(self.end) / u32::try_from(self.rest.len()).unwrap_or(u32::MAX).max(1);
            let Some(address) = self.rest.next() else {
                return Err(std::mem::replace(&mut self.refusal, Errno::NOTCONN.into()));
            };
            match socket(&address) {
                Ok(descriptor) => self.attempt = Some(DialAttempt { address, descriptor, until: now.after(part) }),
                Err(error) => self.refusal = error.into(),
            }
        }
    }

    /// As [`Dialing::step`], and waits for it.
    ///
    /// # Errors
    /// As [`Dialing::step`].
    pub(crate) fn wait(mut self) -> io::Result<OwnedFd> {
        loop {
            if let Some(descriptor) = self.step()? {
                return Ok(descriptor);
            }
            let mut polled: Vec<PollFd<'_>> = self.poll_fd().into_iter().collect();
            sleep(&mut polled, self.patience())?;
        }
    }

    /// The descriptor to poll before continuing. `None` for a Unix socket: it has no such event.
    pub(super) fn poll_fd(&self) -> Option<PollFd<'_>> {
        let attempt = self.attempt.as_ref().filter(|attempt| matches!(attempt.address, DialAddress::Internet(_)));
        attempt.map(|attempt| PollFd::from_borrowed_fd(attempt.descriptor.as_fd(), PollFlags::OUT))
    }

    /// Time until it has to continue without an event of the descriptor.
    pub(super) fn patience(&self) -> Duration {
        match &self.attempt {
            Some(DialAttempt { address: DialAddress::Internet(_), until, .. }) => self.clock.now().time_until(*until),
            Some(_) => BACKLOG_PAUSE,
            None => Duration::ZERO,
        }
    }
}

fn socket(address: &DialAddress) -> Result<OwnedFd, Errno> {
    let family = match address {
        DialAddress::Internet(SocketAddr::V4(_)) => AddressFamily::INET,
        DialAddress::Internet(SocketAddr::V6(_)) => AddressFamily::INET6,
        DialAddress::Unix(_) => AddressFamily::UNIX,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let descriptor = socket_with(family, SocketType::STREAM, flags, None)?;
    if family != AddressFamily::UNIX {
        // A client that waits without a timeout, for a task or a change, learns that the server's host has vanished.
        // An option that the system refuses costs time. The connection works without it.
        let _slower = prepare_tcp(&descriptor);
    }
    Ok(descriptor)
}

/// Whether a socket is connected to itself. On loopback the system may choose the port of the server that is not there
/// as that of the client.
fn is_own(descriptor: &OwnedFd) -> bool {
    matches!((getsockname(descriptor), getpeername(descriptor)), (Ok(own), Ok(Some(peer))) if own == peer)
}

#[cfg(test)]
mod tests;
