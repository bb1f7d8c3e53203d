//! Single cases of flow control, each played through in the model.

use super::*;
use crate::protocols::kv::flow_control::pipes::{ASKED_BYTES, UNASKED_BYTES_MANY};

/// Frames of a request for a page.
const PAGE: u32 = 5;

/// The executor of a request of so many frames.
pub(super) fn executor(frames: u32) -> By {
    match frames {
        REPORT => By::Reporter,
        PAGE => By::WorkerAlone,
        _ => By::Worker,
    }
}

/// Regression: flow control forgot a client that had nothing outstanding but still had replies in its pipe. When the
/// client came again, the count of its pipe began at zero, and the pipe took more than its share.
#[test]
fn a_client_with_something_in_its_pipe_is_not_forgotten() {
    let mut model = Model::new(1_000_000, 600);
    model.ask(0, 3);
    (0..WORKERS).for_each(|worker| model.work(worker));
    for client in 1..CLIENTS {
        model.ask(client, 3);
        (0..WORKERS).for_each(|worker| model.work(worker));
        model.read(client);
    }
    assert!(model.account.find(&id(0)).is_some());
    model.read(0);
    model.account.forget_some();
    assert!(model.account.find(&id(0)).is_none());
}

#[test]
fn a_message_larger_than_the_bound_is_taken_from_a_client_that_has_nothing_else() {
    let mut model = Model::new(100, 65);
    model.ask(0, 7);
    model.finish();
    assert_eq!((model.account.cuts(), model.connections.borrow()[0].read), (0, 1));
}

#[test]
fn when_all_together_hold_too_much_the_largest_that_does_not_read_goes() {
    let mut model = Model::new(100_000, 9_000);
    model.account.bounds.held_bytes = 30_000;
    for round in 0..40 {
        for client in 0..CLIENTS {
            model.ask(client, 1 + u32::from(client == 3 && round % 2 == 0));
            model.work(0);
            model.work(1);
        }
    }
    model.account.relieve(NOW);
    assert!(model.account.cuts() > 0);
    assert!(!model.account.is_full());
    model.finish();
    assert!(model.account.is_settled());
}

/// Regression: bytes in pipes were not counted, so no client that had read nothing was ever ended for them.
#[test]
fn of_those_that_read_nothing_the_one_with_most_in_its_pipe_is_ended_and_no_other() {
    let mut model = Model::new(100_000, 9_000);
    model.account.bounds.held_bytes = 40_000;
    for (client, replies) in [(0, 1), (1, 1), (2, 3), (3, 1)] {
        for _ in 0..replies {
            model.ask(client, 1);
            (0..WORKERS).for_each(|worker| model.work(worker));
        }
    }
    let connected = |model: &Model| model.connections.borrow().iter().map(|peer| peer.connected).collect::<Vec<_>>();
    assert_eq!(connected(&model), [true, true, false, true]);
    assert_eq!((model.account.cuts(), model.account.piped()), (1, 27_000));
    model.ask(0, 1);
    model.finish();
    assert_eq!(model.connections.borrow()[0].read, 2, "others go on");
}

/// A client that has read is not ended because its progress was last asked long ago.
#[test]
fn what_has_been_read_meanwhile_does_not_count() {
    let mut model = Model::new(100_000, 9_000);
    model.account.bounds.held_bytes = 40_000;
    for _ in 0..20 {
        for client in 0..CLIENTS {
            model.ask(client, 1);
            (0..WORKERS).for_each(|worker| model.work(worker));
            model.read(client);
        }
    }
    assert_eq!(model.account.cuts(), 0);
    assert!(!model.account.is_full());
}

