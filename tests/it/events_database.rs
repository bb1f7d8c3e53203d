//! Events in a database that is busy, refuses, is slow, or is full, and passwords that no message shows.

use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::process::Stdio;

use spindle::clients::rust::events::{Error, EventsClient};

use crate::cut_link::CutLink;
use crate::harness::{Guarded, Server, spindle};
use crate::mariadb::MariaDb;
use crate::stage::{Stage, Worker, client, maria_db, script, value_of};

fn serve(database: &MariaDb, flags: &[&str]) -> Server {
    Server::start_events(&[&["--events-store", &database.url()][..], flags].concat())
}

/// Runs these statements in a session that stays open until the result is dropped.
fn hold(database: &MariaDb, statements: &str) -> Guarded {
    let mut child = database.session().stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(format!("{statements}; SELECT 'held';\n").as_bytes()).unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "held"), "{statements}");
    Guarded(child)
}

/// The reason for a 503.
fn refused<T: std::fmt::Debug>(answer: Result<T, Error>) -> String {
    match answer {
        Err(Error::Refused { status: 503, error }) => error,
        other => panic!("{other:?}"),
    }
}

/// A start waited for the row of `status`, for half an hour, or gave it up.
#[test]
fn servers_and_workers_start_while_another_transaction_has_locked_all_rows() {
    let Some(database) = maria_db() else { return };
    let first = serve(&database, &[]);
    let id = client(&first).defer().unwrap();
    first.stop();
    let locks = "START TRANSACTION; SELECT COUNT(*) FROM events FOR UPDATE; SELECT id FROM status FOR UPDATE";
    let held = hold(&database, locks);
    let server = serve(&database, &[]);
    let stage = Stage::MySql(Box::new(database));
    let worker = stage.work(&server, &[]);
    let mut client = client(&server);
    assert_eq!(client.count().unwrap(), 1, "it answers");
    assert!(refused(client.health()).contains("nothing can be stored"), "the row of the last id is locked");
    drop(held);
    assert_eq!(client.create().unwrap().id, id + 1);
    client.health().unwrap();
    value_of(&mut client, id);
    assert_eq!(worker.stop(), 1);
    server.stop();
}

/// It read a row, and said that all was well.
#[test]
fn health_is_503_when_nothing_can_be_stored() {
    let Some(database) = maria_db() else { return };
    let server = serve(&database, &[]);
    let mut client = client(&server);
    let id = client.create().unwrap().id;
    let spoil = |client: &mut EventsClient, spoil: &str, mend: &str, why: &str| {
        database.ask(spoil);
        let reason = refused(client.health());
        assert!(reason.contains(why), "{spoil}: {reason}");
        database.ask(mend);
        client.health().unwrap_or_else(|error| panic!("{mend}: {error}"));
    };
    let user = "spindle@'127.0.0.1'";
    let read_only = format!("REVOKE ALL ON events.* FROM {user}; GRANT SELECT ON events.* TO {user}");
    spoil(&mut client, &read_only, &format!("GRANT ALL ON events.* TO {user}"), "denied");
    spoil(&mut client, "RENAME TABLE events TO gone", "RENAME TABLE gone TO events", "events");
    spoil(&mut client, "RENAME TABLE status TO gone", "RENAME TABLE gone TO status", "status");
    spoil(&mut client, "DELETE FROM status", &format!("INSERT INTO status VALUES ({id})"), "one row");
    spoil(&mut client, "SET GLOBAL read_only = 1", "SET GLOBAL read_only = 0", "read-only");
    assert_eq!(client.create().unwrap().id, id + 1, "a health check takes no id");
    assert_eq!(database.ask("SELECT COUNT(*) FROM events"), "2");
    server.stop();
}

/// Some of these refused the start, and with others a worker had its command run again and again.
#[test]
fn what_the_operator_has_set_for_all_sessions_is_no_matter() {
    let Some(database) = maria_db() else { return };
    let (folder, stage) = (tempfile::tempdir().unwrap(), Stage::MySql(Box::new(database)));
    let Stage::MySql(database) = &stage else { return };
    // Nothing for the second event, and an odd value for the third one.
    let values = script(folder.path(), "values", "[ $1 = 2 ] && echo || printf '%s\\n' 'a \\ \"b\"'");
    for setting in [
        "autocommit = 0",
        "tx_isolation = 'SERIALIZABLE'",
        "tx_read_only = 1",
        "completion_type = 'CHAIN'",
        "completion_type = 'RELEASE'",
        "sql_safe_updates = 1",
        "sql_select_limit = 1",
        "max_join_size = 1",
        "sql_mode = 'ORACLE,ANSI_QUOTES,EMPTY_STRING_IS_NULL,NO_BACKSLASH_ESCAPES'",
        "sql_mode = ''",
        "default_storage_engine = 'Aria'",
        "time_zone = '+12:00'",
    ] {
        println!("{setting}");
        let (name, _) = setting.split_once(" = ").unwrap();
        database.ask(&format!("DROP TABLE IF EXISTS status, events; SET GLOBAL {setting}"));
        let server = stage.serve();
        let mut client = client(&server);
        assert_eq!(client.create().unwrap().id, 1, "{setting}");
        assert_eq!((client.defer().unwrap(), client.defer().unwrap()), (2, 3), "{setting}");
        let worker = stage.work(&server, &["--command", &values]);
        assert_eq!(value_of(&mut client, 2), "", "{setting}");
        assert_eq!(value_of(&mut client, 3), "a \\ \"b\"", "{setting}");
        assert_eq!(worker.stop(), 2, "{setting}");
        client.health().unwrap_or_else(|error| panic!("{setting}: {error}"));
        assert_eq!(client.count().unwrap(), 3, "{setting}");
        let stored = database.ask("SET sql_big_selects = 1; SELECT COUNT(*), (SELECT id FROM status) FROM events");
        assert_eq!(stored, "3\t3", "{setting}");
        server.stop();
        database.ask(&format!("SET GLOBAL {name} = DEFAULT"));
    }
}

