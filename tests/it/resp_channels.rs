//! Channels and the events of keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use zmq::Context;

use crate::harness::{FRONTENDS, Server, spindle_reads};
use crate::peer::Peer;
use crate::resp_client::{RespClient, command};

const OK: &str = "+OK";

fn start(frontend: &str, flags: &[&str]) -> Server {
    Server::start(&[&["--frontend", frontend, "--resp", "127.0.0.1:0"][..], flags].concat())
}

/// A message of a channel, in the second version of the protocol.
fn message(channel: &str, payload: &str) -> String {
    let [channel_bytes, payload_bytes] = [channel, payload].map(str::len);
    format!("*3\r\n$7\r\nmessage\r\n${channel_bytes}\r\n{channel}\r\n${payload_bytes}\r\n{payload}\r\n")
}

fn next(client: &mut RespClient) -> String {
    String::from_utf8(client.reply()).unwrap()
}

/// Subscribes to some channels, and takes the confirmations.
fn subscribe(client: &mut RespClient, channels: &[&str]) {
    let arguments: Vec<&[u8]> = ["SUBSCRIBE"].iter().chain(channels).map(|name| name.as_bytes()).collect();
    client.send(&command(&arguments));
    for (channel, count) in channels.iter().zip(1..) {
        let bytes = channel.len();
        assert_eq!(next(client), format!("*3\r\n$9\r\nsubscribe\r\n${bytes}\r\n{channel}\r\n:{count}\r\n"));
    }
}

#[test]
fn the_changes_of_each_protocol_are_events() {
    for frontend in FRONTENDS {
        let (server, context) = (start(frontend, &[]), Context::new());
        let (mut redis, peer) = (RespClient::connect(server.resp()), Peer::connect(&context, server.kv()));
        let mut subscriber = RespClient::connect(server.resp());
        subscribe(&mut subscriber, &["__keyspace@0__:k", "__keyspace@birds__:heron"]);
        assert_eq!(redis.say("SET other 0"), OK);
        for absent in ["DEL k", "UNLINK k", "GETDEL k", "EXPIRE k 1", "PERSIST k"] {
            assert!([":0", "$-1"].contains(&&*redis.say(absent)), "{absent}: no event");
        }
        assert_eq!(redis.say("SET k 1 EX 100"), OK);
        assert_eq!(redis.say("INCR k"), ":2");
        assert_eq!(redis.say("PERSIST k"), ":1");
        assert_eq!(redis.say("APPEND k .5"), ":3");
        assert_eq!(redis.say("INCRBYFLOAT k 1"), "$3\r\n3.5");
        assert_eq!(redis.say("SETRANGE k 0 4"), ":3");
        assert_eq!(redis.say("SET other 1"), OK);
        assert_eq!(peer.call(&[&[2], b"0", b"k", b"w", &1_u64.to_be_bytes()]), [[1]], "an UPDATE with a TTL");
        let events = ["set", "expire", "incrby", "persist", "append", "incrbyfloat", "setrange", "set", "expire"];
        for event in events.into_iter().chain(["expired"]) {
            assert_eq!(next(&mut subscriber), message("__keyspace@0__:k", event));
        }
        assert_eq!(peer.call(&[&[0], b"birds"]), [[1]], "created behind the subscription");
        assert_eq!(peer.call(&[&[2], b"birds", b"heron", b"1"]), [[1]]);
        assert_eq!(peer.call(&[&[3], b"birds", b"heron"])[0], [1]);
        for event in ["set", "del"] {
            assert_eq!(next(&mut subscriber), message("__keyspace@birds__:heron", event));
        }
        server.stop();
    }
}

#[test]
fn a_client_of_the_third_version_sends_commands_between_messages() {
    let server = start("queue", &[]);
    let mut client = RespClient::connect(server.resp());
    assert!(client.say("HELLO 3").starts_with("%7"));
    client.send(b"SUBSCRIBE news __keyspace@0__:k\r\nSET k v\r\nPUBLISH news hi\r\nUNSUBSCRIBE\r\nGET k\r\n");
    let frames: Vec<String> = (0..8).map(|_| next(&mut client)).collect();
    let push = |words: &[&str]| {
        let words = words.iter().map(|word| match word.strip_prefix(':') {
            Some(_) => format!("{word}\r\n"),
            None => format!("${}\r\n{word}\r\n", word.len()),
        });
        format!(">3\r\n{}", words.collect::<String>())
    };
    let (of_key, of_news) = (push(&["message", "__keyspace@0__:k", "set"]), push(&["message", "news", "hi"]));
    let confirmed = [push(&["subscribe", "news", ":1"]), push(&["subscribe", "__keyspace@0__:k", ":2"])];
    assert_eq!(frames[..2], confirmed);
    let messages: Vec<&String> = frames.iter().filter(|frame| **frame == of_key || **frame == of_news).collect();
    assert_eq!(
        messages.len(),
        2,
        "what was changed and published before UNSUBSCRIBE comes before its reply: {frames:?}"
    );
    assert!(frames[6..].iter().all(|frame| !messages.contains(&frame)), "{frames:?}");
    assert_eq!(next(&mut client), "$1\r\nv\r\n");
    server.stop();
}

