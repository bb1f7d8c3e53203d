//! The stored records of queues and tasks, byte by byte. All integers are big-endian.
//!
//! ```text
//! space   key                     value
//! Meta    "format"                version:u32
//! Meta    "tokens"                end:u64            tokens below it may have been granted
//! Meta    "clock"                 time:u64 wall:u64 up:u64 boot:u128     see `clock/lasting.rs`
//! Meta    "queue" queue:u32       order:u8 serial:u64 first:u64 last:u64 [settings] name:…
//! Tasks   queue:u32 number:u64    state:u8 boost:u8 priority:u64 entered:u64 since:u64 [token:u64 deadline:u64]
//!                                 [until:u64] [parts, see `parts.rs`] key:…
//! Values  queue:u32 number:u64    the value
//! ```
//! `state` is 0 ready, 1 leased (then token and deadline follow), 2 dropped, 3 delayed (then `until` follows), 4 dead.
//! With [`MORE`] added, what the task has of its own follows. `order` is 0 priority, 1 fifo, and with [`MORE`] added `settings` follow: `parts:u8`, and of `tries:u32`,
//! `first:u32 most:u32`, `count:u32 per:u32 burst:u32 full_at:u128`, `paused_until:u64`, `sync:u64` and
//! `group_limit:u32` those whose bits it has, from 1 on. A `sync` of 0 is always, of `u64::MAX` never, and any other
//! one is a time. `since` (when the task last entered its state), `until`, `expires` and deadlines are milliseconds of
//! the leases' clock. The `entered` of a dead task is the serial at which it died. The records hold effects and not
//! requests: the state is read without replaying requests. Numbers of queues may have gaps, because a queue of a family
//! is removed with its last task. A later queue may have its number, but no number of its tasks: they are above
//! `first`, and up to `last`. Tokens are also the keys of tasks that were pushed.
//! Format 2 had neither `until` nor `parts`.
//!
//! This module does not read or write the store; see `committer.rs` and `queues.rs`.

mod of_settings;
mod parts;

use thiserror::Error;

use super::order::{LeaseOrder, Position, SERIAL_START};
use super::reservation::JobHistory;
use super::settings::QueueSettings;
use super::terms::{TaskTerms, USUAL_CLASS};
use crate::byte_reader::ByteReader;
use of_settings::{decode_settings, encode_settings};
use parts::Parts;

/// The version of the formats on this page.
pub(super) const FORMAT: u32 = 3;
/// The oldest format whose records are read as they are.
pub(super) const OLDEST_FORMAT: u32 = 2;
/// The key of the format's version.
pub(super) const FORMAT_KEY: &[u8] = b"format";
/// The key of the end of the reserved tokens.
pub(super) const TOKENS_KEY: &[u8] = b"tokens";
/// The key of the latest mark of the leases' clock.
pub(super) const CLOCK_KEY: &[u8] = b"clock";
/// The keys of queues begin so.
const QUEUE_KEY: &[u8] = b"queue";

const READY: u8 = 0;
const LEASED: u8 = 1;
const DROPPED: u8 = 2;
const DELAYED: u8 = 3;
const DEAD: u8 = 4;
/// Added to a state: more fields follow.
const MORE: u8 = 0x80;

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
    /// Until this time.
    Delayed(u64),
    Dead,
}

/// A task as stored, without its number and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TaskRecord<'b> {
    pub(super) position: Position,
    pub(super) boost: u8,
    pub(super) since: u64,
    pub(super) state: StateRecord,
    pub(super) class: u32,
    /// The leases since it was added, kicked or repaid.
    pub(super) lent: u32,
    /// Without the numbers of its group and of its unique name.
    pub(super) terms: TaskTerms,
    /// The name of its group. Empty: it has none.
    pub(super) group: &'b [u8],
    /// Why it has failed, if that has brought it into its state. Empty: it has not, or nobody has said why.
    pub(super) reason: &'b [u8],
    /// Its unique name. Empty: it has none.
    pub(super) unique: &'b [u8],
    /// What has happened to a job.
    pub(super) history: Option<JobHistory>,
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
    pub(super) settings: QueueSettings,
    pub(super) name: &'b [u8],
}

