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
use crate::protocols::native::Outbox;
use crate::store::{self, Moment};
use crate::tasks::{Outcome, Payload};

/// What a reply hands out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) token: u64,
    pub(super) key: Box<[u8]>,
}

/// An answer to one request.
pub(super) struct Letter {
    /// The frames before the request, as they came.
    pub(super) envelope: Box<[u8]>,
    /// The tag of the request, or why it was none.
    pub(super) asked: Result<u8, Fault>,
    pub(super) outcome: Outcome,
    /// The store as it was then, if its value lies there.
    pub(super) before: Option<Arc<dyn Moment>>,
    /// When it was answered.
    pub(super) at: Now,
}

impl Letter {
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
    pub(super) fn into_lease(self) -> Option<Lease> {
        match self.outcome {
            Outcome::Leased { token, key, .. } => Some(Lease { token, key }),
            _ => None,
        }
    }

    /// Writes it; `own` is the reply to a request that has only waited for its turn.
    fn write(self, outbox: &mut Outbox, own: impl FnOnce(u8) -> Reply<'static>) -> Result<Option<Lease>, store::Error> {
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
pub(super) struct Seat {
    /// Tickets of Lends that block, oldest first.
    waits: VecDeque<u64>,
    /// What cannot be written yet, oldest first.
    letters: VecDeque<Letter>,
    /// What these take in memory, in bytes.
    letters_bytes: u64,
    /// How much its client had taken when that was last looked at while letters waited, and when it became so much.
    progress: Option<(u64, Now)>,
    /// Leases in what was written, and where the reply with each of them ends.
    leases: VecDeque<(u64, Lease)>,
}

/// How long letters may still wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// There are none.
    NoNeed,
    /// A while.
    Some,
    /// No longer.
    Over,
}

/// What clients that have left had with us.
#[derive(Default)]
pub(super) struct Estate {
    /// Tickets of Lends that block.
    pub(super) waits: Vec<u64>,
    /// Leases of which it has not heard.
    pub(super) leases: Vec<Lease>,
}

impl Seat {
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
        letter: Letter,
        outbox: &mut Outbox,
        own: impl FnMut(u8) -> Reply<'static>,
    ) -> Result<(), store::Error> {
        self.letters_bytes += letter.bytes();
        self.letters.push_back(letter);
        self.write(outbox, own)
    }

    /// Writes letters as long as there is room.
    pub(super) fn write(
        &mut self,
        outbox: &mut Outbox,
        mut own: impl FnMut(u8) -> Reply<'static>,
    ) -> Result<(), store::Error> {
        while self.leases.pop_front_if(|(end, _)| *end <= outbox.sent()).is_some() {}
        while outbox.len() <= OUTBOX_BYTES_MAX
            && let Some(letter) = self.letters.pop_front()
        {
            self.letters_bytes -= letter.bytes();
            if let Some(lease) = letter.write(outbox, &mut own)? {
                self.leases.push_back((outbox.end(), lease));
            }
        }
        Ok(())
    }

    /// What waits to be written takes so many bytes.
    pub(super) fn letters_bytes(&self) -> u64 {
        self.letters_bytes
    }

    /// Whether letters wait, and for how long they still may: not when their client does not read at all, or far too slowly.
    pub(super) fn patience(&mut self, outbox: &Outbox, now: Now) -> Patience {
        let Some(oldest) = self.letters.front() else {
            self.progress = None;
            return Patience::NoNeed;
        };
        let (sent, since) = *self.progress.get_or_insert((outbox.sent(), now));
        if sent != outbox.sent() {
            self.progress = Some((outbox.sent(), now));
            return Patience::Some;
        }
        let is_over = since.after(CLIENT_STALLS_MAX) <= now || oldest.at.after(ANSWER_WAITS_MAX) <= now;
        if is_over { Patience::Over } else { Patience::Some }
    }

    /// Leaves what it has when its client has left; of what was written to it the system has taken so many bytes.
    pub(super) fn leave(self, sent: u64, estate: &mut Estate) {
        estate.waits.extend(self.waits);
        estate.leases.extend(self.leases.into_iter().filter(|(end, _)| *end > sent).map(|(_, lease)| lease));
        estate.leases.extend(self.letters.into_iter().filter_map(Letter::into_lease));
    }
}
