//! The end of the publisher, with a clock that stands still.

#![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::feed::topic_of_table;
use crate::net::zeromq::BoundListener;
use crate::net::zeromq::publish::{PublishLimits, TopicForm};
use crate::net::zeromq::tests::introduction;
use crate::services::tables::report::FeedPublisherMetrics;
use crate::tables::{BackgroundThreads, Deadline, Durability, FeedConfig, Tables, TablesConfig};
use crate::zmtp::{SocketType, encode_subscribe};

const CHANGES: usize = 3_000;
const TABLE: &[u8] = b"t\0";

fn settings() -> TablesConfig {
    TablesConfig {
        expected_keys: 0,
        memory_max: 1 << 30,
        tables_max: 10,
        durability: Durability::None,
        changes_per_writer: 1 << 12,
        version_base: 0,
        clock_start: 0,
    }
}

/// Subscribers at an endpoint of this host, with one that has this topic and does not read.
fn with_one(wake_signal: &WakeSignal, topic: &[u8]) -> (Subscribers, TcpStream) {
    let mut subscribers = Subscribers::new(wake_signal, PublishLimits::new(10), TopicForm::Name, None).unwrap();
    let listener = BoundListener::bind("tcp://127.0.0.1:*").unwrap();
    let address = listener.endpoint().split_once("://").unwrap().1.to_owned();
    subscribers.listen(listener).unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let mut bytes = introduction(SocketType::Sub);
    encode_subscribe(&mut bytes, topic);
    stream.write_all(&bytes).unwrap();
    while subscribers.metrics().subscriptions == 0 {
        subscribers.turn(Some(LAZY_SLEEP), || Now::from_millis(1));
    }
    (subscribers, stream)
}

#[test]
fn changes_that_are_announced_late_at_the_end_are_not_sent_and_count_as_lost() {
    static MILLIS: AtomicU64 = AtomicU64::new(1);
    let clock = Clock::fake(&MILLIS);
    let wake_signal = WakeSignal::new().unwrap();
    let (subscribers, _reads_nothing) = with_one(&wake_signal, TABLE);
    let (followers, _follows_nothing) = with_one(&wake_signal, &topic_of_table(TABLE));
    let feed = FeedConfig { epoch: 1, history_bytes: 1 << 20 };
    // The other threads would write too, and are not there.
    let (tables, BackgroundThreads { changes, .. }) = Tables::with_feed(settings(), Some(feed));
    let metrics = Arc::new(PublishMetrics::default());
    let feed = FeedPublisher::new(followers, Arc::new(FeedPublisherMetrics::default()));
    let mut publisher =
        Publisher::new(subscribers, Some(feed), None, changes, wake_signal, clock, Arc::clone(&metrics));
    let mut session = tables.session();
    session.batch(clock.now()).create_table(b"t", TABLE).unwrap();
    for number in 0..CHANGES {
        session.batch(clock.now()).update(b"t", &number.to_be_bytes(), b"value", Deadline::KEEP).unwrap();
    }
    drop(session);
    tables.close();

    let drained = publisher.announce();
    assert!(drained.closing && !drained.closed);
    assert_eq!(metrics.published.get(), drained.taken as u64, "before the end, all is sent");
    let followed = publisher.feed.as_ref().unwrap().lost();

    MILLIS.store(1 + u64::try_from(LINGER.as_millis()).unwrap(), Ordering::Relaxed);
    while !publisher.announce().closed {}
    assert_eq!(metrics.published.get(), drained.taken as u64, "after the end, none is");
    assert!(publisher.subscribers.metrics().lost >= (CHANGES - drained.taken) as u64);
    assert!(publisher.feed.as_ref().unwrap().lost() > followed);
    // The clock stands still, so this returns only because the end has passed.
    publisher.run();
}

#[test]
fn how_long_it_rests_depends_on_how_many_changes_it_found() {
    let wake_signal = WakeSignal::new().unwrap();
    let (subscribers, _reads_nothing) = with_one(&wake_signal, TABLE);
    let (tables, BackgroundThreads { changes, .. }) = Tables::with_feed(settings(), None);
    let metrics = Arc::new(PublishMetrics::default());
    let mut publisher = Publisher::new(subscribers, None, None, changes, wake_signal, Clock::start(), metrics);
    // The first look for tables that nobody listens to.
    publisher.review();
    let mut rest = |taken, left| {
        let drained = Drained { taken, left, closing: false, closed: false };
        publisher.rest(&drained, true)
    };
    assert_eq!(rest(0, 0), None, "the next change wakes it");
    assert_eq!(rest(GATHER_CHANGES_MIN - 1, 0), Some(Duration::ZERO));
    assert_eq!(rest(GATHER_CHANGES_MIN, 0), Some(GATHER_TIME));
    assert_eq!(rest(PUBLISH_BURST - 1, 0), Some(GATHER_TIME));
    assert_eq!(rest(PUBLISH_BURST, 0), Some(GIVE_WAY_TIME));
    assert_eq!(rest(PUBLISH_BURST, LEFT_MANY + 1), Some(Duration::ZERO), "too many wait");
    drop(tables);
}
