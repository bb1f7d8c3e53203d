//! The folder of a server whose bytes have changed: what `check` names, what `--repair` loses, and what the clients of
//! each protocol receive for a value that is lost.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use spindle::clients::rust::events::EventsClient;
use spindle::clients::rust::jobs::JobsClient;
use spindle::clients::rust::tasks::TasksClient;
use spindle::services::tasks::wire::{AddMode, LendMode, RepayStatus, Reply, Request};
use spindle::zmtp::SocketType;

use crate::harness::{SPINDLE, Server, spindle};
use crate::zmtp::Plain;

/// Longer than any test: no lease expires.
const LEASE: u64 = 86_400_000;
/// A quarter of how far lend keys jump after a loss.
const FAR: u64 = 1 << 42;

fn client(server: &Server) -> TasksClient {
    TasksClient::connect(server.tasks()).unwrap()
}

/// The files of the log in a folder, the newest last.
fn segments(data: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(data).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> = entries.filter(|path| path.extension().is_some_and(|end| end == "log")).collect();
    found.sort();
    found
}

/// Changes the last byte of each of these runs of bytes in the log, as a device does. At least one must be there.
fn rot(data: &Path, run: &[u8]) {
    let mut count = 0;
    for path in segments(data) {
        let mut bytes = fs::read(&path).unwrap();
        let found: Vec<usize> =
            bytes.windows(run.len()).enumerate().filter_map(|(at, b)| (b == run).then_some(at)).collect();
        for at in &found {
            bytes[at + run.len() - 1] ^= 0x80;
        }
        count += found.len();
        if !found.is_empty() {
            fs::write(&path, bytes).unwrap();
        }
    }
    assert!(count > 0, "{} is not in the log", run.escape_ascii());
}

/// The output of `spindle check`: its exit status, standard output and standard error.
fn check(data: &Path) -> (Option<i32>, String, String) {
    let output = spindle(&["check", data.to_str().unwrap()]);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// A folder with 40 tasks, of which 10 are finished. Returns the largest lend key.
fn sample(data: &Path) -> u64 {
    let server = Server::start_tasks(data, &[]);
    let mut client = client(&server);
    for number in 0..40 {
        let key = format!("key-{number:02}");
        client.add(key.as_bytes(), format!("value-{number:02}").as_bytes(), AddMode::Tail).unwrap();
    }
    let mut last = 0;
    for _ in 0..10 {
        let lent = client.lend(LEASE, LendMode::Poll).unwrap().unwrap();
        assert!(client.repay(lent.lend_key, &lent.key, b"done", RepayStatus::Drop).unwrap());
        last = lent.lend_key;
    }
    server.stop();
    last
}

/// Starts a server that must refuse its folder, and returns the line that it says.
fn refusal(data: &Path) -> String {
    let data = data.to_str().unwrap();
    let output = spindle(&["serve", "--kv", "off", "--publish", "off", "--tasks", "tcp://127.0.0.1:*", "--data", data]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.trim_end().lines().count() == 1, "{}: {said}", output.status);
    said
}

// --------------------------------------------------------------------------------------------------------------- check

#[test]
fn a_check_counts_what_a_good_folder_holds_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    sample(folder.path());
    let before: Vec<_> = segments(folder.path()).iter().map(|path| fs::read(path).unwrap()).collect();
    let (status, said, error) = check(folder.path());
    assert_eq!((status, error.as_str()), (Some(0), ""));
    assert!(said.contains("no damage") && said.contains("1 segments") && said.contains("0 set aside"), "{said}");
    let after: Vec<_> = segments(folder.path()).iter().map(|path| fs::read(path).unwrap()).collect();
    assert!(before == after);
}

#[test]
fn a_check_says_why_it_cannot_read_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_tasks(folder.path(), &[]);
    let (status, _, said) = check(folder.path());
    assert!(status == Some(1) && said.contains("in use by another process"), "{said}");
    client(&server).ping().unwrap();
    server.stop();
    let missing = folder.path().join("missing");
    let (status, _, said) = check(&missing);
    assert!(status == Some(1) && said.contains("is not there") && !missing.exists(), "{said}");
    let (status, _, said) = check(Path::new("/etc/hostname"));
    assert!(status == Some(1) && said.contains("no folder"), "{said}");
}

