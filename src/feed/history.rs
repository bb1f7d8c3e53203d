//! The messages of changes that are kept for replay, of all tables together, within a bound of bytes.
//!
//! ```text
//! order      5 │ 7 │ 5 │ 5 │ 7 │ …          the incarnation of each message, oldest first
//! life 5     1–40 │ 41–41 │ 42–105          its messages, with the sequence of their first changes
//! life 7     1–64 │ 65–70
//! ```
//! The oldest message goes first, whichever table it is of. So a busy table evicts the messages of others. The bound
//! counts the payloads with their allocations, the two lists as large as they are allocated, and what else is kept of a
//! life that is over.
//!
//! This module encodes nothing, and does not know which lives are current.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::allocator::size_class;

/// Bytes of an `Arc` of bytes beside them: two counts.
pub(super) const ARC_BYTES: usize = 2 * size_of::<usize>();
/// A list with fewer entries than this part of its room gives room back.
const ROOM_SHARE: usize = 4;
/// Entries for which a list keeps room in any case.
const ROOM_MIN: usize = 16;

/// Bytes that a frame of a reply takes beside its payload, about.
const FRAME_BYTES: usize = 64;

#[derive(Debug)]
struct KeptMessage {
    /// The sequence of its first change.
    first: u64,
    payload: Arc<[u8]>,
}

/// The kept messages of one life of a table.
#[derive(Debug, Default)]
pub(super) struct KeptMessages(VecDeque<KeptMessage>);

/// The bound over all kept messages, and their order.
#[derive(Debug)]
pub(super) struct History {
    bytes_max: usize,
    bytes: usize,
    /// The incarnations of the messages, oldest first.
    order: VecDeque<u64>,
}

fn room_of<T>(list: &VecDeque<T>) -> usize {
    match list.capacity() * size_of::<T>() {
        0 => 0,
        bytes => size_class(bytes),
    }
}

/// Takes the first entry of a list, which may give room back.
fn pop<T>(list: &mut VecDeque<T>) -> Option<T> {
    let first = list.pop_front();
    if list.is_empty() {
        *list = VecDeque::new();
    } else if list.capacity() > ROOM_MIN && list.len() < list.capacity() / ROOM_SHARE {
        list.shrink_to((2 * list.len()).max(ROOM_MIN));
    }
    first
}

fn payload_bytes(payload: &[u8]) -> usize {
    size_class(ARC_BYTES + payload.len())
}

impl History {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, bytes: 0, order: VecDeque::new() }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number of kept messages.
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// Keeps a message of this life.
    pub(super) fn push(&mut self, incarnation: u64, kept: &mut KeptMessages, first: u64, payload: Arc<[u8]>) {
        let before = room_of(&kept.0) + room_of(&self.order);
        self.bytes += payload_bytes(&payload);
        kept.0.push_back(KeptMessage { first, payload });
        self.order.push_back(incarnation);
        self.bytes = self.bytes + room_of(&kept.0) + room_of(&self.order) - before;
    }

    /// Counts further bytes that stay as long as the messages of a life.
    pub(super) fn keep_life(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// Gives back the bytes of [`History::keep_life`].
    pub(super) fn forget_life(&mut self, bytes: usize) {
        self.bytes -= bytes;
    }

    /// The life whose oldest message is to go next, while the bound is exceeded.
    pub(super) fn next_to_evict(&self) -> Option<u64> {
        self.order.front().copied().filter(|_| self.bytes > self.bytes_max)
    }

    /// Evicts the oldest message, which is of this life. Returns its payload.
    pub(super) fn evict(&mut self, kept: &mut KeptMessages) -> Option<Arc<[u8]>> {
        let before = room_of(&kept.0) + room_of(&self.order);
        pop(&mut self.order);
        let evicted = pop(&mut kept.0).map(|message| message.payload);
        let bytes = evicted.as_deref().map_or(0, payload_bytes);
        self.bytes = self.bytes + room_of(&kept.0) + room_of(&self.order) - before - bytes;
        evicted
    }
}

impl KeptMessages {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The oldest sequence.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.0.front().map(|message| message.first)
    }

    /// The kept messages from this sequence on: at least one, and none after `bytes_max` bytes, which include the cost
    /// of each frame.
    pub(super) fn from(&self, sequence: u64, bytes_max: usize) -> Vec<Arc<[u8]>> {
        let place = self.0.partition_point(|message| message.first <= sequence).saturating_sub(1);
        let mut bytes = 0;
        let within = |message: &&KeptMessage| {
            let fits = bytes == 0 || bytes < bytes_max;
            bytes += message.payload.len() + FRAME_BYTES;
            fits
        };
        self.0.iter().skip(place).take_while(within).map(|message| Arc::clone(&message.payload)).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing, reason = "a test that fails should say where")]

    use super::*;

    fn payload(bytes: usize) -> Arc<[u8]> {
        Arc::from(vec![7; bytes])
    }

    #[test]
    fn a_replay_begins_with_the_message_that_has_the_sequence() {
        let (mut history, mut kept) = (History::new(usize::MAX), KeptMessages::default());
        for (first, bytes) in [(1, 100), (41, 200), (42, 300), (106, 400)] {
            history.push(5, &mut kept, first, payload(bytes));
        }
        let lengths = |sequence, bytes_max| {
            kept.from(sequence, bytes_max).iter().map(|payload| payload.len()).collect::<Vec<_>>()
        };
        assert_eq!(lengths(1, usize::MAX), [100, 200, 300, 400]);
        assert_eq!(lengths(40, usize::MAX), [100, 200, 300, 400]);
        assert_eq!(lengths(41, 500), [200, 300]);
        assert_eq!(lengths(105, 1), [300], "one at least");
        assert_eq!((kept.oldest(), history.len()), (Some(1), 4));
    }

    #[test]
    fn the_oldest_message_goes_first_whichever_life_it_is_of() {
        let mut history = History::new(10_000);
        let mut lives = [KeptMessages::default(), KeptMessages::default()];
        let mut evicted = Vec::new();
        for number in 0..100_u64 {
            let life = number % 2;
            history.push(life, &mut lives[usize::from(life == 1)], number, payload(400));
            while let Some(life) = history.next_to_evict() {
                let kept = &mut lives[usize::from(life == 1)];
                evicted.extend(kept.oldest());
                drop(history.evict(kept));
            }
            assert!(history.bytes() <= 10_000);
        }
        assert!(evicted.len() > 70, "{}", evicted.len());
        assert_eq!(evicted, (0..evicted.len() as u64).collect::<Vec<_>>());
        assert!(history.len() >= 20, "the bound is used: {} of {}", history.len(), history.bytes());
    }

    #[test]
    fn a_list_that_was_long_gives_its_room_back() {
        let mut history = History::new(usize::MAX);
        let (mut long, mut other) = (KeptMessages::default(), KeptMessages::default());
        (0..10_000).for_each(|first| history.push(1, &mut long, first, payload(1)));
        history.bytes_max = 0;
        while history.next_to_evict().is_some() && history.len() > 0 {
            drop(history.evict(&mut long));
        }
        assert!(long.is_empty() && history.bytes() < 10_000, "{}", history.bytes());
        history.bytes_max = usize::MAX;
        history.push(2, &mut other, 1, payload(1_000_000));
        assert!(history.bytes() > 1_000_000, "a message counts, however long");
    }
}
