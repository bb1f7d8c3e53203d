//! Guessers of every kind, and the users whom they would keep out. Time is an argument.

#![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

use std::net::IpAddr;

use super::super::password::tests::new_guess;
use super::*;

/// The time that a check takes in these tests.
const CHECK: u64 = 30;

fn host(number: u32) -> PeerAddress {
    PeerAddress::of(IpAddr::V4((0x0a00_0000 + number).into()))
}

fn at(millis: u64) -> Now {
    Now::from_millis(millis)
}

/// A try of a password that nobody tried before.
fn origin(address: PeerAddress, name: &str) -> LoginOrigin {
    LoginOrigin { address, name: name.into(), guess: new_guess() }
}

/// The tries, the checker, and the time.
struct Rig {
    attempts: Attempts<()>,
    now: u64,
}

/// Who was checked, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Checked {
    at: u64,
    address: PeerAddress,
    name: String,
}

impl Rig {
    fn new() -> Self {
        Self { attempts: Attempts::new(), now: 0 }
    }

    fn put(&mut self, address: PeerAddress, name: &str) -> Put<()> {
        self.attempts.put(origin(address, name), (), at(self.now))
    }

    fn prove(&mut self, address: PeerAddress, name: &str) {
        self.attempts.prove(&origin(address, name), at(self.now));
    }

    /// Checks one password, which is wrong, if one is due until this time.
    fn check(&mut self, until: u64) -> Option<Checked> {
        let due = self.attempts.next_due().map_or(self.now, |due| due.millis().max(self.now));
        if due > until {
            return None;
        }
        self.now = due;
        let Try { origin, .. } = self.attempts.next(at(due))?;
        let checked = Checked { at: due, address: origin.address, name: origin.name.to_string() };
        self.now += CHECK;
        self.attempts.wrong(&origin, Duration::from_millis(CHECK), at(self.now));
        Some(checked)
    }

    fn check_all(&mut self, until: u64) -> Vec<Checked> {
        let checked = std::iter::from_fn(|| self.check(until)).collect();
        self.now = self.now.max(until);
        checked
    }

    fn opens_at(&self, address: PeerAddress, name: &str) -> Option<Now> {
        self.attempts.opens_at(&origin(address, name))
    }

    fn is_free(&self, address: PeerAddress, name: &str) -> bool {
        self.attempts.is_free(&origin(address, name), at(self.now))
    }
}

#[test]
fn guesses_of_one_address_become_slow_however_many_names_are_tried_at_once() {
    let mut rig = Rig::new();
    (0..20).for_each(|number| drop(rig.put(host(1), &format!("user{number}"))));
    let times: Vec<u64> = rig.check_all(32_000).into_iter().map(|checked| checked.at).collect();
    // Each pause begins when its check has ended.
    assert_eq!(times, [0, 280, 810, 1_840, 3_870, 7_900, 15_930, 23_960, 31_990]);
}

/// A user who had logged in once was not braked: 20,000 guesses in 0.22 s.
#[test]
fn a_digest_answers_no_more_guesses_than_the_checker() {
    let mut rig = Rig::new();
    rig.prove(host(1), "ada");
    assert!(rig.is_free(host(1), "ada") && !rig.is_free(host(2), "ada") && !rig.is_free(host(1), "bob"));
    let number = rig.put(host(1), "ada").number;
    assert!(!rig.is_free(host(1), "ada"), "one waits");
    rig.attempts.give_up(number, at(0));
    rig.now = 249;
    assert!(!rig.is_free(host(1), "ada"), "the pause of the one that was given up");
    rig.now = 250;
    assert!(rig.is_free(host(1), "ada"));
    rig.put(host(1), "ada");
    let Try { origin, .. } = rig.attempts.next(at(250)).unwrap();
    assert!(!rig.is_free(host(1), "ada"), "one is being checked");
    rig.attempts.wrong(&origin, Duration::ZERO, at(250));
    rig.now = 749;
    assert!(!rig.is_free(host(1), "ada"), "the pause of the one that was wrong");
    rig.now = 750;
    assert!(rig.is_free(host(1), "ada"));
}

#[test]
fn tries_that_are_refused_as_busy_or_given_up_count_for_their_address() {
    let mut rig = Rig::new();
    let give_up = |rig: &mut Rig| {
        let number = rig.put(host(1), "ada").number;
        rig.attempts.give_up(number, at(rig.now));
    };
    give_up(&mut rig);
    assert!(rig.attempts.waiting.is_empty());
    assert_eq!(rig.opens_at(host(1), "bob"), Some(at(250)));
    assert_eq!(rig.opens_at(host(2), "ada"), None, "a name pauses for what was checked");
    (0..4).for_each(|_| give_up(&mut rig));
    // The first pause ends at its time, and the next one is that of the sixth try.
    rig.put(host(1), "ada");
    assert_eq!(rig.check_all(300).first().unwrap().at, 250);
    assert_eq!(rig.opens_at(host(1), "bob"), Some(at(250 + CHECK + 8_000)));
    let mut rig = Rig::new();
    let displaced = (0..=ATTEMPTS_PER_ADDRESS_MAX).filter_map(|_| rig.put(host(1), "ada").displaced).count();
    assert_eq!(displaced, 1);
    assert_eq!(rig.check(0).unwrap().at, 0, "those that wait are checked all the same");
    assert_eq!(rig.opens_at(host(1), "bob"), Some(at(CHECK + 500)), "it was the second");
}

