//! A task as its queue keeps it in memory, and the record that the store keeps.
//!
//! This module changes no state.

use super::super::order::Position;
use super::super::record::{LeaseRecord, StateRecord, TaskRecord};
use super::super::terms::{GroupNumber, TaskTerms, UniqueNumber};
use super::groups::Groups;
use super::named::UniqueNames;
use super::ready::ReadyPlace;
use crate::tasks::reservation::{JobHistory, RESERVATIONS};
use crate::wheel::TimerId;

/// A lease that is held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    pub(super) token: u64,
    /// Milliseconds of the leases' clock.
    pub(super) deadline: u64,
    pub(super) timer: TimerId,
}

/// The state of a task.
#[derive(Clone, Copy, Debug)]
pub(super) enum TaskState {
    Ready,
    Leased(Lease),
    /// Its value could not be read. It becomes ready again when the timer is due, and is stored as ready.
    Unread(TimerId),
    Dropped,
    /// It becomes ready at this time, in milliseconds of the leases' clock.
    Delayed(u64),
    /// It has failed too often, or was buried. Nobody is granted it.
    Dead,
}

/// What is true of a task.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TaskMarks {
    /// It is in `touched` of its queue.
    pub(super) touched: bool,
    /// Its value is lost. It is dead as soon as nobody holds it.
    pub(super) is_lost: bool,
    /// It has failed, and its record says why.
    pub(super) has_reason: bool,
}

/// A task.
#[derive(Debug)]
pub(super) struct Task {
    /// The number of the task in the store. A queue never uses one twice.
    pub(super) number: u64,
    pub(super) key: Box<[u8]>,
    pub(super) position: Position,
    pub(super) boost: u8,
    /// When the task last entered the queue, in milliseconds of the leases' clock.
    pub(super) since: u64,
    pub(super) state: TaskState,
    pub(super) marks: TaskMarks,
    /// How often in a row its value could not be read.
    pub(super) unread: u8,
    /// The leases since it was added, kicked or repaid.
    pub(super) lent: u32,
    /// Its priority class.
    pub(super) class: u32,
    /// `None`: it has none of its own.
    pub(super) terms: Option<Box<TaskTerms>>,
}

impl Task {
    /// When it goes if nobody holds it.
    pub(super) fn expires(&self) -> Option<u64> {
        self.terms.as_ref().and_then(|terms| terms.expires)
    }

    pub(super) fn group(&self) -> Option<GroupNumber> {
        self.terms.as_ref().and_then(|terms| terms.group)
    }

    pub(super) fn unique(&self) -> Option<UniqueNumber> {
        self.terms.as_ref().and_then(|terms| terms.unique)
    }

    /// Whether a connection holds it, by a lease that is not stored.
    pub(super) fn is_reserved(&self) -> bool {
        matches!(self.state, TaskState::Leased(lease) if lease.token >= RESERVATIONS)
    }

    /// Its place among the tasks that are leased.
    pub(super) fn lease_order(&self, token: u64) -> u64 {
        if token < RESERVATIONS { token } else { RESERVATIONS | self.number }
    }

    /// Its place among the tasks that are ready.
    pub(super) fn place(&self) -> ReadyPlace {
        ReadyPlace { class: self.class, group: self.group(), position: self.position }
    }

    pub(super) fn record<'t>(
        &'t self,
        groups: &'t Groups,
        names: &'t UniqueNames,
        history: Option<JobHistory>,
        reason: &'t [u8],
    ) -> TaskRecord<'t> {
        let terms = self.terms.as_deref().copied().unwrap_or_default();
        TaskRecord {
            position: self.position,
            boost: self.boost,
            since: self.since,
            state: match self.state {
                TaskState::Ready | TaskState::Unread(_) => StateRecord::Ready,
                TaskState::Leased(_) if self.is_reserved() => StateRecord::Ready,
                TaskState::Leased(Lease { token, deadline, .. }) => {
                    StateRecord::Leased(LeaseRecord { token, deadline })
                }
                TaskState::Dropped => StateRecord::Dropped,
                TaskState::Delayed(until) => StateRecord::Delayed(until),
                TaskState::Dead => StateRecord::Dead,
            },
            class: self.class,
            lent: self.lent - u32::from(self.is_reserved()),
            terms: TaskTerms { group: None, unique: None, ..terms },
            group: terms.group.map_or(&[], |number| groups.name(number)),
            unique: terms.unique.map_or(&[], |number| names.get(number)),
            reason,
            history,
            key: &self.key,
        }
    }
}

// Millions of them are in memory.
const _: () = assert!(size_of::<Task>() <= 104);
