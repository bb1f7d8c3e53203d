//! Events when clients, workers, servers and databases go away in the middle.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use spindle::clients::rust::events::{Error, EventsClient};

use crate::harness::Server;
use crate::lock::Mutex;
use crate::stage::{Stage, Worker, address, all, client, defer, over_both, script, value_of};

over_both! {
    what_a_killed_worker_had_is_anothers
    workers_that_are_killed_again_and_again_lose_nothing
    a_server_that_is_killed_under_load_has_all_it_acknowledged
    a_worker_outlives_its_server
}

fn what_a_killed_worker_had_is_anothers(stage: Option<Stage>) {
    let Some(stage) = stage else { return };
    let folder = tempfile::tempdir().unwrap();
    let [begun, gate] = ["begun", "gate"].map(|name| crate::events::fifo(folder.path(), name));
    let stuck = script(folder.path(), "stuck", &format!("echo $1 > {begun}\ncat {gate}"));
    let server = stage.serve();
    let mut client = client(&server);
    let id = client.defer().unwrap();
    let dead = stage.work(&server, &["--command", &stuck]);
    assert_eq!(std::fs::read_to_string(&begun).unwrap().trim(), id.to_string());
    dead.signal(Signal::KILL);
    let _killed = dead.wait_for_the_end();
    let heir = stage.work(&server, &["--command", "echo heir of"]);
    assert_eq!(value_of(&mut client, id), format!("heir of {id}"));
    // The child of the dead worker still runs, and its value is not taken.
    std::fs::write(&gate, "dead\n").unwrap();
    assert_eq!(heir.stop(), 1);
    assert_eq!(value_of(&mut client, id), format!("heir of {id}"));
    server.stop();
}

fn workers_that_are_killed_again_and_again_lose_nothing(stage: Option<Stage>) {
    let Some(stage) = stage else { return };
    const EVENTS: u64 = 150;
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let command = script(folder.path(), "run", &format!("echo $1 $$ >> {}\necho $1 $$", log.display()));
    let server = stage.serve();
    let mut client = client(&server);
    defer(&mut client, EVENTS);
    let start = || stage.work(&server, &["--slots=2", "--command", &command]);
    let mut workers: Vec<Worker> = (0..4).map(|_| start()).collect();
    let ran = || std::fs::read_to_string(&log).unwrap_or_default().lines().map(str::to_owned).collect::<Vec<_>>();
    let mut seen: BTreeMap<u64, String> = BTreeMap::new();
    for round in 1..=6 {
        while ran().len() < round * 15 {}
        let dead = workers.remove(0);
        dead.signal(Signal::KILL);
        let _killed = dead.wait_for_the_end();
        workers.push(start());
        let values = all(&mut client).into_iter().filter_map(|event| Some((event.id, event.value?)));
        for (id, value) in values {
            assert_eq!(seen.entry(id).or_insert_with(|| value.clone()), &value, "a value has changed");
        }
    }
    for id in 1..=EVENTS {
        let value = value_of(&mut client, id);
        assert!(seen.get(&id).is_none_or(|earlier| *earlier == value), "a value has changed");
        assert!(value.starts_with(&format!("{id} ")) && ran().contains(&value), "{id}: {value}");
    }
    let _stored: u64 = workers.into_iter().map(Worker::stop).sum();
    server.stop();
}

/// Acknowledged events, and their values if they were answered.
type Known = Mutex<BTreeMap<u64, Option<String>>>;

/// Creates and defers until the server is gone, or `over` is set. A refused event is asked again, as new.
fn drive(client: &mut EventsClient, number: usize, known: &Known, over: &AtomicBool) {
    for turn in number.. {
        let answer = match turn % 2 {
            0 => client.create().map(|event| (event.id, event.value)),
            _ => client.defer().map(|id| (id, None)),
        };
        match answer {
            Ok((id, value)) => {
                let twice = known.lock().insert(id, value);
                assert!(twice.is_none(), "{id} was given twice");
            }
            Err(Error::Refused { status: 503, .. }) => {}
            Err(Error::Disconnected(_)) => return,
            Err(other) => panic!("{other}"),
        }
        if over.load(Ordering::Relaxed) {
            return;
        }
    }
}

/// All acknowledged events are there, under ids without gaps.
fn assert_kept(server: &Server, known: &Known) {
    let events = all(&mut client(server));
    for (id, value) in known.lock().iter() {
        let event = usize::try_from(*id).ok().and_then(|id| events.get(id - 1)).unwrap();
        assert!(value.is_none() || event.value == *value, "{id}: {value:?} became {:?}", event.value);
    }
}

