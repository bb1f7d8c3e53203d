//! The state of one connection: the command whose arguments it collects, and the second part of its last reply.
//!
//! ```text
//!            0 … 4                  last argument: execute
//!   ┌─ Idle ───────► Collecting ──────────────────────────► Idle, with the value or the reason pending
//!   │   ▲              │    ▲
//!   │   │ 6, 7, other  └────┘ any other argument: "ok"
//!   └───┘
//! ```
//! The position of an argument decides what it is, so a `6` or a `7` among the arguments is a table, a key, a value or
//! a TTL. A wrong argument is answered `ok` like a good one, because the client sends the rest in any case. Its reason
//! is kept for the reply to the last argument.
//!
//! Only valid arguments are kept, and none behind a wrong one. So a connection holds at most the arguments of one
//! UPDATE, or one value.
//!
//! This module does not receive or send, and does not know the tables: its caller carries out the whole request.

#[cfg(test)]
mod tests;

use super::wire::{Argument, ERROR, OK, Opening, Verb};
use crate::net::zeromq::ConnectionState;
use crate::security::Identity;
use crate::services::tables::handle::NotDone;
use crate::services::tables::permission::may;
use crate::services::tables::wire::{Command, Reason, Request, TableName};

/// The arguments that are kept while a command is collected: the fourth is the last one of an UPDATE.
const KEPT_MAX: usize = 3;

/// The bounds of one argument.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Bytes of a value.
    pub(super) value_max: usize,
    /// Bytes that the conversation may hold.
    pub(super) room: usize,
}

/// The outcome of a request that was carried out: the value that it returns, if any.
pub(super) type Outcome = Result<Option<Box<[u8]>>, Reason>;

/// What a client may ask for after the reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SecondPart {
    Value(Box<[u8]>),
    Reason(Reason),
}

impl SecondPart {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Value(value) => value,
            Self::Reason(reason) => reason.text().as_bytes(),
        }
    }
}

/// The reply to one argument.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Ok,
    Error,
    Second(SecondPart),
}

impl Answer {
    /// The frame of the reply, without a final NUL.
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Ok => OK,
            Self::Error => ERROR,
            Self::Second(part) => part.bytes(),
        }
    }
}

/// Whether the user may not have the request carried out, which is counted then.
fn is_denied(user: &Identity, request: &Request<'_>) -> bool {
    let denied = !may(user, request);
    if denied {
        user.note_denied();
    }
    denied
}

/// A conversation with one client.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    /// The command that is being collected.
    collected: Option<CollectedCommand>,
    /// What the client may ask for next. None while a command is being collected.
    pending: Option<SecondPart>,
    /// The user, where users are named.
    user: Option<Identity>,
}

impl ConnectionState for Conversation {
    fn admit(&mut self, identity: Identity) {
        self.user = Some(identity);
    }

    /// Another connection knows nothing of a command that is begun, or of a value that can still be asked for.
    fn is_idle(&self) -> bool {
        self.collected.is_none() && !matches!(self.pending, Some(SecondPart::Value(_)))
    }
}

