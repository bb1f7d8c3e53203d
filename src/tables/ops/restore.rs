//! Elements that are restored with their versions, and versions that do not follow each other.
//!
//! # A jump
//!
//! The publisher puts the changes of a slot in order by their versions, which grow by one there. So a version that does not
//! follow begins a new slot of the key, which takes the place of the old one in one step, as when the compactor moves an
//! element. It does so only when all changes of the old slot are announced. Then no change is ever compared with one of
//! before a jump, however far that goes.
//!
//! Two kinds of change jump: a restored one, and the first ordinary one of an element that was restored with a version from
//! before its table was made. That element's next versions may have been given out already, by the server that had it.

use super::{NotStored, Ops, Write};
use crate::feed::Cause;
use crate::tables::lookup::{Found, look};
use crate::tables::memory_budget::{settle, slot_bytes, unsigned};
use crate::tables::slot::{EntryBox, NEVER, SeenWord, SlotRef};
use crate::tables::table::Table;
use crate::tables::{Deadline, Refusal, Restored};

/// The version of a restored element in a new slot. `dead` is that of a dead slot of the key. `None`: the next one, above
/// `floor`.
///
/// As long as all elements of the table are restored, what has left it is the only thing that its own floor tells of. A
/// version that is not above it may be that of another key, so the element is stored, and has a new version.
///
/// # Errors
/// `VersionMismatch` if the dead slot has a version that is not lower. `VersionRefused` in a table with elements that were
/// not restored, up to the floor.
pub(super) fn restored_version(
    table: &Table,
    write: &Write<'_>,
    floor: u64,
    dead: u64,
) -> Result<Option<u64>, Refusal> {
    let Some(version) = write.version else { return Ok(None) };
    if version <= dead {
        return Err(Refusal::VersionMismatch { current: 0 });
    }
    match table.restore_floor() {
        None if version <= floor => Err(Refusal::VersionRefused),
        Some(own) if version <= own => Ok(None),
        _ => Ok(Some(version)),
    }
}

impl<'h> Ops<'h> {
    /// Stores a value with a version and a deadline, unless the key has a version that is not lower.
    ///
    /// The races are those of [`Ops::overwrite`] and [`Ops::create`].
    pub(in crate::tables) fn restore(
        &mut self,
        table: &Table,
        (key, value): (&[u8], &[u8]),
        version: u64,
        deadline: Deadline,
    ) -> Result<Restored, Refusal> {
        if version == 0 || version > self.shared.catalog.highest_version(self.now) {
            return Err(Refusal::VersionRefused);
        }
        let write = Write { cause: Cause::Restore, version: Some(version), ..Write::update(key, value, deadline) };
        let mut entry = EntryBox::new(value);
        loop {
            let attempt = match look(table, key, self.place, self.guard, self.now) {
                Found::Live { seen, .. } | Found::Absent { seen, .. } if seen.version() >= version => {
                    return Ok(Restored::Not);
                }
                Found::Live { slot, seen, entry: old } => self.overwrite(table, &write, entry, slot, seen, Some(old)),
                Found::Absent { slot, seen } => self.overwrite(table, &write, entry, slot, seen, None),
                Found::NoSlot => self.create(table, &write, entry),
                Found::Overdue { slot, seen, .. } => {
                    self.expire(table, slot, seen)?;
                    continue;
                }
            };
            match attempt {
                Ok(stored) => return Ok(if stored == version { Restored::AsItWas } else { Restored::Anew }),
                Err(NotStored::Refused(Refusal::VersionMismatch { .. })) => return Ok(Restored::Not),
                Err(NotStored::Refused(refusal)) => return Err(refusal),
                Err(NotStored::Overtaken(unused)) => entry = unused,
            }
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
        if write.version.is_some() || version < table.base() {
            return self.version_after(table, write, version);
        }
        Ok(version + 1)
    }

    #[cold]
    fn version_after(&mut self, table: &Table, write: &Write<'_>, version: u64) -> Result<u64, NotStored> {
        if let Some(restored) = write.version {
            return Ok(restored);
        }
        let predecessor_version = self.settle_in_predecessors(table, write.key, table.hash(write.key))?;
        Ok(self.shared.catalog.version_floor().max(predecessor_version).max(version) + 1)
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
    /// - **A seal of a closed table** comes under the same lock. The table is asked whether it is open there.
    #[cold]
    pub(super) fn jump(
        &mut self,
        table: &Table,
        slot: SlotRef<'h>,
        seen: SeenWord<'h>,
        entry: EntryBox,
    ) -> Result<SlotRef<'h>, NotStored> {
        if !slot.may_move(seen) {
            return Err(self.again().into());
        }
        let has_deadline = entry.deadline() != NEVER;
        let (mut entry, guard) = (Some(entry), self.guard);
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
