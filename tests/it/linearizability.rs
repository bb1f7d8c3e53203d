//! Histories of racing clients, in process and over sockets, are linearizable.
//!
//! In process the clock runs much faster than real time, so that TTLs of a second end in the midst of a race.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Duration;

use spindle::clients::rust::tables::{Client, Error};
use spindle::clock::{Clock, Now, Ttl};
use spindle::services::tables::wire::Reason;
use spindle::tables::{
    Addition, BackgroundThreads, Batch, Deadline, Durability, ManyProgress, Refusal, Session, Tables, TablesConfig,
};

use crate::checker::{Answer, COUNTER, Request, Span};
use crate::harness::Server;
use crate::history::{AnswerCounts, Ask, Peer, Plan, bytes_of, check_round, value_of};

/// Some writes keep the deadline, some set it, some remove it.
const TTLS: &[Option<Ttl>] = &[None, None, Some(Ttl::from_secs(1)), Ttl::from_millis(750), Some(Ttl::NONE)];

/// The bytes that elements may take: much more than they do.
const MEMORY: u64 = 1 << 30;

/// Two elements for which all clients compete.
const FIGHT: Plan = Plan {
    tables: 1,
    keys: 2,
    requests: 100,
    lasting: Duration::ZERO,
    batch_max: 3,
    table_request_every: 35,
    ttls: TTLS,
};

/// This many elements have to be moved while clients race.
const MOVED_MIN: u64 = 100;

/// A clock that runs faster than real time, and stamps that order the actions of the threads.
pub(crate) struct World {
    clock: Clock,
    /// How many of its seconds pass in a real second.
    haste: u64,
    stamps: AtomicU64,
    /// The compactor receives again and again that memory has run out, and that it is back.
    pub(crate) is_tight: bool,
}

impl World {
    fn new(haste: u64) -> Self {
        Self { clock: Clock::start(), haste, stamps: AtomicU64::new(0), is_tight: false }
    }

    pub(crate) fn tight(haste: u64) -> Self {
        Self { is_tight: true, ..Self::new(haste) }
    }

    pub(crate) fn now(&self) -> Now {
        Now::from_nanos(self.clock.now().nanos() * self.haste)
    }

    fn stamp(&self) -> u64 {
        // SeqCst: one order of all stamps, in which each thread's stamps are in its program order.
        self.stamps.fetch_add(1, Ordering::SeqCst)
    }
}

pub(crate) fn table_name(round: u64, table: usize) -> Vec<u8> {
    format!("round {round} table {table}").into_bytes()
}

pub(crate) fn key_name(key: usize) -> Vec<u8> {
    format!("key {key}").into_bytes()
}

/// A client that has a session on the tables.
struct InProcess<'w> {
    world: &'w World,
    session: Session,
    /// Sleeps by the real clock, which is far too slow for it. It is woken after each batch.
    expiry: Thread,
    round: u64,
}

impl Peer for InProcess<'_> {
    fn perform(&mut self, asks: &[Ask]) -> Vec<(Span, Vec<Answer>)> {
        let invoked: Vec<u64> = asks.iter().map(|_| self.world.stamp()).collect();
        let (mut performed, mut refused) = (Vec::new(), None);
        // How far the next request has come, and the first reading of the clock that it has used.
        let mut begun = (ManyProgress::default(), None);
        while performed.len() < asks.len() {
            // The clock is read after the requests have come, and again after each wait, as a worker does it.
            let now = self.world.now();
            let mut batch = self.session.batch(now);
            if invoked[0].is_multiple_of(8) {
                // Other threads make progress while this one holds its guard and its reading.
                std::thread::yield_now();
            }
            for (ask, &invoked) in asks.iter().zip(&invoked).skip(performed.len()) {
                let (progress, first) = &mut begun;
                let answers = match answer_in_process(&mut batch, (self.world, self.round), ask, progress) {
                    Ok(answers) => answers,
                    Err(refusal) => {
                        if progress.has_begun() {
                            first.get_or_insert(now);
                        }
                        refused = Some(refusal);
                        break;
                    }
                };
                let span = Span {
                    invoked,
                    clock_min: first.take().unwrap_or(now).nanos(),
                    clock_max: now.nanos(),
                    latest: self.world.now().nanos(),
                    returned: self.world.stamp(),
                };
                performed.push((span, answers));
            }
            drop(batch);
            self.expiry.unpark();
            match refused.take() {
                Some(Refusal::Busy) => self.session.wait(),
                // The request changed nothing, and is repeated.
                Some(_) => std::thread::yield_now(),
                None => {}
            }
        }
        performed
    }
}

