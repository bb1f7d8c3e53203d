//! EXEC: the commands of a transaction, all of them or none.
//!
//! ```text
//! plan: which tables ─► latch ─► tables made ─► versions as watched? ─► needs: credits, memory ─► each command ─► replies
//!                        └─► Busy: the connection is parked, and EXEC is tried again       └─► refused: nothing is changed
//! ```
//! If one command at most touches elements, and no key is watched beside it, there is no latch: the command is atomic by
//! itself. Such a transaction may wait between two commands, and continues there. With a latch nothing else is done between
//! the first command and the last.

use super::answer::{Failure, OUT_OF_MEMORY, Reply, refused};
use super::arguments::Arguments;
use super::call::Call;
use super::carry_out::{Decoded, Handled, attempt};
use super::client::{Login, ReplyMode, database_of};
use super::command_info::{CommandInfo, flag};
use super::commands::COMMANDS;
use super::handle::transactions::{ABORTED, version};
use super::needs::Needs;
use super::transaction::{CommandQueue, QueuedCommand, WatchedKey};
use crate::net::zeromq::ReplyBuffer;
use crate::resp3::ReplyWriter;
use crate::tables::{ManyProgress, Refusal};

/// The tables that commands touch.
#[derive(Default)]
struct Plan<'q> {
    tables: Vec<Box<[u8]>>,
    /// How many commands touch elements. One that touches two elements counts as two.
    touching: usize,
    /// Each command, and the tables in which it may be carried out.
    commands: Vec<PlannedCommand<'q>>,
}

struct PlannedCommand<'q> {
    info: &'static CommandInfo,
    command: &'q QueuedCommand,
    tables: Vec<Box<[u8]>>,
}

/// How many elements a command touches, as far as a transaction asks: none, one command, or a transaction by itself.
fn touches(info: &CommandInfo) -> usize {
    match info.name {
        "rename" | "renamenx" | "copy" | "msetnx" | "flushall" | "eval" | "evalsha" => 2,
        "object" | "memory" => 1,
        _ => usize::from(info.has(flag::READONLY | flag::WRITE | flag::MAY_WRITE)),
    }
}

impl<'q> Plan<'q> {
    /// The plan of these commands, the first of which is about this table.
    fn of(commands: &'q [QueuedCommand], table: &[u8]) -> Self {
        let mut plan = Self::default();
        let mut tables = vec![Box::from(table)];
        for command in commands {
            let (Some(row), arguments) = (COMMANDS.get(command.number), command.arguments()) else { continue };
            let info = &row.info;
            match (info.name, arguments.get(1)) {
                ("select", Some(table)) if database_of(table).is_some() => tables = vec![Box::from(*table)],
                // Whether there is such a table is known when it is selected.
                ("select", Some(table)) => tables.push(Box::from(*table)),
                _ => {}
            }
            plan.touching += touches(info);
            if touches(info) > 0 {
                plan.tables.extend(tables.iter().cloned());
            }
            if info.name == "flushall" {
                plan.tables.extend((0..16_u8).map(|table| table.to_string().into_bytes().into()));
            }
            if info.name == "copy" {
                let databases = arguments.iter().skip(3).filter(|word| database_of(word).is_some());
                plan.tables.extend(databases.map(|table| Box::from(*table)));
            }
            plan.commands.push(PlannedCommand { info, command, tables: tables.clone() });
        }
        plan
    }
}

/// Carries a transaction out, or continues with it.
pub(super) fn exec(call: &mut Call<'_, '_>, outbox: &mut ReplyBuffer) -> Handled {
    let Some(mut transaction) = call.client.collected.transaction.take_if(|transaction| transaction.queue.is_some())
    else {
        return Handled::Failed(refused("ERR EXEC without MULTI"));
    };
    let Some(queue) = &mut transaction.queue else { unreachable!("it was just asked") };
    if queue.is_refused {
        return Handled::Failed(refused(format!("{ABORTED} because of previous errors.")));
    }
    let version = call.client.version;
    if queue.done.is_none() {
        match prepare(call, &transaction.watched, queue) {
            Ok(true) => {
                queue.done = Some(0);
                if call.client.wants_replies() {
                    outbox.encode(|out| ReplyWriter::new(out, version).array(queue.commands.len()));
                }
            }
            Ok(false) => {
                outbox.encode(|out| Reply::NullArray.encode(out, version));
                return Handled::Whole;
            }
            Err(Failure::Refused(words)) => {
                let because = format!("{ABORTED} because of: {}", String::from_utf8_lossy(&words));
                return Handled::Failed(refused(because));
            }
            Err(failure) => {
                call.client.collected.transaction = Some(transaction);
                return Handled::Failed(failure);
            }
        }
    }
    call.client.collected.is_in_exec = true;
    let handled = run(call, queue, outbox);
    call.client.collected.is_in_exec = false;
    call.batch.end_transaction();
    if !matches!(handled, Handled::Executed) {
        call.client.collected.transaction = Some(transaction);
    }
    handled
}

