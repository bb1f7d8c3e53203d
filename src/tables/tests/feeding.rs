//! The feed over real tables: causes, versions published ahead, the marks of a scan, the ends of lives, and an exact copy
//! after any mixture of writers.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::collections::BTreeMap;
use std::thread;

use super::super::{
    Addition, AnnouncedChange, ChangeKind, ChangeSink, Deadline, FeedConfig, ManyProgress, Refusal, ScanContent,
    ScanPage, ScanProgress, Session, Tables, TablesConfig,
};
use super::{BASE, TablesRig, in_seconds, settings};
use crate::clock::{Clock, Now, Ttl};
use crate::feed::tests::follower::Follower;
use crate::feed::{Cause, FeedContent, FeedMessage, LifeState, PublishedMessage, topic_of_table};

const EPOCH: u64 = 5;
const WALL: u64 = 1_000_000;
const FEED: FeedConfig = FeedConfig { epoch: EPOCH, history_bytes: 1 << 20 };

/// What the publisher has sent.
#[derive(Default)]
struct Collected {
    messages: Vec<PublishedMessage>,
    notified: usize,
    /// The causes of the changes, with their versions above the base, also of those that are not notified.
    causes: Vec<(Cause, u64)>,
}

impl ChangeSink for Collected {
    fn announce(&mut self, change: &AnnouncedChange<'_>) {
        self.notified += usize::from(ChangeKind::of(change.cause).is_some());
        self.causes.push((change.cause, change.version() - BASE));
    }

    fn publish(&mut self, message: &PublishedMessage) {
        self.messages.push(message.clone());
    }
}

fn rig() -> TablesRig {
    TablesRig::with_feed(TablesConfig { clock_start: WALL, ..settings() }, Some(FEED))
}

/// Drains so many changes at most. Returns the published changes: cause, key, value, version above the base,
/// deadline. A life that ended is an empty line.
fn published(rig: &TablesRig, limit: usize) -> Vec<String> {
    let mut collected = Collected::default();
    rig.0.changes.borrow_mut().drain_to(limit, &mut collected);
    let mut lines = Vec::new();
    for message in &collected.messages {
        match FeedMessage::decode(&message.payload).unwrap().content {
            FeedContent::Changes(changes) => lines.extend(changes.map(|change| {
                let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
                let deadline = change.deadline_millis.map_or(String::new(), |at| format!(" until {}", at - WALL));
                let (cause, version) = (change.cause as u8, change.version - BASE);
                format!("{cause} {}={} v{version}{deadline}", text(change.key), text(change.value))
            })),
            FeedContent::Dropped => lines.push(format!("dropped {}", String::from_utf8_lossy(&message.topic[1..]))),
            FeedContent::Bookmark { .. } => panic!("the log makes no bookmarks by itself"),
        }
    }
    lines
}

/// The rows of a scan for a mirror.
fn rows(rig: &TablesRig) -> Vec<String> {
    let mut session = rig.0.session.borrow_mut();
    let mut batch = session.batch(rig.now());
    let content = ScanContent::ForMirror;
    let page = ScanPage { cursor: b"", count: 1_000, bytes_max: 1 << 20, prefix: b"", content };
    let mut rows = Vec::new();
    batch
        .scan(b"t", &page, |row| {
            let mark = match row.progress {
                ScanProgress::Published => 0,
                ScanProgress::Ahead => 1,
                ScanProgress::Deleted => 2,
            };
            let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
            rows.push(format!("{}={} v{} {mark}", text(row.key), text(row.value), row.version - BASE));
        })
        .unwrap();
    rows.sort();
    rows
}

fn state(rig: &TablesRig) -> LifeState {
    rig.0.session.borrow_mut().batch(rig.now()).feed_state(b"t").unwrap()
}

