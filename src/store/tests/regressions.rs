//! Findings of the review of the log, each with the history that showed it.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test that fails should say where"
)]

use std::sync::Arc;

use super::model::{Owner, SEGMENT_BYTES, find_planted, open_in, read_all};
use super::simulated_disk::{Failures, SimulatedFolder};
use crate::store::failure::errnos::{EIO, EMFILE, ENOSPC};
use crate::store::fault::{Fault, plant};
use crate::store::folder::{read_exact, write_all};
use crate::store::format::{BATCH_HEAD, SECTOR, seal};
use crate::store::segment::name_of;
use crate::store::*;

fn put(space: Space, key: &str, body: &[u8]) -> Record {
    Record { space, key: key.as_bytes().into(), body: Body::Bytes(Value::from(body)) }
}

fn batch(records: impl IntoIterator<Item = Record>) -> RecordBatch {
    records.into_iter().collect::<Vec<_>>().into()
}

/// A log with the tasks a and b in one batch, and a value in the next. All are known synced.
fn three_records() -> (SimulatedFolder, Vec<Place>) {
    let folder = SimulatedFolder::new(1);
    let mut log = open_in(&folder, false).unwrap().log;
    let mut places = log.append(&batch([put(Space::Tasks, "a", b"one"), put(Space::Tasks, "b", b"two")])).unwrap();
    places.extend(log.append(&batch([put(Space::Values, "v", &[7; 100])])).unwrap());
    log.rest().unwrap();
    drop(log);
    (folder, places.into_iter().flatten().collect())
}

fn keys(opened: &mut Opened) -> String {
    let mut keys = Vec::new();
    for space in [Space::Meta, Space::Tasks, Space::Values] {
        keys.extend(opened.winners.all(space).keys().map(|key| String::from_utf8(key.to_vec()).unwrap()));
    }
    keys.sort();
    keys.concat()
}

fn is_damaged(folder: &SimulatedFolder) -> bool {
    matches!(open_in(folder, false), Err(Error::Damaged { .. }))
}

#[test]
fn a_rotten_first_batch_is_damage_and_a_repair_loses_no_other_batch() {
    let (folder, _) = three_records();
    assert!(folder.rot(&name_of(1), SECTOR as usize + 20));
    assert!(is_damaged(&folder));
    let mut opened = open_in(&folder, true).unwrap();
    assert_eq!((opened.lost.len(), keys(&mut opened).as_str()), (1, "abv"));
    drop(opened);
    assert_eq!(keys(&mut open_in(&folder, false).unwrap()), "abv");
}

#[test]
fn a_rotten_small_record_is_lost_alone() {
    let (folder, places) = three_records();
    assert!(folder.rot(&name_of(1), places[0].offset as usize));
    assert!(is_damaged(&folder));
    let mut opened = open_in(&folder, true).unwrap();
    assert_eq!(keys(&mut opened), "bv");
    assert!(opened.lost[0].contains("a state of a "), "{:?}", opened.lost);
}

#[test]
fn a_segment_with_a_damaged_head_is_set_aside_by_a_repair() {
    let (folder, _) = three_records();
    write_junk(&folder, &name_of(7));
    assert!(is_damaged(&folder));
    assert_eq!(keys(&mut open_in(&folder, true).unwrap()), "abv");
    assert!(folder.file_names().contains(&format!("{}.bad", name_of(7))), "{:?}", folder.file_names());
    assert_eq!(keys(&mut open_in(&folder, false).unwrap()), "abv");
}

fn write_junk(folder: &SimulatedFolder, name: &str) {
    let file = folder.create(name).unwrap();
    write_all(&*file, &[0x55; 2048], 0).unwrap();
}

#[test]
fn files_below_the_oldest_segment_are_removed_unread() {
    let (folder, _) = three_records();
    write_junk(&folder, &name_of(0));
    assert_eq!(keys(&mut open_in(&folder, false).unwrap()), "abv");
    assert!(!folder.file_names().contains(&name_of(0)));
}

#[test]
fn a_rotten_version_is_no_other_version() {
    let (folder, _) = three_records();
    assert!(folder.rot(&name_of(1), 8));
    assert_eq!(keys(&mut open_in(&folder, false).unwrap()), "abv");
}

