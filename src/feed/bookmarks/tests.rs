//! The times of bookmarks, and the turns of many subscribers.

use super::DueBookmark::{ToAll, ToExact, ToOne};
use super::*;

fn at(millis: u64) -> Now {
    Now::from_millis(millis)
}

fn topic(name: &[u8]) -> Arc<[u8]> {
    name.into()
}

/// All bookmarks until `end`, with their times, if the topic has a subscriber or not.
fn all(schedule: &mut BookmarkSchedule, end: u64, has_subscriber: bool) -> Vec<(u64, DueBookmark)> {
    let mut found = Vec::new();
    while let Some(due) = schedule.next_due().filter(|due| *due <= at(end)) {
        while let Some(bookmark) = schedule.next(due, |_| has_subscriber) {
            found.push((due.millis(), bookmark));
        }
    }
    found
}

#[test]
fn changes_are_followed_by_a_bookmark_to_all_at_most_every_100_ms_and_at_the_end() {
    let mut schedule = BookmarkSchedule::new();
    let t = topic(b"t");
    let mut times = Vec::new();
    for millis in 0..1_000 {
        schedule.published(&t, at(1_000 + millis));
        while let Some(bookmark) = schedule.next(at(1_000 + millis), |_| false) {
            assert_eq!(bookmark, ToAll(Arc::clone(&t)));
            times.push(millis);
        }
    }
    assert_eq!(times, [0, 100, 200, 300, 400, 500, 600, 700, 800, 900]);
    let rest = all(&mut schedule, 60_000, false);
    let [(last, ToAll(_))] = *rest else { panic!("{rest:?}") };
    assert!((2_000..=2_900).contains(&last), "within a second of the one before: {last}");
    assert_eq!(schedule.next_due(), None, "a topic without subscribers is forgotten");
}

#[test]
fn a_subscriber_of_a_whole_topic_gets_one_at_once_and_again_when_the_topic_is_idle() {
    let mut schedule = BookmarkSchedule::new();
    let t = topic(b"t");
    schedule.subscribed(7, &t, at(500), |_| true);
    assert_eq!(schedule.next(at(500), |_| true), Some(ToOne(7, Arc::clone(&t))));
    let idle = all(&mut schedule, 31_000, true);
    let exact = |millis| (millis, ToExact(Arc::clone(&t)));
    assert_eq!(idle, [exact(10_500), exact(20_500), exact(30_500)]);
    schedule.published(&t, at(32_000));
    let changed = all(&mut schedule, 43_000, true);
    assert_eq!(changed.last(), Some(&exact(42_000)), "10 s after the one to all: {changed:?}");
    assert_eq!(changed.len(), 2);
    assert_eq!(all(&mut schedule, 100_000, false), [], "the subscriber has left");
    assert_eq!(schedule.next_due(), None);
}

#[test]
fn one_that_subscribes_again_and_again_gets_one_a_second() {
    let mut schedule = BookmarkSchedule::new();
    let t = topic(b"t");
    let mut times = Vec::new();
    for millis in (0..3_500).step_by(10) {
        if millis < 2_000 {
            schedule.subscribed(7, &t, at(millis), |_| true);
        }
        while let Some(bookmark) = schedule.next(at(millis), |_| true) {
            assert_eq!(bookmark, ToOne(7, Arc::clone(&t)));
            times.push(millis);
        }
    }
    assert_eq!(times, [0, 1_000, 2_000]);
    schedule.subscribed(8, &t, at(3_500), |_| true);
    assert_eq!(schedule.next(at(3_500), |_| true), Some(ToOne(8, t)), "another subscriber gets its own");
}

#[test]
fn topics_that_change_together_get_their_next_bookmarks_over_the_second() {
    let mut schedule = BookmarkSchedule::new();
    for number in 0..1_000_u32 {
        schedule.published(&topic(&number.to_be_bytes()), at(1_000));
        schedule.published(&topic(&number.to_be_bytes()), at(1_050));
    }
    let found = all(&mut schedule, 10_000, false);
    assert_eq!(found.len(), 2_000);
    let late: Vec<u64> = found.iter().map(|(millis, _)| *millis).filter(|millis| *millis > 1_050).collect();
    assert_eq!(late.len(), 1_000, "each once more");
    for tenth in 11..20 {
        let within = late.iter().filter(|millis| *millis / 100 == tenth).count();
        assert!((50..200).contains(&within), "{within} in the tenth {tenth}");
    }
}

