//! The history over all lives of a server that is killed is linearizable, where tables are always on disk.
//!
//! ```text
//! life: start (queue, native, queue …) ─► clients of both protocols race ─► kill -9 ─► check ─► the next life, on the same folder
//! ```
//! A request without an answer may have happened, before the kill. A refusal, an absence and a value that a client has seen
//! hold in all later lives.
//!
//! The first table is for both protocols. Nobody deletes it, since Redis clients do not see that. Clients of ZeroMQ create
//! and delete the second one. `SPINDLE_CRASH_ROUNDS` sets the number of lives, four for each.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use spindle::clients::rust::tables::Client;
use spindle::clock::{Clock, Ttl};

use crate::checker::{Answer, COUNTER, Lives, Request, Span};
use crate::crash::{CLIENTS, SMALL_SEGMENT, kill_under_load, rounds};
use crate::harness::{FRONTENDS, Server};
use crate::history::{AnswerCounts, Ask, Peer, Plan, Record, bytes_of, histories, record_peer, value_of};
use crate::linearizability::{OverSockets, found, key_name, table_name, timed, values_of};
use crate::lock::Mutex;
use crate::resp_client::RespClient;
use crate::resp_difference::reply::{Value, parse};
use crate::seeded_rng::SeededRng;

/// Elements for which all clients compete. Some deadlines pass within a life, some in a later one.
const PLAN: Plan = Plan {
    tables: 2,
    keys: 4,
    requests: usize::MAX,
    lasting: Duration::ZERO,
    batch_max: 1,
    table_request_every: 12,
    ttls: &[None, None, Ttl::from_millis(80), Ttl::from_millis(400), Some(Ttl::NONE)],
};
/// The table of both protocols, and that of ZeroMQ alone.
const SHARED: usize = 0;
const OTHER: usize = 1;
/// A version that no element has.
const NEVER: u64 = 1;
/// Nanoseconds in a millisecond.
const MILLI: u64 = 1_000_000;
/// Lives for each round that the environment asks for.
const LIVES_PER_ROUND: usize = 4;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a client does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Writes,
    /// Changes nothing. So without a wait the client would read most of the states that are not on disk.
    Reads,
    /// The same, by requests that are refused for what is there.
    IsRefused,
}

impl Role {
    fn of(number: usize) -> Self {
        [Self::Writes, Self::Writes, Self::Reads, Self::IsRefused][number * 4 / CLIENTS]
    }

    fn adapt(self, ask: Ask) -> Ask {
        let request = match ask.request {
            _ if self == Self::Writes => return ask,
            _ if self == Self::IsRefused => Request::CompareAndSwap(NEVER, 0, None),
            Request::GetEntry | Request::Increment(_) | Request::Touch(_) => Request::GetEntry,
            _ => Request::Get,
        };
        Ask { request, many: ask.many.filter(|_| request == Request::Get), ..ask }
    }
}

/// A client of ZeroMQ.
struct OverZeroMq<'w> {
    role: Role,
    client: OverSockets<'w>,
}

impl Peer for OverZeroMq<'_> {
    fn perform(&mut self, asks: &[Ask]) -> Vec<(Span, Vec<Answer>)> {
        self.client.perform(asks)
    }

    fn adapt(&self, ask: Ask) -> Ask {
        let ask = self.role.adapt(ask);
        if ask.request == Request::DeleteTable { Ask { table: OTHER, ..ask } } else { ask }
    }
}

/// A client of RESP.
struct OverResp<'w> {
    role: Role,
    clock: &'w Clock,
    client: RespClient,
}

