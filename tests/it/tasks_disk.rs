//! Tasks on a disk that is full, damaged or in use, and the sync before each answer.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use spindle::protocols::spiderq::client::Client;
use spindle::protocols::spiderq::wire::{AddMode, LendMode, RepayStatus};
use spindle::store::{self, Disk, Space, Store};
use spindle::tasks;

use crate::chance::Chance;
use crate::harness::{Guarded, Server, real_peer, spindle};

fn client(server: &Server) -> Client {
    Client::connect(server.tasks()).unwrap()
}

#[test]
fn a_store_that_is_in_use_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_tasks(folder.path(), &[]);
    let data = folder.path().to_str().unwrap();
    let output = spindle(&["serve", "--kv", "off", "--publish", "off", "--tasks", "tcp://127.0.0.1:*", "--data", data]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.trim_end().lines().count() == 1 && said.contains("in use by another process"), "{said}");
    client(&server).ping().unwrap();
    server.stop();
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let output = spindle(&["serve", "--kv", "off", "--publish", "off", "--tasks", "--data", "/proc/nowhere"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("/proc/nowhere"), "{said}");
}

// ---------------------------------------------------------------------------------------------------------------- sync

/// Lines of strace about one process, as they came.
pub(crate) fn traced(strace: &Path, server: &Server, work: impl FnOnce()) -> Vec<String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let pid = server.pid().as_raw_nonzero().to_string();
    let mut child = Command::new(strace)
        .args(["-f", "-s", "300", "-e", "trace=recvfrom,sendto,fdatasync,fsync", "-p", &pid, "-o"])
        .arg(file.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (sender, attached) = mpsc::channel();
    let errors = BufReader::new(child.stderr.take().unwrap());
    let reader = std::thread::spawn(move || {
        for line in errors.lines().map_while(Result::ok) {
            // strace prints it once for each process, when it has attached all of its threads.
            let _unheard = sender.send(line);
        }
    });
    let first = attached.recv().unwrap();
    assert!(first.contains("attached"), "{first}");
    work();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    child.wait().unwrap();
    reader.join().unwrap();
    fs::read_to_string(file.path()).unwrap().lines().map(str::to_owned).collect()
}

/// Whether everything was synced between the arrival of a request with `what` and the next answer.
pub(crate) fn synced_before_the_answer(trace: &[String], what: &str) -> bool {
    let arrived = trace.iter().position(|line| line.contains("recvfrom") && line.contains(what)).expect("it came");
    let later = &trace[arrived + 1..];
    let answered = later.iter().position(|line| line.contains("sendto(")).expect("it was answered");
    later[..answered].iter().any(|line| line.contains("fdatasync") && line.trim_end().ends_with("= 0"))
}

#[test]
fn every_change_is_synced_between_its_arrival_and_its_answer() {
    let Some(strace) = real_peer("strace") else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_tasks(folder.path(), &[]);
    let mut client = client(&server);
    client.ping().unwrap();
    let trace = traced(&strace, &server, || {
        for number in 0..20 {
            let key = format!("traced-{number:02}");
            client.add(key.as_bytes(), b"added", AddMode::Tail).unwrap();
            client.update(key.as_bytes(), format!("changed-{number:02}").as_bytes()).unwrap();
            let lent = client.lend(60_000, LendMode::Poll).unwrap().unwrap();
            let value = format!("repaid-{number:02}");
            client.repay(lent.lend_key, &lent.key, value.as_bytes(), RepayStatus::Drop).unwrap();
        }
    });
    for number in 0..20 {
        for what in ["traced", "changed", "repaid"] {
            let what = format!("{what}-{number:02}");
            assert!(synced_before_the_answer(&trace, &what), "{what}: {}", trace.join("\n"));
        }
    }
    let syncs = trace.iter().filter(|line| line.contains("fdatasync(")).count();
    assert!(syncs >= 80, "each of 80 changes was asked alone: {syncs}");
    server.stop();
}

