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
use crate::side::{Round, Side, Turns};
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
const SETS: [(&str, &str); 3] = [
    ("64 B", "--value-size 64"),
    ("64 B, each with a TTL", "--value-size 64 --ttl 3600 --ttl-share 100"),
    ("16 B to 1 KiB, each with a TTL", "--value-size 16-1024 --ttl 3600 --ttl-share 100"),
];

pub(crate) fn measure(plan: &Plan, report: &mut Report) {
    let traces = traces::all();
    on_paper(report, &traces);
    hit_ratios(report, &traces);
    sets(plan, report);
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

fn hit_ratios(report: &mut Report, traces: &[Trace]) {
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

fn sets(plan: &Plan, report: &mut Report) {
    report.write(&format!(
        "SETs of {SET_KEYS} keys, of which most are new: thousands a second at depth 16, and p99 in µs of the open loop of 50,000 a second \
         behind the slash. *Below*: no limit is met. *At*: `--max-memory {}M --evict lru`, filled before. *At / below*: the median over the \
         rounds.",
        SET_LIMIT >> 20
    ));
    let mut rows = vec![Vec::new()];
    for (name, flags) in SETS {
        let mut sides = vec![ours(8 << 30), ours(SET_LIMIT)];
        sides.extend(Side::redis());
        sides.extend(Side::redis_evicting(SET_LIMIT));
        let turns = Turns::among(&sides);
        let sets = |number: usize, how: &str, seed: usize| {
            let load = format!("--mix set=1 --keys {SET_KEYS} --warm-up 0 --seed {seed} {flags} {how}");
            turns.give(number, |side| side.measure(&load))
        };
        let closed = format!("--depth 16 --seconds {}", plan.seconds);
        let open = format!("--rate 50000 --seconds {}", plan.seconds);
        (0..sides.len()).for_each(|number| drop(sets(number, "--depth 16 --seconds 5", 1)));
        let mut rounds: Vec<Vec<[Round; 2]>> = sides.iter().map(|_| Vec::new()).collect();
        for seed in 0..plan.rounds {
            for (number, rounds) in rounds.iter_mut().enumerate() {
                let pair = [sets(number, &closed, 2 + 2 * seed), sets(number, &open, 3 + 2 * seed)];
                let what = format!("SETs, {name}, {number}");
                pair.iter().for_each(|round| report.raw(&round.raw(&what, sides[number].name)));
                rounds.push(pair);
            }
        }
        drop(turns);
        let mut row = vec![name.to_owned()];
        for rounds in &rounds {
            let rates: Vec<f64> = rounds.iter().map(|[closed, _]| closed.rate).collect();
            let p99 = |[_, open]: &[Round; 2]| open.phase["verbs"]["all"]["p99_nanos"].as_f64().unwrap();
            let p99s: Vec<f64> = rounds.iter().map(p99).collect();
            row.push(format!("{:.0} / {:.0}", median(&rates) / 1e3, median(&p99s) / 1e3));
        }
        for pair in rounds.chunks_exact(2) {
            let ratios: Vec<f64> =
                pair[1].iter().zip(&pair[0]).map(|([at, _], [below, _])| at.rate / below.rate).collect();
            row.push(format!("{:.2}", median(&ratios)));
        }
        rows[0] = vec![String::new()];
        rows[0].extend(
            sides
                .iter()
                .zip(["below", "at"].into_iter().cycle())
                .map(|(side, place)| format!("{}, {place}", side.name)),
        );
        rows[0].extend(sides.iter().step_by(2).map(|side| format!("{}, at / below", side.name)));
        rows.push(row);
    }
    report.table(&rows);
}
