//! Redis clients beside others: what they share, their limits, slow ones, and users.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use zmq::Context;

use crate::harness::{FRONTENDS, Server, spindle_reads};
use crate::memory::status;
use crate::peer::Peer;
use crate::resp_client::{RespClient, command};

const OK: &str = "+OK";
const MIB: usize = 1 << 20;
const VALUE_MAX: usize = 16 * MIB;

/// A server of this frontend for both protocols.
fn start(frontend: &str, flags: &[&str]) -> Server {
    Server::start(&[&["--frontend", frontend, "--resp", "127.0.0.1:0"][..], flags].concat())
}

#[test]
fn what_one_protocol_stores_the_other_reads() {
    for frontend in FRONTENDS {
        let (server, context) = (start(frontend, &[]), Context::new());
        let (mut redis, peer) = (RespClient::connect(server.resp()), Peer::connect(&context, server.kv()));
        let get = |table: &[u8], key: &[u8]| peer.call(&[&[4], table, key]);
        assert_eq!(get(b"0", b"k"), [&[0][..], b"TABLE NOT FOUND"], "its first write makes the table");
        assert_eq!(redis.say("GET k"), "$-1");
        assert_eq!(redis.say("SET k v"), OK);
        assert_eq!(get(b"0", b"k"), [&[1][..], b"v"]);
        assert_eq!(peer.call(&[&[2], b"0", b"k", b"w", &100_u64.to_be_bytes()]), [[1]]);
        assert_eq!(redis.say("GET k"), "$1\r\nw");
        let left: u64 = redis.say("PTTL k").strip_prefix(':').unwrap().parse().unwrap();
        assert!((1..=100_000).contains(&left), "{left}");
        assert_eq!(redis.say("PEXPIRE k 1"), ":1");
        while get(b"0", b"k") != [&[0][..], b"KEY NOT FOUND"] {}
        assert_eq!(redis.say("EXISTS k"), ":0");
        server.stop();
    }
}

#[test]
fn a_connection_selects_any_table_that_exists() {
    for frontend in FRONTENDS {
        let (server, context) = (start(frontend, &[]), Context::new());
        let (mut redis, peer) = (RespClient::connect(server.resp()), Peer::connect(&context, server.kv()));
        assert_eq!(redis.say("SELECT birds"), "-ERR value is not an integer or out of range");
        assert_eq!(redis.say("SELECT 16"), "-ERR DB index is out of range");
        let range = "-ERR value is out of range, value must between -2147483648 and 2147483647";
        assert_eq!(redis.say("SELECT 2147483648"), range);
        assert_eq!(peer.call(&[&[0], b"birds"]), [[1]]);
        assert_eq!(redis.say("SELECT birds"), OK);
        assert_eq!(redis.say("SET heron 1"), OK);
        assert_eq!(peer.call(&[&[4], b"birds", b"heron"]), [&[1][..], b"1"]);
        assert_eq!(redis.say("FLUSHALL"), OK);
        assert_eq!(redis.say("DBSIZE"), ":1", "FLUSHALL is about the tables 0 to 15");
        assert_eq!(peer.call(&[&[1], b"birds"]), [[1]]);
        assert_eq!(redis.say("GET heron"), "$-1");
        let deleted = "-ERR the table of this connection has been deleted: SELECT another one";
        assert_eq!(redis.say("SET heron 2"), deleted);
        assert_eq!(redis.say("SELECT 15"), OK);
        assert_eq!(redis.say("SET heron 2"), OK);
        server.stop();
    }
}

