//! Tables that are always on disk: who is woken for an epoch, and tables that come, go, and become so.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::always::Durable;
use super::*;
use crate::clock::ClockReading;
use crate::lock::Mutex;
use crate::tables::durable::state::LogStage;
use crate::tables::{Batch, ManyProgress};

#[test]
fn who_waits_for_an_epoch_is_woken_when_a_look_shows_that_it_is_decided() {
    let mut durable = Durable::new();
    let mut session = durable.rig.another();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (shared, noted) = (Arc::clone(session.shared()), Arc::clone(&seen));
    let look = move || noted.lock().push((shared.epochs.metrics().epochs, shared.epochs.stage()));
    session.set_waker(Box::new(look));
    session.batch(durable.rig.now()).update(b"always", b"k", b"v", Deadline::NONE).unwrap();
    let open = session.shared().epochs.open_epoch();
    session.watch_disk(open);
    durable.sync();
    session.watch_disk(open + 1);
    durable.fails.store(true, Ordering::Relaxed);
    session.batch(durable.rig.now()).update(b"always", b"k", b"v", Deadline::NONE).unwrap();
    assert!(durable.log.write(ClockReading::from_millis(0)).is_err());
    let (synced, failed) = ((open, LogStage::On), (open, LogStage::Failed));
    assert_eq!(*seen.lock(), [synced, failed]);
}

/// The table came back at the next start, and clients had been answered that it was gone.
#[test]
fn behind_a_failed_disk_only_the_names_wait_whose_tables_have_come_or_gone() {
    let mut durable = Durable::new();
    let create =
        |batch: &mut Batch<'_>, name: &[u8], durability| batch.create_table_with(name, name, None, Some(durability));
    assert!(durable.waits(|batch| create(batch, b"lost", Durability::Always).unwrap()));
    assert!(durable.waits(|batch| batch.delete_table(b"always").unwrap()));
    durable.fails.store(true, Ordering::Relaxed);
    assert!(durable.log.write(ClockReading::from_millis(0)).is_err());
    assert!(durable.get_waits(b"always", b"k") && durable.waits(|batch| batch.delete_table(b"always")));
    assert!(durable.waits(|batch| create(batch, b"lost", Durability::None)), "that the table exists");
    assert!(durable.waits(|batch| create(batch, b"always", Durability::None).unwrap()), "that there was none");
    assert!(!durable.get_waits(b"other", b"k") && !durable.waits(|batch| batch.delete_table(b"other")));
    assert!(!durable.waits(|batch| create(batch, b"other", Durability::None).unwrap()));
    assert!(!durable.waits(|batch| create(batch, b"other", Durability::None)));
}

/// The versions that were announced when the table was `soon` counted as versions on disk.
#[test]
fn all_that_a_table_shows_waits_for_the_record_that_makes_it_always() {
    let mut durable = Durable::new();
    durable.publish();
    for table in [&b"none"[..], b"soon"] {
        assert!(!durable.waits(|batch| batch.update(table, b"k", b"v", Deadline::NONE).unwrap()));
        durable.publish();
        let mut progress = ManyProgress::default();
        let mut alter = |batch: &mut Batch<'_>| batch.alter_table(table, Durability::Always, &mut progress);
        let mut is_altered = false;
        for _ in 0..10 {
            durable.waits(|batch| is_altered = alter(batch).is_ok());
            durable.publish();
        }
        assert!(is_altered && durable.waits(|batch| alter(batch).unwrap()), "its record is not on disk");
        assert!(durable.get_waits(table, b"k"));
        assert!(durable.waits(|batch| batch.create_table(table, table)), "that it exists");
        durable.sync();
        assert!(!durable.get_waits(table, b"k") && !durable.waits(|batch| batch.create_table(table, table)));
    }
}
