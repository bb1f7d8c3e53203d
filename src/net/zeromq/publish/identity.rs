//! The users of subscribers, where users are named.
//!
//! ```text
//! Claim: name, password ─► Login, checked by the thread `users` ─► the waker ─┐
//!        public key ─────► known or not at once ─────────────────────────────┴► admitted │ refused, closed
//! users have changed ─► subscribers that are gone, or are another user now, are closed
//! ```
//! This module does not decide which topics a user may read; see `readers`.

use super::subscriber::SubscriberConnection;
use super::subscribers::{Subscribers, get, member_at};
use super::topics::Member;
use crate::net::zeromq::{ConnectionId, PeerIdentity, note_fault};
use crate::security::{Denied, Identity};
use crate::zmtp::ProtocolError;

impl Subscribers {
    /// Begins to check what a subscriber claims.
    pub(super) fn identify(&mut self, id: ConnectionId) {
        let Self { authentication: Some(authentication), connections, .. } = self else { return };
        let Some(SubscriberConnection { descriptor: Some(descriptor), peer, .. }) =
            connections.get_mut(id.slot() as usize)
        else {
            return;
        };
        match authentication.check(id, peer, descriptor) {
            Some(result) => self.decide(id, result),
            None => self.decide_logins(),
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
    /// Each turn does so. A publisher that waits in the turn of other subscribers, with the same wake signal, does so
    /// before: the turn in between may have silenced the signal.
    pub fn refresh_users(&mut self) {
        let Some(authentication) = &mut self.authentication else { return };
        let peers = self.connections.iter().map(|(index, subscriber)| (member_at(index), &subscriber.peer));
        let outdated = authentication.outdated(peers, "subscribers");
        outdated.into_iter().for_each(|member| self.forget(member));
        self.decide_logins();
    }

    fn decide_logins(&mut self) {
        let Self { authentication: Some(authentication), connections, .. } = self else { return };
        let done = authentication.take_done(|id, waker| get(connections, id)?.peer.result(waker));
        done.into_iter().for_each(|(id, result)| self.decide(id, result));
    }

    /// Admits or refuses a subscriber.
    fn decide(&mut self, id: ConnectionId, result: Result<Identity, Denied>) {
        let Self { connections, delivery, .. } = self;
        let Some(subscriber) = connections.get_mut(id.slot() as usize) else { return };
        subscriber.peer = PeerIdentity::Unknown;
        let is_in = match result {
            Ok(identity) => subscriber.admit(identity, &delivery.held),
            Err(why) => {
                subscriber.deny(why.into(), &delivery.held);
                false
            }
        };
        if is_in {
            // What it has sent behind its claim was not looked at.
            let bytes = std::mem::take(&mut subscriber.input.unfinished);
            self.counts.subscribers += usize::from(subscriber.is_open());
            self.listen_to(id, &bytes);
        } else {
            self.disconnect(id.slot(), None);
            self.flush(id.slot());
        }
    }
}
