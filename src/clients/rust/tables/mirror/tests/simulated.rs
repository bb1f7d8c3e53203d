//! A server with a table and its feed, written from the specification alone: the model that mirrors are proved against.
//!
//! ```text
//! commit: a slot's next version, and a change that is pending
//! announce: a pending change has its turn ─► announced already? nothing : the slot's state gets the next sequence
//! publish: the announced changes of a life become a message, which is kept and sent
//! ```
//! The pending changes of different keys have their turns in any order, those of a key in their own. It remembers the
//! announced state before each sequence, which is the truth about a mirror that is exact there.
//!
//! Without a planted fault the server's own [`FeedLog`] receives the same changes. Its messages must be those of the
//! model, byte for byte, and the mirror gets them, its bookmarks and its replays.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test that fails should say where"
)]

use std::collections::{BTreeMap, VecDeque};

use super::planted::Planted;
use super::simulated_life::{Life, OwnedChange, Pending, Slot, State, Stored, TABLE};
use crate::clients::rust::tables::mirror::ask::Ask;
use crate::feed::{Cause, Digest, FeedContent, FeedLog, FeedMessage, FeedPosition, topic_of_table};
use crate::services::tables::wire::{FeedState, MirrorRow, RowMark};

/// The keys of the table are single bytes below this.
pub(crate) const KEYS: u8 = 6;

/// Changes after which a life publishes: a message has 64 at most, and a fault may have each in it twice.
const COLLECTED_MAX: usize = 30;

/// Bytes that the history of the server's own feed has.
const HISTORY_BYTES: usize = 1_000;

/// A page that is being read, slot by slot.
#[derive(Clone, Debug)]
pub(crate) struct PageJob {
    incarnation: u64,
    after: Option<u8>,
    left: u32,
    rows: Vec<OwnedRow>,
    /// The slot that is looked at, and what the first look has seen.
    look: Option<(u8, Slot)>,
}

/// A row of a page.
#[derive(Clone, Debug)]
pub(crate) struct OwnedRow {
    key: [u8; 1],
    stored: Option<Stored>,
    version: u64,
    mark: RowMark,
}

impl OwnedRow {
    pub(crate) fn row(&self) -> MirrorRow<'_> {
        let (value, deadline_millis) = match &self.stored {
            Some((value, deadline)) => (&value[..], *deadline),
            None => (&[][..], None),
        };
        MirrorRow { key: &self.key, value, version: self.version, deadline_millis, mark: self.mark }
    }
}

/// The reply to a request of a mirror.
#[derive(Clone, Debug)]
pub(crate) enum Replied {
    State(FeedState),
    Page { next: Vec<u8>, rows: Vec<OwnedRow> },
    Changes(Vec<Vec<u8>>),
    NoTable,
    BadCursor,
    Compacted,
}

/// The server.
pub(crate) struct Server {
    epoch: u64,
    /// The server's own feed, which must do the same. None if a fault is planted.
    own: Option<FeedLog>,
    slots: usize,
    /// The present table, if there is one.
    current: Option<u64>,
    incarnations: u64,
    /// The present life, and older ones whose end is not announced.
    lives: BTreeMap<u64, Life>,
    /// The last version of each key in this epoch.
    versions: BTreeMap<u8, u64>,
    /// Messages to be sent.
    pub(crate) out: Vec<Vec<u8>>,
    /// The announced state before each sequence of each life.
    pub(crate) truth: BTreeMap<(u64, u64, u64), State>,
    /// The announced state that each bookmark represents.
    pub(crate) bookmarks: BTreeMap<Vec<u8>, State>,
    /// Messages that a life keeps.
    pub(crate) history_max: usize,
    pub(crate) planted: Option<Planted>,
    /// How often the planted fault has acted.
    pub(crate) acted: u32,
}

