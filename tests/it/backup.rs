//! Backups that a running server writes: under load, to the same and another file system, and refused ones.
//!
//! ```text
//! clients add, lend, drop, remove ─► what is known when a backup begins and ends ─► a server on the backup
//! ```
//! All that was acknowledged before a backup began is in it, and nothing that was asked for after its end.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use spindle::clients::rust::jobs::JobsClient;
use spindle::clients::rust::tasks::TasksClient;
use spindle::services::jobs::wire::JobId;
use spindle::services::tasks::wire::{AddMode, LendMode, RepayStatus};

use crate::harness::{Guarded, SPINDLE, Server, spindle};
use crate::lock::Mutex;
use crate::stage::client as events;
use crate::tasks_disk::Small;

/// Longer than any test: no lease expires.
const LEASE: u64 = 86_400_000;
/// A quarter of how far lend keys and ids jump when a backup is opened.
const FAR: u64 = 1 << 42;
/// Tasks that are added before each backup, at least.
const TASKS: usize = 400;
/// Clients at once.
const CLIENTS: usize = 4;
const SEGMENTS: [&str; 2] = ["--segment-size", "64K"];

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn backup(data: &Path, to: &Path) -> Output {
    spindle(&["backup", text(to), "--data", text(data), "--json"])
}

/// The report of a backup that succeeds.
fn report(output: Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let done: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(done["stores"].as_array().map(Vec::len), Some(1), "there are no durable tables");
    done["stores"][0].clone()
}

/// The line of a command that fails.
fn complaint(output: Output) -> String {
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.trim_end().lines().count() == 1, "{}: {said}", output.status);
    said
}

fn client(server: &Server) -> TasksClient {
    TasksClient::connect(server.tasks()).unwrap()
}

// ---------------------------------------------------------------------------------------------------------------- load

/// A task as its client knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// It was asked for, and the answer has not come.
    Asked,
    Added,
    /// Another request for it was sent, and its answer has not come.
    Changing,
    Held(u64),
    Dropped,
    Removed,
}

/// What the clients know together.
#[derive(Clone, Default)]
struct Book {
    tasks: BTreeMap<Vec<u8>, Known>,
    /// The largest lend key and job id.
    token: u64,
    /// Jobs, and whether they are finished.
    jobs: BTreeMap<u64, Option<bool>>,
}

/// Adds a task, lends some task, and drops, removes or keeps it, again and again.
fn work(endpoint: &str, number: usize, book: &Mutex<Book>, is_over: &AtomicBool) {
    let mut client = TasksClient::connect(endpoint).unwrap();
    for step in 0.. {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let key = format!("{number}-{step:06}").into_bytes();
        let note = |key: &[u8], known| _ = book.lock().tasks.insert(key.to_vec(), known);
        note(&key, Known::Asked);
        assert!(client.add(&key, &[7; 300], AddMode::Tail).unwrap());
        // Another client may hold it by now.
        book.lock().tasks.entry(key).and_modify(|known| {
            if *known == Known::Asked {
                *known = Known::Added;
            }
        });
        if step % 2 == 0 {
            continue;
        }
        let lent = client.lend(LEASE, LendMode::Poll).unwrap().expect("more are added than lent");
        let mut known = book.lock();
        known.token = known.token.max(lent.lend_key);
        known.tasks.insert(lent.key.clone(), Known::Held(lent.lend_key));
        drop(known);
        if step % 8 == 7 {
            continue;
        }
        note(&lent.key, Known::Changing);
        if step % 4 == 1 {
            assert!(client.repay(lent.lend_key, &lent.key, b"done", RepayStatus::Drop).unwrap());
            note(&lent.key, Known::Dropped);
        } else {
            assert!(client.remove(&lent.key).unwrap());
            note(&lent.key, Known::Removed);
        }
    }
}

