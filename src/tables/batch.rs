//! Sessions and batches: a thread's access to the tables, and operations under one guard and one reading of the clock.
//!
//! This is the public interface of the tables. The operations on elements are in `ops.rs`, those on whole tables in
//! `batch/tables.rs`. The requests for many elements are in `batch/many.rs` and `batch/scan.rs`.

mod access;
mod alter;
mod many;
mod scan;
mod tables;
mod transaction;
mod waiting;

pub use many::{ManyProgress, PORTION_BYTES};
pub use transaction::{ElementGrowth, LATCH_RECHECK, TransactionNeeds};
pub use waiting::Lack;

use std::sync::Arc;
#[cfg(not(target_arch = "x86_64"))]
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use crossbeam::epoch::{self, Guard};

use super::change::{ChangeWriter, WAIT_RECHECK};
use super::durable::writer::EffectWriter;
use super::garbage::Garbage;
use super::index::Place;
use super::lookup::find_live;
use super::memory_budget::LocalBudget;
use super::ops::{Admission, Edit, ElementView, LATCH, LOG, MEMORY, Ops, Wanted, Write};
use super::pending_sends::PendingSends;
use super::sleeper::Sleeper;
use super::slot::{EntryRef, NEVER};
use super::table::Table;
use super::{Addition, AudienceHold, AudienceKind, Deadline, EntryView, Refusal, Restored, TablesShared};
use crate::clock::Now;
use crate::feed::Cause;
use crate::limits::COMPACTOR_HURRY;
use access::TableAccess;

/// One thread's access to the tables. It owns that thread's change ring.
pub struct Session {
    shared: Arc<TablesShared>,
    writer: ChangeWriter,
    local_budget: LocalBudget,
    garbage: Garbage,
    /// The last call of the compactor that this session has acknowledged.
    acknowledged: u64,
    wanted: Wanted,
    /// Messages that found a full queue. The batch sends them when it has released its guard.
    pending_sends: PendingSends,
    /// The steps of the reaper before the last attempt to create a table.
    reaper_steps: u64,
    /// How it reaches tables.
    access: TableAccess,
    /// Where the slot of the next operation's key may be seen.
    place: Place,
    /// Nanoseconds from deadlines to the expiries that the batch has committed. Counted when the batch ends.
    lags: Vec<u64>,
    /// What it records of durable tables.
    effects: EffectWriter,
}

impl Session {
    pub(super) fn new(shared: Arc<TablesShared>) -> Self {
        let writer = shared.change_queue.writer();
        shared.compactor.enter(writer.sleeper());
        let acknowledged = shared.compactor.calls();
        let garbage = Garbage::new(shared.memory_budget.garbage());
        let effects = EffectWriter::new(&shared.epochs);
        let access = TableAccess { known: None, seat: shared.catalog.latches.seat() };
        Self {
            shared,
            writer,
            local_budget: LocalBudget::default(),
            garbage,
            acknowledged,
            wanted: Wanted::default(),
            pending_sends: PendingSends::default(),
            reaper_steps: 0,
            access,
            place: Place::NONE,
            lags: Vec::new(),
            effects,
        }
    }

    /// The tables.
    pub(super) fn shared(&self) -> &Arc<TablesShared> {
        &self.shared
    }

    /// Wakes the thread of the session.
    pub(super) fn sleeper(&self) -> &Arc<Sleeper> {
        self.writer.sleeper()
    }

