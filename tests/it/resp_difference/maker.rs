//! Random arguments from small pools, and the faults of commands: names in mixed case, wrong arity, inline.
//!
//! The pools are small, so that commands meet the same keys. No relative time in a pool is short: a key that expires
//! in the middle of a program would do so at two moments on two servers.

use crate::seeded_rng::SeededRng;

use super::command::{Command, Form};

/// Integers at all borders, and texts that are almost integers.
const INTEGERS: [&str; 26] = [
    "0",
    "1",
    "-1",
    "2",
    "10",
    "127",
    "128",
    "-129",
    "9999",
    "10000",
    "2147483647",
    "-2147483649",
    "9223372036854775806",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "18446744073709551615",
    "+1",
    " 1",
    "1 ",
    "01",
    "-0",
    "1.0",
    "1e3",
    "abc",
    "",
];
/// Floating-point numbers, and texts that are almost such numbers.
const FLOATS: [&str; 20] = [
    "0.1",
    "-0.1",
    "3.0e3",
    "-5.5",
    "1e308",
    "-1e308",
    "inf",
    "-inf",
    "nan",
    "1e-5",
    "0x10",
    "1e400",
    ".5",
    "5.",
    "3.14159265358979323846",
    "1e17",
    " 1.5",
    "1.5 ",
    "1,5",
    "0.00000000000000001",
];
/// Relative times in seconds: long, or wrong.
const SECONDS: [&str; 11] = ["100", "1000", "86400", "100", "1000", "0", "-1", "abc", "1.5", "", "9223372036854775807"];
/// Relative times in milliseconds: long, or wrong.
const MILLIS: [&str; 11] =
    ["100000", "1000000", "86400000", "100001", "999999", "0", "-1", "abc", "1.5", "", "9223372036854775807"];
/// A time that Redis takes, and a server with fewer bits for it need not take.
const FAR: &str = "9223372036854775";
/// The same, in seconds.
const FAR_SECONDS: &str = "9223372036854";
/// Points in time: far in the future, in the past, or wrong. The future is the year 2284, which any server takes.
const FUTURE_SECONDS: &str = "9917117420";
const FUTURE_MILLIS: [&str; 2] = ["9917117420000", "9917117420123"];
const PAST: [&str; 3] = ["1", "1000000000", "999999999999"];
const WRONG_TIMES: [&str; 6] = ["0", "-1", "abc", "", "9223372036854775807", "-9223372036854775808"];
/// The patterns of KEYS, SCAN and PSUBSCRIBE.
const PATTERNS: [&str; 18] = [
    "*",
    "k*",
    "*1",
    "?",
    "[a-c]",
    "[^a]*",
    "key:[0-9]",
    "\\*",
    "k\\*",
    "*:*",
    "**",
    "",
    "[",
    "[z-a]*",
    "a",
    "*e*y*",
    "gl\\ob*",
    "[\\]]",
];

/// The points in time that EXPIRETIME and PEXPIRETIME return exactly.
pub(crate) fn is_far_future(time: i64) -> bool {
    [FUTURE_SECONDS, FUTURE_MILLIS[0], FUTURE_MILLIS[1]].iter().any(|text| text.parse() == Ok(time))
        || time == 33_177_117_420_000
}

/// Makes the arguments of a program.
pub(crate) struct Maker {
    pub(crate) rng: SeededRng,
    /// The times that [`Maker::distinct_seconds`] has returned.
    distinct: u64,
    /// Whether a value may be stored with a deadline that has passed: Redis finds it only later, perhaps behind a
    /// subscription to its event.
    pub(crate) stores_expired: bool,
}

impl Maker {
    /// Makes arguments from these random choices.
    pub(crate) fn new(rng: SeededRng) -> Self {
        Self { rng, distinct: 0, stores_expired: true }
    }

