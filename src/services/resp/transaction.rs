//! The transaction of a client: the keys that it watches, and the commands since MULTI.
//!
//! ```text
//! WATCH ─► watched: key, version ─┐
//! MULTI ─► queue: commands ───────┴─► EXEC: are the versions as they were? ─► all commands, or none
//! ```
//! This module carries nothing out; see `exec.rs`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use ahash::RandomState;

use super::arguments::Arguments;
use crate::services::tables::change_mail::ChangeSelection;

/// Bytes that a queued command or a watched key takes beside its own.
const ENTRY_BYTES: usize = 64;

/// What a client has begun.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    /// The keys that are watched, each with its version then. 0: it had no element.
    watched: HashMap<WatchedKey, u64, RandomState>,
    watched_bytes: usize,
    /// `None`: MULTI has not come.
    pub(super) queue: Option<CommandQueue>,
}

/// A key that is watched.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct WatchedKey {
    pub(super) table: Box<[u8]>,
    pub(super) key: Box<[u8]>,
}

/// The commands since MULTI.
#[derive(Debug)]
pub(super) struct CommandQueue {
    pub(super) commands: QueuedCommands,
    /// A command was refused, so EXEC carries nothing out.
    pub(super) is_refused: bool,
    /// The table of the next command, behind the SELECTs that are queued.
    pub(super) table: Box<[u8]>,
    /// What its subscriptions select. `None`: EXEC has not waited for that.
    pub(super) selections: Option<Vec<Option<ChangeSelection>>>,
    /// How many commands of a transaction without a latch are carried out. `None`: EXEC has not begun.
    pub(super) done: Option<usize>,
}

/// Commands that wait for EXEC.
#[derive(Debug, Default)]
pub(super) struct QueuedCommands {
    commands: Vec<QueuedCommand>,
    /// The arguments, one behind the other, and where each ends.
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

#[derive(Debug)]
struct QueuedCommand {
    /// Its number in the list of commands.
    number: usize,
    /// Where its arguments end among all arguments.
    end: usize,
}

/// A command of a transaction: its number in the list of commands, and its arguments, the name first.
pub(super) struct QueuedCall<'q> {
    pub(super) number: usize,
    pub(super) arguments: Arguments<'q>,
}

impl QueuedCommands {
    pub(super) fn len(&self) -> usize {
        self.commands.len()
    }

    /// The number of each command.
    pub(super) fn numbers(&self) -> impl Iterator<Item = usize> {
        self.commands.iter().map(|command| command.number)
    }

    /// Appends a command.
    pub(super) fn push(&mut self, number: usize, arguments: &[&[u8]]) {
        for argument in arguments {
            self.bytes.extend_from_slice(argument);
            self.ends.push(self.bytes.len());
        }
        self.commands.push(QueuedCommand { number, end: self.ends.len() });
    }

    /// The arguments of all commands.
    pub(super) fn arguments(&self) -> Vec<&[u8]> {
        let mut begin = 0;
        let argument = |end: &usize| self.bytes.get(std::mem::replace(&mut begin, *end)..*end).unwrap_or_default();
        self.ends.iter().map(argument).collect()
    }

    /// The commands from this number on, with what [`Self::arguments`] has returned.
    pub(super) fn calls<'q>(&self, first: usize, arguments: &'q [&'q [u8]]) -> impl Iterator<Item = QueuedCall<'q>> {
        let end_before =
            first.checked_sub(1).and_then(|before| self.commands.get(before)).map_or(0, |before| before.end);
        let ends = self.commands.iter().skip(first);
        ends.scan(end_before, move |begin, QueuedCommand { number, end }| {
            let own = arguments.get(std::mem::replace(begin, *end)..*end).unwrap_or_default();
            Some(QueuedCall { number: *number, arguments: Arguments(own) })
        })
    }

    /// Bytes that they take.
    fn bytes(&self) -> usize {
        self.bytes.len() + self.ends.len() * size_of::<usize>() + self.commands.len() * ENTRY_BYTES
    }
}

impl CommandQueue {
    /// No command yet. The first one is about this table.
    pub(super) fn new(table: &[u8]) -> Self {
        let (commands, table) = (QueuedCommands::default(), table.into());
        Self { commands, is_refused: false, table, selections: None, done: None }
    }

    /// A command was refused. What is queued would never be carried out.
    pub(super) fn refuse(&mut self) {
        (self.commands, self.is_refused) = (QueuedCommands::default(), true);
    }
}

impl Transaction {
    /// Watches a key, which has this version now. A key that is watched already is watched since then.
    pub(super) fn watch(&mut self, key: WatchedKey, version: u64) {
        let bytes = key.table.len() + key.key.len() + ENTRY_BYTES;
        if let Entry::Vacant(place) = self.watched.entry(key) {
            place.insert(version);
            self.watched_bytes += bytes;
        }
    }

    /// The keys that are watched, each with its version then. 0: it had no element.
    pub(super) fn watched(&self) -> impl ExactSizeIterator<Item = (&WatchedKey, u64)> {
        self.watched.iter().map(|(key, version)| (key, *version))
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.watched_bytes + self.queue.as_ref().map_or(0, |queue| queue.commands.bytes())
    }
}

/// Bytes that a queued command takes.
pub(super) fn bytes_of(arguments: &[&[u8]]) -> usize {
    ENTRY_BYTES + arguments.iter().map(|argument| argument.len() + size_of::<usize>()).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_come_out_of_the_queue_as_they_went_in() {
        let mut queue = CommandQueue::new(b"0");
        let commands: [&[&[u8]]; 3] = [&[b"set", b"a", b""], &[b"ping"], &[b"", b"x"]];
        commands.iter().zip(1..).for_each(|(arguments, number)| queue.commands.push(number, arguments));
        let arguments = queue.commands.arguments();
        for first in 0..=commands.len() {
            let out = queue.commands.calls(first, &arguments).map(|call| (call.number, call.arguments.0));
            assert!(out.eq((1..).zip(commands).skip(first)), "{first}");
        }
        let bytes = commands.iter().map(|arguments| bytes_of(arguments)).sum::<usize>();
        assert_eq!(Transaction { queue: Some(queue), ..Transaction::default() }.bytes(), bytes);
    }

    #[test]
    fn a_key_is_watched_once_and_since_the_first_time() {
        let mut transaction = Transaction::default();
        let key = |table: &[u8], key: &[u8]| WatchedKey { table: table.into(), key: key.into() };
        transaction.watch(key(b"0", b"a"), 7);
        let once = transaction.bytes();
        transaction.watch(key(b"0", b"a"), 8);
        assert_eq!(
            (transaction.bytes(), transaction.watched().collect::<Vec<_>>()),
            (once, vec![(&key(b"0", b"a"), 7)])
        );
        transaction.watch(key(b"1", b"a"), 9);
        assert_eq!((transaction.bytes(), transaction.watched().len()), (2 * once, 2));
    }
}
