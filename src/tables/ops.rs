//! The operations on elements: store, delete and expire here; in the files below, edit, increment, touch, and the
//! sealing of a deleted table's slots.
//!
//! Each operation that changes an element emits its change, its due message and its costs in the same place, so no
//! caller can forget them. A store that nobody receives emits no change (`announce/audience.rs`). No operation waits:
//! without credits a write returns `Busy` and changes no element.
//!
//! # A write
//!
//! ```text
//! credit? ─► find the slot ─► load the word
//!              │ none, dead     │ live ───────────► CAS to the new entry ──► change, due message, costs
//!              ▼                │ deadline passed ─► CAS to absent, DELETED ─► again
//!        settle the key in      │ absent ─────────► CAS to the new entry ──► change, due message, costs
//!        older tables of the    └ the CAS fails ──► again
//!        name; insert a new slot
//! ```
//! A writer takes its credit before the CAS and pushes the change after it, and does not wait in between. So every
//! change that the publisher waits for arrives.
//!
//! # Races
//!
//! Each is written out where it is handled:
//!
//! | between | at |
//! |---|---|
//! | two writers, a writer and a retirement, a seal or a move | [`Ops::overwrite`] |
//! | a new slot and another one, the reaper, an older table of the name | [`Ops::create`] |
//! | a reader and a new entry, a retirement, a move, a deadline | `lookup.rs` |
//! | two threads that seal | [`Ops::seal`] |
//! | a write and the expiry thread | `SlotRef::arm`, `expiry.rs` |
//! | a commit and the publisher | [`Ops::committed`], `announce.rs` |
//!
//! One is everywhere. **An absence and DELETE_TABLE**: a table that is being taken down loses its elements one after
//! another, and no client may see this. So an operation that finds no element then reads whether the table is open. If
//! it is open, the element was absent in an open table, and the reply is `KeyNotFound`. If it is closed, the reaper may
//! have sealed the slot, and the reply is `TableNotFound`. If another life of the table has taken its place, the
//! element was absent there when that began, and a write is tried again, in that life.

mod checks;
mod copy;
mod edit;
pub(super) mod effects;
mod increment;
mod restore;
mod seal;
mod touch;

use crossbeam::epoch::Guard;

use super::change::{Change, ChangeWriter, Commit, Committed};
use super::deadline::Deadline;
use super::durable::writer::EffectWriter;
use super::failpoint::{Failpoint, reach};
use super::garbage::Garbage;
use super::index::{Inserted, Place};
use super::lookup::{Found, absence, look};
use super::memory_budget::{LocalBudget, TIMER_BYTES, entry_bytes, entry_cost, extension_bytes, signed, slot_bytes};
use super::pending_sends::PendingSends;
use super::slot::{
    EXTENSION_BYTES, EntryBox, EntryRef, NEVER, SeenWord, SlotHandle, SlotRef, SlotState, bytes_of_slot,
};
use super::table::Table;
use super::{Refusal, TablesShared};
use crate::allocator::size_class;
use crate::clock::Now;
use crate::feed::Cause;
use checks::check;
pub use edit::{Edit, ElementView};
use effects::{StoredEffect, enter_epoch};
use restore::first_version;

/// Credits of one write, at most: a credit for an expired entry that it finds, and a credit for itself.
pub(super) const CREDITS_PER_WRITE: usize = 2;

/// In `wanted`: the write waits for memory, not for credits.
pub(super) const MEMORY: usize = usize::MAX;

/// In `wanted`: the operation waits for a latch.
pub(super) const LATCH: usize = usize::MAX - 1;

/// In [`Wanted::resource`]: the write waits for the log to take what the session has recorded.
pub(super) const LOG: usize = usize::MAX - 2;

/// What the last `Busy` lacked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted {
    /// A number of credits, [`MEMORY`], [`LATCH`], [`LOG`], or 0 for a table that has to be taken down first.
    pub(super) resource: usize,
    /// The credits that the last `Busy` for want of credits lacked.
    pub(super) credits: usize,
}

/// Whether the memory of a write is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Each write asks for it.
    Asked,
    /// It has been admitted. The write may have to wait for a look of the compactor.
    Counted,
    /// It has been admitted, and nothing may be waited for.
    Given,
}

