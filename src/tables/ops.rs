//! The operations on elements: read, store, delete, touch and expire, and the sealing of a deleted table's slots.
//!
//! Each operation that changes an element emits its change, its due message and its costs in the same place, so no
//! caller can forget them. No operation waits: without credits a write returns `Busy` and changes no element.
//!
//! # A write
//!
//! ```text
//! credit? ─► find the slot ─► load the word
//!              │ none, dead     │ live ───────────► CAS to the new entry ──► change, due message, costs
//!              ▼                │ deadline passed ─► CAS to absent, DELETED ─► again
//!        settle the key in      │ absent ─────────► CAS to the new entry ──► change, due message, costs
//!        older tables of the    └ the CAS fails ──► again
//!        name; let a new slot in
//! ```
//! A writer takes its credit before the CAS and pushes the change after it, and does not wait in between. So every
//! change that the publisher waits for arrives.
//!
//! # Races
//!
//! - **Two writers of one element** CAS the same word. The loser loads again and judges the new word by its own
//!   expected version.
//! - **Two writers that create one key** take turns under the bucket's lock. The second one finds the first one's slot
//!   (`Occupied`) and stores in it.
//! - **A write and the sealing of its slot**, after DELETE_TABLE, are both a CAS on the word. If the write comes first,
//!   it is committed, and the seal deletes its value. If the seal comes first, the writer finds Dead, sees the table
//!   closed and returns `TableNotFound`. A write that creates a slot checks under the bucket's lock that the table is
//!   open: see `Table::enter`.
//! - **An absence and DELETE_TABLE.** A table that is being taken down loses its elements one by one, which no client
//!   may see. So an operation that finds no element then reads whether the table is open. If it is open, the element
//!   was absent in an open table, and the reply is `KeyNotFound`. If it is closed, the reaper may have sealed the slot,
//!   and the reply is `TableNotFound`.
//! - **A new slot and the removal of its predecessor.** The reaper raises the version floor, then takes the dead slot
//!   out under the bucket's lock. A writer reads the floor under the same lock. If the removal comes first, the writer
//!   sees the raised floor. If the writer comes first, it finds the dead slot and its version. Either way the new
//!   versions start above the old ones.

use crossbeam::epoch::Guard;

use super::change::{Change, ChangeWriter, Committed};
use super::failpoint::{Failpoint, reach};
use super::garbage::Garbage;
use super::index::Inserted;
use super::memory_budget::{LocalBudget, TIMER_BYTES, entry_bytes, slot_bytes};
use super::pending_sends::PendingSends;
use super::slot::{
    ENTRY_HEADER_BYTES, EntryBox, EntryRef, NEVER, SLOT_HEADER_BYTES, SeenWord, SlotHandle, SlotRef, SlotState,
};
use super::table::Table;
use super::{Refusal, TablesShared};
use crate::clock::Now;

/// Credits that one write may use: one for an expired entry that it finds, and one for itself.
pub(super) const CREDITS_PER_WRITE: usize = 2;

/// Stands in `wanted` for credits when a write waits for memory.
pub(super) const MEMORY: usize = usize::MAX;

/// Whether a deadline has passed.
fn passed(deadline: u64, now: Now) -> bool {
    deadline <= now.millis()
}

/// The live entry of a key.
pub(super) fn find_live<'g>(table: &Table, key: &[u8], guard: &'g Guard, now: Now) -> Result<EntryRef<'g>, Refusal> {
    let hash = table.hash(key);
    let mut found = table.find(hash, key, guard);
    while let Some(slot) = found {
        let seen = slot.load(guard);
        match seen.state() {
            SlotState::Live(entry) if !passed(entry.deadline(), now) => return Ok(entry),
            SlotState::Live(_) if !mark(slot, seen) => {}
            SlotState::Live(_) | SlotState::Expired(_) | SlotState::Absent(_) | SlotState::Dead(_) => break,
            SlotState::Moved(_) => found = table.find_moved(hash, key, guard),
        }
    }
    Err(absence(table))
}

