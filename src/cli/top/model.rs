//! What `spindle top` shows: the documents of the server, as rows, and the rates between two of them. This module draws
//! nothing.

use std::collections::BTreeMap;

use serde_json::Value;

use super::document::{list, number, whole, word};
use super::queues::QueueCursor;

/// The order of the verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Sort {
    /// Most requests in a second first.
    Rate,
    /// Most requests since the start first.
    Count,
    /// Longest p99 first.
    P99,
    /// By protocol and verb.
    Name,
}

impl Sort {
    /// All orders, as the key changes them.
    const ALL: [Self; 4] = [Self::Rate, Self::Count, Self::P99, Self::Name];

    /// The order that a flag names.
    ///
    /// # Errors
    /// The orders that there are.
    pub(super) fn parse(typed: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|order| order.name() == typed);
        named.ok_or_else(|| "an order is rate, count, p99 or name".to_owned())
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Count => "count",
            Self::P99 => "p99",
            Self::Name => "name",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Rate => Self::Count,
            Self::Count => Self::P99,
            Self::P99 => Self::Name,
            Self::Name => Self::Rate,
        }
    }
}

/// A verb of a protocol.
#[derive(Clone, Debug)]
pub(super) struct VerbRow {
    pub(super) protocol: String,
    pub(super) verb: String,
    pub(super) requests: u64,
    pub(super) refused: u64,
    /// None after the first document.
    pub(super) rate: Option<f64>,
    /// Since the start.
    pub(super) whole: Times,
    /// In the last minute.
    pub(super) recent: Times,
}

/// Latencies from end to end. Null without a sample.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    pub(super) p50: Value,
    pub(super) p99: Value,
}

impl Times {
    fn of(line: &Value) -> Self {
        let of =
            |name: &str| line.get("end_to_end_micros").and_then(|times| times.get(name)).cloned().unwrap_or_default();
        Self { p50: of("p50"), p99: of("p99") }
    }
}

/// All that is shown.
pub(super) struct Model {
    pub(super) address: String,
    pub(super) sort: Sort,
    pub(super) is_help: bool,
    /// Why there is no later document.
    pub(super) missed: Option<String>,
    pub(super) stats: Value,
    pub(super) slow: Value,
    pub(super) verbs: Vec<VerbRow>,
    /// Requests of all verbs in a second.
    pub(super) rate: Option<f64>,
    /// What is dead in some queues.
    pub(super) dead: Vec<Value>,
    pub(super) cursor: QueueCursor,
}

impl Model {
    /// Nothing is known.
    pub(super) fn new(address: &str, sort: Sort) -> Self {
        Self {
            address: address.to_owned(),
            sort,
            is_help: false,
            missed: None,
            stats: Value::Null,
            slow: Value::Null,
            verbs: Vec::new(),
            rate: None,
            dead: Vec::new(),
            cursor: QueueCursor::default(),
        }
    }

    /// Shows the metrics that the server has sent.
    pub(super) fn update(&mut self, stats: &Value, slow: &Value) {
        let elapsed = number(stats, "uptime_seconds") - number(&self.stats, "uptime_seconds");
        // After a restart all counts begin again.
        let is_later = self.stats.is_object() && elapsed > 0.0;
        let before: BTreeMap<_, _> = self.verbs.drain(..).map(|row| ((row.protocol, row.verb), row.requests)).collect();
        self.verbs = verbs(stats);
        for row in &mut self.verbs {
            let earlier = before.get(&(row.protocol.clone(), row.verb.clone())).copied().unwrap_or(0);
            row.rate = is_later.then(|| row.requests.saturating_sub(earlier) as f64 / elapsed);
        }
        self.rate = is_later.then(|| self.verbs.iter().filter_map(|row| row.rate).sum());
        self.verbs.retain(|row| row.requests > 0);
        (self.stats, self.slow, self.missed) = (stats.clone(), slow.clone(), None);
        self.order();
    }

    /// The server has not answered.
    pub(super) fn miss(&mut self, why: &str) {
        self.missed = Some(why.to_owned());
    }

    /// Changes the order of the verbs.
    pub(super) fn sort_next(&mut self) {
        self.sort = self.sort.next();
        self.order();
    }

    /// Shows the keys, or hides them.
    pub(super) fn toggle_help(&mut self) {
        self.is_help = !self.is_help;
    }

    fn order(&mut self) {
        let p99 = |row: &VerbRow| row.whole.p99.as_f64().unwrap_or(-1.0);
        let sort = self.sort;
        self.verbs.sort_by(|one, other| {
            let first = match sort {
                Sort::Rate => other.rate.unwrap_or(0.0).total_cmp(&one.rate.unwrap_or(0.0)),
                Sort::P99 => p99(other).total_cmp(&p99(one)),
                Sort::Count | Sort::Name => std::cmp::Ordering::Equal,
            };
            let second = match sort {
                Sort::Name => std::cmp::Ordering::Equal,
                _ => other.requests.cmp(&one.requests),
            };
            first.then(second).then_with(|| (&one.protocol, &one.verb).cmp(&(&other.protocol, &other.verb)))
        });
    }
}

/// The connections of clients and subscribers, of all protocols.
pub(super) fn connections(stats: &Value) -> u64 {
    let of = |part: &str, name: &str| stats.get(part).map_or(0, |part| whole(part, name));
    let subscribers = ["changes", "feed", "lockstep"].map(|part| of(part, "subscribers"));
    let services = list(stats, "services").iter().map(|service| whole(service, "connections"));
    of("clients", "known") + of("lockstep", "connections") + services.chain(subscribers).sum::<u64>()
}

/// The verbs of all protocols.
fn verbs(stats: &Value) -> Vec<VerbRow> {
    let row = |protocol: &str, line: &Value, verb: &str, refused| {
        let lines = list(stats, "last_minute").iter();
        let mut recent = lines.filter(|line| (word(line, "protocol"), word(line, "verb")) == (protocol, verb));
        let recent = recent.next().map(Times::of).unwrap_or_default();
        let (protocol, verb, requests) = (protocol.to_owned(), verb.to_owned(), whole(line, "requests"));
        VerbRow { protocol, verb, requests, refused, rate: None, whole: Times::of(line), recent }
    };
    let listed = |protocol: &str, lines: &Value| -> Vec<VerbRow> {
        let lines = list(lines, "verbs").iter();
        lines.map(|line| row(protocol, line, word(line, "verb"), whole(line, "refused"))).collect()
    };
    let lockstep = stats.get("lockstep").map_or_else(Vec::new, |lockstep| listed("lockstep", lockstep));
    let commands = stats.get("commands").and_then(Value::as_object).into_iter().flatten();
    let mut all: Vec<VerbRow> = commands
        .map(|(verb, line)| {
            let errors = line.get("errors").and_then(Value::as_object).into_iter().flatten();
            let mut row = row("kv", line, verb, errors.filter_map(|(_, count)| count.as_u64()).sum());
            // The commands of the lock-step dialect count among those of the tables too.
            for part in lockstep.iter().filter(|part| part.verb == *verb) {
                row.requests = row.requests.saturating_sub(part.requests);
                row.refused = row.refused.saturating_sub(part.refused);
            }
            row
        })
        .collect();
    all.extend(lockstep);
    all.extend(list(stats, "services").iter().flat_map(|service| listed(word(service, "protocol"), service)));
    all
}