#[test]
fn each_protocol_has_its_own_limits_and_reads_what_the_other_stored() {
    for frontend in FRONTENDS {
        let (server, context) = (start(frontend, &[]), Context::new());
        let (mut redis, peer) = (RespClient::connect(server.resp()), Peer::connect(&context, server.kv()));
        for length in [0, 1, 64, 65, 1_024, 1_025, 4_096] {
            let key = vec![b'k'; length];
            assert_eq!(redis.call(&[b"SET", &key, &key]), b"+OK\r\n", "{length}");
            assert_eq!(redis.call(&[b"STRLEN", &key]), format!(":{length}\r\n").into_bytes());
            let of_peer = peer.call(&[&[4], b"0", &key]);
            assert_eq!(of_peer[0], [u8::from(length <= 64)], "{length}: {of_peer:?}");
        }
        let long = vec![b'k'; 4_097];
        for arguments in [&[b"SET", &long[..], b"v"][..], &[b"GET", &long], &[b"DEL", b"k", &long]] {
            assert_eq!(redis.call(arguments), b"-ERR a key has more than 4096 bytes\r\n");
        }
        assert_eq!(redis.say("EXISTS k"), ":1", "a command with such a key does nothing");
        let large = vec![b'v'; VALUE_MAX];
        assert_eq!(redis.call(&[b"SET", b"large", &large]), b"+OK\r\n");
        assert_eq!(peer.call(&[&[4], b"0", b"large"]), [&[1][..], &large]);
        let reply = redis.call(&[b"GET", b"large"]);
        assert!(reply.starts_with(b"$16777216\r\nvvv") && reply.len() == VALUE_MAX + 13);
        assert_eq!(redis.say("APPEND large x"), "-ERR string exceeds maximum allowed size (proto-max-bulk-len)");
        assert_eq!(peer.call(&[&[2], b"0", b"k", &[0; 1_025]])[0], [0]);
        redis.send(format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", VALUE_MAX + 1).as_bytes());
        assert_eq!(redis.rest(), "-ERR Protocol error: invalid bulk length\r\n");
        server.stop();
        let (server, mut sizes) = (start(frontend, &["--max-key", "100", "--max-value", "32K"]), Vec::new());
        let (mut redis, peer) = (RespClient::connect(server.resp()), Peer::connect(&context, server.kv()));
        for length in [100, 101] {
            sizes.push(redis.call(&[b"SET", &vec![b'k'; length], b"v"])[0]);
            sizes.push(peer.call(&[&[2], b"0", &vec![b'k'; length], b"v"])[0][0]);
        }
        assert_eq!(sizes, [b'+', 1, b'-', 0]);
        redis.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$32769\r\n");
        assert_eq!(redis.rest(), "-ERR Protocol error: invalid bulk length\r\n");
        server.stop();
    }
}

/// Regression: the queue gave batches to as many workers more as there are for Redis clients, and ended by a panic. It
/// waited for them at its end.
#[test]
fn the_queue_knows_its_own_workers() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let server = Server::start_logging(&log, &["--resp", "127.0.0.1:0", "--frontend", "queue", "--workers", "1"]);
    let context = Context::new();
    let peers: Vec<Peer> = (0..32).map(|_| Peer::connect(&context, server.kv())).collect();
    assert_eq!(RespClient::connect(server.resp()).say("SET k v"), OK);
    for _ in 0..20 {
        for peer in &peers {
            (0..50).for_each(|_| peer.ask(&[&[4], b"0", b"k"]));
        }
        for peer in &peers {
            (0..50).for_each(|_| assert_eq!(peer.answer(), [&[1][..], b"v"]));
        }
    }
    server.stop();
    let log = std::fs::read_to_string(log).unwrap();
    assert!(!log.contains("stuck"), "{log}");
}

#[test]
fn a_browser_is_closed_without_a_reply() {
    let server = start("queue", &[]);
    for request in ["POST / HTTP/1.1\r\nHost: x\r\n\r\nSET a b\r\n", "Host: localhost\r\nSET a b\r\n"] {
        let mut browser = RespClient::connect(server.resp());
        browser.send(request.as_bytes());
        assert_eq!(browser.rest(), "");
    }
    assert_eq!(RespClient::connect(server.resp()).say("EXISTS a"), ":0");
    server.stop();
}

#[test]
fn unix_sockets_and_addresses_of_both_families_serve_the_same_tables() {
    for frontend in FRONTENDS {
        let folder = tempfile::tempdir().unwrap();
        let unix = format!("unix:{}", folder.path().join("socket").display());
        let server = start(frontend, &["--resp", "[::1]:0", "--resp", &unix]);
        assert_eq!(server.resp_all().count(), 3);
        for (number, address) in (1..).zip(server.resp_all()) {
            assert_eq!(RespClient::connect(address).say("INCR visits"), format!(":{number}"), "{address}");
        }
        server.stop();
    }
}

/// Asks until this time is over. Returns the longest time that a reply took.
fn longest_wait(address: &str, lasting: Duration) -> Duration {
    let (begin, mut client, mut longest) = (Instant::now(), RespClient::connect(address), Duration::ZERO);
    while begin.elapsed() < lasting {
        let asked = Instant::now();
        assert!(client.say("INCR asked").starts_with(':'));
        longest = longest.max(asked.elapsed());
    }
    longest
}

