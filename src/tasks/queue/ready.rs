//! The ready tasks of a queue, in the order of their leases and in the order of their entries.
//!
//! ```text
//! without a group   class 3 │ …   usual: class 65,536   class 100,000 │ …        by position in each
//! of a group        group, class, position ─► task                               in one map, however many groups,
//!                   class, position ─► task                                      and in one without regard to them
//! ```
//! A class exists while it has a task. Most queues have the usual class alone, and search for none. `groups.rs`
//! knows whose turn it is, where there are groups.
//!
//! This module changes no task.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use super::TaskIndex;
use super::groups::Groups;
use crate::chunked_map::ChunkedMap;
use crate::tasks::order::{LeaseOrder, Position};
use crate::tasks::terms::{GroupNumber, URGENT_CLASS, USUAL_CLASS};

/// The place of a ready task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadyPlace {
    pub(super) class: u32,
    pub(super) group: Option<GroupNumber>,
    pub(super) position: Position,
}

type ByPosition = ChunkedMap<Position, TaskIndex>;
type ByGroup = ChunkedMap<(GroupNumber, u32, Position), TaskIndex>;

/// The ready tasks.
#[derive(Debug)]
pub(super) struct ReadyTasks {
    pub(super) order: LeaseOrder,
    usual: ByPosition,
    /// The other classes that have tasks.
    others: BTreeMap<u32, ByPosition>,
    of_groups: ByGroup,
    /// The same ones by class alone, to be shown.
    grouped: ChunkedMap<(u32, Position), TaskIndex>,
    /// By entry: all tasks in priority order, and in a fifo queue those of the other classes and of groups. The others of
    /// that queue have this order by their position.
    by_entry: ChunkedMap<u64, TaskIndex>,
    pub(super) groups: Groups,
    /// How many are of classes below [`URGENT_CLASS`].
    pub(super) urgent: u64,
    /// The tasks of a group that may be lent at a time.
    limit: u32,
}

impl ReadyTasks {
    pub(super) fn new(order: LeaseOrder, group_limit: Option<NonZeroU32>) -> Self {
        Self {
            order,
            usual: ByPosition::default(),
            others: BTreeMap::new(),
            of_groups: ChunkedMap::default(),
            grouped: ChunkedMap::default(),
            by_entry: ChunkedMap::default(),
            groups: Groups::default(),
            urgent: 0,
            limit: limit_of(group_limit),
        }
    }

    /// The task that is leased next, with its place.
    pub(super) fn next(&mut self) -> Option<(ReadyPlace, TaskIndex)> {
        if self.groups.is_empty() {
            return self.first_without_group();
        }
        let Self { groups, of_groups, .. } = self;
        match groups.next(self.limit, |number| class_of(first_of_group(of_groups, number, 0)))? {
            None => self.first_without_group(),
            Some(number) => first_of_group(of_groups, number, 0),
        }
    }

    /// At most so many tasks of a group are lent at a time from now on.
    pub(super) fn set_limit(&mut self, group_limit: Option<NonZeroU32>) {
        self.limit = limit_of(group_limit);
        for number in self.groups.few_by_name() {
            self.settle(Some(number), false);
        }
    }

    fn first_without_group(&self) -> Option<(ReadyPlace, TaskIndex)> {
        let usual = || first_of(USUAL_CLASS, &self.usual);
        let Some((&most_urgent, tasks)) = self.others.first_key_value() else { return usual() };
        if most_urgent < USUAL_CLASS {
            return first_of(most_urgent, tasks);
        }
        usual().or_else(|| first_of(most_urgent, tasks))
    }

    /// The tasks of a class without a group.
    fn tasks_of(&self, class: u32) -> Option<&ByPosition> {
        if class == USUAL_CLASS { Some(&self.usual) } else { self.others.get(&class) }
    }

    /// The position of the first task of a class and a group.
    pub(super) fn first_in(&self, class: u32, group: Option<GroupNumber>) -> Option<Position> {
        if let Some(number) = group {
            let (place, _) = first_of_group(&self.of_groups, number, class)?;
            return (place.class == class).then_some(place.position);
        }
        self.tasks_of(class)?.first_key_value().map(|(position, _)| *position)
    }

    /// The first task from this place on, by class and position. With the name of a group, of its tasks alone. Without a
    /// name, of those that have no group.
    pub(super) fn from(
        &self,
        class: u32,
        position: Position,
        group: Option<&[u8]>,
    ) -> Option<((u32, Position), TaskIndex)> {
        match group {
            None => {
                let grouped =
                    self.grouped.first_from(&(class, position)).map(|(place, task_index)| (*place, *task_index));
                grouped.into_iter().chain(self.next_without_group(class, position)).min()
            }
            Some(b"") => self.next_without_group(class, position),
            Some(name) => {
                let number = self.groups.find(name)?;
                let (&(found, class, position), &task_index) = self.of_groups.first_from(&(number, class, position))?;
                (found == number).then_some(((class, position), task_index))
            }
        }
    }

    fn next_without_group(&self, class: u32, position: Position) -> Option<((u32, Position), TaskIndex)> {
        let in_class = |class: u32, position: &Position| {
            let (&position, &task_index) = self.tasks_of(class)?.first_from(position)?;
            Some(((class, position), task_index))
        };
        let next_class = || {
            let others = self.others.range(class.checked_add(1)?..).next().map(|(class, _)| *class);
            let usual = (class < USUAL_CLASS && self.usual.first_key_value().is_some()).then_some(USUAL_CLASS);
            others.into_iter().chain(usual).min()
        };
        in_class(class, &position).or_else(|| in_class(next_class()?, &Position::FIRST))
    }

