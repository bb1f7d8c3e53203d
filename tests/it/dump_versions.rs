//! Dumps that are loaded again: a new table has the versions of the dump, a table that exists gives its own.

use std::thread;
use std::time::Duration;

use spindle::clients::rust::tables::{Client, Error, Mirror, MirrorEvent};
use spindle::clock::Ttl;
use spindle::feed::Cause;
use spindle::services::tables::wire::Reason;

use super::dump::{complaint, complaint_with, dump, elements, elements_of, load};
use super::harness::{FRONTENDS, Server, spindle, spindle_reads};

const PATIENCE: Duration = Duration::from_secs(30);
/// A version that no server with a clock near ours has given.
const FAR_AHEAD: u64 = 1 << 58;
const ELEMENTS: u32 = 3_000;
const OK: &[u8] = b"\x01";

fn client_of(server: &Server) -> Client {
    Client::connect(server.kv()).unwrap()
}

/// Fills the table "t". Each third element has a deadline, and some have been changed several times.
fn fill(client: &mut Client) {
    client.create_table(b"t").unwrap();
    for number in 0..ELEMENTS {
        let ttl = (number % 3 == 0).then_some(Ttl::from_secs(80_000 + number));
        for change in 0..=number % 4 {
            client.update(b"t", &number.to_be_bytes(), &[change.to_be_bytes(); 3].concat(), ttl).unwrap();
        }
    }
}

#[test]
fn a_table_that_outlives_its_server_keeps_its_versions() {
    for frontend in FRONTENDS {
        let one = Server::start(&["--frontend", frontend]);
        let mut client = client_of(&one);
        fill(&mut client);
        let (bytes, expected) = (dump(&one, "t"), elements(&mut client, b"t"));
        one.stop();

        let other = Server::start(&["--frontend", frontend]);
        let mut client = client_of(&other);
        let key = &0_u32.to_be_bytes();
        client.create_table(b"t").unwrap();
        client.update(b"t", key, b"of this server", None).unwrap();
        let last = client.get_entry(b"t", key).unwrap().version;
        client.delete_table(b"t").unwrap();
        let said = String::from_utf8(load(&other, &[], &bytes).stdout).unwrap();
        assert_eq!(said, format!("{ELEMENTS} elements loaded into t with their versions, 0 had expired\n"));
        let found = elements(&mut client, b"t");
        assert!(expected.keys().eq(found.keys()));
        for (key, (value, version, remaining)) in &expected {
            let (copy, kept, left) = &found[key];
            assert_eq!((copy, kept), (value, version), "{}", key.escape_ascii());
            assert!(left.is_some() == remaining.is_some() && left <= remaining, "{remaining:?} became {left:?}");
        }

        let (_, version, _) = &expected[&key[..]];
        assert!(*version < last);
        let swapped = client.compare_and_swap(b"t", key, *version, b"mine", None).unwrap();
        assert!(swapped > last, "the key had the version {last}");
        client.update(b"t", b"own", b"v", None).unwrap();
        let refused = client.restore(b"t", b"late", b"v", *version, Ttl::NONE);
        assert_eq!(refused, Err(Error::Refused(Reason::OutOfRange)), "the table has a key of its own");
        other.stop();
    }
}

#[test]
fn a_table_that_exists_gives_new_versions() {
    let server = Server::start(&[]);
    let mut client = client_of(&server);
    fill(&mut client);
    let (bytes, before) = (dump(&server, "t"), elements(&mut client, b"t"));
    assert!(complaint_with(6, &load(&server, &[], &bytes)).contains("table exists"));
    let said = String::from_utf8(load(&server, &["--merge"], &bytes).stdout).unwrap();
    assert_eq!(said, format!("{ELEMENTS} elements loaded into t with new versions, 0 had expired\n"));
    for (key, (value, version, _)) in elements(&mut client, b"t") {
        let (old, old_version, _) = &before[&key];
        assert!(value == *old && version > *old_version, "{}", key.escape_ascii());
    }
    let json = load(&server, &["--merge", "--json"], &bytes).stdout;
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["versions"], "new");
    let said = String::from_utf8(load(&server, &["new", "--merge"], &bytes).stdout).unwrap();
    assert!(said.contains("loaded into new with their versions"), "{said}");
    server.stop();
}

