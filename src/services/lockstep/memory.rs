//! The memory of all conversations together: arguments of commands that are not whole, and values that no client has
//! fetched yet.
//!
//! ```text
//! ┌── others ──┬── own ──┬──────── free ────────┐        a conversation may hold half of what the others leave,
//!                                                        and its floor of CONVERSATION_BYTES_MIN in any case
//! little is free ─► large conversations that have stood still for STALLED_MAX are dropped, the largest first
//! ```
//! So a client that asks for long values and never fetches them leaves half of the rest to the next one, and loses its
//! connection when the rest is small. A conversation stands still until its client fetches a large value or completes
//! a large UPDATE. A client that asks again and again without fetching stands still.
//!
//! All conversations together hold at most `bytes_max`, and the floor of each. This module does not know the clock, and
//! does not close connections.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Now;
use crate::limits::{CONVERSATION_BYTES_MIN, STALLED_MAX};
use crate::log::WarningPace;
use crate::net::budget::Budget;
use crate::net::zeromq::ConnectionId;

/// Interval at which the frontend looks for conversations that stand still, while little is free.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Little is free if a conversation may hold less than this part of the whole, as a divisor.
const ROOM_SHARE: usize = 8;

/// What a turn has done to the memory of its conversation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Change {
    /// Bytes before the turn.
    pub(super) before: usize,
    /// Bytes after it.
    pub(super) after: usize,
    /// The client has fetched a large value, or has completed a large UPDATE.
    pub(super) moved: bool,
    /// The rest of its messages waits for this server.
    pub(super) waits: bool,
}

/// A conversation that holds more than its floor, or has held more and has not moved since.
#[derive(Clone, Copy, Debug)]
struct LargeConversation {
    bytes: usize,
    /// When it last moved, or became large.
    since: Now,
    waits: bool,
}

/// Counts the bytes that conversations hold. The frontend's thread owns it.
#[derive(Debug)]
pub(super) struct ConversationMemory {
    budget: Arc<Budget>,
    /// Bytes that a conversation should have room for.
    needed: usize,
    large: HashMap<ConnectionId, LargeConversation>,
    /// Time of the next look. `None`: enough is free.
    look_at: Option<Now>,
    /// Conversations that were dropped, ever.
    dropped: u64,
    drop_warnings: WarningPace,
}

impl ConversationMemory {
    /// All conversations together may hold `bytes_max` beside their floors. The longest one holds `longest`.
    pub(super) fn new(bytes_max: usize, longest: usize) -> Self {
        Self {
            budget: Budget::new(bytes_max as u64),
            needed: longest.min(bytes_max / 2).max(bytes_max / ROOM_SHARE),
            large: HashMap::new(),
            look_at: None,
            dropped: 0,
            drop_warnings: WarningPace::default(),
        }
    }

    /// Bytes that a conversation may hold that holds `own` now.
    pub(super) fn room(&self, own: usize) -> usize {
        (self.free_without(own) / 2).max(CONVERSATION_BYTES_MIN)
    }

    /// Notes a turn of a conversation.
    pub(super) fn change(&mut self, id: ConnectionId, change: Change, now: Now) {
        self.budget.change(change.before as u64, change.after as u64);
        if change.moved {
            self.large.remove(&id);
        }
        let is_large = change.after > CONVERSATION_BYTES_MIN;
        let large = LargeConversation { bytes: change.after, since: now, waits: change.waits };
        if is_large {
            let since = self.large.get(&id).map_or(now, |before| before.since);
            self.large.insert(id, LargeConversation { since, ..large });
        } else if let Some(before) = self.large.get_mut(&id) {
            before.bytes = change.after;
        }
    }

    /// Notes that a connection has closed whose conversation held `bytes`.
    pub(super) fn end(&mut self, id: ConnectionId, bytes: usize) {
        self.budget.change(bytes as u64, 0);
        self.large.remove(&id);
    }

    /// Bytes that are free if a conversation gives `own` bytes back.
    fn free_without(&self, own: usize) -> usize {
        let most = usize::try_from(self.budget.most()).unwrap_or(usize::MAX);
        most.saturating_sub(self.bytes() - own)
    }

    /// Whether less is free than a conversation should have room for.
    pub(super) fn is_tight(&self) -> bool {
        self.free_without(0) / 2 < self.needed
    }

    /// The conversations to drop now, if it is time to look: those that have stood still for [`STALLED_MAX`], the
    /// largest first, until enough is free. The caller closes their connections.
    pub(super) fn stalled(&mut self, now: Now) -> Vec<ConnectionId> {
        if !self.is_tight() {
            self.look_at = None;
            return Vec::new();
        }
        if self.look_at.is_some_and(|look_at| now < look_at) {
            return Vec::new();
        }
        self.look_at = Some(now.after(LOOK_EVERY));
        let stands_still = |large: &LargeConversation| {
            large.bytes > CONVERSATION_BYTES_MIN && !large.waits && large.since.after(STALLED_MAX) <= now
        };
        let mut still: Vec<_> = self.large.iter().filter(|(_, large)| stands_still(large)).collect();
        still.sort_unstable_by_key(|(id, large)| (Reverse(large.bytes), **id));
        let (mut dropped, mut freed) = (Vec::new(), 0);
        for (id, large) in still {
            if self.free_without(freed) / 2 >= self.needed {
                break;
            }
            dropped.push(*id);
            freed += large.bytes;
        }
        self.count_dropped(dropped.len(), freed, now);
        dropped
    }

