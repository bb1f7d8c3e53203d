//! Tasks on a disk that is full, damaged or in use, and the sync before each answer.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use spindle::clients::rust::events::EventsClient;
use spindle::clients::rust::jobs::JobsClient;
use spindle::clients::rust::tables::Client as TablesClient;
use spindle::clients::rust::tasks::TasksClient;
use spindle::clock::ClockReading;
use spindle::services::tables::wire::TableOptions;
use spindle::services::tasks::wire::{AddMode, LendMode, RepayStatus};
use spindle::store::{self, KeyedStore, Space, Store, StoreConfig, TaskKey, WriteBatch};
use spindle::tasks;

use crate::harness::{Server, real_peer, spindle};
use crate::seeded_rng::SeededRng;

fn client(server: &Server) -> TasksClient {
    TasksClient::connect(server.tasks()).unwrap()
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
            let _ignored = sender.send(line);
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

/// `--sync` is for tasks alone.
#[test]
fn every_event_is_synced_between_its_arrival_and_its_answer_whatever_sync_says() {
    let Some(strace) = real_peer("strace") else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_events(&["--data", folder.path().to_str().unwrap(), "--sync", "never"]);
    let mut events = EventsClient::new(server.events().parse().unwrap());
    let mut worker = TasksClient::connect(server.events_queue()).unwrap();
    events.count().unwrap();
    let trace = traced(&strace, &server, || {
        for number in 0..10 {
            events.request("POST", "/events", format!("created-{number:02}").as_bytes()).unwrap();
            events.request("POST", "/events/async", format!("deferred-{number:02}").as_bytes()).unwrap();
            let lent = worker.lend(60_000, LendMode::Poll).unwrap().unwrap();
            let value = format!("repaid-{number:02}");
            assert!(worker.repay(lent.lend_key, &lent.key, value.as_bytes(), RepayStatus::Drop).unwrap());
        }
    });
    for number in 0..10 {
        for what in ["created", "deferred", "repaid"] {
            let what = format!("{what}-{number:02}");
            assert!(synced_before_the_answer(&trace, &what), "{what}: {}", trace.join("\n"));
        }
    }
    server.stop();
}

// ---------------------------------------------------------------------------------------------------------------- full

/// A file system for one test, unmounted at the end.
pub(crate) struct Small(tempfile::TempDir);

impl Small {
    pub(crate) fn mount(size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let options = format!("size={size}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(folder.path()).output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: this user cannot mount a small tmpfs");
            return None;
        }
        Some(Self(folder))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

/// Fills a disk of this size until the server takes no more tasks, finishes most of them, adds again, kills the server,
/// and looks for all acknowledged changes.
fn fill(size: &str, sync: &str) {
    let Some(small) = Small::mount(size) else { return };
    let data = small.path().join("data");
    let server = Server::start_tasks(&data, &["--sync", sync, "--segment-size", "1M"]);
    let mut client = client(&server);
    client.set_timeout(Duration::from_secs(60));
    let mut rng = SeededRng(1);
    let value: Vec<u8> = std::iter::repeat_with(|| rng.next().to_le_bytes()).take(12_500).flatten().collect();
    let mut added = 0;
    let refused = loop {
        match client.add(format!("{added:04}").as_bytes(), &value, AddMode::Tail) {
            Ok(is_new) => assert!(is_new),
            Err(refused) => break refused.to_string(),
        }
        added += 1;
        assert!(added < 20_000, "{size} are full by then");
    };
    assert!(added > 10 && refused.contains("AddValue needs 100004 bytes, and there are 0"), "{added}: {refused}");
    assert_eq!(client.add(b"small", b"v", AddMode::Tail).unwrap_err().to_string(), refused.replace("100004", "6"));
    // What takes away is still accepted, and then there is room again.
    let left = added / 4;
    for _ in left..added {
        let lent = client.lend(60_000, LendMode::Poll).unwrap().unwrap();
        assert!(client.remove(&lent.key).unwrap());
    }
    let mut tries = 0;
    while client.add(b"again", &value, AddMode::Tail).is_err() {
        tries += 1;
        assert!(tries < 20_000, "cleaning makes room");
        client.flush().unwrap();
    }
    drop(server);
    let server = Server::start_tasks(&data, &["--segment-size", "1M"]);
    let mut client = self::client(&server);
    for number in 0..added {
        let found = client.lookup(format!("{number:04}").as_bytes()).unwrap();
        let expected = (number >= added - left).then_some(&value);
        assert_eq!(found.as_ref(), expected, "{size}: {number} of {added}");
    }
    assert_eq!(client.lookup(b"again").unwrap().as_ref(), Some(&value));
    server.stop();
}

#[test]
fn a_full_disk_refuses_tasks_and_what_takes_away_goes_on() {
    fill("24m", "always");
}

#[test]
fn a_disk_that_is_full_under_late_syncs_is_no_different() {
    for size in ["16m", "40m"] {
        fill(size, "never");
    }
}

/// Another program takes what is left of a disk.
fn take_the_rest(small: &Small) -> PathBuf {
    let path = small.path().join("foreign");
    let mut file = fs::File::create(&path).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    path
}

/// A value as long as the one before, and longer than a segment, ended the server: no segment could be laid out for it.
#[test]
fn a_full_disk_refuses_a_large_value_that_is_no_larger_and_the_server_goes_on() {
    let Some(small) = Small::mount("16m") else { return };
    let data = small.path().join("data");
    let server = Server::start_tasks(&data, &["--segment-size", "64K"]);
    let mut client = client(&server);
    client.set_timeout(Duration::from_secs(60));
    let mut added: u32 = 0;
    while client.add(&added.to_be_bytes(), &vec![1; 1_000_000], AddMode::Tail).is_ok() {
        added += 1;
    }
    assert!((3..16).contains(&added), "{added}");
    let foreign = take_the_rest(&small);
    let value = |round: u8| vec![round; 1_000_000];
    let mut values = vec![1; added as usize];
    let (mut updated, mut refused) = (0, 0);
    for round in 2..20 {
        for number in 0..added {
            match client.update(&number.to_be_bytes(), &value(round)) {
                Ok(is_there) => {
                    assert!(is_there);
                    (values[number as usize], updated) = (round, updated + 1);
                }
                Err(error) => {
                    assert!(error.to_string().contains("1000000 bytes, and there are 0"), "{error}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 0, "{updated} updated");
    let lent = client.lend(60_000, LendMode::Poll).unwrap().unwrap();
    let repaid = client.repay(lent.lend_key, &lent.key, &value(20), RepayStatus::Reward);
    assert!(repaid.unwrap_err().to_string().contains("bytes, and there are 0"));
    assert!(client.heartbeat(lent.lend_key, &lent.key, 60_000).unwrap(), "the lease is held");
    fs::remove_file(foreign).unwrap();
    assert!(client.repay(lent.lend_key, &lent.key, &value(20), RepayStatus::Reward).unwrap());
    values[u32::from_be_bytes(lent.key[..].try_into().unwrap()) as usize] = 20;
    drop(server);
    let server = Server::start_tasks(&data, &["--segment-size", "64K"]);
    let mut client = self::client(&server);
    for (number, round) in (0..added).zip(values) {
        assert!(client.lookup(&number.to_be_bytes()).unwrap() == Some(value(round)), "{number} of {added}: {round}");
    }
    println!("{added} tasks, {updated} updated, {refused} refused");
    server.stop();
}

#[test]
fn a_bound_of_the_folder_refuses_jobs_with_an_error_and_they_can_be_worked_off() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_jobs(folder.path(), &["--segment-size", "64K", "--max-disk", "1M"]);
    let jobs = JobsClient::new(server.jobs());
    let mut added = 0;
    while jobs.add(b"queue", &[7; 10_000]).is_ok() {
        added += 1;
        assert!(added < 200, "they exceed the bound by then");
    }
    assert!(added > 10, "{added}");
    for _ in 0..added {
        let job = jobs.get(b"queue").unwrap().unwrap();
        assert!(job.data == [7; 10_000] && jobs.ack(b"queue", job.id).unwrap());
    }
    jobs.add(b"queue", &[8; 10_000]).unwrap();
    server.stop();
}

/// What the logs lay out is a part of the bound.
#[test]
fn the_least_bound_of_the_disk_admits_tasks_and_durable_tables() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let flags = ["--data", data, "--segment-size", "128K", "--tasks", "tcp://127.0.0.1:*", "--max-disk"];
    let server = Server::start(&[&flags[..], &["1280K"]].concat());
    let mut tables = TablesClient::connect(server.kv()).unwrap();
    tables.create_table_with(b"t", TableOptions::Always).unwrap();
    let mut tasks = client(&server);
    for round in 0..20_u64 {
        for number in 0..20_u64 {
            tables.update(b"t", &number.to_be_bytes(), &[7; 1_000], None).unwrap();
        }
        assert!(tasks.add(&round.to_be_bytes(), &[7; 1_000], AddMode::Tail).unwrap());
    }
    server.stop();
    let refused = spindle(&[&["serve"][..], &flags, &["1279K"]].concat());
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && said.contains("take 1310720 bytes at least"), "{said}");
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
        // Segments are laid out long and mostly empty. The empty part stays empty.
        fs::write(&path, &bytes[..used(bytes)]).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_len(bytes.len() as u64).unwrap();
    }
}

/// Bytes up to the last that is not 0.
fn used(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

/// The present keys and values, as the records have them.
fn values(folder: &Path) -> Result<BTreeMap<TaskKey, Vec<u8>>, store::Error> {
    let config = StoreConfig { segment_bytes: 1 << 20, max_disk: None, repair: false, copied: false };
    let mut keys = Vec::new();
    let mut store = KeyedStore::open(folder, config)?;
    store.take(Space::Tasks, &mut |key, _| keys.push(key.try_into().unwrap()));
    let values = store.moment(&keys, &[]);
    let value = |key: TaskKey| Ok((key, values.get(&key)?.map_or(Vec::new(), |value| value.to_vec())));
    keys.into_iter().map(value).collect()
}

/// As [`values`], of a store that the engine accepts.
fn records(folder: &Path) -> Result<BTreeMap<TaskKey, Vec<u8>>, store::Error> {
    let config = StoreConfig { segment_bytes: 1 << 20, max_disk: None, repair: false, copied: false };
    let read = values(folder)?;
    drop(tasks::open(Box::new(KeyedStore::open(folder, config)?), ClockReading::from_millis(0))?);
    Ok(read)
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
    let mut rng = SeededRng(7);
    let mut counts = BTreeMap::new();
    let places: Vec<(PathBuf, usize)> = good
        .iter()
        .filter_map(|(name, bytes)| Some((name, bytes.as_ref()?)))
        .flat_map(|(name, bytes)| (0..used(bytes)).map(|place| (name.clone(), place)))
        .collect();
    for _ in 0..DAMAGED {
        let (name, place) = &places[rng.index(places.len())];
        let copy = tempfile::tempdir().unwrap();
        let mut files = good.clone();
        let byte = &mut files.get_mut(name).unwrap().as_mut().unwrap()[*place];
        *byte ^= 1 << rng.index(8);
        write(copy.path(), &files);
        let outcome = match records(copy.path()) {
            // A value stands alone: it is found when it is read, and the other records are there.
            Err(store::Error::Rotten { .. }) => "one value is set aside",
            Err(error) => {
                assert!(!matches!(error, store::Error::InUse { .. }), "{error}");
                let path = copy.path().join(name);
                assert!(
                    fs::read(&path).ok() == files[name],
                    "{}, byte {place}: refused ({error}), but changed",
                    name.display()
                );
                fs::write(&path, good[name].as_ref().unwrap()).unwrap();
                let mended = records(copy.path()).unwrap_or_else(|again| {
                    panic!("{}, byte {place}: {error}; then, with the right byte: {again}", name.display())
                });
                assert!(mended == whole, "{}, byte {place}: {error}", name.display());
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
    let config = StoreConfig { segment_bytes: 1 << 20, max_disk: None, repair: false, copied: false };
    let mut open = KeyedStore::open(folder.path(), config).unwrap();
    // No batch is known to be on disk: any of them may be torn.
    for number in 0..40_u8 {
        let mut batch = WriteBatch::new();
        let key = [[0; 11].as_slice(), &[number]].concat();
        batch.put(Space::Tasks, &key, &[number; 30]);
        batch.put(Space::Values, &key, &[number; 50]);
        open.commit(batch, false).unwrap();
    }
    let good = content(folder.path());
    let is_segment = |name: &Path| name.extension().is_some_and(|end| end == "log");
    let (newest, bytes) = good.iter().rfind(|(name, _)| is_segment(name)).unwrap();
    let mut last = 41;
    for cut in (0..used(bytes.as_ref().unwrap())).rev().step_by(197) {
        let copy = tempfile::tempdir().unwrap();
        let mut files = good.clone();
        files.get_mut(newest).unwrap().as_mut().unwrap()[cut..].fill(0);
        write(copy.path(), &files);
        let Ok(values) = values(copy.path()) else { break };
        assert!(values.len() <= last, "the shorter, the less: {} after {last}", values.len());
        assert!(values.iter().enumerate().all(|(number, (key, value))| {
            usize::from(key[11]) == number && value.iter().all(|byte| usize::from(*byte) == number)
        }));
        last = values.len();
    }
    assert!(last < 5, "{last}");
}