/// A value to be stored, and the condition under which it is.
#[derive(Clone, Copy)]
pub(super) struct Write<'w> {
    pub(super) key: &'w [u8],
    pub(super) value: &'w [u8],
    pub(super) deadline: Deadline,
    /// The version that the element must have. 0: the key must have no element. `None`: either will do.
    pub(super) expected: Option<u64>,
    /// The cause of the change.
    pub(super) cause: Cause,
    /// The version that a restored element has. `None`: the next one.
    pub(super) version: Option<u64>,
}

impl<'w> Write<'w> {
    /// A write of an UPDATE.
    pub(super) fn update(key: &'w [u8], value: &'w [u8], deadline: Deadline) -> Self {
        Self { key, value, deadline, expected: None, cause: Cause::Set, version: None }
    }

    /// What it does to an element that had a value before, or had none.
    fn committed(&self, replaces_value: bool) -> Committed {
        let stores = matches!(self.cause, Cause::Set | Cause::CompareAndSwap | Cause::Increment);
        let sets_deadline = stores && self.deadline.is_time();
        Committed { cause: self.cause, replaces_value, sets_deadline }
    }
}

/// The reason why one attempt stored nothing.
enum NotStored {
    /// The write is refused.
    Refused(Refusal),
    /// Another thread changed the word first, or inserted a slot for the key. The entry serves the next attempt.
    Overtaken(EntryBox),
}

impl From<Refusal> for NotStored {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Bytes by which the elements grow if an entry of so many bytes replaces the entry `old`.
fn growth(cost: i64, old: Option<EntryRef<'_>>) -> i64 {
    cost - old.map_or(0, entry_cost)
}

/// Bytes of the wheel record that an element needs for `deadline` after the entry `old`. The record's cost is charged
/// when it is filed.
fn timer_bytes(deadline: u64, old: Option<EntryRef<'_>>) -> i64 {
    if deadline == NEVER || old.is_some_and(|old| old.deadline() != NEVER) { 0 } else { TIMER_BYTES }
}

/// Stamps an entry that is about to be stored. Returns whether it is quiet: nobody receives it, so no change of it will
/// be pushed.
fn stamp(table: &Table, entry: &mut EntryBox, version: u64, deadline: u64) -> bool {
    let is_quiet = !table.audience.has_changes();
    entry.stamp(version, deadline);
    if is_quiet {
        entry.make_quiet();
    }
    is_quiet
}

/// The parts of a session and a batch that an operation uses.
pub(super) struct Ops<'h> {
    pub(super) shared: &'h TablesShared,
    pub(super) writer: &'h mut ChangeWriter,
    pub(super) local_budget: &'h mut LocalBudget,
    pub(super) garbage: &'h mut Garbage,
    pub(super) wanted: &'h mut Wanted,
    /// Nanoseconds from the deadlines to the expiries that this batch has committed.
    pub(super) lags: &'h mut Vec<u64>,
    pub(super) pending_sends: &'h mut PendingSends,
    pub(super) effects: &'h mut EffectWriter,
    pub(super) guard: &'h Guard,
    pub(super) now: Now,
    /// Where the slot of the key may be seen.
    pub(super) place: Place,
    pub(super) admission: Admission,
}

impl<'h> Ops<'h> {
    /// Stores a value if the element has the expected version. Returns the new version.
    pub(super) fn put(&mut self, table: &Table, write: Write<'_>) -> Result<u64, Refusal> {
        let mut entry = EntryBox::new(write.value);
        loop {
            let attempt = match look(table, write.key, self.place, self.guard, self.now) {
                Found::Live { slot, seen, entry: old } => self.overwrite(table, &write, entry, slot, seen, Some(old)),
                Found::Absent { slot, seen } => self.overwrite(table, &write, entry, slot, seen, None),
                Found::NoSlot => self.create(table, &write, entry),
                Found::Overdue { slot, seen, .. } => {
                    self.expire(table, slot, seen)?;
                    continue;
                }
            };
            match attempt {
                Ok(version) => return Ok(version),
                Err(NotStored::Refused(refusal)) => return Err(refusal),
                Err(NotStored::Overtaken(unused)) => entry = unused,
            }
        }
    }

