//! Every command, its possible refusals, limits at their edge, and notifications, with our own client.
//!
//! `conformance.py` has the cases that need malformed frames.

use std::time::Duration;

use spindle::clients::rust::tables::{Client, Error, Subscriber};
use spindle::clock::Ttl;
use spindle::services::tables::wire::{NotificationKind, Reason, Reply, Request, TableName};

use crate::harness::Server;

/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(30);

fn connect(server: &Server) -> Client {
    let mut client = Client::connect(server.kv()).expect("the server is there");
    client.set_timeout(PATIENCE);
    client
}

fn refused<T>(reason: Reason) -> Result<T, Error> {
    Err(Error::Refused(reason))
}

const ABSENT: Reason = Reason::VersionMismatch { current: 0 };

#[test]
fn tables_are_made_listed_and_deleted_under_names_at_their_edges() {
    let server = Server::start(&[]);
    let mut client = connect(&server);
    client.ping().unwrap();
    assert_eq!(client.list_tables(), Ok(vec![]));
    assert_eq!(client.delete_table(b"t"), refused(Reason::TableNotFound));
    assert_eq!(client.create_table(b"t\0"), Ok(()));
    assert_eq!(client.create_table(b"t"), refused(Reason::TableExists));
    client.update(b"t", b"k", b"v", None).unwrap();
    let [line] = &client.list_tables().unwrap()[..] else {
        panic!("one table is there");
    };
    assert_eq!((&*line.name, line.elements), (&b"t\0"[..], 1));
    assert_eq!(client.delete_table(b"t"), Ok(()));
    assert_eq!(client.get(b"t", b"k"), refused(Reason::TableNotFound));
    let longest = [b'n'; 254];
    assert_eq!(client.create_table(&longest), Ok(()));
    for name in [&b""[..], b"\0", b"a\0b", &[b'n'; 255]] {
        assert_eq!(client.create_table(name), refused(Reason::BadTableName), "{name:?}");
    }
    server.stop();
}

#[test]
fn elements_are_written_read_and_deleted_at_their_edges() {
    let server = Server::start(&[]);
    let mut client = connect(&server);
    client.create_table(b"t").unwrap();
    for key in [&b""[..], b"k", &[0xff; 64]] {
        for value in [&b""[..], b"v", &[0; 1024]] {
            assert_eq!(client.update(b"t", key, value, None), Ok(()));
            assert_eq!(client.get(b"t", key).as_deref(), Ok(value));
        }
        assert_eq!(client.delete(b"t", key), Ok(vec![0; 1024]));
        assert_eq!(client.delete(b"t", key), refused(Reason::KeyNotFound));
        assert_eq!(client.get(b"t", key), refused(Reason::KeyNotFound));
        assert_eq!(client.get_entry(b"t", key), refused(Reason::KeyNotFound));
        assert_eq!(client.touch(b"t", key, Ttl::from_secs(1)), refused(Reason::KeyNotFound));
        assert_eq!(client.compare_and_delete(b"t", key, 1), refused(ABSENT));
    }
    let (long_key, long_value) = ([0; 65], [0; 1025]);
    assert_eq!(client.get(b"t", &long_key), refused(Reason::KeyTooLong));
    assert_eq!(client.update(b"t", &long_key, &long_value, None), refused(Reason::KeyTooLong));
    assert_eq!(client.update(b"t", b"k", &long_value, None), refused(Reason::ValueTooLong));
    assert_eq!(client.update(b"no", b"k", b"v", None), refused(Reason::TableNotFound));
    server.stop();
}

#[test]
fn a_swap_needs_the_version_that_is_there() {
    let server = Server::start(&[]);
    let mut client = connect(&server);
    client.create_table(b"t").unwrap();
    assert_eq!(client.compare_and_swap(b"t", b"k", 7, b"v", None), refused(ABSENT));
    let first = client.compare_and_swap(b"t", b"k", 0, b"1", None).unwrap();
    let mismatch = |current| refused(Reason::VersionMismatch { current });
    assert_eq!(client.compare_and_swap(b"t", b"k", 0, b"no", None), mismatch(first));
    let second = client.compare_and_swap(b"t", b"k", first, b"2", Some(Ttl::from_secs(60))).unwrap();
    assert!(second > first);
    assert_eq!(client.compare_and_delete(b"t", b"k", first), mismatch(second).map(|_: u64| vec![]));
    let entry = client.get_entry(b"t", b"k").unwrap();
    assert_eq!((entry.value.as_slice(), entry.version), (&b"2"[..], second));
    // Deadlines are rounded up to a millisecond.
    assert!(entry.remaining_millis.is_some_and(|left| left <= 60_000));
    client.touch(b"t", b"k", Ttl::NONE).unwrap();
    let touched = client.get_entry(b"t", b"k").unwrap();
    assert_eq!((touched.value.as_slice(), touched.remaining_millis), (&b"2"[..], None));
    assert!(touched.version > second, "a touch is a change");
    assert_eq!(client.compare_and_delete(b"t", b"k", second), mismatch(touched.version).map(|_: u64| vec![]));
    assert_eq!(client.compare_and_delete(b"t", b"k", touched.version), Ok(b"2".to_vec()));
    server.stop();
}

