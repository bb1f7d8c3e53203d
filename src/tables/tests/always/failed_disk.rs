//! Tables that are always on disk when the disk fails: refusals, announcements and memory.

use super::*;

/// The credits of changes that are never announced would be missing to tables that need no disk.
#[test]
fn when_the_disk_has_failed_the_credits_of_its_changes_come_back_and_nobody_receives_them() {
    let mut durable = Durable::new();
    let mut last = 0;
    let changes = settings().changes_per_writer;
    while set(&durable, b"always", b"k").is_ok() {
        last += 1;
        durable.publish();
    }
    assert_eq!(last, changes, "each waits for the disk");
    durable.rig.notified();
    assert_eq!(set(&durable, b"none", b"k"), Err(Refusal::Busy));
    durable.fails.store(true, Ordering::Relaxed);
    assert!(durable.log.write(ClockReading::from_millis(0)).is_err());
    durable.publish();
    assert_eq!(set(&durable, b"none", b"other"), Ok(()));
    durable.publish();
    assert_eq!(durable.rig.notified(), ["other+"]);
    assert!(durable.get_waits(b"always", b"k"), "it is on no disk");
}

/// The publisher had taken the change when the next epoch had begun, so it was given up with that.
#[test]
fn what_was_on_disk_before_the_disk_failed_is_announced_and_read() {
    let mut durable = Durable::new();
    set(&durable, b"always", b"kept").unwrap();
    durable.waits(|batch| batch.update(b"always", b"short", b"v", in_seconds(batch.now(), 1)).unwrap());
    durable.sync();
    // The next records are of the epoch that fails, and of the one that is open meanwhile.
    set(&durable, b"always", b"lost").unwrap();
    durable.waits(|batch| batch.touch(b"always", b"short", in_seconds(batch.now(), 2)).unwrap());
    durable.publish();
    durable.rig.notified();
    durable.fails.store(true, Ordering::Relaxed);
    assert!(durable.log.write(ClockReading::from_millis(0)).is_err());
    durable.publish();
    assert_eq!(durable.rig.notified(), ["kept+", "short+"]);
    durable.waits(|_| ());
    assert!(!durable.get_waits(b"always", b"kept"));
    assert!(durable.get_waits(b"always", b"lost") && durable.get_waits(b"always", b"short"));
}

#[test]
fn a_disk_that_has_failed_takes_no_write_and_no_table() {
    let mut durable = Durable::new();
    let set = |batch: &mut Batch<'_>, table: &[u8]| batch.update(table, b"k", b"v", Deadline::NONE);
    let epoch = {
        let mut session = durable.rig.0.session.borrow_mut();
        let mut batch = session.batch(durable.rig.now());
        set(&mut batch, b"always").unwrap();
        batch.take_awaited().unwrap()
    };
    durable.fails.store(true, Ordering::Relaxed);
    assert!(durable.log.write(ClockReading::from_millis(0)).is_err());
    let mut session = durable.rig.0.session.borrow_mut();
    let disk = session.watch_disk(epoch);
    assert!(disk.has_failed && disk.synced < epoch, "the answer is refused");
    let mut batch = session.batch(durable.rig.now());
    let failed = Err(Refusal::DiskFailed);
    for table in [&b"always"[..], b"soon"] {
        assert_eq!(set(&mut batch, table), failed);
        assert_eq!(batch.delete_table(table), failed);
        assert_eq!(batch.replace_table(table), failed);
        assert_eq!(batch.create_table_with(b"new", b"new", None, Some(Durability::Soon)), failed);
    }
    batch.take_awaited();
    assert_eq!(set(&mut batch, b"none"), Ok(()));
    assert_eq!(batch.get(b"soon", b"k"), Err(Refusal::KeyNotFound));
    assert_eq!(batch.take_awaited(), None, "nobody is promised what soon tables show");
    assert_eq!(batch.get(b"always", b"k"), Ok(&b"v"[..]));
    assert_eq!(batch.take_awaited(), Some(epoch), "what it shows is not on disk");
}

/// Slots that are emptied stay until the restart. No element comes any more, so each of them was there at the failure.
#[test]
fn what_a_failed_disk_leaves_in_memory_does_not_grow() {
    let mut durable = Durable::new();
    let keys: Vec<_> = (0..200_u32).map(u32::to_be_bytes).collect();
    for (key, at) in keys.iter().zip(0..) {
        durable.waits(|batch| {
            let deadline = if at % 2 == 0 { in_seconds(batch.now(), 1) } else { Deadline::NONE };
            batch.update(b"always", key, &[7; 100], deadline).unwrap();
        });
        durable.sync();
        durable.publish();
    }
    assert!(durable.waits(|batch| batch.delete(b"always", &keys[1]).map(drop).unwrap()));
    durable.fails.store(true, Ordering::Relaxed);
    assert!(durable.log.write(ClockReading::from_millis(0)).is_err());
    durable.publish();
    let used = |durable: &Durable| durable.rig.tables_metrics().memory.used;
    let at_failure = used(&durable);
    durable.rig.at(5_000);
    for round in 200..400_u32 {
        durable.waits(|batch| {
            let failed = Refusal::DiskFailed;
            assert_eq!(batch.update(b"always", &round.to_be_bytes(), b"v", Deadline::NONE), Err(failed));
            assert_eq!(batch.delete(b"always", &keys[3]).map(drop), Err(failed));
        });
        durable.rig.settle();
        assert!(used(&durable) <= at_failure, "round {round}");
    }
    durable.waits(|batch| assert_eq!(batch.count(b"always"), Ok(99), "the values of what has expired are gone"));
}
