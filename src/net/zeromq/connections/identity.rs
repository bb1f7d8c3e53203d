//! The identities of the peers, where users are named.
//!
//! ```text
//! Claim: name, password ─► Login, checked by the thread `users` ─► the bell ─┐
//!        public key ─────► known or not at once ─────────────────────────────┴► admitted │ refused, closed
//! users have changed ─► connections of those that are gone, or are another now, close
//! ```

use super::{ConnectionId, Connections, touch};
use crate::net::zeromq::authentication::address_of_peer;
use crate::security::{Denied, Identity};
use crate::zmtp::Claim;

/// The state that a frontend keeps for a connection.
pub trait ConnectionState: Default {
    /// The peer has proved to be this user. Called once, before its first message, where users are named.
    fn admit(&mut self, _identity: Identity) {}

    /// Whether the frontend owes the peer nothing, so that an idle connection may make place for another one.
    fn is_idle(&self) -> bool {
        true
    }
}

impl<S: ConnectionState> Connections<S> {
    /// Begins to check what a peer claims.
    pub(super) fn identify(&mut self, id: ConnectionId, claim: Claim) {
        let Some(authentication) = &mut self.authentication else { return };
        let Some(connection) = self.connections.get_mut(id) else { return };
        let (users, address) = (authentication.users(), address_of_peer(connection.descriptor()));
        match claim {
            Claim::Curve(key) => {
                let result = users.curve(&key, address);
                self.decide(id, result);
            }
            Claim::Plain { name, password } => {
                connection.login = Some(users.password(&name, &password, address));
                authentication.wait_for(id);
                self.hear_logins();
            }
        }
    }

    /// Takes the results of checks that are done, and cuts the connections of users that are no more.
    pub(super) fn hear_users(&mut self) {
        let Some(authentication) = &mut self.authentication else { return };
        if authentication.has_moved() {
            self.close_outdated();
        }
        self.hear_logins();
    }

    fn hear_logins(&mut self) {
        let Self { authentication: Some(authentication), connections, .. } = self else { return };
        let done = authentication.heard(|id, waker| Some(connections.get_mut(id)?.login.as_ref()?.result(waker)));
        done.into_iter().for_each(|(id, result)| self.decide(id, result));
    }

    /// Lets a peer in, or refuses it.
    fn decide(&mut self, id: ConnectionId, result: Result<Identity, Denied>) {
        let frame_bytes = self.bounds.frame_bytes;
        let Some(connection) = self.connections.get_mut(id) else { return };
        connection.login = None;
        let is_in = match result {
            Ok(identity) => {
                connection.state.admit(identity.clone());
                connection.identity = Some(identity);
                connection.admit(frame_bytes)
            }
            Err(why) => {
                connection.refuse(why.into());
                false
            }
        };
        let has_input = is_in && connection.holds_input();
        touch(&mut self.sending.touched, connection, id);
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
        let users = authentication.users().clone();
        let is_outdated = |identity: &Identity| !users.is_current(identity);
        let outdated: Vec<ConnectionId> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.identity.as_ref().is_some_and(is_outdated))
            .map(|(id, _)| id)
            .collect();
        if !outdated.is_empty() {
            tracing::info!("{} connections of users that have changed are closed", outdated.len());
        }
        outdated.into_iter().for_each(|id| self.close(id));
    }
}
