//! When two replies to a command are the same, although their bytes differ: sets, times, random choices, payloads.
//!
//! Everything else is compared exactly, with its type. Differences on purpose are in `known`.

use std::time::Duration;

use super::command::Command;
use super::dump::string_of;
use super::families::returned_time;
use super::known::{Known, Verdict};
use super::maker::is_far_future;
use super::reply::Value;

/// The clocks of two servers between the same commands.
const CLOCK: Duration = Duration::from_millis(10);

/// What a reply answers.
#[derive(Clone, Debug)]
pub(crate) enum Subject<'a> {
    Command(&'a Command),
    /// EXEC, with the commands that it carries out.
    Transaction {
        exec: &'a Command,
        queue: Vec<Command>,
    },
    /// No single command: compared exactly.
    Unknown,
}

/// Compares the replies of a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Judge<'a> {
    pub(crate) known: &'a Known,
    /// The longest step of the round: a server may have been late for as long.
    pub(crate) slowest: Duration,
}

impl Judge<'_> {
    /// Compares two replies.
    pub(crate) fn compare(&self, subject: &Subject<'_>, redis: &Value, other: &Value) -> Verdict {
        match subject {
            _ if redis == other => Verdict::Same,
            Subject::Unknown => self.known.explain(&Command::new(&["UNKNOWN"]), redis, other),
            Subject::Command(command) => self.compare_to(command, redis, other),
            Subject::Transaction { exec, queue } => {
                let (own, others) = (redis.items(), other.items());
                if own.len() != queue.len() || others.len() != queue.len() || queue.is_empty() {
                    return self.known.explain(exec, redis, other);
                }
                let mut verdicts = queue.iter().zip(own.iter().zip(others)).map(|(command, (redis, other))| {
                    if redis == other { Verdict::Same } else { self.compare_to(command, redis, other) }
                });
                // Behind the first difference on purpose the servers may hold different data.
                verdicts.find(|verdict| *verdict != Verdict::Same).unwrap_or(Verdict::Same)
            }
        }
    }

    fn compare_to(&self, command: &Command, redis: &Value, other: &Value) -> Verdict {
        if self.known.skips(command) || self.agree(command, redis, other) {
            return Verdict::Same;
        }
        self.known.explain(command, redis, other)
    }

    /// Whether a rule of the command makes the replies equal.
    fn agree(&self, command: &Command, redis: &Value, other: &Value) -> bool {
        if redis.kind() != other.kind() || redis.is_error() {
            return false;
        }
        let step = CLOCK + 2 * self.slowest;
        let name = command.arguments.first().map(|name| name.to_ascii_uppercase()).unwrap_or_default();
        match name.as_slice() {
            b"KEYS" => as_set(redis) == as_set(other),
            b"PUBSUB" => command.has(1, "CHANNELS") && as_set(redis) == as_set(other),
            b"PTTL" | b"PEXPIRETIME" => is_near(redis, other, step.as_millis()),
            b"TTL" | b"EXPIRETIME" => is_near(redis, other, 1 + step.as_millis() / 1000),
            b"RANDOMKEY" => redis.bytes().is_some() && other.bytes().is_some(),
            b"SCAN" => redis.items().len() == 2 && other.items().len() == 2,
            b"HELLO" => greetings_agree(redis, other),
            b"CLIENT" => command.has(1, "ID") && redis.integer().is_some() && other.integer().is_some(),
            b"COMMAND" if command.has(1, "COUNT") => redis.integer().is_some() && other.integer().is_some(),
            b"COMMAND" if command.arguments.len() == 1 || command.arguments.len() == 2 && command.has(1, "INFO") => {
                true
            }
            b"COMMAND" if command.has(1, "INFO") => shapes_agree(redis, other),
            b"EVAL" | b"EVALSHA" => script_replies_agree(command, redis, other, step),
            b"DUMP" => match (redis.bytes().and_then(string_of), other.bytes().and_then(string_of)) {
                (Some(redis), Some(other)) => redis == other,
                _ => false,
            },
            _ => false,
        }
    }
}

fn as_set(value: &Value) -> Vec<Value> {
    let mut items = value.items().to_vec();
    items.sort();
    items
}

/// Whether two times differ by at most this. A time that was set as a point is exact.
fn is_near(redis: &Value, other: &Value, most: u128) -> bool {
    let (Some(redis), Some(other)) = (redis.integer(), other.integer()) else { return false };
    redis >= 0 && other >= 0 && !is_far_future(redis) && u128::from(redis.abs_diff(other)) <= most
}

