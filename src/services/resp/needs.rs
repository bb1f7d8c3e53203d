//! What a transaction needs before its first change: credits for all changes, and memory for the most that they add.
//!
//! The session holds the latches, so the lengths that are read here stay as they are until the transaction changes them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use ahash::RandomState;

use super::answer::Failure;
use super::arguments::{Arguments, is};
use super::call::{Call, present};
use super::client::DATABASES;
use super::command_info::COUNTED;
use super::dump::restore;
use crate::resp3::integer;
use crate::tables::{ElementGrowth, TransactionNeeds};

/// The longest sum of INCRBY, in bytes.
const INTEGER_BYTES_MAX: usize = 20;
/// The longest number that a known script stores, in bytes.
const NUMBER_BYTES_MAX: usize = 32;
/// The longest sum of INCRBYFLOAT, in bytes, beyond the longer one of its summands: an exponent adds zeros.
const FLOAT_BYTES_MAX: usize = 5 << 10;

/// A key of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ElementKey<'q> {
    table: &'q [u8],
    key: &'q [u8],
}

/// The value of a key, as far as it can be foretold.
#[derive(Clone, Copy, Debug)]
struct ValueLengths {
    /// Bytes before the transaction. `None`: there is no element.
    before: Option<usize>,
    has_deadline: bool,
    /// Bytes at most, behind the commands until now.
    now: usize,
    /// The most bytes that were stored. `None`: nothing was.
    longest: Option<usize>,
}

/// The needs of commands, in their order.
#[derive(Debug, Default)]
pub(super) struct Needs<'q> {
    sum: TransactionNeeds,
    elements: HashMap<ElementKey<'q>, ValueLengths, RandomState>,
    /// A table was emptied before.
    is_emptied: bool,
    /// Bytes of the values that changes return.
    pub(super) returned: usize,
}

impl<'q> Needs<'q> {
    /// What all of them need.
    pub(super) fn sum(&self) -> TransactionNeeds {
        let mut sum = self.sum;
        for (ElementKey { key, .. }, lengths) in &self.elements {
            if let Some(longest) = lengths.longest {
                let ValueLengths { before: value, has_deadline, .. } = *lengths;
                sum.add(ElementGrowth { key: key.len(), value, longest, has_deadline });
            }
        }
        sum
    }

    /// Adds the command of this name, in this table.
    pub(super) fn add(
        &mut self,
        call: &mut Call<'_, '_>,
        table: &'q [u8],
        name: &str,
        arguments: Arguments<'q>,
    ) -> Result<(), Failure> {
        let rest = arguments.behind(1);
        let length = |place: usize| rest.get(place).map_or(0, |argument| argument.len());
        let Some(key) = rest.first() else {
            self.empty(call, table, name);
            return Ok(());
        };
        match name {
            "set" | "setnx" | "getset" | "setwithetag" | "setifmatch" => {
                let returns = match name {
                    "set" => rest.iter().skip(2).any(|option| is(option, "get")),
                    _ => matches!(name, "getset" | "setifmatch"),
                };
                self.returned += if returns { self.lengths(call, table, key)?.now } else { 0 };
                self.store(call, table, key, length(1))
            }
            "setex" | "psetex" => self.store(call, table, key, length(2)),
            "mset" | "msetnx" => {
                rest.as_chunks::<2>().0.iter().try_for_each(|[key, value]| self.store(call, table, key, value.len()))
            }
            "append" => {
                let now = self.lengths(call, table, key)?.now;
                self.store(call, table, key, now + length(1))
            }
            "setrange" => {
                let now = self.lengths(call, table, key)?.now;
                let offset = rest.get(1).and_then(|offset| integer(offset)).and_then(|at| usize::try_from(at).ok());
                let end = offset.unwrap_or(0).saturating_add(length(2));
                // A longer one is refused.
                self.store(call, table, key, if end > call.value_max() { now } else { now.max(end) })
            }
            "incr" | "decr" | "incrby" | "decrby" => self.store(call, table, key, INTEGER_BYTES_MAX),
            "incrbyfloat" => {
                let now = self.lengths(call, table, key)?.now;
                self.store(call, table, key, now.max(length(1)) + FLOAT_BYTES_MAX)
            }
            "restore" => {
                let value = rest.get(2).and_then(|payload| restore(payload, call.value_max()).ok());
                self.store(call, table, key, value.map_or(0, |value| value.len()))
            }
            "getex" | "getdel" | "expire" | "pexpire" | "expireat" | "pexpireat" | "persist" => {
                self.keep(call, table, name, key)
            }
            "rename" | "renamenx" | "copy" => {
                let now = self.lengths(call, table, key)?.now;
                let database =
                    rest.iter().zip(rest.iter().skip(1)).rev().find(|(word, _)| word.eq_ignore_ascii_case(b"db"));
                let to = database.filter(|_| name == "copy").map_or(table, |(_, database)| database);
                self.change(call, table, key, None)?;
                rest.get(1).map_or(Ok(()), |key| self.store(call, to, key, now))
            }
            "eval" | "evalsha" => self.store_by_script(call, table, arguments),
            "del" | "unlink" => rest.iter().try_for_each(|key| self.change(call, table, key, None)),
            "delex" => self.change(call, table, key, None),
            _ => {
                self.empty(call, table, name);
                Ok(())
            }
        }
    }

