//! Replies of one connection that wait for the disk, in their order.
//!
//! ```text
//! replies ─► … │ reply │ reply of epoch 7 │ reply │ reply of epoch 8 │      bytes go up to the first closed gate
//!                       └─ gate            ▲       └─ gate
//!                                          └─ waits behind it, since replies come in the order of requests
//! ```
//! An epoch is a number that its owner gives, and that grows. If an epoch will never be on disk, a refusal takes the place
//! of each reply that waits for it.
//!
//! This module knows no disk, and moves no byte: see `reply_buffer`.

use std::collections::VecDeque;

/// A reply that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingReply {
    /// Where it begins in the stream of replies.
    pub begin: u64,
    /// The epoch that has to be on disk before.
    pub epoch: u64,
    /// Bytes of its envelope, which a refusal has too. `None`: the reply is a portion, and no refusal can take its place.
    pub envelope: Option<usize>,
}

/// A gate, and where its reply ends.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) reply: WaitingReply,
    pub(super) end: u64,
}

/// The gates of a connection that are closed, or stand behind one that is.
#[derive(Debug, Default)]
pub(super) struct ReplyGates {
    gates: VecDeque<Gate>,
    /// The highest epoch that one of them has waited for.
    highest: u64,
}

impl ReplyGates {
    /// Closes a gate before this reply, which ends here.
    pub(super) fn close(&mut self, reply: WaitingReply, end: u64) {
        self.highest = self.highest.max(reply.epoch);
        self.gates.push_back(Gate { reply, end });
    }

    /// Appends the gates of a buffer whose bytes come behind these, from this position on.
    pub(super) fn append(&mut self, others: Self, position: u64) {
        for Gate { reply, end } in others.gates {
            self.close(WaitingReply { begin: position + reply.begin, ..reply }, position + end);
        }
    }

    /// The first byte that waits.
    pub(super) fn first(&self) -> Option<u64> {
        self.gates.front().map(|gate| gate.reply.begin)
    }

    pub(super) fn highest(&self) -> u64 {
        self.highest
    }

    /// All epochs up to this one are on disk. Returns whether a gate has opened.
    pub(super) fn open(&mut self, synced: u64) -> bool {
        let before = self.gates.len();
        while self.gates.pop_front_if(|gate| gate.reply.epoch <= synced).is_some() {}
        self.gates.len() < before
    }

    pub(super) fn is_empty(&self) -> bool {
        self.gates.is_empty()
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.gates.capacity() * size_of::<Gate>()
    }

    pub(super) fn into_gates(self) -> VecDeque<Gate> {
        self.gates
    }
}
