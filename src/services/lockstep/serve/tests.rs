//! The frontend, run by hand before tables whose publisher is run by hand too.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use super::*;
use crate::limits::{CONVERSATION_BYTES_MIN, HELD_BYTES_MAX, OUTBOX_BYTES_MAX, STALLED_MAX};
use crate::net::budget::{Budget, held_by};
use crate::net::zeromq::tests::{introduction, message};
use crate::stats::Percentiles;
use crate::stats::slow_log::SlowRequest;
use crate::tables::{BackgroundThreads, Durability, Tables, TablesConfig};
use crate::zmtp::SocketType;

/// Passes that a test waits for a condition. Each waits for work, for at most [`PATIENCE`].
const PASSES: usize = 10_000;
const PATIENCE: Option<Duration> = Some(Duration::from_millis(10));
/// Changes that the tables have room for.
const CHANGES: usize = 64;
const VALUE_MAX: usize = 300 << 10;

struct Rig {
    front: LockstepFrontend,
    background: BackgroundThreads,
    metrics: Arc<LockstepMetrics>,
    endpoint: String,
    budgets: Vec<Arc<Budget>>,
    context: zmq::Context,
}

impl Rig {
    fn start() -> Self {
        let (tables, background) = Tables::new(TablesConfig {
            expected_keys: 0,
            memory_max: 1 << 30,
            tables_max: 10,
            durability: Durability::None,
            changes_per_writer: CHANGES,
            version_base: 0,
            clock_start: 0,
        });
        let settings = LockstepConfig { endpoint: "tcp://127.0.0.1:*".to_owned(), nul: false };
        let clock = Clock::start();
        let metrics = Arc::new(LockstepMetrics::new(clock.now()));
        // Every command is slow.
        let slow = Arc::new(SlowLog::new(Duration::ZERO));
        let parts = ServiceParts { held_bytes_max: HELD_BYTES_MAX, slow, ..ServiceParts::default() };
        let Service { front, endpoint, budgets, .. } =
            bind(&settings, VALUE_MAX, tables.session(), clock, Arc::clone(&metrics), parts).unwrap();
        Self { front, background, metrics, endpoint, budgets, context: zmq::Context::new() }
    }

    fn client(&self) -> Client {
        let socket = self.context.socket(zmq::DEALER).unwrap();
        socket.set_linger(0).unwrap();
        socket.set_identity(b"my-req").unwrap();
        socket.connect(&self.endpoint).unwrap();
        Client { socket }
    }

    fn pass(&mut self) {
        let LockstepFrontend { connections, answering, .. } = &mut self.front;
        let clock = answering.clock;
        connections.wait(PATIENCE, || clock.now());
        let (stats, now) = (String::new, &|| clock.now());
        let context = HandlerContext {
            stats: &stats,
            now,
            reply_bytes_max: VALUE_MAX,
            page_bytes_max: 0,
            value_max: VALUE_MAX,
            clock_start: 0,
            may_read: None,
        };
        self.front.serve(&context);
    }

    fn pass_until(&mut self, mut done: impl FnMut(&Self) -> bool) {
        for _ in 0..PASSES {
            if done(self) {
                return;
            }
            self.pass();
        }
        panic!("the condition does not come");
    }

    /// Sends arguments, and passes until each is answered.
    fn call(&mut self, client: &Client, arguments: &[&[u8]]) -> Vec<String> {
        client.send(arguments);
        self.replies(client, arguments.len())
    }

    fn replies(&mut self, client: &Client, count: usize) -> Vec<String> {
        let mut replies = Vec::new();
        self.pass_until(|_| {
            replies.extend(std::iter::from_fn(|| client.receive()));
            replies.len() >= count
        });
        replies
    }

    /// Announces all changes.
    fn announce(&mut self) {
        while self.background.changes.drain(CHANGES, &mut |_, _, _| {}).taken > 0 {}
    }
}

struct Client {
    socket: zmq::Socket,
}

impl Client {
    fn send(&self, arguments: &[&[u8]]) {
        arguments.iter().for_each(|argument| self.socket.send_multipart([b"", *argument], 0).unwrap());
    }

    fn receive(&self) -> Option<String> {
        let mut frames = self.socket.recv_multipart(zmq::DONTWAIT).ok()?;
        assert_eq!((frames.len(), frames[0].len()), (2, 0));
        Some(String::from_utf8(frames.pop().unwrap()).unwrap())
    }
}