/// The error if the tables were too busy, or memory has run out in a test that allows it.
fn answer_in_process(
    batch: &mut Batch<'_>,
    (world, round): (&World, u64),
    ask: &Ask,
    progress: &mut ManyProgress,
) -> Result<Vec<Answer>, Refusal> {
    let outcome = match ask.many {
        None => answer_about_one(batch, round, ask, || world.now()).map(|answer| vec![answer]),
        Some(_) => answer_about_many(batch, round, ask, progress),
    };
    match outcome {
        Ok(answers) => Ok(answers),
        Err(Refusal::Busy) => Err(Refusal::Busy),
        Err(Refusal::OutOfMemory) if world.is_tight => Err(Refusal::OutOfMemory),
        Err(refusal) => Ok(vec![answer_of(refusal)]),
    }
}

fn answer_about_many(
    batch: &mut Batch<'_>,
    round: u64,
    ask: &Ask,
    progress: &mut ManyProgress,
) -> Result<Vec<Answer>, Refusal> {
    let table = table_name(round, ask.table);
    let keys: Vec<Vec<u8>> = ask.each().map(|one| key_name(one.key)).collect();
    let keys = keys.iter().map(Vec::as_slice);
    if let Request::Update(_, ttl) = ask.request {
        let values = values_of(ask);
        let deadline = Deadline::after(batch.now(), ttl);
        batch.update_many(&table, deadline, keys.zip(values.iter().map(Vec::as_slice)), progress)?;
        return Ok(vec![Answer::Ok; values.len()]);
    }
    if ask.request == Request::Delete {
        let deleted = batch.delete_many(&table, keys, progress)?;
        return Ok(deleted.into_iter().map(removed).collect());
    }
    let mut values = Vec::new();
    batch.get_many(&table, keys, progress, &mut values)?;
    Ok(values.into_iter().map(found).collect())
}

/// The values that an UPDATE_MANY stores.
pub(crate) fn values_of(ask: &Ask) -> Vec<Vec<u8>> {
    let value = |one: Ask| match one.request {
        Request::Update(value, _) => bytes_of(value),
        other => panic!("{other:?} stores nothing"),
    };
    ask.each().map(value).collect()
}

/// The outcome of GET_MANY for an element.
pub(crate) fn found(value: Option<&[u8]>) -> Answer {
    value.map_or(Answer::KeyNotFound, |bytes| Answer::Value(value_of(bytes)))
}

/// The outcome of DELETE_MANY for an element.
fn removed(had_element: bool) -> Answer {
    if had_element { Answer::Ok } else { Answer::KeyNotFound }
}

