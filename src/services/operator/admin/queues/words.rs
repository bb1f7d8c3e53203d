//! The words for queues, their states and settings: of requests over HTTP, and of the commands.
//!
//! ```text
//! tries        5 │ 0 (no bound) │ none            rate    10/s │ 30/m │ 10/s,20 (with a burst) │ none
//! backoff      1s │ 1s..10m │ none                sync    always │ never │ 50ms │ none
//! group-limit  3 │ none                           pause   10m │ on │ off
//! ```
//! `none` takes a setting away. This module asks no queue.

use std::num::NonZeroU32;

use crate::services::jobs::wire::{read_backoff, read_time};
use crate::tasks::{BrowsePlace, BrowsedState, Policy, QueueChange, Rate, SweptStates};

/// The word that takes a setting away.
pub(crate) const NONE: &str = "none";
/// The words of a pause that ends when the queue is resumed, and of its end.
pub(crate) const PAUSE_ON: &str = "on";
pub(crate) const PAUSE_OFF: &str = "off";

/// The states, in their order.
pub(crate) const STATES: [(&str, BrowsedState); 5] = [
    ("ready", BrowsedState::Ready),
    ("delayed", BrowsedState::Delayed),
    ("lent", BrowsedState::Lent),
    ("dead", BrowsedState::Dead),
    ("dropped", BrowsedState::Dropped),
];

/// A family of queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkFamily {
    /// Of `--tasks`.
    Tasks,
    /// Of `--jobs`.
    Jobs,
}

impl WorkFamily {
    /// Its word, which is that of its flag.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Tasks => "tasks",
            Self::Jobs => "jobs",
        }
    }

    /// The family of a word.
    pub(crate) fn of_word(word: &str) -> Option<Self> {
        [Self::Tasks, Self::Jobs].into_iter().find(|family| family.word() == word)
    }
}

/// The word of a state.
pub(crate) fn state_word(state: BrowsedState) -> &'static str {
    STATES.into_iter().find(|(_, other)| *other == state).map_or(NONE, |(word, _)| word)
}

/// The state of a word.
pub(crate) fn read_state(word: &str) -> Option<BrowsedState> {
    STATES.into_iter().find(|(other, _)| *other == word).map(|(_, state)| state)
}

/// The states to be purged, with commas between. `None`: one of them cannot be.
pub(crate) fn read_states(words: &str) -> Option<SweptStates> {
    let mut states = SweptStates::default();
    for word in words.split(',') {
        match read_state(word)? {
            BrowsedState::Ready => states.ready = true,
            BrowsedState::Delayed => states.delayed = true,
            BrowsedState::Dead => states.dead = true,
            BrowsedState::Dropped => states.dropped = true,
            BrowsedState::Lent => return None,
        }
    }
    Some(states)
}

/// The milliseconds of a time, such as `30s`.
pub(crate) fn read_millis(text: &str) -> Option<u64> {
    read_time(text.as_bytes())
}

/// Where a page begins, as text.
pub(crate) fn place_text(BrowsePlace(numbers): BrowsePlace) -> String {
    numbers.map(|number| format!("{number:x}")).join("-")
}

/// The place of a text.
pub(crate) fn read_place(text: &str) -> Option<BrowsePlace> {
    let numbers: Option<Vec<u64>> = text.split('-').map(|number| u64::from_str_radix(number, 16).ok()).collect();
    numbers?.try_into().ok().map(BrowsePlace)
}

/// Sets one setting by its name.
///
/// # Errors
/// What it may be.
pub(crate) fn read_setting(change: &mut QueueChange, name: &str, value: &str) -> Result<(), &'static str> {
    let is_none = value == NONE;
    match name {
        "tries" => {
            let tries = value.parse().map(NonZeroU32::new).map(Some);
            change.tries =
                Some(unless(is_none, tries.map_err(|_| "tries are a whole number, 0 for no bound, or none"))?);
        }
        "backoff" => {
            let backoff = read_backoff(value.as_bytes()).map(Some);
            change.backoff =
                Some(unless(is_none, backoff.ok_or("a backoff is a time as in 10s, two as in 1s..10m, or none"))?);
        }
        "group-limit" => {
            let limit = value.parse::<NonZeroU32>().map(Some);
            change.group_limit =
                Some(unless(is_none, limit.map_err(|_| "a limit of groups is a whole number from 1 on, or none"))?);
        }
        "rate" => {
            let rate = read_rate(value).map(Some);
            change.rate =
                Some(unless(is_none, rate.ok_or("a rate is as in 10/s, 30/m or, with a burst, 10/s,20, or none"))?);
        }
        "sync" => {
            let sync = read_sync(value).map(Some);
            change.sync = Some(unless(is_none, sync.ok_or("it is always, never, a time as in 50ms, or none"))?);
        }
        "pause" => change.pause = Some(read_pause(value).ok_or("a pause is a time as in 10m, on or off")?),
        _ => return Err("settings are tries, backoff, group-limit, rate, sync and pause"),
    }
    Ok(())
}

