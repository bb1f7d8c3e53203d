//! Jobs with options, clients that wait for a job, and jobs that are given back: ADDX, WAIT, NACK, TOUCH.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use rustix::process::Signal;
use spindle::clients::rust::jobs::JobsClient;

use crate::harness::{Server, spindle};
use crate::jobs::{add, ask, connect, folder, get, is_id, let_the_server_read, rest};
use crate::users_tcp::Served;

/// Has sent these bytes, which the server has read.
fn waiting(server: &Server, request: &str) -> TcpStream {
    let mut stream = connect(server);
    stream.write_all(request.as_bytes()).unwrap();
    let_the_server_read(server);
    stream
}

fn add_with(server: &Server, options: &str, data: &str) -> String {
    let id = ask(server, format!("ADDX q {options} {} {data}", data.len()));
    assert!(is_id(&id), "{options}: {id}");
    id
}

/// The id of the job that comes within a minute.
fn awaited(server: &Server) -> String {
    let job = ask(server, "WAIT q 60\n");
    job.split(' ').next().unwrap().to_owned()
}

#[test]
fn those_that_wait_are_served_first_come_first_and_a_list_in_its_order() {
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &[]);
    let first = waiting(&server, "WAIT q 60\n");
    let second = waiting(&server, "WAIT other,q 60\r\n");
    let ids = ["a", "bc"].map(|data| add(&server, "q", data));
    assert_eq!(rest(first), format!("{} 1 a", ids[0]));
    assert_eq!(rest(second), format!("{} 2 bc", ids[1]));
    let (late, early) = (add(&server, "second", "x"), add(&server, "first", "y"));
    assert_eq!(ask(&server, "WAIT first,second,first 0\n"), format!("{early} 1 y"));
    assert_eq!(ask(&server, "WAIT first,second 0\n"), format!("{late} 1 x"));
    assert_eq!(ask(&server, "WAIT first,second 0\n"), "NONE", "without seconds it is a GET");
    assert_eq!(ask(&server, "WAIT q 1\n"), "NONE");
    // A queue that somebody has waited for is none, and one with a comma is no list.
    assert_eq!(ask(&server, format!("IN second {late}\n")), "YES");
    server.stop();
}

#[test]
fn a_client_that_has_closed_its_half_gets_its_job_and_one_that_is_gone_loses_none() {
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &[]);
    let half = waiting(&server, "WAIT q 60\n");
    half.shutdown(Shutdown::Write).unwrap();
    let_the_server_read(&server);
    let id = add(&server, "q", "a");
    assert_eq!(rest(half), format!("{id} 1 a"));
    assert_eq!(ask(&server, format!("ACK q {id}\n")), "OK");
    // It closes while it waits. Its lease is undone, and was no try.
    drop(waiting(&server, "WAIT q 60\n"));
    let_the_server_read(&server);
    let id = add_with(&server, "tries=1", "b");
    assert_eq!(awaited(&server), id);
    assert_eq!(ask(&server, format!("NACK q {id}\n")), "OK");
    assert_eq!(get(&server, "q"), "NONE", "that was its last try");
    assert_eq!(ask(&server, format!("IN q {id}\n")), "YES", "it is dead");
    // One that resets the connection is withdrawn.
    let reset = waiting(&server, "WAIT q 60\n");
    rustix::net::sockopt::set_socket_linger(&reset, Some(Duration::ZERO)).unwrap();
    drop(reset);
    let_the_server_read(&server);
    let id = add(&server, "q", "c");
    assert_eq!(awaited(&server), id);
    server.stop();
}

#[test]
fn a_server_that_ends_answers_those_that_wait() {
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &[]);
    let streams: Vec<TcpStream> = (0..50).map(|_| waiting(&server, "WAIT q,r 4294967295\n")).collect();
    server.signal(Signal::TERM);
    assert!(streams.into_iter().all(|stream| rest(stream) == "NONE"));
    assert!(server.wait().0.success());
}

#[test]
fn a_wait_for_more_places_than_there_are_is_answered_at_once() {
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &[]);
    let names = |number: usize| (0..1_024).map(|queue| format!("{number}.{queue}")).collect::<Vec<_>>().join(",");
    let waits = |number| waiting(&server, &format!("WAIT {} 3600\n", names(number)));
    let holders: Vec<TcpStream> = (0..97).map(waits).collect();
    assert_eq!(ask(&server, format!("WAIT {} 3600\n", names(97))), "NONE");
    let id = add(&server, "42.1023", "x");
    let mut holders = holders.into_iter();
    assert_eq!(rest(holders.nth(42).unwrap()), format!("{id} 1 x"));
    let last = waits(97);
    let id = add(&server, "97.0", "y");
    assert_eq!(rest(last), format!("{id} 1 y"), "the one that was answered has given its places back");
    server.stop();
}

#[test]
fn a_key_is_added_once_until_its_job_is_done_also_over_a_crash() {
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &[]);
    let id = add_with(&server, "key=order-7", "a");
    assert_eq!(add_with(&server, "key=order-7", "again"), id);
    assert_ne!(ask(&server, "ADDX other key=order-7 1 a"), id, "each queue has its own");
    assert_eq!(get(&server, "q"), format!("{id} 1 a"));
    server.signal(Signal::KILL);
    server.wait();
    let server = Server::start_jobs(folder.path(), &[]);
    assert_eq!(add_with(&server, "key=order-7", "again"), id, "it is lent");
    assert_eq!(ask(&server, format!("ACK q {id}\n")), "OK");
    assert_ne!(add_with(&server, "key=order-7", "anew"), id);
    server.stop();
}