impl Peer for OverResp<'_> {
    fn perform(&mut self, asks: &[Ask]) -> Vec<(Span, Vec<Answer>)> {
        let answer = |ask| {
            let (span, answers) =
                timed(self.clock, || answer_over_resp(&mut self.client, ask).unwrap_or(vec![Answer::Lost]));
            // Redis's deadlines count from the whole millisecond.
            (Span { clock_min: span.clock_min.saturating_sub(MILLI), ..span }, answers)
        };
        asks.iter().map(answer).collect()
    }

    /// What Redis's protocol can ask, and answers in full.
    fn adapt(&self, ask: Ask) -> Ask {
        let ask = self.role.adapt(ask);
        let lasting = |ttl: Option<Ttl>| Some(ttl.unwrap_or(Ttl::NONE));
        let (request, many) = match ask.request {
            Request::CreateTable | Request::DeleteTable => (Request::GetEntry, None),
            Request::Update(value, _) if ask.many.is_some() => (Request::Update(value, Some(Ttl::NONE)), ask.many),
            Request::Delete | Request::CompareAndDelete(_) => (Request::Delete, None),
            Request::CompareAndSwap(expected, value, ttl) => {
                (Request::CompareAndSwap(expected, value, lasting(ttl)), None)
            }
            // Without a deadline there is nothing to remove, and the version stays.
            Request::Touch(Ttl::NONE) | Request::GetAndTouch(Ttl::NONE) => (Request::Get, None),
            Request::Increment(_) => (Request::Increment(None), None),
            other => (other, ask.many),
        };
        Ask { table: SHARED, request, many, ..ask }
    }
}

fn answer_over_resp(client: &mut RespClient, ask: &Ask) -> io::Result<Vec<Answer>> {
    let key = key_name(ask.key);
    if ask.many.is_some() {
        return answer_about_many(client, ask);
    }
    let millis = |ttl: Ttl| ttl.millis().to_string();
    let answer = match ask.request {
        Request::Get => value_or_absent(&call(client, &[b"GET", &key])?),
        Request::Delete => value_or_absent(&call(client, &[b"GETDEL", &key])?),
        Request::Update(value, ttl) => {
            let (value, time) = (bytes_of(value), ttl.map(millis));
            let options: &[&[u8]] = match (ttl, &time) {
                (None, _) => &[b"KEEPTTL"],
                (Some(Ttl::NONE), _) => &[],
                (_, time) => &[b"PX", time.as_deref().unwrap_or_default().as_bytes()],
            };
            ok(&call(client, &[&[&b"SET"[..], &key, &value], options].concat())?)
        }
        Request::CompareAndSwap(expected, value, ttl) => {
            let (value, expected, time) = (bytes_of(value), expected.to_string(), ttl.map(millis).unwrap_or_default());
            let options: &[&[u8]] = if ttl == Some(Ttl::NONE) { &[] } else { &[b"PX", time.as_bytes()] };
            swapped(call(client, &[&[&b"SETIFMATCH"[..], &key, &value, expected.as_bytes()], options].concat())?, ask)
        }
        Request::Touch(ttl) => match call(client, &[b"PEXPIRE", &key, millis(ttl).as_bytes()])? {
            Value::Line { kind: b':', text } if text == b"1" => Answer::Ok,
            Value::Line { kind: b':', text } if text == b"0" => Answer::KeyNotFound,
            other => panic!("{other:?}"),
        },
        Request::GetAndTouch(ttl) => value_or_absent(&call(client, &[b"GETEX", &key, b"PX", millis(ttl).as_bytes()])?),
        Request::GetEntry => entry(&both(client, &[b"GETWITHETAG", &key], &[b"PTTL", &key])?),
        Request::Increment(_) => counted(&both(client, &[b"INCR", &key], &[b"GETWITHETAG", &key])?),
        other => unreachable!("{other:?} is adapted"),
    };
    Ok(vec![answer])
}

fn answer_about_many(client: &mut RespClient, ask: &Ask) -> io::Result<Vec<Answer>> {
    let keys: Vec<Vec<u8>> = ask.each().map(|one| key_name(one.key)).collect();
    if let Request::Update(..) = ask.request {
        let values = values_of(ask);
        let pairs = keys.iter().zip(&values).flat_map(|(key, value)| [&key[..], value]);
        let answer = ok(&call(client, &std::iter::once(&b"MSET"[..]).chain(pairs).collect::<Vec<_>>())?);
        return Ok(vec![answer; keys.len()]);
    }
    let words: Vec<&[u8]> = std::iter::once(&b"MGET"[..]).chain(keys.iter().map(Vec::as_slice)).collect();
    let Value::Many { items, .. } = call(client, &words)? else { panic!("MGET has an array") };
    Ok(items.iter().map(|item| found(bulk(item))).collect())
}

