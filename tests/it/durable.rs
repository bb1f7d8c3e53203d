//! Durable tables: what a server that was killed, stopped or whose disk was full shows when it starts again.
//!
//! `SPINDLE_CRASH_ROUNDS` sets the number of rounds of kills.

/// Disks that are full, more than the memory limit, and a folder with tasks.
mod limits;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use spindle::clients::rust::tables::{Client, Error, FetchedEntry, Mirror};
use spindle::clock::Ttl;
use spindle::feed::FeedPosition;
use spindle::services::tables::wire::{Reason, TableOptions};
use spindle::tables::Durability;

use crate::crash::{CLIENTS, SMALL_SEGMENT, kill_under_load, rounds};
use crate::harness::{FRONTENDS, Server, spindle};
use crate::seeded_rng::SeededRng;

const TABLE: &[u8] = b"soon";
const OTHER: &[u8] = b"other";
const MEMORY: &[u8] = b"memory";
const PATIENCE: Duration = Duration::from_secs(60);
const GLANCE: Duration = Duration::from_millis(20);
/// Longer than any test.
fn long() -> Ttl {
    Ttl::from_millis(100_000_000).unwrap()
}

fn start(data: &Path, flags: &[&str]) -> Server {
    let data = ["--data", data.to_str().unwrap(), "--segment-size", SMALL_SEGMENT];
    Server::start(&[&data[..], flags].concat())
}

fn client(server: &Server) -> Client {
    Client::connect(server.kv()).unwrap()
}

/// A client of a server that may be gone.
fn client_of(endpoint: &str) -> Result<Client, Error> {
    Client::connect_within(endpoint, Duration::from_secs(5))
}

/// Waits until what was written by now is on disk.
pub(crate) fn settle(server: &Server) {
    let epochs = || server.stats()["durable"]["epochs"].as_u64().unwrap();
    let before = epochs();
    while epochs() < before + 2 {}
}

// --------------------------------------------------------------------------------------------------------------- kills

/// A change of a key. Times are ticks of one counter of all clients.
#[derive(Clone, Copy, Debug)]
struct Write {
    /// `None`: a deletion.
    value: Option<u64>,
    begun: u64,
    /// `None`: the server was killed before its answer.
    answered: Option<u64>,
}

