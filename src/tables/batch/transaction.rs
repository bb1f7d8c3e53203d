//! Transactions: operations of one session that no other session sees or changes in part.
//!
//! ```text
//! keep_credits ─► latch ─► Busy: others have their turns, then it is tried again ─► held ─► begin_transaction ─► operations ─► end
//!      └─► Busy                                                                             └─► Busy, OutOfMemory: nothing is changed
//! ```
//! Credits, memory and room for the records of all operations are there before the first of them. The session keeps the credits while it waits for
//! the latch: otherwise small changes of its other requests could take them each time. Should credits run out on the way,
//! the thread waits for the publisher with the latch held and without a guard: the publisher may wait for guards, and waits for
//! no session.

use super::{Batch, LATCH, Session, Wanted};
use crate::feed::Cause;
use crate::tables::Refusal;
use crate::tables::durable::limits::TRANSACTION_EFFECTS_MAX;
use crate::tables::durable::records::table_record_bytes;
use crate::tables::durable::writer::RecordNeeds;
use crate::tables::memory_budget::{EXTENSION_COST, TIMER_BYTES, entry_bytes, slot_bytes};
use crate::tables::ops::effects::refusal;

/// How long a session sleeps before it looks again whether the batches that hold up its latch are over. They take some
/// microseconds as a rule, and wake nobody.
pub const LATCH_RECHECK: std::time::Duration = std::time::Duration::from_micros(50);

/// Credits of a change in a transaction: for itself, for an expired entry that it finds, and for a slot of the key in an
/// older life of the table.
const CREDITS_PER_CHANGE: usize = 3;

/// What a transaction needs before it begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransactionNeeds {
    /// Changes of elements, at most.
    pub changes: usize,
    bytes: i64,
    records: RecordNeeds,
}

/// The largest that a transaction makes the element of a key.
#[derive(Clone, Copy, Debug)]
pub struct ElementGrowth {
    /// Bytes of the key.
    pub key: usize,
    /// Bytes of the value that it has. `None`: it has no element.
    pub value: Option<usize>,
    /// Bytes of the longest value that it gets.
    pub longest: usize,
    /// Whether it has a deadline.
    pub has_deadline: bool,
}

impl TransactionNeeds {
    /// Credits for so many changes, and no memory.
    #[must_use]
    pub fn of_changes(changes: usize) -> Self {
        Self { changes, ..Self::default() }
    }

    /// Adds the memory of a key that is stored.
    pub fn add(&mut self, growth: ElementGrowth) {
        let ElementGrowth { key, value, longest, has_deadline } = growth;
        let slot = if value.is_none() { slot_bytes(key, true) } else { 0 };
        let deadline = if has_deadline { 0 } else { TIMER_BYTES + EXTENSION_COST };
        let entry = entry_bytes(longest) - value.map_or(0, entry_bytes);
        self.bytes += slot + deadline + entry.max(0);
    }
}