/// Whether two replies of a script agree: the last value is a time for some.
fn script_replies_agree(command: &Command, redis: &Value, other: &Value, step: Duration) -> bool {
    let Some(unit) = returned_time(command) else { return false };
    let most = (step.as_millis() / unit.as_millis()) + u128::from(unit > Duration::from_millis(1));
    match (redis.items().split_last(), other.items().split_last()) {
        (Some((redis, own)), Some((other, others))) => own == others && is_near(redis, other, most),
        _ => is_near(redis, other, most),
    }
}

/// Whether two replies to HELLO have the same fields, and agree on the protocol, the mode and the role.
fn greetings_agree(redis: &Value, other: &Value) -> bool {
    let (redis, other) = (redis.items(), other.items());
    redis.len() == other.len()
        && redis.chunks(2).zip(other.chunks(2)).all(|(redis, other)| {
            let ([name, own], [other_name, others]) = (redis, other) else { return false };
            let is_exact = [&b"proto"[..], b"mode", b"role"].iter().any(|exact| name.bytes() == Some(exact));
            name == other_name && own.kind() == others.kind() && (!is_exact || own == others)
        })
}

/// Whether two replies to COMMAND INFO have the same names, arities and first and last keys.
fn shapes_agree(redis: &Value, other: &Value) -> bool {
    let shape = |value: &Value| -> Vec<Value> {
        let commands = value.items().iter();
        commands
            .flat_map(|command| [0, 1, 3, 4, 5].map(|place| command.items().get(place).cloned()))
            .flatten()
            .collect()
    };
    shape(redis) == shape(other)
}

/// Whether two lists of confirmations are equal, if the names of channels have no order.
pub(crate) fn ends_of_subscriptions_agree(redis: &[Value], other: &[Value]) -> bool {
    let name = |value: &Value| value.items().get(1).cloned();
    let rest = |value: &Value| (value.kind(), value.items().first().cloned(), value.items().get(2).cloned());
    let names = |values: &[Value]| {
        let mut names: Vec<_> = values.iter().map(name).collect();
        names.sort();
        names
    };
    names(redis) == names(other) && redis.iter().map(rest).eq(other.iter().map(rest))
}

#[test]
fn times_are_near_unless_they_were_set_as_a_point() {
    let known = Known::default();
    let judge = Judge { known: &known, slowest: Duration::ZERO };
    let integer = |number: i64| Value::Line { kind: b':', text: number.to_string().into_bytes() };
    let compare = |name: &str, redis, other| {
        judge.compare(&Subject::Command(&Command::new(&[name])), &integer(redis), &integer(other))
    };
    assert_eq!(compare("PTTL", 99_990, 100_000), Verdict::Same);
    assert_eq!(compare("PTTL", 99_989, 100_000), Verdict::Different);
    assert_eq!(compare("PTTL", -1, 1), Verdict::Different);
    assert_eq!(compare("PEXPIRETIME", 9_917_117_420_123, 9_917_117_420_124), Verdict::Different);
    assert_eq!(compare("STRLEN", 1, 2), Verdict::Different);
}

#[test]
fn a_transaction_ends_the_round_at_its_first_difference_on_purpose() {
    let head = "| name | what Redis does | what Spindle does | rule |\n|---|---|---|---|\n";
    let page = format!(
        "{head}| absent | aborts | does not | `end EXEC: (nil array) => *` |\n\
        | far | takes it | refuses it | `end SET: +OK => -ERR far` |\n"
    );
    let judge = Judge { known: &Known::read(&page).unwrap(), slowest: Duration::ZERO };
    let exec = Command::new(&["EXEC"]);
    let line = |kind, text: &str| Value::Line { kind, text: text.as_bytes().to_vec() };
    let [done, far, one, two] = [line(b'+', "OK"), line(b'-', "ERR far"), line(b':', "1"), line(b':', "2")];
    let all = |items: &[&Value]| Value::Many { kind: b'*', items: items.iter().copied().cloned().collect() };
    let compare = |names: &[&str], redis: &Value, other: &Value| {
        let queue = names.iter().map(|name| Command::new(&[name])).collect();
        judge.compare(&Subject::Transaction { exec: &exec, queue }, redis, other)
    };
    let set = ["SET", "STRLEN"];
    assert_eq!(compare(&set, &all(&[&done, &one]), &all(&[&far, &two])), Verdict::Ends);
    assert_eq!(compare(&set, &all(&[&done, &one]), &all(&[&done, &two])), Verdict::Different);
    assert_eq!(compare(&["STRLEN", "SET"], &all(&[&one, &done]), &all(&[&two, &far])), Verdict::Different);
    // Of a transaction without commands too.
    let aborted = Value::Null { kind: b'*' };
    assert_eq!(compare(&[], &aborted, &all(&[])), Verdict::Ends);
    assert_eq!(compare(&set, &aborted, &all(&[&done, &one])), Verdict::Ends);
    assert_eq!(compare(&[], &all(&[]), &aborted), Verdict::Different);
}
