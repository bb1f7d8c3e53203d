//! The publisher: takes committed changes from the tables and publishes a notification for each.
//!
//! ```text
//! tables ═► changes ─► drain: a burst ─► publish: encoded if anybody subscribes ─► send ─► a turn of the connections
//! ```
//! It sleeps when there is nothing to announce. While nobody subscribes it does not let itself be woken for each
//! change: it looks every 10 ms, until it finds nothing twice; then the next change wakes it.
//!
//! What is not here: the order of changes (`tables::Changes` keeps it), and subscribers (`protocols/publish`).

use std::sync::Arc;
use std::time::Duration;

use super::report::PublishTally;
use super::wire::{Notification, NotificationKind};
use crate::clock::Clock;
use crate::limits::{LINGER, PUBLISH_BURST};
use crate::protocols::publish::{PublisherMetrics, Subscribers};
use crate::protocols::sockets::Stopper;
use crate::tables::{ChangeKind, Changes, Drained};
use crate::zmtp::encode_frame;

/// How long it sleeps between two looks while nobody subscribes.
const LAZY_SLEEP: Duration = Duration::from_millis(10);

/// The publisher, ready to run.
pub struct Publisher {
    subscribers: Subscribers,
    changes: Changes,
    clock: Clock,
    metrics: Arc<PublishTally>,
    /// What STATS were told last.
    shown: PublisherMetrics,
}

impl Publisher {
    /// `subscribers` wait for the bell of `stopper`.
    pub(super) fn new(
        subscribers: Subscribers,
        mut changes: Changes,
        stopper: &Stopper,
        clock: Clock,
        metrics: Arc<PublishTally>,
    ) -> Self {
        let ringer = stopper.bell().clone();
        changes.set_waker(Box::new(move || ringer.ring()));
        Self { subscribers, changes, clock, metrics, shown: PublisherMetrics::default() }
    }

    /// The loop of the thread. Returns when the tables are closed, all that was committed is announced, and those who
    /// read have heard it, or [`LINGER`] is over since then.
    pub fn run(mut self) {
        let clock = self.clock;
        let mut found = true;
        loop {
            let drained = self.announce();
            self.show();
            if drained.closed {
                self.subscribers.finish(clock.now().after(LINGER), || clock.now());
                return self.show();
            }
            let timeout = self.rest(drained.taken > 0, found);
            self.subscribers.turn(timeout, || clock.now());
            found = drained.taken > 0;
        }
    }

    /// Publishes what has been committed, up to a burst.
    fn announce(&mut self) -> Drained {
        let Self { subscribers, changes, metrics, .. } = self;
        let drained = changes.drain(PUBLISH_BURST, &mut |table, kind, key| {
            let kind = match kind {
                ChangeKind::Updated => NotificationKind::Updated,
                ChangeKind::Deleted => NotificationKind::Deleted,
            };
            let notification = Notification { table, kind, key };
            let encode = |out: &mut Vec<u8>| notification.encode(|frame, more| encode_frame(out, frame, more));
            if subscribers.publish(table, encode) {
                metrics.published.add(1);
            }
        });
        subscribers.send();
        drained
    }

    /// How long it may sleep until there may be something to announce. `finds`, `found`: the last look did find
    /// something, and the one before it.
    fn rest(&mut self, finds: bool, found: bool) -> Option<Duration> {
        if finds {
            return Some(Duration::ZERO);
        }
        let lazily = found && self.subscribers.is_idle();
        match self.changes.prepare_sleep(lazily) {
            true => lazily.then_some(LAZY_SLEEP),
            false => Some(Duration::ZERO),
        }
    }

    /// Lets STATS see what has changed.
    fn show(&mut self) {
        let publisher_metrics = self.subscribers.metrics();
        if publisher_metrics != self.shown {
            self.metrics.subscribers.show(&publisher_metrics);
            self.shown = publisher_metrics;
        }
    }
}
