//! Jobs after a server was killed, again and again, under load.
//!
//! ```text
//! round: start ─► check the jobs ─► clients add, get, acknowledge, look ─► kill -9 at a random moment ─► next round
//! ```
//! A job is known by its data, which is never added twice, since the id of an unanswered ADD is unknown. Clients note
//! each request before they send it, and each answer. An ACK of a job that is not handed out is `NO` and changes no
//! job. With it, each check finds the ready jobs that were taken by a GET without an answer.
//!
//! Jobs with terms of their own have a unique name and a lease, and the usual lease is short: a job that has lost its own
//! would be handed out again. An ADD without an answer is repeated under its name, and has then added one job.

use std::collections::{BTreeMap, HashMap};

use spindle::clients::rust::jobs::{Error, JobsClient};
use spindle::services::jobs::wire::JobId;

use crate::crash::{CLIENTS, Faults, SMALL_SEGMENT, kill_under_load, rounds};
use crate::harness::Server;
use crate::lock::Mutex;
use crate::seeded_rng::SeededRng;

const QUEUES: [&[u8]; 3] = [b"red", b"green", b"blue"];
/// In seconds, longer than any run: no lease expires.
const LEASE: &str = "86400";
/// In seconds, the usual lease where jobs have their own.
const SHORT_LEASE: u32 = 1;

/// Possible states of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// An ADD for it was sent. The rest is unknown.
    Asked,
    Ready,
    Held,
    /// An ACK for it was sent, but not answered.
    Finishing,
    Done,
    /// Done, and found gone after a start.
    Gone,
}

#[derive(Clone, Debug)]
struct Known {
    queue: &'static [u8],
    id: Option<JobId>,
    place: Place,
}

/// The shared knowledge of all clients.
#[derive(Default)]
struct Book {
    /// Whether jobs have terms of their own.
    has_terms: bool,
    jobs: HashMap<Vec<u8>, Known>,
    /// Unanswered GETs, by queue: each may hold one job that was ready.
    doubtful: BTreeMap<&'static [u8], usize>,
    faults: Faults,
}

fn start(folder: &tempfile::TempDir, has_terms: bool) -> (Server, JobsClient) {
    let lease = if has_terms { SHORT_LEASE.to_string() } else { LEASE.to_owned() };
    let server = Server::start_jobs(folder.path(), &["--lease", &lease, "--segment-size", SMALL_SEGMENT]);
    let client = JobsClient::new(server.jobs());
    (server, client)
}

#[test]
fn no_job_is_lost_duplicated_resurrected_or_wrongly_leased_by_kill_9() {
    kill_again_and_again(false);
}

#[test]
fn a_job_keeps_its_own_lease_and_its_unique_name_by_kill_9() {
    kill_again_and_again(true);
}

fn kill_again_and_again(has_terms: bool) {
    let rounds = rounds();
    let folder = tempfile::tempdir().unwrap();
    let book = Mutex::new(Book { has_terms, ..Book::default() });
    let mut rng = SeededRng(std::process::id().into());
    for round in 0..rounds {
        let (server, client) = start(&folder, has_terms);
        check(&client, &mut book.lock(), &mut rng);
        kill_under_load(server, &mut rng, |number, rng| work(&client, &book, round * CLIENTS + number, rng));
    }
    let (server, client) = start(&folder, has_terms);
    check(&client, &mut book.lock(), &mut rng);
    if has_terms {
        // By then a lease of the usual length is over.
        assert_eq!(client.wait(&[b"empty"], SHORT_LEASE + 1).unwrap(), None);
    }
    drain(&client, &mut book.lock());
    server.stop();
    let book = book.lock();
    let doubtful: usize = book.doubtful.values().sum();
    println!("{rounds} rounds, {} jobs, {doubtful} GETs in doubt: {:?}", book.jobs.len(), book.faults);
    assert_eq!(book.faults, Faults::default());
}

// ---------------------------------------------------------------------------------------------------------------- load