#[test]
fn each_cause_is_published_with_value_version_and_deadline() {
    let rig = rig();
    rig.set("a", "1", Some(2)).unwrap();
    assert_eq!(published(&rig, 100), ["1 a=1 v1 until 2001"]);
    rig.0.session.borrow_mut().batch(rig.now()).touch(b"t", b"a", in_seconds(rig.now(), 5)).unwrap();
    assert_eq!(published(&rig, 100), ["2 a=1 v2 until 5001"]);
    rig.set("b", "2", None).unwrap();
    rig.delete("b").unwrap();
    assert_eq!(published(&rig, 1), ["3 b= v2"], "its state then, and the cause of that version, which has not come");
    assert_eq!(published(&rig, 1), [""; 0]);
    rig.at(5_001).expire();
    assert_eq!(published(&rig, 100), ["4 a= v3"]);
    rig.set("c", "3", None).unwrap();
    assert_eq!(published(&rig, 100).len(), 1);
    rig.drop_table("t").unwrap();
    rig.reap();
    assert_eq!(published(&rig, 100).iter().map(|line| &line[..4]).collect::<Vec<_>>(), ["5 c="]);
    rig.reap();
    assert_eq!(published(&rig, 100), ["dropped t"]);
}

#[test]
fn each_command_has_its_cause_in_the_feed_and_at_the_sink() {
    let rig = rig();
    let add = Addition { delta: 1, deadline: Deadline::KEEP, value_max: 1_024 };
    let mut session = rig.0.session.borrow_mut();
    let mut batch = session.batch(rig.now());
    let one = batch.compare_and_swap(b"t", b"a", 0, b"1", Deadline::KEEP).unwrap();
    let two = batch.compare_and_swap(b"t", b"a", one, b"2", in_seconds(rig.now(), 9)).unwrap();
    batch.increment(b"t", b"a", add).unwrap();
    batch.increment(b"t", b"n", add).unwrap();
    batch.get_and_touch(b"t", b"n", in_seconds(rig.now(), 5)).unwrap();
    let pairs = [(&b"n"[..], &b"7"[..])];
    batch.update_many(b"t", Deadline::KEEP, pairs.into_iter(), &mut ManyProgress::default()).unwrap();
    batch.compare_and_delete(b"t", b"a", two + 1).unwrap();
    drop(batch);
    drop(session);
    let mut collected = Collected::default();
    rig.0.changes.borrow_mut().drain_to(100, &mut collected);
    let swap = Cause::CompareAndSwap;
    let [a, n] = [[swap, swap, Cause::Increment], [Cause::Increment, Cause::Touch, Cause::Set]];
    let expected: Vec<_> = a.into_iter().zip(1..).chain(n.into_iter().zip(1..)).chain([(Cause::Delete, 4)]).collect();
    assert_eq!((collected.causes, collected.notified), (expected, 6), "a touch is not notified");
}

#[test]
fn a_counter_that_is_published_ahead_is_an_increment_if_that_change_has_come() {
    let rig = rig();
    let add = Addition { delta: 1, deadline: Deadline::KEEP, value_max: 1_024 };
    for _ in 0..3 {
        rig.0.session.borrow_mut().batch(rig.now()).increment(b"t", b"n", add).unwrap();
    }
    assert_eq!(published(&rig, 100), ["7 n=3 v3"]);
    let one =
        rig.0.session.borrow_mut().batch(rig.now()).compare_and_swap(b"t", b"a", 0, b"1", Deadline::KEEP).unwrap();
    rig.0.session.borrow_mut().batch(rig.now()).compare_and_swap(b"t", b"a", one, b"2", Deadline::KEEP).unwrap();
    assert_eq!(published(&rig, 1), ["1 a=2 v2"], "the change of that version has not come");
}

#[test]
fn a_version_that_is_published_ahead_has_the_cause_of_its_own_change_if_that_has_come() {
    let rig = rig();
    let set = |key: &str, ttl| rig.set(key, "1", ttl).unwrap();
    set("touched", None);
    rig.0.session.borrow_mut().batch(rig.now()).touch(b"t", b"touched", in_seconds(rig.now(), 5)).unwrap();
    assert_eq!(published(&rig, 100), ["2 touched=1 v2 until 5001"]);
    set("deleted", None);
    rig.delete("deleted").unwrap();
    assert_eq!(published(&rig, 100), ["3 deleted= v2"]);
    set("expired", Some(1));
    rig.at(1_001).expire();
    assert_eq!(published(&rig, 100), ["4 expired= v2"]);
    set("set", None);
    set("set", None);
    assert_eq!(published(&rig, 100), ["1 set=1 v2"]);
    set("dropped", None);
    rig.drop_table("t").unwrap();
    rig.reap();
    assert!(published(&rig, 100).contains(&"5 dropped= v2".to_owned()));
}

