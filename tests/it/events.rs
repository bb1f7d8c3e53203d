//! Events over HTTP: every row, values, restrictions of the queue, and refusals.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use rustix::process::Signal;
use serde_json::json;
use spindle::clients::rust::events::EventsClient;
use spindle::clients::rust::tasks::{Error, TasksClient as Spiderq};
use spindle::services::tasks::wire::{AddMode, Fault, Field, LendMode, RepayStatus};

use crate::harness::{Server, run_python, spindle};
use crate::stage::{Stage, address, all, client, defer, maria_db, over_both, script, value_of};

over_both! {
    every_row_is_as_specified
    python_sees_what_is_specified
    what_is_no_request_is_refused_and_harms_nobody
    ids_have_no_gaps_under_64_clients
    each_event_is_one_workers
    a_bad_value_sends_its_event_back
    a_worker_that_gets_the_signal_to_stop_finishes_what_it_has
    what_was_taken_before_the_end_is_answered
}

fn every_row_is_as_specified(stage: Option<Stage>) {
    let Some(stage) = stage else { return };
    let server = stage.serve();
    let mut client = client(&server);
    let created = client.request("POST", "/events", b"").unwrap();
    assert_eq!((created.status, created.header("location")), (201, Some("/events/1")));
    let value = created.json()["value"].as_str().unwrap().to_owned();
    assert_eq!(created.json(), json!({ "id": 1, "value": value }));
    let deferred = client.request("POST", "/events/async", b"{}").unwrap();
    assert_eq!((deferred.status, deferred.header("location")), (202, Some("/events/2")));
    assert_eq!(deferred.json(), json!({ "id": 2 }));
    for (path, status, body) in [
        ("/events", 200, json!({ "count": 2 })),
        ("/events/1", 200, json!({ "id": 1, "value": value })),
        ("/events/2", 200, json!({ "id": 2, "value": null })),
        ("/events/3", 404, json!({ "error": "event not found" })),
        ("/events/0", 404, json!({ "error": "event not found" })),
        ("/events/99999999999999999999", 404, json!({ "error": "event not found" })),
        ("/events/-1", 400, json!({ "error": "invalid id" })),
        ("/events/x", 400, json!({ "error": "invalid id" })),
        ("/events/1.0", 400, json!({ "error": "invalid id" })),
        ("/events/%FF", 400, json!({ "error": "invalid id" })),
        ("/health", 200, json!({ "status": "ok" })),
    ] {
        let response = client.request("GET", path, b"").unwrap();
        assert_eq!((response.status, response.json()), (status, body), "{path}");
        assert_eq!(response.header("content-type"), Some("application/json"), "{path}");
    }
    for path in ["/", "/event", "/events/", "/events/1/2", "/health/x", "/EVENTS"] {
        let response = client.request("GET", path, b"").unwrap();
        assert!(response.status == 404 && response.json()["error"].is_string(), "{path}: {response:?}");
    }
    for (method, path, allowed) in [
        ("DELETE", "/events", "POST"),
        ("PUT", "/events/1", "GET"),
        ("GET", "/events/async", "POST"),
        ("POST", "/health", "GET"),
    ] {
        let response = client.request(method, path, b"").unwrap();
        assert!(response.status == 405 && response.json()["error"].is_string(), "{method} {path}: {response:?}");
        assert!(response.header("allow").unwrap().contains(allowed), "{method} {path}: {response:?}");
    }
    assert_eq!(client.request("HEAD", "/events/1", b"").unwrap().status, 200);
    server.stop();
}

fn python_sees_what_is_specified(stage: Option<Stage>) {
    let Some(stage) = stage else { return };
    let server = stage.serve();
    let queue = if matches!(stage, Stage::Embedded(_)) { server.events_queue() } else { "" };
    run_python("events.py", &[server.events(), queue]);
    server.stop();
}

