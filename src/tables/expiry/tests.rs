//! The expiry thread's sleep, step by step. Other threads' steps run where the thread would be parked.

#![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

use super::*;
use crate::limits::REST_MAX;
use crate::tables::slot::EntryBox;
use crate::tables::tests::waiting::counting_waker;
use crate::tables::tests::{in_seconds, settings, with_table};
use crate::tables::{BackgroundThreads, Changes, Durability, Tables, TablesConfig};

const NOW: Now = Now::from_millis(1);

fn thread_of(settings: TablesConfig) -> (Tables, Expiry, Changes) {
    let (tables, BackgroundThreads { expiry, changes, .. }) = with_table(settings);
    (tables, expiry, changes)
}

/// A slot with an element that is in no table.
fn slot() -> SlotHandle {
    let mut entry = EntryBox::new(b"value");
    entry.stamp(1, NEVER);
    let slot = SlotHandle::new(0, b"key", entry);
    slot.slot().extend(0);
    slot
}

/// A message about a slot that is armed at `deadline`.
fn due(deadline: u64) -> ExpiryMessage {
    let slot = slot();
    assert!(slot.slot().arm(deadline));
    ExpiryMessage::Arm(slot)
}

#[test]
fn no_sleep_is_longer_than_what_is_left_until_the_deadline() {
    let millis = Duration::from_millis;
    for left in [0, 1, 99, 100, 101, 130, 1_000, 1_099, 1_101, 1_000_000].map(millis) {
        for patience in [0, 100, 120, 5_000].map(millis) {
            let (first, second) = naps(left, patience);
            assert!(first + second <= left, "{left:?}, {patience:?}");
            assert!(first <= patience && first <= SLEEP_MAX && second <= SLEEP_MAX);
            assert!(first == left || first == patience || first == SLEEP_MAX, "no shorter than need be");
        }
    }
    assert_eq!(naps(millis(130), millis(120)), (millis(120), millis(10)));
}

/// The naps that the thread takes until `deadline`. `meanwhile` runs at each, and gets its number.
fn sleep(expiry: &mut Expiry, deadline: u64, mut meanwhile: impl FnMut(usize, &ExpirySender)) -> Vec<Duration> {
    let shared = Arc::clone(&expiry.shared);
    let mut naps = Vec::new();
    expiry.sleep(deadline, NOW, |nap| {
        assert!(shared.expiry.sleep_state.is_asleep(), "a message can wake it");
        naps.push(nap);
        meanwhile(naps.len(), &shared.expiry);
    });
    assert!(!shared.expiry.sleep_state.is_asleep());
    naps
}

#[test]
fn without_a_message_the_thread_sleeps_once_and_frees_memory_before_it_sleeps_on() {
    let (_tables, mut expiry, _changes) = thread_of(settings());
    assert_eq!(sleep(&mut expiry, NEVER, |_, _| {}), [REST_MAX]);
    assert_eq!(expiry.slept_until, 0);
}

#[test]
fn a_message_that_is_there_already_keeps_the_thread_awake() {
    let (tables, mut expiry, _changes) = thread_of(settings());
    tables.0.expiry.send(due(10), 10);
    assert!(sleep(&mut expiry, NEVER, |_, _| {}).is_empty());
}

#[test]
fn a_message_about_a_later_deadline_does_not_shorten_the_sleep() {
    let (tables, mut expiry, _changes) = thread_of(settings());
    let naps = sleep(&mut expiry, 601, |nap, sender| {
        if nap == 1 {
            sender.send(due(700), 700);
        }
    });
    assert_eq!(naps, [REST_MAX, Duration::from_millis(600) - REST_MAX]);
    assert_eq!(expiry.slept_until, 0, "the deadline has come, and no message was to come before it");
    expiry.pass(NOW);
    assert_eq!((expiry.wheel.len(), tables.metrics().lost_wakeups), (1, 0));
}

#[test]
fn a_message_about_an_earlier_deadline_ends_the_sleep() {
    let (tables, mut expiry, _changes) = thread_of(settings());
    assert_eq!(sleep(&mut expiry, NEVER, |_, sender| sender.send(due(10), 10)), [REST_MAX]);
    let naps = sleep(&mut expiry, NEVER, |_, _| {});
    assert!(naps.is_empty(), "the message is not taken yet");
    expiry.pass(NOW);
    let (waker, woken) = counting_waker();
    tables.0.expiry.sleeper().set_waker(waker);
    let naps =
        sleep(&mut expiry, 5_000, |nap, sender| sender.send(due(if nap == 1 { 6_000 } else { 20 }), 20 * nap as u64));
    assert_eq!((naps.len(), woken()), (1, 1));
    assert_eq!(expiry.slept_until, 0);
}

#[test]
fn a_message_that_should_have_woken_the_thread_is_counted_when_its_sleep_is_over() {
    for (level, deadline, lost) in [(NEVER, 10, 1), (5_000, 4_999, 1), (5_000, 5_000, 0)] {
        let (tables, mut expiry, _changes) = thread_of(settings());
        let naps = sleep(&mut expiry, level, |nap, sender| {
            if nap == 1 {
                // Its sender does not wake the thread, for whatever deadline.
                sender.dues.send(due(deadline)).unwrap();
            }
        });
        assert_eq!((naps, expiry.slept_until), (vec![REST_MAX, SLEEP_MAX], level));
        expiry.pass(NOW);
        assert_eq!((tables.metrics().lost_wakeups, tables.metrics().timers), (lost, 1), "{deadline} after {level}");
        tables.0.expiry.send(due(10), 10);
        expiry.pass(NOW);
        assert_eq!(tables.metrics().lost_wakeups, lost, "a sleep counts once");
    }
}