#[test]
fn many_are_read_and_written_at_once() {
    let server = Server::start(&[]);
    let mut client = connect(&server);
    client.create_table(b"t").unwrap();
    let keys: Vec<Vec<u8>> = (0..1025_u32).map(|key| key.to_be_bytes().to_vec()).collect();
    let pairs: Vec<[&[u8]; 2]> = keys.iter().map(|key| [&key[..], &key[..]]).collect();
    let names: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    assert_eq!(client.update_many(b"t", None, &pairs), refused(Reason::BadRequest));
    assert_eq!(client.update_many(b"t", None, &[]), refused(Reason::BadRequest));
    assert_eq!(client.update_many(b"t", Some(Ttl::from_secs(60)), &pairs[..1024]), Ok(()));
    assert_eq!(client.get_many(b"t", &names), refused(Reason::BadRequest));
    let found = client.get_many(b"t", &names[1..]).unwrap();
    assert_eq!(found.len(), 1024);
    for (value, key) in found.iter().zip(&keys[1..]) {
        let expected = (*key != keys[1024]).then_some(key);
        assert_eq!(value.as_ref(), expected);
    }
    let refused_pair = [[&b"new"[..], b"v"], [&[0; 65], b"v"]];
    assert_eq!(client.update_many(b"t", None, &refused_pair), refused(Reason::KeyTooLong));
    assert_eq!(client.get(b"t", b"new"), refused(Reason::KeyNotFound));
    server.stop();
}

#[test]
fn limits_of_the_flags_are_held() {
    let server = Server::start(&["--max-tables", "1", "--max-value", "10", "--max-memory", "1048576"]);
    let mut client = connect(&server);
    client.create_table(b"t").unwrap();
    assert_eq!(client.create_table(b"u"), refused(Reason::TooManyTables));
    assert_eq!(client.update(b"t", b"k", &[0; 10], None), Ok(()));
    assert_eq!(client.update(b"t", b"k", &[0; 11], None), refused(Reason::ValueTooLong));
    let full = (0..100_000_u32).find_map(|key| client.update(b"t", &key.to_be_bytes(), b"v", None).err());
    assert_eq!(full, Some(Error::Refused(Reason::OutOfMemory)));
    assert_eq!(client.get(b"t", b"k"), Ok(vec![0; 10]));
    server.stop();
}

#[test]
fn a_pipeline_is_answered_in_order() {
    let server = Server::start(&["--workers", "4"]);
    let mut client = connect(&server);
    client.create_table(b"t").unwrap();
    let table = TableName::spelt(b"t");
    let key = b"k";
    for number in 0..5_000_u32 {
        let value = &number.to_be_bytes();
        let update = Request::Update { table, key, value, ttl: None };
        client.send(&update).unwrap();
        client.send(&Request::Get { table, key }).unwrap();
    }
    for number in 0..5_000_u32 {
        assert_eq!(client.receive(), Ok(Reply::Done));
        assert_eq!(client.receive(), Ok(Reply::Value(&number.to_be_bytes())));
    }
    server.stop();
}

#[test]
fn changes_are_published_in_order_and_expiries_on_time() {
    let server = Server::start(&[]);
    let mut client = connect(&server);
    let mut subscriber = Subscriber::connect(server.publish(), &[b"t"]).unwrap();
    client.create_table(b"t").unwrap();
    // Changes are not announced to it until the subscription has arrived.
    client.update(b"t", b"probe", b"", None).unwrap();
    while subscriber.receive(Duration::from_millis(20)).unwrap().is_none() {
        client.update(b"t", b"probe", b"", None).unwrap();
    }
    client.update(b"t", b"k", b"v", Some(Ttl::from_secs(1))).unwrap();
    client.delete(b"t", b"probe").unwrap();
    let mut received = Vec::new();
    while received.len() < 3 {
        let change = subscriber.receive(PATIENCE).unwrap().expect("changes come");
        assert_eq!(change.table, b"t");
        if change.key == b"k" || change.kind == NotificationKind::Deleted {
            received.push((change.kind, change.key.to_vec()));
        }
    }
    let (updated, deleted) = (NotificationKind::Updated, NotificationKind::Deleted);
    let expected = [(updated, b"k".to_vec()), (deleted, b"probe".to_vec()), (deleted, b"k".to_vec())];
    assert_eq!(received, expected);
    assert_eq!(client.get(b"t", b"k"), refused(Reason::KeyNotFound));
    server.stop();
}

#[test]
fn the_server_describes_itself() {
    let server = Server::start(&[]);
    let report = connect(&server).stats().unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert!(report.as_object().is_some_and(|report| !report.is_empty()), "{report}");
    server.stop();
}
