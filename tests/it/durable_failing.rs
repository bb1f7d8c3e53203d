//! A disk that fails under durable tables: who is refused, what goes on, and what is there after the next start.
//!
//! Calls of the server fail by strace: its syncs, or its writes.

use std::path::Path;

use spindle::clients::rust::tables::{Client, Error};
use spindle::services::tables::wire::{Reason, TableOptions};

use crate::admin::{awaited, get};
use crate::crash::SMALL_SEGMENT;
use crate::harness::{FRONTENDS, Server, real_peer};
use crate::resp_client::RespClient;
use crate::resp_transactions::last_of;

/// Tables by their durability. Redis clients know them by these names too.
const ALWAYS: &[u8] = b"0";
const SOON: &[u8] = b"1";
const MEMORY: &[u8] = b"2";

/// More elements than are stored before the disk fails.
const STORED_MAX: usize = 1_000;

/// The refusals of RESP.
const UNAVAILABLE: &str = "-UNAVAILABLE the disk has failed: what the command did is perhaps lost";
const FAILED: &str = "-MISCONF the disk of the durable tables has failed: look at the server's log";

/// Commands that change a table with the element `known`.
const CHANGES: [&str; 10] = [
    "SET new value",
    "DEL known",
    "GETDEL known",
    "INCR count",
    "EXPIRE known 100",
    "APPEND known more",
    "MSET a 1 b 2",
    "MSETNX a 1 b 2",
    "RENAME known other",
    "FLUSHDB",
];

fn start(data: &Path, frontend: &str) -> Server {
    let flags = ["--durable-interval", "10ms", "--resp", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let data = ["--data", data.to_str().unwrap(), "--segment-size", SMALL_SEGMENT, "--frontend", frontend];
    Server::start(&[&data[..], &flags].concat())
}

fn refusal<T>(answer: Result<T, Error>) -> Option<Reason> {
    match answer {
        Ok(_) => None,
        Err(Error::Refused(reason)) => Some(reason),
        Err(error) => panic!("{error}"),
    }
}

/// What was stored before the disk failed.
#[derive(Clone, Copy)]
struct Stored {
    acknowledged: usize,
    /// The first write that failed was in the batch that failed. Otherwise that batch was the log's own, between two writes, and
    /// the write was refused.
    is_next_unknown: bool,
}

/// The clients of a server, of both protocols.
struct Clients {
    native: Client,
    resp: RespClient,
}

impl Clients {
    fn connect(server: &Server) -> Self {
        let native = Client::connect(server.kv()).unwrap();
        Self { native, resp: RespClient::connect(server.resp()) }
    }

    /// What a Redis client is answered on this table.
    fn say(&mut self, table: &[u8], line: &str) -> String {
        let select = format!("SELECT {}", String::from_utf8_lossy(table));
        last_of(&mut self.resp, &[select, line.to_owned()]).trim_end().to_owned()
    }

    /// The tables, and an element in each that is on disk.
    fn create(&mut self) {
        for (table, durability) in
            [(ALWAYS, TableOptions::Always), (SOON, TableOptions::Soon), (MEMORY, TableOptions::InMemory)]
        {
            self.native.create_table_with(table, durability).unwrap();
            self.native.update(table, b"known", b"value", None).unwrap();
        }
        assert_eq!(self.say(SOON, "WAITAOF 1 0 0"), "*2\r\n:1\r\n:0");
    }

    /// Stores elements one after the other until one fails.
    fn store_until_failed(&mut self, is_resp: bool) -> Stored {
        for acknowledged in 0..STORED_MAX {
            let key = acknowledged.to_string();
            let refused = if is_resp {
                match self.say(ALWAYS, &format!("SET {key} value")).as_str() {
                    "+OK" => None,
                    UNAVAILABLE => Some(Reason::Unavailable),
                    FAILED => Some(Reason::DiskFailed),
                    other => panic!("{other}"),
                }
            } else {
                refusal(self.native.update(ALWAYS, key.as_bytes(), b"value", None))
            };
            if let Some(reason) = refused {
                assert!(matches!(reason, Reason::Unavailable | Reason::DiskFailed), "{reason:?}");
                return Stored { acknowledged, is_next_unknown: reason == Reason::Unavailable };
            }
        }
        panic!("{STORED_MAX} writes, and none failed");
    }

    /// Nothing durable changes any more, and nothing is shown that is not on disk.
    fn check_failed(&mut self, stored: Stored) {
        let Stored { acknowledged, is_next_unknown } = stored;
        let next = acknowledged.to_string();
        for table in [ALWAYS, SOON] {
            let Self { native, .. } = self;
            assert_eq!(native.get(table, b"known").unwrap(), b"value");
            assert_eq!(refusal(native.update(table, b"new", b"value", None)), Some(Reason::DiskFailed));
            assert_eq!(refusal(native.delete(table, b"known")), Some(Reason::DiskFailed));
            assert_eq!(refusal(native.increment(table, b"count", 1, None)), Some(Reason::DiskFailed));
            assert_eq!(refusal(native.compare_and_swap(table, b"new", 0, b"value", None)), Some(Reason::DiskFailed));
            assert_eq!(refusal(native.delete_table(table)), Some(Reason::DiskFailed));
            assert_eq!(refusal(native.delete_many(table, &[b"none", b"known"])), Some(Reason::DiskFailed));
            assert_eq!(refusal(native.update_many(table, None, &[[b"a", b"1"]])), Some(Reason::DiskFailed));
            assert_eq!(self.say(table, "GET known"), "$5\r\nvalue");
            assert_eq!(refusal(self.native.get(table, b"never")), Some(Reason::KeyNotFound));
            assert_eq!(self.say(table, "GET never"), "$-1");
            assert_eq!(self.say(table, "EXISTS never known"), ":1");
            let transaction = ["MULTI", "SET new value", "INCR count", "EXEC"].map(str::to_owned);
            let aborted = last_of(&mut self.resp, &transaction);
            assert!(aborted.starts_with("-EXECABORT") && aborted.trim_end().ends_with(&FAILED[1..]), "{aborted}");
            for line in CHANGES {
                assert_eq!(self.say(table, line), FAILED, "{line}");
            }
        }
        let (native, resp) =
            if is_next_unknown { (Reason::Unavailable, UNAVAILABLE) } else { (Reason::KeyNotFound, "$-1") };
        assert_eq!(refusal(self.native.get(ALWAYS, next.as_bytes())), Some(native));
        assert_eq!(self.say(ALWAYS, &format!("GET {next}")), resp);
        for number in 0..acknowledged {
            // The publisher may learn late that they are on disk.
            let found = awaited("the element", || match self.native.get(ALWAYS, number.to_string().as_bytes()) {
                Err(Error::Refused(Reason::Unavailable)) => None,
                found => Some(found.unwrap()),
            });
            assert_eq!(found, b"value", "{number}");
        }
        let created = self.native.create_table_with(b"another", TableOptions::Always);
        assert_eq!(refusal(created), Some(Reason::DiskFailed));
    }

    /// Tables in memory do all that they did.
    fn check_memory(&mut self) {
        let Self { native, .. } = self;
        native.update(MEMORY, b"new", b"value", None).unwrap();
        assert_eq!(native.delete(MEMORY, b"new").unwrap(), b"value");
        native.create_table_with(b"more", TableOptions::InMemory).unwrap();
        assert_eq!(native.increment(b"more", b"count", 1, None).unwrap().0, 1);
        native.delete_table(b"more").unwrap();
        assert_eq!(self.say(MEMORY, "SET new value"), "+OK");
        assert_eq!(self.say(MEMORY, "GETDEL new"), "$5\r\nvalue");
        assert_eq!(self.say(MEMORY, "GET known"), "$5\r\nvalue");
    }
}

/// The next start has all that was acknowledged, and takes writes again.
fn check_restarted(data: &Path, frontend: &str, acknowledged: usize) {
    let server = start(data, frontend);
    let Clients { mut native, .. } = Clients::connect(&server);
    for number in 0..acknowledged {
        assert_eq!(native.get(ALWAYS, number.to_string().as_bytes()).unwrap(), b"value", "{number} with {frontend}");
    }
    for table in [ALWAYS, SOON] {
        assert_eq!(native.get(table, b"known").unwrap(), b"value");
        assert_eq!(refusal(native.get(table, b"new")), Some(Reason::KeyNotFound), "a refused write is not made");
        native.update(table, b"new", b"value", None).unwrap();
    }
    drop(native);
    server.stop();
}

/// `fault` strikes a server on which clients of this protocol write.
fn fail(strace: &Path, fault: &str, frontend: &str, is_resp: bool) {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), frontend);
    let mut clients = Clients::connect(&server);
    clients.create();
    assert_eq!(get(server.admin(), "/ready").0, 200);
    let failing = server.fail_calls(strace, fault, "8+", None);
    let stored = clients.store_until_failed(is_resp);
    assert!(stored.acknowledged > 0, "some are stored before");
    let why = awaited("the failure", || Some(get(server.admin(), "/ready")).filter(|(status, _)| *status == 503));
    assert!(why.1.contains("the disk of their log has failed"), "{}", why.1);
    clients.check_failed(stored);
    clients.check_memory();
    drop(failing);
    // A disk that comes back is of no use to the log that has ended.
    assert_eq!(clients.say(ALWAYS, "SET new value"), FAILED);
    drop(clients);
    server.stop();
    check_restarted(folder.path(), frontend, stored.acknowledged);
}

