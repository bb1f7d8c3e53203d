//! The real disk under `kill -9`: a child process writes, and is killed.
//!
//! ```text
//! child: open ─► batch n ─► sync ─► "ack n" ─► batch n + 1 …
//! parent: reads some of it ─► SIGKILL ─► opens ─► compares
//! ```
//! Batch n follows from n, so the parent knows the state after each batch.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test that fails should say where"
)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write, stdout};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use super::model::{Owner, State, number_of_env, read_all};
use crate::seeded_rng::SeededRng;
use crate::store::*;

/// The child's folder.
const CHILD: &str = "SPINDLE_KILLED_CHILD";
/// The key of the number of the last batch.
const NUMBER: (Space, &[u8]) = (Space::Meta, b"number");

fn open_real(path: &Path) -> Opened {
    let folder: Arc<dyn Folder> = Arc::new(RealFolder::lock(path).expect("the folder is free"));
    let config = LogConfig { kind: LogKind::States, segment_bytes: 64 << 10, files: 4, max_disk: None };
    open(&folder, OpenOptions { config, repair: false, copied: false, chores: ChoreMode::Thread })
        .expect("nothing is damaged")
}

/// The records of a batch. The last one is its number.
fn records(number: u64) -> Vec<Record> {
    let mut rng = SeededRng(number);
    let mut records = Vec::new();
    for _ in 0..rng.below(6) {
        let space = if rng.one_in(2) { Space::Tasks } else { Space::Values };
        let key = rng.below(60).to_be_bytes()[..].into();
        let body = match rng.one_in(3) {
            true => Body::Removed,
            false => Body::Bytes(vec![number as u8; rng.below(3000) as usize].into()),
        };
        records.push(Record { space, key, body });
    }
    let body = Body::Bytes(Value::from(&number.to_be_bytes()[..]));
    records.push(Record { space: NUMBER.0, key: NUMBER.1.into(), body });
    records
}

fn apply(state: &mut State, number: u64) {
    for Record { space, key, body } in records(number) {
        let key = (space, key.to_vec());
        match body {
            Body::Bytes(body) => drop(state.insert(key, body.to_vec())),
            Body::Removed | Body::SetAside => drop(state.remove(&key)),
        }
    }
}

/// The number of the last batch in a state.
fn number_in(state: &State) -> u64 {
    let number = state.get(&(NUMBER.0, NUMBER.1.to_vec()));
    number.map_or(0, |number| u64::from_be_bytes(number[..].try_into().expect("eight bytes")))
}

fn read_state(opened: &mut Opened) -> (State, BTreeMap<(Space, Vec<u8>), Place>) {
    let (found, places) = read_all(opened).expect("it can be read");
    (found.into_iter().map(|(key, body)| (key, body.expect("nothing has rotted"))).collect(), places)
}

#[test]
fn the_child_that_is_killed() {
    let Ok(path) = std::env::var(CHILD) else { return };
    let mut opened = open_real(Path::new(&path));
    let (state, places) = read_state(&mut opened);
    let mut owner = Owner::new(opened.log);
    owner.places = places;
    for number in number_in(&state) + 1.. {
        owner.commit(records(number).into(), false, false).expect("the disk works");
        owner.log.sync().expect("the disk works");
        writeln!(stdout(), "ack {number}").and_then(|()| stdout().flush()).expect("the parent listens");
    }
}

#[test]
fn nothing_that_was_acknowledged_is_lost_when_the_process_is_killed() {
    let around = tempfile::tempdir().unwrap();
    let path = around.path().join("data");
    let name = format!("{}::the_child_that_is_killed", module_path!().split_once("::").unwrap().1);
    let (mut state, mut rng, mut last) = (State::new(), SeededRng(9), 0);
    let rounds = number_of_env("SPINDLE_ROUNDS").unwrap_or(20);
    let (mut removed, mut behind) = (0, 0);
    for _ in 0..rounds {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([name.as_str(), "--exact", "--nocapture"]).env(CHILD, &path);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let until = last + 20 + rng.below(300);
        let mut acknowledged = last;
        while acknowledged < until {
            let line = lines.next().expect("the child lives").unwrap();
            // The first one follows the name of the test.
            if let Some((_, number)) = line.split_once("ack ") {
                acknowledged = number.parse().unwrap();
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let rest = lines.map_while(Result::ok).filter_map(|line| line.strip_prefix("ack ")?.parse().ok());
        acknowledged = rest.last().unwrap_or(acknowledged);
        let mut opened = open_real(&path);
        behind += opened.log.metrics().opening.behind;
        let (found, _) = read_state(&mut opened);
        let reached = number_in(&found);
        assert!(reached >= acknowledged, "{acknowledged} was acknowledged, {reached} was found");
        (last + 1..=reached).for_each(|number| apply(&mut state, number));
        assert!(found == state, "after batch {reached}");
        last = reached;
        removed = opened.log.metrics().opening.segments.max(removed);
    }
    println!("{rounds} kills, {last} batches, {behind} behind the last known sync, at most {removed} segments");
    let folder: Arc<dyn Folder> = Arc::new(RealFolder::lock_to_read(&path).unwrap());
    let report = check(&folder).unwrap();
    assert_eq!((report.damages, report.counts.live), (Vec::new(), state.len() as u64));
}

#[test]
fn a_backup_is_linked_on_its_file_system_and_copied_to_another_one() {
    let around = tempfile::tempdir().unwrap();
    let mut owner = Owner::new(open_real(&around.path().join("data")).log);
    let mut state = State::new();
    for number in 1..200 {
        owner.commit(records(number).into(), false, false).unwrap();
        apply(&mut state, number);
    }
    let backup = owner.log.backup().unwrap();
    let mut targets = vec![(around.path().join("backup"), true)];
    let other = tempfile::tempdir_in("/dev/shm").ok();
    targets.extend(other.as_ref().map(|other| (other.path().join("backup"), false)));
    for (path, is_linked) in targets {
        let to: Arc<dyn Folder> = Arc::new(RealFolder::lock(&path).unwrap());
        let report = backup.copy_to(&to, &mut || BackupTurn::Continue).unwrap();
        assert_eq!(report.linked > 0, is_linked, "{report:?}");
        assert!(matches!(backup.copy_to(&to, &mut || BackupTurn::Continue), Err(Error::NotEmpty { .. })));
        drop(to);
        let mut opened = open_real(&path);
        assert!(opened.was_backup && read_state(&mut opened).0 == state);
    }
    let busy = RealFolder::lock(&around.path().join("data"));
    assert!(matches!(busy, Err(Error::InUse { .. })), "the log has its folder locked");
    let missing = RealFolder::lock_to_read(&around.path().join("nothing"));
    assert!(matches!(missing, Err(Error::Missing { .. })));
}
