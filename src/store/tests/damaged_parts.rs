//! One byte of a segment changes: the damage costs what this byte covers, and nothing else.
//!
//! ```text
//! the head of a segment, zeros       nothing: a start continues and says so
//! the head of a batch                nothing in a long batch, which has two; otherwise its records, with --repair
//! a piece of a table                 the records in this piece, with --repair
//! a body                             its record
//! a summary                          nothing
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test that fails should say where"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::model::{History, RecordKey, find_planted, histories, open_in, read_all};
use super::simulated_disk::SimulatedFolder;
use crate::seeded_rng::SeededRng;
use crate::store::fault::{Fault, plant};
use crate::store::folder::write_all;
use crate::store::format::{BATCH_HEAD, BatchHead, Kind, SECTOR, SegmentHead, index};
use crate::store::segment::{name_of, number_of};
use crate::store::summary::summary_name;
use crate::store::table::{
    BODY_HEAD, BatchTable, BodyHead, BodyHeads, PIECE, PIECE_RECORDS, RECORD_HEAD, RecordHead, TableRecords,
    table_length,
};
use crate::store::*;

/// The key of a task.
fn key(number: usize) -> String {
    format!("task-{number:07}")
}

fn put(number: usize) -> Record {
    let body = Body::Bytes(Value::from(number.to_string().as_bytes()));
    Record { space: Space::Tasks, key: key(number).as_bytes().into(), body }
}

/// A log with these tasks, so many in a batch. All are known synced.
fn log_of(seed: u64, tasks: usize, in_batch: usize) -> SimulatedFolder {
    let folder = SimulatedFolder::new(seed);
    let mut log = open_in(&folder, false).unwrap().log;
    for from in (0..tasks).step_by(in_batch) {
        let records: Vec<_> = (from..tasks.min(from + in_batch)).map(put).collect();
        log.append(&records.into()).unwrap();
        log.sync().unwrap();
    }
    log.rest().unwrap();
    drop(log);
    folder
}

/// The numbers of the tasks in an opened log. Each has its own body.
fn found(opened: &mut Opened) -> BTreeSet<usize> {
    let (state, _) = read_all(opened).unwrap();
    let number = |((_, at), body): (_, Option<Vec<u8>>)| {
        let number = String::from_utf8(body.unwrap()).unwrap().parse().unwrap();
        assert_eq!(at, key(number).into_bytes());
        number
    };
    state.into_iter().map(number).collect()
}

fn segments(folder: &SimulatedFolder) -> Vec<String> {
    folder.file_names().into_iter().filter(|name| number_of(name).is_some()).collect()
}

/// One changed bit in the zeros of a segment's first sector took the whole segment: a repair left 0 of 20,000 tasks.
#[test]
fn a_byte_in_the_head_of_a_segment_costs_nothing() {
    const TASKS: usize = 2_000;
    let folder = log_of(31, TASKS, 50);
    let names = segments(&folder);
    assert!(names.len() > 3, "{names:?}");
    for name in &names {
        for at in [0, 8, 12, 16, 40, 50, 60, 68, 90, 300, 505] {
            let folder = folder.copy();
            assert!(folder.rot(name, at));
            let mut opened = open_in(&folder, false).unwrap_or_else(|error| panic!("{name}, byte {at}: {error}"));
            assert_eq!(found(&mut opened).len(), TASKS, "{name}, byte {at}");
            assert_eq!(opened.harmless, [format!("the head of {name} has changed")]);
            drop(opened);
            // The next start finds the same head, in a log that has continued.
            assert_eq!(found(&mut open_in(&folder, false).unwrap()).len(), TASKS, "{name}, byte {at}");
        }
    }
}

