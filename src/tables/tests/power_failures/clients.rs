//! The clients of the histories: changes, reads, transactions and ALTER_TABLE, at random. They note each answer.

#![allow(clippy::cast_possible_truncation, reason = "a test that fails should say where")]

use std::collections::{BTreeMap, BTreeSet};

use crossbeam::epoch;

use super::super::durable::{Element, KEYS, key_of};
use super::answers::{Answer, Answers, View};
use crate::clock::{Now, Ttl};
use crate::seeded_rng::SeededRng;
use crate::tables::{
    Addition, Batch, Deadline, Durability, ManyProgress, Refusal, Restored, Session, TransactionNeeds,
};

/// The tables, and what is on disk of each. `None`: ALTER_TABLE and each CREATE_TABLE choose.
pub(super) const TABLES: [(&[u8], Option<Durability>); 4] = [
    (b"soon", Some(Durability::Soon)),
    (b"always", Some(Durability::Always)),
    (b"memory", Some(Durability::None)),
    (b"altered", None),
];
const ALTERED: usize = 3;

/// How far above the floor of a life versions are restored.
const RESTORED_ABOVE: u64 = 1 << 20;

/// The clients of a server.
pub(super) struct Clients {
    pub(super) rng: SeededRng,
    /// Of the present life.
    pub(super) sessions: Vec<Session>,
    /// The time of the log's clock at the start of this life, and the time since then.
    pub(super) start: u64,
    pub(super) now: u64,
    /// The floor of the versions at the start of this life.
    pub(super) floor: u64,
    /// What was seen under each version of a key, in all lives.
    seen: BTreeMap<(usize, Vec<u8>), BTreeMap<u64, Element>>,
    /// Versions that were restored. Their deletions may have versions that changes of an older table have too.
    restored: BTreeSet<(usize, Vec<u8>, u64)>,
    /// What they were answered in this life.
    pub(super) answers: Answers,
    /// The batches of the log in all lives.
    pub(super) batches: u64,
    /// An ALTER_TABLE that has begun.
    alteration: Option<(Durability, ManyProgress)>,
}

/// What the answer to a request shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Nothing,
    /// Whether the table is there.
    Table,
    /// The element of the key, or that there is none.
    Element,
}

/// What came of a request.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    shown: Shown,
    /// The client gave the version.
    is_restored: bool,
    /// The version of an element that is deleted.
    deleted: Option<u64>,
}

impl Outcome {
    fn of(done: &Result<(), Refusal>, shown: Shown) -> Self {
        let shown = match done {
            Ok(()) => shown,
            Err(Refusal::TableExists | Refusal::TableNotFound) => Shown::Table,
            Err(Refusal::KeyNotFound | Refusal::VersionMismatch { .. } | Refusal::NotANumber) => Shown::Element,
            Err(_) => Shown::Nothing,
        };
        Self { shown, is_restored: false, deleted: None }
    }
}

impl Clients {
    pub(super) fn new(rng: SeededRng) -> Self {
        let (seen, restored, answers) = (BTreeMap::new(), BTreeSet::new(), Answers::default());
        let (start, now, floor, batches) = (0, 0, 0, 0);
        Self { rng, sessions: Vec::new(), start, now, floor, seen, restored, answers, batches, alteration: None }
    }

    /// A life begins, with these sessions at this time of the log's clock. They read all that is there.
    pub(super) fn begin(&mut self, sessions: Vec<Session>, start: u64) {
        (self.sessions, self.start, self.now, self.alteration) = (sessions, start, 0, None);
        self.floor = self.sessions[0].shared().catalog.floor.get();
        for (table, key) in (0..TABLES.len()).flat_map(|table| (0..KEYS).map(move |key| (table, key_of(key)))) {
            self.read(table, &key, false);
        }
    }

    pub(super) fn steps(&mut self, most: u64) {
        (0..self.rng.below(most)).for_each(|_| self.step());
    }

    fn step(&mut self) {
        self.now += self.rng.below(4);
        let session = self.rng.below(2) as usize;
        match self.rng.below(16) {
            0 | 1 => self.transact(session),
            2 | 3 => self.alter(session),
            _ => self.request(session),
        }
    }

    fn some_key(&mut self) -> Vec<u8> {
        key_of(self.rng.below(KEYS) * self.rng.below(KEYS) / KEYS)
    }

    fn some_table(&mut self) -> usize {
        self.rng.below(TABLES.len() as u64) as usize
    }

    fn open_epoch(&self) -> u64 {
        self.sessions[0].shared().epochs.open_epoch()
    }

    /// Notes an answer that waits for this epoch, if for one.
    fn answer(&mut self, session: usize, table: usize, key: &[u8], view: View, awaited: Option<u64>) {
        if let Some(awaited) = awaited {
            self.sessions[session].watch_disk(awaited);
        }
        let epoch = self.open_epoch();
        self.answers.note(Answer { table, key: key.to_vec(), view, epoch, awaited });
    }