fn answer_about_one(batch: &mut Batch<'_>, round: u64, ask: &Ask, now: impl Fn() -> Now) -> Result<Answer, Refusal> {
    let table = table_name(round, ask.table);
    let key = key_name(ask.key);
    let read = batch.now();
    let deadline = |ttl| Deadline::after(read, ttl);
    let done = |()| Answer::Ok;
    let value = |bytes: &[u8]| Answer::Value(value_of(bytes));
    match ask.request {
        Request::CreateTable => batch.create_table(&table, &table).map(done),
        Request::DeleteTable => batch.delete_table(&table).map(done),
        Request::Update(number, ttl) => batch.update(&table, &key, &bytes_of(number), deadline(ttl)).map(done),
        Request::Delete => batch.delete(&table, &key).map(value),
        Request::Get => batch.get(&table, &key).map(value),
        Request::GetEntry => batch
            .get_entry(&table, &key, now)
            .map(|entry| Answer::Entry(value_of(entry.value), entry.version, entry.remaining_millis)),
        Request::CompareAndSwap(expected, number, ttl) => {
            batch.compare_and_swap(&table, &key, expected, &bytes_of(number), deadline(ttl)).map(Answer::Swapped)
        }
        Request::CompareAndDelete(expected) => batch.compare_and_delete(&table, &key, expected).map(value),
        Request::Touch(ttl) => batch.touch(&table, &key, deadline(Some(ttl))).map(done),
        Request::GetAndTouch(ttl) => batch.get_and_touch(&table, &key, deadline(Some(ttl))).map(value),
        Request::Increment(ttl) => {
            batch.increment(&table, &key, Addition { delta: 1, deadline: deadline(ttl), value_max: 1024 }).map(counted)
        }
        Request::Pair(..) | Request::DeletePart => unreachable!("it is recorded, and never asked"),
    }
}

/// The outcome of INCREMENT: the sum and its version.
fn counted((sum, version): (i64, u64)) -> Answer {
    Answer::Counted(COUNTER | u64::try_from(sum).expect("it counts up from 0"), version)
}

fn answer_of(refusal: Refusal) -> Answer {
    match refusal {
        Refusal::TableExists => Answer::TableExists,
        Refusal::TableNotFound => Answer::TableNotFound,
        Refusal::KeyNotFound => Answer::KeyNotFound,
        Refusal::VersionMismatch { current } => Answer::VersionMismatch(current),
        Refusal::NotANumber => Answer::NotANumber,
        Refusal::OutOfRange
        | Refusal::VersionRefused
        | Refusal::ValueTooLong
        | Refusal::BadCursor
        | Refusal::FeedOff
        | Refusal::Compacted { .. } => {
            panic!("{refusal:?}: nothing here deserves that")
        }
        Refusal::OutOfMemory
        | Refusal::DiskFailed
        | Refusal::OutOfDisk
        | Refusal::TooManyTables
        | Refusal::Busy
        | Refusal::Unfinished => {
            panic!("{refusal:?}: there is room enough")
        }
    }
}

/// Ends the threads of the tables, also when a history turns out to be wrong.
struct Closing<'t>(&'t Tables);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Runs `work` on tables with all of their threads, and returns how many elements have expired.
pub(crate) fn with_tables(world: &World, changes_per_writer: usize, work: impl FnOnce(&Tables, &Thread)) -> u64 {
    let settings = TablesConfig {
        expected_keys: 16,
        memory_max: MEMORY,
        tables_max: 65_536,
        durability: Durability::None,
        changes_per_writer,
        version_base: 1_000_000,
        clock_start: 0,
    };
    let (tables, backstage) = Tables::new(settings);
    let BackgroundThreads { mut changes, expiry, reaper, compactor } = backstage;
    std::thread::scope(|scope| {
        let expiry = scope.spawn(|| expiry.run(|| world.now()));
        scope.spawn(|| reaper.run(|| world.now()));
        if world.is_tight {
            let mut looks = 0_u64;
            let resident = move || {
                looks += 1;
                Some(if looks % 8 < 4 { 0 } else { MEMORY })
            };
            scope.spawn(move || compactor.run(0, || world.now(), resident));
        }
        scope.spawn(move || {
            let publisher = std::thread::current();
            changes.set_waker(Box::new(move || publisher.unpark()));
            while !changes.drain(1_000, &mut |_, _, _| {}).closed {
                if changes.prepare_sleep(false) {
                    std::thread::park();
                }
            }
        });
        let _closing = Closing(&tables);
        work(&tables, expiry.thread());
    });
    tables.metrics().expired
}

