//! Refused peers and the reasons: counted, and logged at most once a second for each address, and ten times a second
//! altogether. A line says how many refusals before it have none.

use std::collections::VecDeque;

use super::address::PeerAddress;
use super::limits::{REFUSAL_LINES_MAX, REFUSAL_LOG_PAUSE};
use crate::clock::Now;
use crate::lock::Mutex;
use crate::stats::SharedCounter;
use crate::zmtp::ClaimRefusal;

/// Characters of a name that are logged: more than a name of the file or a key has.
const NAME_CHARS_MAX: usize = 80;

/// Why a peer is refused. To the peer, an unknown name and a wrong password are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Denied {
    /// There is no such name, or it has another password.
    Password,
    /// No user has this public key.
    Key,
    /// No user has this certificate.
    Certificate,
    /// Too many passwords wait to be checked.
    Busy,
    /// The peer names no user where one is needed, or it uses a mechanism that is not allowed there.
    Anonymous,
    /// The user may not do this.
    Permission,
}

impl Denied {
    /// All reasons.
    pub const ALL: [Self; 6] =
        [Self::Password, Self::Key, Self::Certificate, Self::Busy, Self::Anonymous, Self::Permission];

    /// Its name in STATS.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Password => "password",
            Self::Key => "key",
            Self::Certificate => "certificate",
            Self::Busy => "busy",
            Self::Anonymous => "anonymous",
            Self::Permission => "permission",
        }
    }

    /// The reason as a log line has it.
    const fn sentence(self) -> &'static str {
        match self {
            Self::Password => "an unknown name or a wrong password",
            Self::Key => "an unknown key",
            Self::Certificate => "an unknown certificate",
            Self::Busy => "too many passwords wait to be checked",
            Self::Anonymous => "no user is named",
            Self::Permission => "the user may not do this",
        }
    }
}

/// The refusal that the peer of a ZeroMQ endpoint receives.
impl From<Denied> for ClaimRefusal {
    fn from(why: Denied) -> Self {
        match why {
            Denied::Busy => Self::Busy,
            Denied::Password | Denied::Key | Denied::Certificate | Denied::Anonymous | Denied::Permission => {
                Self::Wrong
            }
        }
    }
}

impl std::fmt::Display for Denied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.sentence())
    }
}

/// The line of the log. A name may be of any length, and of any characters. `unlogged` refusals have no line.
pub(super) fn line(address: PeerAddress, why: Denied, who: &str, unlogged: u64) -> String {
    let who: String = who.chars().take(NAME_CHARS_MAX).collect();
    let more = if unlogged > 0 { format!(", and {unlogged} more refusals before it") } else { String::new() };
    format!("{address}: refused {who:?}: {why}{more}")
}

/// Limits the log lines that refused peers can cause: one for each address and [`REFUSAL_LINES_MAX`] altogether in
/// [`REFUSAL_LOG_PAUSE`].
///
/// ```
/// # use spindle::{clock::Now, security::{PeerAddress, RefusalPace}};
/// let mut pace = RefusalPace::default();
/// let mut note = |millis| pace.note(PeerAddress::Local, Now::from_millis(millis));
/// assert_eq!([0, 999, 1_000].map(&mut note), [Some(0), None, Some(1)]);
/// ```
#[derive(Debug, Default)]
pub struct RefusalPace {
    /// The lines of the last second, from the oldest.
    recent: VecDeque<RefusalLine>,
    /// Refusals since the last line.
    unlogged: u64,
}

#[derive(Debug)]
struct RefusalLine {
    address: PeerAddress,
    at: Now,
}

