//! What the faces over plain TCP share: how they listen, and how they are told to end.
//!
//! What is not here: what is said over the connections.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::UnboundedSender;

use super::sockets::BindError;
use crate::store;

/// How serving ends: well, or because the store has failed.
pub(super) type Ending = Result<(), store::Error>;

/// Tells the thread to take no more requests, answer those that were taken, and end.
#[derive(Clone, Debug)]
pub struct Stopper(pub(super) UnboundedSender<Ending>);

impl Stopper {
    /// Tells it. May be called from any thread, and more than once.
    pub fn stop(&self) {
        // It fails when the thread has ended already.
        let _ended = self.0.send(Ok(()));
    }
}

/// Listens also where connections of a server that has just ended are still remembered; `backlog` connections may wait to be accepted.
pub(super) fn listen(runtime: &Runtime, address: SocketAddr, backlog: u32) -> Result<TcpListener, BindError> {
    let _entered = runtime.enter();
    let bound = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(backlog)
    };
    let endpoint = address.to_string();
    bound().map_err(|source: io::Error| match source.kind() {
        ErrorKind::AddrInUse => BindError::InUse { endpoint },
        ErrorKind::AddrNotAvailable => BindError::NoSuchAddress { endpoint },
        _ => BindError::System { endpoint, source },
    })
}
