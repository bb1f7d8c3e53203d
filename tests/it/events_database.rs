//! Events in a database that is busy, refuses, is slow, or is full, and passwords that no message shows.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use spindle::protocols::events::client::{Client, Error};

use crate::harness::{Guarded, Server, spindle};
use crate::mariadb::MariaDb;
use crate::stage::{Stage, client, maria_db, value_of};

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
    let spoil = |client: &mut Client, spoil: &str, mend: &str, why: &str| {
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

/// The server gave it up, and the database went on with it.
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

/// With columns of type BIGINT the server went on refusing.
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
}