/// Gets all that the transaction needs. Returns false if a watched key has changed.
fn prepare(call: &mut Call<'_, '_>, watched: &[WatchedKey], queue: &CommandQueue) -> Result<bool, Failure> {
    let plan = Plan::of(&queue.commands, &call.client.table);
    let is_atomic = plan.touching + watched.len() > 1;
    if is_atomic {
        let mut tables: Vec<&[u8]> = plan.tables.iter().map(|table| &**table).collect();
        tables.extend(watched.iter().map(|watched| &*watched.table));
        tables.sort_unstable();
        tables.dedup();
        call.batch.latch(&tables)?;
    }
    for WatchedKey { table, key, version: before } in watched {
        if version(call, table, key)? != *before {
            return Ok(false);
        }
    }
    if !is_atomic {
        return Ok(true);
    }
    let mut needs = Needs::default();
    for PlannedCommand { info, command, tables } in &plan.commands {
        let arguments = command.arguments();
        for table in tables {
            if info.has(flag::DENYOOM | flag::MAY_WRITE) && database_of(table).is_some() {
                make(call, table)?;
            }
            needs.add(call, table, info.name, Arguments(&arguments))?;
        }
    }
    if needs.returned > call.context.reply_bytes_max {
        call.batch.give_up_latch();
        return Err(too_long());
    }
    call.batch.begin_transaction(needs.sum())?;
    Ok(true)
}

fn too_long() -> Failure {
    refused("ERR the replies have more bytes than a client may have outstanding: raise --client-bytes-max")
}

/// Makes the table of a database that a command may store in. If there may be no more tables, the command is refused later.
fn make(call: &mut Call<'_, '_>, table: &[u8]) -> Result<(), Failure> {
    if call.batch.count(table).is_ok() {
        return Ok(());
    }
    let made = call.batch.create_table(table, table);
    if matches!(made, Err(Refusal::Busy | Refusal::OutOfMemory)) {
        // Nothing waits under the latch.
        call.batch.give_up_latch();
    }
    match made {
        Err(Refusal::Busy) => Err(Failure::Busy),
        Err(Refusal::OutOfMemory) => Err(OUT_OF_MEMORY),
        _ => Ok(()),
    }
}

/// Carries out the commands that are left, and appends their replies.
fn run(call: &mut Call<'_, '_>, queue: &mut CommandQueue, outbox: &mut ReplyBuffer) -> Handled {
    let is_skipped = call.client.replies == ReplyMode::Skip;
    let begin = outbox.end();
    while let Some(command) = queue.done.and_then(|done| queue.commands.get(done)) {
        let arguments = command.arguments();
        let decoded = Decoded { arguments: Arguments(&arguments), number: Some(command.number) };
        let (reply_begin, mode) = (outbox.end(), call.client.replies);
        let refusal = if decoded.info().is_some_and(|info| info.has(flag::READONLY))
            && reply_begin - begin > call.context.reply_bytes_max as u64
        {
            Some(too_long())
        } else {
            match one(call, decoded, outbox) {
                Handled::Whole | Handled::Executed => None,
                Handled::Failed(failure @ Failure::Refused(_)) => Some(failure),
                Handled::Rejected(words) => Some(Failure::Refused(words)),
                // A user is proved by another thread, and nothing waits here.
                Handled::Failed(Failure::Claims) => {
                    call.client.login = Login::None;
                    Some(refused("ERR a user cannot be proved inside a transaction"))
                }
                unfinished => return unfinished,
            }
        };
        if let Some(Failure::Refused(words)) = refusal {
            let version = call.client.version;
            outbox.encode(|out| ReplyWriter::new(out, version).error(&words));
        }
        if decoded.info().is_some_and(|info| info.has(flag::SHOWN)) {
            call.client.show(decoded.arguments);
        }
        call.client.progress = ManyProgress::default();
        let is_silenced = call.client.replies == ReplyMode::SkipNext && mode != ReplyMode::SkipNext;
        if is_skipped || is_silenced || call.client.replies == ReplyMode::Off {
            outbox.truncate(reply_begin);
        }
        queue.done = queue.done.map(|done| done + 1);
    }
    Handled::Executed
}

/// Carries one command out. In a transaction with a latch it is carried out whole.
fn one(call: &mut Call<'_, '_>, command: Decoded<'_>, outbox: &mut ReplyBuffer) -> Handled {
    // Nothing waits for the publisher here: the reply is one, and a latch may be held.
    call.may_wait = false;
    if !call.batch.is_in_transaction() {
        return attempt(call, command, None, outbox);
    }
    let changes = if command.changes() { command.arguments.0.len() } else { 0 };
    while call.batch.change_credits(changes).is_err() {
        call.batch.wait();
    }
    loop {
        match attempt(call, command, None, outbox) {
            Handled::Portion(count) => call.client.progress.advance(count),
            Handled::Failed(Failure::Unfinished | Failure::NoTable) => {}
            Handled::Failed(Failure::Busy) => call.batch.wait(),
            handled => return handled,
        }
    }
}