    /// Makes one attempt to store in an existing slot.
    ///
    /// All that other threads may do to the slot is a CAS of the same word:
    ///
    /// - **Another writer** stores, deletes or expires. The first CAS commits, and the other one fails. The loser looks
    ///   again and judges the version that it then finds by its own condition.
    /// - **The publisher** retires an absent slot. If it comes first, this thread finds the slot Dead and inserts a
    ///   new slot. If the store comes first, the retirement fails, and the slot stays in use.
    /// - **The reaper** seals the slot after DELETE_TABLE. If the store comes first, the seal deletes this value, and
    ///   both changes are announced. If the seal comes first, this thread finds the slot Dead and the table closed.
    /// - **The compactor** moves the entry or the slot. If it comes first, this thread finds the same version in
    ///   another entry or slot. If the store comes first, the element stays where it is.
    ///
    /// A CAS that succeeds has met the very state that was seen. The guard keeps the seen entry from being freed, so no
    /// later entry has its address. A word without an entry has a version, which never comes again.
    fn overwrite(
        &mut self,
        table: &Table,
        write: &Write<'_>,
        mut entry: EntryBox,
        slot: SlotRef<'h>,
        seen: SeenWord<'h>,
        old: Option<EntryRef<'h>>,
    ) -> Result<u64, NotStored> {
        match old {
            Some(old) => check(write.expected, old.version())?,
            None => self.check_absent(table, write.expected)?,
        }
        let version = self.next_version(table, write, seen)?;
        let growth = growth(signed(size_class(entry.bytes())), old);
        let deadline = write.deadline.of_successor(old);
        self.admit(growth + timer_bytes(deadline, old) + extension_bytes(slot, deadline))?;
        self.credits(1)?;
        let is_quiet = stamp(table, &mut entry, version, deadline);
        let is_durable = self.enter_epoch(table, write.key.len(), Some(write.value.len()))?;
        let keeps_value = entry.is_touched();
        reach(Failpoint::BeforeCas);
        let replaced = match version == seen.version() + 1 {
            true => slot.replace(seen, entry, self.guard).map(|()| slot).map_err(NotStored::Overtaken),
            false => self.jump(table, slot, seen, entry),
        };
        if is_durable {
            let stored = replaced.is_ok().then_some(StoredEffect { version, deadline, keeps_value });
            self.log_store(table, write, old, stored);
        }
        let slot = replaced?;
        self.count_replaced(old);
        self.charge(table, growth);
        table.count_element(old.map(|old| old.deadline()), Some(deadline));
        if old.is_some() && table.eviction.is_allowed() {
            slot.note_use();
        }
        let committed = write.committed(old.is_some());
        let follows_quiet = seen.is_quiet() && version == seen.version() + 1;
        self.stored(table, slot, Commit { version, committed, is_quiet, follows_quiet }, deadline);
        Ok(version)
    }

