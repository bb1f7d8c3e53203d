//! A queue shortens as plain lists do.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::io::Read;
use std::os::unix::net::UnixStream;

use proptest::prelude::*;

use super::*;
use crate::zmtp::encode_frame;

/// A message of two frames: `length` bytes, and a number.
fn message(number: u32, length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_frame(&mut bytes, &vec![7; length], true);
    encode_frame(&mut bytes, &number.to_be_bytes(), false);
    bytes
}

/// The bytes that the queue sends to a client.
fn drained(queue: &mut SubscriberQueue) -> Vec<u8> {
    let (near, mut far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    far.set_nonblocking(true).unwrap();
    let (near, mut out) = (OwnedFd::from(near), Vec::new());
    while !queue.is_empty() {
        queue.flush(&near, 10_000).unwrap();
        let mut some = vec![0; 100_000];
        while let Ok(count @ 1..) = far.read(&mut some) {
            out.extend_from_slice(&some[..count]);
        }
    }
    out
}

fn counted(held: &Budget) -> usize {
    usize::try_from(held.held()).unwrap()
}

#[test]
fn small_messages_are_copied_together_and_buffers_are_counted_until_nobody_has_them() {
    let held = Budget::new(u64::MAX);
    let mut queues = [SubscriberQueue::default(), SubscriberQueue::default()];
    let shared = Arc::new(SharedBuffer::new(&vec![0; 10_000], &held));
    assert_eq!(counted(&held), 10_000);
    queues.iter_mut().for_each(|queue| queue.push_shared(&shared, 1));
    drop(shared);
    assert_eq!(counted(&held), 10_000, "once, not twice");
    (0..10).for_each(|number| queues[0].push_copy(&message(number, 3), 1, &held));
    assert_eq!(queues[0].pieces.len(), 2);
    queues.iter_mut().for_each(|queue| queue.advance(queue.bytes()));
    assert!(queues.iter().all(SubscriberQueue::is_empty));
    assert_eq!(counted(&held), 0);
}

#[test]
fn what_zmtp_says_stays_between_messages() {
    let held = Budget::new(u64::MAX);
    let mut queue = SubscriberQueue::default();
    queue.push_copy(&message(1, 5), 1, &held);
    queue.push_copy(b"\x04\x05\x04PONG", 0, &held);
    queue.push_copy(b"\x04\x05\x04PONG", 0, &held);
    queue.push_copy(&message(2, 5), 1, &held);
    assert_eq!((queue.pieces.len(), queue.messages(), queue.control_bytes()), (3, 2, 14));
    let out = drained(&mut queue);
    assert_eq!(out, [&message(1, 5)[..], b"\x04\x05\x04PONG\x04\x05\x04PONG", &message(2, 5)].concat());
    assert_eq!(queue.control_bytes(), 0);
}

/// A plain model of the queue: bytes, and whether they are a message.
type Model = Vec<(Vec<u8>, bool)>;

/// Removes the newest messages that were not begun, as long as there are too many of them or too many bytes.
fn shortened(mut model: Model, begun: usize, messages: usize, bytes: usize) -> (Model, usize) {
    let mut lost = 0;
    loop {
        let count = model.iter().filter(|(_, is_message)| *is_message).count();
        let waiting = model.iter().map(|(bytes, _)| bytes.len()).sum::<usize>() - begun;
        let newest = model.iter().rposition(|(_, is_message)| *is_message);
        match newest.filter(|newest| *newest > 0 || begun == 0) {
            Some(newest) if count > messages || waiting > bytes => model.remove(newest),
            _ => return (model, lost),
        };
        lost += 1;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// However much was sent before, the queue keeps ZMTP's own bytes and the oldest whole messages, as many as are
    /// allowed.
    #[test]
    fn a_queue_is_shortened_by_its_newest_messages(
        pieces in prop::collection::vec((0_usize..20, 0_usize..400, any::<bool>()), 1..12),
        taken in 0_usize..20_000,
        keep in 0_usize..60,
        is_tightened in any::<bool>(),
        keep_bytes in prop_oneof![Just(usize::MAX), 0_usize..20_000],
    ) {
        let held = Budget::new(u64::MAX);
        let (mut queue, mut model, mut count) = (SubscriberQueue::default(), Model::new(), 0);
        for (messages, length, is_shared) in pieces {
            let numbers = count..count + u32::try_from(messages).unwrap();
            count = numbers.end;
            let some: Vec<_> = numbers.map(|number| message(number, length)).collect();
            let bytes = if messages == 0 { vec![5; length] } else { some.concat() };
            if is_shared && messages > 0 {
                queue.push_shared(&Arc::new(SharedBuffer::new(&bytes, &held)), messages);
            } else {
                let (before, cost) = (counted(&held), queue.cost_of_copy(bytes.len()));
                queue.push_copy(&bytes, messages, &held);
                prop_assert!(messages == 0 || counted(&held) == before + cost);
            }
            model.extend(if messages == 0 { vec![bytes] } else { some }.into_iter().map(|part| (part, messages > 0)));
        }
        model.retain(|(part, _)| !part.is_empty());
        let taken = taken.min(queue.bytes());
        queue.advance(taken);
        let mut begun = taken;
        while model.first().is_some_and(|(part, _)| part.len() <= begun) {
            begun -= model.remove(0).0.len();
        }
        let control = |model: &Model| model.iter().filter(|part| !part.1).map(|part| part.0.len()).sum::<usize>();
        let (expected, lost) = shortened(model, begun, keep, keep_bytes);
        prop_assert_eq!(queue.shorten(keep, keep_bytes), lost);
        if is_tightened {
            queue.tighten(&held);
            prop_assert!(counted(&held) <= 2 * queue.bytes() + 2 * 404 + queue.control_bytes());
        }
        prop_assert_eq!(queue.messages(), expected.iter().filter(|(_, is_message)| *is_message).count());
        // A partly sent piece counts until all of it is sent.
        let begun_control = if expected.first().is_some_and(|part| !part.1) { begun } else { 0 };
        prop_assert!(queue.control_bytes() >= control(&expected) - begun_control);
        let expected: Vec<u8> = expected.into_iter().flat_map(|(part, _)| part).skip(begun).collect();
        prop_assert_eq!(queue.bytes(), expected.len());
        prop_assert_eq!(drained(&mut queue), expected);
        prop_assert_eq!((counted(&held), queue.bytes(), queue.messages(), queue.control_bytes()), (0, 0, 0, 0));
    }

    /// If messages lack room, the queue keeps those that fit, and the begun one.
    #[test]
    fn of_what_finds_no_room_the_begun_message_is_kept_and_what_fits(
        lengths in prop::collection::vec(0_usize..300, 1..5),
        sent in 0_usize..1_500,
        most in 0_usize..1_500,
    ) {
        let held = Budget::new(u64::MAX);
        let messages: Vec<_> = (0_u32..).zip(lengths).map(|(number, length)| message(number, length)).collect();
        let bytes = messages.concat();
        let sent = sent.min(bytes.len() - 1);
        let begins: Vec<usize> = (0..=messages.len()).map(|count| messages[..count].concat().len()).collect();
        // The first message that was not sent whole, and how many continue from there.
        let first = begins.iter().rposition(|begin| *begin <= sent).unwrap();
        let is_begun = begins[first] < sent;
        let fits = |count: &usize| begins[*count] - begins[first] <= most || (is_begun && *count == first + 1);
        let kept = (first..=messages.len()).take_while(fits).last().unwrap_or(first);
        let mut queue = SubscriberQueue::default();
        prop_assert_eq!(queue.push_fitting(&bytes, sent, most, &held), kept);
        prop_assert_eq!((queue.messages(), counted(&held)), (kept - first, begins[kept] - begins[first]));
        let more = message(9, 7);
        queue.push_copy(&more, 1, &held);
        prop_assert_eq!(queue.shorten(kept - first, usize::MAX), 1, "what follows is a message of its own");
        prop_assert_eq!(drained(&mut queue), &bytes[sent..begins[kept].max(sent)]);
    }
}
