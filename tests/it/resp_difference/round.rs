//! The connections of one program to both servers: what is sent to both, and all that comes back is compared.
//!
//! ```text
//! write to both ─► read both, to the PING of the step or so many replies ─► compare ─► messages, apart
//! ```
//! Messages of subscriptions come beside the replies, so they are compared apart, in order for each subscription. A
//! PING on each subscribed connection fetches them. This file does not know the steps of a program.

use std::time::{Duration, Instant};

use super::align::{Queue, subjects};
use super::command::Command;
use super::known::{Known, Verdict};
use super::link::{Address, End, Link, Transcript, Until};
use super::maker::Maker;
use super::reply::{CONFIRMED, Value, confirmation, parse};
use super::rules::{Judge, Subject, ends_of_subscriptions_agree};

/// The names of the sides in reports.
const REDIS: usize = 0;
const OTHER: usize = 1;

/// Why a step is the last of its round.
pub(crate) enum Stop {
    Ended,
    Stalled,
    Different { command: String, redis: String, other: String },
}

/// Two servers.
pub(crate) struct Pair<'a> {
    pub(crate) addresses: [Address; 2],
    pub(crate) known: &'a Known,
    /// How long a server may take to answer a step.
    pub(crate) patience: Duration,
}

/// A connection of a program to each server.
pub(crate) struct Line {
    pub(crate) links: [Link; 2],
    queue: Queue,
    in_multi: bool,
    may_have_messages: bool,
}

/// A round that runs.
pub(crate) struct Round<'a> {
    pair: &'a Pair<'a>,
    /// The open connections, at the places that the program gives them.
    lines: Vec<Option<Line>>,
    /// Makes the PING of each step unique.
    token: u64,
    slowest: Duration,
    /// Some connection may have subscribed to events of keys, which any step may publish.
    has_key_events: bool,
    transcripts: [Transcript; 2],
    wire: Vec<u8>,
}

/// What is different if one server refuses the first connection of a round, or closes it.
pub(crate) const CONNECT: &str = "a connection for FLUSHALL";

fn different(command: &str, redis: impl Into<String>, other: impl Into<String>) -> Stop {
    Stop::Different { command: command.to_owned(), redis: redis.into(), other: other.into() }
}

impl<'a> Round<'a> {
    /// A round with this many connections.
    pub(crate) fn new(pair: &'a Pair<'a>, connections: usize) -> Self {
        Self {
            pair,
            lines: (0..connections).map(|_| None).collect(),
            token: 0,
            slowest: Duration::ZERO,
            has_key_events: false,
            transcripts: Default::default(),
            wire: Vec::new(),
        }
    }

    /// Removes all data and the scripts that were loaded. A server without FLUSHALL deletes the keys of the programs.
    pub(crate) fn clear(&mut self) -> Result<(), Stop> {
        let mut line = self.open(false)?;
        let mut delete = Command::new(&["DEL"]);
        delete.arguments.extend(Maker::all_keys());
        let clear = [Command::new(&["FLUSHALL"]), Command::new(&["SCRIPT", "FLUSH"]), delete];
        self.exchange(&mut line, &clear, &[]);
        let ends = self.transcripts.each_ref().map(|transcript| transcript.end);
        line.links.into_iter().for_each(|link| link.finish(self.pair.patience));
        if ends == [End::Complete; 2] { Ok(()) } else { Err(different(CONNECT, ended(ends[0]), ended(ends[1]))) }
    }

    /// Takes the connection at this place, opened anew if it is closed.
    pub(crate) fn take(&mut self, place: usize, begins_with_hello: bool) -> Result<Line, Stop> {
        let line = self.lines[place].take().filter(|line| line.links.iter().all(|link| !link.is_closed()));
        line.map_or_else(|| self.open(begins_with_hello), Ok)
    }

    /// Puts a connection back.
    pub(crate) fn put(&mut self, place: usize, line: Line) {
        self.lines[place] = Some(line);
    }

    /// Compares the messages that these commands may have published.
    pub(crate) fn after(&mut self, commands: &[Command]) -> Result<(), Stop> {
        let may_publish = self.has_key_events || commands.iter().any(|command| command.is_any(&["PUBLISH", "EXEC"]));
        if may_publish { self.messages() } else { Ok(()) }
    }

    /// Closes all connections, and waits until both servers have done so: they have forgotten subscriptions then.
    pub(crate) fn close(self) {
        let links = self.lines.into_iter().flatten().flat_map(|line| line.links);
        links.for_each(|link| link.finish(self.pair.patience));
    }

