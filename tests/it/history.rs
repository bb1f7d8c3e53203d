//! Records the requests and answers of racing clients, and has the history of each element checked.
//!
//! A [`Peer`] performs requests and reports their times. The other code is the same for sockets and for tables in
//! process.

use std::collections::{BTreeMap, HashMap};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use spindle::clock::Ttl;

use crate::checker::{Answer, COUNTER, Operation, Request, Span, Value, is_linearizable};
use crate::seeded_rng::SeededRng;

/// A request with the places of its table and key in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) table: usize,
    pub(crate) key: usize,
    pub(crate) request: Request,
    /// A Get is a GET_MANY of this many keys, this one and the following, and a Delete a DELETE_MANY. An Update is an
    /// UPDATE_MANY, of this value and the following.
    pub(crate) many: Option<usize>,
}

impl Ask {
    fn is_about_the_table(&self) -> bool {
        matches!(self.request, Request::CreateTable | Request::DeleteTable)
    }

    /// The same request for each of its elements alone.
    pub(crate) fn each(&self) -> impl Iterator<Item = Self> {
        let ask = *self;
        (0..self.many.unwrap_or(1)).map(move |place| {
            let request = match ask.request {
                Request::Update(value, ttl) => Request::Update(value + place as u64, ttl),
                other => other,
            };
            Self { key: ask.key + place, request, many: None, ..ask }
        })
    }

    /// The recorded operations. GET_MANY, UPDATE_MANY and DELETE_MANY are atomic for each element, so each element has
    /// an operation of its own. A refusal is one answer for all, and so is none.
    pub(crate) fn records(&self, span: Span, answers: &[Answer]) -> Vec<Record> {
        let of_all = [Answer::TableNotFound, Answer::Lost];
        let refusal = answers.first().copied().filter(|answer| of_all.contains(answer));
        let last = self.many.unwrap_or(1) - 1;
        let record = |(place, ask): (usize, Self)| {
            let request = match ask.request {
                Request::Update(value, ttl) if place < last => Request::Pair(value, ttl),
                Request::Delete if place < last => Request::DeletePart,
                other => other,
            };
            let answer = refusal.unwrap_or_else(|| answers[place]);
            (ask, Operation { span, request, answer })
        };
        self.each().enumerate().map(record).collect()
    }
}

/// Performs requests for one client.
pub(crate) trait Peer {
    /// Performs these in order, and returns the time of each and the answer about each of its elements.
    fn perform(&mut self, asks: &[Ask]) -> Vec<(Span, Vec<Answer>)>;

    /// The request that this client makes instead.
    fn adapt(&self, ask: Ask) -> Ask {
        ask
    }
}

/// The plan of one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) tables: usize,
    pub(crate) keys: usize,
    /// Each client sends at least this many requests …
    pub(crate) requests: usize,
    /// … and continues for at least this long.
    pub(crate) lasting: Duration,
    /// Most requests that a client sends at once.
    pub(crate) batch_max: usize,
    /// One in this many requests creates or deletes a table.
    pub(crate) table_request_every: usize,
    /// TTLs that writes choose from.
    pub(crate) ttls: &'static [Option<Ttl>],
}

/// Peers of a round, at most.
const PEERS_MAX: u64 = 16;

/// One in this many requests is a GET_MANY, an UPDATE_MANY or a DELETE_MANY.
const MANY_EVERY: usize = 6;

pub(crate) type Record = (Ask, Operation);