/// A message that was on its way came to a client that subscribed behind it.
#[test]
fn a_message_of_before_does_not_come_to_a_new_subscriber() {
    let server = start("native", &["--workers", "1"]);
    let [mut other, mut client] = [(); 2].map(|()| RespClient::connect(server.resp()));
    assert!(other.say("PSUBSCRIBE *").starts_with("*3\r\n"));
    client.send(b"PUBLISH news early\r\nSUBSCRIBE news\r\n");
    assert_eq!(next(&mut client), ":1\r\n");
    assert!(next(&mut client).starts_with("*3\r\n$9\r\nsubscribe"));
    let mut publisher = RespClient::connect(server.resp());
    assert_eq!(publisher.say("PUBLISH news late"), ":2");
    assert_eq!(next(&mut client), message("news", "late"));
    server.stop();
}

/// Each key expires while others read it, which may take it away before the expiry thread does.
#[test]
fn each_expiry_is_an_event_exactly_once_and_in_time() {
    const KEYS: usize = 2_000;
    let server = start("native", &["--workers", "2"]);
    let mut subscriber = RespClient::connect(server.resp());
    assert!(subscriber.say("PSUBSCRIBE __keyevent@*__:expired").starts_with("*3\r\n$10\r\npsubscribe"));
    let mut writer = RespClient::connect(server.resp());
    let reader = {
        let mut reader = RespClient::connect(server.resp());
        thread::spawn(move || {
            while reader.say("EXISTS end") == ":0" {
                let lines: String = (0..KEYS).step_by(7).map(|number| format!("GET k{number}\r\n")).collect();
                reader.send(lines.as_bytes());
                (0..KEYS).step_by(7).for_each(|_| drop(reader.reply()));
            }
        })
    };
    let lines: String = (0..KEYS).map(|number| format!("SET k{number} v PX {}\r\n", 20 + number % 50)).collect();
    writer.send(lines.as_bytes());
    (0..KEYS).for_each(|_| assert_eq!(next(&mut writer), "+OK\r\n"));
    let mut expired: Vec<String> = (0..KEYS).map(|_| next(&mut subscriber)).collect();
    assert_eq!(writer.say("SET end v"), OK);
    reader.join().unwrap();
    expired.sort_unstable();
    expired.dedup();
    assert_eq!(expired.len(), KEYS, "none comes twice");
    // Nothing else comes, not even an event of the SETs.
    assert_eq!(writer.say("SET last v PX 1"), OK);
    assert!(next(&mut subscriber).ends_with("$4\r\nlast\r\n"));
    server.stop();
}

/// A pattern that takes millions of steps for a channel with thousands of the letter a, and does not match.
fn slow_pattern(number: usize) -> String {
    format!("*{}b{number}", "a".repeat(4_000))
}

fn subscribe_to_slow_patterns(client: &mut RespClient) {
    for number in 0..25 {
        client.send(&command(&[b"PSUBSCRIBE", slow_pattern(number).as_bytes()]));
        client.reply();
    }
}

