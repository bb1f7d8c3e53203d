//! A server that is killed under load, and the faults that are looked for after it.
//!
//! `SPINDLE_CRASH_ROUNDS` sets the number of rounds.

use std::time::{Duration, Instant};

use crate::harness::Server;
use crate::seeded_rng::SeededRng;

/// A size of segments with which new ones are begun, and old ones cleaned, in each round.
pub(crate) const SMALL_SEGMENT: &str = "64K";
/// Clients at once.
pub(crate) const CLIENTS: usize = 8;
/// Rounds, unless the environment says otherwise.
const ROUNDS: usize = 5;
/// The longest that a server lives under load.
const LIFE_MILLIS: usize = 250;

/// The faults found. None of them may ever be.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    pub(crate) lost: usize,
    pub(crate) duplicated: usize,
    pub(crate) resurrected: usize,
    pub(crate) wrongly_leased: usize,
}

/// The number of kills.
pub(crate) fn rounds() -> usize {
    std::env::var("SPINDLE_CRASH_ROUNDS").map_or(ROUNDS, |text| text.parse().unwrap())
}

/// Runs clients until the server is killed, at a random moment. Each client is to end when its server does.
pub(crate) fn kill_under_load(server: Server, rng: &mut SeededRng, work: impl Fn(usize, SeededRng) + Sync) {
    let life = Duration::from_millis(rng.index(LIFE_MILLIS) as u64);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (work, seed) = (&work, rng.next());
            scope.spawn(move || work(client, SeededRng(seed)));
        }
        let end = Instant::now() + life;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            std::thread::park_timeout(left);
        }
        drop(server);
    });
}