/// Adds jobs, and finishes every second one.
fn work_on_jobs(address: &str, book: &Mutex<Book>, is_over: &AtomicBool) {
    let jobs = JobsClient::new(address);
    while !is_over.load(Ordering::Relaxed) {
        for _ in 0..2 {
            let id = jobs.add(b"queue", &[9; 200]).unwrap().0;
            let mut book = book.lock();
            book.token = book.token.max(id);
            book.jobs.insert(id, Some(false));
        }
        let job = jobs.get(b"queue").unwrap().unwrap();
        book.lock().jobs.insert(job.id.0, None);
        assert!(jobs.ack(b"queue", job.id).unwrap());
        book.lock().jobs.insert(job.id.0, Some(true));
    }
}

/// Checks a server on a backup that was begun when `before` was known, and was whole when `after` was.
fn check(server: &Server, before: &Book, after: &Book) {
    let mut client = client(server);
    for (key, known) in &before.tasks {
        let found = client.lookup(key).unwrap();
        let name = String::from_utf8_lossy(key).into_owned();
        let is_same = after.tasks[key] == *known;
        match known {
            Known::Removed => assert_eq!(found, None, "{name} is back"),
            Known::Dropped => assert_eq!(found.as_deref(), Some(&b"done"[..]), "{name}"),
            Known::Added | Known::Held(_) if is_same => assert_eq!(found, Some(vec![7; 300]), "{name}"),
            Known::Added | Known::Held(_) | Known::Asked | Known::Changing => {}
        }
        if let (Known::Held(token), true) = (known, is_same) {
            assert!(client.heartbeat(*token, key, LEASE).unwrap(), "{name} is not leased");
        }
    }
    let new = (0..CLIENTS).map(|number| format!("{number}-999999"));
    new.for_each(|key| assert_eq!(client.lookup(key.as_bytes()).unwrap(), None, "it was added after the end"));
    while let Some(lent) = client.lend(LEASE, LendMode::Poll).unwrap() {
        assert!(lent.lend_key > after.token + FAR, "{} after {}", lent.lend_key, after.token);
        let known = before.tasks.get(&lent.key);
        let is_finished = matches!(known, Some(Known::Dropped | Known::Removed | Known::Held(_)));
        let is_again = matches!(known, Some(Known::Held(_))) && after.tasks[&lent.key] != *known.unwrap();
        assert!(!is_finished || is_again, "{known:?} is lent again");
    }
    let jobs = JobsClient::new(server.jobs());
    let id = jobs.add(b"other", b"new").unwrap();
    assert!(id.0 > after.token + FAR, "{id} after {}", after.token);
    for (id, finished) in &before.jobs {
        let is_in = jobs.is_in(b"queue", JobId(*id)).unwrap();
        match (finished, after.jobs[id]) {
            (Some(true), _) => assert!(!is_in, "job {id} is back"),
            (Some(false), Some(false)) => assert!(is_in, "job {id} is lost"),
            _ => {}
        }
    }
}