#[test]
fn a_change_without_room_waits_with_all_behind_it_and_others_continue() {
    let mut rig = Rig::start();
    let (first, second) = (rig.client(), rig.client());
    assert_eq!(rig.call(&first, &[b"0", b"t"]), ["ok"; 2]);
    for number in 0..CHANGES {
        let key: &[u8] = if number == 0 { b"other" } else { b"k" };
        assert_eq!(rig.call(&first, &[b"2", b"t", key, b"before", b"a"]), ["ok"; 5]);
    }
    // The tables have no room. All but the last argument is answered. What comes in a later packet is read later, so
    // the clients change elements of their own.
    first.send(&[b"2", b"t", b"k", b"after", b"a", b"4", b"t", b"k", b"6", b"6"]);
    assert_eq!(rig.replies(&first, 4), ["ok"; 4]);
    rig.pass_until(|rig| rig.metrics.worker.waiting.get() == 1);
    assert_eq!(rig.call(&second, &[b"4", b"t", b"k", b"6"]), ["ok", "ok", "ok", "before"]);
    // Another change stands behind the first, and is not tried. A faulty request is refused all the same.
    second.send(&[b"3", b"t", b"other", b"6"]);
    assert_eq!(rig.replies(&second, 2), ["ok"; 2]);
    rig.pass_until(|rig| rig.metrics.worker.waiting.get() == 2);
    assert_eq!(first.receive(), None);
    rig.announce();
    assert_eq!(rig.replies(&first, 6), ["ok", "ok", "ok", "ok", "after", "error"]);
    assert_eq!(rig.replies(&second, 2), ["ok", "before"]);
    assert_eq!(rig.metrics.worker.waiting.get(), 0);
}

#[test]
fn a_half_command_dies_with_its_connection() {
    let mut rig = Rig::start();
    let client = rig.client();
    assert_eq!(rig.call(&client, &[b"0", b"t", b"2", b"t", b"k", &[b'v'; VALUE_MAX]]), ["ok"; 6]);
    assert!(rig.front.answering.memory.bytes() > VALUE_MAX);
    assert!(held_by(&rig.budgets) > VALUE_MAX as u64);
    drop(client);
    rig.pass_until(|rig| rig.front.answering.memory.bytes() == 0);
    assert_eq!(rig.front.connections.len(), 0);
    let other = rig.client();
    assert_eq!(
        rig.call(&other, &[b"a", b"7", b"4", b"t", b"k", b"6"]),
        ["error", "ok", "ok", "ok", "error", "KEY NOT FOUND"]
    );
    assert_eq!((rig.metrics.requests.get(), rig.metrics.traffic.connections()), (12, 1));
}

#[test]
fn values_that_no_client_fetches_leave_room_for_others_or_are_refused() {
    let mut rig = Rig::start();
    let (first, second) = (rig.client(), rig.client());
    let value = [b'v'; 9_000];
    assert_eq!(rig.call(&first, &[b"0", b"t", b"2", b"t", b"k", &value, b"a"]), ["ok"; 7]);
    rig.front.answering.memory = ConversationMemory::new(20_000, 9_000);
    assert_eq!(rig.call(&first, &[b"4", b"t", b"k"]), ["ok"; 3]);
    // A read and a deletion would keep the value for this client.
    for verb in [b"4", b"3"] {
        assert_eq!(rig.call(&second, &[verb, b"t", b"k", b"6"]), ["ok", "ok", "error", "OUT OF MEMORY"]);
    }
    let value = String::from_utf8(value.to_vec()).unwrap();
    assert_eq!(rig.call(&first, &[b"6"]), [&*value]);
    assert_eq!(rig.front.answering.memory.bytes(), 0);
    assert_eq!(rig.call(&second, &[b"3", b"t", b"k", b"6"]), ["ok", "ok", "ok", &value], "it was not deleted before");
}

/// A client that sends without reading is not read from any more, and its replies are bounded.
#[test]
fn a_client_that_never_reads_is_bounded_and_others_continue() {
    let mut rig = Rig::start();
    let other = rig.client();
    assert_eq!(rig.call(&other, &[b"0", b"t", b"2", b"t", b"k", &[b'v'; 1_024], b"a"]), ["ok"; 7]);
    let mut unread = TcpStream::connect(rig.endpoint.strip_prefix("tcp://").unwrap()).unwrap();
    unread.write_all(&introduction(SocketType::Dealer)).unwrap();
    unread.set_nonblocking(true).unwrap();
    let requests: Vec<u8> = [b"4", b"t", b"k", b"6"].iter().flat_map(|argument| message(&[b"", *argument])).collect();
    let requests = requests.repeat(1_000);
    let (mut sent, mut still) = (0, 0);
    while still < 20 {
        let written = unread.write(requests.get(sent % requests.len()..).unwrap()).unwrap_or(0);
        sent += written;
        still = if written == 0 { still + 1 } else { 0 };
        rig.pass();
        assert!(held_by(&rig.budgets) < 2 * OUTBOX_BYTES_MAX as u64, "{} bytes are held", held_by(&rig.budgets));
    }
    rig.pass_until(|rig| rig.front.connections.bytes() > OUTBOX_BYTES_MAX as u64);
    assert_eq!(rig.call(&other, &[b"4", b"t", b"k"]), ["ok"; 3]);
}