    /// The value stays, or is returned and removed.
    fn keep(&mut self, call: &mut Call<'_, '_>, table: &'q [u8], name: &str, key: &'q [u8]) -> Result<(), Failure> {
        let now = self.lengths(call, table, key)?.now;
        self.returned += if name.starts_with("get") { now } else { 0 };
        if name == "getdel" {
            return self.change(call, table, key, None);
        }
        self.grow(call, table, key, now)?;
        self.change(call, table, key, Some(0))
    }

    /// A known script stores an argument or a number under each of its keys, and returns a value at most.
    fn store_by_script(
        &mut self,
        call: &mut Call<'_, '_>,
        table: &'q [u8],
        arguments: Arguments<'q>,
    ) -> Result<(), Failure> {
        let mut longest = arguments.behind(3).iter().map(|argument| argument.len()).max().unwrap_or(0);
        // One may be renamed to another.
        for key in COUNTED.keys(arguments) {
            let now = self.lengths(call, table, key)?.now;
            self.returned += now;
            longest = longest.max(now);
        }
        COUNTED.keys(arguments).try_for_each(|key| self.store(call, table, key, longest.max(NUMBER_BYTES_MAX)))
    }

    /// FLUSHDB and FLUSHALL: what the elements take until then is not free for those that come.
    fn empty(&mut self, call: &mut Call<'_, '_>, table: &[u8], name: &str) {
        if matches!(name, "flushdb" | "flushall") {
            let tables = if name == "flushdb" { &[table] } else { &DATABASES[..] };
            tables.iter().for_each(|table| call.batch.add_replacement(&mut self.sum, table));
            self.sum = self.sum();
            self.is_emptied = true;
            for lengths in self.elements.values_mut() {
                *lengths = ValueLengths { before: None, has_deadline: false, longest: None, ..*lengths };
            }
        }
    }

    /// Adds a change of a key that stores a value of so many bytes, or removes one.
    fn change(
        &mut self,
        call: &mut Call<'_, '_>,
        table: &[u8],
        key: &[u8],
        value: Option<usize>,
    ) -> Result<(), Failure> {
        Ok(call.batch.add_change(&mut self.sum, table, key, value)?)
    }

    fn store(&mut self, call: &mut Call<'_, '_>, table: &'q [u8], key: &'q [u8], bytes: usize) -> Result<(), Failure> {
        self.grow(call, table, key, bytes)?;
        self.change(call, table, key, Some(bytes))
    }

    /// The value of a key has so many bytes.
    fn grow(&mut self, call: &mut Call<'_, '_>, table: &'q [u8], key: &'q [u8], bytes: usize) -> Result<(), Failure> {
        let lengths = self.lengths(call, table, key)?;
        lengths.now = lengths.now.max(bytes);
        lengths.longest = lengths.longest.max(Some(bytes));
        Ok(())
    }

    /// The lengths of a key. They are looked up once.
    fn lengths(
        &mut self,
        call: &mut Call<'_, '_>,
        table: &'q [u8],
        key: &'q [u8],
    ) -> Result<&mut ValueLengths, Failure> {
        Ok(match self.elements.entry(ElementKey { table, key }) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(place) => {
                let element = present(call.batch.element(table, key))?;
                let now = element.map_or(0, |element| element.value.len());
                let element = element.filter(|_| !self.is_emptied);
                let has_deadline = element.is_some_and(|element| element.deadline.is_some());
                place.insert(ValueLengths { before: element.map(|_| now), has_deadline, now, longest: None })
            }
        })
    }
}