/// A sector of a disk has 4,096 bytes: with the head of the segment its first batches go.
#[test]
fn a_lost_first_sector_of_the_disk_costs_the_batches_in_it() {
    const TASKS: usize = 2_000;
    let folder = log_of(31, TASKS, 10);
    for name in &segments(&folder) {
        for is_summed in [true, false] {
            let folder = folder.copy();
            (0..4_096).for_each(|at| assert!(folder.rot(name, at)));
            let has_summary = folder.file_names().contains(&summary_name(number_of(name).unwrap()));
            if !is_summed && has_summary {
                folder.remove(&summary_name(number_of(name).unwrap())).unwrap();
            }
            let mut opened = match open_in(&folder, false) {
                Ok(opened) => {
                    assert!(is_summed && has_summary, "{name}");
                    opened
                }
                Err(Error::Damaged { .. }) => open_in(&folder, true).unwrap(),
                Err(error) => panic!("{name}: {error}"),
            };
            let lost = TASKS - found(&mut opened).len();
            let most = if is_summed && has_summary { 0 } else { 7 * 10 };
            assert!(lost <= most, "{name}: {lost} tasks, {:?}", opened.lost);
        }
    }
}

/// One changed bit in the table of a batch of copies took 5,752 of 200,000 tasks.
#[test]
fn a_byte_in_a_table_costs_the_records_of_a_few_kibibytes() {
    const TASKS: usize = 2_000;
    let folder = log_of(31, TASKS, TASKS);
    let name = name_of(2);
    // A summary has all records of its segment again.
    folder.remove(&summary_name(2)).unwrap();
    let segment = folder.contents(&name);
    let table = segment.windows(12).position(|bytes| bytes == key(0).as_bytes()).unwrap();
    let end = segment.windows(12).position(|bytes| bytes == key(TASKS - 1).as_bytes()).unwrap();
    assert!(end - table > 50_000, "{} bytes", end - table);
    let all = |opened: &mut Opened| found(opened).len();
    for at in (table..end).step_by(1_999) {
        let folder = folder.copy();
        assert!(folder.rot(&name, at));
        assert!(matches!(open_in(&folder, false), Err(Error::Damaged { .. })), "byte {at}");
        let mut opened = open_in(&folder, true).unwrap();
        let lost = TASKS - all(&mut opened);
        assert!((1..=4_096 / 28 + 2).contains(&lost), "byte {at}: {lost} of {TASKS} tasks, {:?}", opened.lost);
        drop(opened);
        assert_eq!(all(&mut open_in(&folder, false).unwrap()), TASKS - lost, "byte {at}");
    }
    // A sector that the device does not return is in one piece of the table, too.
    folder.lose(&name, table + 20_000);
    assert!(matches!(open_in(&folder, false), Err(Error::Device { .. })));
    let lost = TASKS - all(&mut open_in(&folder, true).unwrap());
    assert!((1..=4_096 / 28 + 2).contains(&lost), "{lost} of {TASKS} tasks");
}

#[test]
fn a_head_of_a_long_batch_costs_nothing() {
    const TASKS: usize = 2_000;
    let folder = log_of(31, TASKS, TASKS);
    folder.remove(&summary_name(2)).unwrap();
    for at in [SECTOR, SECTOR + 100, 2 * SECTOR, 2 * SECTOR + 100].map(index) {
        let folder = folder.copy();
        assert!(folder.rot(&name_of(2), at));
        let mut opened = open_in(&folder, false).unwrap();
        assert_eq!(found(&mut opened).len(), TASKS, "byte {at}");
        assert_eq!(opened.harmless.is_empty(), at >= index(2 * SECTOR), "{:?}", opened.harmless);
    }
}

/// What a later version writes is no damage, and a repair would throw it away.
#[test]
fn a_record_of_a_later_version_refuses_the_folder_with_a_sentence() {
    let folder = log_of(31, 200, 50);
    let name = name_of(1);
    let segment = folder.contents(&name);
    let head = SegmentHead::decode(&segment).unwrap();
    let first = BatchHead::decode(&segment[index(SECTOR)..], &head, SECTOR).unwrap();
    let heads = [BodyHead { length: 3, checksum: 0 }.encode(), BodyHead { length: 2, checksum: 0 }.encode()].concat();
    let bodies = BodyHeads::of(&heads);
    let mut table = TableRecords::default();
    table.add(&RecordHead { kind: Kind::Bytes, space: Space::Tasks, key: b"key", bodies });
    let length = table_length((RECORD_HEAD + heads.len() + 3) as u64);
    let later = BatchHead { table: length, bodies: 5, ..first };
    let mut bytes = Vec::new();
    later.encode(&mut bytes);
    table.encode(&later, &mut bytes);
    bytes.extend(b"bodyno");
    assert_eq!(later.length(), first.length());
    write_all(&*folder.open(&name).unwrap(), &bytes, SECTOR).unwrap();
    for repair in [false, true] {
        let refused = open_in(&folder, repair).map(|opened| opened.lost).unwrap_err();
        assert!(matches!(refused, Error::Unknown { .. }), "{refused}");
        assert!(refused.to_string().contains("has records of a later version: nothing was changed"), "{refused}");
    }
}

