//! Encodes and decodes replies.

use thiserror::Error;

use super::fault::{Fault, Field};
use super::fields::encode_bytes;
use super::request::tag;
use crate::byte_reader::ByteReader;

const COUNTED: u8 = 0x01;
const ADDED: u8 = 0x02;
const KEPT: u8 = 0x03;
const UPDATED: u8 = 0x04;
const NOT_FOUND: u8 = 0x05;
const LENT: u8 = 0x06;
const REPAID: u8 = 0x07;
const HEARTBEATEN: u8 = 0x08;
const SKIPPED: u8 = 0x09;
const STATS_GOT: u8 = 0x0A;
const ERROR: u8 = 0x0B;
const TERMINATED: u8 = 0x0C;
const VALUE_FOUND: u8 = 0x0D;
const VALUE_NOT_FOUND: u8 = 0x0E;
const FLUSHED: u8 = 0x0F;
const QUEUE_EMPTY: u8 = 0x10;
const PONG: u8 = 0x11;
const REMOVED: u8 = 0x12;
const NOT_REMOVED: u8 = 0x13;

/// How many requests of each kind the server has answered since it started, the current Stats included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counters {
    /// Version 1.3, in the order of [`Counters::LISTED_1_3`].
    Eight([u64; 8]),
    /// Version 1.4, in the order of [`Counters::LISTED_1_4`].
    Ten([u64; 10]),
}

impl Counters {
    /// The counters of version 1.3 in their order: a name, and the tag of the request.
    pub const LISTED_1_3: [(&'static str, u8); 8] = [
        ("count", tag::COUNT),
        ("add", tag::ADD),
        ("update", tag::UPDATE),
        ("lookup", tag::LOOKUP),
        ("lend", tag::LEND),
        ("repay", tag::REPAY),
        ("heartbeat", tag::HEARTBEAT),
        ("stats", tag::STATS),
    ];
    /// The counters of version 1.4 in their order.
    pub const LISTED_1_4: [(&'static str, u8); 10] = [
        ("ping", tag::PING),
        ("count", tag::COUNT),
        ("add", tag::ADD),
        ("update", tag::UPDATE),
        ("lookup", tag::LOOKUP),
        ("remove", tag::REMOVE),
        ("lend", tag::LEND),
        ("repay", tag::REPAY),
        ("heartbeat", tag::HEARTBEAT),
        ("stats", tag::STATS),
    ];
}

/// A reply of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'b> {
    /// The server is there.
    Pong,
    /// This many tasks are ready to be lent.
    Counted(u32),
    /// The task was added.
    Added,
    /// The key exists, and the queue is unchanged.
    Kept,
    /// The value was replaced.
    Updated,
    /// There is no such task or no such lease, and the queue is unchanged.
    NotFound,
    /// The next task.
    Lent {
        /// The lend key, which Repay and Heartbeat need.
        lend_key: u64,
        /// The key of the task.
        key: &'b [u8],
        /// The value of the task.
        value: &'b [u8],
    },
    /// No task is ready.
    QueueEmpty,
    /// The task was repaid, and its value is stored.
    Repaid,
    /// The lease has a new deadline.
    Heartbeaten,
    /// There is no such lease, and the queue is unchanged.
    Skipped,
    /// The counters of answered requests.
    StatsGot(Counters),
    /// The server ends, and everything is on disk.
    Terminated,
    /// The value of the task.
    ValueFound(&'b [u8]),
    /// There is no such task.
    ValueNotFound,
    /// Everything is on disk.
    Flushed,
    /// The task was removed.
    Removed,
    /// There was no such task.
    NotRemoved,
    /// The request was malformed, and the queue is unchanged.
    Error(Fault),
}

/// Why bytes are no reply of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// The reply is empty, or its first byte has no meaning.
    #[error("an answer of an unknown kind")]
    Tag,
    /// The reply is too short or too long.
    #[error("an answer of the wrong length")]
    Length,
    /// The error names an unknown field.
    #[error("an error of an unknown kind")]
    Field,
}

impl<'b> Reply<'b> {
    /// Appends the encoded reply.
    ///
    /// # Panics
    /// If the key or the value has 4 GiB or more.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.tag());
        match *self {
            Self::Counted(total) => out.extend(total.to_be_bytes()),
            Self::Lent { lend_key, key, value } => {
                out.extend(lend_key.to_be_bytes());
                encode_bytes(key, out);
                encode_bytes(value, out);
            }
            Self::StatsGot(Counters::Eight(counters)) => out.extend(counters.map(u64::to_be_bytes).as_flattened()),
            Self::StatsGot(Counters::Ten(counters)) => out.extend(counters.map(u64::to_be_bytes).as_flattened()),
            Self::ValueFound(value) => encode_bytes(value, out),
            Self::Error(Fault::Truncated { field, required, given }) => {
                out.push(field.number());
                out.extend(required.to_be_bytes());
                out.extend(given.to_be_bytes());
            }
            Self::Error(Fault::Offending { field, offending }) => out.extend([field.number(), offending]),
            _ => {}
        }
    }