impl Server {
    pub(crate) fn new(planted: Option<Planted>) -> Self {
        let epoch = 1000;
        Self {
            epoch,
            own: planted.is_none().then(|| FeedLog::new(epoch, HISTORY_BYTES)),
            slots: 0,
            current: None,
            incarnations: 0,
            lives: BTreeMap::new(),
            versions: BTreeMap::new(),
            out: Vec::new(),
            truth: BTreeMap::new(),
            bookmarks: BTreeMap::new(),
            history_max: 4,
            planted,
            acted: 0,
        }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Another start: all is gone. The versions begin again, so that those of another epoch must not count.
    pub(crate) fn restart(&mut self, epoch: u64) {
        let truth = std::mem::take(&mut self.truth);
        let (history_max, acted) = (self.history_max, self.acted);
        let own = self.planted.is_none().then(|| FeedLog::new(epoch, HISTORY_BYTES));
        *self = Self { epoch, own, truth, history_max, acted, ..Self::new(self.planted) };
    }

    pub(crate) fn create(&mut self) {
        if self.current.is_some() {
            return;
        }
        self.incarnations += 1;
        self.current = Some(self.incarnations);
        let life = Life {
            slots: BTreeMap::new(),
            next: 1,
            announced: State::new(),
            digest: Digest::default(),
            history: VecDeque::new(),
            collected: Vec::new(),
        };
        self.lives.insert(self.incarnations, life);
        self.truth.insert((self.epoch, self.incarnations, 1), State::new());
    }

    pub(crate) fn drop_table(&mut self) {
        let Some(incarnation) = self.current.take() else { return };
        for key in 0..KEYS {
            if self.lives[&incarnation].slots.get(&key).is_some_and(|slot| slot.stored.is_some()) {
                self.commit(incarnation, key, None, Cause::DeleteWithTable);
            }
        }
    }

    // ------------------------------------------------------------------------------------------------------- writers

    fn live(&self, key: u8) -> Option<&Stored> {
        self.lives.get(&self.current?)?.slots.get(&key)?.stored.as_ref()
    }

    pub(crate) fn set(&mut self, key: u8, value: Vec<u8>, deadline: Option<u64>) {
        if let Some(incarnation) = self.current {
            self.commit(incarnation, key, Some((value, deadline)), Cause::Set);
        }
    }

    pub(crate) fn touch(&mut self, key: u8, deadline: Option<u64>) {
        if let (Some(incarnation), Some((value, _))) = (self.current, self.live(key).cloned()) {
            self.commit(incarnation, key, Some((value, deadline)), Cause::Touch);
        }
    }

    pub(crate) fn delete(&mut self, key: u8) {
        if let (Some(incarnation), Some(_)) = (self.current, self.live(key)) {
            self.commit(incarnation, key, None, Cause::Delete);
        }
    }

    pub(crate) fn expire(&mut self, key: u8) {
        if let (Some(incarnation), Some((_, Some(_)))) = (self.current, self.live(key)) {
            self.commit(incarnation, key, None, Cause::Expire);
        }
    }

    fn commit(&mut self, incarnation: u64, key: u8, stored: Option<Stored>, cause: Cause) {
        let version = self.versions.entry(key).or_default();
        *version += 1;
        self.slots += 1;
        let new = Slot { number: self.slots, ..Slot::default() };
        let slot = self.lives.get_mut(&incarnation).unwrap().slots.entry(key).or_insert(new);
        slot.pending.push_back(Pending { version: *version, cause, replaces_value: slot.stored.is_some() });
        (slot.version, slot.stored) = (*version, stored);
    }

    // ---------------------------------------------------------------------------------------------------- announcing

    /// The changes that may have their turn: the key's older lives are announced first.
    pub(crate) fn turns(&self) -> Vec<(u64, u8)> {
        let is_blocked = |incarnation: u64, key: u8| {
            let mut older = self.lives.range(..incarnation);
            older.any(|(_, life)| life.slots.get(&key).is_some_and(|slot| !slot.pending.is_empty()))
        };
        let mut turns = Vec::new();
        for (incarnation, life) in &self.lives {
            let waiting = life.slots.iter().filter(|(_, slot)| !slot.pending.is_empty());
            turns.extend(waiting.map(|(key, _)| (*incarnation, *key)).filter(|(life, key)| !is_blocked(*life, *key)));
        }
        turns
    }

    /// Gives the oldest pending change of a key its turn.
    pub(crate) fn announce(&mut self, (incarnation, key): (u64, u8)) {
        let life = self.lives.get_mut(&incarnation).unwrap();
        let slot = life.slots.get_mut(&key).unwrap();
        let pending = slot.pending.pop_front().unwrap();
        let version = pending.version;
        if let Some(own) = &mut self.own {
            slot.announce_own(own, incarnation, key, pending);
        }
        let mut is_announced = slot.announced >= version;
        if is_announced && self.planted == Some(Planted::AnnouncedForgotten) {
            self.acted += 1;
            is_announced = false;
        }
        if !is_announced {
            let plain = if slot.stored.is_some() { Cause::Set } else { Cause::Delete };
            let cause = if slot.version == version { pending.cause } else { plain };
            let change = OwnedChange { cause, version: slot.version, key, stored: slot.stored.clone() };
            slot.announced = slot.version;
            life.announce(change, self.planted, &mut self.acted);
            self.truth.insert((self.epoch, incarnation, life.next), life.announced.clone());
        }
        let slot = &life.slots[&key];
        if slot.pending.is_empty() && slot.stored.is_none() {
            life.slots.remove(&key);
        }
        if life.collected.len() >= COLLECTED_MAX {
            self.publish();
        }
    }

    /// Publishes what all lives have collected, and the ends of lives.
    pub(crate) fn publish(&mut self) {
        let before = self.out.len();
        let lives: Vec<u64> = self.lives.keys().copied().collect();
        lives.iter().for_each(|life| self.publish_life(*life));
        let Some(own) = &mut self.own else { return };
        own.seal();
        for incarnation in lives {
            match self.lives.get(&incarnation) {
                None => own.dropped(incarnation, TABLE),
                Some(life) => {
                    let state = own.state(incarnation);
                    assert_eq!((state.next.sequence, state.digest), (life.next, life.digest), "the server's own state");
                }
            }
        }
        let own: Vec<Vec<u8>> = own.take_published().iter().map(|message| message.payload.to_vec()).collect();
        let mut both = [self.out.split_off(before), own.clone()];
        both.iter_mut().for_each(|messages| messages.sort());
        assert_eq!(both[0], both[1], "the server's own messages");
        self.out.extend(own);
    }

    fn publish_life(&mut self, incarnation: u64) {
        let Some(life) = self.lives.get_mut(&incarnation) else { return };
        let position = |sequence| FeedPosition { epoch: self.epoch, incarnation, sequence };
        if let Some((first, payload)) = life.message(position, self.planted, &mut self.acted) {
            life.history.push_back((first, life.next, payload.clone()));
            while life.history.len() > self.history_max {
                life.history.pop_front();
            }
            self.out.push(payload);
        }
        if self.current != Some(incarnation) && life.slots.is_empty() {
            let mut payload = Vec::new();
            FeedMessage { position: position(life.next), content: FeedContent::Dropped }.encode(&mut payload);
            self.out.push(payload);
            self.lives.remove(&incarnation);
        }
    }

    pub(crate) fn evict(&mut self) {
        self.lives.values_mut().for_each(|life| life.history.clear());
    }

    /// A bookmark of the newest life, after what it has collected.
    pub(crate) fn bookmark(&mut self) -> Vec<u8> {
        self.publish();
        let newest = self.lives.keys().next_back().copied().unwrap_or(0);
        let life = self.lives.get(&newest);
        let incarnation = if life.is_some() { newest } else { 0 };
        let (sequence, digest) = life.map_or((1, Digest::default()), |life| (life.next, life.digest));
        let content = FeedContent::Bookmark { elements: digest.elements, digest: digest.sum, durable: sequence };
        let position = FeedPosition { epoch: self.epoch, incarnation, sequence };
        let mut payload = Vec::new();
        FeedMessage { position, content }.encode(&mut payload);
        if let Some(own) = &mut self.own {
            let bookmark = own.bookmark(&topic_of_table(TABLE), self.current, None);
            // While there is no table, the server's own feed may say so before it has announced all ends of lives.
            assert!(bookmark == payload || self.current.is_none(), "the server's own bookmark");
            payload = bookmark;
        }
        let said = FeedMessage::decode(&payload).unwrap().position.incarnation;
        self.bookmarks
            .insert(payload.clone(), self.lives.get(&said).map(|life| life.announced.clone()).unwrap_or_default());
        payload
    }

    /// Whether all that is committed is announced and published.
    pub(crate) fn is_settled(&self) -> bool {
        self.turns().is_empty() && self.lives.values().all(|life| life.collected.is_empty())
    }

    // ------------------------------------------------------------------------------------------------------ requests

    /// Executes a request, or begins to read a page.
    pub(crate) fn execute(&mut self, ask: &Ask) -> Result<Replied, Box<PageJob>> {
        let Some(incarnation) = self.current else { return Ok(Replied::NoTable) };
        match ask {
            Ask::State => Ok(Replied::State(self.state(incarnation))),
            Ask::Changes(position) => Ok(self.replay(incarnation, *position)),
            Ask::Page(cursor) => {
                let life = [self.epoch, incarnation].map(u64::to_be_bytes);
                let after = match cursor.split_last() {
                    None => None,
                    Some((key, of)) if of == life.as_flattened() => Some(*key),
                    Some(_) => return Ok(Replied::BadCursor),
                };
                Err(Box::new(PageJob { incarnation, after, left: 2, rows: Vec::new(), look: None }))
            }
        }
    }

    fn state(&self, incarnation: u64) -> FeedState {
        let life = &self.lives[&incarnation];
        FeedState {
            next: FeedPosition { epoch: self.epoch, incarnation, sequence: life.next },
            oldest: life.history.front().map_or(life.next, |(first, ..)| *first),
            elements: life.digest.elements,
            digest: life.digest.sum,
        }
    }

    fn replay(&mut self, incarnation: u64, position: FeedPosition) -> Replied {
        self.publish();
        if let Some(own) = &self.own {
            let kept = own.replay(incarnation, position);
            let payloads =
                |kept: Vec<std::sync::Arc<[u8]>>| kept.iter().take(2).map(|payload| payload.to_vec()).collect();
            return kept.map_or(Replied::Compacted, |kept| Replied::Changes(payloads(kept)));
        }
        let FeedState { next, oldest, .. } = self.state(incarnation);
        let wanted = position.sequence;
        let is_kept = (oldest..=next.sequence).contains(&wanted);
        if (position.epoch, position.incarnation) != (next.epoch, next.incarnation) || !is_kept {
            return Replied::Compacted;
        }
        let history = self.lives[&incarnation].history.iter();
        let from = history.skip_while(|(_, end, _)| *end <= wanted).map(|(.., payload)| payload.clone());
        Replied::Changes(from.take(2).collect())
    }

    /// Looks at a slot for a page: judges its mark, or reads its row. Returns the page when it is whole.
    pub(crate) fn read(&mut self, job: &mut PageJob) -> Option<Replied> {
        if self.current != Some(job.incarnation) {
            return Some(Replied::NoTable);
        }
        let slots = &self.lives[&job.incarnation].slots;
        if let Some((key, seen)) = job.look.take() {
            let now = slots.get(&key);
            if let Some(row) = self.row(key, &seen, now.cloned()) {
                job.rows.push(row);
            }
            (job.after, job.left) = (Some(key), job.left - 1);
            return None;
        }
        let following = slots.range(job.after.map_or(0, |after| after + 1)..).next();
        let Some((key, slot)) = following.filter(|_| job.left > 0) else {
            let life = [self.epoch, job.incarnation].map(u64::to_be_bytes);
            let next = match (following, job.after) {
                (Some(_), Some(after)) => [life.as_flattened(), &[after]].concat(),
                _ => Vec::new(),
            };
            return Some(Replied::Page { next, rows: std::mem::take(&mut job.rows) });
        };
        job.look = Some((*key, slot.clone()));
        None
    }

    /// The row of a slot, of which two looks were taken.
    fn row(&mut self, key: u8, first: &Slot, second: Option<Slot>) -> Option<OwnedRow> {
        let is_gone = second.is_none();
        // An absent slot: its deletion was announced.
        let second = second.unwrap_or_else(|| Slot { announced: u64::MAX, stored: None, ..first.clone() });
        let (announced, read) = match self.planted {
            Some(Planted::MarkedAfter) => (second.announced, first),
            _ => (first.announced, &second),
        };
        self.acted += u32::from(self.planted == Some(Planted::MarkedAfter) && first.announced != second.announced);
        if is_gone && self.planted != Some(Planted::MarkedAfter) {
            return None;
        }
        let mut is_announced = announced == read.version;
        if self.planted == Some(Planted::MarkOfAnother) && first.announced == first.version && !is_announced {
            self.acted += 1;
            is_announced = true;
        }
        let mark = match (&read.stored, is_announced) {
            (None, true) => return None,
            (None, false) => RowMark::Deleted,
            (Some(_), true) => RowMark::Published,
            (Some(_), false) => RowMark::Ahead,
        };
        Some(OwnedRow { key: [key], stored: read.stored.clone(), version: read.version, mark })
    }
}
