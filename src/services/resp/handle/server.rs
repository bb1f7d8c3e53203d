//! Commands about the server: its commands, its settings, its clock.

use std::borrow::Cow;

use crate::services::resp::answer::{Answer, Failure, OK, Reply, SYNTAX, refused};
use crate::services::resp::arguments::{Arguments, is, lower, number};
use crate::services::resp::call::{Call, present};
use crate::services::resp::command_info::{CommandInfo, flag};
use crate::services::resp::info;
use crate::services::resp::metrics::PROTOCOL;
use crate::services::resp::pattern::Pattern;
use crate::services::resp::settings::{self, Setting};
use crate::services::resp::subcommands::{unknown_subcommand, wrong_number};
use crate::tables::Durability;

/// SAVE and BGSAVE of databases that are in memory.
const NOT_KEPT: Failure = Failure::Refused(Cow::Borrowed(
    b"ERR CONFIG SET appendonly yes keeps the databases on disk, and `spindle backup` copies what is there",
));

pub(in super::super) fn time<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [] = arguments.exactly()?;
    let micros = call.context.clock.start_wall_millis() * 1_000 + (call.now)().nanos() / 1_000;
    let [seconds, rest] = [micros / 1_000_000, micros % 1_000_000].map(|number| Reply::owned(number.to_string()));
    Ok(Reply::Array(vec![seconds, rest]))
}

/// There are no replicas, so there is none to wait for.
pub(in super::super) fn wait<'b>(_: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [replicas, timeout] = arguments.exactly()?;
    number(replicas)?;
    let timeout = number(timeout).map_err(|_| refused("ERR timeout is not an integer or out of range"))?;
    if timeout < 0 { Err(refused("ERR timeout is negative")) } else { Ok(Reply::Integer(0)) }
}

/// Whether the client's table is on disk, or is when it is made.
fn is_kept(call: &mut Call<'_, '_>) -> Result<bool, Failure> {
    let table = call.client.table.clone();
    Ok(call.durability() != Durability::None || present(call.batch.is_durable(&table))? == Some(true))
}

/// The reply waits until all is on disk that the client has written, however long that takes. There are no replicas.
pub(in super::super) fn waitaof<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [local, replicas, timeout] = arguments.exactly()?;
    let (local, replicas) = (number(local)?, number(replicas)?);
    if !(0..=1).contains(&local) {
        return Err(refused("ERR value is out of range, value must between 0 and 1"));
    }
    if replicas < 0 {
        return Err(refused("ERR value is out of range, must be positive"));
    }
    let timeout = number(timeout).map_err(|_| refused("ERR timeout is not an integer or out of range"))?;
    if timeout < 0 {
        return Err(refused("ERR timeout is negative"));
    }
    if local == 1 {
        if !is_kept(call)? {
            return Err(refused("ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled."));
        }
        call.batch.await_log();
    }
    Ok(Reply::Array(vec![Reply::Integer(local), Reply::Integer(0)]))
}

pub(in super::super) fn role<'b>(_: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [] = arguments.exactly()?;
    Ok(Reply::Array(vec![Reply::string("master"), Reply::Integer(0), Reply::Array(Vec::new())]))
}

pub(in super::super) fn module<'b>(_: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    match arguments.behind(1) {
        [verb] if is(verb, "list") => Ok(Reply::Array(Vec::new())),
        [verb, ..] if is(verb, "list") => Err(wrong_number("module", "list")),
        _ => Err(unknown_subcommand(arguments)),
    }
}

pub(in super::super) fn acl<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    match arguments.behind(1) {
        [verb] if is(verb, "whoami") => {
            Ok(Reply::owned(call.client.user.as_ref().map_or("default", |user| user.name()).to_owned()))
        }
        [verb, ..] if is(verb, "whoami") => Err(wrong_number("acl", "whoami")),
        _ => Err(unknown_subcommand(arguments)),
    }
}

/// No latency events are kept: `spindle top` and STATS show the times of each command.
pub(in super::super) fn latency<'b>(_: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    match arguments.behind(1) {
        [verb] if is(verb, "latest") => Ok(Reply::Array(Vec::new())),
        [verb, ..] if is(verb, "latest") => Err(wrong_number("latency", "latest")),
        [verb, ..] if is(verb, "reset") => Ok(Reply::Integer(0)),
        _ => Err(unknown_subcommand(arguments)),
    }
}