// ---------------------------------------------------------------------------------------- bytes that are no evidence

#[test]
fn a_segment_of_another_store_is_not_believed_because_its_head_is_damaged() {
    let (folder, foreign) = (log_of(31, 100, 50), log_of(32, 2_000, 50));
    let last = segments(&folder).iter().filter_map(|name| number_of(name)).max().unwrap();
    let name = name_of(last + 1);
    assert!(segments(&foreign).contains(&name));
    let file = folder.create(&name).unwrap();
    write_all(&*file, &foreign.contents(&name), 0).unwrap();
    assert!(matches!(open_in(&folder, false), Err(Error::Foreign { .. })));
    folder.rot(&name, 20);
    assert!(matches!(open_in(&folder, false), Err(Error::Damaged { .. })));
    assert_eq!(found(&mut open_in(&folder, true).unwrap()).len(), 100);
}

#[test]
fn a_segment_without_a_batch_and_a_head_is_damage() {
    let folder = log_of(31, 200, 50);
    let last = segments(&folder).into_iter().max().unwrap();
    let bytes = folder.contents(&last).len();
    for at in (0..bytes).step_by(64) {
        folder.rot(&last, at);
    }
    assert!(matches!(open_in(&folder, false), Err(Error::Damaged { .. })));
}

/// Damages the head and the first batch of a segment whose other batches are there, and beside them the bytes of
/// another use of the blocks. Returns the number of tasks that are found.
fn tasks_beside_an_earlier_life() -> usize {
    let folder = log_of(31, 200, 50);
    let name = segments(&folder).into_iter().max().unwrap();
    let _summary = folder.remove(&summary_name(number_of(&name).unwrap()));
    let segment = folder.contents(&name);
    let head = SegmentHead::decode(&segment).unwrap();
    let first = BatchHead::decode(&segment[index(SECTOR)..], &head, SECTOR).unwrap();
    // Right behind the first batch, so that it is read before the others.
    let at = SECTOR + first.length();
    let mut bytes = Vec::new();
    BatchHead { nonce: [9; 16], offset: at, number: 2, ..first }.encode(&mut bytes);
    bytes.truncate(BATCH_HEAD);
    write_all(&*folder.open(&name).unwrap(), &bytes, at).unwrap();
    folder.rot(&name, 20);
    folder.rot(&name, index(SECTOR) + 5);
    match open_in(&folder, false) {
        Err(Error::Damaged { what, .. }) => assert_eq!(what, format!("the head of {name}")),
        opened => panic!("{:?}", opened.map(|opened| opened.harmless)),
    }
    found(&mut open_in(&folder, true).unwrap()).len()
}

#[test]
fn heads_that_disagree_are_no_evidence() {
    let left = tasks_beside_an_earlier_life();
    plant(Some(Fault::HeadsDisagree));
    let planted = std::panic::catch_unwind(tasks_beside_an_earlier_life);
    plant(None);
    assert!(planted.is_err(), "the planted fault is found: {left}, {planted:?}");
}

// --------------------------------------------------------------------------------------------------------- histories

/// A part of a file.
type Part = (String, Range<u64>);

