//! Turns that are out: another thread has their messages, and the connection waits for it.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use super::super::{TurnBatch, TurnOut, TurnOutcome, TurnParts};
use super::{Echo, PATIENCE, expect, introduced, introduction, message};
use crate::limits::{BUFFER_KEPT_BYTES, HELD_BYTES_MAX, RECEIVE_BYTES};
use crate::net::budget::Budget;
use crate::zmtp::SocketType;

/// Messages of a turn, at most.
const MOST: usize = 4;
const PING: &[u8] = b"\x04\x0a\x04PING\0\x00abc";
const PONG: &[u8] = b"\x04\x08\x04PONGabc";

/// A server whose turns are answered elsewhere: here, when the test says so.
struct Away {
    echo: Echo,
    budget: Arc<Budget>,
    batch: TurnBatch<u32>,
    /// Turns that wait for more than a batch.
    parked: Vec<TurnOut<u32>>,
}

impl Away {
    fn start() -> Self {
        Self::start_within(&Budget::new(HELD_BYTES_MAX))
    }

    fn start_within(budget: &Arc<Budget>) -> Self {
        let echo = Echo::start_within(budget);
        Self { echo, budget: Arc::clone(budget), batch: TurnBatch::default(), parked: Vec::new() }
    }

    /// A client that is through its handshake.
    fn client(&mut self) -> TcpStream {
        let mut stream = self.echo.connect();
        stream.write_all(&introduction(SocketType::Dealer)).unwrap();
        let open = self.echo.connections.open_count();
        while self.echo.connections.open_count() == open {
            self.pass();
        }
        introduced(&mut stream);
        stream
    }

    /// One pass of the loop: all turns join the batch.
    fn pass(&mut self) {
        self.pass_within(PATIENCE);
    }

    fn pass_within(&mut self, patience: Option<std::time::Duration>) {
        let now = self.echo.now;
        self.echo.connections.wait(patience, || now);
        while self.echo.connections.send_out(MOST, &mut self.batch).is_some() {}
        self.echo.connections.flush();
        while let Some(gone) = self.echo.connections.gone() {
            self.echo.gone.push(gone);
        }
        while self.echo.connections.drained().is_some() {}
    }

    /// Passes until this many turns are out.
    fn pass_until_out(&mut self, turns: usize) {
        while self.echo.connections.turns_out() < turns {
            self.pass();
        }
    }