    /// Pins this thread and opens a batch of operations. The caller receives all requests of the batch before this call
    /// and before it reads `now`. A batch that took later requests could answer them by a state from before they were
    /// sent.
    pub fn batch(&mut self, now: Now) -> Batch<'_> {
        // Before the fence of the pin: `latch.rs` has the race.
        self.access.seat.begin_batch();
        Batch { guard: epoch::pin(), session: self, now }
    }

    fn ops<'h>(&'h mut self, guard: &'h Guard, now: Now) -> Ops<'h> {
        let Self { shared, writer, local_budget, garbage, wanted, lags, pending_sends, place, access, effects, .. } =
            self;
        let admission = if access.seat.is_in_transaction { Admission::Given } else { Admission::Asked };
        Ops {
            shared,
            writer,
            local_budget,
            garbage,
            wanted,
            lags,
            pending_sends,
            effects,
            guard,
            now,
            place: std::mem::replace(place, Place::NONE),
            admission,
        }
    }

    /// The longest time that this thread may wait for work before it calls [`Session::rest`] again. A call of the
    /// compactor ends the wait earlier if the waker of [`Session::set_waker`] does.
    #[must_use]
    pub fn patience(&self) -> Duration {
        let patience = self.garbage.patience();
        if self.shared.compactor.is_wanted() { patience.min(COMPACTOR_HURRY) } else { patience }
    }

    /// Frees the memory that this thread has replaced, once it has replaced none for a while. A thread that waits for
    /// work calls this between batches.
    pub fn rest(&mut self, now: Now) {
        self.garbage.rest(now);
        self.local_budget.rest(&self.shared.memory_budget, now);
        self.acknowledge();
    }

    /// Asks the allocator to give back the memory that it keeps for this thread, if the compactor has called for it.
    #[inline]
    fn acknowledge(&mut self) {
        if self.is_called() {
            self.acknowledged = self.shared.compactor.calls();
            self.shared.compactor.collect();
        }
    }

    /// Whether the compactor has called since this session last acknowledged a call.
    #[inline]
    fn is_called(&self) -> bool {
        self.acknowledged != self.shared.compactor.calls()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.local_budget.settle(&self.shared.memory_budget);
        self.shared.compactor.leave(self.writer.sleeper());
        self.shared.catalog.latches.leave(&mut self.access.seat);
    }
}

/// Releases what the guard keeps, and pins the guard again.
fn repin(guard: &mut Guard) {
    guard.repin();
    // `repin` has no fence of its own, and whether there is an audience must be read after it. On this processor no load
    // overtakes an earlier one.
    #[cfg(not(target_arch = "x86_64"))]
    fence(Ordering::SeqCst);
}

/// Operations under one guard and one reading of the clock. A thread drops it before it waits for anything.
///
/// The returned values are borrowed from the batch, not copied.
pub struct Batch<'s> {
    session: &'s mut Session,
    guard: Guard,
    now: Now,
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        // No element is looked at from here on. What follows may wait.
        self.session.access.seat.end_batch();
        let Session { shared, writer, lags, .. } = &mut *self.session;
        writer.wake_publisher();
        if !lags.is_empty() {
            shared.expiry.count_expired(lags);
        }
        if !self.session.pending_sends.is_empty() {
            let Session { shared, pending_sends, .. } = &mut *self.session;
            self.guard.repin_after(|| pending_sends.run(shared));
        }
        if self.session.is_called() {
            // Collecting takes some ms if there is much memory. The guard is released, so no epoch is held back.
            let session = &mut *self.session;
            self.guard.repin_after(|| session.acknowledge());
        }
    }
}

