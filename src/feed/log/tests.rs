//! The log against two plain models: a server that commits changes, and a follower that checks all published messages.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::collections::{BTreeMap, VecDeque};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::feed::tests::follower::{Followed, Follower};

const EPOCH: u64 = 9;
const TABLE: &[u8] = b"t";

// ------------------------------------------------------------------------------------------------------- the server

/// A committed change whose turn has not come.
#[derive(Clone, Copy)]
struct Committed {
    version: u64,
    cause: Option<Cause>,
    replaces_value: bool,
}

/// A slot of a key.
#[derive(Default)]
struct Slot {
    element: usize,
    version: u64,
    value: Option<Vec<u8>>,
    outstanding: VecDeque<Committed>,
}

/// One life of the table.
#[derive(Default)]
struct LifeModel {
    slots: BTreeMap<u8, Slot>,
    is_closed: bool,
}

/// A server: it commits changes, and the log takes them in each key's order.
struct Server {
    log: FeedLog,
    lives: BTreeMap<u64, LifeModel>,
    current: u64,
    elements: usize,
    floor: u64,
    changes: u64,
}

/// The value of a number: some are long, so that two of them, or one, do not fit a message of several changes.
fn value_of(number: u8) -> Vec<u8> {
    let bytes = match number {
        0..9 => usize::from(number),
        9 => 150_000,
        _ => 300_000,
    };
    vec![number; bytes]
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Write(u8, Cause, u8),
    /// The turn of a change comes: the first of the n-th slot that has one.
    Turn(u8),
    Seal,
    /// A deleted slot leaves the index.
    Retire(u8),
    /// The table is deleted, and created again.
    Drop,
}

