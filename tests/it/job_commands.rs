//! `spindle job`: options, waiting and giving back over TCP, and the words of an operator over `--admin`.

use std::net::TcpListener;

use serde_json::{Value, json};

use crate::harness::{Server, spindle};

/// Words that go to `--admin`.
const OPERATORS: [&str; 8] = ["list", "peek", "kick", "purge", "pause", "resume", "configure", "stats"];

/// Runs a command about jobs of a server. Returns its status, its output and its error.
fn run(server: &Server, arguments: &[&str]) -> (i32, String, String) {
    let is_operators = OPERATORS.contains(&arguments[0]);
    let at = if is_operators { ["--admin", server.admin()] } else { ["--connect", server.jobs()] };
    let output = spindle(&[&["job"], arguments, &at].concat());
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// The output of a command that succeeds.
#[track_caller]
fn done(server: &Server, arguments: &[&str]) -> String {
    let (status, output, error) = run(server, arguments);
    assert_eq!((status, &*error), (0, ""), "{arguments:?}");
    output
}

/// The lines of a command that succeeds, as JSON.
#[track_caller]
fn lines(server: &Server, arguments: &[&str]) -> Vec<Value> {
    let output = done(server, &[arguments, &["--json"]].concat());
    output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The error of a command that fails with this status.
#[track_caller]
fn failed(server: &Server, arguments: &[&str], wanted: i32) -> String {
    let (status, output, error) = run(server, arguments);
    assert_eq!((status, &*output), (wanted, ""), "{arguments:?}: {error}");
    error
}

fn start() -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_jobs(folder.path(), &["--admin", "0"]);
    (folder, server)
}

#[test]
fn a_job_is_added_with_options_lent_given_back_and_dead_with_its_reason() {
    let (_folder, server) = start();
    let options = ["--tries", "2", "--class", "9", "--group", "acme", "--key", "order-7", "--lease", "90s"];
    let id = done(&server, &[&["add", "mail", "to ada"], &options[..]].concat());
    let id = id.trim();
    assert_eq!(done(&server, &["add", "mail", "again", "--key", "order-7"]).trim(), id, "its key is there");
    let [ready] = &lines(&server, &["peek", "mail"])[..] else { panic!("one job") };
    let expected = json!({
        "id": id, "state": "ready", "class": 9, "tries": 0, "group": "acme", "age_ms": ready["age_ms"],
        "left_ms": null, "reason": "", "bytes": 6, "first": "to ada",
    });
    assert_eq!(*ready, expected);
    assert_eq!(done(&server, &["lend", "mail", "--wait", "10s"]), format!("{id}\nto ada\n"));
    assert_eq!(lines(&server, &["peek", "mail", "--state", "lent", "--group", "acme"]).len(), 1);
    assert_eq!(done(&server, &["touch", "mail", id, "10m"]), "OK\n");
    assert_eq!(done(&server, &["nack", "mail", id, "no such host", "--delay", "7d"]), "OK\n");
    assert!(failed(&server, &["nack", "mail", id], 3).contains("it is not handed out"));
    assert!(failed(&server, &["get", "mail", "--wait", "1ms"], 3).contains("no job of this queue"));
    assert_eq!(done(&server, &["kick", "mail", "--delayed", "--most", "1"]), "1 kicked\n");
    for _ in 0..2 {
        done(&server, &["get", "mail"]);
        done(&server, &["nack", "mail", id, "no such user"]);
    }
    let [dead] = &lines(&server, &["peek", "mail", "--state", "dead"])[..] else { panic!("it is dead") };
    assert_eq!((&dead["reason"], &dead["tries"]), (&json!("no such user"), &json!(2)));
    assert_eq!(done(&server, &["kick", "mail", id]), "1 kicked\n");
    assert!(failed(&server, &["kick", "mail", id], 3).contains("spindle job peek"));
    done(&server, &["get", "mail"]);
    assert_eq!(done(&server, &["done", "mail", id]), "OK\n");
    assert!(failed(&server, &["stats", "mail"], 3).contains("no queue of this name"));
    server.stop();
}

#[test]
fn queues_of_jobs_are_listed_paused_configured_and_purged() {
    let (_folder, server) = start();
    for queue in ["mail", "odd&name=%41", "mail"] {
        done(&server, &["add", queue, "data"]);
    }
    let names = || lines(&server, &["list"]).iter().map(|queue| queue["name"].clone()).collect::<Vec<_>>();
    assert_eq!(names(), ["mail", "odd&name=%41"]);
    assert_eq!(lines(&server, &["peek", "odd&name=%41"]).len(), 1, "each byte of a name arrives");
    assert_eq!(lines(&server, &["peek", "0x6d61696c", "--hex"])[0]["first"], "0x64617461");
    assert_eq!(done(&server, &["pause", "mail"]), "OK\n");
    failed(&server, &["get", "mail"], 3);
    assert_eq!(lines(&server, &["stats", "mail"])[0]["paused"], true);
    assert_eq!(done(&server, &["resume", "mail"]), "OK\n");
    done(&server, &["get", "mail"]);
    let settings = ["--tries", "3", "--rate", "10/s,20", "--backoff", "5s", "--group-limit", "7"];
    assert_eq!(done(&server, &[&["configure", "mail"], &settings[..]].concat()), "OK\n");
    let expected = json!({
        "tries": 3, "rate": { "count": 10, "per_ms": 1_000, "burst": 20 }, "group_limit": 7, "sync": null,
        "backoff": { "first_ms": 5_000, "most_ms": 5_000 },
    });
    assert_eq!(lines(&server, &["stats", "mail"])[0]["settings"], expected);
    assert!(failed(&server, &["configure", "mail", "--sync", "never"], 2).contains("--sync is of tasks"));
    assert!(failed(&server, &["kick", "mail", "7"], 2).contains("20 digits"));
    assert_eq!(done(&server, &["purge", "mail", "--state", "ready"]), "1 removed\n", "one is lent");
    assert_eq!(done(&server, &["purge", "odd&name=%41", "--state", "ready,dead"]), "1 removed\n");
    assert_eq!(names(), ["mail"]);
    server.stop();
}

/// A page may be short, and not the last one.
#[test]
fn many_jobs_are_shown_once_each_in_order_over_many_pages() {
    let (_folder, server) = start();
    let client = spindle::clients::rust::jobs::JobsClient::new(server.jobs());
    let added: Vec<String> = (0..150).map(|_| client.add(b"mail", &[b'x'; 20_000]).unwrap().to_string()).collect();
    let shown = |flags: &[&str]| {
        let page = lines(&server, &[&["peek", "mail"], flags].concat());
        page.iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(shown(&["--most", "1000", "--bytes", "1024"]), added);
    assert_eq!(shown(&["--most", "7"]), added[..7]);
    assert_eq!(shown(&[]), added[..20]);
    server.stop();
}

#[test]
fn a_server_without_jobs_or_without_admin_says_what_to_start() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_tasks(folder.path(), &["--admin", "0"]);
    assert!(failed(&server, &["list"], 1).contains("the server serves no jobs: start it with --jobs"));
    server.stop();
    let nowhere = spindle(&["job", "list", "--admin", &crate::harness::free_port().to_string()]);
    let said = String::from_utf8(nowhere.stderr).unwrap();
    assert!(nowhere.status.code() == Some(1) && said.contains("with --admin"), "{said}");
}

/// It was waited for as long as for the end of a purge.
#[test]
fn a_server_that_does_not_answer_an_operator_is_given_up() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let output = spindle(&["job", "list", "--admin", &silent.local_addr().unwrap().to_string()]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn what_is_typed_wrongly_is_refused_before_anything_is_done() {
    let (_folder, server) = start();
    let id = done(&server, &["add", "mail", "v"]);
    for command in ["", " \t"] {
        assert!(failed(&server, &["work", "mail", "--command", command], 2).contains("it is blank"));
    }
    assert!(failed(&server, &["add", "mail", "v", "--lease", "0s"], 2).contains("a lease is a time above 0"));
    assert!(failed(&server, &["add", "mail", "v", "--delay", "-5s"], 2).contains("no time here is negative"));
    assert_eq!(lines(&server, &["peek", "mail"]).len(), 1);
    assert_eq!(done(&server, &["get", "mail", "--wait"]), format!("{id}v\n"));
    server.stop();
}