    /// Has the turns of the batch answered so, and takes them back.
    fn answer(&mut self, mut answer: impl FnMut(TurnParts<'_, u32>) -> TurnOutcome) {
        for place in 0..self.batch.len() {
            self.parked.extend(self.batch.answer(place, &self.budget, &mut answer));
        }
        self.echo.connections.take_back(&mut self.batch);
        self.echo.connections.flush();
    }

    /// Has a turn that has waited answered so.
    fn answer_late(&mut self, answer: impl FnOnce(TurnParts<'_, u32>) -> TurnOutcome) {
        let mut batch = TurnBatch::default();
        let turn = self.parked.remove(0);
        self.parked.extend(batch.answer_late(turn, &self.budget, answer));
        self.echo.connections.take_back(&mut batch);
        self.echo.connections.flush();
    }
}

/// Echoes `most` messages of a turn.
fn echo(turn: TurnParts<'_, u32>, most: usize) {
    for message in turn.messages.iter().take(most) {
        *turn.state += 1;
        let last = message.frames().len() - 1;
        message.frames().enumerate().for_each(|(number, frame)| turn.replies.push(frame, number < last));
    }
}

fn all(turn: TurnParts<'_, u32>) -> TurnOutcome {
    echo(turn, usize::MAX);
    TurnOutcome::All
}

#[test]
fn a_connection_has_one_turn_out_and_keeps_its_order() {
    let mut server = Away::start();
    let (mut one, mut other) = (server.client(), server.client());
    let numbers: Vec<Vec<u8>> = (0..11_u8).map(|number| message(&[b"id", &[number]])).collect();
    one.write_all(&numbers[..6].concat()).unwrap();
    server.pass_until_out(1);
    one.write_all(&numbers[6..].concat()).unwrap();
    other.write_all(&message(&[b"other"])).unwrap();
    server.pass_until_out(2);
    assert_eq!(server.batch.len(), 2);
    let mut sizes = Vec::new();
    while sizes.iter().sum::<usize>() < 12 {
        server.answer(|turn| {
            sizes.push(turn.messages.len());
            all(turn)
        });
        server.pass();
        // Answered by the test, or nothing is left to come.
        if sizes.iter().sum::<usize>() < 12 {
            server.pass_until_out(1);
        }
    }
    assert!(sizes.iter().all(|size| *size <= MOST), "{sizes:?}");
    expect(&mut one, &numbers.concat());
    expect(&mut other, &message(&[b"other"]));
    assert_eq!(server.echo.connections.turns_out(), 0);
}

#[test]
fn what_a_turn_leaves_is_the_next_turn() {
    let mut server = Away::start();
    let mut client = server.client();
    let numbers: Vec<Vec<u8>> = (0..5_u8).map(|number| message(&[&[number]])).collect();
    client.write_all(&numbers.concat()).unwrap();
    server.pass_until_out(1);
    server.answer(|turn| {
        echo(turn, 1);
        TurnOutcome::Some(1)
    });
    expect(&mut client, &numbers[0]);
    server.pass_until_out(1);
    server.answer(all);
    server.pass_until_out(1);
    server.answer(all);
    expect(&mut client, &numbers[1..].concat());
}

#[test]
fn what_was_answered_before_a_turn_has_to_wait_is_sent_and_the_rest_comes_late() {
    let mut server = Away::start();
    let mut client = server.client();
    let numbers: Vec<Vec<u8>> = (0..5_u8).map(|number| message(&[&[number]])).collect();
    client.write_all(&numbers[..4].concat()).unwrap();
    server.pass_until_out(1);
    let parks = |most: usize| {
        move |turn: TurnParts<'_, u32>| {
            echo(turn, most);
            TurnOutcome::Parked(most)
        }
    };
    server.answer(parks(1));
    expect(&mut client, &numbers[0]);
    assert_eq!((server.parked.len(), server.echo.connections.turns_out()), (1, 1));
    client.write_all(&numbers[4]).unwrap();
    let mut other = server.client();
    other.write_all(&message(&[b"other"])).unwrap();
    while server.batch.is_empty() {
        server.pass();
    }
    server.answer(all);
    expect(&mut other, &message(&[b"other"]));
    // It waits once more, and without having gone on.
    server.answer_late(parks(1));
    expect(&mut client, &numbers[1]);
    server.answer_late(parks(0));
    server.answer_late(|turn| {
        assert_eq!((*turn.state, turn.messages.len()), (2, 2));
        all(turn)
    });
    server.pass_until_out(1);
    server.answer(all);
    expect(&mut client, &numbers[2..].concat());
}

#[test]
fn a_connection_closes_when_its_turn_is_back_and_its_messages_are_handled() {
    let mut server = Away::start();
    for is_reset in [false, true] {
        let mut client = server.client();
        client.write_all(&message(&[b"x"])).unwrap();
        server.pass_until_out(1);
        if is_reset {
            rustix::net::sockopt::set_socket_linger(&client, Some(std::time::Duration::ZERO)).unwrap();
        }
        drop(client);
        (0..3).for_each(|_| server.pass_within(Some(std::time::Duration::from_millis(20))));
        assert_eq!((server.echo.connections.len(), server.echo.gone.len()), (1, 0), "reset: {is_reset}");
        server.answer(all);
        while server.echo.gone.is_empty() {
            server.pass();
        }
        assert!(server.echo.connections.is_empty());
        assert_eq!(server.echo.gone.remove(0).state, 1);
    }
}

#[test]
fn who_answers_learns_that_nobody_reads_the_replies() {
    let mut server = Away::start();
    let mut client = server.client();
    client.write_all(&message(&[b"x"]).repeat(2 * MOST)).unwrap();
    server.pass_until_out(1);
    rustix::net::sockopt::set_socket_linger(&client, Some(std::time::Duration::ZERO)).unwrap();
    drop(client);
    server.pass_within(Some(std::time::Duration::from_millis(20)));
    server.answer(|turn| {
        assert!(!turn.replies.is_unread(), "it has begun before");
        TurnOutcome::Some(1)
    });
    let mut answered = 1;
    while answered < 2 * MOST {
        server.pass_until_out(1);
        server.answer(|turn| {
            assert!(turn.replies.is_unread());
            answered += turn.messages.len();
            all(turn)
        });
    }
    while server.echo.gone.is_empty() {
        server.pass();
    }
}

#[test]
fn a_fault_behind_messages_that_are_out_ends_the_connection_after_them() {
    let mut server = Away::start();
    let mut client = server.client();
    client.write_all(&message(&[b"good"])).unwrap();
    client.write_all(b"\x02\0\0\0\0\xff\0\0\0 and so on").unwrap();
    server.pass_until_out(1);
    server.answer(all);
    while server.echo.gone.is_empty() {
        server.pass();
    }
    let mut said = Vec::new();
    client.read_to_end(&mut said).unwrap();
    assert_eq!(said, message(&[b"good"]));
}

#[test]
fn a_ping_is_answered_while_a_turn_is_out_and_no_message_is_lost() {
    for is_parked in [true, false] {
        let mut server = Away::start();
        let mut client = server.client();
        if !is_parked {
            // A client that is known to have heartbeats.
            client.write_all(PING).unwrap();
            server.pass();
            expect(&mut client, PONG);
        }
        client.write_all(&message(&[b"first"])).unwrap();
        server.pass_until_out(1);
        if is_parked {
            server.answer(|_| TurnOutcome::Parked(0));
        }
        // The PING comes in two pieces, in the middle of a message.
        let begun = [b"\x01\x01a", &PING[..7]].concat();
        for bytes in [&begun[..], &PING[7..], b"\x00\x01b", PING, &message(&[b"last"])] {
            client.write_all(bytes).unwrap();
            server.pass();
        }
        expect(&mut client, &PONG.repeat(2));
        if is_parked {
            server.answer_late(all);
        } else {
            server.answer(all);
        }
        server.pass_until_out(1);
        server.answer(all);
        expect(&mut client, &[message(&[b"first"]), message(&[b"a", b"b"]), message(&[b"last"])].concat());
    }
}

#[test]
fn a_connection_whose_turn_waits_is_read_as_far_as_one_receive_buffer() {
    let mut server = Away::start();
    let mut client = server.client();
    client.write_all(&message(&[b"x"])).unwrap();
    server.pass_until_out(1);
    server.answer(|_| TurnOutcome::Parked(0));
    client.set_nonblocking(true).unwrap();
    let some = message(&[&[7; 1_000]]).repeat(100);
    while client.write(&some).is_ok() {
        server.pass_within(Some(std::time::Duration::ZERO));
    }
    (0..100).for_each(|_| server.pass_within(Some(std::time::Duration::ZERO)));
    assert!(server.echo.connections.bytes() <= 3 * RECEIVE_BYTES as u64, "{}", server.echo.connections.bytes());
    client.shutdown(Shutdown::Write).unwrap();
}

#[test]
fn messages_that_are_out_stay_in_the_budget() {
    const LARGE: usize = 8 * BUFFER_KEPT_BYTES;
    let mut server = Away::start();
    let mut client = server.client();
    client.write_all(&message(&[&[7; LARGE]])).unwrap();
    server.pass_until_out(1);
    assert!(server.echo.connections.bytes() >= LARGE as u64);
    server.answer(|_| TurnOutcome::Parked(0));
    drop(client);
    (0..3).for_each(|_| server.pass_within(Some(std::time::Duration::from_millis(20))));
    assert!(server.echo.connections.bytes() >= LARGE as u64);
    server.answer_late(|_| TurnOutcome::All);
    while server.echo.gone.is_empty() {
        server.pass();
    }
    assert_eq!(server.echo.connections.bytes(), 0);
}

#[test]
fn replies_of_one_batch_stay_within_the_budget_and_those_that_have_to_wait_come_later() {
    const CLIENTS: usize = 8;
    const LARGE: usize = 1 << 20;
    let budget = Budget::new(3 << 20);
    let mut server = Away::start_within(&budget);
    let mut clients: Vec<TcpStream> = (0..CLIENTS).map(|_| server.client()).collect();
    clients.iter_mut().for_each(|client| client.write_all(&message(&[b"give"])).unwrap());
    server.pass_until_out(CLIENTS);
    let large = |turn: TurnParts<'_, u32>| {
        if turn.replies.is_tight() {
            return TurnOutcome::Starved(0);
        }
        turn.replies.push(&[7; LARGE], false);
        TurnOutcome::All
    };
    let mut starved = 0;
    server.answer(|turn| {
        let outcome = large(turn);
        starved += usize::from(outcome == TurnOutcome::Starved(0));
        outcome
    });
    assert!((3..CLIENTS).contains(&starved), "{starved}");
    let reply = message(&[&[7; LARGE]]);
    let mut left: Vec<_> = clients.into_iter().map(|client| (client, reply.len())).collect();
    let mut some = vec![0; LARGE];
    while !left.is_empty() {
        for (client, left) in &mut left {
            client.set_nonblocking(true).unwrap();
            *left -= client.read(&mut some).unwrap_or(0);
        }
        left.retain(|(_, left)| *left > 0);
        server.echo.now = server.echo.now.after(std::time::Duration::from_millis(100));
        server.pass_within(Some(std::time::Duration::from_millis(1)));
        server.answer(large);
        assert!(budget.held() <= 6 << 20, "{}", budget.held());
    }
}

/// A value of many megabytes comes in pieces, in a buffer of its connection's own, and goes out in it.
#[test]
fn a_large_message_goes_out_in_the_buffer_in_which_it_came() {
    const LARGE: usize = 16 * RECEIVE_BYTES / 10 * 9;
    let mut server = Away::start();
    let mut client = server.client();
    let large = message(&[&[7; LARGE]]);
    client.write_all(&[&large[..], &message(&[b"next"])].concat()).unwrap();
    server.pass_until_out(1);
    assert!(server.batch.received() < LARGE, "it is not among what is shared");
    server.answer(|turn| {
        assert_eq!(turn.messages.iter().next().unwrap().frames().next().unwrap().len(), LARGE);
        TurnOutcome::Some(1)
    });
    server.pass_until_out(1);
    server.answer(all);
    expect(&mut client, &message(&[b"next"]));
}

#[test]
fn an_idle_connection_keeps_no_memory_for_replies() {
    let mut server = Away::start();
    let mut client = server.client();
    client.write_all(&message(&[&[7; 500]])).unwrap();
    server.pass_until_out(1);
    server.answer(all);
    expect(&mut client, &message(&[&[7; 500]]));
    assert_eq!(server.echo.connections.bytes(), 0);
}