    /// Notes what the table is, and returns whether it is always on disk, or was when it was deleted.
    fn look(&mut self, table: usize) -> bool {
        let guard = epoch::pin();
        let found = self.sessions[0].shared().catalog.find(TABLES[table].0, &guard);
        self.answers.note_table(table, found.map(|found| found.is_always()))
    }

    /// Another client reads the element. What has another version is another state, also in other lives. Returns what it sees.
    fn read(&mut self, table: usize, key: &[u8], is_restored: bool) -> Option<View> {
        let mut batch = self.sessions[0].batch(Now::from_millis(self.now));
        let view = match batch.element(TABLES[table].0, key) {
            Ok(element) => {
                let deadline = element.deadline.map(|deadline| deadline + self.start);
                View::Present(Element { value: element.value.to_vec(), version: element.version, deadline })
            }
            Err(Refusal::KeyNotFound) => View::Absent,
            Err(Refusal::TableNotFound) => View::NoTable,
            Err(_) => return None,
        };
        let awaited = batch.take_awaited();
        drop(batch);
        let is_always = self.look(table);
        if let View::Present(element) = &view
            && self.is_new(table, key, element, is_restored)
            && is_always
            && !is_restored
        {
            self.answers.note_change(table, key, element.version, self.open_epoch());
        }
        if is_always {
            self.answer(0, table, key, view.clone(), awaited);
        }
        Some(view)
    }

    /// Whether nobody has seen this version before. The value behind a restored one is the client's word. An older life of the
    /// table may have had another value with this version, and comes back if the power fails before the new life is on disk.
    fn is_new(&mut self, table: usize, key: &[u8], element: &Element, is_restored: bool) -> bool {
        let seen = self.seen.entry((table, key.to_vec())).or_default();
        let version = element.version;
        if is_restored {
            self.restored.insert((table, key.to_vec(), version));
            return seen.insert(version, element.clone()).is_none();
        }
        let highest = seen.last_key_value().map_or(0, |(version, _)| *version);
        let known = seen.get(&version);
        let is_same = known.is_none_or(|known| known == element);
        let was_restored = self.restored.contains(&(table, key.to_vec(), version));
        assert!(is_same || was_restored, "version {version} came again: {known:?}, {element:?}");
        assert!(known.is_some() || version > highest, "version {version} is new, and {highest} was seen");
        known.is_none() && seen.insert(version, element.clone()).is_none()
    }

    /// Notes the answer to a request, and what another client reads then.
    fn note(&mut self, session: usize, table: usize, key: &[u8], outcome: Outcome, awaited: Option<u64>) {
        let Outcome { shown, is_restored, deleted } = outcome;
        let Some(view) = self.read(table, key, is_restored) else { return };
        let is_always = self.look(table);
        if let Some(version) = deleted
            && is_always
            && !self.restored.contains(&(table, key.to_vec(), version))
        {
            self.answers.note_change(table, key, version + 1, self.open_epoch());
        }
        match shown {
            _ if !is_always => {}
            Shown::Nothing => {}
            Shown::Table if view != View::NoTable => self.answer(session, table, key, View::Table, awaited),
            Shown::Table | Shown::Element => self.answer(session, table, key, view, awaited),
        }
    }

    /// A version to restore: close to the last one of the key, from before the table, far above, or one that was seen.
    fn version_to_restore(&mut self, table: usize, key: &[u8]) -> u64 {
        let seen = self.seen.get(&(table, key.to_vec())).into_iter().flatten();
        let versions: Vec<u64> = seen.map(|(version, _)| *version).chain([0]).collect();
        let version = match self.rng.below(4) {
            0 => *versions.iter().max().unwrap(),
            1 => self.rng.below(50),
            2 => self.floor + self.rng.below(RESTORED_ABOVE),
            _ => versions[self.rng.index(versions.len())],
        };
        version + self.rng.below(3)
    }

    /// One request.
    fn request(&mut self, session: usize) {
        let (table, key) = (self.some_table(), self.some_key());
        let now = Now::from_millis(self.now);
        let restored = self.version_to_restore(table, &key);
        let mut batch = self.sessions[session].batch(now);
        let outcome = Self::change(&mut self.rng, &mut batch, table, &key, restored);
        let awaited = batch.take_awaited();
        drop(batch);
        self.note(session, table, &key, outcome, awaited);
    }

