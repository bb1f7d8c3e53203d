//! When a password may be checked: at once, unless its address has sent wrong ones.
//!
//! ```text
//! put ─► waiting, by due time ─► next: the first that is due, unless its origin is paused ─► checked
//!                                                                  └ the origin's pause over ─► due again
//! origin      an address, or an address and a user that was let in from there
//! pauses      250 ms after the first wrong password, then twice as long each time, up to 8 s
//! ```
//! A user that was let in from an address has an origin of its own there: another peer that guesses there does not
//! slow it down. Another's guesses at its name are then slowed down for that name alone.
//!
//! A client may send the password again that was just refused: it tells its peer nothing new. So the pause begins again,
//! and is not twice as long.
//!
//! This module checks no password and reads no clock.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use super::limits::{
    ADDRESSES_MAX, ATTEMPTS_MAX, ATTEMPTS_PER_ADDRESS_MAX, WRONG_PASSWORD_MEMORY, WRONG_PASSWORD_PAUSE,
    WRONG_PASSWORD_PAUSE_MAX,
};
use super::password::Digest;
use crate::clock::Now;

/// The bits of an address of IPv6 that a host cannot choose by itself: the others are one address here.
const IPV6_NETWORK: u128 = !0 << 64;

/// Where a peer connects from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeerAddress {
    /// A socket in the file system of this host.
    Local,
    /// A host. Those of one network of IPv6 (64 bits) count as one, but for this host itself.
    Host(IpAddr),
}

impl PeerAddress {
    /// The address of a host.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        Self::Host(match address.to_canonical() {
            IpAddr::V6(address) if !address.is_loopback() => {
                Ipv6Addr::from_bits(address.to_bits() & IPV6_NETWORK).into()
            }
            address => address,
        })
    }

    /// The address of a peer as libzmq writes it: that of a host, or the process at the other end of a local socket.
    #[must_use]
    pub fn of_text(text: &[u8]) -> Self {
        // An address of one link has its interface behind it.
        let text = std::str::from_utf8(text).unwrap_or_default();
        let address = text.split('%').next().and_then(|text| text.parse().ok());
        address.map_or(Self::Local, Self::of)
    }
}

impl std::fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local => f.write_str("a local socket"),
            Self::Host(IpAddr::V6(network)) if !network.is_loopback() => write!(f, "{network}/64"),
            Self::Host(address) => address.fmt(f),
        }
    }
}

/// Whose pauses an attempt is subject to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Origin {
    address: PeerAddress,
    /// A user that was let in from there.
    user: Option<Box<str>>,
}

/// The wrong passwords of an origin.
#[derive(Clone, Copy)]
struct Record {
    failures: u32,
    /// The last wrong name and password.
    guess: Option<Digest>,
    /// No earlier attempt is checked.
    free_at: Now,
    /// The last failure, or the last time that the user was let in.
    last: Now,
}

/// An attempt in the heap: by the time at which it is due, then in the order of arrival.
struct Waiting<T> {
    due: Now,
    number: u64,
    address: PeerAddress,
    name: Box<str>,
    attempt: T,
}

impl<T> PartialEq for Waiting<T> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<T> Eq for Waiting<T> {}

impl<T> PartialOrd for Waiting<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Waiting<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

/// An attempt that may be checked now.
pub(super) struct Due<T> {
    pub(super) address: PeerAddress,
    pub(super) name: Box<str>,
    pub(super) attempt: T,
}

/// The attempts that wait, and the origins of wrong ones.
pub(super) struct Attempts<T> {
    waiting: BinaryHeap<Reverse<Waiting<T>>>,
    per_address: HashMap<PeerAddress, usize>,
    records: HashMap<Origin, Record>,
    number: u64,
}

impl<T> Attempts<T> {
    pub(super) fn new() -> Self {
        Self { waiting: BinaryHeap::new(), per_address: HashMap::new(), records: HashMap::new(), number: 0 }
    }

    /// Adds an attempt. False: too many wait.
    pub(super) fn put(&mut self, address: PeerAddress, name: &str, attempt: T, now: Now) -> bool {
        let count = self.per_address.get(&address).copied().unwrap_or_default();
        if self.waiting.len() >= ATTEMPTS_MAX || count >= ATTEMPTS_PER_ADDRESS_MAX {
            return false;
        }
        self.per_address.insert(address, count + 1);
        self.number += 1;
        let waiting = Waiting { due: now, number: self.number, address, name: name.into(), attempt };
        self.waiting.push(Reverse(waiting));
        true
    }

    /// The next attempt that may be checked.
    pub(super) fn next(&mut self, now: Now) -> Option<Due<T>> {
        while self.waiting.peek().is_some_and(|Reverse(first)| first.due <= now) {
            let Reverse(mut first) = self.waiting.pop()?;
            let record = self.records.get(&self.origin(first.address, &first.name));
            if let Some(record) = record.filter(|record| record.free_at > now) {
                first.due = record.free_at;
                self.waiting.push(Reverse(first));
                continue;
            }
            if let Some(count) = self.per_address.get_mut(&first.address) {
                *count -= 1;
                if *count == 0 {
                    self.per_address.remove(&first.address);
                }
            }
            return Some(Due { address: first.address, name: first.name, attempt: first.attempt });
        }
        None
    }

