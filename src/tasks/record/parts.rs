//! What a task has of its own, in its record.
//!
//! ```text
//! parts:u8 [more:u8]   class:u32 lent:u32 expires:u64 tries:u32 first:u32 most:u32 length:u8 group:…
//!                      length:u16 reason:… lease:u64 length:u8 unique:…
//!                      added:u64 delay:u32 before:u32 timeouts:u32 releases:u32 buries:u32 kicks:u32
//! ```
//! Of the fields those follow whose bits `parts` has, from 1 on. With its highest bit `more` follows, with the bits of the
//! last three. Without a bit: the usual class, never leased, no terms of its own, and no failure that has brought the task
//! into its state; `tries` of 0 is no bound.

use std::num::NonZeroU32;

use super::TaskRecord;
use crate::byte_reader::ByteReader;
use crate::tasks::reservation::JobHistory;
use crate::tasks::terms::{Backoff, REASON_BYTES_MAX, TaskTerms, USUAL_CLASS};

/// The bits of the fields that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parts(u16);

const CLASS: u16 = 1;
const LENT: u16 = 1 << 1;
const EXPIRES: u16 = 1 << 2;
const TRIES: u16 = 1 << 3;
const BACKOFF: u16 = 1 << 4;
const GROUP: u16 = 1 << 5;
const REASON: u16 = 1 << 6;
/// In the first byte: a second one follows.
const MORE: u8 = 1 << 7;
const LEASE: u16 = 1 << 8;
const UNIQUE: u16 = 1 << 9;
const HISTORY: u16 = 1 << 10;
/// All fields.
const ALL: u16 = CLASS | LENT | EXPIRES | TRIES | BACKOFF | GROUP | REASON | LEASE | UNIQUE | HISTORY;

impl Parts {
    /// Everything is as usual.
    pub(super) const NONE: Self = Self(0);

    fn has(self, field: u16) -> bool {
        self.0 & field != 0
    }

    fn encode(self, bytes: &mut Vec<u8>) {
        let [more, first] = self.0.to_be_bytes();
        match more {
            0 => bytes.push(first),
            _ => bytes.extend([first | MORE, more]),
        }
    }

    /// `None`: this version cannot have written them.
    fn take(fields: &mut ByteReader<'_>) -> Option<Self> {
        let [first] = fields.array()?;
        let more =
            if first & MORE == 0 { 0 } else { fields.array::<1>().map(|[more]| more).filter(|more| *more > 0)? };
        let parts = u16::from_be_bytes([more, first & !MORE]);
        (parts != 0 && parts & !ALL == 0).then_some(Self(parts))
    }
}

impl<'b> TaskRecord<'b> {
    /// The bits of the fields that are not as usual.
    pub(super) fn parts(&self) -> Parts {
        let TaskTerms { expires, tries, backoff, lease, .. } = self.terms;
        let bits = [
            (self.class != USUAL_CLASS, CLASS),
            (self.lent > 0, LENT),
            (expires.is_some(), EXPIRES),
            (tries.is_some(), TRIES),
            (backoff.is_some(), BACKOFF),
            (!self.group.is_empty(), GROUP),
            (!self.reason.is_empty(), REASON),
            (lease.is_some(), LEASE),
            (!self.unique.is_empty(), UNIQUE),
            (self.history.is_some(), HISTORY),
        ];
        Parts(bits.into_iter().filter(|(is_there, _)| *is_there).fold(0, |parts, (_, bit)| parts | bit))
    }

    pub(super) fn encode_parts(&self, parts: Parts, bytes: &mut Vec<u8>) {
        if parts == Parts::NONE {
            return;
        }
        parts.encode(bytes);
        if parts.has(CLASS) {
            bytes.extend(self.class.to_be_bytes());
        }
        if parts.has(LENT) {
            bytes.extend(self.lent.to_be_bytes());
        }
        let TaskTerms { expires, tries, backoff, lease, .. } = self.terms;
        if let Some(expires) = expires {
            bytes.extend(expires.to_be_bytes());
        }
        if let Some(tries) = tries {
            bytes.extend(tries.map_or(0, NonZeroU32::get).to_be_bytes());
        }
        if let Some(Backoff { first, most }) = backoff {
            bytes.extend(first.to_be_bytes());
            bytes.extend(most.to_be_bytes());
        }
        if parts.has(GROUP) {
            encode_name(self.group, bytes);
        }
        if parts.has(REASON) {
            bytes.extend(u16::try_from(self.reason.len()).expect("a reason has at most 256 bytes").to_be_bytes());
            bytes.extend(self.reason);
        }
        if let Some(lease) = lease {
            bytes.extend(lease.to_be_bytes());
        }
        if parts.has(UNIQUE) {
            encode_name(self.unique, bytes);
        }
        if let Some(history) = self.history {
            let JobHistory { added, delay, lent_before, timeouts, releases, buries, kicks } = history;
            bytes.extend(added.to_be_bytes());
            bytes.extend([delay, lent_before, timeouts, releases, buries, kicks].map(u32::to_be_bytes).concat());
        }
    }