#[test]
fn another_version_and_another_stores_segment_have_their_own_names() {
    let (folder, _) = three_records();
    drop(open_in(&folder, false).unwrap());
    let mut head = folder.contents(&name_of(1));
    head.truncate(SECTOR as usize - 8);
    for version in [1_u8, 3] {
        let mut head = head.clone();
        head[8] = version;
        seal(&mut head, 0);
        let other = folder.copy();
        write_all(&*other.open(&name_of(1)).unwrap(), &head, 0).unwrap();
        for repair in [false, true] {
            let refused = open_in(&other, repair).unwrap_err();
            assert!(matches!(refused, Error::Version { found, .. } if found == u32::from(version)));
            let sentence = format!("has format {version}, this server reads format 2: use the version that wrote it");
            assert!(refused.to_string().contains(&sentence), "{refused}");
        }
    }
    let foreign = SimulatedFolder::new(77);
    drop(open_in(&foreign, false).unwrap());
    let file = folder.create(&name_of(9)).unwrap();
    write_all(&*file, &foreign.contents(&name_of(1)), 0).unwrap();
    let mut moved = foreign.contents(&name_of(1));
    moved.truncate(SECTOR as usize - 8);
    moved[12] = 9;
    seal(&mut moved, 0);
    write_all(&*file, &moved, 0).unwrap();
    match open_in(&folder, true) {
        Err(Error::Foreign { segment, .. }) => assert_eq!(segment, name_of(9)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_that_is_shorter_than_its_head_says_is_damage() {
    let (folder, _) = three_records();
    folder.truncate(&name_of(1), SEGMENT_BYTES as usize - 512);
    assert!(is_damaged(&folder));
    assert_eq!(keys(&mut open_in(&folder, true).unwrap()), "abv");
}

#[test]
fn a_repair_counts_only_unreadable_bytes_as_lost() {
    let (folder, _) = three_records();
    write_junk(&folder, &name_of(7));
    for errno in [EMFILE, EIO, ENOSPC] {
        for at in 1..150 {
            let folder = folder.copy();
            folder.fail(Failures { at: Some(at), errno, lasting: false, power: false });
            match open_in(&folder, true) {
                Ok(mut opened) => {
                    let (keys, lost) = (keys(&mut opened), opened.lost.len());
                    assert!(keys == "abv" || (errno == EIO && lost > 1), "{errno} at {at}: {keys} {lost}");
                }
                Err(Error::Descriptors { .. }) if errno == EMFILE => {}
                Err(Error::Device { .. }) if errno == EIO => {}
                Err(Error::Full { .. }) if errno == ENOSPC => {}
                Err(error) => panic!("{errno} at {at}: {error:?}"),
            }
        }
    }
}

#[test]
fn what_is_too_large_is_refused_and_the_log_continues() {
    let folder = SimulatedFolder::new(2);
    let mut log = open_in(&folder, false).unwrap().log;
    let large_key = "k".repeat(65_536);
    assert!(matches!(log.append(&batch([put(Space::Tasks, &large_key, b"")])), Err(Error::TooLarge { .. })));
    let body = Value::from(vec![0; 64 << 20]);
    let record = Record { space: Space::Values, key: b"k"[..].into(), body: Body::Bytes(body) };
    let refused = log.append(&batch(std::iter::repeat_n(record, 64)));
    assert!(matches!(refused, Err(Error::TooLarge { .. })));
    log.append(&batch([put(Space::Tasks, "k", b"")])).unwrap();
    log.sync().unwrap();
}

#[test]
fn the_newest_segment_is_written_and_synced_by_one_descriptor() {
    let folder = SimulatedFolder::new(3);
    let mut log = open_in(&folder, false).unwrap().log;
    let mut places = Vec::new();
    for _ in 0..20 {
        let written = log.append(&batch([put(Space::Values, "k", &[1; 3000])])).unwrap();
        places.extend(written.into_iter().flatten());
    }
    let newest = name_of(places.last().unwrap().segment);
    // Reading old values last closes the descriptor with which readers use the newest segment.
    places.iter().rev().for_each(|place| drop(log.value(*place).unwrap().read().unwrap()));
    let before = folder.opens(&newest);
    log.append(&batch([put(Space::Values, "k", &[1; 10])])).unwrap();
    log.sync().unwrap();
    assert_eq!((before, folder.opens(&newest)), (1, 1), "it was opened when it was created");
}

#[test]
fn a_start_costs_only_what_it_writes() {
    let folder = SimulatedFolder::new(4);
    for _ in 0..30 {
        let mut log = open_in(&folder, false).unwrap().log;
        log.append(&batch([put(Space::Tasks, "k", b"body")])).unwrap();
        log.rest().unwrap();
        let files = folder.bytes_of(".log") + folder.bytes_of(".new") + folder.bytes_of(".sum");
        // A new summary counts with each record of a key, and keeps the last.
        let more = log.disk_bytes().checked_sub(files);
        assert!(more.is_some_and(|more| more <= SECTOR), "{} of {files}", log.disk_bytes());
    }
    assert!(folder.bytes() < 3 * SEGMENT_BYTES + 30 * 8 * SECTOR, "{}", folder.bytes());
}

#[test]
fn an_opening_writes_the_summaries_that_are_missing() {
    let (folder, _) = three_records();
    drop(open_in(&folder, false).unwrap());
    let shape = open_in(&folder, false).unwrap().log.metrics().opening;
    assert_eq!((shape.segments, shape.summaries), (2, 1));
}

#[test]
fn cleaning_continues_past_a_rotten_table() {
    let folder = SimulatedFolder::new(5);
    let log = open_in(&folder, false).unwrap().log;
    let mut owner = Owner::new(log);
    for index in 0..200 {
        let key = format!("{:03}", if index < 8 { index } else { 8 + index % 5 });
        owner.commit(batch([put(Space::Values, &key, &[index as u8; 1000])]), false, false).unwrap();
        // The table of the record 3.
        if index == 10 {
            let place = owner.places[&(Space::Values, b"003".to_vec())];
            assert!(folder.rot(&name_of(place.segment), place.offset as usize - 10));
        }
    }
    owner.shrink().unwrap();
    owner.log.rest().unwrap();
    assert!(owner.log.metrics().counters.removed > 2, "{:?}", owner.log.metrics());
    for index in 0..8 {
        let place = owner.places[&(Space::Values, format!("{index:03}").into_bytes())];
        assert_eq!(*owner.log.value(place).unwrap().read().unwrap(), [index as u8; 1000]);
    }
    drop(owner);
    assert_eq!(keys(&mut open_in(&folder, false).unwrap()).len(), 13 * 3);
}

#[test]
fn a_segment_goes_when_its_last_reader_is_gone_although_the_log_is_idle() {
    let folder = SimulatedFolder::new(6);
    let log = open_in(&folder, false).unwrap().log;
    let mut owner = Owner::new(log);
    owner.commit(batch([put(Space::Values, "first", &[9; 1000])]), false, false).unwrap();
    let held = owner.log.value(owner.places[&(Space::Values, b"first".to_vec())]).unwrap();
    for _ in 0..200 {
        owner.commit(batch([put(Space::Values, "key", &[1; 1000])]), false, false).unwrap();
    }
    owner.shrink().unwrap();
    owner.log.rest().unwrap();
    assert!(owner.log.waits_for_files() && folder.file_names().contains(&name_of(1)));
    assert_eq!(*held.read().unwrap(), [9; 1000]);
    drop(held);
    owner.log.rest().unwrap();
    assert!(!owner.log.waits_for_files());
    let has = |ending: &str| folder.file_names().iter().filter(|name| name.ends_with(ending)).count();
    assert!(!folder.file_names().contains(&name_of(1)) && has(".sum") < has(".log"), "{:?}", folder.file_names());
}

/// A log on a device whose space is taken when the next segment is begun, with two spares.
fn without_space(chores: ChoreMode) -> (SimulatedFolder, Log) {
    let folder = SimulatedFolder::new(7);
    let shared: Arc<dyn Folder> = Arc::new(folder.clone());
    let config = LogConfig { kind: LogKind::States, segment_bytes: SEGMENT_BYTES, files: 2, max_disk: None };
    let log = open(&shared, OpenOptions { config, repair: false, copied: false, chores }).unwrap().log;
    while folder.bytes_of(".new") < 2 * SEGMENT_BYTES {
        std::thread::yield_now();
    }
    folder.limit(folder.bytes());
    (folder, log)
}

#[test]
fn a_segment_that_cannot_be_laid_out_refuses_adds_and_ends_nothing() {
    for chores in [ChoreMode::Writer, ChoreMode::Thread] {
        let (folder, mut log) = without_space(chores);
        assert_eq!(log.adds_refused(), None);
        let mut written = 0;
        let refused = loop {
            match log.append(&batch([put(Space::Values, "k", &[1; 1000])])) {
                Ok(_) => written += 1,
                Err(error) => break error,
            }
        };
        // The segment and one spare are full: 10 batches of 1,536 bytes each. The other is left for the next opening.
        assert!(matches!(refused, Error::NoRoom { .. }) && written == 20, "{written}: {refused:?}");
        assert!(matches!(log.append(&batch([put(Space::Values, "k", &[1; 1000])])), Err(Error::NoRoom { .. })));
        log.sync().unwrap();
        assert_eq!(log.adds_refused(), Some(AddsRefused::NoSegment));
        folder.limit(u64::MAX);
        // The log notices the room with a sync. A thread needs a moment for the segments.
        while log.adds_refused().is_some() || folder.bytes_of(".new") < 2 * SEGMENT_BYTES {
            log.sync().unwrap();
            std::thread::yield_now();
        }
        log.append(&batch([put(Space::Values, "k", &[2; 1000])])).unwrap();
        log.sync().unwrap();
    }
}

#[test]
fn without_space_the_log_cleans_in_the_spares_until_there_is_room() {
    let folder = SimulatedFolder::new(8);
    let mut owner = Owner::new(open_in(&folder, false).unwrap().log);
    for index in 0..100 {
        owner.commit(batch([put(Space::Values, &format!("{index:03}"), &[1; 1000])]), false, false).unwrap();
    }
    folder.limit(folder.bytes());
    let removal = |index| Record { body: Body::Removed, ..put(Space::Values, &format!("{index:03}"), b"") };
    for index in 0..100 {
        owner.commit(batch([removal(index)]), false, false).unwrap();
        if index == 50 {
            drop(owner);
            let mut opened = open_in(&folder, false).unwrap();
            let (_, places) = read_all(&mut opened).unwrap();
            owner = Owner { places, ..Owner::new(opened.log) };
        }
    }
    assert!(
        owner.log.metrics().counters.copies > 0 && owner.log.metrics().counters.removed > 2,
        "{:?}",
        owner.log.metrics()
    );
    owner.shrink().unwrap();
    owner.log.rest().unwrap();
    assert_eq!(owner.log.adds_refused(), None);
}

#[test]
fn a_writer_of_the_largest_batches_is_cleaned_with_batches_of_copies_alone() {
    let folder = SimulatedFolder::new(9);
    let mut owner = Owner::new(open_in(&folder, false).unwrap().log);
    owner.log.writer.batch_bytes_max = 4 * SEGMENT_BYTES;
    owner.commit(batch([put(Space::Values, "first", &[9; 3000])]), false, false).unwrap();
    for _ in 0..100 {
        owner
            .commit(batch([put(Space::Values, "key", &[1; 4 * SEGMENT_BYTES as usize - 1024])]), false, false)
            .unwrap();
        owner.log.sync().unwrap();
    }
    let (used, live) = owner.log.bytes();
    assert!(owner.apart > 0 && used < 4 * live, "{}: {used} of {live}", owner.apart);
}

#[test]
fn a_rotten_value_is_set_aside_and_still_known_after_a_restart() {
    let folder = SimulatedFolder::new(10);
    let mut owner = Owner::new(open_in(&folder, false).unwrap().log);
    for index in 0..60 {
        owner.commit(batch([put(Space::Values, &format!("{:03}", index % 20), &[1; 1000])]), false, false).unwrap();
    }
    owner.log.sync().unwrap();
    let place = owner.places[&(Space::Values, b"003".to_vec())];
    folder.rot(&name_of(place.segment), place.offset as usize + 500);
    for _ in 0..200 {
        owner.commit(batch([put(Space::Values, "019", &[2; 1000])]), false, false).unwrap();
    }
    owner.log.rest().unwrap();
    assert_eq!(owner.log.set_aside().collect::<Vec<_>>(), [(Space::Values, &b"003"[..])]);
    drop(owner);
    let mut log = open_in(&folder, false).unwrap().log;
    assert_eq!(log.set_aside().collect::<Vec<_>>(), [(Space::Values, &b"003"[..])]);
    log.append(&batch([put(Space::Values, "003", b"new")])).unwrap();
    log.rest().unwrap();
    assert_eq!(log.set_aside().count(), 0);
    drop(log);
    assert_eq!(open_in(&folder, false).unwrap().log.set_aside().count(), 0);
}

#[test]
fn a_repair_that_is_cut_before_the_old_files_are_kept_keeps_them_at_the_next_opening() {
    let (folder, places) = three_records();
    assert!(folder.rot(&name_of(1), places[0].offset as usize));
    let mut kept = 0;
    for at in 1..200 {
        let folder = folder.copy();
        folder.fail(Failures { at: Some(at), errno: EIO, lasting: true, power: false });
        let is_repaired = open_in(&folder, true).is_ok();
        folder.process_ends();
        // Either the damage is still there, or the old file is kept.
        match open_in(&folder, false) {
            Err(Error::Damaged { .. }) => assert!(!is_repaired),
            opened => {
                assert_eq!(keys(&mut opened.unwrap()), "bv");
                assert!(
                    folder.file_names().contains(&format!("{}.bad", name_of(1))),
                    "{at}: {:?}",
                    folder.file_names()
                );
                kept += u32::from(!is_repaired);
            }
        }
    }
    assert!(kept > 2, "{kept}");
}

#[test]
fn an_opening_reads_each_byte_once() {
    let folder = SimulatedFolder::new(11);
    let mut log = open_in(&folder, false).unwrap().log;
    for index in 0..60 {
        log.append(&batch([put(Space::Tasks, &format!("{index}"), &[1; 700])])).unwrap();
        log.sync().unwrap();
    }
    drop(log);
    let bytes = folder.bytes_of(".log") + folder.bytes_of(".sum");
    let opening = open_in(&folder, false).unwrap().log.metrics().opening;
    assert!(opening.bytes <= bytes && opening.records == 60, "{opening:?} of {bytes}");
}

/// Interrupts the beginning of a segment at each call, then the opening after it. Meanwhile a value rots. Returns
/// whether all keys that were acknowledged are there each time.
fn keeps_batches_that_a_head_without_a_batch_names() -> bool {
    let cut = |at| Failures { at: Some(at), errno: EIO, lasting: true, power: true };
    let mut is_kept = true;
    for at in 1..24 {
        let folder = SimulatedFolder::new(12);
        let mut log = open_in(&folder, false).unwrap().log;
        let value = log.append(&batch([put(Space::Values, "a", &[1; 9000])])).unwrap()[0].unwrap();
        log.append(&batch([put(Space::Tasks, "b", &[1; 5000])])).unwrap();
        log.sync().unwrap();
        folder.fail(cut(at));
        let is_written = log.append(&batch([put(Space::Tasks, "c", &[1; 5000])])).is_ok();
        folder.process_ends();
        // With its first batch the next segment is begun, and the value is in a closed one for good.
        if is_written || !folder.file_names().contains(&name_of(value.segment + 1)) {
            continue;
        }
        drop(log);
        folder.power_failure();
        if !folder.file_names().contains(&name_of(value.segment + 1)) {
            continue;
        }
        folder.rot(&name_of(value.segment), value.offset as usize + 100);
        for at in 1..60 {
            let folder = folder.copy();
            folder.fail(cut(at));
            let _interrupted = open_in(&folder, false);
            folder.process_ends();
            folder.power_failure();
            is_kept &= open_in(&folder, false).is_ok_and(|mut opened| keys(&mut opened).starts_with("ab"));
        }
    }
    is_kept
}

#[test]
fn an_interrupted_opening_does_not_forget_which_batches_were_synced() {
    assert!(keeps_batches_that_a_head_without_a_batch_names());
    plant(Some(Fault::SyncedHeadRemoved));
    let is_kept = keeps_batches_that_a_head_without_a_batch_names();
    plant(None);
    assert!(!is_kept, "the planted fault is found");
}

/// The power fails while an opening writes its first batch, with a batch of the segment before that was acknowledged and
/// that no head names.
#[test]
fn a_first_batch_that_is_torn_behind_its_head_ends_nothing() {
    let run = |_| {
        let folder = SimulatedFolder::new(1);
        let mut log = open_in(&folder, false).unwrap().log;
        log.append(&batch([put(Space::Tasks, "a", b"one")])).unwrap();
        log.sync().unwrap();
        drop(log);
        let torn = folder.copy();
        drop(open_in(&folder, false).unwrap());
        let mut next = vec![0; SEGMENT_BYTES as usize];
        read_exact(&*folder.open(&name_of(2)).unwrap(), &mut next[..SECTOR as usize + BATCH_HEAD], 0).unwrap();
        write_all(&*torn.create(&name_of(2)).unwrap(), &next, 0).unwrap();
        assert_eq!(keys(&mut open_in(&torn, false).unwrap()), "a");
    };
    run(0);
    find_planted(&[Fault::TornFirstCounts], 1, run);
}
