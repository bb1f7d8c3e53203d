//! One byte of a segment changes: the damage costs what this byte covers, and nothing else.
//!
//! ```text
//! a head of a long batch     nothing: it has two, and a start says so
//! a piece of a table         the records in this piece, with --repair
//! ```

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::collections::BTreeSet;

use super::model::{open_in, read_all};
use super::simulated_disk::SimulatedFolder;
use crate::store::folder::write_all;
use crate::store::format::{BatchHead, Kind, SECTOR, SegmentHead, index};
use crate::store::segment::name_of;
use crate::store::summary::summary_name;
use crate::store::table::{BodyHead, BodyHeads, RECORD_HEAD, RecordHead, TableRecords, table_length};
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
        let records = (from..tasks.min(from + in_batch)).map(put).collect();
        log.append(&RecordBatch { records, cleaned: None }).unwrap();
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
