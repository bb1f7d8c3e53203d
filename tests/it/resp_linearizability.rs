//! Histories of racing transactions over RESP are linearizable.
//!
//! The server has four workers. Clients of both protocols send single commands meanwhile. Elements expire, FLUSHDB empties
//! tables, the memory is at its limit, and clients die within EXEC.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use spindle::clients::rust::tables::{Client, Error};
use spindle::services::tables::wire::Reason;

use crate::checker::is_linearizable_from;
use crate::harness::Server;
use crate::resp_client::RespClient;
use crate::resp_model::{CLIENTS, Command, KEYS, Model, Operation, Step, TABLES, TTL};
use crate::resp_transactions::{encoded, last_of};
use crate::seeded_rng::SeededRng;

/// Each client does so much in a round.
const STEPS: usize = 14;
/// The client that speaks over ZeroMQ, and dies over RESP.
const OTHER: usize = CLIENTS - 1;

/// What a round is recorded with.
struct Recorder {
    round: u64,
    stamps: AtomicU64,
    start: Instant,
    barrier: Barrier,
}

impl Recorder {
    fn stamp(&self) -> u64 {
        // SeqCst: one order of all stamps, in which each thread's stamps are in its program order.
        self.stamps.fetch_add(1, Ordering::SeqCst)
    }

    fn nanos(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap()
    }

    fn key(&self, key: usize) -> String {
        format!("{}-{key}", self.round)
    }

    fn line(&self, command: &Command, table: usize) -> String {
        let name = |key: &usize| self.key(*key);
        match command {
            Command::Select(table) => format!("SELECT {table}"),
            Command::Get(key) => format!("GET {}", name(key)),
            Command::Set(key, value) => format!("SET {} {value}", name(key)),
            Command::SetFor(key, value) => format!("SET {} {value} PX {TTL}", name(key)),
            Command::Replace(key, value) => format!("SET {} {value} KEEPTTL", name(key)),
            Command::SetBoth([one, two], value) => format!("MSETNX {} {value} {} {value}", name(one), name(two)),
            Command::Increment(key) => format!("INCR {}", name(key)),
            Command::Append(key) => format!("APPEND {} a", name(key)),
            Command::Delete(key) => format!("DEL {}", name(key)),
            Command::Expire(key) => format!("PEXPIRE {} {TTL}", name(key)),
            Command::Persist(key) => format!("PERSIST {}", name(key)),
            Command::Rename(from, to) => format!("RENAME {} {}", name(from), name(to)),
            Command::Copy(from, to) => format!("COPY {} {} DB {} REPLACE", name(from), name(to), 1 - table),
            Command::Flush => "FLUSHDB".to_owned(),
        }
    }

    /// The lines that a step sends.
    fn lines(&self, table: usize, step: &Step) -> Vec<String> {
        let select = format!("SELECT {table}");
        match step {
            Step::Watch(key) => vec![select, format!("WATCH {}", self.key(*key))],
            Step::Single(command) => vec![select, self.line(command, table)],
            Step::Transaction(commands) => {
                let mut table = table;
                let queued = commands.iter().map(|command| {
                    if let Command::Select(other) = command {
                        table = *other;
                    }
                    self.line(command, table)
                });
                [select, "MULTI".to_owned()].into_iter().chain(queued).chain(["EXEC".to_owned()]).collect()
            }
        }
    }

    /// Does a step, and records it.
    fn record(&self, client: usize, table: usize, step: Step, ask: impl FnOnce(&Step) -> Option<String>) -> Operation {
        let (invoked, before) = (self.stamp(), self.nanos());
        let reply = ask(&step).map(String::into_bytes);
        let (after, returned) = (self.nanos(), self.stamp());
        let returned = if reply.is_some() { returned } else { u64::MAX };
        Operation { client, table, step, reply, span: [invoked, returned], clock: [before, after] }
    }
}

/// A command of a client whose numbers are its own.
fn random_command(rng: &mut SeededRng, value: i64, is_alone: bool) -> Command {
    let key = rng.index(KEYS);
    let other = (key + 1 + rng.index(KEYS - 1)) % KEYS;
    match rng.index(26) {
        0..5 => Command::Get(key),
        5..7 => Command::Set(key, value),
        7..9 => Command::SetFor(key, value),
        9 => Command::Replace(key, value),
        10 | 11 => Command::SetBoth([key, other], value),
        12..15 => Command::Increment(key),
        15 => Command::Append(key),
        16 | 17 => Command::Delete(key),
        18 => Command::Expire(key),
        19 => Command::Persist(key),
        20 | 21 => Command::Rename(key, other),
        22 => Command::Copy(key, other),
        23 if is_alone || rng.one_in(3) => Command::Flush,
        _ if is_alone => Command::Get(key),
        _ => Command::Select(rng.index(TABLES)),
    }
}

