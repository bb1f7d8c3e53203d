//! One history of a simulated server, network and mirror, which a seed decides.
//!
//! The network loses, doubles, delays and reorders whole messages, of other connections and starts of the server too.
//! It cuts both connections. The server restarts, drops and makes the table again, expires and touches elements,
//! conflates changes, forgets its history, and changes the table between the rows of a page.
//!
//! After each step: a mirror that says that it is exact has the truth of its sequence, with values and deadlines. The
//! versions of a key only grow. The events build the same copy. When the faults end, the mirror becomes exact.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test that fails should say where"
)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::planted::Planted;
use super::simulated::{KEYS, OwnedRow, PageJob, Replied, Server};
use super::simulated_life::State;
use crate::clients::rust::tables::mirror::ask::{Ask, MirrorAnswer};
use crate::clients::rust::tables::mirror::event::MirrorEvent;
use crate::clients::rust::tables::mirror::follower::Follower;
use crate::feed::FeedMessage;
use crate::seeded_rng::SeededRng;
use crate::services::tables::wire::MirrorRow;

/// Steps of a history before its faults end.
const STEPS: u32 = 600;

/// How the history goes: one in so many, and 0 for never.
struct Rates {
    lost: u64,
    doubled: u64,
    delayed: u64,
    reordered: u64,
    cut: u64,
    restart: u64,
    drop_table: u64,
    evict: u64,
}

/// The outstanding request.
enum Outstanding {
    Sent(Ask),
    Reading(Box<PageJob>),
    Answered(Replied),
}

/// The connection to the feed.
enum FeedState {
    Down,
    /// Connected, and the server does not know the subscription yet.
    Opening,
    Up,
}

/// What the histories have met, to show that they meet all of it.
#[derive(Debug, Default)]
pub(crate) struct Met {
    pub(crate) histories: u64,
    pub(crate) exact: u64,
    pub(crate) checked: u64,
    pub(crate) gaps: u64,
    pub(crate) compacted: u64,
    pub(crate) scans: u64,
    pub(crate) verified: u64,
    pub(crate) differences: u64,
    pub(crate) replaced: u64,
    pub(crate) no_table: u64,
    pub(crate) bookmark_mid_scan: u64,
    pub(crate) acted: u64,
    /// Steps at which a mirror with a planted fault said that it was exact, and was not.
    pub(crate) wrong: u64,
}

pub(crate) struct History {
    seed: u64,
    rng: SeededRng,
    rates: Rates,
    server: Server,
    mirror: Follower,
    feed: FeedState,
    /// Messages on their way, in their order.
    way: VecDeque<Vec<u8>>,
    /// Messages that come later, over any connection.
    late: Vec<Vec<u8>>,
    outstanding: Option<Outstanding>,
    clock: u64,
    /// The copy as the events report it.
    reported: State,
    /// The last version of each key that the events have reported, in this epoch.
    versions: BTreeMap<u8, u64>,
    /// Keys whose deletion was found in a scan. The feed publishes it later, and the versions before it too.
    found_gone: BTreeSet<u8>,
    epoch: u64,
    differences: u64,
    /// A planted fault may make a mirror wrong until the next bookmark.
    is_strict: bool,
    /// The truth of the bookmark at the mirror's own sequence that was the last message.
    bookmarked: Option<State>,
    met: Met,
}