#[test]
fn a_backup_under_load_holds_what_was_acknowledged_before_it_began() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start_tasks(&data, &[&SEGMENTS[..], &["--jobs", "0"]].concat());
    let (book, is_over) = (Mutex::new(Book::default()), AtomicBool::new(false));
    let mut moments = Vec::new();
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (endpoint, book, is_over) = (server.tasks(), &book, &is_over);
            scope.spawn(move || work(endpoint, number, book, is_over));
        }
        scope.spawn(|| work_on_jobs(server.jobs(), &book, &is_over));
        for round in 1..=3 {
            while book.lock().tasks.len() < round * TASKS {
                std::thread::yield_now();
            }
            let before = book.lock().clone();
            let report = report(backup(&data, &folder.path().join(round.to_string())));
            moments.push((before, book.lock().clone(), report));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    for (number, key) in (0..CLIENTS).map(|number| (number, format!("{number}-999999"))) {
        assert!(client(&server).add(key.as_bytes(), b"after the backups", AddMode::Tail).unwrap(), "{number}");
    }
    for (round, (before, after, report)) in moments.iter().enumerate() {
        let restored = folder.path().join((round + 1).to_string());
        assert!(report["segments"].as_u64().unwrap() > 1, "{report}");
        let checked = spindle(&["check", text(&restored)]);
        let said = String::from_utf8(checked.stdout).unwrap();
        assert!(checked.status.success() && said.contains("a backup that no server has opened yet"), "{said}");
        let other = Server::start_tasks(&restored, &[&SEGMENTS[..], &["--jobs", "0"]].concat());
        check(&other, before, after);
        other.stop();
        let checked = spindle(&["check", text(&restored)]);
        assert!(checked.status.success() && !String::from_utf8(checked.stdout).unwrap().contains("a backup"));
    }
    // The server itself has lost nothing by the servers on files that it shares with them.
    let (last, mut client) = (book.lock().clone(), client(&server));
    for (key, known) in &last.tasks {
        assert_eq!(client.lookup(key).unwrap().is_none(), *known == Known::Removed, "{known:?}");
    }
    server.stop();
    assert!(spindle(&["check", text(&data)]).status.success());
}

// --------------------------------------------------------------------------------------------------------------- files

/// A server with some closed segments, quiet.
fn with_segments(data: &Path) -> Server {
    let server = Server::start_tasks(data, &SEGMENTS);
    let mut client = client(&server);
    for number in 0..100 {
        client.add(format!("{number:03}").as_bytes(), &[3; 3_000], AddMode::Tail).unwrap();
    }
    server
}

#[test]
fn a_backup_links_on_one_file_system_and_copies_to_another() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = with_segments(&data);
    let near = folder.path().join("around/near");
    let linked = report(backup(&data, &near));
    let count = |report: &serde_json::Value, name: &str| report[name].as_u64().unwrap();
    assert!(count(&linked, "linked_files") > 2 && count(&linked, "copied_files") == 1, "{linked}");
    assert_eq!(fs::metadata(&near).unwrap().permissions().mode() & 0o777, 0o700);
    let other = tempfile::tempdir_in("/dev/shm").unwrap();
    let far = other.path().join("far");
    let copied = report(backup(&data, &far));
    assert!(count(&copied, "linked_files") == 0 && count(&copied, "copied_files") > 2, "{copied}");
    assert_eq!(count(&copied, "copied_files"), count(&copied, "segments"), "{copied}");
    server.stop();
    for backup in [near, far] {
        assert!(spindle(&["check", text(&backup)]).status.success());
        let server = Server::start_tasks(&backup, &SEGMENTS);
        assert_eq!(client(&server).count().unwrap(), 100);
        server.stop();
    }
}

/// The command said that the disk was broken. As a service the server could write nowhere else.
#[test]
fn a_folder_that_the_unit_makes_read_only_is_explained() {
    let Some(small) = Small::mount("1m") else { return };
    assert!(Command::new("mount").args(["-o", "remount,ro"]).arg(small.path()).status().unwrap().success());
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = with_segments(&data);
    let to = small.path().join("monday");
    let said = complaint(backup(&data, &to));
    assert!(said.contains("ReadWritePaths=") && said.contains("systemctl edit") && said.contains(text(&to)), "{said}");
    assert_eq!(client(&server).count().unwrap(), 100, "the server still serves");
    server.stop();
}

