//! The folder of a running server is moved, removed, or loses its files, its file system becomes read-only, or has no
//! room for a while. The server says so to its clients, in its log and by its exit status, and nothing that it has
//! acknowledged is lost where the files still are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::event::Timespec;
use rustix::process::Signal;
use spindle::clients::rust::events::EventsClient;
use spindle::clients::rust::jobs::JobsClient;
use spindle::clients::rust::tasks::TasksClient;
use spindle::services::tasks::wire::{AddMode, LendMode, RepayStatus};

use crate::harness::Server;
use crate::tasks_disk::Small;

/// How long a server may take to notice: it looks every 5 s.
const NOTICED: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };
/// How long the end of a server may take (`STOP_MAX`), and some.
const ENDED: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// A server of tasks, jobs and events in a folder, and what it has acknowledged.
struct Rig {
    server: Server,
    log: PathBuf,
    /// Numbers of the tasks, and the count of jobs and events, that were acknowledged.
    tasks: u32,
    jobs: u64,
    events: u64,
}

fn flags(data: &Path) -> Vec<String> {
    let data = data.display().to_string();
    let all = ["--tasks", "tcp://127.0.0.1:*", "--jobs", "0", "--events", "0", "--events-queue", "tcp://127.0.0.1:*"];
    all.into_iter().map(str::to_owned).chain(["--data".to_owned(), data]).collect()
}

impl Rig {
    fn start(data: &Path, log: &Path, more: &[&str]) -> Self {
        let flags = flags(data);
        let flags: Vec<&str> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let server = Server::start_logging(log, &flags);
        Self { server, log: log.to_owned(), tasks: 0, jobs: 0, events: 0 }
    }

    fn tasks(&self) -> TasksClient {
        TasksClient::connect(self.server.tasks()).unwrap()
    }

    fn events(&self) -> EventsClient {
        EventsClient::new(self.server.events().parse().unwrap())
    }

    /// Adds one of each, and notes those that are acknowledged.
    fn add(&mut self) {
        let value = vec![7; 1_000];
        let add = |client: &mut TasksClient, number: u32| client.add(&number.to_be_bytes(), &value, AddMode::Tail);
        // The server may end at any moment.
        if let Ok(mut client) = TasksClient::connect(self.server.tasks()) {
            let first = self.tasks;
            self.tasks +=
                (first..first + 20).map_while(|number| add(&mut client, number).ok()).map(u32::from).sum::<u32>();
        }
        self.jobs += u64::from(JobsClient::new(self.server.jobs()).add(b"queue", &value).is_ok());
        self.events += u64::from(self.events().defer().is_ok());
    }

    /// A health check fails for this reason, unless the server ends already, or has ended.
    #[track_caller]
    fn is_sick(&self, reason: &str) {
        let Ok(health) = self.events().request("GET", "/health", b"") else { return };
        assert_eq!(health.status, 503, "{:?}", health.json());
        let error = health.json()["error"].as_str().unwrap().to_owned();
        assert!(error.contains(reason) || error.contains("the server ends"), "{error}");
    }

    /// Waits for the end, which comes by itself, with status 1 and a line that says this.
    fn ends_saying(self, what: &str, advice: &str) -> (u32, u64, u64) {
        let Self { server, log, tasks, jobs, events } = self;
        let (status, _) = server.wait_for_at_most(&NOTICED);
        let said = fs::read_to_string(log).unwrap();
        assert!(status.code() == Some(1) && said.contains(what) && said.contains(advice), "{status}: {said}");
        assert!(!said.contains("panicked"), "{said}");
        (tasks, jobs, events)
    }
}

/// A server on this folder has all that was acknowledged, and takes more.
fn assert_kept(data: &Path, log: &Path, (tasks, jobs, events): (u32, u64, u64)) {
    let mut rig = Rig::start(data, log, &[]);
    let mut client = rig.tasks();
    for number in 0..tasks {
        assert_eq!(client.lookup(&number.to_be_bytes()).unwrap(), Some(vec![7; 1_000]), "{number} of {tasks}");
    }
    let client = JobsClient::new(rig.server.jobs());
    let mut found = 0;
    while let Some(job) = client.get(b"queue").unwrap() {
        found += u64::from(job.data == [7; 1_000]);
    }
    assert!(found >= jobs, "{found} of {jobs}");
    assert!(rig.events().count().unwrap() >= events);
    rig.events().health().unwrap();
    // Of what was not acknowledged some may be there too.
    (rig.tasks, rig.jobs, rig.events) = (1_000, 0, 0);
    rig.add();
    assert_eq!((rig.tasks, rig.jobs, rig.events), (1_020, 1, 1));
    rig.server.stop();
}