#[test]
fn an_empty_table_is_dropped_too_and_its_next_life_is_another() {
    let rig = rig();
    let first = state(&rig);
    assert_eq!((first.next.epoch, first.next.sequence, first.oldest), (EPOCH, 1, 1));
    rig.drop_table("t").unwrap();
    rig.create("t").unwrap();
    rig.set("a", "1", None).unwrap();
    assert_eq!(published(&rig, 100), ["1 a=1 v1"]);
    rig.settle();
    let second = state(&rig);
    assert!(second.next.incarnation > first.next.incarnation);
    assert_eq!((second.next.sequence, second.digest.elements), (2, 1));
    rig.drop_table("t").unwrap();
    let gone = rig.0.session.borrow_mut().batch(rig.now()).feed_state(b"t");
    assert_eq!(gone, Err(Refusal::TableNotFound));
}

#[test]
fn a_row_is_marked_as_published_as_soon_as_its_version_is_though_older_changes_are_on_their_way() {
    let rig = rig();
    for value in ["1", "2", "3"] {
        rig.set("a", value, None).unwrap();
    }
    assert_eq!(rows(&rig), ["a=3 v3 1"]);
    assert_eq!(published(&rig, 1), ["1 a=3 v3"], "the turn of the first publishes the last");
    assert_eq!(rows(&rig), ["a=3 v3 0"]);
    assert_eq!(state(&rig).next.sequence, 2);
    rig.delete("a").unwrap();
    assert_eq!(rows(&rig), ["a= v4 2"]);
    assert_eq!(published(&rig, 2), [""; 0], "the second and the third");
    assert_eq!(rows(&rig), ["a= v4 2"]);
    assert_eq!(published(&rig, 1), ["3 a= v4"]);
    assert_eq!(rows(&rig), [""; 0]);
    rig.set("b", "1", None).unwrap();
    rig.delete("b").unwrap();
    assert_eq!(published(&rig, 1).len(), 1, "its deletion");
    assert_eq!(rows(&rig), [""; 0], "deleted, and published");
}

#[test]
fn the_notifications_are_the_same_with_a_feed() {
    let rig = rig();
    rig.set("a", "1", None).unwrap();
    rig.set("a", "2", None).unwrap();
    rig.0.session.borrow_mut().batch(rig.now()).touch(b"t", b"a", in_seconds(rig.now(), 5)).unwrap();
    rig.delete("a").unwrap();
    let mut collected = Collected::default();
    rig.0.changes.borrow_mut().drain_to(100, &mut collected);
    assert_eq!((collected.notified, collected.messages.len()), (3, 1));
}

// ------------------------------------------------------------------------------------------------------ all at once

/// A generator of the same numbers for the same seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Makes random changes of eight keys, and now and then drops the table and creates it again.
fn write(session: &mut Session, clock: Clock, seed: u64, steps: usize) {
    let mut numbers = Numbers(seed);
    for _ in 0..steps {
        let number = u8::try_from(numbers.below(8)).unwrap();
        // Two of them are long.
        let key = vec![b'a' + number; if number < 6 { 1 } else { usize::from(number) * 50 }];
        let value = vec![b'v'; usize::try_from(numbers.below(100)).unwrap()];
        let step = numbers.below(1_000);
        loop {
            let mut batch = session.batch(clock.now());
            let done = match step {
                0..2 => batch.delete_table(b"t"),
                2..500 => batch.update(b"t", &key, &value, Deadline::KEEP),
                500..600 => {
                    batch.update(b"t", &key, &value, Deadline::after(batch.now(), Ttl::from_millis(step % 2 * 700)))
                }
                600..700 => batch.touch(b"t", &key, Deadline::after(batch.now(), Ttl::from_millis(step % 2 * 700))),
                700..950 => batch.delete(b"t", &key).map(drop),
                _ => batch
                    .increment(b"t", &key, Addition { delta: 1, deadline: Deadline::KEEP, value_max: 1_024 })
                    .map(drop),
            };
            match done {
                Err(Refusal::Busy) => {}
                Err(Refusal::TableNotFound) => {
                    // Another thread may come first.
                    let _exists = batch.create_table(b"t", b"t");
                    break;
                }
                _ => break,
            }
            drop(batch);
            session.wait();
        }
    }
}