/// Marks a live element whose deadline the caller has seen pass. False: the word has changed, and the caller looks
/// again.
fn mark<'g>(slot: SlotRef<'g>, seen: SeenWord<'g>) -> bool {
    reach(Failpoint::BeforeMark);
    slot.mark(seen)
}

/// Bytes of the wheel record that an element needs for `deadline` after the entry `old`. The record's cost is charged
/// when it is filed.
fn timer_bytes(deadline: u64, old: Option<EntryRef<'_>>) -> i64 {
    if deadline == NEVER || old.is_some_and(|old| old.deadline() != NEVER) { 0 } else { TIMER_BYTES }
}

/// The refusal for an absence that the caller has just seen.
fn absence(table: &Table) -> Refusal {
    if table.is_closed() { Refusal::TableNotFound } else { Refusal::KeyNotFound }
}

/// The parts of a session and a batch that an operation uses.
pub(super) struct Ops<'h> {
    pub(super) shared: &'h TablesShared,
    pub(super) writer: &'h mut ChangeWriter,
    pub(super) local_budget: &'h mut LocalBudget,
    pub(super) garbage: &'h mut Garbage,
    pub(super) wanted: &'h mut usize,
    pub(super) wanted_credits: &'h mut usize,
    /// Nanoseconds from the deadlines to the expiries that this batch has committed.
    pub(super) lags: &'h mut Vec<u64>,
    pub(super) pending_sends: &'h mut PendingSends,
    pub(super) guard: &'h Guard,
    pub(super) now: Now,
    /// Whether the memory of this write has been admitted already.
    pub(super) admitted: bool,
}

impl<'h> Ops<'h> {
    /// Stores a value if the version is `expected`. Returns the new version.
    pub(super) fn put(
        &mut self,
        table: &Table,
        key: &[u8],
        value: &[u8],
        ttl: Option<u32>,
        expected: Option<u64>,
    ) -> Result<u64, Refusal> {
        let hash = table.hash(key);
        let mut entry = EntryBox::new(value);
        loop {
            let slot = table.find(hash, key, self.guard);
            let seen = slot.map(|slot| (slot, slot.load(self.guard)));
            entry = match seen.map(|(slot, seen)| (slot, seen, seen.state())) {
                Some((slot, seen, SlotState::Live(old))) if !passed(old.deadline(), self.now) => {
                    match self.overwrite(table, slot, seen, Some(old), (entry, value.len(), ttl, expected))? {
                        Ok(version) => return Ok(version),
                        Err(entry) => entry,
                    }
                }
                Some((slot, seen, SlotState::Live(_) | SlotState::Expired(_))) => {
                    self.expire(table, slot, seen)?;
                    entry
                }
                Some((slot, seen, SlotState::Absent(_))) => {
                    match self.overwrite(table, slot, seen, None, (entry, value.len(), ttl, expected))? {
                        Ok(version) => return Ok(version),
                        Err(entry) => entry,
                    }
                }
                Some((_, _, SlotState::Moved(_))) => {
                    // `find_moved` waits for the move to end. The next look finds the slot that the index then shows.
                    table.find_moved(hash, key, self.guard);
                    entry
                }
                Some((_, _, SlotState::Dead(_))) | None => {
                    match self.create(table, (key, hash), (entry, value.len(), ttl, expected))? {
                        Ok(version) => return Ok(version),
                        Err(entry) => entry,
                    }
                }
            };
        }
    }

    /// Makes one attempt to store in an existing slot. Returns the entry if the word has changed.
    fn overwrite(
        &mut self,
        table: &Table,
        slot: SlotRef<'h>,
        seen: SeenWord<'h>,
        old: Option<EntryRef<'h>>,
        (mut entry, bytes, ttl, expected): (EntryBox, usize, Option<u32>, Option<u64>),
    ) -> Result<Result<u64, EntryBox>, Refusal> {
        match old {
            Some(old) => check(expected, old.version())?,
            None => self.check_absent(table, expected)?,
        }
        let growth = entry_bytes(bytes) - old.map_or(0, |old| entry_bytes(old.value().len()));
        let deadline = self.deadline(ttl, old.map(|old| old.deadline()));
        self.admit(growth + timer_bytes(deadline, old))?;
        self.credits(1)?;
        let version = seen.version() + 1;
        entry.stamp(version, deadline);
        reach(Failpoint::BeforeCas);
        if let Err(entry) = slot.replace(seen, entry, self.guard) {
            return Ok(Err(entry));
        }
        self.discard(old);
        self.charge(table, growth);
        if old.is_none() {
            table.count_element(1);
        }
        self.committed(slot, version, Committed::Updated, deadline);
        Ok(Ok(version))
    }