#[test]
fn a_folder_that_is_moved_ends_the_server_and_nothing_acknowledged_is_lost() {
    let around = tempfile::tempdir().unwrap();
    let [data, moved, log] = ["data", "moved", "log"].map(|name| around.path().join(name));
    let mut rig = Rig::start(&data, &log, &[]);
    rig.add();
    rig.events().health().unwrap();
    fs::rename(&data, &moved).unwrap();
    rig.is_sick("moved or removed");
    // What it still acknowledges is in the folder, wherever that is.
    rig.add();
    let known = rig.ends_saying("moved or removed", "put it back");
    assert!(known.0 >= 20);
    fs::rename(&moved, &data).unwrap();
    assert_kept(&data, &log, known);
}

#[test]
fn a_folder_that_is_removed_ends_the_server() {
    let around = tempfile::tempdir().unwrap();
    let [data, log] = ["data", "log"].map(|name| around.path().join(name));
    let mut rig = Rig::start(&data, &log, &[]);
    rig.add();
    fs::remove_dir_all(&data).unwrap();
    rig.is_sick("moved or removed");
    rig.ends_saying("moved or removed", "restore a backup");
    assert!(!data.exists(), "it makes no other folder");
}

#[test]
fn a_server_that_is_stopped_after_its_folder_was_removed_does_not_end_well() {
    let around = tempfile::tempdir().unwrap();
    let [data, log] = ["data", "log"].map(|name| around.path().join(name));
    let mut rig = Rig::start(&data, &log, &[]);
    rig.add();
    fs::remove_dir_all(&data).unwrap();
    rig.server.signal(Signal::TERM);
    let (status, _) = rig.server.wait_for_at_most(&ENDED);
    let said = fs::read_to_string(&log).unwrap();
    assert!(status.code() == Some(1) && said.contains("moved or removed"), "{status}: {said}");
}

#[test]
fn a_server_whose_segments_are_removed_ends() {
    let around = tempfile::tempdir().unwrap();
    let [data, log] = ["data", "log"].map(|name| around.path().join(name));
    let mut rig = Rig::start(&data, &log, &["--segment-size", "64K"]);
    // Several segments, of which the newest is one.
    (0..20).for_each(|_| rig.add());
    for entry in fs::read_dir(&data).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "log") {
            fs::remove_file(path).unwrap();
        }
    }
    rig.is_sick("moved or removed");
    rig.add();
    rig.ends_saying("moved or removed", "acknowledged in them is lost");
}

// ------------------------------------------------------------------------------------------------------------ read-only

/// An ext4 on a loop device, which becomes read-only as after an error of its device. The system refuses to remount a
/// file system read-only while it has files open for writing.
struct Ext4 {
    around: tempfile::TempDir,
    device: String,
}

impl Ext4 {
    fn mount() -> Option<Self> {
        let around = tempfile::tempdir().unwrap();
        let (image, place) = (around.path().join("image"), around.path().join("place"));
        fs::create_dir(&place).unwrap();
        fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
        let done = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
        let made = done(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image))
            && done(Command::new("mount").args(["-o", "loop,errors=remount-ro"]).arg(&image).arg(&place));
        if !made {
            eprintln!("skipped: this user cannot make and mount an ext4 on a loop device");
            return None;
        }
        let source = Command::new("findmnt").args(["-no", "SOURCE"]).arg(&place).output().unwrap();
        let device = String::from_utf8(source.stdout).unwrap().trim().rsplit('/').next().unwrap().to_owned();
        let mounted = Self { around, device };
        if !mounted.trigger().exists() {
            eprintln!("skipped: this system does not make an ext4 read-only on request");
            return None;
        }
        Some(mounted)
    }

    fn trigger(&self) -> PathBuf {
        Path::new("/sys/fs/ext4").join(&self.device).join("trigger_fs_error")
    }

    fn data(&self) -> PathBuf {
        self.around.path().join("place/data")
    }

    fn become_read_only(&self) {
        fs::write(self.trigger(), "a test").unwrap();
    }

    /// Mounts it anew, which replays its journal.
    fn mend(&self) {
        let (image, place) = (self.around.path().join("image"), self.around.path().join("place"));
        assert!(Command::new("umount").arg(&place).status().unwrap().success());
        let _mended = Command::new("fsck.ext4").args(["-y"]).arg(&image).output().unwrap();
        assert!(
            Command::new("mount")
                .args(["-o", "loop,errors=remount-ro"])
                .arg(&image)
                .arg(&place)
                .status()
                .unwrap()
                .success()
        );
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.around.path().join("place")).status();
    }
}