    /// Makes one attempt to insert a new slot.
    ///
    /// The closure below runs under the lock of the key's bucket. Four other threads may be at work on the key:
    ///
    /// - **Another writer that creates it** takes the same lock. The second one finds the first one's slot and stores
    ///   in it.
    /// - **The reaper removes a dead slot of the key.** It raises the version floor, then takes the slot out under the
    ///   lock. If the removal comes first, this thread reads the raised floor. If this thread comes first, it finds the
    ///   dead slot and gets its version. Either way the new version is above the old ones.
    /// - **The reaper seals a closed table.** It visits each bucket under its lock, after the table was closed. If this
    ///   thread comes first, the reaper finds its slot and seals it. If the reaper comes first, `Table::enter` finds
    ///   the table closed.
    /// - **An older table of the name still has the key.** This thread seals it there first, whatever the reaper has
    ///   done so far. So the older table's last version is known and committed before the new slot begins above it.
    fn create(&mut self, table: &Table, write: &Write<'_>, entry: EntryBox) -> Result<u64, NotStored> {
        self.check_absent(table, write.expected)?;
        let hash = table.hash(write.key);
        let deadline = write.deadline.of_successor(None);
        let cost = slot_bytes(write.key.len(), deadline != NEVER) + entry_bytes(write.value.len());
        self.admit(cost + timer_bytes(deadline, None))?;
        let predecessor_version = self.settle_in_predecessors(table, write.key, hash)?;
        self.credits(1)?;
        reach(Failpoint::BeforeEnter);
        let mut entry = Some(entry);
        let mut made: Option<(SlotHandle, u64)> = None;
        let is_quiet = !table.audience.has_changes();
        let mut replaces = false;
        let mut refused = None;
        if write.version.is_none() {
            table.versions.note_own();
        }
        let entered = table.enter(hash, write.key, self.guard, &mut |dead| {
            let above = self.shared.catalog.floor.get().max(predecessor_version);
            let version = match first_version(table, write, above, dead.unwrap_or(0)) {
                Ok(version) => version,
                Err(refusal) => {
                    refused = Some(refusal);
                    return None;
                }
            };
            // Under the lock of the bucket: what made room for this slot was recorded before.
            if let Err(refusal) =
                enter_epoch(self.effects, self.wanted, table, write.key.len(), Some(write.value.len()))
            {
                refused = Some(refusal);
                return None;
            }
            let mut entry = entry.take()?;
            replaces = dead.is_some();
            entry.stamp(version, deadline);
            if is_quiet {
                entry.make_quiet();
            }
            let slot = SlotHandle::new(table.number(), write.key, entry);
            made = Some((slot.slot().handle(), version));
            Some(slot)
        });
        if table.is_durable() {
            let made = made.as_ref().filter(|_| matches!(entered, Inserted::Created));
            let stored = made.map(|(_, version)| StoredEffect { version: *version, deadline, keeps_value: false });
            self.log_store(table, write, None, stored);
        }
        self.charge(table, table.index().take_growth());
        if replaces {
            self.count_retired(bytes_of_slot(write.key.len(), false));
        }
        match (entered, made, entry) {
            (Inserted::Created, Some((handle, version)), _) => {
                self.charge(table, cost);
                table.count_element(None, Some(deadline));
                let committed = write.committed(false);
                let commit = Commit { version, committed, is_quiet, follows_quiet: false };
                self.stored(table, handle.slot(), commit, deadline);
                Ok(version)
            }
            (Inserted::Occupied, _, Some(entry)) => Err(NotStored::Overtaken(entry)),
            (Inserted::Overfull, ..) => Err(Refusal::OutOfMemory.into()),
            _ => Err(refused.unwrap_or_else(|| self.refuse_closed(table)).into()),
        }
    }

