//! The publisher of a storm: it drains, lets audiences come and go, and checks what is announced and published.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::{EPOCH, KEPT, NAMES, OLD, Phase, Stage};
use crate::feed::tests::follower::Follower;
use crate::feed::{FeedMessage, PublishedMessage, table_of_topic};
use crate::seeded_rng::SeededRng;
use crate::tables::{AnnouncedChange, ChangeKind, ChangeSink, Changes};

/// Keys that begin like this show whether an audience receives changes.
pub(super) const PROBE: &[u8] = b"probe ";

/// A table's name and a key.
pub(super) type Place = (Vec<u8>, Vec<u8>);

/// All that was announced and published.
#[derive(Default)]
pub(super) struct Received {
    /// The last notification of each key, and its version, of tables that had an audience all the time since.
    pub(super) last: HashMap<Place, (ChangeKind, u64)>,
    /// Probes that were announced, and whether as stored.
    pub(super) probes: HashSet<(Place, bool)>,
    /// The copies of followers of the feed: one for each table, and for [`OLD`] one for each life.
    pub(super) followers: HashMap<(Vec<u8>, u64), Follower>,
    /// All tables have an audience now.
    pub(super) all_have_audience: bool,
    pub(super) announced: u64,
    pub(super) published: u64,
    pub(super) faults: Vec<String>,
}

impl Received {
    fn note(&mut self, change: &AnnouncedChange<'_>, kind: ChangeKind) {
        let (place, version) = ((change.table.to_vec(), change.key.to_vec()), change.version());
        let before = self.last.insert(place, (kind, version));
        let is_wrong = match before {
            Some((ChangeKind::Deleted, _)) if kind == ChangeKind::Deleted => true,
            // Versions of restored elements begin anew with each life of the table.
            Some((_, before)) => before >= version && change.table != OLD,
            None => kind == ChangeKind::Deleted && self.always_has_audience(change.table),
        };
        if is_wrong {
            let name = String::from_utf8_lossy(change.table);
            let key = change.key.first();
            self.faults.push(format!("{name} {key:?}: {kind:?} {version} by {:?} after {before:?}", change.cause));
        }
    }

    fn always_has_audience(&self, table: &[u8]) -> bool {
        table == KEPT
    }
}

impl ChangeSink for Received {
    fn announce(&mut self, change: &AnnouncedChange<'_>) {
        self.announced += 1;
        let Some(kind) = ChangeKind::of(change.cause) else { return };
        if change.key.starts_with(PROBE) {
            self.probes.insert(((change.table.to_vec(), change.key.to_vec()), kind == ChangeKind::Updated));
        } else if change.is_in_order && (self.all_have_audience || self.always_has_audience(change.table)) {
            self.note(change, kind);
        }
    }

    fn publish(&mut self, message: &PublishedMessage) {
        self.published += 1;
        let table = table_of_topic(&message.topic).unwrap().to_vec();
        let life = FeedMessage::decode(&message.payload).unwrap().position.incarnation;
        let follower = (table.clone(), if table == OLD { life } else { 0 });
        let follower = self.followers.entry(follower).or_insert_with(|| Follower::new(EPOCH, &table));
        if let Err(fault) = follower.receive(&message.topic, &message.payload) {
            self.faults.push(format!("{}: {fault}", String::from_utf8_lossy(&table)));
        }
    }
}

/// The thread of the publisher.
pub(super) struct Listener {
    stage: Arc<Stage>,
    changes: Changes,
    random: SeededRng,
    /// Tables that somebody has subscribed to, by their topics.
    topics: Vec<Vec<u8>>,
}

impl Listener {
    pub(super) fn new(stage: &Arc<Stage>, mut changes: Changes) -> Self {
        let publisher = thread::current();
        changes.set_waker(Box::new(move || publisher.unpark()));
        changes.audience().begin([KEPT]);
        Self { stage: Arc::clone(stage), changes, random: SeededRng(stage.plan.seed), topics: Vec::new() }
    }

    /// Returns when the tables are closed.
    pub(super) fn run(mut self) {
        loop {
            let phase = self.stage.phase();
            let all_have_audience = self.stage.received.lock().all_have_audience;
            match phase {
                Phase::Comings if all_have_audience => self.stage.received.lock().all_have_audience = false,
                Phase::Comings => self.come_and_go(),
                Phase::All if !all_have_audience => self.begin_all(),
                Phase::All => {}
            }
            let drained = self.changes.drain_to(1_000, &mut *self.stage.received.lock());
            if drained.closed {
                return;
            }
            if drained.taken == 0 {
                self.rest();
            }
        }
    }

    /// Sleeps until a change has come. Without a time-out, so that a wake-up that is lost is found.
    fn rest(&mut self) {
        let lazily = self.random.one_in(4);
        if !self.changes.prepare_sleep(lazily) {
            return;
        }
        if lazily { thread::park_timeout(Duration::from_millis(1)) } else { thread::park() }
    }

    /// All tables have an audience from now on. What was noted of those that had none is forgotten.
    fn begin_all(&mut self) {
        self.changes.audience().begin([&b""[..]]);
        let mut received = self.stage.received.lock();
        received.last.retain(|(table, _), _| table == KEPT);
        received.all_have_audience = true;
        // Relaxed: only the order of the audience's beginning and a writer's batches counts, and guards order these.
        self.stage.all_have_audience.store(true, Ordering::Relaxed);
    }

    /// Perhaps a subscription comes, one goes, or some tables are reviewed.
    fn come_and_go(&mut self) {
        match self.random.below(40) {
            0 => {
                let mut topic = self.random.pick(NAMES).to_vec();
                if self.random.one_in(2) {
                    topic.push(0);
                }
                self.changes.audience().begin([&topic[..]]);
                self.topics.push(topic);
            }
            1..3 if !self.topics.is_empty() => {
                let at = self.random.index(self.topics.len());
                self.topics.swap_remove(at);
            }
            3..8 => self.review(),
            _ => {}
        }
    }

    fn review(&mut self) {
        let keeps = !self.stage.plan.is_kept_by_hold;
        let topics = &self.topics;
        let touches = |topic: &[u8], table: &[u8]| topic.starts_with(table) || table.starts_with(topic);
        let is_subscribed =
            |table: &[u8]| keeps && touches(KEPT, table) || topics.iter().any(|topic| touches(topic, table));
        let unsubscribed = self.changes.review(keeps || !topics.is_empty(), is_subscribed);
        self.changes.silence(unsubscribed, &mut *self.stage.received.lock());
    }
}
