//! The publisher: it drains committed changes from the tables and publishes a notification for each.
//!
//! ```text
//! tables ═► changes ─► drain: a burst ─► publish: encode if there are subscribers ─► send ─► a turn of connections
//! ```
//! The publisher sleeps when there is no change to announce. While there is no subscriber, changes do not wake it one
//! by one. It checks every 10 ms until it finds no change twice in a row. After that the next change wakes it.
//!
//! This module does not order changes; see `tables::Changes`. It does not manage subscribers; see `protocols/publish`.

use std::sync::Arc;
use std::time::Duration;

use super::report::PublishTally;
use super::wire::{Notification, NotificationKind};
use crate::clock::Clock;
use crate::limits::{LINGER, PUBLISH_BURST};
use crate::protocols::publish::{PublisherMetrics, Subscribers};
use crate::protocols::sockets::WakeSignal;
use crate::tables::{ChangeKind, Changes, Drained};
use crate::zmtp::encode_frame;

/// The sleep between two checks while there is no subscriber: a new subscriber is noticed within this.
const LAZY_SLEEP: Duration = Duration::from_millis(10);

/// The publisher, ready to run.
pub struct Publisher {
    subscribers: Subscribers,
    changes: Changes,
    clock: Clock,
    metrics: Arc<PublishTally>,
    /// The metrics last shown to STATS.
    shown: PublisherMetrics,
}

impl Publisher {
    /// A publisher that sleeps in `subscribers`, until `changes` ring `bell`.
    pub(super) fn new(
        subscribers: Subscribers,
        mut changes: Changes,
        bell: WakeSignal,
        clock: Clock,
        metrics: Arc<PublishTally>,
    ) -> Self {
        changes.set_waker(Box::new(move || bell.ring()));
        Self { subscribers, changes, clock, metrics, shown: PublisherMetrics::default() }
    }

    /// The loop of the thread. Returns when the tables are closed, all committed changes are announced, and either the
    /// subscribers that read have received them or [`LINGER`] has passed since then.
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

    /// Publishes committed changes, up to a burst.
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

    /// How long the publisher may sleep until there may be a change to announce. `finds`: the last check found changes.
    /// `found`: the check before it did.
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

    /// Updates the metrics for STATS if they have changed.
    fn show(&mut self) {
        let publisher_metrics = self.subscribers.metrics();
        if publisher_metrics != self.shown {
            self.metrics.subscribers.show(&publisher_metrics);
            self.shown = publisher_metrics;
        }
    }
}
