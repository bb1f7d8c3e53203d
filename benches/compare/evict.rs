//! Tables that give way at the limit: how many requests they answer beside other caches, and the pace of their writes.

mod policies;
mod traces;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use spindle::clock::Ttl;
use spindle::load::{Distribution, LoadRequest, Mix, OtherProtocol, Payloads, ReplyKind, RequestKind, Workload};

use crate::Plan;
use crate::loading::memcached::MEMCACHED;
use crate::loading::redis::REDIS;
use crate::report::{Report, median};
use crate::side::{Round, Side, Turns, words};
use traces::{Trace, TraceRequest};

/// The limit of Spindle, in bytes. That of the others is such that they take as much resident memory.
const LIMIT: usize = 64 << 20;
/// Requests in one write of a client.
const DEPTH: usize = 64;
/// Tries to find the limit with which another server takes as much memory.
const TRIES: usize = 4;
/// Keys of the SETs: so many that most are new.
const SET_KEYS: u32 = 20_000_000;
const SET_LIMIT: usize = 128 << 20;
const SETS: [Sets; 3] = [
    Sets { name: "64 B", flags: "--value-size 64", filled: 1_500_000 },
    Sets { name: "64 B, each with a TTL", flags: "--value-size 64 --ttl 3600 --ttl-share 100", filled: 1_500_000 },
    Sets {
        name: "16 B to 1 KiB, each with a TTL",
        flags: "--value-size 16-1024 --ttl 3600 --ttl-share 100",
        filled: 400_000,
    },
];

struct Sets {
    name: &'static str,
    /// Of the load.
    flags: &'static str,
    /// Elements that each server has before.
    filled: u32,
}

pub(crate) fn hit_ratios(_plan: &Plan, report: &mut Report) {
    let traces = traces::all();
    on_paper(report, &traces);
    on_servers(report, &traces);
}

fn on_paper(report: &mut Report, traces: &[Trace]) {
    report.write(
        "## Eviction\n\nPolicies on paper, without a server: percent of the requests that are answered after the first fifth of each \
         trace, with as many bytes of elements for each.",
    );
    let mut rows = vec![std::iter::once("").chain(policies::NAMES).map(str::to_owned).collect::<Vec<_>>()];
    for trace in traces {
        let ratios = policies::NAMES.map(|name| format!("{:.1}", policies::hit_ratio(name, trace, LIMIT) * 100.0));
        rows.push(std::iter::once(trace.name.to_owned()).chain(ratios).collect());
    }
    report.table(&rows);
}

/// A server with a limit of so many bytes.
type Start = fn(usize) -> Option<Side>;

fn on_servers(report: &mut Report, traces: &[Trace]) {
    report.write(&format!(
        "Servers: percent of the GETs that find a value after the first fifth, and in brackets the resident memory in MiB that the server \
         has grown by. A client asks {DEPTH} keys at once and stores what is missing. `--max-memory {}M --evict lru`, and `allkeys-lru`.",
        LIMIT >> 20
    ));
    let starts: [Start; 3] = [|limit| Some(ours(limit)), Side::redis_evicting, Side::memcached_within];
    let mut rows = Vec::new();
    for trace in traces {
        let mut row = vec![trace.name.to_owned()];
        let mut heads = vec![String::new()];
        let mut ours_grown = None;
        for start in starts {
            let Some(replay) = fit(trace, start, ours_grown) else { continue };
            ours_grown.get_or_insert(replay.grown);
            report.raw(&serde_json::json!({
                "what": "hit ratio", "trace": trace.name, "side": replay.side, "ratio": replay.ratio, "grown": replay.grown,
                "limit": replay.limit, "refused": replay.refused, "seconds": replay.seconds,
            }));
            heads.push(replay.side.to_owned());
            row.push(format!("{:.2} ({:.1})", replay.ratio * 100.0, replay.grown / f64::from(1 << 20)));
        }
        if rows.is_empty() {
            rows.push(heads);
        }
        rows.push(row);
    }
    report.table(&rows);
}

fn ours(limit: usize) -> Side {
    let flags = ["--publish", "off", "--frontend", "native", "--workers", "1", "--evict", "lru", "--max-memory"];
    Side::resp(&[&flags[..], &[&limit.to_string()]].concat())
}