/// The server gave it up, and the database continued with it.
#[test]
fn a_statement_that_takes_too_long_ends_on_the_database_too() {
    let Some(database) = maria_db() else { return };
    let server = serve(&database, &["--events-timeout", "3"]);
    let mut client = client(&server);
    client.create().unwrap();
    let endless = "SELECT a.seq AS id, 'x' AS value FROM seq_1_to_1000000 a JOIN seq_1_to_1000000 b";
    database.ask(&format!("RENAME TABLE events TO kept; CREATE VIEW events AS {endless}"));
    assert!(refused(client.count()).contains("3 s"));
    let running = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'spindle' AND info LIKE '%COUNT%'";
    assert_eq!(database.ask(running), "0");
    database.ask("DROP VIEW events; RENAME TABLE kept TO events");
    assert_eq!(client.count().unwrap(), 1);
    server.stop();
}

/// With columns of type BIGINT the server still refused.
#[test]
fn the_advice_at_the_last_id_of_the_type_int_can_be_followed() {
    let Some(database) = maria_db() else { return };
    let server = serve(&database, &[]);
    let stage = Stage::MySql(Box::new(database));
    let Stage::MySql(database) = &stage else { return };
    let mut client = client(&server);
    let last = u64::from(i32::MAX.cast_unsigned());
    database.ask(&format!("UPDATE status SET id = {}", last - 1));
    assert_eq!(client.create().unwrap().id, last);
    let advice = refused(client.create());
    assert!(refused(client.health()).contains("BIGINT"));
    assert_eq!(database.ask("SELECT COUNT(*) FROM events"), "1", "nothing was stored");
    let (_, statements) = advice.split_once("tables: ").unwrap_or_else(|| panic!("{advice}"));
    database.ask(statements);
    client.health().unwrap();
    assert_eq!(client.create().unwrap().id, last + 1);
    let id = client.defer().unwrap();
    assert_eq!(id, last + 2);
    let worker = stage.work(&server, &[]);
    value_of(&mut client, id);
    assert_eq!(worker.stop(), 1);
    assert_eq!(client.find(last + 1).unwrap().unwrap().id, last + 1);
    assert_eq!(client.find(u64::MAX).unwrap(), None);
    server.stop();
}

/// The URL of the database behind a link. A link that is encrypted shows no COMMIT.
fn through(link: &CutLink) -> String {
    format!("mysql://spindle:secret@{}/events?ssl-mode=DISABLED", link.address())
}

#[test]
fn an_event_whose_commit_has_an_unknown_outcome_is_stored_once_and_reported_to_the_client() {
    let Some(database) = maria_db() else { return };
    let link = CutLink::to(&database.url());
    let server = Server::start_events(&["--events-store", &through(&link)]);
    let mut client = client(&server);
    assert_eq!(client.create().unwrap().id, 1);
    let before = link.commits();
    link.cut_next();
    let why = refused(client.create());
    assert!(why.contains("whether the event was stored is not known"), "{why}");
    assert!(!link.will_cut() && link.commits() == before + 1, "no second COMMIT was sent");
    assert_eq!(database.ask("SELECT COUNT(*) FROM events"), "2", "the database had carried it out");
    assert_eq!(client.create().unwrap().id, 3);
    client.health().unwrap();
    server.stop();
}

#[test]
fn a_value_whose_commit_has_an_unknown_outcome_is_stored_once_and_the_worker_says_so() {
    let Some(database) = maria_db() else { return };
    let server = serve(&database, &[]);
    let mut client = client(&server);
    let link = CutLink::to(&database.url());
    let source = ["--store".to_owned(), through(&link)];
    let mut log = tempfile::tempfile().unwrap();
    let worker = Worker::start(&source, &["--command", "echo value of"], "warn", log.try_clone().unwrap().into());
    let before = link.commits();
    link.cut_next();
    let id = client.defer().unwrap();
    assert_eq!(value_of(&mut client, id), format!("value of {id}"));
    while link.will_cut() {}
    let next = client.defer().unwrap();
    assert_eq!(value_of(&mut client, next), format!("value of {next}"), "the worker continues");
    assert_eq!(worker.end(), (1, 1), "one is stored, and of one it does not know");
    assert_eq!(link.commits(), before + 2);
    let mut said = String::new();
    log.rewind().unwrap();
    log.read_to_string(&mut said).unwrap();
    assert!(said.contains("went away while it committed"), "{said}");
    server.stop();
}