impl History {
    pub(crate) fn new(seed: u64, planted: Option<Planted>, is_strict: bool) -> Self {
        let mut rng = SeededRng(seed);
        let mut rate = |most: u64| if rng.one_in(2) { 0 } else { 2 + rng.below(most) };
        let rates = Rates {
            lost: rate(60),
            doubled: rate(30),
            delayed: rate(60),
            reordered: rate(30),
            cut: rate(200),
            restart: rate(400),
            drop_table: rate(150),
            evict: rate(100),
        };
        let rates = match planted {
            // What finds a planted fault is then the digest, and not a fault of the network.
            Some(_) => Rates { lost: 0, doubled: 0, delayed: 0, reordered: 0, cut: 0, restart: 0, ..rates },
            None => rates,
        };
        let mut server = Server::new(planted);
        server.history_max = 1 + rng.below(6) as usize;
        Self {
            seed,
            rng,
            rates,
            server,
            mirror: Follower::new(),
            feed: FeedState::Down,
            way: VecDeque::new(),
            late: Vec::new(),
            outstanding: None,
            clock: 0,
            reported: State::new(),
            versions: BTreeMap::new(),
            found_gone: BTreeSet::new(),
            epoch: 0,
            differences: 0,
            is_strict,
            bookmarked: None,
            met: Met::default(),
        }
    }

    pub(crate) fn run(mut self) -> Met {
        for _ in 0..STEPS {
            self.clock += 1;
            self.write();
            self.network();
            match self.rng.below(4) {
                0 => self.turn(),
                1 => self.serve(),
                2 => self.receive(),
                _ => self.ask(),
            }
        }
        self.quiet();
        let metrics = self.mirror.metrics();
        self.met.gaps = metrics.gaps;
        self.met.scans = metrics.scans;
        self.met.verified = metrics.verified;
        self.met.differences = metrics.differences;
        self.met.acted = u64::from(self.server.acted);
        self.met
    }

    // ------------------------------------------------------------------------------------------------------- server

    fn write(&mut self) {
        let key = self.rng.below(u64::from(KEYS)) as u8;
        let deadline = self.rng.one_in(2).then_some(self.clock + 1);
        let value = self.clock.to_be_bytes()[4..].to_vec();
        match self.rng.below(14) {
            0..=3 => self.server.set(key, value, deadline),
            4 => self.server.touch(key, deadline),
            5 | 6 => self.server.delete(key),
            7 | 8 => self.server.expire(key),
            9 => self.server.create(),
            _ => {}
        }
        if self.rng.one_in(self.rates.drop_table) {
            self.server.drop_table();
        }
        if self.rng.one_in(self.rates.evict) {
            self.server.evict();
        }
        if self.rng.one_in(self.rates.restart) {
            // Epochs have no order.
            let epoch = 1 + self.rng.below(1 << 40);
            self.server.restart(epoch);
            self.cut_feed();
            self.cut_requests();
        }
    }

    /// The publisher: some changes have their turns, and some of what was announced is published.
    fn turn(&mut self) {
        for _ in 0..self.rng.below(4) {
            let turns = self.server.turns();
            if !turns.is_empty() {
                let chosen = self.rng.below(turns.len() as u64) as usize;
                self.server.announce(turns[chosen]);
            }
        }
        if self.rng.one_in(2) {
            self.server.publish();
        }
        if self.rng.one_in(6) {
            let bookmark = self.server.bookmark();
            self.send_published();
            self.send(bookmark);
        }
        self.send_published();
    }

    fn send_published(&mut self) {
        let published = std::mem::take(&mut self.server.out);
        published.into_iter().for_each(|payload| self.send(payload));
    }

    // ------------------------------------------------------------------------------------------------------ network

    fn send(&mut self, payload: Vec<u8>) {
        if !matches!(self.feed, FeedState::Up) || self.rng.one_in(self.rates.lost) {
            return;
        }
        if self.rng.one_in(self.rates.delayed) {
            return self.late.push(payload);
        }
        if self.rng.one_in(self.rates.doubled) {
            self.way.push_back(payload.clone());
        }
        self.way.push_back(payload);
        if self.way.len() > 1 && self.rng.one_in(self.rates.reordered) {
            let last = self.way.len() - 1;
            self.way.swap(last - 1, last);
        }
    }

    fn network(&mut self) {
        if self.rng.one_in(self.rates.cut) {
            self.cut_feed();
        }
        if self.rng.one_in(self.rates.cut) {
            self.cut_requests();
        }
        match self.feed {
            FeedState::Down if self.rng.one_in(10) => self.feed = FeedState::Opening,
            FeedState::Opening if self.rng.one_in(5) => self.subscribed(),
            _ => {}
        }
    }