    /// Makes one attempt to let a new slot in. Returns the entry if another thread has let one in for the key.
    fn create(
        &mut self,
        table: &Table,
        (key, hash): (&[u8], u64),
        (entry, bytes, ttl, expected): (EntryBox, usize, Option<u32>, Option<u64>),
    ) -> Result<Result<u64, EntryBox>, Refusal> {
        self.check_absent(table, expected)?;
        let cost = slot_bytes(key.len()) + entry_bytes(bytes);
        let deadline = self.deadline(ttl, None);
        self.admit(cost + timer_bytes(deadline, None))?;
        let elder_version = self.settle_in_predecessors(table, key, hash)?;
        self.credits(1)?;
        reach(Failpoint::BeforeEnter);
        let mut entry = Some(entry);
        let mut made: Option<(SlotHandle, u64)> = None;
        let mut replaces = false;
        let entered = table.enter(hash, key, self.guard, &mut |dead| {
            let version = self.shared.catalog.version_floor().max(elder_version).max(dead.unwrap_or(0)) + 1;
            let mut entry = entry.take()?;
            replaces = dead.is_some();
            entry.stamp(version, deadline);
            let slot = SlotHandle::new(table.number(), key, entry);
            made = Some((slot.slot().handle(), version));
            Some(slot)
        });
        self.charge(table, table.index().take_growth());
        if replaces {
            self.retired(SLOT_HEADER_BYTES + key.len());
        }
        match (entered, made, entry) {
            (Inserted::Created, Some((handle, version)), _) => {
                self.charge(table, cost);
                table.count_element(1);
                self.committed(handle.slot(), version, Committed::Updated, deadline);
                Ok(Ok(version))
            }
            (Inserted::Occupied, _, Some(entry)) => Ok(Err(entry)),
            (Inserted::Overfull, ..) => Err(Refusal::OutOfMemory),
            _ => Err(Refusal::TableNotFound),
        }
    }