#[test]
fn a_try_that_is_being_checked_is_counted_once_by_its_result() {
    let mut rig = Rig::new();
    let number = rig.put(host(1), "ada").number;
    let Try { origin, .. } = rig.attempts.next(at(0)).unwrap();
    rig.attempts.give_up(number, at(0));
    rig.attempts.wrong(&origin, Duration::ZERO, at(0));
    assert_eq!(rig.attempts.opens_at(&origin), Some(at(250)));
}

#[test]
fn others_are_not_slowed_down_by_a_guesser_at_other_names() {
    let mut rig = Rig::new();
    rig.put(host(1), "ada");
    rig.check_all(0);
    rig.put(host(1), "bob");
    rig.put(host(2), "bob");
    let next = rig.check(1_000).unwrap();
    assert_eq!((next.address, next.at), (host(2), 2 * CHECK), "the checker rests as long as it has worked");
}

/// The user of an address is not kept out by guesses at its name, from anywhere else.
#[test]
fn a_name_under_attack_keeps_a_way_in_for_the_address_that_was_right_before() {
    let mut rig = Rig::new();
    rig.prove(host(0), "ada");
    for second in 0..60 {
        rig.now = rig.now.max(second * 1_000);
        (1..200).for_each(|number| drop(rig.put(host(number), "ada")));
        assert!(rig.is_free(host(0), "ada"), "by its digest");
        rig.put(host(0), "ada");
        let is_next = (0..Class::COUNT).any(|_| {
            rig.now += 2 * CHECK;
            rig.attempts.next(at(rig.now)).is_some_and(|next| match next.origin.address == host(0) {
                true => {
                    rig.attempts.right(&next.origin, at(rig.now));
                    true
                }
                false => {
                    rig.attempts.wrong(&next.origin, Duration::from_millis(CHECK), at(rig.now));
                    false
                }
            })
        });
        assert!(is_next, "{second}: by the checker");
        rig.check_all(second * 1_000 + 999);
    }
}

#[test]
fn the_way_of_an_address_that_was_right_before_is_braked_too() {
    let mut rig = Rig::new();
    rig.prove(host(0), "ada");
    (0..20).for_each(|_| drop(rig.put(host(0), "ada")));
    assert_eq!(rig.attempts.waiting.len(), ATTEMPTS_PER_PROVEN_MAX, "and its places are few");
    let times: Vec<u64> = rig.check_all(32_000).into_iter().map(|checked| checked.at).collect();
    // Those without a place have counted.
    assert_eq!(times, [0, 8_030, 16_060, 24_090]);
    assert_eq!(rig.opens_at(host(0), "bob"), Some(at(24_120 + 8_000)), "each counts for the address");
}

#[test]
fn guesses_from_the_same_address_keep_no_user_out_who_was_right_there() {
    let mut rig = Rig::new();
    rig.prove(host(0), "ada");
    (0..80).for_each(|number| drop(rig.put(host(0), &format!("user{}", number % 7))));
    assert!(rig.is_free(host(0), "ada"));
    rig.check(0).unwrap();
    rig.put(host(0), "ada");
    let next = rig.check(10_000).unwrap();
    assert_eq!((&*next.name, next.at), ("ada", 2 * CHECK), "no pause, but the rest of the checker");
}

/// 80 outstanding tries refused the right password of others.
#[test]
fn many_tries_from_an_address_leave_a_place_and_a_turn_to_a_user_who_comes_for_the_first_time() {
    for names in [1, 3, 80] {
        let mut rig = Rig::new();
        (0..80).for_each(|number| drop(rig.put(host(0), &format!("user{}", number % names))));
        rig.check_all(20_000);
        let came = rig.now;
        let displaced = rig.put(host(0), "ada").displaced;
        assert!(displaced.is_none_or(|displaced| &*displaced.origin.name != "ada"));
        let next = rig.check(came + 8_100).unwrap();
        assert_eq!(&*next.name, "ada", "{names}: within a handshake");
    }
}

/// Guesses from many addresses took the checker from all who came for the first time.
#[test]
fn guesses_from_many_addresses_leave_the_checker_to_a_user_from_a_fresh_one() {
    for names in [1, 5, 1_000] {
        let mut rig = Rig::new();
        let mut came = 0;
        let mut flood = |rig: &mut Rig| {
            for number in 1..=300 {
                came += 1;
                drop(rig.put(host(number), &format!("user{}", came % names)));
            }
        };
        while rig.now < 40_000 {
            flood(&mut rig);
            rig.check_all(rig.now + 1_000);
        }
        flood(&mut rig);
        rig.put(host(0), "ada");
        let next: Vec<Checked> = (0..Class::COUNT).filter_map(|_| rig.check(rig.now + 1_000)).collect();
        assert!(next.iter().any(|checked| checked.address == host(0)), "{names}: {next:?}");
        assert!(rig.attempts.waiting.len() <= ATTEMPTS_MAX);
    }
}

