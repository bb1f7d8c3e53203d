//! A value in an answer: in the batch, or in the store before it.
//!
//! This module reads no disk by itself: see `reading.rs`.

use crate::store::{self, ReadOrder, StoreSnapshot, TaskKey, Value};

/// A value, or its location in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// The value is part of the batch.
    Fresh(Value),
    /// The value was in the store before the batch, under this key.
    Stored(TaskKey),
}

impl Payload {
    /// Where the store has it, if it is no part of the batch.
    pub(super) fn stored(&self) -> Option<TaskKey> {
        if let Self::Stored(key) = self { Some(*key) } else { None }
    }

    /// The length of the value. `before` is the snapshot from the same delivery.
    #[must_use]
    pub fn bytes(&self, before: Option<&dyn StoreSnapshot>) -> usize {
        match self {
            Self::Fresh(value) => value.len(),
            Self::Stored(key) => before.map_or(0, |before| before.bytes(key)),
        }
    }

    /// The number of the segment of the log that has the value. None: it is part of the batch, or empty. `before` is the
    /// snapshot from the same delivery.
    #[must_use]
    pub fn segment(&self, before: Option<&dyn StoreSnapshot>) -> Option<u32> {
        let order = before?.order(&self.stored()?);
        Some(order.segment).filter(|_| order != ReadOrder::default())
    }

    /// Returns the value if it is in memory. `before` is the snapshot from the same delivery. `None`: see
    /// [`Tasks::read`](super::Tasks::read).
    ///
    /// # Errors
    /// As [`Payload::read`].
    ///
    /// # Panics
    /// If the payload refers to the store and `before` is `None`.
    #[must_use]
    pub fn read_now(&self, before: Option<&dyn StoreSnapshot>) -> Option<Result<Value, store::Error>> {
        match self {
            Self::Fresh(value) => Some(Ok(value.clone())),
            Self::Stored(key) => {
                let before = before.expect(BROUGHT);
                before.get_now(key).map(|read| found(read, before))
            }
        }
    }

    /// Returns the value. `before` is the snapshot from the same delivery. May read the disk.
    ///
    /// # Errors
    /// [`store::Error`] if the value cannot be read or is missing. If [`store::Error::loses_one_value`], the next batch
    /// sets the task aside, and the store continues. If [`store::Error::may_pass`], the value may be read later.
    ///
    /// # Panics
    /// If the payload refers to the store and `before` is `None`.
    pub fn read(&self, before: Option<&dyn StoreSnapshot>) -> Result<Value, store::Error> {
        match self {
            Self::Fresh(value) => Ok(value.clone()),
            Self::Stored(key) => {
                let before = before.expect(BROUGHT);
                found(before.get(key), before)
            }
        }
    }
}

/// Why a payload that is in the store comes with it.
pub(super) const BROUGHT: &str = "stored values bring the store";

/// The value that was read, which is there.
pub(super) fn found(
    read: Result<Option<Value>, store::Error>,
    before: &dyn StoreSnapshot,
) -> Result<Value, store::Error> {
    read?.ok_or_else(|| before.damaged("the value of a task is missing"))
}
