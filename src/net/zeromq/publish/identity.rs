//! The users of subscribers, where users are named.
//!
//! ```text
//! Claim: name, password ─► Login, checked by the thread `users` ─► the bell ─┐
//!        public key ─────► known or not at once ─────────────────────────────┴► admitted │ refused, closed
//! users have changed ─► subscribers that are gone, or are another user now, are closed
//! ```
//! This module does not decide which topics a user may read; see `readers`.

use super::subscriber::SubscriberConnection;
use super::subscribers::{Subscribers, get, member_at};
use super::topics::Member;
use crate::net::zeromq::{ConnectionId, address_of_peer, note_fault};
use crate::security::{Denied, Identity};
use crate::zmtp::{Claim, ProtocolError};

impl Subscribers {
    /// Begins to check what a subscriber claims.
    pub(super) fn identify(&mut self, id: ConnectionId, claim: Claim) {
        let Self { authentication: Some(authentication), connections, .. } = self else { return };
        let Some(subscriber) = connections.get_mut(id.slot() as usize) else { return };
        let Some(address) = subscriber.descriptor.as_deref().map(address_of_peer) else { return };
        let users = authentication.users();
        match claim {
            Claim::Curve(key) => {
                let result = users.curve(&key, address);
                self.decide(id, result);
            }
            Claim::Plain { name, password } => {
                subscriber.login = Some(users.password(&name, &password, address));
                authentication.wait_for(id);
                self.hear_logins();
            }
        }
    }

    /// Reports a peer that cannot be served.
    pub(super) fn note_fault(&self, member: Member, fault: &ProtocolError) {
        let subscriber = self.connections.get(member as usize);
        if let Some(descriptor) = subscriber.and_then(|subscriber| subscriber.descriptor.as_ref()) {
            note_fault(descriptor, fault, self.authentication.as_ref());
        }
    }

    /// Takes the results of checks that are done, and closes the subscribers of users that are no more.
    ///
    /// Each turn does so. A publisher that waits in the turn of other subscribers, with the same bell, does so before:
    /// the turn in between may have silenced the bell.
    pub fn hear_users(&mut self) {
        let Some(authentication) = &mut self.authentication else { return };
        if authentication.has_moved() {
            self.close_outdated();
        }
        self.hear_logins();
    }

    fn hear_logins(&mut self) {
        let Self { authentication: Some(authentication), connections, .. } = self else { return };
        let done = authentication.heard(|id, waker| Some(get(connections, id)?.login.as_ref()?.result(waker)));
        done.into_iter().for_each(|(id, result)| self.decide(id, result));
    }

    /// Lets a subscriber in, or refuses it.
    fn decide(&mut self, id: ConnectionId, result: Result<Identity, Denied>) {
        let Self { connections, held, .. } = self;
        let Some(subscriber) = connections.get_mut(id.slot() as usize) else { return };
        subscriber.login = None;
        let is_in = match result {
            Ok(identity) => subscriber.admit(identity, held),
            Err(why) => {
                subscriber.deny(why.into(), held);
                false
            }
        };
        if is_in {
            // What it has sent behind its claim was not looked at.
            let bytes = std::mem::take(&mut subscriber.unfinished);
            self.subscribers += usize::from(subscriber.is_open());
            self.listen_to(id, &bytes);
        } else {
            self.disconnect(id.slot(), None);
            self.flush(id.slot());
        }
    }

    /// Closes the subscribers whose users are no more as they were.
    fn close_outdated(&mut self) {
        let Some(authentication) = &self.authentication else { return };
        let users = authentication.users().clone();
        let is_outdated = |subscriber: &SubscriberConnection| {
            subscriber.descriptor.is_some() && subscriber.identity.as_ref().is_some_and(|user| !users.is_current(user))
        };
        let outdated: Vec<Member> = self
            .connections
            .iter()
            .filter(|(_, subscriber)| is_outdated(subscriber))
            .map(|(index, _)| member_at(index))
            .collect();
        if !outdated.is_empty() {
            tracing::info!("{} subscribers of users that have changed are closed", outdated.len());
        }
        outdated.into_iter().for_each(|member| self.forget(member));
    }
}
