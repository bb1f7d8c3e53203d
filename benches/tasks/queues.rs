//! What queues by name cost: many leases at once, delays that end, groups, dead tasks with reasons, and a purge.
//!
//! ```text
//! cargo bench --bench tasks -- --only none --many 0 --queues 2000000
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use hdrhistogram::Histogram;
use spindle::clients::rust::tasks::TasksClient;
use spindle::services::tasks::wire::{
    AddMode, AnyReply, AnyRequest, LeaseEnd, NamedLease, QueueReply, QueueRequest, RepayStatus, Reply,
};
use spindle::tasks::{AddTerms, QueueChange, SweptStates};

use crate::durable::{crowd, repeat};
use crate::{LEASE, MIB, PAYLOAD, Side};

/// Leases of a request.
const MANY: u32 = 64;
/// Clients at once.
const CLIENTS: usize = 8;
/// Groups of which all but one are full.
const GROUPS: u64 = 100_000;

/// A queue for each measurement.
pub(crate) fn measure(count: u64) {
    lend_many(count.min(1_000_000));
    delayed(count);
    groups();
    dead(count / 2);
}

fn connect(side: &Side) -> TasksClient {
    TasksClient::connect(&format!("tcp://{}", side.address)).unwrap()
}

fn side_with(flags: &[&str]) -> Side {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    Side::with_flags(flags, folder, &data)
}

/// Adds tasks by several clients, each with many requests on the way. Returns the rate.
fn fill(side: &Side, queue: &'static str, from: u64, count: u64, terms: impl Fn(u64) -> AddTerms + Sync) -> f64 {
    let next = AtomicU64::new(from);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = connect(side);
                let (mut sent, mut answered) = (0, 0);
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let is_over = number >= from + count;
                    if !is_over {
                        let key = format!("{number:016}");
                        let add = QueueRequest::AddMany {
                            queues: vec![queue.as_bytes()],
                            key: key.as_bytes(),
                            value: &PAYLOAD,
                            mode: AddMode::Tail,
                            terms: terms(number),
                        };
                        client.send_any(&AnyRequest::OfQueues(add)).unwrap();
                        sent += 1;
                    }
                    while answered < sent && (is_over || sent - answered >= 256) {
                        let reply = client.receive_any().unwrap();
                        assert!(matches!(reply, AnyReply::OfQueues(QueueReply::Items(..))), "{reply:?}");
                        answered += 1;
                    }
                    if is_over {
                        return;
                    }
                }
            });
        }
    });
    count as f64 / start.elapsed().as_secs_f64()
}

fn lend(client: &mut TasksClient, queue: &str, count: u32, wait_ms: u64) -> Vec<(u64, Vec<u8>)> {
    let queues = vec![queue.as_bytes()];
    let lend = QueueRequest::LendMany { queues, count, timeout_ms: LEASE, wait_ms };
    match client.ask(&AnyRequest::OfQueues(lend)).unwrap() {
        AnyReply::OfQueues(QueueReply::Lent(tasks)) => {
            tasks.iter().map(|task| (task.lend_key, task.key.to_vec())).collect()
        }
        AnyReply::Plain(Reply::QueueEmpty) => Vec::new(),
        reply => panic!("{reply:?}"),
    }
}

fn settle(client: &mut TasksClient, queue: &str, leases: &[(u64, Vec<u8>)], how: LeaseEnd<'_>) {
    let ends = leases
        .iter()
        .map(|(lend_key, key)| (NamedLease { queue: queue.as_bytes(), lend_key: *lend_key, key }, how))
        .collect();
    let reply = client.ask(&AnyRequest::OfQueues(QueueRequest::SettleMany(ends))).unwrap();
    assert!(matches!(reply, AnyReply::OfQueues(QueueReply::Items(..))), "{reply:?}");
}

