//! Durable tasks: the protocol, leases, the command line, and the tasks that are there after the end.

use rustix::process::Signal;
use spindle::clients::rust::tasks::{Error, Lent, TasksClient};
use spindle::services::tasks::wire::{AddMode, Counters, Fault, Field, LendMode, RepayStatus};

use crate::harness::{Server, run_python, spindle, spindle_reads};
use crate::seeded_rng::SeededRng;

/// Longer than any test.
const LONG: u64 = 600_000;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn client(server: &Server) -> TasksClient {
    TasksClient::connect(server.tasks()).unwrap()
}

fn poll(client: &mut TasksClient) -> Option<Lent> {
    client.lend(LONG, LendMode::Poll).unwrap()
}

/// The keys of all ready tasks, in the order in which they are lent.
fn drain(client: &mut TasksClient) -> Vec<String> {
    std::iter::from_fn(|| poll(client)).map(|lent| String::from_utf8(lent.key).unwrap()).collect()
}

#[test]
fn pyzmq_sees_what_is_specified() {
    let folder = folder();
    let server = Server::start_tasks(folder.path(), &[]);
    run_python("tasks.py", &[server.tasks()]);
    server.stop();
}

#[test]
fn a_reward_moves_a_task_half_the_way_to_the_front() {
    let folder = folder();
    let server = Server::start_tasks(folder.path(), &[]);
    let mut client = client(&server);
    for number in 0..16 {
        assert!(client.add(format!("{number:02}").as_bytes(), b"", AddMode::Tail).unwrap());
    }
    let first = poll(&mut client).unwrap();
    assert!(client.repay(first.lend_key, &first.key, b"", RepayStatus::Reward).unwrap());
    let order = drain(&mut client);
    assert_eq!(order.iter().position(|key| key == "00"), Some(8), "{order:?}");
    server.stop();
}

#[test]
fn both_versions_of_stats_count_what_was_answered() {
    let (first, second) = (folder(), folder());
    let work = |client: &mut TasksClient| {
        client.ping().unwrap();
        client.add(b"k", b"v", AddMode::Tail).unwrap();
        client.add(b"k", b"v", AddMode::Tail).unwrap();
        client.update(b"k", b"w").unwrap();
        client.lookup(b"k").unwrap();
        let lent = poll(client).unwrap();
        client.heartbeat(lent.lend_key, b"k", LONG).unwrap();
        client.repay(lent.lend_key, b"k", b"x", RepayStatus::Drop).unwrap();
        client.remove(b"k").unwrap();
        client.count().unwrap();
        client.stats().unwrap();
        client.stats().unwrap()
    };
    let server = Server::start_tasks(first.path(), &[]);
    assert_eq!(work(&mut client(&server)), Counters::Eight([1, 2, 1, 1, 1, 1, 1, 2]));
    server.stop();
    let server = Server::start_tasks(second.path(), &["--spiderq-version", "1.4"]);
    assert_eq!(work(&mut client(&server)), Counters::Ten([1, 1, 2, 1, 1, 1, 1, 1, 1, 2]));
    server.stop();
}

#[test]
fn stats_of_the_tables_include_the_tasks() {
    let folder = folder();
    let data = folder.path().to_str().unwrap();
    let server = Server::start(&["--tasks", "tcp://127.0.0.1:*", "--data", data]);
    let mut client = client(&server);
    for key in [b"a", b"b", b"c", b"d"] {
        client.add(key, b"", AddMode::Tail).unwrap();
    }
    let dropped = poll(&mut client).unwrap();
    client.repay(dropped.lend_key, &dropped.key, b"", RepayStatus::Drop).unwrap();
    poll(&mut client).unwrap();
    client.lend(1, LendMode::Poll).unwrap().unwrap();
    while client.count().unwrap() < 2 {}
    let output = spindle(&["stats", "--json", "--connect", server.kv()]);
    let stats: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let queue = &stats["tasks"]["queues"][0];
    let metric = |name: &str| queue[name].as_u64().unwrap();
    assert_eq!(queue["name"], "tasks");
    assert_eq!(["ready", "leased", "dropped", "ran_out", "waiting"].map(metric), [2, 1, 1, 1, 0]);
    assert!(queue["oldest_ready_seconds"].as_f64().unwrap() >= 0.0);
    assert!(stats["tasks"]["syncs"].as_u64().unwrap() >= 8);
    server.stop();
    let server = Server::start(&[]);
    let output = spindle(&["stats", "--json", "--connect", server.kv()]);
    let stats: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(stats["tasks"].is_null());
    server.stop();
}

