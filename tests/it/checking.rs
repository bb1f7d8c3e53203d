//! What `spindle check` says of a folder without a store, and of one that it may not write to. What a server says of the
//! end of a log that it cuts off.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use spindle::clients::rust::tasks::TasksClient;
use spindle::services::tasks::wire::AddMode;

use crate::harness::{SPINDLE, Server, spindle};
use crate::tasks_disk::Small;

fn check(folder: &Path) -> Output {
    spindle(&["check", folder.to_str().unwrap()])
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = entries.collect();
    names.sort();
    names
}

/// The line that `check` says of a folder without a store. It leaves the folder as it was.
fn refused(folder: &Path) -> String {
    let before = names(folder);
    let output = check(folder);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{}: {said}", folder.display());
    assert!(!text(&output.stdout).contains("no damage") && said.trim_end().lines().count() == 1, "{said}");
    assert!(said.contains("holds no store"), "{said}");
    assert_eq!(names(folder), before, "a check changes nothing");
    said
}

/// Starts a server, adds this many tasks, and ends it.
fn fill(data: &Path, tasks: u32) {
    let server = Server::start_tasks(data, &[]);
    let mut client = TasksClient::connect(server.tasks()).unwrap();
    for number in 0..tasks {
        client.add(format!("key-{number}").as_bytes(), &[7; 3_000], AddMode::Tail).unwrap();
    }
    server.stop();
}

/// It said "no damage", and left a file.
#[test]
fn a_check_of_a_folder_without_a_store_says_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("empty")).unwrap();
    assert!(refused(&path("empty")).contains("it is empty"));
    fs::create_dir(path("other")).unwrap();
    fs::write(path("other/letter"), "a file of the user").unwrap();
    fs::write(path("other/lock"), "").unwrap();
    assert!(refused(&path("other")).contains("it has 1 other file"));
    for backup in ["backups/monday", "backups/tuesday"] {
        fill(&path(backup), 1);
    }
    let said = refused(&path("backups"));
    assert!(said.contains("name one of those in it: monday, tuesday"), "{said}");
    // A first start that was interrupted.
    fs::create_dir(path("begun")).unwrap();
    fs::write(path("begun/1.new"), [0; 512]).unwrap();
    assert!(refused(&path("begun")).contains("it has 1 other file"));
    let output = check(&path("backups/monday"));
    let said = text(&output.stdout);
    assert!(output.status.success() && said.contains("the folder of a server") && said.contains("no damage"), "{said}");
}

/// It could not make its lock there, and said that the device was broken.
#[test]
fn a_check_reads_a_folder_that_it_may_not_write_to() {
    let Some(small) = Small::mount("64m") else { return };
    let data = small.path().join("data");
    fill(&data, 3);
    let read_only = |flag: &str| {
        let mounted = Command::new("mount").args(["-o", flag]).arg(small.path()).status();
        assert!(mounted.unwrap().success());
    };
    for is_locked in [true, false] {
        read_only("remount,ro");
        let output = check(&data);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains("no damage"));
        read_only("remount,rw");
        if is_locked {
            fs::remove_file(data.join("lock")).unwrap();
        }
    }
    // A server cannot do without writing. Its device may be well.
    read_only("remount,ro");
    let data = data.to_str().unwrap();
    let output = spindle(&["serve", "--kv", "off", "--publish", "off", "--tasks", "tcp://127.0.0.1:*", "--data", data]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the file system is read-only for the server") && said.contains("copy the folder"), "{said}");
}

/// The newest segment of a folder, and the offset behind its last byte that is not zero.
fn written_end(data: &Path) -> (PathBuf, Vec<u8>, usize) {
    let name = names(data).into_iter().rfind(|name| name.ends_with(".log")).unwrap();
    let bytes = fs::read(data.join(&name)).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    (data.join(name), bytes, end)
}

/// The bytes were gone, and no line said so.
#[test]
fn what_an_opening_cuts_off_is_logged_with_its_place_and_size() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), 5);
    // A batch that the system has written in part when the power failed: its head and some of its bodies are missing.
    let (path, mut bytes, end) = written_end(folder.path());
    let at = end.next_multiple_of(512);
    bytes[at + 700..at + 2_000].fill(9);
    fs::write(&path, bytes).unwrap();
    let name = path.file_name().unwrap().to_str().unwrap();
    let place = format!("2000 bytes of {name} from byte {at} on");
    let output = check(folder.path());
    let said = text(&output.stdout);
    assert!(output.status.success() && said.contains(&place) && said.contains("no damage"), "{place}: {said}");
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut command = Command::new(SPINDLE);
    command.args(["serve", "--kv", "off", "--publish", "off", "--tasks", "tcp://127.0.0.1:*", "--data"]);
    command.arg(folder.path()).stderr(Stdio::from(log.reopen().unwrap()));
    let server = Server::start_by(&mut command);
    assert_eq!(TasksClient::connect(server.tasks()).unwrap().count().unwrap(), 5);
    server.stop();
    let logged = fs::read_to_string(log.path()).unwrap();
    assert!(logged.contains(&place) && logged.contains("cut off"), "{place}: {logged}");
    let again = check(folder.path());
    assert!(!text(&again.stdout).contains("from byte"), "it is reported once");
}