    fn count_dropped(&mut self, count: usize, bytes: usize, now: Now) {
        self.dropped += count as u64;
        if count > 0 && self.drop_warnings.is_time(now) {
            tracing::warn!(
                "the conversations of the lock-step dialect hold too much: {count} with {bytes} bytes, of clients that do \
                 not end a command or do not fetch a value, are closed; {} by now",
                self.dropped
            );
        }
    }

    /// Conversations that were dropped, ever.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Bytes that all conversations hold.
    pub(super) fn bytes(&self) -> usize {
        usize::try_from(self.budget.held()).unwrap_or(usize::MAX)
    }

    /// Since when large conversations have not moved.
    #[cfg(test)]
    pub(super) fn since(&self) -> Vec<Now> {
        self.large.values().map(|large| large.since).collect()
    }

    pub(super) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Now = Now::from_millis(1_000);
    const UNIT: usize = CONVERSATION_BYTES_MIN;

    fn id(slot: usize) -> ConnectionId {
        ConnectionId::new(slot, 1)
    }

    /// Conversations that hold so many units, since the start.
    fn holding(units: &[usize]) -> ConversationMemory {
        let mut memory = ConversationMemory::new(100 * UNIT, 10 * UNIT);
        for (slot, units) in units.iter().enumerate() {
            memory.change(id(slot), Change { after: units * UNIT, ..Change::default() }, START);
        }
        memory
    }

    #[test]
    fn a_conversation_may_hold_half_of_what_the_others_leave_and_its_floor() {
        let mut memory = holding(&[]);
        assert_eq!(memory.room(0), 50 * UNIT);
        memory.change(id(0), Change { after: 50 * UNIT, ..Change::default() }, START);
        assert_eq!((memory.room(50 * UNIT), memory.room(0)), (50 * UNIT, 25 * UNIT), "its own bytes are its own");
        memory.change(id(1), Change { after: 50 * UNIT, ..Change::default() }, START);
        assert_eq!(memory.room(0), UNIT, "the floor");
        memory.change(id(2), Change { after: UNIT, ..Change::default() }, START);
        assert_eq!(memory.room(0), UNIT, "the floor of one more");
        memory.end(id(1), 50 * UNIT);
        assert_eq!(memory.bytes(), 51 * UNIT);
    }

    #[test]
    fn the_largest_that_stand_still_are_dropped_until_enough_is_free() {
        let mut memory = holding(&[5, 40, 30, 1, 20]);
        assert_eq!(memory.stalled(START), []);
        let (soon, late) = (START.after(STALLED_MAX / 2), START.after(STALLED_MAX));
        assert_eq!((memory.stalled(soon), memory.dropped()), (vec![], 0));
        assert_eq!((memory.stalled(late), memory.dropped()), (vec![id(1)], 1));
        assert_eq!(memory.stalled(late), [], "the next look is later");
        memory.end(id(1), 40 * UNIT);
        assert!(!memory.is_tight());
        assert_eq!(memory.stalled(late.after(STALLED_MAX)), [], "enough is free");
    }

    #[test]
    fn a_conversation_that_moves_or_waits_for_this_server_or_holds_its_floor_is_not_dropped() {
        let mut memory = holding(&[30, 30, 30, 1]);
        let late = START.after(STALLED_MAX);
        let held = Change { before: 30 * UNIT, after: 30 * UNIT, ..Change::default() };
        memory.change(id(0), Change { moved: true, ..held }, START.after(STALLED_MAX / 2));
        memory.change(id(1), Change { waits: true, ..held }, START);
        assert_eq!(memory.stalled(late), [id(2)]);
        memory.end(id(2), 30 * UNIT);
        memory.change(id(4), Change { after: 30 * UNIT, ..Change::default() }, late);
        assert_eq!(memory.stalled(late.after(STALLED_MAX / 2 + Duration::from_secs(1))), [id(0)]);
    }

    /// A client that drops its value and asks anew, a short request each time, would hold the memory for ever.
    #[test]
    fn a_client_that_asks_again_without_fetching_stands_still() {
        let mut memory = holding(&[90]);
        let soon = START.after(STALLED_MAX / 2);
        memory.change(id(0), Change { before: 90 * UNIT, ..Change::default() }, soon);
        memory.change(id(0), Change { after: 90 * UNIT, ..Change::default() }, soon);
        assert_eq!(memory.stalled(START.after(STALLED_MAX)), [id(0)]);
    }
}
