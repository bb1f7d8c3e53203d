//! The transaction of a client: the keys that it watches, and the commands since MULTI.
//!
//! ```text
//! WATCH ─► watched: key, version ─┐
//! MULTI ─► queue: commands ───────┴─► EXEC: are the versions as they were? ─► all commands, or none
//! ```
//! This module carries nothing out; see `exec.rs`.

/// Bytes that a queued command or a watched key takes beside its own.
const ENTRY_BYTES: usize = 64;

/// What a client has begun.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    pub(super) watched: Vec<WatchedKey>,
    /// `None`: MULTI has not come.
    pub(super) queue: Option<CommandQueue>,
}

/// A key that is watched, and its version then. 0: it had no element.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WatchedKey {
    pub(super) table: Box<[u8]>,
    pub(super) key: Box<[u8]>,
    pub(super) version: u64,
}

/// The commands since MULTI.
#[derive(Debug)]
pub(super) struct CommandQueue {
    pub(super) commands: Vec<QueuedCommand>,
    bytes: usize,
    /// A command was refused, so EXEC carries nothing out.
    pub(super) is_refused: bool,
    /// The table of the next command, behind the SELECTs that are queued.
    pub(super) table: Box<[u8]>,
    /// How many commands of a transaction without a latch are carried out. `None`: EXEC has not begun.
    pub(super) done: Option<usize>,
}

/// A command that waits for EXEC.
#[derive(Debug)]
pub(super) struct QueuedCommand {
    /// Its number in the list of commands.
    pub(super) number: usize,
    bytes: Box<[u8]>,
    /// Where each argument ends in `bytes`.
    ends: Box<[usize]>,
}

impl QueuedCommand {
    /// The arguments, the name first.
    pub(super) fn arguments(&self) -> Vec<&[u8]> {
        let mut begin = 0;
        let argument = |end: &usize| self.bytes.get(std::mem::replace(&mut begin, *end)..*end).unwrap_or_default();
        self.ends.iter().map(argument).collect()
    }
}

impl CommandQueue {
    /// No command yet. The first one is about this table.
    pub(super) fn new(table: &[u8]) -> Self {
        Self { commands: Vec::new(), bytes: 0, is_refused: false, table: table.into(), done: None }
    }

    /// Appends a command.
    pub(super) fn push(&mut self, number: usize, arguments: &[&[u8]]) {
        let mut end = 0;
        let ends = arguments.iter().map(|argument| {
            end += argument.len();
            end
        });
        let ends: Box<[usize]> = ends.collect();
        self.bytes += bytes_of(arguments);
        self.commands.push(QueuedCommand { number, bytes: arguments.concat().into(), ends });
    }
}

impl Transaction {
    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        let watched = self.watched.iter().map(|watched| watched.table.len() + watched.key.len() + ENTRY_BYTES);
        self.queue.as_ref().map_or(0, |queue| queue.bytes) + watched.sum::<usize>()
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
    fn a_command_comes_out_of_the_queue_as_it_went_in() {
        let mut queue = CommandQueue::new(b"0");
        let commands: [&[&[u8]]; 3] = [&[b"set", b"a", b""], &[b"ping"], &[b"", b"x"]];
        commands.iter().zip(1..).for_each(|(arguments, number)| queue.push(number, arguments));
        let out = queue.commands.iter().map(|command| (command.number, command.arguments()));
        assert!(out.eq(commands.iter().zip(1..).map(|(arguments, number)| (number, arguments.to_vec()))));
        let transaction = Transaction { watched: Vec::new(), queue: Some(queue) };
        assert_eq!(transaction.bytes(), commands.iter().map(|arguments| bytes_of(arguments)).sum::<usize>());
    }
}
