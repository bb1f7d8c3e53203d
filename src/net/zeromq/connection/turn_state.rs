//! Where the messages of a connection are, and what they wait for.

use super::super::turn::TurnOutcome;
use crate::limits::LARGE_REPLIES_BYTES;

/// Whether a connection waits for memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) enum MemoryWait {
    #[default]
    No,
    /// It gets no turns, since the frontend holds too much.
    Throttled,
    /// The same, since the next reply is large. The connection itself need not hold much.
    Starved,
}

/// Messages that are with another thread.
#[derive(Debug)]
pub(in super::super) struct MessagesOut {
    /// Memory that they take, in bytes.
    pub(in super::super) memory: usize,
    /// The connection closes when they come back.
    pub(in super::super) closes: bool,
}

/// The turns of a connection.
#[derive(Debug, Default)]
pub(in super::super) struct TurnState {
    /// Its messages wait until the frontend resumes this connection, or brings them back.
    pub(in super::super) is_parked: bool,
    pub(in super::super) out: Option<MessagesOut>,
    pub(in super::super) memory: MemoryWait,
    /// It is in the list of connections with input that was received and not handled.
    pub(in super::super) is_queued: bool,
    /// Its last turn was long, so the next one comes after those of others.
    pub(in super::super) is_long: bool,
}

impl TurnState {
    pub(in super::super) fn is_throttled(&self) -> bool {
        self.memory != MemoryWait::No
    }

    pub(in super::super) fn is_starved(&self) -> bool {
        self.memory == MemoryWait::Starved
    }

    /// Whether its messages wait for this server, and not for memory or its client.
    pub(in super::super) fn is_busy(&self) -> bool {
        self.is_parked || self.out.is_some()
    }

    /// Memory of the messages that are out, in bytes.
    pub(super) fn out_bytes(&self) -> usize {
        self.out.as_ref().map_or(0, |out| out.memory)
    }

    /// Takes the turns from a connection that holds much, or gives them back. One that waits for a large reply has none
    /// in any case.
    pub(in super::super) fn throttle(&mut self, holds_much: bool) {
        if !self.is_starved() {
            self.memory = if holds_much { MemoryWait::Throttled } else { MemoryWait::No };
        }
    }

    /// The large reply need not wait any more.
    pub(in super::super) fn feed(&mut self) {
        if self.is_starved() {
            self.memory = MemoryWait::Throttled;
        }
    }

    /// Notes what the held messages wait for, after a turn with replies of so many bytes.
    pub(in super::super) fn wait_for(&mut self, taken: TurnOutcome, replies: u64) {
        self.is_long = matches!(taken, TurnOutcome::Some(_)) || replies > LARGE_REPLIES_BYTES;
        self.is_parked = matches!(taken, TurnOutcome::Parked(_));
        match taken {
            TurnOutcome::Starved(_) => self.memory = MemoryWait::Starved,
            _ => self.feed(),
        }
    }
}
