//! Tables that are always on disk: for which epoch each answer waits.

/// A disk that fails.
mod failed_disk;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::clock::ClockReading;
use crate::clock::lasting::LastingClock;
use crate::feed::{FeedContent, FeedMessage, PublishedMessage};
use crate::store::{AddsRefused, EffectJudge, EncodedRecords, Error, LogMetrics, StoreBackup};
use crate::tables::{
    Addition, AnnouncedChange, Batch, ChangeSink, Durability, EffectLog, EpochLog, ManyProgress, OpenLog, ScanContent,
    ScanPage, TransactionNeeds,
};

/// A disk that keeps nothing. It fails when the flag is set.
struct NoDisk(Arc<AtomicBool>);

impl EffectLog for NoDisk {
    fn append(&mut self, _: &mut Vec<EncodedRecords>, _: u64, _: &mut dyn EffectJudge) -> Result<(), Error> {
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Error> {
        if self.0.load(Ordering::Relaxed) { Err(Error::NotWritable("disk".into())) } else { Ok(()) }
    }

    fn rest(&mut self) -> Result<(), Error> {
        self.sync()
    }

    fn raise(&mut self, _mark: usize, _value: u64) {}

    fn adds_room(&self) -> Result<u64, AddsRefused> {
        Ok(1 << 30)
    }

    fn may_shrink(&self) -> bool {
        false
    }

    fn waits_for_files(&self) -> bool {
        false
    }

    fn backup(&mut self) -> Result<Box<dyn StoreBackup>, Error> {
        Err(Error::NotWritable("disk".into()))
    }

    fn metrics(&self) -> LogMetrics {
        LogMetrics::default()
    }
}

/// Tables named after their durability, and a log that writes an epoch when the test says so.
pub(super) struct Durable {
    pub(super) rig: TablesRig,
    pub(super) log: EpochLog,
    pub(super) fails: Arc<AtomicBool>,
}

const TABLES: [(&[u8], Durability); 3] =
    [(b"none", Durability::None), (b"soon", Durability::Soon), (b"always", Durability::Always)];

impl Durable {
    pub(super) fn new() -> Self {
        Self::with(TablesRig::new())
    }

    fn with(rig: TablesRig) -> Self {
        let fails = Arc::new(AtomicBool::new(false));
        let clock = LastingClock::resume(None, ClockReading::from_millis(0));
        let log = rig.0.tables.epoch_log(OpenLog { log: Box::new(NoDisk(Arc::clone(&fails))), clock });
        let mut durable = Self { rig, log, fails };
        for (name, durability) in TABLES {
            let waits = durable.waits(|batch| batch.create_table_with(name, name, None, Some(durability)).unwrap());
            assert_eq!(waits, durability == Durability::Always, "{durability:?}");
        }
        durable.sync();
        durable
    }

    /// The open epoch comes to the disk.
    pub(super) fn sync(&mut self) {
        self.log.write(ClockReading::from_millis(0)).unwrap();
    }

    /// Changes are announced.
    pub(super) fn publish(&self) {
        self.rig.publish();
    }