/// Half commands with long values, of clients that do no more, hold all the room. Small commands continue, and the room
/// comes back when the clients have stood still for long enough.
#[test]
fn idle_half_commands_lose_their_room_and_small_commands_pass_meanwhile() {
    let mut rig = Rig::start();
    let honest = rig.client();
    let long = [b'v'; 10_000];
    assert_eq!(rig.call(&honest, &[b"0", b"t", b"2", b"t", b"k", &long, b"a"]), ["ok"; 7]);
    rig.front.answering.memory = ConversationMemory::new(30_000, 10_500);
    let idle: Vec<Client> = (0..2).map(|_| rig.client()).collect();
    for (client, bytes) in idle.iter().zip([10_000, 7_000]) {
        assert_eq!(rig.call(client, &[b"2", b"t", b"half", &long[..bytes]]), ["ok"; 4]);
    }
    assert_eq!(rig.call(&honest, &[b"4", b"t", b"k", b"6"]), ["ok", "ok", "error", "OUT OF MEMORY"]);
    let small = [b's'; CONVERSATION_BYTES_MIN - 10];
    assert_eq!(rig.call(&honest, &[b"2", b"t", b"small", &small, b"a"]), ["ok"; 5]);
    let text = String::from_utf8(small.to_vec()).unwrap();
    assert_eq!(rig.call(&honest, &[b"4", b"t", b"small", b"6"]), ["ok", "ok", "ok", &text]);
    let late = rig.front.answering.clock.now().after(2 * STALLED_MAX);
    rig.front.drop_stalled(late);
    rig.pass_until(|rig| rig.metrics.cut_off.get() == 1);
    rig.pass_until(|rig| rig.front.answering.memory.bytes() < 8_000);
    let long = String::from_utf8(long.to_vec()).unwrap();
    assert_eq!(rig.call(&honest, &[b"4", b"t", b"k", b"6"]), ["ok", "ok", "ok", &long]);
}

/// A client that asks for long values and fetches none has small replies alone. The copies count toward its turn.
#[test]
fn values_that_are_copied_and_not_fetched_end_a_turn() {
    let mut rig = Rig::start();
    let other = rig.client();
    assert_eq!(rig.call(&other, &[b"0", b"t", b"2", b"t", b"k", &[b'v'; VALUE_MAX], b"a"]), ["ok"; 7]);
    let mut greedy = TcpStream::connect(rig.endpoint.strip_prefix("tcp://").unwrap()).unwrap();
    let gets: Vec<u8> = [b"4", b"t", b"k"].iter().flat_map(|argument| message(&[b"", *argument])).collect();
    greedy.write_all(&[introduction(SocketType::Dealer), gets.repeat(20)].concat()).unwrap();
    let before = rig.metrics.requests.get();
    let mut last = before;
    while last < before + 60 {
        rig.pass();
        let now = rig.metrics.requests.get();
        assert!(now - last <= 3, "{} arguments in one turn", now - last);
        last = now;
    }
}

#[test]
fn only_a_large_value_that_is_fetched_or_updated_counts_as_progress() {
    let mut rig = Rig::start();
    let client = rig.client();
    let (large, small) = ([b'v'; CONVERSATION_BYTES_MIN + 1], [b'v'; 10]);
    assert_eq!(rig.call(&client, &[b"0", b"t", b"2", b"t", b"k", &large, b"a"]), ["ok"; 7]);
    assert_eq!(rig.call(&client, &[b"4", b"t", b"k"]), ["ok"; 3]);
    let since = rig.front.answering.memory.since();
    assert_eq!(since.len(), 1);
    // Small commands and another GET are none.
    assert_eq!(rig.call(&client, &[b"2", b"t", b"s", &small, b"a", b"4", b"t", b"s", b"6"])[8..], ["vvvvvvvvvv"]);
    assert_eq!(rig.call(&client, &[b"4", b"t", b"k"]), ["ok"; 3]);
    assert_eq!(rig.front.answering.memory.since(), since);
    assert_eq!(rig.call(&client, &[b"6"]).len(), 1);
    assert_eq!(rig.front.answering.memory.since(), []);
    assert_eq!(rig.call(&client, &[b"2", b"t", b"k", &large]), ["ok"; 4]);
    assert_eq!(rig.front.answering.memory.since().len(), 1);
    assert_eq!(rig.call(&client, &[b"a"]), ["ok"]);
    assert_eq!(rig.front.answering.memory.since(), []);
}

#[test]
fn commands_are_timed_to_the_send_of_their_last_reply_and_not_their_arguments() {
    let mut rig = Rig::start();
    let client = rig.client();
    assert_eq!(rig.call(&client, &[b"0", b"table"]), ["ok"; 2]);
    assert_eq!(rig.call(&client, &[b"2", b"table", b"k", b"value", b"a"]), ["ok"; 5]);
    assert_eq!(rig.call(&client, &[b"4", b"table", b"k", b"6"])[3], "value");
    let logged = rig.front.answering.slow.latest(9);
    let of = |request: &SlowRequest| (request.verb, request.table.to_vec(), request.client.starts_with("127.0.0.1:"));
    let verbs: Vec<_> = logged.iter().map(of).collect();
    let expected = ["GET", "UPDATE", "CREATE_TABLE"].map(|verb| (verb, b"table".to_vec(), true));
    assert_eq!(verbs, expected, "{logged:?}");
    for command in Command::ALL {
        let sampled = Percentiles::of([rig.metrics.worker.whole(command)]).count;
        assert_eq!(sampled, u64::from(command == Command::CreateTable), "the first command is picked");
    }
}
