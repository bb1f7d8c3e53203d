//! Requests that wait for a task, each in one queue or in many.
//!
//! ```text
//! Waits    number ─► its place, its queues, what it asks for          by ticket: number
//! a queue  place ─► number          the first is served first; it leaves all its queues at once
//! ```
//! A request holds one place in all its queues, and places grow: first come, first served in each. A request that asks for
//! another task in place of one that could not be read goes before all others.
//!
//! This module leases nothing; see `engine/waiting.rs`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ahash::RandomState;
use slab::Slab;

use super::Ticket;
use crate::limits::LEASES_PER_BATCH;
use crate::wheel::TimerId;

/// The place of the first request that waits. Later ones are above it, and those that go before all others below.
const FIRST_PLACE: u64 = 1 << 63;

/// The number of a request that waits, valid as long as it does.
pub(super) type WaitNumber = u32;

/// The requests that wait in one queue, by place.
pub(super) type QueueWaits = BTreeMap<u64, WaitNumber>;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WantedLeases {
    /// The length of each lease, in milliseconds.
    pub(super) timeout: u64,
    /// The most tasks.
    pub(super) most: u32,
    /// Whether they are answered as a list, however few they are.
    pub(super) in_list: bool,
    /// The token of the connection that reserves the most urgent one of all queues.
    pub(super) holder: Option<u64>,
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) ticket: Ticket,
    pub(super) wanted: WantedLeases,
    /// The queues in which it waits, in the order of the request.
    pub(super) queues: Arc<[usize]>,
    pub(super) place: u64,
    /// The timer that ends its waiting.
    pub(super) timer: Option<TimerId>,
}

/// All requests that wait.
#[derive(Debug)]
pub(super) struct Waits {
    waits: Slab<Wait>,
    tickets: HashMap<Ticket, WaitNumber, RandomState>,
    /// The places of the next request, and of the next one that goes before all others.
    back: u64,
    front: u64,
    /// Queues that may have something for those that wait, when this request or step is over.
    pub(super) to_grant: Vec<usize>,
    /// Leases that this batch may still have, see [`LEASES_PER_BATCH`].
    pub(super) leases_left: usize,
}

impl Default for Waits {
    fn default() -> Self {
        let (waits, tickets, to_grant) = (Slab::new(), HashMap::default(), Vec::new());
        Self { waits, tickets, back: FIRST_PLACE, front: FIRST_PLACE - 1, to_grant, leases_left: LEASES_PER_BATCH }
    }
}

impl Waits {
    /// A place behind all others, or before them.
    pub(super) fn place(&mut self, is_first: bool) -> u64 {
        let place = if is_first { &mut self.front } else { &mut self.back };
        let taken = *place;
        *place = if is_first { taken - 1 } else { taken + 1 };
        taken
    }

    /// Keeps a request. Returns its number.
    pub(super) fn add(&mut self, wait: Wait) -> WaitNumber {
        let ticket = wait.ticket;
        let number = WaitNumber::try_from(self.waits.insert(wait)).expect("fewer than 2^32 requests wait");
        self.tickets.insert(ticket, number);
        number
    }

    /// Has the waiting of a request end with this timer. `None`: its timer has come up.
    pub(super) fn set_timer(&mut self, number: WaitNumber, timer: Option<TimerId>) {
        if let Some(wait) = self.waits.get_mut(number as usize) {
            wait.timer = timer;
        }
    }

    pub(super) fn get(&self, number: WaitNumber) -> Option<&Wait> {
        self.waits.get(number as usize)
    }

    /// The number of the request with this ticket.
    pub(super) fn of(&self, ticket: Ticket) -> Option<WaitNumber> {
        self.tickets.get(&ticket).copied()
    }

    /// A request waits no more. The caller takes it out of its queues.
    pub(super) fn remove(&mut self, number: WaitNumber) -> Option<Wait> {
        let wait = self.waits.try_remove(number as usize)?;
        self.tickets.remove(&wait.ticket);
        if self.waits.is_empty() {
            // After many the memory goes back.
            self.waits = Slab::new();
            self.tickets.shrink_to(0);
        }
        Some(wait)
    }

    /// The numbers of all requests.
    pub(super) fn all(&self) -> Vec<WaitNumber> {
        let all = self.waits.iter().filter_map(|(number, _)| WaitNumber::try_from(number).ok());
        all.collect()
    }
}