/// Counts of each kind of answer, over all rounds. A race without refusals shows little.
#[derive(Clone, Debug, Default)]
pub(crate) struct AnswerCounts(BTreeMap<&'static str, usize>);

impl AnswerCounts {
    pub(crate) fn count(&mut self, answer: Answer) {
        let kind = match answer {
            Answer::Ok => "ok",
            Answer::Value(_) => "value",
            Answer::Entry(..) => "entry",
            Answer::Swapped(_) => "swapped",
            Answer::Counted(..) => "counted",
            Answer::NotANumber => "not a number",
            Answer::TableExists => "table exists",
            Answer::TableNotFound => "table not found",
            Answer::KeyNotFound => "key not found",
            Answer::VersionMismatch(0) => "mismatch with an absent element",
            Answer::VersionMismatch(_) => "mismatch with a present element",
            Answer::Lost => "lost",
        };
        *self.0.entry(kind).or_default() += 1;
    }

    /// Answers of this kind.
    pub(crate) fn of(&self, kind: &str) -> usize {
        self.0.get(kind).copied().unwrap_or(0)
    }

    /// Whether every kind of answer has come.
    pub(crate) fn assert_all_kinds(&self) {
        println!("{:?}", self.0);
        assert_eq!(self.0.len(), 11, "some kind of answer never came: {self:?}");
    }
}

/// All peers work the plan at once. Expects the history of each element to be linearizable.
pub(crate) fn check_round<P: Peer + Send>(plan: &Plan, seed: u64, peers: &mut [P], counts: &mut AnswerCounts) {
    let records = record_round(plan, seed, peers);
    for (_, operation) in &records {
        counts.count(operation.answer);
    }
    if let Some(violation) = find_violation(plan, &records) {
        panic!("seed {seed}, {violation}");
    }
}

/// One peer works the plan, until an answer of it is lost.
pub(crate) fn record_peer(plan: &Plan, seed: u64, number: usize, peer: &mut impl Peer) -> Vec<Record> {
    Client::new(plan, seed, number).work(peer)
}

/// All peers work the plan at once.
pub(crate) fn record_round<P: Peer + Send>(plan: &Plan, seed: u64, peers: &mut [P]) -> Vec<Record> {
    let barrier = Barrier::new(peers.len());
    std::thread::scope(|scope| {
        let clients: Vec<_> = peers
            .iter_mut()
            .enumerate()
            .map(|(number, peer)| {
                let client = Client::new(plan, seed, number);
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    client.work(peer)
                })
            })
            .collect();
        clients.into_iter().flat_map(|client| client.join().expect("a client does not panic")).collect()
    })
}

/// An element whose history is not linearizable, with that history.
pub(crate) fn find_violation(plan: &Plan, records: &[Record]) -> Option<String> {
    let histories = histories(plan, records);
    let ((table, key), history) = histories.into_iter().find(|(_, history)| !is_linearizable(history))?;
    let lines: Vec<String> = history.iter().map(|operation| format!("{operation:?}")).collect();
    Some(format!("table {table}, key {key}: not linearizable\n{}", lines.join("\n")))
}

/// The history of each element, by its table and key, in the order of the invocations.
pub(crate) fn histories(plan: &Plan, records: &[Record]) -> BTreeMap<(usize, usize), Vec<Operation>> {
    let mut histories: BTreeMap<_, Vec<Operation>> = BTreeMap::new();
    for (ask, operation) in records {
        let keys = if ask.is_about_the_table() { 0..plan.keys } else { ask.key..ask.key + 1 };
        for key in keys {
            histories.entry((ask.table, key)).or_default().push(*operation);
        }
    }
    for history in histories.values_mut() {
        history.sort_by_key(|operation| operation.span.invoked);
    }
    histories
}

/// One client's part of a round.
struct Client<'p> {
    plan: &'p Plan,
    rng: SeededRng,
    /// The next value. No two writes have the same.
    next_value: Value,
    /// The last version of an element that this client saw.
    versions: HashMap<(usize, usize), u64>,
}

impl<'p> Client<'p> {
    fn new(plan: &'p Plan, seed: u64, number: usize) -> Self {
        Self {
            plan,
            rng: SeededRng(seed.wrapping_mul(1_000).wrapping_add(number as u64)),
            next_value: (seed * PEERS_MAX + number as u64) * 1_000_000,
            versions: HashMap::new(),
        }
    }

