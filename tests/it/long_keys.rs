//! Keys of up to `--max-key` bytes over sockets: commands, scans, the feed, mirrors, dumps, and the lock-step dialect.

use std::collections::BTreeMap;
use std::time::Duration;

use spindle::clients::rust::tables::{Client, Error, Mirror};
use spindle::services::tables::wire::{Reason, ScanFields, ScanRows};

use super::harness::{Server, run_python, spindle, spindle_reads};

const PATIENCE: Duration = Duration::from_secs(30);
const LENGTHS: [usize; 9] = [0, 1, 64, 65, 126, 127, 128, 255, 4_096];
const FLAGS: [&str; 4] = ["--max-key", "4096", "--feed", "tcp://127.0.0.1:*"];

fn key(length: usize) -> Vec<u8> {
    vec![b'k'; length]
}

/// A server whose table "t" has a key of each length, each with its length as the value.
fn with_keys(flags: &[&str]) -> (Server, Client) {
    let server = Server::start(&[&FLAGS, flags].concat());
    let mut client = Client::connect(server.kv()).unwrap();
    client.create_table(b"t").unwrap();
    for length in LENGTHS {
        client.update(b"t", &key(length), length.to_string().as_bytes(), None).unwrap();
    }
    (server, client)
}

fn elements(client: &mut Client) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let (mut elements, mut cursor) = (BTreeMap::new(), Vec::new());
    loop {
        let page = client.scan(b"t", &cursor, 2, ScanFields::Value, b"").unwrap();
        let ScanRows::Value(rows) = &page.rows else { panic!("{:?}", page.rows) };
        elements.extend(rows.iter().map(|[key, value]| (key.to_vec(), value.to_vec())));
        cursor = page.next;
        if cursor.is_empty() {
            return elements;
        }
    }
}

fn copy_of(mirror: &Mirror) -> BTreeMap<Vec<u8>, Vec<u8>> {
    mirror.iter().map(|(key, element)| (key.to_vec(), element.value.to_vec())).collect()
}

#[test]
fn a_server_takes_keys_up_to_its_limit_with_either_frontend() {
    for frontend in ["queue", "native"] {
        let (server, mut client) = with_keys(&["--frontend", frontend]);
        for length in LENGTHS {
            assert_eq!(client.get(b"t", &key(length)).unwrap(), length.to_string().as_bytes());
        }
        let too_long = client.update(b"t", &key(4_097), b"", None);
        assert!(matches!(too_long, Err(Error::Refused(Reason::KeyTooLong))), "{too_long:?}");
        let expected = LENGTHS.map(|length| (key(length), length.to_string().into_bytes()));
        assert_eq!(elements(&mut client), expected.into());
        let page = client.scan(b"t", b"", 10_000, ScanFields::Key, &key(128)).unwrap();
        assert_eq!(page.rows.len(), 3, "prefixes may be long");
        server.stop();
    }
    let server = Server::start(&[]);
    let mut client = Client::connect(server.kv()).unwrap();
    client.create_table(b"t").unwrap();
    client.update(b"t", &key(64), b"", None).unwrap();
    let too_long = client.update(b"t", &key(65), b"", None);
    assert!(matches!(too_long, Err(Error::Refused(Reason::KeyTooLong))), "{too_long:?}");
    server.stop();
}

#[test]
fn a_mirror_and_a_dump_have_long_keys() {
    let (server, mut client) = with_keys(&[]);
    let mut mirror = Mirror::connect(server.kv(), server.feed(), b"t").unwrap();
    assert!(mirror.wait_exact(PATIENCE).unwrap());
    client.delete(b"t", &key(255)).unwrap();
    client.update(b"t", &key(300), b"300", None).unwrap();
    let expected = elements(&mut client);
    while !mirror.is_exact() || copy_of(&mirror) != expected {
        let event = mirror.next(PATIENCE).unwrap();
        assert!(event.is_some(), "the changes come within {PATIENCE:?}");
    }

    let dump = spindle(&["dump", "t", "--connect", server.kv()]);
    assert!(dump.status.success());
    let other = Server::start(&["--max-key", "4096"]);
    let loaded = spindle_reads(&["load-dump", "--connect", other.kv()], &dump.stdout);
    assert!(loaded.status.success(), "{}", String::from_utf8_lossy(&loaded.stderr));
    assert_eq!(elements(&mut Client::connect(other.kv()).unwrap()), expected);
    let small = Server::start(&[]);
    let refused = spindle_reads(&["load-dump", "--connect", small.kv()], &dump.stdout);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("key too long") && said.contains("--max-key"), "{said}");
    [server, other, small].into_iter().for_each(Server::stop);
}

#[test]
fn pyzmq_sees_long_keys_in_every_command() {
    let server = Server::start(&["--max-key", "4096"]);
    run_python("conformance.py", &["max_key", server.kv()]);
    server.stop();
}