/// One client's part of a round, over RESP.
fn work(recorder: &Recorder, client: usize, connection: &mut RespClient) -> Vec<Operation> {
    let mut rng = SeededRng(recorder.round * 1_000 + client as u64);
    recorder.barrier.wait();
    let mut value = client as i64 * 1_000;
    let mut steps = Vec::new();
    for _ in 0..STEPS {
        value += 10;
        let table = rng.index(TABLES);
        let step = match rng.index(5) {
            0 => Step::Watch(rng.index(KEYS)),
            1 | 2 => Step::Single(random_command(&mut rng, value, true)),
            _ => Step::Transaction((0..2 + rng.index(4)).map(|_| random_command(&mut rng, value, false)).collect()),
        };
        steps
            .push(recorder.record(client, table, step, |step| Some(last_of(connection, &recorder.lines(table, step)))));
    }
    steps
}

/// The part of the client that speaks over ZeroMQ. Some of its transactions come from connections that end at once.
fn work_over_zeromq(recorder: &Recorder, server: &Server, native: &mut Client) -> Vec<Operation> {
    let mut rng = SeededRng(recorder.round * 1_000 + OTHER as u64);
    let dies_at = rng.index(STEPS);
    recorder.barrier.wait();
    let mut steps = Vec::new();
    for number in 0..STEPS {
        let (table, key) = (rng.index(TABLES), rng.index(KEYS));
        let value = (OTHER * 1_000 + number * 10) as i64;
        if number == dies_at {
            let commands =
                vec![Command::Set(key, value), Command::Rename(key, (key + 1) % KEYS), Command::Increment(key)];
            steps.push(recorder.record(OTHER, table, Step::Transaction(commands), |step| {
                let lines = recorder.lines(table, step);
                RespClient::connect(server.resp())
                    .send(&lines.iter().flat_map(|line| encoded(line)).collect::<Vec<_>>());
                None
            }));
        }
        let command =
            rng.pick(&[Command::Get(key), Command::Replace(key, value), Command::Delete(key), Command::Increment(key)]);
        let ask = |_: &Step| Some(ask_over_zeromq(native, &command, table, &recorder.key(key)));
        steps.push(recorder.record(OTHER, table, Step::Single(command), ask));
    }
    steps
}

/// Carries a command out over ZeroMQ. Returns the reply that Redis would give.
fn ask_over_zeromq(native: &mut Client, command: &Command, table: usize, key: &str) -> String {
    let (table, key) = (table.to_string(), key.as_bytes());
    let table = table.as_bytes();
    let done = match command {
        Command::Get(_) => {
            native.get(table, key).map(|value| format!("${}\r\n{}\r\n", value.len(), String::from_utf8(value).unwrap()))
        }
        Command::Replace(_, value) => {
            native.update(table, key, value.to_string().as_bytes(), None).map(|()| "+OK\r\n".to_owned())
        }
        Command::Delete(_) => native.delete(table, key).map(|_| ":1\r\n".to_owned()),
        Command::Increment(_) => native.increment(table, key, 1, None).map(|(sum, _)| format!(":{sum}\r\n")),
        other => unreachable!("{other:?} is not sent over ZeroMQ"),
    };
    match (done, command) {
        (Ok(reply), _) => reply,
        (Err(Error::Refused(Reason::KeyNotFound)), Command::Get(_)) => "$-1\r\n".to_owned(),
        (Err(Error::Refused(Reason::KeyNotFound)), _) => ":0\r\n".to_owned(),
        (Err(Error::Refused(Reason::OutOfMemory)), _) => {
            "-OOM command not allowed when used memory > 'maxmemory'.\r\n".to_owned()
        }
        (Err(Error::Refused(Reason::NotANumber)), _) => "-ERR value is not an integer or out of range\r\n".to_owned(),
        // FLUSHDB leaves no moment without the table.
        (Err(error), _) => panic!("{command:?}: {error}"),
    }
}

/// How many operations ended in which way.
#[derive(Debug, Default)]
struct Counts {
    refused: usize,
    aborted: usize,
    executed: usize,
}

/// All clients race for so many rounds. The history of each is checked.
fn race(server: &Server, rounds: u64) -> Counts {
    let mut connections: Vec<_> = (0..OTHER).map(|_| RespClient::connect(server.resp())).collect();
    let mut native = Client::connect(server.kv()).unwrap();
    let mut counts = Counts::default();
    for round in 0..rounds {
        let recorder =
            Recorder { round, stamps: AtomicU64::new(0), start: Instant::now(), barrier: Barrier::new(CLIENTS) };
        let mut history: Vec<Operation> = std::thread::scope(|scope| {
            let recorder = &recorder;
            let racing: Vec<_> = connections
                .iter_mut()
                .zip(0..)
                .map(|(connection, client)| scope.spawn(move || work(recorder, client, connection)))
                .collect();
            let others = work_over_zeromq(recorder, server, &mut native);
            racing.into_iter().flat_map(|racing| racing.join().unwrap()).chain(others).collect()
        });
        for connection in &mut connections {
            assert_eq!(connection.say("UNWATCH"), "+OK");
        }
        let end = recorder.nanos();
        history.iter_mut().filter(|operation| operation.reply.is_none()).for_each(|dead| dead.clock[1] = end);
        counts.refused += history.iter().filter(|operation| operation.is_refused()).count();
        let replies = history.iter().filter_map(|operation| operation.reply.as_ref());
        let arrays =
            replies.filter(|reply| reply.starts_with(b"*")).map(|reply| usize::from(reply.starts_with(b"*-1")));
        let (all, aborted) = arrays.fold((0, 0), |(all, aborted), is_aborted| (all + 1, aborted + is_aborted));
        (counts.aborted, counts.executed) = (counts.aborted + aborted, counts.executed + all - aborted);
        check(round, history);
    }
    counts
}