#[test]
fn a_lease_is_the_jobs_own_and_a_touch_moves_its_end() {
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &[]);
    let id = add_with(&server, "lease=1s", "a");
    assert_eq!(get(&server, "q"), format!("{id} 1 a"));
    assert_eq!(awaited(&server), id, "its second is over");
    assert_eq!(ask(&server, format!("TOUCH q {id} 3600\n")), "OK");
    assert_eq!(ask(&server, "WAIT q 3\n"), "NONE", "it is still held");
    assert_eq!(ask(&server, format!("TOUCH q {id} 0\n")), "OK", "as if it had run out");
    assert_eq!(awaited(&server), id);
    server.signal(Signal::KILL);
    server.wait();
    let server = Server::start_jobs(folder.path(), &[]);
    assert_eq!(awaited(&server), id, "also over a crash");
    for request in ["TOUCH q 7 1\n", "NACK q 7\n", &format!("TOUCH other {id} 1\n"), &format!("NACK other {id}\n")] {
        assert_eq!(ask(&server, request), "NO", "{request}");
    }
    server.stop();
}

#[test]
fn a_job_that_fails_comes_back_in_its_place_after_its_delay_until_its_tries_are_over() {
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &["--jobs-ack", "yes-no"]);
    let first = add_with(&server, "tries=3,backoff=1h", "a");
    let second = add_with(&server, "delay=1s,group=acme,class=9,expires=1d", "b");
    let third = add(&server, "q", "c");
    let nack = |rest: &str| ask(&server, format!("NACK q {first}{rest}\n"));
    assert_eq!(awaited(&server), first);
    assert_eq!(nack(" 0 no such host"), "YES");
    assert_eq!(awaited(&server), first, "in its place, before the others");
    assert_eq!(nack(""), "YES");
    assert_eq!(nack(""), "NO", "nobody holds it");
    assert_eq!(awaited(&server), third, "the first waits for an hour, and the second comes");
    assert_eq!(awaited(&server), second);
    server.stop();
}

#[test]
fn what_is_no_such_request_is_refused_and_nothing_is_stored() {
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &[]);
    for request in [
        "ADDX q 1 a",
        "ADDX q delay=5 1 a",
        "ADDX q key= 1 a",
        "ADDX q tries=1,tries=1 1 a",
        "ADDX q - 2 a\n\n\n",
        "WAIT q\n",
        "WAIT q -1\n",
        "WAIT q,,r 1\n",
        "WAIT q 1 2\n",
        "NACK q\n",
        "TOUCH q 1\n",
        "wait q 1\n",
    ] {
        assert_eq!(ask(&server, request), "ERROR", "{request}");
    }
    assert_eq!(get(&server, "q"), "NONE");
    let client = JobsClient::new(server.jobs());
    let id = client.add_with(b"q", b"tries=2", b"data").unwrap();
    let job = client.wait(&[b"r", b"q"], 60).unwrap().unwrap();
    assert_eq!((job.id, &*job.data), (id, &b"data"[..]));
    assert!(client.touch(b"q", id, 60).unwrap() && client.nack(b"q", id, Some(0), b"no such host").unwrap());
    assert_eq!(client.wait(&[b"q"], 60).unwrap().map(|job| job.id), Some(id));
    assert!(client.ack(b"q", id).unwrap() && client.wait(&[b"q"], 0).unwrap().is_none());
    server.stop();
}

#[test]
fn a_user_waits_only_in_queues_that_are_its_own() {
    let served = Served::start();
    let ask = |line: &str| {
        let mut stream = TcpStream::connect(served.server.jobs()).unwrap();
        stream.write_all(format!("AUTH ada heron\n{line}").as_bytes()).unwrap();
        rest(stream)
    };
    assert_eq!(ask("WAIT mail,mail-2 0\n"), "NONE");
    assert_eq!(ask("WAIT mail,other 0\n"), "ERROR");
    assert_eq!(ask("ADDX other - 1 a"), "ERROR");
    assert!(is_id(&ask("ADDX mail - 1 a")));
    assert_eq!(ask("NACK other 1\n"), "ERROR");
    assert_eq!(ask("TOUCH mail 1 1\n"), "NO");
}

#[test]
fn a_user_who_is_removed_while_it_waits_gets_no_job() {
    let served = Served::start();
    let send = |line: &str| {
        let mut stream = TcpStream::connect(served.server.jobs()).unwrap();
        stream.write_all(line.as_bytes()).unwrap();
        stream
    };
    let waits = send("AUTH ada heron\nWAIT mail 600\n");
    // Those of ada have had their turn by then.
    assert_eq!(rest(send("AUTH ada heron\nGET mail\n")), "NONE");
    let removed = spindle(&["user", "remove", "ada", "--users", &served.users()]);
    assert!(removed.status.success());
    while rest(send("AUTH ada heron\nGET mail\n")) == "NONE" {}
    let id = rest(send("AUTH root heron\nADD mail 1 a"));
    assert_eq!(rest(waits), "ERROR");
    assert_eq!(rest(send("AUTH root heron\nWAIT mail 60\n")), format!("{id} 1 a"), "it has gone back");
}
