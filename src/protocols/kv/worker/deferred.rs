//! What a worker has deferred: requests that the tables refused as busy, and those of the same clients behind them.
//!
//! How much there is of a client is bounded by its window in the queue's account: what is deferred stays outstanding.

use std::collections::VecDeque;
use std::time::Duration;

use ahash::AHashMap;

use super::inbox::Inbox;
use super::{Letter, Post};
use crate::limits::BATCH_MAX;
use crate::protocols::kv::handle::Busy;
use crate::protocols::kv::packet::{Aside, PACKED_MAX};
use crate::protocols::kv::waiting::Line;
use crate::protocols::sockets::{Bell, Frame, Socket};
use crate::stats::Sampler;
use crate::tables::{Batch, Session};

/// Messages that are answered late.
pub(super) struct Deferred {
    /// Clients whose oldest message is busy, by their tags.
    line: Line<u16>,
    /// What each of them has asked, oldest first.
    messages: AHashMap<u16, VecDeque<Message>>,
    /// How many messages were deferred, ever.
    count: u64,
    /// Those of this batch: where they are in the inbox, their clients' tags and their numbers.
    of_batch: Vec<(usize, u16, u64)>,
}

/// A message that was deferred under a number.
struct Message {
    number: u64,
    frames: Vec<Frame>,
}

impl Deferred {
    pub(super) fn new(session: &mut Session, bell: &Bell) -> Self {
        let line = Line::new(session, bell);
        Self { line, messages: AHashMap::new(), count: 0, of_batch: Vec::new() }
    }

    /// Clients of which something was deferred.
    pub(super) fn clients(&self) -> usize {
        self.messages.len()
    }

    /// See [`Line::patience`].
    pub(super) fn patience(&mut self, session: &mut Session) -> Option<Duration> {
        self.line.patience(session)
    }

    /// See [`Line::begin`].
    pub(super) fn begin(&mut self, session: &mut Session) {
        if !self.line.is_empty() {
            self.line.begin(session);
        }
    }

    /// Whether a message has to be deferred without being tried.
    #[inline]
    pub(super) fn holds_up(&self, letter: &Letter<'_>) -> bool {
        !self.messages.is_empty()
            && (self.messages.contains_key(&letter.tag) || self.line.is_ahead_of(letter.command()))
    }

    /// Defers the message that has this place in the inbox: the queue is told, and the client waits in line.
    pub(super) fn defer(&mut self, letter: &Letter<'_>, place: usize, lacks_memory: bool, socket: &Socket) {
        Aside::Deferred.send(socket);
        if !self.messages.contains_key(&letter.tag) {
            self.messages.insert(letter.tag, VecDeque::new());
            self.line.join(letter.tag, letter.command(), lacks_memory);
        }
        self.of_batch.push((place, letter.tag, self.count));
        self.count += 1;
    }

    /// Takes what was deferred of this batch out of the inbox.
    pub(super) fn take(&mut self, inbox: &mut Inbox) {
        for (place, tag, number) in self.of_batch.drain(..) {
            let messages = self.messages.get_mut(&tag).expect("a client of which something was deferred waits");
            messages.push_back(Message { number, frames: inbox.take(place) });
        }
    }
}

impl Post<'_> {
    /// Answers what was deferred, as long as the tables let it, up to about a batch.
    pub(super) fn answer_deferred(&mut self, batch: &mut Batch<'_>, sampler: &mut Sampler) {
        let mut answered = 0;
        while answered < BATCH_MAX
            && let Some(tag) = self.deferred.line.next()
        {
            answered += self.answer_client(tag, batch, sampler);
        }
    }

    /// Answers what was deferred of one client, up to a message that is busy or has to join the line. How many were answered.
    fn answer_client(&mut self, tag: u16, batch: &mut Batch<'_>, sampler: &mut Sampler) -> usize {
        let Self { desk, socket, deferred: Deferred { line, messages: clients, .. } } = self;
        let messages = clients.get_mut(&tag).expect("a client of which something was deferred waits");
        let mut answered = 0;
        while let Some(Message { number, frames }) = messages.front() {
            let mut places = [&[][..]; PACKED_MAX];
            let letter = Letter::read(frames, &mut places, desk.value_max);
            let command = letter.command();
            // The first one has waited for its turn, and has it now.
            if answered > 0 && line.is_ahead_of(command) {
                line.join(tag, command, false);
                return answered;
            }
            let mut begun = false;
            let sink = |bytes: &[u8], more| {
                if !std::mem::replace(&mut begun, true) {
                    Aside::Late(*number).send(socket);
                }
                socket.send_bytes(bytes, more);
            };
            if letter.answer(desk, batch, sampler, sink) == Err(Busy) {
                if answered > 0 {
                    line.join(tag, command, batch.lacks_memory());
                } else {
                    line.stay(tag, command, batch.lacks_memory());
                }
                return answered;
            }
            messages.pop_front();
            answered += 1;
        }
        clients.remove(&tag);
        answered
    }
}
