//! EXEC: the commands of a transaction, all of them or none.
//!
//! ```text
//! audiences of its subscriptions ─► plan ─► credits ─► latch ─► tables made ─► versions as watched? ─► memory ─► each command
//!                        └────────────────────┴─────────┴─► the connection waits, and EXEC comes again   └─► refused: no change
//! ```
//! If one element at most is touched, and no key is watched beside it, there is no latch: the command is atomic by itself.
//! Such a transaction may wait between two commands, and continues there. With a latch nothing else is done between
//! the first command and the last.

use super::answer::{Failure, Reply, refused};
use super::arguments::Arguments;
use super::call::{Call, present};
use super::carry_out::{Decoded, Handled, attempt};
use super::channels::SubscriptionKind;
use super::client::{DATABASES, Login, ReplyMode, database_of};
use super::command_info::{CommandInfo, flag};
use super::commands::{COMMANDS, CommandRow};
use super::handle::channels::settle_for_exec;
use super::handle::transactions::{ABORTED, version};
use super::limits::TRANSACTION_TABLES_MAX;
use super::needs::Needs;
use super::transaction::{CommandQueue, QueuedCall, QueuedCommands, Transaction, WatchedKey};
use crate::net::zeromq::ReplyBuffer;
use crate::resp3::ReplyWriter;
use crate::tables::ManyProgress;

/// What commands may touch.
#[derive(Default)]
struct Plan<'q> {
    /// Sorted by name, each once.
    tables: Vec<&'q [u8]>,
    /// How many elements the commands touch. One that is touched twice counts as two.
    touching: usize,
    /// How many elements they change, at most.
    changing: usize,
    /// How often they replace a table.
    replacing: usize,
}

/// How many elements a command touches, as far as a transaction asks: none, one, or several.
fn touches(info: &CommandInfo, arguments: Arguments<'_>) -> usize {
    match (info.name, info.keys.keys(arguments).count()) {
        // All of a table, or several tables.
        ("keys" | "flushall", _) => 2,
        ("object" | "memory", _) => 1,
        (_, 0) => usize::from(info.has(flag::READONLY | flag::WRITE | flag::MAY_WRITE)),
        (_, keys) => keys,
    }
}

/// The databases to which COPY may copy.
fn copied_to(arguments: Arguments<'_>) -> impl Iterator<Item = &[u8]> {
    arguments.behind(3).iter().copied().filter(|word| database_of(word).is_some())
}

impl<'q> Plan<'q> {
    /// The plan of these commands, the first of which is about this table.
    fn of(calls: impl Iterator<Item = QueuedCall<'q>>, table: &'q [u8]) -> Self {
        let mut plan = Self::default();
        // Whether there is a table that is no database is known when it is selected: the next commands are about one of these.
        // The first `planned` of them are in the plan.
        let (mut tables, mut planned) = (vec![table], 0);
        for QueuedCall { number, arguments } in calls {
            let Some(CommandRow { info, .. }) = COMMANDS.get(number) else { continue };
            match (info.name, arguments.0.get(1)) {
                ("select", Some(table)) if database_of(table).is_some() => (tables, planned) = (vec![*table], 0),
                ("select", Some(table)) => tables.push(*table),
                _ => {}
            }
            let touched = touches(info, arguments);
            plan.touching += touched;
            plan.changing += if info.has(flag::WRITE | flag::MAY_WRITE) { touched } else { 0 };
            plan.replacing += usize::from(matches!(info.name, "flushdb" | "flushall"));
            if touched > 0 {
                plan.tables.extend(tables.iter().skip(planned));
                planned = tables.len();
            }
            match info.name {
                "flushall" => plan.tables.extend(DATABASES),
                "copy" => plan.tables.extend(copied_to(arguments)),
                _ => {}
            }
        }
        plan.tables.sort_unstable();
        plan.tables.dedup();
        plan
    }
}

