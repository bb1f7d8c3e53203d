//! The memory of all conversations together: arguments of commands that are not whole, and values that no client has
//! fetched yet.
//!
//! ```text
//! ┌── others ──┬── own ──┬──────── free ────────┐        a conversation may hold half of what the others leave
//! ```
//! So a client that asks for long values and never fetches them leaves half of the rest to the next one. With values of
//! usual length the bound is not met: [`CONNECTIONS_MAX`](crate::limits::CONNECTIONS_MAX) conversations hold less.

use std::sync::Arc;

use crate::stats::Gauge;

/// Counts the bytes that conversations hold.
#[derive(Debug)]
pub(super) struct ConversationMemory {
    bytes: usize,
    bytes_max: usize,
    /// `bytes` for other threads. Written by the frontend, read by reports and by the function that `bind` returns.
    figure: Arc<Gauge>,
}

impl ConversationMemory {
    /// All conversations together may hold `bytes_max`.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes: 0, bytes_max, figure: Arc::default() }
    }

    /// Bytes that a conversation may hold that holds `own` now.
    pub(super) fn room(&self, own: usize) -> usize {
        self.bytes_max.saturating_sub(self.bytes - own) / 2
    }

    /// A conversation that held `before` holds `now`.
    pub(super) fn change(&mut self, before: usize, now: usize) {
        self.bytes = self.bytes - before + now;
        self.figure.set(self.bytes as u64);
    }

    /// Bytes that all conversations hold.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The gauge that other threads read.
    pub(super) fn figure(&self) -> Arc<Gauge> {
        Arc::clone(&self.figure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_may_hold_half_of_what_the_others_leave() {
        let mut memory = ConversationMemory::new(1_000);
        assert_eq!(memory.room(0), 500);
        memory.change(0, 500);
        assert_eq!((memory.room(500), memory.room(0)), (500, 250), "its own bytes are its own");
        memory.change(0, 250);
        assert_eq!((memory.room(500), memory.room(250), memory.room(0)), (375, 250, 125));
        memory.change(500, 0);
        assert_eq!((memory.bytes(), memory.room(0), memory.figure().get()), (250, 375, 250));
    }
}
