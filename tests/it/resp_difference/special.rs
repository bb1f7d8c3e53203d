//! The steps of their own kind: they need a reply before they know the next command.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::command::Command;
use super::reply::Value;
use super::round::{Line, Round, Stop};

/// A deadline that is further away is no short one.
const SHORT_MILLIS: i64 = 1_000;
/// How long a key may be there after its deadline.
const LATE: Duration = Duration::from_secs(10);
/// The pages of a walk, at most.
const PAGES_MAX: usize = 10_000;

fn different(command: &str, redis: String, other: String) -> Stop {
    Stop::Different { command: command.to_owned(), redis, other }
}

fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| "(closed or silent)".to_owned(), Value::to_string)
}

/// Waits on both servers until a key with a short deadline is gone.
pub(crate) fn lapse(round: &mut Round<'_>, line: &mut Line, key: &[u8]) -> Result<(), Stop> {
    let ask = Command::new(&["PTTL"]).with(key);
    for side in [0, 1] {
        let begin = Instant::now();
        // Another reply than a number: the connection is in some state in which it cannot ask.
        while let Some(left) = round.ask_one(line, side, &ask).and_then(|reply| reply.integer()) {
            if !(0..=SHORT_MILLIS).contains(&left) {
                break;
            }
            if begin.elapsed() > LATE {
                let late = |own: usize| if own == side { "(not gone)".to_owned() } else { "(not asked)".to_owned() };
                return Err(different(&ask.shown(), late(0), late(1)));
            }
            std::thread::yield_now();
        }
    }
    let exists = Command::new(&["EXISTS"]).with(key);
    round.send(line, &[exists], &[])
}

/// Walks with SCAN to the end on each server, and compares the keys as sets.
pub(crate) fn walk(round: &mut Round<'_>, line: &mut Line, scan: &Command) -> Result<(), Stop> {
    let [redis, other] = [0, 1].map(|side| walk_one(round, line, side, scan));
    match (redis, other) {
        (Ok(redis), Ok(other)) if redis == other => Ok(()),
        (Err(redis), Err(other)) => match (&redis, &other) {
            (Some(redis), Some(other)) => round.judge(scan, redis, other),
            (None, None) => Err(Stop::Stalled),
            _ => Err(different(&scan.shown(), shown(redis.as_ref()), shown(other.as_ref()))),
        },
        (redis, other) => {
            let shown = |walked: Result<BTreeSet<Value>, Option<Value>>| match walked {
                Ok(keys) => keys.iter().map(Value::to_string).collect::<Vec<_>>().join(", "),
                Err(reply) => shown(reply.as_ref()),
            };
            Err(different(&format!("{} walked to its end", scan.shown()), shown(redis), shown(other)))
        }
    }
}

/// The keys of a walk, or the reply that is no page.
fn walk_one(
    round: &mut Round<'_>,
    line: &mut Line,
    side: usize,
    scan: &Command,
) -> Result<BTreeSet<Value>, Option<Value>> {
    let mut keys = BTreeSet::new();
    let mut cursor = b"0".to_vec();
    for _ in 0..PAGES_MAX {
        let mut page = scan.clone();
        page.arguments.insert(1, cursor);
        let reply = round.ask_one(line, side, &page);
        let next = match reply.as_ref().map(Value::items) {
            Some([next, found]) => {
                keys.extend(found.items().iter().cloned());
                next.bytes().unwrap_or_default().to_vec()
            }
            _ => return Err(reply),
        };
        if next == b"0" {
            return Ok(keys);
        }
        cursor = next;
    }
    Err(None)
}

/// Takes a random key of each server, which the other server must have.
pub(crate) fn random_key(round: &mut Round<'_>, line: &mut Line) -> Result<(), Stop> {
    let ask = Command::new(&["RANDOMKEY"]);
    let [redis, other] = round.ask(line, &[ask.clone(), ask.clone()]);
    let [Some(redis), Some(other)] = [&redis, &other] else {
        return Err(different(&ask.shown(), shown(redis.as_ref()), shown(other.as_ref())));
    };
    round.judge(&ask, redis, other)?;
    let (Value::Bulk { bytes: own, .. }, Value::Bulk { bytes: others, .. }) = (redis, other) else { return Ok(()) };
    let exists = |key: &[u8]| Command::new(&["EXISTS"]).with(key);
    let found = round.ask(line, &[exists(others), exists(own)]);
    if found.iter().all(|reply| reply.as_ref().and_then(Value::integer) == Some(1)) {
        return Ok(());
    }
    Err(different("RANDOMKEY, a key that the other server has", redis.to_string(), other.to_string()))
}

/// Dumps a key, and restores it under another name from the payload of the other server.
pub(crate) fn exchange(round: &mut Round<'_>, line: &mut Line, from: &[u8], to: &[u8]) -> Result<(), Stop> {
    let dump = Command::new(&["DUMP"]).with(from);
    let [redis, other] = round.ask(line, &[dump.clone(), dump.clone()]);
    let [Some(redis), Some(other)] = [&redis, &other] else {
        return Err(different(&dump.shown(), shown(redis.as_ref()), shown(other.as_ref())));
    };
    round.judge(&dump, redis, other)?;
    let (Value::Bulk { bytes: own, .. }, Value::Bulk { bytes: others, .. }) = (redis, other) else { return Ok(()) };
    let restore = |payload: &[u8]| Command::new(&["RESTORE"]).with(to).with("0").with(payload).with("REPLACE");
    let commands = [restore(others), restore(own)];
    let [redis, other] = round.ask(line, &commands);
    let [Some(redis), Some(other)] = [&redis, &other] else {
        return Err(different(&commands[0].shown(), shown(redis.as_ref()), shown(other.as_ref())));
    };
    round.judge(&commands[0], redis, other)?;
    round.send(line, &[Command::new(&["GET"]).with(to)], &[])
}
