//! Requests to a cache: of each key the value is asked for, and stored if it is missing.

/// A request of a trace.
#[derive(Clone, Copy)]
pub(crate) struct TraceRequest {
    pub(crate) key: u32,
    pub(crate) value_bytes: usize,
    /// Seconds to live.
    pub(crate) ttl: Option<u32>,
}

/// Requests, and their rate.
pub(crate) struct Trace {
    pub(crate) name: &'static str,
    pub(crate) requests: Vec<TraceRequest>,
    /// Requests a second, of a trace with times to live: all servers see the same number of deadlines. `None`: as fast as
    /// the server answers.
    pub(crate) rate: Option<u32>,
}

const VALUE_BYTES: usize = 200;
/// Keys in use of the loop, and keys of each scan. Both together are more than fit.
const LOOP_KEYS: u32 = 150_000;
const SCAN_KEYS: u32 = 110_000;
const RATE: u32 = 100_000;

pub(crate) fn all() -> [Trace; 3] {
    [zipf(), loop_with_scans(), mixed()]
}

fn zipf() -> Trace {
    let (ranks, mut random) = (Ranks::new(1_000_000, 0.99), Random::new(1));
    let requests = (0..3_000_000)
        .map(|_| TraceRequest { key: ranks.draw(&mut random), value_bytes: VALUE_BYTES, ttl: None })
        .collect();
    Trace { name: "zipf", requests, rate: None }
}

/// Each round is the loop and then a scan of keys that never come again.
fn loop_with_scans() -> Trace {
    let mut once = LOOP_KEYS;
    let mut requests = Vec::new();
    for _ in 0..12 {
        let scan = once..once + SCAN_KEYS;
        once = scan.end;
        requests.extend((0..LOOP_KEYS).chain(scan).map(|key| TraceRequest {
            key,
            value_bytes: VALUE_BYTES,
            ttl: None,
        }));
    }
    Trace { name: "loop with scans", requests, rate: None }
}

/// Values of 16 bytes to 2 KiB. A quarter of the keys lives for 2, 4 or 8 seconds.
fn mixed() -> Trace {
    let (ranks, mut random) = (Ranks::new(500_000, 0.9), Random::new(2));
    let request = |key| {
        let of_key = hash(u64::from(key));
        let ttl = (of_key >> 8 & 3 == 0).then(|| 2 << ((of_key >> 16) % 3));
        TraceRequest { key, value_bytes: 16 << (of_key & 7), ttl }
    };
    let requests = (0..2_000_000).map(|_| request(ranks.draw(&mut random))).collect();
    Trace { name: "mixed sizes, TTLs", requests, rate: Some(RATE) }
}

/// The ranks of keys of which the first is used most: that of rank r in proportion to 1/r^exponent.
struct Ranks(Vec<f64>);

impl Ranks {
    fn new(count: u32, exponent: f64) -> Self {
        let mut sum = 0.0;
        let sums = (1..=count).map(|rank| {
            sum += f64::from(rank).powf(-exponent);
            sum
        });
        Self(sums.collect())
    }

    fn draw(&self, random: &mut Random) -> u32 {
        let all = self.0.last().unwrap();
        let share = (random.next() >> 11) as f64 / (1_u64 << 53) as f64 * all;
        self.0.partition_point(|sum| *sum < share) as u32
    }
}

/// Random numbers by the SplitMix64 of Steele, Lea and Flood (2014).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        hash(self.0)
    }
}

/// A number that looks random, the same for the same number.
pub(crate) fn hash(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
