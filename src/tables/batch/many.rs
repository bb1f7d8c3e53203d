//! Requests for many elements of a table. Each element is read or changed atomically, the whole is not.

use super::Batch;
use crate::clock::Now;
use crate::tables::Refusal;
use crate::tables::lookup::find_live;
use crate::tables::ops::{CREDITS_PER_WRITE, Ops, Write};
use crate::tables::prefetch::Prefetch;

impl Batch<'_> {
    /// Appends the value of each key, in order, or `None` for a key without an element.
    ///
    /// # Errors
    /// `TableNotFound`. `values` may then have some of the values.
    pub fn get_many<'b, 'k>(
        &'b mut self,
        table: &[u8],
        keys: impl Iterator<Item = &'k [u8]> + Clone,
        values: &mut Vec<Option<&'b [u8]>>,
    ) -> Result<(), Refusal> {
        self.on(table, |ops, table| {
            let mut ahead = Prefetch::of(keys.clone());
            for key in keys {
                match find_live(table, key, ahead.step(table, ops.guard), ops.guard, ops.now) {
                    Ok(entry) => values.push(Some(entry.value())),
                    Err(Refusal::KeyNotFound) => values.push(None),
                    Err(refusal) => return Err(refusal),
                }
            }
            Ok(())
        })
    }

    /// Adds or replaces each pair, one by one and in order. `ttl` as in [`Batch::update`].
    ///
    /// It may wait for the publisher between two pairs. It then holds no guard, and reads the clock, `now`, afterwards.
    ///
    /// # Errors
    /// `TableNotFound`: the pairs that were applied before the table was deleted remain committed.
    /// `OutOfMemory`, `Busy`: the call has changed no element. The exception is a key that agrees with 15 others in 32
    /// bits of the hash: it is refused as `OutOfMemory`, and the pairs before it remain committed.
    pub fn update_many<'p>(
        &mut self,
        table: &[u8],
        ttl: Option<u32>,
        pairs: impl Iterator<Item = (&'p [u8], &'p [u8])> + Clone,
        now: impl Fn() -> Now,
    ) -> Result<(), Refusal> {
        let table = self.share(table)?;
        let (needed, count) = self.ops().cost_of_pairs(&table, pairs.clone(), ttl);
        self.ops().admit(needed)?;
        self.credits_for(count)?;
        let mut ahead = Prefetch::of(pairs.clone().map(|(key, _)| key));
        for (key, value) in pairs {
            let place = ahead.step(&table, &self.guard);
            self.change_one(&now, |ops| {
                // The memory of this pair has been admitted with the others.
                (ops.admitted, ops.place) = (true, place);
                ops.put(&table, Write::update(key, value, ttl)).map(drop)
            })?;
        }
        Ok(())
    }

    /// Deletes each key, one by one and in order. Appends whether it had an element.
    ///
    /// It may wait as [`Batch::update_many`] does.
    ///
    /// # Errors
    /// `TableNotFound`: the keys that were deleted before the table was deleted remain so.
    /// `Busy`: the call has changed no element.
    pub fn delete_many<'k>(
        &mut self,
        table: &[u8],
        keys: impl Iterator<Item = &'k [u8]> + Clone,
        deleted: &mut Vec<bool>,
        now: impl Fn() -> Now,
    ) -> Result<(), Refusal> {
        let table = self.share(table)?;
        self.credits_for(keys.clone().count())?;
        let mut ahead = Prefetch::of(keys.clone());
        for key in keys {
            let place = ahead.step(&table, &self.guard);
            deleted.push(self.change_one(&now, |ops| {
                ops.place = place;
                match ops.remove(&table, key, None) {
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

    /// Makes one change of many. While it is busy, it waits for the publisher without a guard, and reads the clock
    /// afterwards.
    fn change_one<R>(
        &mut self,
        now: &impl Fn() -> Now,
        mut change: impl FnMut(&mut Ops<'_>) -> Result<R, Refusal>,
    ) -> Result<R, Refusal> {
        loop {
            let outcome = change(&mut self.ops());
            if !matches!(outcome, Err(Refusal::Busy)) {
                // While the later changes are made.
                self.free_replaced();
                return outcome;
            }
            self.session.writer.tell();
            let session = &mut *self.session;
            self.guard.repin_after(|| {
                session.pending_sends.run(&session.shared);
                session.wait();
            });
            self.now = now();
        }
    }
}
