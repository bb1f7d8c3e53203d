//! Tables that are on disk before they are answered.
//!
//! The log writes only for those who wait for it: its own interval is an hour here.

use std::path::Path;

use spindle::clients::rust::tables::{Client, Error};
use spindle::services::tables::wire::Reason;

use crate::harness::{FRONTENDS, Server};
use crate::peer::Peer;
use crate::resp_client::{RespClient, command};

/// Requests that a client has outstanding.
const DEPTH: usize = 64;
/// Epochs in which a pipeline may be: more than are needed, and far fewer than its requests.
const EPOCHS_MAX: u64 = 16;

fn start(data: &Path, frontend: &str) -> Server {
    let data = data.to_str().unwrap();
    let flags = ["--durability", "always", "--durable-interval", "1h", "--resp", "tcp://127.0.0.1:*"];
    Server::start(&[&["--data", data, "--frontend", frontend], &flags[..]].concat())
}

/// Epochs that are on disk.
fn epochs(server: &Server) -> u64 {
    server.stats()["durable"]["epochs"].as_u64().unwrap()
}

#[test]
fn a_pipeline_waits_for_a_few_syncs_and_is_there_after_a_kill() {
    for frontend in FRONTENDS {
        let folder = tempfile::tempdir().unwrap();
        let server = start(folder.path(), frontend);
        Client::connect(server.kv()).unwrap().create_table(b"t").unwrap();
        let peer = Peer::connect(&zmq::Context::new(), server.kv());
        assert_eq!(peer.call(&[&[5]]), [[1]], "PING");
        let before = epochs(&server);
        let keys: Vec<_> = (0..DEPTH).map(|key| format!("key {key}")).collect();
        for key in &keys {
            peer.ask(&[&[2], b"t", key.as_bytes(), b"value"]);
            peer.ask(&[&[4], b"t", key.as_bytes()]);
        }
        for _ in &keys {
            assert_eq!(peer.answer(), [[1]]);
            assert_eq!(peer.answer(), [&[1][..], b"value"]);
        }
        let synced = epochs(&server) - before;
        assert!((1..=EPOCHS_MAX).contains(&synced), "{synced} epochs with {frontend}");
        // Without an orderly end.
        drop(server);
        let server = start(folder.path(), frontend);
        let mut client = Client::connect(server.kv()).unwrap();
        for key in &keys {
            assert_eq!(client.get(b"t", key.as_bytes()).unwrap(), b"value", "{key} with {frontend}");
        }
        let before = epochs(&server);
        assert!(matches!(client.get(b"t", b"none"), Err(Error::Refused(Reason::KeyNotFound))));
        assert!(matches!(client.get(b"none", b"key"), Err(Error::Refused(Reason::TableNotFound))));
        assert_eq!(epochs(&server), before, "what is on disk already is read without a sync");
    }
}

#[test]
fn a_redis_pipeline_waits_for_a_few_syncs_and_is_there_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), "native");
    let mut client = RespClient::connect(server.resp());
    assert_eq!(client.call(&[b"SET", b"first", b"1"]), b"+OK\r\n", "the table is made");
    let before = epochs(&server);
    let mut sent = Vec::new();
    for _ in 0..DEPTH {
        sent.extend(command(&[b"INCR", b"counter"]));
    }
    for transaction in [&[&b"MULTI"[..]][..], &[b"SET", b"a", b"1"], &[b"SET", b"b", b"2"], &[b"EXEC"]] {
        sent.extend(command(transaction));
    }
    client.send(&sent);
    for number in 1..=DEPTH {
        assert_eq!(client.reply(), format!(":{number}\r\n").into_bytes());
    }
    for reply in ["+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "*2\r\n+OK\r\n+OK\r\n"] {
        assert_eq!(client.reply(), reply.as_bytes());
    }
    let synced = epochs(&server) - before;
    assert!((1..=EPOCHS_MAX).contains(&synced), "{synced} epochs");
    drop(server);
    let server = start(folder.path(), "native");
    let mut client = RespClient::connect(server.resp());
    assert_eq!(client.call(&[b"GET", b"counter"]), format!("$2\r\n{DEPTH}\r\n").into_bytes());
    assert_eq!(client.call(&[b"MGET", b"a", b"b", b"none"]), b"*3\r\n$1\r\n1\r\n$1\r\n2\r\n$-1\r\n");
}