    /// The subscription has come: the server sends a bookmark to this connection alone.
    fn subscribed(&mut self) {
        self.feed = FeedState::Up;
        let bookmark = self.server.bookmark();
        self.send_published();
        self.send(bookmark);
    }

    fn cut_feed(&mut self) {
        self.feed = FeedState::Down;
        self.way.clear();
        self.mirror.feed_lost();
        self.check();
    }

    fn cut_requests(&mut self) {
        self.outstanding = None;
        self.mirror.requests_lost();
        self.check();
    }

    /// A message comes over the feed.
    fn receive(&mut self) {
        let is_late = !self.late.is_empty() && self.rng.one_in(8);
        let payload = if is_late {
            let chosen = self.rng.below(self.late.len() as u64) as usize;
            Some(self.late.swap_remove(chosen))
        } else {
            self.way.pop_front()
        };
        if !matches!(self.feed, FeedState::Up) {
            return;
        }
        let Some(payload) = payload else { return };
        let message = FeedMessage::decode(&payload).unwrap();
        let was_exact = self.mirror.is_exact();
        if self.mirror.at() == Some(message.position) {
            self.bookmarked = self.server.bookmarks.get(&payload).cloned();
        }
        self.mirror.receive(&message);
        let is_by_bookmark = self.bookmarked.is_some() && !was_exact && self.mirror.is_exact();
        self.met.bookmark_mid_scan += u64::from(is_by_bookmark);
        self.check();
        self.bookmarked = None;
    }

    /// The server continues the outstanding request, or its answer arrives.
    fn serve(&mut self) {
        match self.outstanding.take() {
            None => {}
            Some(Outstanding::Sent(ask)) => {
                let done = self.server.execute(&ask);
                self.outstanding = Some(done.map_or_else(Outstanding::Reading, Outstanding::Answered));
                self.send_published();
            }
            Some(Outstanding::Reading(mut job)) => {
                let page = self.server.read(&mut job);
                self.outstanding = Some(page.map_or(Outstanding::Reading(job), Outstanding::Answered));
            }
            Some(Outstanding::Answered(replied)) => {
                self.answer(&replied);
                self.check();
            }
        }
    }

    fn answer(&mut self, replied: &Replied) {
        match replied {
            Replied::State(state) => self.mirror.answer(&MirrorAnswer::State(*state)),
            Replied::NoTable => self.mirror.answer(&MirrorAnswer::NoTable),
            Replied::BadCursor => self.mirror.answer(&MirrorAnswer::BadCursor),
            Replied::Compacted => {
                self.met.compacted += 1;
                self.mirror.answer(&MirrorAnswer::Compacted);
            }
            Replied::Page { next, rows } => {
                let rows: Vec<MirrorRow<'_>> = rows.iter().map(OwnedRow::row).collect();
                self.mirror.answer(&MirrorAnswer::Page { next, rows: &rows });
            }
            Replied::Changes(payloads) => {
                let messages: Vec<_> = payloads.iter().map(|payload| FeedMessage::decode(payload).unwrap()).collect();
                self.mirror.answer(&MirrorAnswer::Changes(&messages));
            }
        }
    }

    fn ask(&mut self) {
        if let Some(ask) = self.mirror.ask() {
            assert!(self.outstanding.is_none(), "seed {}: one request at a time", self.seed);
            self.outstanding = Some(Outstanding::Sent(ask));
        }
    }

    // ------------------------------------------------------------------------------------------------------- checks