/// A worker compares patterns for longer than the writer needs for its changes. The publisher, the other worker and the clients
/// of the busy worker do not wait. The mail of the busy worker passes its bound, so the worker closes its subscribers.
#[test]
fn a_worker_that_does_not_keep_up_loses_its_subscribers_and_nobody_waits_for_it() {
    const CHANGES: usize = 22_000;
    let server = start("queue", &["--resp-workers", "2", "--max-key", "4096"]);
    // Connections go to the two workers in turn.
    let connect = || {
        let mut client = RespClient::connect(server.resp());
        assert_eq!(client.say("PING"), "+PONG");
        client
    };
    let [mut patterns, mut writer, mut behind, mut in_time, mut busy] = [(); 5].map(|()| connect());
    subscribe_to_slow_patterns(&mut patterns);
    for subscriber in [&mut behind, &mut in_time] {
        subscribe(subscriber, &["__keyevent@0__:set"]);
    }
    let key = vec![b'a'; 4_096];
    let received = thread::spawn(move || {
        (0..CHANGES).for_each(|_| assert!(in_time.reply().ends_with(b"a\r\n")));
    });
    for _ in 0..CHANGES / 100 {
        writer.send(&command(&[b"SET", &key, b"v"]).repeat(100));
        (0..100).for_each(|_| assert_eq!(next(&mut writer), "+OK\r\n"));
        assert_eq!(busy.say("PING"), "+PONG");
    }
    received.join().unwrap();
    assert!(behind.rest().len() < CHANGES * key.len(), "it is closed");
    // The worker goes on, with new subscribers.
    let mut again = [(); 2].map(|()| connect());
    again.iter_mut().for_each(|again| subscribe(again, &["__keyspace@0__:j"]));
    let closing = Instant::now();
    while writer.say("PUBSUB NUMSUB __keyevent@0__:set") != "*2\r\n$18\r\n__keyevent@0__:set\r\n:0" {
        assert!(closing.elapsed() < Duration::from_secs(30), "closed subscribers are counted");
    }
    assert_eq!(writer.say("SET j v"), OK);
    again.iter_mut().for_each(|again| assert_eq!(next(again), message("__keyspace@0__:j", "set")));
    server.stop();
}

/// A worker compared all patterns, or all channels, before other clients had their turns. Both comparisons take many seconds
/// here. The test does not wait for their replies.
#[test]
fn a_client_whose_command_compares_much_holds_nobody_up() {
    let server = start("native", &["--workers", "1"]);
    let [mut subscriber, mut publisher, mut seeker, mut other] = [(); 4].map(|()| RespClient::connect(server.resp()));
    subscribe_to_slow_patterns(&mut subscriber);
    let channel = "a".repeat(8_000);
    for number in 0..100 {
        subscriber.send(&command(&[b"SUBSCRIBE", format!("{channel}{number}").as_bytes()]));
        subscriber.reply();
    }
    publisher.send(&command(&[b"PUBLISH", channel.as_bytes(), b"x"]));
    seeker.send(&command(&[b"PUBSUB", b"CHANNELS", format!("*{}b", &channel[..1_000]).as_bytes()]));
    (0..10).for_each(|_| assert_eq!(other.say("PING"), "+PONG"));
    let counts = other.say("INFO commandstats");
    assert!(counts.contains("cmdstat_ping") && !counts.contains("cmdstat_pub"), "{counts}");
    assert_eq!(other.say("PUBSUB CHANNELS a*a7"), format!("*1\r\n$8001\r\n{channel}7"));
    server.stop();
}

/// A worker subscribed a client to all channels of its command before others had their turns.
#[test]
fn many_channels_come_and_go_in_portions() {
    const CHANNELS: usize = 20_000;
    let server = start("native", &["--workers", "1"]);
    let [mut subscriber, mut other] = [(); 2].map(|()| RespClient::connect(server.resp()));
    let names: Vec<String> = (0..CHANNELS).map(|number| format!("channel{number:05}")).collect();
    let all = |verb: &'static str| {
        let words: Vec<&[u8]> =
            std::iter::once(verb).chain(names.iter().map(|name| &**name)).map(str::as_bytes).collect();
        command(&words)
    };
    let calls = |client: &mut RespClient, verb: &str| client.say("INFO commandstats").contains(&format!("_{verb}:"));
    let confirmation = |word: &str, name: &str, count: usize| {
        format!("*3\r\n${}\r\n{word}\r\n${}\r\n{name}\r\n:{count}\r\n", word.len(), name.len())
    };
    // Some clients among many are answered before the last channel, unless no other has a turn.
    let overtakes = (0..50).any(|_| {
        subscriber.send(&all("SUBSCRIBE"));
        assert_eq!(next(&mut subscriber), confirmation("subscribe", &names[0], 1));
        let is_before = !calls(&mut other, "subscribe");
        for (number, name) in names.iter().enumerate().skip(1) {
            assert_eq!(next(&mut subscriber), confirmation("subscribe", name, number + 1));
        }
        assert_eq!(other.say("PUBLISH channel19999 m"), ":1");
        assert!(next(&mut subscriber).ends_with("m\r\n"));
        if !is_before {
            assert_eq!(other.say("CONFIG RESETSTAT"), OK);
        }
        subscriber.send(&command(&[b"UNSUBSCRIBE"]));
        for (number, name) in names.iter().enumerate() {
            assert_eq!(next(&mut subscriber), confirmation("unsubscribe", name, CHANNELS - 1 - number));
        }
        is_before
    });
    assert!(overtakes, "nobody was answered before the last channel");
    subscriber.send(&all("SUBSCRIBE"));
    subscriber.send(&all("UNSUBSCRIBE"));
    for (word, number, count) in [("subscribe", 0, 1), ("unsubscribe", 0, CHANNELS - 1)] {
        assert_eq!(next(&mut subscriber), confirmation(word, &names[number], count));
        (1..CHANNELS).for_each(|_| assert!(next(&mut subscriber).contains(&format!("\r\n{word}\r\n"))));
    }
    subscriber.send(&all("SUBSCRIBE"));
    next(&mut subscriber);
    drop(subscriber);
    while other.say("PUBSUB CHANNELS channel*") != "*0" {}
    server.stop();
}