fn check(round: u64, mut history: Vec<Operation>) {
    history.sort_by_key(|operation| operation.span[0]);
    let shown = |operation: &Operation| {
        let Operation { client, table, step, span, clock, reply } = operation;
        let reply = reply.as_ref().map(|reply| reply.escape_ascii().to_string());
        format!("{span:?} {clock:?} client {client}, table {table}: {step:?} => {reply:?}\n")
    };
    let is_linearizable = is_linearizable_from(&Model::default(), &history);
    assert!(is_linearizable, "round {round}:\n{}", history.iter().map(shown).collect::<String>());
}

fn start(flags: &[&str]) -> Server {
    let server =
        Server::start(&[&["--frontend", "native", "--workers", "4", "--resp", "127.0.0.1:0"][..], flags].concat());
    let mut client = RespClient::connect(server.resp());
    for table in 0..TABLES {
        let made = [format!("SELECT {table}"), "SET made 1".to_owned(), "DEL made".to_owned()];
        assert_eq!(last_of(&mut client, &made), ":1\r\n");
    }
    server
}

#[test]
fn racing_transactions_are_linearizable() {
    let server = start(&[]);
    let counts = race(&server, 200);
    println!("{counts:?}");
    assert!(counts.aborted > 200 && counts.executed > 2_000 && counts.refused == 0, "{counts:?}");
    server.stop();
}

#[test]
fn racing_transactions_are_linearizable_where_memory_is_short() {
    let server = start(&["--max-memory", "8388608"]);
    let mut client = RespClient::connect(server.resp());
    assert_eq!(client.say("SELECT 2"), "+OK");
    for bytes in [500, 50, 1] {
        let value = "x".repeat(bytes);
        let mut key = 0;
        while client.say(&format!("SET {bytes}-{key} {value}")) == "+OK" {
            key += 1;
        }
    }
    let counts = race(&server, 100);
    println!("{counts:?}");
    assert!(counts.refused > 100 && counts.executed > 100, "{counts:?}");
    server.stop();
}

/// Operations one after the other, a hundred milliseconds each.
fn sequence(steps: &[(usize, Step, &str)]) -> Vec<Operation> {
    let operation = |((client, step, reply), number): (&(usize, Step, &str), u64)| Operation {
        client: *client,
        table: 0,
        step: step.clone(),
        reply: Some(reply.as_bytes().to_vec()),
        span: [2 * number, 2 * number + 1],
        clock: [number * 100_000_000, number * 100_000_000 + 1_000],
    };
    steps.iter().zip(0..).map(operation).collect()
}

#[test]
fn histories_that_no_order_explains_are_refused() {
    const DONE: &str = "+OK\r\n";
    let both = || Step::Transaction(vec![Command::Get(0), Command::Get(1)]);
    let is_right = |steps: &[(usize, Step, &str)], overlap: bool| {
        let mut history = sequence(steps);
        if overlap {
            history.iter_mut().zip(0..).for_each(|(operation, number)| operation.span = [number, 1_000 + number]);
        }
        is_linearizable_from(&Model::default(), &history)
    };
    let set = || (0, Step::Transaction(vec![Command::Set(0, 1), Command::Set(1, 1)]), "*2\r\n+OK\r\n+OK\r\n");
    for (seen, overlapping, later) in [
        ("*2\r\n$1\r\n1\r\n$1\r\n1\r\n", true, true),
        ("*2\r\n$-1\r\n$-1\r\n", true, false),
        ("*2\r\n$1\r\n1\r\n$-1\r\n", false, false),
    ] {
        assert_eq!(is_right(&[set(), (1, both(), seen)], true), overlapping, "{seen}");
        assert_eq!(is_right(&[set(), (1, both(), seen)], false), later, "{seen}");
    }
    for (key, reply, right) in [(0, "*-1\r\n", true), (0, "*0\r\n", false), (1, "*-1\r\n", false), (1, "*0\r\n", true)]
    {
        let watched = [(0, Step::Watch(0), DONE), (1, Step::Single(Command::Set(key, 1)), DONE)];
        let steps = [&watched[..], &[(0, Step::Transaction(Vec::new()), reply)]].concat();
        assert_eq!(is_right(&steps, false), right, "{key} {reply}");
    }
    let expires = (0, Step::Single(Command::SetFor(0, 1)), DONE);
    for (reply, right) in [("$1\r\n1\r\n", false), ("$-1\r\n", true)] {
        assert_eq!(is_right(&[expires.clone(), (0, Step::Single(Command::Get(0)), reply)], false), right, "{reply}");
    }
}
