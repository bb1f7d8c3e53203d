//! One connection by itself: its buffers, and what it waits for.

use std::ops::Range;

use super::super::connection::{Connection, MemoryWait, ReceivedMessages};
use super::super::protocol::{Arrival, InputBounds};
use super::*;
use crate::zmtp::Messages;

const BOUNDS: MessageBounds = MessageBounds { frame_bytes: 1 << 20, frames: 64, bytes: 2 << 20 };

/// A connection that has greeted its client, and the client's end.
fn greeted() -> (Connection<()>, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.set_nonblocking(true).unwrap();
    (Connection::greet(Arrival::of(ours), (), 1, Now::from_millis(1), None), theirs)
}

/// An open connection. Neither side has bytes that the other one has not read.
fn opened() -> (Connection<()>, UnixStream) {
    let (mut connection, mut client) = greeted();
    assert_eq!(take(&mut connection, &mut client, &introduction(SocketType::Dealer), 8), (0, false));
    assert!(connection.is_open() && !connection.flush());
    read_all(&mut client);
    (connection, client)
}

/// Reads the bytes that have come to a client, and returns their number.
fn read_all(client: &mut UnixStream) -> usize {
    let mut bytes = Vec::new();
    assert_eq!(client.read_to_end(&mut bytes).unwrap_err().kind(), ErrorKind::WouldBlock);
    bytes.len()
}

/// The client sends these bytes, and the connection receives them, cuts at most `most` messages and holds none.
/// Returns the number of messages, and whether there are bytes that were not looked at.
fn take(connection: &mut Connection<()>, client: &mut UnixStream, bytes: &[u8], most: usize) -> (usize, bool) {
    let (mut shared, mut messages) = (Vec::new(), Messages::default());
    client.write_all(bytes).unwrap();
    let left = connection.take(true, &InputBounds::of_messages(BOUNDS), most, &mut shared, &mut messages).unwrap();
    (messages.len(), connection.input.keep(&left, &shared))
}

/// This many messages of one byte each, with their bytes.
fn messages(count: u8) -> ReceivedMessages {
    let bytes: Vec<u8> = (0..count).flat_map(|number| message(&[&[number]])).collect();
    let mut messages = Messages::default();
    let mut cutter = crate::zmtp::MessageCutter::default();
    cutter.cut(&bytes, &BOUNDS, count.into(), &mut messages, &mut Vec::new()).unwrap();
    ReceivedMessages { messages, bytes }
}

#[test]
fn a_connection_counts_the_memory_of_all_that_it_keeps() {
    let (mut connection, mut client) = opened();
    assert_eq!((connection.kept(), connection.bytes()), (0, 0));
    connection.outbox.push_encoded(&[7; 100]);
    assert_eq!((connection.kept(), connection.bytes()), (100, 100));
    connection.input.held = Some(Box::new(messages(5)));
    let held = connection.input.held.as_ref().unwrap();
    let (capacity, positions, length) = (held.bytes.capacity(), held.messages.kept_bytes(), held.bytes.len());
    assert!(capacity > 0 && positions > 0);
    assert_eq!((connection.kept(), connection.bytes()), (100 + capacity + positions, 100 + length));
    connection.input.held = None;
    // Twenty empty frames of a message that is not finished: their positions are kept as well.
    assert_eq!(take(&mut connection, &mut client, &b"\x01\0".repeat(20), 8), (0, false));
    let frames = connection.kept() - 100 - connection.unfinished();
    assert!(frames >= 20 * size_of::<Range<usize>>(), "{frames}");
}

#[test]
fn bytes_in_both_directions_move_a_connection() {
    let (mut connection, mut client) = opened();
    let greeting = introduction(SocketType::Router).len() as u64;
    assert_eq!(connection.moved(), greeting);
    take(&mut connection, &mut client, b"\x00\x09begun", 8);
    assert_eq!((connection.moved(), connection.unfinished()), (greeting + 7, 7));
    connection.outbox.push_encoded(&[7; 100]);
    assert_eq!(connection.moved(), greeting + 7, "nothing is sent");
    connection.flush();
    assert_eq!((connection.moved(), read_all(&mut client)), (greeting + 107, 100));
}