#[test]
fn a_folder_that_takes_no_backup_is_named_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = with_segments(&data);
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("full")).unwrap();
    fs::write(path("full/file"), "a file of the user").unwrap();
    fs::write(path("file"), "a file of the user").unwrap();
    symlink(&data, path("link")).unwrap();
    for (to, why) in [
        ("full", "choose an empty folder"),
        ("file", "no folder"),
        ("file/below", "no folder"),
        ("data", "inside of the folder of the server"),
        ("data/backup", "inside of the folder of the server"),
        ("link/new/backup", "inside of the folder of the server"),
        ("full/../data/backup", "inside of the folder of the server"),
        ("missing/../data/backup", ".."),
    ] {
        let said = complaint(backup(&data, &path(to)));
        assert!(said.contains(why) && said.contains(text(&path(to))), "{to}: {said}");
    }
    let mut left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["data", "file", "full", "link"]);
    assert_eq!(fs::read_dir(path("full")).unwrap().count(), 1);
    assert!(!data.join("backup").exists());
    // A relative path is one of the client, and the server has another folder.
    let mut command = Command::new(SPINDLE);
    let there = command.args(["backup", "there", "--data", "data"]).current_dir(folder.path()).output().unwrap();
    assert!(there.status.success(), "{there:?}");
    let said = String::from_utf8(there.stdout).unwrap();
    assert!(said.contains(text(&path("there"))) && said.contains("segments; "), "{said}");
    assert!(path("there/backup").exists());
    server.stop();
}

#[test]
fn a_disk_without_room_for_a_backup_is_named_and_nothing_of_it_is_left() {
    let Some(small) = Small::mount("256k") else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = with_segments(folder.path());
    let to = small.path().join("backup");
    let said = complaint(backup(folder.path(), &to));
    assert!(said.contains("no space is left for the backup") && said.contains(text(&to)), "{said}");
    assert_eq!(fs::read_dir(small.path()).unwrap().count(), 0);
    assert!(client(&server).add(b"next", b"v", AddMode::Tail).unwrap());
    server.stop();
}

#[test]
fn an_interrupted_backup_is_refused_by_a_server_and_replaced_by_the_next_backup() {
    let folder = tempfile::tempdir().unwrap();
    let (data, to) = (folder.path().join("data"), folder.path().join("to"));
    let server = with_segments(&data);
    report(backup(&data, &to));
    // As if the server had been killed before the last step.
    fs::rename(to.join("backup"), to.join("backup.unfinished")).unwrap();
    let serve = ["serve", "--kv", "off", "--publish", "off", "--tasks", "tcp://127.0.0.1:*", "--data", text(&to)];
    assert!(complaint(spindle(&serve)).contains("interrupted"));
    report(backup(&data, &to));
    server.stop();
    let server = Server::start_tasks(&to, &SEGMENTS);
    assert_eq!(client(&server).count().unwrap(), 100);
    server.stop();
}

#[test]
fn a_restored_server_has_the_events_and_repeats_no_id() {
    let folder = tempfile::tempdir().unwrap();
    let (data, to) = (folder.path().join("data"), folder.path().join("to"));
    let server = Server::start_events(&["--data", text(&data)]);
    let mut client = events(&server);
    let value = client.create().unwrap().value;
    client.defer().unwrap();
    report(backup(&data, &to));
    assert_eq!(client.create().unwrap().id, 3);
    server.stop();
    let server = Server::start_events(&["--data", text(&to)]);
    let mut client = events(&server);
    assert_eq!(client.count().unwrap(), 2);
    assert_eq!(client.find(1).unwrap().unwrap().value, value);
    assert_eq!(client.find(2).unwrap().unwrap().value, None);
    let next = client.create().unwrap().id;
    assert!(next > FAR, "{next}");
    assert_eq!(client.create().unwrap().id, next + 1);
    let mut worker = TasksClient::connect(server.events_queue()).unwrap();
    assert_eq!(worker.lend(LEASE, LendMode::Poll).unwrap().unwrap().key, b"2");
    server.stop();
}

// -------------------------------------------------------------------------------------------------------------- server