    /// Whether the answer to these operations waits.
    pub(super) fn waits<R>(&self, operations: impl FnOnce(&mut Batch<'_>) -> R) -> bool {
        let mut session = self.rig.0.session.borrow_mut();
        let mut batch = session.batch(self.rig.now());
        operations(&mut batch);
        batch.take_awaited().is_some()
    }

    /// Whether a read of this key waits.
    pub(super) fn get_waits(&self, table: &[u8], key: &[u8]) -> bool {
        self.waits(|batch| batch.get(table, key).map(drop))
    }
}

const ADDITION: Addition = Addition { delta: 1, deadline: Deadline::NONE, value_max: 100 };

/// A read waits as long as the write of the value that it shows.
#[test]
fn a_write_and_all_that_shows_it_wait_until_it_is_on_disk() {
    let mut durable = Durable::new();
    for (table, durability) in TABLES {
        let is_always = durability == Durability::Always;
        assert_eq!(durable.waits(|batch| batch.update(table, b"k", b"v", Deadline::NONE).unwrap()), is_always);
        assert_eq!(durable.get_waits(table, b"k"), is_always, "{durability:?}");
        assert_eq!(durable.waits(|batch| batch.compare_and_swap(table, b"k", 0, b"v", Deadline::NONE)), is_always);
        assert_eq!(durable.waits(|batch| batch.compare_and_delete(table, b"k", 1).map(drop)), is_always);
        assert_eq!(durable.waits(|batch| batch.increment(table, b"k", ADDITION)), is_always, "no number");
        assert_eq!(durable.waits(|batch| batch.count(table)), is_always);
        assert_eq!(durable.waits(|batch| batch.delete(table, b"k").map(drop)), is_always);
        assert_eq!(durable.get_waits(table, b"k"), is_always, "the absence");
        assert_eq!(durable.waits(|batch| batch.delete(table, b"k").map(drop)), is_always, "the absence");
    }
    durable.sync();
    for (table, _) in TABLES {
        assert!(!durable.get_waits(table, b"k"), "the absence is on disk");
        assert!(!durable.waits(|batch| batch.touch(table, b"k", Deadline::NONE)));
    }
}

#[test]
fn a_read_of_an_element_on_disk_waits_for_no_other_element() {
    let mut durable = Durable::new();
    let set = |durable: &Durable, key: &[u8]| {
        assert!(durable.waits(|batch| batch.update(b"always", key, b"v", Deadline::NONE).unwrap()));
    };
    set(&durable, b"clean");
    durable.sync();
    durable.publish();
    set(&durable, b"new");
    assert!(!durable.get_waits(b"always", b"clean") && durable.get_waits(b"always", b"new"));
    durable.publish();
    assert!(durable.get_waits(b"always", b"new"), "it is not announced before it is on disk");
    assert!(!durable.get_waits(b"always", b"none"), "nothing was there");
    set(&durable, b"clean");
    assert!(durable.get_waits(b"always", b"clean"), "its last version is not");
    durable.sync();
    assert!(!durable.get_waits(b"always", b"clean") && !durable.get_waits(b"always", b"new"));
}

#[test]
fn an_answer_waits_for_the_epoch_of_its_moment_and_for_none_behind_it() {
    let mut durable = Durable::new();
    let epoch = |durable: &Durable| {
        let mut session = durable.rig.0.session.borrow_mut();
        let mut batch = session.batch(durable.rig.now());
        batch.update(b"always", b"k", b"v", Deadline::NONE).unwrap();
        batch.take_awaited().unwrap()
    };
    let first = epoch(&durable);
    assert_eq!(epoch(&durable), first);
    durable.sync();
    assert_eq!(epoch(&durable), first + 1);
    let disk = |durable: &Durable| durable.rig.0.session.borrow().watch_disk(first + 1);
    assert_eq!(disk(&durable), crate::tables::DiskState { synced: first, has_failed: false });
    durable.sync();
    assert_eq!(disk(&durable).synced, first + 1);
}

#[test]
fn requests_for_many_elements_and_pages_wait() {
    let mut durable = Durable::new();
    let keys: [&[u8]; 2] = [b"1", b"2"];
    let page = ScanPage { cursor: b"", count: 10, bytes_max: 100, prefix: b"", content: ScanContent::WithValues };
    for (table, durability) in TABLES {
        let is_always = durability == Durability::Always;
        let pairs = keys.iter().map(|key| (*key, &b"v"[..]));
        let progress = &mut ManyProgress::default();
        assert_eq!(durable.waits(|batch| batch.update_many(table, Deadline::NONE, pairs, progress)), is_always);
        let mut values = Vec::new();
        let read = |batch: &mut Batch<'_>| {
            let mut shown = Vec::new();
            batch.get_many(table, keys.into_iter(), &ManyProgress::default(), &mut shown).unwrap();
            values.extend(shown.into_iter().map(|value| value.map(<[u8]>::to_vec)));
        };
        assert_eq!(durable.waits(read), is_always);
        assert_eq!(values, [Some(b"v".to_vec()), Some(b"v".to_vec())]);
        assert_eq!(durable.waits(|batch| batch.scan(table, &page, |_| {}).map(drop)), is_always);
        let delete = |batch: &mut Batch<'_>| batch.delete_many(table, keys.into_iter(), &mut ManyProgress::default());
        assert_eq!(durable.waits(delete), is_always);
        assert_eq!(durable.waits(delete), is_always, "the absences");
    }
    durable.sync();
    assert!(!durable.waits(|batch| batch.scan(b"always", &page, |_| {}).map(drop)));
}

/// All elements have deadlines. What is announced or gone costs nothing.
#[test]
fn many_keys_and_pages_wait_only_for_what_they_show() {
    let mut durable = Durable::new();
    let page =
        |count, prefix| ScanPage { cursor: b"", count, bytes_max: 1_000, prefix, content: ScanContent::WithValues };
    let scan_waits = |durable: &Durable, prefix| {
        durable.waits(|batch| batch.scan(b"always", &page(100, prefix), |_| {}).map(drop).unwrap())
    };
    let many_wait = |durable: &Durable, keys: &[&[u8]]| {
        let (keys, progress) = (keys.iter().copied(), ManyProgress::default());
        durable.waits(|batch| batch.get_many(b"always", keys, &progress, &mut Vec::new()).map(drop).unwrap())
    };
    let set = |durable: &Durable, key: &[u8], millis| {
        let mut session = durable.rig.0.session.borrow_mut();
        let mut batch = session.batch(durable.rig.now());
        let deadline = Deadline::after(batch.now(), Ttl::from_millis(millis));
        batch.update(b"always", key, b"v", deadline).unwrap();
        batch.take_awaited();
    };
    assert!(!scan_waits(&durable, b""));
    set(&durable, b"clean", 1_000_000);
    set(&durable, b"brief", 50);
    set(&durable, b"gone", 1_000_000);
    assert!(scan_waits(&durable, b"") && many_wait(&durable, &[b"clean"]));
    durable.sync();
    durable.publish();
    assert!(!scan_waits(&durable, b"") && !many_wait(&durable, &[b"clean", b"brief", b"absent"]));
    // Another element that is not on disk.
    set(&durable, b"new", 1_000_000);
    assert!(!scan_waits(&durable, b"c"));
    assert!(!many_wait(&durable, &[b"clean", b"brief"]));
    assert!(scan_waits(&durable, b"") && many_wait(&durable, &[b"clean", b"new"]));
    assert!(!many_wait(&durable, &[b"clean", b"absent"]), "nothing was there");
    // A removal that is not on disk.
    durable.sync();
    durable.publish();
    assert!(durable.waits(|batch| batch.delete(b"always", b"gone").map(drop).unwrap()));
    assert!(scan_waits(&durable, b"g") && !scan_waits(&durable, b"c") && scan_waits(&durable, b""));
    assert!(many_wait(&durable, &[b"gone"]) && !many_wait(&durable, &[b"clean", b"absent"]));
    durable.publish();
    assert!(many_wait(&durable, &[b"gone"]), "its slot stays until the removal is on disk");
    durable.sync();
    assert!(!scan_waits(&durable, b"") && !many_wait(&durable, &[b"gone"]), "all is on disk");
    // A deadline that no head on disk has passed.
    durable.rig.at(100);
    assert!(scan_waits(&durable, b"b") && !scan_waits(&durable, b"c"));
    assert!(many_wait(&durable, &[b"clean", b"brief"]) && !many_wait(&durable, &[b"clean", b"absent"]));
    // Another life of the table is not on disk, whether it comes before the page or meanwhile.
    durable.waits(|batch| batch.replace_table(b"always").unwrap());
    assert!(scan_waits(&durable, b""));
    durable.sync();
    assert!(!scan_waits(&durable, b""));
    set(&durable, b"clean", 1_000_000);
    durable.sync();
    durable.publish();
    let (mut other, now) = (durable.rig.another(), durable.rig.now());
    let scan = |batch: &mut Batch<'_>| {
        let replaced = batch.scan(b"always", &page(100, b""), |_| other.batch(now).replace_table(b"always").unwrap());
        assert!(replaced.unwrap().is_none());
    };
    assert!(durable.waits(scan));
}