    /// The number of bytes that [`Reply::encode`] appends.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        const LENGTH: usize = size_of::<u32>();
        1 + match self {
            Self::Counted(_) => size_of::<u32>(),
            Self::Lent { key, value, .. } => size_of::<u64>() + 2 * LENGTH + key.len() + value.len(),
            Self::StatsGot(Counters::Eight(counters)) => size_of_val(counters),
            Self::StatsGot(Counters::Ten(counters)) => size_of_val(counters),
            Self::ValueFound(value) => LENGTH + value.len(),
            Self::Error(Fault::Truncated { .. }) => 1 + 2 * size_of::<u32>(),
            Self::Error(Fault::Offending { .. }) => 2,
            _ => 0,
        }
    }

    /// The first byte.
    #[must_use]
    pub fn tag(&self) -> u8 {
        match self {
            Self::Pong => PONG,
            Self::Counted(_) => COUNTED,
            Self::Added => ADDED,
            Self::Kept => KEPT,
            Self::Updated => UPDATED,
            Self::NotFound => NOT_FOUND,
            Self::Lent { .. } => LENT,
            Self::QueueEmpty => QUEUE_EMPTY,
            Self::Repaid => REPAID,
            Self::Heartbeaten => HEARTBEATEN,
            Self::Skipped => SKIPPED,
            Self::StatsGot(_) => STATS_GOT,
            Self::Terminated => TERMINATED,
            Self::ValueFound(_) => VALUE_FOUND,
            Self::ValueNotFound => VALUE_NOT_FOUND,
            Self::Flushed => FLUSHED,
            Self::Removed => REMOVED,
            Self::NotRemoved => NOT_REMOVED,
            Self::Error(_) => ERROR,
        }
    }

    /// Decodes a reply.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are no reply.
    pub fn decode(bytes: &'b [u8]) -> Result<Self, Malformed> {
        let (&tag, body) = bytes.split_first().ok_or(Malformed::Tag)?;
        let plain = |reply| if body.is_empty() { Ok(reply) } else { Err(Malformed::Length) };
        match tag {
            PONG => plain(Self::Pong),
            COUNTED => body.try_into().map(u32::from_be_bytes).map(Self::Counted).map_err(|_| Malformed::Length),
            ADDED => plain(Self::Added),
            KEPT => plain(Self::Kept),
            UPDATED => plain(Self::Updated),
            NOT_FOUND => plain(Self::NotFound),
            LENT => lent(body).ok_or(Malformed::Length),
            QUEUE_EMPTY => plain(Self::QueueEmpty),
            REPAID => plain(Self::Repaid),
            HEARTBEATEN => plain(Self::Heartbeaten),
            SKIPPED => plain(Self::Skipped),
            STATS_GOT => counters(body).map(Self::StatsGot).ok_or(Malformed::Length),
            TERMINATED => plain(Self::Terminated),
            VALUE_FOUND => value_found(body).ok_or(Malformed::Length),
            VALUE_NOT_FOUND => plain(Self::ValueNotFound),
            FLUSHED => plain(Self::Flushed),
            REMOVED => plain(Self::Removed),
            NOT_REMOVED => plain(Self::NotRemoved),
            ERROR => fault(body).map(Self::Error),
            _ => Err(Malformed::Tag),
        }
    }
}

fn lent(body: &[u8]) -> Option<Reply<'_>> {
    let mut fields = ByteReader::new(body);
    let lend_key = fields.u64_be()?;
    let (key, value) = (fields.run_u32_be()?, fields.run_u32_be()?);
    fields.is_empty().then_some(Reply::Lent { lend_key, key, value })
}

fn value_found(body: &[u8]) -> Option<Reply<'_>> {
    let mut fields = ByteReader::new(body);
    let value = fields.run_u32_be()?;
    fields.is_empty().then_some(Reply::ValueFound(value))
}

fn counters(body: &[u8]) -> Option<Counters> {
    let (chunks, rest) = body.as_chunks::<8>();
    if !rest.is_empty() {
        return None;
    }
    if let Ok(eight) = <[[u8; 8]; 8]>::try_from(chunks) {
        return Some(Counters::Eight(eight.map(u64::from_be_bytes)));
    }
    let ten = <[[u8; 8]; 10]>::try_from(chunks).ok()?;
    Some(Counters::Ten(ten.map(u64::from_be_bytes)))
}

fn fault(body: &[u8]) -> Result<Fault, Malformed> {
    let mut fields = ByteReader::new(body);
    let field = Field::of(fields.byte().ok_or(Malformed::Length)?).ok_or(Malformed::Field)?;
    let fault = if field.is_offence() {
        fields.byte().map(|offending| Fault::Offending { field, offending })
    } else {
        fields.u32_be().zip(fields.u32_be()).map(|(required, given)| Fault::Truncated { field, required, given })
    };
    fault.filter(|_| fields.is_empty()).ok_or(Malformed::Length)
}
