//! The turns of groups in the model.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use super::{ModelQueue, ModelState};

impl ModelQueue {
    pub(super) fn has_groups(&self) -> bool {
        self.tasks.values().any(|task| !task.terms.group.is_empty())
    }

    /// Something has changed in a group. Groups that are open by now take a turn, and so does the one that has had its.
    pub(super) fn take_turns(&mut self, has_had: Option<&[u8]>) {
        if !self.has_groups() {
            return self.turns.clear();
        }
        let names: BTreeSet<Vec<u8>> = self.tasks.values().map(|task| task.terms.group.to_vec()).collect();
        self.turns.retain(|name, _| names.contains(name));
        let limit = self.terms.group_limit.map_or(u32::MAX, NonZeroU32::get);
        for name in names {
            let of_group = || self.tasks.values().filter(|task| *task.terms.group == *name);
            let lent = of_group().filter(|task| matches!(task.state, ModelState::Leased { .. })).count();
            let is_full = !name.is_empty() && lent as u64 >= u64::from(limit);
            if is_full || !of_group().any(|task| task.state == ModelState::Ready) {
                self.turns.remove(&name);
            } else if has_had == Some(&*name) || !self.turns.contains_key(&name) {
                self.next_turn += 1;
                self.turns.insert(name, self.next_turn);
            }
        }
    }

    /// The round begins anew: in the order of the first tasks.
    pub(super) fn begin_round(&mut self) {
        self.turns.clear();
        let mut tasks: Vec<(u64, Vec<u8>)> =
            self.tasks.values().map(|task| (task.number, task.terms.group.to_vec())).collect();
        tasks.sort();
        let mut names = vec![Vec::new()];
        for (_, name) in tasks {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        self.take_turns(None);
        for name in names.into_iter().filter(|name| self.turns.contains_key(name)).collect::<Vec<_>>() {
            self.next_turn += 1;
            self.turns.insert(name, self.next_turn);
        }
    }
}
