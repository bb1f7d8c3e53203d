//! Harmful subscribers: floods, messages without end, lying PINGs, no reading; and the end of a server that has them.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use spindle::clients::rust::tables::{Client, Subscriber};
use spindle::services::tables::wire::Notification;
use spindle::zmtp::{SocketType, encode_frame, encode_subscribe};

use crate::harness::Server;
use crate::zmtp::Plain;

const PATIENCE: Duration = Duration::from_secs(60);
/// A long name, so that the buffers of the system do not hold many notifications.
const TABLE: [u8; 200] = [b't'; 200];
/// Bytes of a subscription of a flood.
const TOPIC_BYTES: usize = 200;
/// Subscriptions of a flood, if it is let: 32 MB.
const FLOOD: u64 = 160_000;

/// A server, and a client of it with a table.
fn serve(flags: &[&str]) -> (Server, Client) {
    let server = Server::start(flags);
    let mut client = Client::connect(server.kv()).unwrap();
    client.create_table(&TABLE).unwrap();
    (server, client)
}

fn connect(server: &Server) -> Option<Plain> {
    let address = server.publish().strip_prefix("tcp://").unwrap();
    let stream = TcpStream::connect(address).ok()?;
    Some(Plain::meet(stream, SocketType::Sub).unwrap().0)
}

fn subscribe(topic: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_subscribe(&mut bytes, topic);
    bytes
}

/// A subscriber that the server knows. The server has no other with this topic.
fn join(server: &Server, topic: &[u8]) -> Plain {
    let topics = metric(server, "topics");
    let mut plain = connect(server).unwrap();
    assert!(plain.write(&subscribe(topic)));
    wait_until(|| metric(server, "topics") > topics);
    plain
}

/// One of the publisher's metrics.
fn metric(server: &Server, name: &str) -> u64 {
    server.stats()["changes"][name].as_u64().unwrap_or_else(|| panic!("STATS have no {name}"))
}

fn wait_until(mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "it does not come to pass");
    }
}

/// Updates this many keys.
fn update(client: &mut Client, count: u32) {
    let keys: Vec<[u8; 4]> = (0..count).map(u32::to_be_bytes).collect();
    for keys in keys.chunks(1_000) {
        let pairs: Vec<[&[u8]; 2]> = keys.iter().map(|key| [key.as_slice(), b"value".as_slice()]).collect();
        client.update_many(&TABLE, None, &pairs).unwrap();
    }
}

/// The keys of notifications.
fn keys(messages: &[Vec<Vec<u8>>]) -> impl Iterator<Item = u32> {
    messages.iter().map(|message| u32::from_be_bytes(message[2][..].try_into().unwrap()))
}

/// Subscribes to one topic after the other, until the server closes the connection. Returns whether it did.
fn flood(plain: &mut Plain) -> bool {
    let mut topic = [b'x'; TOPIC_BYTES];
    (0..FLOOD / 100).any(|block| {
        let mut bytes = Vec::new();
        for number in 0..100 {
            topic[..8].copy_from_slice(&(block * 100 + number).to_be_bytes());
            encode_subscribe(&mut bytes, &topic);
        }
        !plain.write(&bytes)
    })
}

#[test]
fn floods_of_subscriptions_are_closed_and_nobody_else_notices() {
    const FLOODS: usize = 4;
    let (server, mut client) = serve(&[]);
    let mut reader = Subscriber::connect(server.publish(), &[&TABLE]).unwrap();
    wait_until(|| metric(&server, "topics") == 1);
    let running = AtomicUsize::new(FLOODS);
    thread::scope(|scope| {
        for _ in 0..FLOODS {
            scope.spawn(|| {
                let closed = flood(&mut connect(&server).unwrap());
                // Relaxed, here and below: it only counts.
                running.fetch_sub(1, Ordering::Relaxed);
                assert!(closed, "{FLOOD} subscriptions were taken");
            });
        }
        let mut number = 0_u32;
        while running.load(Ordering::Relaxed) > 0 {
            client.update(&TABLE, &number.to_be_bytes(), b"value", None).unwrap();
            let received = reader.receive(PATIENCE).unwrap().expect("who reads receives everything");
            assert_eq!(received.key, number.to_be_bytes());
            number += 1;
        }
    });
    wait_until(|| metric(&server, "topics") == 1 && metric(&server, "subscribers") == 1);
    assert_eq!(metric(&server, "closed_subscribers"), FLOODS as u64);
    assert_eq!((metric(&server, "subscriptions"), metric(&server, "lost_notifications")), (1, 0));
    server.stop();
}

#[test]
fn a_signal_is_obeyed_whatever_subscribers_do() {
    let (server, mut client) = serve(&[]);
    let stalled = join(&server, &TABLE);
    let silent = TcpStream::connect(server.publish().strip_prefix("tcp://").unwrap()).unwrap();
    update(&mut client, 100_000);
    thread::scope(|scope| {
        let floods: Vec<_> = (0..3).map(|_| connect(&server).unwrap()).collect();
        for mut plain in floods {
            scope.spawn(move || while !flood(&mut plain) {});
        }
        wait_until(|| metric(&server, "topics") > 1_000);
        server.signal(Signal::TERM);
        let (status, _) = server.wait();
        assert!(status.success(), "{status}");
    });
    drop((stalled, silent));
}

#[test]
fn what_was_announced_is_still_sent_at_the_end() {
    const CHANGES: u32 = 100_000;
    let (server, mut client) = serve(&[]);
    let slow = join(&server, &TABLE);
    update(&mut client, CHANGES);
    server.signal(Signal::TERM);
    let received = slow.rest();
    assert!(keys(&received).eq(0..CHANGES), "{} of {CHANGES}", received.len());
    assert!(server.wait().0.success());
}