/// Runs racing clients in many rounds, each with tables of its own. Where memory is tight, it continues until elements
/// were moved.
fn fight_in_process(plan: &Plan, world: &World, changes_per_writer: usize, clients: usize, rounds: u64) {
    let mut counts = AnswerCounts::default();
    let expired = with_tables(world, changes_per_writer, |tables, expiry| {
        let session = || InProcess { world, session: tables.session(), expiry: expiry.clone(), round: 0 };
        let mut peers: Vec<_> = (0..clients).map(|_| session()).collect();
        let mut round = 0;
        while round < rounds || (world.is_tight && tables.metrics().moved < MOVED_MIN) {
            for peer in &mut peers {
                peer.round = round;
            }
            check_round(plan, round, &mut peers, &mut counts);
            round += 1;
        }
    });
    assert!(expired > 0, "nothing has expired");
    counts.assert_all_kinds();
}

#[test]
fn racing_sessions_are_linearizable() {
    fight_in_process(&FIGHT, &World::new(50_000), 1 << 16, 4, 800);
}

#[test]
fn racing_sessions_that_run_out_of_credits_are_linearizable() {
    fight_in_process(&FIGHT, &World::new(50_000), 56, 4, 800);
}

/// The compactor moves elements again and again, and slots too.
#[test]
fn racing_sessions_are_linearizable_while_the_compactor_moves() {
    fight_in_process(&FIGHT, &World::tight(50_000), 1 << 16, 4, 50);
}

/// An UPDATE_MANY of more pairs than there are credits waits in the middle, and elements expire meanwhile.
#[test]
fn racing_sessions_that_wait_in_the_middle_of_many_are_linearizable() {
    let plan = Plan { keys: 30, requests: 400, ..FIGHT };
    fight_in_process(&plan, &World::new(50_000), 56, 4, 100);
}

/// A client with a connection of its own.
pub(crate) struct OverSockets<'w> {
    pub(crate) clock: &'w Clock,
    pub(crate) client: Client,
    pub(crate) round: u64,
}

impl Peer for OverSockets<'_> {
    fn perform(&mut self, asks: &[Ask]) -> Vec<(Span, Vec<Answer>)> {
        asks.iter().map(|ask| self.perform_one(ask)).collect()
    }
}

impl OverSockets<'_> {
    fn perform_one(&mut self, ask: &Ask) -> (Span, Vec<Answer>) {
        timed(self.clock, || answer_over_sockets(&mut self.client, self.round, ask))
    }
}

/// The answer with the times of its request.
pub(crate) fn timed(clock: &Clock, answer: impl FnOnce() -> Vec<Answer>) -> (Span, Vec<Answer>) {
    let invoked = clock.now().nanos();
    let answer = answer();
    let returned = clock.now().nanos();
    (Span { invoked, returned, clock_min: invoked, clock_max: returned, latest: returned }, answer)
}

fn answer_over_sockets(client: &mut Client, round: u64, ask: &Ask) -> Vec<Answer> {
    let outcome = match ask.many {
        None => ask_about_one(client, round, ask).map(|answer| vec![answer]),
        Some(_) => ask_about_many(client, round, ask),
    };
    match outcome {
        Ok(answers) => answers,
        Err(Error::Refused(reason)) => vec![answer_of_reason(reason)],
        Err(Error::Disconnected(_)) => vec![Answer::Lost],
        Err(error) => panic!("{error}"),
    }
}

