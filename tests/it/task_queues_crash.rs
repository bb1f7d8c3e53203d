//! Queues by name after a server was killed, again and again, under load.
//!
//! Each client has two queues of its own, and knows what each task in them has come to: ready, delayed, lent, dead with its
//! reason, or gone, and how often it was tried. A request that was not answered has taken effect as a whole, or not at all.

use std::collections::HashMap;

use spindle::clients::rust::tasks::{Error, TasksClient};
use spindle::services::tasks::wire::{
    AddMode, AnyReply, AnyRequest, ItemResult, Kicked, LeaseEnd, NamedLease, QueueReply, QueueRequest, RepayStatus,
};
use spindle::tasks::{AddTerms, BrowsePlace, BrowsedState};

use crate::crash::{CLIENTS, SMALL_SEGMENT, kill_under_load, rounds};
use crate::harness::Server;
use crate::lock::Mutex;
use crate::seeded_rng::SeededRng;

/// Longer than any run, in milliseconds: no lease and no delay ends.
const LONG: u64 = 86_400_000;
/// Leases of a request.
const MANY: u32 = 4;

/// A task, by its queue and its key.
type Id = (usize, Vec<u8>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Ready,
    Delayed,
    Lent,
    Dead(Vec<u8>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    state: State,
    tries: u32,
}

/// What a request that was not answered may have done.
enum Doubt {
    /// These tasks are as follows. `None`: gone.
    Changed(Vec<(Id, Option<Known>)>),
    /// Some ready tasks are lent.
    Lent,
}

/// What a client knows.
#[derive(Default)]
struct Book {
    tasks: HashMap<Id, Known>,
    held: Vec<(Id, u64)>,
    doubt: Option<Doubt>,
    steps: u64,
}

fn queue(client: usize, which: usize) -> String {
    format!("{client}-{which}")
}

#[test]
fn what_was_answered_about_queues_is_so_after_kill_9() {
    let rounds = rounds();
    let folder = tempfile::tempdir().unwrap();
    let books: Vec<Mutex<Book>> = (0..CLIENTS).map(|_| Mutex::default()).collect();
    let mut rng = SeededRng(std::process::id().into());
    let start = || {
        let server = Server::start_tasks(folder.path(), &["--segment-size", SMALL_SEGMENT]);
        let mut client = TasksClient::connect(server.tasks()).unwrap();
        books.iter().enumerate().for_each(|(number, book)| check(&mut client, number, &mut book.lock()));
        server
    };
    for _ in 0..rounds {
        let server = start();
        let endpoint = server.tasks().to_owned();
        kill_under_load(server, &mut rng, |number, rng| work(&endpoint, number, &mut books[number].lock(), rng));
    }
    start().stop();
    let (steps, tasks) = books.iter().fold((0, 0), |(steps, tasks), book| {
        let book = book.lock();
        (steps + book.steps, tasks + book.tasks.len())
    });
    println!("{rounds} rounds, {steps} requests, {tasks} tasks are left");
    assert!(steps > 0 && tasks > 0);
}

/// Runs a client until the server is gone.
fn work(endpoint: &str, number: usize, book: &mut Book, mut rng: SeededRng) {
    let Ok(mut client) = TasksClient::connect(endpoint) else { return };
    loop {
        book.steps += 1;
        let done = match rng.index(10) {
            0..3 => add(&mut client, number, book),
            3..6 => lend(&mut client, number, book),
            6 => kick(&mut client, number, book),
            _ => settle(&mut client, number, book, &mut rng),
        };
        if done.is_err() {
            return;
        }
        book.doubt = None;
    }
}

fn ask<'c>(client: &'c mut TasksClient, request: QueueRequest<'_>) -> Result<AnyReply<'c>, Error> {
    client.ask(&AnyRequest::OfQueues(request))
}

/// Makes a request that changes these tasks. What it changes is known when each item is done.
fn change(
    client: &mut TasksClient,
    book: &mut Book,
    request: QueueRequest<'_>,
    changed: Vec<(Id, Option<Known>)>,
) -> Result<(), Error> {
    book.doubt = Some(Doubt::Changed(changed.clone()));
    match ask(client, request)? {
        AnyReply::OfQueues(QueueReply::Items(_, items)) => {
            assert!(items.iter().all(|item| *item == ItemResult::Done), "{items:?}");
        }
        reply => assert!(matches!(reply, AnyReply::OfQueues(QueueReply::Counted(_, 1))), "{reply:?}"),
    }
    apply(&mut book.tasks, changed);
    Ok(())
}

fn apply(tasks: &mut HashMap<Id, Known>, changed: Vec<(Id, Option<Known>)>) {
    for (id, known) in changed {
        match known {
            Some(known) => drop(tasks.insert(id, known)),
            None => drop(tasks.remove(&id)),
        }
    }
}

/// Adds a task to both queues.
fn add(client: &mut TasksClient, number: usize, book: &mut Book) -> Result<(), Error> {
    let (names, key) = ([0, 1].map(|which| queue(number, which)), book.steps.to_be_bytes());
    let request = QueueRequest::AddMany {
        queues: names.iter().map(String::as_bytes).collect(),
        key: &key,
        value: &key,
        mode: AddMode::Tail,
        terms: AddTerms::default(),
    };
    let changed = [0, 1].map(|which| ((which, key.to_vec()), Some(Known { state: State::Ready, tries: 0 })));
    change(client, book, request, changed.to_vec())
}

fn lend(client: &mut TasksClient, number: usize, book: &mut Book) -> Result<(), Error> {
    book.doubt = Some(Doubt::Lent);
    let names = [0, 1].map(|which| queue(number, which));
    let queues = names.iter().map(String::as_bytes).collect();
    let request = QueueRequest::LendMany { queues, count: MANY, timeout_ms: LONG, wait_ms: 0 };
    let AnyReply::OfQueues(QueueReply::Lent(tasks)) = ask(client, request)? else { return Ok(()) };
    for task in tasks {
        let id = (usize::from(task.queue), task.key.to_vec());
        let known = book.tasks.get_mut(&id).expect("it was added");
        assert_eq!((&known.state, known.tries + 1, task.value), (&State::Ready, task.tries, task.key), "{id:?}");
        *known = Known { state: State::Lent, tries: task.tries };
        book.held.push((id, task.lend_key));
    }
    Ok(())
}

/// Ends all leases, each in one of the ways.
fn settle(client: &mut TasksClient, number: usize, book: &mut Book, rng: &mut SeededRng) -> Result<(), Error> {
    let held = std::mem::take(&mut book.held);
    if held.is_empty() {
        return Ok(());
    }
    let names = [0, 1].map(|which| queue(number, which));
    let (mut ends, mut changed) = (Vec::new(), Vec::new());
    let reason = rng.next().to_string();
    for ((which, key), lend_key) in &held {
        let tries = book.tasks[&(*which, key.clone())].tries;
        let to = |state, tries| Some(Known { state, tries });
        let (end, after) = match rng.index(5) {
            0 => (LeaseEnd::Repay(RepayStatus::Done, b""), None),
            1 => (LeaseEnd::GiveBack { delay_ms: None, reason: reason.as_bytes() }, to(State::Ready, tries)),
            2 => (LeaseEnd::GiveBack { delay_ms: Some(LONG), reason: b"" }, to(State::Delayed, tries)),
            3 => (LeaseEnd::Bury { reason: reason.as_bytes() }, to(State::Dead(reason.clone().into()), tries)),
            _ => (LeaseEnd::NotBegun, to(State::Ready, tries - 1)),
        };
        ends.push((NamedLease { queue: names[*which].as_bytes(), lend_key: *lend_key, key }, end));
        changed.push(((*which, key.clone()), after));
    }
    let settled = change(client, book, QueueRequest::SettleMany(ends), changed);
    if settled.is_err() {
        // They are held still, or not any more.
        book.held.clone_from(&held);
    }
    settled
}

fn kick(client: &mut TasksClient, number: usize, book: &mut Book) -> Result<(), Error> {
    let is_kicked = |known: &Known| matches!(known.state, State::Dead(_) | State::Delayed);
    let Some((id, _)) = book.tasks.iter().find(|(_, known)| is_kicked(known)) else { return Ok(()) };
    let id = id.clone();
    let name = queue(number, id.0);
    let request = QueueRequest::Kick { queue: name.as_bytes(), what: Kicked::One(&id.1) };
    let changed = vec![(id.clone(), Some(Known { state: State::Ready, tries: 0 }))];
    change(client, book, request, changed)
}

/// After a start: what was answered is so, and each task is in one state.
fn check(client: &mut TasksClient, number: usize, book: &mut Book) {
    let mut found = HashMap::new();
    for which in [0, 1] {
        for state in [BrowsedState::Ready, BrowsedState::Delayed, BrowsedState::Lent, BrowsedState::Dead] {
            browse(client, number, which, state, &mut found);
        }
    }
    let after = |changed: &Vec<(Id, Option<Known>)>| {
        let mut tasks = book.tasks.clone();
        apply(&mut tasks, changed.clone());
        tasks
    };
    match &book.doubt {
        None => assert!(found == book.tasks, "client {number}"),
        Some(Doubt::Changed(changed)) => {
            assert!(found == book.tasks || found == after(changed), "client {number}: a part of a request, or a loss");
        }
        Some(Doubt::Lent) => {
            let mut lent = 0;
            for (id, known) in &book.tasks {
                let now = found.get(id).unwrap_or_else(|| panic!("client {number}: {id:?} is lost"));
                if now != known {
                    let expected = Known { state: State::Lent, tries: known.tries + 1 };
                    assert_eq!((&known.state, now), (&State::Ready, &expected), "client {number}: {id:?}");
                    lent += 1;
                }
            }
            assert!(lent <= MANY && found.len() == book.tasks.len(), "client {number}: {lent} are lent");
        }
    }
    book.held.retain(|(id, _)| found.get(id).is_some_and(|known| known.state == State::Lent));
    (book.tasks, book.doubt) = (found, None);
}

fn browse(client: &mut TasksClient, number: usize, which: usize, state: BrowsedState, found: &mut HashMap<Id, Known>) {
    let (name, mut from) = (queue(number, which), BrowsePlace::default());
    loop {
        let (queue, most) = (name.as_bytes(), 100);
        let request = QueueRequest::Browse { queue, state, group: None, from, most, first_bytes: 8 };
        let reply = ask(client, request).unwrap();
        let AnyReply::OfQueues(QueueReply::Browsed(page, next)) = reply else { panic!("{reply:?}") };
        for task in page {
            assert_eq!(task.first, task.key, "its value is its key");
            let state = match state {
                BrowsedState::Ready => State::Ready,
                BrowsedState::Delayed => State::Delayed,
                BrowsedState::Lent => State::Lent,
                _ => State::Dead(task.reason.to_vec()),
            };
            let twice = found.insert((which, task.key.to_vec()), Known { state, tries: task.tries });
            assert_eq!(twice, None, "client {number}: {:?} is in two places", task.key);
        }
        match next {
            Some(next) => from = next,
            None => return,
        }
    }
}
