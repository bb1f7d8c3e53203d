//! Bytes in the pipes to clients, and the clients that are ended when all together hold too much.
//!
//! ```text
//! held: requests, and replies that wait for a pipe ─┐
//! piped: replies in pipes, by `in_flight` ──────────┴─► more than the bound ─► ask all clients' progress ─► still more
//!        ┌─────────────────────────────────────────────────────────────────────────────────────────────────┘
//!        ├─► more than half of the bound is for clients to read: the one with the most of that is ended, and the next
//!        └─► requests are most of it: no further one is taken until some are answered
//! ```
//! The memory that clients' replies take is counted from below instead: by the bytes that clients were *found* not to
//! have read when they were last asked (`in_flight`). The proxy asks again, as often as the compactor looks, while much
//! is found or much was sent since.
//!
//! A client that is *ended* is cut off, and its connection is closed: the contents of its pipe go with it. One client
//! may have a single reply that is larger than its bound, as long as it reads that reply: this reply is not counted.

use std::cmp::Reverse;
use std::time::Duration;

use super::client::ClientStanding;
use super::{ClientIndex, FlowControl, MessageSize, TrackedConnection};
use crate::clock::Now;
use crate::limits::{COMPACTOR_LOOK, STALLED_BYTES, STALLED_MAX};
use crate::protocols::sockets::InFlightBytes;

/// How often the proxy asks for the progress of clients: while all together may hold too much, while the bytes found
/// unread are soon out of date, and otherwise.
const ASK_EVERY: [Duration; 3] = [Duration::from_millis(20), COMPACTOR_LOOK, Duration::from_secs(1)];
/// Bytes in its pipe from which a client is asked for its progress while all together do not hold too much.
pub(super) const ASKED_BYTES: u64 = 64 << 10;
/// Bytes found unread, all clients together, from which on they are soon out of date. The compactor takes them off the
/// memory of the process. When the clients have read them, the tables may exceed their limit by as much.
const FOUND_BYTES_MANY: u64 = 1 << 20;
/// Bytes sent since the last asking from which on the found ones are soon out of date. Until the next asking their
/// memory counts as that of the tables, so they are a small part of `MEMORY_SLACK_BYTES`.
pub(super) const UNASKED_BYTES_MANY: u64 = 8 << 20;

impl<F, L: TrackedConnection> FlowControl<F, L> {
    /// Whether the client's pipe has room for a reply, as far as bytes are concerned.
    pub(in crate::protocols::kv) fn has_room(&mut self, index: ClientIndex) -> bool {
        let most = self.bounds.pipe_bytes;
        self.metered(index, |in_flight, connection| in_flight.has_room(most, || connection.progress()))
    }

    /// Notes a reply that was sent as it came.
    pub(in crate::protocols::kv) fn sent(&mut self, index: ClientIndex, size: MessageSize) {
        self.sent_since += size.bytes;
        self.metered(index, |in_flight, _| in_flight.sent(size));
    }

    /// Bytes in the pipes to all clients, some of which may have read them.
    pub(in crate::protocols::kv) fn piped(&self) -> u64 {
        self.piped
    }

    /// Bytes in the pipes to all clients that they had not read when they were last asked. What each of them has read
    /// since then is still counted, and what was sent since then is not.
    pub(in crate::protocols::kv) fn found_unread(&self) -> u64 {
        self.found
    }

    /// Whether the proxy is to ask clients soon, even if no message comes.
    pub(in crate::protocols::kv) fn asks_soon(&self) -> bool {
        self.is_over() || self.found >= FOUND_BYTES_MANY || self.sent_since >= UNASKED_BYTES_MANY
    }

    /// The time from one asking to the next.
    pub(in crate::protocols::kv) fn ask_every(&self) -> Duration {
        let [over, soon, otherwise] = ASK_EVERY;
        if self.is_over() {
            over
        } else if self.asks_soon() {
            soon
        } else {
            otherwise
        }
    }

    /// Whether the client is known to have read all replies sent to it.
    pub(super) fn is_pipe_empty(&mut self, index: ClientIndex) -> bool {
        self.metered(index, |in_flight, connection| in_flight.is_empty(|| connection.progress()))
    }