// ----------------------------------------------------------------------------------------------------------- passwords

/// The URL of the database without the password.
fn without_password(database: &MariaDb) -> String {
    database.url().replace(":secret@", "@")
}

/// A file with these bytes.
fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file
}

#[test]
fn a_server_and_a_worker_take_the_password_of_the_database_from_a_file() {
    let Some(database) = maria_db() else { return };
    let password = file(b"secret\n");
    let (url, path) = (without_password(&database), password.path().to_str().unwrap());
    let server = Server::start_events(&["--events-store", &url, "--events-store-password-file", path]);
    let source = ["--store", &url, "--events-store-password-file", path].map(str::to_owned);
    let worker = Worker::start(&source, &[], "error", Stdio::inherit());
    // It is read once, at the start.
    password.close().unwrap();
    let mut client = client(&server);
    assert_eq!(client.create().unwrap().id, 1);
    let id = client.defer().unwrap();
    assert!(!value_of(&mut client, id).is_empty());
    let shown = std::fs::read(format!("/proc/{}/cmdline", server.pid().as_raw_nonzero())).unwrap();
    assert!(!String::from_utf8_lossy(&shown).contains("secret"));
    assert_eq!(worker.stop(), 1);
    server.stop();
    // A password may have any character, which in a URL would have a meaning.
    let odd = "p/?#@%:&\\ \u{e9}";
    database.ask(&format!("CREATE USER odd@'127.0.0.1' IDENTIFIED BY '{}'", odd.replace('\\', "\\\\")));
    database.ask("GRANT ALL ON events.* TO odd@'127.0.0.1'");
    let password = file(odd.as_bytes());
    let url = url.replace("spindle@", "odd@");
    let path = password.path().to_str().unwrap();
    let server = Server::start_events(&["--events-store", &url, "--events-store-password-file", path]);
    server.stop();
}

#[test]
fn a_password_file_that_is_of_no_use_is_refused_and_no_password_is_shown() {
    let good = file(b"secret-1\n");
    let [empty, lines] = [&b"\n"[..], b"secret-1\nsecret-2\n"].map(file);
    let path = |file: &tempfile::NamedTempFile| file.path().to_str().unwrap().to_owned();
    let (url, with_password) = ("mysql://ada@127.0.0.1:1/events", "mysql://ada:secret-3@127.0.0.1:1/events");
    for (url, file, status, about) in [
        (url, path(&empty), 1, "is empty"),
        (url, path(&lines), 1, "more than one line"),
        (url, "/nowhere/password".to_owned(), 1, "cannot be read"),
        (with_password, path(&good), 2, "has a password too"),
        (url, path(&good), 1, "does not answer"),
    ] {
        let flag = format!("--events-store-password-file={file}");
        for arguments in [
            &["serve", "--kv=off", "--publish=off", "--events=0", "--events-store", url, &flag][..],
            &["worker", "--store", url, &flag],
        ] {
            let output = spindle(arguments);
            let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            assert!(output.status.code() == Some(status) && said.contains(about), "{arguments:?}: {said}");
            assert!(!said.contains("secret") && said.trim_end().lines().count() == 1, "{arguments:?}: {said}");
        }
    }
    let flag = format!("--events-store-password-file={}", path(&good));
    for arguments in [&["serve", "--kv=off", "--publish=off", "--events=0", &flag][..], &["worker", &flag]] {
        let output = spindle(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains("mysql://USER@HOST/DATABASE"), "{said}");
    }
}

#[test]
fn no_message_shows_a_password() {
    for (url, status) in [
        ("mysql://ada:secret@h:x/events", 2),
        ("mysql://ada:secret@h", 2),
        ("mysql:/ada:secret@h/events", 2),
        ("mysql:ada:secret", 2),
        ("mysq://ada:secret@h/events", 2),
        ("mysql://ada:1/secret@h/events", 2),
        ("mysql://ada:secret@127.0.0.1:1/events", 1),
    ] {
        let shown = |arguments: &[&str]| {
            let output = spindle(arguments);
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            assert!(output.status.code() == Some(status) && !said.contains("secret"), "{arguments:?}: {said}");
        };
        shown(&["serve", "--kv=off", "--publish=off", "--events=0", "--events-store", url]);
        shown(&["serve", "--kv=off", "--publish=off", "--events=0", &format!("--events-store={url}")]);
        shown(&["worker", "--store", url]);
    }
    let Some(database) = maria_db() else { return };
    let wrong = database.url().replace(":secret@", ":another@");
    let output = spindle(&["worker", "--store", &wrong]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("denied") && !said.contains("another"), "{said}");
    let (url, wrong) = (without_password(&database), file(b"another\n"));
    let path = wrong.path().to_str().unwrap();
    let output = spindle(&["worker", "--store", &url, "--events-store-password-file", path]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("denied") && !said.contains("another"), "{said}");
}