#[test]
fn a_check_names_every_damaged_part_and_fails() {
    let folder = tempfile::tempdir().unwrap();
    sample(folder.path());
    rot(folder.path(), b"value-33");
    let (status, said, error) = check(folder.path());
    let named: Vec<&str> = said.lines().filter(|line| line.starts_with("lost: ")).collect();
    assert!(status == Some(1) && named.len() == 1 && named[0].contains("the value of"), "{said}");
    assert!(!said.contains("damage"), "{said}");
    assert!(error.contains("has lost 1 value:") && error.contains("without --repair"), "{error}");
    rot(folder.path(), b"key-21");
    let (status, said, error) = check(folder.path());
    let named = said.lines().filter(|line| line.starts_with("damaged: ")).count();
    assert!(status == Some(1) && named > 0 && !said.contains("no damage"), "{said}");
    let parts = if named == 1 { "1 damaged part".to_owned() } else { format!("{named} damaged parts") };
    assert!(error.contains(&format!("has {parts} and has lost 1 value")), "{error}");
    assert!(error.contains("start with --repair"), "{error}");
}

#[test]
fn a_value_that_no_task_needs_is_no_damage_when_it_rots() {
    let folder = tempfile::tempdir().unwrap();
    sample(folder.path());
    // The first value of a task that was repaid with another one.
    rot(folder.path(), b"value-03");
    let (status, said, error) = check(folder.path());
    assert_eq!((status, error.as_str()), (Some(0), ""), "{said}");
    assert!(said.contains("changed 1 dead record that nothing needs") && said.contains("no damage"), "{said}");
    let server = Server::start_tasks(folder.path(), &[]);
    assert_eq!(client(&server).lookup(b"key-03").unwrap().as_deref(), Some(&b"done"[..]));
    server.stop();
}

// -------------------------------------------------------------------------------------------------------------- repair

#[test]
fn a_repair_names_what_is_lost_serves_the_rest_and_jumps() {
    let folder = tempfile::tempdir().unwrap();
    let last = sample(folder.path());
    rot(folder.path(), b"key-21");
    let said = refusal(folder.path());
    assert!(said.contains("is damaged") && said.contains("--repair"), "{said}");
    let log = tempfile::NamedTempFile::new().unwrap();
    let endpoint = format!("ipc://{}", folder.path().join("tasks").display());
    let data = folder.path().to_str().unwrap();
    let mut server = Command::new(SPINDLE);
    let flags = ["serve", "--kv", "off", "--publish", "off", "--tasks", &endpoint, "--data", data, "--repair"];
    let child = server.args(flags).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.reopen().unwrap()).spawn();
    let mut server = crate::harness::Guarded(child.unwrap());
    let mut client = TasksClient::connect(&endpoint).unwrap();
    let lookup = |client: &mut TasksClient, number: u8| client.lookup(format!("key-{number:02}").as_bytes()).unwrap();
    for number in 0..40 {
        let expected = match number {
            0..10 => Some(b"done".to_vec()),
            21 => None,
            _ => Some(format!("value-{number:02}").into_bytes()),
        };
        assert_eq!(lookup(&mut client, number), expected, "{number}");
    }
    assert_eq!(client.count().unwrap(), 29);
    let lent = client.lend(LEASE, LendMode::Poll).unwrap().unwrap();
    assert!(lent.lend_key > last + FAR, "{} after {last}", lent.lend_key);
    client.terminate().unwrap();
    assert!(server.0.wait().unwrap().success());
    let logged = fs::read_to_string(log.path()).unwrap();
    assert!(logged.contains("is lost: finished tasks may have returned"), "{logged}");
    let kept = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(kept.into_iter().any(|name| name.to_string_lossy().ends_with(".log.bad")));
    // The folder is good again, and the next start needs no flag and jumps no more.
    assert_eq!(check(folder.path()).0, Some(0));
    let server = Server::start_tasks(folder.path(), &[]);
    let next = self::client(&server).lend(LEASE, LendMode::Poll).unwrap().unwrap();
    assert!(next.lend_key > lent.lend_key && next.lend_key < lent.lend_key + FAR, "{}", next.lend_key);
    server.stop();
}

