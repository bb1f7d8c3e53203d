//! `spindle task` about queues by name: its words, what they print for people and for programs, and their statuses.

use serde_json::{Value, json};

use crate::harness::{Server, spindle};

/// Runs a command about tasks of a server. Returns its status, its output and its error.
fn run(server: &Server, arguments: &[&str]) -> (i32, String, String) {
    let output = spindle(&[&["task"], arguments, &["--connect", server.tasks()]].concat());
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
    assert_eq!(error.lines().count(), 1, "{error}");
    error
}

/// The keys of a page.
fn keys(server: &Server, queue: &str, state: &str) -> Vec<String> {
    let page = lines(server, &["peek", queue, "--state", state]);
    page.iter().map(|task| task["key"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn tasks_of_a_queue_are_added_with_options_and_are_shown_in_each_state() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_tasks(folder.path(), &[]);
    for (key, options) in [
        ("first", &[][..]),
        ("urgent", &["--class", "9", "--group", "acme"]),
        ("later", &["--delay", "7d"]),
        ("lent", &["--class", "1", "--tries", "3"]),
    ] {
        assert_eq!(done(&server, &[&["add", key, "to ada", "--queue", "mail"], options].concat()), "OK\n");
    }
    let error = failed(&server, &["add", "first", "v", "--queue", "mail", "--class", "1"], 6);
    assert!(error.contains("there is a task of this key"), "{error}");
    assert_eq!(done(&server, &["count"]), "0\n", "the queue without a name has none");
    assert_eq!(done(&server, &["count", "--queue", "mail"]), "3\n");
    let [lent] = &lines(&server, &["lend", "--queue", "none", "--queue", "mail", "--count", "1"])[..] else {
        panic!("one task")
    };
    assert_eq!((&lent["key"], &lent["queue"], &lent["tries"]), (&json!("lent"), &json!("mail"), &json!(1)));
    assert_eq!(keys(&server, "mail", "ready"), ["urgent", "first"].map(String::from), "the most urgent class first");
    assert_eq!(keys(&server, "mail", "delayed"), ["later"]);
    assert_eq!(keys(&server, "mail", "lent"), ["lent"]);
    assert!(keys(&server, "mail", "dead").is_empty());
    let [urgent] = &lines(&server, &["peek", "mail", "--group", "acme", "--bytes", "2"])[..] else {
        panic!("one task")
    };
    let expected = json!({
        "key": "urgent", "state": "ready", "class": 9, "tries": 0, "group": "acme", "age_ms": urgent["age_ms"],
        "left_ms": null, "reason": "", "bytes": 6, "first": "to",
    });
    assert_eq!(*urgent, expected);
    assert_eq!(lines(&server, &["peek", "mail", "--most", "1"]).len(), 1);
    let text = done(&server, &["peek", "mail", "--state", "delayed"]);
    let (titles, line) = text.split_once('\n').unwrap();
    assert!(titles.starts_with("key    state    class  tries  group"), "{text}");
    assert!(line.starts_with("later  delayed  65536      0  –") && line.contains("6 B: to ada"), "{text}");
    let hex = done(&server, &["peek", "0x6d61696c", "--hex", "--state", "delayed"]);
    assert!(hex.contains("0x6c61746572") && hex.contains("6 B: 0x746f20616461"), "{hex}");
    server.stop();
}

#[test]
fn one_task_goes_to_many_queues_and_the_first_queue_that_has_one_lends_it() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_tasks(folder.path(), &[]);
    assert_eq!(done(&server, &["add", "k", "v", "--queue", "b"]), "OK\n");
    let error = failed(&server, &["add", "k", "v", "--queue", "a", "--queue", "b"], 6);
    assert!(error.contains("queue b:") && error.contains("1 of 2 queues have it now"), "{error}");
    let error = failed(&server, &["lend", "--queue", "none", "--wait", "1ms"], 3);
    assert!(error.contains("no task is ready"), "{error}");
    let lend = ["lend", "--queue", "b", "--queue", "a", "--count", "9", "--wait", "1m"];
    let text = done(&server, &lend);
    let heads: Vec<&str> = text.lines().step_by(2).map(|line| line.split_once(' ').unwrap().1).collect();
    assert_eq!(heads, ["k b", "k a"], "{text}");
    server.stop();
}

#[test]
fn a_task_that_has_failed_is_dead_with_its_reason_until_it_is_kicked_or_purged() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_tasks(folder.path(), &[]);
    done(&server, &["add", "k", "v", "--queue", "mail", "--tries", "2"]);
    let lend = || {
        let [lent] = &lines(&server, &["lend", "--queue", "mail"])[..] else { panic!("one task") };
        (lent["lend_key"].to_string(), lent["tries"].clone())
    };
    let (first, tries) = lend();
    assert_eq!(tries, 1);
    assert_eq!(done(&server, &["nack", &first, "k", "--not-begun", "--queue", "mail"]), "OK\n");
    let (second, tries) = lend();
    assert_eq!(tries, 1, "that was no try");
    assert_eq!(done(&server, &["nack", &second, "k", "no such host", "--delay", "7d", "--queue", "mail"]), "OK\n");
    assert!(failed(&server, &["nack", &second, "k", "--queue", "mail"], 3).contains("it is not lent"));
    assert_eq!(keys(&server, "mail", "delayed"), ["k"]);
    assert_eq!(done(&server, &["kick", "mail", "--delayed"]), "1 kicked\n");
    let (third, tries) = lend();
    assert_eq!(tries, 1, "its tries begin anew");
    assert_eq!(done(&server, &["nack", &third, "k", "bad\x1b data", "--dead", "--queue", "mail"]), "OK\n");
    let dead = &lines(&server, &["peek", "mail", "--state", "dead"])[0];
    assert_eq!((&dead["reason"], &dead["tries"]), (&json!("bad\x1b data"), &json!(1)));
    let text = done(&server, &["peek", "mail", "--state", "dead"]);
    assert!(!text.contains('\x1b') && text.contains("0x6261641b2064617461"), "it does not steer a terminal: {text}");
    assert!(failed(&server, &["kick", "mail", "absent"], 3).contains("no task of this queue"));
    assert_eq!(done(&server, &["kick", "mail", "k"]), "1 kicked\n");
    let (fourth, _) = lend();
    done(&server, &["nack", &fourth, "k", "--dead", "--queue", "mail"]);
    assert_eq!(done(&server, &["purge", "mail", "--state", "dead", "--older", "1h"]), "0 removed\n");
    assert_eq!(done(&server, &["purge", "mail", "--state", "ready,delayed"]), "0 removed\n");
    assert_eq!(done(&server, &["purge", "mail", "--state", "ready,dead", "--json"]), "{\"removed\":1}\n");
    assert!(failed(&server, &["stats", "mail"], 3).contains("spindle task list"));
    server.stop();
}

