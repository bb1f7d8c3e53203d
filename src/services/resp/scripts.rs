//! The scripts that are known by their digests: those of libraries for locks, counters and limiters of rates.
//!
//! There is no Lua. Each known script has a handler, which makes the same calls as the script and returns what the script
//! returns. `scripts/texts` has the texts, each with its digest as its name: the tests read them.
//!
//! ```text
//! library   versions   script   digest   lines   keys   handler
//! ```
//! The lines are those of the calls that may be refused, since Redis names the line in the error. To add a script: put its
//! text into `scripts/texts`, write a handler or find the one of a script with the same calls, and add a row.

mod counters;
mod locks;
mod lua;
mod run;
mod windows;

use std::collections::HashMap;
use std::sync::LazyLock;

use ahash::RandomState;
use sha1::{Digest, Sha1};

pub(super) use self::run::{ScriptBounds, ScriptElement, ScriptError, ScriptRun};

use self::run::Outcome;
use super::answer::{Failure, refused};

/// The length of a digest, in hexadecimal digits.
const DIGEST_LENGTH: usize = 40;

/// Which of the keys a script names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScriptKeys {
    /// The first.
    First,
    /// All of them.
    All,
}

/// Where a script comes from.
#[cfg_attr(not(test), expect(dead_code, reason = "the page lists them, which a test checks"))]
pub(super) struct ScriptSource {
    pub(super) library: &'static str,
    pub(super) versions: &'static str,
    pub(super) name: &'static str,
}

/// A known script.
pub(super) struct ScriptRow {
    #[cfg_attr(not(test), expect(dead_code, reason = "the page lists them, which a test checks"))]
    pub(super) source: ScriptSource,
    /// SHA-1 of the text, in hexadecimal digits.
    pub(super) digest: &'static str,
    /// The line of each place at which a call may be refused.
    pub(super) lines: &'static [u8],
    pub(super) keys: ScriptKeys,
    pub(super) handler: for<'r, 'o, 'b> fn(&'r mut ScriptRun<'o, 'b>) -> Outcome,
}

macro_rules! rows {
    ($($library:literal $versions:literal $name:literal $digest:literal [$($line:literal)+] $keys:ident $handler:path;)*) => {
        /// All known scripts.
        pub(super) static SCRIPTS: &[ScriptRow] = &[$(ScriptRow {
            source: ScriptSource { library: $library, versions: $versions, name: $name },
            digest: $digest,
            lines: &[$($line),+],
            keys: ScriptKeys::$keys,
            handler: $handler,
        }),*];
    };
}

