//! Policies on paper: how many requests of a trace they would answer with as many bytes of elements. No server takes part.
//!
//! ```text
//! policy              an element has        the hand, or the victim
//! used and kept       two flags             goes by the hash. Used: stays and is kept. Kept: stays. Otherwise: goes
//! clock               a flag                goes by the hash. Used: stays. Otherwise: goes
//! rounds              the round of its use  of 16 elements by the hash, the one that was not used for most rounds
//! LRU                 its time              the one that was not used for longest
//! SIEVE               a flag, its age       goes by the age. Used: stays. Otherwise: goes
//! S3-FIFO             two bits, its queue   two queues, and one of the keys that went
//! ```
//! SIEVE: Zhang and others, NSDI 2024. S3-FIFO: Yang and others, SOSP 2023.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use super::traces::{Trace, TraceRequest, hash};

/// What an element takes beside its value, in bytes.
const OVERHEAD_BYTES: usize = 80;
/// Elements that a step of `Rounds` compares.
const SAMPLE: usize = 16;

pub(crate) const NAMES: [&str; 6] = ["used and kept", "clock", "rounds", "LRU", "SIEVE", "S3-FIFO"];

/// The share of the requests after the first fifth that a policy answers.
pub(crate) fn hit_ratio(name: &str, trace: &Trace, capacity: usize) -> f64 {
    let order = match name {
        "used and kept" => Order::UsedAndKept,
        "clock" => Order::Clock,
        "rounds" => Order::Rounds,
        "LRU" => Order::Lru,
        "SIEVE" => Order::Sieve,
        _ => return count(trace, Queues::default(), |cache, request, now| cache.ask(request, now, capacity)),
    };
    count(trace, Ring::new(order), |cache, request, now| cache.ask(request, now, capacity))
}

fn count<C>(trace: &Trace, mut cache: C, mut ask: impl FnMut(&mut C, TraceRequest, f64) -> bool) -> f64 {
    let (warm, rate) = (trace.requests.len() / 5, f64::from(trace.rate.unwrap_or(1)));
    let mut hits = 0;
    for (number, request) in trace.requests.iter().enumerate() {
        let is_hit = ask(&mut cache, *request, number as f64 / rate);
        hits += usize::from(is_hit && number >= warm);
    }
    hits as f64 / (trace.requests.len() - warm) as f64
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    UsedAndKept,
    Clock,
    Rounds,
    Lru,
    Sieve,
}

struct Element {
    place: u64,
    bytes: usize,
    deadline: f64,
    is_used: bool,
    is_kept: bool,
    round: u64,
}

/// Elements in some order, and a hand that goes round.
struct Ring {
    order: Order,
    elements: HashMap<u32, Element>,
    places: BTreeMap<u64, u32>,
    hand: u64,
    rounds: u64,
    tick: u64,
    bytes: usize,
}

impl Ring {
    fn new(order: Order) -> Self {
        Self { order, elements: HashMap::new(), places: BTreeMap::new(), hand: 0, rounds: 0, tick: 0, bytes: 0 }
    }

    fn ask(&mut self, request: TraceRequest, now: f64, capacity: usize) -> bool {
        self.tick += 1;
        if let Some(element) = self.elements.get_mut(&request.key) {
            if now < element.deadline {
                element.is_used = true;
                element.round = self.rounds;
                if self.order == Order::Lru {
                    self.places.remove(&element.place);
                    element.place = self.tick;
                    self.places.insert(self.tick, request.key);
                }
                return true;
            }
            self.remove(request.key);
        }
        let bytes = request.value_bytes + OVERHEAD_BYTES;
        while self.bytes + bytes > capacity {
            let key = self.victim();
            self.remove(key);
        }
        let is_by_age = matches!(self.order, Order::Lru | Order::Sieve);
        let place = if is_by_age { self.tick } else { hash(u64::from(request.key)) };
        let deadline = request.ttl.map_or(f64::INFINITY, |ttl| now + f64::from(ttl));
        let element = Element { place, bytes, deadline, is_used: false, is_kept: false, round: self.rounds };
        self.bytes += bytes;
        self.places.insert(place, request.key);
        self.elements.insert(request.key, element);
        false
    }

    fn remove(&mut self, key: u32) {
        let element = self.elements.remove(&key).unwrap();
        self.places.remove(&element.place);
        self.bytes -= element.bytes;
    }

    fn victim(&mut self) -> u32 {
        loop {
            if self.order == Order::Lru {
                return *self.places.first_key_value().unwrap().1;
            }
            let Some((&place, &key)) = self.places.range(self.hand..).next() else {
                self.hand = 0;
                self.rounds += 1;
                continue;
            };
            if self.order == Order::Rounds {
                let sample: Vec<(u64, u32)> =
                    self.places.range(place..).take(SAMPLE).map(|(place, key)| (*place, *key)).collect();
                self.hand = sample.last().unwrap().0 + 1;
                return sample.iter().min_by_key(|(_, key)| self.elements[key].round).unwrap().1;
            }
            self.hand = place + 1;
            let element = self.elements.get_mut(&key).unwrap();
            match self.order {
                _ if element.is_used => (element.is_used, element.is_kept) = (false, true),
                Order::UsedAndKept if element.is_kept => element.is_kept = false,
                _ => return key,
            }
        }
    }
}

/// S3-FIFO: new elements, elements that were used, and the keys of new ones that went.
#[derive(Default)]
struct Queues {
    /// Uses, bytes, deadline.
    elements: HashMap<u32, (u8, usize, f64)>,
    new: VecDeque<u32>,
    main: VecDeque<u32>,
    gone: VecDeque<u32>,
    is_gone: HashSet<u32>,
    new_bytes: usize,
    main_bytes: usize,
}

impl Queues {
    fn ask(&mut self, request: TraceRequest, now: f64, capacity: usize) -> bool {
        let deadline = request.ttl.map_or(f64::INFINITY, |ttl| now + f64::from(ttl));
        if let Some(element) = self.elements.get_mut(&request.key) {
            let is_hit = now < element.2;
            if is_hit {
                element.0 = (element.0 + 1).min(3);
            } else {
                element.2 = deadline;
            }
            return is_hit;
        }
        let bytes = request.value_bytes + OVERHEAD_BYTES;
        while self.new_bytes + self.main_bytes + bytes > capacity {
            self.evict(capacity);
        }
        self.elements.insert(request.key, (0, bytes, deadline));
        if self.is_gone.remove(&request.key) {
            self.main.push_back(request.key);
            self.main_bytes += bytes;
        } else {
            self.new.push_back(request.key);
            self.new_bytes += bytes;
        }
        false
    }

    fn evict(&mut self, capacity: usize) {
        if self.new_bytes * 10 < capacity && !self.main.is_empty() {
            let key = self.main.pop_front().unwrap();
            let element = self.elements.get_mut(&key).unwrap();
            if element.0 > 0 {
                element.0 -= 1;
                return self.main.push_back(key);
            }
            self.main_bytes -= element.1;
            self.elements.remove(&key);
            return;
        }
        let key = self.new.pop_front().unwrap();
        let element = self.elements.get_mut(&key).unwrap();
        self.new_bytes -= element.1;
        if element.0 > 1 {
            element.0 = 0;
            self.main_bytes += element.1;
            return self.main.push_back(key);
        }
        self.elements.remove(&key);
        self.gone.push_back(key);
        self.is_gone.insert(key);
        if self.gone.len() > self.main.len().max(100) {
            let forgotten = self.gone.pop_front().unwrap();
            self.is_gone.remove(&forgotten);
        }
    }
}