/// Runs one client until the server is gone.
fn work(client: &JobsClient, book: &Mutex<Book>, number: usize, mut rng: SeededRng) {
    let mut held: Vec<(Vec<u8>, &'static [u8], JobId)> = Vec::new();
    for step in 0.. {
        let queue = rng.pick(&QUEUES);
        let done = match rng.index(10) {
            0..4 => add(client, book, queue, format!("{number}-{step}").into_bytes()),
            4..7 => get(client, book, queue).map(|job| held.extend(job)),
            7..9 => acknowledge(client, book, held.pop()),
            _ => look(client, book, held.last()),
        };
        if done.is_err() {
            return;
        }
    }
}

fn add(client: &JobsClient, book: &Mutex<Book>, queue: &'static [u8], data: Vec<u8>) -> Result<(), Error> {
    book.lock().jobs.insert(data.clone(), Known { queue, id: None, place: Place::Asked });
    let has_terms = book.lock().has_terms;
    let id = if has_terms { add_by_name(client, queue, &data)? } else { client.add(queue, &data)? };
    let mut book = book.lock();
    let known = book.jobs.get_mut(&data).unwrap();
    // Another client may hold it already, and have noted that.
    let same = known.id.is_none_or(|other| other == id);
    known.id = Some(id);
    if known.place == Place::Asked {
        known.place = Place::Ready;
    }
    book.faults.duplicated += usize::from(!same);
    Ok(())
}

/// Adds a job with a lease of its own, whose unique name is its data.
fn add_by_name(client: &JobsClient, queue: &[u8], data: &[u8]) -> Result<JobId, Error> {
    let options = format!("lease={LEASE}s,key={}", data.escape_ascii());
    client.add_with(queue, options.as_bytes(), data)
}

type Held = (Vec<u8>, &'static [u8], JobId);

fn get(client: &JobsClient, book: &Mutex<Book>, queue: &'static [u8]) -> Result<Option<Held>, Error> {
    *book.lock().doubtful.entry(queue).or_default() += 1;
    let job = client.get(queue)?;
    let mut book = book.lock();
    *book.doubtful.entry(queue).or_default() -= 1;
    let Some(job) = job else { return Ok(None) };
    book.take(queue, job.id, &job.data);
    Ok(Some((job.data, queue, job.id)))
}

impl Book {
    /// A job was handed out: it must be one that may be ready.
    fn take(&mut self, queue: &[u8], id: JobId, data: &[u8]) {
        let Some(known) = self.jobs.get_mut(data) else {
            self.faults.lost += 1;
            return;
        };
        match known.place {
            Place::Asked | Place::Ready => {}
            Place::Held | Place::Finishing => self.faults.wrongly_leased += 1,
            Place::Done | Place::Gone => self.faults.resurrected += 1,
        }
        self.faults.duplicated += usize::from(known.id.is_some_and(|other| other != id));
        self.faults.lost += usize::from(known.queue != queue);
        (known.id, known.place) = (Some(id), Place::Held);
    }
}

fn acknowledge(client: &JobsClient, book: &Mutex<Book>, held: Option<Held>) -> Result<(), Error> {
    let Some((data, queue, id)) = held else { return Ok(()) };
    book.lock().jobs.get_mut(&data).unwrap().place = Place::Finishing;
    let done = client.ack(queue, id)?;
    let mut book = book.lock();
    book.faults.wrongly_leased += usize::from(!done);
    book.jobs.get_mut(&data).unwrap().place = Place::Done;
    Ok(())
}

fn look(client: &JobsClient, book: &Mutex<Book>, held: Option<&Held>) -> Result<(), Error> {
    let Some((data, queue, id)) = held else { return Ok(()) };
    let there = client.is_in(queue, *id)?;
    book.lock().faults.lost += usize::from(!there);
    let has_terms = book.lock().has_terms;
    if has_terms {
        let is_same = add_by_name(client, queue, data)? == *id;
        book.lock().faults.duplicated += usize::from(!is_same);
    }
    Ok(())
}

// --------------------------------------------------------------------------------------------------------------- check

/// After a start: everything that was acknowledged is so.
fn check(client: &JobsClient, book: &mut Book, rng: &mut SeededRng) {
    let Book { has_terms, jobs, doubtful, faults } = book;
    for (data, known) in jobs {
        let may_repeat = !matches!(known.place, Place::Done | Place::Gone | Place::Finishing);
        if *has_terms && may_repeat && (known.id.is_none() || rng.one_in(4)) {
            let id = add_by_name(client, known.queue, data).unwrap();
            faults.duplicated += usize::from(known.id.is_some_and(|other| other != id));
            known.id = Some(id);
            if known.place == Place::Asked {
                known.place = Place::Ready;
            }
        }
        let Some(id) = known.id else { continue };
        // They grow many: each check looks for some of them, and the end hands out all that came back.
        if known.place == Place::Gone && rng.index(20) > 0 {
            continue;
        }
        let there = client.is_in(known.queue, id).unwrap();
        match known.place {
            Place::Done | Place::Gone => {
                faults.resurrected += usize::from(there);
                known.place = Place::Gone;
            }
            Place::Finishing => known.place = if there { Place::Held } else { Place::Done },
            Place::Asked | Place::Ready | Place::Held => faults.lost += usize::from(!there),
        }
        match known.place {
            Place::Ready if client.ack(known.queue, id).unwrap() => {
                let doubtful = doubtful.entry(known.queue).or_default();
                faults.wrongly_leased += usize::from(*doubtful == 0);
                *doubtful = doubtful.saturating_sub(1);
                known.place = Place::Done;
            }
            // Not all of them, so that some are held for many rounds.
            Place::Held if rng.one_in(4) => {
                faults.wrongly_leased += usize::from(!client.ack(known.queue, id).unwrap());
                known.place = Place::Done;
            }
            _ => {}
        }
    }
}

/// At the end: each job that is ready is handed out once, in the order of the ids, and no other.
fn drain(client: &JobsClient, book: &mut Book) {
    for queue in QUEUES {
        let mut last = JobId(0);
        while let Some(job) = client.get(queue).unwrap() {
            assert!(job.id > last, "{} after {last}", job.id);
            last = job.id;
            book.take(queue, job.id, &job.data);
        }
    }
    book.faults.lost += book.jobs.values().filter(|known| known.place == Place::Ready).count();
}
