//! Latency from end to end, and the slow log: every protocol's requests are counted, and slow ones are reported
//! with their client, their table and where the time went.

use serde_json::Value;

use crate::admin::{awaited, get_with, json};
use crate::harness::{Server, spindle};
use crate::stage::client;

/// One of this many requests about tables is timed.
const TIMED_ONE_OF: f64 = 32.0;
/// Entries that the log keeps.
const KEPT_MAX: u64 = 1_024;

fn run(arguments: &[&str]) -> Value {
    let output = spindle(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The log of a server when it has seen so many requests: a request is logged a moment after its reply.
fn slow(server: &Server, seen: u64) -> Value {
    awaited("the last slow request", || {
        let log = run(&["slow", "--admin", server.admin()]);
        (log["seen"].as_u64().unwrap() >= seen).then_some(log)
    })
}

/// The entry of a verb.
fn entry<'s>(slow: &'s Value, verb: &str) -> &'s Value {
    let requests = slow["requests"].as_array().unwrap();
    requests.iter().find(|request| request["verb"] == verb).unwrap_or_else(|| panic!("{verb}: {slow}"))
}

fn service<'s>(stats: &'s Value, protocol: &str) -> &'s Value {
    let services = stats["services"].as_array().unwrap();
    services.iter().find(|service| service["protocol"] == protocol).unwrap_or_else(|| panic!("{protocol}: {stats}"))
}

/// The requests of a verb, and the samples of its time from end to end.
fn counts(service: &Value, verb: &str) -> (u64, u64) {
    let line = service["verbs"].as_array().unwrap().iter().find(|line| line["verb"] == verb).unwrap();
    (line["requests"].as_u64().unwrap(), line["end_to_end_micros"]["samples"].as_u64().unwrap())
}

fn load(server: &Server, flags: &[&str]) -> Value {
    let fixed = ["load", "--connect", server.kv(), "--warm-up", "0", "--seconds", "0.5", "--keys", "500", "--prefill"];
    run(&[&fixed[..], flags].concat())
}

/// One of 32 requests is timed, whatever the load generator sees: the error of so many picks is far below this.
fn assert_sampled(stats: &Value, verb: &str, requests: u64) {
    let line = &stats["commands"][verb];
    assert_eq!(line["requests"].as_u64(), Some(requests), "{verb}");
    for times in ["end_to_end_micros", "latency_micros"] {
        let samples = line[times]["samples"].as_u64().unwrap() as f64;
        let (requests, error) = (requests as f64, 52.0 * (requests as f64).sqrt() + 400.0);
        assert!((samples * TIMED_ONE_OF - requests).abs() < error, "{verb} {times}: {samples} of {requests}");
    }
}

#[test]
fn a_sample_of_the_requests_of_tables_is_timed_over_either_frontend() {
    for frontend in ["native", "queue"] {
        let server = Server::start(&["--frontend", frontend]);
        let report = load(&server, &["--depth", "32", "--connections", "3", "--mix", "get=3,set=1"]);
        let answers = |verb: &str| report["phases"][0]["verbs"][verb]["answers"].as_u64().unwrap();
        let stats = server.stats();
        assert_sampled(&stats, "GET", answers("get"));
        assert_sampled(&stats, "UPDATE", answers("set") + 500);
        let unused = &stats["commands"]["TOUCH"]["end_to_end_micros"];
        assert!(unused["samples"] == 0 && unused["p50"].is_null(), "no sample is no latency: {unused}");
        server.stop();
    }
}

#[test]
fn requests_that_waited_behind_others_took_longer_than_their_execution() {
    let server = Server::start(&["--frontend", "native", "--workers", "1"]);
    load(&server, &["--depth", "64", "--connections", "1", "--mix", "get=1"]);
    let stats = server.stats();
    let p50 = |times: &str| stats["commands"]["GET"][times]["p50"].as_f64().unwrap();
    assert!(p50("end_to_end_micros") > p50("latency_micros"), "{}", stats["commands"]["GET"]);
    server.stop();
}

#[test]
fn a_slow_request_of_the_tables_is_reported_with_its_client_and_its_sizes() {
    for frontend in ["native", "queue"] {
        let server = Server::start(&["--frontend", frontend, "--admin", "0", "--slow", "0"]);
        let set = |arguments: &[&str]| run(&[arguments, &["--connect", server.kv()]].concat());
        set(&["create-table", "users"]);
        set(&["set", "users", "ada", "1234567890"]);
        set(&["get", "users", "ada"]);
        let log = slow(&server, 3);
        assert_eq!((&log["threshold_micros"], &log["seen"]), (&0.0.into(), &3.into()), "{log}");
        let update = entry(&log, "UPDATE");
        assert_eq!((&update["protocol"], &update["table"]), (&"kv".into(), &"users".into()));
        // The delimiter, the command, the table and its NUL, the key and the value.
        assert_eq!(update["request_bytes"].as_u64(), Some(1 + 5 + 3 + 10), "{update}");
        assert!(update["reply_bytes"].as_u64().is_some_and(|bytes| (1..20).contains(&bytes)), "{update}");
        assert!(update["client"].as_str().unwrap().contains("127.0.0.1:"), "{update}");
        let micros = |part: &str| update[part].as_f64();
        let parts = ["queue_micros", "execution_micros", "write_micros"].map(|part| micros(part).unwrap_or(0.0));
        assert!((parts.iter().sum::<f64>() - micros("micros").unwrap()).abs() < 0.01, "{update}");
        assert!(micros("write_micros").is_some(), "{frontend}: {update}");
        server.stop();
    }
}

