//! The brake on wrong tries: a pause that grows with each of them.
//!
//! ```text
//! try   checked, and wrong            the pause begins now: 250 ms, then twice as long each time, up to a bound
//!       refused or given up unchecked the next pause is longer; if nobody else waits and there is none, it begins
//!       the same as the one before    its peer learns nothing new: no pause grows for it
//!       right                         changes nothing
//! ```
//! A pause that has begun ends at its time, however many tries come meanwhile, and another begins only when a try was
//! checked or nobody waits. Otherwise a flood of tries would keep a user out for good, and many users who come from one
//! address at once would keep each other out.
//!
//! This module does not know what is braked, checks no password and reads no clock.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use super::limits::{WRONG_PASSWORD_MEMORY, WRONG_PASSWORD_PAUSE};
use super::password::PasswordDigest;
use crate::clock::Now;

/// The most doublings of a pause: beyond the longest one.
const DOUBLINGS_MAX: u32 = 16;

/// The wrong tries of one origin.
#[derive(Clone, Copy)]
pub(super) struct Brake {
    /// Different tries in a row that were not right.
    failures: u32,
    /// Whether one of them was checked.
    was_checked: bool,
    /// The last of them: the digest of its name and password.
    guess: Option<PasswordDigest>,
    /// No earlier try is checked.
    free_at: Now,
    /// The time of the last one.
    last: Now,
}

impl Brake {
    /// The brake of an origin without a wrong try.
    pub(super) fn released(now: Now) -> Self {
        Self { failures: 0, was_checked: false, guess: None, free_at: now, last: now }
    }

    /// The end of the pause. It may be over.
    pub(super) fn free_at(&self) -> Now {
        self.free_at
    }

    /// The time of the last try that was not right, or at which the brake was made.
    pub(super) fn last(&self) -> Now {
        self.last
    }

    /// Whether a wrong try was checked, and is not forgotten yet.
    pub(super) fn has_failed(&self, now: Now) -> bool {
        self.was_checked && !self.is_forgotten(now)
    }

    /// A try was checked, and is wrong. The pause is no longer than `longest`.
    pub(super) fn wrong(&mut self, guess: PasswordDigest, longest: Duration, now: Now) {
        self.count(guess, now);
        self.was_checked = true;
        self.free_at = now.after(self.pause(longest));
    }

    /// A try was refused or given up before it was checked. `others_wait` for the same brake.
    pub(super) fn unchecked(&mut self, guess: PasswordDigest, longest: Duration, others_wait: bool, now: Now) {
        let is_new = self.count(guess, now);
        if is_new && !others_wait && self.free_at <= now {
            self.free_at = now.after(self.pause(longest));
        }
    }

    /// Counts a try. Returns whether it is another one than the last.
    fn count(&mut self, guess: PasswordDigest, now: Now) -> bool {
        if self.is_forgotten(now) {
            (self.failures, self.was_checked, self.guess) = (0, false, None);
        }
        let is_new = self.guess.is_none_or(|last| !last.is(&guess));
        self.failures = self.failures.saturating_add(u32::from(is_new));
        self.guess = Some(guess);
        self.last = now;
        is_new
    }

    fn is_forgotten(&self, now: Now) -> bool {
        self.last.after(WRONG_PASSWORD_MEMORY) <= now
    }

    fn pause(&self, longest: Duration) -> Duration {
        let doublings = self.failures.saturating_sub(1).min(DOUBLINGS_MAX);
        (WRONG_PASSWORD_PAUSE * (1 << doublings)).min(longest)
    }
}

/// The brakes of many origins, up to a bound.
pub(super) struct Brakes<K> {
    brakes: HashMap<K, Brake>,
    most: usize,
}

impl<K: Hash + Eq + Clone> Brakes<K> {
    /// No brakes yet, and room for `most`.
    pub(super) fn up_to(most: usize) -> Self {
        Self { brakes: HashMap::new(), most }
    }

    /// The brake of an origin, if it had a try that was not right.
    pub(super) fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&Brake>
    where
        K: Borrow<Q>,
    {
        self.brakes.get(key)
    }

