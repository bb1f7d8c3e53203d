//! The algorithm of a mirror: a pure state machine. It takes what the server has sent, and returns what to ask next.
//!
//! ```text
//!          a first message, or one of another life
//!                      │
//!                      ▼         the server's state: life, and the sequence to begin with
//!  Starting ──── FEED_STATE ───► Scanning ──── SCAN … ───► Scanned ──── FEED_STATE ───► Ending ───► Complete
//!     ▲                             │                                     `end`           │            │
//!     │                             └────── a bookmark at our sequence has our digest ────┴──────────► │
//!     └──────────── COMPACTED, BAD CURSOR, another life, a digest that counts and differs ─────────────┘
//! ```
//! `next` is the sequence that the copy needs next. Changes are taken in their order, without a gap, and only from
//! `next` on. So a late or doubled message changes nothing, whatever it holds. A message beyond `next` shows a gap:
//! the machine lets it go, and asks CHANGES for all from `next` on.
//!
//! # Why a copy is exact
//!
//! The scan begins after the server has given `next`, so each of its rows is at least as new as what was published
//! before `next`. What is published from `next` on is taken. `end` was asked for after the scan. So when `next` has
//! reached `end`, a key has the version that was published last, or its row is ahead. A row that is not ahead was
//! published before `end`. A published deletion is no row, and its key is swept away unless a change of it came. A copy
//! that was exact stays so with each change that follows without a gap. Each digest of the server at `next` checks all
//! this.
//!
//! # Bounds
//!
//! One request is outstanding at most. The events are the result of a single message, page or sweep. The caller takes
//! them before it passes the next input. The bytes of the copy have a bound. A server that contradicts itself makes the
//! machine begin again, after longer and longer pauses.

use std::collections::VecDeque;
use std::time::Duration;

use super::ask::{Ask, Asked, FeedPlace, Life, MirrorAnswer, VainAsks};
use super::copy::{MirrorElement, TableCopy};
use super::event::{MirrorChange, MirrorEvent, MirrorMetrics, NotExact};
use crate::feed::{Digest, FeedChanges, FeedContent, FeedMessage, FeedPosition};
use crate::services::tables::wire::{FeedState, MirrorRow};

/// Bookmarks at our sequence that may differ after the scan while rows are ahead. Each such row has a change on its
/// way, so an honest server publishes it long before so many bookmarks.
const DIFFERING_MAX: u32 = 64;
/// Requests in a row that may bring nothing before the machine begins anew.
const FRUITLESS_MAX: u32 = 8;
/// How far the copy is.
#[derive(Debug)]
enum FollowerStage {
    /// It needs the state of the server to begin with.
    Starting,
    /// The scan continues from this cursor.
    Scanning(Vec<u8>),
    /// The scan is over, and it needs to know how far the feed is.
    Scanned,
    /// It is exact when `next` has reached this state, and nothing is ahead.
    Ending(FeedState),
    /// It has all that was published before `next`.
    Complete,
}

/// What the caller knows of the copy.
#[derive(Debug)]
struct Exactness {
    is_exact: bool,
    /// Why it will not be exact, or has not been since.
    doubt: NotExact,
}

/// A copy that follows the feed of one table.
#[derive(Debug)]
pub(super) struct Follower {
    copy: TableCopy,
    stage: FollowerStage,
    place: FeedPlace,
    /// A message has come over the present connection to the feed.
    is_live: bool,
    /// The life of a message that may be of a newer life than ours.
    doubtful: Option<Life>,
    /// The next round trusts nothing that is known.
    distrusts: bool,
    asked: Option<Asked>,
    vain: VainAsks,
    /// Bookmarks of this round that differed while rows were ahead.
    differing: u32,
    exactness: Exactness,
    events: VecDeque<MirrorEvent>,
    metrics: MirrorMetrics,
}

impl Follower {
    /// A follower that knows nothing.
    pub(super) fn new() -> Self {
        Self {
            copy: TableCopy::default(),
            stage: FollowerStage::Starting,
            place: FeedPlace { life: None, ended: 0, next: 1, seen: 1 },
            is_live: false,
            doubtful: None,
            distrusts: false,
            asked: None,
            vain: VainAsks::default(),
            differing: 0,
            exactness: Exactness { is_exact: false, doubt: NotExact::Disconnected },
            events: VecDeque::new(),
            metrics: MirrorMetrics::default(),
        }
    }

    // ------------------------------------------------------------------------------------------------------ reading

