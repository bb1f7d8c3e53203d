//! Tables that become durable while they live, and are in memory again, over ZeroMQ and over Redis's protocol.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use spindle::clients::rust::tables::{Client, Error};
use spindle::services::tables::wire::Reason;
use spindle::tables::Durability;

use crate::crash::SMALL_SEGMENT;
use crate::dump::{dump, load};
use crate::harness::{FRONTENDS, Server, real_peer, spindle};
use crate::resp_client::RespClient;
use crate::resp_difference::{link::Address, oracle};

const TABLE: &[u8] = b"t";
/// How long a sync may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Keys of a table that takes some portions.
const KEYS: u32 = 5_000;

fn start(data: &Path, frontend: &str, flags: &[&str]) -> Server {
    let fixed = ["--frontend", frontend, "--workers", "2", "--resp", "127.0.0.1:0", "--segment-size", SMALL_SEGMENT];
    Server::start(&[&fixed[..], &["--data", data.to_str().unwrap()], flags].concat())
}

fn client(server: &Server) -> Client {
    Client::connect(server.kv()).unwrap()
}

fn number(client: &mut Client) -> u64 {
    String::from_utf8(client.get(TABLE, b"number").unwrap()).unwrap().parse().unwrap()
}

/// Another client writes to the table, before it is altered, meanwhile and afterwards, until its server is killed.
fn alter_under_load(server: Server, said: Durability) -> u64 {
    let (is_over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let mut writer = client(&server);
        let (is_over, answered) = (&is_over, &answered);
        scope.spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                let Ok((sum, _)) = writer.increment(TABLE, b"number", 1, None) else { return };
                answered.store(sum.unsigned_abs(), Ordering::SeqCst);
            }
        });
        while answered.load(Ordering::SeqCst) < 10 {
            std::thread::yield_now();
        }
        let before = answered.load(Ordering::SeqCst);
        client(&server).alter_table(TABLE, said).unwrap();
        let behind = answered.load(Ordering::SeqCst);
        drop(server);
        is_over.store(true, Ordering::SeqCst);
        // What was answered before `always` was answered is on disk then, and at `soon` what was before the request.
        if said == Durability::Always { behind } else { before }
    })
}

#[test]
fn a_table_that_becomes_durable_is_there_from_the_answer_on() {
    for (frontend, said) in FRONTENDS.into_iter().flat_map(|f| [(f, Durability::Soon), (f, Durability::Always)]) {
        let folder = tempfile::tempdir().unwrap();
        let server = start(folder.path(), frontend, &[]);
        let mut first = client(&server);
        first.create_table(TABLE).unwrap();
        for key in 0..KEYS {
            first.update(TABLE, &key.to_be_bytes(), &[7; 1_000], None).unwrap();
        }
        let answered = alter_under_load(server, said);
        let server = start(folder.path(), frontend, &[]);
        let mut second = client(&server);
        for key in 0..KEYS {
            assert_eq!(second.get(TABLE, &key.to_be_bytes()).unwrap(), [7; 1_000], "{frontend} {said:?}");
        }
        assert!(number(&mut second) >= answered, "{frontend} {said:?}");
        second.alter_table(TABLE, Durability::None).unwrap();
        assert_eq!(second.list_tables().unwrap()[0].elements, u64::from(KEYS) + 1);
        // The record of that is in a batch before this one is answered.
        second.create_table(b"last").unwrap();
        second.alter_table(b"last", Durability::Always).unwrap();
        drop(server);
        let server = start(folder.path(), frontend, &[]);
        let gone = client(&server).get(TABLE, b"number");
        assert!(matches!(gone, Err(Error::Refused(Reason::TableNotFound))), "{frontend} {said:?}");
        server.stop();
    }
}

