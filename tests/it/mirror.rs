//! A subscriber that only listens knows the tables. After a storm of every kind of change by many writers, its
//! notifications match the content, each change once, none missing, and for each key in a possible order.

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use spindle::clients::rust::tables::{Client, Error, Subscriber};
use spindle::clock::Ttl;
use spindle::services::tables::wire::{NotificationKind, Reason};

use super::harness::Server;
use super::seeded_rng::SeededRng;

const WRITERS: u64 = 6;
const OPERATIONS: usize = 3_000;
const KEYS: usize = 12;
/// The first is dropped and created again all the time, the others stay.
const TABLES: [&[u8]; 3] = [b"dropped", b"steady", b"stay"];
const DROPPED: &[u8] = TABLES[0];
const PATIENCE: Duration = Duration::from_secs(30);

/// A table and a key.
type Place = (Vec<u8>, Vec<u8>);
/// How often each place was updated.
type Updates = HashMap<Place, u64>;

#[test]
fn a_subscriber_that_only_listens_ends_equal_to_the_tables() {
    let server = Server::start(&["--workers", "4"]);
    let mut client = Client::connect(server.kv()).unwrap();
    for table in TABLES {
        client.create_table(table).unwrap();
    }
    let subscriber = listening(&server, &mut client);
    let ear = thread::spawn(move || listen_to_the_end(subscriber));
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let endpoint = server.kv().to_owned();
            thread::spawn(move || storm(&endpoint, writer))
        })
        .collect();
    let mut updates = Updates::new();
    for writer in writers {
        for (place, count) in writer.join().unwrap() {
            *updates.entry(place).or_default() += count;
        }
    }
    settle(&mut client);
    client.update(TABLES[1], b"end", b"", None).unwrap();
    let mirror = ear.join().unwrap();
    for (place, received) in &mirror {
        assert_eq!(received.updated, updates.get(place).copied().unwrap_or(0), "updates of {place:?}");
        let there = client.get(&place.0, &place.1).is_ok();
        assert_eq!(received.present, there, "{place:?}");
    }
    for place in updates.keys() {
        assert!(mirror.contains_key(place), "{place:?} was never announced");
    }
    server.stop();
}

/// A subscriber of all tables whose subscription has arrived.
fn listening(server: &Server, client: &mut Client) -> Subscriber {
    let mut subscriber = Subscriber::connect(server.publish(), &[b""]).unwrap();
    loop {
        client.update(TABLES[2], b"are you there", b"", None).unwrap();
        if subscriber.receive(Duration::from_millis(50)).unwrap().is_some() {
            break;
        }
    }
    client.update(TABLES[2], b"begin", b"", None).unwrap();
    loop {
        let received = subscriber.receive(PATIENCE).unwrap().expect("the beginning is announced");
        if received.key == b"begin" {
            return subscriber;
        }
    }
}

/// Knowledge about one place from listening.
#[derive(Default)]
struct Received {
    updated: u64,
    present: bool,
}

fn listen_to_the_end(mut subscriber: Subscriber) -> HashMap<Place, Received> {
    let mut mirror: HashMap<Place, Received> = HashMap::new();
    loop {
        let change = subscriber.receive(PATIENCE).unwrap().expect("the end is announced");
        if change.key == b"end" {
            return mirror;
        }
        let place = (change.table.to_vec(), change.key.to_vec());
        let received = mirror.entry(place.clone()).or_default();
        match change.kind {
            NotificationKind::Updated => {
                received.updated += 1;
                received.present = true;
            }
            NotificationKind::Deleted => {
                assert!(received.present, "{place:?} goes, and is not there");
                received.present = false;
            }
        }
    }
}

/// One writer's part. Returns how often it updated each place.
fn storm(endpoint: &str, writer: u64) -> Updates {
    let mut client = Client::connect(endpoint).unwrap();
    let mut rng = SeededRng(writer);
    let mut updates = Updates::new();
    for number in 0..OPERATIONS {
        if writer == 0 && number % 40 == 0 {
            client.delete_table(DROPPED).unwrap();
            client.create_table(DROPPED).unwrap();
        }
        for place in one_operation(&mut client, &mut rng) {
            *updates.entry(place).or_default() += 1;
        }
    }
    updates
}

/// The places that one operation has updated.
fn one_operation(client: &mut Client, rng: &mut SeededRng) -> Vec<Place> {
    let (table, key) = (rng.pick(&TABLES), vec![u8::try_from(rng.index(KEYS)).unwrap()]);
    let done = match rng.index(20) {
        0..=8 => client.update(table, &key, b"kept", None).map(|()| true),
        9..=11 => client.update(table, &key, b"short-lived", Some(Ttl::from_secs(1))).map(|()| true),
        12..=14 => client.delete(table, &key).map(|_| false),
        15 | 16 => swap(client, table, &key).map(|()| true),
        17 if rng.one_in(2) => client.touch(table, &key, Ttl::from_secs(1)).map(|()| false),
        17 => client.get_and_touch(table, &key, Ttl::from_secs(1)).map(|_| false),
        _ => return many(client, rng),
    };
    match done {
        Ok(true) => vec![(table.to_vec(), key)],
        Ok(false) => Vec::new(),
        Err(Error::Refused(reason)) => {
            let expected = match reason {
                Reason::KeyNotFound | Reason::VersionMismatch { .. } => true,
                _ => reason == Reason::TableNotFound && table == DROPPED,
            };
            assert!(expected, "{reason:?}");
            Vec::new()
        }
        Err(error) => panic!("{error}"),
    }
}

fn swap(client: &mut Client, table: &[u8], key: &[u8]) -> Result<(), Error> {
    let version = match client.get_entry(table, key) {
        Ok(entry) => entry.version,
        Err(Error::Refused(Reason::KeyNotFound)) => 0,
        Err(error) => return Err(error),
    };
    client.compare_and_swap(table, key, version, b"swapped", None).map(drop)
}

/// Pairs in a table that stays: if it were dropped halfway, the applied ones would be unknown.
fn many(client: &mut Client, rng: &mut SeededRng) -> Vec<Place> {
    let keys: Vec<[u8; 1]> = (0..5).map(|_| [u8::try_from(rng.index(KEYS)).unwrap()]).collect();
    let pairs: Vec<[&[u8]; 2]> = keys.iter().map(|key| [key.as_slice(), b"many"]).collect();
    client.update_many(TABLES[1], None, &pairs).unwrap();
    keys.iter().map(|key| (TABLES[1].to_vec(), key.to_vec())).collect()
}

/// Waits until no deadline is pending and no change waits.
fn settle(client: &mut Client) {
    loop {
        let stats: serde_json::Value = serde_json::from_str(&client.stats().unwrap()).unwrap();
        assert_eq!(stats["changes"]["lost_wakeups"], 0, "all that was waited for came by a wake-up");
        if stats["expiry"]["pending"] == 0 && stats["changes"]["waiting"] == 0 {
            return;
        }
        thread::yield_now();
    }
}