#[test]
fn a_file_system_that_becomes_read_only_ends_the_server_and_nothing_acknowledged_is_lost() {
    let Some(disk) = Ext4::mount() else { return };
    let log = disk.around.path().join("log");
    // Once a request finds out, and once the server does by itself.
    for asks in [true, false] {
        let mut rig = Rig::start(&disk.data(), &log, &[]);
        if asks {
            rig.add();
            rig.add();
        } else {
            (rig.tasks, rig.jobs, rig.events) = (40, 2, 2);
        }
        disk.become_read_only();
        if asks {
            let mut client = rig.tasks();
            client.set_timeout(std::time::Duration::from_secs(5));
            assert!(client.add(b"refused", b"value", AddMode::Tail).is_err(), "it cannot be on disk");
        } else {
            rig.is_sick("read-only");
        }
        let known = rig.ends_saying("the file system is read-only", "start again");
        disk.mend();
        if asks {
            let rig = Rig::start(&disk.data(), &log, &[]);
            let mut client = rig.tasks();
            for number in 0..known.0 {
                assert!(client.lookup(&number.to_be_bytes()).unwrap().is_some(), "{number} of {}", known.0);
            }
            rig.server.stop();
        } else {
            assert_kept(&disk.data(), &log, known);
        }
    }
}

#[test]
fn a_server_does_not_start_on_a_read_only_file_system_and_says_so() {
    let Some(small) = Small::mount("24m") else { return };
    let data = small.path().join("data");
    Server::start_tasks(&data, &["--segment-size", "1M"]).stop();
    assert!(Command::new("mount").args(["-o", "remount,ro"]).arg(small.path()).status().unwrap().success());
    let data = data.to_str().unwrap();
    let output = crate::harness::spindle(&["serve", "--kv", "off", "--publish", "off", "--jobs", "0", "--data", data]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("the file system is read-only"), "{said}");
}

// ----------------------------------------------------------------------------------------------------------------- full

#[test]
fn a_disk_that_others_fill_refuses_additions_until_there_is_room_again() {
    let Some(small) = Small::mount("24m") else { return };
    let (data, log) = (small.path().join("data"), tempfile::NamedTempFile::new().unwrap());
    let mut rig = Rig::start(&data, log.path(), &["--segment-size", "1M"]);
    rig.add();
    let mut client = rig.tasks();
    client.set_timeout(std::time::Duration::from_secs(60));
    let lent = client.lend(600_000, LendMode::Poll).unwrap().unwrap();
    // A file of another program takes all the rest.
    let other = small.path().join("other");
    let _full = fs::write(&other, vec![1; 24 << 20]).unwrap_err();
    let mut added = 0;
    let refused = loop {
        match client.add(format!("more-{added}").as_bytes(), &[7; 1_000], AddMode::Tail) {
            Ok(is_new) => assert!(is_new),
            Err(refused) => break refused.to_string(),
        }
        added += 1;
        assert!(added < 20_000, "the disk is full");
    };
    assert!(refused.contains("AddValue needs") && refused.contains("there are 0"), "{refused}");
    rig.is_sick("no room");
    assert!(JobsClient::new(rig.server.jobs()).add(b"queue", b"data").is_err());
    assert_eq!(rig.events().request("POST", "/events/async", b"").unwrap().status, 503);
    // A larger value is an addition. What is no larger, and what takes away, is accepted.
    let larger = client.update(&1_u32.to_be_bytes(), &[8; 1_001]).unwrap_err().to_string();
    assert!(larger.contains("UpdateValue needs 1001 bytes, and there are 0"), "{larger}");
    let larger = client.repay(lent.lend_key, &lent.key, &[8; 1_001], RepayStatus::Drop).unwrap_err().to_string();
    assert!(larger.contains("RepayValue needs 1001 bytes, and there are 0"), "{larger}");
    assert!(client.update(&1_u32.to_be_bytes(), &[8; 1_000]).unwrap());
    assert!(client.repay(lent.lend_key, &lent.key, &[8; 999], RepayStatus::Reward).unwrap(), "it is still held");
    for number in 10..20_u32 {
        assert!(client.remove(&number.to_be_bytes()).unwrap());
    }
    let said = fs::read_to_string(log.path()).unwrap();
    assert!(said.contains("not added at present") && said.contains("make room"), "{said}");
    // There is room again, and the server finds out by itself.
    fs::remove_file(&other).unwrap();
    while rig.events().health().is_err() {}
    assert!(client.add(b"again", b"value", AddMode::Tail).unwrap());
    assert!(client.update(&1_u32.to_be_bytes(), &[9; 2_000]).unwrap());
    rig.add();
    assert_eq!((rig.jobs, rig.events), (2, 2));
    rig.server.stop();
    let server = Server::start_tasks(&data, &["--segment-size", "1M"]);
    let mut client = TasksClient::connect(server.tasks()).unwrap();
    let lookup = |client: &mut TasksClient, number: u32| client.lookup(&number.to_be_bytes()).unwrap();
    assert_eq!(lookup(&mut client, 0), Some(vec![8; 999]));
    assert_eq!(lookup(&mut client, 1), Some(vec![9; 2_000]));
    assert!((2..10).all(|number| lookup(&mut client, number) == Some(vec![7; 1_000])));
    assert!((10..20).all(|number| lookup(&mut client, number).is_none()));
    for number in 0..added {
        assert!(client.lookup(format!("more-{number}").as_bytes()).unwrap().is_some(), "{number} of {added}");
    }
    server.stop();
}
