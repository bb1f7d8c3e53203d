//! A Redis of a few keys, for the checker of histories: which replies a transaction may have, and what it leaves.
//!
//! ```text
//! operation   |── invoked ── the server reads its clock ── all commands take effect ── returned ──|
//! deadline    that reading + TTL, so it lies in a window; each look at the key makes the window narrower
//! ```
//! A transaction decides once for each key whether its time is over: nothing expires while it runs. A watched key aborts
//! if it has changed and was there before, or is there now. This module knows no socket.

use crate::checker::Sequential;

/// Nanoseconds in a millisecond. Deadlines are rounded up to one, and readings of the clock down.
const MILLI: u64 = 1_000_000;
pub(crate) const TABLES: usize = 2;
pub(crate) const KEYS: usize = 3;
pub(crate) const CLIENTS: usize = 5;
/// The milliseconds of each time to live.
pub(crate) const TTL: u64 = 8;

/// The number of a key, the same in all tables.
pub(crate) type Key = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Select(usize),
    Get(Key),
    Set(Key, i64),
    /// SET with a time.
    SetFor(Key, i64),
    /// SET with KEEPTTL, and UPDATE over ZeroMQ.
    Replace(Key, i64),
    SetBoth([Key; 2], i64),
    Increment(Key),
    Append(Key),
    Delete(Key),
    Expire(Key),
    Persist(Key),
    Rename(Key, Key),
    /// To the other table, in the place of what is there.
    Copy(Key, Key),
    Flush,
}

/// What a client sends at once.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Watch(Key),
    /// One command, or a transaction, which ends the watch of its client.
    Single(Command),
    Transaction(Vec<Command>),
}

#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) client: usize,
    /// The table of the first command.
    pub(crate) table: usize,
    pub(crate) step: Step,
    /// The reply. `None`: the client was gone before it came.
    pub(crate) reply: Option<Vec<u8>>,
    /// Stamps that order operations.
    pub(crate) span: [u64; 2],
    /// Nanoseconds of the clock, before and after.
    pub(crate) clock: [u64; 2],
}

/// Refusals where memory is short, of a command and of a transaction.
const REFUSED: [&[u8]; 2] = [
    b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    b"-EXECABORT Transaction discarded because of: OOM command not allowed when used memory > 'maxmemory'.\r\n",
];

impl Operation {
    /// Whether memory was short. It changes nothing, but the watch of a transaction ends.
    pub(crate) fn is_refused(&self) -> bool {
        self.reply.as_ref().is_some_and(|reply| REFUSED.contains(&&reply[..]))
    }

    /// Whether a command of the transaction was refused alone.
    fn has_refusal(&self) -> bool {
        self.reply.as_ref().is_some_and(|reply| reply.windows(REFUSED[0].len()).any(|part| part == REFUSED[0]))
    }
}

/// When the time of an element ends: not before, and not after.
type Window = [u64; 2];

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Element {
    value: Vec<u8>,
    deadline: Option<Window>,
}

/// A key that a client watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Watch {
    place: [usize; 2],
    was_there: bool,
    has_changed: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Model {
    tables: [[Option<Element>; KEYS]; TABLES],
    /// Of each client, each key once.
    watches: [Vec<Watch>; CLIENTS],
}

impl Sequential for Model {
    type Operation = Operation;

    fn times(operation: &Operation) -> (u64, u64) {
        (operation.span[0], operation.span[1])
    }

    fn successors(&self, operation: &Operation) -> Vec<Self> {
        if operation.is_refused() {
            let mut model = self.clone();
            if matches!(operation.step, Step::Transaction(_)) {
                model.watches[operation.client].clear();
            }
            return vec![model];
        }
        let mut decided = vec![self.clone()];
        for place in self.touched(operation) {
            decided = decided.iter().flat_map(|model| model.decided(place, operation.clock)).collect();
        }
        let carried_out = decided.into_iter().filter_map(|mut model| {
            let reply = model.carry_out(operation);
            operation.reply.as_ref().is_none_or(|seen| *seen == reply).then_some(model)
        });
        // What a client has sent before it died may not have come whole.
        carried_out.chain(operation.reply.is_none().then(|| self.clone())).collect()
    }
}

