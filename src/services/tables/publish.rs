//! The publisher: it drains committed changes from the tables and publishes a notification for each.
//!
//! ```text
//! tables ═► changes ─► drain: a burst ─► publish: encode if there are subscribers ─► send ─► a turn of connections
//! ```
//! With a feed the same thread sends its messages too (`publish/feed.rs`), and with another protocol's subscribers the
//! changes in its frame (`publish/one_frame.rs`). Workers that own subscribers are handed the changes (`change_mail.rs`).
//!
//! The publisher sleeps when there is no change to announce. While there is no subscriber, changes do not wake it one
//! by one. It checks every 10 ms until it finds no change twice in a row. After that the next change wakes it.
//!
//! While changes come fast, it lets them gather for a millisecond: the cores are then busy, and each drain, each send
//! and each wake-up of a subscriber takes their time. A writer whose ring is half full ends that rest. Between two full
//! bursts it gives way: the thread that waits for its core may be the client that keeps the workers busy. For the same
//! reason some full bursts are sent together.
//!
//! This module does not order changes; see `tables::Changes`. It does not manage subscribers; see `net/zeromq/publish`.

mod feed;
mod one_frame;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::change_mail::{ChangeMailer, WorkerMail};
use super::report::PublishMetrics;
use super::wire::{Notification, NotificationKind};
use crate::clock::{Clock, Now};
use crate::feed::PublishedMessage;
use crate::limits::{LINGER, PUBLISH_BURST};
use crate::net::sockets::WakeSignal;
use crate::net::zeromq::publish::Subscribers;
use crate::tables::{AnnouncedChange, Audience, ChangeKind, ChangeSink, Changes, Drained};
use crate::zmtp::encode_frame;

/// The sleep between two checks while there is no subscriber: a new subscriber is noticed within this.
const LAZY_SLEEP: Duration = Duration::from_millis(10);

/// Changes of one drain above which they come so fast that the publisher lets more changes gather.
const GATHER_CHANGES_MIN: usize = 32;
/// How long it lets them gather. A message for many changes costs the system, and the subscriber, little more than one
/// for a few. Without it SETs beside a feed had 0.86 of their rate (`perf/feed.md`).
const GATHER_TIME: Duration = Duration::from_millis(1);
/// How long it gives way after a full burst, to which the system adds up to 50 µs. A burst takes about as long, and the
/// requests that clients have under way keep a worker busy for longer than that. Without it: 0.96 beside a feed, 0.89
/// beside a subscriber.
const GIVE_WAY_TIME: Duration = Duration::from_micros(20);
/// Changes left in the rings above which it does not give way. It announces as many within a millisecond. Without this
/// bound: 0.91 beside a feed, 1.05 beside a subscriber.
const LEFT_MANY: usize = 8_192;
/// Time between two looks for tables that nobody listens to any more.
const REVIEW_TIME: Duration = Duration::from_millis(100);
/// Full bursts that are sent together: each time, a subscriber wakes up and takes the core from somebody. With one: 0.98
/// beside a feed, 0.91 beside a subscriber.
const BURSTS_SENT: usize = 4;

pub(super) use feed::FeedPublisher;
pub use one_frame::NotificationEncoder;
pub(super) use one_frame::OneFramePublisher;

/// The publisher, ready to run.
pub struct Publisher {
    subscribers: Subscribers,
    feed: Option<FeedPublisher>,
    one_frame: Option<OneFramePublisher>,
    /// For workers with subscribers of their own.
    mailer: ChangeMailer,
    changes: Changes,
    clock: Clock,
    metrics: Arc<PublishMetrics>,
    /// Full bursts that are collected and not sent.
    unsent: usize,
    review: ReviewTimes,
    /// When it sends no more: [`LINGER`] after it has seen that the tables are closed.
    end: Option<Now>,
}

impl Publisher {
    /// A publisher that sleeps in `subscribers`, until `changes` raise `wake_signal`, or other subscribers have work.
    pub(super) fn new(
        mut subscribers: Subscribers,
        feed: Option<FeedPublisher>,
        mut one_frame: Option<OneFramePublisher>,
        mut changes: Changes,
        wake_signal: WakeSignal,
        clock: Clock,
        metrics: Arc<PublishMetrics>,
    ) -> Self {
        changes.set_waker(Box::new(move || wake_signal.raise()));
        begins_audience(&mut subscribers, changes.audience());
        if let Some(one_frame) = &mut one_frame {
            one_frame.begins_audience(changes.audience());
        }
        let review = ReviewTimes { ended: u64::MAX, next: clock.now() };
        let mailer = ChangeMailer::default();
        Self { subscribers, feed, one_frame, mailer, changes, clock, metrics, unsent: 0, review, end: None }
    }