/// The second one replaced what the first one had kept.
#[test]
fn a_second_repair_keeps_what_the_first_one_has_kept() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    let kept = || {
        let files = fs::read_dir(data).unwrap().map(|entry| entry.unwrap().path());
        let mut kept: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "bad")).collect();
        kept.sort();
        kept.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect::<Vec<_>>()
    };
    let mut before = Vec::new();
    for round in 1..=3 {
        sample(data);
        rot(data, b"key-21");
        Server::start_tasks(data, &["--repair"]).stop();
        let now = kept();
        assert!(now.len() > before.len(), "{:?}", now.iter().map(|(path, _)| path).collect::<Vec<_>>());
        assert!(before.iter().all(|file| now.contains(file)), "round {round}: one is replaced");
        before = now;
        // The next log begins at the number of the first one.
        segments(data).iter().for_each(|path| fs::remove_file(path).unwrap());
        Server::start_tasks(data, &["--repair"]).stop();
    }
}

// --------------------------------------------------------------------------------------------------------- lost values

/// The metrics of the store.
fn set_aside(server: &Server) -> u64 {
    server.stats()["tasks"]["store"]["set_aside"].as_u64().unwrap()
}

#[test]
fn a_task_whose_value_is_lost_is_dropped_and_can_be_written_again_or_removed() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let flags = ["--tasks", "tcp://127.0.0.1:*", "--data", data];
    let server = Server::start(&flags);
    let mut client = client(&server);
    for number in 0..4 {
        client.add(format!("key-{number}").as_bytes(), format!("a-value-{number}").as_bytes(), AddMode::Tail).unwrap();
    }
    let held = client.lend(LEASE, LendMode::Poll).unwrap().unwrap();
    assert_eq!(held.key, b"key-0");
    drop(client);
    server.stop();
    for number in 0..3 {
        rot(folder.path(), format!("a-value-{number}").as_bytes());
    }
    let server = Server::start(&flags);
    let mut client = self::client(&server);
    // The values of the next two are lost: the same request continues with the third.
    let next = client.lend(LEASE, LendMode::Poll).unwrap().unwrap();
    assert_eq!((next.key.as_slice(), next.value.as_slice()), (&b"key-3"[..], &b"a-value-3"[..]));
    for key in [b"key-0", b"key-1", b"key-2"] {
        assert_eq!(client.lookup(key).unwrap(), None);
        assert!(!client.add(key, b"v", AddMode::Tail).unwrap(), "the key is there");
    }
    client.flush().unwrap();
    assert_eq!(set_aside(&server), 3);
    // The holder keeps its lease, and the value that it brings counts.
    assert!(client.repay(held.lend_key, &held.key, b"brought", RepayStatus::Front).unwrap());
    assert!(client.update(b"key-1", b"written again").unwrap());
    assert!(client.remove(b"key-2").unwrap());
    assert_eq!(client.lookup(b"key-1").unwrap().as_deref(), Some(&b"written again"[..]));
    let again = client.lend(LEASE, LendMode::Poll).unwrap().unwrap();
    assert_eq!((again.key, again.value), (held.key, b"brought".to_vec()));
    client.flush().unwrap();
    assert_eq!(set_aside(&server), 0);
    drop(client);
    server.stop();
    let server = Server::start(&flags);
    let mut client = self::client(&server);
    assert_eq!(client.lookup(b"key-0").unwrap().as_deref(), Some(&b"brought"[..]));
    assert_eq!(client.lookup(b"key-2").unwrap(), None);
    client.flush().unwrap();
    assert_eq!(set_aside(&server), 0, "no task needs the lost bytes any more");
    server.stop();
}