    /// One of these words.
    pub(crate) fn word(&mut self, words: &[&'static str]) -> &'static str {
        self.rng.pick(words)
    }

    /// One of twelve keys: short, at the border of 64 bytes, long, empty, binary.
    pub(crate) fn key(&mut self) -> Vec<u8> {
        match self.rng.below(14) {
            0..=2 => b"a".to_vec(),
            3 => b"b".to_vec(),
            4 => b"key:1".to_vec(),
            5 => b"key:2".to_vec(),
            6 => vec![b'k'; 64],
            7 => vec![b'k'; 65],
            8 => vec![b'l'; 300],
            9 => Vec::new(),
            10 => b"\0\r\nbinary\xff\xfe".to_vec(),
            11 => b"gl*ob[?]\\".to_vec(),
            12 => "Schlüssel".as_bytes().to_vec(),
            _ => b"{tag}12345".to_vec(),
        }
    }

    /// All keys that [`Maker::key`] returns.
    pub(crate) fn all_keys() -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = ["a", "b", "key:1", "key:2", "", "gl*ob[?]\\", "Schlüssel", "{tag}12345"]
            .iter()
            .map(|key| key.as_bytes().to_vec())
            .collect();
        keys.extend([vec![b'k'; 64], vec![b'k'; 65], vec![b'l'; 300], b"\0\r\nbinary\xff\xfe".to_vec()]);
        keys
    }

    /// An integer, often a small valid one.
    pub(crate) fn integer(&mut self) -> String {
        if self.rng.one_in(2) {
            let small = self.rng.below(200);
            return if self.rng.one_in(4) { format!("-{small}") } else { small.to_string() };
        }
        self.word(&INTEGERS).to_owned()
    }

    /// A floating-point number.
    pub(crate) fn float(&mut self) -> String {
        if self.rng.one_in(2) {
            // Quarters, whose sums are exact in every arithmetic, and seldom hundredths.
            let whole = self.rng.below(1000);
            let part = if self.rng.one_in(50) { self.rng.below(100) } else { 25 * self.rng.below(4) };
            return format!("{whole}.{part:02}");
        }
        if self.rng.one_in(20) { self.word(&FLOATS).to_owned() } else { self.integer() }
    }

    /// A value: empty, a number, text at the border of embedded strings, binary, rarely long.
    pub(crate) fn value(&mut self) -> Vec<u8> {
        match self.rng.below(16) {
            0 => Vec::new(),
            1..=5 => self.integer().into_bytes(),
            6 | 7 => self.float().into_bytes(),
            8 | 9 => {
                let length = self.word(&["1", "43", "44", "45", "64"]).parse().unwrap_or(1);
                vec![b'v'; length]
            }
            10 if self.rng.one_in(2_000) => vec![b'M'; 1 << 20],
            10 => self.binary(2048),
            11 => b"a repetition, a repetition, a repetition, a repetition, a repetition".repeat(3),
            _ => self.binary(24),
        }
    }

    /// Random bytes.
    pub(crate) fn binary(&mut self, bound: u64) -> Vec<u8> {
        let length = self.rng.below(bound);
        (0..length.div_ceil(8)).flat_map(|_| self.rng.next().to_le_bytes()).take(usize_of(length)).collect()
    }

    /// A relative time.
    pub(crate) fn seconds(&mut self) -> &'static str {
        if self.rng.one_in(300) { FAR_SECONDS } else { self.word(&SECONDS) }
    }

    /// A relative time.
    pub(crate) fn millis(&mut self) -> &'static str {
        if self.rng.one_in(300) { FAR } else { self.word(&MILLIS) }
    }

    /// A relative time for a comparison with an earlier time: at least 20 seconds from all others of a program, since
    /// each server measures equal times from a moment of its own.
    pub(crate) fn distinct_seconds(&mut self) -> u64 {
        // A prime number of places, so all differ until each was taken.
        self.distinct += 1;
        200 + 60 * (self.distinct * 2_741 % 4_093)
    }

    /// A point in time.
    pub(crate) fn at_seconds(&mut self) -> &'static str {
        if self.rng.one_in(4) { self.word(&PAST[..2]) } else { self.future_seconds() }
    }

    /// A point in time.
    pub(crate) fn at_millis(&mut self) -> &'static str {
        if self.rng.one_in(4) { self.word(&PAST) } else { self.future_millis() }
    }

    /// A point in time that has not passed.
    pub(crate) fn future_seconds(&mut self) -> &'static str {
        match self.rng.below(3) {
            0 | 1 => FUTURE_SECONDS,
            _ if self.rng.one_in(75) => FAR,
            _ => self.word(&WRONG_TIMES),
        }
    }

    /// A point in time that has not passed.
    pub(crate) fn future_millis(&mut self) -> &'static str {
        match self.rng.below(3) {
            0 | 1 => self.word(&FUTURE_MILLIS),
            _ if self.rng.one_in(75) => FAR,
            _ => self.word(&WRONG_TIMES),
        }
    }

    /// A glob.
    pub(crate) fn pattern(&mut self) -> &'static str {
        self.word(&PATTERNS)
    }

    /// A short deadline in milliseconds.
    pub(crate) fn short_millis(&mut self) -> String {
        let longest = if self.rng.one_in(4) { 46 } else { 11 };
        (5 + self.rng.below(longest)).to_string()
    }

    /// The command as a careless client writes it: now and then in mixed case, with an argument too many or too few,
    /// or inline.
    pub(crate) fn carelessly(&mut self, mut command: Command) -> Command {
        if self.rng.one_in(4)
            && let Some(name) = command.arguments.first_mut()
        {
            for byte in name.iter_mut().filter(|_| self.rng.one_in(2)) {
                *byte ^= if byte.is_ascii_alphabetic() { 0x20 } else { 0 };
            }
        }
        // Another argument may be a short time, and a script that is not loaded is known to Spindle alone.
        let is_script = ["EVAL", "EVALSHA", "SCRIPT"].iter().any(|name| command.has(0, name));
        if self.rng.one_in(60) && !command.has(1, "REPLY") && !is_script {
            if self.rng.one_in(2) && command.arguments.len() > 1 {
                command.arguments.pop();
            } else {
                let further = self.value();
                command.arguments.push(further);
            }
        }
        let length: usize = command.arguments.iter().map(Vec::len).sum();
        if self.rng.one_in(30) && length < 1_000 && command.arguments.first().is_some_and(|name| !name.is_empty()) {
            command.form = Form::Inline;
        }
        command
    }
}

fn usize_of(number: u64) -> usize {
    usize::try_from(number).expect("it is small")
}