impl<'b> TaskRecord<'b> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64 + self.key.len());
        let state = match self.state {
            StateRecord::Ready => READY,
            StateRecord::Leased(_) => LEASED,
            StateRecord::Dropped => DROPPED,
            StateRecord::Delayed(_) => DELAYED,
            StateRecord::Dead => DEAD,
        };
        let parts = self.parts();
        bytes.extend([if parts == Parts::NONE { state } else { state | MORE }, self.boost]);
        for number in [self.position.priority, self.position.entered, self.since] {
            bytes.extend(number.to_be_bytes());
        }
        match self.state {
            StateRecord::Leased(LeaseRecord { token, deadline }) => {
                bytes.extend(token.to_be_bytes());
                bytes.extend(deadline.to_be_bytes());
            }
            StateRecord::Delayed(until) => bytes.extend(until.to_be_bytes()),
            StateRecord::Ready | StateRecord::Dropped | StateRecord::Dead => {}
        }
        self.encode_parts(parts, &mut bytes);
        bytes.extend(self.key);
        bytes
    }

    pub(super) fn decode(bytes: &'b [u8]) -> Result<Self, Damaged> {
        Self::take(&mut ByteReader::new(bytes)).ok_or(Damaged { what: "record of a task" })
    }

    fn take(fields: &mut ByteReader<'b>) -> Option<Self> {
        let [kind, boost] = fields.array()?;
        let position = Position { priority: fields.u64_be()?, entered: fields.u64_be()? };
        let since = fields.u64_be()?;
        let state = match kind & !MORE {
            READY => StateRecord::Ready,
            LEASED => StateRecord::Leased(LeaseRecord { token: fields.u64_be()?, deadline: fields.u64_be()? }),
            DROPPED => StateRecord::Dropped,
            DELAYED => StateRecord::Delayed(fields.u64_be()?),
            DEAD => StateRecord::Dead,
            _ => return None,
        };
        let usual = Self {
            position,
            boost,
            since,
            state,
            class: USUAL_CLASS,
            lent: 0,
            terms: TaskTerms::default(),
            group: &[],
            reason: &[],
            unique: &[],
            history: None,
            key: &[],
        };
        let record = if kind & MORE == 0 { usual } else { usual.with_parts(fields)? };
        (boost < 64).then_some(Self { key: fields.rest(), ..record })
    }
}

