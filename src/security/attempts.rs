//! Which password is checked next: the brakes on guessing, and the fair shares of the one checker.
//!
//! ```text
//! put ─► waiting ─► next: the fairest of those whose brakes are free ─► checked ─► right │ wrong: brakes, the checker rests
//!           │ one too many: one of the most numerous is refused (busy)
//!           │ its peer gives it up
//!           └─► counted, as each try that was not right
//!
//! a name that was right from this address before:  the brake of both     up to 8 s     class Proven
//! any other:                                       that of the address   up to 8 s     class Fresh │ Failed
//!                                                  and then of the name  up to 1 s
//! ```
//! **Who is braked by what.** An address pauses for each of its tries that was not right: wrong, refused as busy, or
//! given up. So a guesser is slow whatever names it tries, and however many tries it sends at once. A name pauses for
//! each wrong try from an address that never was right with it. So guesses from many addresses are slow together. An
//! address that was right with a name has a brake of its own for both, in place of the other two. Neither guesses at
//! the name from elsewhere nor guesses of the same address at other names keep the user out. Wrong tries there still
//! count for the address. No brake is released by a right password, or a guesser with a user of its own would release it.
//!
//! **What is known at once.** A password that was right before is known by its digest. The digest answers without the
//! checker's thread only at an address where the name was right, while their brake is free, and no other try of both
//! waits or is checked. Elsewhere the try waits for its turn, and the digest saves the check. So a digest answers one guess
//! in each pause, as the checker does.
//!
//! **Fair shares.** The checker takes the classes in turn: names proven at their address, addresses without a wrong
//! password in the last minute, and the others. In a class, the name whose last wrong try is the oldest goes first, then
//! the address whose is, then the latest try: its peer still waits. After a wrong password the checker rests as long as
//! the check took: whoever guesses takes half a core at most.
//!
//! **What an attacker can do.** From one address: a guess in 8 s, and one more in 8 s for each name that was right from
//! there. From n addresses: at a name, a guess in a second altogether, and n in 8 s at the names of others; with fewer
//! than some hundred fresh addresses a minute, a right password from a fresh address is still among the next that are
//! checked. It cannot make the checker work more than half of the time. It cannot keep a user from an address that was
//! right with the name, unless it guesses at this name from this address. Then the latest try is checked after each
//! pause. It can keep a user away from an address that is new to the user. For this it needs more than some hundred
//! fresh addresses a minute, or tries at ever new names from the user's address.
//!
//! All that is kept is bounded: see [`super::limits`]. This module checks no password and reads no clock.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use super::address::PeerAddress;
use super::brake::{Brake, Brakes};
use super::limits::{
    ADDRESSES_MAX, ATTEMPTS_MAX, ATTEMPTS_PER_ADDRESS_MAX, ATTEMPTS_PER_PROVEN_MAX, NAME_PAUSE_MAX, PROVEN_MAX,
    USERS_MAX, WRONG_PASSWORD_PAUSE_MAX,
};
use super::password::PasswordDigest;
use crate::clock::Now;

/// Who tries what.
#[derive(Clone)]
pub(super) struct LoginOrigin {
    pub(super) address: PeerAddress,
    pub(super) name: Box<str>,
    /// The digest of the name and the password.
    pub(super) guess: PasswordDigest,
}

/// A try that waits, or is taken from those that wait.
pub(super) struct Try<T> {
    /// Higher than those of all tries before.
    number: u64,
    pub(super) origin: LoginOrigin,
    /// What the caller needs to check and answer it.
    pub(super) attempt: T,
}

/// The result of [`Attempts::put`].
pub(super) struct Put<T> {
    /// The number of the try, for [`Attempts::give_up`].
    pub(super) number: u64,
    /// The time at which it may be checked. None: at any time.
    pub(super) due: Option<Now>,
    /// The try that gave its place: its peer is refused because the server is busy.
    pub(super) displaced: Option<Try<T>>,
}

/// Classes take the checker in turn, in this order.
#[derive(Clone, Copy)]
enum Class {
    /// The name was right from this address before.
    Proven,
    /// No password from this address was wrong in the last minute.
    Fresh,
    /// Some were.
    Failed,
}

impl Class {
    const COUNT: usize = 3;
}

/// The place of a try among those that may be checked now. The lowest is the next.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct LoginPlace {
    /// Classes before its own, from the one behind the class that was served last.
    class: usize,
    /// The last wrong try at the name, or from a proven address at it.
    name: Option<Now>,
    /// The last try of the address that was not right.
    address: Option<Now>,
    age: Reverse<u64>,
}