/// Regression: replies counted as unread for up to a second after they had been read. The compactor took them off the
/// memory of the process, and the tables grew by as much beyond their limit.
#[test]
fn replies_that_were_read_before_the_client_was_asked_are_never_found_unread() {
    const REPLY: u64 = 1 << 20;
    let mut model = Model::new(64 << 20, REPLY);
    let reply = |model: &mut Model| {
        model.ask(0, 1);
        (0..WORKERS).for_each(|worker| model.work(worker));
    };
    let mut sent = 0;
    while !model.account.asks_soon() {
        reply(&mut model);
        model.read(0);
        sent += REPLY;
        assert!(sent <= UNASKED_BYTES_MANY);
    }
    assert_eq!((model.account.piped(), model.account.found_unread()), (sent, 0), "they may be unread");
    model.account.ask_meters(NOW);
    assert_eq!((model.account.piped(), model.account.found_unread(), model.account.asks_soon()), (0, 0, false));
    // A client that reads nothing is found, and then reads.
    (0..PIPE).for_each(|_| reply(&mut model));
    model.account.ask_meters(NOW);
    let unread = PIPE as u64 * REPLY;
    assert_eq!((model.account.piped(), model.account.found_unread()), (unread, unread));
    assert!(model.account.asks_soon(), "it may read them at any time");
    (1..PIPE).for_each(|_| model.read(0));
    model.account.ask_meters(NOW);
    assert_eq!((model.account.piped(), model.account.found_unread()), (REPLY, REPLY));
    model.read(0);
    model.account.ask_meters(NOW);
    assert_eq!((model.account.piped(), model.account.found_unread(), model.account.asks_soon()), (0, 0, false));
    model.finish();
}

#[test]
fn replies_that_the_systems_buffers_can_hold_are_not_found_unread() {
    let mut model = Model::new(64 << 20, ASKED_BYTES / 2);
    model.ask(0, 1);
    (0..WORKERS).for_each(|worker| model.work(worker));
    model.account.relieve(NOW);
    assert_eq!(model.account.found_unread(), ASKED_BYTES / 2, "all clients are asked when all hold too much");
    model.account.ask_meters(NOW);
    assert_eq!((model.account.piped(), model.account.found_unread()), (ASKED_BYTES / 2, 0));
}

#[test]
fn who_is_cut_off_and_gone_is_forgotten_at_the_second_look() {
    let mut model = Model::new(1_000, 600);
    for _ in 0..20 {
        model.ask(0, 3);
        model.work(0);
    }
    model.finish();
    assert!(model.is_cut(0));
    model.account.forget_gone();
    model.leave(0);
    model.account.forget_gone();
    assert!(model.is_cut(0), "messages of it may still come");
    model.account.forget_gone();
    assert_eq!(model.account.find(&id(0)), None);
    assert_eq!(model.account.totals(), (0, 0));
}

#[test]
fn a_page_waits_for_the_requests_before_it_and_those_behind_it_wait_for_the_page() {
    let mut model = Model::new(1_000_000, 64);
    let on_the_way = |model: &Model| model.workers.iter().map(VecDeque::len).sum::<usize>();
    for frames in [3, 3, PAGE, PAGE, 3, 3] {
        model.ask(0, frames);
    }
    let mut steps = Vec::new();
    while on_the_way(&model) > 0 {
        steps.push(on_the_way(&model));
        (0..WORKERS).for_each(|worker| model.work(worker));
        model.read(0);
    }
    assert_eq!(steps, [2, 1, 1, 1, 2, 1], "two requests, each page alone, two requests");
    model.finish();
}

/// Regression: a page that came while its client's pipe was full counted together with the requests behind it. A client
/// that read all the time, and requested many pages at once, was cut off.
#[test]
fn a_client_that_reads_is_not_cut_off_for_a_page_and_the_requests_behind_it() {
    let mut model = Model::new(4_000, 2_500);
    (0..8).for_each(|_| model.ask(0, PAGE));
    for _ in 0..2 {
        (0..WORKERS).for_each(|worker| model.work(worker));
    }
    assert_eq!(model.account.stalled_count(), 1, "the second page waits for the first");
    model.finish();
    let peer = &model.connections.borrow()[0];
    assert_eq!((model.account.cuts(), peer.read), (0, peer.asked));
    assert!(peer.asked > 2);
}
