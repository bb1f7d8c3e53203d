//! Native workers serve a client as those behind the queue do.

use std::process::{Command, Stdio};

use zmq::Context;

use crate::harness::{FRONTEND, Server};
use crate::peer::Peer;

const PING: &[&[u8]] = &[&[5]];
const OK: &[u8] = &[1];

/// Chapters that hold over either frontend.
const CHAPTERS: &[&str] = &[
    "conformance::",
    "dump::",
    "ending::",
    "feed::",
    "lifecycle::",
    "linearizability::racing_clients",
    "methods::",
    "mirror::",
    "pyzmq::",
    "scanning::scans_over",
    "scanning::a_scan",
    "serving::",
    "stalled_subscriber::",
    "taking_down::",
];

fn start(flags: &[&str]) -> Server {
    Server::start(&[&["--frontend", "native"], flags].concat())
}

#[test]
fn all_that_holds_over_the_queue_holds_without_it() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(CHAPTERS);
    let output = command.env(FRONTEND, "native").stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("test pyzmq::") && text.contains("test serving::"), "{text}");
}

#[test]
fn a_few_connections_are_enough_for_all_workers() {
    let server = start(&["--workers", "4"]);
    let context = Context::new();
    let peers: Vec<Peer> = (0..4).map(|_| Peer::connect(&context, server.kv())).collect();
    peers.iter().for_each(|peer| assert_eq!(peer.call(PING), [OK]));
    let stats = server.stats();
    let requests = |worker: &serde_json::Value| worker["requests"].as_u64().unwrap();
    let workers = stats["workers"].as_array().unwrap();
    assert!(workers.iter().all(|worker| requests(worker) > 0), "{workers:?}");
    drop(peers);
    server.stop();
}
