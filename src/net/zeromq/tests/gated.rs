//! Replies that wait for the disk.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

use super::super::WaitingReply;
use super::{Echo, expect, introduced, introduction, message};
use crate::limits::{BATCH_MAX, OUTBOX_BYTES_MAX};
use crate::net::zeromq::{TurnBatch, TurnOutcome};
use crate::zmtp::SocketType;

impl Echo {
    /// A client that is through its handshake.
    fn client(&mut self) -> TcpStream {
        let mut stream = self.connect();
        stream.write_all(&introduction(SocketType::Dealer)).unwrap();
        let open = self.connections.open_count();
        while self.connections.open_count() == open {
            self.pass();
        }
        introduced(&mut stream);
        stream
    }

    /// What is on disk becomes known.
    fn synced(&mut self, epoch: u64) {
        self.connections.open_gates(epoch);
        self.connections.flush();
    }
}

/// The client has received nothing more.
fn expect_none(stream: &mut TcpStream) {
    stream.set_nonblocking(true).unwrap();
    assert_eq!(stream.read(&mut [0]).map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
    stream.set_nonblocking(false).unwrap();
}

#[test]
fn requests_behind_a_reply_that_waits_are_carried_out_and_one_sync_answers_all() {
    let mut echo = Echo::start();
    let mut stream = echo.client();
    echo.epoch = 7;
    stream.write_all(&message(&[b"held"]).repeat(64)).unwrap();
    echo.receive(64);
    echo.epoch = 0;
    stream.write_all(&message(&[b"free"])).unwrap();
    echo.receive(65);
    echo.synced(6);
    assert_eq!(echo.connections.awaited(), Some(7));
    expect_none(&mut stream);
    let mut other = echo.client();
    other.write_all(&message(&[b"other"])).unwrap();
    echo.receive(66);
    expect(&mut other, &message(&[b"other"]));
    echo.synced(7);
    assert_eq!(echo.connections.awaited(), None);
    expect(&mut stream, &[message(&[b"held"]).repeat(64), message(&[b"free"])].concat());
}

/// The epoch came to the disk between the answer and the look of the thread that sends.
#[test]
fn a_reply_that_is_on_disk_when_it_comes_does_not_wait() {
    let mut echo = Echo::start();
    let mut stream = echo.client();
    echo.synced(7);
    echo.epoch = 7;
    stream.write_all(&message(&[b"held"])).unwrap();
    echo.receive(1);
    assert_eq!(echo.connections.awaited(), None);
    expect(&mut stream, &message(&[b"held"]));
}

#[test]
fn a_client_with_many_bytes_that_wait_is_not_read_from_until_they_are_sent() {
    let mut echo = Echo::start();
    let mut stream = echo.client();
    echo.epoch = 1;
    let body = vec![7; OUTBOX_BYTES_MAX / 2];
    let sent = message(&[&body]);
    for _ in 0..2 {
        stream.write_all(&sent).unwrap();
    }
    echo.receive(2);
    stream.write_all(&message(&[b"later"])).unwrap();
    for _ in 0..3 {
        echo.wake_signal.raise();
        echo.pass();
    }
    assert_eq!(echo.received.len(), 2);
    expect_none(&mut stream);
    let expected = [sent.repeat(2), message(&[b"later"])].concat();
    let reader = std::thread::spawn(move || expect(&mut stream, &expected));
    echo.synced(1);
    while !reader.is_finished() {
        echo.wake_signal.raise();
        echo.pass();
    }
    reader.join().unwrap();
}

#[test]
fn a_client_that_sends_no_more_gets_the_replies_that_wait() {
    let mut echo = Echo::start();
    let mut stream = echo.client();
    echo.epoch = 1;
    stream.write_all(&message(&[b"last"])).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    echo.receive(1);
    for _ in 0..3 {
        echo.wake_signal.raise();
        echo.pass();
    }
    assert_eq!((echo.gone.len(), echo.connections.awaited()), (0, Some(1)), "it is not closed");
    echo.synced(1);
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    assert_eq!(all, message(&[b"last"]));
    assert!(echo.connections.is_empty());
}

#[test]
fn a_refusal_takes_the_place_of_replies_whose_disk_has_failed() {
    let mut echo = Echo::start();
    let mut stream = echo.client();
    for (epoch, text) in [(0, "free"), (2, "gone"), (0, "clean")] {
        echo.epoch = epoch;
        stream.write_all(&message(&[text.as_bytes()])).unwrap();
        echo.receive(echo.received.len() + 1);
    }
    echo.connections.refuse_gated(|_| message(&[b"NO"]));
    echo.connections.flush();
    expect(&mut stream, &[message(&[b"free"]), message(&[b"NO"]), message(&[b"clean"])].concat());
    assert_eq!(echo.connections.awaited(), None);
}

#[test]
fn a_connection_with_a_portion_of_a_reply_whose_disk_has_failed_is_closed() {
    let mut echo = Echo::start();
    let mut stream = echo.client();
    stream.write_all(&message(&[b"x"])).unwrap();
    echo.receive(1);
    expect(&mut stream, &message(&[b"x"]));
    let (_, outbox) = echo.connections.connection(echo.received[0]).unwrap();
    outbox.push(b"some of it", true);
    outbox.hold_back(WaitingReply { begin: outbox.end() - 12, epoch: 3, envelope: None });
    echo.connections.connection(echo.received[0]).unwrap();
    echo.connections.refuse_gated(|_| message(&[b"NO"]));
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    assert!(echo.connections.is_empty());
}

#[test]
fn replies_of_another_thread_wait_in_their_connection() {
    let mut echo = Echo::start();
    let mut stream = echo.client();
    let (mut batch, now) = (TurnBatch::default(), echo.now);
    stream.write_all(&message(&[b"a"]).repeat(3)).unwrap();
    let mut answered = 0;
    while answered < 3 {
        echo.connections.wait(None, || now);
        while echo.connections.send_out(BATCH_MAX, &mut batch).is_some() {}
        for place in 0..batch.len() {
            let rest = batch.answer(place, &crate::net::budget::Budget::new(1 << 20), |parts| {
                for message in parts.messages.iter() {
                    let begin = parts.replies.end();
                    message.frames().for_each(|frame| parts.replies.push(frame, false));
                    answered += 1;
                    parts.replies.hold_back(WaitingReply { begin, epoch: answered, envelope: Some(0) });
                }
                TurnOutcome::All
            });
            assert!(rest.is_none());
        }
        echo.connections.take_back(&mut batch);
        echo.connections.flush();
    }
    expect_none(&mut stream);
    for epoch in 1..=3 {
        assert_eq!(echo.connections.awaited(), Some(3));
        echo.synced(epoch);
        expect(&mut stream, &message(&[b"a"]));
    }
    assert_eq!(echo.connections.awaited(), None);
}
