//! The values of an answer: in the answer, in memory, or on the disk.
//!
//! ```text
//! Outcome with Payload::Stored ─► fill: what is in memory ─► read, in a thread of the store: the rest ─► all are Fresh
//!                                                                └─► leases without their values: apart
//! ```
//! An answer with many leases or tasks is read at once, in the order in which the values stand on the disk.
//!
//! This module sends nothing and ends no lease.

use super::outcome::{GrantedLease, Outcome};
use super::payload::{BROUGHT, Payload};
use super::record::TaskRecord;
use super::shown::{BrowsedPage, BrowsedTask, ShownReason};
use crate::store::{self, ReadOrder, StoreSnapshot, TaskKey, Value};

/// An answer whose values have been read.
#[derive(Debug, PartialEq, Eq)]
pub struct ReadOutcome {
    /// It names no value in the store any more.
    pub outcome: Outcome,
    /// The leases that are no longer in it: their values cannot be read.
    pub unread: Vec<GrantedLease>,
    /// The value that was asked for cannot be read at present.
    pub has_failed: bool,
}

/// The records that an answer needs of the store.
#[derive(Debug, Default)]
pub(super) struct NeededRecords {
    pub(super) values: Vec<TaskKey>,
    /// Of tasks.
    pub(super) records: Vec<TaskKey>,
}

impl NeededRecords {
    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty() && self.records.is_empty()
    }

    /// Adds what this answer needs.
    pub(super) fn add(&mut self, outcome: &Outcome) {
        outcome.each_payload(|payload| self.values.extend(payload.stored()));
        if let Outcome::Browsed(page) = outcome {
            let stored = page.tasks.iter().filter(|task| task.reason == ShownReason::Stored);
            self.records.extend(stored.map(|task| task.place));
        }
    }
}

impl Outcome {
    fn each_payload<'o>(&'o self, mut take: impl FnMut(&'o Payload)) {
        match self {
            Self::LeasedMany(leases) => leases.iter().for_each(|lease| take(&lease.payload)),
            Self::Browsed(page) => page.tasks.iter().for_each(|task| take(&task.payload)),
            _ => self.payload().into_iter().for_each(take),
        }
    }

    /// The values of leases and of a task that was found.
    fn payloads_mut(&mut self) -> impl Iterator<Item = &mut Payload> {
        let (one, many) = match self {
            Self::Leased { payload, .. } | Self::Found(Some(payload)) => (Some(payload), &mut [][..]),
            Self::LeasedMany(leases) => (None, &mut leases[..]),
            _ => (None, &mut [][..]),
        };
        one.into_iter().chain(many.iter_mut().map(|lease| &mut lease.payload))
    }

    /// Whether something of the answer is still in the store.
    #[must_use]
    pub fn is_stored(&self) -> bool {
        match self {
            Self::LeasedMany(leases) => leases.iter().any(|lease| lease.payload.stored().is_some()),
            Self::Browsed(page) => {
                let is_stored =
                    |task: &BrowsedTask| task.reason == ShownReason::Stored || task.payload.stored().is_some();
                page.tasks.iter().any(is_stored)
            }
            _ => self.payload().is_some_and(|payload| payload.stored().is_some()),
        }
    }

    /// The bytes of its values that are still in the store.
    #[must_use]
    pub fn stored_bytes(&self, before: Option<&dyn StoreSnapshot>) -> usize {
        if let Self::Browsed(page) = self {
            return page.tasks.len() * page.first_bytes as usize;
        }
        let mut bytes = 0;
        self.each_payload(|payload| bytes += payload.stored().map_or(0, |_| payload.bytes(before)));
        bytes
    }

    /// The memory of its values and keys.
    #[must_use]
    pub fn memory(&self) -> usize {
        let bytes = |payload: &Payload| payload.bytes(None);
        match self {
            Self::Leased { key, payload, .. } => key.len() + bytes(payload),
            Self::LeasedMany(leases) => {
                leases.iter().map(|lease| size_of::<GrantedLease>() + lease.key.len() + bytes(&lease.payload)).sum()
            }
            Self::Browsed(page) => page.tasks.iter().map(|task| task.memory() + bytes(&task.payload)).sum(),
            Self::Many(outcomes) => outcomes.len() * size_of::<Self>(),
            _ => self.payload().map_or(0, bytes),
        }
    }

    /// Where the first of its values stands on the disk.
    #[must_use]
    pub fn order(&self, before: Option<&dyn StoreSnapshot>) -> ReadOrder {
        let mut first = None;
        self.each_payload(|payload| first = first.or_else(|| payload.stored()));
        before.zip(first).map_or_else(ReadOrder::default, |(before, key)| before.order(&key))
    }

