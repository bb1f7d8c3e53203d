//! The requests of a run: each has a verb from the mix, a key from the distribution, and a value. One seed determines
//! them all.

use std::fmt;
use std::str::FromStr;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution as _, Zipf};

use super::Workload;
use crate::clock::Ttl;

/// The verb of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RequestKind {
    /// Reads a value.
    Get,
    /// Writes a value.
    Set,
    /// Deletes an element.
    Delete,
    /// Writes a value if the element has the version that was seen last.
    Cas,
    /// Reads several values.
    Many,
    /// Adds 1 to a counter. Counters have keys of their own.
    Incr,
    /// Reads the next page of the table.
    Scan,
}

impl RequestKind {
    /// The number of verbs.
    pub const COUNT: usize = 7;
    /// All verbs, in the order of their numbers.
    pub const ALL: [Self; Self::COUNT] =
        [Self::Get, Self::Set, Self::Delete, Self::Cas, Self::Many, Self::Incr, Self::Scan];

    /// The name of the verb in a mix and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Set => "set",
            Self::Delete => "delete",
            Self::Cas => "cas",
            Self::Many => "many",
            Self::Incr => "incr",
            Self::Scan => "scan",
        }
    }

    /// The position of the verb in [`RequestKind::ALL`].
    #[must_use]
    pub const fn number(self) -> usize {
        self as usize
    }
}

/// The shares of the verbs. Typed as `get=90,set=10`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix([u32; RequestKind::COUNT]);

impl Mix {
    /// One verb alone.
    #[must_use]
    pub fn only(verb: RequestKind) -> Self {
        Self(RequestKind::ALL.map(|other| u32::from(other == verb)))
    }

    /// The verbs with a share above zero.
    pub fn verbs(&self) -> impl Iterator<Item = RequestKind> {
        RequestKind::ALL.into_iter().zip(self.0).filter(|(_, weight)| *weight > 0).map(|(verb, _)| verb)
    }

    fn total(&self) -> u32 {
        self.0.iter().sum()
    }

    /// The verb at this position, if each verb takes as many positions as its share, in order.
    fn at(&self, mut position: u32) -> RequestKind {
        for (verb, weight) in RequestKind::ALL.into_iter().zip(self.0) {
            if position < weight {
                return verb;
            }
            position -= weight;
        }
        unreachable!("the position is below the total")
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(typed: &str) -> Result<Self, String> {
        const WANTED: &str = "a mix is verbs with their shares, such as get=90,set=10; verbs are get, set, delete, cas, many, incr and scan";
        let mut weights = [0; RequestKind::COUNT];
        for part in typed.split(',') {
            let (name, weight) = part.split_once('=').unwrap_or((part, "1"));
            let verb = RequestKind::ALL.into_iter().find(|verb| verb.name() == name).ok_or(WANTED)?;
            let weight = weight.parse().ok().filter(|weight| *weight <= 1_000_000).ok_or(WANTED)?;
            if let Some(slot) = weights.get_mut(verb.number()) {
                *slot = weight;
            }
        }
        if weights.iter().all(|weight| *weight == 0) {
            return Err(WANTED.to_owned());
        }
        Ok(Self(weights))
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shares = RequestKind::ALL.into_iter().zip(self.0).filter(|(_, weight)| *weight > 0);
        let parts: Vec<_> = shares.map(|(verb, weight)| format!("{}={weight}", verb.name())).collect();
        f.write_str(&parts.join(","))
    }
}

/// How often each key is chosen. Typed as `uniform`, `zipf` or `zipf:0.99`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// All keys equally often.
    Uniform,
    /// The key of rank r in proportion to 1 / r^exponent. A permutation spreads the ranks over the keys, so that
    /// adjacent ranks are not adjacent numbers.
    Zipf {
        /// The exponent. YCSB uses 0.99.
        exponent: f64,
    },
}

impl FromStr for Distribution {
    type Err = String;