impl RefusalPace {
    /// If a refusal of this address may be logged `now`, returns how many before it were not. That counts as logged.
    pub fn note(&mut self, address: PeerAddress, now: Now) -> Option<u64> {
        while self.recent.front().is_some_and(|line| line.at.after(REFUSAL_LOG_PAUSE) <= now) {
            self.recent.pop_front();
        }
        if self.recent.len() >= REFUSAL_LINES_MAX || self.recent.iter().any(|line| line.address == address) {
            self.unlogged += 1;
            return None;
        }
        self.recent.push_back(RefusalLine { address, at: now });
        Some(std::mem::take(&mut self.unlogged))
    }
}

/// The counts, and the pace of the lines.
#[derive(Default)]
pub(super) struct Refusals {
    /// Indexed by [`Denied`]. Any thread adds, STATS reads.
    counts: [SharedCounter; Denied::ALL.len()],
    pace: Mutex<RefusalPace>,
}

impl Refusals {
    /// Counts a refusal. If it may be logged, returns how many before it were not.
    pub(super) fn note(&self, address: PeerAddress, why: Denied, now: Now) -> Option<u64> {
        if let Some(count) = self.counts.get(why as usize) {
            count.add(1);
        }
        self.pace.lock().note(address, now)
    }

    pub(super) fn count(&self, why: Denied) -> u64 {
        self.counts.get(why as usize).map_or(0, SharedCounter::get)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn every_refusal_is_counted_and_one_a_second_is_logged_with_the_number_of_the_others() {
        let refusals = Refusals::default();
        let at = Now::from_millis;
        let logged = [0, 1, 999, 1_000, 1_500].map(|millis| refusals.note(PeerAddress::Local, Denied::Key, at(millis)));
        assert_eq!(logged, [Some(0), None, None, Some(2), None]);
        let other = PeerAddress::of(IpAddr::from([10, 0, 0, 1]));
        assert_eq!(refusals.note(other, Denied::Password, at(1_500)), Some(1));
        let counts = Denied::ALL.map(|why| refusals.count(why));
        assert_eq!(counts, [1, 5, 0, 0, 0, 0]);
    }

    /// Guesses from many addresses wrote 669 lines a second.
    #[test]
    fn all_addresses_together_have_ten_lines_a_second() {
        let refusals = Refusals::default();
        let note = |number: u32, millis| {
            let address = PeerAddress::of(IpAddr::V4(number.into()));
            refusals.note(address, Denied::Password, Now::from_millis(millis))
        };
        let lines =
            |from: u32, millis| (from..from + 100).filter_map(|number| note(number, millis)).collect::<Vec<_>>();
        assert_eq!(lines(0, 0).len(), REFUSAL_LINES_MAX);
        assert!(lines(100, 999).is_empty());
        let next = lines(200, 1_000);
        assert_eq!((next.len(), next.first()), (REFUSAL_LINES_MAX, Some(&190)));
        assert_eq!(refusals.count(Denied::Password), 300);
        assert!(refusals.pace.lock().recent.len() <= REFUSAL_LINES_MAX);
    }

    #[test]
    fn reasons_have_words_and_sentences_of_their_own() {
        let words = Denied::ALL.map(Denied::word);
        assert_eq!(words, ["password", "key", "certificate", "busy", "anonymous", "permission"]);
        let sentences: std::collections::HashSet<String> = Denied::ALL.iter().map(ToString::to_string).collect();
        assert_eq!(sentences.len(), words.len());
    }

    #[test]
    fn a_line_has_a_long_or_strange_name_as_one_short_word() {
        let shown = |who: &str| line(PeerAddress::Local, Denied::Key, who, 0);
        assert_eq!(shown("ada"), "a local socket: refused \"ada\": an unknown key");
        assert_eq!(shown("a\n\"b"), "a local socket: refused \"a\\n\\\"b\": an unknown key");
        assert_eq!(shown(&"ä".repeat(100_000)), shown(&"ä".repeat(NAME_CHARS_MAX)));
        let more = line(PeerAddress::Local, Denied::Busy, "ada", 7);
        assert!(more.ends_with("wait to be checked, and 7 more refusals before it"), "{more}");
    }
}