impl Model {
    /// The elements that an operation looks at.
    fn touched(&self, operation: &Operation) -> Vec<[usize; 2]> {
        let single;
        let (commands, watches) = match &operation.step {
            Step::Watch(key) => return vec![[operation.table, *key]],
            Step::Single(command) => {
                single = [*command];
                (&single[..], &[][..])
            }
            Step::Transaction(commands) => (&commands[..], &self.watches[operation.client][..]),
        };
        let mut table = operation.table;
        let mut touched: Vec<_> = watches.iter().map(|watch| watch.place).collect();
        for command in commands {
            match command {
                Command::Select(other) => table = *other,
                Command::Copy(from, to) => touched.extend([[table, *from], [1 - table, *to]]),
                Command::Rename(from, to) | Command::SetBoth([from, to], _) => {
                    touched.extend([[table, *from], [table, *to]]);
                }
                Command::Get(key)
                | Command::Set(key, _)
                | Command::SetFor(key, _)
                | Command::Replace(key, _)
                | Command::Increment(key)
                | Command::Append(key)
                | Command::Delete(key)
                | Command::Expire(key)
                | Command::Persist(key) => touched.push([table, *key]),
                Command::Flush => {}
            }
        }
        touched.sort_unstable();
        touched.dedup();
        touched
    }

    /// The models in which the time of this element is over, or is not, at a moment between these.
    fn decided(&self, [table, key]: [usize; 2], [before, after]: [u64; 2]) -> Vec<Self> {
        let Some([earliest, latest]) = self.tables[table][key].as_ref().and_then(|element| element.deadline) else {
            return vec![self.clone()];
        };
        let mut decided = Vec::new();
        if latest > before {
            let mut model = self.clone();
            let deadline = Some([earliest.max(before.saturating_sub(MILLI)), latest]);
            model.tables[table][key].iter_mut().for_each(|element| element.deadline = deadline);
            decided.push(model);
        }
        if earliest <= after {
            let mut model = self.clone();
            model.put([table, key], None);
            decided.push(model);
        }
        decided
    }

    /// The element is another one from now on, or none.
    fn put(&mut self, place: [usize; 2], element: Option<Element>) {
        let old = std::mem::replace(&mut self.tables[place[0]][place[1]], element);
        let is_change = old.is_some() || self.tables[place[0]][place[1]].is_some();
        let of_place = self.watches.iter_mut().flatten().filter(|watch| watch.place == place);
        of_place.for_each(|watch| watch.has_changed |= is_change);
    }

    /// Carries an operation out. Returns the reply.
    fn carry_out(&mut self, operation: &Operation) -> Vec<u8> {
        let mut table = operation.table;
        let window = [operation.clock[0] + (TTL - 1) * MILLI, operation.clock[1] + (TTL + 2) * MILLI];
        match &operation.step {
            Step::Watch(key) => {
                let place = [table, *key];
                let was_there = self.tables[table][*key].is_some();
                let watch = Watch { place, was_there, has_changed: false };
                let watches = &mut self.watches[operation.client];
                if !watches.iter().any(|other| other.place == place) {
                    watches.push(watch);
                    watches.sort_unstable_by_key(|watch| watch.place);
                }
                b"+OK\r\n".to_vec()
            }
            Step::Single(command) => self.apply(command, &mut table, window),
            Step::Transaction(commands) => {
                let watches = std::mem::take(&mut self.watches[operation.client]);
                let is_there = |[table, key]: [usize; 2]| self.tables[table][key].is_some();
                if watches.iter().any(|watch| watch.has_changed && (watch.was_there || is_there(watch.place))) {
                    return b"*-1\r\n".to_vec();
                }
                let mut reply = format!("*{}\r\n", commands.len()).into_bytes();
                let touching = commands.iter().filter(|command| !matches!(command, Command::Select(_))).count();
                // One command for elements gets no memory beforehand, and may be refused alone.
                let is_refused = touching == 1 && operation.has_refusal();
                for command in commands {
                    match command {
                        Command::Select(_) => reply.extend(self.apply(command, &mut table, window)),
                        _ if is_refused => reply.extend(REFUSED[0]),
                        _ => reply.extend(self.apply(command, &mut table, window)),
                    }
                }
                reply
            }
        }
    }