/// The parts of the folder on which the last record of each key depends, its batch the last one. A batch that is cut may
/// be one that was never acknowledged.
fn parts_of_last_records(folder: &SimulatedFolder) -> BTreeMap<RecordKey, [Part; 4]> {
    let (mut last, mut oldest) = (BTreeMap::new(), 0);
    for name in segments(folder) {
        let (bytes, mut offset) = (folder.contents(&name), SECTOR);
        let segment = SegmentHead::decode(&bytes).expect("nothing is damaged yet");
        let read = |range: Range<u64>| bytes.get(index(range.start)..index(range.end)).unwrap_or_default();
        while let Some(head) = BatchHead::decode(read(offset..offset + BATCH_HEAD as u64), &segment, offset) {
            oldest = head.oldest;
            let table = BatchTable::new(&head, read(head.table_at()..head.bodies_at()));
            let mut at = 0;
            for (record, body) in table.records().expect("all are known").records {
                let end = at + RECORD_HEAD + BODY_HEAD * record.bodies.len() + record.key.len();
                let pieces = head.table_at() + (at / PIECE_RECORDS * PIECE) as u64
                    ..head.table_at() + ((end - 1) / PIECE_RECORDS * PIECE + PIECE) as u64;
                at = end;
                let from = head.bodies_at() + body;
                let body = from..from + record.bodies.bytes();
                let own = if head.is_twice() { 0..0 } else { offset..offset + BATCH_HEAD as u64 };
                let batch = offset..offset + head.length();
                let parts = [own, pieces.start..pieces.end.min(head.bodies_at()), body, batch];
                let parts = parts.map(|part| (name.clone(), part));
                last.insert((record.space, record.key.to_vec()), (segment.number, parts));
            }
            offset += head.length();
        }
    }
    last.into_iter().filter(|(_, (segment, _))| *segment >= oldest).map(|(key, (_, parts))| (key, parts)).collect()
}

/// Some records, many of them with long keys.
fn batch(rng: &mut SeededRng) -> RecordBatch {
    let records = (0..rng.below(30)).map(|_| {
        let space = [Space::Tasks, Space::Values][rng.below(2) as usize];
        let number = rng.below(60);
        let length = [12, 12, 400, 3_000][(number % 4) as usize];
        let key = vec![number as u8; length].into();
        let bytes = if rng.one_in(9) { 3_000 } else { rng.below(100) };
        let body = match rng.one_in(3) {
            true => Body::Removed,
            false => Body::Bytes(vec![rng.next() as u8; bytes as usize].into()),
        };
        Record { space, key, body }
    });
    records.collect::<Vec<_>>().into()
}

/// A byte of a file that matters: of a head, or of any sector.
fn byte_somewhere(rng: &mut SeededRng, bytes: &[u8]) -> usize {
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap_or_default() as u64 + 1;
    let at = match rng.below(3) {
        0 => rng.below(SECTOR),
        1 => rng.below(used / SECTOR + 1) * SECTOR + rng.below(BATCH_HEAD as u64),
        _ => rng.below(used),
    };
    at.min(bytes.len() as u64 - 1) as usize
}