pub(in super::super) fn slowlog<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    const SHOWN: i64 = 10;
    let log = &call.context.report.slow;
    match arguments.behind(1) {
        [verb] if is(verb, "len") => Ok(Reply::count(slow_commands(call).count())),
        [verb] if is(verb, "reset") => {
            log.clear();
            Ok(OK)
        }
        [verb, count @ ..] if is(verb, "get") && count.len() < 2 => {
            let count = count.first().map_or(Some(SHOWN), |count| number(count).ok()).filter(|count| *count >= -1);
            let count = count.ok_or_else(|| refused("ERR count should be greater than or equal to -1"))?;
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            Ok(Reply::Array(slow_commands(call).take(count).collect()))
        }
        [verb, ..] if is(verb, "len") || is(verb, "reset") || is(verb, "get") => {
            Err(wrong_number("slowlog", &lower(verb)))
        }
        _ => Err(unknown_subcommand(arguments)),
    }
}

/// The slow commands, the latest first. Of the arguments the verb and the table are kept. The time is that of the turn
/// in the tables, as in Redis: neither waiting nor sending counts.
fn slow_commands<'b>(call: &Call<'_, '_>) -> impl Iterator<Item = Reply<'b>> {
    let log = &call.context.report.slow;
    let seen = log.seen();
    let slow = log.latest(usize::MAX).into_iter().zip(0..).filter(|(slow, _)| slow.protocol == PROTOCOL);
    slow.map(move |(slow, back)| {
        let signed = |number: u64| Reply::Integer(i64::try_from(number).unwrap_or(i64::MAX));
        Reply::Array(vec![
            signed(seen.saturating_sub(1 + back)),
            signed(slow.unix_millis / 1_000),
            signed(slow.stages.execution.unwrap_or(slow.nanos) / 1_000),
            Reply::Array(vec![Reply::string(slow.verb), Reply::bulk(slow.table.into_vec())]),
            Reply::owned(slow.client),
            Reply::string(""),
        ])
    })
}

pub(in super::super) fn shutdown<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let known = ["nosave", "save", "now", "force"];
    if !arguments.behind(1).iter().all(|option| known.iter().any(|word| is(option, word))) {
        return Err(SYNTAX);
    }
    (call.context.terminate)();
    call.client.ends = true;
    Ok(Reply::Nothing)
}

/// As WAITAOF: the reply waits until all is on disk that clients have written to durable tables.
pub(in super::super) fn save<'b>(call: &'b mut Call<'_, '_>, _: Arguments<'b>) -> Answer<'b> {
    if !is_kept(call)? {
        return Err(NOT_KEPT);
    }
    call.batch.await_log();
    Ok(OK)
}

/// Has the log write at once. LASTSAVE shows when that is done.
pub(in super::super) fn bgsave<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    match arguments.behind(1) {
        [] => {}
        [option] if is(option, "schedule") => {}
        _ => return Err(SYNTAX),
    }
    if !is_kept(call)? {
        return Err(NOT_KEPT);
    }
    call.batch.order_disk();
    Ok(Reply::Simple("Background saving started"))
}

pub(in super::super) fn lastsave<'b>(call: &'b mut Call<'_, '_>, _: Arguments<'b>) -> Answer<'b> {
    let seconds = info::last_save_seconds(call, &call.context.report.log_metrics());
    Ok(Reply::Integer(i64::try_from(seconds).unwrap_or(i64::MAX)))
}

pub(in super::super) fn cluster<'b>(_: &'b mut Call<'_, '_>, _: Arguments<'b>) -> Answer<'b> {
    Err(refused("ERR This instance has cluster support disabled"))
}

pub(in super::super) fn info<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    Ok(Reply::Text(info::render(call, arguments.behind(1))))
}

pub(in super::super) fn config<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    match arguments.behind(1) {
        [verb, patterns @ ..] if is(verb, "get") && !patterns.is_empty() => {
            let patterns: Vec<Vec<u8>> = patterns.iter().map(|pattern| pattern.to_ascii_lowercase()).collect();
            let patterns: Vec<_> = patterns.iter().map(|pattern| Pattern::new(pattern)).collect::<Result<_, _>>()?;
            let selects = |setting: &Setting| patterns.iter().any(|pattern| pattern.is_match(setting.name.as_bytes()));
            let selected = settings::all(call).into_iter().filter(selects);
            let pairs = selected.flat_map(|setting| [Reply::string(setting.name), Reply::owned(setting.value)]);
            Ok(Reply::Map(pairs.collect()))
        }
        [verb, pairs @ ..] if is(verb, "set") && !pairs.is_empty() && pairs.len() % 2 == 0 => {
            settings::set(call, pairs.as_chunks().0)?;
            Ok(OK)
        }
        [verb] if is(verb, "resetstat") => {
            call.context.metrics.reset();
            Ok(OK)
        }
        [verb, ..] if ["get", "set", "resetstat"].iter().any(|known| is(verb, known)) => {
            Err(wrong_number("config", &lower(verb)))
        }
        _ => Err(unknown_subcommand(arguments)),
    }
}

