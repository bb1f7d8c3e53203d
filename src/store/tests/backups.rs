//! Histories of backups: the log goes on while one is written, calls fail, and the power fails.
//!
//! ```text
//! history ─► Log::backup ─► history ─► Backup::copy_to, with failures ─► power failure
//!         ─► the backup holds the state of its moment, or is known as interrupted ─► the original holds all
//! ```

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::sync::Arc;

use super::model::{History, Owner, State, find_planted, histories, read_all};
use super::simulated_disk::SimulatedFolder;
use crate::store::backup::Backup;
use crate::store::fault::Fault;
use crate::store::opening::MARK_JUMPS;
use crate::store::*;

/// What a backup must hold.
struct Moment {
    state: State,
    mark: u64,
}

fn steps(history: &mut History, owner: &mut Owner, most: u64) {
    for _ in 0..history.chance.below(most) {
        history.step(owner).expect("nothing fails");
    }
}

fn begin(history: &mut History, owner: &mut Owner) -> (Backup, Moment) {
    let backup = owner.log.backup().expect("nothing fails");
    history.acknowledge();
    (backup, Moment { state: history.last_state().clone(), mark: history.acknowledged_mark })
}

/// Opens a whole backup, uses it, and opens it again.
fn restore(history: &History, to: &SimulatedFolder, moment: &Moment) {
    let seed = history.seed;
    let shared: Arc<dyn Folder> = Arc::new(to.clone());
    let report = check(&shared).expect("a check");
    assert_eq!((report.damages, report.is_backup), (Vec::new(), true), "seed {seed}");
    let mut opened = history.open_folder(to, false).unwrap_or_else(|error| panic!("seed {seed}: {error:?}"));
    assert!(opened.was_backup, "seed {seed}");
    let (state, _) = read_all(&mut opened).expect("nothing fails");
    assert!(history.is_state(&state, &moment.state), "seed {seed}: the backup has another state");
    let jumped = moment.mark + MARK_JUMPS[0];
    assert!(opened.log.marks()[0] >= jumped, "seed {seed}: the marks have not jumped");
    let key = || b"a key of the restored log"[..].into();
    for body in [Body::Bytes(Value::from(vec![7; 3000])), Body::Removed] {
        for _ in 0..10 {
            let records = vec![Record { space: Space::Values, key: key(), body: body.clone() }];
            opened.log.append(&RecordBatch { records, cleaned: None }).expect("nothing fails");
        }
    }
    opened.log.rest().expect("nothing fails");
    drop(opened);
    let mut opened = history.open_folder(to, false).expect("nothing fails");
    let (state, _) = read_all(&mut opened).expect("nothing fails");
    assert!(history.is_state(&state, &moment.state), "seed {seed}: the restored log has another state");
    let mark = opened.log.marks()[0];
    assert!(!opened.was_backup && (jumped..2 * MARK_JUMPS[0]).contains(&mark), "seed {seed}: {mark}");
}

/// Runs a history and returns 1 if the first backup was interrupted.
fn run(seed: u64) -> u32 {
    let mut history = History::new(seed ^ 0xbac0_0000);
    let to = history.folder.beside(1);
    history.folder.have_links(!seed.is_multiple_of(3));
    let mut owner = history.open().expect("nothing fails");
    steps(&mut history, &mut owner, 80);
    let (backup, moment) = begin(&mut history, &mut owner);
    steps(&mut history, &mut owner, 60);
    if history.chance.one_in(2) {
        history.fail_a_call(80);
    }
    // The server removes a backup that fails. A server that ends leaves it, as does one that is killed.
    let mut turns = if history.chance.one_in(3) { history.chance.below(8) } else { u64::MAX };
    let end = if history.chance.one_in(2) { BackupTurn::Cancel } else { BackupTurn::Leave };
    let turn = &mut || match turns {
        0 => end,
        _ => {
            turns -= 1;
            BackupTurn::GoOn
        }
    };
    let copied = if history.chance.one_in(2) { backup.copy_or_discard(&to, turn) } else { backup.copy_to(&to, turn) };
    let failures = history.folder.process_ends();
    let is_whole = copied.is_ok();
    let is_ended = |error: &Error| matches!(error, Error::Cancelled { .. } | Error::Left { .. });
    history.judge(copied.err().filter(|error| !is_ended(error)), failures, false);
    drop((backup, owner));
    if failures.is_some_and(|failures| failures.power) || history.chance.one_in(2) {
        history.folder.power_failure();
    }
    let names = to.file_names();
    match history.open_folder(&to.copy(), false) {
        // It was removed, or never begun.
        Ok(_) if names.is_empty() => assert!(!is_whole, "seed {seed}: the backup is gone"),
        Ok(_) => restore(&history, &to, &moment),
        Err(Error::Unfinished { .. }) => assert!(!is_whole, "seed {seed}: the backup is not whole"),
        Err(error) => panic!("seed {seed}: {error:?} of {names:?}"),
    }
    let mut owner = history.open().expect("nothing fails");
    steps(&mut history, &mut owner, 20);
    let again = if is_whole || to.file_names().iter().any(|name| name.ends_with(".log")) { 2 } else { 1 };
    let to = history.folder.beside(again);
    let (backup, moment) = begin(&mut history, &mut owner);
    match backup.copy_to(&to, &mut || BackupTurn::GoOn) {
        Ok(_) => restore(&history, &to, &moment),
        Err(error) => panic!("seed {seed}: a backup cannot be repeated: {error:?}"),
    }
    drop((backup, owner));
    history.open().expect("nothing fails");
    history.check_copy();
    u32::from(!is_whole)
}

#[test]
fn a_backup_holds_the_state_of_its_moment_or_is_known_as_interrupted() {
    let (count, interrupted) = histories(500, run);
    println!("{count} histories of backups, {interrupted} interrupted");
    assert!(interrupted > count / 10, "{interrupted}");
}

#[test]
fn every_planted_fault_of_backups_is_found() {
    let faults = [
        Fault::BackupUnsynced,
        Fault::BackupNamedEarly,
        Fault::BackupNoteRemovedEarly,
        Fault::MarksNotJumped,
        Fault::ReadersIgnored,
    ];
    find_planted(&faults, 3_000, |seed| {
        run(seed);
    });
}

#[test]
fn a_backup_without_its_last_file_is_damaged() {
    let mut history = History::new(3);
    let mut owner = history.open().unwrap();
    (0..60).for_each(|_| history.step(&mut owner).unwrap());
    let to = history.folder.beside(1);
    owner.log.backup().unwrap().copy_to(&to, &mut || BackupTurn::GoOn).unwrap();
    let last = to.file_names().into_iter().filter(|name| name.ends_with(".log")).max().unwrap();
    to.remove(&last).unwrap();
    assert!(matches!(history.open_folder(&to, false), Err(Error::Damaged { .. })));
    let shared: Arc<dyn Folder> = Arc::new(to);
    assert!(!check(&shared).unwrap().damages.is_empty());
}

#[test]
fn a_folder_with_files_of_a_log_takes_no_backup() {
    let mut history = History::new(4);
    let mut owner = history.open().unwrap();
    let backup = owner.log.backup().unwrap();
    assert!(matches!(backup.copy_to(&history.folder, &mut || BackupTurn::GoOn), Err(Error::NotEmpty { .. })));
}
