//! A folder that was copied while no server used it: `--copied` has its server give out other lend keys and ids, and a
//! copy that nobody announced is noticed.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use spindle::clients::rust::jobs::JobsClient;
use spindle::clients::rust::tasks::TasksClient;
use spindle::services::tasks::wire::{AddMode, LendMode};

use crate::harness::{SPINDLE, Server};

/// Longer than any test: no lease expires.
const LEASE: u64 = 86_400_000;
/// How far lend keys and ids jump.
const JUMP: u64 = 1 << 44;
/// The largest whole number up to which a client that keeps numbers as doubles knows each.
const DOUBLE_MAX: u64 = 1 << 53;

/// Starts a server with its log in `log`.
fn serve(data: &Path, log: &Path, flags: &[&str]) -> Server {
    let mut command = Command::new(SPINDLE);
    command.args(["serve", "--kv", "off", "--publish", "off", "--tasks", "tcp://127.0.0.1:*", "--jobs", "0"]);
    command.args(["--segment-size", "1M", "--data"]).arg(data).args(flags);
    Server::start_by(command.stderr(Stdio::from(fs::File::create(log).unwrap())))
}

/// A lend key and the id of a job that this server gives out, after a new task with this key.
fn ids(server: &Server, key: &str) -> (u64, u64) {
    let mut client = TasksClient::connect(server.tasks()).unwrap();
    assert!(client.add(key.as_bytes(), b"v", AddMode::Tail).unwrap());
    let lent = client.lend(LEASE, LendMode::Poll).unwrap().unwrap();
    (lent.lend_key, JobsClient::new(server.jobs()).add(b"queue", b"data").unwrap().0)
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

#[test]
fn a_copy_that_is_announced_gives_out_no_id_of_the_original() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (data, log) = (path("data"), path("log"));
    let server = serve(&data, &log, &[]);
    ids(&server, "first");
    server.stop();
    copy(&data, &path("copy"));
    let original = serve(&data, &log, &[]);
    let copied = serve(&path("copy"), &path("log-of-copy"), &["--copied"]);
    let ((key, id), (other_key, other_id)) = (ids(&original, "second"), ids(&copied, "second"));
    for (own, other) in [(key, other_key), (id, other_id)] {
        assert!(other >= own + JUMP / 2 && other < 2 * JUMP, "{own} and {other}");
    }
    copied.stop();
    original.stop();
    let said = fs::read_to_string(path("log-of-copy")).unwrap();
    assert!(said.contains("--copied") && said.contains("from the next start on"), "{said}");
    // The next start needs no flag.
    let again = serve(&path("copy"), &log, &[]);
    assert!(ids(&again, "third").0 < 2 * JUMP);
    again.stop();
    assert!(!fs::read_to_string(&log).unwrap().contains("copied"));
}

/// With jumps of 2^48 the 32nd one passed what a double holds.
#[test]
fn forty_jumps_leave_ids_that_a_double_holds() {
    let folder = tempfile::tempdir().unwrap();
    let (data, log) = (folder.path().join("data"), folder.path().join("log"));
    let server = serve(&data, &log, &[]);
    ids(&server, "first");
    server.stop();
    let mut last = 0;
    for jump in 0..40 {
        let server = serve(&data, &log, &["--copied"]);
        let (key, id) = ids(&server, &format!("{jump}"));
        assert!(key > last + JUMP / 2 && key < DOUBLE_MAX && id < DOUBLE_MAX, "{jump}: {key} after {last}");
        last = key;
        server.stop();
    }
}

/// An empty folder is no copy of anything.
#[test]
fn a_new_folder_begins_at_one_whatever_is_announced() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(&folder.path().join("data"), &folder.path().join("log"), &["--copied"]);
    assert_eq!(ids(&server, "first").0, 1);
    server.stop();
}

#[test]
fn a_copy_that_nobody_announced_is_noticed_until_it_is_and_a_move_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let log = path("log");
    let said = |data: &Path, flags: &[&str]| {
        serve(data, &log, flags).stop();
        fs::read_to_string(&log).unwrap()
    };
    let notices = |said: &str| said.contains("start it once with --copied");
    let data = path("data");
    assert!(!notices(&said(&data, &[])) && !notices(&said(&data, &[])), "it is the original");
    fs::rename(&data, path("moved")).unwrap();
    assert!(!notices(&said(&path("moved"), &[])), "it was moved");
    copy(&path("moved"), &path("copy"));
    for _ in 0..2 {
        let said = said(&path("copy"), &[]);
        assert!(notices(&said), "{said}");
    }
    assert!(!notices(&said(&path("copy"), &["--copied"])), "it is announced");
    assert!(!notices(&said(&path("copy"), &[])), "it was announced");
    assert!(!notices(&said(&path("moved"), &[])), "the original is still the original");
    // Into the folder that the original had.
    fs::remove_dir_all(&data).unwrap_err();
    fs::create_dir(&data).unwrap();
    assert!(Command::new("cp").arg("-aT").args([path("moved"), data.clone()]).status().unwrap().success());
    assert!(notices(&said(&data, &[])));
}