    fn from_str(typed: &str) -> Result<Self, String> {
        const WANTED: &str = "a distribution is uniform, zipf, or zipf:EXPONENT with an exponent from 0.01 to 5";
        match typed.split_once(':').unwrap_or((typed, "0.99")) {
            ("uniform", _) if typed == "uniform" => Ok(Self::Uniform),
            ("zipf", exponent) => match exponent.parse() {
                Ok(exponent) if (0.01..=5.0).contains(&exponent) => Ok(Self::Zipf { exponent }),
                _ => Err(WANTED.to_owned()),
            },
            _ => Err(WANTED.to_owned()),
        }
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Zipf { exponent } => write!(f, "zipf:{exponent}"),
        }
    }
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadRequest {
    /// What it does.
    pub verb: RequestKind,
    /// Number of the key. For a GET_MANY it is the first key, and the numbers of the others follow.
    pub key: u32,
    /// Bytes of the value of a write.
    pub value_bytes: usize,
    /// Time to live of a write, if it has one.
    pub ttl: Option<Ttl>,
}

/// The source of requests: endless, or each key once.
pub(super) struct RequestSource {
    rng: SmallRng,
    work: Workload,
    zipf: Option<Zipf<f64>>,
    /// Keys that are still to be stored. `None` if the requests are random.
    filling: Option<std::ops::Range<u32>>,
}