#[test]
fn a_queue_is_paused_resumed_and_configured_and_lists_its_figures() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_tasks(folder.path(), &[]);
    done(&server, &["add", "k", "v", "--queue", "mail"]);
    done(&server, &["add", "k", "v"]);
    assert_eq!(done(&server, &["pause", "mail"]), "OK\n");
    failed(&server, &["lend", "--queue", "mail"], 3);
    let queues = lines(&server, &["list"]);
    let names: Vec<&Value> = queues.iter().map(|queue| &queue["name"]).collect();
    assert_eq!(names, [&json!("default"), &json!("mail")]);
    assert_eq!(
        (&queues[1]["ready"], &queues[1]["paused"], &queues[1]["throttled"]),
        (&json!(1), &json!(true), &json!(1))
    );
    assert!(done(&server, &["list"]).contains("until resumed"));
    assert_eq!(done(&server, &["pause", "mail", "--for", "10h"]), "OK\n");
    assert!(lines(&server, &["stats", "mail"])[0]["pause_left_ms"].as_u64().unwrap() <= 36_000_000);
    assert_eq!(done(&server, &["resume", "mail"]), "OK\n");
    let set = ["--tries", "5", "--backoff", "1s..10m", "--group-limit", "2", "--rate", "30/m,7", "--sync", "never"];
    assert_eq!(done(&server, &[&["configure", "mail"][..], &set].concat()), "OK\n");
    let expected = json!({
        "tries": 5, "backoff": { "first_ms": 1_000, "most_ms": 600_000 }, "group_limit": 2,
        "rate": { "count": 30, "per_ms": 60_000, "burst": 7 }, "sync": "never",
    });
    assert_eq!(lines(&server, &["stats", "mail"])[0]["settings"], expected);
    done(&server, &["configure", "mail", "--rate", "none", "--tries", "none"]);
    let settings = &lines(&server, &["stats", "mail"])[0]["settings"];
    assert_eq!(
        (&settings["rate"], &settings["tries"], &settings["group_limit"]),
        (&Value::Null, &Value::Null, &json!(2))
    );
    let text = done(&server, &["stats", "mail"]);
    assert!(text.contains("\nready: 1\n") && text.contains("  sync: never\n"), "{text}");
    assert!(done(&server, &["stats"]).contains("add: 1\n"), "without a queue it is as it was");
    for (wrong, why) in [
        (&["configure", "mail"][..], "required"),
        (&["configure", "mail", "--rate", "10"], "a rate is as in 10/s"),
        (&["purge", "mail", "--state", "lent"], "states are ready, delayed, dead and dropped"),
        (&["pause", "mail", "--for", "10"], "a pause is a time as in 10m"),
        (&["kick", "mail"], "required"),
        (&["kick", "mail", "k", "--dead"], "cannot be used"),
        (&["peek", &"q".repeat(256)], "1 to 255 bytes"),
        (&["add", "k", "v", "--delay", "5"], "with a unit"),
        (&["add", "k", "v", "--backoff", "2s..1s"], "a backoff is"),
    ] {
        let error = failed(&server, wrong, 2);
        assert!(error.contains(why), "{wrong:?}: {error}");
    }
    assert_eq!(lines(&server, &["list"]).len(), 2, "what was refused has changed nothing");
    server.stop();
}