#[test]
fn a_task_that_is_done_is_gone_with_its_key_and_value() {
    let folder = folder();
    let data = folder.path().to_str().unwrap();
    let server = Server::start(&["--tasks", "tcp://127.0.0.1:*", "--data", data]);
    let mut client = client(&server);
    for round in 0..3 {
        assert!(client.add(b"k", b"v", AddMode::Tail).unwrap(), "the key is free again in round {round}");
        let lent = poll(&mut client).unwrap();
        assert!(!client.done(lent.lend_key + 1, b"k").unwrap(), "another lease");
        assert!(client.repay(lent.lend_key, b"k", b"ignored", RepayStatus::Done).unwrap());
        assert_eq!(client.lookup(b"k").unwrap(), None);
        assert!(!client.done(lent.lend_key, b"k").unwrap());
    }
    client.add(b"late", b"v", AddMode::Tail).unwrap();
    let late = client.lend(1, LendMode::Poll).unwrap().unwrap();
    while client.count().unwrap() < 1 {}
    assert!(!client.done(late.lend_key, b"late").unwrap(), "its lease has ended");
    let output = spindle(&["stats", "--json", "--connect", server.kv()]);
    let stats: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let queue = &stats["tasks"]["queues"][0];
    assert_eq!((queue["ready"].as_u64(), queue["dropped"].as_u64()), (Some(1), Some(0)));
    drop(server);
    let server = Server::start_tasks(folder.path(), &[]);
    assert!(self::client(&server).add(b"k", b"v", AddMode::Tail).unwrap(), "also after kill -9");
    server.stop();
}

#[test]
fn a_lease_that_runs_out_returns_the_task_and_its_holder_is_refused() {
    let folder = folder();
    let server = Server::start_tasks(folder.path(), &[]);
    let mut client = client(&server);
    client.add(b"k", b"v", AddMode::Tail).unwrap();
    let first = client.lend(1, LendMode::Poll).unwrap().unwrap();
    let second = client.lend(LONG, LendMode::Block).unwrap().unwrap();
    assert_eq!((&*second.key, &*second.value), (&b"k"[..], &b"v"[..]));
    assert!(second.lend_key > first.lend_key);
    assert!(!client.repay(first.lend_key, b"k", b"late", RepayStatus::Drop).unwrap());
    assert!(!client.heartbeat(first.lend_key, b"k", LONG).unwrap());
    assert_eq!(client.lookup(b"k").unwrap().as_deref(), Some(&b"v"[..]));
    assert!(client.heartbeat(second.lend_key, b"k", u64::MAX).unwrap());
    server.stop();
}

#[test]
fn everything_is_there_after_the_end_however_it_ended() {
    let folder = folder();
    let server = Server::start_tasks(folder.path(), &[]);
    let mut first = client(&server);
    for key in ["a", "b", "c", "d", "e"] {
        first.add(key.as_bytes(), key.as_bytes(), AddMode::Tail).unwrap();
    }
    first.add(b"head", b"", AddMode::Head).unwrap();
    let head = poll(&mut first).unwrap();
    first.repay(head.lend_key, b"head", b"done", RepayStatus::Drop).unwrap();
    let held = poll(&mut first).unwrap();
    first.update(b"c", b"changed").unwrap();
    first.remove(b"d").unwrap();
    drop(server);
    let mut last = held.lend_key;
    for kill in [true, false, true] {
        let server = if kill {
            // SIGKILL: the process cannot react to it.
            Server::start_tasks(folder.path(), &[])
        } else {
            Server::start_tasks(folder.path(), &["--sync", "never"])
        };
        let mut client = client(&server);
        assert_eq!(client.count().unwrap(), 3);
        assert_eq!(client.lookup(b"head").unwrap().as_deref(), Some(&b"done"[..]));
        assert_eq!(client.lookup(b"c").unwrap().as_deref(), Some(&b"changed"[..]));
        assert_eq!(client.lookup(b"d").unwrap(), None);
        assert!(!client.add(b"head", b"", AddMode::Tail).unwrap(), "what was dropped is kept");
        assert!(client.heartbeat(held.lend_key, &held.key, LONG).unwrap(), "the lease is still held");
        let next = poll(&mut client).unwrap();
        assert_eq!((&*next.key, next.lend_key > last), (&b"b"[..], true));
        last = next.lend_key;
        assert!(client.repay(next.lend_key, b"b", b"b", RepayStatus::Front).unwrap());
        if kill {
            drop(server);
        } else {
            server.stop();
        }
    }
    let server = Server::start_tasks(folder.path(), &[]);
    assert_eq!(drain(&mut client(&server)), ["b", "c", "e"]);
    drop(server);
}