fn lend_many(count: u64) {
    let side = side_with(&[]);
    let added = fill(&side, "many", 0, count, |_| AddTerms::default());
    let clients: Vec<TasksClient> = (0..CLIENTS).map(|_| connect(&side)).collect();
    let done = AtomicU64::new(0);
    let start = Instant::now();
    let (_, latencies) = crowd(clients, 600.0, |mut client, over| {
        repeat(over, || {
            let leases = lend(&mut client, "many", MANY, 0);
            if leases.is_empty() {
                return false;
            }
            settle(&mut client, "many", &leases, LeaseEnd::Repay(RepayStatus::Done, b""));
            done.fetch_add(leases.len() as u64, Ordering::Relaxed);
            true
        })
    });
    assert_eq!(done.load(Ordering::Relaxed), count);
    let rate = count as f64 / start.elapsed().as_secs_f64();
    println!(
        "LendMany and SettleMany of {MANY}, {CLIENTS} clients, values of {} bytes: {rate:.0} tasks/s (added at {added:.0}/s); a \
         LendMany with its SettleMany p50 {} µs, p99 {} µs",
        PAYLOAD.len(),
        latencies.value_at_quantile(0.5) / 1_000,
        latencies.value_at_quantile(0.99) / 1_000,
    );
}

/// Adding with and without a delay, and how late a task with a delay comes to a client that waits.
fn delayed(count: u64) {
    let side = side_with(&[]);
    let terms = |delay| move |_| AddTerms { delay, ..AddTerms::default() };
    let mut rates = [Vec::new(), Vec::new()];
    let pieces = 10;
    for piece in 0..pieces {
        for (rates, (queue, delay)) in rates.iter_mut().zip([("plain", 0), ("delayed", 3_600_000)]) {
            rates.push(fill(&side, queue, piece * count / pieces, count / pieces, terms(delay)));
        }
    }
    let [plain, later] = rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    });
    let (mut client, mut adder) = (connect(&side), connect(&side));
    let mut late = Histogram::<u64>::new(3).unwrap();
    for number in 0..500_u64 {
        let (delay, key) = (20, number.to_be_bytes());
        let add = QueueRequest::AddMany {
            queues: vec![b"soon"],
            key: &key,
            value: b"",
            mode: AddMode::Tail,
            terms: AddTerms { delay, ..AddTerms::default() },
        };
        adder.ask(&AnyRequest::OfQueues(add)).unwrap();
        let due = Instant::now();
        let leases = lend(&mut client, "soon", 1, 10_000);
        let micros = u64::try_from(due.elapsed().as_micros()).unwrap();
        late.record(micros.saturating_sub(delay * 1_000).max(1)).unwrap();
        settle(&mut client, "soon", &leases, LeaseEnd::Repay(RepayStatus::Done, b""));
    }
    println!(
        "{count} delayed tasks: added at {later:.0}/s, {plain:.0}/s without a delay ({:.2} times the time); beside them a task \
         comes to a client that waits p50 {} µs, p99 {} µs behind its time",
        plain / later,
        late.value_at_quantile(0.5),
        late.value_at_quantile(0.99),
    );
}

/// A lease and its done in a queue with few groups, and in one of whose groups all but one are full.
fn groups() {
    let side = side_with(&["--sync", "never"]);
    let group = |number: u64| AddTerms { group: number.to_string().into_bytes().into(), ..AddTerms::default() };
    let mut client = connect(&side);
    let mut nanos = Vec::new();
    for (queue, groups) in [("few", 10), ("many groups", GROUPS)] {
        let change = QueueChange { group_limit: Some(std::num::NonZeroU32::new(1)), ..QueueChange::default() };
        let configure = QueueRequest::Configure { queue: queue.as_bytes(), change };
        client.ask(&AnyRequest::OfQueues(configure)).unwrap();
        // Two of each group: one is lent, and one is ready in a group that is full.
        fill(&side, queue, 0, 2 * groups, |number| group(number % groups));
        let mut held = 0;
        while held < groups - 1 {
            held += lend(&mut client, queue, u32::try_from((groups - 1 - held).min(1_000)).unwrap(), 0).len() as u64;
        }
        fill(&side, queue, 2 * groups, 20_000, |_| group(groups));
        let mut rounds: Vec<f64> = (0..7)
            .map(|_| {
                let start = Instant::now();
                for _ in 0..2_000 {
                    let leases = lend(&mut client, queue, 1, 0);
                    assert_eq!(leases.len(), 1);
                    settle(&mut client, queue, &leases, LeaseEnd::Repay(RepayStatus::Done, b""));
                }
                start.elapsed().as_nanos() as f64 / 2_000.0
            })
            .collect();
        rounds.sort_by(f64::total_cmp);
        nanos.push(rounds[3]);
    }
    println!(
        "a LendMany of one and its done, --sync never: {:.1} µs with 10 groups, {:.1} µs with {GROUPS}, all but one full ({:.2})",
        nanos[0] / 1e3,
        nanos[1] / 1e3,
        nanos[1] / nanos[0],
    );
}

