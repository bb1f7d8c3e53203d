//! Which command each reply answers.
//!
//! ```text
//! GET a        one reply
//! SUBSCRIBE a b    a confirmation for each channel
//! MULTI … EXEC     QUEUED for each command, then their replies in one
//! CLIENT REPLY OFF   unknown from here on: the further replies of the step are compared exactly
//! ```
//! It follows the replies of the oracle alone.

use super::command::{Command, Form};
use super::link::Transcript;
use super::reply::{CONFIRMED, confirmation};
use super::rules::Subject;

/// The commands that a connection has queued since MULTI.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    is_open: bool,
    commands: Vec<Command>,
}

impl Queue {
    /// Whether the replies to these commands may change it.
    pub(crate) fn is_touched_by(&self, commands: &[Command]) -> bool {
        self.is_open || commands.iter().any(|command| command.has(0, "MULTI"))
    }

    /// Forgets the commands.
    pub(crate) fn clear(&mut self) -> Vec<Command> {
        self.is_open = false;
        std::mem::take(&mut self.commands)
    }
}

/// The subject of each reply.
pub(crate) fn subjects<'a>(commands: &'a [Command], transcript: &Transcript, queue: &mut Queue) -> Vec<Subject<'a>> {
    let mut subjects = Vec::new();
    for command in commands {
        if command.form == Form::Raw || command.has(1, "REPLY") {
            queue.clear();
            break;
        }
        if command.is_any(&CONFIRMED) && !queue.is_open {
            continue;
        }
        while let Some(name) = transcript.reply(subjects.len()).and_then(confirmation) {
            subjects.push(confirmed(commands, name));
        }
        let Some(reply) = transcript.reply(subjects.len()) else { break };
        let mut subject = Subject::Command(command);
        if reply == b"+QUEUED\r\n" {
            queue.commands.push(command.clone());
        } else if command.arguments.len() == 1 && command.has(0, "EXEC") {
            subject = Subject::Transaction { exec: command, queue: queue.clear() };
        } else if command.arguments.len() == 1 && command.is_any(&["DISCARD", "RESET"]) {
            queue.clear();
        } else if command.has(0, "MULTI") && reply == b"+OK\r\n" {
            queue.is_open = true;
        }
        subjects.push(subject);
    }
    while let Some(reply) = transcript.reply(subjects.len()) {
        subjects.push(confirmation(reply).map_or(Subject::Unknown, |name| confirmed(commands, name)));
    }
    subjects
}

/// The first command of this name. Confirmations are compared exactly, so which command it is matters to reports alone.
fn confirmed<'a>(commands: &'a [Command], name: &str) -> Subject<'a> {
    commands.iter().find(|command| command.has(0, name)).map_or(Subject::Unknown, Subject::Command)
}