#[test]
fn terminate_ends_the_server_unless_it_is_denied() {
    let folder = folder();
    let server = Server::start_tasks(folder.path(), &["--terminate", "deny"]);
    let refused = client(&server).terminate();
    assert_eq!(refused, Err(Error::Refused(Fault::Offending { field: Field::UnknownTag, offending: 8 })));
    client(&server).add(b"k", b"v", AddMode::Tail).unwrap();
    server.stop();
    let server = Server::start_tasks(folder.path(), &["--sync", "never"]);
    client(&server).terminate().unwrap();
    let (status, _) = server.wait();
    assert!(status.success(), "{status}");
    let server = Server::start_tasks(folder.path(), &[]);
    assert_eq!(client(&server).count().unwrap(), 1);
    server.stop();
}

#[test]
fn who_waits_is_answered_when_the_server_ends() {
    let folder = folder();
    let server = Server::start_tasks(folder.path(), &[]);
    let mut waiting = client(&server);
    waiting.send(&spindle::services::tasks::wire::Request::Lend { timeout_ms: LONG, mode: LendMode::Block }).unwrap();
    waiting.send(&spindle::services::tasks::wire::Request::Ping).unwrap();
    // The Ping is answered first: then the Lend waits.
    assert_eq!(waiting.receive().unwrap(), spindle::services::tasks::wire::Reply::Pong);
    server.signal(Signal::TERM);
    assert_eq!(waiting.receive().unwrap(), spindle::services::tasks::wire::Reply::QueueEmpty);
    assert!(server.wait().0.success());
}

// -------------------------------------------------------------------------------------------------------- command line