#[test]
fn several_messages_at_one_moment_are_followed_by_one_bookmark_and_one_within_the_second() {
    let mut schedule = BookmarkSchedule::new();
    let t = topic(b"t");
    for _ in 0..41 {
        schedule.published(&t, at(1_000));
    }
    assert_eq!(schedule.next(at(1_000), |_| false), Some(ToAll(Arc::clone(&t))));
    for _ in 0..41 {
        schedule.published(&t, at(1_000));
        assert_eq!(schedule.next(at(1_000), |_| false), None);
    }
    let rest = all(&mut schedule, 60_000, false);
    let [(last, ToAll(_))] = *rest else { panic!("{rest:?}") };
    assert!((1_100..2_000).contains(&last), "{last}");
}

#[test]
fn a_bookmark_that_waits_for_its_turn_is_not_repeated() {
    let mut schedule = BookmarkSchedule::new();
    let t = topic(b"t");
    (0..10).for_each(|number| schedule.published(&t, at(1_000 + 100 * number)));
    assert_eq!(schedule.next(at(2_000), |_| false), Some(ToAll(t)));
    assert_eq!(schedule.next(at(2_000), |_| false), None);
}

#[test]
fn a_flood_of_subscriptions_is_bounded() {
    let mut schedule = BookmarkSchedule::within(1 << 12, 1 << 10);
    for number in 0..1_u64 << 13 {
        schedule.subscribed(number, &number.to_be_bytes(), at(0), |_| true);
    }
    assert_eq!((schedule.initial.count(), schedule.topics.len()), (1 << 10, 1 << 12));
    assert_eq!(all(&mut schedule, 20_000, false).len(), 1 << 10);
    assert!(schedule.topics.is_empty() && schedule.initial.count() == 0 && schedule.times.is_empty());
    for number in 0..1_u64 << 13 {
        schedule.published(&topic(&number.to_be_bytes()), at(30_000));
    }
    assert_eq!((schedule.topics.len(), schedule.times.len()), (1 << 12, 1 << 12));
}

#[test]
fn subscribers_with_many_topics_leave_room_and_turns_for_one_that_comes_later() {
    const MANY: u64 = 1 << 16;
    let mut schedule = BookmarkSchedule::new();
    for hostile in 0..5 {
        for number in 0..MANY {
            schedule.subscribed(hostile, &[hostile, number].map(u64::to_be_bytes).concat(), at(0), |_| true);
        }
    }
    let t = topic(b"t");
    schedule.subscribed(9, &t, at(0), |_| true);
    assert!(schedule.initial.count() < BOOKMARK_INITIAL_MAX, "there is still room");
    let first: Vec<_> = (0..6).filter_map(|_| schedule.next(at(0), |_| true)).collect();
    assert!(first.contains(&ToOne(9, Arc::clone(&t))), "{first:?}");
    schedule.published(&t, at(1));
    let next: Vec<_> = (0..2).filter_map(|_| schedule.next(at(1), |_| true)).collect();
    assert!(next.contains(&ToAll(t)), "initial bookmarks do not keep changes from theirs: {next:?}");
}

#[test]
fn changes_and_subscriptions_without_end_do_not_keep_an_idle_topic_from_its_bookmark() {
    let mut schedule = BookmarkSchedule::new();
    let idle = topic(b"idle");
    schedule.subscribed(9, &idle, at(0), |_| true);
    assert_eq!(schedule.next(at(0), |_| true), Some(ToOne(9, Arc::clone(&idle))));
    for number in 0..1_000_u64 {
        schedule.published(&topic(&number.to_be_bytes()), at(10_000));
        schedule.subscribed(1, &number.to_be_bytes(), at(10_000), |_| true);
    }
    let next: Vec<_> = (0..3).filter_map(|_| schedule.next(at(10_000), |_| true)).collect();
    assert!(next.contains(&ToExact(idle)), "{next:?}");
}

#[test]
fn topics_that_have_lost_their_subscribers_make_room_for_others() {
    let mut schedule = BookmarkSchedule::within(1 << 8, 1 << 4);
    let has_subscriber = |topic: &[u8]| topic.len() == 1;
    (0..100).for_each(|number| schedule.subscribed(1, &[number], at(0), has_subscriber));
    for number in 0..10_000_u64 {
        schedule.subscribed(2, &number.to_be_bytes(), at(0), has_subscriber);
        assert!(schedule.topics.len() < 1 << 8, "never full");
    }
    assert!((0..100).all(|number| schedule.topics.contains_key(&[number][..])), "those with subscribers stay");
    assert_eq!(schedule.topics.len(), schedule.times.len());
}
