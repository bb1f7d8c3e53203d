//! Looks at tasks without taking them.
//!
//! This module changes nothing.

use super::Engine;
use crate::tasks::Outcome;
use crate::tasks::queue::ShownTask;
use crate::tasks::request::{BrowsePlace, BrowsedState, BrowsedTask};

/// Tasks at which a page looks.
pub(in crate::tasks) const BROWSED_MAX: usize = 1 << 10;

impl Engine {
    /// A page of the tasks in a state.
    pub(super) fn browse(
        &self,
        queue_index: usize,
        state: BrowsedState,
        group: Option<&[u8]>,
        from: Option<BrowsePlace>,
        most: u32,
    ) -> Outcome {
        let queue = &self.entry(queue_index).queue;
        let (mut tasks, mut place) = (Vec::new(), from.unwrap_or_default());
        for _ in 0..BROWSED_MAX {
            if tasks.len() >= most as usize {
                break;
            }
            let Some((task_index, behind)) = queue.browse(state, place) else {
                return Outcome::Browsed { tasks, next: None };
            };
            place = behind;
            tasks.extend(queue.shown(task_index, state, group).map(|shown| self.browsed(queue_index, shown)));
        }
        Outcome::Browsed { tasks, next: Some(place) }
    }

    fn browsed(&self, queue_index: usize, shown: ShownTask<'_>) -> BrowsedTask {
        let ShownTask { number, class, lent, since, until, key, group } = shown;
        let payload = self.payload(queue_index, number);
        BrowsedTask { key: key.into(), class, lent, group: group.into(), since, until, payload }
    }
}