fn what_is_no_request_is_refused_and_harms_nobody(stage: Option<Stage>) {
    let Some(stage) = stage else { return };
    let server = stage.serve();
    let mut client = client(&server);
    assert_eq!(client.request("POST", "/events", &[b'x'; 1 << 16]).unwrap().status, 201);
    // The reset because of unread bytes may cut its reply off.
    if let Ok(refused) = client.request("POST", "/events", &vec![b'x'; 1 << 20]) {
        assert_eq!(refused.status, 413);
    }
    let mut raw = TcpStream::connect(address(&server)).unwrap();
    raw.write_all(b"\x00\x01nonsense\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // A reset is an answer too.
    let _reset = raw.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"), "{}", String::from_utf8_lossy(&answer));
    // Clients that ask and vanish: their requests are done or not, and no id is lost.
    for _ in 0..50 {
        let mut gone = TcpStream::connect(address(&server)).unwrap();
        gone.write_all(b"POST /events HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    }
    for _ in 0..50 {
        EventsClient::new(address(&server)).create().unwrap();
    }
    assert!(all(&mut EventsClient::new(address(&server))).len() >= 51);
    server.stop();
}

fn ids_have_no_gaps_under_64_clients(stage: Option<Stage>) {
    let Some(stage) = stage else { return };
    const EACH: usize = 30;
    let server = stage.serve();
    let workers: Vec<_> = (0..4).map(|_| stage.work(&server, &[])).collect();
    let created = std::thread::scope(|scope| {
        let drive = |number: usize| {
            let mut client = client(&server);
            let one = move |turn: usize| match (number + turn) % 2 {
                0 => client.create().map(|event| (event.id, event.value)).unwrap(),
                _ => client.defer().map(|id| (id, None)).unwrap(),
            };
            (0..EACH).map(one).collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..64).map(|number| scope.spawn(move || drive(number))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let ids: BTreeSet<u64> = created.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, (1..=64 * EACH as u64).collect());
    let mut client = client(&server);
    assert_eq!(client.count().unwrap(), 64 * EACH as u64);
    for (id, value) in created {
        let stored = value_of(&mut client, id);
        assert!(value.is_none_or(|value| value == stored));
    }
    let stored: u64 = workers.into_iter().map(crate::stage::Worker::stop).sum();
    assert_eq!(stored, 32 * EACH as u64);
    server.stop();
}

fn each_event_is_one_workers(stage: Option<Stage>) {
    let Some(stage) = stage else { return };
    const EVENTS: u64 = 120;
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let command = script(folder.path(), "run", &format!("echo $1 >> {}\necho value of $1", log.display()));
    let server = stage.serve();
    let mut client = client(&server);
    defer(&mut client, EVENTS);
    let more: &[&str] = if matches!(stage, Stage::MySql(_)) { &["--claim=3"] } else { &[] };
    let flags = [&["--slots=2", "--command", &command][..], more].concat();
    let workers: Vec<_> = (0..4).map(|_| stage.work(&server, &flags)).collect();
    for id in 1..=EVENTS {
        assert_eq!(value_of(&mut client, id), format!("value of {id}"));
    }
    let ends: Vec<(u64, u64)> = workers.into_iter().map(crate::stage::Worker::end).collect();
    let lost: u64 = ends.iter().map(|(_, lost)| lost).sum();
    assert_eq!(ends.iter().map(|(stored, _)| stored).sum::<u64>(), EVENTS);
    let ran = std::fs::read_to_string(log).unwrap();
    let ran: Vec<u64> = ran.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(ran.iter().collect::<BTreeSet<_>>().len() as u64, EVENTS, "a command did not run");
    // Only a deadlock, which the database may report at any time, takes an event from its worker, and that worker
    // reports it.
    assert_eq!(ran.len() as u64, EVENTS + lost, "a command ran twice");
    assert!(lost == 0 || matches!(stage, Stage::MySql(_)));
    server.stop();
}

fn a_bad_value_sends_its_event_back(stage: Option<Stage>) {
    let Some(stage) = stage else { return };
    let server = stage.serve();
    let mut client = client(&server);
    let ids = [client.defer().unwrap(), client.defer().unwrap()];
    // The first has no good value here, and does not keep the second from having one.
    let picky = stage.work(&server, &["--command", "f() { [ $1 = 2 ] && echo two || printf '%0256d\\n' 1; }; f"]);
    assert_eq!(value_of(&mut client, ids[1]), "two");
    assert_eq!(picky.stop(), 1);
    assert_eq!(client.find(ids[0]).unwrap().unwrap().value, None);
    let longest = stage.work(&server, &["--command", "printf '%0255d\\n'"]);
    assert_eq!(value_of(&mut client, ids[0]), format!("{:0255}", ids[0]));
    assert_eq!(longest.stop(), 1);
    server.stop();
}

fn a_worker_that_gets_the_signal_to_stop_finishes_what_it_has(stage: Option<Stage>) {
    let Some(stage) = stage else { return };
    let folder = tempfile::tempdir().unwrap();
    let [begun, gate] = ["begun", "gate"].map(|name| fifo(folder.path(), name));
    let command = script(folder.path(), "run", &format!("echo $1 > {begun}\ncat {gate}"));
    let server = stage.serve();
    let mut client = client(&server);
    let id = client.defer().unwrap();
    let other = client.defer().unwrap();
    let mut worker = stage.work_with_a_log(&server, &["--command", &command]);
    assert_eq!(std::fs::read_to_string(&begun).unwrap().trim(), id.to_string());
    worker.begins_to_stop();
    std::fs::write(&gate, "late\n").unwrap();
    let (status, printed) = worker.wait();
    assert!(status.success() && printed.starts_with("stored 1, given back 0, lost 0"), "{status}: {printed}");
    assert_eq!(client.find(id).unwrap().unwrap().value.as_deref(), Some("late"));
    assert_eq!(client.find(other).unwrap().unwrap().value, None, "it is left to others");
    server.stop();
}

/// A named pipe: its reader waits for its writer.
pub(crate) fn fifo(folder: &std::path::Path, name: &str) -> String {
    let path = folder.join(name).to_str().unwrap().to_owned();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

fn what_was_taken_before_the_end_is_answered(stage: Option<Stage>) {
    let Some(stage) = stage else { return };
    let server = stage.serve();
    let acknowledged = std::thread::scope(|scope| {
        let drive = || {
            let mut client = client(&server);
            let mut ids = Vec::new();
            loop {
                match client.create() {
                    Ok(event) => ids.push(event.id),
                    Err(_) => return ids,
                }
                if ids.len() == 20 {
                    server.signal(Signal::TERM);
                }
            }
        };
        // One signal, or several: the second would end the server at once.
        let others = || {
            let mut client = client(&server);
            std::iter::from_fn(|| client.defer().ok()).collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(others)).collect();
        let first = drive();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).chain(first).collect::<BTreeSet<u64>>()
    });
    let (status, _) = server.wait();
    assert!(status.success(), "{status}");
    let server = stage.serve();
    let events = all(&mut client(&server));
    assert_eq!(acknowledged, (1..=events.len() as u64).collect(), "what was stored was answered");
    server.stop();
}

// -------------------------------------------------------------------------------------------------- the embedded store

#[test]
fn the_queue_of_the_events_can_only_be_worked_off() {
    let stage = Stage::embedded().unwrap();
    let server = stage.serve();
    let mut client = client(&server);
    let (done, pending) = (client.create().unwrap(), client.defer().unwrap());
    let mut queue = Spiderq::connect(server.events_queue()).unwrap();
    for (refused, tag) in [
        (queue.add(b"9", b"", AddMode::Tail).map(drop), 0x02),
        (queue.remove(b"1").map(drop), 0x0C),
        (queue.terminate(), 0x08),
    ] {
        let fault = Fault::Offending { field: Field::UnknownTag, offending: tag };
        assert_eq!(refused, Err(Error::Refused(fault)));
    }
    assert!(!queue.update(b"1", b"other").unwrap(), "a value is given once");
    assert_eq!(queue.count().unwrap(), 1, "only pending ones are lent");
    assert_eq!(queue.lookup(b"1").unwrap().map(String::from_utf8).unwrap().ok(), done.value);
    for status in [RepayStatus::Penalty, RepayStatus::Reward, RepayStatus::Front] {
        let lent = queue.lend(60_000, LendMode::Poll).unwrap().unwrap();
        assert_eq!((&*lent.key, &*lent.value), (&b"2"[..], &b""[..]));
        assert!(queue.repay(lent.lend_key, b"2", b"ignored", status).unwrap());
        assert_eq!(client.find(pending).unwrap().unwrap().value, None);
    }
    let lent = queue.lend(60_000, LendMode::Poll).unwrap().unwrap();
    assert_eq!(lent.value, b"", "the values of other Repays are ignored");
    for bad in [&b"\xFF"[..], &[b'x'; 256], "🦩".repeat(256).as_bytes()] {
        assert!(!queue.repay(lent.lend_key, b"2", bad, RepayStatus::Drop).unwrap());
    }
    assert!(!queue.done(lent.lend_key, b"2").unwrap(), "an event stays");
    assert!(queue.heartbeat(lent.lend_key, b"2", 60_000).unwrap(), "the lease is still held");
    assert!(queue.repay(lent.lend_key, b"2", "🦩".repeat(255).as_bytes(), RepayStatus::Drop).unwrap());
    assert_eq!(client.find(pending).unwrap().unwrap().value, Some("🦩".repeat(255)));
    assert!(!queue.repay(lent.lend_key, b"2", b"again", RepayStatus::Drop).unwrap());
    server.stop();
}

#[test]
fn events_and_tasks_share_a_store_and_are_not_mixed_up() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let server = Server::start_events(&["--tasks", "tcp://127.0.0.1:*", "--data", data]);
    let mut tasks = Spiderq::connect(server.tasks()).unwrap();
    assert!(tasks.add(b"1", b"task", AddMode::Tail).unwrap());
    let mut client = client(&server);
    assert_eq!((client.count().unwrap(), client.defer().unwrap()), (0, 1));
    assert_eq!(tasks.count().unwrap(), 1);
    assert!(tasks.update(b"1", b"changed").unwrap(), "the queue of the tasks is not restricted");
    server.stop();
}

// -------------------------------------------------------------------------------------------------------- the database

/// The one line of a command that cannot do its work.
#[track_caller]
fn assert_refused(arguments: &[&str], about: &str) {
    let output = spindle(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), said.trim_end().lines().count()), (Some(1), 1), "{arguments:?}: {said}");
    assert!(said.contains(about), "{said}");
}

/// The worker says that it waits for a server, and then that none has come.
fn assert_waits_in_vain(arguments: &[&str]) {
    let output = spindle(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<_> = said.trim_end().lines().collect();
    assert_eq!((output.status.code(), lines.len()), (Some(1), 2), "{said}");
    assert!(lines[0].contains("the worker waits for one, for 5 s at most"), "{said}");
    assert!(lines[1].contains("is a server running there"), "{said}");
}

#[test]
fn a_database_that_is_not_there_or_not_fit_is_refused() {
    let nowhere = "mysql://u:p@127.0.0.1:1/d";
    let serve = ["serve", "--kv=off", "--publish=off", "--events=127.0.0.1:0", "--events-store"];
    assert_refused(&[&serve[..], &[nowhere]].concat(), "is the database running");
    assert_refused(&["worker", "--store", nowhere], "is the database running");
    assert_waits_in_vain(&["worker", "--connect", "ipc:///nonexistent/spindle"]);
    let Some(database) = maria_db() else { return };
    let url = database.url();
    let serve = [&serve[..], &[&url]].concat();
    database.ask("CREATE TABLE status (id INT) ENGINE=MyISAM; INSERT INTO status VALUES (0)");
    assert_refused(&serve, "two engines");
    database.ask("DROP TABLE events; CREATE TABLE events (id INT, value VARCHAR(255)) ENGINE=MyISAM");
    assert_refused(&serve, "SKIP LOCKED locks nothing");
    assert_refused(&["worker", "--store", &url], "SKIP LOCKED locks nothing");
    database.ask(
        "DROP TABLE status, events; CREATE TABLE status (id INT) ENGINE=InnoDB; INSERT INTO status VALUES (1), (2)",
    );
    assert_refused(&serve, "has 2 rows");
}

#[test]
fn tables_are_as_specified_and_those_that_are_there_are_used() {
    let Some(Stage::MySql(database)) = Stage::mysql() else { return };
    database.ask("CREATE TABLE events (id INT, value VARCHAR(255)); INSERT INTO events VALUES (1, 'old'), (2, NULL)");
    let stage = Stage::MySql(database);
    let server = stage.serve();
    assert_eq!(client(&server).create().unwrap().id, 3, "ids continue behind what is there");
    server.stop();
    let Stage::MySql(database) = stage else { return };
    let columns = "SELECT table_name, column_name, column_type, is_nullable, column_key FROM information_schema.columns \
                   WHERE table_schema = 'events' ORDER BY 1, 2";
    assert_eq!(
        database.ask(columns),
        "events\tid\tint(11)\tYES\t\nevents\tvalue\tvarchar(255)\tYES\t\nstatus\tid\tint(11)\tYES"
    );
}