#[test]
fn messages_wait_for_this_server_if_they_are_parked_or_throttled() {
    let (mut connection, _client) = opened();
    let mut waits = |parked, throttled, held| {
        let memory = if throttled { MemoryWait::Throttled } else { MemoryWait::No };
        (connection.turn.is_parked, connection.turn.memory) = (parked, memory);
        connection.input.held = (held > 0).then(|| Box::new(messages(held)));
        (connection.waits(), connection.is_served(), connection.input.is_held())
    };
    assert_eq!(waits(false, false, 0), (false, true, false));
    assert_eq!(waits(false, false, 1), (false, true, true));
    assert_eq!(waits(false, true, 0), (false, false, false));
    assert_eq!(waits(false, true, 1), (true, false, true));
    assert_eq!(waits(true, false, 0), (true, false, false));
    assert_eq!(waits(true, true, 1), (true, false, true));
}

#[test]
fn of_messages_those_that_were_not_taken_are_held() {
    let (mut connection, _client) = opened();
    let ReceivedMessages { messages, bytes } = messages(3);
    connection.input.hold(1, messages.view(&bytes));
    let held = connection.input.held.as_ref().unwrap();
    let frames: Vec<Vec<&[u8]>> = held.messages.iter(&held.bytes).map(|message| message.frames().collect()).collect();
    assert_eq!(frames, [[[1]], [[2]]]);
    connection.input.hold(3, messages.view(&bytes));
    assert!(connection.input.held.is_none());
}

#[test]
fn bytes_behind_the_last_message_of_a_turn_are_reported() {
    let (mut connection, mut client) = opened();
    let two = message(&[b"x"]).repeat(2);
    assert_eq!(take(&mut connection, &mut client, &two, 2), (2, false));
    assert!(!connection.input.is_held());
    assert_eq!(take(&mut connection, &mut client, &two, 1), (1, true));
    assert!(connection.input.is_held());
}

#[test]
fn a_connection_pauses_above_a_full_outbox_and_continues_at_half_of_it() {
    let (mut connection, mut client) = opened();
    connection.outbox.push_encoded(&vec![7; OUTBOX_BYTES_MAX]);
    assert!(!connection.flush() && !connection.outbox.is_paused, "not more than there may be");
    assert!(!connection.outbox.is_empty(), "the client does not read");
    let left = OUTBOX_BYTES_MAX + 1 - connection.outbox.len();
    connection.outbox.push_encoded(&vec![7; left]);
    assert!(!connection.flush() && connection.outbox.is_paused && !connection.is_served());
    connection.outbox.discard();
    connection.outbox.push_encoded(&vec![7; OUTBOX_BYTES_MAX / 2 + 1]);
    assert!(!connection.flush() && connection.outbox.is_paused, "more than half");
    connection.outbox.discard();
    connection.outbox.push_encoded(&vec![7; OUTBOX_BYTES_MAX / 2]);
    assert!(connection.flush() && !connection.outbox.is_paused);
    assert_eq!(connection.outbox.len(), OUTBOX_BYTES_MAX / 2, "the client has not read");
    read_all(&mut client);
    assert!(!connection.flush(), "it was not full");
}

#[test]
fn nothing_is_sent_after_a_discard() {
    let (mut connection, mut client) = opened();
    connection.outbox.push_encoded(&[7; 100]);
    connection.outbox.give_up();
    assert!(connection.outbox.is_empty());
    connection.outbox.push_encoded(&[7; 100]);
    connection.flush();
    assert_eq!((connection.outbox.len(), read_all(&mut client)), (0, 0));
}

#[test]
fn a_connection_is_settled_in_its_handshake_or_without_bytes_on_their_way() {
    let (connection, _client) = greeted();
    assert!(connection.is_settled(), "its greeting may be lost");
    let (mut connection, mut client) = opened();
    assert!(connection.is_settled());
    connection.outbox.push_encoded(b"reply");
    assert!(!connection.is_settled(), "unsent");
    connection.flush();
    assert!(!connection.is_settled(), "unread");
    read_all(&mut client);
    assert!(connection.is_settled());
    client.write_all(b"\x00\x05be").unwrap();
    assert!(!connection.is_settled(), "not received");
    take(&mut connection, &mut client, b"gun", 8);
    assert!(connection.is_settled(), "a whole message, which was handled");
    take(&mut connection, &mut client, b"\x00\x05be", 8);
    assert!(!connection.is_settled(), "not handled");
}

/// A thread may have 65,536 of them. It had 568 bytes before its states were types.
#[test]
fn a_connection_is_small() {
    assert!(size_of::<Connection<()>>() <= 528);
}
