//! The users of one thread's endpoints, and the peers whose passwords are being checked. Connections and subscribers
//! share it.
//!
//! This module does not admit anybody or close a connection.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;

use rustix::net::getpeername;

use super::ConnectionId;
use crate::net::sockets::WakeSignal;
use crate::security::{Denied, Fingerprint, Identity, Login, PeerAddress, Users, UsersWatch};
use crate::zmtp::{Claim, Mechanisms};

/// The users and mechanisms that the endpoints of a frontend admit.
#[derive(Clone, Debug)]
pub struct Admission {
    /// The users.
    pub users: Users,
    /// The mechanisms by which peers name them.
    pub mechanisms: Arc<Mechanisms>,
}

/// The result of a login: the user, or why there is none.
type Checked = Result<Identity, Denied>;

/// Who a peer is, where users are named.
#[derive(Debug, Default)]
pub(crate) enum PeerIdentity {
    /// It has claimed nothing, or was refused.
    #[default]
    Unknown,
    /// It claims to be a user, and nobody has begun to check it.
    Claimed(Claim),
    /// It has the key of this certificate, and nobody has looked for its user.
    Certified(Fingerprint),
    /// Its password is being checked. Meanwhile it gets no turns.
    Checked(Login),
    /// It is this user.
    User(Identity),
}

impl PeerIdentity {
    pub(crate) fn is_claimed(&self) -> bool {
        matches!(self, Self::Claimed(_) | Self::Certified(_))
    }

    pub(crate) fn is_checked(&self) -> bool {
        matches!(self, Self::Checked(_))
    }

    pub(crate) fn user(&self) -> Option<&Identity> {
        if let Self::User(user) = self { Some(user) } else { None }
    }

    /// The result of the check of its password, which wakes the thread when it is there. `None`: nothing is checked.
    pub(crate) fn result(&self, waker: &Waker) -> Option<Option<Checked>> {
        if let Self::Checked(login) = self { Some(login.result(waker)) } else { None }
    }

    /// A claim that is not decided needs no decision any more.
    pub(crate) fn end_check(&mut self) {
        if !matches!(self, Self::User(_)) {
            *self = Self::Unknown;
        }
    }
}

/// The users of one thread.
pub(crate) struct Authentication {
    watch: UsersWatch,
    mechanisms: Arc<Mechanisms>,
    /// Wakes the thread when a password is checked.
    waker: Waker,
    /// Peers whose passwords are being checked. Each connection keeps its login, which ends with it.
    checking: Vec<ConnectionId>,
}

impl Authentication {
    /// Nobody is admitted yet. Each finished check raises the wake signal.
    pub(crate) fn new(Admission { users, mechanisms }: &Admission, wake_signal: &WakeSignal) -> Self {
        Self {
            watch: users.watch(),
            mechanisms: Arc::clone(mechanisms),
            waker: wake_signal.into(),
            checking: Vec::new(),
        }
    }

    pub(crate) fn users(&self) -> &Users {
        self.watch.users()
    }

    pub(crate) fn mechanisms(&self) -> &Arc<Mechanisms> {
        &self.mechanisms
    }

    /// The peers whose users are no more as they were, if users have changed since the last call. `what` they are, for
    /// the log.
    pub(crate) fn outdated<'p, K>(&mut self, peers: impl Iterator<Item = (K, &'p PeerIdentity)>, what: &str) -> Vec<K> {
        if !self.watch.has_moved() {
            return Vec::new();
        }
        let is_outdated = |peer: &PeerIdentity| peer.user().is_some_and(|user| !self.users().is_current(user));
        let outdated: Vec<K> = peers.filter(|(_, peer)| is_outdated(peer)).map(|(key, _)| key).collect();
        if !outdated.is_empty() {
            tracing::info!("{} {what} of users that have changed are closed", outdated.len());
        }
        outdated
    }

    /// Begins to check what this peer claims. Returns the result if it is known at once.
    pub(crate) fn check(&mut self, id: ConnectionId, peer: &mut PeerIdentity, descriptor: &OwnedFd) -> Option<Checked> {
        match std::mem::take(peer) {
            PeerIdentity::Claimed(Claim::Curve(key)) => Some(self.users().curve(&key, address_of_peer(descriptor))),
            PeerIdentity::Certified(own) => Some(self.users().certificate(&own, address_of_peer(descriptor))),
            PeerIdentity::Claimed(Claim::Plain { name, password }) => {
                let login = self.users().password(&name, &password, address_of_peer(descriptor));
                *peer = PeerIdentity::Checked(login);
                self.checking.push(id);
                None
            }
            other => {
                *peer = other;
                None
            }
        }
    }

    /// The peers whose checks are done, and the results. `result` asks the login of a peer, if it is still there, and
    /// leaves the waker with it.
    pub(crate) fn take_done(
        &mut self,
        mut result: impl FnMut(ConnectionId, &Waker) -> Option<Option<Checked>>,
    ) -> Vec<(ConnectionId, Checked)> {
        let Self { checking, waker, .. } = self;
        let mut done = Vec::new();
        checking.retain(|id| {
            let result = result(*id, waker);
            let waits = matches!(result, Some(None));
            done.extend(result.flatten().map(|result| (*id, result)));
            waits
        });
        done
    }
}

/// The address of a peer.
pub(crate) fn address_of_peer(descriptor: &OwnedFd) -> PeerAddress {
    match getpeername(descriptor) {
        Ok(Some(address)) => {
            std::net::SocketAddr::try_from(address).map_or(PeerAddress::Local, |address| PeerAddress::of(address.ip()))
        }
        Ok(None) => PeerAddress::Local,
        Err(_) => PeerAddress::Gone,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use rustix::net::sockopt::set_socket_linger;

    use super::*;
    use crate::security::Permissions;

    fn authentication() -> Authentication {
        let (users, _) = Users::invented(Permissions::default());
        let mechanisms = Arc::new(Mechanisms::Users { plain: true, curve: None });
        Authentication::new(&Admission { users, mechanisms }, &WakeSignal::new().unwrap())
    }

    #[test]
    fn a_peer_waits_until_its_check_is_done_or_it_has_gone() {
        let mut authentication = authentication();
        let [gone, waiting, refused] = [0, 1, 2].map(|slot| ConnectionId::new(slot, 0));
        [gone, waiting, refused].into_iter().for_each(|id| authentication.checking.push(id));
        let mut take_done = |result: &dyn Fn(ConnectionId) -> Option<Option<Checked>>| {
            let done = authentication.take_done(|id, _| result(id));
            done.into_iter().map(|(id, result)| (id, result.map(|user| user.name().to_owned()))).collect::<Vec<_>>()
        };
        let done = take_done(&|id| (id != gone).then(|| (id == refused).then_some(Err(Denied::Password))));
        assert_eq!(done, [(refused, Err(Denied::Password))]);
        assert_eq!(take_done(&|_| Some(Some(Err(Denied::Busy)))), [(waiting, Err(Denied::Busy))], "it alone is asked");
    }

    /// Otherwise all peers are slowed down for the wrong passwords of one.
    #[test]
    fn a_peer_is_known_by_the_address_of_its_host() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let served = OwnedFd::from(listener.accept().unwrap().0);
        assert_eq!(address_of_peer(&served), PeerAddress::of(Ipv4Addr::LOCALHOST.into()));
        set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        drop(client);
        while address_of_peer(&served) != PeerAddress::Gone {
            std::thread::yield_now();
        }
        let (near, _far) = UnixStream::pair().unwrap();
        assert_eq!(address_of_peer(&near.into()), PeerAddress::Local);
    }
}
