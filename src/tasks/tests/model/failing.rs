//! Tasks of the model that fail, wait and die.

use super::{ModelQueue, ModelState, ModelTask};
use crate::tasks::{LeaseOrder, REASON_BYTES_MAX};

/// What is kept of a reason.
fn reason_of(reason: &[u8]) -> Vec<u8> {
    reason.iter().take(REASON_BYTES_MAX).copied().collect()
}

impl ModelQueue {
    /// A lease of this task has failed.
    pub(super) fn fail(&mut self, key: &[u8], delay: Option<u64>, reason: &[u8]) {
        let task = &self.tasks[key];
        let is_last = task.terms.tries.or(self.terms.tries).flatten().is_some_and(|tries| task.lent >= tries.get());
        if is_last {
            return self.die(key, reason);
        }
        let backoff =
            || task.terms.backoff.or(self.terms.backoff).map_or(0, |backoff| backoff.after(task.lent, task.number));
        let delay = delay.unwrap_or_else(backoff);
        self.come_back(key);
        self.tasks.get_mut(key).unwrap().reason = reason_of(reason);
        self.come_in(key, delay);
    }

    pub(super) fn come_in(&mut self, key: &[u8], delay: u64) {
        let now = self.now;
        let task = self.tasks.get_mut(key).unwrap();
        task.state =
            if delay > 0 { ModelState::Delayed { until: now.saturating_add(delay) } } else { ModelState::Ready };
        self.end_lifetimes();
    }

    pub(super) fn die(&mut self, key: &[u8], reason: &[u8]) {
        self.serial += 1;
        let (now, serial) = (self.now, self.serial);
        let task = self.tasks.get_mut(key).unwrap();
        task.state = ModelState::Dead { serial };
        task.reason = reason_of(reason);
        if task.over <= now {
            self.tasks.remove(key);
        }
        self.take_turns(None);
    }

    pub(super) fn kick(&mut self, key: &[u8]) -> bool {
        let order = self.order;
        let is_kicked =
            |task: &&mut ModelTask| matches!(task.state, ModelState::Delayed { .. } | ModelState::Dead { .. });
        let Some(task) = self.tasks.get_mut(key).filter(is_kicked) else { return false };
        self.serial += 1;
        (task.lent, task.reason) = (0, Vec::new());
        if order == LeaseOrder::Priority {
            (task.priority, task.entered) = (self.serial, self.serial);
        }
        self.come_in(key, 0);
        true
    }
}
