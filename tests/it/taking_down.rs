//! A table of a million elements is deleted while others work: each element is announced, and no client is held up.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use spindle::clients::rust::tables::{Client, Error, Subscriber};
use spindle::services::tables::wire::{NotificationKind, Reason};

use super::harness::Server;

const ELEMENTS: usize = 1_000_000;
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_deleted_table_of_a_million_elements_announces_each_and_holds_up_nobody() {
    let server = Server::start(&["--publish-hwm", "4000000"]);
    let mut client = Client::connect(server.kv()).unwrap();
    client.create_table(b"large").unwrap();
    client.create_table(b"other").unwrap();
    client.update(b"other", b"key", b"value", None).unwrap();
    fill(&mut client);

    let ended = Arc::new(AtomicBool::new(false));
    let before = measure(&server, Duration::from_millis(500));
    let subscriber = Subscriber::connect(server.publish(), &[b"large"]).unwrap();
    wait_for_topic(&mut client);
    let ear = thread::spawn({
        let ended = Arc::clone(&ended);
        move || {
            let received = listen(subscriber);
            ended.store(true, Ordering::Release);
            received
        }
    });
    let busy = thread::spawn({
        let endpoint = server.kv().to_owned();
        move || latencies(&endpoint, || ended.load(Ordering::Acquire))
    });
    client.delete_table(b"large").unwrap();
    let gone = client.get(b"large", b"00000000");
    assert!(matches!(gone, Err(Error::Refused(Reason::TableNotFound))));
    client.create_table(b"large").unwrap();
    client.update(b"large", b"new", b"1", None).unwrap();
    let received = ear.join().unwrap();
    let during = busy.join().unwrap();
    assert_eq!(received.len(), ELEMENTS);
    assert_eq!(client.get(b"large", b"new").unwrap(), b"1");
    report("before", before);
    report("while a million elements go", during);
    server.stop();
}

fn fill(client: &mut Client) {
    let keys: Vec<String> = (0..ELEMENTS).map(|key| format!("{key:08}")).collect();
    for keys in keys.chunks(1_000) {
        let pairs: Vec<[&[u8]; 2]> = keys.iter().map(|key| [key.as_bytes(), b"value".as_slice()]).collect();
        client.update_many(b"large", None, &pairs).unwrap();
    }
}

/// Waits until the subscription has arrived at the server.
fn wait_for_topic(client: &mut Client) {
    loop {
        let stats: serde_json::Value = serde_json::from_str(&client.stats().unwrap()).unwrap();
        if stats["changes"]["topics"] == 1 && stats["changes"]["waiting"] == 0 {
            return;
        }
        thread::yield_now();
    }
}

/// The keys announced as deleted: each once, and no other but the new table's one.
fn listen(mut subscriber: Subscriber) -> HashSet<Vec<u8>> {
    let mut gone = HashSet::with_capacity(ELEMENTS);
    while gone.len() < ELEMENTS {
        let change = subscriber.receive(PATIENCE).unwrap().expect("every element is announced");
        match change.kind {
            NotificationKind::Deleted => assert!(gone.insert(change.key.to_vec()), "{:?} goes twice", change.key),
            NotificationKind::Updated => assert_eq!(change.key, b"new"),
        }
    }
    gone
}

fn measure(server: &Server, time: Duration) -> Vec<Duration> {
    let start = Instant::now();
    latencies(server.kv(), || start.elapsed() > time)
}

/// How long GETs of another table take, one after the other.
fn latencies(endpoint: &str, done: impl Fn() -> bool) -> Vec<Duration> {
    let mut client = Client::connect(endpoint).unwrap();
    let mut times = Vec::new();
    while !done() {
        let start = Instant::now();
        assert_eq!(client.get(b"other", b"key").unwrap(), b"value");
        times.push(start.elapsed());
    }
    times
}

/// Printed, not asserted: machines differ.
fn report(when: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 100];
    println!(
        "GET of another table {when}: p50 {:?}, p99 {:?}, max {:?}, {} requests",
        at(50),
        at(99),
        at(100),
        times.len()
    );
}
