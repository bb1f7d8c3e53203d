//! The answers of the committer and of the readers, on their way to the clients.
//!
//! ```text
//! deliveries ─► receive_deliveries ──┐                     ┌─► written to the send buffer ─► flush
//! values ─► receive_values ──────────┴─► change, a client ─┴─► wishes: a value, or another task ─► readers, committer
//! ```
//! This module receives no requests.

use super::{ReadReply, SpiderqFrontend};
use crate::limits::CLIENT_BYTES_DEFAULT;
use crate::net::zeromq::ConnectionId;
use crate::security::{Access, Identity, Resource};
use crate::services::tasks::calls::shown_name;
use crate::services::tasks::client_state::{ClientState, PendingReply, ReplyValue, ReplyWish, RequestTimes};
use crate::services::tasks::leases::leases_in;
use crate::services::tasks::metrics::{self, verb_number};
use crate::services::tasks::responder::PendingRequest;
use crate::services::tasks::wire::{Fault, Verb};
use crate::store;
use crate::tasks::{Delivery, Outcome};

impl SpiderqFrontend {
    /// Sends the delivered answers, and the pending replies for which there is room now.
    pub(super) fn answer(&mut self) -> Result<(), store::Error> {
        self.receive_values()?;
        self.receive_deliveries()?;
        self.send_all()
    }

    pub(super) fn receive_deliveries(&mut self) -> Result<(), store::Error> {
        while let Ok(delivery) = self.deliveries.try_recv() {
            self.receive_delivery(delivery)?;
        }
        Ok(())
    }

    pub(super) fn receive_delivery(&mut self, Delivery { answers, before }: Delivery) -> Result<(), store::Error> {
        let answered = self.clock.now();
        for (ticket, mut outcome) in answers {
            match self.responder.answered(ticket) {
                PendingRequest::Answer {
                    peer,
                    envelope,
                    verb,
                    waits,
                    share,
                    terms,
                    names,
                    again,
                    arrived,
                    request_bytes,
                } => {
                    if !again {
                        self.count(verb, waits, &outcome);
                    }
                    if let Some((client, _)) = self.connections.connection(peer) {
                        client.gives_back(share);
                        keep_readable(&mut outcome, client.user());
                    }
                    let times = RequestTimes { arrived, answered, request_bytes, waits };
                    let (before, value) = (before.clone(), ReplyValue::default());
                    let reply = PendingReply { envelope, verb, terms, outcome, names, before, value, times };
                    let may_end = waits || matches!(verb, Ok(Verb::Kick | Verb::Purge));
                    self.write(peer, may_end.then_some(ticket), reply)?;
                }
                PendingRequest::Another { peer, number, queue } => {
                    if self.connections.connection(peer).is_none() {
                        leases_in(outcome, [queue].into()).for_each(|lease| self.responder.take_back(lease));
                        continue;
                    }
                    self.change(peer, |client| {
                        client.has_another(number, outcome, before.clone());
                        Ok(())
                    })?;
                }
                PendingRequest::Undo => {}
            }
        }
        Ok(())
    }

    /// Counts an answered request.
    fn count(&mut self, verb: Result<Verb, Fault>, waits: bool, outcome: &Outcome) {
        let is_refused = verb.is_err() || outcome.is_refused() || matches!(outcome, Outcome::NoRoom { .. });
        self.metrics.count(verb_number(verb.ok(), waits), is_refused);
        if let Ok(verb) = verb {
            self.responder.policy.count(verb);
        }
    }

    /// Receives the values that readers have read.
    fn receive_values(&mut self) -> Result<(), store::Error> {
        while let Ok(ReadReply { peer, number, read }) = self.reads.1.try_recv() {
            self.change(peer, |client| client.has_read(number, read))?;
        }
        Ok(())
    }

    /// Changes the pending replies of a client, and writes what can be written then.
    fn change(
        &mut self,
        peer: ConnectionId,
        change: impl FnOnce(&mut ClientState) -> Result<(), store::Error>,
    ) -> Result<(), store::Error> {
        let Some((client, outbox)) = self.connections.connection(peer) else { return Ok(()) };
        let before = client.replies_bytes();
        change(client)?;
        client.write(outbox, || self.responder.policy.stats());
        self.replies.change(peer, before, client.replies_bytes());
        for wish in client.take_wishes() {
            match wish {
                ReplyWish::Read { number, outcome, before } => {
                    let reads = self.reads.0.clone();
                    let done = move |read| reads.send(ReadReply { peer, number, read });
                    self.responder.tasks().read_all(outcome, before.as_ref(), done);
                }
                ReplyWish::SetUnread(lease) => self.responder.set_unread(lease),
                ReplyWish::Another { number, lease, terms } => {
                    self.responder.ask_for_another(peer, number, lease, terms);
                }
                ReplyWish::AnotherLater(reply) => self.responder.ask_again(peer, client, reply),
            }
        }
        Ok(())
    }

    pub(super) fn send_all(&mut self) -> Result<(), store::Error> {
        self.flush();
        while let Some(peer) = self.connections.drained() {
            self.change(peer, |_| Ok(()))?;
            self.flush();
        }
        self.settle();
        Ok(())
    }

    /// Writes new bytes as far as the system takes them, and records how long the replies among them took.
    fn flush(&mut self) {
        self.connections.flush();
        if self.connections.has_timed() {
            metrics::record_sent(&mut self.connections, &self.metrics, &self.slow, self.clock);
        }
    }

    /// Writes a reply, or keeps it until there is room. `waited` is the ticket of a Lend that may have blocked.
    fn write(&mut self, peer: ConnectionId, waited: Option<u64>, reply: PendingReply) -> Result<(), store::Error> {
        if reply.verb == Ok(Verb::Terminate)
            && let Some(terminated) = self.terminated.take()
        {
            terminated();
        }
        let Some((client, _)) = self.connections.connection(peer) else {
            reply.into_leases().for_each(|lease| self.responder.take_back(lease));
            return Ok(());
        };
        waited.into_iter().for_each(|ticket| client.end_wait(ticket));
        self.change(peer, |client| {
            client.add(reply);
            Ok(())
        })?;
        let after = self.connections.connection(peer).map_or(0, |(client, _)| client.replies_bytes());
        if after > CLIENT_BYTES_DEFAULT {
            self.close(peer, after);
        }
        while self.replies.budget().is_over()
            && let Some((largest, bytes)) = self.replies.largest()
        {
            self.close(largest, bytes);
        }
        Ok(())
    }

    /// Closes the connection of a client whose pending replies take `bytes` bytes. Its blocked Lends and its leases go
    /// back.
    fn close(&mut self, peer: ConnectionId, bytes: u64) {
        self.connections.close(peer);
        self.settle();
        if self.closures.overflow_warnings.is_time(self.clock.now()) {
            tracing::warn!(
                "a client that does not read has {bytes} bytes of answers waiting: its connection is closed"
            );
        }
    }
}

/// Leaves out of a list the queues that the user may not read.
fn keep_readable(outcome: &mut Outcome, user: Option<&Identity>) {
    if let (Outcome::Queues { queues, .. }, Some(user)) = (outcome, user) {
        queues.retain(|queue| user.may(Access::Read, Resource::TaskQueue(shown_name(&queue.name))));
    }
}
