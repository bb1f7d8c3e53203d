//! What an operator sees: health, readiness, STATS and metrics over HTTP, read by a real Prometheus too.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::event::{PollFd, Timespec, poll};
use serde_json::Value;

use crate::harness::{Server, real_peer, run_python, spindle};
use crate::prometheus::{Prometheus, scraping};
use crate::stage::maria_db;
use crate::tasks_disk::Small;

/// Pause before something that starts is asked again.
const GLANCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// Glances until something that starts has failed to.
const GLANCES: u32 = 1_200;

/// Calls `look` until it has a result.
pub(crate) fn awaited<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..GLANCES {
        if let Some(found) = look() {
            return found;
        }
        poll(&mut [] as &mut [PollFd<'_>], Some(&GLANCE)).unwrap();
    }
    panic!("{what} does not come");
}

/// The reply to a GET: its status, its head in lower case, and its body.
pub(crate) fn get_with(address: &str, path: &str, headers: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {reply:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_ascii_lowercase(), body.to_owned())
}

pub(crate) fn get(address: &str, path: &str) -> (u16, String) {
    let (status, _, body) = get_with(address, path, "");
    (status, body)
}

pub(crate) fn json(address: &str, path: &str) -> Value {
    let (status, body) = get(address, path);
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

fn error(body: &str) -> String {
    serde_json::from_str::<Value>(body).unwrap()["error"].as_str().unwrap().to_owned()
}

/// Puts some elements into tables of a server.
pub(crate) fn fill(server: &Server) {
    for arguments in [
        &["create-table", "users"][..],
        &["set", "users", "ada", "1"],
        &["set", "users", "bob", "2", "--ttl", "3600"],
        &["get", "users", "ada"],
        &["create-table", "odd\"\n\\name"],
    ] {
        let output = spindle(&[arguments, &["--connect", server.kv()]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let missing = spindle(&["get", "users", "eve", "--connect", server.kv()]);
    assert_eq!(missing.status.code(), Some(3));
}

#[test]
fn nothing_is_shown_unless_it_is_asked_for() {
    let server = Server::start(&[]);
    assert!(server.admin_or_none().is_none());
    server.stop();
}

#[test]
fn health_and_readiness_of_a_server_with_tables_alone() {
    let server = Server::start(&["--admin", "0"]);
    assert_eq!(get(server.admin(), "/health"), (200, r#"{"status":"ok"}"#.to_owned()));
    assert_eq!(get(server.admin(), "/ready"), (200, r#"{"status":"ready"}"#.to_owned()));
    let (status, body) = get(server.admin(), "/elsewhere");
    assert!(status == 404 && error(&body).contains("/metrics"), "{body}");
    server.stop();
}

/// A page of another site could read all metrics by a name of its own that points here.
#[test]
fn a_request_names_the_server_as_events_do() {
    let server = Server::start(&["--admin", "0", "--admin-host", "spindle.example"]);
    let asked = |host: &str| {
        let mut stream = TcpStream::connect(server.admin()).unwrap();
        write!(stream, "GET /stats HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    };
    assert!(asked("spindle.example").starts_with("HTTP/1.1 200"));
    let refused = asked("evil.example");
    assert!(refused.starts_with("HTTP/1.1 403") && refused.contains("--admin-host"), "{refused}");
    server.stop();
}

#[test]
fn stats_are_those_of_the_command() {
    let server = Server::start(&["--admin", "0"]);
    fill(&server);
    let (of_admin, of_command) = (json(server.admin(), "/stats"), server.stats());
    for field in ["version", "tables", "expiry", "feed"] {
        assert_eq!(of_admin[field], of_command[field], "{field}");
    }
    assert_eq!(of_admin["commands"]["UPDATE"]["requests"], 2);
    assert_eq!(of_admin["commands"]["GET_ENTRY"]["errors"]["KEY NOT FOUND"], 1);
    assert_eq!(of_admin["events_database"], Value::Null);
    let unused = &of_admin["commands"]["TOUCH"]["latency_micros"];
    assert!(unused["samples"] == 0 && unused["p50"].is_null(), "no sample is no latency: {unused}");
    server.stop();
}

/// Each probe left nothing in the store, so a disk that had become read-only was ready.
#[test]
fn readiness_writes_to_the_store_and_syncs_it() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_tasks(folder.path(), &["--admin", "0"]);
    let written = || {
        let stats = json(server.admin(), "/stats");
        let store = &stats["tasks"]["store"];
        [&store["batches"], &store["batch_bytes"], &stats["tasks"]["syncs"]].map(|count| count.as_u64().unwrap())
    };
    let before = written();
    assert_eq!(get(server.admin(), "/ready").0, 200);
    let after = written();
    assert!(before.iter().zip(after).all(|(before, after)| *before < after), "{before:?} {after:?}");
    server.stop();
}

/// Each of these had the store write and sync.
#[test]
fn whoever_asks_for_readiness_has_the_store_sync_once_a_second() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_tasks(folder.path(), &["--admin", "0"]);
    let syncs = || json(server.admin(), "/stats")["tasks"]["syncs"].as_u64().unwrap();
    let (before, start) = (syncs(), Instant::now());
    for _ in 0..200 {
        assert_eq!(get(server.admin(), "/ready").0, 200);
    }
    let (more, seconds) = (syncs() - before, start.elapsed().as_secs());
    assert!((1..=seconds + 2).contains(&more), "{more} syncs in {seconds} s");
    server.stop();
}

#[test]
fn a_full_disk_is_not_ready_until_there_is_room() {
    let Some(small) = Small::mount("24m") else { return };
    let data = small.path().join("data");
    let server = Server::start_tasks(&data, &["--admin", "0", "--segment-size", "1M"]);
    assert_eq!(get(server.admin(), "/ready").0, 200);
    let ballast = small.path().join("ballast");
    let mut file = std::fs::File::create(&ballast).unwrap();
    while file.write_all(&[7; 1 << 16]).is_ok() {}
    drop(file);
    let why = awaited("the refusal", || Some(get(server.admin(), "/ready")).filter(|(status, _)| *status == 503));
    assert!(error(&why.1).contains("nothing can be added to the store"), "{}", why.1);
    assert_eq!(get(server.admin(), "/health").0, 200, "it lives");
    std::fs::remove_file(&ballast).unwrap();
    awaited("room", || Some(get(server.admin(), "/ready")).filter(|(status, _)| *status == 200));
    server.stop();
}

#[test]
fn a_database_that_is_away_is_not_ready_and_its_failures_are_counted() {
    let Some(mut database) = maria_db() else { return };
    let server = Server::start_events(&["--events-store", &database.url(), "--admin", "0"]);
    assert_eq!(get(server.admin(), "/ready"), (200, r#"{"status":"ready"}"#.to_owned()));
    crate::stage::client(&server).create().unwrap();
    database.kill();
    let refused = || Some(get(server.admin(), "/ready")).filter(|(status, _)| *status == 503);
    let (_, body) = awaited("the refusal", refused);
    assert!(error(&body).contains("nothing can be stored"), "{body}");
    assert!(!body.contains("secret"), "{body}");
    crate::stage::client(&server).create().unwrap_err();
    let counts = &json(server.admin(), "/stats")["events_database"];
    assert_eq!((&counts["events"], &counts["failures"]), (&1.into(), &1.into()), "{counts}");
    database.start_again();
    awaited("the database", || (get(server.admin(), "/ready").0 == 200).then_some(()));
    server.stop();
}

/// The connections that the documents count, of all protocols.
fn connections(server: &Server) -> [u64; 9] {
    let stats = json(server.admin(), "/stats");
    let of = |part: &Value, name: &str| part[name].as_u64().unwrap();
    let service = |protocol: &str| {
        let services = stats["services"].as_array().unwrap();
        of(services.iter().find(|service| service["protocol"] == protocol).unwrap(), "connections")
    };
    [
        of(&stats["clients"], "known"),
        of(&stats["connections"], "connections"),
        of(&stats["lockstep"], "connections"),
        service("tasks"),
        service("jobs"),
        service("events"),
        service("events-queue"),
        of(&stats["changes"], "subscribers"),
        of(&stats["feed"], "subscribers"),
    ]
}

/// The connections of tasks stayed in the count after they had ended.
#[test]
fn connections_are_counted_while_they_are_there_and_not_longer() {
    for frontend in ["queue", "native"] {
        let (folder, any) = (tempfile::tempdir().unwrap(), "tcp://127.0.0.1:*");
        let services = ["--tasks", any, "--jobs", "0", "--events", "127.0.0.1:0", "--events-queue", any];
        let more = ["--lockstep", any, "--feed", any, "--admin", "0", "--frontend", frontend, "--data"];
        let server = Server::start(&[&services[..], &more, &[folder.path().to_str().unwrap()]].concat());
        assert_eq!(connections(&server), [0; 9]);
        let endpoints =
            [server.kv(), server.lockstep(), server.tasks(), server.jobs(), server.events(), server.events_queue()];
        let connect = |endpoint: &str| TcpStream::connect(endpoint.trim_start_matches("tcp://")).unwrap();
        let mut open: Vec<TcpStream> =
            endpoints.iter().flat_map(|endpoint| [connect(endpoint), connect(endpoint)]).collect();
        awaited("two of each", || (connections(&server)[..7] == [2; 7]).then_some(()));
        open.truncate(6);
        awaited("the first three", || (connections(&server)[..7] == [2, 2, 2, 2, 0, 0, 0]).then_some(()));
        drop(open);
        awaited("none", || (connections(&server) == [0; 9]).then_some(()));
        server.stop();
    }
}

/// A server with all frontends, some of which have been used.
pub(crate) fn full(data: &Path) -> Server {
    let data = data.to_str().unwrap();
    let any = "tcp://127.0.0.1:*";
    let server = Server::start(&[
        "--admin",
        "0",
        "--feed",
        any,
        "--resp",
        "127.0.0.1:0",
        "--tasks",
        any,
        "--jobs",
        "0",
        "--events",
        "127.0.0.1:0",
        "--events-queue",
        any,
        "--lockstep",
        any,
        "--lockstep-publish",
        any,
        "--data",
        data,
    ]);
    fill(&server);
    let added = spindle(&["job", "add", "mail", "hello", "--connect", server.jobs()]);
    assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    server
}

#[test]
fn promtool_finds_no_fault_with_the_metrics() {
    let Some(promtool) = real_peer("promtool") else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = full(folder.path());
    let (status, head, text) = get_with(server.admin(), "/metrics", "");
    assert!(status == 200 && head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    let mut child = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.is_empty(), "{said}\n{text}");
    for line in ["spindle_requests_total{protocol=\"kv\",verb=\"UPDATE\"} 2", "spindle_tables 2.0"] {
        assert!(text.lines().any(|other| other == line), "{line}\n{text}");
    }
    server.stop();
}

#[test]
fn a_real_prometheus_scrapes_the_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let server = full(folder.path());
    let Some(prometheus) = Prometheus::start(&scraping(server.admin())) else { return };
    let requests = prometheus.await_one(r#"spindle_requests_total{protocol="kv",verb="UPDATE"}"#);
    assert_eq!(requests["value"][1], "2", "{requests}");
    let up = prometheus.await_one("up");
    assert_eq!(up["value"][1], "1", "{up}");
    let queue = prometheus.await_one(r#"spindle_queue_family_ready{family="jobs/"}"#);
    assert_eq!(queue["value"][1], "1", "{queue}");
    server.stop();
}

/// The last bucket had the largest number as its bound in place of `+Inf`: each quantile was NaN.
#[test]
fn a_real_prometheus_has_quantiles_and_counts_of_each_histogram() {
    let server = Server::start(&["--admin", "0", "--jobs", "0", "--slow", "0"]);
    fill(&server);
    assert!(spindle(&["set", "users", "soon", "1", "--ttl", "1ms", "--connect", server.kv()]).status.success());
    for number in 0..9 {
        let value = number.to_string();
        assert!(spindle(&["job", "add", "mail", &value, "--connect", server.jobs()]).status.success());
    }
    let Some(prometheus) = Prometheus::start(&scraping(server.admin())) else { return };
    for name in ["spindle_request_seconds", "spindle_execution_seconds", "spindle_expiry_lag_seconds"] {
        let quantile = prometheus.await_one(&format!("histogram_quantile(0.99, sum by (le) ({name}_bucket))"));
        let quantile: f64 = quantile["value"][1].as_str().unwrap().parse().unwrap();
        assert!(quantile > 0.0 && quantile <= 10.0, "{name}: {quantile}");
        // The last bucket has all samples, of each series.
        let same = format!("{name}_count - ignoring(le) {name}_bucket{{le=\"+Inf\"}}");
        let series = prometheus.query(&same).unwrap();
        assert!(!series.is_empty() && series.iter().all(|one| one["value"][1] == "0"), "{name}: {series:?}");
        let count = prometheus.query(&format!("count(count by (le) ({name}_bucket))")).unwrap();
        assert_eq!(count[0]["value"][1], "23", "{name}: {count:?}");
    }
    let added = prometheus.await_one(r#"spindle_request_seconds_count{protocol="jobs",verb="ADD"}"#);
    assert_eq!(added["value"][1], "9", "jobs are timed each: {added}");
    server.stop();
}

/// It refuses a histogram without `+Inf`, in both formats.
#[test]
fn the_parsers_of_prometheus_for_python_take_both_formats() {
    let folder = tempfile::tempdir().unwrap();
    let server = full(folder.path());
    run_python("exposition.py", &[server.admin()]);
    server.stop();
}

#[test]
fn the_format_is_what_the_client_prefers() {
    let server = Server::start(&["--admin", "0"]);
    let (open, older) = ("application/openmetrics-text", "text/plain");
    for (accept, expected) in [
        ("", older),
        ("Accept: */*\r\n", older),
        ("Accept: text/html, application/json\r\n", older),
        ("Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\n", open),
        ("Accept: text/plain;q=0.5, APPLICATION/OpenMetrics-Text; Q=0.7\r\n", open),
        ("Accept: application/openmetrics-text, text/plain\r\n", open),
        ("Accept: application/openmetrics-text;q=0.3,text/plain;q=0.5\r\n", older),
        ("Accept: application/openmetrics-text;q=0.3,*/*\r\n", older),
        ("Accept: application/openmetrics-text;q=0.3,text/*;q=0.2,*/*\r\n", open),
        ("Accept: application/openmetrics-text;q=0\r\n", older),
        ("Accept: application/openmetrics-text-not\r\n", older),
        ("Accept: text/plain;q=0.5\r\nAccept: application/openmetrics-text\r\n", open),
    ] {
        let (status, head, _) = get_with(server.admin(), "/metrics", accept);
        assert!(status == 200 && head.contains(&format!("content-type: {expected};")), "{accept}: {head}");
    }
    server.stop();
}

#[test]
fn a_scraper_that_asks_for_open_metrics_gets_it() {
    let server = Server::start(&["--admin", "0"]);
    fill(&server);
    let (status, head, text) =
        get_with(server.admin(), "/metrics", "Accept: application/openmetrics-text; version=1.0.0\r\n");
    assert!(status == 200 && head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(text.ends_with("# EOF\n") && text.contains("# UNIT spindle_uptime_seconds seconds\n"), "{text}");
    assert!(text.contains(r#"spindle_table_elements{table="odd\"\n\\name"} 0"#), "{text}");
    server.stop();
}