struct Copying {
    follower: Follower,
    fault: Option<String>,
}

impl ChangeSink for Copying {
    fn announce(&mut self, _change: &AnnouncedChange<'_>) {}

    fn publish(&mut self, message: &PublishedMessage) {
        let received = self.follower.receive(&message.topic, &message.payload);
        self.fault = self.fault.take().or(received.err());
    }
}

/// The table by a scan, with the versions.
fn scanned(tables: &Tables, now: Now) -> BTreeMap<Vec<u8>, (u64, Vec<u8>)> {
    let mut session = tables.session();
    let mut batch = session.batch(now);
    let content = ScanContent::ForMirror;
    let page = ScanPage { cursor: b"", count: 1_000, bytes_max: 1 << 20, prefix: b"", content };
    let mut elements = BTreeMap::new();
    let next = batch.scan(b"t", &page, |row| {
        assert_eq!(row.progress, ScanProgress::Published, "all changes are announced");
        elements.insert(row.key.to_vec(), (row.version, row.value.to_vec()));
    });
    assert_eq!(next.map(|next| next.is_none()), Ok(true));
    elements
}

#[test]
fn a_copy_is_exact_after_any_mixture_of_writers_expiries_and_deleted_tables() {
    for seed in 0..4 {
        let clock = Clock::start();
        let (tables, background) = Tables::with_feed(TablesConfig { clock_start: WALL, ..settings() }, Some(FEED));
        let (mut changes, expiry, reaper) = (background.changes, background.expiry, background.reaper);
        tables.session().batch(clock.now()).create_table(b"t", b"t").unwrap();
        let mut copying = Copying { follower: Follower::new(EPOCH, b"t"), fault: None };
        let topic = topic_of_table(b"t");
        thread::scope(|scope| {
            scope.spawn(move || reaper.run(|| clock.now()));
            scope.spawn(move || expiry.run(|| clock.now()));
            let writers: Vec<_> = (0..3)
                .map(|writer| {
                    let mut session = tables.session();
                    scope.spawn(move || write(&mut session, clock, seed * 16 + writer, 4_000))
                })
                .collect();
            let mut drain = |copying: &mut Copying| {
                let drained = changes.drain_to(100, copying);
                if let Some(bookmark) = changes.bookmark(&topic).filter(|_| drained.taken > 0) {
                    let received = copying.follower.receive(&topic, &bookmark);
                    copying.fault = copying.fault.take().or(received.err());
                }
                drained
            };
            while writers.iter().any(|writer| !writer.is_finished()) {
                drain(&mut copying);
            }
            // The last life stays, with an element, once all expiries are over.
            let mut session = tables.session();
            let _exists = session.batch(clock.now()).create_table(b"t", b"t");
            session.batch(clock.now()).update(b"t", b"last", b"value", Deadline::KEEP).unwrap();
            let metrics = || tables.metrics();
            while metrics().timers > 0 || metrics().changes_waiting > 0 {
                drain(&mut copying);
            }
            drain(&mut copying);
            assert_eq!(copying.fault, None, "seed {seed}");
            let state = session.batch(clock.now()).feed_state(b"t").unwrap();
            let copy = &copying.follower.lives[&state.next.incarnation];
            assert_eq!(copy.elements, scanned(&tables, clock.now()), "seed {seed}");
            assert_eq!((copy.digest(), copy.next), (state.digest, state.next.sequence));
            drop(session);
            tables.close();
            while !drain(&mut copying).closed {}
            assert_eq!(copying.fault, None);
        });
        let lives = &copying.follower.lives;
        let ended = lives.iter().filter(|(_, life)| life.is_dropped).count();
        assert!(ended > 0 && ended <= lives.len(), "{ended} of {}", lives.len());
    }
}
