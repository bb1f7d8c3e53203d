//! The promises of the wheel one by one, above all at the ends of windows, of rings and of time.

#![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

mod model;

use std::num::NonZeroU64;
use std::rc::Rc;

use super::*;

/// Ticks at which windows and rings of all levels begin, with the ticks before and after them.
fn edges() -> impl Iterator<Item = u64> {
    let starts = [12, 13, 24, 25, 36, 37, 48, 49].map(|bits| 1_u64 << bits);
    let more = [0, 3 << 12, 3 << 24, (1 << 24) + (1 << 12), 1 << 43];
    starts.into_iter().chain(more).flat_map(|tick| tick.saturating_sub(1)..=tick + 1)
}

/// The deadlines that come up at `now`. Advances the wheel until it is done.
fn advance(wheel: &mut Wheel<u64>, now: u64) -> Vec<u64> {
    let mut up = Vec::new();
    while wheel.advance(now, 7, |_, deadline, _| up.push(deadline)) == Progress::More {}
    up
}

fn wheel_with(now: u64, deadlines: impl IntoIterator<Item = u64>) -> Wheel<u64> {
    let mut wheel = Wheel::new(now);
    for deadline in deadlines {
        wheel.arm(deadline, deadline);
    }
    wheel
}

#[test]
fn a_timer_comes_up_at_its_tick_and_not_before_wherever_windows_end() {
    for start in edges() {
        for deadline in edges().map(|ticks| start + ticks + 1) {
            let mut wheel = wheel_with(start, [deadline]);
            assert!(advance(&mut wheel, deadline - 1).is_empty());
            assert_eq!(wheel.next_wake(), Some(deadline));
            assert_eq!(advance(&mut wheel, deadline), [deadline]);
            assert_eq!(wheel.next_wake(), None);
        }
    }
}

#[test]
fn one_jump_over_all_levels_lets_timers_come_up_by_tick() {
    for start in edges() {
        let mut expected: Vec<u64> = edges().map(|ticks| start + ticks).collect();
        let mut wheel = wheel_with(start, expected.iter().copied().rev());
        expected.sort_unstable();
        assert_eq!(advance(&mut wheel, u64::MAX), expected);
    }
}

#[test]
fn a_deadline_that_has_passed_comes_up_in_the_next_call() {
    let mut wheel = wheel_with(10_000, [0, 9_999, 10_000, 10_001]);
    assert_eq!(wheel.next_wake(), Some(10_000));
    let mut up = advance(&mut wheel, 10_000);
    up.sort_unstable();
    assert_eq!(up, [0, 9_999, 10_000]);
    wheel.arm(5, 5);
    assert_eq!(advance(&mut wheel, 10_000), [5]);
    assert_eq!(wheel.next_wake(), Some(10_001));
}

#[test]
fn time_that_goes_back_counts_as_the_latest_time() {
    let mut wheel = Wheel::new(10_000);
    wheel.arm(9_000, 9_000);
    wheel.arm(10_001, 10_001);
    assert_eq!(advance(&mut wheel, 3), [9_000]);
    assert_eq!(wheel.next_wake(), Some(10_001));
}

#[test]
fn the_end_of_time_is_a_tick_like_any_other() {
    let mut wheel = wheel_with(u64::MAX - 5_000, [u64::MAX - 1, u64::MAX]);
    assert_eq!(advance(&mut wheel, u64::MAX - 1), [u64::MAX - 1]);
    assert_eq!(advance(&mut wheel, u64::MAX), [u64::MAX]);
    let mut wheel = wheel_with(0, [u64::MAX]);
    assert!(advance(&mut wheel, u64::MAX - 1).is_empty());
    assert_eq!(advance(&mut wheel, u64::MAX), [u64::MAX]);
}

#[test]
fn a_mass_on_one_tick_comes_up_in_pieces_of_the_budget() {
    let mut wheel = wheel_with(0, [500; 10_000]);
    let mut calls = 0;
    let mut up = 0;
    loop {
        let before = up;
        let progress = wheel.advance(500, 64, |_, _, _| up += 1);
        calls += 1;
        assert!(up - before <= 64);
        if progress == Progress::Done {
            break;
        }
    }
    assert_eq!((up, calls), (10_000, 10_000 / 64 + 1));
}

#[test]
fn timers_that_are_due_come_before_the_next_window_is_prepared() {
    let far = [9_000; 1_000];
    let mut wheel = wheel_with(0, far.into_iter().chain([4_100; 10]));
    let mut up = 0;
    assert_eq!(wheel.advance(4_100, 15, |_, _, _| up += 1), Progress::More);
    assert_eq!(up, 10);
    assert_eq!(wheel.next_wake(), Some(4_100));
}

