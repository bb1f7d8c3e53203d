//! The stored records of queues and tasks, byte by byte. All integers are big-endian.
//!
//! ```text
//! space   key                     value
//! Meta    "format"                version:u32
//! Meta    "tokens"                end:u64            tokens below it may have been granted
//! Meta    "clock"                 time:u64 wall:u64 up:u64 boot:u128     see `clock/lasting.rs`
//! Meta    "queue" queue:u32       order:u8 serial:u64 first:u64 last:u64 name:…
//! Tasks   queue:u32 number:u64    state:u8 boost:u8 priority:u64 entered:u64 since:u64 [token:u64 deadline:u64] key:…
//! Values  queue:u32 number:u64    the value
//! ```
//! `state` is 0 ready, 1 leased (then token and deadline follow), 2 dropped. `order` is 0 priority, 1 fifo. `since`
//! (when the task last entered the queue) and deadlines are milliseconds of the leases' clock. The records hold effects
//! and not requests: the state is read without replaying requests. Numbers of queues may have gaps, because a queue of
//! a family is removed with its last task. A later queue may have its number, but no number of its tasks: they are
//! above `first`, and up to `last`. Tokens are also the keys of tasks that were pushed.
//!
//! This module does not read or write the store; see `committer.rs` and `queues.rs`.

use thiserror::Error;

use super::order::{LeaseOrder, Position, SERIAL_START};
use crate::byte_reader::ByteReader;

/// The version of the formats on this page.
pub(super) const FORMAT: u32 = 2;
/// The key of the format's version.
pub(super) const FORMAT_KEY: &[u8] = b"format";
/// The key of the end of the reserved tokens.
pub(super) const TOKENS_KEY: &[u8] = b"tokens";
/// The key of the latest mark of the leases' clock.
pub(super) const CLOCK_KEY: &[u8] = b"clock";
/// The beginning of the keys of queues.
const QUEUE_KEY: &[u8] = b"queue";

const READY: u8 = 0;
const LEASED: u8 = 1;
const DROPPED: u8 = 2;

/// A record that this version cannot have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the {what} is damaged")]
pub struct Damaged {
    /// The kind of record.
    pub what: &'static str,
}

/// A lease as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeaseRecord {
    pub(super) token: u64,
    pub(super) deadline: u64,
}

/// The state of a task as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateRecord {
    Ready,
    Leased(LeaseRecord),
    Dropped,
}

/// A task as stored, without its number and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TaskRecord<'b> {
    pub(super) position: Position,
    pub(super) boost: u8,
    pub(super) since: u64,
    pub(super) state: StateRecord,
    pub(super) key: &'b [u8],
}

/// The counters of a queue, as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueCounters {
    /// Starts at `SERIAL_START` and grows with each entry.
    pub(super) serial: u64,
    /// The numbers of its tasks are above this one. 0 for a queue of no family.
    pub(super) first: u64,
    /// The number of the task that was added last.
    pub(super) last: u64,
}

impl QueueCounters {
    /// Those of a new queue whose tasks have numbers above `first`.
    pub(super) fn above(first: u64) -> Self {
        Self { serial: SERIAL_START, first, last: first }
    }

    /// The serial of a new entry.
    pub(super) fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// The number of a new task.
    pub(super) fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Makes the numbers continue above this one: those up to it may have been given.
    pub(super) fn raise_last(&mut self, last: u64) {
        self.last = self.last.max(last);
    }

    /// Whether a task of the queue may have this number and this position.
    pub(super) fn allow(&self, number: u64, position: Position) -> bool {
        number > self.first && number <= self.last && position.entered.max(position.priority) <= self.serial
    }
}

/// A queue as stored, without its number and its tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueRecord<'b> {
    pub(super) order: LeaseOrder,
    pub(super) counters: QueueCounters,
    pub(super) name: &'b [u8],
}

impl<'b> TaskRecord<'b> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(42 + self.key.len());
        let lease = match self.state {
            StateRecord::Ready => (READY, None),
            StateRecord::Leased(lease) => (LEASED, Some(lease)),
            StateRecord::Dropped => (DROPPED, None),
        };
        bytes.extend([lease.0, self.boost]);
        bytes.extend(self.position.priority.to_be_bytes());
        bytes.extend(self.position.entered.to_be_bytes());
        bytes.extend(self.since.to_be_bytes());
        if let Some(LeaseRecord { token, deadline }) = lease.1 {
            bytes.extend(token.to_be_bytes());
            bytes.extend(deadline.to_be_bytes());
        }
        bytes.extend(self.key);
        bytes
    }

    pub(super) fn decode(bytes: &'b [u8]) -> Result<Self, Damaged> {
        Self::take(&mut ByteReader::new(bytes)).ok_or(Damaged { what: "record of a task" })
    }

    fn take(fields: &mut ByteReader<'b>) -> Option<Self> {
        let [state, boost] = fields.array()?;
        let position = Position { priority: fields.u64_be()?, entered: fields.u64_be()? };
        let since = fields.u64_be()?;
        let state = match state {
            READY => StateRecord::Ready,
            LEASED => StateRecord::Leased(LeaseRecord { token: fields.u64_be()?, deadline: fields.u64_be()? }),
            DROPPED => StateRecord::Dropped,
            _ => return None,
        };
        (boost < 64).then_some(Self { position, boost, since, state, key: fields.rest() })
    }
}