#[test]
fn a_disk_that_does_not_sync_ends_the_log_and_nothing_else() {
    let Some(strace) = real_peer("strace") else { return };
    for frontend in FRONTENDS {
        for is_resp in [false, true] {
            fail(&strace, "fdatasync:error=EIO", frontend, is_resp);
        }
    }
}

#[test]
fn a_disk_that_does_not_write_ends_the_log_and_nothing_else() {
    let Some(strace) = real_peer("strace") else { return };
    for (frontend, is_resp) in FRONTENDS.into_iter().zip([false, true]) {
        fail(&strace, "pwrite64:error=EIO", frontend, is_resp);
    }
}

/// New segments cannot be made for a while.
#[test]
fn a_while_without_space_refuses_what_is_stored_and_passes() {
    let Some(strace) = real_peer("strace") else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), "native");
    let mut clients = Clients::connect(&server);
    clients.create();
    let failing = server.fail_calls(&strace, "openat:error=ENOSPC", "1+", None);
    let mut acknowledged = 0_u64;
    let mut store = |clients: &mut Clients| {
        let refused = refusal(clients.native.update(ALWAYS, &acknowledged.to_be_bytes(), &[7; 1_000], None));
        acknowledged += u64::from(refused.is_none());
        refused
    };
    let refused = std::iter::repeat_with(|| store(&mut clients)).flatten().next();
    assert_eq!(refused, Some(Reason::OutOfDisk));
    clients.check_memory();
    drop(failing);
    while store(&mut clients).is_some() {}
    drop(server);
    let server = start(folder.path(), "native");
    let Clients { mut native, .. } = Clients::connect(&server);
    for number in 0..acknowledged {
        assert_eq!(native.get(ALWAYS, &number.to_be_bytes()).unwrap(), [7; 1_000]);
    }
    drop(native);
    server.stop();
}
