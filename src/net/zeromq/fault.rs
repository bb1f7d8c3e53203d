//! Reports peers that no endpoint can serve: they speak another protocol, or want what this server does not offer.
//!
//! Such a peer connects again and again, and its user sees nothing. So the log names it, at the pace of all refusals.
//! This module closes no connection.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::LazyLock;

use rustix::net::{SocketAddrUnix, getpeername, getsockname};

use super::authentication::{Authentication, address_of_peer};
use crate::clock::Clock;
use crate::lock::Mutex;
use crate::security::{Denied, PeerAddress, RefusalPace};
use crate::zmtp::ProtocolError;

/// The pace of the lines, one for all threads of the process, and its clock. Any thread that refuses a peer locks it.
static PACE: LazyLock<(Clock, Mutex<RefusalPace>)> = LazyLock::new(|| (Clock::start(), Mutex::default()));

/// Counts a peer that has named no user, if users are named here and that is its fault. Logs a peer that no endpoint of
/// this kind can serve.
pub(crate) fn note_fault(descriptor: &OwnedFd, fault: &ProtocolError, authentication: Option<&Authentication>) {
    let address = address_of_peer(descriptor);
    match (fault, authentication) {
        (ProtocolError::Mechanism { mechanism }, Some(authentication)) => {
            authentication.users().refused(address, Denied::Anonymous, mechanism);
        }
        (
            ProtocolError::OtherProtocol { .. } | ProtocolError::Mechanism { .. } | ProtocolError::SocketType { .. },
            _,
        ) => {
            let (clock, pace) = &*PACE;
            if pace.lock().note(address, clock.now()).is_some() {
                tracing::warn!("{}: refused at {}: {fault}", peer_of(descriptor, address), endpoint_of(descriptor));
            }
        }
        _ => {}
    }
}

/// The address of a peer. `counted` is the address by which its pace is counted. This may be the address of a whole
/// network.
fn peer_of(descriptor: &impl AsFd, counted: PeerAddress) -> String {
    let address = getpeername(descriptor).ok().flatten().and_then(|address| SocketAddr::try_from(address).ok());
    address.map_or_else(|| counted.to_string(), |address| address.ip().to_canonical().to_string())
}

/// The endpoint that a peer has connected to.
fn endpoint_of(descriptor: &impl AsFd) -> String {
    let Ok(bound) = getsockname(descriptor) else { return "an endpoint".to_owned() };
    if let Ok(address) = SocketAddr::try_from(bound.clone()) {
        return format!("tcp://{}", SocketAddr::new(address.ip().to_canonical(), address.port()));
    }
    let unix = SocketAddrUnix::try_from(bound).ok();
    let path = unix.as_ref().and_then(SocketAddrUnix::path);
    path.map_or_else(|| "an ipc:// endpoint".to_owned(), |path| format!("ipc://{}", path.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::Arc;

    use super::*;
    use crate::net::sockets::WakeSignal;
    use crate::net::zeromq::Admission;
    use crate::security::{Permissions, Users};
    use crate::zmtp::Mechanisms;

    #[test]
    fn a_peer_that_names_no_user_is_counted() {
        let (users, _) = Users::invented(Permissions::default());
        let mechanisms = Arc::new(Mechanisms::Users { plain: true, curve: None });
        let authentication = Authentication::new(&Admission { users, mechanisms }, &WakeSignal::new().unwrap());
        let (near, _far) = UnixStream::pair().unwrap();
        let mechanism = "NULL".to_owned();
        note_fault(&near.into(), &ProtocolError::Mechanism { mechanism }, Some(&authentication));
        assert_eq!(authentication.users().refusals(Denied::Anonymous), 1);
    }

    #[test]
    fn a_line_says_who_has_connected_and_where() {
        for (bound, host, peer) in
            [("127.0.0.1", "127.0.0.1", "127.0.0.1"), ("[::1]", "[::1]", "::1"), ("[::]", "127.0.0.1", "127.0.0.1")]
        {
            let listener = TcpListener::bind(format!("{bound}:0")).unwrap();
            let address = format!("{host}:{}", listener.local_addr().unwrap().port());
            let _client = TcpStream::connect(&address).unwrap();
            let accepted = OwnedFd::from(listener.accept().unwrap().0);
            let said = (peer_of(&accepted, address_of_peer(&accepted)), endpoint_of(&accepted));
            assert_eq!(said, (peer.to_owned(), format!("tcp://{address}")));
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let _client = UnixStream::connect(&path).unwrap();
        let accepted = OwnedFd::from(listener.accept().unwrap().0);
        let expected = ("a local socket".to_owned(), format!("ipc://{}", path.display()));
        assert_eq!((peer_of(&accepted, address_of_peer(&accepted)), endpoint_of(&accepted)), expected);
        let (near, _far) = UnixStream::pair().unwrap();
        assert_eq!(endpoint_of(&near), "an ipc:// endpoint");
    }
}
