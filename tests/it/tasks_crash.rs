//! Tasks after a server was killed, again and again, under load.
//!
//! ```text
//! round: start ─► check the tasks ─► clients add, lend, repay, extend ─► kill -9 at a random moment ─► next round
//! ```
//! Clients note each request before they send it, and each answer. An answered request must have taken effect in the
//! next round. An unanswered one may or may not. (Another test shows that answered requests were also on the disk: this
//! kernel survives.)

use std::collections::{HashMap, HashSet};

use spindle::clients::rust::tasks::{Error, TasksClient};
use spindle::services::tasks::wire::{AddMode, LendMode, RepayStatus, Reply, Request};

use crate::crash::{CLIENTS, Faults, SMALL_SEGMENT, kill_under_load, rounds};
use crate::harness::Server;
use crate::lock::Mutex;
use crate::seeded_rng::SeededRng;

/// Longer than any run: no lease expires.
const LEASE: u64 = 86_400_000;

/// Possible states of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Ready,
    Held(u64),
    Dropped,
}

/// Knowledge about a task: its last known state, and the other states that it may have by now.
#[derive(Clone, Debug)]
struct Known {
    /// `None`: the task may not be there at all.
    place: Option<Place>,
    maybe: Option<Place>,
    value: Vec<u8>,
    maybe_value: Option<Vec<u8>>,
}

/// The shared knowledge of all clients.
#[derive(Default)]
struct Book {
    tasks: HashMap<Vec<u8>, Known>,
    /// Unanswered Lends: each may hold one ready task. After a check, exactly the Lends that do.
    doubtful_lends: usize,
    /// The largest token ever seen.
    token: u64,
    faults: Faults,
}

type Shared = Mutex<Book>;

#[test]
fn nothing_is_lost_duplicated_resurrected_or_wrongly_leased_by_kill_9() {
    let rounds = rounds();
    let folder = tempfile::tempdir().unwrap();
    let book = Shared::default();
    let mut rng = SeededRng(std::process::id().into());
    for round in 0..rounds {
        let server = Server::start_tasks(folder.path(), &["--segment-size", SMALL_SEGMENT]);
        check(&server, &book);
        let endpoint = server.tasks().to_owned();
        kill_under_load(server, &mut rng, |client, rng| {
            work(&endpoint, &book, round * CLIENTS + client, rng);
        });
    }
    let server = Server::start_tasks(folder.path(), &["--segment-size", SMALL_SEGMENT]);
    check(&server, &book);
    drain(&server, &book);
    server.stop();
    let book = book.lock();
    println!("{rounds} rounds, {} tasks, {} lends in doubt: {:?}", book.tasks.len(), book.doubtful_lends, book.faults);
    assert_eq!(book.faults, Faults::default());
}

// ---------------------------------------------------------------------------------------------------------------- load

/// Runs one client until the server is gone.
fn work(endpoint: &str, book: &Shared, number: usize, mut rng: SeededRng) {
    let Ok(mut client) = TasksClient::connect(endpoint) else { return };
    let mut held: Vec<(u64, Vec<u8>)> = Vec::new();
    for step in 0.. {
        let done = match rng.index(10) {
            0..4 => add(&mut client, book, format!("{number}-{step}").as_bytes()),
            4..7 => lend(&mut client, book, &mut held),
            7 => extend(&mut client, book, &held),
            _ => repay(&mut client, book, &mut held, &mut rng),
        };
        if done.is_err() {
            return;
        }
    }
}

fn add(client: &mut TasksClient, book: &Shared, key: &[u8]) -> Result<(), Error> {
    let known = Known { place: None, maybe: Some(Place::Ready), value: key.to_vec(), maybe_value: None };
    book.lock().tasks.insert(key.to_vec(), known);
    let added = client.add(key, key, AddMode::Tail)?;
    let mut book = book.lock();
    book.faults.duplicated += usize::from(!added);
    let known = book.tasks.get_mut(key).unwrap();
    // Another client may hold it already, and have noted that.
    if known.place.is_none() {
        known.place = known.maybe.take();
    }
    Ok(())
}

fn lend(client: &mut TasksClient, book: &Shared, held: &mut Vec<(u64, Vec<u8>)>) -> Result<(), Error> {
    book.lock().doubtful_lends += 1;
    let lent = client.lend(LEASE, LendMode::Poll)?;
    let mut book = book.lock();
    book.doubtful_lends -= 1;
    let Some(lent) = lent else { return Ok(()) };
    book.token = book.token.max(lent.lend_key);
    book.take(lent.lend_key, &lent.key, &lent.value);
    held.push((lent.lend_key, lent.key));
    Ok(())
}

impl Book {
    /// A task was lent: it must be one that may be ready.
    fn take(&mut self, token: u64, key: &[u8], value: &[u8]) {
        let Some(known) = self.tasks.get_mut(key) else {
            self.faults.lost += 1;
            return;
        };
        let may = |place: Option<Place>| place == Some(Place::Ready);
        if !may(known.place) && !may(known.maybe) {
            match known.place {
                Some(Place::Dropped) => self.faults.resurrected += 1,
                _ => self.faults.wrongly_leased += 1,
            }
        }
        let good = known.value == value || known.maybe_value.as_deref() == Some(value);
        self.faults.lost += usize::from(!good);
        known.value = value.to_vec();
        (known.place, known.maybe, known.maybe_value) = (Some(Place::Held(token)), None, None);
    }
}

fn extend(client: &mut TasksClient, book: &Shared, held: &[(u64, Vec<u8>)]) -> Result<(), Error> {
    let Some((token, key)) = held.last() else { return Ok(()) };
    let kept = client.heartbeat(*token, key, LEASE)?;
    book.lock().faults.wrongly_leased += usize::from(!kept);
    Ok(())
}

