//! A client of a storm: random verbs on few keys of few tables. It checks that no value is torn, and that the observed
//! versions of a key grow.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::thread;

use super::values::{KEYS, checked, is_counter, key_of, random_length, value_of};
use super::{KEPT, NAMES, OLD, Stage};
use crate::clock::Now;
use crate::feed::{FeedMessage, FeedPosition};
use crate::seeded_rng::SeededRng;
use crate::tables::slot::ANNOUNCED_ROUND;
use crate::tables::{
    Addition, Batch, Deadline, Fetched, ManyProgress, Refusal, Restored, ScanContent, ScanPage, ScanProgress, Session,
};

/// How often each verb was carried out, refused, and put off.
pub(super) type Counts = BTreeMap<&'static str, [u64; 3]>;

/// A key of a table.
#[derive(Clone, Copy)]
struct Target<'k> {
    table: &'static [u8],
    number: usize,
    key: &'k [u8],
}

/// What a client has seen of a key: the version, and the number of its value, if it has seen the value.
type Seen = (u64, Option<u64>);

/// A thread that asks.
pub(super) struct Client {
    session: Session,
    mind: Mind,
}

/// What a client remembers.
struct Mind {
    stage: Arc<Stage>,
    random: SeededRng,
    keys: Arc<Vec<Vec<u8>>>,
    /// The number of its last write, which no other client's write has.
    write: u64,
    seen: HashMap<(&'static [u8], usize), Seen>,
    /// The unfinished scan, and where it continues.
    scan: Option<(&'static [u8], Vec<u8>)>,
    /// A position in the feed of a table.
    position: Option<(&'static [u8], FeedPosition)>,
    counts: Counts,
}

impl Client {
    pub(super) fn new(stage: &Arc<Stage>, number: u64, seed: u64) -> Self {
        let mind = Mind {
            stage: Arc::clone(stage),
            random: SeededRng(seed),
            keys: Arc::new((0..KEYS).map(key_of).collect()),
            write: number << 40,
            seen: HashMap::new(),
            scan: None,
            position: None,
            counts: Counts::new(),
        };
        Self { session: stage.tables.session(), mind }
    }

    /// Asks until the round is over.
    pub(super) fn run(mut self) -> Counts {
        while !self.mind.stage.is_over() {
            match self.mind.random.below(400) {
                0..8 => self.many(),
                8 => self.session.rest(self.mind.stage.now()),
                9 => self.run_of_updates(),
                _ => self.turn(),
            }
        }
        self.mind.counts
    }

    /// A few requests under one guard and one reading of the clock.
    fn turn(&mut self) {
        let Self { session, mind } = self;
        let mut batch = session.batch(mind.stage.now());
        let fetched = mind.prefetch(&mut batch);
        let mut outcome = Ok(());
        for request in 0..1 + mind.random.index(8) {
            batch.expect(&fetched, request);
            outcome = mind.ask(&mut batch);
            if outcome.is_err() {
                break;
            }
        }
        drop(batch);
        if outcome.is_err() {
            session.wait();
        }
    }

    /// About as many changes of one element as let the bits come round that its slot keeps as announced.
    fn run_of_updates(&mut self) {
        let Self { session, mind } = self;
        let (table, number) = (mind.table(), mind.random.index(KEYS));
        let value = value_of(number, mind.write, 0);
        let count = ANNOUNCED_ROUND - 3 + mind.random.below(6);
        for _ in 0..count {
            let outcome = session.batch(mind.stage.now()).update(table, &mind.keys[number], &value, Deadline::KEEP);
            mind.count("UPDATE, of a run", outcome);
            match outcome {
                Ok(()) => {}
                Err(Refusal::Busy) if !mind.stage.is_over() => session.wait(),
                Err(_) => return,
            }
        }
    }

    /// A request for many elements, in as many portions as it takes. Now and then it is given up halfway.
    fn many(&mut self) {
        let Self { session, mind } = self;
        let (verb, table) = (mind.random.below(3), mind.table());
        let numbers: Vec<usize> = (0..1 + mind.random.index(2 * KEYS)).map(|_| mind.random.index(KEYS)).collect();
        let keys: Vec<Vec<u8>> = numbers.iter().map(|number| mind.keys[*number].clone()).collect();
        let values: Vec<Vec<u8>> = numbers.iter().map(|number| mind.value(*number)).collect();
        let pairs = keys.iter().zip(&values).map(|(key, value)| (&key[..], &value[..]));
        let (mut progress, is_given_up) = (ManyProgress::default(), mind.random.one_in(10));
        loop {
            let mut batch = session.batch(mind.stage.now());
            let deadline = mind.deadline(batch.now());
            let (name, outcome) = match verb {
                0 => ("UPDATE_MANY", batch.update_many(table, deadline, pairs.clone(), &mut progress)),
                1 => {
                    let deleted = batch.delete_many(table, keys.iter().map(Vec::as_slice), &mut progress);
                    ("DELETE_MANY", deleted.map(|deleted| assert_eq!(deleted.len(), keys.len())))
                }
                _ => ("GET_MANY", get_portion(&mut batch, table, (&numbers, &keys), &mut progress)),
            };
            drop(batch);
            mind.count(name, outcome);
            match outcome {
                Err(Refusal::Busy | Refusal::Unfinished) if is_given_up || mind.stage.is_over() => return,
                Err(Refusal::Busy) => session.wait(),
                Err(Refusal::Unfinished) => {}
                Err(Refusal::TableNotFound | Refusal::OutOfMemory) | Ok(()) => return,
                Err(refusal) => panic!("{name}: {refusal:?}"),
            }
        }
    }
}

/// Reads a portion of the elements. `Unfinished` if there are more.
fn get_portion(
    batch: &mut Batch<'_>,
    table: &[u8],
    (numbers, keys): (&[usize], &[Vec<u8>]),
    progress: &mut ManyProgress,
) -> Result<(), Refusal> {
    let mut values = Vec::new();
    let line = batch.get_many(table, keys.iter().map(Vec::as_slice), progress, &mut values)?;
    thread::yield_now();
    let read = numbers.iter().skip(progress.done()).zip(&values);
    read.for_each(|(number, value)| _ = value.map(|value| checked(*number, value)));
    if !progress.has_begun() {
        assert_eq!(values.len(), keys.len());
        progress.begin(line);
        return Err(Refusal::Unfinished);
    }
    progress.advance(values.len());
    if progress.done() < keys.len() { Err(Refusal::Unfinished) } else { Ok(()) }
}

impl Mind {
    fn prefetch(&mut self, batch: &mut Batch<'_>) -> Fetched {
        let (keys, table) = (Arc::clone(&self.keys), self.table());
        let requests: Vec<_> = (0..self.random.index(6)).map(|_| (table, &keys[self.random.index(KEYS)][..])).collect();
        batch.prefetch(requests.into_iter().map(Some))
    }

    /// Carries out one random request. The error if it has to wait.
    fn ask(&mut self, batch: &mut Batch<'_>) -> Result<(), Refusal> {
        let (keys, number) = (Arc::clone(&self.keys), self.random.index(KEYS));
        let target = Target { table: self.table(), number, key: &keys[number] };
        let (verb, outcome) = match self.random.below(1_000) {
            0..240 => ("UPDATE", self.update(batch, target)),
            240..320 => ("COMPARE_AND_SWAP", self.compare_and_swap(batch, target)),
            320..400 => ("DELETE", batch.delete(target.table, target.key).map(|value| _ = checked(number, value))),
            400..440 => ("COMPARE_AND_DELETE", self.compare_and_delete(batch, target)),
            440..520 => ("INCREMENT", self.increment(batch, target)),
            520..580 => {
                let deadline = self.deadline(batch.now());
                ("TOUCH", batch.touch(target.table, target.key, deadline))
            }
            580..620 => {
                let deadline = self.deadline(batch.now());
                let touched = batch.get_and_touch(target.table, target.key, deadline);
                ("GET_AND_TOUCH", touched.map(|value| _ = checked(number, value)))
            }
            620..740 => ("GET", self.get(batch, target)),
            740..840 => ("GET_ENTRY", self.get_entry(batch, target)),
            840..880 => ("SCAN", self.scan(batch)),
            880..910 => ("RESTORE", self.restore(batch, target)),
            910..930 => ("CHANGES", self.changes(batch, target.table)),
            930..940 => {
                let is_sorted = batch.list_tables().is_sorted_by(|a, b| a.name < b.name);
                assert!(is_sorted);
                ("LIST_TABLES", Ok(()))
            }
            choice => self.change_tables(batch, choice),
        };
        self.count(verb, outcome);
        match outcome {
            Err(Refusal::Busy) => Err(Refusal::Busy),
            Err(Refusal::FeedOff) => {
                assert!(!self.stage.plan.has_feed);
                Ok(())
            }
            Err(refusal @ (Refusal::Unfinished | Refusal::ValueTooLong | Refusal::TooManyTables)) => {
                panic!("{verb}: {refusal:?}")
            }
            _ => Ok(()),
        }
    }

    fn count(&mut self, verb: &'static str, outcome: Result<(), Refusal>) {
        let column = match outcome {
            Ok(()) => 0,
            Err(Refusal::Busy | Refusal::Unfinished) => 2,
            Err(_) => 1,
        };
        self.counts.entry(verb).or_default()[column] += 1;
    }

    /// A random table. Two of them are asked most.
    fn table(&mut self) -> &'static [u8] {
        match self.random.below(10) {
            0..4 => KEPT,
            4..6 => OLD,
            _ => self.random.pick(NAMES),
        }
    }

    fn value(&mut self, number: usize) -> Vec<u8> {
        self.write += 1;
        let length = random_length(&mut self.random);
        value_of(number, self.write, length)
    }

    /// A deadline that has passed, that passes now or soon, or that is far ahead, none, or the deadline of the element.
    fn deadline(&mut self, now: Now) -> Deadline {
        match self.random.below(10) {
            0 => Deadline::at(now.millis().saturating_sub(self.random.below(1_000))),
            1 => Deadline::at(now.millis()),
            2 => Deadline::at(now.millis() + self.random.below(5)),
            3 => Deadline::at(now.millis() + self.random.below(200)),
            4 => Deadline::at(now.millis() + (1 << self.random.below(40))),
            5 | 6 => Deadline::NONE,
            _ => Deadline::KEEP,
        }
    }

    /// A key has this version, and the value that `identity` identifies.
    fn note(&mut self, target: Target<'_>, version: u64, identity: Option<u64>) {
        // Versions of restored elements begin anew with each life of the table.
        let before = self.seen.insert((target.table, target.number), (version, identity));
        let Some(before) = before.filter(|_| target.table != OLD) else { return };
        let (name, now) = (String::from_utf8_lossy(target.table), (version, identity));
        assert!(version >= before.0, "{name} {}: {now:?} after {before:?}", target.number);
        let is_same = before.1.is_none() || identity.is_none() || before.1 == identity;
        assert!(version > before.0 || is_same, "{name} {}: {now:?} after {before:?}", target.number);
    }

    fn last_version(&self, target: Target<'_>) -> u64 {
        self.seen.get(&(target.table, target.number)).map_or(0, |seen| seen.0)
    }

    fn update(&mut self, batch: &mut Batch<'_>, target: Target<'_>) -> Result<(), Refusal> {
        let (value, deadline) = (self.value(target.number), self.deadline(batch.now()));
        batch.update(target.table, target.key, &value, deadline)
    }

    fn compare_and_swap(&mut self, batch: &mut Batch<'_>, target: Target<'_>) -> Result<(), Refusal> {
        let (value, deadline) = (self.value(target.number), self.deadline(batch.now()));
        let expected = if self.random.one_in(4) { 0 } else { self.last_version(target) };
        match batch.compare_and_swap(target.table, target.key, expected, &value, deadline) {
            Ok(version) => {
                assert!(version > expected);
                self.note(target, version, Some(checked(target.number, &value)));
                Ok(())
            }
            Err(Refusal::VersionMismatch { current }) => {
                assert_ne!(current, expected);
                if current != 0 {
                    self.note(target, current, None);
                }
                Err(Refusal::VersionMismatch { current })
            }
            Err(refusal) => Err(refusal),
        }
    }

    fn compare_and_delete(&mut self, batch: &mut Batch<'_>, target: Target<'_>) -> Result<(), Refusal> {
        let expected = self.last_version(target);
        let identity = checked(target.number, batch.compare_and_delete(target.table, target.key, expected)?);
        self.note(target, expected, Some(identity));
        Ok(())
    }

    fn increment(&mut self, batch: &mut Batch<'_>, target: Target<'_>) -> Result<(), Refusal> {
        let (delta, deadline) = (i64::try_from(self.random.below(9)).unwrap() - 4, self.deadline(batch.now()));
        let addition = Addition { delta, deadline, value_max: 1_024 };
        // An absent element counts as 0, which is no value of the other keys.
        let keys = Arc::clone(&self.keys);
        let number = if is_counter(target.number) { target.number } else { KEYS - 1 };
        let target = Target { number, key: &keys[number], ..target };
        let (sum, version) = batch.increment(target.table, target.key, addition)?;
        self.note(target, version, Some(sum.cast_unsigned()));
        Ok(())
    }

    /// A value is there as long as its guard is.
    fn get(&mut self, batch: &mut Batch<'_>, target: Target<'_>) -> Result<(), Refusal> {
        let value = batch.get(target.table, target.key)?;
        let identity = checked(target.number, value);
        if self.random.one_in(16) {
            thread::yield_now();
            assert_eq!(checked(target.number, value), identity);
        }
        Ok(())
    }

    fn get_entry(&mut self, batch: &mut Batch<'_>, target: Target<'_>) -> Result<(), Refusal> {
        let stage = Arc::clone(&self.stage);
        let entry = batch.get_entry(target.table, target.key, || stage.now())?;
        let identity = checked(target.number, entry.value);
        self.note(target, entry.version, Some(identity));
        Ok(())
    }

    /// A page of the unfinished scan, or the first page of another.
    fn scan(&mut self, batch: &mut Batch<'_>) -> Result<(), Refusal> {
        let (table, cursor) = self.scan.take().unwrap_or((self.table(), Vec::new()));
        let contents = [ScanContent::WithoutValues, ScanContent::WithValues, ScanContent::ForMirror];
        let keys = Arc::clone(&self.keys);
        let page = ScanPage {
            cursor: &cursor,
            count: 1 + self.random.index(2 * KEYS),
            bytes_max: 1 << self.random.below(21),
            prefix: self.random.pick(&[&b""[..], b"", b"n", b"c"]),
            content: self.random.pick(&contents),
        };
        let mut rows = Vec::new();
        let next = batch.scan(table, &page, |row| rows.push(row))?;
        if self.random.one_in(8) {
            thread::yield_now();
        }
        for row in rows {
            let Some(number) = keys.iter().position(|key| *key == row.key) else { continue };
            assert!(row.key.starts_with(page.prefix));
            let is_live = row.progress != ScanProgress::Deleted && page.content != ScanContent::WithoutValues;
            let identity = is_live.then(|| checked(number, row.value));
            self.note(Target { table, number, key: &keys[number] }, row.version, identity);
        }
        self.scan = next.map(|next| (table, next.as_bytes().to_vec()));
        Ok(())
    }

    /// Restores with a version a little or far above the present one, or with one of another server.
    fn restore(&mut self, batch: &mut Batch<'_>, target: Target<'_>) -> Result<(), Refusal> {
        let is_old = target.table == OLD;
        if !is_old && (!self.stage.plan.restores || target.table != KEPT) {
            return Ok(());
        }
        let (value, deadline) = (self.value(target.number), self.deadline(batch.now()));
        let jump = 1 + self.random.below(3) + self.random.pick(&[0, 0, 0, 1 << 12, 1 << 13, 1 << 25]);
        let version = if is_old && self.random.one_in(2) { self.random.below(1 << 20) } else { 0 };
        let version = if version == 0 { self.last_version(target) + jump } else { version };
        if batch.restore(target.table, target.key, &value, version, deadline)? == Restored::AsItWas {
            self.note(target, version, Some(checked(target.number, &value)));
        }
        Ok(())
    }

    /// A part of the feed from a position on, or the position of now for the next time.
    fn changes(&mut self, batch: &mut Batch<'_>, table: &'static [u8]) -> Result<(), Refusal> {
        let Some((table, position)) = self.position.take() else {
            self.position = Some((table, batch.feed_state(table)?.next));
            return Ok(());
        };
        for payload in batch.changes(table, position)? {
            FeedMessage::decode(&payload).unwrap();
        }
        Ok(())
    }

    /// Makes, deletes or replaces a table.
    fn change_tables(&mut self, batch: &mut Batch<'_>, choice: u64) -> (&'static str, Result<(), Refusal>) {
        let is_kept = self.random.one_in(10);
        let table = match self.random.below(20) {
            // Its elements are restored, so that they would begin anew with another life.
            0 if is_kept && self.stage.plan.restores => OLD,
            0 if is_kept => KEPT,
            0..3 => OLD,
            _ => self.random.pick(NAMES),
        };
        match choice {
            940..975 => ("CREATE_TABLE", batch.create_table(table, table)),
            975..988 => ("REPLACE_TABLE", batch.replace_table(table)),
            _ => ("DELETE_TABLE", batch.delete_table(table)),
        }
    }
}