    /// Hands changes to these workers too, of the tables that they select.
    pub(crate) fn hand_to(&mut self, workers: Vec<WorkerMail>) {
        self.mailer = ChangeMailer::new(workers);
    }

    /// The loop of the thread. Returns when the tables are closed, all committed changes are announced, and either the
    /// subscribers that read have received them or [`LINGER`] has passed since the close. Later changes are not sent,
    /// and count as lost: subscribers that do not read cost no more than this.
    pub fn run(mut self) {
        let clock = self.clock;
        let mut found = true;
        loop {
            let drained = self.announce();
            if self.collects_on(&drained) {
                thread::park_timeout(GIVE_WAY_TIME);
                continue;
            }
            self.send();
            self.show();
            if let Some(end) = self.end.filter(|_| drained.closed) {
                self.subscribers.finish(end, || clock.now());
                if let Some(feed) = &mut self.feed {
                    feed.finish(end, || clock.now());
                }
                if let Some(one_frame) = &mut self.one_frame {
                    one_frame.finish(end, || clock.now());
                }
                return self.show();
            }
            self.refresh_users();
            self.review();
            let timeout = self.rest(&drained, found);
            self.subscribers.turn(timeout, || clock.now());
            if let Some(feed) = &mut self.feed {
                feed.turn(|| clock.now());
            }
            if let Some(one_frame) = &mut self.one_frame {
                one_frame.turn(|| clock.now());
            }
            found = drained.taken > 0;
        }
    }

    /// Publishes committed changes, up to a burst.
    fn announce(&mut self) -> Drained {
        let now = self.clock.now();
        let (changes, mut sink) = self.parts();
        if let Some(feed) = &mut sink.feed {
            feed.begin(now);
        }
        let drained = changes.drain_to(PUBLISH_BURST, &mut sink);
        if drained.closing {
            self.end.get_or_insert_with(|| now.after(LINGER));
        }
        drained
    }

    /// The changes, and where they are sent to.
    fn parts(&mut self) -> (&mut Changes, Sink<'_>) {
        let has_listeners = self.has_listeners();
        let Self { subscribers, feed, one_frame, mailer, changes, clock, metrics, end, .. } = self;
        let (feed, one_frame, until) = (feed.as_mut(), one_frame.as_mut(), end.map(|end| (end, *clock)));
        (changes, Sink { subscribers, feed, one_frame, mailer, metrics, until, has_listeners })
    }

    /// Ends the audience of some tables that nobody listens to, if it is time to look for them.
    fn review(&mut self) {
        if self.review_in() != Some(Duration::ZERO) {
            return;
        }
        let (has_any, ended) = (self.has_listeners(), self.topics_ended());
        let Self { subscribers, one_frame, changes, .. } = self;
        if !changes.reviews() {
            self.review.ended = ended;
        }
        let others = one_frame.as_ref().map(OneFramePublisher::subscribers);
        let has_audience =
            |topic: &[u8]| subscribers.touches(topic) || others.is_some_and(|others| others.touches(topic));
        let abandoned = changes.review(has_any, has_audience);
        let (changes, mut sink) = self.parts();
        changes.silence(abandoned, &mut sink);
        self.mailer.hand_over();
        self.review.next = self.clock.now().after(if self.changes.reviews() { Duration::ZERO } else { REVIEW_TIME });
    }

    /// In how much time it looks for tables that nobody listens to, if it has a reason. Without a subscription it looks
    /// at once: what nobody listens to costs the writers most then.
    fn review_in(&self) -> Option<Duration> {
        let is_wanted = self.review.ended != self.topics_ended() || self.changes.wants_review();
        let time = if self.has_listeners() { self.clock.now().time_until(self.review.next) } else { Duration::ZERO };
        is_wanted.then_some(time)
    }

    /// How many topics have lost their last subscriber, ever.
    fn topics_ended(&self) -> u64 {
        let others = self.one_frame.as_ref().map_or(0, |one_frame| one_frame.subscribers().topics_ended());
        self.subscribers.topics_ended() + others
    }

    /// Whether more changes are to be collected before they are sent: few bursts, and fewer changes left than are too
    /// many. Nobody looks at the connections meanwhile, so a collected message goes to the subscribers of its time.
    fn collects_on(&mut self, drained: &Drained) -> bool {
        let collects_on = gives_way(drained) && self.unsent + 1 < BURSTS_SENT;
        self.unsent = if collects_on { self.unsent + 1 } else { 0 };
        collects_on
    }

    /// Sends what was published, and the bookmarks behind it.
    fn send(&mut self) {
        self.mailer.hand_over();
        self.subscribers.send();
        if let Some(feed) = &mut self.feed {
            feed.send(&self.changes);
        }
        if let Some(one_frame) = &mut self.one_frame {
            one_frame.send();
        }
    }