/// A worker has time for one such push before its clients have turns, so it stops behind each of them.
#[test]
fn a_large_message_comes_once_to_each_subscription() {
    let server = start("native", &["--workers", "1"]);
    let mut subscribers = [(); 4].map(|()| RespClient::connect(server.resp()));
    for subscriber in &mut subscribers {
        subscribe(subscriber, &["news"]);
        assert!(subscriber.say("PSUBSCRIBE n* *s").starts_with("*3\r\n$10\r\npsubscribe"));
        next(subscriber);
    }
    let mut publisher = RespClient::connect(server.resp());
    for byte in [b'x', b'y'] {
        publisher.send(&command(&[b"PUBLISH", b"news", &vec![byte; 9 << 20]]));
        assert_eq!(next(&mut publisher), ":12\r\n");
    }
    for subscriber in &mut subscribers {
        for end in ["xx\r\n", "yy\r\n"] {
            let mut frames = [(); 3].map(|()| next(subscriber));
            frames.sort_unstable();
            let beginnings = [
                "*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n",
                "*4\r\n$8\r\npmessage\r\n$2\r\n*s\r\n",
                "*4\r\n$8\r\npmessage\r\n$2\r\nn*\r\n",
            ];
            for (frame, beginning) in frames.iter().zip(beginnings) {
                assert!(frame.starts_with(beginning) && frame.ends_with(end));
            }
        }
        assert!(subscriber.say("PING").starts_with("*2\r\n$4\r\npong"), "nothing else has come");
    }
    server.stop();
}

/// Replies that go in portions, also that to EXEC, and messages between them.
#[test]
fn a_message_stands_between_replies_and_never_within_one() {
    const KEYS: usize = 2_000;
    let server = start("native", &["--workers", "2"]);
    let [mut client, mut writer] = [(); 2].map(|()| RespClient::connect(server.resp()));
    let keys: Vec<String> = (0..KEYS).map(|number| format!("k{number}")).collect();
    let value = "v".repeat(1_000);
    for key in &keys {
        assert_eq!(writer.say(&format!("SET {key} {value}")), OK);
    }
    assert!(client.say("HELLO 3").starts_with('%'));
    client.send(b"SUBSCRIBE news __keyspace@0__:other\r\n");
    (0..2).for_each(|_| assert!(next(&mut client).starts_with(">3\r\n$9\r\nsubscribe")));
    let mget: Vec<&[u8]> = ["MGET"].into_iter().chain(keys.iter().map(String::as_str)).map(str::as_bytes).collect();
    let mget = command(&mget);
    let round = [&mget, &b"PING\r\nMULTI\r\n"[..], &mget, b"EXEC\r\n"].concat();
    let values = format!("*{KEYS}\r\n{}", format!("$1000\r\n{value}\r\n").repeat(KEYS));
    let replies = [&values, "+PONG\r\n", "+OK\r\n", "+QUEUED\r\n", &format!("*1\r\n{values}")].map(str::to_owned);
    let ends = Arc::new(AtomicBool::new(false));
    let publishing = thread::spawn({
        let ends = Arc::clone(&ends);
        move || {
            // Relaxed: it ends some time after it was set.
            while !ends.load(Ordering::Relaxed) {
                writer.send(b"PUBLISH news hi\r\nSET other 1\r\n");
                (0..2).for_each(|_| drop(writer.reply()));
            }
        }
    });
    let pushes = [("news", "hi"), ("__keyspace@0__:other", "set")]
        .map(|(channel, payload)| message(channel, payload).replacen('*', ">", 1));
    let mut between = 0;
    for _ in 0..20 {
        client.send(&round);
        let mut due = replies.iter();
        while due.len() > 0 {
            let frame = next(&mut client);
            if pushes.contains(&frame) {
                between += usize::from(due.len() < replies.len());
            } else {
                assert!(due.next() == Some(&frame), "{}", &frame[..frame.len().min(100)]);
            }
        }
    }
    ends.store(true, Ordering::Relaxed);
    publishing.join().unwrap();
    assert!(between > 0, "messages have come while replies were made");
    server.stop();
}