fn ask_about_many(client: &mut Client, round: u64, ask: &Ask) -> Result<Vec<Answer>, Error> {
    let table = table_name(round, ask.table);
    let keys: Vec<Vec<u8>> = ask.each().map(|one| key_name(one.key)).collect();
    if let Request::Update(_, ttl) = ask.request {
        let values = values_of(ask);
        let pairs: Vec<[&[u8]; 2]> = keys.iter().zip(&values).map(|(key, value)| [&key[..], &value[..]]).collect();
        client.update_many(&table, ttl, &pairs)?;
        return Ok(vec![Answer::Ok; values.len()]);
    }
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    if ask.request == Request::Delete {
        return Ok(client.delete_many(&table, &keys)?.into_iter().map(removed).collect());
    }
    let values = client.get_many(&table, &keys)?;
    Ok(values.iter().map(|value| found(value.as_deref())).collect())
}

fn ask_about_one(client: &mut Client, round: u64, ask: &Ask) -> Result<Answer, Error> {
    let table = table_name(round, ask.table);
    let key = key_name(ask.key);
    let done = |()| Answer::Ok;
    let value = |bytes: Vec<u8>| Answer::Value(value_of(&bytes));
    match ask.request {
        Request::CreateTable => client.create_table(&table).map(done),
        Request::DeleteTable => client.delete_table(&table).map(done),
        Request::Update(number, ttl) => client.update(&table, &key, &bytes_of(number), ttl).map(done),
        Request::Delete => client.delete(&table, &key).map(value),
        Request::Get => client.get(&table, &key).map(value),
        Request::GetEntry => client
            .get_entry(&table, &key)
            .map(|entry| Answer::Entry(value_of(&entry.value), entry.version, entry.remaining_millis)),
        Request::CompareAndSwap(expected, number, ttl) => {
            client.compare_and_swap(&table, &key, expected, &bytes_of(number), ttl).map(Answer::Swapped)
        }
        Request::CompareAndDelete(expected) => client.compare_and_delete(&table, &key, expected).map(value),
        Request::Touch(ttl) => client.touch(&table, &key, ttl).map(done),
        Request::GetAndTouch(ttl) => client.get_and_touch(&table, &key, ttl).map(value),
        Request::Increment(ttl) => client.increment(&table, &key, 1, ttl).map(counted),
        Request::Pair(..) | Request::DeletePart => unreachable!("it is recorded, and never asked"),
    }
}

fn answer_of_reason(reason: Reason) -> Answer {
    match reason {
        Reason::TableExists => Answer::TableExists,
        Reason::TableNotFound => Answer::TableNotFound,
        Reason::KeyNotFound => Answer::KeyNotFound,
        Reason::VersionMismatch { current } => Answer::VersionMismatch(current),
        Reason::NotANumber => Answer::NotANumber,
        other => panic!("{}: nothing here deserves that", other.text()),
    }
}

/// Clients with connections of their own work the plan, in rounds with tables of their own.
fn fight_over_sockets(plan: &Plan, clients: usize, rounds: u64) {
    let server = Server::start(&["--workers", "4"]);
    let clock = Clock::start();
    let connect =
        |_| OverSockets { clock: &clock, client: Client::connect(server.kv()).expect("the server is there"), round: 0 };
    let mut peers: Vec<_> = (0..clients).map(connect).collect();
    let mut counts = AnswerCounts::default();
    for round in 0..rounds {
        for peer in &mut peers {
            peer.round = round;
        }
        check_round(plan, round, &mut peers, &mut counts);
    }
    counts.assert_all_kinds();
    server.stop();
}

#[test]
fn racing_clients_are_linearizable() {
    fight_over_sockets(&FIGHT, 5, 100);
}

/// Many elements, so that each has a short history of the seconds in which its deadlines pass.
#[test]
fn racing_clients_are_linearizable_while_elements_expire() {
    let plan = Plan {
        tables: 40,
        keys: 20,
        requests: 1_000,
        lasting: Duration::from_secs(3),
        batch_max: 1,
        table_request_every: 500,
        ttls: TTLS,
    };
    fight_over_sockets(&plan, 5, 1);
}