    /// A change of an element or of a table, which may be refused. `restored` is a version for RESTORE.
    fn change(rng: &mut SeededRng, batch: &mut Batch<'_>, table: usize, key: &[u8], restored: u64) -> Outcome {
        let (name, durability) = TABLES[table];
        let deadline = match rng.below(4) {
            0 => Deadline::after(batch.now(), Ttl::from_millis(1 + rng.below(300))),
            1 => Deadline::KEEP,
            _ => Deadline::NONE,
        };
        let value = vec![rng.below(256) as u8; [0, 10, 300, 2_500][rng.below(4) as usize]];
        let version = batch.element(name, key).map_or(0, |element| element.version);
        if !batch.is_in_transaction() {
            // A client may have its versions from anywhere.
            batch.take_awaited();
        }
        let addition = Addition { delta: 1 + rng.below(9).cast_signed(), deadline, value_max: 100 };
        let element = |done: Result<(), Refusal>| Outcome::of(&done, Shown::Element);
        let deleted = |done: Result<(), Refusal>| {
            let deleted = done.is_ok().then_some(version);
            Outcome { deleted, ..element(done) }
        };
        match rng.below(28) {
            0..=6 => element(batch.update(name, key, &value, deadline)),
            7..=9 => deleted(batch.delete(name, key).map(drop)),
            10..=14 => element(batch.touch(name, key, deadline)),
            15..=16 => element(batch.compare_and_swap(name, key, version, &value, deadline).map(drop)),
            17..=18 => element(batch.compare_and_swap(name, key, version + 1, &value, deadline).map(drop)),
            19 => deleted(batch.compare_and_delete(name, key, version).map(drop)),
            20 => element(batch.compare_and_delete(name, key, version + 1).map(drop)),
            21..=22 => {
                let done = if rng.one_in(2) { batch.update(name, key, b"7", deadline) } else { Ok(()) };
                element(done.and_then(|()| batch.increment(name, key, addition).map(drop)))
            }
            23..=25 if !batch.is_in_transaction() => {
                let done = batch.restore(name, key, &value, restored, deadline);
                let is_restored = done == Ok(Restored::AsItWas);
                Outcome { is_restored, ..element(done.map(drop)) }
            }
            26 if rng.one_in(2) => Outcome::of(&batch.replace_table(name), Shown::Element),
            26 if rng.one_in(2) && !batch.is_in_transaction() => Outcome::of(&batch.delete_table(name), Shown::Table),
            _ if !batch.is_in_transaction() => {
                let said = durability.or_else(|| Durability::of_number(rng.below(3) as u8));
                Outcome::of(&batch.create_table_with(name, name, None, said), Shown::Table)
            }
            _ => Outcome { shown: Shown::Nothing, is_restored: false, deleted: None },
        }
    }

    /// Some changes of several elements, in one transaction.
    fn transact(&mut self, session: usize) {
        let keys: Vec<_> = (0..1 + self.rng.below(5)).map(|_| self.some_key()).collect();
        let tables: Vec<usize> = keys.iter().map(|_| self.some_table()).collect();
        let names: Vec<&[u8]> = tables.iter().map(|table| TABLES[*table].0).collect();
        let carrier = &mut self.sessions[session];
        let mut batch = carrier.batch(Now::from_millis(self.now));
        batch.latch(&names).unwrap();
        let mut needs = TransactionNeeds::default();
        // Each step makes two changes at most.
        let added = names.iter().zip(&keys).try_for_each(|(name, key)| {
            batch.add_replacement(&mut needs, name);
            batch.add_change(&mut needs, name, key, Some(2_500))?;
            batch.add_change(&mut needs, name, key, Some(2_500))
        });
        let has_begun = added.and_then(|()| batch.begin_transaction(needs)).is_ok();
        batch.take_awaited();
        if has_begun {
            for (table, key) in tables.iter().zip(&keys) {
                Self::change(&mut self.rng, &mut batch, *table, key, 0);
            }
            batch.end_transaction();
        }
        let awaited = batch.take_awaited();
        drop(batch);
        carrier.end_latch();
        let shown = if has_begun { Shown::Element } else { Shown::Nothing };
        let outcome = Outcome { shown, is_restored: false, deleted: None };
        tables.iter().zip(&keys).for_each(|(table, key)| self.note(session, *table, key, outcome, awaited));
    }

    /// A step of ALTER_TABLE. Others follow, unless the client gives it up.
    fn alter(&mut self, session: usize) {
        let said = Durability::of_number(self.rng.below(3) as u8).unwrap_or_default();
        let begun = self.alteration.take().filter(|_| !self.rng.one_in(8));
        let (said, mut progress) = begun.unwrap_or((said, ManyProgress::default()));
        let mut batch = self.sessions[session].batch(Now::from_millis(self.now));
        let outcome = batch.alter_table(TABLES[ALTERED].0, said, &mut progress);
        let awaited = batch.take_awaited();
        drop(batch);
        self.look(ALTERED);
        match outcome {
            Ok(()) => self.answer(session, ALTERED, b"", View::Durable(said), awaited),
            Err(Refusal::Unfinished | Refusal::Busy) => self.alteration = Some((said, progress)),
            Err(_) => {}
        }
    }
}