/// The writes of each key of a table, which one client makes, in their order.
type Written = BTreeMap<(&'static [u8], Vec<u8>), Vec<Write>>;

/// One client's load, until its server is gone.
fn write(endpoint: &str, number: usize, mut rng: SeededRng, clock: &AtomicU64, written: &Mutex<Written>) {
    let Ok(mut client) = client_of(endpoint) else { return };
    loop {
        let table = if rng.one_in(3) { OTHER } else { TABLE };
        let key = format!("key {number} {}", rng.below(40)).into_bytes();
        let begun = clock.fetch_add(1, Ordering::SeqCst);
        let value = (!rng.one_in(5)).then_some(begun);
        let filler = rng.index(600);
        let answer = match value {
            Some(value) => client.update(table, &key, format!("{value} {:filler$}", "").as_bytes(), None),
            None => client.delete(table, &key).map(drop).or_else(|error| match error {
                Error::Refused(Reason::KeyNotFound) => Ok(()),
                error => Err(error),
            }),
        };
        let answered = answer.is_ok().then(|| clock.fetch_add(1, Ordering::SeqCst));
        written.lock().unwrap().entry((table, key)).or_default().push(Write { value, begun, answered });
        if answered.is_none() {
            return;
        }
    }
}

/// What a client reads: the time of the write.
fn value_of(client: &mut Client, table: &[u8], key: &[u8]) -> Option<u64> {
    match client.get(table, key) {
        Ok(value) => {
            let text = String::from_utf8(value).unwrap();
            Some(text.split(' ').next().unwrap().parse().unwrap())
        }
        Err(Error::Refused(Reason::KeyNotFound)) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Checks that the tables are in a state that clients could have seen at one moment: each write is there that was answered
/// before the newest one that is there began. Tables that are `always` on disk have all that was answered.
fn check_one_moment(client: &mut Client, written: &mut Written, is_always: bool, round: usize) {
    let mut found = Vec::new();
    for ((table, key), writes) in &*written {
        let value = value_of(client, table, key);
        // Before its first write a key is absent.
        let place = writes.iter().rposition(|write| write.value == value);
        assert!(place.is_some() || value.is_none(), "round {round}: {key:?} has {value:?}, which nobody wrote");
        found.push(place);
    }
    let newest = written.values().zip(&found).filter_map(|(writes, place)| place.map(|place| writes[place]));
    let newest = newest.filter(|write| write.value.is_some()).map(|write| write.begun).max().unwrap_or(0);
    let moment = if is_always { u64::MAX } else { newest };
    for (((_, key), writes), place) in written.iter().zip(&found) {
        let needed = writes.iter().rposition(|write| write.answered.is_some_and(|answered| answered < moment));
        // Deletions look alike, so a later one may be what is found.
        assert!(*place >= needed, "round {round}: {key:?} has write {place:?} of {writes:?}, and needs {needed:?}");
    }
    for (writes, place) in written.values_mut().zip(found) {
        *writes = place.map(|place| Write { begun: 0, answered: Some(0), ..writes[place] }).into_iter().collect();
    }
}

/// Waits until a mirror is exact at the end of the feed, and checks that the mirror has the written elements.
fn check_mirror(mirror: &mut Mirror, client: &mut Client, written: &Written) {
    while mirror.at() != Some(client.feed_state(TABLE).unwrap().next) || !mirror.is_exact() {
        mirror.next(GLANCE).unwrap();
    }
    let mut count = 0;
    for (_, key) in written.keys().filter(|(table, _)| *table == TABLE) {
        let value = client.get(TABLE, key).ok();
        assert_eq!(mirror.get(key).map(|element| element.value), value.as_deref(), "{key:?}");
        count += u64::from(value.is_some());
    }
    assert_eq!(mirror.len(), count, "the mirror has nothing else");
}

/// A server with endpoints that outlast it.
fn serve(folder: &Path, flags: &[&str]) -> Server {
    let socket = |name: &str| format!("ipc://{}", folder.join(name).display());
    let (kv, feed, data) = (socket("kv"), socket("feed"), folder.join("data"));
    let data = ["--data", data.to_str().unwrap(), "--segment-size", SMALL_SEGMENT];
    Server::start_exactly(&[&data[..], &["--kv", &kv, "--publish", "off", "--feed", &feed], flags].concat())
}

fn kill_rounds(frontend: &str, durability: TableOptions) {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = SeededRng(11);
    let flags = ["--frontend", frontend, "--durable-interval", "20ms", "--workers", "2"];
    let (clock, written, mirror) = (AtomicU64::new(1), Mutex::new(Written::new()), Mutex::new(None));
    for round in 0..rounds() {
        let server = serve(folder.path(), &flags);
        let mut client = client(&server);
        for table in [TABLE, OTHER] {
            match client.create_table_with(table, durability) {
                Ok(()) => assert!(written.lock().unwrap().is_empty() || round == 1, "round {round}: a table is lost"),
                Err(error) => assert!(matches!(error, Error::Refused(Reason::TableExists)), "{error}"),
            }
        }
        client.create_table_with(MEMORY, TableOptions::InMemory).unwrap();
        let mut known = written.lock().unwrap();
        check_one_moment(&mut client, &mut known, durability == TableOptions::Always, round);
        let connect = || Mirror::connect(server.kv(), server.feed(), TABLE).unwrap();
        check_mirror(mirror.lock().unwrap().get_or_insert_with(connect), &mut client, &known);
        drop(known);
        let (endpoint, is_gone) = (server.kv().to_owned(), AtomicBool::new(false));
        kill_under_load(server, &mut rng, |number, rng| {
            if number == 0 {
                let mut mirror = mirror.lock().unwrap();
                // Relaxed: what the mirror has is compared when all threads are joined.
                while !is_gone.load(Ordering::Relaxed) {
                    mirror.as_mut().expect("it is connected").next(GLANCE).unwrap();
                }
                return;
            }
            write(&endpoint, number, rng, &clock, &written);
            is_gone.store(true, Ordering::Relaxed);
        });
    }
    let (written, changes) = (written.into_inner().unwrap(), clock.into_inner() / 2);
    println!("{} rounds with {frontend}, {durability:?}: {changes} changes", rounds());
    assert!(written.len() > CLIENTS, "the clients wrote");
}

#[test]
fn a_killed_server_comes_back_with_a_state_of_one_moment_and_its_mirror() {
    FRONTENDS.into_iter().for_each(|frontend| kill_rounds(frontend, TableOptions::Soon));
}

#[test]
fn a_killed_server_comes_back_with_all_that_it_has_answered_and_its_mirror() {
    FRONTENDS.into_iter().for_each(|frontend| kill_rounds(frontend, TableOptions::Always));
}

// ----------------------------------------------------------------------------------------------------------- clean ends

fn element(client: &mut Client, key: &[u8]) -> FetchedEntry {
    client.get_entry(TABLE, key).unwrap()
}

#[test]
fn a_server_that_was_stopped_continues_with_all_elements_and_the_feed() {
    let folder = tempfile::tempdir().unwrap();
    let serve = || serve(folder.path(), &[]);
    let server = serve();
    let mut client = client(&server);
    client.create_table_with(TABLE, TableOptions::Soon).unwrap();
    client.create_table_with(MEMORY, TableOptions::InMemory).unwrap();
    for number in 0..500_u64 {
        client.update(TABLE, &number.to_be_bytes(), b"value", None).unwrap();
        client.update(MEMORY, &number.to_be_bytes(), b"value", None).unwrap();
    }
    client.touch(TABLE, &7_u64.to_be_bytes(), Ttl::from_millis(1_000_000).unwrap()).unwrap();
    client.delete(TABLE, &8_u64.to_be_bytes()).unwrap();
    let mut mirror = Mirror::connect(server.kv(), server.feed(), TABLE).unwrap();
    assert!(mirror.wait_exact(PATIENCE).unwrap());
    let (before, at) = (element(&mut client, &7_u64.to_be_bytes()), mirror.at().unwrap());
    let scans = mirror.metrics().scans;
    server.stop();

    let server = serve();
    let mut client = self::client(&server);
    assert!(matches!(client.get(MEMORY, b"key"), Err(Error::Refused(Reason::TableNotFound))));
    let after = element(&mut client, &7_u64.to_be_bytes());
    assert_eq!((after.value, after.version), (before.value, before.version));
    assert!(after.remaining_millis <= before.remaining_millis && after.remaining_millis.is_some(), "its time runs on");
    assert!(matches!(client.get(TABLE, &8_u64.to_be_bytes()), Err(Error::Refused(Reason::KeyNotFound))));
    let state = client.feed_state(TABLE).unwrap();
    assert_eq!(state.next, at);
    assert_eq!(state.oldest, at.sequence, "what came before is compacted");
    client.update(TABLE, b"new", b"value", None).unwrap();
    while mirror.at() != Some(FeedPosition { sequence: at.sequence + 1, ..at }) || !mirror.is_exact() {
        mirror.next(PATIENCE).unwrap();
    }
    assert_eq!((mirror.metrics().scans, mirror.len()), (scans, 500), "it has scanned no more");
    drop(server);

    // A killed server's feed is another one.
    let server = serve();
    let state = self::client(&server).feed_state(TABLE).unwrap();
    assert_ne!(state.next.epoch, at.epoch);
    assert!(mirror.wait_exact(PATIENCE).unwrap());
    while mirror.at().is_none_or(|now| now.epoch != state.next.epoch) || !mirror.is_exact() {
        mirror.next(PATIENCE).unwrap();
    }
    assert!(mirror.metrics().scans > scans);
    server.stop();
}

/// The table has another incarnation in the log than in the feed.
#[test]
fn a_table_that_became_durable_again_continues_in_the_feed() {
    let folder = tempfile::tempdir().unwrap();
    let socket = |name: &str| format!("ipc://{}", folder.path().join(name).display());
    let (kv, feed) = (socket("kv"), socket("feed"));
    let data = folder.path().join("data");
    let serve = || {
        let data = ["--data", data.to_str().unwrap(), "--segment-size", SMALL_SEGMENT];
        Server::start_exactly(&[&data[..], &["--kv", &kv, "--publish", "off", "--feed", &feed]].concat())
    };
    let mut server = serve();
    let mut client = client_of(&kv).unwrap();
    for table in [TABLE, OTHER] {
        client.create_table_with(table, TableOptions::Soon).unwrap();
    }
    for durability in [Durability::None, Durability::Soon] {
        client.alter_table(TABLE, durability).unwrap();
    }
    client.update(TABLE, b"first", b"value", None).unwrap();
    let mut mirrors = [TABLE, OTHER].map(|table| Mirror::connect(&kv, &feed, table).unwrap());
    assert!(mirrors.iter_mut().all(|mirror| mirror.wait_exact(PATIENCE).unwrap()));
    let before = mirrors.each_ref().map(|mirror| (mirror.at().unwrap(), mirror.metrics().scans));
    for start in 1..4 {
        server.stop();
        server = serve();
        let mut client = client_of(&kv).unwrap();
        for ((table, mirror), (at, scans)) in [TABLE, OTHER].into_iter().zip(&mut mirrors).zip(before) {
            let at = FeedPosition { sequence: at.sequence + start, ..at };
            client.update(table, b"key", b"value", None).unwrap();
            while mirror.at() != Some(at) || !mirror.is_exact() {
                mirror.next(PATIENCE).unwrap();
                assert_eq!(mirror.metrics().scans, scans, "start {start}: it has scanned no more");
            }
        }
    }
    server.stop();
}

/// A clean end that a later start had read was believed again after a kill.
#[test]
fn versions_that_were_lost_with_a_killed_server_never_come_again() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--durable-interval", "1h"];
    let server = start(folder.path(), &flags);
    client(&server).create_table_with(TABLE, TableOptions::Soon).unwrap();
    server.stop();
    let mut highest = 0;
    for _ in 0..3 {
        let server = start(folder.path(), &flags);
        let mut client = client(&server);
        for _ in 0..20 {
            client.update(TABLE, b"key", b"value", None).unwrap();
        }
        let version = client.get_entry(TABLE, b"key").unwrap().version;
        assert!(version > highest + 19, "{version} after {highest}");
        highest = version;
    }
}

#[test]
fn dropped_and_emptied_tables_stay_so_and_names_keep_their_spelling() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), &["--durability", "soon"]);
    let mut first = client(&server);
    for table in [&b"dropped"[..], b"again", b"Spelt\0"] {
        first.create_table(table).unwrap();
        first.update(table, b"key", b"old", None).unwrap();
    }
    first.delete_table(b"dropped").unwrap();
    first.delete_table(b"again").unwrap();
    first.create_table(b"again").unwrap();
    first.update(b"again", b"other", b"new", None).unwrap();
    settle(&server);
    drop(server);
    let server = start(folder.path(), &[]);
    let mut second = client(&server);
    assert_eq!(second.get(b"again", b"other").unwrap(), b"new");
    assert!(matches!(second.get(b"again", b"key"), Err(Error::Refused(Reason::KeyNotFound))));
    assert!(matches!(second.get(b"dropped", b"key"), Err(Error::Refused(Reason::TableNotFound))));
    assert_eq!(second.get(b"Spelt", b"key").unwrap(), b"old");
    let names: Vec<_> = second.list_tables().unwrap().into_iter().map(|table| table.name.into_vec()).collect();
    assert_eq!(names, [&b"Spelt\0"[..], b"again"]);
}