/// The most that guessers can make the checker do, wherever they are.
#[test]
fn the_checker_rests_as_long_as_it_works_for_guessers() {
    let mut rig = Rig::new();
    let mut checks = 0;
    for second in 1..=10 {
        (0..1_000).for_each(|number| drop(rig.put(host(second * 1_000 + number), &format!("user{number}"))));
        checks += rig.check_all(u64::from(second) * 1_000).len();
    }
    assert!(checks as u64 * CHECK <= 10_000 / 2 + CHECK, "{checks}");
}

#[test]
fn guesses_at_one_name_from_many_addresses_are_slow_together() {
    let mut rig = Rig::new();
    (0..1_000).for_each(|number| drop(rig.put(host(number), "ada")));
    let checked = rig.check_all(20_000).len();
    assert!((18..=23).contains(&checked), "{checked} in 20 s");
    rig.put(host(1_001), "bob");
    let next: Vec<String> = (0..2).filter_map(|_| rig.check(rig.now + 200)).map(|checked| checked.name).collect();
    assert!(next.contains(&"bob".to_owned()), "{next:?}");
}

#[test]
fn a_right_password_pauses_nothing_and_frees_no_other() {
    let mut rig = Rig::new();
    rig.put(host(0), "bob");
    rig.check_all(0);
    rig.put(host(0), "eve");
    rig.now = 300;
    let eve = rig.attempts.next(at(300)).unwrap().origin;
    rig.attempts.right(&eve, at(300));
    assert!(rig.is_free(host(0), "eve"));
    rig.put(host(0), "bob");
    assert_eq!(rig.check(300).unwrap().at, 300);
    assert!(rig.is_free(host(0), "eve"));
    // The second wrong one of the address, although a right one came between.
    assert_eq!(rig.opens_at(host(0), "bob"), Some(at(300 + CHECK + 500)));
}

/// A cluster that starts with one user has one check.
#[test]
fn tries_that_wait_behind_a_right_one_need_no_pause() {
    let mut rig = Rig::new();
    (0..50).for_each(|number| drop(rig.put(host(number), "worker")));
    for _ in 0..50 {
        let next = rig.attempts.next(at(rig.now)).unwrap();
        rig.attempts.right(&next.origin, at(rig.now));
    }
    assert!(rig.attempts.next_due().is_none() && (0..50).all(|number| rig.is_free(host(number), "worker")));
}

/// Behind one router, after a restart of the server.
#[test]
fn many_users_who_come_from_one_address_at_once_get_in_soon() {
    let mut rig = Rig::new();
    let mut out: Vec<LoginOrigin> = (0..200).map(|number| origin(host(0), &format!("user{number}"))).collect();
    while !out.is_empty() {
        // All of them try again and again, with their right passwords.
        for again in &out {
            drop(rig.attempts.put(again.clone(), (), at(rig.now)));
        }
        if let Some(next) = rig.attempts.next(at(rig.now)) {
            rig.attempts.right(&next.origin, at(rig.now));
            out.retain(|other| other.name != next.origin.name);
        }
        rig.now += CHECK;
    }
    assert!(rig.now < 60_000, "{} ms", rig.now);
}

#[test]
fn everything_that_is_kept_is_bounded() {
    let mut rig = Rig::new();
    let most = u32::try_from(2 * ADDRESSES_MAX).unwrap();
    for number in 0..most {
        rig.put(host(number), &format!("user{number}"));
        rig.check(rig.now + 2 * CHECK);
        rig.prove(host(number), "eve");
    }
    let proven: usize = rig.attempts.proven.values().map(HashMap::len).sum();
    assert!(rig.attempts.waiting.len() <= ATTEMPTS_MAX && proven == PROVEN_MAX);
    assert!(rig.attempts.per_address.len() <= ATTEMPTS_MAX);
    // A user with many addresses forgets its own, and those of nobody else.
    rig.prove(host(1), "ada");
    (0..most).for_each(|number| rig.prove(host(most + number), "eve"));
    assert!(rig.attempts.brake(&origin(host(1), "ada")).is_some());
    rig.attempts.keep_proven(|name| name == "ada");
    assert_eq!(rig.attempts.proven.len(), 1);
}

/// Also if its users are known.
#[test]
fn the_address_with_the_most_tries_gives_a_place_to_another() {
    let mut rig = Rig::new();
    for number in 0..ATTEMPTS_MAX / ATTEMPTS_PER_PROVEN_MAX {
        let name = format!("user{number}");
        rig.prove(host(0), &name);
        (0..ATTEMPTS_PER_PROVEN_MAX).for_each(|_| assert!(rig.put(host(0), &name).displaced.is_none()));
    }
    let displaced = rig.put(host(1), "ada").displaced.unwrap();
    assert_eq!((displaced.number, displaced.origin.address), (1, host(0)));
    rig.check_all(100_000);
    assert!(rig.attempts.per_address.values().sum::<usize>() == rig.attempts.waiting.len());
}