    pub(super) fn with_parts(mut self, fields: &mut ByteReader<'b>) -> Option<Self> {
        let parts = Parts::take(fields)?;
        if parts.has(CLASS) {
            self.class = fields.u32_be()?;
        }
        if parts.has(LENT) {
            self.lent = fields.u32_be()?;
        }
        if parts.has(EXPIRES) {
            self.terms.expires = Some(fields.u64_be()?);
        }
        if parts.has(TRIES) {
            self.terms.tries = Some(NonZeroU32::new(fields.u32_be()?));
        }
        if parts.has(BACKOFF) {
            self.terms.backoff = Some(Backoff { first: fields.u32_be()?, most: fields.u32_be()? });
        }
        if parts.has(GROUP) {
            self.group = take_name(fields)?;
        }
        if parts.has(REASON) {
            let length = usize::from(fields.u16_be()?);
            self.reason = fields.take(length).filter(|_| (1..=REASON_BYTES_MAX).contains(&length))?;
        }
        if parts.has(LEASE) {
            self.terms.lease = Some(fields.u64_be()?);
        }
        if parts.has(UNIQUE) {
            self.unique = take_name(fields)?;
        }
        if parts.has(HISTORY) {
            self.history = Some(JobHistory {
                added: fields.u64_be()?,
                delay: fields.u32_be()?,
                lent_before: fields.u32_be()?,
                timeouts: fields.u32_be()?,
                releases: fields.u32_be()?,
                buries: fields.u32_be()?,
                kicks: fields.u32_be()?,
            });
        }
        Some(self)
    }
}

fn encode_name(name: &[u8], bytes: &mut Vec<u8>) {
    bytes.push(u8::try_from(name.len()).expect("a name has at most 255 bytes"));
    bytes.extend(name);
}

fn take_name<'b>(fields: &mut ByteReader<'b>) -> Option<&'b [u8]> {
    let [length] = fields.array()?;
    fields.take(usize::from(length)).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::order::Position;
    use crate::tasks::record::{LeaseRecord, StateRecord};

    #[test]
    fn every_state_and_every_part_comes_back() {
        let lease = LeaseRecord { token: 4, deadline: 5 };
        let states = [StateRecord::Ready, StateRecord::Leased(lease), StateRecord::Dropped, StateRecord::Delayed(7)];
        let all = (0..=ALL).filter(|parts| parts & !ALL == 0);
        for (state, parts) in states
            .into_iter()
            .chain([StateRecord::Dead])
            .flat_map(|state| all.clone().map(move |parts| (state, Parts(parts))))
        {
            let terms = TaskTerms {
                expires: parts.has(EXPIRES).then_some(1),
                tries: parts.has(TRIES).then_some(None),
                backoff: parts.has(BACKOFF).then_some(Backoff { first: 1, most: 2 }),
                lease: parts.has(LEASE).then_some(3),
                group: None,
                unique: None,
            };
            let part = |field, bytes: &'static [u8]| if parts.has(field) { bytes } else { &[] };
            let record = TaskRecord {
                position: Position { priority: 2, entered: 3 },
                boost: 63,
                since: 9,
                state,
                class: if parts.has(CLASS) { 0 } else { USUAL_CLASS },
                lent: u32::from(parts.has(LENT)),
                terms,
                group: part(GROUP, b"g"),
                reason: part(REASON, &[b'r'; 256]),
                unique: part(UNIQUE, &[b'u'; 255]),
                history: parts.has(HISTORY).then(|| JobHistory { added: 4, kicks: 5, ..JobHistory::default() }),
                key: b"k",
            };
            assert_eq!(TaskRecord::decode(&record.encode()), Ok(record));
        }
    }
}
