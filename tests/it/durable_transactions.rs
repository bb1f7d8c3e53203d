//! Transactions on durable tables over RESP: whole or absent after a kill, and none waits for what waits for it.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::crash::{CLIENTS, SMALL_SEGMENT, kill_under_load, rounds};
use crate::harness::{FRONTENDS, Server};
use crate::resp_client::{RespClient, command};
use crate::resp_transactions::last_of;
use crate::seeded_rng::SeededRng;

fn start(data: &Path, frontend: &str, durability: &str) -> Server {
    let data = data.to_str().unwrap();
    let flags =
        ["--data", data, "--segment-size", SMALL_SEGMENT, "--resp", "127.0.0.1:0", "--durable-interval", "10ms"];
    Server::start(&[&flags[..], &["--frontend", frontend, "--durability", durability]].concat())
}

/// The lines as a transaction, and the reply to EXEC.
fn exec(client: &mut RespClient, lines: &[&str]) -> String {
    let lines = std::iter::once("MULTI").chain(lines.iter().copied()).chain(["EXEC"]);
    last_of(client, &lines.map(str::to_owned).collect::<Vec<_>>()).trim_end().to_owned()
}

/// Each client changes keys of its own in two databases, all of them to one number.
fn write(address: &str, number: usize, mut rng: SeededRng, count: &AtomicU64) {
    let Ok(mut client) = RespClient::try_to_connect(address) else { return };
    loop {
        let value = count.fetch_add(1, Ordering::Relaxed);
        let (key, is_replaced) = (format!("key{number}"), rng.one_in(3));
        let mut lines = vec!["MULTI".to_owned(), "SELECT 0".into()];
        if is_replaced {
            lines.push(format!("DEL {key}a"));
        }
        lines.extend([
            format!("SET {key}a {value} EX 1000"),
            format!("SET {key}c {value}"),
            format!("RENAME {key}c {key}b"),
            "SELECT 1".into(),
            format!("SET {key}a {value}"),
            format!("PERSIST {key}a"),
            "EXEC".into(),
        ]);
        let mut words = lines.iter().map(|line| line.split(' ').map(str::as_bytes).collect::<Vec<_>>());
        if words.any(|words| client.ask(&words).is_err()) {
            return;
        }
    }
}

fn kill_rounds(frontend: &str, durability: &str) {
    let folder = tempfile::tempdir().unwrap();
    let (mut rng, count) = (SeededRng(7), AtomicU64::new(1));
    let mut found = 0;
    for _ in 0..rounds() {
        let server = start(folder.path(), frontend, durability);
        let mut client = RespClient::connect(server.resp());
        for number in 0..CLIENTS {
            let mut values = Vec::new();
            for (database, key) in [(0, "a"), (0, "b"), (0, "c"), (1, "a")] {
                client.say(&format!("SELECT {database}"));
                values.push(client.say(&format!("GET key{number}{key}")));
            }
            let [a, b, c, other] = &values[..] else { unreachable!("four were asked for") };
            assert!(a == b && a == other, "{values:?} of client {number}");
            assert_eq!(c, "$-1", "it is renamed");
            found += usize::from(a != "$-1");
        }
        drop(client);
        let address = server.resp().to_owned();
        kill_under_load(server, &mut rng, |number, rng| write(&address, number, rng, &count));
    }
    println!("{} rounds with {frontend}, {durability}: {found} transactions found", rounds());
    assert!(found > 0, "something is on disk when the server is killed");
}

#[test]
fn a_killed_server_comes_back_with_whole_transactions() {
    for frontend in FRONTENDS {
        for durability in ["soon", "always"] {
            kill_rounds(frontend, durability);
        }
    }
}

#[test]
fn a_transaction_waits_for_nobody_inside_its_epoch() {
    for frontend in FRONTENDS {
        for durability in ["soon", "always"] {
            let folder = tempfile::tempdir().unwrap();
            let server = start(folder.path(), frontend, durability);
            let mut client = RespClient::connect(server.resp());
            for key in 0..40 {
                assert_eq!(client.say(&format!("SET k{key} {key}")), "+OK");
            }
            server.stop();
            // The elements come from the disk: their next versions do not follow those that they have.
            let server = start(folder.path(), frontend, durability);
            let mut client = RespClient::connect(server.resp());
            for key in (0..40).step_by(4) {
                let [first, second, third, fourth] = [0, 1, 2, 3].map(|more| format!("k{}", key + more));
                let replies = exec(
                    &mut client,
                    &[
                        &format!("DEL {first}"),
                        &format!("SET {first} new"),
                        &format!("RENAME {second} {third}"),
                        &format!("RENAME {third} {second}"),
                        &format!("EXPIRE {fourth} -1"),
                        &format!("INCR {fourth}"),
                    ],
                );
                assert_eq!(replies, "*6\r\n:1\r\n+OK\r\n+OK\r\n+OK\r\n:1\r\n:1");
                assert_eq!(
                    client.say(&format!("GETDEL {second}")),
                    format!("${}\r\n{}", (key + 1).to_string().len(), key + 1)
                );
                assert_eq!(client.say(&format!("COPY {first} {second}")), ":1");
            }
            assert_eq!(
                exec(&mut client, &["FLUSHALL", "SET k0 last", "FLUSHDB", "SET k1 last"]),
                "*4\r\n+OK\r\n+OK\r\n+OK\r\n+OK"
            );
            // One with more changes than the ring has credits for would wait inside its epoch.
            let keys: Vec<String> = (0..22_000).map(|key| format!("many{key}")).collect();
            let words: Vec<&[u8]> =
                std::iter::once(&b"MSETNX"[..]).chain(keys.iter().flat_map(|key| [key.as_bytes(), b"v"])).collect();
            client.send(&command(&words));
            let refused = String::from_utf8(client.reply()).unwrap();
            assert!(refused.starts_with("-OOM"), "{refused}");
            assert_eq!(client.say("DBSIZE"), ":1");
            server.stop();
        }
    }
}
