//! Chance for what need not be secret: which word, and how long to wait before trying again.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A source of numbers that nobody has to guess. The system seeds it.
#[derive(Debug, Default)]
pub struct Jitter {
    keys: RandomState,
    drawn: AtomicU64,
}

impl Jitter {
    /// The next number.
    pub fn draw(&self) -> u64 {
        // Relaxed: each drawing only has to be another.
        self.keys.hash_one(self.drawn.fetch_add(1, Ordering::Relaxed))
    }

    /// A time from nothing up to `most`.
    pub fn up_to(&self, most: Duration) -> Duration {
        let micros = u64::try_from(most.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(self.draw().checked_rem(micros).unwrap_or(0))
    }
}
