//! Workers that own their connections, beside Redis and beside one thread that only answers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Instant;

use core_affinity::CoreId;
use hdrhistogram::Histogram;
use spindle::clients::rust::tables::Client;
use spindle::zmtp::{SocketType, encode_frame};

use crate::meet::meet;
use crate::report::{Report, median};
use crate::shape::{alternate, middle};
use crate::side::{Round, Side};
use crate::{DEPTHS, Plan};

const KEYS: u32 = 1_000_000;
const VALUE_BYTES: usize = 64;
const ROUND_TRIPS: usize = 50_000;

pub(crate) fn measure(plan: &Plan, report: &mut Report) {
    report.write(
        "## Workers that speak ZMTP themselves\n\n`--frontend native --publish off`, 1,000,000 keys, values of 64 bytes, 8 connections; thousands of requests a \
         second. *naive* is one thread on an epoll that finds the end of each request and answers with constant bytes. Ratios are the medians of those of each round.",
    );
    let native = |workers: &str| Side::spindle(&["--publish", "off", "--frontend", "native", "--workers", workers]);
    let sides = [Some(native("1")), Some(native("2")), Some(Side::naive()), Side::redis()];
    let sides: Vec<Side> = sides.into_iter().flatten().collect();
    sides.iter().filter(|side| side.name != "naive").for_each(|side| side.fill(KEYS, VALUE_BYTES));
    let heads =
        ["", "1 worker", "2 workers", "naive", "redis", "1 worker / redis", "2 workers / redis", "1 worker / naive"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for verb in ["get", "set"] {
        for depth in DEPTHS {
            let what = format!("{verb}, depth {depth}");
            let flags = format!(
                "--mix {verb}=1 --depth {depth} --keys {KEYS} --value-size {VALUE_BYTES} --warm-up 0 --seconds {}",
                plan.seconds
            );
            let rounds = alternate(plan, &sides, &format!("native, {what}"), &flags, report);
            rows.push(row(what, &rounds));
        }
    }
    report.table(&rows);
    drop(sides);
    round_trip(report);
}

fn row(what: String, rounds: &[Vec<Round>]) -> Vec<String> {
    let mut row = vec![what];
    row.extend(rounds.iter().map(|rounds| format!("{:.0}", middle(rounds, |round| round.rate) / 1e3)));
    row.resize(5, "–".to_owned());
    for (one, other) in [(0, 3), (1, 3), (0, 2)] {
        let ratio = rounds.get(other).map(|other| {
            let ratios = rounds[one].iter().zip(other).map(|(one, other)| one.rate / other.rate);
            format!("{:.2}", median(&ratios.collect::<Vec<_>>()))
        });
        row.push(ratio.unwrap_or_default());
    }
    row
}

/// One connection that waits for each answer, with a client that does no other work. It runs on the core of the server,
/// where a round trip is two changes of threads, and on another, where each side finds its core asleep.
fn round_trip(report: &mut Report) {
    report.write(
        "A GET over one connection that waits for each answer on a blocking socket, in µs, p50 / p99. *Same core*: client and server share one, so that a round \
         trip is two changes of threads; *another core*: each side has to wake a core that sleeps. Redis is not pinned.",
    );
    let native = Side::spindle(&["--publish", "off", "--frontend", "native", "--workers", "1", "--pin", "0"]);
    let (address, mut ask) = (native.address().to_owned(), Vec::new());
    let mut client = Client::connect(&native.endpoint).unwrap();
    client.create_table(b"t").unwrap();
    client.update(b"t", b"0123456789abcdef", &[7; VALUE_BYTES], None).unwrap();
    for (number, frame) in [&[4][..], b"t", b"0123456789abcdef"].into_iter().enumerate() {
        encode_frame(&mut ask, frame, number < 2);
    }
    let mut rows = vec![["", "same core", "another core"].map(str::to_owned).to_vec()];
    let cores = core_affinity::get_core_ids().unwrap();
    let mut add = |name: &str, connect: &dyn Fn() -> TcpStream, ask: &[u8]| {
        let cell = |core: &CoreId| {
            let latencies = round_trips(connect(), ask, *core);
            let micros = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
            report.raw(&serde_json::json!({ "what": "round trip", "side": name, "core": core.id, "p50": micros(0.5), "p99": micros(0.99) }));
            format!("{:.1} / {:.1}", micros(0.5), micros(0.99))
        };
        rows.push(std::iter::once(name.to_owned()).chain(cores.iter().take(2).map(cell)).collect());
    };
    add("native", &|| meet(&address, SocketType::Dealer).0, &ask);
    let naive = Side::naive();
    add("naive", &|| meet(naive.address(), SocketType::Dealer).0, &ask);
    if let Some(redis) = Side::redis() {
        redis.fill(1_000, VALUE_BYTES);
        add("redis", &|| TcpStream::connect(redis.address()).unwrap(), b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
    }
    report.table(&rows);
}

/// How long each of many takes, in nanoseconds.
fn round_trips(mut stream: TcpStream, ask: &[u8], core: CoreId) -> Histogram<u64> {
    let measure = move || {
        core_affinity::set_for_current(core);
        stream.set_nodelay(true).unwrap();
        let mut latencies = Histogram::new(3).unwrap();
        let mut answer = [0; 1024];
        for number in 0..ROUND_TRIPS {
            let start = Instant::now();
            stream.write_all(ask).unwrap();
            // It is short, and comes in one piece.
            assert!(stream.read(&mut answer).unwrap() > 0);
            if number > ROUND_TRIPS / 10 {
                latencies.record(start.elapsed().as_nanos() as u64).unwrap();
            }
        }
        latencies
    };
    thread::scope(|scope| scope.spawn(measure).join().unwrap())
}