    fn work(mut self, peer: &mut impl Peer) -> Vec<Record> {
        // The first client creates the table, and the others get the answer that it exists.
        let creations = (0..self.plan.tables).map(|table| self.about(table, Request::CreateTable));
        let mut asks: Vec<Ask> = creations.map(|ask| peer.adapt(ask)).collect();
        let mut records: Vec<Record> = Vec::new();
        let start = Instant::now();
        while records.len() < self.plan.requests || start.elapsed() < self.plan.lasting {
            for (ask, (span, answers)) in asks.iter().zip(peer.perform(&asks)) {
                let of_this = ask.records(span, &answers);
                of_this.iter().for_each(|(ask, operation)| self.learn(ask, operation.answer));
                records.extend(of_this);
            }
            if records.last().is_some_and(|(_, operation)| operation.answer == Answer::Lost) {
                break;
            }
            let count = 1 + self.rng.index(self.plan.batch_max);
            asks = (0..count).map(|_| peer.adapt(self.next_ask())).collect();
        }
        records
    }

    fn about(&self, table: usize, request: Request) -> Ask {
        Ask { table, key: 0, request, many: None }
    }

    fn next_ask(&mut self) -> Ask {
        let table = self.rng.index(self.plan.tables);
        if self.rng.index(self.plan.table_request_every) == 0 {
            let request = self.rng.pick(&[
                Request::CreateTable,
                Request::CreateTable,
                Request::CreateTable,
                Request::DeleteTable,
            ]);
            return self.about(table, request);
        }
        let key = self.rng.index(self.plan.keys);
        if self.rng.index(MANY_EVERY) == 0 {
            let many = 1 + self.rng.index(self.plan.keys - key);
            let request = self.next_request_of_many(many);
            return Ask { table, key, request, many: Some(many) };
        }
        let request = self.next_request((table, key));
        Ask { table, key, request, many: None }
    }

    fn next_request_of_many(&mut self, many: usize) -> Request {
        match self.rng.index(5) {
            0 | 1 => return Request::Get,
            2 => return Request::Delete,
            _ => {}
        }
        let first = self.new_value();
        self.next_value += many as u64 - 1;
        Request::Update(first, self.rng.pick(self.plan.ttls))
    }

    fn next_request(&mut self, element: (usize, usize)) -> Request {
        let ttl = self.rng.pick(self.plan.ttls);
        let seen = self.versions.get(&element).copied().unwrap_or(0);
        // Mostly the version seen last, at times one that is long gone or was never given.
        let expected = self.rng.pick(&[seen, seen, seen, 0, seen.saturating_sub(1)]);
        match self.rng.index(100) {
            0..16 => Request::Update(self.new_value(), ttl),
            16..25 => Request::Increment(ttl),
            25..29 => Request::GetAndTouch(ttl.unwrap_or(Ttl::NONE)),
            29..40 => Request::Get,
            40..60 => Request::GetEntry,
            60..70 => Request::Delete,
            70..87 => Request::CompareAndSwap(expected, self.new_value(), ttl),
            87..94 => Request::CompareAndDelete(expected),
            _ => Request::Touch(ttl.unwrap_or(Ttl::NONE)),
        }
    }

    fn new_value(&mut self) -> Value {
        self.next_value += 1;
        self.next_value
    }

    fn learn(&mut self, ask: &Ask, answer: Answer) {
        let version = match answer {
            Answer::Entry(_, version, _)
            | Answer::Swapped(version)
            | Answer::Counted(_, version)
            | Answer::VersionMismatch(version) => version,
            _ => return,
        };
        self.versions.insert((ask.table, ask.key), version);
    }
}

/// The bytes of a value: its number, and filling whose length depends on it. A counter is a number in decimal.
pub(crate) fn bytes_of(value: Value) -> Vec<u8> {
    if value & COUNTER != 0 {
        return (value & !COUNTER).to_string().into_bytes();
    }
    let mut bytes = value.to_be_bytes().to_vec();
    bytes.resize(8 + usize::try_from(value % 50).expect("it is small"), 0xee);
    bytes
}

/// The number of a value made by [`bytes_of`].
pub(crate) fn value_of(bytes: &[u8]) -> Value {
    // Other values begin with a number of 8 bytes, which is small.
    if bytes.first().is_some_and(u8::is_ascii_digit) {
        let digits = std::str::from_utf8(bytes).expect("a counter has digits only");
        return COUNTER | digits.parse::<Value>().expect("a counter is a number");
    }
    let number = bytes.first_chunk().expect("a value begins with its number");
    let value = Value::from_be_bytes(*number);
    assert_eq!(bytes, bytes_of(value), "a value is torn");
    value
}