fn repay(
    client: &mut TasksClient,
    book: &Shared,
    held: &mut Vec<(u64, Vec<u8>)>,
    rng: &mut SeededRng,
) -> Result<(), Error> {
    let Some((token, key)) = held.pop() else { return Ok(()) };
    let status = rng.pick(&[RepayStatus::Drop, RepayStatus::Front, RepayStatus::Reward, RepayStatus::Penalty]);
    let place = if status == RepayStatus::Drop { Place::Dropped } else { Place::Ready };
    let value = rng.next().to_be_bytes();
    {
        let mut book = book.lock();
        let known = book.tasks.get_mut(&key).unwrap();
        (known.maybe, known.maybe_value) = (Some(place), Some(value.to_vec()));
    }
    let repaid = client.repay(token, &key, &value, status)?;
    let mut book = book.lock();
    book.faults.wrongly_leased += usize::from(!repaid);
    let known = book.tasks.get_mut(&key).unwrap();
    // Another client may hold it again by now.
    if known.place == Some(Place::Held(token)) {
        (known.place, known.maybe, known.maybe_value) = (Some(place), None, None);
        known.value = value.to_vec();
    }
    Ok(())
}

// --------------------------------------------------------------------------------------------------------------- check

/// Requests in flight during the check.
const PIPELINE: usize = 256;

/// Asks about each of these, many at a time, and hands over each reply.
fn ask_all<'k, T>(
    client: &mut TasksClient,
    about: &'k [T],
    request: impl Fn(&'k T) -> Request<'k>,
    mut each: impl FnMut(&'k T, Reply<'_>),
) {
    for chunk in about.chunks(PIPELINE) {
        chunk.iter().for_each(|one| client.send(&request(one)).unwrap());
        chunk.iter().for_each(|one| each(one, client.receive().unwrap()));
    }
}

/// After a start: everything that was acknowledged is so.
fn check(server: &Server, book: &Shared) {
    let mut client = TasksClient::connect(server.tasks()).unwrap();
    let book = &mut *book.lock();
    let keys: Vec<Vec<u8>> = book.tasks.keys().cloned().collect();
    let mut values: HashMap<&[u8], Vec<u8>> = HashMap::new();
    ask_all(
        &mut client,
        &keys,
        |key| Request::Lookup { key },
        |key, reply| {
            if let Reply::ValueFound(value) = reply {
                values.insert(key, value.to_vec());
            }
        },
    );
    let held = |(key, known): (&Vec<u8>, &Known)| match known.place {
        Some(Place::Held(token)) => Some((key.clone(), token)),
        _ => None,
    };
    let held: Vec<(Vec<u8>, u64)> = book.tasks.iter().filter_map(held).collect();
    let mut still: HashSet<&[u8]> = HashSet::new();
    ask_all(&mut client, &held, heartbeat, |(key, _), reply| {
        if reply == Reply::Heartbeaten {
            still.insert(key);
        }
    });
    let mut ready = 0;
    for (key, known) in &mut book.tasks {
        let Some(value) = values.remove(&**key) else {
            book.faults.lost += usize::from(known.place.is_some());
            continue;
        };
        let good = value == known.value || known.maybe_value.as_ref() == Some(&value);
        book.faults.lost += usize::from(!good);
        match known.place {
            Some(Place::Held(_)) if still.contains(&**key) => {
                // A repayment in doubt was not made.
                book.faults.lost += usize::from(value != known.value);
                known.maybe = None;
            }
            Some(Place::Held(_)) => {
                book.faults.wrongly_leased += usize::from(known.maybe.is_none());
                known.place = known.maybe.take();
            }
            None => known.place = known.maybe.take(),
            Some(Place::Ready | Place::Dropped) => {}
        }
        known.value = value;
        known.maybe_value = None;
        ready += usize::from(known.place == Some(Place::Ready));
    }
    // A task that was never answered and is not there never existed.
    book.tasks.retain(|_, known| known.place.is_some());
    // Lends without an answer may hold some of the ready ones.
    let counted = client.count().unwrap() as usize;
    book.faults.duplicated += usize::from(counted > ready);
    book.faults.lost += usize::from(counted + book.doubtful_lends < ready);
    book.doubtful_lends = ready.saturating_sub(counted);
    let probe = client.lend(LEASE, LendMode::Poll).unwrap();
    if let Some(lent) = probe {
        book.faults.wrongly_leased += usize::from(lent.lend_key <= book.token);
        book.token = lent.lend_key;
        book.take(lent.lend_key, &lent.key, &lent.value);
        assert!(client.repay(lent.lend_key, &lent.key, &lent.value, RepayStatus::Front).unwrap());
        book.tasks.get_mut(&lent.key).unwrap().place = Some(Place::Ready);
    }
}

fn heartbeat((key, token): &(Vec<u8>, u64)) -> Request<'_> {
    Request::Heartbeat { lend_key: *token, key, timeout_ms: LEASE }
}

/// At the end: each ready task is lent once, and no other.
fn drain(server: &Server, book: &Shared) {
    let mut client = TasksClient::connect(server.tasks()).unwrap();
    let book = &mut *book.lock();
    while let Some(lent) = client.lend(LEASE, LendMode::Poll).unwrap() {
        book.take(lent.lend_key, &lent.key, &lent.value);
    }
    let left = book.tasks.values().filter(|known| known.place == Some(Place::Ready)).count();
    book.faults.lost += left.saturating_sub(book.doubtful_lends);
}