fn task(server: &Server, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = spindle(&[&["task"], arguments, &["--connect", server.tasks()]].concat());
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn people_work_with_tasks_on_the_command_line() {
    let folder = folder();
    let server = Server::start_tasks(folder.path(), &[]);
    let good = |arguments: &[&str]| {
        let (status, out, error) = task(&server, arguments);
        assert_eq!(status, Some(0), "{arguments:?}: {error}");
        out
    };
    let ends = |arguments: &[&str], expected: i32, about: &str| {
        let (status, out, error) = task(&server, arguments);
        assert_eq!((status, &*out), (Some(expected), ""), "{arguments:?}");
        assert!(error.trim_end().lines().count() == 1 && error.contains(about), "{arguments:?}: {error}");
    };
    let missing = |arguments: &[&str], about: &str| ends(arguments, 3, about);
    missing(&["lend"], "--wait");
    assert_eq!(good(&["add", "page-1", "one"]), "OK\n");
    assert_eq!(good(&["add", "page-2", "two", "--head"]), "OK\n");
    ends(&["add", "page-1", "again"], 6, "there is a task of this key");
    assert_eq!(good(&["count"]), "2\n");
    assert_eq!(good(&["lookup", "page-1"]), "one\n");
    missing(&["lookup", "page-9"], "no task of this key");
    assert_eq!(good(&["update", "page-2", "zwei"]), "OK\n");
    missing(&["update", "page-9", ""], "no task of this key");
    let lent = good(&["lend", "--timeout", "60000"]);
    let (line, value) = lent.split_once('\n').unwrap();
    let (lend_key, key) = line.split_once(' ').unwrap();
    assert_eq!((key, value), ("page-2", "zwei\n"));
    assert_eq!(good(&["heartbeat", lend_key, key, "--timeout", "60000"]), "OK\n");
    missing(&["heartbeat", "1234567", key, "--timeout", "60000"], "not lent with this key");
    assert_eq!(good(&["repay", lend_key, key, "done", "--status", "drop"]), "OK\n");
    missing(&["repay", lend_key, key, "done", "--status", "drop"], "not lent with this key");
    assert_eq!(good(&["flush"]), "OK\n");
    assert_eq!(good(&["remove", "page-2"]), "OK\n");
    missing(&["remove", "page-2"], "no task of this key");
    assert!(good(&["stats"]).contains("repay: 2"));
    assert_eq!(good(&["add", "page-3", "drei", "--head"]), "OK\n");
    let lent = good(&["lend"]);
    let lend_key = lent.split(' ').next().unwrap();
    missing(&["done", "1234567", "page-3"], "not lent with this key");
    assert_eq!(good(&["done", lend_key, "page-3"]), "OK\n");
    missing(&["lookup", "page-3"], "no task of this key");
    let json: serde_json::Value = serde_json::from_str(&good(&["lend", "--json"])).unwrap();
    assert_eq!((json["key"].as_str(), json["value"].as_str()), (Some("page-1"), Some("one")));
    server.stop();
}

#[test]
fn a_task_is_read_from_standard_input() {
    let folder = folder();
    let server = Server::start_tasks(folder.path(), &[]);
    assert!(spindle_reads(&["task", "add", "k", "-", "--connect", server.tasks()], b"from afar").status.success());
    assert_eq!(client(&server).lookup(b"k").unwrap().as_deref(), Some(&b"from afar"[..]));
    let bytes = b"\xff\x00 and no end of line";
    assert!(spindle_reads(&["task", "update", "k", "-", "--connect", server.tasks()], bytes).status.success());
    assert_eq!(spindle(&["task", "lookup", "k", "--raw", "--connect", server.tasks()]).stdout, bytes);
    let lent = spindle(&["task", "lend", "--raw", "--connect", server.tasks()]).stdout;
    assert_eq!(lent.splitn(2, |byte| *byte == b'\n').nth(1), Some(&bytes[..]), "behind the line of lend key and key");
    server.stop();
}

// --------------------------------------------------------------------------------------------------------------- order

/// The order that `PROTOCOL.md` defines.
struct Plain {
    serial: u64,
    /// Priority, time of entry, key, boost; ready ones only.
    ready: Vec<(u64, u64, String, u32)>,
}

impl Plain {
    fn add(&mut self, key: String, head: bool) {
        self.serial += 1;
        self.ready.push((if head { 0 } else { self.serial }, self.serial, key, 0));
    }

    fn lend(&mut self) -> (String, u32) {
        self.ready.sort();
        let (_, _, key, boost) = self.ready.remove(0);
        (key, boost)
    }

    fn repay(&mut self, key: String, mut boost: u32, status: RepayStatus) {
        self.ready.sort();
        let front = self.ready.first().map_or(0, |(priority, ..)| *priority);
        let region = self.serial + 1 - front;
        match status {
            RepayStatus::Penalty => boost = boost.saturating_sub(1),
            RepayStatus::Reward if region >> (boost + 1) != 0 => boost += 1,
            _ => {}
        }
        self.serial += 1;
        let priority = if status == RepayStatus::Front { 0 } else { self.serial - (region - (region >> boost)) };
        self.ready.push((priority, self.serial, key, boost));
    }
}

#[test]
fn order_and_boosts_are_those_of_the_formulas_also_after_kill_9() {
    let folder = folder();
    let mut rng = SeededRng(11);
    let mut plain = Plain { serial: 1, ready: Vec::new() };
    for round in 0..6 {
        let server = Server::start_tasks(folder.path(), &[]);
        let mut client = client(&server);
        for number in 0..10 {
            let (key, head) = (format!("{round}-{number}"), rng.one_in(5));
            let mode = if head { AddMode::Head } else { AddMode::Tail };
            assert!(client.add(key.as_bytes(), b"", mode).unwrap());
            plain.add(key, head);
        }
        for step in 0..60 {
            let lent = poll(&mut client).unwrap();
            let (key, boost) = plain.lend();
            assert_eq!(lent.key, key.as_bytes(), "round {round}, step {step}");
            let status =
                rng.pick(&[RepayStatus::Penalty, RepayStatus::Reward, RepayStatus::Reward, RepayStatus::Front]);
            assert!(client.repay(lent.lend_key, &lent.key, b"", status).unwrap());
            plain.repay(key, boost, status);
        }
        drop(server);
    }
    let server = Server::start_tasks(folder.path(), &[]);
    let expected: Vec<String> = (0..60).map(|_| plain.lend().0).collect();
    assert_eq!(drain(&mut client(&server)), expected);
    server.stop();
}