/// Leases of tasks whose values were lost stayed, and the tasks with them, until they expired. The second value is found
/// lost when its reply, which had to wait for a client that does not read, is written.
#[test]
fn a_lend_of_a_lost_value_leaves_no_lease_whether_its_reply_waited_or_not() {
    const TASKS: u32 = 30;
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let flags = ["--tasks", "tcp://127.0.0.1:*", "--data", data];
    let server = Server::start(&flags);
    let mut client = client(&server);
    for number in 0..TASKS {
        let value = [format!("a-value-{number:02}").as_bytes(), &[7; 600_000]].concat();
        client.add(&number.to_be_bytes(), &value, AddMode::Tail).unwrap();
    }
    drop(client);
    server.stop();
    rot(folder.path(), b"a-value-00");
    rot(folder.path(), b"a-value-29");
    let server = Server::start(&flags);
    // 18 MB are more than the system and the send buffer take.
    let stream = std::net::TcpStream::connect(server.tasks().strip_prefix("tcp://").unwrap()).unwrap();
    let mut slow = Plain::meet(stream, SocketType::Dealer).unwrap().0;
    let mut lend = Vec::new();
    Request::Lend { timeout_ms: LEASE, mode: LendMode::Poll }.encode(&mut lend);
    slow.send_all(&vec![&[&lend[..]][..]; TASKS as usize]);
    let mut other = self::client(&server);
    while other.count().unwrap() > 0 {}
    let queue = |name: &str| server.stats()["tasks"]["queues"][0][name].as_u64().unwrap();
    assert!(queue("leased") >= u64::from(TASKS) - 2, "it has not read");
    let mut replies = Vec::new();
    while replies.len() < TASKS as usize {
        let frames = slow.receive();
        let reply = frames.last().unwrap();
        replies.push(matches!(Reply::decode(reply), Ok(Reply::Lent { .. })));
    }
    let empty: Vec<usize> = (0..replies.len()).filter(|number| !replies[*number]).collect();
    assert_eq!(empty, [0, 29], "the values that are lost");
    let mut flushes = 0;
    while other.count().unwrap() > 0 || queue("dead") < 2 {
        other.flush().unwrap();
        flushes += 1;
        assert!(flushes < 10_000, "{} leased, {} dead: a lease of a lost value stays", queue("leased"), queue("dead"));
    }
    assert_eq!((queue("leased"), queue("dead")), (u64::from(TASKS) - 2, 2));
    server.stop();
}

#[test]
fn a_job_whose_data_is_lost_gives_way_to_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_jobs(folder.path(), &[]);
    let jobs = JobsClient::new(server.jobs());
    let ids = [&b"data of the first"[..], b"data of the second"].map(|data| jobs.add(b"queue", data).unwrap());
    server.stop();
    rot(folder.path(), b"data of the first");
    let server = Server::start_jobs(folder.path(), &[]);
    let jobs = JobsClient::new(server.jobs());
    let next = jobs.get(b"queue").unwrap().unwrap();
    assert_eq!((next.id, next.data.as_slice()), (ids[1], &b"data of the second"[..]));
    assert_eq!(jobs.get(b"queue").unwrap(), None);
    assert!(jobs.is_in(b"queue", ids[0]).unwrap());
    server.stop();
    // It is set aside over restarts, until it is acknowledged.
    let server = Server::start_jobs(folder.path(), &[]);
    let jobs = JobsClient::new(server.jobs());
    assert!(jobs.is_in(b"queue", ids[0]).unwrap());
    assert!(jobs.ack(b"queue", ids[0]).unwrap(), "it can be finished");
    assert!(!jobs.is_in(b"queue", ids[0]).unwrap());
    assert!(jobs.ack(b"queue", ids[1]).unwrap());
    server.stop();
}

#[test]
fn an_event_whose_value_is_lost_is_answered_with_503_and_others_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--data", folder.path().to_str().unwrap()];
    let server = Server::start_events(&flags);
    let mut events = EventsClient::new(server.events().parse().unwrap());
    let mut worker = TasksClient::connect(server.events_queue()).unwrap();
    for value in [&b"the value of the first"[..], b"the value of the second"] {
        events.request("POST", "/events/async", b"").unwrap();
        let lent = worker.lend(LEASE, LendMode::Poll).unwrap().unwrap();
        assert!(worker.repay(lent.lend_key, &lent.key, value, RepayStatus::Drop).unwrap());
    }
    drop(worker);
    server.stop();
    rot(folder.path(), b"the value of the first");
    let server = Server::start_events(&flags);
    let mut events = EventsClient::new(server.events().parse().unwrap());
    for _ in 0..2 {
        let lost = events.request("GET", "/events/1", b"").unwrap();
        let why = lost.json()["error"].as_str().unwrap().to_owned();
        assert!(lost.status == 503 && why.contains("the value of this event is lost"), "{}: {why}", lost.status);
    }
    let found = events.request("GET", "/events/2", b"").unwrap();
    assert_eq!((found.status, found.json()["value"].as_str()), (200, Some("the value of the second")));
    assert_eq!(events.request("GET", "/events", b"").unwrap().json()["count"].as_u64(), Some(2));
    assert_eq!(events.request("GET", "/health", b"").unwrap().status, 200);
    assert_eq!(events.request("POST", "/events", b"").unwrap().json()["id"].as_u64(), Some(3));
    server.stop();
}