// ------------------------------------------------------------------------------------------------------ copies, damage

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs clients, has a backup made meanwhile, and kills the server. Returns when the backup was asked for.
fn back_up_under_load(server: Server, data: &Path, to: &Path, clock: &AtomicU64, written: &Mutex<Written>) -> u64 {
    let endpoint = server.kv().to_owned();
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let endpoint = &endpoint;
            scope.spawn(move || write(endpoint, number, SeededRng(number as u64), clock, written));
        }
        while written.lock().unwrap().len() < 20 * CLIENTS {}
        let asked = clock.fetch_add(1, Ordering::SeqCst);
        let done = spindle(&["backup", text(to), "--data", text(data)]);
        let said = String::from_utf8(done.stdout).unwrap();
        assert!(done.status.success() && said.contains(": tables as of "), "{said}");
        drop(server);
        asked
    })
}

#[test]
fn a_backup_under_load_holds_tables_of_one_moment_and_suffices_to_start() {
    let folder = tempfile::tempdir().unwrap();
    for flags in [&["--tasks", "tcp://127.0.0.1:*"][..], &[]] {
        let name = |what: &str| folder.path().join(format!("{what} {}", flags.len()));
        let (data, to, clock, written) = (name("data"), name("backup"), AtomicU64::new(1), Mutex::default());
        let server = start(&data, &[flags, &["--durable-interval", "1h"]].concat());
        for table in [TABLE, OTHER] {
            client(&server).create_table_with(table, TableOptions::Soon).unwrap();
        }
        client(&server).update(TABLE, b"with a deadline", b"value", Some(long())).unwrap();
        let asked = back_up_under_load(server, &data, &to, &clock, &written);
        let checked = spindle(&["check", text(&to)]);
        let said = String::from_utf8(checked.stdout).unwrap();
        assert!(checked.status.success() && said.contains("a backup that no server has opened yet"), "{said}");
        let server = start(&to, flags);
        let mut client = client(&server);
        let mut written = written.into_inner().unwrap();
        for ((table, key), writes) in &written {
            // Later writes may have come before the epoch was closed.
            let known = writes.iter().rposition(|write| write.answered.is_some_and(|answered| answered < asked));
            let value = value_of(&mut client, table, key);
            assert!(writes[known.unwrap_or(0)..].iter().any(|write| write.value == value) || known.is_none());
        }
        check_one_moment(&mut client, &mut written, false, 0);
        assert_eq!(client.get(TABLE, b"with a deadline").unwrap(), b"value");
        // The backup is an ordinary folder from here on.
        drop(server);
        let server = start(&to, flags);
        assert_eq!(self::client(&server).get(TABLE, b"with a deadline").unwrap(), b"value");
        server.stop();
    }
}

