//! A program: what is sent to both servers, on a few connections, in which order and form.
//!
//! ```text
//! Program ─► Step (one write, and the replies to it) ─► Command (arguments, and their form on the wire)
//! ```
//! A program says nothing of replies.

use std::io::Write;

use super::reply::quoted;

/// How a command stands on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `*2`, `$3`, `GET` …
    Array,
    /// `GET "a"`, as a person types it.
    Inline,
    /// The first argument is written as it is: for bytes that are no command.
    Raw,
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) arguments: Vec<Vec<u8>>,
    pub(crate) form: Form,
}

impl Command {
    /// A command of these words.
    pub(crate) fn new(words: &[&str]) -> Self {
        Self { arguments: words.iter().map(|word| word.as_bytes().to_vec()).collect(), form: Form::Array }
    }

    /// The same with another argument at its end.
    pub(crate) fn with(mut self, argument: impl Into<Vec<u8>>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Whether the argument at this place is this word, in upper or lower case.
    pub(crate) fn has(&self, place: usize, word: &str) -> bool {
        self.form != Form::Raw && self.arguments.get(place).is_some_and(|own| own.eq_ignore_ascii_case(word.as_bytes()))
    }

    /// Whether its name is among these.
    pub(crate) fn is_any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.has(0, name))
    }

    /// Appends its bytes on the wire.
    pub(crate) fn encode(&self, wire: &mut Vec<u8>) {
        match self.form {
            Form::Array => {
                write!(wire, "*{}\r\n", self.arguments.len()).expect("a vector takes all");
                for argument in &self.arguments {
                    write!(wire, "${}\r\n", argument.len()).expect("a vector takes all");
                    wire.extend_from_slice(argument);
                    wire.extend_from_slice(b"\r\n");
                }
            }
            Form::Inline => {
                for (place, argument) in self.arguments.iter().enumerate() {
                    if place > 0 {
                        wire.push(b' ');
                    }
                    inline(argument, wire);
                }
                wire.extend_from_slice(b"\r\n");
            }
            Form::Raw => wire.extend_from_slice(self.arguments.first().map_or(&[][..], |bytes| bytes)),
        }
    }

    /// As redis-cli reads it.
    pub(crate) fn shown(&self) -> String {
        let words: Vec<String> = self.arguments.iter().map(|argument| word(argument)).collect();
        let mark = match self.form {
            Form::Array => "",
            Form::Inline => "(inline) ",
            Form::Raw => "(raw bytes) ",
        };
        format!("{mark}{}", words.join(" "))
    }
}

/// An argument of an inline command: bare, or in quotes with escapes.
fn inline(argument: &[u8], wire: &mut Vec<u8>) {
    let is_bare = !argument.is_empty() && argument.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b':');
    if is_bare {
        return wire.extend_from_slice(argument);
    }
    wire.push(b'"');
    for byte in argument {
        match byte {
            b'"' | b'\\' => wire.extend_from_slice(&[b'\\', *byte]),
            b' '..=b'~' => wire.push(*byte),
            _ => write!(wire, "\\x{byte:02x}").expect("a vector takes all"),
        }
    }
    wire.push(b'"');
}

fn word(argument: &[u8]) -> String {
    let is_bare = !argument.is_empty() && argument.len() < 100 && argument.iter().all(u8::is_ascii_graphic);
    let has_quotes = argument.iter().any(|byte| b"\"'\\".contains(byte));
    if is_bare && !has_quotes { String::from_utf8_lossy(argument).into_owned() } else { quoted(argument) }
}

/// What a step does with its commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Sends all commands at once, and compares their replies.
    Send,
    /// The same, and then waits on both servers until this key is gone, if it has a short deadline.
    Lapse { key: Vec<u8> },
    /// Sends the only command, a SCAN without its cursor, until the walk ends, and compares the keys as sets.
    Walk,
    /// Takes a random key of each server, which the other server has as well.
    RandomKey,
    /// Dumps the first key, and restores it as the second from the payload of the other server.
    Exchange { from: Vec<u8>, to: Vec<u8> },
}

/// One write on one connection, and the replies to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) connection: usize,
    pub(crate) action: Action,
    pub(crate) commands: Vec<Command>,
    /// Where the write is cut in two, in parts of 65,536 of its length, in order.
    pub(crate) cuts: Vec<u16>,
}

/// The program of one round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// For each connection, whether it begins with `HELLO 3`.
    pub(crate) begins_with_hello: Vec<bool>,
    pub(crate) steps: Vec<Step>,
}

impl Program {
    /// The number of commands that it sends.
    pub(crate) fn commands(&self) -> usize {
        self.steps.iter().map(|step| step.commands.len().max(1)).sum()
    }

    /// One line for each command, with its connection first: `1> SET a b`.
    pub(crate) fn shown(&self) -> String {
        let mut text = String::new();
        for (connection, begins_with_hello) in self.begins_with_hello.iter().enumerate() {
            if *begins_with_hello && self.steps.iter().any(|step| step.connection == connection) {
                text += &format!("{connection}> HELLO 3\n");
            }
        }
        for step in &self.steps {
            let note = match &step.action {
                Action::Send => String::new(),
                Action::Lapse { key } => format!("until {} is gone", quoted(key)),
                Action::Walk => "walk to the end of".to_owned(),
                Action::RandomKey => "RANDOMKEY, which both have".to_owned(),
                Action::Exchange { from, to } => {
                    format!("DUMP {}, RESTORE it on the other server as {}", quoted(from), quoted(to))
                }
            };
            if !note.is_empty() {
                text += &format!("{}> # {note}\n", step.connection);
            }
            if step.commands.len() > 1 || !step.cuts.is_empty() {
                text += &format!(
                    "{}> # in one pipeline of {} commands, cut at {:?}\n",
                    step.connection,
                    step.commands.len(),
                    step.cuts
                );
            }
            for command in &step.commands {
                text += &format!("{}> {}\n", step.connection, command.shown());
            }
        }
        text
    }
}