fn a_server_that_is_killed_under_load_has_all_it_acknowledged(stage: Option<Stage>) {
    let Some(stage) = stage else { return };
    let (known, over) = (Known::default(), AtomicBool::new(false));
    for round in 1..=4 {
        let server = stage.serve();
        std::thread::scope(|scope| {
            for number in 0..16 {
                let (server, known, over) = (&server, &known, &over);
                scope.spawn(move || drive(&mut client(server), number, known, over));
            }
            while known.lock().len() < round * 300 {}
            server.signal(Signal::KILL);
        });
        let _killed = server.wait();
        let server = stage.serve();
        assert_kept(&server, &known);
        server.stop();
    }
}

fn a_worker_outlives_its_server(stage: Option<Stage>) {
    let Some(Stage::Embedded(folder)) = &stage else { return };
    let data = folder.path().to_str().unwrap();
    // A path is not given to another process meanwhile, as a port may be.
    let queue = format!("ipc://{data}/queue");
    let serve = ["--kv=off", "--publish=off", "--events=127.0.0.1:0", "--events-queue", &queue, "--data", data];
    let server = Server::start_exactly(&serve);
    let worker = stage.as_ref().unwrap().work(&server, &["--slots=2"]);
    let mut before = client(&server);
    let first = before.defer().unwrap();
    value_of(&mut before, first);
    server.signal(Signal::KILL);
    let _killed = server.wait();
    let server = Server::start_exactly(&serve);
    let mut after = client(&server);
    let second = after.defer().unwrap();
    value_of(&mut after, second);
    // The first value may have been stored without an answer to the worker.
    let (stored, lost) = worker.end();
    assert!(stored + lost == 2 && stored >= 1, "stored {stored}, lost {lost}");
    server.stop();
}

// -------------------------------------------------------------------------------------------------------- the database

#[test]
fn a_database_that_is_killed_under_load_is_found_again() {
    let Some(Stage::MySql(mut database)) = Stage::mysql() else { return };
    let server = Server::start_events(&["--events-store", &database.url()]);
    let worker = Stage::MySql(database);
    let workers: Vec<Worker> = (0..2).map(|_| worker.work(&server, &["--slots=2"])).collect();
    let Stage::MySql(kept) = worker else { return };
    database = kept;
    let (known, over) = (Known::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for number in 0..16 {
            let (server, known, over) = (&server, &known, &over);
            scope.spawn(move || drive(&mut client(server), number, known, over));
        }
        let mut probe = client(&server);
        for round in 1..=3 {
            while known.lock().len() < round * 300 {}
            database.kill();
            let refused = probe.health();
            assert!(matches!(&refused, Err(Error::Refused { status: 503, error }) if !error.is_empty()), "{refused:?}");
            database.start_again();
            while probe.health().is_err() {}
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_kept(&server, &known);
    let mut client = client(&server);
    for id in 1..=client.count().unwrap() {
        value_of(&mut client, id);
    }
    let _stored: u64 = workers.into_iter().map(Worker::stop).sum();
    assert_eq!(database.ask("SELECT COUNT(*) FROM information_schema.innodb_trx"), "0", "a transaction was left open");
    server.stop();
}

#[test]
fn two_servers_and_their_workers_share_a_database() {
    let Some(stage) = Stage::mysql() else { return };
    let servers = [stage.serve(), stage.serve()];
    let workers: Vec<Worker> =
        servers.iter().flat_map(|server| [0, 1].map(|_| stage.work(server, &["--claim=8"]))).collect();
    let (known, over) = (Known::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for number in 0..32 {
            let (server, known, over) = (&servers[number % 2], &known, &over);
            scope.spawn(move || drive(&mut EventsClient::new(address(server)), number, known, over));
        }
        while known.lock().len() < 1_000 {}
        over.store(true, Ordering::Relaxed);
    });
    let count = known.lock().len() as u64;
    for server in &servers {
        assert_eq!(client(server).count().unwrap(), count);
        assert_kept(server, &known);
    }
    let pending = known.lock().values().filter(|value| value.is_none()).count() as u64;
    let mut client = client(&servers[0]);
    (1..=count).for_each(|id| drop(value_of(&mut client, id)));
    assert_eq!(workers.into_iter().map(Worker::stop).sum::<u64>(), pending);
    servers.into_iter().for_each(Server::stop);
}