    /// The time at which the next attempt may be due.
    pub(super) fn next_due(&self) -> Option<Now> {
        self.waiting.peek().map(|Reverse(first)| first.due)
    }

    /// The password was right: this user has an origin of its own here from now on.
    pub(super) fn right(&mut self, address: PeerAddress, name: &str, now: Now) {
        let record = Record { failures: 0, guess: None, free_at: now, last: now };
        self.note(Origin { address, user: Some(name.into()) }, record);
    }

    /// The password was wrong: its origin pauses. `guess` is the digest of the name and the password.
    pub(super) fn wrong(&mut self, address: PeerAddress, name: &str, guess: Digest, now: Now) {
        let origin = self.origin(address, name);
        let known = self.records.get(&origin).filter(|record| now < record.last.after(WRONG_PASSWORD_MEMORY));
        let is_new = known.and_then(|record| record.guess).is_none_or(|last| !last.is(&guess));
        let failures = known.map_or(0, |record| record.failures).saturating_add(u32::from(is_new));
        self.note(origin, Record { failures, guess: Some(guess), free_at: now.after(pause(failures)), last: now });
    }

    fn origin(&self, address: PeerAddress, name: &str) -> Origin {
        let own = Origin { address, user: Some(name.into()) };
        if self.records.contains_key(&own) { own } else { Origin { address, user: None } }
    }

    fn note(&mut self, origin: Origin, record: Record) {
        if self.records.len() >= ADDRESSES_MAX && !self.records.contains_key(&origin) {
            let oldest = self.records.iter().min_by_key(|(_, record)| record.last).map(|(origin, _)| origin.clone());
            oldest.and_then(|oldest| self.records.remove(&oldest));
        }
        self.records.insert(origin, record);
    }
}

