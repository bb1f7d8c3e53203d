//! The main proof: histories of failures. Every seed is another one.
//!
//! Calls fail, the power fails, space runs out, and work beside the writer is done late or never.

use super::model::{History, find_planted, histories};
use crate::store::fault::Fault;

#[test]
fn after_any_failure_the_log_holds_a_state_that_is_not_older_than_what_was_acknowledged() {
    let (mut without_room, mut gaps) = (0, 0);
    let (count, openings) = histories(500, |seed| {
        let mut history = History::new(seed);
        let openings = history.run();
        without_room += history.without_room;
        gaps += history.gaps;
        openings
    });
    println!("{count} histories, {openings} openings, {without_room} batches without room, {gaps} with gaps");
    assert!(openings > count * 5 && u64::from(without_room) > count / 100, "{openings}, {without_room}");
    assert!(u64::from(gaps) > count / 20, "{gaps}");
}

#[test]
fn every_planted_fault_is_found() {
    let faults = [
        Fault::NoSync,
        Fault::FolderUnsynced,
        Fault::RemovedEarly,
        Fault::CopyBehind,
        Fault::RotationUnsynced,
        Fault::AppendBehindCut,
        Fault::EndIgnored,
        Fault::MarksForgotten,
        Fault::CopiesLost,
        Fault::ReadersIgnored,
        Fault::RetiredWithoutRoom,
        Fault::BegunNotedEarly,
        Fault::GapUnnamed,
        Fault::RemovalsForgotten,
        Fault::GapEndIgnored,
    ];
    find_planted(&faults, 5_000, |seed| {
        History::new(seed).run();
    });
}
