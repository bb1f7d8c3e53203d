//! Durable jobs over TCP: the states of a job, queues, leases, the end of the server, the command line.

use std::io::{Read, Write};
use std::net::TcpStream;

use rustix::process::Signal;
use spindle::clients::rust::jobs::JobsClient;
use spindle::services::jobs::wire::JobId;

use crate::harness::{Server, real_peer, spindle, spindle_reads};
use crate::tasks_disk::{synced_before_the_answer, traced};

pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

pub(crate) fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.jobs()).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// All bytes until the server closes, which it must do well.
pub(crate) fn rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("no reset before the answer was read");
    String::from_utf8(bytes).expect("these answers are text")
}

/// Sends these bytes and waits for the answer, without marking the end.
pub(crate) fn ask(server: &Server, bytes: impl AsRef<[u8]>) -> String {
    let mut stream = connect(server);
    stream.write_all(bytes.as_ref()).unwrap();
    rest(stream)
}

pub(crate) fn add(server: &Server, queue: &str, data: &str) -> String {
    let id = ask(server, format!("ADD {queue} {} {data}", data.len()));
    assert!(is_id(&id), "{id}");
    id
}

pub(crate) fn get(server: &Server, queue: &str) -> String {
    ask(server, format!("GET {queue}\n"))
}

pub(crate) fn is_id(text: &str) -> bool {
    JobId::read(text.as_bytes()).is_some()
}

/// When this has been answered, the server has gone round once, and has read the earlier bytes.
pub(crate) fn let_the_server_read(server: &Server) {
    assert_eq!(ask(server, "GET nothing\n"), "NONE");
}

// ---------------------------------------------------------------------------------------------------------------- rows

#[test]
fn a_job_is_added_handed_out_and_done() {
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &[]);
    let id = add(&server, "q", "what to do");
    let is_in = || ask(&server, format!("IN q {id}\n"));
    let ack = || ask(&server, format!("ACK q {id}\n"));
    assert_eq!((is_in(), ack()), ("YES".into(), "NO".into()), "it is not handed out");
    assert_eq!(get(&server, "q"), format!("{id} 10 what to do"));
    assert_eq!((is_in(), get(&server, "q")), ("YES".into(), "NONE".into()), "it is hidden");
    assert_eq!(ask(&server, format!("ACK other {id}\n")), "NO", "it is of another queue");
    assert_eq!((ack(), is_in()), ("OK".into(), "NO".into()));
    assert_eq!((ack(), get(&server, "q")), ("NO".into(), "NONE".into()));
    server.stop();
}

// -------------------------------------------------------------------------------------------------------------- queues

#[test]
fn jobs_are_handed_out_in_the_order_in_which_they_were_added() {
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &[]);
    for number in 0..50 {
        add(&server, "a", &format!("a{number}"));
        add(&server, "b", &format!("b{number}"));
    }
    for number in 0..50 {
        for queue in ["b", "a"] {
            let data = format!("{queue}{number}");
            assert!(get(&server, queue).ends_with(&format!(" {} {data}", data.len())), "{data}");
        }
    }
    server.stop();
}

#[test]
fn queues_come_and_go_by_the_thousand_and_a_get_makes_none() {
    const QUEUES: u64 = 2_000;
    let folder = folder();
    let data = folder.path().to_str().unwrap();
    let server = Server::start(&["--jobs", "0", "--data", data]);
    let client = JobsClient::new(server.jobs());
    for queue in 0..QUEUES {
        assert_eq!(client.get(format!("no-{queue}").as_bytes()).unwrap(), None);
        client.add(format!("queue-{queue}").as_bytes(), b"x").unwrap();
    }
    let family = |server: &Server| server.stats()["tasks"]["families"][0].clone();
    let metrics = family(&server);
    let metric = |name: &str| metrics[name].as_u64().unwrap();
    assert_eq!((metrics["name"].as_str(), metric("queues"), metric("ready")), (Some("jobs/"), QUEUES, QUEUES));
    let listed = server.stats()["tasks"]["queues"].as_array().unwrap().len();
    assert_eq!(listed, 100, "a few of them one by one");
    server.stop();
    let server = Server::start(&["--jobs", "0", "--data", data]);
    let client = JobsClient::new(server.jobs());
    for queue in 0..QUEUES {
        let queue = format!("queue-{queue}");
        let job = client.get(queue.as_bytes()).unwrap().unwrap();
        assert!(client.ack(queue.as_bytes(), job.id).unwrap());
    }
    assert_eq!((family(&server)["queues"].as_u64(), family(&server)["leased"].as_u64()), (Some(0), Some(0)));
    server.stop();
}