#[test]
fn a_window_that_was_prepared_costs_nothing_when_it_begins() {
    let mut wheel = wheel_with(0, 8_192..12_288);
    assert_eq!(wheel.next_wake(), Some(4_096));
    assert!(advance(&mut wheel, 4_096).is_empty());
    let mut up = 0;
    assert_eq!(wheel.advance(8_192, 1, |_, _, _| up += 1), Progress::Done);
    assert_eq!(up, 1);
}

#[test]
fn a_lone_timer_wakes_once_for_each_level_that_it_passes() {
    for (deadline, wakes) in [(8_191, 1), (3_600_000, 2), (86_400_000, 3), (1 << 43, 4)] {
        let mut wheel = wheel_with(0, [deadline]);
        let mut count = 0;
        while let Some(wake) = wheel.next_wake() {
            let up = advance(&mut wheel, wake);
            assert!(up.is_empty() || wake == deadline);
            count += 1;
        }
        assert_eq!(count, wakes);
    }
}

#[test]
fn churn_of_long_timers_does_not_grow_the_wheel() {
    let mut wheel = Wheel::new(0);
    let mut ids: Vec<TimerId> = (0..10_000).map(|n| wheel.arm(3_600_000 + n, n)).collect();
    let bytes = wheel.bytes();
    for round in 1..100 {
        for (id, n) in ids.iter_mut().zip(0..) {
            assert_eq!(wheel.cancel(*id), Some(n));
            *id = wheel.arm(3_600_000 + round * 1_000 + n, n);
        }
        assert!(advance(&mut wheel, round * 1_000).is_empty());
    }
    assert_eq!((wheel.len(), wheel.bytes()), (10_000, bytes));
}

#[test]
fn an_id_becomes_a_number_of_its_own_and_an_id_again() {
    let mut wheel = Wheel::new(0);
    let ids: Vec<TimerId> = (0..3).map(|payload| wheel.arm(100, payload)).collect();
    for (id, payload) in ids.iter().zip(0..) {
        assert_eq!(wheel.cancel(TimerId::from_number(id.number())), Some(payload));
    }
}

#[test]
fn a_record_takes_less_than_32_bytes_when_there_are_many() {
    let mut wheel = Wheel::new(0);
    for number in 0..1_000_000_u64 {
        wheel.arm(number.wrapping_mul(0x9E37_79B9) % 3_600_000, NonZeroU64::MIN);
    }
    assert!(wheel.bytes() < 32 * wheel.len());
}

#[test]
fn a_payload_is_dropped_once_wherever_it_goes() {
    let payload = Rc::new(());
    let mut wheel = Wheel::new(0);
    let ids: Vec<TimerId> = (0..100).map(|deadline| wheel.arm(deadline, Rc::clone(&payload))).collect();
    assert_eq!(Rc::strong_count(&payload), 101);
    for &id in ids.iter().skip(50) {
        drop(wheel.cancel(id));
    }
    assert_eq!(Rc::strong_count(&payload), 51);
    let _ = wheel.advance(9, 100, |_, _, payload| drop(payload));
    assert_eq!(Rc::strong_count(&payload), 41);
    drop(wheel);
    assert_eq!(Rc::strong_count(&payload), 1);
}

#[test]
fn an_id_that_names_no_timer_cancels_nothing() {
    let mut wheel = wheel_with(0, [1]);
    assert_eq!(wheel.cancel(TimerId::from_number(77)), None);
    assert_eq!(wheel.cancel(TimerId::from_number(u32::MAX)), None);
    let mut up = Vec::new();
    let _ = wheel.advance(1, 1, |id, _, _| up.push(id));
    assert_eq!(wheel.cancel(*up.first().unwrap()), None);
}

#[test]
fn a_timer_of_the_next_window_does_not_hide_that_a_higher_level_moves_down_before_it() {
    for deadline in [4_097, 5_000, 8_191] {
        assert_eq!(wheel_with(0, [deadline, 8_192]).next_wake(), Some(4_096), "{deadline}");
    }
}

#[test]
fn the_bytes_are_those_of_the_wheel_and_of_its_chains() {
    let wheel = wheel_with(0, [1]);
    assert_eq!(wheel.bytes(), size_of::<Wheel<u64>>() + wheel.chains.bytes());
}
