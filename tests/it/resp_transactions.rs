//! Transactions of Redis clients: all of their commands or none, and nobody sees a part, with four workers.

use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use zmq::Context;

use crate::harness::Server;
use crate::peer::Peer;
use crate::resp_client::{RespClient, command};

const OK: &str = "+OK";
const KEYS: usize = 6;
/// What each key begins with.
const BEGIN: i64 = 100;
const ROUNDS: usize = 400;

fn start(flags: &[&str]) -> Server {
    Server::start(&[&["--frontend", "native", "--workers", "4", "--resp", "127.0.0.1:0"][..], flags].concat())
}

/// Sends these lines at once, and returns the reply to the last one.
pub(crate) fn last_of(client: &mut RespClient, lines: &[String]) -> String {
    let bytes: Vec<u8> = lines.iter().flat_map(|line| encoded(line)).collect();
    client.send(&bytes);
    let replies = lines.iter().map(|_| client.reply()).collect::<Vec<_>>();
    String::from_utf8(replies.into_iter().next_back().unwrap()).unwrap()
}

/// The words of a line as a command.
pub(crate) fn encoded(line: &str) -> Vec<u8> {
    command(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
}

/// All numbers in the strings of a reply.
fn numbers(reply: &str) -> Vec<i64> {
    reply.split("\r\n").filter(|line| !line.starts_with(['$', '*', '+'])).filter_map(|line| line.parse().ok()).collect()
}

fn lines<const N: usize>(lines: [&str; N]) -> Vec<String> {
    lines.map(str::to_owned).to_vec()
}

#[test]
fn the_sum_of_what_is_moved_between_keys_stays_whoever_looks() {
    let server = start(&[]);
    let mut client = RespClient::connect(server.resp());
    for table in 0..2 {
        assert_eq!(client.say(&format!("SELECT {table}")), OK);
        (0..KEYS).for_each(|key| assert_eq!(client.say(&format!("SET k{key} {BEGIN}")), OK));
    }
    let total = 2 * BEGIN * i64::try_from(KEYS).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        let movers: Vec<_> = (0..4)
            .map(|number| {
                let mut client = RespClient::connect(server.resp());
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let (from, to) = ((round + number) % KEYS, (round * 5 + 1) % KEYS);
                        let tables = if round % 2 == 0 { [0, 1] } else { [1, 0] };
                        let moved = if number == 3 {
                            // One that watches: it moves what it has read, or nothing.
                            let read = last_of(&mut client, &lines(["SELECT 0", "WATCH k0 k1", "MGET k0 k1"]));
                            let read = numbers(&read);
                            let set =
                                [(0, read[0] - 1), (1, read[1] + 1)].map(|(key, sum)| format!("SET k{key} {sum}"));
                            last_of(&mut client, &[lines(["MULTI"]), set.to_vec(), lines(["EXEC"])].concat())
                        } else {
                            last_of(
                                &mut client,
                                &[
                                    format!("SELECT {}", tables[0]),
                                    "MULTI".into(),
                                    format!("DECRBY k{from} 3"),
                                    format!("SELECT {}", tables[1]),
                                    format!("INCRBY k{to} 3"),
                                    "EXEC".into(),
                                ],
                            )
                        };
                        assert!(moved.starts_with('*'), "{moved}");
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            let mut client = RespClient::connect(server.resp());
            let is_over = Arc::clone(&is_over);
            scope.spawn(move || {
                let keys = (0..KEYS).map(|key| format!(" k{key}")).collect::<String>();
                let look = [
                    lines(["SELECT 0", "MULTI"]),
                    vec![format!("MGET{keys}"), "SELECT 1".into(), format!("MGET{keys}")],
                ];
                let look = [look.concat(), lines(["EXEC"])].concat();
                while !is_over.load(Ordering::Relaxed) {
                    let seen = numbers(&last_of(&mut client, &look));
                    assert_eq!((seen.len(), seen.iter().sum::<i64>()), (2 * KEYS, total), "{seen:?}");
                }
            });
        }
        movers.into_iter().for_each(|mover| mover.join().unwrap());
        is_over.store(true, Ordering::Relaxed);
    });
    server.stop();
}