impl<'b> QueueRecord<'b> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let order = match self.order {
            LeaseOrder::Priority => 0,
            LeaseOrder::Fifo => 1,
        };
        let mut bytes = vec![order];
        let QueueCounters { serial, first, last } = self.counters;
        bytes.extend([serial, first, last].map(u64::to_be_bytes).concat());
        bytes.extend(self.name);
        bytes
    }

    pub(super) fn decode(bytes: &'b [u8]) -> Result<Self, Damaged> {
        Self::take(&mut ByteReader::new(bytes)).ok_or(Damaged { what: "record of a queue" })
    }

    fn take(fields: &mut ByteReader<'b>) -> Option<Self> {
        let order = match fields.array()? {
            [0] => LeaseOrder::Priority,
            [1] => LeaseOrder::Fifo,
            _ => return None,
        };
        let counters = QueueCounters { serial: fields.u64_be()?, first: fields.u64_be()?, last: fields.u64_be()? };
        Some(Self { order, counters, name: fields.rest() })
    }
}

/// The key of a queue's record.
pub(super) fn queue_key(queue: u32) -> Vec<u8> {
    [QUEUE_KEY, &queue.to_be_bytes()].concat()
}

/// The queue of this key, if it is the key of a queue.
pub(super) fn queue_of_key(key: &[u8]) -> Option<u32> {
    key.strip_prefix(QUEUE_KEY)?.try_into().ok().map(u32::from_be_bytes)
}

/// The key of a task's record and of its value.
pub(crate) fn task_key(queue: u32, number: u64) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&queue.to_be_bytes());
    key[4..].copy_from_slice(&number.to_be_bytes());
    key
}

/// The queue and the number of the task with this key.
pub(super) fn task_of_key(key: &[u8]) -> Result<(u32, u64), Damaged> {
    let mut fields = ByteReader::new(key);
    let named = fields.u32_be().zip(fields.u64_be());
    named.filter(|_| fields.is_empty()).ok_or(Damaged { what: "key of a task" })
}

/// Decodes a record that is a single number.
pub(super) fn number_of(bytes: &[u8], what: &'static str) -> Result<u64, Damaged> {
    bytes.try_into().map(u64::from_be_bytes).map_err(|_| Damaged { what })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing, reason = "a test that fails should say where")]

    use super::*;

    const POSITION: Position = Position { priority: 2, entered: 3 };
    const COUNTERS: QueueCounters = QueueCounters { serial: 6, first: 5, last: 7 };

    #[test]
    fn a_task_is_stored_byte_by_byte_as_described() {
        let state = StateRecord::Leased(LeaseRecord { token: 4, deadline: 5 });
        let record = TaskRecord { position: POSITION, boost: 1, since: 9, state, key: b"key" };
        let bytes = record.encode();
        let numbers = [2_u64, 3, 9, 4, 5].map(u64::to_be_bytes).concat();
        assert_eq!(bytes, [&[1, 1], &numbers[..], b"key"].concat());
        assert_eq!(TaskRecord::decode(&bytes), Ok(record));
    }

    #[test]
    fn every_state_comes_back() {
        for state in [StateRecord::Ready, StateRecord::Dropped] {
            let record = TaskRecord { position: POSITION, boost: 63, since: 9, state, key: b"" };
            assert_eq!(TaskRecord::decode(&record.encode()), Ok(record));
        }
    }

    #[test]
    fn a_queue_is_stored_byte_by_byte_as_described() {
        let record = QueueRecord { order: LeaseOrder::Fifo, counters: COUNTERS, name: b"jobs" };
        let bytes = record.encode();
        assert_eq!(bytes, [&[1], &[6_u64, 5, 7].map(u64::to_be_bytes).concat()[..], b"jobs"].concat());
        assert_eq!(QueueRecord::decode(&bytes), Ok(record));
        assert_eq!(queue_of_key(&queue_key(9)), Some(9));
        assert_eq!(queue_of_key(TOKENS_KEY), None);
        assert_eq!(task_of_key(&task_key(1, 2)), Ok((1, 2)));
    }

    #[test]
    fn what_cannot_have_been_written_is_damaged() {
        let state = StateRecord::Leased(LeaseRecord { token: 4, deadline: 5 });
        let bytes = TaskRecord { position: POSITION, boost: 1, since: 9, state, key: b"" }.encode();
        for length in 0..bytes.len() {
            assert!(TaskRecord::decode(&bytes[..length]).is_err(), "{length}");
        }
        for (offset, byte) in [(0, 3), (1, 64)] {
            let mut bytes = bytes.clone();
            bytes[offset] = byte;
            assert!(TaskRecord::decode(&bytes).is_err(), "{offset}");
        }
        let bytes = QueueRecord { order: LeaseOrder::Priority, counters: COUNTERS, name: b"" }.encode();
        for length in 0..bytes.len() {
            assert!(QueueRecord::decode(&bytes[..length]).is_err(), "{length}");
        }
        assert!(QueueRecord::decode(&[&[2], &bytes[1..]].concat()).is_err());
        assert!(task_of_key(&[0; 11]).is_err() && task_of_key(&[0; 13]).is_err());
        assert!(number_of(&[0; 7], "number").is_err());
    }
}
