//! Looks at queues and tasks without taking them.
//!
//! This module changes nothing.

use super::Engine;
use crate::store::{Store, Value};
use crate::tasks::queue::ShownTask;
use crate::tasks::queues::{QueueEntry, number_of};
use crate::tasks::record::task_key;
use crate::tasks::settings::QueueSettings;
use crate::tasks::shown::{BROWSED_MAX, Browse, BrowsedPage, BrowsedTask, ListedQueue, PAGE_BYTES_MAX};
use crate::tasks::{Outcome, Payload};

impl Engine {
    /// A page of the tasks in a state.
    pub(super) fn browse(&self, queue_index: usize, browse: &Browse, store: &dyn Store) -> Outcome {
        let &Browse { state, ref group, from, most, first_bytes } = browse;
        let queue = &self.entry(queue_index).queue;
        let (mut tasks, mut place, mut bytes) = (Vec::new(), from.unwrap_or_default(), 0);
        for _ in 0..BROWSED_MAX {
            if tasks.len() >= most as usize || bytes >= PAGE_BYTES_MAX {
                break;
            }
            let Some((task_index, behind)) = queue.browse(state, group.as_deref(), place) else {
                return Outcome::Browsed(BrowsedPage { tasks, next: None, first_bytes });
            };
            place = behind;
            if let Some(shown) = queue.shown(task_index, state, group.as_deref()) {
                let task = self.browsed(queue_index, shown, first_bytes, store);
                bytes += task.memory() + first_bytes as usize;
                tasks.push(task);
            }
        }
        Outcome::Browsed(BrowsedPage { tasks, next: Some(place), first_bytes })
    }

    fn browsed(&self, queue_index: usize, shown: ShownTask<'_>, first_bytes: u32, store: &dyn Store) -> BrowsedTask {
        let ShownTask { number, class, lent, since, until, reason, key, group } = shown;
        let place = task_key(number_of(queue_index), number);
        let (bytes, payload) = match self.entry(queue_index).queue.fresh(number) {
            Some(value) => {
                let first = value.get(..first_bytes as usize).unwrap_or(value);
                (value.len() as u64, Payload::Fresh(Value::from(first)))
            }
            None => (store.value_bytes(&place), Payload::Stored(place)),
        };
        let (key, group) = (key.into(), group.into());
        let (age, left) = (self.timers.now.saturating_sub(since), until.map(|until| self.left(until)));
        BrowsedTask { key, class, lent, group, age, left, reason, bytes, payload, place }
    }

    /// The milliseconds until a time. `u64::MAX` stays.
    fn left(&self, until: u64) -> u64 {
        if until == u64::MAX { until } else { until.saturating_sub(self.timers.now) }
    }

    /// A page of the queues whose names begin with one of these.
    pub(super) fn list_queues(&self, prefixes: &[Box<[u8]>], from: u32, most: u32) -> Outcome {
        let (mut queues, mut place) = (Vec::new(), from as usize);
        for _ in 0..BROWSED_MAX {
            if place >= self.queues.end() {
                return Outcome::Queues { queues, next: None };
            }
            if queues.len() >= most as usize {
                break;
            }
            let entry = self.queues.get(place);
            // One that is over goes with this batch.
            let is_wanted =
                |entry: &&QueueEntry| !entry.is_over() && prefixes.iter().any(|prefix| entry.name.starts_with(prefix));
            queues.extend(entry.filter(is_wanted).map(|entry| self.listed(entry)));
            place += 1;
        }
        Outcome::Queues { queues, next: Some(number_of(place)) }
    }

    /// The queue alone.
    pub(super) fn show_queue(&self, queue_index: usize) -> Outcome {
        let entry = Some(self.entry(queue_index)).filter(|entry| !entry.is_over());
        Outcome::Queues { queues: entry.map(|entry| self.listed(entry)).into_iter().collect(), next: None }
    }

    fn listed(&self, entry: &QueueEntry) -> ListedQueue {
        let (queue, now) = (&entry.queue, self.timers.now);
        let QueueSettings { terms, gate, sync } = *queue.settings();
        ListedQueue {
            name: (*entry.name).into(),
            counts: queue.counts_at(now),
            urgent: queue.urgent(),
            groups: queue.groups(),
            waiting: entry.waiters.len() as u64,
            oldest: queue.oldest().map(|since| now.saturating_sub(since)),
            paused: Some(gate.paused_until).filter(|until| *until > now).map(|until| self.left(until)),
            terms,
            rate: gate.rate,
            sync,
        }
    }
}