impl<'b> QueueRecord<'b> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let order = match self.order {
            LeaseOrder::Priority => 0,
            LeaseOrder::Fifo => 1,
        };
        let mut settings = Vec::new();
        let parts = encode_settings(&self.settings, &mut settings);
        let mut bytes = vec![if parts == 0 { order } else { order | MORE }];
        let QueueCounters { serial, first, last } = self.counters;
        bytes.extend([serial, first, last].map(u64::to_be_bytes).concat());
        if parts > 0 {
            bytes.push(parts);
            bytes.extend(settings);
        }
        bytes.extend(self.name);
        bytes
    }

    pub(super) fn decode(bytes: &'b [u8]) -> Result<Self, Damaged> {
        Self::take(&mut ByteReader::new(bytes)).ok_or(Damaged { what: "record of a queue" })
    }

    fn take(fields: &mut ByteReader<'b>) -> Option<Self> {
        let [kind] = fields.array()?;
        let order = match kind & !MORE {
            0 => LeaseOrder::Priority,
            1 => LeaseOrder::Fifo,
            _ => return None,
        };
        let counters = QueueCounters { serial: fields.u64_be()?, first: fields.u64_be()?, last: fields.u64_be()? };
        let settings = if kind & MORE == 0 { QueueSettings::default() } else { decode_settings(fields)? };
        Some(Self { order, counters, settings, name: fields.rest() })
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

    use super::super::Policy;
    use super::super::settings::QueueGate;
    use std::num::NonZeroU32;

    use super::super::terms::{Backoff, QueueTerms, REASON_BYTES_MAX, Rate};
    use super::*;

    const POSITION: Position = Position { priority: 2, entered: 3 };
    const COUNTERS: QueueCounters = QueueCounters { serial: 6, first: 5, last: 7 };

    fn usual(state: StateRecord, boost: u8, key: &[u8]) -> TaskRecord<'_> {
        let (class, lent, terms) = (USUAL_CLASS, 0, TaskTerms::default());
        TaskRecord {
            position: POSITION,
            boost,
            since: 9,
            state,
            class,
            lent,
            terms,
            group: &[],
            reason: &[],
            unique: &[],
            history: None,
            key,
        }
    }

    fn all_settings() -> QueueSettings {
        let (backoff, rate) = (Some(Backoff { first: 6, most: 7 }), Rate::of(8, 9, 10));
        let terms = QueueTerms { tries: Some(NonZeroU32::new(5)), backoff, group_limit: NonZeroU32::new(14) };
        let gate = QueueGate { paused_until: 12, rate, full_at: 11 };
        QueueSettings { terms, gate, sync: Some(Policy::Within(13)) }
    }

    fn of_own() -> TaskRecord<'static> {
        let tries = Some(NonZeroU32::new(5));
        let terms = TaskTerms {
            expires: Some(8),
            tries,
            backoff: Some(Backoff { first: 6, most: 7 }),
            lease: Some(15),
            ..TaskTerms::default()
        };
        TaskRecord {
            class: 3,
            lent: 4,
            terms,
            group: b"acme",
            reason: b"why",
            unique: b"one",
            history: Some(JobHistory {
                added: 16,
                delay: 17,
                lent_before: 18,
                timeouts: 19,
                releases: 20,
                buries: 21,
                kicks: 22,
            }),
            ..usual(StateRecord::Delayed(11), 1, b"key")
        }
    }

    #[test]
    fn a_task_is_stored_byte_by_byte_as_described() {
        let record = usual(StateRecord::Leased(LeaseRecord { token: 4, deadline: 5 }), 1, b"key");
        let bytes = record.encode();
        let numbers = [2_u64, 3, 9, 4, 5].map(u64::to_be_bytes).concat();
        assert_eq!(bytes, [&[1, 1], &numbers[..], b"key"].concat());
        assert_eq!(TaskRecord::decode(&bytes), Ok(record));
        let bytes = of_own().encode();
        let numbers = [2_u64, 3, 9, 11].map(u64::to_be_bytes).concat();
        let parts = [0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 7];
        let reason = [&[0, 3], &b"why"[..]].concat();
        let history =
            [&16_u64.to_be_bytes()[..], &[17_u32, 18, 19, 20, 21, 22].map(u32::to_be_bytes).concat()].concat();
        let last = [&15_u64.to_be_bytes()[..], &[3], b"one", &history, b"key"].concat();
        let expected = [&[0x83, 1], &numbers[..], &[0xff, 7], &parts, &[4], b"acme", &reason, &last].concat();
        assert_eq!(bytes, expected);
        assert_eq!(TaskRecord::decode(&bytes), Ok(of_own()));
    }

    #[test]
    fn a_queue_is_stored_byte_by_byte_as_described() {
        let settings = QueueSettings::default();
        let record = QueueRecord { order: LeaseOrder::Fifo, counters: COUNTERS, settings, name: b"jobs" };
        let bytes = record.encode();
        let counters = [6_u64, 5, 7].map(u64::to_be_bytes).concat();
        assert_eq!(bytes, [&[1], &counters[..], b"jobs"].concat());
        assert_eq!(QueueRecord::decode(&bytes), Ok(record));
        let record = QueueRecord { settings: all_settings(), ..record };
        let bytes = record.encode();
        let numbers = [5_u32, 6, 7, 8, 9, 10].map(u32::to_be_bytes).concat();
        let longer = [&11_u128.to_be_bytes()[..], &[12_u64, 13].map(u64::to_be_bytes).concat()].concat();
        assert_eq!(bytes, [&[0x81], &counters[..], &[0x3f], &numbers, &longer, &[0, 0, 0, 14], b"jobs"].concat());
        assert_eq!(QueueRecord::decode(&bytes), Ok(record));
        for sync in [Policy::Always, Policy::Never] {
            let settings = QueueSettings { sync: Some(sync), ..settings };
            let record = QueueRecord { settings, ..record };
            assert_eq!(QueueRecord::decode(&record.encode()), Ok(record));
        }
        assert_eq!(queue_of_key(&queue_key(9)), Some(9));
        assert_eq!(queue_of_key(TOKENS_KEY), None);
        assert_eq!(task_of_key(&task_key(1, 2)), Ok((1, 2)));
    }

    #[test]
    fn what_cannot_have_been_written_is_damaged() {
        let lease = StateRecord::Leased(LeaseRecord { token: 4, deadline: 5 });
        for bytes in [usual(lease, 1, b"").encode(), TaskRecord { key: b"", ..of_own() }.encode()] {
            for length in 0..bytes.len() {
                assert!(TaskRecord::decode(&bytes[..length]).is_err(), "{length}");
            }
        }
        let bytes = of_own().encode();
        for (offset, byte) in [(0, 5), (0, 0x85), (1, 64), (34, 0), (34, 0x80), (35, 0), (35, 8), (69, 2)] {
            let mut bytes = bytes.clone();
            bytes[offset] = byte;
            assert!(TaskRecord::decode(&bytes).is_err(), "{offset}");
        }
        let longer = TaskRecord { reason: &[b'r'; REASON_BYTES_MAX + 1], ..of_own() };
        assert!(TaskRecord::decode(&longer.encode()).is_err());
        for settings in [QueueSettings::default(), all_settings()] {
            let record = QueueRecord { order: LeaseOrder::Priority, counters: COUNTERS, settings, name: b"" };
            let bytes = record.encode();
            for length in 0..bytes.len() {
                assert!(QueueRecord::decode(&bytes[..length]).is_err(), "{length}");
            }
            assert!(QueueRecord::decode(&[&[2], &bytes[1..]].concat()).is_err());
            assert!(QueueRecord::decode(&[&[0x80], &bytes[1..25], &[0x40]].concat()).is_err());
        }
        assert!(task_of_key(&[0; 11]).is_err() && task_of_key(&[0; 13]).is_err());
        assert!(number_of(&[0; 7], "number").is_err());
    }
}