#[test]
fn the_command_line_creates_and_alters() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), "queue", &[]);
    let run = |words: &[&str]| {
        let output = spindle(&[words, &["--connect", server.kv()]].concat());
        (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    assert_eq!(run(&["create-table", "birds", "--durability", "soon"]), (true, "OK\n".to_owned()));
    assert_eq!(run(&["alter-table", "birds", "--durability", "always"]), (true, "OK\n".to_owned()));
    let (done, words) = run(&["alter-table", "fish", "--durability", "always"]);
    assert!(!done && words.contains("table not found"), "{words}");
    let (done, words) = run(&["alter-table", "birds", "--durability", "sometimes"]);
    assert!(!done && words.contains("it must be none, soon or always"), "{words}");
    server.stop();
}

#[test]
fn a_dump_keeps_what_is_on_disk_of_its_table() {
    let [one, two] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [from, to] = [(&one, &[][..]), (&two, &["--durability", "soon"][..])]
        .map(|(folder, flags)| start(folder.path(), "queue", flags));
    let mut there = client(&from);
    for (name, durability) in Durability::ALL.into_iter().enumerate().map(|(at, kept)| (format!("t{at}\0"), kept)) {
        there.create_table_with(name.as_bytes(), durability.into()).unwrap();
        there.update(name.as_bytes(), b"k", b"v", None).unwrap();
    }
    for name in ["t0", "t1", "t2"] {
        let bytes = dump(&from, name);
        assert!(load(&to, &[], &bytes).status.success());
        // A reader of before takes the name, and not what follows it.
        assert_eq!(&bytes[15..23], [&[0, 0, 0, 5, 3][..], name.as_bytes(), b"\0"].concat(), "{name}");
    }
    assert!(load(&to, &["other", "--durability", "soon"], &dump(&from, "t2")).status.success());
    let shown = |server: &Server, flag: &[&str]| {
        let output = spindle(&[&["tables", "--connect", server.kv()], flag].concat());
        String::from_utf8(output.stdout).unwrap()
    };
    let expected = "1 element   none    t0\n1 element   soon    t1\n1 element   always  t2\n";
    assert_eq!(shown(&from, &[]), expected);
    assert_eq!(shown(&to, &[]), format!("1 element   soon    other\n{expected}"));
    assert!(shown(&to, &["--json"]).contains("\"durability\":\"always\""));
    from.stop();
    drop(to);
    let to = start(two.path(), "queue", &[]);
    assert!(shown(&to, &[]).ends_with("1 element   always  t2\n"));
    to.stop();
}

fn setting(client: &mut RespClient, name: &str) -> String {
    client.say(&format!("CONFIG GET {name}")).rsplit("\r\n").next().unwrap().to_owned()
}

#[test]
fn config_set_appendonly_has_the_databases_on_disk() {
    for frontend in FRONTENDS {
        let folder = tempfile::tempdir().unwrap();
        let server = start(folder.path(), frontend, &[]);
        let mut resp = RespClient::connect(server.resp());
        assert_eq!([setting(&mut resp, "appendonly"), setting(&mut resp, "appendfsync")], ["no", "everysec"]);
        assert_eq!(resp.say("SET there before"), "+OK");
        for (wrong, words) in [("appendonly maybe", "'yes' or 'no'"), ("appendfsync yes", "everysec, always, no")] {
            let reply = resp.say(&format!("CONFIG SET {wrong}"));
            assert!(reply.starts_with("-ERR CONFIG SET failed") && reply.ends_with(words), "{reply}");
        }
        assert_eq!(resp.say("CONFIG SET appendfsync always appendonly yes"), "+OK");
        assert!(resp.say("INFO persistence").contains("\r\naof_enabled:1\r\n"));
        drop(server);
        let server = start(folder.path(), frontend, &["--durability", "always"]);
        let mut resp = RespClient::connect(server.resp());
        assert_eq!(resp.say("GET there"), "$6\r\nbefore", "{frontend}: the answer waits for those that there are");
        assert_eq!([setting(&mut resp, "appendonly"), setting(&mut resp, "appendfsync")], ["yes", "always"]);
        assert_eq!(resp.say("WAITAOF 1 0 0"), "*2\r\n:1\r\n:0");
        // FLUSHDB keeps the durability, and the next table is made with that of the server.
        assert_eq!(resp.say("FLUSHDB"), "+OK");
        assert_eq!(resp.say("SET there behind"), "+OK");
        assert_eq!([resp.say("SELECT 3"), resp.say("SET new here")], ["+OK", "+OK"]);
        client(&server).create_table(b"last").unwrap();
        client(&server).alter_table(b"last", Durability::Soon).unwrap();
        drop(server);
        let server = start(folder.path(), frontend, &[]);
        let mut resp = RespClient::connect(server.resp());
        assert_eq!(resp.say("GET there"), "$6\r\nbehind");
        assert_eq!([resp.say("SELECT 3"), resp.say("GET new")], ["+OK", "$4\r\nhere"]);
        // In memory again.
        assert_eq!(resp.say("CONFIG SET appendonly no"), "+OK");
        assert_eq!(resp.say("WAITAOF 0 0 0"), "*2\r\n:0\r\n:0");
        for (words, refusal) in [
            ("WAITAOF 1 0 0", "-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled."),
            ("WAITAOF 2 0 0", "-ERR value is out of range, value must between 0 and 1"),
            ("WAITAOF 1 -1 0", "-ERR value is out of range, must be positive"),
            ("WAITAOF 1 0 -1", "-ERR timeout is negative"),
        ] {
            assert_eq!(resp.say(words), refusal);
        }
        client(&server).create_table_with(b"end", Durability::Soon.into()).unwrap();
        client(&server).alter_table(b"end", Durability::Always).unwrap();
        drop(server);
        let server = start(folder.path(), frontend, &[]);
        assert_eq!(RespClient::connect(server.resp()).say("DBSIZE"), ":0");
        server.stop();
    }
}

#[test]
fn waitaof_and_save_are_answered_when_the_writes_are_on_disk() {
    for frontend in FRONTENDS {
        let folder = tempfile::tempdir().unwrap();
        let flags = ["--durability", "soon", "--durable-interval", "1h"];
        let server = start(folder.path(), frontend, &flags);
        let mut resp = RespClient::connect(server.resp());
        for round in 0..20 {
            assert_eq!(resp.say(&format!("SET key{round} {round}")), "+OK");
            let (command, answer) = [("WAITAOF 1 0 0", "*2\r\n:1\r\n:0"), ("SAVE", "+OK")][round % 2];
            assert_eq!(resp.say(command), answer, "{frontend}: round {round}");
        }
        drop(server);
        let server = start(folder.path(), frontend, &flags);
        assert_eq!(RespClient::connect(server.resp()).say("DBSIZE"), ":20", "{frontend}");
        server.stop();
    }
}

/// The seconds of LASTSAVE.
fn last_save(client: &mut RespClient) -> u64 {
    client.say("LASTSAVE").strip_prefix(':').unwrap().parse().unwrap()
}

/// The names of the lines of INFO persistence, and those values that are no figures.
fn persistence(client: &mut RespClient) -> BTreeMap<String, String> {
    let text = client.say("INFO persistence");
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let shown =
        lines.map(|(name, value)| (name.to_owned(), value.trim_matches(|c: char| c.is_ascii_digit()).to_owned()));
    shown.collect()
}

/// An interval that never ends: what is on disk was ordered.
#[test]
fn bgsave_has_the_databases_on_disk_and_lastsave_shows_it_as_redis_does() {
    if real_peer("redis-server").is_none() {
        return;
    }
    let redis = oracle::redis();
    let Address::Unix(socket) = &redis.address else { panic!("{:?}", redis.address) };
    let mut oracle = RespClient::connect(&format!("ipc://{}", socket.display()));
    for frontend in FRONTENDS {
        let folder = tempfile::tempdir().unwrap();
        let flags = ["--durability", "soon", "--durable-interval", "1h"];
        let server = start(folder.path(), frontend, &flags);
        let mut resp = RespClient::connect(server.resp());
        let begin = resp.say("TIME").lines().nth(2).unwrap().parse::<u64>().unwrap();
        assert!(last_save(&mut resp) >= begin, "{frontend}: nothing is missing on disk");
        for words in ["LASTSAVE now", "SAVE now", "BGSAVE now", "BGSAVE now now", "SET key value", "SAVE"] {
            assert_eq!(resp.say(words), oracle.say(words), "{frontend}: {words}");
        }
        assert_eq!(resp.say("SET another value"), "+OK");
        let (before, begun) = (last_save(&mut resp), Instant::now());
        while last_save(&mut resp) == before {
            assert!(begun.elapsed() < PATIENCE, "{frontend}: nothing comes to the disk");
            assert_eq!(resp.say("BGSAVE SCHEDULE"), "+Background saving started");
        }
        assert!(oracle.say("BGSAVE SCHEDULE").starts_with("+Background saving "));
        let of_redis = loop {
            let lines = persistence(&mut oracle);
            if !oracle.say("INFO persistence").contains("rdb_bgsave_in_progress:1") {
                break lines;
            }
        };
        for (name, value) in persistence(&mut resp) {
            assert_eq!(of_redis.get(&name), Some(&value).filter(|_| name != "aof_current_size"), "{frontend}: {name}");
        }
        drop(server);
        let server = start(folder.path(), frontend, &flags);
        let mut resp = RespClient::connect(server.resp());
        assert_eq!(resp.say("DBSIZE"), ":2", "{frontend}");
        server.stop();
    }
}

#[test]
fn databases_in_memory_are_not_saved() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), "queue", &[]);
    let mut resp = RespClient::connect(server.resp());
    client(&server).create_table_with(b"other", Durability::Soon.into()).unwrap();
    assert_eq!(resp.say("SET key value"), "+OK");
    for words in ["SAVE", "BGSAVE"] {
        assert!(resp.say(words).starts_with("-ERR CONFIG SET appendonly yes"), "{words}");
    }
    server.stop();
}