/// What came of a trace on a server.
struct Replay {
    side: &'static str,
    limit: usize,
    ratio: f64,
    /// Bytes by which its resident memory has grown.
    grown: f64,
    refused: usize,
    seconds: f64,
}

/// Replays a trace on new servers, until one takes about as much memory as is wanted.
fn fit(trace: &Trace, start: Start, wanted: Option<f64>) -> Option<Replay> {
    let mut limit = LIMIT;
    let mut last = None;
    for _ in 0..TRIES {
        let side = start(limit)?;
        let replay = replay(&side, trace, limit);
        let share = wanted.unwrap_or(replay.grown) / replay.grown;
        last = Some(replay);
        if (share - 1.0).abs() < 0.01 {
            break;
        }
        limit = (limit as f64 * share) as usize;
    }
    last
}

fn replay(side: &Side, trace: &Trace, limit: usize) -> Replay {
    let before = side.resident_bytes();
    let mut client = Client::connect(side);
    let warm = trace.requests.len() / 5;
    let (mut hits, mut refused) = (0, 0);
    let begin = Instant::now();
    for (number, requests) in trace.requests.chunks(DEPTH).enumerate() {
        if let Some(rate) = trace.rate {
            let due = Duration::from_secs_f64((number * DEPTH) as f64 / f64::from(rate));
            std::thread::sleep(due.saturating_sub(begin.elapsed()));
        }
        let found = client.ask(RequestKind::Get, requests);
        if number * DEPTH >= warm {
            hits += found.iter().filter(|found| **found).count();
        }
        let missing = requests.iter().zip(&found).filter(|(_, found)| !**found).map(|(request, _)| *request);
        let stored = client.ask(RequestKind::Set, &missing.collect::<Vec<_>>());
        refused += stored.iter().filter(|stored| !**stored).count();
    }
    let counted = trace.requests.len() - warm.next_multiple_of(DEPTH);
    Replay {
        side: side.name,
        limit,
        ratio: hits as f64 / counted as f64,
        grown: side.resident_bytes() - before,
        refused,
        seconds: begin.elapsed().as_secs_f64(),
    }
}

/// A connection that sends some requests and waits for all replies.
struct Client {
    stream: TcpStream,
    protocol: &'static OtherProtocol,
    work: Workload,
    payloads: Payloads,
    bytes: Vec<u8>,
}

impl Client {
    fn connect(side: &Side) -> Self {
        let work = Workload {
            mix: Mix::only(RequestKind::Get),
            keys: u32::MAX,
            key_bytes: 16,
            distribution: Distribution::Uniform,
            value_bytes: 0..=4_096,
            ttl: Ttl::from_secs(1),
            ttl_share: 0.0,
            many: 1,
            seed: 0,
        };
        let stream = TcpStream::connect(side.address()).unwrap();
        stream.set_nodelay(true).unwrap();
        let protocol = if side.protocol == "redis" { &REDIS } else { &MEMCACHED };
        Self { stream, protocol, payloads: Payloads::new(&work), work, bytes: Vec::new() }
    }

    /// Whether each request found or stored its value.
    fn ask(&mut self, verb: RequestKind, requests: &[TraceRequest]) -> Vec<bool> {
        self.bytes.clear();
        for request in requests {
            let TraceRequest { key, value_bytes, ttl } = *request;
            let request = LoadRequest { verb, key, value_bytes, ttl: ttl.map(Ttl::from_secs) };
            (self.protocol.encode)(request, &self.work, &mut self.payloads, &mut self.bytes);
        }
        self.stream.write_all(&self.bytes).unwrap();
        self.bytes.clear();
        let (mut outcomes, mut taken) = (Vec::new(), 0);
        let mut some = [0; 64 << 10];
        while outcomes.len() < requests.len() {
            if let Some((length, kind)) = (self.protocol.decode)(verb, &self.bytes[taken..]).unwrap() {
                outcomes.push(matches!(kind, ReplyKind::Done));
                taken += length;
                continue;
            }
            let count = self.stream.read(&mut some).unwrap();
            assert!(count > 0, "the server is there");
            self.bytes.extend_from_slice(&some[..count]);
        }
        outcomes
    }
}