#[test]
fn a_subscriber_that_does_not_read_is_closed_and_others_are_not() {
    close_one_that_does_not_read(&["--max-memory", "256M"], 1 << 20);
}

/// It is closed long before it has as many bytes.
#[test]
fn a_subscriber_that_does_not_read_many_messages_is_closed() {
    close_one_that_does_not_read(&["--publish-hwm", "100"], 64 << 10);
}

/// Has messages of so many bytes published until the subscriber that does not read is closed, by a server with these flags.
fn close_one_that_does_not_read(flags: &[&str], bytes: usize) {
    let server = start("native", &[&["--workers", "1"], flags].concat());
    let [mut silent, mut reader, mut publisher] = [(); 3].map(|()| RespClient::connect(server.resp()));
    subscribe(&mut silent, &["news"]);
    subscribe(&mut reader, &["news"]);
    let payload = vec![b'x'; bytes];
    let publish = command(&[b"PUBLISH", b"news", &payload]);
    let mut published = 0;
    let mut counts = Vec::new();
    while counts.last() != Some(&":1\r\n".to_owned()) {
        publisher.send(&publish);
        counts.push(next(&mut publisher));
        assert_eq!(
            reader.reply().len(),
            message("news", "").len() + payload.len() + payload.len().to_string().len() - 1
        );
        published += 1;
        assert!(published < 1_000, "it is closed before that");
    }
    assert!(counts[..counts.len() - 1].iter().all(|count| count == ":2\r\n"));
    let got = silent.rest().len();
    assert!(got < published * payload.len(), "{got} bytes are what was on its way");
    server.stop();
}

#[test]
fn a_user_gets_the_events_of_tables_that_it_may_read() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users").to_str().unwrap().to_owned();
    for (name, rights) in [("ada", &["--read", "1", "--write", "1"][..]), ("eve", &["--read", "9"]), ("bob", &[])] {
        let arguments = [&["user", "add", name, "--password-stdin"], rights, &["--users", &users]].concat();
        let output = spindle_reads(&arguments, b"heron");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let server = start("native", &["--users", &users]);
    let connect = |name: &str| {
        let mut client = RespClient::connect(server.resp());
        assert_eq!(client.say(&format!("AUTH {name} heron")), OK);
        client
    };
    let [mut writer, mut ada, mut eve, mut bob] = ["ada", "ada", "eve", "bob"].map(connect);
    for client in [&mut ada, &mut eve] {
        assert!(client.say("PSUBSCRIBE __keyevent*").starts_with("*3\r\n$10\r\npsubscribe"));
        assert!(client.say("SUBSCRIBE news").starts_with("*3\r\n$9\r\nsubscribe"));
    }
    let denied = |name, command| format!("-NOPERM User {name} has no permissions to run the '{command}' command");
    assert_eq!(bob.say("SUBSCRIBE news"), denied("bob", "subscribe"));
    assert_eq!(connect("eve").say("PUBLISH news 1"), denied("eve", "publish"));
    assert_eq!(writer.say("SELECT 1"), OK);
    assert_eq!(writer.say("SET k v"), OK);
    assert!(next(&mut ada).contains("__keyevent@1__:set"));
    assert_eq!(writer.say("PUBLISH news hi"), ":2");
    assert_eq!(writer.say("PUBLISH __keyevent@1__:set k")[..5], *"-ERR ");
    for client in [&mut ada, &mut eve] {
        assert_eq!(next(client), message("news", "hi"), "and no event before it");
    }
    server.stop();
}

#[test]
fn an_event_of_an_expiry_comes_within_milliseconds() {
    let server = start("queue", &[]);
    let [mut subscriber, mut writer] = [(); 2].map(|()| RespClient::connect(server.resp()));
    subscribe(&mut subscriber, &["__keyevent@0__:expired"]);
    let mut lags: Vec<Duration> = (0..50)
        .map(|_| {
            let begun = Instant::now();
            assert_eq!(writer.say("SET k v PX 20"), OK);
            assert_eq!(next(&mut subscriber), message("__keyevent@0__:expired", "k"));
            begun.elapsed().saturating_sub(Duration::from_millis(20))
        })
        .collect();
    lags.sort_unstable();
    assert!(lags[25] < Duration::from_millis(10), "{lags:?}");
    server.stop();
}