impl Server {
    fn new(history_bytes: usize) -> Self {
        let lives = [(1, LifeModel::default())].into();
        Self { log: FeedLog::new(EPOCH, history_bytes), lives, current: 1, elements: 0, floor: 100, changes: 0 }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write(key, cause, value) => self.write(key, cause, value),
            Step::Turn(number) => self.turn(usize::from(number)),
            Step::Seal => self.seal(),
            Step::Retire(key) => self.retire(key),
            Step::Drop => self.drop_table(),
        }
    }

    fn write(&mut self, key: u8, cause: Cause, value: u8) {
        let older = self.lives.range(..self.current).filter_map(|(_, life)| life.slots.get(&key));
        let floor = older.map(|slot| slot.version).chain([self.floor]).max().unwrap_or(0);
        let life = self.lives.get_mut(&self.current).unwrap();
        let slot = life.slots.entry(key).or_insert_with(|| {
            self.elements += 1;
            Slot { element: self.elements, version: floor, ..Slot::default() }
        });
        let replaces_value = slot.value.is_some();
        if !matches!(cause, Cause::Set | Cause::CompareAndSwap) && !replaces_value {
            return;
        }
        slot.version += 1;
        match cause {
            Cause::Set | Cause::CompareAndSwap => slot.value = Some(value_of(value)),
            Cause::Touch => {}
            _ => slot.value = None,
        }
        slot.outstanding.push_back(Committed { version: slot.version, cause: Some(cause), replaces_value });
    }

    /// Whether an older life has a change of this key that is to come first.
    fn is_blocked(&self, incarnation: u64, key: u8) -> bool {
        let older = self.lives.range(..incarnation).filter_map(|(_, life)| life.slots.get(&key));
        older.into_iter().any(|slot| !slot.outstanding.is_empty())
    }

    fn turn(&mut self, number: usize) {
        let ready: Vec<(u64, u8)> = self
            .lives
            .iter()
            .flat_map(|(incarnation, life)| life.slots.iter().map(|(key, slot)| (*incarnation, *key, slot)))
            .filter(|(incarnation, key, slot)| !slot.outstanding.is_empty() && !self.is_blocked(*incarnation, *key))
            .map(|(incarnation, key, _)| (incarnation, key))
            .collect();
        let Some((incarnation, key)) = ready.get(number % ready.len().max(1)).copied() else { return };
        let slot = self.lives.get_mut(&incarnation).unwrap().slots.get_mut(&key).unwrap();
        let Committed { version, cause, replaces_value } = slot.outstanding.pop_front().unwrap();
        let present = PresentState { version: slot.version, value: slot.value.as_deref(), deadline_millis: None };
        let (key, element) = ([key], slot.element);
        let replaced = replaces_value.then(|| version - 1);
        let change = DueChange { incarnation, table: TABLE, element, key: &key, version, cause, replaced, present };
        // Only the change of every other version has come.
        let come = |version| slot.outstanding.iter().find(|other| other.version == version && version % 2 == 0);
        self.log.publish(&change, |version| come(version).and_then(|other| other.cause));
        self.changes += 1;
    }

    fn seal(&mut self) {
        self.log.seal();
        let over = |(incarnation, life): (&u64, &LifeModel)| {
            let is_over = life.is_closed && life.slots.values().all(|slot| slot.outstanding.is_empty());
            is_over.then_some(*incarnation)
        };
        for incarnation in self.lives.iter().filter_map(over).collect::<Vec<_>>() {
            self.log.dropped(incarnation, b"t\0");
            let life = self.lives.remove(&incarnation).unwrap();
            self.floor = life.slots.values().map(|slot| slot.version).chain([self.floor]).max().unwrap();
        }
    }

    fn retire(&mut self, key: u8) {
        let slots = &mut self.lives.get_mut(&self.current).unwrap().slots;
        if let Some(slot) = slots.get(&key).filter(|slot| slot.value.is_none() && slot.outstanding.is_empty()) {
            self.floor = self.floor.max(slot.version);
            slots.remove(&key);
        }
    }

    fn drop_table(&mut self) {
        let life = self.lives.get_mut(&self.current).unwrap();
        life.is_closed = true;
        for slot in life.slots.values_mut() {
            if slot.value.is_none() && slot.outstanding.is_empty() {
                continue;
            }
            slot.version += 1;
            let replaces_value = slot.value.take().is_some();
            let cause = replaces_value.then_some(Cause::DeleteWithTable);
            slot.outstanding.push_back(Committed { version: slot.version, cause, replaces_value });
        }
        self.current += 1;
        self.lives.insert(self.current, LifeModel::default());
    }

    fn outstanding(&self) -> usize {
        self.lives.values().flat_map(|life| life.slots.values()).map(|slot| slot.outstanding.len()).sum()
    }

    /// What a follower of the present life has in the end.
    fn truth(&self) -> BTreeMap<Vec<u8>, (u64, Vec<u8>)> {
        let slots = self.lives[&self.current].slots.iter();
        slots.filter_map(|(key, slot)| Some((vec![*key], (slot.version, slot.value.clone()?)))).collect()
    }
}

/// Plays the steps, and then the rest. Returns the messages with a bookmark after each batch.
fn play(server: &mut Server, steps: &[Step]) -> Vec<PublishedMessage> {
    let mut messages = Vec::new();
    let mut batch = |server: &mut Server| {
        server.seal();
        while server.log.evict_some() {}
        messages.extend(server.log.take_published());
        let topic: Arc<[u8]> = topic_of_table(TABLE).into();
        let payload: Arc<[u8]> = server.log.bookmark(&topic, Some(server.current), None).into();
        messages.push(PublishedMessage { topic, payload });
        assert!(server.log.ahead.len() <= server.outstanding(), "credits bound what is remembered");
    };

    for step in steps {
        match step {
            Step::Seal => batch(server),
            other => server.step(*other),
        }
    }
    while server.outstanding() > 0 {
        server.step(Step::Turn(0));
    }
    batch(server);
    messages
}

/// Follows the messages from the beginning.
fn follow(messages: &[PublishedMessage]) -> Result<Follower, String> {
    for PublishedMessage { payload, .. } in messages.iter().filter(|message| message.payload.len() > FEED_MESSAGE_BYTES)
    {
        let Ok(FeedMessage { content: FeedContent::Changes(changes), .. }) = FeedMessage::decode(payload) else {
            continue;
        };
        assert_eq!(changes.len(), 1, "a long change stands alone, in a message of {} bytes", payload.len());
    }
    let mut follower = Follower::new(EPOCH, TABLE);
    messages.iter().try_for_each(|message| follower.receive(&message.topic, &message.payload))?;
    Ok(follower)
}