// ---------------------------------------------------------------------------------------------------------------- full

/// A file system for one test, unmounted at the end.
struct Small(tempfile::TempDir);

impl Small {
    fn mount(size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let options = format!("size={size}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(folder.path()).output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: this user cannot mount a small tmpfs");
            return None;
        }
        Some(Self(folder))
    }

    fn grow(&self, size: &str) {
        let options = format!("remount,size={size}");
        let status = Command::new("mount").args(["-o", &options]).arg(self.0.path()).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

/// Fills a disk of this size until the server ends, then gives it room, and looks for all acknowledged changes.
fn fill(size: &str, sync: &str) {
    let Some(small) = Small::mount(size) else { return };
    let data = small.0.path().join("data");
    let child = Command::new(env!("CARGO_BIN_EXE_spindle"))
        .args(["serve", "--kv", "off", "--publish", "off", "--tasks", "tcp://127.0.0.1:*", "--sync", sync, "--data"])
        .arg(&data)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Guarded(child);
    let lines = BufReader::new(child.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let endpoint =
        lines.take_while(|line| line != "ready").find_map(|line| line.strip_prefix("tasks ").map(str::to_owned));
    let mut client = Client::connect(&endpoint.unwrap()).unwrap();
    client.set_timeout(Duration::from_secs(60));
    let mut chance = Chance::new(1);
    let value: Vec<u8> = std::iter::repeat_with(|| chance.next().to_le_bytes()).take(12_500).flatten().collect();
    let mut added = 0;
    while client.add(format!("{added:04}").as_bytes(), &value, AddMode::Tail).is_ok() {
        added += 1;
        assert!(added < 20_000, "{size} are full by then");
    }
    let status = child.0.wait().unwrap();
    let mut said = String::new();
    child.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(1), "{size}: {said}");
    assert!(said.contains("no space is left for") && said.contains("make room"), "{size}: {said}");
    assert!(added > 10, "{added}");
    small.grow("2g");
    let server = Server::start_tasks(&data, &[]);
    let mut client = self::client(&server);
    for number in 0..added {
        assert_eq!(
            client.lookup(format!("{number:04}").as_bytes()).unwrap().as_ref(),
            Some(&value),
            "{size}: {number}"
        );
    }
    server.stop();
}

#[test]
fn a_full_disk_is_said_and_nothing_that_was_acknowledged_is_lost() {
    fill("8m", "always");
}

#[test]
fn a_disk_that_is_full_when_trees_are_written_is_no_different() {
    for size in ["100m", "150m", "250m"] {
        fill(size, "never");
    }
}

// ------------------------------------------------------------------------------------------------------------- damaged

/// Files with their contents, and folders, except the lock file.
fn content(folder: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(inner) = folders.pop() {
        for entry in fs::read_dir(&inner).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(folder).unwrap().to_owned();
            if path.is_dir() {
                found.insert(name, None);
                folders.push(path);
            } else if name != Path::new("lock") {
                found.insert(name, Some(fs::read(&path).unwrap()));
            }
        }
    }
    found
}

fn write(folder: &Path, files: &BTreeMap<PathBuf, Option<Vec<u8>>>) {
    fs::write(folder.join("lock"), b"").unwrap();
    for (name, bytes) in files {
        let path = folder.join(name);
        let Some(bytes) = bytes else {
            fs::create_dir_all(path).unwrap();
            continue;
        };
        // Journals are laid out long and mostly empty. The empty part stays empty.
        fs::write(&path, &bytes[..used(bytes)]).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_len(bytes.len() as u64).unwrap();
    }
}