#[test]
fn jobs_and_tasks_share_a_store_and_nothing_else() {
    let folder = folder();
    let data = folder.path().to_str().unwrap();
    let flags = ["--tasks", "tcp://127.0.0.1:*", "--jobs", "0", "--data", data];
    let server = Server::start(&flags);
    add(&server, "spiderq", "a job");
    let count = |server: &Server| spindle(&["task", "count", "--connect", server.tasks()]).stdout;
    assert_eq!(count(&server), b"0\n");
    drop(server);
    let server = Server::start_tasks(folder.path(), &[]);
    assert_eq!(count(&server), b"0\n", "jobs are kept while they are off");
    server.stop();
    let server = Server::start(&flags);
    assert!(get(&server, "spiderq").ends_with(" 5 a job"));
    server.stop();
}

// -------------------------------------------------------------------------------------------------------------- leases

#[test]
fn a_job_whose_lease_has_ended_stands_in_its_place_again_and_its_holder_is_refused() {
    let folder = folder();
    let data = folder.path().to_str().unwrap();
    let server = Server::start(&["--jobs", "0", "--lease", "1", "--data", data]);
    let ids = ["1", "2", "3"].map(|data| add(&server, "q", data));
    assert_eq!(get(&server, "q"), format!("{} 1 1", ids[0]));
    assert_eq!(get(&server, "q"), format!("{} 1 2", ids[1]));
    while server.stats()["tasks"]["families"][0]["leased"] != 0 {}
    assert_eq!(ask(&server, format!("ACK q {}\n", ids[0])), "NO", "the lease has ended");
    assert_eq!(ask(&server, format!("IN q {}\n", ids[0])), "YES");
    server.stop();
    let server = Server::start_jobs(folder.path(), &[]);
    for (id, data) in ids.iter().zip(1..) {
        assert_eq!(get(&server, "q"), format!("{id} 1 {data}"), "the original order");
    }
    assert_eq!(ask(&server, format!("ACK q {}\n", ids[0])), "OK", "it is handed out again, and nobody asks to whom");
    server.stop();
}

#[test]
fn everything_is_there_after_kill_9_in_the_same_state() {
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &[]);
    let ids: Vec<String> = (0..5).map(|number| add(&server, "q", &format!("job {number}"))).collect();
    let is_in = |server: &Server, id: &str| ask(server, format!("IN q {id}\n"));
    get(&server, "q");
    get(&server, "q");
    assert_eq!(ask(&server, format!("ACK q {}\n", ids[0])), "OK");
    drop(server);
    let server = Server::start_jobs(folder.path(), &[]);
    assert_eq!((is_in(&server, &ids[0]), is_in(&server, &ids[1])), ("NO".into(), "YES".into()));
    let next = add(&server, "q", "job 5");
    assert!(next > ids[4].clone(), "no id is given twice");
    for (number, id) in ids.iter().enumerate().skip(2) {
        assert_eq!(get(&server, "q"), format!("{id} 5 job {number}"), "1 is still handed out");
    }
    assert_eq!(ask(&server, format!("ACK q {}\n", ids[1])), "OK", "and its holder may say that it is done");
    server.stop();
}

#[test]
fn a_lease_ends_when_it_was_to_end_also_after_kill_9() {
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &["--lease", "1"]);
    let id = add(&server, "q", "x");
    assert_eq!(get(&server, "q"), format!("{id} 1 x"));
    drop(server);
    // The stored deadline holds, and not the new flag.
    let server = Server::start_jobs(folder.path(), &["--lease", "86400"]);
    while get(&server, "q") == "NONE" {}
    assert_eq!(ask(&server, format!("ACK q {id}\n")), "OK");
    server.stop();
}

#[test]
fn every_change_is_synced_between_its_request_and_its_answer() {
    let Some(strace) = real_peer("strace") else { return };
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &["--sync", "never"]);
    let trace = traced(&strace, &server, || {
        for number in 0..20 {
            let queue = format!("traced-{number:02}");
            let id = add(&server, &queue, "x");
            assert_eq!(get(&server, &queue), format!("{id} 1 x"));
            assert_eq!(ask(&server, format!("ACK {queue} {id}\n")), "OK");
        }
    });
    for number in 0..20 {
        for verb in ["ADD", "GET", "ACK"] {
            let what = format!("{verb} traced-{number:02}");
            assert!(synced_before_the_answer(&trace, &what), "{what}: {}", trace.join("\n"));
        }
    }
    server.stop();
}

// ------------------------------------------------------------------------------------------------------------- the end