    /// Tasks of which one has been ready for longest.
    pub(super) fn oldest(&self) -> impl Iterator<Item = TaskIndex> {
        let by_entry = self.by_entry.first_key_value().map(|(_, task_index)| *task_index);
        let usual = self.usual.first_key_value().filter(|_| self.order == LeaseOrder::Fifo);
        by_entry.into_iter().chain(usual.map(|(_, task_index)| *task_index))
    }

    /// Whether a task has this place, or has entered with the same serial.
    pub(super) fn is_taken(&self, ReadyPlace { class, group, position }: ReadyPlace) -> bool {
        let has_place = match group {
            Some(number) => self.of_groups.contains_key(&(number, class, position)),
            None => self.tasks_of(class).is_some_and(|tasks| tasks.contains_key(&position)),
        };
        has_place || self.by_entry.contains_key(&position.entered)
    }

    /// Adds a task. False: another one has its place.
    pub(super) fn insert(&mut self, place: ReadyPlace, task_index: TaskIndex) -> bool {
        let ReadyPlace { class, group, position } = place;
        self.urgent += u64::from(class < URGENT_CLASS);
        let mut alone = match group {
            Some(number) => {
                self.grouped.insert((class, position), task_index);
                self.of_groups.insert((number, class, position), task_index).is_none()
            }
            None if class == USUAL_CLASS => self.usual.insert(position, task_index).is_none(),
            None => self.others.entry(class).or_default().insert(position, task_index).is_none(),
        };
        if self.is_by_entry(place) {
            alone &= self.by_entry.insert(position.entered, task_index).is_none();
        }
        self.settle(group, false);
        alone
    }

    pub(super) fn remove(&mut self, place: ReadyPlace) {
        let ReadyPlace { class, group, position } = place;
        self.urgent -= u64::from(class < URGENT_CLASS);
        if let Some(number) = group {
            self.of_groups.remove(&(number, class, position));
            self.grouped.remove(&(class, position));
        } else if class == USUAL_CLASS {
            self.usual.remove(&position);
        } else if let Some(tasks) = self.others.get_mut(&class) {
            tasks.remove(&position);
            if tasks.first_key_value().is_none() {
                self.others.remove(&class);
            }
        }
        if self.is_by_entry(place) {
            self.by_entry.remove(&position.entered);
        }
        self.settle(group, false);
    }

    /// A task of this group has come.
    pub(super) fn join(&mut self, name: &[u8]) -> GroupNumber {
        let is_first = self.groups.is_empty();
        let number = self.groups.join(name);
        if is_first {
            self.settle(None, false);
        }
        number
    }

    /// Whether no more tasks of this group may be lent at present.
    pub(super) fn is_full(&self, group: Option<GroupNumber>) -> bool {
        group.is_some_and(|number| self.groups.is_full(number, self.limit))
    }

    /// A task of this group is lent.
    pub(super) fn lend(&mut self, group: Option<GroupNumber>) {
        if let Some(number) = group {
            self.groups.lend(number);
            self.settle(group, false);
        }
    }

    /// A task of this group is lent no more.
    pub(super) fn end_lease(&mut self, group: Option<GroupNumber>) {
        if let Some(number) = group {
            self.groups.end_lease(number);
            self.settle(group, false);
        }
    }

    /// The group has had its turn.
    pub(super) fn end_turn(&mut self, group: Option<GroupNumber>) {
        self.settle(group, true);
    }

    /// The round begins anew: first the tasks without a group, then the groups in the order in which they came.
    pub(super) fn begin_round(&mut self) {
        self.groups.forget_turns();
        let numbers = self.groups.numbers();
        for group in [None].into_iter().chain(numbers.into_iter().map(Some)) {
            self.settle(group, false);
        }
    }

    fn settle(&mut self, group: Option<GroupNumber>, has_had: bool) {
        if self.groups.is_empty() {
            return;
        }
        let class = match group {
            None => class_of(self.first_without_group()),
            Some(number) => class_of(first_of_group(&self.of_groups, number, 0)),
        };
        self.groups.settle(group, class, self.limit, has_had);
    }

    fn is_by_entry(&self, ReadyPlace { class, group, .. }: ReadyPlace) -> bool {
        self.order == LeaseOrder::Priority || class != USUAL_CLASS || group.is_some()
    }
}

fn limit_of(group_limit: Option<NonZeroU32>) -> u32 {
    group_limit.map_or(u32::MAX, NonZeroU32::get)
}

fn first_of(class: u32, tasks: &ByPosition) -> Option<(ReadyPlace, TaskIndex)> {
    let place = |position| ReadyPlace { class, group: None, position };
    tasks.first_key_value().map(|(&position, &task_index)| (place(position), task_index))
}

/// The first task of a group whose class is this one or a less urgent one.
fn first_of_group(of_groups: &ByGroup, number: GroupNumber, class: u32) -> Option<(ReadyPlace, TaskIndex)> {
    let (&(found, class, position), &task_index) = of_groups.first_from(&(number, class, Position::FIRST))?;
    (found == number).then_some((ReadyPlace { class, group: Some(number), position }, task_index))
}

fn class_of(first: Option<(ReadyPlace, TaskIndex)>) -> Option<u32> {
    first.map(|(place, _)| place.class)
}
