//! Versions for Redis clients: a stale one matches nothing, and a deletion may have a condition.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use crate::harness::Server;

/// A connection that sends lines and reads replies.
struct Connection(BufReader<TcpStream>);

impl Connection {
    fn open(server: &Server) -> Self {
        Self(BufReader::new(TcpStream::connect(server.resp()).unwrap()))
    }

    /// The reply to a line: `+…`, `-…`, `:…`, the text of a bulk string, `nil`, or an array of them in brackets.
    fn ask(&mut self, line: &str) -> String {
        self.0.get_mut().write_all(format!("{line}\r\n").as_bytes()).unwrap();
        self.reply()
    }

    fn reply(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let line = line.trim_end();
        let count = || line[1..].parse::<i64>().unwrap();
        match line.as_bytes()[0] {
            b'$' if count() < 0 => "nil".to_owned(),
            b'$' => {
                let mut bytes = vec![0; usize::try_from(count()).unwrap() + 2];
                self.0.read_exact(&mut bytes).unwrap();
                String::from_utf8(bytes).unwrap().trim_end().to_owned()
            }
            b'*' => {
                let items: Vec<String> = (0..count()).map(|_| self.reply()).collect();
                format!("[{}]", items.join(", "))
            }
            _ => line.to_owned(),
        }
    }

    /// The version of a key.
    fn version(&mut self, key: &str) -> u64 {
        let reply = self.ask(&format!("GETWITHETAG {key}"));
        reply.trim_start_matches('[').split(',').next().unwrap().parse().unwrap()
    }
}

#[test]
fn a_value_is_replaced_only_if_its_version_is_the_expected_one() {
    let server = Server::start(&["--resp", "127.0.0.1:0"]);
    let mut client = Connection::open(&server);
    assert_eq!(client.ask("GETWITHETAG k"), "nil");
    assert_eq!(client.ask("SETIFMATCH k v 7"), "[0, nil]", "there is no element");
    let first: u64 = client.ask("SETWITHETAG k one EX 100").parse().unwrap();
    assert_eq!(client.ask("GETWITHETAG k"), format!("[{first}, one]"));
    assert_eq!(client.ask("TTL k"), ":100");
    let swapped = client.ask(&format!("SETIFMATCH k two {first} PX 50000"));
    let second = client.version("k");
    assert!(second > first);
    assert_eq!(swapped, format!("[{second}, nil]"));
    assert_eq!(client.ask("TTL k"), ":50");
    assert_eq!(client.ask(&format!("SETIFMATCH k three {first}")), format!("[{second}, two]"), "it is stale");
    assert_eq!(client.ask(&format!("SETIFMATCH k three {first} NOGET")), format!("[{second}, nil]"));
    // Every change moves the version on, whichever command makes it.
    for change in ["APPEND k x", "EXPIRE k 10", "PERSIST k", "SET k two"] {
        let before = client.version("k");
        client.ask(change);
        assert!(client.version("k") > before, "{change}");
    }
    let last = client.version("k");
    client.ask("DEL k");
    assert_eq!(client.ask(&format!("SETIFMATCH k back {last}")), "[0, nil]", "a version from before the deletion");
    let again = client.ask("SETIFMATCH k back 0");
    assert!(client.version("k") > last);
    assert_eq!(again, format!("[{}, nil]", client.version("k")));
}

#[test]
fn what_a_conditional_command_is_not_asked_for_changes_nothing() {
    let server = Server::start(&["--resp", "127.0.0.1:0"]);
    let mut client = Connection::open(&server);
    client.ask("SET k v");
    for wrong in
        ["SETIFMATCH k w 1 EX", "SETIFMATCH k w 1 EX 1 PX 1", "SETWITHETAG k w NOGET", "DELEX k IFEQ", "DELEX k a b"]
    {
        assert_eq!(client.ask(wrong), "-ERR syntax error", "{wrong}");
    }
    assert_eq!(client.ask("SETIFMATCH k w -1"), "-ERR the version is not an integer or out of range");
    assert_eq!(client.ask("SETWITHETAG k w EX 0"), "-ERR invalid expire time in 'setwithetag' command");
    assert_eq!(client.ask("DELEX k IFEQ w"), ":0");
    assert_eq!(client.ask("DELEX k IFNE v"), ":0");
    assert_eq!(client.ask("GET k"), "v");
    assert_eq!(client.ask("DELEX k IFEQ v"), ":1");
    assert_eq!(client.ask("DELEX k IFNE v"), ":0", "there is none");
    client.ask("SET k v");
    assert_eq!(client.ask("DELEX k"), ":1");
    client.ask("SET k v");
    assert_eq!(client.ask("SET k w IFEQ x"), "nil");
    assert_eq!(client.ask("SET k w IFNE v"), "nil");
    assert_eq!(client.ask("SET k w IFEQ v GET"), "v");
    assert_eq!(client.ask("SET new w IFEQ v"), "nil");
    assert_eq!(client.ask("SET new w IFNE v"), "+OK");
    assert_eq!(client.ask("MGET k new"), "[w, w]");
    assert_eq!(client.ask("SET k v NX IFEQ w"), "-ERR syntax error");
}