    /// Deletes if the version is `expected`. Returns the value.
    ///
    /// The races are those of [`Ops::overwrite`]. A store may follow before the publisher has announced the deletion.
    /// It brings the element back in the same slot, with a higher version. The publisher then finds the slot not absent
    /// and does not retire it.
    pub(super) fn remove(
        &mut self,
        table: &Table,
        key: &[u8],
        expected: Option<u64>,
        cause: Cause,
    ) -> Result<&'h [u8], Refusal> {
        loop {
            match look(table, key, self.place, self.guard, self.now) {
                Found::Live { slot, seen, entry: old } => {
                    check(expected, old.version())?;
                    self.credits(1)?;
                    self.enter_epoch(table, key.len(), None)?;
                    if self.vacate(table, slot, seen, old, cause) {
                        return Ok(old.value());
                    }
                }
                Found::Overdue { slot, seen, .. } => self.expire(table, slot, seen)?,
                Found::Absent { .. } | Found::NoSlot => break,
            }
        }
        if expected.is_some() {
            self.check_absent(table, expected)?;
        }
        Err(absence(table))
    }

    /// Makes one attempt to commit the expiry of an entry whose deadline has passed. The expiry thread and any number
    /// of writers may do so at once: one CAS succeeds, and only its thread emits the change and counts the lag. The
    /// others look again and find the slot absent, or a new element that they leave alone.
    pub(super) fn expire<'a>(&mut self, table: &Table, slot: SlotRef<'a>, seen: SeenWord<'a>) -> Result<(), Refusal>
    where
        'h: 'a,
    {
        self.credits(1)?;
        let (SlotState::Live(old) | SlotState::Expired(old)) = seen.state() else { return Ok(()) };
        self.enter_to_expire(table, old);
        if self.vacate(table, slot, seen, old, Cause::Expire) {
            self.lags.push(Now::from_millis(old.deadline()).nanos_until(self.now));
        }
        Ok(())
    }

    /// Makes one attempt to empty a slot, which is announced as DELETED. The caller has a credit.
    pub(super) fn vacate<'a>(
        &mut self,
        table: &Table,
        slot: SlotRef<'a>,
        seen: SeenWord<'a>,
        old: EntryRef<'a>,
        cause: Cause,
    ) -> bool
    where
        'h: 'a,
    {
        if self.admission == Admission::Given && table.is_durable() && table.versions.jumps(old.version()) {
            return self.jump_and_vacate(table, slot, seen, old, cause);
        }
        let version = old.version() + 1;
        let is_quiet = !table.audience.has_changes();
        let won = slot.vacate(seen, version, is_quiet, self.guard);
        self.log_removal(table, slot.key(), old, cause, won.then_some(version));
        if won {
            self.count_replaced(Some(old));
            self.charge(table, -entry_cost(old));
            table.count_element(Some(old.deadline()), None);
            let committed = Committed { cause, replaces_value: true, sets_deadline: false };
            self.committed(table, slot, Commit { version, committed, is_quiet, follows_quiet: old.is_quiet() });
        }
        won
    }

    // ------------------------------------------------------------------------------------------------------ effects

    /// Emits the effects of a store: the change, unless the entry is quiet, and the due message if there is a deadline.
    fn stored(&mut self, table: &Table, slot: SlotRef<'_>, commit: Commit, deadline: u64) {
        if commit.is_quiet {
            reach(Failpoint::Committed);
        } else {
            self.committed(table, slot, commit);
        }
        self.arm(table, slot, deadline);
    }

    /// Pushes the change of a commit.
    ///
    /// Two writers of a slot may come here in the opposite order of their commits. The publisher puts their changes in
    /// order by the version, and holds the later one back until the earlier one is pushed. It never waits for long,
    /// because no thread waits between its CAS and this push.
    fn committed(&mut self, table: &Table, slot: SlotRef<'_>, commit: Commit) {
        reach(Failpoint::Committed);
        self.writer.push(Change::new(slot.handle(), table.number(), commit));
    }

    /// Has the wheel look at the slot at `deadline`, if it does not look earlier anyway. Called after the CAS that set
    /// the deadline: `SlotRef::arm` writes out the race with the expiry thread.
    ///
    /// The slot may have changed again since the CAS, or be dead. Then the wheel looks too early or at nothing: the
    /// expiry thread reads the deadline of the moment, and files no record of a dead slot.
    fn arm(&mut self, table: &Table, slot: SlotRef<'_>, deadline: u64) {
        if deadline == NEVER {
            return;
        }
        if slot.extend(table.number()) {
            self.charge(table, EXTENSION_BYTES);
        }
        if slot.arm(deadline) {
            self.pending_sends.arm(self.shared, slot.handle(), deadline);
        }
    }

    fn charge(&mut self, table: &Table, bytes: i64) {
        if bytes != 0 {
            table.count_bytes(bytes);
            if self.local_budget.add(&self.shared.memory_budget, bytes) && bytes > 0 {
                self.shared.wake_evictor_if_full();
            }
        }
    }

    fn count_replaced(&mut self, old: Option<EntryRef<'_>>) {
        if let Some(old) = old {
            self.count_retired(old.bytes());
        }
    }

    /// Counts an object of so many bytes that this thread has retired.
    pub(super) fn count_retired(&mut self, bytes: usize) {
        if self.garbage.add(size_class(bytes), self.guard, self.now) {
            self.limit_growth();
        }
    }

    /// If the threads have retired too much since the compactor's last look, this one's next writes wait for another. If that
    /// is near and elements may be evicted, the compactor looks before.
    ///
    /// The number of looks is read first. If a look comes between that and the check, the writes do not wait.
    #[cold]
    fn limit_growth(&mut self) {
        let looks = self.shared.compactor.looks();
        if self.shared.memory_budget.is_beyond_allowance() {
            self.local_budget.await_look(looks);
        } else if self.shared.catalog.eviction.has_tables() && self.shared.memory_budget.is_reserve_low() {
            self.shared.compactor.want_look();
        }
    }
}