#[test]
fn names_wait_for_the_tables_that_came_and_went() {
    let mut durable = Durable::new();
    let list = |batch: &mut Batch<'_>| drop(batch.list_tables());
    assert!(!durable.get_waits(b"gone", b"k") && !durable.waits(list));
    assert!(durable.waits(|batch| batch.delete_table(b"always").unwrap()));
    assert!(durable.get_waits(b"always", b"k"), "the table is gone");
    assert!(durable.waits(|batch| batch.delete_table(b"always")) && durable.waits(list));
    assert!(!durable.get_waits(b"none", b"k") && !durable.get_waits(b"soon", b"k"), "they are not asked");
    durable.sync();
    assert!(!durable.get_waits(b"always", b"k") && !durable.waits(list));
    let create = |batch: &mut Batch<'_>| batch.create_table_with(b"new", b"new", None, Some(Durability::Always));
    assert!(durable.waits(create) && durable.waits(create), "the table is there");
    assert!(durable.get_waits(b"new", b"k"), "that it is empty is not on disk");
    durable.sync();
    assert!(!durable.get_waits(b"new", b"k") && !durable.waits(create));
    assert!(durable.waits(|batch| batch.replace_table(b"new").unwrap()) && durable.get_waits(b"new", b"k"));
}

#[test]
fn a_transaction_waits_for_all_its_tables() {
    let durable = Durable::new();
    let waits = |tables: &[&[u8]]| {
        let mut session = durable.rig.0.session.borrow_mut();
        let mut batch = session.batch(durable.rig.now());
        batch.keep_credits(tables.len()).unwrap();
        batch.latch(tables).unwrap();
        batch.begin_transaction(TransactionNeeds::of_changes(tables.len())).unwrap();
        for table in tables {
            batch.update(table, b"k", b"v", Deadline::NONE).unwrap();
        }
        batch.end_transaction();
        let waits = batch.take_awaited().is_some();
        drop(batch);
        session.end_latch();
        waits
    };
    assert!(!waits(&[b"none", b"soon"]) && waits(&[b"always", b"none"]));
}