    /// The client has another connection, or gets no further replies.
    pub(super) fn empty_pipe(&mut self, index: ClientIndex) {
        self.metered(index, |in_flight, _| *in_flight = InFlightBytes::new());
        self.client_mut(index).stands = None;
    }

    /// Whether all clients together may hold too much.
    #[inline]
    pub(in crate::protocols::kv) fn is_over(&self) -> bool {
        self.held + self.piped > self.bounds.held_bytes
    }

    /// All clients together hold no more than their bound.
    pub(in crate::protocols::kv) fn is_within(&mut self) {
        self.over = false;
    }

    /// Updates the progress of each client, and if all together hold too much, ends those that have most to read. The
    /// bytes of the other clients are on their way to be answered, so the bound does not stay exceeded.
    pub(in crate::protocols::kv) fn relieve(&mut self, now: Now) {
        self.ask_those_with(1, now);
        let spared = if self.is_over() { self.end_the_largest(now) } else { 0 };
        self.over = self.held + self.piped - spared > self.bounds.held_bytes;
    }

    /// Updates the progress of each client that may have more than a little in its pipe.
    pub(in crate::protocols::kv) fn ask_meters(&mut self, now: Now) {
        self.ask_those_with(ASKED_BYTES, now);
    }

    /// Updates the progress of each client that may have `least` bytes or more in its pipe. Of the others, no bytes
    /// count as found: the system's buffers can hold them.
    fn ask_those_with(&mut self, least: u64, now: Now) {
        let most = self.bounds.client_bytes;
        for index in self.indices() {
            let Some(client) = self.entry(index) else { continue };
            if client.in_flight.bytes() < least {
                self.metered(index, |in_flight, _| in_flight.forget_found());
                continue;
            }
            self.is_pipe_empty(index);
            let client = self.client_mut(index);
            let (bytes, read) = (client.in_flight.bytes(), client.in_flight.read());
            let stands = client.stands.filter(|(before, _)| read - before < STALLED_BYTES).unwrap_or((read, now));
            client.stands = (bytes > most).then_some(stands);
        }
        self.sent_since = 0;
    }

    /// Ends the clients that have most to read. Returns the bytes of the largest one if it reads: these do not count.
    fn end_the_largest(&mut self, now: Now) -> u64 {
        let clients = self.indices().filter_map(|index| Some((index, self.clients.get(index.0 as usize)?.as_ref()?)));
        let mut unread: Vec<(u64, ClientIndex)> = clients.map(|(index, client)| (client.unread(), index)).collect();
        unread.retain(|(bytes, _)| *bytes > 0);
        unread.sort_unstable_by_key(|(bytes, index)| (Reverse(*bytes), index.0));
        let mut all: u64 = unread.iter().map(|(bytes, _)| bytes).sum();
        let mut spared = 0;
        for (number, (bytes, index)) in unread.into_iter().enumerate() {
            if self.held + self.piped - spared <= self.bounds.held_bytes || all - spared <= self.bounds.held_bytes / 2 {
                break;
            }
            let reads = self.client(index).stands.is_some_and(|(_, since)| now < since.after(STALLED_MAX));
            if number == 0 && reads {
                spared = bytes;
            } else if self.end(index) {
                all -= bytes;
            }
        }
        spared
    }

    /// Cuts a client off and closes its connection. False: that is impossible now.
    fn end(&mut self, index: ClientIndex) -> bool {
        let client = self.client(index);
        let is_cut = client.standing != ClientStanding::Good;
        if !client.connection.end() {
            return false;
        }
        if !is_cut {
            self.cut(index);
        }
        self.empty_pipe(index);
        true
    }

    /// Runs `work` on a client's `in_flight`, and keeps the sums over all clients.
    #[inline]
    fn metered<R>(&mut self, index: ClientIndex, work: impl FnOnce(&mut InFlightBytes, &L) -> R) -> R {
        let client = self.client_mut(index);
        let (bytes, found) = (client.in_flight.bytes(), client.in_flight.found());
        let result = work(&mut client.in_flight, &client.connection);
        let (bytes_after, found_after) = (client.in_flight.bytes(), client.in_flight.found());
        self.piped = self.piped - bytes + bytes_after;
        self.found = self.found - found + found_after;
        result
    }
}