fn call(client: &mut RespClient, words: &[&[u8]]) -> io::Result<Value> {
    client.ask(words).map(|reply| parse(&reply))
}

/// The replies to two commands, which see one state.
fn both(client: &mut RespClient, first: &[&[u8]], second: &[&[u8]]) -> io::Result<[Value; 2]> {
    for words in [&[&b"MULTI"[..]], first, second] {
        client.ask(words)?;
    }
    let Value::Many { items, .. } = call(client, &[b"EXEC"])? else { panic!("EXEC has an array") };
    Ok(items.try_into().expect("two replies"))
}

fn bulk(value: &Value) -> Option<&[u8]> {
    match value {
        Value::Bulk { bytes, .. } => Some(bytes),
        Value::Null { .. } => None,
        other => panic!("{other:?}"),
    }
}

fn number(value: &Value) -> i64 {
    let (Value::Bulk { bytes: text, .. } | Value::Line { text, .. }) = value else { panic!("{value:?}") };
    std::str::from_utf8(text).unwrap().parse().unwrap()
}

fn version(value: &Value) -> u64 {
    u64::try_from(number(value)).unwrap()
}

fn ok(value: &Value) -> Answer {
    assert!(matches!(value, Value::Line { kind: b'+', .. }), "{value:?}");
    Answer::Ok
}

fn value_or_absent(value: &Value) -> Answer {
    found(bulk(value))
}

/// The reply to SETIFMATCH: the version, and the value if another one is there.
fn swapped(reply: Value, ask: &Ask) -> Answer {
    let Value::Many { items, .. } = reply else { panic!("{reply:?}") };
    match (version(&items[0]), bulk(&items[1])) {
        (current, Some(_)) => Answer::VersionMismatch(current),
        (0, None) => Answer::VersionMismatch(0),
        (new, None) => {
            assert!(matches!(ask.request, Request::CompareAndSwap(expected, ..) if expected < new));
            Answer::Swapped(new)
        }
    }
}

/// The replies to GETWITHETAG and PTTL.
fn entry([element, left]: &[Value; 2]) -> Answer {
    let Value::Many { items, .. } = element else { return Answer::KeyNotFound };
    let left = u64::try_from(number(left)).ok();
    Answer::Entry(value_of(bulk(&items[1]).unwrap()), version(&items[0]), left)
}

/// The replies to INCR and GETWITHETAG.
fn counted([sum, element]: &[Value; 2]) -> Answer {
    let Value::Line { kind: b':', .. } = sum else {
        assert!(matches!(sum, Value::Line { kind: b'-', text } if text.starts_with(b"ERR value is not an integer")));
        return Answer::NotANumber;
    };
    let Value::Many { items, .. } = element else { panic!("{element:?} after an INCR") };
    Answer::Counted(COUNTER | version(sum), version(&items[0]))
}

// --------------------------------------------------------------------------------------------------------------- lives

fn start(data: &Path, life: usize) -> Server {
    let data = data.to_str().unwrap();
    let flags = ["--durability", "always", "--durable-interval", "1h", "--resp", "127.0.0.1:0", "--workers", "2"];
    let frontend = ["--frontend", FRONTENDS[life % FRONTENDS.len()]];
    Server::start(&[&["--data", data, "--segment-size", SMALL_SEGMENT][..], &flags, &frontend].concat())
}

