//! Segments that are gone from a folder, or shorter than they were: an opening names which, wherever they stood.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test that fails should say where"
)]

use std::sync::Arc;

use super::model::{SEGMENT_BYTES, open_in};
use super::simulated_disk::{Failures, SimulatedFolder};
use crate::store::failure::errnos::EIO;
use crate::store::opening::MARK_JUMPS;
use crate::store::segment::{name_of, number_of};
use crate::store::*;

/// Writes `count` tasks of which each segment holds ten, all known synced.
fn write(folder: &SimulatedFolder, count: u32) {
    let mut log = open_in(folder, false).unwrap().log;
    for number in 0..count {
        let body = Body::Bytes(Value::from(&[7; 1_000][..]));
        let record = Record { space: Space::Tasks, key: number.to_be_bytes()[..].into(), body };
        log.append(&vec![record].into()).unwrap();
    }
    log.rest().unwrap();
}

/// The numbers of the segments in a folder.
fn numbers(folder: &SimulatedFolder) -> Vec<u32> {
    let mut numbers: Vec<u32> = folder.file_names().iter().filter_map(|name| number_of(name)).collect();
    numbers.sort_unstable();
    numbers
}

/// What an opening says is damaged.
#[track_caller]
fn damage(folder: &SimulatedFolder) -> String {
    match open_in(folder, false) {
        Err(Error::Damaged { what, .. }) => what,
        opened => panic!("{:?} opens: {opened:?}", folder.file_names()),
    }
}

fn remove_all(folder: &SimulatedFolder, is_removed: impl Fn(&String) -> bool) {
    folder.file_names().iter().filter(|name| is_removed(name)).for_each(|name| folder.remove(name).unwrap());
}

/// A folder without segments was opened as an empty log, whatever else was in it.
#[test]
fn a_log_whose_segments_are_all_gone_is_damaged() {
    for count in [0, 1, 5, 40] {
        let folder = SimulatedFolder::new(1);
        write(&folder, count);
        let is_segment = |name: &String| number_of(name).is_some();
        remove_all(&folder, is_segment);
        assert_eq!(damage(&folder), "all its segments are missing", "{count}");
        let report = check(&(Arc::new(folder.clone()) as Arc<dyn Folder>)).unwrap();
        assert_eq!(report.damages, ["all its segments are missing"]);
        // The summaries alone show it, too: a folder of an earlier version has no note.
        if count == 40 {
            let folder = folder.copy();
            folder.remove(notes::BEGUN).unwrap();
            assert_eq!(damage(&folder), "all its segments are missing");
        }
        let opened = open_in(&folder, true).unwrap();
        assert_eq!((opened.lost, opened.winners.len()), (vec!["all its segments are missing".to_owned()], 0));
        assert!(opened.log.marks().iter().all(|mark| *mark >= MARK_JUMPS[0]), "{:?}", opened.log.marks());
        drop(opened.log);
        assert_eq!(open_in(&folder, false).unwrap().lost, [""; 0], "repaired");
    }
}

#[test]
fn a_folder_whose_files_are_all_gone_and_a_first_start_that_was_interrupted_begin_anew() {
    let folder = SimulatedFolder::new(2);
    write(&folder, 40);
    remove_all(&folder, |_| true);
    assert_eq!(open_in(&folder, false).unwrap().winners.len(), 0);
    let (mut interrupted, mut without) = (0, 0);
    for (at, power) in (1..200).flat_map(|at| [(at, false), (at, true)]) {
        let folder = SimulatedFolder::new(3);
        folder.fail(Failures { at: Some(at), errno: EIO, lasting: true, power });
        interrupted += u32::from(open_in(&folder, false).is_err());
        folder.process_ends();
        if power {
            folder.power_failure();
        }
        without += u32::from(numbers(&folder).is_empty());
        let opened = open_in(&folder, false).unwrap_or_else(|error| panic!("{at}: {error}"));
        assert_eq!((opened.winners.len(), opened.lost.len()), (0, 0));
    }
    assert!(interrupted > 20 && without > 10, "{interrupted}, {without} without a segment");
}

#[test]
fn each_segment_that_is_gone_or_short_is_named() {
    let folder = SimulatedFolder::new(4);
    write(&folder, 45);
    let all = numbers(&folder);
    assert!(all.len() >= 5, "{all:?}");
    for &number in &all {
        let name = name_of(number);
        let gone = folder.copy();
        gone.remove(&name).unwrap();
        assert_eq!(damage(&gone), format!("{name} is missing"));
        let short = folder.copy();
        short.truncate(&name, SEGMENT_BYTES as usize - 512);
        assert_eq!(damage(&short), format!("{name} has {} of {SEGMENT_BYTES} bytes", SEGMENT_BYTES - 512));
    }
    // Some from the middle, and some of the newest.
    for range in [1..3, 2..4, 1..all.len(), 3..all.len()] {
        let gone = folder.copy();
        all[range.clone()].iter().for_each(|number| gone.remove(&name_of(*number)).unwrap());
        assert_eq!(damage(&gone), format!("{} is missing", name_of(all[range.start])), "{range:?}");
    }
}
