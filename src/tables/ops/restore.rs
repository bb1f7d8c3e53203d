//! Elements that are restored with their versions, and versions that do not follow each other.
//!
//! # A jump
//!
//! The publisher puts the changes of a slot in order by their versions, which grow by one there. So a version that does
//! not follow begins a new slot of the key. The new slot takes the place of the old slot in one step, as when the
//! compactor moves an element. It does so only when all changes of the old slot are announced. Then no change is ever
//! compared with one of before a jump, however far that goes.
//!
//! Two kinds of change jump: a restored one, and the first ordinary one of an element that was restored with a version from
//! before its table was made. That element's next versions may have been given out already, by the server that had it.

use crossbeam::epoch::Guard;

use super::effects::count_touched;
use super::{NotStored, Ops, Write};
use crate::feed::Cause;
use crate::tables::failpoint::{Failpoint, reach};
use crate::tables::memory_budget::{settle, slot_bytes, unsigned};
use crate::tables::slot::{EntryBox, EntryRef, NEVER, SeenWord, SlotRef, SlotState};
use crate::tables::table::Table;
use crate::tables::{Deadline, Refusal, Restored};

/// The version of an element in a new slot: the next one above `floor` and above `dead`, that of a dead slot of the key, or
/// that of a restored element.
///
/// As long as all elements of the table are restored, its own floor covers only those that have left it. A restored version
/// up to that floor may be another key's, so the element is stored, and has the next version. The same holds of a version
/// that the key may have had in an older table of the name, which is being taken down: the next change would follow it.
///
/// # Errors
/// For a restored element: `VersionMismatch` if the dead slot has a version that is not lower, `VersionRefused` up to the
/// floor in a table with elements that were not restored.
pub(super) fn first_version(table: &Table, write: &Write<'_>, floor: u64, dead: u64) -> Result<u64, Refusal> {
    let next = floor.max(dead) + 1;
    let Some(version) = write.version else { return Ok(next) };
    if version <= dead {
        return Err(Refusal::VersionMismatch { current: dead });
    }
    match table.versions.restore_floor() {
        None if version <= floor => Err(Refusal::VersionRefused),
        Some(own) if version <= own => Ok(next),
        Some(_) => Ok(restored_or(table, version, next)),
        None => Ok(version),
    }
}

/// The restored version of a key that has none from this table's time. Instead the next version of this server, if the key
/// may have had the versions behind the restored one, which the deletion of the element and its next change would get.
fn restored_or(table: &Table, version: u64, next: u64) -> u64 {
    if version < next && table.versions.may_be_older(version + 1) { next } else { version }
}

impl<'h> Ops<'h> {
    /// Stores a value with a version and a deadline, unless the key has a version that is not lower.
    ///
    /// It is a store whose version is given, with the races of [`Ops::put`].
    pub(in crate::tables) fn restore(
        &mut self,
        table: &Table,
        key: &[u8],
        value: &[u8],
        version: u64,
        deadline: Deadline,
    ) -> Result<Restored, Refusal> {
        if version == 0 || version > self.shared.catalog.floor.highest_restored(self.now) {
            return Err(Refusal::VersionRefused);
        }
        let write = Write { cause: Cause::Restore, version: Some(version), ..Write::update(key, value, deadline) };
        match self.put(table, write) {
            Ok(stored) => Ok(if stored == version { Restored::AsItWas } else { Restored::Anew }),
            Err(Refusal::VersionMismatch { .. }) => Ok(Restored::Not),
            Err(refusal) => Err(refusal),
        }
    }

    /// The version of a change behind the one that was seen.
    #[inline]
    pub(super) fn next_version(
        &mut self,
        table: &Table,
        write: &Write<'_>,
        seen: SeenWord<'_>,
    ) -> Result<u64, NotStored> {
        let version = seen.version();
        if write.version.is_some() || table.versions.jumps(version) {
            return self.version_after(table, write, version);
        }
        Ok(version + 1)
    }