/// A client of the server. One in two is of RESP.
fn work(server: &Endpoints, clock: &Clock, life: u64, number: usize) -> Vec<Record> {
    let role = Role::of(number);
    if number.is_multiple_of(2) {
        let Ok(client) = Client::connect_within(&server.kv, PATIENCE) else { return Vec::new() };
        let client = OverSockets { clock, client, round: 0 };
        return record_peer(&PLAN, life, number, &mut OverZeroMq { role, client });
    }
    let Ok(mut client) = RespClient::try_to_connect(&server.resp) else { return Vec::new() };
    if client.ask(&[b"SELECT", &table_name(0, SHARED)]).is_err() {
        return Vec::new();
    }
    record_peer(&PLAN, life, number, &mut OverResp { role, clock, client })
}

struct Endpoints {
    kv: String,
    resp: String,
}

/// All clients race until the server is killed.
fn race(server: Server, clock: &Clock, life: u64, rng: &mut SeededRng) -> Vec<Record> {
    let endpoints = Endpoints { kv: server.kv().to_owned(), resp: server.resp().to_owned() };
    let records = Mutex::new(Vec::new());
    kill_under_load(server, rng, |number, _| {
        let worked = work(&endpoints, clock, life, number);
        records.lock().extend(worked);
    });
    // What was asked had happened by now, if it has.
    let end = clock.now().nanos();
    let mut records = std::mem::take(&mut *records.lock());
    for (_, operation) in &mut records {
        if operation.answer == Answer::Lost {
            let Span { invoked, clock_min, .. } = operation.span;
            operation.span = Span { invoked, returned: end, clock_min, clock_max: end, latest: end };
        }
    }
    records
}

/// The requests of one client, each behind the answer to the one before.
fn ask_alone(server: &Server, clock: &Clock, requests: impl Iterator<Item = Ask>) -> Vec<Record> {
    let client = Client::connect_within(server.kv(), PATIENCE).unwrap();
    let mut peer = OverSockets { clock, client, round: 0 };
    requests
        .flat_map(|ask| peer.perform(&[ask]).into_iter().flat_map(move |(span, answers)| ask.records(span, &answers)))
        .collect()
}

/// The elements over all lives so far.
struct Histories(BTreeMap<(usize, usize), Lives>);

impl Histories {
    fn new() -> Self {
        let elements = (0..PLAN.tables).flat_map(|table| (0..PLAN.keys).map(move |key| (table, key)));
        Self(elements.map(|element| (element, Lives::new())).collect())
    }

    fn live(&mut self, life: usize, records: &[Record]) {
        let histories = histories(&PLAN, records);
        for ((table, key), lives) in &mut self.0 {
            let history = histories.get(&(*table, *key)).map(Vec::as_slice).unwrap_or_default();
            let before = format!("{lives:?}");
            if let Err(impossible) = lives.live(history) {
                let lines: String = impossible.iter().map(|operation| format!("{operation:?}\n")).collect();
                panic!("life {life}, table {table}, key {key}: not linearizable from {before}\n{lines}");
            }
        }
    }
}

#[test]
fn the_history_over_all_lives_is_linearizable() {
    let folder = tempfile::tempdir().unwrap();
    let (clock, mut rng) = (Clock::start(), SeededRng(5));
    let (mut elements, mut counts, mut operations) = (Histories::new(), AnswerCounts::default(), 0);
    let about = |table, key, request| Ask { table, key, request, many: None };
    let lives = LIVES_PER_ROUND * rounds();
    for life in 0..=lives {
        let server = start(folder.path(), life);
        // The table of both protocols is there before Redis clients come.
        let created = (life == 0).then(|| about(SHARED, 0, Request::CreateTable));
        let all =
            (0..PLAN.tables).flat_map(|table| (0..PLAN.keys).map(move |key| about(table, key, Request::GetEntry)));
        let mut records = ask_alone(&server, &clock, created.into_iter().chain(all));
        if life == lives {
            server.stop();
        } else {
            records.extend(race(server, &clock, life as u64, &mut rng));
        }
        records.iter().for_each(|(_, operation)| counts.count(operation.answer));
        operations += records.len();
        elements.live(life, &records);
    }
    println!("{lives} lives, {operations} operations: {counts:?}");
    assert!(counts.of("lost") > 0, "requests are under way when the server is killed: {counts:?}");
}