pub(in super::super) fn command<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let commands = call.context.commands;
    let rows = |names: &[&[u8]]| match names {
        [] => commands.all.iter().copied().map(Some).collect::<Vec<_>>(),
        names => names.iter().map(|name| commands.find(name)).collect(),
    };
    match arguments.behind(1) {
        [] => Ok(Reply::Array(commands.all.iter().copied().map(describe).collect())),
        [verb] if is(verb, "count") => Ok(Reply::count(commands.all.len())),
        [verb, names @ ..] if is(verb, "info") => {
            Ok(Reply::Array(rows(names).into_iter().map(|row| row.map_or(Reply::NullArray, describe)).collect()))
        }
        [verb, names @ ..] if is(verb, "docs") => {
            Ok(Reply::Map(rows(names).into_iter().flatten().flat_map(document).collect()))
        }
        [verb, filter @ ..] if is(verb, "list") => list(&commands.all, filter),
        [verb, name, behind @ ..] if is(verb, "getkeys") && !behind.is_empty() => {
            let row = commands.find(name).ok_or_else(|| refused("ERR Invalid command specified"))?;
            let named = Arguments(arguments.behind(2));
            if !row.takes(behind.len() + 1) {
                return Err(refused("ERR Invalid number of arguments specified for command"));
            }
            let keys: Vec<Reply<'b>> = row.keys.keys(named).map(Reply::bulk).collect();
            if keys.is_empty() && !row.has(flag::NO_MANDATORY_KEYS) {
                return Err(refused("ERR The command has no key arguments"));
            }
            Ok(Reply::Array(keys))
        }
        [verb, ..] if ["count", "getkeys"].iter().any(|known| is(verb, known)) => {
            Err(wrong_number("command", &lower(verb)))
        }
        _ => Err(unknown_subcommand(arguments)),
    }
}

/// The categories of a command, as ACL has them.
fn categories(row: &CommandInfo) -> Vec<&'static str> {
    let group = if row.has(flag::KEYSPACE) { "@keyspace" } else { row.group.category() };
    let flags =
        [(flag::READONLY, "@read"), (flag::WRITE, "@write"), (flag::ADMIN, "@admin"), (flag::DANGEROUS, "@dangerous")];
    let named = flags.into_iter().filter(|(flags, _)| row.has(*flags)).map(|(_, name)| name);
    let speed = if row.has(flag::FAST) { "@fast" } else { "@slow" };
    [group, speed].into_iter().chain(named).filter(|name| !name.is_empty()).collect()
}

/// A row as COMMAND INFO returns it.
fn describe(row: &CommandInfo) -> Reply<'static> {
    let simple = |names: Vec<&'static str>| Reply::Set(names.into_iter().map(Reply::Simple).collect());
    let flags = flag::NAMES.into_iter().filter(|(flags, _)| row.has(*flags)).map(|(_, name)| name);
    Reply::Array(vec![
        Reply::string(row.name),
        Reply::Integer(row.arity.into()),
        simple(flags.collect()),
        Reply::Integer(row.keys.first.into()),
        Reply::Integer(row.keys.last.into()),
        Reply::Integer(row.keys.step.into()),
        simple(categories(row)),
        Reply::Set(Vec::new()),
        Reply::Set(Vec::new()),
        Reply::Set(Vec::new()),
    ])
}

/// The name of a row, and what COMMAND DOCS returns of it.
fn document(row: &'static CommandInfo) -> [Reply<'static>; 2] {
    let fields = [("summary", row.summary), ("since", row.since), ("group", row.group.name())];
    let fields = fields.into_iter().flat_map(|(name, value)| [Reply::string(name), Reply::string(value)]);
    [Reply::string(row.name), Reply::Map(fields.collect())]
}

fn list<'b>(commands: &[&'static CommandInfo], filter: &[&[u8]]) -> Answer<'b> {
    let names = |selects: &dyn Fn(&CommandInfo) -> bool| {
        Reply::Array(commands.iter().filter(|row| selects(row)).map(|row| Reply::string(row.name)).collect())
    };
    match filter {
        [] => Ok(names(&|_| true)),
        [by, kind, value] if is(by, "filterby") && is(kind, "pattern") => {
            let pattern = Pattern::new(value)?;
            Ok(names(&|row| pattern.is_match(row.name.as_bytes())))
        }
        [by, kind, value] if is(by, "filterby") && is(kind, "aclcat") => {
            let category = format!("@{}", lower(value));
            Ok(names(&|row| categories(row).contains(&&*category)))
        }
        [by, kind, _] if is(by, "filterby") && is(kind, "module") => Ok(Reply::Array(Vec::new())),
        _ => Err(SYNTAX),
    }
}
