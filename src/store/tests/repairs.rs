//! Histories of rot and of repairs that are interrupted.
//!
//! ```text
//! history ─► power failure ─► bytes rot ─► opening: the last state, apart from rotten values, or damage
//!                                                                                           └─► repair
//! ```
//! A repair that is interrupted any number of times ends as one that is not.

#![allow(clippy::indexing_slicing, clippy::cast_possible_truncation, reason = "a test that fails should say where")]

use std::sync::Arc;

use super::model::{Found, History, State, find_planted, histories, read_all};
use super::simulated_disk::{Failures, SimulatedFolder};
use crate::seeded_rng::SeededRng;
use crate::store::failure::errnos::{EACCES, EIO, EMFILE};
use crate::store::fault::Fault;
use crate::store::format::SECTOR;
use crate::store::opening::MARK_JUMPS;
use crate::store::segment::number_of;
use crate::store::*;

/// Opens a folder. Returns its state, the number of losses, and the first mark.
fn open_once(history: &History, folder: &SimulatedFolder, repair: bool) -> Result<(Found, usize, u64), Error> {
    let mut opened = history.open_folder(folder, repair)?;
    assert!(repair || opened.lost.is_empty());
    let (state, _) = read_all(&mut opened)?;
    Ok((state, opened.lost.len(), opened.log.marks()[0]))
}

fn rot_somewhere(rng: &mut SeededRng, folder: &SimulatedFolder) {
    let names = folder.file_names();
    let names: Vec<_> = names.iter().filter(|name| name.ends_with(".log") || name.ends_with(".sum")).collect();
    let name = names[rng.below(names.len() as u64) as usize];
    let length = folder.contents(name).len() as u64;
    // Heads are small and matter most.
    let at = match rng.below(4) {
        0 => rng.below(SECTOR),
        1 => rng.below(length),
        2 => rng.below(length / SECTOR).max(1) * SECTOR + rng.below(104),
        _ => SECTOR + rng.below(104),
    };
    folder.rot(name, at as usize);
}

/// Whether the state is the expected one, apart from rotten values, of which there are at most so many.
fn is_apart_from_rot(state: &Found, expected: &State, most: usize) -> bool {
    let rotten = state.values().filter(|body| body.is_none()).count();
    let same = |(key, body): (&(Space, Vec<u8>), &Vec<u8>)| match state.get(key) {
        Some(Some(found)) => found == body,
        Some(None) => true,
        None => false,
    };
    rotten <= most && state.len() == expected.len() && expected.iter().all(same)
}

/// The files of segments.
fn segment_files(folder: &SimulatedFolder) -> Vec<String> {
    folder.file_names().into_iter().filter(|name| number_of(name).is_some()).collect()
}

/// Runs a history of rot. Returns whether it had a repair.
fn run(seed: u64) -> bool {
    let mut history = History::new(seed);
    history.run_and_rest();
    let folder = history.folder.clone();
    folder.power_failure();
    let mut rng = SeededRng(seed ^ 0x707);
    let bytes = 1 + rng.below(3);
    (0..bytes).for_each(|_| rot_somewhere(&mut rng, &folder));
    let shared: Arc<dyn Folder> = Arc::new(folder.copy());
    let checked = check(&shared);
    match open_once(&history, &folder.copy(), false) {
        Ok((state, _, mark)) => {
            // Two rotten heads at the end, the last batch's and the next that records its sync, look as if neither was
            // written. A single rotten byte never hides a batch.
            let states = if bytes == 1 { &history.states[history.states.len() - 1..] } else { &history.states };
            let is_known = states.iter().any(|known| is_apart_from_rot(&state, known, bytes as usize));
            assert!(is_known, "seed {seed}: another state");
            let marks = if bytes == 1 { history.acknowledged_mark..MARK_JUMPS[0] } else { 0..MARK_JUMPS[0] };
            assert!(marks.contains(&mark), "seed {seed}: mark {mark} after {bytes} rotten bytes");
            let CheckReport { damages, lost_values, dead_values, .. } = checked.expect("a check");
            let rotten = state.values().filter(|body| body.is_none()).count();
            let named = damages.len() + lost_values.len();
            // A value in a batch that is damaged as a whole is not named alone.
            assert!(rotten == 0 || named > 0, "seed {seed}: {rotten} of {named}");
            if bytes == 1 && rotten == 1 {
                assert_eq!((damages.len(), lost_values.len(), dead_values), (0, 1, 0), "seed {seed}");
                assert!(lost_values[0].starts_with("the value of"), "seed {seed}: {lost_values:?}");
            }
            if bytes == 1 && dead_values > 0 {
                assert_eq!((damages.len(), lost_values.len(), rotten), (0, 0, 0), "seed {seed}");
            }
            return false;
        }
        Err(Error::Damaged { .. }) => {}
        Err(error) => panic!("seed {seed}: {error:?}"),
    }
    assert!(!checked.expect("a check").damages.is_empty(), "seed {seed}: a check has found nothing");
    repair(&history, &folder, &mut rng);
    true
}