fn set(durable: &Durable, table: &[u8], key: &[u8]) -> Result<(), Refusal> {
    durable.rig.0.session.borrow_mut().batch(durable.rig.now()).update(table, key, b"v", Deadline::NONE)
}

#[test]
fn changes_are_announced_when_they_are_on_disk_and_others_do_not_wait_for_them() {
    let mut durable = Durable::new();
    durable.publish();
    durable.rig.notified();
    for (table, key) in [(&b"always"[..], &b"1"[..]), (b"always", b"1"), (b"none", b"2"), (b"soon", b"3")] {
        set(&durable, table, key).unwrap();
    }
    durable.rig.0.session.borrow_mut().batch(durable.rig.now()).delete(b"always", b"1").unwrap();
    durable.publish();
    assert_eq!(durable.rig.notified(), ["2+", "3+"]);
    durable.publish();
    assert_eq!(durable.rig.notified(), [""; 0]);
    assert!(!durable.rig.0.changes.borrow_mut().has_synced());
    durable.sync();
    assert!(durable.rig.0.changes.borrow_mut().has_synced(), "the publisher does not sleep");
    durable.publish();
    assert_eq!(durable.rig.notified(), ["1+", "1+", "1-"]);
}

/// A hot key would be announced once a sync if each change waited for the next epoch when its turn comes.
#[test]
fn all_changes_of_a_key_are_announced_behind_one_sync_whatever_their_order() {
    let mut durable = Durable::new();
    let mut other = durable.rig.another();
    for _ in 0..5 {
        other.batch(durable.rig.now()).update(b"always", b"k", b"v", Deadline::NONE).unwrap();
        set(&durable, b"always", b"k").unwrap();
    }
    durable.publish();
    durable.rig.notified();
    durable.sync();
    set(&durable, b"always", b"k").unwrap();
    durable.publish();
    assert_eq!(durable.rig.notified(), ["k+"; 10], "the last one is not on disk");
    durable.sync();
    durable.publish();
    assert_eq!(durable.rig.notified(), ["k+"]);
}