/// The pause after this many wrong passwords in a row.
fn pause(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    (WRONG_PASSWORD_PAUSE * (1 << doublings)).min(WRONG_PASSWORD_PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::super::password::DigestKey;
    use super::*;

    const GUESSER: PeerAddress = PeerAddress::Local;

    fn host(last: u8) -> PeerAddress {
        PeerAddress::of(IpAddr::from([10, 0, 0, last]))
    }

    fn at(millis: u64) -> Now {
        Now::from_millis(millis)
    }

    /// A guess that was not made before: each key makes digests of its own.
    fn new_guess() -> Digest {
        DigestKey::new().of_guess("ada", b"guess")
    }

    /// The times at which the attempts of a guesser, all sent at once, are checked until this time.
    fn checked(attempts: &mut Attempts<()>, until: u64) -> Vec<u64> {
        let mut times = Vec::new();
        while let Some(due) = attempts.next_due().filter(|due| due.millis() <= until) {
            let now = due.max(at(times.last().copied().unwrap_or(0)));
            while let Some(due) = attempts.next(now) {
                attempts.wrong(due.address, &due.name, new_guess(), now);
                times.push(now.millis());
            }
        }
        times
    }

    #[test]
    fn guesses_of_one_address_become_slow_however_many_are_sent_at_once() {
        let mut attempts = Attempts::new();
        for number in 0..20 {
            assert!(attempts.put(GUESSER, &format!("user{number}"), (), at(0)));
        }
        let expected = [0, 250, 750, 1_750, 3_750, 7_750, 15_750, 23_750];
        assert_eq!(checked(&mut attempts, 30_000), expected);
    }

    #[test]
    fn others_are_not_slowed_down_by_a_guesser() {
        let mut attempts = Attempts::new();
        attempts.wrong(GUESSER, "ada", new_guess(), at(0));
        attempts.put(GUESSER, "ada", (), at(1));
        attempts.put(host(1), "ada", (), at(1));
        assert_eq!(attempts.next(at(1)).unwrap().address, host(1));
        assert!(attempts.next(at(1)).is_none());
        assert_eq!(attempts.next_due(), Some(at(250)));
    }

    #[test]
    fn a_user_who_was_let_in_is_not_slowed_down_by_a_guesser_at_its_address() {
        let mut attempts = Attempts::new();
        attempts.right(GUESSER, "ada", at(0));
        (0..9).for_each(|_| attempts.wrong(GUESSER, "bob", new_guess(), at(10)));
        for name in ["bob", "ada", "eve"] {
            attempts.put(GUESSER, name, (), at(20));
        }
        assert_eq!(&*attempts.next(at(20)).unwrap().name, "ada");
        assert!(attempts.next(at(8_009)).is_none());
        attempts.wrong(GUESSER, "ada", new_guess(), at(30));
        attempts.put(GUESSER, "ada", (), at(31));
        assert!(attempts.next(at(32)).is_none(), "guesses at its name are slow too");
        assert!(attempts.next(at(280)).is_some());
    }

    /// `spindle job` asks a second question after an ERROR, with the login of the first.
    #[test]
    fn a_wrong_password_that_comes_again_pauses_its_address_no_longer_than_before() {
        let mut attempts: Attempts<()> = Attempts::new();
        let free = |attempts: &mut Attempts<()>, now| {
            attempts.put(GUESSER, "ada", (), at(now));
            assert!(attempts.next(at(now)).is_none());
            let due = attempts.next_due().unwrap().millis();
            assert!(attempts.next(at(due)).is_some());
            due
        };
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
            attempts.wrong(GUESSER, "ada", guess, at(now));
            assert_eq!(free(&mut attempts, now), expected, "{now}: only the last one comes again");
        }
        attempts.right(GUESSER, "ada", at(10_000));
        for (now, expected) in [(10_000, 10_250), (11_000, 11_250)] {
            attempts.wrong(GUESSER, "ada", other, at(now));
            assert_eq!(free(&mut attempts, now), expected, "{now}");
        }
    }

    #[test]
    fn wrong_passwords_are_forgotten_after_a_while() {
        let mut attempts: Attempts<()> = Attempts::new();
        (0..5).for_each(|_| attempts.wrong(GUESSER, "ada", new_guess(), at(0)));
        attempts.wrong(GUESSER, "ada", new_guess(), at(60_000));
        attempts.put(GUESSER, "ada", (), at(60_001));
        assert!(attempts.next(at(60_249)).is_none() && attempts.next(at(60_250)).is_some());
    }

    #[test]
    fn attempts_and_addresses_are_bounded() {
        let mut attempts = Attempts::new();
        for number in 0..ATTEMPTS_PER_ADDRESS_MAX {
            assert!(attempts.put(GUESSER, "ada", number, at(0)));
        }
        assert!(!attempts.put(GUESSER, "ada", 0, at(0)));
        assert!(attempts.put(host(1), "ada", 0, at(0)), "another address is still heard");
        assert!(attempts.next(at(0)).is_some() && attempts.put(GUESSER, "ada", 0, at(0)));
        for number in 0..=u32::try_from(ADDRESSES_MAX).unwrap() {
            attempts.wrong(PeerAddress::of(IpAddr::V4(number.into())), "ada", new_guess(), at(u64::from(number)));
        }
        assert_eq!(attempts.records.len(), ADDRESSES_MAX);
        assert!(!attempts.records.contains_key(&attempts.origin(PeerAddress::of(IpAddr::V4(0.into())), "ada")));
    }

    #[test]
    fn all_addresses_together_may_fill_the_queue_and_leave_nothing_in_it() {
        let mut attempts = Attempts::new();
        let address = |number: usize| host(u8::try_from(number % 200).unwrap());
        for number in 0..ATTEMPTS_MAX {
            assert!(attempts.put(address(number), "ada", number, at(0)), "{number}");
        }
        assert!(!attempts.put(host(250), "ada", 0, at(0)), "an address that has sent none");
        for number in 0..ATTEMPTS_MAX {
            assert_eq!(attempts.next(at(0)).map(|due| due.attempt), Some(number), "in the order of their arrival");
        }
        assert!(attempts.next(at(0)).is_none() && attempts.per_address.is_empty());
    }

    #[test]
    fn a_right_password_pauses_nothing_and_frees_no_other() {
        let mut attempts = Attempts::new();
        attempts.wrong(GUESSER, "bob", new_guess(), at(0));
        attempts.right(GUESSER, "ada", at(10));
        attempts.put(GUESSER, "ada", (), at(10));
        attempts.put(GUESSER, "bob", (), at(10));
        assert_eq!(&*attempts.next(at(10)).unwrap().name, "ada");
        assert!(attempts.next(at(249)).is_none() && attempts.next(at(250)).is_some());
    }

    #[test]
    fn the_latest_wrong_passwords_are_remembered_until_their_time_is_over() {
        let mut attempts: Attempts<()> = Attempts::new();
        (0..5).for_each(|_| attempts.wrong(GUESSER, "ada", new_guess(), at(0)));
        attempts.wrong(GUESSER, "ada", new_guess(), at(59_999));
        attempts.put(GUESSER, "ada", (), at(60_000));
        assert!(attempts.next(at(67_998)).is_none() && attempts.next(at(67_999)).is_some());
    }

    #[test]
    fn an_address_is_read_as_libzmq_writes_it() {
        let of = |text: &str| PeerAddress::of(text.parse().unwrap());
        for (text, expected) in [
            ("10.0.0.1", of("10.0.0.1")),
            ("::ffff:10.0.0.1", of("10.0.0.1")),
            ("fe80::1%eth0", of("fe80::2")),
            ("0:0:4711", PeerAddress::Local),
            ("", PeerAddress::Local),
        ] {
            assert_eq!(PeerAddress::of_text(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(PeerAddress::of_text(&[0xff]), PeerAddress::Local);
    }

    #[test]
    fn addresses_of_one_network_are_one() {
        let of = |text: &str| PeerAddress::of(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("::1"), of("::2"), "loopback is a network of its own");
        let shown = ["::1", "2001:db8::1", "::ffff:10.0.0.1"].map(|text| of(text).to_string());
        assert_eq!(shown, ["::1", "2001:db8::/64", "10.0.0.1"]);
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