    fn open(&mut self, begins_with_hello: bool) -> Result<Line, Stop> {
        let links = self.pair.addresses.each_ref().map(Link::open);
        let [Some(redis), Some(other)] = links else {
            let state = |link: &Option<Link>| if link.is_some() { "connected" } else { "refused" };
            return Err(different(CONNECT, state(&links[REDIS]), state(&links[OTHER])));
        };
        let links = [redis, other];
        let mut line = Line { links, queue: Queue::default(), in_multi: false, may_have_messages: false };
        if begins_with_hello {
            let hello = [Command::new(&["HELLO", "3"])];
            self.exchange(&mut line, &hello, &[]);
            self.compare(&mut line, &hello)?;
        }
        Ok(line)
    }

    /// Sends commands, and compares their replies.
    pub(crate) fn send(&mut self, line: &mut Line, commands: &[Command], cuts: &[u16]) -> Result<(), Stop> {
        self.exchange(line, commands, cuts);
        self.compare(line, commands)
    }

    /// Sends commands to both servers, and reads all replies.
    fn exchange(&mut self, line: &mut Line, commands: &[Command], cuts: &[u16]) {
        let begin = Instant::now();
        let patience = self.pair.patience;
        self.wire.clear();
        let mut count = 0;
        for command in commands {
            command.encode(&mut self.wire);
            count += usize::from(line.in_multi || !command.is_any(&CONFIRMED));
            if command.arguments.len() == 1 && command.is_any(&["EXEC", "DISCARD", "RESET"]) {
                line.in_multi = false;
            } else if command.has(0, "MULTI") && command.arguments.len() == 1 {
                line.in_multi = true;
            }
            self.has_key_events |= command.has(0, "PSUBSCRIBE")
                || command.has(0, "SUBSCRIBE") && command.arguments.iter().any(|name| name.starts_with(b"__key"));
            line.may_have_messages |= command.is_any(&["SUBSCRIBE", "PSUBSCRIBE"]);
        }
        self.token += 1;
        let token = format!("end-of-step-{}", self.token);
        let until = if line.in_multi { Until::Count(count) } else { Until::Token(token.as_bytes()) };
        if !line.in_multi {
            Command::new(&["PING", &token]).encode(&mut self.wire);
        }
        for link in &mut line.links {
            link.send(&self.wire, cuts, patience);
        }
        let [redis, other] = &mut self.transcripts;
        redis.clear();
        other.clear();
        line.links[REDIS].collect(until, patience, redis);
        // If the oracle does not answer either, the other server is not waited for as long.
        let patience = if redis.end == End::Silent { patience / 10 } else { patience };
        line.links[OTHER].collect(until, patience, other);
        self.slowest = self.slowest.max(begin.elapsed());
    }

    /// Compares the replies of the last exchange.
    fn compare(&mut self, line: &mut Line, commands: &[Command]) -> Result<(), Stop> {
        let [redis, other] = &self.transcripts;
        let is_equal = redis.equals(other);
        if is_equal && !line.queue.is_touched_by(commands) {
            return if redis.end == End::Silent { Err(Stop::Stalled) } else { Ok(()) };
        }
        let subjects = subjects(commands, redis, &mut line.queue);
        if redis.end == End::Closed {
            line.queue.clear();
            line.in_multi = false;
        }
        if is_equal {
            return Ok(());
        }
        let judge = Judge { known: self.pair.known, slowest: self.slowest };
        let count = redis.count().max(other.count());
        let mut place = 0;
        while place < count {
            let (own, others) = (redis.reply(place), other.reply(place));
            if own.is_some() && own == others {
                place += 1;
                continue;
            }
            let shown = |subject: Option<&Subject<'_>>| subject.map_or_else(String::new, show);
            let (Some(own), Some(others)) = (own, others) else {
                let command = shown(subjects.get(place));
                return Err(different(&command, reply_or_end(own, redis.end), reply_or_end(others, other.end)));
            };
            if redis.end == End::Malformed || other.end == End::Malformed {
                let command = shown(subjects.get(place));
                return Err(different(&command, own.escape_ascii().to_string(), others.escape_ascii().to_string()));
            }
            let group = ends_of_subscriptions(redis, other, place);
            if group > 0 {
                place += group;
                continue;
            }
            let own = parse(own);
            let others = parse(others);
            match judge.compare(&subjects[place], &own, &others) {
                Verdict::Same => place += 1,
                Verdict::Ends => return Err(Stop::Ended),
                Verdict::Different => {
                    return Err(different(&show(&subjects[place]), own.to_string(), others.to_string()));
                }
            }
        }
        match (redis.end, other.end) {
            (End::Silent, End::Silent) => Err(Stop::Stalled),
            (own, others) if own == others => Ok(()),
            (own, others) => Err(different("the end of the step", ended(own), ended(others))),
        }
    }

    /// Sends one command, and returns the reply of each server. `None` is a closed or silent server.
    pub(crate) fn ask(&mut self, line: &mut Line, commands: &[Command; 2]) -> [Option<Value>; 2] {
        [REDIS, OTHER].map(|side| self.ask_one(line, side, &commands[side]))
    }