impl Batch<'_> {
    /// Takes the latches of these names, or finds that the session holds them. From then on no other session sees or changes
    /// an element of their tables, until [`Session::end_latch`].
    ///
    /// # Errors
    /// `Busy`: other sessions are at work there. The caller ends the batch, and tries again later ([`Session::watch_latch`]).
    pub fn latch(&mut self, names: &[&[u8]]) -> Result<(), Refusal> {
        let Session { shared, writer, access, wanted, .. } = &mut *self.session;
        let (latches, seat) = (&shared.catalog.latches, &mut access.seat);
        if !seat.covers(names) && !seat.is_waiting() {
            latches.release(seat);
            latches.claim(seat, names, writer.sleeper());
        }
        if seat.covers(names) && latches.poll(seat) {
            return Ok(());
        }
        wanted.resource = LATCH;
        Err(Refusal::Busy)
    }

    /// Keeps credits for so many changes until the transaction begins, or all that this session can have. Until then other
    /// changes of the session are refused as `Busy` if they would need them, and wait as for a latch.
    ///
    /// # Errors
    /// `Busy` for want of credits.
    pub fn keep_credits(&mut self, changes: usize) -> Result<(), Refusal> {
        let Session { writer, wanted, .. } = &mut *self.session;
        let credits = (CREDITS_PER_CHANGE * changes).min(writer.capacity());
        if writer.keep(credits) {
            return Ok(());
        }
        if writer.kept() > 0 {
            // Another transaction of the session waits for its latch. This one comes behind it.
            wanted.resource = LATCH;
        } else {
            *wanted = Wanted { resource: credits, credits };
        }
        Err(Refusal::Busy)
    }

    /// Adds a change of a key to the needs of a transaction. It stores a value of so many bytes, or removes one. A change that
    /// keeps the value stores none. The session holds the latch of the table.
    ///
    /// # Errors
    /// `Busy`: the transaction would have to wait for the publisher halfway. The latches are released.
    pub fn add_change(
        &mut self,
        needs: &mut TransactionNeeds,
        table: &[u8],
        key: &[u8],
        value: Option<usize>,
    ) -> Result<(), Refusal> {
        needs.changes += 1;
        match self.on(table, |ops, table| ops.record_bytes(table, key, value)) {
            Ok(bytes) => {
                needs.records.bytes += bytes;
                needs.records.adds |= bytes > 0 && value.is_some();
                Ok(())
            }
            Err(Refusal::TableNotFound) => Ok(()),
            Err(refusal) => {
                self.session.end_latch();
                Err(refusal)
            }
        }
    }

    /// Adds the replacement of a table to the needs of a transaction.
    pub fn add_replacement(&mut self, needs: &mut TransactionNeeds, table: &[u8]) {
        needs.records.bytes += self.on(table, |_, table| Ok(table_record_bytes(table))).unwrap_or(0);
    }

    /// Begins a transaction: none of its operations is refused for want of memory, or waits for the log. The session holds the
    /// latches.
    ///
    /// # Errors
    /// `Busy` for want of credits, of a look of the compactor or of room for the records, `OutOfMemory`, `OutOfDisk`,
    /// `DiskFailed`. Nothing is changed, and the latches are released.
    pub fn begin_transaction(&mut self, needs: TransactionNeeds) -> Result<(), Refusal> {
        self.session.writer.keep_none();
        let begun = self.admit_transaction(needs);
        self.session.access.seat.is_in_transaction = begun.is_ok();
        if begun.is_err() {
            self.session.end_latch();
        }
        if begun == Err(Refusal::DiskFailed) {
            // The refusal shows nothing of what was looked at.
            self.take_awaited();
        }
        begun
    }

    fn admit_transaction(
        &mut self,
        TransactionNeeds { changes, bytes, records }: TransactionNeeds,
    ) -> Result<(), Refusal> {
        let has_records = records.bytes > 0;
        // Inside an epoch nothing waits: the log would wait for it.
        let credits = CREDITS_PER_CHANGE * changes;
        if has_records && (records.bytes > TRANSACTION_EFFECTS_MAX || credits > self.session.writer.capacity()) {
            return Err(Refusal::OutOfMemory);
        }
        self.change_credits(changes)?;
        self.ops().admit(bytes)?;
        let Session { effects, wanted, .. } = &mut *self.session;
        effects.begin_transaction(records).map_err(|not_entered| refusal(not_entered, wanted))
    }

    /// The transaction is over. The latches stay with the session until [`Session::end_latch`].
    pub fn end_transaction(&mut self) {
        self.session.access.seat.is_in_transaction = false;
        self.session.effects.end_transaction();
    }

    /// Releases the latches before the transaction has begun.
    pub fn give_up_latch(&mut self) {
        self.session.give_up_latch();
    }

    /// Whether a transaction is being carried out.
    #[must_use]
    pub fn is_in_transaction(&self) -> bool {
        self.session.access.seat.is_in_transaction
    }

    /// Makes a change of a transaction. Where credits have run out, the thread waits for the publisher.
    ///
    /// # Errors
    /// Those of the change. `Busy` is none of them.
    pub fn insist<R>(&mut self, mut change: impl FnMut(&mut Self) -> Result<R, Refusal>) -> Result<R, Refusal> {
        loop {
            match change(self) {
                Err(Refusal::Busy) => self.wait(),
                outcome => return outcome,
            }
        }
    }

    /// Deletes an element for this cause.
    ///
    /// # Errors
    /// `TableNotFound`, `KeyNotFound`, `Busy`.
    pub fn delete_for(&mut self, table: &[u8], key: &[u8], cause: Cause) -> Result<(), Refusal> {
        self.on(table, |ops, table| ops.remove(table, key, None, cause).map(drop))
    }

    /// Credits for so many changes of a transaction, or all that this session can have. Inside an epoch the credits of all
    /// changes are there already.
    ///
    /// # Errors
    /// `Busy`.
    pub fn change_credits(&mut self, changes: usize) -> Result<(), Refusal> {
        if self.session.effects.is_inside() {
            return Ok(());
        }
        let capacity = self.session.writer.capacity();
        self.ops().credits((CREDITS_PER_CHANGE * changes).min(capacity))
    }

    /// Waits for what the operation lacks that was refused last. The guard is released meanwhile, and the batch is over for
    /// the sessions that wait for its end. Sessions that meet its latch wait, and no others.
    ///
    /// # Panics
    /// If the operation was refused for a latch: two sessions could wait for each other.
    pub fn wait(&mut self) {
        let Self { session, guard, .. } = self;
        assert_ne!(session.wanted.resource, LATCH, "a transaction holds the latches of all its tables");
        session.writer.wake_publisher();
        guard.repin_after(|| {
            session.access.seat.end_batch();
            session.wait();
            // Before the fence of the pin.
            session.access.seat.begin_batch();
        });
    }
}