/// Repairs a damaged folder, and a copy of it with interruptions. Both are then the same.
fn repair(history: &History, folder: &SimulatedFolder, rng: &mut SeededRng) {
    let seed = history.seed;
    let (repaired, lost, mark) = open_once(history, &folder.copy(), true).expect("a repair");
    assert!(lost > 0, "seed {seed}: nothing was lost");
    assert!(mark >= MARK_JUMPS[0], "seed {seed}: the marks have not jumped");
    let old = segment_files(folder);
    for _ in 0..4 {
        let at = Some(1 + rng.below(400));
        folder.fail(Failures { at, errno: EACCES, lasting: true, power: true });
        let _interrupted = open_once(history, folder, true);
        folder.process_ends();
        folder.power_failure();
    }
    folder.fail_reads(rng.below(200), 1 + rng.below(6), [EIO, EMFILE][rng.below(2) as usize]);
    let mut opened = history.open_folder(folder, true).expect("a repair");
    folder.reads_succeed();
    let (state, _) = read_all(&mut opened).expect("all can be read");
    drop(opened);
    assert!(state == repaired, "seed {seed}: the interrupted repair has another state");
    let (state, _, mark) = open_once(history, folder, false).expect("an opening");
    assert!(state == repaired, "seed {seed}: the repaired log has another state");
    assert!(mark >= MARK_JUMPS[0], "seed {seed}: the marks went back");
    let names = folder.file_names();
    let is_kept = |name: &String| names.contains(&format!("{name}.bad"));
    assert!(old.iter().all(is_kept), "seed {seed}: of {old:?} some are not kept: {names:?}");
    let shared: Arc<dyn Folder> = Arc::new(folder.clone());
    assert_eq!(check(&shared).expect("a check").damages, Vec::<String>::new(), "seed {seed}");
}

/// A repair without room for all that is left ate what was there, and the next one found less.
#[test]
fn a_repair_that_would_find_no_room_changes_nothing_and_says_what_it_needs() {
    let mut refused = 0;
    for seed in 0..200 {
        let mut history = History::new(seed);
        history.run_and_rest();
        let folder = history.folder.clone();
        folder.power_failure();
        rot_somewhere(&mut SeededRng(seed ^ 0x707), &folder);
        if !matches!(open_once(&history, &folder.copy(), false), Err(Error::Damaged { .. })) {
            continue;
        }
        let (repaired, ..) = open_once(&history, &folder.copy(), true).expect("a repair");
        let before: Vec<_> = folder.file_names().iter().map(|name| (name.clone(), folder.contents(name))).collect();
        folder.limit(folder.bytes());
        let needed = match open_once(&history, &folder, true) {
            Err(Error::NoRepairRoom { needed, free: 0, .. }) => needed,
            other => panic!("seed {seed}: {other:?}"),
        };
        let after: Vec<_> = folder.file_names().iter().map(|name| (name.clone(), folder.contents(name))).collect();
        assert!(before == after, "seed {seed}: the refused repair has changed something");
        folder.limit(folder.bytes() + needed);
        let (state, ..) = open_once(&history, &folder, true).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(state == repaired, "seed {seed}: another state");
        refused += 1;
    }
    assert!(refused > 10, "{refused}");
}

#[test]
fn an_interrupted_repair_ends_as_one_that_is_not() {
    let (count, repairs) = histories(500, |seed| u32::from(run(seed)));
    println!("{count} histories of rot, {repairs} with a repair");
    assert!(repairs > count / 20, "{repairs}");
}

#[test]
fn every_planted_fault_of_repairs_is_found() {
    let faults = [Fault::RepairNamedEarly, Fault::FirstIgnored, Fault::RepairUnnoted, Fault::MarksNotJumped];
    find_planted(&faults, 3_000, |seed| {
        run(seed);
    });
}