    fn check(&mut self) {
        while let Some(event) = self.mirror.next_event() {
            self.take(event);
        }
        let copy = self.copy();
        assert_eq!(self.reported, copy, "seed {}: the events report the copy", self.seed);
        if !self.mirror.is_exact() {
            return;
        }
        let at = self.mirror.at().unwrap();
        let truth = self.server.truth.get(&(at.epoch, at.incarnation, at.sequence));
        let is_true = match at.incarnation {
            0 => copy.is_empty(),
            _ => truth == Some(&copy),
        };
        self.met.checked += 1;
        self.met.wrong += u64::from(!is_true);
        assert!(is_true || !self.is_strict, "seed {}: exact at {at:?} with {copy:?}, but {truth:?}", self.seed);
        // A digest that keeps an element agrees with a mirror that has kept it too.
        let is_honest = self.server.planted != Some(Planted::ExpiryNotInDigest);
        if let Some(truth) = self.bookmarked.as_ref().filter(|_| is_honest) {
            assert_eq!(&copy, truth, "seed {}: exact at {at:?} behind a bookmark", self.seed);
        }
    }

    fn copy(&self) -> State {
        let stored = self
            .mirror
            .iter()
            .map(|(key, element)| (key[0], (element.version, (element.value.to_vec(), element.deadline_millis))));
        stored.collect()
    }

    fn take(&mut self, event: MirrorEvent) {
        let epoch = self.mirror.at().map_or(0, |at| at.epoch);
        let differences = self.mirror.metrics().differences;
        if epoch != self.epoch || differences != self.differences {
            // Nothing that was known counts any more.
            self.versions.clear();
            (self.epoch, self.differences) = (epoch, differences);
        }
        match event {
            MirrorEvent::Exact(_) => {
                self.met.exact += 1;
                // A bookmark may say that the copy is exact before that.
                let found_gone = std::mem::take(&mut self.found_gone);
                self.versions.retain(|key, _| !found_gone.contains(key));
            }
            MirrorEvent::NotExact(why) => {
                self.met.replaced += u64::from(why == crate::clients::rust::tables::mirror::NotExact::Replaced)
            }
            MirrorEvent::NoTable => self.met.no_table += 1,
            MirrorEvent::Changed(change) => {
                let key = change.key[0];
                self.found_gone.remove(&key);
                if change.value.is_none() && change.cause.is_none() {
                    self.found_gone.insert(key);
                }
                if change.version > 0 {
                    let last = self.versions.insert(key, change.version).unwrap_or(0);
                    assert!(!self.is_strict || change.version > last, "seed {}: {change:?} after {last}", self.seed);
                }
                match change.value {
                    None => assert!(self.reported.remove(&key).is_some(), "seed {}: what goes was there", self.seed),
                    Some(value) => {
                        self.reported.insert(key, (change.version, (value.to_vec(), change.deadline_millis)));
                    }
                }
            }
        }
    }

    /// The faults end: the mirror becomes exact, with what is in the table.
    fn quiet(&mut self) {
        self.rates =
            Rates { lost: 0, doubled: 0, delayed: 0, reordered: 0, cut: 0, restart: 0, drop_table: 0, evict: 0 };
        self.late.clear();
        self.server.history_max = usize::MAX;
        for round in 0..2_000 {
            self.network();
            if let Some(turn) = self.server.turns().first() {
                self.server.announce(*turn);
            } else if round % 20 == 0 {
                self.server.publish();
                let bookmark = self.server.bookmark();
                self.send_published();
                self.send(bookmark);
            }
            self.send_published();
            self.receive();
            self.serve();
            self.ask();
            let is_still = self.way.is_empty() && self.outstanding.is_none() && self.server.is_settled();
            if self.mirror.is_exact() && is_still && round > 100 {
                break;
            }
        }
        if self.is_strict {
            assert!(self.mirror.is_exact(), "seed {}: never exact: {:?}", self.seed, self.mirror);
            let at = self.mirror.at().unwrap();
            let last = self.server.truth.range(..=(at.epoch, at.incarnation, u64::MAX)).next_back();
            assert!(at.incarnation == 0 || last.unwrap().0.2 == at.sequence, "seed {}: behind at {at:?}", self.seed);
            assert_eq!(at.epoch, self.server.epoch(), "seed {}", self.seed);
        }
    }
}
