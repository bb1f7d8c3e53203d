//! Requests for many elements of a table. Each element is read or changed atomically, the whole is not.
//!
//! ```text
//! first call ─► judged as a whole ─► a portion ─► others have their turns ─► a portion ─► … ─► done
//!                  └─► refused: nothing was changed       └── ManyProgress: how far it has come
//! ```
//! Between two calls nothing is held but the progress: no guard, no reading of the clock. A call ends when its values
//! together have [`PORTION_BYTES`], and a change also when it is out of credits, or another session latches the table. A request continues with the life of
//! the table that it has begun with, or with a life that took its place.

use std::fmt;
use std::sync::Arc;

use super::Batch;
use crate::feed::Cause;
use crate::tables::lookup::find_live;
use crate::tables::memory_budget::signed;
use crate::tables::ops::{Admission, CREDITS_PER_WRITE, Ops, Write};
use crate::tables::prefetch::Prefetch;
use crate::tables::table::{Table, canonical};
use crate::tables::{Deadline, Refusal, TablesShared};

/// Bytes of the values in one portion of a request for many elements. A longer value is a portion by itself.
pub const PORTION_BYTES: usize = 1 << 20;

/// How far a request for many elements has come. Kept by the caller until the request is done.
#[derive(Debug, Default)]
pub struct ManyProgress(Option<Box<BegunRequest>>);

/// A request of which a part is carried out.
#[derive(Debug, Default)]
struct BegunRequest {
    /// The line of lives of the table in which it has begun.
    line: u64,
    /// Elements that are dealt with.
    done: usize,
    /// It is a GET_MANY.
    is_read: bool,
    /// Of DELETE_MANY: whether each of the keys until now had an element.
    deleted: Vec<bool>,
    /// Of UPDATE_MANY: pairs, and the memory that was admitted for all of them.
    admitted: (usize, i64),
    reserved: Option<Reservation>,
    /// Of ALTER_TABLE: why it is refused, when the table is as before.
    refusal: Option<Refusal>,
}

impl ManyProgress {
    /// The request is to be refused, when what it has begun is undone.
    pub(super) fn refuse(&mut self, refusal: Refusal) {
        self.0.get_or_insert_default().refusal = Some(refusal);
    }

    /// Why the request is to be refused.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        self.0.as_ref()?.refusal
    }

    /// Elements that are dealt with.
    #[must_use]
    pub fn done(&self) -> usize {
        self.0.as_ref().map_or(0, |begun| begun.done)
    }

    /// Whether the request has begun.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.0.is_some()
    }

    /// Whether a part of the answer of a GET_MANY was handed out.
    #[must_use]
    pub fn has_partial_answer(&self) -> bool {
        self.0.as_ref().is_some_and(|begun| begun.is_read && begun.done > 0)
    }

    /// A long GET_MANY begins, in this line of lives of the table.
    pub fn begin(&mut self, line: u64) {
        self.0 = Some(Box::new(BegunRequest { line, is_read: true, ..BegunRequest::default() }));
    }

    /// So many further elements of a GET_MANY are dealt with.
    pub fn advance(&mut self, elements: usize) {
        self.0.iter_mut().for_each(|begun| begun.done += elements);
    }
}

/// Memory that counts as used: for the pairs of a request that are yet to be stored.
struct Reservation {
    shared: Arc<TablesShared>,
    bytes: i64,
}

impl Reservation {
    fn new(shared: &Arc<TablesShared>, bytes: i64) -> Self {
        shared.memory_budget.add(bytes);
        Self { shared: Arc::clone(shared), bytes }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shared.memory_budget.add(-self.bytes);
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Reservation").field(&self.bytes).finish()
    }
}