/// The tries that wait, and the brakes.
pub(super) struct Attempts<T> {
    waiting: Vec<Try<T>>,
    /// How many of them are from each address.
    per_address: HashMap<PeerAddress, usize>,
    /// The try that is being checked.
    checking: Option<LoginOrigin>,
    addresses: Brakes<PeerAddress>,
    names: Brakes<Box<str>>,
    /// The addresses at which names were right, with their brakes.
    proven: HashMap<Box<str>, HashMap<PeerAddress, Brake>>,
    /// No earlier try is checked.
    rests_until: Option<Now>,
    /// The class that was served last.
    served: usize,
    number: u64,
}

impl<T> Attempts<T> {
    pub(super) fn new() -> Self {
        Self {
            waiting: Vec::new(),
            per_address: HashMap::new(),
            checking: None,
            addresses: Brakes::up_to(ADDRESSES_MAX),
            names: Brakes::up_to(USERS_MAX),
            proven: HashMap::new(),
            rests_until: None,
            served: Class::Failed as usize,
            number: 0,
        }
    }

    /// Whether a digest may answer a try: the name was right from this address, their brake is free, and no other try
    /// that it would count is under way.
    pub(super) fn is_free(&self, origin: &LoginOrigin, now: Now) -> bool {
        let is_alike = |other: &LoginOrigin| other.address == origin.address && other.name == origin.name;
        let mut under_way = self.waiting.iter().map(|waiting| &waiting.origin).chain(&self.checking);
        self.brake(origin).is_some_and(|brake| brake.free_at() <= now) && !under_way.any(is_alike)
    }

    /// Adds a try. If there are too many, one of them is displaced.
    pub(super) fn put(&mut self, origin: LoginOrigin, attempt: T, now: Now) -> Put<T> {
        self.number += 1;
        let number = self.number;
        let due = self.opens_at(&origin).max(self.rests_until);
        let surplus = self.surplus_of(&origin);
        *self.per_address.entry(origin.address).or_default() += 1;
        self.waiting.push(Try { number, origin, attempt });
        Put { number, due, displaced: surplus.and_then(|number| self.take_unchecked(number, now)) }
    }

    /// The peer of a try does not wait for it any more. It counts, unless it is being checked or was.
    pub(super) fn give_up(&mut self, number: u64, now: Now) {
        self.take_unchecked(number, now);
    }

    /// The next try that may be checked.
    pub(super) fn next(&mut self, now: Now) -> Option<Try<T>> {
        if self.rests_until.is_some_and(|until| now < until) {
            return None;
        }
        let is_open = |waiting: &Try<T>| self.opens_at(&waiting.origin).is_none_or(|opens| opens <= now);
        let open = self.waiting.iter().enumerate().filter(|(_, waiting)| is_open(waiting));
        let (index, _) = open.min_by_key(|(_, waiting)| self.place(waiting, now))?;
        let next = self.take(index);
        self.served = self.class(&next.origin, now) as usize;
        self.checking = Some(next.origin.clone());
        Some(next)
    }

    /// The time at which the next try may be checked. It may have passed.
    pub(super) fn next_due(&self) -> Option<Now> {
        let opens = self.waiting.iter().map(|waiting| self.opens_at(&waiting.origin));
        // None is the lowest: a brake that was never used is free at any time.
        opens.min().map(|first| first.max(self.rests_until).unwrap_or(Now::from_nanos(0)))
    }

    /// The try that is being checked is right: its name and its address have a brake of their own from now on.
    pub(super) fn right(&mut self, origin: &LoginOrigin, now: Now) {
        self.checking = None;
        if self.brake(origin).is_none() {
            self.prove(origin, now);
        }
    }

    /// The try that is being checked is wrong, and the check took so long.
    pub(super) fn wrong(&mut self, origin: &LoginOrigin, took: Duration, now: Now) {
        self.checking = None;
        self.rests_until = Some(now.after(took));
        self.addresses.of(origin.address, now).wrong(origin.guess, WRONG_PASSWORD_PAUSE_MAX, now);
        match self.brake_mut(origin) {
            Some(brake) => brake.wrong(origin.guess, WRONG_PASSWORD_PAUSE_MAX, now),
            None => self.names.of(origin.name.clone(), now).wrong(origin.guess, NAME_PAUSE_MAX, now),
        }
    }

    fn prove(&mut self, origin: &LoginOrigin, now: Now) {
        if self.proven.values().map(HashMap::len).sum::<usize>() >= PROVEN_MAX {
            // That of the name with the most: no user takes the places of others.
            let most = self.proven.values_mut().max_by_key(|addresses| addresses.len());
            most.and_then(|addresses| {
                let oldest = addresses.iter().min_by_key(|(_, brake)| brake.last()).map(|(address, _)| *address)?;
                addresses.remove(&oldest)
            });
        }
        self.proven.entry(origin.name.clone()).or_default().insert(origin.address, Brake::released(now));
    }

