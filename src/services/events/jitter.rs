//! Random numbers that need not be secret: for the choice of a word, and for the time before a retry.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A source of random numbers that need not be unpredictable. The system seeds it.
#[derive(Debug, Default)]
pub struct Jitter {
    keys: RandomState,
    drawn: AtomicU64,
}

impl Jitter {
    /// The next random number.
    pub fn draw(&self) -> u64 {
        // Relaxed: each draw only needs another value of the counter, and no data is published with it.
        self.keys.hash_one(self.drawn.fetch_add(1, Ordering::Relaxed))
    }

    /// A random time from zero up to `most`.
    pub fn up_to(&self, most: Duration) -> Duration {
        let micros = u64::try_from(most.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(self.draw().checked_rem(micros).unwrap_or(0))
    }
}
