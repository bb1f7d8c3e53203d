//! The identities of the peers, where users are named.
//!
//! ```text
//! Claim: name, password ─► Login, checked by the thread `users` ─► the bell ─┐
//!        public key ─────► known or not at once ─────────────────────────────┴► admitted │ refused, closed
//! users have changed ─► connections of those that are gone, or are another now, close
//! ```

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;

use rustix::net::getpeername;

use super::{ConnectionId, Connections, get, touch};
use crate::security::{Denied, Identity, PeerAddress, Users, UsersWatch};
use crate::zmtp::{Claim, Mechanisms, ProtocolError};

/// The state that a frontend keeps for a connection.
pub trait ConnectionState: Default {
    /// The peer has proved to be this user. Called once, before its first message, where users are named.
    fn admit(&mut self, _identity: Identity) {}
}

/// The users and mechanisms that the endpoints of a frontend let in.
#[derive(Clone, Debug)]
pub struct Admission {
    /// The users.
    pub users: Users,
    /// The mechanisms by which peers name them.
    pub mechanisms: Arc<Mechanisms>,
}

/// The users of the connections of one thread.
pub(super) struct Authentication {
    watch: UsersWatch,
    mechanisms: Arc<Mechanisms>,
    /// Wakes the thread when a password is checked.
    waker: Waker,
    /// Connections whose passwords are being checked.
    checking: Vec<ConnectionId>,
}

impl Authentication {
    /// Counts a peer that has named no user.
    pub(super) fn note_fault(&self, descriptor: &OwnedFd, fault: &ProtocolError) {
        note_stranger(self.watch.users(), descriptor, fault);
    }

    pub(super) fn mechanisms(&self) -> &Arc<Mechanisms> {
        &self.mechanisms
    }
}

/// The address of a peer. A peer that has gone meanwhile counts as local: nothing more comes from it.
pub(crate) fn address_of_peer(descriptor: &OwnedFd) -> PeerAddress {
    let address =
        getpeername(descriptor).ok().flatten().and_then(|address| std::net::SocketAddr::try_from(address).ok());
    address.map_or(PeerAddress::Local, |address| PeerAddress::of(address.ip()))
}

/// Counts a peer that wants a mechanism that is not taken here.
pub(crate) fn note_stranger(users: &Users, descriptor: &OwnedFd, fault: &ProtocolError) {
    if let ProtocolError::Mechanism { mechanism } = fault {
        users.refused(address_of_peer(descriptor), Denied::Anonymous, mechanism);
    }
}

impl<S: ConnectionState> Connections<S> {
    /// From now on a peer has to prove that it is a user.
    pub fn admit_only(&mut self, admission: &Admission) {
        self.authentication = Some(Authentication {
            watch: admission.users.watch(),
            mechanisms: Arc::clone(&admission.mechanisms),
            waker: (&self.bell).into(),
            checking: Vec::new(),
        });
    }

    /// Begins to check what a peer claims.
    pub(super) fn identify(&mut self, id: ConnectionId, claim: Claim) {
        let Some(authentication) = &mut self.authentication else { return };
        let Some(connection) = get(&mut self.connections, id) else { return };
        let (users, address) = (authentication.watch.users(), address_of_peer(connection.descriptor()));
        match claim {
            Claim::Curve(key) => {
                let result = users.curve(&key, address);
                self.decide(id, result);
            }
            Claim::Plain { name, password } => {
                connection.login = Some(users.password(&name, &password, address));
                authentication.checking.push(id);
                self.hear_logins();
            }
        }
    }

    /// Takes the results of checks that are done, and cuts the connections of users that are no more.
    pub(super) fn hear_users(&mut self) {
        let Some(authentication) = &mut self.authentication else { return };
        if authentication.watch.has_moved() {
            self.close_outdated();
        }
        self.hear_logins();
    }

    fn hear_logins(&mut self) {
        let Some(authentication) = &mut self.authentication else { return };
        let waker = authentication.waker.clone();
        let checking = std::mem::take(&mut authentication.checking);
        let mut waiting = Vec::new();
        for id in checking {
            let login = get(&mut self.connections, id).and_then(|connection| connection.login.as_ref());
            match login.map(|login| login.result(&waker)) {
                None => {}
                Some(None) => waiting.push(id),
                Some(Some(result)) => self.decide(id, result),
            }
        }
        if let Some(authentication) = &mut self.authentication {
            authentication.checking.append(&mut waiting);
        }
    }

    /// Lets a peer in, or refuses it.
    fn decide(&mut self, id: ConnectionId, result: Result<Identity, Denied>) {
        let frame_bytes = self.bounds.frame_bytes;
        let Some(connection) = get(&mut self.connections, id) else { return };
        connection.login = None;
        let is_in = match result {
            Ok(identity) => {
                connection.state.admit(identity.clone());
                connection.identity = Some(identity);
                connection.admit(frame_bytes)
            }
            Err(_) => {
                connection.refuse();
                false
            }
        };
        let has_input = is_in && connection.holds_input();
        touch(&mut self.touched, connection, id);
        if !is_in {
            self.disconnect(id);
        } else if has_input {
            self.queue(id);
        }
        self.renew_interest(id);
    }

    /// Closes the connections of users that are no more as they were.
    fn close_outdated(&mut self) {
        let Some(authentication) = &self.authentication else { return };
        let users = authentication.watch.users().clone();
        let is_outdated = |identity: &Identity| !users.is_current(identity);
        let outdated: Vec<ConnectionId> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.identity.as_ref().is_some_and(is_outdated))
            .map(|(slot, connection)| ConnectionId::new(slot, connection.generation))
            .collect();
        if !outdated.is_empty() {
            tracing::info!("{} connections of users that have changed are closed", outdated.len());
        }
        outdated.into_iter().for_each(|id| self.close(id));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::security::Permissions;

    #[test]
    fn a_peer_that_names_no_user_is_counted() {
        let (users, _) = Users::invented(Permissions::default());
        let (near, _far) = UnixStream::pair().unwrap();
        let fault = ProtocolError::Mechanism { mechanism: "NULL".to_owned() };
        note_stranger(&users, &near.into(), &fault);
        assert_eq!(users.refusals(Denied::Anonymous), 1);
    }

    /// Otherwise all peers are slowed down for the wrong passwords of one.
    #[test]
    fn a_peer_is_known_by_the_address_of_its_host() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let served = OwnedFd::from(listener.accept().unwrap().0);
        assert_eq!(address_of_peer(&served), PeerAddress::of(Ipv4Addr::LOCALHOST.into()));
        let (near, _far) = UnixStream::pair().unwrap();
        assert_eq!(address_of_peer(&near.into()), PeerAddress::Local);
    }
}