    /// The same, of one server.
    pub(crate) fn ask_one(&mut self, line: &mut Line, side: usize, command: &Command) -> Option<Value> {
        self.wire.clear();
        command.encode(&mut self.wire);
        let link = &mut line.links[side];
        link.send(&self.wire, &[], self.pair.patience);
        let transcript = &mut self.transcripts[side];
        transcript.clear();
        link.collect(Until::Count(1), self.pair.patience, transcript);
        if transcript.end == End::Malformed {
            return None;
        }
        transcript.reply(0).map(parse)
    }

    /// Compares two values as replies to a command.
    pub(crate) fn judge(&self, command: &Command, redis: &Value, other: &Value) -> Result<(), Stop> {
        let judge = Judge { known: self.pair.known, slowest: self.slowest };
        match judge.compare(&Subject::Command(command), redis, other) {
            Verdict::Same => Ok(()),
            Verdict::Ends => Err(Stop::Ended),
            Verdict::Different => Err(different(&command.shown(), redis.to_string(), other.to_string())),
        }
    }

    /// Fetches and compares the messages of all subscribed connections that are not in MULTI.
    pub(crate) fn messages(&mut self) -> Result<(), Stop> {
        for place in 0..self.lines.len() {
            let Some(mut line) = self.lines[place].take() else { continue };
            let is_open = line.links.iter().all(|link| !link.is_closed());
            let done = if is_open && line.may_have_messages && !line.in_multi {
                self.send(&mut line, &[], &[]).and_then(|()| messages_of(&mut line, self.pair))
            } else {
                Ok(())
            };
            self.lines[place] = Some(line);
            done?;
        }
        Ok(())
    }
}

/// Compares the messages of a connection, in order for each subscription and channel. Events of a kind have no order
/// among keys.
fn messages_of(line: &mut Line, pair: &Pair<'_>) -> Result<(), Stop> {
    let [redis, other] = &mut line.links;
    let count = redis.messages.len().max(other.messages.len());
    let patience = pair.patience / 5;
    let are_complete = redis.collect_messages(count, patience) && other.collect_messages(count, patience);
    let (redis, other) = (std::mem::take(&mut redis.messages), std::mem::take(&mut other.messages));
    if are_complete && redis == other {
        return Ok(());
    }
    let sorted = |frames: &[Vec<u8>]| {
        let mut values: Vec<Value> = frames.iter().map(|frame| parse(frame)).collect();
        // Stable: what the key leaves out keeps its order.
        values.sort_by_key(|value| order_of(value.items()).to_vec());
        Value::Many { kind: b'>', items: values }
    };
    let (redis, other) = (sorted(&redis), sorted(&other));
    if redis == other {
        return Ok(());
    }
    match pair.known.explain(&Command::new(&["MESSAGES"]), &redis, &other) {
        Verdict::Same => Ok(()),
        Verdict::Ends => Err(Stop::Ended),
        Verdict::Different => Err(different("messages of subscriptions", redis.to_string(), other.to_string())),
    }
}

/// What orders a message among others: all but its payload, and for the events of a kind all of it.
fn order_of(message: &[Value]) -> &[Value] {
    let Some((_, head)) = message.split_last() else { return message };
    let channel = head.last().and_then(Value::bytes).unwrap_or_default();
    if channel.starts_with(b"__keyevent@") { message } else { head }
}

/// The number of confirmations from this place on that are equal but for the order of their channels.
fn ends_of_subscriptions(redis: &Transcript, other: &Transcript, place: usize) -> usize {
    let name = redis.reply(place).and_then(confirmation).filter(|name| name.contains("UNSUB"));
    let Some(name) = name else { return 0 };
    let run = |transcript: &Transcript| -> Vec<Value> {
        let frames = (place..).map_while(|place| transcript.reply(place));
        let own = frames.take_while(|frame| confirmation(frame) == Some(name));
        own.map(parse).collect()
    };
    let (redis, other) = (run(redis), run(other));
    if ends_of_subscriptions_agree(&redis, &other) { redis.len() } else { 0 }
}

fn show(subject: &Subject<'_>) -> String {
    match subject {
        Subject::Command(command) => command.shown(),
        Subject::Transaction { queue, .. } => {
            let queue: Vec<String> = queue.iter().map(Command::shown).collect();
            format!("EXEC of {}", queue.join("; "))
        }
        Subject::Unknown => "a command of the last step".to_owned(),
    }
}

fn reply_or_end(frame: Option<&[u8]>, end: End) -> String {
    match frame {
        Some(frame) if end != End::Malformed => parse(frame).to_string(),
        Some(frame) => frame.escape_ascii().to_string(),
        None => ended(end).to_owned(),
    }
}

fn ended(end: End) -> &'static str {
    match end {
        End::Complete => "(no further reply)",
        End::Closed => "(closed)",
        End::Silent => "(silent)",
        End::Malformed => "(malformed bytes)",
    }
}
