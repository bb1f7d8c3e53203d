//! Histories of backups: the log takes batches while one is written, calls fail, and the power fails.
//!
//! ```text
//! history ─► Log::backup ─► history ─► Backup::copy_to, with failures ─► power failure
//!         ─► the backup holds the state of its moment, or is known as interrupted ─► the original holds all
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test that fails should say where"
)]

use std::sync::Arc;

use super::model::{History, Owner, State, find_planted, histories, read_all};
use super::simulated_disk::SimulatedFolder;
use crate::store::backup::{Backup, HeldSegment};
use crate::store::fault::Fault;
use crate::store::opening::MARK_JUMPS;
use crate::store::segment::{OpenFiles, Segment, name_of};
use crate::store::*;

impl Backup {
    /// The names of its segments, and their ends.
    fn ends(&self) -> impl Iterator<Item = (String, u64)> {
        self.segments.iter().map(|held| (name_of(held.segment.head.number), held.end))
    }

    /// The same backup of a copy of the folder.
    fn on(&self, folder: &Arc<dyn Folder>) -> Self {
        let files = OpenFiles::new(Arc::clone(folder), LogKind::States, 2);
        let moved = |held: &HeldSegment| HeldSegment { segment: Segment::new(&files, held.segment.head), ..*held };
        let (folder, segments) = (Arc::clone(folder), self.segments.iter().map(moved).collect());
        Self { folder, segments, gives_way: Arc::clone(&self.gives_way), ..*self }
    }
}

/// What a backup must hold.
struct Moment {
    state: State,
    mark: u64,
}

fn shared(folder: &SimulatedFolder) -> Arc<dyn Folder> {
    Arc::new(folder.clone())
}

fn steps(history: &mut History, owner: &mut Owner, most: u64) {
    for _ in 0..history.rng.below(most) {
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
            opened.log.append(&records.into()).expect("nothing fails");
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
    if history.rng.one_in(2) {
        history.fail_a_call(80);
    }
    // The server removes a backup that fails. A server that ends leaves it, as does one that is killed.
    let mut turns = if history.rng.one_in(3) { history.rng.below(8) } else { u64::MAX };
    let end = if history.rng.one_in(2) { BackupTurn::Cancel } else { BackupTurn::Leave };
    let turn = &mut || match turns {
        0 => end,
        _ => {
            turns -= 1;
            BackupTurn::Continue
        }
    };
    let target = shared(&to);
    let copied = match history.rng.one_in(2) {
        true => backup.copy_or_discard(&target, turn),
        false => backup.copy_to(&target, turn),
    };
    if let Ok(report) = &copied {
        assert_eq!(report.damages, Vec::<String>::new(), "seed {seed}: one failing call costs nothing");
    }
    let failures = history.folder.process_ends();
    let is_whole = copied.is_ok();
    let is_ended = |error: &Error| matches!(error, Error::Cancelled { .. } | Error::Left { .. });
    history.judge(copied.err().filter(|error| !is_ended(error)), failures, false);
    drop((backup, owner));
    if failures.is_some_and(|failures| failures.power) || history.rng.one_in(2) {
        history.folder.power_failure();
    }
    let names = to.file_names();
    match history.open_folder(&to.copy(), false) {
        // It was removed, or never begun.
        Ok(_) if names.iter().all(|name| name.ends_with(".new")) => {
            assert!(!is_whole, "seed {seed}: the backup is gone")
        }
        Ok(_) => restore(&history, &to, &moment),
        Err(Error::Unfinished { .. }) => assert!(!is_whole, "seed {seed}: the backup is not whole"),
        Err(error) => panic!("seed {seed}: {error:?} of {names:?}"),
    }
    let mut owner = history.open().expect("nothing fails");
    steps(&mut history, &mut owner, 20);
    let again = if is_whole || to.file_names().iter().any(|name| name.ends_with(".log")) { 2 } else { 1 };
    let to = history.folder.beside(again);
    let (backup, moment) = begin(&mut history, &mut owner);
    match backup.copy_to(&shared(&to), &mut || BackupTurn::Continue) {
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
    owner.log.backup().unwrap().copy_to(&shared(&to), &mut || BackupTurn::Continue).unwrap();
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
    assert!(matches!(
        backup.copy_to(&shared(&history.folder), &mut || BackupTurn::Continue),
        Err(Error::NotEmpty { .. })
    ));
}

/// A log with some closed segments on a device without links, and a backup of it.
fn held() -> (History, Owner, Backup) {
    let mut history = History::new(5);
    history.folder.have_links(false);
    let mut owner = history.open().unwrap();
    (0..200).for_each(|_| history.step(&mut owner).unwrap());
    let backup = owner.log.backup().unwrap();
    (history, owner, backup)
}

#[test]
fn a_copy_names_each_byte_that_has_changed_and_each_that_the_device_does_not_return() {
    let (history, _owner, backup) = held();
    let ends: Vec<(String, u64)> = backup.ends().collect();
    assert!(ends.len() > 2, "{ends:?}");
    let whole = backup.copy_to(&shared(&history.folder.beside(1)), &mut || BackupTurn::Continue).unwrap();
    assert_eq!((whole.lost, whole.linked, whole.copied), (0, 0, ends.len() as u64));
    for (name, end) in &ends {
        for at in [0, 7, 520, end / 2, end - 1].map(|at| at as usize) {
            let folder = history.folder.copy();
            let of = |backup: &Backup| backup.on(&shared(&folder));
            folder.lose(name, at);
            let report = of(&backup).copy_to(&shared(&folder.beside(2)), &mut || BackupTurn::Continue).unwrap();
            let block = at / 4096 * 4096;
            let (first, last) = (format!("the bytes {block} to "), format!(" of {name} cannot be read"));
            assert!(report.damages[0].starts_with(&first) && report.damages[0].contains(&last), "{at}: {report:?}");
            assert!(report.damages.iter().all(|part| part.contains(name.as_str())), "{at}: {report:?}");
            assert_eq!(report.copied, ends.len() as u64, "the others are copied");
        }
        let report_of = |at: usize| {
            let folder = history.folder.copy();
            folder.rot(name, at);
            backup.on(&shared(&folder)).copy_to(&shared(&folder.beside(2)), &mut || BackupTurn::Continue).unwrap()
        };
        assert_eq!(report_of(7).lost, 0, "the batches have what the head of a segment has");
        // A head that is there twice, and zeros behind a batch, cost nothing.
        let reports: Vec<_> = (520..*end as usize).step_by(97).map(report_of).collect();
        let lost: Vec<_> = reports.iter().filter(|report| report.lost > 0).collect();
        assert!(2 * lost.len() > reports.len(), "{name}: {} of {}", lost.len(), reports.len());
        assert!(lost.iter().all(|report| report.damages[0].contains(name.as_str())), "{name}");
    }
}

#[test]
fn a_report_names_some_parts_and_counts_all() {
    let (history, _owner, backup) = held();
    let folder = history.folder.copy();
    let (name, end) = backup.ends().max_by_key(|(_, end)| *end).unwrap();
    (0..end / 512).for_each(|sector| assert!(folder.rot(&name, sector as usize * 512 + 20)));
    let report = backup.on(&shared(&folder)).copy_to(&shared(&folder.beside(2)), &mut || BackupTurn::Continue).unwrap();
    assert!(report.lost >= report.damages.len() as u64 && report.damages.len() <= 100, "{report:?}");
    assert!(report.damages.iter().all(|part| part.len() <= 500));
}