    /// Takes the results of checked passwords, before the wait: another turn may have silenced the wake-up for them.
    fn refresh_users(&mut self) {
        self.subscribers.refresh_users();
        if let Some(feed) = &mut self.feed {
            feed.refresh_users();
        }
        if let Some(one_frame) = &mut self.one_frame {
            one_frame.refresh_users();
        }
    }

    /// How long the publisher may sleep until there may be a change to announce. `drained`: what the last check found.
    /// `found`: the check before it found some.
    fn rest(&mut self, drained: &Drained, found: bool) -> Option<Duration> {
        if drained.taken >= PUBLISH_BURST {
            // Writers find it awake, and do not wake it.
            return Some(if gives_way(drained) { GIVE_WAY_TIME } else { Duration::ZERO });
        }
        if drained.taken > 0 {
            let gathers = drained.taken >= GATHER_CHANGES_MIN && self.changes.prepare_sleep(true);
            return Some(if gathers { GATHER_TIME } else { Duration::ZERO });
        }
        let lazily = found && self.is_idle();
        let patience = self.feed.as_ref().and_then(FeedPublisher::patience);
        let others = self.one_frame.as_ref().and_then(OneFramePublisher::patience);
        match self.changes.prepare_sleep(lazily) {
            true => {
                let review = self.review_in();
                lazily.then_some(LAZY_SLEEP).into_iter().chain(patience).chain(others).chain(review).min()
            }
            false => Some(Duration::ZERO),
        }
    }

    /// Whether nobody subscribes, and no other thread holds an audience.
    fn is_idle(&self) -> bool {
        !self.has_listeners() && !self.changes.is_held() && self.feed.as_ref().is_none_or(FeedPublisher::is_idle)
    }

    /// Whether somebody subscribes to notifications, of either kind.
    fn has_listeners(&self) -> bool {
        !self.subscribers.is_idle() || self.one_frame.as_ref().is_some_and(|one_frame| !one_frame.is_idle())
    }

    /// Updates the metrics for STATS.
    fn show(&self) {
        self.metrics.subscribers.show(&self.subscribers.metrics());
    }
}

/// When the publisher looks for tables that nobody listens to.
struct ReviewTimes {
    /// How many topics had lost their last subscriber when it did so last. At first none of its counts.
    ended: u64,
    /// Not before that.
    next: Now,
}

/// From now on subscriptions begin the audience of the tables that they touch.
fn begins_audience(subscribers: &mut Subscribers, audience: Audience) {
    subscribers.before_first_subscription(move |topics| audience.begin(topics.iter().map(|topic| &**topic)));
}

/// Whether the publisher gives way after this drain.
fn gives_way(drained: &Drained) -> bool {
    drained.taken >= PUBLISH_BURST && drained.left <= LEFT_MANY && !drained.closing
}

/// The destination of what is drained.
struct Sink<'p> {
    subscribers: &'p mut Subscribers,
    feed: Option<&'p mut FeedPublisher>,
    one_frame: Option<&'p mut OneFramePublisher>,
    mailer: &'p mut ChangeMailer,
    metrics: &'p PublishMetrics,
    /// At the end of the server: when it sends no more, and the clock.
    until: Option<(Now, Clock)>,
    /// Somebody subscribed to notifications when the burst began. Subscriptions come between two bursts.
    has_listeners: bool,
}

impl Sink<'_> {
    fn is_over(&self) -> bool {
        self.until.is_some_and(|(end, clock)| clock.now() >= end)
    }
}

impl ChangeSink for Sink<'_> {
    fn begin(&mut self) {
        self.mailer.begin();
        self.subscribers.make_room();
        if let Some(one_frame) = &mut self.one_frame {
            one_frame.make_room();
        }
    }

    fn announce(&mut self, change: &AnnouncedChange<'_>) {
        self.mailer.announce(change);
        let is_wanted = self.has_listeners && change.is_in_order;
        let Some(kind) = ChangeKind::of(change.cause).filter(|_| is_wanted) else { return };
        let AnnouncedChange { table, key, .. } = *change;
        let is_over = self.is_over();
        let kind = match kind {
            ChangeKind::Updated => NotificationKind::Updated,
            ChangeKind::Deleted => NotificationKind::Deleted,
        };
        let notification = Notification { table, kind, key };
        let encode = |out: &mut Vec<u8>| notification.encode(|frame, more| encode_frame(out, frame, more));
        if is_over {
            self.subscribers.lose(table);
        } else if self.subscribers.collect(table, encode) {
            self.metrics.published.add(1);
        }
        if let Some(one_frame) = &mut self.one_frame {
            one_frame.announce(&notification, is_over);
        }
    }

    fn publish(&mut self, message: &PublishedMessage) {
        let is_over = self.is_over();
        match &mut self.feed {
            Some(feed) if is_over => feed.lose(message),
            Some(feed) => feed.publish(message),
            None => {}
        }
    }
}