/// Changes each of these runs of bytes in the log, as a device does. At least one must be there.
fn rot(data: &Path, run: &[u8]) {
    let mut count = 0;
    for entry in std::fs::read_dir(data.join("tables")).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        let found: Vec<usize> =
            bytes.windows(run.len()).enumerate().filter_map(|(at, part)| (part == run).then_some(at)).collect();
        found.iter().for_each(|at| bytes[at + run.len() - 1] ^= 0x80);
        count += found.len();
        std::fs::write(&path, bytes).unwrap();
    }
    assert!(count > 0, "{} is not in the log", run.escape_ascii());
}

#[test]
fn a_rotten_element_is_named_and_no_older_state_takes_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), &[]);
    let mut first = client(&server);
    first.create_table_with(TABLE, TableOptions::Soon).unwrap();
    first.update(TABLE, b"rotten", b"the old value", None).unwrap();
    first.update(TABLE, b"good", b"the good value", Some(long())).unwrap();
    settle(&server);
    first.update(TABLE, b"rotten", b"the new value", None).unwrap();
    server.stop();
    rot(folder.path(), b"the new value");
    let checked = spindle(&["check", text(folder.path())]);
    let said = String::from_utf8(checked.stdout).unwrap();
    assert!(!checked.status.success() && said.contains("lost: the element rotten"), "{said}");
    let log = folder.path().join("log");
    let data = ["--data", text(folder.path()), "--segment-size", SMALL_SEGMENT];
    let server = Server::start_logging(&log, &[&data[..], &["--repair"]].concat());
    let mut second = client(&server);
    assert_eq!(second.get(TABLE, b"good").unwrap(), b"the good value");
    assert!(matches!(second.get(TABLE, b"rotten"), Err(Error::Refused(Reason::KeyNotFound))));
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(said.contains("the element rotten of the table soon is lost"), "{said}");
    server.stop();
    let server = start(folder.path(), &[]);
    assert!(matches!(client(&server).get(TABLE, b"rotten"), Err(Error::Refused(Reason::KeyNotFound))));
}
