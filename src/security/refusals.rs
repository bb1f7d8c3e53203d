//! Refused peers and the reasons: counted, and logged at most once a second for each address and ten times altogether.

use super::attempts::PeerAddress;
use super::limits::{REFUSAL_LOG_LINES_MAX, REFUSAL_LOG_PAUSE};
use crate::clock::Now;
use crate::lock::Mutex;
use crate::stats::SharedCounter;

/// Characters of a name that are logged: more than a name of the file or a key has.
const NAME_CHARS_MAX: usize = 80;

/// Why a peer is refused. To the peer, an unknown name and a wrong password are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Denied {
    /// There is no such name, or it has another password.
    Password,
    /// No user has this public key.
    Key,
    /// Too many passwords wait to be checked.
    Busy,
    /// The peer names no user where one is needed, or it uses a mechanism that is not allowed there.
    Anonymous,
    /// The user may not do this.
    Permission,
}

impl Denied {
    /// All reasons.
    pub const ALL: [Self; 5] = [Self::Password, Self::Key, Self::Busy, Self::Anonymous, Self::Permission];

    /// Its name in STATS.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Password => "password",
            Self::Key => "key",
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
            Self::Busy => "too many passwords wait to be checked",
            Self::Anonymous => "no user is named",
            Self::Permission => "the user may not do this",
        }
    }
}

impl std::fmt::Display for Denied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.sentence())
    }
}

/// The line of the log. A name may be of any length, and of any characters.
pub(super) fn line(address: PeerAddress, why: Denied, who: &str) -> String {
    format!("{address}: refused {:?}: {why}", who.chars().take(NAME_CHARS_MAX).collect::<String>())
}

/// Limits the log lines that refused peers can cause: one for each address and [`REFUSAL_LOG_LINES_MAX`] altogether in
/// [`REFUSAL_LOG_PAUSE`].
///
/// ```
/// # use spindle::{clock::Now, security::{PeerAddress, RefusalPace}};
/// let mut pace = RefusalPace::default();
/// assert!(pace.is_time(PeerAddress::Local, Now::from_millis(0)));
/// assert!(!pace.is_time(PeerAddress::Local, Now::from_millis(999)));
/// assert!(pace.is_time(PeerAddress::Local, Now::from_millis(1_000)));
/// ```
#[derive(Debug, Default)]
pub struct RefusalPace {
    /// The lines of the last pause.
    logged: Vec<(PeerAddress, Now)>,
}

impl RefusalPace {
    /// Whether a refusal of this address may be logged `now`. True counts as logged.
    pub fn is_time(&mut self, address: PeerAddress, now: Now) -> bool {
        self.logged.retain(|(_, last)| now < last.after(REFUSAL_LOG_PAUSE));
        let is_time =
            self.logged.len() < REFUSAL_LOG_LINES_MAX && self.logged.iter().all(|(logged, _)| *logged != address);
        if is_time {
            self.logged.push((address, now));
        }
        is_time
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
    /// Counts a refusal. Returns whether it may be logged.
    pub(super) fn note(&self, address: PeerAddress, why: Denied, now: Now) -> bool {
        if let Some(count) = self.counts.get(why as usize) {
            count.add(1);
        }
        self.pace.lock().is_time(address, now)
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
    fn every_refusal_is_counted_and_one_a_second_is_logged() {
        let refusals = Refusals::default();
        let at = Now::from_millis;
        let logged = [0, 1, 999, 1_000, 1_500].map(|millis| refusals.note(PeerAddress::Local, Denied::Key, at(millis)));
        assert_eq!(logged, [true, false, false, true, false]);
        assert!(refusals.note(PeerAddress::of(IpAddr::from([10, 0, 0, 1])), Denied::Password, at(1_500)));
        let counts = Denied::ALL.map(|why| refusals.count(why));
        assert_eq!(counts, [1, 5, 0, 0, 0]);
    }

    #[test]
    fn reasons_have_words_and_sentences_of_their_own() {
        let words = Denied::ALL.map(Denied::word);
        assert_eq!(words, ["password", "key", "busy", "anonymous", "permission"]);
        let sentences: std::collections::HashSet<String> = Denied::ALL.iter().map(ToString::to_string).collect();
        assert_eq!(sentences.len(), words.len());
    }

    #[test]
    fn a_line_has_a_long_or_strange_name_as_one_short_word() {
        let shown = |who: &str| line(PeerAddress::Local, Denied::Key, who);
        assert_eq!(shown("ada"), "a local socket: refused \"ada\": an unknown key");
        assert_eq!(shown("a\n\"b"), "a local socket: refused \"a\\n\\\"b\": an unknown key");
        assert_eq!(shown(&"ä".repeat(100_000)), shown(&"ä".repeat(NAME_CHARS_MAX)));
    }

    #[test]
    fn the_lines_of_all_addresses_are_bounded() {
        let refusals = Refusals::default();
        let address = |number: u32| PeerAddress::of(IpAddr::V4(number.into()));
        let note = |number, millis| refusals.note(address(number), Denied::Key, Now::from_millis(millis));
        let most = u32::try_from(REFUSAL_LOG_LINES_MAX).unwrap_or(0);
        assert!((0..most).all(|number| note(number, 0)));
        assert!(!note(most, 10), "and is counted all the same");
        assert_eq!(refusals.count(Denied::Key), u64::from(most) + 1);
        assert!(note(most, 1_000));
    }
}