fn unless<T>(is_none: bool, value: Result<Option<T>, &'static str>) -> Result<Option<T>, &'static str> {
    if is_none { Ok(None) } else { value }
}

fn read_pause(text: &str) -> Option<u64> {
    match text {
        PAUSE_ON => Some(u64::MAX),
        PAUSE_OFF => Some(0),
        time => read_millis(time).filter(|millis| *millis > 0),
    }
}

fn read_sync(text: &str) -> Option<Policy> {
    match text {
        "always" => Some(Policy::Always),
        "never" => Some(Policy::Never),
        time => read_millis(time).map(Policy::of_millis),
    }
}

fn read_rate(text: &str) -> Option<Rate> {
    let (rate, burst) = text.split_once(',').unwrap_or((text, "1"));
    let (count, unit) = rate.split_once('/')?;
    let per = u32::try_from(read_millis(&format!("1{unit}"))?).ok()?;
    Rate::of(count.parse().ok()?, per, burst.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::Backoff;

    fn set(name: &str, value: &str) -> Option<QueueChange> {
        let mut change = QueueChange::default();
        read_setting(&mut change, name, value).is_ok().then_some(change)
    }

    #[test]
    fn every_setting_has_its_words_and_none() {
        let usual = QueueChange::default();
        for (name, value, expected) in [
            ("tries", "5", QueueChange { tries: Some(Some(NonZeroU32::new(5))), ..usual }),
            ("tries", "0", QueueChange { tries: Some(Some(None)), ..usual }),
            ("tries", "none", QueueChange { tries: Some(None), ..usual }),
            (
                "backoff",
                "1s..10m",
                QueueChange { backoff: Some(Some(Backoff { first: 1_000, most: 600_000 })), ..usual },
            ),
            ("backoff", "none", QueueChange { backoff: Some(None), ..usual }),
            ("group-limit", "3", QueueChange { group_limit: Some(NonZeroU32::new(3)), ..usual }),
            ("group-limit", "none", QueueChange { group_limit: Some(None), ..usual }),
            ("rate", "10/s", QueueChange { rate: Some(Rate::of(10, 1_000, 1)), ..usual }),
            ("rate", "30/m,7", QueueChange { rate: Some(Rate::of(30, 60_000, 7)), ..usual }),
            ("rate", "none", QueueChange { rate: Some(None), ..usual }),
            ("sync", "never", QueueChange { sync: Some(Some(Policy::Never)), ..usual }),
            ("sync", "50ms", QueueChange { sync: Some(Some(Policy::Within(50))), ..usual }),
            ("sync", "none", QueueChange { sync: Some(None), ..usual }),
            ("pause", "10m", QueueChange { pause: Some(600_000), ..usual }),
            ("pause", "on", QueueChange { pause: Some(u64::MAX), ..usual }),
            ("pause", "off", QueueChange { pause: Some(0), ..usual }),
        ] {
            assert_eq!(set(name, value), Some(expected), "{name} {value}");
        }
        for (name, value) in [
            ("tries", "-1"),
            ("tries", ""),
            ("backoff", "5"),
            ("backoff", "2s..1s"),
            ("group-limit", "0"),
            ("rate", "0/s"),
            ("rate", "10"),
            ("rate", "10/s,0"),
            ("rate", "10/w"),
            ("sync", "soon"),
            ("pause", "0s"),
            ("pause", "none"),
            ("colour", "red"),
        ] {
            assert_eq!(set(name, value), None, "{name} {value}");
        }
    }

    #[test]
    fn states_and_places_are_read_as_they_are_written() {
        for (word, state) in STATES {
            assert_eq!((read_state(word), state_word(state)), (Some(state), word));
        }
        let all = SweptStates { ready: true, delayed: true, dead: true, dropped: true };
        assert_eq!(read_states("ready,delayed,dead,dropped"), Some(all));
        assert_eq!(read_states("dead"), Some(SweptStates { dead: true, ..SweptStates::default() }));
        assert!(["", "lent", "dead,", "dead,lent", "all"].into_iter().all(|words| read_states(words).is_none()));
        let place = BrowsePlace([0, 1, 77, u64::MAX]);
        assert_eq!(read_place(&place_text(place)), Some(place));
        assert!(["", "1-2-3", "1-2-3-4-5", "g-0-0-0"].into_iter().all(|text| read_place(text).is_none()));
    }
}