#[test]
fn a_message_that_comes_late_in_the_sleep_ends_it_uncounted() {
    let (tables, mut expiry, _changes) = thread_of(settings());
    let naps = sleep(&mut expiry, 5_000, |nap, sender| {
        let deadline = if nap == 1 { 6_000 } else { 10 };
        sender.send(due(deadline), deadline);
    });
    assert_eq!((naps, expiry.slept_until), (vec![REST_MAX, SLEEP_MAX], 0));
    expiry.pass(NOW);
    assert_eq!((tables.metrics().lost_wakeups, expiry.wheel.len()), (0, 2));
}

#[test]
fn many_messages_wake_the_thread_whatever_their_deadlines() {
    let (tables, expiry, _changes) = thread_of(settings());
    let (waker, woken) = counting_waker();
    let sender = &tables.0.expiry;
    sender.sleeper().set_waker(waker);
    assert!(expiry.falls_asleep(5_000));
    let slot = slot();
    for _ in 0..DUES_MAX / 2 {
        assert!(sender.try_arm(slot.slot().handle(), 10_000).is_ok());
    }
    assert_eq!(woken(), 0);
    assert!(sender.try_arm(slot.slot().handle(), 10_000).is_ok());
    assert_eq!(woken(), 1);
}

#[test]
fn a_slot_gets_a_record_only_while_it_is_alive_and_armed() {
    let (_tables, mut expiry, _changes) = thread_of(settings());
    let (unarmed, dead) = (slot(), slot());
    expiry.take_due(unarmed.slot().handle());
    assert_eq!(expiry.wheel.len(), 0, "an earlier message was the last");
    assert!(dead.slot().arm(10));
    let guard = crossbeam::epoch::pin();
    assert!(dead.slot().kill(dead.slot().load(&guard), 2, &guard));
    expiry.take_due(dead.slot().handle());
    assert_eq!(expiry.wheel.len(), 0, "the reaper may have read that it is not armed");
    assert!(unarmed.slot().arm(10));
    expiry.take_due(unarmed.slot().handle());
    assert_eq!(expiry.wheel.len(), 1);
    drop_record(&mut expiry.wheel, unarmed.slot());
    assert_eq!(expiry.wheel.len(), 0);
}

#[test]
fn without_credits_the_thread_sleeps_until_the_publisher_gives_some_back() {
    let (tables, mut expiry, mut changes) = thread_of(TablesConfig { changes_per_writer: 56, ..settings() });
    for key in 0..200_u8 {
        tables.session().batch(NOW).update(b"t", &[key], b"value", in_seconds(NOW, 1)).unwrap();
    }
    let mut publish = || changes.drain(1_000, &mut |_, _, _| {}).taken;
    assert_eq!(publish(), 200);
    let expire = |expiry: &mut Expiry| {
        while expiry.pass(Now::from_millis(2_000)) != NextPass::OutOfCredits {
            assert!(tables.metrics().expired < 200, "there are not so many credits");
        }
        tables.metrics().expired
    };
    assert_eq!(expire(&mut expiry), 56);
    let mut naps = Vec::new();
    expiry.wait_for_credits(|nap| {
        naps.push(nap);
        assert!(tables.0.expiry.sleep_state.is_asleep(), "many messages can wake it");
        assert_eq!(publish(), 56);
    });
    assert_eq!((naps, tables.metrics().writer_waits), (vec![WAIT_RECHECK], 1));
    assert!(!tables.0.expiry.sleep_state.is_asleep());
    assert_eq!(expire(&mut expiry), 112);
    assert_eq!(publish(), 56);
    expiry.wait_for_credits(|_| unreachable!("there are credits"));
    assert_eq!((expire(&mut expiry), tables.metrics().lost_wakeups), (168, 0));
}

#[test]
fn the_thread_expires_what_is_due_until_the_tables_are_closed() {
    let (tables, expiry, _changes) = thread_of(settings());
    let (waker, woken) = counting_waker();
    tables.0.expiry.sleeper().set_waker(waker);
    tables.session().batch(NOW).update(b"t", b"key", b"value", in_seconds(NOW, 1)).unwrap();
    let mut readings = 0;
    expiry.run(|| {
        readings += 1;
        assert!(readings < 10, "the end is near");
        if readings == 3 {
            tables.0.expiry.close();
        }
        Now::from_millis(2_000)
    });
    assert_eq!((tables.metrics().expired, woken()), (1, 1));
}

#[test]
fn a_message_about_a_deadline_that_was_slept_through_is_a_lost_wake_up() {
    let (tables, mut threads) = Tables::new(TablesConfig {
        expected_keys: 0,
        memory_max: 1 << 20,
        tables_max: 1,
        durability: Durability::None,
        changes_per_writer: 64,
        version_base: 1,
        clock_start: 0,
    });
    let (mut session, now) = (tables.session(), Now::from_millis(1));
    session.batch(now).create_table(b"t", b"t").expect("it is the first table");
    for (key, slept_until, lost) in [(b"a", 1_001, 0), (b"b", 1_002, 1)] {
        session.batch(now).update(b"t", key, b"value", in_seconds(now, 1)).expect("there is room");
        threads.expiry.slept_until = slept_until;
        threads.expiry.pass(now);
        assert_eq!(tables.metrics().lost_wakeups, lost, "the deadline is at 1,001");
    }
}
