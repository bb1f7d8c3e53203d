//! Whose requests the committer has: small ones come in between large ones, and in between leases that go back.

use std::net::Shutdown;

use super::*;
use crate::limits::{TASKS_BATCH_BYTES, TASKS_OWN_BYTES, TASKS_WINDOW_BYTES, UNDO_MAX};
use crate::services::tasks::calls::counted_bytes;
use crate::services::tasks::wire::{AnyRequest, QueueRequest, Reply};
use crate::tasks::{BrowsePlace, BrowsedState, SweptStates};

static LARGE: [u8; 2 << 20] = [7; 2 << 20];
const SMALL: &[u8] = b"value";

fn add<'r>(key: &'r [u8], value: &'r [u8]) -> Request<'r> {
    Request::Add { key, value, mode: AddMode::Tail }
}

/// A frontend that commits nothing by itself before the next batch of the committer.
fn start(disk: &FakeDisk) -> Rig {
    let mut rig = Rig::start_on(disk);
    rig.committer.sink(Box::new(Silent));
    submit(&rig, tasks::Request::Nothing);
    rig
}

/// Submits a request of another frontend.
fn submit(rig: &Rig, request: tasks::Request) {
    rig.tasks.submit(vec![Submission { queue: rig.queue.clone(), ticket: Ticket { sink: 1, number: 0 }, request }]);
}

/// A client that has sent so many large Adds that its connection waits for the window.
fn large_client(rig: &mut Rig, keys: &[[u8; 1]]) -> Replies {
    let adds: Vec<_> = keys.iter().map(|key| add(key, &LARGE)).collect();
    let client = asks(rig, &adds);
    let Rig { front, .. } = rig;
    let passed = (0..PASSES).any(|_| {
        pass(front);
        front.responder.window().has_waiting()
    });
    assert!(passed, "the frontend takes all of them");
    client
}

/// Commits batches until this client has so many replies.
fn commit_until(rig: &mut Rig, client: &mut Replies, count: usize) {
    let passed = (0..PASSES).any(|_| {
        rig.committer.batch(Clock::start().reading()).unwrap();
        pass(&mut rig.front);
        client.receive();
        client.found.len() >= count
    });
    assert!(passed, "{} of {count} replies have come", client.found.len());
}

fn keys(count: u8) -> Vec<[u8; 1]> {
    (0..count).map(|number| [number]).collect()
}

/// Beside Adds of 16 MiB a small Add took 1.6 s: 256 MiB were before it.
#[test]
fn a_small_add_waits_for_a_bounded_number_of_bytes_of_others() {
    const COUNT: u8 = 24;
    let disk = FakeDisk::new();
    let mut rig = start(&disk);
    let mut large = large_client(&mut rig, &keys(COUNT));
    let (before, unanswered) = (disk.counts().0, rig.front.responder.unanswered());
    let mut small = asks(&mut rig, &[add(b"small", SMALL)]);
    let Rig { front, .. } = &mut rig;
    let is_taken = (0..PASSES).any(|_| {
        pass(front);
        front.responder.unanswered() > unanswered
    });
    assert!(is_taken, "its connection does not wait");
    commit_until(&mut rig, &mut small, 1);
    let bytes: u64 = disk.batches_after(before).iter().map(|batch| batch.bytes).sum();
    assert!(bytes <= TASKS_WINDOW_BYTES as u64 + TASKS_BATCH_BYTES, "{bytes} of {}", usize::from(COUNT) * LARGE.len());
    commit_until(&mut rig, &mut large, COUNT.into());
    assert_eq!(rig.counts().0, u64::from(COUNT) + 1);
}

#[test]
fn a_client_whose_requests_wait_gets_its_replies_in_their_order() {
    const COUNT: u8 = 12;
    let mut rig = start(&FakeDisk::new());
    let keys = keys(COUNT);
    let requests: Vec<_> = keys.iter().flat_map(|key| [add(key, &LARGE), Request::Count]).collect();
    let mut client = asks(&mut rig, &requests);
    commit_until(&mut rig, &mut client, requests.len());
    let expected = (1..=u32::from(COUNT)).flat_map(|count| [Reply::Added, Reply::Counted(count)]);
    for (reply, expected) in client.found.iter().zip(expected) {
        assert_eq!(Reply::decode(&reply[2..]).unwrap(), expected);
    }
}

#[test]
fn a_client_that_leaves_while_its_requests_wait_holds_up_nobody() {
    let mut rig = start(&FakeDisk::new());
    let leaver = large_client(&mut rig, &keys(24));
    let mut stays = asks(&mut rig, &[add(b"a", &LARGE), add(b"b", &LARGE)]);
    set_socket_linger(&leaver.stream, Some(Duration::ZERO)).unwrap();
    drop(leaver);
    commit_until(&mut rig, &mut stays, 2);
    pass_until(&mut rig.front, || {
        rig.committer.batch(Clock::start().reading()).unwrap();
        rig.tasks.metrics().queues()[0].counts().ready >= 6
    });
    assert!(!rig.front.responder.window().has_waiting());
}

