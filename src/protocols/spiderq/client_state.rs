//! What is kept for a client: what it waits for, and what is on its way to it.
//!
//! ```text
//! answer ─► its outbox has room ─► written; the lease in it is kept until the system has taken the last of its bytes
//!       └─► it has not read what came before ─► a letter: written when it has
//! ```
//! A letter does not hold the value that it brings, unless that came in the same batch, but where it is: so a client that asks for
//! much and reads slowly costs little. What it costs is that the store keeps what has changed since, and so a letter waits only
//! so long; and what letters do hold is counted.
//!
//! What is not here: sockets, and what becomes of the leases of a client that has left.

use std::collections::VecDeque;
use std::sync::Arc;

use super::handle::reply;
use super::wire::{Fault, Reply};
use crate::clock::Now;
use crate::limits::{ANSWER_WAITS_MAX, CLIENT_STALLS_MAX, OUTBOX_BYTES_MAX};
use crate::protocols::native::SendBuffer;
use crate::store::{self, StoreSnapshot};
use crate::tasks::{Outcome, Payload};

/// What a reply hands out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RepliedLease {
    pub(super) token: u64,
    pub(super) key: Box<[u8]>,
}

/// An answer to one request.
pub(super) struct PendingReply {
    /// The frames before the request, as they came.
    pub(super) envelope: Box<[u8]>,
    /// The tag of the request, or why it was none.
    pub(super) asked: Result<u8, Fault>,
    pub(super) outcome: Outcome,
    /// The store as it was then, if its value lies there.
    pub(super) before: Option<Arc<dyn StoreSnapshot>>,
    /// When it was answered.
    pub(super) at: Now,
}

impl PendingReply {
    /// What it takes in memory, in bytes, about.
    fn bytes(&self) -> u64 {
        let value = match self.outcome.payload() {
            Some(Payload::Fresh(value)) => value.len(),
            _ => 0,
        };
        let key = match &self.outcome {
            Outcome::Leased { key, .. } => key.len(),
            _ => 0,
        };
        (size_of::<Self>() + self.envelope.len() + value + key) as u64
    }

    /// The lease that it hands out, if it does.
    pub(super) fn into_lease(self) -> Option<RepliedLease> {
        match self.outcome {
            Outcome::Leased { token, key, .. } => Some(RepliedLease { token, key }),
            _ => None,
        }
    }

    /// Writes it; `own` is the reply to a request that has only waited for its turn.
    fn write(
        self,
        outbox: &mut SendBuffer,
        own: impl FnOnce(u8) -> Reply<'static>,
    ) -> Result<Option<RepliedLease>, store::Error> {
        let value = self.outcome.payload().map(|payload| payload.read(self.before.as_deref())).transpose()?;
        let value = value.as_deref().unwrap_or_default();
        let reply = match self.asked {
            Err(fault) => Reply::Error(fault),
            Ok(tag) => reply(&self.outcome, value).unwrap_or_else(|| own(tag)),
        };
        outbox.push_encoded(&self.envelope);
        outbox.push_with(reply.encoded_len(), false, |out| reply.encode(out));
        Ok(self.into_lease())
    }
}

/// What is kept for a client.
#[derive(Default)]
pub(super) struct ClientState {
    /// Tickets of Lends that block, oldest first.
    waits: VecDeque<u64>,
    /// What cannot be written yet, oldest first.
    replies: VecDeque<PendingReply>,
    /// What these take in memory, in bytes.
    replies_bytes: u64,
    /// How much its client had taken when that was last looked at while letters waited, and when it became so much.
    progress: Option<(u64, Now)>,
    /// Leases in what was written, and where the reply with each of them ends.
    leases: VecDeque<(u64, RepliedLease)>,
}

/// How long letters may still wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyDeadline {
    /// There are none.
    NoNeed,
    /// A while.
    Some,
    /// No longer.
    Over,
}

/// What clients that have left had with us.
#[derive(Default)]
pub(super) struct Abandoned {
    /// Tickets of Lends that block.
    pub(super) waits: Vec<u64>,
    /// Leases of which it has not heard.
    pub(super) leases: Vec<RepliedLease>,
}

impl ClientState {
    /// It waits for the answer to this ticket.
    pub(super) fn waits_for(&mut self, ticket: u64) {
        self.waits.push_back(ticket);
    }

    /// It does not any more.
    pub(super) fn has_heard_of(&mut self, ticket: u64) {
        // Those who wait are answered in their order: it is the first, or next to it.
        if let Some(place) = self.waits.iter().position(|other| *other == ticket) {
            self.waits.remove(place);
        }
    }

    /// Writes a letter, or keeps it until there is room.
    pub(super) fn send(
        &mut self,
        pending: PendingReply,
        outbox: &mut SendBuffer,
        own: impl FnMut(u8) -> Reply<'static>,
    ) -> Result<(), store::Error> {
        self.replies_bytes += pending.bytes();
        self.replies.push_back(pending);
        self.write(outbox, own)
    }

    /// Writes letters as long as there is room.
    pub(super) fn write(
        &mut self,
        outbox: &mut SendBuffer,
        mut own: impl FnMut(u8) -> Reply<'static>,
    ) -> Result<(), store::Error> {
        while self.leases.pop_front_if(|(end, _)| *end <= outbox.sent()).is_some() {}
        while outbox.len() <= OUTBOX_BYTES_MAX
            && let Some(pending) = self.replies.pop_front()
        {
            self.replies_bytes -= pending.bytes();
            if let Some(lease) = pending.write(outbox, &mut own)? {
                self.leases.push_back((outbox.end(), lease));
            }
        }
        Ok(())
    }

    /// What waits to be written takes so many bytes.
    pub(super) fn replies_bytes(&self) -> u64 {
        self.replies_bytes
    }

    /// Whether letters wait, and for how long they still may: not when their client does not read at all, or far too slowly.
    pub(super) fn patience(&mut self, outbox: &SendBuffer, now: Now) -> ReplyDeadline {
        let Some(oldest) = self.replies.front() else {
            self.progress = None;
            return ReplyDeadline::NoNeed;
        };
        let (sent, since) = *self.progress.get_or_insert((outbox.sent(), now));
        if sent != outbox.sent() {
            self.progress = Some((outbox.sent(), now));
            return ReplyDeadline::Some;
        }
        let is_over = since.after(CLIENT_STALLS_MAX) <= now || oldest.at.after(ANSWER_WAITS_MAX) <= now;
        if is_over { ReplyDeadline::Over } else { ReplyDeadline::Some }
    }

    /// Leaves what it has when its client has left; of what was written to it the system has taken so many bytes.
    pub(super) fn leave(self, sent: u64, abandoned: &mut Abandoned) {
        abandoned.waits.extend(self.waits);
        abandoned.leases.extend(self.leases.into_iter().filter(|(end, _)| *end > sent).map(|(_, lease)| lease));
        abandoned.leases.extend(self.replies.into_iter().filter_map(PendingReply::into_lease));
    }
}