fn any_step() -> impl Strategy<Value = Step> {
    let key = 0..6_u8;
    let cause = prop_oneof![
        4 => Just(Cause::Set),
        1 => Just(Cause::CompareAndSwap),
        1 => Just(Cause::Touch),
        2 => Just(Cause::Delete),
        1 => Just(Cause::Expire),
    ];
    prop_oneof![
        10 => (key.clone(), cause, prop_oneof![40 => 0..9_u8, 1 => 9..11_u8]).prop_map(|(key, cause, value)| Step::Write(key, cause, value)),
        8 => any::<u8>().prop_map(Step::Turn),
        2 => Just(Step::Seal),
        2 => key.prop_map(Step::Retire),
        1 => Just(Step::Drop),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// Sequences have no gap, versions of a key grow, each bookmark has the digest of what was published, no message follows
    /// DROPPED, and the copy is exact in the end.
    #[test]
    fn a_follower_of_all_messages_has_an_exact_copy(steps in vec(any_step(), 0..300)) {
        let mut server = Server::new(usize::MAX);
        let messages = play(&mut server, &steps);
        let follower = follow(&messages).unwrap();
        let empty = Followed::default();
        let current = follower.lives.get(&server.current).unwrap_or(&empty);
        prop_assert_eq!(&current.elements, &server.truth());
        prop_assert!(server.log.ahead.is_empty(), "all turns have come");
        prop_assert!(server.log.newest.len() <= 1);
        let state = server.log.state(server.current);
        prop_assert_eq!(state.digest, current.digest());
        prop_assert_eq!((state.next.sequence, state.oldest), (current.next.max(1), 1));
        let dropped = follower.lives.iter().filter(|(_, life)| life.is_dropped).count() as u64;
        prop_assert_eq!(dropped, server.current - 1, "all older lives, empty ones too");
        let FeedMetrics { changes, conflated, .. } = server.log.metrics();
        prop_assert_eq!(changes, follower.changes);
        prop_assert!(changes + conflated <= server.changes);
    }

    /// What is replayed from any position is what was published.
    #[test]
    fn a_replay_has_what_was_published(steps in vec(any_step(), 0..300), history in 200..4_000_usize) {
        let mut server = Server::new(history);
        let messages = play(&mut server, &steps);
        prop_assert!(server.log.metrics().history_bytes <= history as u64);
        let LifeState { next, oldest, .. } = server.log.state(server.current);
        for sequence in 0..next.sequence + 2 {
            let replayed = server.log.replay(server.current, FeedPosition { sequence, ..next });
            if sequence < oldest || sequence > next.sequence {
                prop_assert_eq!(replayed, Err(Compacted { oldest }));
                continue;
            }
            let published = messages.iter().map(|message| &message.payload).filter(|payload| {
                let message = FeedMessage::decode(payload).unwrap();
                let FeedContent::Changes(changes) = message.content else { return false };
                let end = message.position.sequence + changes.len() as u64;
                message.position.incarnation == next.incarnation && end > sequence
            });
            prop_assert_eq!(replayed, Ok(published.cloned().collect()));
        }
        for other in [FeedPosition { epoch: 1, ..next }, FeedPosition { incarnation: next.incarnation + 1, ..next }] {
            prop_assert_eq!(server.log.replay(server.current, other), Err(Compacted { oldest }));
        }
    }

    /// A follower finds a message that is lost, and one whose version or key is another.
    #[test]
    fn a_follower_finds_planted_faults(steps in vec(any_step(), 20..200), place: prop::sample::Index, what in 0..4_u8) {
        let mut server = Server::new(usize::MAX);
        let mut messages = play(&mut server, &steps);
        let is_changes = |message: &PublishedMessage| message.payload[1] == 1;
        let places: Vec<usize> = (0..messages.len()).filter(|place| is_changes(&messages[*place])).collect();
        prop_assume!(!places.is_empty());
        let at = places[place.index(places.len())];
        let mut payload = messages[at].payload.to_vec();
        match what {
            0 => drop(messages.remove(at)),
            // A byte of the sequence, of the version, and of the cause.
            1 => payload[25] ^= 1,
            2 => payload[36] ^= 64,
            _ => payload[28] = if payload[28] <= 2 { 3 } else { 1 },
        }
        if what > 0 {
            messages[at].payload = payload.into();
        }
        // A life that is dropped before its next bookmark has no digest to compare. Its faults do not outlive it.
        let touched = FeedMessage::decode(&messages[at.min(messages.len() - 1)].payload);
        let is_current = touched.is_ok_and(|message| message.position.incarnation == server.current);
        prop_assume!(is_current || what < 2);
        let followed = follow(&messages);
        let is_superseded = what >= 2 && followed.as_ref().is_ok_and(|follower| {
            follower.lives.get(&server.current).is_some_and(|life| life.elements == server.truth())
        });
        prop_assert!(followed.is_err() || is_superseded, "fault {what} in message {at} is not found");
    }
}

#[test]
fn a_key_that_is_written_faster_than_it_is_published_is_still_published() {
    let mut server = Server::new(usize::MAX);
    for value in 0..100 {
        server.step(Step::Write(1, Cause::Set, value % 9));
    }
    server.step(Step::Turn(0));
    assert_eq!(server.log.ahead.len(), 1);
    for value in 0..100 {
        server.step(Step::Write(1, Cause::Set, value % 9));
        server.step(Step::Turn(0));
    }
    let messages = play(&mut server, &[]);
    let follower = follow(&messages).unwrap();
    assert_eq!(follower.changes, 2, "of 200: the 100th when the first had its turn, and the last");
    assert_eq!(follower.lives[&1].elements, server.truth());
}

#[test]
fn lives_keep_no_buffers_between_their_messages() {
    let mut log = FeedLog::new(EPOCH, 0);
    for incarnation in 1..=1_000 {
        let present = PresentState { version: 7, value: Some(&[7; 10_000]), deadline_millis: None };
        let (table, cause) = (TABLE, Some(Cause::Set));
        let element = usize::try_from(incarnation).unwrap();
        let change = DueChange { incarnation, table, element, key: b"k", version: 7, cause, replaced: None, present };
        log.publish(&change, |_| None);
        if incarnation % 100 == 0 {
            log.seal();
        }
    }
    assert_eq!(log.lives.values().map(|life| life.open.capacity()).sum::<usize>(), 0);
    assert_eq!((log.spare.len(), log.take_published().len()), (FEED_CHANGES_MAX, 1_000));
    assert!(log.spare.iter().all(|buffer| buffer.capacity() <= BUFFER_KEPT_BYTES));
}

#[test]
fn a_message_ends_at_64_changes_and_at_256_kib() {
    let mut log = FeedLog::new(EPOCH, usize::MAX);
    let value = vec![7; 100_000];
    let mut publish = |element: usize, value: &[u8]| {
        let key = element.to_be_bytes();
        let present = PresentState { version: 7, value: Some(value), deadline_millis: Some(5) };
        let cause = Some(Cause::Set);
        let table = TABLE;
        log.publish(
            &DueChange { incarnation: 3, table, element, key: &key, version: 7, cause, replaced: None, present },
            |_| None,
        );
        log.ends_batch()
    };
    assert!(!(0..100).any(|element| publish(element, b"v")));
    let wants: Vec<bool> = (100..104).map(|element| publish(element, &value)).collect();
    assert_eq!(wants, [false, false, true, true]);
    log.seal();
    let counts: Vec<usize> = log
        .take_published()
        .iter()
        .map(|message| match FeedMessage::decode(&message.payload).unwrap().content {
            FeedContent::Changes(changes) => changes.len(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(counts, [64, 38, 2]);
    assert_eq!(log.state(3).next.sequence, 105);
}

#[test]
fn what_is_left_of_lives_that_are_over_is_within_the_history() {
    const HISTORY: usize = 1 << 20;
    let mut log = FeedLog::new(EPOCH, HISTORY);
    for incarnation in 1..=20_000_u64 {
        let table = incarnation.to_be_bytes();
        let present = PresentState { version: 7, value: Some(b""), deadline_millis: None };
        let (element, cause) = (usize::try_from(incarnation).unwrap(), Some(Cause::Set));
        let change =
            DueChange { incarnation, table: &table, element, key: b"k", version: 7, cause, replaced: None, present };
        log.publish(&change, |_| None);
        log.dropped(incarnation, &table);
        log.take_published();
    }
    while log.evict_some() {}
    let lives = log.lives.values();
    let bytes: usize = lives.map(|life| life.bytes() + life.kept.oldest().map_or(0, |_| CHANGES_HEAD_BYTES)).sum();
    assert!(log.lives.len() > 500 && bytes <= HISTORY, "{} lives of {bytes} bytes", log.lives.len());
}

#[test]
fn one_long_message_evicts_many_short_ones_in_portions() {
    let mut log = FeedLog::new(EPOCH, 1 << 20);
    let publish = |log: &mut FeedLog, element: usize, value: &[u8]| {
        let present = PresentState { version: 7, value: Some(value), deadline_millis: None };
        let (table, key, cause) = (TABLE, element.to_be_bytes(), Some(Cause::Set));
        let change =
            DueChange { incarnation: 1, table, element, key: &key, version: 7, cause, replaced: None, present };
        log.publish(&change, |_| None);
        log.seal();
    };
    (0..5_000).for_each(|element| publish(&mut log, element, b""));
    let before = log.metrics().history_messages;
    publish(&mut log, 5_000, &vec![7; 1 << 20]);
    assert_eq!(log.metrics().history_messages, before + 1 - EVICTED_AT_ONCE as u64);
    let calls = (0..).take_while(|_| log.evict_some()).count();
    assert!(calls >= 10, "{calls}");
    assert!(log.metrics().history_bytes <= 1 << 20);
}

#[test]
fn a_bookmark_is_of_the_newest_life() {
    let mut server = Server::new(usize::MAX);
    let bookmark = |server: &mut Server, current| {
        let payload = server.log.bookmark(&topic_of_table(TABLE), current, None);
        let message = FeedMessage::decode(&payload).unwrap();
        let FeedContent::Bookmark { elements, .. } = message.content else { panic!("a bookmark") };
        (message.position.incarnation, message.position.sequence, elements)
    };
    assert_eq!(bookmark(&mut server, None), (0, 1, 0), "there is no such table");
    assert_eq!(bookmark(&mut server, Some(1)), (1, 1, 0), "it has published nothing");
    server.step(Step::Write(1, Cause::Set, 1));
    server.step(Step::Turn(0));
    assert_eq!(bookmark(&mut server, Some(1)), (1, 2, 1));
    assert_eq!(bookmark(&mut server, None), (1, 2, 1), "deleted, and its last changes are not published yet");
    server.step(Step::Drop);
    assert_eq!(bookmark(&mut server, Some(2)), (2, 1, 0));
    server.step(Step::Turn(0));
    server.step(Step::Seal);
    assert_eq!(bookmark(&mut server, None), (0, 1, 0), "dropped");
}

#[test]
fn a_bookmark_says_what_is_on_disk_of_a_life() {
    let mut server = Server::new(usize::MAX);
    let write = |server: &mut Server| {
        server.step(Step::Write(1, Cause::Set, 1));
        server.step(Step::Turn(0));
    };
    let durable = |server: &mut Server, open, synced| {
        let payload = server.log.bookmark(&topic_of_table(TABLE), Some(1), Some(DiskMoment { open, synced }));
        let message = FeedMessage::decode(&payload).unwrap();
        let FeedContent::Bookmark { durable, .. } = message.content else { panic!("a bookmark") };
        (message.position.sequence, durable)
    };
    write(&mut server);
    assert_eq!(durable(&mut server, 5, 4), (2, 1), "its epoch is open");
    write(&mut server);
    assert_eq!(durable(&mut server, 6, 4), (3, 1), "its epoch is closed, and not on disk");
    assert_eq!(durable(&mut server, 6, 5), (3, 2), "the first bookmark is on disk, and not the second");
    assert_eq!(durable(&mut server, 7, 6), (3, 3));
    server.log.resume_life(9, TABLE, 40, Digest::default());
    let payload = server.log.bookmark(&topic_of_table(TABLE), Some(9), Some(DiskMoment { open: 8, synced: 7 }));
    let FeedContent::Bookmark { durable, .. } = FeedMessage::decode(&payload).unwrap().content else {
        panic!("a bookmark")
    };
    assert_eq!(durable, 40, "it was loaded from the disk");
}