/// Carries a transaction out, or continues with it.
pub(super) fn exec(call: &mut Call<'_, '_>, outbox: &mut ReplyBuffer) -> Handled {
    let Some(mut transaction) = call.client.collected.transaction.take_if(|transaction| transaction.queue.is_some())
    else {
        return Handled::Failed(refused("ERR EXEC without MULTI"));
    };
    let handled = carry_out(call, &mut transaction, outbox);
    if !matches!(handled, Handled::Executed | Handled::Whole | Handled::Failed(Failure::Refused(_))) {
        call.client.collected.transaction = Some(transaction);
    }
    handled
}

/// Carries out what is left of a transaction.
fn carry_out(call: &mut Call<'_, '_>, transaction: &mut Transaction, outbox: &mut ReplyBuffer) -> Handled {
    let Some(queue) = &mut transaction.queue else { unreachable!("MULTI has come") };
    if queue.is_refused {
        return Handled::Failed(refused(format!("{ABORTED} because of previous errors.")));
    }
    if let Err(failure) = settle(call, queue) {
        return Handled::Failed(failure);
    }
    let Some(queue) = &transaction.queue else { unreachable!("MULTI has come") };
    let arguments = queue.commands.arguments();
    let version = call.client.version;
    let mut done = queue.done.unwrap_or(0);
    if queue.done.is_none() {
        match prepare(call, transaction, &queue.commands, &arguments) {
            Ok(true) if call.client.wants_replies() => {
                outbox.encode(|out| ReplyWriter::new(out, version).array(queue.commands.len()));
            }
            Ok(true) => {}
            Ok(false) => {
                outbox.encode(|out| Reply::NullArray.encode(out, version));
                return Handled::Whole;
            }
            Err(Failure::Refused(words)) => {
                let words = words.strip_prefix(b"ERR ").unwrap_or(&words);
                let because = format!("{ABORTED} because of: {}", String::from_utf8_lossy(words));
                return Handled::Failed(refused(because));
            }
            Err(failure) => return Handled::Failed(failure),
        }
    }
    call.client.collected.is_in_exec = true;
    let handled = run(call, queue.commands.calls(done, &arguments), &mut done, outbox);
    call.client.collected.is_in_exec = false;
    call.batch.end_transaction();
    transaction.queue.iter_mut().for_each(|queue| queue.done = Some(done));
    handled
}

/// Waits for the audiences of the subscriptions, and for what was changed before, if there are commands about channels.
fn settle(call: &mut Call<'_, '_>, queue: &mut CommandQueue) -> Result<(), Failure> {
    let name = |number: usize| COMMANDS.get(number).map_or("", |row| row.info.name);
    let is_about_channels = |name: &str| name.ends_with("subscribe") || name == "hello";
    if queue.selections.is_some() || !queue.commands.numbers().any(|number| is_about_channels(name(number))) {
        return Ok(());
    }
    let arguments = queue.commands.arguments();
    let subscribed = queue.commands.calls(0, &arguments).filter_map(|call| match name(call.number) {
        "subscribe" => Some((SubscriptionKind::Channel, call.arguments)),
        "psubscribe" => Some((SubscriptionKind::Pattern, call.arguments)),
        _ => None,
    });
    let names = subscribed.flat_map(|(kind, arguments)| arguments.behind(1).iter().map(move |name| (kind, *name)));
    queue.selections = Some(settle_for_exec(call, names)?);
    Ok(())
}

/// Gets all that the transaction needs. Returns false if a watched key has changed.
fn prepare<'q>(
    call: &mut Call<'_, '_>,
    transaction: &Transaction,
    commands: &QueuedCommands,
    arguments: &'q [&'q [u8]],
) -> Result<bool, Failure> {
    let own = call.client.table.clone();
    let plan = Plan::of(commands.calls(0, arguments), &own);
    let is_atomic = plan.touching + transaction.watched().len() > 1;
    if is_atomic {
        let mut tables = plan.tables;
        tables.extend(transaction.watched().map(|(watched, _)| &*watched.table));
        tables.sort_unstable();
        tables.dedup();
        if tables.len() > TRANSACTION_TABLES_MAX {
            return Err(refused(format!("ERR a transaction touches at most {TRANSACTION_TABLES_MAX} tables")));
        }
        call.batch.keep_credits(plan.changing)?;
        call.batch.latch(&tables)?;
        if plan.replacing > 0 {
            tables.iter().try_for_each(|table| call.batch.admit_replacements(table, plan.replacing))?;
        }
    }
    for (WatchedKey { table, key }, before) in transaction.watched() {
        if version(call, table, key)? != before {
            return Ok(false);
        }
    }
    if !is_atomic {
        return Ok(true);
    }
    let needs = needs(call, &own, commands.calls(0, arguments))?;
    if needs.returned > call.context.reply_bytes_max {
        call.batch.give_up_latch();
        return Err(too_long());
    }
    call.batch.begin_transaction(needs.sum())?;
    Ok(true)
}