#[test]
fn a_server_binds_where_another_has_just_ended() {
    let folder = folder();
    let mut server = Server::start_jobs(folder.path(), &[]);
    let address = server.jobs().to_owned();
    let data = folder.path().to_str().unwrap();
    let flags = ["--kv", "off", "--publish", "off", "--jobs", &address, "--data", data];
    for round in 0..5 {
        for _ in 0..20 {
            add(&server, "q", "x");
        }
        if round % 2 == 0 {
            server.stop();
        } else {
            drop(server);
        }
        server = Server::start_exactly(&flags);
    }
    assert_eq!(server.jobs(), address);
    server.stop();
}

#[test]
fn a_server_that_ends_answers_what_has_come() {
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &[]);
    let mut waiting = ["", "ADD q 5 abcd", "AD"].map(|short| (short, connect(&server)));
    for (short, stream) in &mut waiting {
        stream.write_all(short.as_bytes()).unwrap();
    }
    let_the_server_read(&server);
    server.signal(Signal::TERM);
    for (short, stream) in waiting {
        assert_eq!(rest(stream), "ERROR", "{short:?}");
    }
    assert!(server.wait().0.success());
}

#[test]
fn an_address_that_is_taken_is_named() {
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &[]);
    let other = tempfile::tempdir().unwrap();
    let data = other.path().to_str().unwrap();
    let output = spindle(&["serve", "--kv", "off", "--publish", "off", "--jobs", server.jobs(), "--data", data]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.trim_end().lines().count() == 1 && said.contains(server.jobs()) && said.contains("in use"), "{said}");
    server.stop();
}

// -------------------------------------------------------------------------------------------------------- command line

#[test]
fn people_work_with_jobs_on_the_command_line() {
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &[]);
    let job = |arguments: &[&str]| {
        let output = spindle(&[&["job"], arguments, &["--connect", server.jobs()]].concat());
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let good = |arguments: &[&str]| {
        let (status, out, error) = job(arguments);
        assert_eq!(status, Some(0), "{arguments:?}: {error}");
        out
    };
    let bad = |arguments: &[&str], status: i32, about: &str| {
        let (code, out, error) = job(arguments);
        assert_eq!((code, &*out), (Some(status), ""), "{arguments:?}");
        assert!(error.trim_end().lines().count() == 1 && error.contains(about), "{arguments:?}: {error}");
    };
    bad(&["get", "mail"], 3, "spindle job add");
    let id = good(&["add", "mail", "to ada"]).trim_end().to_owned();
    assert!(is_id(&id));
    bad(&["ack", "mail", &id], 3, "not handed out");
    assert_eq!(good(&["in", "mail", &id]), "YES\n");
    assert_eq!(good(&["get", "mail"]), format!("{id}\nto ada\n"));
    assert_eq!(good(&["ack", "mail", &id]), "OK\n");
    assert_eq!(good(&["in", "mail", &id]), "NO\n");
    let file = folder.path().join("file");
    std::fs::write(&file, b"\xff\x00").unwrap();
    let json = |text: String| serde_json::from_str::<serde_json::Value>(&text).unwrap();
    let added = json(good(&["add", "mail", "--file", file.to_str().unwrap(), "--json"]));
    let got = json(good(&["get", "mail", "--json"]));
    assert_eq!((&got["id"], got["data"].as_str()), (&added["id"], Some("0xff00")));
    assert_eq!(json(good(&["in", "mail", added["id"].as_str().unwrap(), "--json"]))["in"], true);
    bad(&["ack", "mail", "7"], 2, "20 digits");
    bad(&["add", "two words", "x"], 2, "without white space");
    bad(&["add", "mail", "--file", "/nowhere"], 1, "/nowhere");
    bad(&["add", "mail"], 2, "required");
    server.stop();
    let output = spindle(&["job", "get", "mail", "--connect", "1"]);
    assert!(output.status.code() == Some(1) && String::from_utf8(output.stderr).unwrap().contains("--jobs"));
}

#[test]
fn a_job_is_read_from_standard_input() {
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &[]);
    assert!(spindle_reads(&["job", "add", "q", "-", "--connect", server.jobs()], b"from afar").status.success());
    assert!(get(&server, "q").ends_with(" 9 from afar"));
    let bytes = b"\xff\x00 and no end of line";
    let added = spindle_reads(&["job", "add", "q", "-", "--connect", server.jobs()], bytes).stdout;
    let got = spindle(&["job", "get", "q", "--raw", "--connect", server.jobs()]).stdout;
    assert_eq!(got, [&added[..], bytes].concat(), "behind the line of the id");
    server.stop();
}