impl Conversation {
    /// Takes one argument, and returns the reply. The last argument of a command is taken when `execute` has carried
    /// the command out. If that is [`NotDone`], nothing has changed, and the same argument has to come again.
    pub(super) fn take(
        &mut self,
        argument: Argument<'_>,
        bounds: Bounds,
        execute: impl FnOnce(&Request<'_>) -> Result<Outcome, NotDone>,
    ) -> Result<Answer, NotDone> {
        match &mut self.collected {
            None => Ok(self.open(argument)),
            Some(command) if !command.lacks_one() => {
                command.add(argument, bounds);
                Ok(Answer::Ok)
            }
            Some(command) => {
                let outcome = match command.request(argument) {
                    Ok(request) if self.user.as_ref().is_some_and(|user| is_denied(user, &request)) => {
                        Err(Reason::Denied)
                    }
                    Ok(request) => execute(&request)?,
                    Err(reason) => Err(reason),
                };
                self.collected = None;
                Ok(self.end(outcome))
            }
        }
    }

    /// Takes an argument outside of a command.
    fn open(&mut self, argument: Argument<'_>) -> Answer {
        let pending = self.pending.take();
        match argument.opening() {
            Ok(Opening::Hello) => Answer::Ok,
            Ok(Opening::SecondPart) => match pending {
                Some(part) => Answer::Second(part),
                None => self.end(Err(Reason::BadRequest)),
            },
            Ok(Opening::Command(verb)) => {
                self.collected = Some(CollectedCommand::new(verb));
                Answer::Ok
            }
            Err(reason) => self.end(Err(reason)),
        }
    }

    /// Notes what the client may ask for after this outcome.
    fn end(&mut self, outcome: Outcome) -> Answer {
        let (answer, pending) = match outcome {
            Ok(value) => (Answer::Ok, value.map(SecondPart::Value)),
            Err(reason) => (Answer::Error, Some(SecondPart::Reason(reason))),
        };
        self.pending = pending;
        answer
    }

    /// The command that the next argument completes.
    pub(super) fn completes(&self) -> Option<Command> {
        let command = self.collected.as_ref().filter(|command| command.lacks_one());
        command.map(|command| command.verb.command())
    }

    /// The reason that the client may ask for next.
    pub(super) fn reason(&self) -> Option<Reason> {
        match self.pending {
            Some(SecondPart::Reason(reason)) => Some(reason),
            _ => None,
        }
    }

    /// Bytes of the value that the next reply may have.
    pub(super) fn pending_bytes(&self) -> usize {
        self.pending.as_ref().map_or(0, |part| part.bytes().len())
    }

    /// Bytes that the conversation holds.
    pub(super) fn held_bytes(&self) -> usize {
        let value = match &self.pending {
            Some(SecondPart::Value(value)) => value.len(),
            _ => 0,
        };
        value + self.collected.as_ref().map_or(0, |command| command.kept.capacity())
    }
}

/// A command, and its arguments but for the last.
#[derive(Debug)]
struct CollectedCommand {
    verb: Verb,
    /// Arguments that have come.
    count: usize,
    /// The arguments, one behind the other.
    kept: Vec<u8>,
    /// Where each of them ends in `kept`.
    ends: [usize; KEPT_MAX],
    /// The first fault. Then no argument is kept.
    fault: Option<Reason>,
}

impl CollectedCommand {
    fn new(verb: Verb) -> Self {
        Self { verb, count: 0, kept: Vec::new(), ends: [0; KEPT_MAX], fault: None }
    }

    fn lacks_one(&self) -> bool {
        self.count + 1 == self.verb.arguments()
    }

    /// Takes an argument that is not the last.
    fn add(&mut self, argument: Argument<'_>, bounds: Bounds) {
        let checked = match self.count {
            0 => argument.table().map(TableName::spelling),
            1 => argument.key(),
            _ => argument.value(bounds.value_max),
        };
        if self.fault.is_none() {
            match checked {
                Ok(bytes) if self.kept.len() + bytes.len() > bounds.room => self.fail(Reason::OutOfMemory),
                Ok(bytes) => self.keep(bytes),
                Err(reason) => self.fail(reason),
            }
        }
        self.count += 1;
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.kept.reserve_exact(bytes.len());
        self.kept.extend_from_slice(bytes);
        if let Some(end) = self.ends.get_mut(self.count) {
            *end = self.kept.len();
        }
    }

    fn fail(&mut self, reason: Reason) {
        self.fault = Some(reason);
        self.kept = Vec::new();
    }

    /// The whole request.
    fn request<'c>(&'c self, last: Argument<'c>) -> Result<Request<'c>, Reason> {
        if let Some(reason) = self.fault {
            return Err(reason);
        }
        let [table_end, key_end, value_end] = self.ends;
        let kept = |start, end| self.kept.get(start..end).unwrap_or_default();
        let table = TableName::spelt(kept(0, table_end));
        Ok(match self.verb {
            Verb::CreateTable => Request::CreateTable { table: last.table()?, options: None },
            Verb::DeleteTable => Request::DeleteTable { table: last.table()? },
            Verb::Update => Request::Update {
                table,
                key: kept(table_end, key_end),
                value: kept(key_end, value_end),
                ttl: last.ttl()?,
            },
            Verb::Delete => Request::Delete { table, key: last.key()? },
            Verb::Get => Request::Get { table, key: last.key()? },
        })
    }
}