    /// The oldest event that was not taken.
    pub(super) fn next_event(&mut self) -> Option<MirrorEvent> {
        self.events.pop_front()
    }

    /// Forgets the events that were not taken.
    pub(super) fn forget_events(&mut self) {
        self.events.clear();
    }

    /// Whether the copy has all that was published before its position, and no message is known to be missing.
    pub(super) fn is_exact(&self) -> bool {
        self.exactness.is_exact
    }

    /// The position that the copy needs next. `None`: it has not begun.
    pub(super) fn at(&self) -> Option<FeedPosition> {
        self.place.position()
    }

    /// The element of a key.
    pub(super) fn get(&self, key: &[u8]) -> Option<MirrorElement<'_>> {
        self.copy.get(key)
    }

    /// All elements, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], MirrorElement<'_>)> {
        self.copy.iter()
    }

    /// The digest over the elements, and their number.
    pub(super) fn digest(&self) -> Digest {
        self.copy.digest()
    }

    /// Roughly the bytes that the copy takes.
    pub(super) fn bytes(&self) -> u64 {
        self.copy.bytes()
    }

    /// The counters.
    pub(super) fn metrics(&self) -> MirrorMetrics {
        self.metrics
    }

    // ------------------------------------------------------------------------------------------------------- asking

    /// Whether there is a request to send, after [`Follower::pause`].
    pub(super) fn wants(&self) -> bool {
        self.wanted().is_some()
    }

    /// The next request, if there is one and none is outstanding. The caller answers it, or says that it is lost.
    pub(super) fn ask(&mut self) -> Option<Ask> {
        let ask = self.wanted()?;
        if !matches!(ask, Ask::Page(_)) {
            self.vain.note_fruitless();
        }
        let is_state = ask == Ask::State;
        let doubtful = if is_state { self.doubtful.take() } else { None };
        self.asked = Some(Asked { is_state, round: self.copy.round(), next: self.place.next, doubtful });
        Some(ask)
    }

    fn wanted(&self) -> Option<Ask> {
        if self.asked.is_some() || !self.is_live {
            return None;
        }
        if self.doubtful.is_some() || matches!(self.stage, FollowerStage::Starting) {
            return Some(Ask::State);
        }
        if self.place.has_gap() {
            return self.at().map(Ask::Changes);
        }
        match &self.stage {
            FollowerStage::Scanning(cursor) => Some(Ask::Page(cursor.clone())),
            FollowerStage::Scanned => Some(Ask::State),
            FollowerStage::Starting | FollowerStage::Ending(_) | FollowerStage::Complete => None,
        }
    }

    /// The pause before the next request: none, unless the last ones were in vain.
    pub(super) fn pause(&self) -> Duration {
        self.vain.pause(matches!(self.stage, FollowerStage::Starting))
    }

    /// The answer to the outstanding request.
    pub(super) fn answer(&mut self, answer: &MirrorAnswer<'_>) {
        let Some(asked) = self.asked.take() else { return };
        match *answer {
            MirrorAnswer::State(state) => self.learn(&asked, &state),
            MirrorAnswer::NoTable if asked.is_state => self.no_table(&asked),
            // The life is over. Only FEED_STATE decides.
            MirrorAnswer::NoTable => self.doubtful = self.place.life,
            MirrorAnswer::Page { next, rows } if asked.round == self.copy.round() => self.page(next, rows),
            MirrorAnswer::Page { .. } => {}
            MirrorAnswer::Changes(messages) => self.replay(messages),
            MirrorAnswer::BadCursor if asked.round == self.copy.round() => self.begin_again(NotExact::Replaced, false),
            MirrorAnswer::BadCursor => {}
            MirrorAnswer::Compacted => self.begin_again(NotExact::Compacted, false),
        }
        self.judge();
    }

    /// The connection for requests is lost, with the outstanding request. Another one may lead to another start of the
    /// server, so it is asked for its life before it is asked for anything else.
    pub(super) fn requests_lost(&mut self) {
        let asked = self.asked.take();
        self.doubtful = self.doubtful.or(asked.as_ref().and_then(|asked| asked.doubtful)).or(self.place.life);
        self.vain.fruitless = self.vain.fruitless.saturating_sub(u32::from(asked.is_some()));
    }

    /// The state of the server, to begin with, to end with, or to compare with.
    fn learn(&mut self, asked: &Asked, state: &FeedState) {
        let FeedPosition { epoch, incarnation, sequence } = state.next;
        let life = Life { epoch, incarnation };
        if self.place.life != Some(life) || matches!(self.stage, FollowerStage::Starting) {
            return self.begin(life, asked, sequence);
        }
        self.doubtful = self.doubtful.filter(|doubtful| *doubtful != life);
        if sequence < asked.next {
            // We are beyond the server: it has given a number twice.
            return self.differs();
        }
        if matches!(self.stage, FollowerStage::Scanned) && asked.round == self.copy.round() {
            self.stage = FollowerStage::Ending(*state);
        }
        if sequence == self.place.next {
            self.compare(state.elements, state.digest);
        }
    }

    /// Begins a round at the sequence that comes next.
    fn begin(&mut self, life: Life, asked: &Asked, sequence: u64) {
        let is_same = self.place.life == Some(life);
        if !is_same && self.place.life.is_some() {
            self.exactness.doubt = NotExact::Replaced;
        }
        let is_new_epoch = self.place.life.is_none_or(|old| old.epoch != life.epoch);
        if is_new_epoch {
            self.place.ended = 0;
        }
        // A message may have come after the server was asked. But if we were beyond the server then, its word counts.
        let may_keep = is_same && sequence >= asked.next;
        self.place.next = if may_keep { self.place.next.max(sequence) } else { sequence };
        self.place.seen = self.place.next;
        self.copy.begin_round(is_new_epoch || self.distrusts);
        self.distrusts = false;
        self.place.life = Some(life);
        self.doubtful = self.doubtful.filter(|doubtful| *doubtful != life);
        self.stage = FollowerStage::Scanning(Vec::new());
        self.differing = 0;
        self.vain.failures = self.vain.failures.saturating_add(1);
        self.metrics.scans += 1;
    }

    /// Waits for the state of the server, to begin a round.
    fn begin_again(&mut self, doubt: NotExact, distrust: bool) {
        self.exactness.doubt = doubt;
        self.distrusts |= distrust;
        self.stage = FollowerStage::Starting;
    }

    /// There is no such table. The message that made us ask came before, so its life is over too.
    fn no_table(&mut self, asked: &Asked) {
        let Some(epoch) = asked.doubtful.or(self.place.life).map(|life| life.epoch) else { return };
        let over = [self.place.life, asked.doubtful].into_iter().flatten().filter(|life| life.epoch == epoch);
        let over = over.map(|life| life.incarnation).max().unwrap_or(0);
        let is_same_epoch = self.place.life.is_some_and(|life| life.epoch == epoch);
        self.place.ended = if is_same_epoch { self.place.ended.max(over) } else { over };
        let was_there = self.place.life.is_none_or(|life| life.incarnation != 0);
        self.place.life = Some(Life { epoch, incarnation: 0 });
        (self.place.next, self.place.seen) = (1, 1);
        self.distrusts = false;
        self.report_all(Self::clear_copy);
        self.complete();
        if was_there {
            self.exactness.doubt = NotExact::Replaced;
            self.events.push_back(MirrorEvent::NoTable);
            // The copy of another life is exact from now on.
            self.exactness.is_exact = false;
        }
    }

    fn clear_copy(&mut self) -> Vec<MirrorChange> {
        self.copy.begin_round(true);
        self.copy.clear()
    }

    /// A page of the scan.
    fn page(&mut self, next: &[u8], rows: &[MirrorRow<'_>]) {
        let FollowerStage::Scanning(cursor) = &mut self.stage else { return };
        if !rows.is_empty() || cursor != next {
            self.vain.fruitless = 0;
        } else {
            self.vain.note_fruitless();
        }
        cursor.clear();
        cursor.extend_from_slice(next);
        for row in rows {
            self.events.extend(self.copy.merge_row(row).map(MirrorEvent::Changed));
        }
        if next.is_empty() {
            self.stage = FollowerStage::Scanned;
            self.report_all(|follower| follower.copy.sweep());
        }
    }

    fn report_all(&mut self, take: impl FnOnce(&mut Self) -> Vec<MirrorChange>) {
        let changes = take(self);
        self.events.extend(changes.into_iter().map(MirrorEvent::Changed));
    }

    /// The changes that were missed, or the first of them.
    fn replay(&mut self, messages: &[FeedMessage<'_>]) {
        let before = self.place.next;
        for message in messages {
            if let FeedContent::Changes(changes) = message.content {
                self.changes(message.position.sequence, changes);
            }
        }
        if self.place.next == before && self.place.has_gap() && self.vain.fruitless >= FRUITLESS_MAX {
            self.begin_again(NotExact::Missed, false);
        }
    }

    // ---------------------------------------------------------------------------------------------------- receiving

    /// The connection to the feed is lost.
    pub(super) fn feed_lost(&mut self) {
        self.is_live = false;
        self.exactness.doubt = NotExact::Disconnected;
        self.judge();
    }

    /// A message of the table's topic.
    pub(super) fn receive(&mut self, message: &FeedMessage<'_>) {
        self.is_live = true;
        self.metrics.messages += 1;
        let FeedPosition { epoch, incarnation, sequence } = message.position;
        let life = Life { epoch, incarnation };
        if Some(life) != self.place.life {
            if !self.place.is_over(life) {
                self.doubtful = Some(life);
            }
        } else {
            match message.content {
                FeedContent::Changes(changes) => self.changes(sequence, changes),
                FeedContent::Bookmark { elements, digest, .. } => self.bookmark(sequence, elements, digest),
                FeedContent::Dropped => self.doubtful = Some(life),
            }
        }
        self.judge();
    }

    fn note_seen(&mut self, first: u64, end: u64) {
        self.metrics.gaps += u64::from(self.place.note_seen(first, end));
    }

    /// Takes the changes from our sequence on, unless there is a gap.
    fn changes(&mut self, first: u64, changes: FeedChanges<'_>) {
        let end = first.saturating_add(changes.len() as u64);
        self.note_seen(first, end);
        if self.place.next < first || end <= self.place.next {
            return;
        }
        let known = usize::try_from(self.place.next - first).unwrap_or(usize::MAX);
        for change in changes.skip(known) {
            let remember = !matches!(self.stage, FollowerStage::Complete);
            let event = self.copy.merge_change(&change, remember);
            self.events.extend(event.map(MirrorEvent::Changed));
            self.place.next += 1;
            self.metrics.changes += 1;
            if let FollowerStage::Ending(state) = self.stage
                && state.next.sequence == self.place.next
            {
                self.compare(state.elements, state.digest);
            }
        }
        self.vain.fruitless = 0;
    }

    fn bookmark(&mut self, sequence: u64, elements: u64, digest: u64) {
        self.note_seen(sequence, sequence);
        match sequence.cmp(&self.place.next) {
            std::cmp::Ordering::Equal => self.compare(elements, digest),
            // An old bookmark. Or we are beyond the server: its answer decides.
            std::cmp::Ordering::Less if self.is_complete() => self.doubtful = self.place.life,
            _ => {}
        }
    }

    /// Compares the copy with what the server has published before our sequence.
    fn compare(&mut self, elements: u64, digest: u64) {
        if self.copy.digest() == (Digest { elements, sum: digest }) {
            if !self.copy.is_trusted() {
                return;
            }
            self.metrics.verified += 1;
            self.vain.failures = 0;
            self.distrusts = false;
            self.complete();
            return;
        }
        let has_ended = matches!(self.stage, FollowerStage::Ending(state) if self.place.next >= state.next.sequence);
        if has_ended && self.copy.ahead() > 0 {
            self.differing += 1;
        }
        let counts = self.is_complete() || has_ended && (self.copy.ahead() == 0 || self.differing > DIFFERING_MAX);
        if counts {
            self.differs();
        }
    }

    /// The copy, or the server, is wrong. Nothing that is known is trusted.
    fn differs(&mut self) {
        self.metrics.differences += 1;
        self.begin_again(NotExact::Differs, true);
    }

    fn is_complete(&self) -> bool {
        matches!(self.stage, FollowerStage::Complete)
    }

    fn complete(&mut self) {
        if !self.is_complete() {
            self.stage = FollowerStage::Complete;
            self.copy.settle();
        }
        self.vain.fruitless = 0;
    }

    /// Decides whether the copy is exact, and reports if that has changed.
    fn judge(&mut self) {
        if let FollowerStage::Ending(state) = self.stage
            && self.place.next >= state.next.sequence
            && self.copy.ahead() == 0
        {
            self.complete();
        }
        let is_exact = self.is_complete() && !self.place.has_gap() && self.is_live;
        if is_exact == self.exactness.is_exact {
            return;
        }
        self.exactness.is_exact = is_exact;
        if is_exact {
            self.events.extend(self.at().map(MirrorEvent::Exact));
            return;
        }
        let is_gap = self.is_complete() && self.is_live;
        self.events.push_back(MirrorEvent::NotExact(if is_gap { NotExact::Missed } else { self.exactness.doubt }));
    }
}