#[test]
fn the_log_keeps_the_latest_and_counts_all() {
    let server = Server::start(&["--frontend", "native", "--admin", "0", "--slow", "0"]);
    load(&server, &["--depth", "8", "--mix", "get=1"]);
    let seen = server.stats()["slow"]["seen"].as_u64().unwrap();
    assert!(seen > KEPT_MAX, "{seen}");
    let log = slow(&server, seen);
    assert_eq!(log["requests"].as_array().unwrap().len() as u64, KEPT_MAX);
    let text = spindle(&["slow", "--admin", server.admin()]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert_eq!(text.lines().count() as u64, KEPT_MAX + 2, "a line that counts, and the titles");
    assert!(text.lines().next().unwrap().contains("took longer than 0 µs"), "{text}");
    server.stop();
}

#[test]
fn connections_and_their_bytes_are_counted_where_they_are_owned() {
    ["native", "queue"].into_iter().for_each(connections_and_their_bytes_are_counted);
}

fn connections_and_their_bytes_are_counted(frontend: &str) {
    let server = Server::start(&["--frontend", frontend, "--lockstep", "tcp://127.0.0.1:*"]);
    run(&["create-table", "users", "--connect", server.kv()]);
    let lines = awaited("a closed connection", || {
        let stats = server.stats();
        (stats["connections"]["connections_ever"].as_u64()? >= 2).then_some(stats)
    });
    // A greeting has 64 bytes, in each direction.
    assert!(lines["connections"]["received_bytes"].as_u64().unwrap() > 2 * 64, "{lines}");
    assert!(lines["connections"]["sent_bytes"].as_u64().unwrap() > 2 * 64, "{lines}");
    assert_eq!(lines["lockstep"]["connections_ever"], 0);
    server.stop();
}

#[test]
fn nothing_is_slow_below_the_bound() {
    let server = Server::start(&["--admin", "0", "--slow", "600000000"]);
    load(&server, &["--mix", "get=1"]);
    let said = spindle(&["slow", "--admin", server.admin()]).stdout;
    assert_eq!(String::from_utf8(said).unwrap(), "no request took longer than 600 s\n");
    server.stop();
}

#[test]
fn a_server_without_an_admin_endpoint_is_reported_in_one_line() {
    let output = spindle(&["slow", "--admin", "127.0.0.1:1"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("is a server with --admin running there?"), "{said}");
}

#[test]
fn every_request_of_tasks_jobs_and_events_is_counted_and_timed() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let any = "tcp://127.0.0.1:*";
    let flags = ["--admin", "0", "--slow", "0", "--tasks", any, "--jobs", "0", "--events", "127.0.0.1:0"];
    let server = Server::start(&[&flags[..], &["--events-queue", any, "--data", data]].concat());
    for number in 0..5 {
        run(&["task", "add", &format!("key-{number}"), "value", "--connect", server.tasks()]);
    }
    run(&["job", "add", "mail", "hello", "--connect", server.jobs()]);
    run(&["job", "get", "mail", "--connect", server.jobs()]);
    let mut events = client(&server);
    events.create().unwrap();
    events.count().unwrap();
    assert_eq!(events.find(99).unwrap(), None);
    let stats = awaited("the last count", || {
        let stats = json(server.admin(), "/stats");
        let is_counted = counts(service(&stats, "tasks"), "ADD") == (5, 5)
            && counts(service(&stats, "jobs"), "ADD") == (1, 1)
            && counts(service(&stats, "jobs"), "GET") == (1, 1);
        is_counted.then_some(stats)
    });
    let of_events = service(&stats, "events");
    assert_eq!(counts(of_events, "POST /events"), (1, 1));
    assert_eq!(counts(of_events, "GET /events/{id}"), (1, 1));
    assert_eq!(counts(of_events, "POST /events/async"), (0, 0));
    assert_eq!((&of_events["connections"], &of_events["connections_ever"]), (&1.into(), &1.into()));
    assert_eq!(service(&stats, "jobs")["connections_ever"], 2);
    assert!(service(&stats, "tasks")["received_bytes"].as_u64().unwrap() > 5 * 10);
    let log = slow(&server, 10);
    for (protocol, verb, table) in [("tasks", "ADD", ""), ("jobs", "GET", "mail"), ("events", "POST /events", "")] {
        let requests = log["requests"].as_array().unwrap();
        let slow = requests.iter().find(|request| request["protocol"] == protocol && request["verb"] == verb).unwrap();
        assert_eq!(slow["table"], table, "{slow}");
        assert!(slow["client"].as_str().unwrap().starts_with("127.0.0.1:"), "{slow}");
    }
    let (_, _, text) = get_with(server.admin(), "/metrics", "");
    for line in [
        "spindle_request_seconds_count{protocol=\"tasks\",verb=\"ADD\"} 5",
        "spindle_request_seconds_count{protocol=\"events\",verb=\"POST /events\"} 1",
        "spindle_requests_total{protocol=\"jobs\",verb=\"GET\"} 1",
        "spindle_accepted_connections_total{protocol=\"jobs\"} 2",
        "spindle_connections{protocol=\"events\"} 1.0",
        "spindle_events_unavailable_total 0",
    ] {
        assert!(text.lines().any(|other| other == line), "{line}\n{text}");
    }
    let none = "spindle_request_seconds_count{protocol=\"events\",verb=\"POST /events/async\"}";
    assert!(!text.contains(none), "no sample is no histogram");
    server.stop();
}