/// A mirror takes the versions of a restored element as they are, and those of later changes after them.
#[test]
fn a_mirror_of_a_table_that_is_loaded_is_exact() {
    let flags = ["--feed", "tcp://127.0.0.1:*"];
    for frontend in FRONTENDS {
        let [one, other] = [(); 2].map(|()| Server::start(&[&flags[..], &["--frontend", frontend]].concat()));
        let mut client = client_of(&one);
        fill(&mut client);
        let bytes = dump(&one, "t");
        one.stop();
        let mut mirror = Mirror::connect(other.kv(), other.feed(), b"t").unwrap();
        assert!(load(&other, &[], &bytes).status.success());
        let mut client = client_of(&other);
        client.update(b"t", &0_u32.to_be_bytes(), b"later", None).unwrap();
        client.delete(b"t", &1_u32.to_be_bytes()).unwrap();
        let expected = elements(&mut client, b"t");
        let is_same = |mirror: &Mirror| {
            let rows = mirror.iter().map(|(key, element)| (key, element.value, element.version));
            let mut rows: Vec<_> = rows.collect();
            rows.sort_unstable();
            rows.into_iter().eq(expected.iter().map(|(key, (value, version, _))| (&**key, &**value, *version)))
        };
        let mut causes = Vec::new();
        while !mirror.is_exact() || !is_same(&mirror) {
            match mirror.next(PATIENCE).unwrap() {
                Some(MirrorEvent::Changed(change)) => causes.extend(change.cause),
                event => assert!(event.is_some(), "the changes come within {PATIENCE:?}"),
            }
        }
        let others = [Cause::Set, Cause::Delete];
        assert!(causes.iter().all(|cause| *cause == Cause::Restore || others.contains(cause)), "{causes:?}");
        other.stop();
    }
}

#[test]
fn what_is_restored_is_published_with_its_cause() {
    let server = Server::start(&["--feed", "tcp://127.0.0.1:*"]);
    let mut client = client_of(&server);
    client.create_table(b"t").unwrap();
    let mut mirror = Mirror::connect(server.kv(), server.feed(), b"t").unwrap();
    assert!(mirror.wait_exact(PATIENCE).unwrap());
    assert_eq!(client.restore(b"t", b"k", b"v", 7, Ttl::NONE), Ok(spindle::tables::Restored::AsItWas));
    assert_eq!(client.restore(b"t", b"k", b"w", 7, Ttl::NONE), Ok(spindle::tables::Restored::Not));
    loop {
        let event = mirror.next(PATIENCE).unwrap().expect("the change comes");
        if let MirrorEvent::Changed(change) = event {
            assert_eq!((change.version, change.cause), (7, Some(Cause::Restore)));
            assert_eq!(change.value.as_deref(), Some(&b"v"[..]));
            break;
        }
    }
    server.stop();
}

/// A server of few words on a thread of its own. It answers requests until the context ends.
fn played(answer: impl Fn(&[Vec<u8>]) -> Vec<Vec<u8>> + Send + 'static) -> (zmq::Context, String) {
    let context = zmq::Context::new();
    let socket = context.socket(zmq::ROUTER).unwrap();
    socket.set_linger(0).unwrap();
    socket.bind("tcp://127.0.0.1:*").unwrap();
    let endpoint = socket.get_last_endpoint().unwrap().unwrap();
    thread::spawn(move || {
        while let Ok(frames) = socket.recv_multipart(0) {
            let (id, body) = frames.split_first().unwrap();
            let reply: Vec<Vec<u8>> = [vec![id.clone()], answer(body)].concat();
            if socket.send_multipart(reply, 0).is_err() {
                break;
            }
        }
    });
    (context, endpoint)
}

/// The reply to a SCAN of a table with one element.
fn page_of(version: u64) -> Vec<Vec<u8>> {
    vec![OK.to_vec(), Vec::new(), b"k".to_vec(), b"v".to_vec(), version.to_be_bytes().to_vec(), vec![0xff; 8]]
}

#[test]
fn a_dump_of_a_server_whose_clock_is_far_ahead_is_refused_and_leaves_no_table() {
    let (mut context, endpoint) = played(|body| match body[0][..] {
        [14] => page_of(FAR_AHEAD),
        _ => vec![OK.to_vec()],
    });
    let bytes = spindle(&["dump", "t", "--connect", &endpoint]).stdout;
    context.destroy().unwrap();
    let server = Server::start(&[]);
    let said = complaint(&load(&server, &[], &bytes));
    for part in ["refuses the version", "another client writes to the table", "more than a day ahead"] {
        assert!(said.contains(part), "{said}");
    }
    assert!(said.contains("(0 elements were loaded before, and the table is deleted again)"), "{said}");
    let mut client = client_of(&server);
    assert_eq!(elements_of(&mut client, "t"), None);
    client.create_table(b"t").unwrap();
    assert!(load(&server, &["--merge"], &bytes).status.success(), "with a version of this server");
    server.stop();
}

#[test]
fn an_older_server_gives_new_versions() {
    let server = Server::start(&[]);
    let mut client = client_of(&server);
    fill(&mut client);
    let bytes = dump(&server, "t");
    server.stop();
    let (mut context, endpoint) = played(|body| match body[0][..] {
        [22] => vec![vec![0], b"UNKNOWN COMMAND".to_vec()],
        _ => vec![OK.to_vec()],
    });
    let loaded = spindle_reads(&["load-dump", "--connect", &endpoint], &bytes);
    let said = String::from_utf8_lossy(&loaded.stdout);
    assert_eq!(said, format!("{ELEMENTS} elements loaded into t with new versions, 0 had expired\n"));
    context.destroy().unwrap();
}