    fn apply(&mut self, command: &Command, table: &mut usize, window: Window) -> Vec<u8> {
        let at = |key: &Key| [*table, *key];
        let element = |model: &Self, key: &Key| model.tables[*table][*key].clone();
        let deadline = |model: &Self, key: &Key| element(model, key).and_then(|element| element.deadline);
        let of = |value: i64, deadline| Some(Element { value: value.to_string().into_bytes(), deadline });
        match command {
            Command::Select(other) => *table = *other,
            Command::Get(key) => return bulk(element(self, key)),
            Command::Set(key, value) => self.put(at(key), of(*value, None)),
            Command::SetFor(key, value) => self.put(at(key), of(*value, Some(window))),
            Command::Replace(key, value) => self.put(at(key), of(*value, deadline(self, key))),
            Command::SetBoth(keys, value) => {
                if keys.iter().any(|key| element(self, key).is_some()) {
                    return b":0\r\n".to_vec();
                }
                keys.iter().for_each(|key| self.put(at(key), of(*value, None)));
                return b":1\r\n".to_vec();
            }
            Command::Increment(key) => {
                let sum = element(self, key).map_or(Some(0), |element| number(&element.value)).map(|sum| sum + 1);
                let Some(sum) = sum else { return b"-ERR value is not an integer or out of range\r\n".to_vec() };
                self.put(at(key), of(sum, deadline(self, key)));
                return format!(":{sum}\r\n").into_bytes();
            }
            Command::Append(key) => {
                let value = [element(self, key).map_or(Vec::new(), |element| element.value), b"a".to_vec()].concat();
                let length = value.len();
                self.put(at(key), Some(Element { value, deadline: deadline(self, key) }));
                return format!(":{length}\r\n").into_bytes();
            }
            Command::Delete(key) => return self.change(at(key), |_| None),
            Command::Expire(key) => {
                return self.change(at(key), |element| Some(Element { deadline: Some(window), ..element }));
            }
            Command::Persist(key) => {
                if deadline(self, key).is_none() {
                    return b":0\r\n".to_vec();
                }
                return self.change(at(key), |element| Some(Element { deadline: None, ..element }));
            }
            Command::Rename(from, to) => {
                let Some(moved) = element(self, from) else { return b"-ERR no such key\r\n".to_vec() };
                self.put(at(from), None);
                self.put(at(to), Some(moved));
            }
            Command::Copy(from, to) => {
                let Some(copied) = element(self, from) else { return b":0\r\n".to_vec() };
                self.put([1 - *table, *to], Some(copied));
                return b":1\r\n".to_vec();
            }
            Command::Flush => (0..KEYS).for_each(|key| self.put(at(&key), None)),
        }
        b"+OK\r\n".to_vec()
    }

    /// Changes an element that is there. Returns whether it is.
    fn change(&mut self, place: [usize; 2], change: impl FnOnce(Element) -> Option<Element>) -> Vec<u8> {
        let Some(element) = self.tables[place[0]][place[1]].clone() else { return b":0\r\n".to_vec() };
        self.put(place, change(element));
        b":1\r\n".to_vec()
    }
}

fn number(value: &[u8]) -> Option<i64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// A value as a reply.
fn bulk(element: Option<Element>) -> Vec<u8> {
    element.map_or(b"$-1\r\n".to_vec(), |Element { value, .. }| {
        [format!("${}\r\n", value.len()).as_bytes(), &value[..], b"\r\n"].concat()
    })
}
