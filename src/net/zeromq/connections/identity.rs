//! The identities of the peers, where users are named.
//!
//! ```text
//! Claim: name, password ─► Login, checked by the thread `users` ─► the waker ─┐
//!        public key ─────► known or not at once ─────────────────────────────┴► admitted │ refused, closed
//! users have changed ─► connections of those that are gone, or are another now, close
//! ```

use super::{ConnectionId, Connections, touch};
use crate::net::zeromq::ConnectionProtocol;
use crate::net::zeromq::authentication::PeerIdentity;
use crate::security::{Denied, Identity};
use crate::zmtp::Claim;

/// The state that a frontend keeps for a connection.
pub trait ConnectionState: Default {
    /// The peer has proved to be this user. With ZMTP it is called once, before the first message, where users are named.
    fn admit(&mut self, _identity: Identity) {}

    /// What the peer claims by a command that the frontend has just met, if it does. The connection gets no turn until
    /// [`ConnectionState::admit`] or [`ConnectionState::refuse`] has been called.
    fn take_claim(&mut self) -> Option<Claim> {
        None
    }

    /// The peer has not proved what it claimed by a command. Returns the user that it was before.
    fn refuse(&mut self, _why: Denied) -> Option<Identity> {
        None
    }

    /// Bytes of memory that the state keeps for its peer.
    fn kept_bytes(&self) -> usize {
        0
    }

    /// Whether the frontend owes the peer nothing, so that an idle connection may make place for another one.
    fn is_idle(&self) -> bool {
        true
    }
}

impl<S: ConnectionState> Connections<S> {
    /// Begins to check what a peer claims.
    pub(super) fn identify(&mut self, id: ConnectionId) {
        let Some(authentication) = &mut self.authentication else { return };
        let Some(connection) = self.connections.get_mut(id) else { return };
        match authentication.check(id, &mut connection.peer, &connection.descriptor) {
            Some(result) => self.decide(id, result),
            None => self.decide_logins(),
        }
    }

    /// Takes the results of checks that are done, and cuts the connections of users that are no more.
    pub(super) fn refresh_users(&mut self) {
        let Some(authentication) = &mut self.authentication else { return };
        let peers = self.connections.iter().map(|(id, connection)| (id, &connection.peer));
        let outdated = authentication.outdated(peers, "connections");
        outdated.into_iter().for_each(|id| self.close(id));
        self.decide_logins();
    }

    fn decide_logins(&mut self) {
        let Self { authentication: Some(authentication), connections, .. } = self else { return };
        let done = authentication.take_done(|id, waker| connections.get_mut(id)?.peer.result(waker));
        done.into_iter().for_each(|(id, result)| self.decide(id, result));
    }

    /// Admits or refuses a peer.
    fn decide(&mut self, id: ConnectionId, result: Result<Identity, Denied>) {
        let frame_bytes = self.bounds.messages.frame_bytes;
        let Some(connection) = self.connections.get_mut(id) else { return };
        connection.peer = PeerIdentity::Unknown;
        let claims_by_command = connection.protocol() == ConnectionProtocol::Resp;
        let is_in = match result {
            Ok(identity) => {
                connection.state.admit(identity.clone());
                connection.peer = PeerIdentity::User(identity);
                connection.admit(frame_bytes)
            }
            Err(why) if claims_by_command => {
                connection.peer = connection.state.refuse(why).map_or(PeerIdentity::Unknown, PeerIdentity::User);
                true
            }
            Err(why) => {
                connection.refuse(why.into());
                false
            }
        };
        let has_input = is_in && connection.input.is_held();
        touch(&mut self.sending, connection, id);
        if !is_in {
            self.disconnect(id);
        } else if has_input {
            self.queue(id);
        }
        self.renew_interest(id);
    }
}