    /// Takes the values that are in memory. `before` is the snapshot from the same delivery.
    pub fn fill(&mut self, before: Option<&dyn StoreSnapshot>) {
        for payload in self.payloads_mut().filter(|payload| payload.stored().is_some()) {
            match payload.read_now(before) {
                Some(Ok(value)) => *payload = Payload::Fresh(value),
                // The others would wait for it.
                Some(Err(_)) | None => return,
            }
        }
    }

    /// Reads the values. `before` is the snapshot from the same delivery. May read the disk.
    ///
    /// # Errors
    /// [`store::Error`] if the store has failed.
    ///
    /// # Panics
    /// If the answer refers to the store and `before` is `None`.
    pub fn read(self, before: Option<&dyn StoreSnapshot>) -> Result<ReadOutcome, store::Error> {
        let whole = |outcome| Ok(ReadOutcome { outcome, unread: Vec::new(), has_failed: false });
        match self {
            Self::Leased { token, key, lent, lease, payload } => match readable(payload.read(before))? {
                Some(value) => whole(Self::Leased { token, key, lent, lease, payload: Payload::Fresh(value) }),
                None => {
                    let unread = vec![GrantedLease { queue: 0, token, key, lent, lease, payload }];
                    Ok(ReadOutcome { outcome: Self::Refused, unread, has_failed: false })
                }
            },
            Self::Found(Some(payload)) => match payload.read(before) {
                Ok(value) => whole(Self::Found(Some(Payload::Fresh(value)))),
                // It is as if there were no such task.
                Err(error) if error.loses_one_value() => whole(Self::Refused),
                Err(error) if error.may_pass() => {
                    Ok(ReadOutcome { outcome: Self::Found(Some(payload)), unread: Vec::new(), has_failed: true })
                }
                Err(error) => Err(error),
            },
            Self::LeasedMany(leases) => read_leases(leases, before),
            Self::Browsed(page) => whole(Self::Browsed(read_page(page, before)?)),
            outcome => whole(outcome),
        }
    }
}

/// The value, if it can be read.
fn readable<T>(read: Result<T, store::Error>) -> Result<Option<T>, store::Error> {
    match read {
        Err(error) if error.loses_one_value() || error.may_pass() => Ok(None),
        read => read.map(Some),
    }
}

fn read_leases(mut leases: Vec<GrantedLease>, before: Option<&dyn StoreSnapshot>) -> Result<ReadOutcome, store::Error> {
    for (_, index) in in_order(leases.iter().map(|lease| &lease.payload), before) {
        let Some(lease) = leases.get_mut(index) else { continue };
        if let Some(value) = readable(lease.payload.read(before))? {
            lease.payload = Payload::Fresh(value);
        }
    }
    let unread = leases.extract_if(.., |lease| lease.payload.stored().is_some()).collect();
    let outcome = if leases.is_empty() { Outcome::Refused } else { Outcome::LeasedMany(leases) };
    Ok(ReadOutcome { outcome, unread, has_failed: false })
}

/// What stands in the store, in the order of the disk.
fn in_order<'p>(
    payloads: impl Iterator<Item = &'p Payload>,
    before: Option<&dyn StoreSnapshot>,
) -> Vec<(ReadOrder, usize)> {
    let place = |key| before.map_or_else(ReadOrder::default, |before| before.order(&key));
    let stored = payloads.enumerate().filter_map(|(index, payload)| Some((place(payload.stored()?), index)));
    let mut stored: Vec<_> = stored.collect();
    stored.sort_unstable();
    stored
}

/// Reads the first bytes and the reasons of the tasks on a page. What cannot be read is empty.
fn read_page(mut page: BrowsedPage, before: Option<&dyn StoreSnapshot>) -> Result<BrowsedPage, store::Error> {
    let most = page.first_bytes as usize;
    for (_, index) in in_order(page.tasks.iter().map(|task| &task.payload), before) {
        let before = before.expect(BROUGHT);
        let Some(task) = page.tasks.get_mut(index) else { continue };
        let read = if most > 0 { before.begin(&task.place, most) } else { Ok(None) };
        task.payload = Payload::Fresh(readable(read)?.flatten().unwrap_or_else(|| Value::from(&[][..])));
    }
    for task in page.tasks.iter_mut().filter(|task| task.reason == ShownReason::Stored) {
        let record = readable(before.expect(BROUGHT).record(&task.place))?.flatten();
        let reason = record.and_then(|record| Some(TaskRecord::decode(&record).ok()?.reason.into()));
        task.reason = ShownReason::Fresh(reason.unwrap_or_default());
    }
    Ok(page)
}