#[test]
fn what_a_subscriber_loses_is_counted() {
    const CHANGES: u32 = 200_000;
    let (server, mut client) = serve(&["--publish-hwm", "1000", "--workers", "1"]);
    client.create_table(b"mark").unwrap();
    let stalled = join(&server, &TABLE);
    let mut reader = Subscriber::connect(server.publish(), &[b"mark"]).unwrap();
    wait_until(|| metric(&server, "topics") == 2);
    update(&mut client, CHANGES);
    // When the second arrives, the metrics are those of all before the first.
    for _ in 0..2 {
        client.update(b"mark", b"", b"", None).unwrap();
        assert!(reader.receive(PATIENCE).unwrap().is_some());
    }
    let lost = metric(&server, "lost_notifications");
    assert_eq!(metric(&server, "published"), u64::from(CHANGES) + 2);
    server.signal(Signal::TERM);
    let received = stalled.rest();
    assert!(server.wait().0.success());
    assert!(lost > 0);
    assert_eq!(received.len() as u64 + lost, u64::from(CHANGES), "each is received or counted");
    assert!(keys(&received).is_sorted());
}

#[test]
fn messages_without_end_and_long_topics_take_no_memory() {
    let (server, mut client) = serve(&[]);
    let resident = |server: &Server| server.stats()["memory"]["resident_bytes"].as_u64().unwrap();
    client.ping().unwrap();
    let before = resident(&server);
    let mut endless = join(&server, b"endless");
    let mut frames = Vec::new();
    (0..1_000).for_each(|_| encode_frame(&mut frames, &[2; 1_000], true));
    for _ in 0..200 {
        assert!(endless.write(&frames), "it is no subscription, and passed over");
    }
    let mut long = join(&server, b"long");
    let topic = subscribe(&vec![b'x'; 10 << 20]);
    assert!(long.write(&topic[..20]));
    let said = long.rest();
    assert_eq!(said[0][..1], [b"ERROR"], "before it has come");
    wait_until(|| metric(&server, "topics") == 1);
    let after = resident(&server);
    assert!(after < before + (64 << 20), "{before} bytes before, {after} after");
    server.stop();
}

#[test]
fn a_ping_that_lies_gets_no_answer() {
    let (server, _client) = serve(&[]);
    let mut liar = join(&server, b"liar");
    assert!(liar.write(b"\x04\x05\x04PING"));
    let said = liar.rest();
    assert_eq!(said, [[b"ERROR".to_vec(), b"a command cannot be read: a PING has no time to live".to_vec()]]);
    server.stop();
}

/// The number that was stored under this notification's key, of a change of this table.
fn number_of(received: &Notification<'_>, table: &[u8]) -> u32 {
    assert_eq!(received.table, table);
    u32::from_be_bytes(received.key.try_into().unwrap())
}

/// A client writes to three tables in turn. Two have a subscriber all the time, the third has some that come and go.
#[test]
fn who_subscribes_to_one_table_loses_nothing_while_subscribers_of_another_come_and_go() {
    const ROUNDS: usize = 12;
    for flags in [&["--frontend", "queue"][..], &["--frontend", "native", "--workers", "2"]] {
        let server = Server::start(flags);
        let mut client = Client::connect(server.kv()).unwrap();
        client.create_table(b"user").unwrap();
        let mut steady = Subscriber::connect(server.publish(), &[b"user"]).unwrap();
        wait_until(|| metric(&server, "topics") == 1);
        for table in [&b"users"[..], b"other"] {
            client.create_table(table).unwrap();
        }
        let (running, written) = (AtomicBool::new(true), AtomicU32::new(0));
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut number = 0_u32;
                // Relaxed, here and below: the tables order what is published.
                while running.load(Ordering::Relaxed) {
                    for table in [&b"user"[..], b"users", b"other"] {
                        client.update(table, &number.to_be_bytes(), b"value", None).unwrap();
                    }
                    number += 1;
                    written.store(number, Ordering::Relaxed);
                }
                number
            });
            let _stop = StopWriter(&running);
            for round in 0..ROUNDS {
                let topic: &[u8] = if round % 2 == 0 { b"other" } else { b"oth" };
                let mut guest = Subscriber::connect(server.publish(), &[topic]).unwrap();
                let first = number_of(&guest.receive(PATIENCE).unwrap().expect("it is published"), b"other");
                for next in first + 1..first + 100 {
                    let received = guest.receive(PATIENCE).unwrap().expect("it is published");
                    assert_eq!(number_of(&received, b"other"), next, "{round}");
                }
                drop(guest);
                wait_until(|| metric(&server, "topics") == 1);
                // Long enough in some rounds that nobody subscribes to the table meanwhile.
                let until = written.load(Ordering::Relaxed) + 10 * u32::try_from(round * round).unwrap();
                wait_until(|| written.load(Ordering::Relaxed) > until);
            }
            running.store(false, Ordering::Relaxed);
            for number in 0..writer.join().unwrap() {
                for table in [&b"user"[..], b"users"] {
                    let received = steady.receive(PATIENCE).unwrap().expect("it is published");
                    assert_eq!(number_of(&received, table), number);
                }
            }
        });
        server.stop();
    }
}

/// Ends the writer, also when a check fails.
struct StopWriter<'s>(&'s AtomicBool);

impl Drop for StopWriter<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