/// One command for several keys is as atomic in a transaction as several commands, and a subscription in the middle ends
/// nothing: the connection does not wait for the audience under the latch, and nobody sees the state between.
#[test]
fn a_command_for_many_keys_and_one_that_subscribes_are_parts_of_the_whole() {
    let server = start(&[]);
    let is_over = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..2 {
            let (over, address) = (Arc::clone(&is_over), server.resp());
            scope.spawn(move || {
                let mut client = RespClient::connect(address);
                let look = lines(["MULTI", "MGET k0 k1 k2 k3 k4 k5 k6 k7", "EXEC"]);
                while !over.load(Ordering::Relaxed) {
                    let seen = numbers(&last_of(&mut client, &look));
                    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "{seen:?}");
                }
            });
        }
        let mut client = RespClient::connect(server.resp());
        for round in 0..ROUNDS {
            let pairs = |keys: std::ops::Range<usize>| keys.map(|key| format!(" k{key} {round}")).collect::<String>();
            assert_eq!(
                last_of(&mut client, &["MULTI".into(), format!("MSET{}", pairs(0..8)), "EXEC".into()]),
                "*1\r\n+OK\r\n"
            );
            if round % 8 == 0 {
                let mut listener = RespClient::connect(server.resp());
                assert!(listener.say("HELLO 3").starts_with('%'));
                let name = format!("__keyspace@0__:never{round}");
                let parts =
                    [format!("MSET{}", pairs(0..3)), format!("SUBSCRIBE {name}"), format!("MSET{}", pairs(3..8))];
                let replies = last_of(&mut listener, &[lines(["MULTI"]), parts.to_vec(), lines(["EXEC"])].concat());
                assert!(replies.starts_with("*3\r\n+OK\r\n"), "{replies}");
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    server.stop();
}

/// A subscription in a transaction was confirmed before its table reported changes, and missed those behind it.
#[test]
fn a_subscription_of_a_transaction_gets_what_is_changed_from_its_first_command_on() {
    let server = start(&[]);
    let mut client = RespClient::connect(server.resp());
    assert!(client.say("HELLO 3").starts_with('%'));
    let event = ">3\r\n$7\r\nmessage\r\n$16\r\n__keyspace@0__:k\r\n$3\r\nset\r\n";
    let sent: Vec<u8> = ["MULTI", "SET k 1", "SUBSCRIBE __keyspace@0__:k", "SET k 2", "EXEC", "SET k 3"]
        .into_iter()
        .chain(["MULTI", "SET k 4", "UNSUBSCRIBE __keyspace@0__:k", "EXEC", "SET k 5", "PING"])
        .flat_map(encoded)
        .collect();
    for round in 0..ROUNDS / 4 {
        client.send(&sent);
        let replies = iter::repeat_with(|| String::from_utf8(client.reply()).unwrap());
        let replies: Vec<String> = replies.take_while(|reply| reply != "+PONG\r\n").collect();
        let messages: Vec<&String> = replies.iter().filter(|reply| reply.starts_with(">3\r\n$7")).collect();
        assert_eq!(messages, [event; 3], "in round {round}: {replies:?}");
    }
    server.stop();
}

#[test]
fn elements_that_expire_and_tables_that_are_emptied_or_deleted_change_nothing_within_a_transaction() {
    let server = start(&[]);
    let is_over = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        let (over, address) = (Arc::clone(&is_over), server.resp());
        scope.spawn(move || {
            let mut client = RespClient::connect(address);
            while !over.load(Ordering::Relaxed) {
                client.say("SET k 1 PX 2");
                client.say("FLUSHDB");
            }
        });
        let (over, kv) = (Arc::clone(&is_over), server.kv());
        scope.spawn(move || {
            let context = Context::new();
            let peer = Peer::connect(&context, kv);
            while !over.load(Ordering::Relaxed) {
                peer.call(&[&[1], b"0"]);
            }
        });
        let mut client = RespClient::connect(server.resp());
        let look = lines(["MULTI", "EXISTS k", "DBSIZE", "GET k", "EXISTS k", "EXEC"]);
        let within = lines([
            "MULTI",
            "SET own 1",
            "FLUSHDB",
            "EXISTS own",
            "SET own 2",
            "RENAME own other",
            "GET other",
            "EXEC",
        ]);
        for _ in 0..ROUNDS {
            let seen = last_of(&mut client, &look);
            let parts: Vec<&str> = seen.split("\r\n").collect();
            assert_eq!(parts[1], parts[parts.len() - 2], "{seen}");
            assert_eq!(last_of(&mut client, &within), "*6\r\n+OK\r\n+OK\r\n:0\r\n+OK\r\n+OK\r\n$1\r\n2\r\n");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    server.stop();
}

#[test]
fn a_watched_key_aborts_for_its_own_changes_alone() {
    let server = start(&[]);
    let [mut client, mut other] = [(); 2].map(|()| RespClient::connect(server.resp()));
    let mut exec = |key: &str, others: &[&str]| {
        assert_eq!(client.say(&format!("WATCH {key}")), OK);
        others.iter().for_each(|line| assert!(!other.say(line).starts_with('-'), "{line}"));
        last_of(&mut client, &lines(["MULTI", "SET done 1", "EXEC"])).starts_with("*1")
    };
    assert!(exec("a", &["SET b 1", "DEL b", "SET a1 1"]), "of another key");
    assert!(exec("a", &["SET a 1", "DEL a"]), "it is absent as it was");
    assert!(!exec("a", &["SET a 1"]));
    assert!(!exec("a", &["SET a 1"]), "a new version of the same value");
    assert!(!exec("a", &["FLUSHDB"]));
    assert!(exec("a", &["SET a 1 PX 1", "DEL a"]));
    assert!(!exec("a", &["SET a 1 PX 100000"]));
    assert!(!exec("a", &["PERSIST a"]));
    assert_eq!(client.say("SET a 1 PX 20"), OK);
    assert_eq!(client.say("WATCH a"), OK);
    while client.say("EXISTS a") == ":1" {}
    assert_eq!(last_of(&mut client, &lines(["MULTI", "SET done 1", "EXEC"])), "*-1\r\n", "its time is over");
    server.stop();
}

#[test]
fn a_transaction_that_has_come_is_carried_out_though_its_client_is_gone() {
    let server = start(&[]);
    let mut client = RespClient::connect(server.resp());
    for round in 0..20 {
        let mut dies = RespClient::connect(server.resp());
        let sent = ["SELECT 3", "MULTI", "SET a 1", "GET a", "INCRBY a 4", "EXEC", "MULTI", "INCRBY a 100"];
        dies.send(&sent.iter().flat_map(|line| encoded(line)).collect::<Vec<u8>>());
        drop(dies);
        client.say("SELECT 3");
        while client.say("GET a") != "$1\r\n5" {}
        assert_eq!(client.say("DEL a"), ":1", "in round {round}");
        client.say("SELECT 0");
        assert_eq!(client.say("GET a"), "$-1", "SELECT was carried out as well");
    }
    server.stop();
}

#[test]
fn a_transaction_for_which_memory_is_short_changes_nothing() {
    let server = start(&["--max-memory", "8388608"]);
    let mut client = RespClient::connect(server.resp());
    let value = "x".repeat(500);
    let mut key = 0;
    while client.say(&format!("SET filler{key} {value}")) == OK {
        key += 1;
    }
    let large = "y".repeat(900 << 10);
    let refused = last_of(&mut client, &["MULTI".into(), "SET a 1".into(), format!("SET b {large}"), "EXEC".into()]);
    let words =
        "-EXECABORT Transaction discarded because of: OOM command not allowed when used memory > 'maxmemory'.\r\n";
    assert_eq!(refused, words);
    assert_eq!(client.say("EXISTS a b"), ":0");
    let replaced = lines(["MULTI", "GET filler0", "DEL filler1", "DEL filler2", "EXEC"]);
    assert!(last_of(&mut client, &replaced).starts_with("*3\r\n$500"), "what adds nothing is carried out");
    server.stop();
}

/// Each of these was compared with each other one: a client could hold its worker up for hours.
#[test]
fn many_watched_keys_commands_and_selected_tables_hold_nobody_up() {
    const MANY: usize = 50_000;
    let server = start(&[]);
    let mut client = RespClient::connect(server.resp());
    let keys: Vec<String> = (0..MANY).map(|key| format!("k{key}")).collect();
    for some in keys.chunks(1_000) {
        assert_eq!(client.say(&format!("WATCH {}", some.join(" "))), OK);
    }
    let transaction = |command: &dyn Fn(usize) -> String| {
        [lines(["MULTI"]), (0..MANY).map(command).collect(), lines(["INCR a", "EXEC"])].concat()
    };
    assert!(last_of(&mut client, &transaction(&|_| "PING".into())).ends_with(":1\r\n"));
    let selected = |number| if number % 2 == 0 { format!("SELECT table{number}") } else { "EXISTS k".into() };
    let refused = last_of(&mut client, &transaction(&selected));
    let words = "-EXECABORT Transaction discarded because of: a transaction touches at most 256 tables\r\n";
    assert_eq!(refused, words);
    assert_eq!(client.say("GET a"), "$1\r\n1", "nothing is changed");
    assert_eq!(client.say("MULTI"), OK, "the other transaction is over");
    server.stop();
}

#[test]
fn a_value_counts_as_a_reply_only_where_it_is_returned() {
    let server = start(&["--client-bytes-max", "1M"]);
    let mut client = RespClient::connect(server.resp());
    let value = "x".repeat(300 << 10);
    let twice = |line: &str| [lines(["MULTI"]), vec![line.to_owned(); 8], lines(["EXEC"])].concat();
    for (line, is_returned) in [
        ("SET k y", false),
        ("SET k y NX", false),
        ("SETNX k y", false),
        ("SET k y XX GET", true),
        ("GETSET k y", true),
    ] {
        assert_eq!(client.say(&format!("SET k {value}")), OK);
        let done = last_of(&mut client, &twice(line));
        assert_eq!(done.starts_with("-EXECABORT"), is_returned, "{line}: {}", &done[..done.len().min(80)]);
    }
    server.stop();
}

/// APPEND copies the value for so long that a transaction begins meanwhile.
#[test]
fn a_change_that_has_begun_is_made_before_a_transaction_or_behind_it() {
    const LOOKS: usize = 500;
    let server = start(&[]);
    let mut client = RespClient::connect(server.resp());
    assert_eq!(client.say(&format!("SET k {}", "x".repeat(1 << 20))), OK);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut writer = RespClient::connect(server.resp());
                while !is_over.load(Ordering::Relaxed) {
                    assert!(writer.say("APPEND k x").starts_with(':'));
                }
            });
        }
        let look = [lines(["MULTI"]), vec!["STRLEN k".into(); LOOKS], lines(["EXEC"])].concat();
        let mut lengths: Vec<String> = Vec::new();
        let mut seen = Vec::new();
        while lengths.len() < 150 && seen.len() <= 1 {
            let reply = last_of(&mut client, &look);
            seen = reply.lines().skip(1).map(str::to_owned).collect();
            seen.dedup();
            if lengths.last() != seen.first() {
                lengths.push(seen[0].clone());
            }
        }
        // The writers end also if the test has failed.
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(seen.len(), 1, "{seen:?}");
    });
    server.stop();
}