impl RequestSource {
    /// Random requests, different for each thread.
    pub(super) fn mixed(work: &Workload, thread: usize) -> Self {
        let zipf = match work.distribution {
            Distribution::Uniform => None,
            Distribution::Zipf { exponent } => Zipf::new(f64::from(work.keys), exponent).ok(),
        };
        let rng = SmallRng::seed_from_u64(work.seed.wrapping_add((thread as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        Self { rng, work: work.clone(), zipf, filling: None }
    }

    /// Requests that store each of these keys once.
    pub(super) fn filling(work: &Workload, keys: std::ops::Range<u32>) -> Self {
        Self { filling: Some(keys), ..Self::mixed(work, 0) }
    }

    /// The next request, or `None` at the end.
    pub(super) fn next(&mut self) -> Option<LoadRequest> {
        let (verb, key) = match &mut self.filling {
            Some(keys) => (RequestKind::Set, keys.next()?),
            None => {
                let verb = self.work.mix.at(self.rng.random_range(0..self.work.mix.total()));
                (verb, self.key())
            }
        };
        let writes = matches!(verb, RequestKind::Set | RequestKind::Cas);
        let lives = (writes || verb == RequestKind::Incr)
            && self.work.ttl_share > 0.0
            && self.rng.random_bool(self.work.ttl_share.min(1.0));
        let (least, most) = (*self.work.value_bytes.start(), *self.work.value_bytes.end());
        let value_bytes = if writes && least < most { self.rng.random_range(least..=most) } else { least };
        Some(LoadRequest { verb, key, value_bytes, ttl: lives.then_some(self.work.ttl) })
    }

    fn key(&mut self) -> u32 {
        let keys = self.work.keys;
        let Some(zipf) = &self.zipf else { return self.rng.random_range(0..keys) };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rank from 1 to the number of keys"
        )]
        let rank = zipf.sample(&mut self.rng) as u64 - 1;
        spread(rank, keys)
    }
}

/// The key of a rank: a fixed permutation, because the multiplier is prime and larger than any number of keys.
fn spread(rank: u64, keys: u32) -> u32 {
    const PRIME: u64 = 4_294_967_311;
    u32::try_from(rank * PRIME % u64::from(keys)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

    use std::collections::BTreeSet;

    use super::*;

    fn work() -> Workload {
        Workload {
            mix: Mix::only(RequestKind::Get),
            keys: 1_000,
            key_bytes: 16,
            distribution: Distribution::Uniform,
            value_bytes: 64..=64,
            ttl: Ttl::from_secs(10),
            ttl_share: 0.0,
            many: 16,
            seed: 1,
        }
    }

    fn counted<K: Ord>(
        source: &mut RequestSource,
        what: impl Fn(LoadRequest) -> K,
    ) -> std::collections::BTreeMap<K, usize> {
        let mut counts = std::collections::BTreeMap::new();
        for _ in 0..100_000 {
            *counts.entry(what(source.next().unwrap())).or_default() += 1;
        }
        counts
    }

    #[test]
    fn a_mix_is_kept() {
        let mix = "get=80,set=15,many=5".parse::<Mix>().unwrap();
        assert_eq!(mix.to_string(), "get=80,set=15,many=5");
        let counts = counted(&mut RequestSource::mixed(&Workload { mix, ..work() }, 0), |ask| ask.verb);
        assert_eq!(counts.len(), 3);
        for (verb, share) in [(RequestKind::Get, 80_000), (RequestKind::Set, 15_000), (RequestKind::Many, 5_000)] {
            assert!(counts[&verb].abs_diff(share) < 1_000, "{counts:?}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for typed in ["", "get=", "get=0", "fetch=1", "get=-1", "get=1;set=1", "get=1,,set=1"] {
            assert!(typed.parse::<Mix>().is_err(), "{typed}");
        }
        assert_eq!("get".parse::<Mix>(), Ok(Mix::only(RequestKind::Get)));
        for typed in ["", "zipf:", "zipf:0", "zipf:nan", "uniform:1", "normal"] {
            assert!(typed.parse::<Distribution>().is_err(), "{typed}");
        }
        assert_eq!("zipf:1.2".parse(), Ok(Distribution::Zipf { exponent: 1.2 }));
    }

    #[test]
    fn uniform_keys_are_all_chosen_alike() {
        let counts = counted(&mut RequestSource::mixed(&work(), 0), |ask| ask.key);
        assert_eq!(counts.len(), 1_000);
        assert!(counts.values().all(|count| (40..180).contains(count)));
    }

    #[test]
    fn zipf_keys_follow_their_law() {
        let distribution = Distribution::Zipf { exponent: 1.0 };
        let counts = counted(&mut RequestSource::mixed(&Workload { distribution, ..work() }, 0), |ask| ask.key);
        // The sum of 1/r for 1,000 keys is 7.485: the first key has 13.4 %, the second one half of that.
        assert!(counts[&spread(0, 1_000)].abs_diff(13_360) < 700, "{}", counts[&spread(0, 1_000)]);
        assert!(counts[&spread(1, 1_000)].abs_diff(6_680) < 500);
    }

    #[test]
    fn ranks_are_spread_over_all_keys() {
        for keys in [1, 2, 1_000, 65_536] {
            let spread_out: BTreeSet<_> = (0..u64::from(keys)).map(|rank| spread(rank, keys)).collect();
            assert_eq!(spread_out.len(), keys as usize);
        }
    }

    #[test]
    fn writes_have_sizes_and_lives() {
        let work = Workload { mix: Mix::only(RequestKind::Set), value_bytes: 10..=20, ttl_share: 0.25, ..work() };
        let mut source = RequestSource::mixed(&work, 0);
        assert_eq!(
            counted(&mut source, |ask| ask.value_bytes).into_keys().collect::<Vec<_>>(),
            (10..=20).collect::<Vec<_>>()
        );
        let lives = counted(&mut source, |ask| ask.ttl);
        assert!(lives[&Some(Ttl::from_secs(10))].abs_diff(25_000) < 1_000);
    }

    #[test]
    fn filling_stores_each_key_once_and_ends() {
        let mut source = RequestSource::filling(&work(), 3..7);
        let keys: Vec<_> = std::iter::from_fn(|| source.next()).map(|ask| (ask.verb, ask.key)).collect();
        assert_eq!(keys, [(RequestKind::Set, 3), (RequestKind::Set, 4), (RequestKind::Set, 5), (RequestKind::Set, 6)]);
    }

    #[test]
    fn a_seed_asks_the_same_and_threads_ask_differently() {
        let asked = |thread| {
            let mut source = RequestSource::mixed(&work(), thread);
            std::iter::from_fn(move || source.next()).take(20).collect::<Vec<_>>()
        };
        assert_eq!(asked(1), asked(1));
        assert_ne!(asked(1), asked(2));
    }
}