/// What these commands need, the first of which is about this table. The tables that they store in are made. Under the
/// latch each table that there is stays, so it is known which table each command is about.
fn needs<'q>(
    call: &mut Call<'_, '_>,
    table: &'q [u8],
    calls: impl Iterator<Item = QueuedCall<'q>>,
) -> Result<Needs<'q>, Failure> {
    let (mut needs, mut table, mut made) = (Needs::default(), table, None);
    for QueuedCall { number, arguments } in calls {
        let Some(CommandRow { info, .. }) = COMMANDS.get(number) else { continue };
        if let ("select", Some(name)) = (info.name, arguments.0.get(1))
            && (database_of(name).is_some() || present(call.batch.count(name))?.is_some())
        {
            table = *name;
        }
        if info.has(flag::DENYOOM | flag::MAY_WRITE) && made != Some(table) && database_of(table).is_some() {
            make(call, table)?;
            made = Some(table);
        }
        if info.name == "copy" {
            copied_to(arguments).try_for_each(|table| make(call, table))?;
        }
        needs.add(call, table, info.name, arguments)?;
    }
    Ok(needs)
}

fn too_long() -> Failure {
    refused("ERR the replies have more bytes than a client may have outstanding: raise --client-bytes-max")
}

/// Makes the table of a database that a command may store in. Nothing waits under the latch: it is released.
fn make(call: &mut Call<'_, '_>, table: &[u8]) -> Result<(), Failure> {
    let made = call.make_database(table);
    if made.is_err() {
        call.batch.give_up_latch();
    }
    made
}

/// Carries out the commands that are left, appends their replies, and counts those that are done.
fn run<'q>(
    call: &mut Call<'_, '_>,
    calls: impl Iterator<Item = QueuedCall<'q>>,
    done: &mut usize,
    outbox: &mut ReplyBuffer,
) -> Handled {
    let is_skipped = call.client.replies == ReplyMode::Skip;
    let begin = outbox.end();
    for QueuedCall { number, arguments } in calls {
        let decoded = Decoded { arguments, number: Some(number) };
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
        *done += 1;
    }
    Handled::Executed
}

/// Carries one command out. In a transaction with a latch it is carried out whole.
fn one(call: &mut Call<'_, '_>, command: Decoded<'_>, outbox: &mut ReplyBuffer) -> Handled {
    // Nothing waits for the publisher here: the reply is one, and a latch may be held. EXEC has waited.
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
            Handled::Portion { count, .. } => call.client.progress.advance(count),
            Handled::Failed(Failure::Unfinished | Failure::NoTable) => {}
            Handled::Failed(Failure::Busy) => call.batch.wait(),
            handled => return handled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_touches_as_many_elements_as_it_has_keys() {
        let touched = |line: &str| {
            let arguments: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let row = COMMANDS.iter().find(|row| line.split(' ').next() == Some(row.info.name));
            row.map(|row| touches(&row.info, Arguments(&arguments)))
        };
        for line in ["ping", "publish c m", "select 1", "subscribe a b"] {
            assert_eq!(touched(line), Some(0), "{line}");
        }
        for line in ["get a", "set a b", "evalsha d 1 a b", "evalsha d 0", "flushdb", "dbsize", "object encoding a"] {
            assert_eq!(touched(line), Some(1), "{line}");
        }
        let of_two =
            ["mget a b", "mset a 1 b 2", "del a b", "rename a b", "copy a b", "evalsha d 2 a b", "eval t 2 a b c"];
        for line in of_two.into_iter().chain(["keys *", "flushall"]) {
            assert_eq!(touched(line), Some(2), "{line}");
        }
    }
}
