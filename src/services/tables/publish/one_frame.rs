//! The publisher's part for another protocol, which has each change in one frame of its own.
//!
//! A subscription matches the beginning of this frame, so the frame is encoded before its subscribers are known.
//! Without a subscriber nothing is encoded.
//!
//! This module does not know the frame; see `lockstep/wire.rs`.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Now;
use crate::net::zeromq::publish::Subscribers;
use crate::services::tables::report::LockstepMetrics;
use crate::services::tables::wire::Notification;
use crate::tables::Audience;
use crate::zmtp::encode_frame;

/// Appends the frame of a notification. False: the protocol has none for it, and nothing was appended.
pub type NotificationEncoder = fn(&Notification<'_>, &mut Vec<u8>) -> bool;

/// The other protocol's end of the publisher.
pub(in crate::services::tables) struct OneFramePublisher {
    subscribers: Subscribers,
    encode: NotificationEncoder,
    /// The frame of the present change.
    frame: Vec<u8>,
    metrics: Arc<LockstepMetrics>,
}

impl OneFramePublisher {
    /// A publisher that sends to these subscribers.
    pub(in crate::services::tables) fn new(
        subscribers: Subscribers,
        encode: NotificationEncoder,
        metrics: Arc<LockstepMetrics>,
    ) -> Self {
        Self { subscribers, encode, frame: Vec::new(), metrics }
    }

    /// As [`Subscribers::refresh_users`].
    pub(super) fn refresh_users(&mut self) {
        self.subscribers.refresh_users();
    }

    /// The subscribers that it sends to.
    pub(super) fn subscribers(&self) -> &Subscribers {
        &self.subscribers
    }

    /// From now on subscriptions begin the audience of the tables that they touch.
    pub(super) fn begins_audience(&mut self, audience: Audience) {
        super::begins_audience(&mut self.subscribers, audience);
    }

    /// Whether there is no subscription.
    pub(super) fn is_idle(&self) -> bool {
        self.subscribers.is_idle()
    }

    /// Sends what was published if it is much.
    pub(super) fn make_room(&mut self) {
        self.subscribers.make_room();
    }

    /// Publishes a change. `is_over`: it is too late, and the change counts as lost.
    pub(super) fn announce(&mut self, notification: &Notification<'_>, is_over: bool) {
        if self.subscribers.is_idle() {
            return;
        }
        self.frame.clear();
        if !(self.encode)(notification, &mut self.frame) {
            return;
        }
        let frame = &self.frame;
        if is_over {
            self.subscribers.lose(frame);
        } else if self.subscribers.collect(frame, |out| encode_frame(out, frame, false)) {
            self.metrics.publish.published.add(1);
        }
    }

    /// Sends what was published.
    pub(super) fn send(&mut self) {
        self.subscribers.send();
        self.show();
    }

    /// How long the publisher may sleep, if it has no other reason to wake up.
    pub(super) fn patience(&self) -> Option<Duration> {
        self.subscribers.patience(None)
    }

    /// Gives each ready connection a turn, without waiting.
    pub(super) fn turn(&mut self, clock: impl Fn() -> Now) {
        self.subscribers.turn(Some(Duration::ZERO), clock);
    }

    /// Sends the rest, as [`Subscribers::finish`].
    pub(super) fn finish(&mut self, end: Now, clock: impl Fn() -> Now) {
        self.subscribers.finish(end, clock);
        self.show();
    }

    /// Updates the metrics for STATS.
    fn show(&self) {
        self.metrics.publish.subscribers.show(&self.subscribers.metrics());
    }
}