impl Batch<'_> {
    /// The reading of the clock: TTLs count from it ([`Deadline::after`]).
    #[must_use]
    #[inline]
    pub fn now(&self) -> Now {
        self.now
    }

    /// As [`Session::hold_audience`]. It does not wait, and the audience begins at the earliest when this batch is over.
    pub fn hold_audience(&self, topic: &[u8], kind: AudienceKind, begun: Box<dyn FnOnce() + Send>) -> AudienceHold {
        self.session.hold_audience(topic, kind, begun)
    }

    /// Does long work that looks at no element. The guard is released, so no epoch is held back, and the batch is over for
    /// the sessions that wait for its end.
    pub fn aside<R>(&mut self, work: impl FnOnce() -> R) -> R {
        let seat = &mut self.session.access.seat;
        self.guard.repin_after(|| {
            seat.end_batch();
            let done = work();
            // Before the fence of the pin.
            seat.begin_batch();
            done
        })
    }

    /// Adds or replaces.
    ///
    /// # Errors
    /// `TableNotFound`, `OutOfMemory`, `Busy`.
    pub fn update(&mut self, table: &[u8], key: &[u8], value: &[u8], deadline: Deadline) -> Result<(), Refusal> {
        self.on(table, |ops, table| ops.put(table, Write::update(key, value, deadline)).map(drop))
    }

    /// Deletes. Returns the deleted value.
    ///
    /// # Errors
    /// `TableNotFound`, `KeyNotFound`, `Busy`.
    pub fn delete(&mut self, table: &[u8], key: &[u8]) -> Result<&[u8], Refusal> {
        self.on(table, |ops, table| ops.remove(table, key, None, Cause::Delete))
    }

    /// Returns the value.
    ///
    /// # Errors
    /// `TableNotFound`, `KeyNotFound`.
    pub fn get(&mut self, table: &[u8], key: &[u8]) -> Result<&[u8], Refusal> {
        self.live(table, key).map(|entry| entry.value())
    }

    /// Returns the value, its version and the rest of its time to live. The rest is computed by a reading of the clock,
    /// `now`, that is taken after the element was seen. So it is never more than the time to live that was set,
    /// whichever thread set it and however late.
    ///
    /// # Errors
    /// `TableNotFound`, `KeyNotFound`.
    pub fn get_entry(&mut self, table: &[u8], key: &[u8], now: impl FnOnce() -> Now) -> Result<EntryView<'_>, Refusal> {
        let entry = self.live(table, key)?;
        let deadline = entry.deadline();
        Ok(EntryView {
            value: entry.value(),
            version: entry.version(),
            remaining_millis: (deadline != NEVER).then(|| now().millis_until(deadline)),
        })
    }

    /// Adds or replaces if the version is `expected` (0: if there is no element). Returns the new version.
    ///
    /// # Errors
    /// `TableNotFound`, `VersionMismatch`, `OutOfMemory`, `Busy`.
    pub fn compare_and_swap(
        &mut self,
        table: &[u8],
        key: &[u8],
        expected: u64,
        value: &[u8],
        deadline: Deadline,
    ) -> Result<u64, Refusal> {
        let (expected, cause) = (Some(expected), Cause::CompareAndSwap);
        let write = Write { expected, cause, ..Write::update(key, value, deadline) };
        self.on(table, |ops, table| ops.put(table, write))
    }

    /// Deletes if the version is `expected`. Returns the deleted value.
    ///
    /// # Errors
    /// `TableNotFound`, `VersionMismatch`, `Busy`. `KeyNotFound` if there is no element and 0 was expected.
    pub fn compare_and_delete(&mut self, table: &[u8], key: &[u8], expected: u64) -> Result<&[u8], Refusal> {
        self.on(table, |ops, table| ops.remove(table, key, Some(expected), Cause::Delete))
    }

    /// Restores an element: stores its value with its version of elsewhere, unless the key has a version that is not lower. It
    /// is for a table that is filled with restored elements. The later versions of the key are above all that may have been given out.
    ///
    /// # Errors
    /// `TableNotFound`, `OutOfMemory`, `Busy`. `VersionRefused`: the key has no slot, and the version was perhaps given out
    /// before; or no server with a clock within a day of ours can have given it. In a table all of whose elements are
    /// restored, an element whose version is not above those that have left gets a new one instead.
    pub fn restore(
        &mut self,
        table: &[u8],
        key: &[u8],
        value: &[u8],
        version: u64,
        deadline: Deadline,
    ) -> Result<Restored, Refusal> {
        self.on(table, |ops, table| ops.restore(table, key, value, version, deadline))
    }

    /// Returns the element.
    ///
    /// # Errors
    /// `TableNotFound`, `KeyNotFound`.
    pub fn element(&mut self, table: &[u8], key: &[u8]) -> Result<ElementView<'_>, Refusal> {
        self.live(table, key).map(ElementView::of)
    }

    /// Changes an element as `edit` says, which is called with the element, or with `None` if there is none. If another
    /// thread changes the element meanwhile, `edit` is called anew. Returns what it returned beside the change, and the
    /// version of the element afterwards, 0 for none.
    ///
    /// # Errors
    /// `TableNotFound`, `OutOfMemory`, `Busy`.
    pub fn edit<'b, V: AsRef<[u8]>, R>(
        &'b mut self,
        table: &[u8],
        key: &[u8],
        edit: impl FnMut(Option<ElementView<'b>>) -> (Edit<V>, R),
    ) -> Result<(R, u64), Refusal> {
        self.free_replaced();
        self.on(table, |ops, table| ops.edit(table, key, edit))
    }

    /// Sets the deadline. The value stays, and the element gets a new version. Subscribers do not receive it.
    ///
    /// # Errors
    /// `TableNotFound`, `KeyNotFound`, `Busy`. `OutOfMemory` if an element without a deadline gets one, and the wheel
    /// record does not fit into memory.
    pub fn touch(&mut self, table: &[u8], key: &[u8], deadline: Deadline) -> Result<(), Refusal> {
        self.free_replaced();
        self.on(table, |ops, table| ops.touch(table, key, deadline).map(drop))
    }

    /// Adds to the decimal number that the value is, and stores the sum. An absent element counts as 0 and gets the
    /// addition's deadline. An element that exists keeps its own. Returns the sum and its
    /// version.
    ///
    /// # Errors
    /// `TableNotFound`, `NotANumber`, `OutOfRange`, `ValueTooLong`, `OutOfMemory`, `Busy`.
    pub fn increment(&mut self, table: &[u8], key: &[u8], addition: Addition) -> Result<(i64, u64), Refusal> {
        self.on(table, |ops, table| ops.increment(table, key, addition))
    }

    /// Sets the deadline as [`Batch::touch`] does, and returns the value.
    ///
    /// # Errors
    /// Those of [`Batch::touch`].
    pub fn get_and_touch(&mut self, table: &[u8], key: &[u8], deadline: Deadline) -> Result<&[u8], Refusal> {
        self.free_replaced();
        self.on(table, |ops, table| ops.touch(table, key, deadline))
    }

    /// Lets the entries that earlier operations of the batch replaced be freed, if that is worth it. For operations
    /// that replace a large entry by a small request: a batch of them would keep many times the memory of its elements.
    #[inline]
    fn free_replaced(&mut self) {
        if self.session.garbage.take_flushed() {
            repin(&mut self.guard);
        }
    }

    /// What the session records.
    #[inline]
    pub(super) fn effects(&mut self) -> &mut EffectWriter {
        &mut self.session.effects
    }

    pub(super) fn ops(&mut self) -> Ops<'_> {
        self.session.ops(&self.guard, self.now)
    }

    /// The answer waits until all is on disk that the table shows, if it is always there.
    pub(super) fn on<'b, R>(
        &'b mut self,
        table: &[u8],
        verb: impl FnOnce(&mut Ops<'b>, &'b Table) -> Result<R, Refusal>,
    ) -> Result<R, Refusal> {
        // What is refused for the disk has changed nothing, and shows nothing.
        self.on_awaited(table, verb, |outcome| !matches!(outcome, Err(Refusal::DiskFailed)))
    }

    /// As [`Batch::on`], for an answer that waits for each element that it shows.
    fn on_elements<'b, R>(
        &'b mut self,
        table: &[u8],
        verb: impl FnOnce(&mut Ops<'b>, &'b Table) -> Result<R, Refusal>,
    ) -> Result<R, Refusal> {
        self.on_awaited(table, verb, Result::is_err)
    }

    /// As [`Batch::on`], for an answer that waits for the table if `waits` says so of its outcome.
    #[inline]
    fn on_awaited<'b, R>(
        &'b mut self,
        table: &[u8],
        verb: impl FnOnce(&mut Ops<'b>, &'b Table) -> Result<R, Refusal>,
        waits: impl FnOnce(&Result<R, Refusal>) -> bool,
    ) -> Result<R, Refusal> {
        self.on_published(table, |ops, table| {
            let outcome = verb(ops, table);
            if table.is_always() && waits(&outcome) {
                ops.effects.await_table(table);
            }
            outcome
        })
    }

    /// As [`Batch::on`], for an answer that shows only what was published, which is on disk.
    pub(super) fn on_published<'b, R>(
        &'b mut self,
        table: &[u8],
        verb: impl FnOnce(&mut Ops<'b>, &'b Table) -> Result<R, Refusal>,
    ) -> Result<R, Refusal> {
        let Self { session, guard, now } = self;
        let table = session.reach(table, guard)?;
        verb(&mut session.ops(guard, *now), table)
    }

    /// The live entry of a key.
    #[inline]
    fn live(&mut self, table: &[u8], key: &[u8]) -> Result<EntryRef<'_>, Refusal> {
        let Self { session, guard, now } = self;
        let place = std::mem::replace(&mut session.place, Place::NONE);
        let table = session.reach(table, guard)?;
        let found = find_live(table, key, place, guard, *now);
        if table.is_always() {
            session.effects.await_element(table, key, found.ok(), guard);
        }
        found
    }

    /// The table of this name with a reference: for an operation that releases its guard halfway.
    fn share(&mut self, table: &[u8]) -> Result<Arc<Table>, Refusal> {
        let Self { session, guard, .. } = self;
        let found = session.reach(table, guard)?;
        session.shared.catalog.registry().keep(found, guard).ok_or(Refusal::TableNotFound)
    }
}