impl Batch<'_> {
    /// Appends the value of each key, in order, or `None` for a key without an element: of all keys if the request has not
    /// begun, and otherwise of a portion of the rest. Returns the line of the table's lives, for [`ManyProgress::begin`].
    ///
    /// # Errors
    /// `TableNotFound`: also if the life of the table in which the request has begun is over. `values` may then have some
    /// of the values.
    pub fn get_many<'b, 'k>(
        &'b mut self,
        table: &[u8],
        keys: impl Iterator<Item = &'k [u8]> + Clone,
        progress: &ManyProgress,
        values: &mut Vec<Option<&'b [u8]>>,
    ) -> Result<u64, Refusal> {
        self.on_elements(table, |ops, table| {
            let most = match &progress.0 {
                Some(begun) => begun.goes_on_in(table).map(|()| PORTION_BYTES)?,
                None => usize::MAX,
            };
            let keys = keys.skip(progress.done());
            let mut ahead = Prefetch::of(keys.clone());
            let mut bytes = 0;
            for key in keys {
                let found = find_live(table, key, ahead.step(table, ops.guard), ops.guard, ops.now);
                if table.is_always() {
                    ops.effects.await_element(table, key, found.ok(), ops.guard);
                }
                let value = match found {
                    Ok(entry) => Some(entry.value()),
                    Err(Refusal::KeyNotFound) => None,
                    Err(refusal) => return Err(refusal),
                };
                bytes += value.map_or(0, <[u8]>::len);
                if bytes > most && !values.is_empty() {
                    break;
                }
                values.push(value);
            }
            Ok(table.line())
        })
    }

    /// Adds or replaces each pair, one by one and in order. `deadline` as in [`Batch::update`].
    ///
    /// # Errors
    /// `TableNotFound`: the pairs that were applied before the table was deleted remain committed.
    /// `OutOfMemory`: the call has changed no element. The exception is a key that agrees with 15 others in 32 bits of the
    /// hash: it is refused as `OutOfMemory`, and the pairs before it remain committed.
    /// `Unfinished`, `Busy`: the caller calls again, in another batch and with this progress.
    pub fn update_many<'p>(
        &mut self,
        table: &[u8],
        deadline: Deadline,
        pairs: impl Iterator<Item = (&'p [u8], &'p [u8])> + Clone,
        progress: &mut ManyProgress,
    ) -> Result<(), Refusal> {
        let table = self.share_for(table, progress)?;
        let begun = progress.0.take();
        let mut begun = match begun {
            Some(begun) => self.continue_in(&table, *begun)?,
            None => {
                let (needed, count) = self.ops().cost_of_pairs(&table, pairs.clone(), deadline);
                self.ops().admit(needed)?;
                self.credits_for(count)?;
                BegunRequest { line: table.line(), admitted: (count, needed), ..BegunRequest::default() }
            }
        };
        // What was admitted for the rest counts when it is stored.
        begun.reserved = None;
        let outcome = self.update_some(&table, deadline, pairs.skip(begun.done), &mut begun.done);
        self.await_table(&table, &outcome, begun.done > 0);
        if matches!(outcome, Err(Refusal::Unfinished | Refusal::Busy)) {
            begun.reserve_rest(&self.session.shared);
            progress.0 = Some(Box::new(begun));
        }
        outcome
    }

    /// A request that has begun continues in this table.
    fn continue_in(&mut self, table: &Table, begun: BegunRequest) -> Result<BegunRequest, Refusal> {
        let goes_on = begun.goes_on_in(table);
        if goes_on.is_err() {
            // The life in which it has begun is over.
            self.effects().await_name(canonical(table.announced_name()), None);
        }
        goes_on.map(|()| begun)
    }

    /// The answer is about elements of this table. What is refused for the disk before it has changed one shows none.
    fn await_table(&mut self, table: &Table, outcome: &Result<(), Refusal>, has_changed: bool) {
        if table.is_always() && (has_changed || *outcome != Err(Refusal::DiskFailed)) {
            self.effects().await_table(table);
        }
    }

    /// The table of a request that may have begun. If it is latched, the request has come as far as before.
    fn share_for(&mut self, table: &[u8], progress: &mut ManyProgress) -> Result<Arc<Table>, Refusal> {
        let found = self.share(table);
        if !matches!(found, Ok(_) | Err(Refusal::Busy)) {
            progress.0 = None;
        }
        found
    }

    /// Stores pairs until they are a portion.
    fn update_some<'p>(
        &mut self,
        table: &Table,
        deadline: Deadline,
        pairs: impl Iterator<Item = (&'p [u8], &'p [u8])> + Clone,
        done: &mut usize,
    ) -> Result<(), Refusal> {
        let mut ahead = Prefetch::of(pairs.clone().map(|(key, _)| key));
        let (mut bytes, mut is_later) = (0, false);
        for (key, value) in pairs {
            if is_later {
                self.make_way(table)?;
            }
            if bytes > 0 && bytes + value.len() > PORTION_BYTES {
                return Err(Refusal::Unfinished);
            }
            let place = ahead.step(table, &self.guard);
            self.change_one(|ops| {
                // The memory of this pair has been admitted with the others.
                if ops.admission == Admission::Asked {
                    ops.admission = Admission::Counted;
                }
                ops.place = place;
                ops.put(table, Write::update(key, value, deadline)).map(drop)
            })?;
            bytes += value.len();
            *done += 1;
            is_later = true;
        }
        Ok(())
    }

    /// Deletes each key, one by one and in order. Returns whether each had an element.
    ///
    /// # Errors
    /// `TableNotFound`: the keys that were deleted before the table was deleted remain so.
    /// `Busy`: the caller calls again, in another batch and with this progress.
    pub fn delete_many<'k>(
        &mut self,
        table: &[u8],
        keys: impl Iterator<Item = &'k [u8]> + Clone,
        progress: &mut ManyProgress,
    ) -> Result<Vec<bool>, Refusal> {
        let table = self.share_for(table, progress)?;
        let begun = progress.0.take();
        let mut begun = match begun {
            Some(begun) => self.continue_in(&table, *begun)?,
            None => {
                self.credits_for(keys.clone().count())?;
                BegunRequest { line: table.line(), ..BegunRequest::default() }
            }
        };
        let outcome = self.delete_some(&table, keys.skip(begun.deleted.len()), &mut begun.deleted);
        self.await_table(&table, &outcome, begun.deleted.contains(&true));
        if outcome == Err(Refusal::Busy) {
            progress.0 = Some(Box::new(begun));
            return Err(Refusal::Busy);
        }
        outcome.map(|()| begun.deleted)
    }

    fn delete_some<'k>(
        &mut self,
        table: &Table,
        keys: impl Iterator<Item = &'k [u8]> + Clone,
        deleted: &mut Vec<bool>,
    ) -> Result<(), Refusal> {
        let mut ahead = Prefetch::of(keys.clone());
        let mut is_later = false;
        for key in keys {
            if std::mem::replace(&mut is_later, true) {
                self.make_way(table)?;
            }
            let place = ahead.step(table, &self.guard);
            deleted.push(self.change_one(|ops| {
                ops.place = place;
                match ops.remove(table, key, None, Cause::Delete) {
                    Ok(_) => Ok(true),
                    Err(Refusal::KeyNotFound) => Ok(false),
                    Err(refusal) => Err(refusal),
                }
            })?);
        }
        Ok(())
    }

    /// Returns `Busy` unless there are credits for so many changes, or all that this thread can have.
    fn credits_for(&mut self, changes: usize) -> Result<(), Refusal> {
        let capacity = self.session.writer.capacity();
        self.ops().credits((CREDITS_PER_WRITE * changes).min(capacity))
    }

    /// Between two elements: the session that latches the table need not wait for the others.
    fn make_way(&mut self, table: &Table) -> Result<(), Refusal> {
        if self.session.meets_latch(canonical(table.announced_name())) { Err(Refusal::Busy) } else { Ok(()) }
    }

    /// Makes one change of many.
    fn change_one<R>(&mut self, change: impl FnOnce(&mut Ops<'_>) -> Result<R, Refusal>) -> Result<R, Refusal> {
        let outcome = change(&mut self.ops());
        if outcome.is_ok() {
            // While the later changes are made.
            self.free_replaced();
        }
        outcome
    }
}

impl BegunRequest {
    /// `TableNotFound` if the table was deleted since, and created anew.
    fn goes_on_in(&self, table: &Table) -> Result<(), Refusal> {
        if self.line == table.line() { Ok(()) } else { Err(Refusal::TableNotFound) }
    }

    /// Keeps the memory that was admitted for the pairs that are left.
    fn reserve_rest(&mut self, shared: &Arc<TablesShared>) {
        let (pairs, bytes) = self.admitted;
        let [pairs, left] = [pairs.max(1), pairs.saturating_sub(self.done)].map(signed);
        self.reserved = Some(Reservation::new(shared, bytes.max(0) / pairs * left));
    }
}
