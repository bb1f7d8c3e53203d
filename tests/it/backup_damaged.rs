//! Backups of a log that has lost bytes: what is lost is named, and all else is in the backup. Who may read a backup.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use spindle::clients::rust::tasks::TasksClient;
use spindle::services::tasks::wire::AddMode;

use crate::harness::{SPINDLE, Server, real_peer, spindle};

const SEGMENTS: [&str; 2] = ["--segment-size", "64K"];
/// Tasks, of which each segment holds some twenty.
const TASKS: usize = 100;

fn backup(data: &Path, to: &Path) -> Output {
    spindle(&["backup", to.to_str().unwrap(), "--data", data.to_str().unwrap(), "--json"])
}

fn value(number: usize) -> Vec<u8> {
    [format!("value-{number:03}").as_bytes(), &[3; 3_000]].concat()
}

/// A server with some closed segments, quiet.
fn with_segments(data: &Path) -> Server {
    let server = Server::start_tasks(data, &SEGMENTS);
    let mut client = TasksClient::connect(server.tasks()).unwrap();
    for number in 0..TASKS {
        client.add(format!("{number:03}").as_bytes(), &value(number), AddMode::Tail).unwrap();
    }
    server
}

/// The segments of a folder with their bytes, the oldest first.
fn segments(data: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(data).unwrap().map(|entry| entry.unwrap().path());
    let logs = entries.filter(|path| path.extension().is_some_and(|end| end == "log"));
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let mut found: Vec<_> = logs.map(|path| (name(&path), fs::read(path).unwrap())).collect();
    found.sort();
    found
}

/// Changes a byte of a value in a closed segment, under the server that runs. Returns the name of the segment.
fn rot(data: &Path, number: usize) -> String {
    let run = format!("value-{number:03}");
    for (name, mut bytes) in segments(data) {
        let Some(at) = bytes.windows(run.len()).position(|window| window == run.as_bytes()) else { continue };
        bytes[at + run.len() + 100] ^= 0x80;
        fs::write(data.join(&name), bytes).unwrap();
        return name;
    }
    panic!("{run} is not in the log");
}

/// The report of a backup that lacks something: it exits 1 with one line, and names what it lacks.
fn lacking(output: &Output) -> (serde_json::Value, String) {
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(output.status.code() == Some(1), "{said}");
    let done: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said}"));
    (done["stores"][0].clone(), said)
}

fn damages(report: &serde_json::Value) -> Vec<String> {
    let named = report["damages"].as_array().unwrap_or_else(|| panic!("{report}"));
    named.iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

/// It copied what it read, and exited 0.
#[test]
fn a_copy_names_what_is_damaged_and_has_all_else() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
    let (data, to) = (folder.path().join("data"), other.path().join("to"));
    let server = with_segments(&data);
    let (first, second) = (rot(&data, 3), rot(&data, 50));
    assert_ne!(first, second);
    let (report, said) = lacking(&backup(&data, &to));
    let named = damages(&report);
    assert!(named.len() == 2 && named[0].contains(&first) && named[1].contains(&second), "{named:?}");
    assert!(said.contains("lacks 2 parts") && said.contains(to.to_str().unwrap()), "{said}");
    assert!(to.join("backup").exists(), "it is there, and complete but for them");
    server.stop();
    let checked = spindle(&["check", to.to_str().unwrap()]);
    assert!(String::from_utf8(checked.stdout).unwrap().matches("lost: ").count() == 2);
    let server = Server::start_tasks(&to, &SEGMENTS);
    let mut client = TasksClient::connect(server.tasks()).unwrap();
    for number in 0..TASKS {
        let expected = (![3, 50].contains(&number)).then(|| value(number));
        assert!(client.lookup(format!("{number:03}").as_bytes()).unwrap() == expected, "{number}");
    }
    server.stop();
}

/// A single failed read ended the backup, and its files were removed.
#[test]
fn a_copy_goes_on_behind_bytes_that_the_device_does_not_return() {
    let Some(strace) = real_peer("strace") else { return };
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
    let data = folder.path().join("data");
    let server = with_segments(&data);
    let (name, _) = segments(&data).swap_remove(1);
    let file = data.join(&name);
    let fail_reads = |when| server.fail_calls(&strace, "pread64:error=EIO", when, Some(&file));
    // An error that passes costs nothing.
    let failing = fail_reads("1");
    let to = other.path().join("passing");
    let whole = backup(&data, &to);
    assert!(whole.status.success(), "{}", String::from_utf8_lossy(&whole.stderr));
    drop(failing);
    assert!(spindle(&["check", to.to_str().unwrap()]).status.success());
    let failing = fail_reads("1+");
    let to = other.path().join("lasting");
    let (report, said) = lacking(&backup(&data, &to));
    drop(failing);
    let named = damages(&report);
    assert!(named[0].contains(&name) && named[0].contains("cannot be read"), "{named:?}");
    assert!(named.iter().all(|what| what.contains(&name)), "the other segments are whole: {named:?}");
    assert!(said.contains("lacks"), "{said}");
    let client = &mut TasksClient::connect(server.tasks()).unwrap();
    assert_eq!(client.count().unwrap() as usize, TASKS, "the server still serves");
    server.stop();
    let repaired = Server::start_tasks(&to, &[&SEGMENTS[..], &["--repair"]].concat());
    let left = TasksClient::connect(repaired.tasks()).unwrap().count().unwrap() as usize;
    assert!((TASKS / 2..TASKS).contains(&left), "{left}");
    repaired.stop();
}

/// Everybody on the host could read the values in them, if the umask let them.
#[test]
fn the_files_of_a_server_and_of_its_backups_are_for_their_owner_alone() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
    let data = folder.path().join("data");
    let data_text = data.to_str().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "umask 000 && exec \"$0\" \"$@\"", SPINDLE, "serve", "--kv", "off", "--publish", "off"]);
    let server = Server::start_by(command.args(["--tasks", "tcp://127.0.0.1:*", "--data", data_text]).args(SEGMENTS));
    let mut client = TasksClient::connect(server.tasks()).unwrap();
    for number in 0..TASKS {
        client.add(format!("{number:03}").as_bytes(), &value(number), AddMode::Tail).unwrap();
    }
    // A log of an earlier version has files that others may read.
    let (name, _) = segments(&data).swap_remove(0);
    fs::set_permissions(data.join(name), fs::Permissions::from_mode(0o644)).unwrap();
    let (near, far) = (folder.path().join("near"), other.path().join("far"));
    for to in [&near, &far] {
        assert!(backup(&data, to).status.success());
    }
    for folder in [&data, &near, &far] {
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(folder), 0o700, "{}", folder.display());
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            assert_eq!(mode(&path), 0o600, "{}", path.display());
        }
    }
    server.stop();
}