rows! {
    "redis-py" "3.5 to 8.1" "Lock: release" "c3f8721cbb97f72bc19e972846bd7aaf91901658" [2] First locks::release;
    "redis-py" "3.5 to 8.1" "Lock: extend" "a4e8783852e6b949f9ef3a97212805108459a890" [2 6 16 18] First locks::extend;
    "redis-py" "3.5 to 8.1" "Lock: reacquire" "1cac51482acf5858da00f6d685d68f886cd6b6b2" [2 6] First locks::renew;
    "redlock-py" "1.0" "unlock" "4e92fdc63815b3a0a2dd1c1df3694de73607c88d" [2] First locks::release;
    "aioredlock" "0.7" "set" "c75a9bf1538efcdb1f383acc3e273c5089d57e58" [1 3] First locks::take;
    "aioredlock" "0.7" "unset" "241e4ca540a1cc4ec1f32d9eb9f879e607d7e6e5" [1] First locks::give_back;
    "aioredlock" "0.7" "TTL" "f908d3f43dbcabc68fc0c9ecaf1fa4a285ecdb0a" [1] First locks::seconds_held;
    "pottery" "1.4 to 3.0" "Redlock: release" "a4aada0b36710970eedaaaeec4a6b7d8c78c4f80" [2] First locks::release;
    "pottery" "1.4 to 3.0" "Redlock: extend" "ba015a80261b616e7a62d35df0b8e3edbe6c9414" [2 3] First locks::renew;
    "pottery" "1.4 to 3.0" "Redlock: acquired" "f5f7bd3a3aa4a63c507c1155c5ea1219b350d992" [2 3] First locks::time_held;
    "pottery" "1.4 to 3.0" "NextID: set" "556429c2d8baca516a475ebb22d380cbccae7313" [2 4 5] First counters::raise;
    "aiocache" "0.11 and 0.12" "release" "ae3671744a5dbb24ea37ef607b8b10ac7856d43e" [1] First locks::release;
    "aiocache" "0.11 and 0.12" "compare and set" "782e993d12091daacc7a3164ddf5c4624fe56042" [1 1] First locks::replace;
    "cashews" "4.7" "unlock" "d10461dc5ff043322a9d59734d0285f83706c732" [1] First locks::release;
    "cashews" "5.3 to 7.6" "unlock" "b948f76fda6b97319d3426a2fb42b0d4f02c7146" [1] First locks::release;
    "cashews" "5.3 to 7.6" "incr with expire" "0f8a745c1b5efe281bd1299ea0d1b2994c6ae601" [1 1] First counters::add_for_millis;
    "django-redis" "4.12 to 7.0" "incr" "f4a7da3e5d8ea3b46642af08427151cae0190400" [2 4] First counters::increment_present;
    "django-redis" "4.12 to 7.0" "incr without a check" "4d15273b16b10c15e1d9202cbe93c959ab7d250b" [2] First counters::increment;
    "limits" "1.6" "fixed window: incr" "0d23cf1ccf81ad1452ccf307e1938d99997a6073" [3 5] First counters::count_for_seconds;
    "limits" "2.8 to 5.8" "fixed window: incr" "628bd136a573a06b346879695681af12ccef300f" [3 6] First counters::add_for_seconds;
    "limits" "4.1 to 5.8" "sliding window: get" "e7a0a27d4101baabb124af209bb0245197a359a1" [1 2 4 10] All windows::look;
    "limits" "4.1 to 5.8" "sliding window: acquire" "e8ac2a60cb040b0dbb56815a1e9c6fd032ce62e7" [4 7 11 16 39 42] All windows::acquire;
    "fastapi-limiter" "0.1" "limit" "a3f9e982197e9e887f6b5dcb7ec273863bb83aad" [5 6 7 10 14] First counters::wait_for_limit;
    "redlock (npm)" "3.1" "lock" "862f31bf38e9b63ce28d6e9e5143551bb34ef981" [1] First locks::acquire;
    "redlock (npm)" "3.1" "unlock" "cf0e94b2e9ffc7e04395cf88f7583fc309985910" [1] First locks::release;
    "redlock (npm)" "3.1" "extend" "a7aba3bc5d6e99b3003da8b9d80a63b9f4092ecf" [1 1] First locks::renew;
    "redlock (npm)" "4.0" "lock" "d01fb69e6ecc8bad3ca9bacba9f4f9e96862313f" [4 11] All locks::acquire_all;
    "redlock (npm)" "4.0 and 4.1" "unlock" "517e7ed95f00c0c4a209c6a7afcc6ab797d30b85" [5] All locks::release_all;
    "redlock (npm)" "4.0" "extend" "acaf90b4697bb48bb5f603e9e613a54df7536c70" [4 11] All locks::extend_all;
    "redlock (npm)" "4.1 and 4.2" "lock" "e5a322e2634ef59a516e8ea150cb085afafee684" [4 11] All locks::acquire_all;
    "redlock (npm)" "4.1" "extend" "1d48b4c6fea2cdadc46b3346de5c2eaf121c7bb3" [4 11] All locks::extend_all;
    "redlock (npm)" "4.2" "unlock" "0f0f23b9048b36752b5be114f357ba083449f908" [5] All locks::release_all;
    "redlock (npm)" "4.2" "extend" "ce46f80993d5dac20dd066eb301a4e37994bdbed" [4 11] All locks::extend_all;
    "redlock (npm)" "5.0 beta" "lock" "96da70f7716f27d278a5218544df37fd8b0a5e4c" [4 11] All locks::acquire_all;
    "redlock (npm)" "5.0 beta" "unlock" "e4612211c9f8f51c257e26e056b0a654b3187242" [5] All locks::release_all;
    "redlock (npm)" "5.0 beta" "extend" "aed6f382e410db8ba7926d4e5e9aab410bf2a78a" [4 11] All locks::extend_all;
    "redis-semaphore" "5.8" "Mutex: release" "7157921a7cc7cfba979acf6d63f073151df17d12" [5] First locks::release;
    "redis-semaphore" "5.8" "Mutex: refresh" "594683e49a64ebaf975caf5f8079a1d097c438f1" [6 9] First locks::renew;
    "rate-limit-redis" "3.0 to 4.2" "increment" "3f424a504987d231baa2e19159bb5def8ad32f87" [1 5] First counters::hit;
    "rate-limit-redis" "4.3 and 5.0" "increment" "81dbecea94d2d10514719b20ed51faf711529d9d" [3 5 8 10] First counters::hit_or_begin;
    "rate-limit-redis" "6.0" "increment" "895b92e1712734e1b464999be23953485475357b" [2 4 7] First counters::hit_until_end;
    "rate-limit-redis" "4.2 to 6.0" "get" "6aeb97ed6086dcdeafdc6fda3999a0d0e38ec96a" [1] First counters::hits_and_time;
    "rate-limiter-flexible" "2.3 to 11.4" "increment" "a1de965f42e177aa339706bd580f049065eca79a" [1] First counters::consume;
}

/// The rows by their digests.
static BY_DIGEST: LazyLock<HashMap<&'static [u8], &'static ScriptRow, RandomState>> =
    LazyLock::new(|| SCRIPTS.iter().map(|row| (row.digest.as_bytes(), row)).collect());

/// The longest text that may be known, in bytes. SHA-1 of a longer one would be for nothing.
const TEXT_BYTES_MAX: usize = 2_048;

/// The script with this digest, in letters of any size.
pub(super) fn find(digest: &[u8]) -> Option<&'static ScriptRow> {
    let mut small = [0; DIGEST_LENGTH];
    if digest.len() != DIGEST_LENGTH {
        return None;
    }
    small.copy_from_slice(digest);
    small.make_ascii_lowercase();
    BY_DIGEST.get(&small[..]).copied()
}

/// The script with this text.
pub(super) fn find_text(text: &[u8]) -> Option<&'static ScriptRow> {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    if text.len() > TEXT_BYTES_MAX {
        return None;
    }
    let digit = |value: u8| DIGITS.get(usize::from(value)).copied();
    let digits = Sha1::digest(text).into_iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
    find(&digits.flatten().collect::<Vec<u8>>())
}

impl ScriptRow {
    /// The refusal that an error comes to, in the words of Redis.
    pub(super) fn refusal(&self, error: ScriptError) -> Failure {
        let line = |place: usize| self.lines.get(place).copied().unwrap_or_default();
        let (words, line) = match error {
            ScriptError::Returned(words) => return refused(words),
            ScriptError::Call(place, Failure::Refused(words)) => (words, line(place)),
            ScriptError::Call(_, failure) => return failure,
            ScriptError::Lua(place, words) => {
                let line = line(place);
                (format!("ERR user_script:{line}: {words}").into_bytes().into(), line)
            }
        };
        refused([&*words, format!(" script: {}, on @user_script:{line}.", self.digest).as_bytes()].concat())
    }
}

#[cfg(test)]
mod tests;
