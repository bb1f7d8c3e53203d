//! One command carried out: it is checked, queued if a transaction is being collected, or handed to its handler.
//!
//! This module parks no connection, and does not know the turn.

use std::borrow::Cow;

use super::answer::{Failure, OUT_OF_MEMORY, Reply, refused};
use super::arguments::{Arguments, is, shown};
use super::call::Call;
use super::command_info::{CommandInfo, flag};
use super::commands::{COMMANDS, CommandRow, find};
use super::handle::transactions::{ABORTED, is_immediate, queue};
use super::limits::SHOWN_BYTES;
use super::metrics::CommandOutcome;
use super::permission::may;
use super::subcommands::full_name;
use crate::messages::Message;
use crate::net::zeromq::ReplyBuffer;
use crate::tables::Refusal;

/// The most arguments of a command for which no memory is allocated.
pub(super) const FEW_ARGUMENTS: usize = 8;

/// The arguments of a command, and its number in [`COMMANDS`].
#[derive(Clone, Copy)]
pub(super) struct Decoded<'p> {
    pub(super) arguments: Arguments<'p>,
    pub(super) number: Option<usize>,
}

impl<'p> Decoded<'p> {
    /// Collects the arguments in `few` if they fit there, else in `many`.
    pub(super) fn of<'b: 'p>(
        message: &Message<'b>,
        few: &'p mut [&'b [u8]; FEW_ARGUMENTS],
        many: &'p mut Vec<&'b [u8]>,
    ) -> Self {
        let count = message.frames().len();
        let arguments: &'p [&'b [u8]] = if count <= FEW_ARGUMENTS {
            few.iter_mut().zip(message.frames()).for_each(|(place, frame)| *place = frame);
            few.get(..count).unwrap_or_default()
        } else {
            many.extend(message.frames());
            many
        };
        Self { arguments: Arguments(arguments), number: arguments.first().and_then(|name| find(name)) }
    }

    /// Its number among the verbs of the metrics, of which the last is for unknown commands.
    pub(super) fn verb(&self) -> usize {
        self.number.unwrap_or(COMMANDS.len())
    }

    fn row(&self) -> Option<&'static CommandRow> {
        COMMANDS.get(self.number?)
    }

    pub(super) fn info(&self) -> Option<&'static CommandInfo> {
        self.row().map(|row| &row.info)
    }

    /// The key of a command for one key.
    pub(super) fn key(&self) -> Option<&'p [u8]> {
        self.info().filter(|info| info.keys.last == 1)?.keys.keys(self.arguments).next()
    }

    pub(super) fn changes(&self) -> bool {
        self.info().is_some_and(|info| info.has(flag::WRITE | flag::MAY_WRITE))
    }

    /// Whether the command has no effect but its reply. AUTH and HELLO prove a user to nobody any more.
    pub(super) fn only_reads(&self) -> bool {
        let Some(info) = self.info() else { return true };
        let is_list = info.name == "client" && self.arguments.0.get(1).is_some_and(|verb| is(verb, "list"));
        info.has(flag::READONLY) || is_list || matches!(info.name, "auth" | "hello" | "info" | "command")
    }

    /// Whether the command changes an element and returns its value from before.
    pub(super) fn returns_value(&self) -> bool {
        let name = self.info().map_or("", |info| info.name);
        matches!(name, "getdel" | "getset" | "getex") || name == "set" && self.arguments.0.len() > 3
    }
}