/// Bytes up to the last that is not 0.
fn used(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

/// The present keys and values, as the records have them.
fn records(folder: &Path) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, store::Error> {
    let disk = Disk::open(folder)?;
    let mut values = BTreeMap::new();
    disk.scan(Space::Values, &mut |key, value| drop(values.insert(key.to_vec(), value.to_vec())))?;
    let opened = tasks::open(Box::new(disk), 0)?;
    drop(opened);
    Ok(values)
}

/// How many adjacent bytes are damaged.
const DAMAGED: usize = 100;

/// A store with some of everything, and its content.
fn sample(folder: &Path) {
    let server = Server::start_tasks(folder, &[]);
    let mut client = client(&server);
    for number in 0..40 {
        client.add(format!("key-{number:02}").as_bytes(), &[number; 50], AddMode::Tail).unwrap();
    }
    for _ in 0..10 {
        let lent = client.lend(u64::MAX, LendMode::Poll).unwrap().unwrap();
        client.repay(lent.lend_key, &lent.key, b"done", RepayStatus::Drop).unwrap();
    }
    for _ in 0..5 {
        client.lend(u64::MAX, LendMode::Poll).unwrap().unwrap();
    }
    server.stop();
}

#[test]
fn a_damaged_store_is_refused_untouched_or_gives_only_what_was_stored() {
    let folder = tempfile::tempdir().unwrap();
    sample(folder.path());
    let good = content(folder.path());
    let whole = {
        let copy = tempfile::tempdir().unwrap();
        write(copy.path(), &good);
        records(copy.path()).unwrap()
    };
    assert_eq!(whole.len(), 40);
    let mut chance = Chance::new(7);
    let mut counts = BTreeMap::new();
    let places: Vec<(PathBuf, usize)> = good
        .iter()
        .filter_map(|(name, bytes)| Some((name, bytes.as_ref()?)))
        .flat_map(|(name, bytes)| (0..used(bytes)).map(|place| (name.clone(), place)))
        .collect();
    for _ in 0..DAMAGED {
        let (name, place) = &places[chance.below(places.len())];
        let copy = tempfile::tempdir().unwrap();
        let mut files = good.clone();
        let byte = &mut files.get_mut(name).unwrap().as_mut().unwrap()[*place];
        *byte ^= 1 << chance.below(8);
        write(copy.path(), &files);
        let outcome = match records(copy.path()) {
            Err(error) => {
                // fjall may have removed versions of its lists that it has replaced long ago. It counts that everything
                // is there once the damage is undone.
                let path = copy.path().join(name);
                assert!(
                    fs::read(&path).ok() == files[name],
                    "{}, byte {place}: refused ({error}), but changed",
                    name.display()
                );
                fs::write(&path, good[name].as_ref().unwrap()).unwrap();
                let mended = records(copy.path());
                assert!(mended.is_ok_and(|values| values == whole), "{}, byte {place}: {error}", name.display());
                "refused"
            }
            Ok(values) if values == whole => "nothing lost",
            Ok(values) => {
                let strange = values.iter().find(|(key, _)| !whole.contains_key(*key));
                assert!(strange.is_none(), "{}, byte {place}: {strange:?}", name.display());
                "taken for a torn end"
            }
        };
        *counts.entry((name.display().to_string(), outcome)).or_insert(0) += 1;
    }
    println!("{counts:#?}");
}

#[test]
fn a_torn_end_is_cut_off_and_what_was_before_it_is_there() {
    let folder = tempfile::tempdir().unwrap();
    sample(folder.path());
    let good = content(folder.path());
    let (journal, bytes) = good.iter().find(|(name, _)| name.extension().is_some_and(|end| end == "jnl")).unwrap();
    let mut last = 41;
    for cut in (0..used(bytes.as_ref().unwrap())).rev().step_by(97) {
        let copy = tempfile::tempdir().unwrap();
        let mut files = good.clone();
        files.get_mut(journal).unwrap().as_mut().unwrap()[cut..].fill(0);
        write(copy.path(), &files);
        let values = records(copy.path()).unwrap();
        assert!(values.len() <= last, "the shorter, the less: {} after {last}", values.len());
        last = values.len();
    }
    assert!(last < 5, "{last}");
}