/// The first wait of the end cleared the wake signal, and the end waited until its time was over.
#[test]
fn requests_that_wait_are_taken_at_the_end() {
    let mut rig = start(&FakeDisk::new());
    let large = large_client(&mut rig, &keys(24));
    let taken = rig.front.responder.unanswered() as u64;
    while rig.counts().0 < taken {
        rig.committer.batch(Clock::start().reading()).unwrap();
    }
    large.stream.shutdown(Shutdown::Both).unwrap();
    let Rig { mut front, committer, tasks, .. } = rig;
    let committer = std::thread::spawn(move || committer.run(|| Clock::start().reading()));
    front.stopper.stop();
    Serving::run(&mut front, SpiderqFrontend::serve, SpiderqFrontend::part).unwrap();
    assert!(front.responder.is_empty() && !front.responder.window().has_waiting());
    assert!(tasks.metrics().queues()[0].counts().ready > taken);
    drop((front, tasks));
    committer.join().unwrap().unwrap();
}

/// The leases of a client with many of them were all before the requests of others.
#[test]
fn leases_of_a_closed_connection_go_back_in_portions() {
    const COUNT: usize = 3 * UNDO_MAX;
    let mut rig = start(&FakeDisk::new());
    (0..COUNT).for_each(|_| submit(&rig, tasks::Request::Push { value: SMALL.into(), terms: None }));
    while rig.counts().0 < COUNT as u64 {
        rig.committer.batch(Clock::start().reading()).unwrap();
    }
    submit(&rig, tasks::Request::Nothing);
    let leaver = rig.client(&polls(COUNT));
    let Rig { front, committer, tasks, .. } = &mut rig;
    let have_come = (0..PASSES).any(|_| {
        pass(front);
        front.responder.unanswered() == COUNT
    });
    assert!(have_come);
    drop(leaver);
    let has_left = (0..PASSES).any(|_| {
        pass(front);
        front.connections.is_empty()
    });
    assert!(has_left);
    let counts = || tasks.metrics().queues()[0].counts();
    let mut unanswered = Vec::new();
    let are_back = (0..PASSES).any(|_| {
        committer.batch(Clock::start().reading()).unwrap();
        pass(front);
        unanswered.push(front.responder.unanswered());
        counts().ready == COUNT as u64 && front.responder.is_empty()
    });
    assert!(are_back);
    // The first two batches answer the Lends.
    let most = unanswered.iter().skip(1).max().copied();
    assert_eq!(most, Some(UNDO_MAX), "{unanswered:?}");
}

/// Short requests that take long were as many as small ones: 2,000 clients that asked 1,024 queues each were before a
/// small Add for five seconds.
#[test]
fn requests_that_take_long_wait_for_the_window_however_short_they_are() {
    const COUNT: usize = 1_000;
    let names = [&b"queue"[..]; 1 << 10];
    let lend = QueueRequest::LendMany { queues: names.to_vec(), count: 1, timeout_ms: 9, wait_ms: 0 };
    let place = BrowsePlace::default();
    let browse = |group, most, first_bytes| {
        let (queue, state) = (&b"queue"[..], BrowsedState::Ready);
        QueueRequest::Browse { queue, state, group, from: place, most, first_bytes }
    };
    let list = QueueRequest::Queues { from: 0, most: u32::MAX };
    for request in [lend, list, browse(None, u32::MAX, u32::MAX), browse(Some(&b"group"[..]), 1, 0)] {
        let (mut frame, mut bytes) = (Vec::new(), introduction(SocketType::Dealer));
        AnyRequest::OfQueues(request).encode(&mut frame);
        (0..COUNT).for_each(|_| bytes.extend(message(&[&frame])));
        let mut rig = start(&FakeDisk::new());
        let client = rig.client_sending(bytes);
        let Rig { front, .. } = &mut rig;
        let is_waiting = (0..PASSES).any(|_| {
            pass(front);
            front.responder.window().has_waiting()
        });
        let taken = front.responder.unanswered() * counted_bytes(&frame);
        assert!(is_waiting && taken <= TASKS_WINDOW_BYTES + TASKS_OWN_BYTES, "{taken}");
        drop(client);
    }
}

/// Purges of a client that was gone went on for seconds, and those of others waited.
#[test]
fn sweeps_of_a_client_that_is_gone_are_withdrawn() {
    let mut rig = start(&FakeDisk::new());
    let states = SweptStates { dead: true, ..SweptStates::default() };
    let (mut frame, mut bytes) = (Vec::new(), introduction(SocketType::Dealer));
    AnyRequest::OfQueues(QueueRequest::Purge { queue: b"queue", states, age_ms: 0 }).encode(&mut frame);
    (0..10).for_each(|_| bytes.extend(message(&[&frame])));
    // Each takes some steps.
    for _ in 0..4 {
        let push = |_| {
            let request = tasks::Request::Push { value: SMALL.into(), terms: None };
            Submission { queue: rig.queue.clone(), ticket: Ticket { sink: 1, number: 0 }, request }
        };
        rig.tasks.submit((0..100).map(push).collect());
    }
    rig.committer.batch(Clock::start().reading()).unwrap();
    submit(&rig, tasks::Request::Nothing);
    let leaver = rig.client_sending(bytes);
    let Rig { front, committer, .. } = &mut rig;
    let have_come = (0..PASSES).any(|_| {
        pass(front);
        front.responder.unanswered() == 10
    });
    assert!(have_come);
    drop(leaver);
    let has_left = (0..PASSES).any(|_| {
        pass(front);
        front.connections.is_empty()
    });
    assert!(has_left && front.responder.unanswered() == 11, "they are withdrawn");
    // One batch begins and withdraws them, and the frontend receives the answers.
    committer.batch(Clock::start().reading()).unwrap();
    pass(front);
    assert!(front.responder.is_empty());
}
