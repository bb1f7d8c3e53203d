//! Histories in which values rot while the log runs.
//!
//! ```text
//! a byte of a value in a closed segment changes ─► a reader or the cleaner finds it ─► set aside ─► … ─► restart
//! ```
//! A value that has rotted is never returned, its key never goes, and the log never ends for it.

#![allow(clippy::cast_possible_truncation, reason = "a test that fails should say where")]

use super::model::{History, find_planted, histories};
use crate::store::fault::Fault;

/// Runs a history and returns the number of values that have rotted.
fn run(seed: u64) -> u32 {
    let mut history = History::new(seed ^ 0x0707_0000);
    history.rots = true;
    history.run();
    history.rotten.len() as u32
}

#[test]
fn a_value_that_has_rotted_is_set_aside_and_nothing_else_changes() {
    let (count, rotten) = histories(250, run);
    println!("{count} histories with rot, {rotten} rotten values");
    assert!(rotten > count, "{rotten}");
}

#[test]
fn every_planted_fault_of_rot_is_found() {
    find_planted(&[Fault::SetAsideForgotten], 2_000, |seed| {
        run(seed);
    });
}