/// Memory and opening with dead tasks and their reasons, beside ready ones and others that were lent once, and a purge beside
/// other requests.
fn dead(count: u64) {
    let reason = [b'r'; 100];
    let ways = [
        ("ready", None),
        ("given back with a delay", Some(LeaseEnd::GiveBack { delay_ms: Some(LEASE * 100), reason: b"" })),
        ("dead with reasons of 100 bytes", Some(LeaseEnd::Bury { reason: &reason })),
    ];
    let mut lines = Vec::new();
    for (name, end) in ways {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let side = Side::with_flags(&[], tempfile::tempdir().unwrap(), &data);
        fill(&side, "dead", 0, count, |_| AddTerms::default());
        let mut client = connect(&side);
        let mut left = if end.is_some() { count } else { 0 };
        while let Some(end) = end.filter(|_| left > 0) {
            let leases = lend(&mut client, "dead", 1_000, 0);
            settle(&mut client, "dead", &leases, end);
            left -= leases.len() as u64;
        }
        // The log is cleaned while nobody asks.
        std::thread::sleep(std::time::Duration::from_secs(5));
        drop((client, side));
        let start = Instant::now();
        let side = Side::with_flags(&[], tempfile::tempdir().unwrap(), &data);
        let (opened, resident) = (start.elapsed().as_secs_f64(), side.resident_bytes() / MIB);
        lines.push(format!("{name}: opened in {opened:.2} s, resident {resident:.0} MiB"));
        if matches!(end, Some(LeaseEnd::Bury { .. })) {
            purge(&side);
        }
    }
    println!("{count} tasks, {}", lines.join("; "));
}

fn purge(side: &Side) {
    let others = |seconds: f64| {
        let clients: Vec<TasksClient> = (0..CLIENTS).map(|_| connect(side)).collect();
        let numbers = AtomicU64::new(0);
        crowd(clients, seconds, |mut client, over| {
            repeat(over, || {
                let key = format!("{:016}", numbers.fetch_add(1, Ordering::Relaxed));
                client.add(key.as_bytes(), &PAYLOAD, AddMode::Tail).unwrap();
                client.remove(key.as_bytes()).unwrap()
            })
        })
        .1
    };
    let before = others(3.0);
    let mut client = connect(side);
    let (beside, took) = std::thread::scope(|scope| {
        let purging = scope.spawn(move || {
            let start = Instant::now();
            let states = SweptStates { dead: true, ..SweptStates::default() };
            let purge = QueueRequest::Purge { queue: b"dead", states, age_ms: 0 };
            client.set_timeout(std::time::Duration::from_secs(600));
            let counted = format!("{:?}", client.ask(&AnyRequest::OfQueues(purge)).unwrap());
            (start.elapsed().as_secs_f64(), counted)
        });
        let beside = others(3.0);
        (beside, purging.join().unwrap())
    });
    let p99 = |latencies: &Histogram<u64>| latencies.value_at_quantile(0.99) / 1_000;
    println!(
        "a purge in {:.1} s ({}): p99 of an Add with its Remove by {CLIENTS} others {} µs, {} µs without",
        took.0,
        took.1,
        p99(&beside),
        p99(&before),
    );
}
