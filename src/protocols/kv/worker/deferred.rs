//! Deferred messages of a worker: requests that the tables refused as busy, and the later requests of the same clients.
//!
//! Deferred requests stay outstanding, so the client's window in the proxy's flow control bounds them.

use std::collections::VecDeque;
use std::time::Duration;

use ahash::AHashMap;

use super::inbox::BatchInbox;
use super::{WorkerMessage, WorkerReplies};
use crate::clock::Now;
use crate::limits::BATCH_MAX;
use crate::protocols::kv::handle::Busy;
use crate::protocols::kv::packet::{DeferralNotice, PACKED_MAX};
use crate::protocols::kv::waiting::WaitingClients;
use crate::protocols::sockets::{Frame, Socket, WakeSignal};
use crate::tables::{Batch, Session};

/// Messages that are answered late.
pub(super) struct DeferredMessages {
    /// Clients whose oldest message is busy, by their tags.
    waiting: WaitingClients<u16>,
    /// The deferred messages of each of these clients, oldest first.
    messages: AHashMap<u16, VecDeque<DeferredMessage>>,
    /// The number of messages deferred so far.
    count: u64,
    /// The deferrals of this batch: the message's index in the inbox, its client's tag, and its number.
    of_batch: Vec<(usize, u16, u64)>,
}

/// A message that was deferred under a number.
struct DeferredMessage {
    number: u64,
    received: Now,
    frames: Vec<Frame>,
}

impl DeferredMessages {
    pub(super) fn new(session: &mut Session, bell: &WakeSignal) -> Self {
        let waiting = WaitingClients::new(session, bell);
        Self { waiting, messages: AHashMap::new(), count: 0, of_batch: Vec::new() }
    }

    /// The number of clients with deferred messages.
    pub(super) fn clients(&self) -> usize {
        self.messages.len()
    }

    /// See [`WaitingClients::patience`].
    pub(super) fn patience(&mut self, session: &mut Session) -> Option<Duration> {
        self.waiting.patience(session)
    }

    /// See [`WaitingClients::begin`].
    pub(super) fn begin(&mut self, session: &mut Session) {
        if !self.waiting.is_empty() {
            self.waiting.begin(session);
        }
    }

    /// Whether a message has to be deferred without being tried.
    #[inline]
    pub(super) fn holds_up(&self, parsed: &WorkerMessage<'_>) -> bool {
        !self.messages.is_empty()
            && (self.messages.contains_key(&parsed.sender.tag) || self.waiting.is_ahead_of(parsed.command()))
    }

    /// Defers the message at this index of the inbox. The worker notifies the proxy, and the client joins the queue.
    pub(super) fn defer(&mut self, parsed: &WorkerMessage<'_>, index: usize, lacks_memory: bool, socket: &Socket) {
        DeferralNotice::Deferred.send(socket);
        let tag = parsed.sender.tag;
        if !self.messages.contains_key(&tag) {
            self.messages.insert(tag, VecDeque::new());
            self.waiting.join(tag, parsed.command(), lacks_memory);
        }
        self.of_batch.push((index, tag, self.count));
        self.count += 1;
    }

    /// Moves the deferred messages of this batch out of the inbox, which had them at `received`.
    pub(super) fn take(&mut self, inbox: &mut BatchInbox, received: Now) {
        for (index, tag, number) in self.of_batch.drain(..) {
            let messages = self.messages.get_mut(&tag).expect("a client of which something was deferred waits");
            messages.push_back(DeferredMessage { number, received, frames: inbox.take(index) });
        }
    }
}

impl WorkerReplies<'_> {
    /// Answers deferred messages as long as the tables allow it, up to about a batch.
    pub(super) fn answer_deferred(&mut self, batch: &mut Batch<'_>) {
        let mut answered = 0;
        while answered < BATCH_MAX
            && let Some(tag) = self.deferred.waiting.next()
        {
            answered += self.answer_client(tag, batch);
        }
    }

    /// Answers a client's deferred messages up to one that is busy or has to queue again. Returns the number answered.
    fn answer_client(&mut self, tag: u16, batch: &mut Batch<'_>) -> usize {
        let Self { responder, socket, deferred, is_reporter, writer, timer, users, .. } = self;
        let DeferredMessages { waiting, messages: clients, .. } = &mut **deferred;
        let messages = clients.get_mut(&tag).expect("a client of which something was deferred waits");
        let mut answered = 0;
        while let Some(DeferredMessage { number, received, frames }) = messages.front() {
            let mut unpacked = [&[][..]; PACKED_MAX];
            let parsed = WorkerMessage::read(frames, &mut unpacked, responder.value_max, users);
            let command = parsed.command();
            // The first message has waited for its turn, and has it now.
            if answered > 0 && waiting.is_ahead_of(command) {
                waiting.join(tag, command, false);
                return answered;
            }
            let (is_long, is_timed) = (parsed.is_long(*is_reporter), timer.picks());
            let (mut begun, mut sent_bytes) = (false, 0);
            let sink = |bytes: &[u8], more| {
                sent_bytes += bytes.len() as u64;
                if !std::mem::replace(&mut begun, true) {
                    DeferralNotice::Late(*number).send(socket);
                }
                writer.write(socket, is_long, bytes, more);
            };
            if parsed.answer(responder, users, batch, is_timed, sink) == Err(Busy) {
                if answered > 0 {
                    waiting.join(tag, command, batch.lacks_memory());
                } else {
                    waiting.stay(tag, command, batch.lacks_memory());
                }
                return answered;
            }
            if is_timed {
                timer.record(&parsed, *received, responder.metrics);
            }
            timer.note_late(&parsed, frames, sent_bytes, *received);
            messages.pop_front();
            answered += 1;
        }
        clients.remove(&tag);
        answered
    }
}