/// SET copies the value for so long that another transaction is compared meanwhile.
#[test]
fn a_number_that_is_watched_and_set_misses_no_step_of_another_client() {
    const CLIENTS: usize = 4;
    const STEPS: usize = 100;
    let server = start(&[]);
    let padded = |number: usize| format!("{number:08}{}", "x".repeat(256 << 10));
    let mut client = RespClient::connect(server.resp());
    assert_eq!(client.say(&format!("SET k {}", padded(0))), OK);
    let counts = || {
        let mut client = RespClient::connect(server.resp());
        let mut aborted = 0;
        for _ in 0..STEPS {
            loop {
                let seen = last_of(&mut client, &lines(["WATCH k", "GETRANGE k 0 7"]));
                let set = format!("SET k {}", padded(usize::try_from(numbers(&seen)[0]).unwrap() + 1));
                match &*last_of(&mut client, &["MULTI".into(), set, "EXEC".into()]) {
                    "*1\r\n+OK\r\n" => break,
                    "*-1\r\n" => aborted += 1,
                    other => panic!("{other}"),
                }
            }
        }
        aborted
    };
    let aborted: usize = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(counts)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert!(aborted > 0);
    assert_eq!(client.say("GETRANGE k 0 7"), format!("$8\r\n{:08}", CLIENTS * STEPS));
    server.stop();
}
