//! The groups of a queue: which of them may be lent a task, and whose turn it is.
//!
//! ```text
//! open   class of its first task, turn ─► group      those with a ready task that are not full; tasks without a group
//!                                                    are one group, which is never full
//! full   tasks lent, class, group                    those that would be open if the limit was higher
//! ```
//! The most urgent class goes first, and within it the longest without a turn. A group that is lent a task takes the last
//! turn, and so does one that becomes open. A group that has no task takes no memory.
//!
//! This module holds no task, and does not know their places.

use std::collections::{BTreeMap, BTreeSet};

use ahash::RandomState;
use hashbrown::HashTable;
use slab::Slab;

use crate::tasks::terms::GroupNumber;

/// Full groups that are opened in one step after the limit has risen.
const OPENED_MAX: usize = 1 << 10;

/// A group that has a task.
#[derive(Debug)]
struct Group {
    name: Box<[u8]>,
    /// Its tasks in all states.
    tasks: u32,
    lent: u32,
    turn: Turn,
}

/// Where a group stands among those that may be lent a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Turn {
    /// It has no ready task.
    #[default]
    Empty,
    /// It is lent as many tasks as it may be, by this number, and has this class.
    Full(u32, u32),
    /// By the class of its first task, and its turn.
    Open(u32, u64),
}

/// The groups of a queue.
#[derive(Debug, Default)]
pub(super) struct Groups {
    groups: Slab<Group>,
    names: HashTable<GroupNumber>,
    hasher: RandomState,
    /// `None`: the tasks without a group.
    open: BTreeMap<(u32, u64), Option<GroupNumber>>,
    full: BTreeSet<(u32, u32, GroupNumber)>,
    without: Turn,
    next_turn: u64,
}

impl Groups {
    /// Whether no task has a group. Then there are no turns.
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The number of groups that have tasks.
    pub(super) fn count(&self) -> u64 {
        self.groups.len() as u64
    }

    /// A task of this group has come.
    pub(super) fn join(&mut self, name: &[u8]) -> GroupNumber {
        let number = self.find(name).unwrap_or_else(|| {
            let hash = self.hasher.hash_one(name);
            let group = Group { name: name.into(), tasks: 0, lent: 0, turn: Turn::Empty };
            let number = GroupNumber::try_from(self.groups.insert(group)).expect("a queue has fewer than 2^32 tasks");
            let Self { groups, hasher, names, .. } = self;
            let rehash =
                |number: &GroupNumber| groups.get(*number as usize).map_or(0, |group| hasher.hash_one(&*group.name));
            names.insert_unique(hash, number, rehash);
            number
        });
        if let Some(group) = self.groups.get_mut(number as usize) {
            group.tasks += 1;
        }
        number
    }

    /// The number of the group with this name.
    pub(super) fn find(&self, name: &[u8]) -> Option<GroupNumber> {
        let is_it = |number: &GroupNumber| self.groups.get(*number as usize).is_some_and(|group| *group.name == *name);
        self.names.find(self.hasher.hash_one(name), is_it).copied()
    }

    /// A task of this group is gone, which was not ready and not lent.
    pub(super) fn leave(&mut self, number: GroupNumber) {
        let Some(group) = self.groups.get_mut(number as usize) else { return };
        group.tasks -= 1;
        if group.tasks > 0 {
            return;
        }
        debug_assert_eq!(group.turn, Turn::Empty, "a group without a ready task has no turn");
        let group = self.groups.remove(number as usize);
        let hash = self.hasher.hash_one(&*group.name);
        if let Ok(entry) = self.names.find_entry(hash, |other| *other == number) {
            entry.remove();
        }
        if self.groups.is_empty() {
            // After many the memory goes back. The tasks without a group need no turns any more.
            *self = Self { hasher: self.hasher.clone(), ..Self::default() };
        }
    }

    pub(super) fn name(&self, number: GroupNumber) -> &[u8] {
        self.groups.get(number as usize).map_or(&[], |group| &group.name)
    }

    /// A task of this group is lent.
    pub(super) fn lend(&mut self, number: GroupNumber) {
        if let Some(group) = self.groups.get_mut(number as usize) {
            group.lent += 1;
        }
    }

    /// A task of this group is lent no more.
    pub(super) fn end_lease(&mut self, number: GroupNumber) {
        if let Some(group) = self.groups.get_mut(number as usize) {
            group.lent -= 1;
        }
    }

