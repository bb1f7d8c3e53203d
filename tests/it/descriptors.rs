//! Few descriptors: idle connections leave the store its reserve and each service its share, and make place for clients
//! that wait.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use spindle::clients::rust::events::EventsClient as Events;
use spindle::clients::rust::jobs::JobsClient as Jobs;
use spindle::clients::rust::tables::Client as Tables;
use spindle::clients::rust::tasks::TasksClient as Tasks;
use spindle::limits::PLACE_SILENT_TIME;
use spindle::server::raise_descriptor_limit;
use spindle::services::tasks::wire::{AddMode, LendMode, RepayStatus};

use crate::admin::{awaited, get, json};
use crate::harness::{SPINDLE, Server};

const ANY: &str = "tcp://127.0.0.1:*";

/// The number of each descriptor of a server, and whether it is a socket.
pub(crate) fn descriptors(server: &Server) -> Vec<(u64, bool)> {
    let folder = format!("/proc/{}/fd", server.pid().as_raw_nonzero());
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    // One that is closed meanwhile is no socket.
    let is_socket =
        |entry: &fs::DirEntry| fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"));
    entries.map(|entry| (entry.file_name().to_str().unwrap().parse().unwrap(), is_socket(&entry))).collect()
}

/// At 24 the server panicked, and at 27 libzmq aborted it.
#[test]
fn too_few_descriptors_end_the_start_with_a_sentence() {
    for files in 10..40 {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().display();
        let command = format!(
            "ulimit -n {files}; exec {SPINDLE} serve --kv off --publish off --tasks '{ANY}' --jobs 127.0.0.1:0 \
             --beanstalk 127.0.0.1:0 --admin 127.0.0.1:0 --segment-size 4M --data {data}"
        );
        let mut started =
            Command::new("sh").args(["-c", &command]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It ends, or is ready.
        let mut line = String::new();
        BufReader::new(started.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if !line.is_empty() {
            kill_process(Pid::from_child(&started), Signal::KILL).unwrap();
        }
        let ended = started.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!text.contains("panicked") && !text.contains(".cpp"), "{files}: {text}");
        assert!(
            !line.is_empty() || ended.status.code() == Some(1) && text.contains("raise the limit"),
            "{files}: {text}"
        );
    }
}

fn connect(endpoint: &str) -> TcpStream {
    TcpStream::connect(endpoint.trim_start_matches("tcp://")).unwrap()
}

/// Connects to all of them in turn, more often than there are descriptors, and waits until the server has none left for
/// them.
fn fill(server: &Server, endpoints: &[&str], limit: u64) -> Vec<TcpStream> {
    let idle =
        (0..usize::try_from(limit).unwrap()).map(|number| connect(endpoints[number % endpoints.len()])).collect();
    let mut before = 0;
    awaited("the end of accepting", || {
        let now = descriptors(server).len();
        (now == std::mem::replace(&mut before, now)).then_some(())
    });
    idle
}

/// Connections leave as many descriptors as the reserve has.
fn assert_reserve_is_free(server: &Server, limit: u64) {
    let sockets = descriptors(server).into_iter().filter(|(_, socket)| *socket).count() as u64;
    assert!(sockets <= limit - limit / 4, "{sockets} of {limit}");
}

/// Whether the server has closed this connection. What it has sent before is read.
fn is_closed(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let mut bytes = [0; 4_096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

#[test]
fn idle_connections_leave_the_store_what_it_needs() {
    const FILES: u64 = 64;
    raise_descriptor_limit();
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let flags = ["--kv", "off", "--publish", "off", "--tasks", ANY, "--jobs", "0", "--sync", "never", "--data", data];
    let server = Server::start_with_files(FILES, &flags);
    let idle = fill(&server, &[server.tasks(), server.jobs()], FILES);
    let mut tasks = Tasks::connect(server.tasks()).unwrap();
    // Enough for the store to write files of its trees, read them and merge them.
    let value = vec![7; 1 << 20];
    for number in 0..200_u32 {
        assert!(tasks.add(&number.to_be_bytes(), &value, AddMode::Tail).unwrap());
    }
    for _ in 0..200 {
        let lent = tasks.lend(60_000, LendMode::Poll).unwrap().unwrap();
        assert!(tasks.repay(lent.lend_key, &lent.key, b"", RepayStatus::Drop).unwrap());
    }
    tasks.flush().unwrap();
    assert_reserve_is_free(&server, FILES);
    drop(idle);
    // New connections are served.
    let jobs = Jobs::new(server.jobs());
    let id = jobs.add(b"q", b"data").unwrap();
    assert!(jobs.get(b"q").unwrap().is_some_and(|job| job.id == id));
    server.stop();
}

fn of_stats(client: &mut Tables, field: &str) -> u64 {
    let stats: Value = serde_json::from_str(&client.stats().unwrap()).unwrap();
    stats["descriptors"][field].as_u64().unwrap()
}

/// Further clients waited for as long as idle ones stayed.
#[test]
fn an_idle_connection_makes_place_for_each_client_that_waits() {
    ["native", "queue"].into_iter().for_each(idle_connections_make_place);
}

fn idle_connections_make_place(frontend: &str) {
    const FILES: u64 = 256;
    raise_descriptor_limit();
    let server = Server::start_with_files(FILES, &["--kv", ANY, "--publish", "off", "--frontend", frontend]);
    let start = Instant::now();
    let idle = fill(&server, &[server.kv()], FILES);
    let mut client = Tables::connect(server.kv()).unwrap();
    client.create_table(b"t").unwrap();
    let (pauses, places) = (of_stats(&mut client, "accept_pauses"), of_stats(&mut client, "made_place"));
    let closed = idle.iter().filter(|stream| is_closed(stream)).count() as u64;
    assert!((1..=places).contains(&closed), "{closed} of {places}");
    // Ten a second, and one for each place. A server without the pause would ask again a hundred thousand times.
    let longest = start.elapsed().as_millis() / 20 + 10 + 4 * u128::from(places);
    assert!(u128::from(pauses) <= longest, "{pauses} times in {:?}, {places} places", start.elapsed());
    assert_reserve_is_free(&server, FILES);
    server.stop();
}

/// Health, events and jobs had no answer for as long as idle connections to the tables stayed.
fn every_service_has_its_share(frontend: &str, files: u64) {
    raise_descriptor_limit();
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let flags = ["--kv", ANY, "--publish", ANY, "--frontend", frontend, "--tasks", ANY, "--jobs", "0", "--events"];
    let flags = [&flags[..], &["127.0.0.1:0", "--events-queue", ANY, "--admin", "0", "--data", data]].concat();
    let server = Server::start_with_files(files, &flags);
    let share = json(server.admin(), "/stats")["descriptors"]["share"].as_u64().unwrap();
    assert!(share > 0, "{files} files leave no share");
    let idle = fill(&server, &[server.kv(), server.publish()], files);
    for _ in 0..2 * share {
        assert_eq!(get(server.admin(), "/health").0, 200);
        assert_eq!(get(server.admin(), "/ready").0, 200);
        assert_eq!(get(server.events(), "/health").0, 200);
        Events::new(server.events().parse().unwrap()).create().unwrap();
        let jobs = Jobs::new(server.jobs());
        let id = jobs.add(b"q", b"data").unwrap();
        assert!(jobs.get(b"q").unwrap().is_some_and(|job| job.id == id));
    }
    // Idle connections to all of them change nothing for them.
    let all = [server.tasks(), server.events_queue(), server.jobs(), server.events(), server.admin()];
    let more = fill(&server, &all, files);
    assert_eq!(get(server.admin(), "/health").0, 200);
    assert_eq!(get(server.admin(), "/stats").0, 200);
    assert_eq!(get(server.events(), "/events").0, 200);
    Tasks::connect(server.tasks()).unwrap().ping().unwrap();
    Jobs::new(server.jobs()).add(b"q", b"data").unwrap();
    Tables::connect(server.kv()).unwrap().create_table(b"t").unwrap();
    assert_reserve_is_free(&server, files);
    drop((idle, more));
    server.stop();
}

#[test]
fn every_service_has_its_share_of_1500_files() {
    every_service_has_its_share("native", 1_500);
}

#[test]
fn every_service_has_its_share_of_1500_files_before_the_queue() {
    every_service_has_its_share("queue", 1_500);
}

#[test]
fn every_service_has_its_share_of_128_files() {
    every_service_has_its_share("native", 128);
}

#[test]
fn a_subscriber_and_a_waiting_lend_make_no_place() {
    const FILES: u64 = 128;
    raise_descriptor_limit();
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let flags = ["--kv", ANY, "--publish", ANY, "--frontend", "native", "--tasks", ANY, "--data", data];
    let server = Server::start_with_files(FILES, &flags);
    let context = zmq::Context::new();
    let subscriber = context.socket(zmq::SUB).unwrap();
    subscriber.set_rcvtimeo(20_000).unwrap();
    subscriber.connect(server.publish()).unwrap();
    subscriber.set_subscribe(b"t").unwrap();
    awaited("the subscription", || (server.stats()["changes"]["subscriptions"] == 1).then_some(()));
    let mut lends = Tasks::connect(server.tasks()).unwrap();
    let waiting = std::thread::spawn(move || lends.lend(60_000, LendMode::Block).unwrap());
    let _idle = fill(&server, &[server.publish(), server.tasks(), server.kv()], 2 * FILES);
    let mut tables = Tables::connect(server.kv()).unwrap();
    awaited("places for some", || (of_stats(&mut tables, "made_place") >= 20).then_some(()));
    Tasks::connect(server.tasks()).unwrap().add(b"key", b"value", AddMode::Tail).unwrap();
    assert!(waiting.join().unwrap().is_some_and(|lent| lent.key == b"key"));
    let mut tables = Tables::connect(server.kv()).unwrap();
    tables.create_table(b"t").unwrap();
    tables.update(b"t", b"k", b"v", None).unwrap();
    assert_eq!(&subscriber.recv_bytes(0).unwrap()[..], b"t", "it still has its subscription");
    server.stop();
}

/// A connection that has had the reply to its first request.
pub(crate) fn kept_alive(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut begun = [0; 12];
    stream.read_exact(&mut begun).unwrap();
    assert_eq!(&begun, b"HTTP/1.1 200");
    stream
}

/// 128 of them kept everybody out for a minute.
#[test]
fn idle_connections_to_an_operators_service_keep_nobody_out() {
    let server = Server::start(&["--admin", "0"]);
    let address = server.admin();
    let silent: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
    let begun = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /stats HTTP/1.1\r\nHost:").unwrap();
        stream
    };
    let begun: Vec<TcpStream> = (0..200).map(begun).collect();
    // Who has begun a request keeps its place for a moment, against all others.
    let since = Instant::now();
    awaited("the end of that moment", || (since.elapsed() > 20 * PLACE_SILENT_TIME).then_some(()));
    let kept: Vec<TcpStream> = (0..200).map(|_| kept_alive(address)).collect();
    for path in ["/health", "/ready", "/stats", "/metrics", "/"] {
        assert_eq!(get(address, path).0, 200, "{path}");
    }
    let open = |streams: &[TcpStream]| streams.iter().filter(|stream| !is_closed(stream)).count();
    assert_eq!((open(&silent), open(&begun)), (0, 0), "the oldest have made place");
    assert!((64..=128).contains(&open(&kept)), "{} are open", open(&kept));
    assert!(is_closed(&kept[0]) && !is_closed(&kept[199]));
    server.stop();
}

#[test]
fn health_is_answered_while_all_connections_are_at_work() {
    let server = Server::start(&["--admin", "0"]);
    let address = server.admin();
    // Its body does not come.
    let at_work = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /stats HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n").unwrap();
        stream
    };
    let at_work: Vec<TcpStream> = (0..128).map(at_work).collect();
    let _idle: Vec<TcpStream> = (0..64).map(|_| TcpStream::connect(address).unwrap()).collect();
    for _ in 0..40 {
        assert_eq!((get(address, "/health").0, get(address, "/ready").0), (200, 200));
    }
    // It does not keep the place of the next one.
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    let (status, body) = get(address, "/stats");
    assert!(status == 503 && body.contains("at work"), "{status} {body}");
    for mut stream in at_work {
        stream.write_all(b"x").unwrap();
        let mut begun = [0; 12];
        stream.read_exact(&mut begun).unwrap();
        assert_eq!(&begun, b"HTTP/1.1 200", "it had kept its connection");
    }
    awaited("the end of the last one", || (get(address, "/stats").0 == 200).then_some(()));
    server.stop();
}