/// Runs a history, and changes a byte of its files again and again, or cuts one. Returns how often that was damage.
fn run(seed: u64) -> u32 {
    let mut history = History::new(seed ^ 0x0f0f_0000);
    history.config.segment_bytes = 64 << 10;
    let mut rng = SeededRng(seed ^ 0xb17);
    for _ in 0..3 {
        let mut owner = history.open().expect("nothing fails");
        for _ in 0..rng.below(25) {
            let batch = batch(&mut rng);
            history.commit(&mut owner, batch, false).expect("nothing fails");
            owner.log.sync().expect("nothing fails");
        }
        owner.log.rest().expect("nothing fails");
        history.acknowledge();
    }
    let (parts, expected) = (parts_of_last_records(&history.folder), history.last_state().clone());
    let names = history.folder.file_names();
    let names: Vec<_> = names.iter().filter(|name| name.ends_with(".log") || name.ends_with(".sum")).collect();
    let mut damages = 0;
    for _ in 0..12 {
        let name = names[rng.below(names.len() as u64) as usize];
        let at = byte_somewhere(&mut rng, &history.folder.contents(name));
        let (folder, is_cut) = (history.folder.copy(), seed % 3 == 2);
        if is_cut {
            folder.truncate(name, at);
        } else {
            folder.rot(name, at);
        }
        let mut was_reported = true;
        let mut opened = match history.open_folder(&folder, false) {
            Ok(opened) => {
                was_reported = false;
                opened
            }
            Err(Error::Damaged { what, .. }) => {
                damages += 1;
                let is_empty = folder.contents(name).iter().skip(SECTOR as usize).all(|byte| *byte == 0);
                let is_covered = name.ends_with(".log") && (at >= SECTOR as usize || is_empty || is_cut);
                assert!(is_covered, "seed {seed}: {name}, byte {at}: {what}");
                history.open_folder(&folder, true).expect("a repair")
            }
            Err(error) => panic!("seed {seed}: {error:?}"),
        };
        let (state, _) = read_all(&mut opened).expect("all can be read");
        let is_covered = |key: &RecordKey| {
            let at = at as u64;
            parts.get(key).is_some_and(|[parts @ .., (of, batch)]| match is_cut {
                true => of == name && batch.end > at,
                false => parts.iter().any(|(of, range)| of == name && range.contains(&at)),
            })
        };
        for key in parts.keys().chain(expected.keys()).filter(|key| !is_covered(key)) {
            let found = state.get(key).map(|body| body.as_ref());
            assert!(found == expected.get(key).map(Some), "seed {seed}: byte {at} of {name} has cost another record");
        }
        let is_there = |key: &RecordKey| was_reported || state.contains_key(key);
        assert!(expected.keys().all(is_there), "seed {seed}: byte {at} of {name} has cost a record silently");
    }
    damages
}

/// Runs a history of power failures, each with a changed byte in the head of a segment. Returns how many have changed.
fn run_with_changed_heads(seed: u64) -> u32 {
    let mut history = History::new(seed ^ 0x4ead_0000);
    let mut rng = SeededRng(seed ^ 0x4ead);
    for round in 0..6 {
        let mut owner = match history.open() {
            Ok(owner) => owner,
            Err(Error::Damaged { what, .. }) => {
                repair_without_a_batch(&history, &what);
                return round;
            }
            Err(error) => panic!("seed {seed}: {error:?}"),
        };
        for _ in 0..rng.below(40) {
            history.step(&mut owner).expect("nothing fails");
        }
        drop(owner);
        if rng.one_in(2) {
            history.folder.power_failure();
        }
        let names = segments(&history.folder);
        history.folder.rot(&names[rng.below(names.len() as u64) as usize], rng.below(SECTOR) as usize);
    }
    6
}

/// A head is damage only if its segment has no batch. Then a repair loses nothing.
fn repair_without_a_batch(history: &History, what: &str) {
    let seed = history.seed;
    let name = what.strip_prefix("the head of ").unwrap_or_else(|| panic!("seed {seed}: {what}"));
    let bytes = history.folder.contents(name);
    let first = BatchHead::decode_alone(
        &bytes[index(SECTOR)..],
        number_of(name).unwrap_or_default(),
        SECTOR,
        bytes.len() as u64,
    );
    assert_eq!(first, None, "seed {seed}: {what}");
    let mut opened = history.open_folder(&history.folder, true).expect("a repair");
    let (state, _) = read_all(&mut opened).expect("all can be read");
    let known = history.states.iter().skip(history.acknowledged);
    assert!(known.into_iter().any(|known| history.is_state(&state, known)), "seed {seed}: a repair has lost something");
}

#[test]
fn a_changed_head_costs_nothing_after_a_power_failure() {
    let (count, changed) = histories(400, run_with_changed_heads);
    println!("{count} histories, {changed} changed heads");
    assert!(changed > count * 5, "{changed}");
}

#[test]
fn a_changed_byte_and_a_cut_cost_only_the_records_that_they_cover() {
    let (count, damages) = histories(150, run);
    println!("{count} histories, {damages} damages");
    assert!(damages > count, "{damages}");
}

#[test]
fn every_planted_fault_of_damaged_parts_is_found() {
    find_planted(&[Fault::TableAsOne, Fault::HeadOnce], 300, |seed| {
        run(seed);
    });
}