    /// Deletes if the version is `expected`. Returns the value.
    pub(super) fn remove(&mut self, table: &Table, key: &[u8], expected: Option<u64>) -> Result<&'h [u8], Refusal> {
        let hash = table.hash(key);
        let mut found = table.find(hash, key, self.guard);
        while let Some(slot) = found {
            let seen = slot.load(self.guard);
            match seen.state() {
                SlotState::Live(old) if !passed(old.deadline(), self.now) => {
                    check(expected, old.version())?;
                    self.credits(1)?;
                    if self.vacate(table, slot, seen, old) {
                        return Ok(old.value());
                    }
                }
                SlotState::Live(_) | SlotState::Expired(_) => self.expire(table, slot, seen)?,
                SlotState::Absent(_) | SlotState::Dead(_) => break,
                SlotState::Moved(_) => found = table.find_moved(hash, key, self.guard),
            }
        }
        self.check_absent(table, expected)?;
        Err(absence(table))
    }

    pub(super) fn touch(&mut self, table: &Table, key: &[u8], ttl: u32) -> Result<(), Refusal> {
        let hash = table.hash(key);
        let mut found = table.find(hash, key, self.guard);
        let deadline = self.deadline(Some(ttl), None);
        while let Some(slot) = found {
            let seen = slot.load(self.guard);
            match seen.state() {
                SlotState::Live(old) if !passed(old.deadline(), self.now) => {
                    self.admit(timer_bytes(deadline, Some(old)))?;
                    let mut entry = EntryBox::new(old.value());
                    entry.stamp(old.version(), deadline);
                    if slot.replace(seen, entry, self.guard).is_ok() {
                        self.discard(Some(old));
                        self.arm(slot, deadline);
                        return Ok(());
                    }
                }
                SlotState::Live(_) if !mark(slot, seen) => {}
                SlotState::Live(_) | SlotState::Expired(_) | SlotState::Absent(_) | SlotState::Dead(_) => break,
                SlotState::Moved(_) => found = table.find_moved(hash, key, self.guard),
            }
        }
        Err(absence(table))
    }

    /// Makes one attempt to commit the expiry of an entry whose deadline has passed.
    pub(super) fn expire<'a>(&mut self, table: &Table, slot: SlotRef<'a>, seen: SeenWord<'a>) -> Result<(), Refusal> {
        self.credits(1)?;
        let (SlotState::Live(old) | SlotState::Expired(old)) = seen.state() else { return Ok(()) };
        if self.vacate(table, slot, seen, old) {
            self.lags.push(self.now.nanos().saturating_sub(old.deadline() * 1_000_000));
        }
        Ok(())
    }

    /// Makes one attempt to empty a slot, which is announced as DELETED. The caller has a credit.
    fn vacate<'a>(&mut self, table: &Table, slot: SlotRef<'a>, seen: SeenWord<'a>, old: EntryRef<'a>) -> bool {
        let version = old.version() + 1;
        let won = slot.vacate(seen, version, self.guard);
        if won {
            self.discard(Some(old));
            self.charge(table, -entry_bytes(old.value().len()));
            table.count_element(-1);
            self.committed(slot, version, Committed::Deleted, NEVER);
        }
        won
    }

    // ------------------------------------------------------------------------------------------------------ sealing

    /// Seals the key in every older table of the name that is still being taken down. Returns the key's highest version
    /// there.
    fn settle_in_predecessors(&mut self, table: &Table, key: &[u8], hash: u64) -> Result<u64, Refusal> {
        let mut version = 0;
        for predecessor in table.predecessors() {
            if let Some(slot) = predecessor.index().find_settled(hash, key, self.guard) {
                version = version.max(self.seal(&predecessor, slot)?);
            }
        }
        Ok(version)
    }

    /// Seals a slot of a closed table. Returns its last version.
    pub(super) fn seal(&mut self, table: &Table, slot: SlotRef<'h>) -> Result<u64, Refusal> {
        loop {
            let seen = slot.load(self.guard);
            let old = match seen.state() {
                SlotState::Dead(version) => return Ok(version),
                SlotState::Live(old) | SlotState::Expired(old) => Some(old),
                SlotState::Absent(_) => None,
                SlotState::Moved(_) => {
                    unreachable!("slots of a closed table are found behind the lock under which they would move")
                }
            };
            self.credits(1)?;
            reach(Failpoint::BeforeSeal);
            // Before the CAS: as soon as it succeeds, the publisher may announce the change and release the hold.
            if !table.hold_unsettled() {
                continue; // settled meanwhile: the next look finds the slot dead
            }
            let version = seen.version() + 1;
            if slot.kill(seen, version, self.guard) {
                self.sealed(table, slot, version, old);
                return Ok(version);
            }
            if table.release_unsettled() {
                self.pending_sends.settled(self.shared, table.number());
            }
        }
    }

    fn sealed(&mut self, table: &Table, slot: SlotRef<'h>, version: u64, old: Option<EntryRef<'h>>) {
        let kind = if old.is_some() { Committed::SealedLive } else { Committed::SealedAbsent };
        if let Some(old) = old {
            self.discard(Some(old));
            self.charge(table, -entry_bytes(old.value().len()));
            table.count_element(-1);
        }
        self.committed(slot, version, kind, NEVER);
    }

    // ------------------------------------------------------------------------------------------------------ effects

    /// Emits the effects of a commit: the change, and the due message if there is a deadline.
    fn committed(&mut self, slot: SlotRef<'_>, version: u64, kind: Committed, deadline: u64) {
        #[expect(clippy::cast_possible_truncation, reason = "the low half is what a change carries")]
        let low = version as u32;
        reach(Failpoint::Committed);
        self.writer.push(Change { slot: slot.handle(), version: low, kind });
        self.arm(slot, deadline);
    }

    fn arm(&mut self, slot: SlotRef<'_>, deadline: u64) {
        if deadline != NEVER && slot.arm(deadline) {
            self.pending_sends.arm(self.shared, slot.handle(), deadline);
        }
    }

    fn charge(&mut self, table: &Table, bytes: i64) {
        if bytes != 0 {
            table.count_bytes(bytes);
            self.local_budget.add(&self.shared.memory_budget, bytes);
        }
    }

    fn discard(&mut self, old: Option<EntryRef<'_>>) {
        if let Some(old) = old {
            self.retired(old.value().len() + ENTRY_HEADER_BYTES);
        }
    }

    /// Counts `bytes` that this thread has retired.
    pub(super) fn retired(&mut self, bytes: usize) {
        self.garbage.add(bytes, self.guard, self.now);
    }

    // ------------------------------------------------------------------------------------------------------- checks

    /// Returns `Busy` unless there are `count` credits.
    pub(super) fn credits(&mut self, count: usize) -> Result<(), Refusal> {
        if self.writer.credits(count) >= count {
            return Ok(());
        }
        *self.wanted = count.max(CREDITS_PER_WRITE).min(self.writer.capacity());
        *self.wanted_credits = *self.wanted;
        Err(Refusal::Busy)
    }

    /// Refuses a write whose bytes do not fit into memory.
    pub(super) fn admit(&mut self, bytes: i64) -> Result<(), Refusal> {
        if self.admitted {
            return Ok(());
        }
        let refusal = self.shared.admit(self.local_budget, bytes);
        if refusal == Err(Refusal::Busy) {
            *self.wanted = MEMORY;
        }
        refusal
    }

    /// Judges an absence that the caller has just seen: the table must be open, and an absence expected.
    fn check_absent(&self, table: &Table, expected: Option<u64>) -> Result<(), Refusal> {
        if table.is_closed() {
            return Err(Refusal::TableNotFound);
        }
        check(expected, 0)
    }

    fn deadline(&self, ttl: Option<u32>, kept: Option<u64>) -> u64 {
        match ttl {
            None => kept.unwrap_or(NEVER),
            Some(0) => NEVER,
            Some(seconds) => self.now.deadline_after(seconds),
        }
    }

    /// The bytes that all pairs together cost beyond the present elements, and the number of pairs.
    pub(super) fn cost_of_pairs<'p>(
        &self,
        table: &Table,
        pairs: impl Iterator<Item = (&'p [u8], &'p [u8])>,
        ttl: Option<u32>,
    ) -> (i64, usize) {
        let timer = if ttl.is_some_and(|ttl| ttl > 0) { TIMER_BYTES } else { 0 };
        let mut cost = 0;
        let mut count = 0;
        for (key, value) in pairs {
            count += 1;
            cost += entry_bytes(value.len()) + timer - self.cost_now(table, key, timer);
        }
        (cost, count)
    }

    /// The bytes of a key's present entry, or minus the bytes of the slot that it takes to add the key. `timer` is the
    /// cost of a deadline.
    fn cost_now(&self, table: &Table, key: &[u8], timer: i64) -> i64 {
        let hash = table.hash(key);
        let mut found = table.find(hash, key, self.guard);
        while let Some(slot) = found {
            match slot.load(self.guard).state() {
                SlotState::Live(entry) | SlotState::Expired(entry) => {
                    let timer = if entry.deadline() == NEVER { 0 } else { timer };
                    return entry_bytes(entry.value().len()) + timer;
                }
                SlotState::Absent(_) => return 0,
                SlotState::Dead(_) => break,
                SlotState::Moved(_) => found = table.find_moved(hash, key, self.guard),
            }
        }
        -slot_bytes(key.len())
    }
}

fn check(expected: Option<u64>, current: u64) -> Result<(), Refusal> {
    match expected {
        Some(expected) if expected != current => Err(Refusal::VersionMismatch { current }),
        _ => Ok(()),
    }
}
