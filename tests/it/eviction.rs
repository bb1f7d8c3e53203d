//! Tables that give way at the limit, over ZeroMQ and over Redis's protocol.

use std::collections::HashSet;
use std::time::Duration;

use spindle::clients::rust::tables::{Client, Error, Subscriber};
use spindle::services::tables::wire::{NotificationKind, Reason, TableOptions};

use crate::harness::{FRONTENDS, Server};
use crate::resp_client::{RespClient, command};

const PATIENCE: Duration = Duration::from_secs(30);
/// Keys and values that take more than the memory of the server.
const KEYS: u32 = 60_000;
const VALUE: [u8; 1_000] = [b'v'; 1_000];

fn start(frontend: &str, flags: &[&str]) -> Server {
    let fixed = ["--frontend", frontend, "--workers", "2", "--max-memory", "32M", "--resp", "127.0.0.1:0"];
    Server::start(&[&fixed[..], flags].concat())
}

fn evicted(server: &Server) -> u64 {
    server.stats()["memory"]["evicted_elements"].as_u64().unwrap()
}

/// Stores all keys, a hundred commands at once.
fn store_all(client: &mut RespClient, keys: std::ops::Range<u32>) -> Vec<String> {
    let keys: Vec<u32> = keys.collect();
    let mut refused = Vec::new();
    for keys in keys.chunks(100) {
        let sets = keys.iter().flat_map(|key| command(&[b"SET", key.to_string().as_bytes(), &VALUE]));
        client.send(&sets.collect::<Vec<_>>());
        let replies = keys.iter().map(|_| String::from_utf8(client.reply()).unwrap());
        refused.extend(replies.filter(|reply| reply != "+OK\r\n"));
    }
    refused
}

/// The setting, by CONFIG GET and by INFO.
fn policy(client: &mut RespClient) -> String {
    let said = client.say("CONFIG GET maxmemory-policy");
    let name = said.rsplit("\r\n").next().unwrap().to_owned();
    let info = client.say("INFO memory");
    assert!(info.contains(&format!("\r\nmaxmemory_policy:{name}")), "{info}");
    name
}

#[test]
fn at_the_limit_writes_succeed_and_each_eviction_is_an_event_and_a_deleted() {
    for frontend in FRONTENDS {
        let server = start(frontend, &["--evict", "lru"]);
        let mut client = RespClient::connect(server.resp());
        assert_eq!(client.say("SET 0 first"), "+OK");
        let mut events = RespClient::connect(server.resp());
        assert!(events.say("SUBSCRIBE __keyevent@0__:evicted").contains("subscribe"));
        let mut native = Subscriber::connect(server.publish(), &[b"0"]).unwrap();
        let mut tick = 0;
        while native.receive(Duration::from_millis(20)).unwrap().is_none() {
            tick += 1;
            assert_eq!(client.say(&format!("SET tick {tick}")), "+OK");
        }
        assert_eq!(store_all(&mut client, 0..KEYS), [""; 0]);
        let count = evicted(&server);
        assert!(count > u64::from(KEYS) / 3, "{count}");
        assert!(client.say("INFO stats").contains("\r\nevicted_keys:"));
        assert_eq!(client.say("FLUSHDB"), "+OK");
        let mut ended: HashSet<Vec<u8>> = HashSet::new();
        while ended.len() <= KEYS as usize {
            let change = native.receive(PATIENCE).unwrap().expect("all changes are sent");
            if change.kind == NotificationKind::Deleted {
                assert!(ended.insert(change.key.to_vec()), "each key ends once: it is evicted or flushed");
            }
        }
        for _ in 0..evicted(&server) {
            let event = String::from_utf8(events.reply()).unwrap();
            assert!(event.contains("__keyevent@0__:evicted"), "{event}");
        }
        assert_eq!(events.say("PING"), "*2\r\n$4\r\npong\r\n$0", "no other event");
        server.stop();
    }
}

#[test]
fn config_set_switches_the_eviction_of_tables_that_do_not_say() {
    let server = start("native", &[]);
    let (mut client, mut native) = (RespClient::connect(server.resp()), Client::connect(server.kv()).unwrap());
    native.create_table_with(b"kept", TableOptions::InMemory).unwrap();
    native.update(b"kept", b"k", &VALUE, None).unwrap();
    assert_eq!(policy(&mut client), "noeviction");
    let refused = store_all(&mut client, 0..KEYS);
    assert!(refused.iter().all(|reply| reply.starts_with("-OOM ")) && refused.len() > 1_000, "{}", refused.len());
    assert_eq!(evicted(&server), 0);
    for (value, known) in [("allkeys-lru", true), ("volatile-lru", false), ("allkeys-lfu", false)] {
        let reply = client.say(&format!("CONFIG SET maxmemory-policy {value}"));
        assert_eq!(reply == "+OK", known, "{reply}");
        assert!(known || reply.ends_with("must be one of the following: noeviction, allkeys-lru"), "{reply}");
    }
    assert_eq!(policy(&mut client), "allkeys-lru");
    assert_eq!(store_all(&mut client, KEYS..2 * KEYS), [""; 0]);
    assert!(evicted(&server) > 10_000);
    assert_eq!(native.get(b"kept", b"k").unwrap(), VALUE);
    // None of a request with a fault is set.
    assert!(client.say("CONFIG SET maxmemory-policy noeviction nonsense 1").starts_with("-ERR Unknown option"));
    assert_eq!(policy(&mut client), "allkeys-lru");
    assert_eq!(client.say("CONFIG SET MaxMemory-Policy NoEviction"), "+OK");
    assert!(!store_all(&mut client, 2 * KEYS..3 * KEYS).is_empty());
    server.stop();
}

#[test]
fn a_table_that_may_lose_elements_gives_way_to_others_that_may_not() {
    let server = start("queue", &[]);
    let mut native = Client::connect(server.kv()).unwrap();
    native.create_table_with(b"cache", TableOptions::MayEvict).unwrap();
    native.create_table(b"data").unwrap();
    let fill = |native: &mut Client, table: &[u8], keys: std::ops::Range<u32>| -> Result<(), Error> {
        keys.into_iter().try_for_each(|key| native.update(table, &key.to_be_bytes(), &VALUE, None))
    };
    fill(&mut native, b"cache", 0..40_000).unwrap();
    fill(&mut native, b"data", 0..20_000).unwrap();
    let tables = native.list_tables().unwrap();
    let count = |name: &[u8]| tables.iter().find(|table| *table.name == *name).unwrap().elements;
    assert_eq!(count(b"data"), 20_000);
    assert!(count(b"cache") < 12_000, "{}", count(b"cache"));
    let refused = fill(&mut native, b"data", 20_000..60_000).unwrap_err();
    assert!(matches!(refused, Error::Refused(Reason::OutOfMemory)), "{refused}");
    server.stop();
}