    #[cold]
    fn version_after(&mut self, table: &Table, write: &Write<'_>, version: u64) -> Result<u64, NotStored> {
        match write.version {
            Some(restored) if restored <= version => Err(Refusal::VersionMismatch { current: version }.into()),
            // The key has had no version above its own.
            Some(restored) if !table.versions.jumps(version) => Ok(restored),
            Some(restored) => Ok(restored_or(table, restored, self.version_above(table, write.key, version)?)),
            None => Ok(self.version_above(table, write.key, version)?),
        }
    }

    fn version_above(&mut self, table: &Table, key: &[u8], version: u64) -> Result<u64, Refusal> {
        let predecessor_version = self.settle_in_predecessors(table, key, table.hash(key))?;
        Ok(self.shared.catalog.floor.get().max(predecessor_version).max(version) + 1)
    }

    /// Makes one attempt to empty a slot of a durable table in a transaction. Otherwise a later value of the transaction would
    /// begin a new slot, and wait until the removal is announced. So the element gets the new slot first. The session holds
    /// the latch, so nobody sees the element there.
    #[cold]
    pub(super) fn jump_and_vacate<'a>(
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
        let Ok(version) = self.version_above(table, slot.key(), old.version()) else { return false };
        let mut entry = EntryBox::touched(old.value(), old.version_of_value());
        entry.stamp(version, old.deadline());
        entry.make_quiet();
        let Ok(slot) = self.jump(table, slot, seen, entry) else { return false };
        count_touched(table, slot.key(), old);
        let guard: &'a Guard = self.guard;
        let seen = slot.load(guard);
        match seen.state() {
            SlotState::Live(old) | SlotState::Expired(old) => self.vacate(table, slot, seen, old, cause),
            SlotState::Absent(_) | SlotState::Dead(_) | SlotState::Moved(_) => false,
        }
    }

    /// Makes one attempt to store `entry`, whose version does not follow, in a new slot. Returns the slot.
    ///
    /// Each attempt is a CAS of the old slot's word, under the lock of the key's bucket, before the index shows the new
    /// slot. The races are those of [`Compactor::move_slots`](crate::tables::Compactor), whose old slots are left in the
    /// same way:
    ///
    /// - **A change of the old slot is on its way to the publisher.** The write is refused as `Busy`, and tried again at
    ///   once. The publisher waits for nothing that this thread has.
    /// - **The publisher retires an absent slot that was announced.** If it comes first, this CAS fails, and the next look
    ///   finds the slot dead. If this CAS comes first, the retirement fails.
    /// - **A quiet change of the old slot** comes after it was seen. What was announced counts no more then, and this
    ///   CAS fails.
    /// - **A seal of a closed table** comes under the same lock. The table is asked whether it is open there.
    #[cold]
    pub(super) fn jump<'a>(
        &mut self,
        table: &Table,
        slot: SlotRef<'a>,
        seen: SeenWord<'a>,
        entry: EntryBox,
    ) -> Result<SlotRef<'a>, NotStored>
    where
        'h: 'a,
    {
        if !slot.may_move(seen) {
            return Err(self.again().into());
        }
        reach(Failpoint::BeforeJump);
        let has_deadline = entry.deadline() != NEVER;
        let (mut entry, guard): (_, &'a Guard) = (Some(entry), self.guard);
        let next = table.exchange(slot, guard, || match slot.supersede(seen, table.number(), entry.take()?, guard) {
            Ok(next) => Some(next),
            Err(unused) => {
                entry = Some(unused);
                None
            }
        });
        let Some(next) = next else {
            return Err(match entry {
                Some(entry) if !table.is_closed() => NotStored::Overtaken(entry),
                _ => self.refuse_closed(table).into(),
            });
        };
        if let Some(feed) = self.shared.feed.as_ref().filter(|_| seen.has_value()) {
            feed.note_jump(next.address(), seen.version());
        }
        let cost = settle(slot);
        self.charge(table, slot_bytes(slot.key().len(), has_deadline) - cost);
        self.count_retired(unsigned(cost));
        if slot.is_armed() {
            self.pending_sends.cancel(slot.handle());
        }
        Ok(next)
    }
}