/// The sides, and for each the rounds of a closed loop and an open one.
struct Measured {
    sides: Vec<Side>,
    rounds: Vec<Vec<[Round; 2]>>,
}

pub(crate) fn sets(plan: &Plan, report: &mut Report) {
    report.write(&format!(
        "## SETs at the limit\n\nSETs of {SET_KEYS} keys, of which most are new: thousands a second at depth 16, nanoseconds of the processor in \
         server and load for each, and p99 in µs of the open loop of 50,000 a second. *Below*: no limit is met. *At*: `--max-memory {}M --evict \
         lru`, filled before. *At / below*: by the rate, and by the cost, medians over the rounds.",
        SET_LIMIT >> 20
    ));
    let mut rows = Vec::new();
    for case in SETS {
        let Measured { sides, rounds } = measure_sets(plan, report, &case);
        if rows.is_empty() {
            let mut heads = vec![String::new()];
            let places = ["below", "at"].into_iter().cycle();
            heads.extend(sides.iter().zip(places).map(|(side, place)| format!("{}, {place}", side.name)));
            heads.extend(sides.iter().step_by(2).map(|side| format!("{}, at / below", side.name)));
            rows.push(heads);
        }
        let of = |rounds: &[[Round; 2]], value: fn(&[Round; 2]) -> f64| {
            median(&rounds.iter().map(value).collect::<Vec<_>>())
        };
        let mut row = vec![case.name.to_owned()];
        for rounds in &rounds {
            let p99 = of(rounds, |[_, open]| open.phase["verbs"]["all"]["p99_nanos"].as_f64().unwrap());
            let (rate, cost) = (of(rounds, |[closed, _]| closed.rate), of(rounds, |[closed, _]| closed.cost()));
            row.push(format!("{:.0}, {cost:.0} ns, {:.0} µs", rate / 1e3, p99 / 1e3));
        }
        for pair in rounds.chunks_exact(2) {
            let both = |share: fn(&Round, &Round) -> f64| {
                let shares = pair[1].iter().zip(&pair[0]).map(|([at, _], [below, _])| share(at, below));
                median(&shares.collect::<Vec<_>>())
            };
            let by_cost = both(|at, below| below.cost() / at.cost());
            row.push(format!("{:.2}, {by_cost:.2}", both(|at, below| at.rate / below.rate)));
        }
        rows.push(row);
    }
    report.table(&rows);
}

fn measure_sets(plan: &Plan, report: &mut Report, case: &Sets) -> Measured {
    let Sets { name, flags, filled } = case;
    let mut sides = vec![ours(8 << 30), ours(SET_LIMIT)];
    if let (Some(below), Some(at)) = (Side::redis(), Side::redis_evicting(SET_LIMIT)) {
        sides.extend([below, at]);
    }
    let prefill = format!("--prefill --keys {filled} --mix get=1 --seconds 0.1 --warm-up 0 {flags}");
    let mut rounds: Vec<Vec<[Round; 2]>> = sides.iter().map(|_| Vec::new()).collect();
    let turns = Turns::among(&sides);
    (0..sides.len()).for_each(|number| drop(turns.give(number, |side| side.load(&words(&prefill)))));
    for round in 0..plan.rounds {
        let load = |how: &str, seed: usize| {
            format!("--mix set=1 --keys {SET_KEYS} --warm-up 0 --seed {seed} --seconds {} {flags} {how}", plan.seconds)
        };
        let (closed, open) = (load("--depth 16", 2 * round + 1), load("--rate 50000", 2 * round + 2));
        for (number, rounds) in rounds.iter_mut().enumerate() {
            let pair = turns.give(number, |side| [side.measure(&closed), side.measure(&open)]);
            let what = format!("SETs, {name}, {}", if number % 2 == 0 { "below" } else { "at" });
            pair.iter().for_each(|round| report.raw(&round.raw(&what, sides[number].name)));
            rounds.push(pair);
        }
    }
    drop(turns);
    Measured { sides, rounds }
}