#[test]
fn without_a_server_a_backup_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let (data, to) = (folder.path().join("data"), folder.path().join("to"));
    assert!(complaint(backup(&data, &to)).contains("is not there"));
    // A server without tasks, jobs and events has no folder.
    let tables = Server::start(&["--data", text(&data)]);
    assert!(complaint(backup(&data, &to)).contains("is not there"));
    tables.stop();
    let server = with_segments(&data);
    drop(server);
    assert!(data.join("control").exists(), "the server was killed");
    assert!(complaint(backup(&data, &to)).contains("no server keeps tasks, jobs, events or durable tables"));
    let server = Server::start_tasks(&data, &SEGMENTS);
    report(backup(&data, &to));
    server.stop();
    assert!(!data.join("control").exists());
    assert!(
        complaint(backup(&data, &folder.path().join("other")))
            .contains("no server keeps tasks, jobs, events or durable tables")
    );
    assert!(!folder.path().join("other").exists());
}

#[test]
fn a_second_server_is_refused_and_the_first_still_takes_requests_for_backups() {
    let folder = tempfile::tempdir().unwrap();
    let (data, to) = (folder.path().join("data"), folder.path().join("to"));
    let server = with_segments(&data);
    for flags in [&["--tasks", "tcp://127.0.0.1:*"][..], &["--jobs", "0", "--repair"]] {
        let serve = ["serve", "--kv", "off", "--publish", "off", "--data", text(&data)];
        assert!(complaint(spindle(&[&serve[..], flags].concat())).contains("in use by another process"));
    }
    assert!(complaint(spindle(&["check", text(&data)])).contains("in use by another process"));
    report(backup(&data, &to));
    server.stop();
}

/// How a backup is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interrupted {
    ServerEnds,
    ServerIsKilled,
    ClientIsKilled,
}

/// Interrupts a copy once its folder has its note. Returns whether it was not whole by then.
fn interrupt(data: &Path, to: &Path, how: Interrupted) -> bool {
    let server = Server::start_tasks(data, &[]);
    let mut command = Command::new(SPINDLE);
    let command = command.args(["backup", text(to), "--data", text(data)]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut asking = Guarded(command.spawn().unwrap());
    let has = |name: &str| to.join(name).exists();
    while !has("backup.unfinished") && !has("backup") {
        std::thread::yield_now();
    }
    match how {
        Interrupted::ServerEnds => server.stop(),
        Interrupted::ServerIsKilled => drop(server),
        Interrupted::ClientIsKilled => {
            asking.0.kill().unwrap();
            while has("backup.unfinished") {
                std::thread::yield_now();
            }
            server.stop();
            return !has("backup");
        }
    }
    let said_whole = asking.0.wait().unwrap().success();
    assert!(!said_whole || has("backup"), "{how:?}: the client says that it is whole");
    assert_ne!(has("backup"), has("backup.unfinished"), "{how:?}");
    !has("backup")
}

#[test]
fn an_interrupted_copy_is_removed_or_marked_and_holds_up_no_end() {
    let folder = tempfile::tempdir().unwrap();
    let far = tempfile::tempdir_in("/dev/shm").unwrap();
    let data = folder.path().join("data");
    let server = Server::start_tasks(&data, &[]);
    for number in 0..20 {
        client(&server).add(format!("{number}").as_bytes(), &vec![number; 3 << 20], AddMode::Tail).unwrap();
    }
    server.stop();
    let mut interrupted = 0;
    let ways = [Interrupted::ServerEnds, Interrupted::ServerIsKilled, Interrupted::ClientIsKilled].repeat(2);
    for (round, how) in ways.into_iter().enumerate() {
        let to = far.path().join(round.to_string());
        if interrupt(&data, &to, how) {
            interrupted += 1;
            assert_eq!(to.exists(), how != Interrupted::ClientIsKilled, "{how:?}");
        } else {
            fs::remove_dir_all(&to).unwrap();
        }
        let server = Server::start_tasks(&data, &[]);
        report(backup(&data, &to));
        server.stop();
        assert!(spindle(&["check", text(&to)]).status.success());
        fs::remove_dir_all(&to).unwrap();
    }
    println!("{interrupted} of 6 were interrupted");
}
