//! A host that vanishes sends no end. The other side makes the system probe now and then whether the host is still
//! there.

use std::fs::read_to_string;
use std::time::Duration;

use spindle::clients::rust::tables::{Client, Subscriber};
use spindle::clients::rust::tasks::TasksClient as Tasks;

use crate::harness::Server;

/// State of an established connection in `/proc/net/tcp` (proc(5); the kernel's `tcp_states.h`).
const ESTABLISHED: &str = "01";
/// The kernel's timer that probes the other end (`get_tcp4_sock` of the kernel).
const KEEPALIVE: &str = "02";
/// Pause between two looks: a timer for bytes just sent is over in a moment.
const TRIES: usize = 100_000;

/// The timers of the established connections that have this port at one of their ends.
fn timers(port: &str, end: usize) -> Vec<String> {
    let table = read_to_string("/proc/net/tcp").unwrap();
    let lines = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ours = lines.filter(|line| line[3] == ESTABLISHED && line[end].rsplit(':').next() == Some(port));
    ours.map(|line| line[5].split(':').next().unwrap().to_owned()).collect()
}

/// Waits until both ends of all connections to this endpoint, of which there are this many, have a timer that probes.
fn assert_asked_after(endpoint: &str, connections: usize) {
    let port: u16 = endpoint.rsplit(':').next().unwrap().parse().unwrap();
    let port = format!("{port:04X}");
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        seen = [1, 2].map(|end| timers(&port, end)).into_iter().flatten().collect();
        if seen.len() == 2 * connections && seen.iter().all(|timer| timer == KEEPALIVE) {
            return;
        }
    }
    panic!("timers of connections to {endpoint}: {seen:?}");
}

#[test]
fn hosts_at_both_ends_of_silent_connections_are_asked_after() {
    let timeout = Duration::from_secs(30);
    for frontend in ["queue", "native"] {
        let server = Server::start(&["--frontend", frontend]);
        let mut client = Client::connect_within(server.kv(), timeout).unwrap();
        client.ping().unwrap();
        let _subscriber = Subscriber::connect_within(server.publish(), &[b""], timeout).unwrap();
        assert_asked_after(server.kv(), 1);
        assert_asked_after(server.publish(), 1);
        server.stop();
    }
    let data = tempfile::tempdir().unwrap();
    let server = Server::start_tasks(data.path(), &[]);
    let mut client = Tasks::connect_within(server.tasks(), timeout).unwrap();
    client.ping().unwrap();
    assert_asked_after(server.tasks(), 1);
    server.stop();
}