    /// The group that is lent the next task, `None` for the tasks without one. Groups that are full by this limit step
    /// aside. Of those that are not full any more a bounded number comes back, and the most urgent one at once.
    pub(super) fn next(
        &mut self,
        limit: u32,
        first_class: impl Fn(GroupNumber) -> Option<u32>,
    ) -> Option<Option<GroupNumber>> {
        for _ in 0..OPENED_MAX {
            let Some(&(_, _, number)) = self.full.first().filter(|(lent, ..)| *lent < limit) else { break };
            self.settle(Some(number), first_class(number), limit, false);
        }
        loop {
            let first = self.open.first_key_value().map(|(&(class, _), &group)| (class, group));
            let steps_aside = first.and_then(|(_, group)| group.filter(|number| self.is_full(*number, limit)));
            let is_before = |class: u32| first.is_none_or(|(open, _)| class < open);
            let comes_back = || self.most_urgent_full(limit).filter(|(class, _)| is_before(*class));
            let Some(number) = steps_aside.or_else(|| comes_back().map(|(_, number)| number)) else {
                return first.map(|(_, group)| group);
            };
            self.settle(Some(number), first_class(number), limit, false);
        }
    }

    /// The most urgent one of the groups that are not full any more, with its class. It looks once for each number of lent
    /// tasks below the limit.
    fn most_urgent_full(&self, limit: u32) -> Option<(u32, GroupNumber)> {
        let mut next = self.full.first();
        let mut most_urgent = None;
        while let Some(&(lent, class, number)) = next.filter(|(lent, ..)| *lent < limit) {
            most_urgent = Some(most_urgent.map_or((class, number), |other| (class, number).min(other)));
            next = self.full.range((lent + 1, 0, 0)..).next();
        }
        most_urgent
    }

    /// Whether no more tasks of a group may be lent by this limit.
    pub(super) fn is_full(&self, number: GroupNumber, limit: u32) -> bool {
        self.groups.get(number as usize).is_some_and(|group| group.lent >= limit)
    }

    /// Something has changed in a group, or among the tasks without one: its first ready task has this class. With
    /// `has_had`, it has had its turn.
    pub(super) fn settle(&mut self, number: Option<GroupNumber>, class: Option<u32>, limit: u32, has_had: bool) {
        if self.is_empty() {
            return;
        }
        let (before, lent) = match number {
            None => (self.without, 0),
            Some(number) => self.groups.get(number as usize).map_or((Turn::Empty, 0), |group| (group.turn, group.lent)),
        };
        let now = match (class, before) {
            (None, _) => Turn::Empty,
            (Some(class), _) if number.is_some() && lent >= limit => Turn::Full(lent, class),
            (Some(class), Turn::Open(_, turn)) if !has_had => Turn::Open(class, turn),
            (Some(class), _) => {
                self.next_turn += 1;
                Turn::Open(class, self.next_turn)
            }
        };
        if now == before {
            return;
        }
        match (before, number) {
            (Turn::Open(class, turn), _) => drop(self.open.remove(&(class, turn))),
            (Turn::Full(lent, class), Some(number)) => drop(self.full.remove(&(lent, class, number))),
            _ => {}
        }
        match (now, number) {
            (Turn::Open(class, turn), _) => drop(self.open.insert((class, turn), number)),
            (Turn::Full(lent, class), Some(number)) => drop(self.full.insert((lent, class, number))),
            _ => {}
        }
        match number {
            None => self.without = now,
            Some(number) => self.groups.get_mut(number as usize).into_iter().for_each(|group| group.turn = now),
        }
    }

    /// The numbers of all groups, in the order in which they came since the queue was restored.
    pub(super) fn numbers(&self) -> Vec<GroupNumber> {
        self.groups.iter().filter_map(|(number, _)| GroupNumber::try_from(number).ok()).collect()
    }

    /// The numbers of all groups in the order of their names, unless there are many: [`Groups::next`] looks at these.
    pub(super) fn few_by_name(&self) -> Vec<GroupNumber> {
        let mut numbers = if self.groups.len() > OPENED_MAX { Vec::new() } else { self.numbers() };
        numbers.sort_by_key(|number| self.name(*number));
        numbers
    }

    /// Forgets all turns, so that the round begins anew.
    pub(super) fn forget_turns(&mut self) {
        self.open.clear();
        self.full.clear();
        self.without = Turn::Empty;
        self.groups.iter_mut().for_each(|(_, group)| group.turn = Turn::Empty);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;

    /// With more full groups than come back at once, a less urgent class was lent first.
    #[test]
    fn when_the_limit_rises_the_most_urgent_group_is_first_however_many_are_full() {
        let mut groups = Groups::default();
        let count = 3 * OPENED_MAX;
        let most = GroupNumber::try_from(count).unwrap();
        let numbers: Vec<GroupNumber> = (0..count).map(|number| groups.join(&number.to_be_bytes())).collect();
        // The last ones are the most urgent. Each is lent 1, 2 or 3 tasks.
        let class = |number: GroupNumber| (number < most).then(|| most - number);
        for &number in &numbers {
            (0..=number % 3).for_each(|_| groups.lend(number));
            groups.settle(Some(number), class(number), 1, false);
        }
        assert_eq!(groups.next(1, class), None, "all are full");
        // Which are lent one task alone, and then all.
        for limit in [2, 9] {
            let expected = (0..most).rev().find(|number| limit == 9 || number % 3 == 0);
            let next = groups.next(limit, class);
            assert_eq!(next, expected.map(Some), "by a limit of {limit}");
        }
    }
}