    /// The brake of an origin, for one more try. If there are too many, the one whose last try is the oldest goes.
    pub(super) fn of(&mut self, key: K, now: Now) -> &mut Brake {
        if self.brakes.len() >= self.most && !self.brakes.contains_key(&key) {
            let oldest = self.brakes.iter().min_by_key(|(_, brake)| brake.last).map(|(key, _)| key.clone());
            oldest.and_then(|oldest| self.brakes.remove(&oldest));
        }
        self.brakes.entry(key).or_insert_with(|| Brake::released(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::limits::WRONG_PASSWORD_PAUSE_MAX;
    use crate::security::password::tests::new_guess;

    const LONGEST: Duration = WRONG_PASSWORD_PAUSE_MAX;

    fn at(millis: u64) -> Now {
        Now::from_millis(millis)
    }

    /// `spindle job` may ask a second question with the login of the first.
    #[test]
    fn a_wrong_try_that_comes_again_makes_no_pause_longer() {
        let mut brake = Brake::released(at(0));
        let (one, other) = (new_guess(), new_guess());
        let rows = [
            (0, one, 250),
            (1_000, one, 1_250),
            (2_000, one, 2_250),
            (3_000, other, 3_500),
            (4_000, other, 4_500),
            (5_000, one, 6_000),
            (6_000, other, 8_000),
        ];
        for (now, guess, expected) in rows {
            brake.wrong(guess, LONGEST, at(now));
            assert_eq!(brake.free_at().millis(), expected, "{now}: only the last one comes again");
        }
    }

    #[test]
    fn pauses_double_up_to_their_bound() {
        let mut brake = Brake::released(at(0));
        let pauses = [250, 500, 1_000, 2_000, 4_000, 8_000, 8_000].map(|expected| {
            brake.wrong(new_guess(), LONGEST, at(10));
            (brake.free_at().millis() - 10, expected)
        });
        assert!(pauses.iter().all(|(pause, expected)| pause == expected), "{pauses:?}");
        brake.wrong(new_guess(), Duration::from_secs(1), at(10));
        assert_eq!(brake.free_at(), at(1_010));
        (0..100).for_each(|_| brake.wrong(new_guess(), LONGEST, at(10)));
        assert_eq!(brake.free_at(), at(8_010));
    }

    /// A flood of tries that nobody checks would keep the right password out.
    #[test]
    fn unchecked_tries_make_the_next_pause_longer_and_not_the_one_that_has_begun() {
        let mut brake = Brake::released(at(0));
        brake.unchecked(new_guess(), LONGEST, false, at(0));
        assert!(brake.free_at() == at(250) && !brake.has_failed(at(0)));
        (0..100).for_each(|_| brake.unchecked(new_guess(), LONGEST, false, at(100)));
        assert_eq!(brake.free_at(), at(250));
        brake.wrong(new_guess(), LONGEST, at(250));
        assert!(brake.free_at() == at(8_250) && brake.has_failed(at(250)));
        brake.unchecked(new_guess(), LONGEST, true, at(8_250));
        assert_eq!(brake.free_at(), at(8_250), "one that waits is checked first");
        let guess = new_guess();
        brake.unchecked(guess, LONGEST, false, at(8_250));
        brake.unchecked(guess, LONGEST, false, at(20_000));
        assert_eq!(brake.free_at(), at(16_250), "the same one has begun no further pause");
    }

    #[test]
    fn wrong_tries_are_forgotten_a_minute_after_the_last_one() {
        let wrong = |brake: &mut Brake, now| {
            brake.wrong(new_guess(), LONGEST, at(now));
            brake.free_at().millis() - now
        };
        let mut brake = Brake::released(at(0));
        (0..5).for_each(|_| _ = wrong(&mut brake, 0));
        assert_eq!(wrong(&mut brake, 59_999), 8_000);
        assert!(brake.has_failed(at(119_998)) && !brake.has_failed(at(119_999)));
        assert_eq!(wrong(&mut brake, 119_999), 250);
    }

    #[test]
    fn brakes_are_bounded_and_the_latest_stay() {
        let mut brakes = Brakes::up_to(3);
        for (name, now) in [("a", 1), ("b", 2), ("c", 3), ("a", 4), ("d", 5)] {
            brakes.of(name, at(now)).wrong(new_guess(), LONGEST, at(now));
        }
        let kept = ["a", "b", "c", "d"].map(|name| brakes.get(&name).is_some());
        assert_eq!(kept, [true, false, true, true]);
    }
}
