//! Few descriptors: idle connections leave the store its reserve. Further ones wait without a cost, and are served when
//! there is room.

use std::fs;
use std::net::TcpStream;
use std::time::Instant;

use spindle::protocols::jobs::client::Client as Jobs;
use spindle::protocols::kv::client::Client as Tables;
use spindle::protocols::spiderq::client::Client as Tasks;
use spindle::protocols::spiderq::wire::{AddMode, LendMode, RepayStatus};
use spindle::server::raise_descriptor_limit;

use crate::harness::Server;

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

/// Connects to all of them in turn, more often than there are descriptors, and waits until the server accepts no more.
fn fill(server: &Server, endpoints: &[&str], limit: u64) -> Vec<TcpStream> {
    let addresses: Vec<&str> = endpoints.iter().map(|endpoint| endpoint.trim_start_matches("tcp://")).collect();
    let connect = |number: usize| TcpStream::connect(addresses[number % addresses.len()]).unwrap();
    let idle = (0..usize::try_from(limit).unwrap()).map(connect).collect();
    let line = limit - limit / 4;
    while (0..line).any(|number| descriptors(server).iter().all(|(other, _)| *other != number)) {}
    idle
}

/// No connection is in the reserve.
fn assert_reserve_is_free(server: &Server, limit: u64) {
    let taken: Vec<u64> = descriptors(server)
        .into_iter()
        .filter(|(number, socket)| *socket && *number >= limit - limit / 4)
        .map(|(number, _)| number)
        .collect();
    assert!(taken.is_empty(), "{taken:?} of {limit}");
}

#[test]
fn idle_connections_leave_the_store_what_it_needs() {
    const FILES: u64 = 64;
    raise_descriptor_limit();
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let flags = ["--kv", "off", "--publish", "off", "--tasks", ANY, "--jobs", "0", "--sync", "never", "--data", data];
    let server = Server::start_with_files(FILES, &flags);
    let mut tasks = Tasks::connect(server.tasks()).unwrap();
    tasks.ping().unwrap();
    let idle = fill(&server, &[server.tasks(), server.jobs()], FILES);
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

fn accepting_pauses(frontend: &str) {
    const FILES: u64 = 256;
    raise_descriptor_limit();
    let server = Server::start_with_files(FILES, &["--kv", ANY, "--publish", "off", "--frontend", frontend]);
    let mut client = Tables::connect(server.kv()).unwrap();
    client.create_table(b"t").unwrap();
    let idle = fill(&server, &[server.kv()], FILES);
    let mut pauses = || {
        let stats: serde_json::Value = serde_json::from_str(&client.stats().unwrap()).unwrap();
        assert_eq!(
            (stats["descriptors"]["limit"].as_u64(), stats["descriptors"]["reserve"].as_u64()),
            (Some(256), Some(64))
        );
        stats["descriptors"]["accept_pauses"].as_u64().unwrap()
    };
    let (before, start) = (pauses(), Instant::now());
    let more = loop {
        let more = pauses() - before;
        if more >= 3 {
            break more;
        }
    };
    // Ten a second. A server without the pause would ask again a hundred thousand times.
    let longest = start.elapsed().as_millis() / 20 + 10;
    assert!(u128::from(more) <= longest, "{more} times in {:?}", start.elapsed());
    assert_reserve_is_free(&server, FILES);
    drop(idle);
    let mut late = Tables::connect(server.kv()).unwrap();
    assert_eq!(late.update(b"t", b"k", b"v", None), Ok(()));
    server.stop();
}

#[test]
fn accepting_pauses_before_the_queue() {
    accepting_pauses("queue");
}

#[test]
fn accepting_pauses_before_the_native_frontend() {
    accepting_pauses("native");
}