impl Session {
    /// Whether the requests that were refused as `Busy` for a latch are worth another try. If not, another thread calls the
    /// waker when they are, or the caller looks again after [`LATCH_RECHECK`] while [`Session::is_latching`].
    #[must_use]
    pub fn watch_latch(&mut self) -> bool {
        let (latches, seat) = (&self.shared.catalog.latches, &mut self.access.seat);
        let is_held = latches.poll(seat);
        let met = latches.met(seat);
        is_held || met.owed > 0 || met.held == 0 && !seat.is_waiting()
    }

    /// The caller is about to try each request that was refused for a latch, and then calls [`Session::note_tried`].
    pub fn begin_tries(&mut self) {
        self.shared.catalog.latches.begin_to_repay(&self.access.seat);
    }

    /// Each request that was refused for a latch has been tried since [`Session::begin_tries`]. A released latch is taken anew
    /// only after that.
    #[inline]
    pub fn note_tried(&mut self) {
        self.shared.catalog.latches.repay(&mut self.access.seat);
    }

    /// Whether the session claims a latch, and waits for other batches to end.
    #[must_use]
    pub fn is_latching(&self) -> bool {
        self.access.seat.is_waiting()
    }

    /// Releases the latches if the session holds them.
    #[inline]
    pub fn end_latch(&mut self) {
        if self.access.seat.is_held() {
            self.give_up_latch();
        }
    }

    /// No request waits for a latch. Gives the claim up that nobody needs any more. The session is owed no turn: a request may
    /// have been tried again before the release was noted.
    #[inline]
    pub fn note_none_waits(&mut self) {
        self.give_up_latch();
        self.shared.catalog.latches.forget_met(&mut self.access.seat);
    }

    /// As [`Session::end_claims`], while the session needs its own claim.
    pub(in crate::tables) fn forget_met_latches(&mut self) {
        self.shared.catalog.latches.forget_met(&mut self.access.seat);
    }

    /// Releases the latches that the session holds, or gives its claim up.
    pub fn give_up_latch(&mut self) {
        self.writer.keep_none();
        self.shared.catalog.latches.release(&mut self.access.seat);
    }
}