    /// Forgets the addresses of names that are not these: they have another password now, or none.
    pub(super) fn keep_proven(&mut self, mut is_same: impl FnMut(&str) -> bool) {
        self.proven.retain(|name, _| is_same(name));
    }

    /// The brake of a name and an address at which it was right.
    fn brake(&self, origin: &LoginOrigin) -> Option<&Brake> {
        self.proven.get(&origin.name)?.get(&origin.address)
    }

    fn brake_mut(&mut self, origin: &LoginOrigin) -> Option<&mut Brake> {
        self.proven.get_mut(&origin.name)?.get_mut(&origin.address)
    }

    /// The end of the pauses of a try. None: it never had one.
    fn opens_at(&self, origin: &LoginOrigin) -> Option<Now> {
        match self.brake(origin) {
            Some(brake) => Some(brake.free_at()),
            None => {
                let (address, name) = (self.addresses.get(&origin.address), self.names.get(&*origin.name));
                address.map(Brake::free_at).max(name.map(Brake::free_at))
            }
        }
    }

    fn class(&self, origin: &LoginOrigin, now: Now) -> Class {
        let has_failed = || self.addresses.get(&origin.address).is_some_and(|brake| brake.has_failed(now));
        match self.brake(origin) {
            Some(_) => Class::Proven,
            None if has_failed() => Class::Failed,
            None => Class::Fresh,
        }
    }

    fn place(&self, waiting: &Try<T>, now: Now) -> LoginPlace {
        let origin = &waiting.origin;
        let class = (self.class(origin, now) as usize + Class::COUNT - 1 - self.served) % Class::COUNT;
        let name = self.brake(origin).or_else(|| self.names.get(&*origin.name)).map(Brake::last);
        let address = self.addresses.get(&origin.address).map(Brake::last);
        LoginPlace { class, name, address, age: Reverse(waiting.number) }
    }

    /// The try that gives its place if this one is added: the oldest at the most numerous name, of this address if it
    /// has too many, or of the address with the most. None: there is room.
    fn surplus_of(&self, new: &LoginOrigin) -> Option<u64> {
        let is_proven = self.brake(new).is_some();
        let is_alike = |other: &&Try<T>| {
            let is_same = other.origin.address == new.address && self.brake(&other.origin).is_some() == is_proven;
            is_same && (!is_proven || other.origin.name == new.name)
        };
        let alike: Vec<&Try<T>> = self.waiting.iter().filter(is_alike).collect();
        let most = if is_proven { ATTEMPTS_PER_PROVEN_MAX } else { ATTEMPTS_PER_ADDRESS_MAX };
        if alike.len() >= most {
            return oldest_of_the_most_numerous(&alike);
        }
        if self.waiting.len() < ATTEMPTS_MAX {
            return None;
        }
        let (fullest, _) = self.per_address.iter().max_by_key(|(_, count)| **count)?;
        let crowd: Vec<&Try<T>> = self.waiting.iter().filter(|other| other.origin.address == *fullest).collect();
        oldest_of_the_most_numerous(&crowd)
    }

    fn take(&mut self, index: usize) -> Try<T> {
        let taken = self.waiting.swap_remove(index);
        if let Some(count) = self.per_address.get_mut(&taken.origin.address) {
            *count -= 1;
            if *count == 0 {
                self.per_address.remove(&taken.origin.address);
            }
        }
        taken
    }

    /// Takes a try from those that wait, and counts it.
    fn take_unchecked(&mut self, number: u64, now: Now) -> Option<Try<T>> {
        let index = self.waiting.iter().position(|waiting| waiting.number == number)?;
        let taken = self.take(index);
        let (origin, longest) = (&taken.origin, WRONG_PASSWORD_PAUSE_MAX);
        let mut others = self.waiting.iter().map(|other| &other.origin).filter(|other| other.address == origin.address);
        let unproven_wait = others.clone().any(|other| self.brake(other).is_none());
        let alike_wait = others.any(|other| other.name == origin.name);
        self.addresses.of(origin.address, now).unchecked(origin.guess, longest, unproven_wait, now);
        if let Some(brake) = self.brake_mut(origin) {
            brake.unchecked(origin.guess, longest, alike_wait, now);
        }
        Some(taken)
    }
}

/// The oldest of these tries at the names that have the most of them.
fn oldest_of_the_most_numerous<T>(tries: &[&Try<T>]) -> Option<u64> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    tries.iter().for_each(|tried| *counts.entry(&tried.origin.name).or_default() += 1);
    let most = counts.values().max();
    let crowd = tries.iter().filter(|tried| counts.get(&*tried.origin.name) == most);
    crowd.map(|tried| tried.number).min()
}

#[cfg(test)]
mod tests;