/// What a handler has come to, when its reply is written.
pub(super) enum Handled {
    /// The reply is written whole.
    Whole,
    /// Pushes are written: a client gets them, whatever it has said of replies.
    Pushed,
    /// It waits for EXEC.
    Queued,
    /// The replies of a transaction are written whole, as far as the client wants them.
    Executed,
    /// Replies for so many keys or names of the command are written, and others follow.
    Portion {
        count: usize,
        is_pushed: bool,
    },
    /// The reply is too long while memory is tight. Nothing is written.
    TooLong,
    /// It was refused before a handler had it, with these words.
    Rejected(Cow<'static, [u8]>),
    Failed(Failure),
}

/// The row of a command that may be carried out or queued. A refusal ends the transaction that is being collected.
pub(super) fn admit(call: &mut Call<'_, '_>, command: Decoded<'_>) -> Result<&'static CommandRow, Handled> {
    let checked = check(call, command).and_then(|row| {
        if call.client.is_collecting() && !is_immediate(row.info.name) {
            full_name(row.info.name, command.arguments)?;
        }
        Ok(row)
    });
    let failure = match checked {
        Ok(row) => return Ok(row),
        Err(failure) => failure,
    };
    let Failure::Refused(words) = failure else { return Err(Handled::Failed(failure)) };
    if command.info().is_none_or(|info| info.name != "exec") {
        call.client.refuse_transaction();
        return Err(Handled::Rejected(words));
    }
    call.client.collected.transaction = None;
    let words = words.strip_prefix(b"ERR ").unwrap_or(&words);
    Err(Handled::Rejected([ABORTED.as_bytes(), b" because of: ", words].concat().into()))
}

/// Carries a command out, and appends its reply. A command of a transaction that is being collected is queued, and counted
/// when EXEC carries it out. While memory is tight (`bytes_max`), a client that makes the server keep much may not have it
/// keep more.
pub(super) fn attempt(
    call: &mut Call<'_, '_>,
    command: Decoded<'_>,
    bytes_max: Option<usize>,
    outbox: &mut ReplyBuffer,
) -> Handled {
    let handled = attempt_or_queue(call, command, bytes_max, outbox);
    if !call.client.collected.is_in_exec {
        return handled;
    }
    let (outcome, words) = match &handled {
        Handled::Whole | Handled::Pushed => (CommandOutcome::Done, None),
        Handled::Rejected(words) => (CommandOutcome::Rejected, Some(words)),
        Handled::Failed(Failure::Refused(words)) => (CommandOutcome::Failed, Some(words)),
        _ => return handled,
    };
    call.metrics.count(command.verb(), outcome);
    words.into_iter().for_each(|words| call.metrics.count_error(words));
    // The reply is a part of that to EXEC.
    if matches!(handled, Handled::Pushed) { Handled::Whole } else { handled }
}

fn attempt_or_queue(
    call: &mut Call<'_, '_>,
    command: Decoded<'_>,
    bytes_max: Option<usize>,
    outbox: &mut ReplyBuffer,
) -> Handled {
    let row = match admit(call, command) {
        Ok(row) => row,
        Err(refusal) => return refusal,
    };
    let is_queued = call.client.is_collecting() && !is_immediate(row.info.name);
    if (is_queued || row.info.keeps()) && bytes_max.is_some_and(|most| call.client.kept_bytes() > most) {
        call.client.refuse_transaction();
        return Handled::Failed(OUT_OF_MEMORY);
    }
    if is_queued {
        return match queue(call, command.number, row.info.name, command.arguments) {
            Ok(reply) => {
                let version = call.client.version;
                outbox.encode(|out| reply.encode(out, version));
                Handled::Queued
            }
            Err(failure) => Handled::Failed(failure),
        };
    }
    match handle(call, row, command, bytes_max, outbox) {
        Handled::Failed(Failure::NoTable) => match make_table(call) {
            Ok(()) => handle(call, row, command, bytes_max, outbox),
            Err(failure) => Handled::Failed(failure),
        },
        handled => handled,
    }
}

/// Calls the handler, and appends the reply.
fn handle(
    call: &mut Call<'_, '_>,
    row: &CommandRow,
    command: Decoded<'_>,
    bytes_max: Option<usize>,
    outbox: &mut ReplyBuffer,
) -> Handled {
    let version = call.client.version;
    if row.info.has(flag::SHOWN) {
        call.client.place.card.note(command.number, (call.now)());
        call.client.show_counts();
        call.client.show(command.arguments);
    }
    match (row.handler)(call, command.arguments) {
        Ok(reply) => {
            if !command.changes() && bytes_max.is_some_and(|most| reply.bytes() > most) {
                return Handled::TooLong;
            }
            outbox.encode(|out| reply.encode(out, version));
            match reply {
                Reply::Values { values, is_last: false, .. } => {
                    Handled::Portion { count: values.len(), is_pushed: false }
                }
                Reply::Frames { portion: Some(names), .. } => Handled::Portion { count: names, is_pushed: true },
                Reply::Frames { portion: None, .. } => Handled::Pushed,
                _ => Handled::Whole,
            }
        }
        Err(failure) => Handled::Failed(failure),
    }
}

/// The row of a command that this client may have carried out.
fn check(call: &Call<'_, '_>, command: Decoded<'_>) -> Result<&'static CommandRow, Failure> {
    let is_anonymous = call.context.has_users && call.client.user.is_none();
    let Some(row) = command.row() else {
        return Err(unknown(command.arguments));
    };
    let info = &row.info;
    if !info.takes(command.arguments.0.len()) {
        return Err(refused(format!("ERR wrong number of arguments for '{}' command", info.name)));
    }
    if info.has(flag::NO_MULTI) && call.client.is_collecting() {
        return Err(refused("ERR Command not allowed inside a transaction"));
    }
    if is_anonymous && !info.has(flag::NO_AUTH) {
        return Err(refused("NOAUTH Authentication required."));
    }
    if let Some(user) = &call.client.user
        && !may(user, info, call.client.next_table())
    {
        user.note_denied();
        let (name, command) = (user.name(), info.name);
        return Err(refused(format!("NOPERM User {name} has no permissions to run the '{command}' command")));
    }
    let is_restricted = call.client.is_restricted() && !call.client.collected.is_in_exec;
    if is_restricted && !WHILE_SUBSCRIBED.contains(&info.name) {
        let name = full_name(info.name, command.arguments)?;
        return Err(refused(format!(
            "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this \
             context"
        )));
    }
    let most = call.context.limits.key;
    if info.keys.keys(command.arguments).any(|key| key.len() > most) {
        return Err(refused(format!("ERR a key has more than {most} bytes")));
    }
    Ok(row)
}

/// What a client of the second version may send while it has subscriptions.
const WHILE_SUBSCRIBED: [&str; 7] = ["subscribe", "psubscribe", "unsubscribe", "punsubscribe", "ping", "quit", "reset"];

/// The refusal of a command that is not there. Clients read these words.
fn unknown(arguments: Arguments<'_>) -> Failure {
    let mut text = b"ERR unknown command '".to_vec();
    text.extend_from_slice(arguments.0.first().map(|name| shown(name, SHOWN_BYTES)).unwrap_or_default());
    text.extend_from_slice(b"', with args beginning with: ");
    let begin = text.len();
    for argument in arguments.behind(1) {
        let Some(room) = SHOWN_BYTES.checked_sub(text.len() - begin).filter(|room| *room > 0) else { break };
        text.push(b'\'');
        text.extend_from_slice(shown(argument, room));
        text.extend_from_slice(b"' ");
    }
    refused(text)
}

/// Makes the table of a database at its first write.
pub(super) fn make_table(call: &mut Call<'_, '_>) -> Result<(), Failure> {
    if call.client.database().is_none() {
        return Err(refused("ERR the table of this connection has been deleted: SELECT another one"));
    }
    let (table, durability) = (&call.client.table, call.durability());
    match call.batch.create_table_with(table, table, None, Some(durability)) {
        Ok(()) | Err(Refusal::TableExists) => Ok(()),
        Err(refusal) => Err(refusal.into()),
    }
}