#[test]
fn the_feed_has_the_value_that_is_on_disk_and_not_the_one_that_came_later() {
    let feed = FeedConfig { epoch: 5, history_bytes: 1 << 20 };
    let mut durable = Durable::with(TablesRig::with_feed(settings(), Some(feed)));
    let set = |durable: &Durable, value: &[u8]| {
        let mut session = durable.rig.0.session.borrow_mut();
        session.batch(durable.rig.now()).update(b"always", b"k", value, Deadline::NONE).unwrap();
    };
    let feed = |durable: &Durable| -> Vec<String> {
        let mut feed = Published::default();
        durable.rig.0.changes.borrow_mut().drain_to(100, &mut feed);
        feed.0
    };
    set(&durable, b"1");
    set(&durable, b"2");
    assert_eq!(feed(&durable), [""; 0]);
    durable.sync();
    set(&durable, b"3");
    assert_eq!(feed(&durable), ["k=2"], "and no value of an epoch that may be lost");
    durable.sync();
    assert_eq!(feed(&durable), ["k=3"]);
}

/// The changes of the feed that were published.
#[derive(Default)]
struct Published(Vec<String>);

impl ChangeSink for Published {
    fn announce(&mut self, _change: &AnnouncedChange<'_>) {}

    fn publish(&mut self, message: &PublishedMessage) {
        let FeedContent::Changes(changes) = FeedMessage::decode(&message.payload).unwrap().content else { return };
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        self.0.extend(changes.map(|change| format!("{}={}", text(change.key), text(change.value))));
    }
}

/// An element that had expired came back when the clock of the next start was earlier.
#[test]
fn an_expiry_is_answered_and_announced_when_a_head_on_disk_has_a_later_time() {
    let mut durable = Durable::new();
    let keys = [b"1", b"2", b"3"];
    for ((table, _), key) in TABLES.into_iter().zip(keys) {
        durable.waits(|batch| {
            let deadline = in_seconds(batch.now(), 1);
            batch.update(table, key, b"v", deadline).unwrap();
            batch.update(table, b"other", b"v", Deadline::NONE).unwrap();
        });
    }
    durable.sync();
    durable.publish();
    durable.rig.notified();
    durable.rig.at(5_000);
    for ((table, durability), key) in TABLES.into_iter().zip(keys) {
        let is_always = durability == Durability::Always;
        assert_eq!(durable.get_waits(table, key), is_always, "overdue: {durability:?}");
        assert_eq!(durable.waits(|batch| batch.touch(table, key, Deadline::NONE)), is_always, "{durability:?}");
        assert!(!durable.get_waits(table, b"other"), "{durability:?}");
    }
    durable.rig.expire();
    assert!(durable.get_waits(b"always", b"3"), "its expiry is committed, and no head on disk has a later time");
    durable.publish();
    let mut notified = durable.rig.notified();
    notified.sort();
    assert_eq!(notified, ["1-", "2-"]);
    durable.sync();
    durable.publish();
    assert_eq!(durable.rig.notified(), ["3-"]);
    assert!(!durable.get_waits(b"always", b"3"));
}
