//! Many durable tables: created, written, killed, opened, ended, and deleted.
//!
//! `SPINDLE_TABLES` sets how many. The time of each step is printed with the memory of the server.

use std::path::Path;
use std::time::Instant;

use spindle::clients::rust::tables::Client;
use spindle::services::tables::wire::{Reply, Request, TableName, TableOptions};

use crate::harness::{Server, number_of};
use crate::memory::status;

/// Tables, unless the environment says otherwise.
const TABLES: u64 = 3_000;
/// Requests under way.
const DEPTH: usize = 64;

fn start(data: &Path) -> Server {
    Server::start(&["--data", data.to_str().unwrap(), "--durable-interval", "100ms"])
}

fn name(number: u64) -> Vec<u8> {
    format!("table {number}").into_bytes()
}

/// Has a request for each table, and checks each reply.
fn ask_all(server: &Server, request: impl Fn(u64, TableName<'_>) -> Request<'_>, expected: &Reply<'_>) {
    let mut client = Client::connect(server.kv()).unwrap();
    for number in 0..tables() {
        client.send(&request(number, TableName::spelt(&name(number)))).unwrap();
        while client.in_flight() == DEPTH {
            assert_eq!(client.receive().unwrap(), *expected);
        }
    }
    while client.in_flight() > 0 {
        assert_eq!(client.receive().unwrap(), *expected);
    }
}

fn tables() -> u64 {
    number_of("SPINDLE_TABLES").unwrap_or(TABLES)
}

/// Prints how long a step takes, and the memory of the server behind it.
fn step(what: &str, work: impl FnOnce() -> Server) -> Server {
    let begun = Instant::now();
    let server = work();
    let bytes = status(server.pid(), "VmRSS") >> 20;
    println!("{} tables {what}: {:.2} s, {bytes} MiB", tables(), begun.elapsed().as_secs_f64());
    server
}

fn check(server: Server) -> Server {
    let server = step("read", || {
        ask_all(&server, |_, table| Request::Get { table, key: b"key" }, &Reply::Value(b"value"));
        server
    });
    step("listed and in STATS", || {
        assert_eq!(Client::connect(server.kv()).unwrap().list_tables().unwrap().len() as u64, tables());
        assert_eq!(server.stats()["tables"].as_array().map_or(0, Vec::len) as u64, tables());
        server
    })
}

#[test]
fn many_durable_tables_are_there_after_a_kill_and_after_a_clean_end() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path());
    let server = step("created", || {
        let options =
            |number: u64| Some(if number.is_multiple_of(2) { TableOptions::Soon } else { TableOptions::Always });
        ask_all(&server, |number, table| Request::CreateTable { table, options: options(number) }, &Reply::Done);
        server
    });
    let server = step("written", || {
        ask_all(&server, |_, table| Request::Update { table, key: b"key", value: b"value", ttl: None }, &Reply::Done);
        crate::durable::settle(&server);
        server
    });
    let killed = |server| {
        drop(server);
        start(folder.path())
    };
    let server = check(step("opened after a kill", || killed(server)));
    let server = check(step("ended and opened", || {
        server.stop();
        start(folder.path())
    }));
    let server = step("deleted", || {
        ask_all(&server, |_, table| Request::DeleteTable { table }, &Reply::Done);
        crate::durable::settle(&server);
        server
    });
    let server = step("gone", || killed(server));
    assert_eq!(Client::connect(server.kv()).unwrap().list_tables().unwrap(), []);
    server.stop();
}