#[test]
fn half_a_command_keeps_no_other_client_waiting() {
    for frontend in FRONTENDS {
        let server = start(frontend, &["--workers", "2"]);
        let whole = command(&[b"INCRBY", b"sum", b"3"]);
        let mut clients: Vec<RespClient> = (0..200).map(|_| RespClient::connect(server.resp())).collect();
        for (number, client) in clients.iter_mut().enumerate() {
            client.send(&whole[..1 + number % (whole.len() - 1)]);
        }
        assert!(longest_wait(server.resp(), Duration::from_millis(100)) < Duration::from_secs(5));
        for (number, client) in clients.iter_mut().enumerate() {
            client.send(&whole[1 + number % (whole.len() - 1)..]);
            assert_eq!(client.reply(), format!(":{}\r\n", 3 * (number + 1)).into_bytes());
        }
        server.stop();
    }
}

#[test]
fn clients_that_never_read_hold_bounded_memory() {
    for frontend in FRONTENDS {
        let server = start(frontend, &["--workers", "2", "--max-memory", "128M"]);
        let mut writer = RespClient::connect(server.resp());
        assert_eq!(writer.call(&[b"SET", b"large", &vec![b'v'; MIB]]), b"+OK\r\n");
        let get = command(&[b"GET", b"large"]).repeat(200);
        let _silent: Vec<RespClient> = (0..100)
            .map(|_| {
                let mut client = RespClient::connect(server.resp());
                client.send(&get);
                client
            })
            .collect();
        assert!(longest_wait(server.resp(), Duration::from_millis(700)) < Duration::from_secs(5));
        for _ in 0..50 {
            assert_eq!(writer.call(&[b"SET", b"large", &vec![b'w'; MIB]]), b"+OK\r\n", "the tables have their memory");
        }
        let peak = status(server.pid(), "VmHWM");
        assert!(peak < 768 << 20, "{frontend}: {} MiB", peak >> 20);
        server.stop();
    }
}

/// They may hold a gibibyte together. What they send beyond it stays in their sockets.
#[test]
fn a_thousand_clients_that_send_large_values_slowly_hold_bounded_memory() {
    const MOST: u64 = 1_800 << 20;
    let server = start("native", &["--workers", "2", "--max-memory", "128M"]);
    let head = format!("*3\r\n$3\r\nSET\r\n$4\r\nslow\r\n${VALUE_MAX}\r\n");
    let mut clients: Vec<TcpStream> = (0..1_000).map(|_| TcpStream::connect(server.resp()).unwrap()).collect();
    for client in &mut clients {
        client.write_all(head.as_bytes()).unwrap();
        client.set_nonblocking(true).unwrap();
    }
    let (part, mut sent) = (vec![b'v'; 128 << 10], 0);
    for _ in 0..20 {
        for client in &mut clients {
            match client.write(&part) {
                Ok(count) => sent += count as u64,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "a client that sends is not closed"),
            }
        }
        assert!(longest_wait(server.resp(), Duration::from_millis(20)) < Duration::from_secs(5));
    }
    let peak = status(server.pid(), "VmHWM");
    println!("{} MiB sent, {} MiB held", sent >> 20, peak >> 20);
    assert!(sent > MOST && peak < MOST, "{} MiB sent, {} MiB held", sent >> 20, peak >> 20);
    drop(clients);
    let mut client = RespClient::connect(server.resp());
    assert_eq!(client.call(&[b"SET", b"large", &vec![b'v'; VALUE_MAX]]), b"+OK\r\n");
    server.stop();
}

/// Runs `spindle user`, with a password.
fn user(users: &str, arguments: &[&str]) {
    let output = spindle_reads(&[&["user"], arguments, &["--users", users]].concat(), b"heron");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_client_names_its_user_and_may_do_what_that_user_may() {
    for frontend in FRONTENDS {
        let folder = tempfile::tempdir().unwrap();
        let users = folder.path().join("users").to_str().unwrap().to_owned();
        user(&users, &["add", "ada", "--password-stdin", "--read", "0", "--write", "0"]);
        user(&users, &["add", "eve", "--password-stdin", "--read", "0"]);
        user(&users, &["add", "default", "--password-stdin", "--read", ""]);
        user(&users, &["add", "root", "--password-stdin", "--admin", "--write", "", "--read", ""]);
        let server = start(frontend, &["--users", &users]);
        let connect = || RespClient::connect(server.resp());
        let noauth = "-NOAUTH Authentication required.";
        let mut anonymous = connect();
        for line in ["GET k", "PING", "SELECT 1", "INFO", "CONFIG GET *", "SHUTDOWN"] {
            assert_eq!(anonymous.say(line), noauth, "{line}");
        }
        assert!(anonymous.say("HELLO 3").starts_with("-NOAUTH HELLO must be called with the client already auth"));
        let wrong = "-WRONGPASS invalid username-password pair or user is disabled.";
        // A wrong password takes its time.
        let line = if frontend == "native" { "AUTH egret" } else { "HELLO 3 AUTH ada egret" };
        assert_eq!(anonymous.say(line), wrong, "{line}");
        assert_eq!(anonymous.say("GET k"), noauth);
        anonymous.send(b"*11\r\n");
        assert_eq!(anonymous.rest(), "-ERR Protocol error: unauthenticated multibulk length\r\n");
        let mut anonymous = connect();
        anonymous.send(b"*2\r\n$3\r\nGET\r\n$16385\r\n");
        assert_eq!(anonymous.rest(), "-ERR Protocol error: unauthenticated bulk length\r\n");

        let mut ada = connect();
        ada.send(b"AUTH ada heron\r\nSET k v\r\nGET k\r\nAUTH bob egret\r\nACL WHOAMI\r\n");
        let replies: Vec<Vec<u8>> = (0..5).map(|_| ada.reply()).collect();
        let wrong_line = format!("{wrong}\r\n").into_bytes();
        assert_eq!(replies, [&b"+OK\r\n"[..], b"+OK\r\n", b"$1\r\nv\r\n", &wrong_line, b"$3\r\nada\r\n"]);
        let denied = |name: &str, command: &str| {
            format!("-NOPERM User {name} has no permissions to run the '{command}' command")
        };
        assert_eq!(ada.say("FLUSHDB"), denied("ada", "flushdb"));
        assert_eq!(ada.say("SHUTDOWN"), denied("ada", "shutdown"));
        assert_eq!(ada.say("SELECT 1"), OK);
        assert_eq!(ada.say("GET k"), denied("ada", "get"));
        let mut eve = connect();
        assert!(eve.say("HELLO 3 AUTH eve heron SETNAME e").starts_with("%7\r\n"));
        assert_eq!(eve.say("GET k"), "$1\r\nv");
        assert_eq!(eve.say("SET k w"), denied("eve", "set"));
        let mut unnamed = connect();
        assert_eq!(unnamed.say("AUTH heron"), OK);
        assert_eq!(unnamed.say("ACL WHOAMI"), "$7\r\ndefault");
        let mut root = connect();
        assert_eq!(root.say("AUTH root heron"), OK);

        user(&users, &["edit", "eve", "--read", "1"]);
        server.signal(Signal::HUP);
        assert_eq!(eve.rest(), "", "another permission closes its connections");
        let mut eve = connect();
        while eve.say("AUTH eve heron") != OK {}
        assert_eq!(eve.say("GET k"), denied("eve", "get"));
        assert_eq!(ada.say("SELECT 0"), OK);
        assert_eq!(ada.say("GET k"), "$1\r\nv");
        assert_eq!(root.say("FLUSHALL"), OK);
        assert_eq!(ada.say("GET k"), "$-1");
        server.stop();
    }
}

/// One such pattern held its worker up for minutes.
#[test]
fn others_have_their_turns_while_keys_are_compared_with_an_expensive_pattern() {
    const KEYS: usize = 400;
    let flags = ["--kv", "off", "--publish", "off", "--resp", "127.0.0.1:0", "--resp-workers", "1"];
    let server = Server::start_exactly(&flags);
    let [mut walker, mut other] = [(); 2].map(|()| RespClient::connect(server.resp()));
    for key in 0..KEYS {
        assert_eq!(other.say(&format!("SET {key:04}{}b 1", "a".repeat(4_000))), "+OK");
    }
    walker.send(&[command(&[b"PING"]), command(&[b"KEYS", format!("*{}b", "a".repeat(1_000)).as_bytes()])].concat());
    assert_eq!(walker.reply(), b"+PONG\r\n");
    assert_eq!(other.say("FLUSHDB"), "+OK");
    let found = String::from_utf8(walker.reply()).unwrap();
    let count: usize = found[1..].split_once("\r\n").unwrap().0.parse().unwrap();
    assert!((1..KEYS).contains(&count), "{count}");
    let longest = "*".repeat(1_024);
    assert_eq!(other.say(&format!("KEYS {longest}")), "*0");
    let refused = "-ERR a pattern has at most 1024 bytes behind its first special one";
    for line in [format!("KEYS {longest}*"), format!("SCAN 0 MATCH k{longest}*"), format!("CONFIG GET {longest}*")] {
        assert_eq!(other.say(&line), refused);
    }
    server.stop();
}
