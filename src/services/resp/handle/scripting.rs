//! Commands about scripts: known ones are carried out, and no others. A script is one change of its element, or a
//! transaction if it has several keys.

use super::names::atomically;
use crate::services::resp::answer::{Answer, Failure, OK, Reply, refused};
use crate::services::resp::arguments::{Arguments, is, lower, number};
use crate::services::resp::call::Call;
use crate::services::resp::scripts::{self, ScriptBounds, ScriptElement, ScriptKeys, ScriptRow, ScriptRun};
use crate::services::resp::subcommands::{unknown_subcommand, wrong_number};
use crate::tables::{Edit, Refusal};

const UNKNOWN: &str = "ERR this script is not known, and there is no Lua: use commands, MULTI with WATCH, or SET with IFEQ. \
                       The known scripts are those of libraries, which PROTOCOL.md lists";

pub(in super::super) fn evalsha<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let ([digest], _) = arguments.split()?;
    let missing = || refused("NOSCRIPT No matching script. Please use EVAL.");
    let row = scripts::find(digest);
    // Redis looks first whether this may be a digest, then at the keys.
    if row.is_none() && digest.len() != 40 {
        return Err(missing());
    }
    Operands::of(arguments)?;
    run(call, row.ok_or_else(missing)?, arguments)
}

pub(in super::super) fn eval<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let ([text], _) = arguments.split()?;
    Operands::of(arguments)?;
    let row = scripts::find_text(text).ok_or_else(|| refused(UNKNOWN))?;
    run(call, row, arguments)
}

/// What a script is given.
struct Operands<'b> {
    keys: &'b [&'b [u8]],
    arguments: &'b [&'b [u8]],
}

impl<'b> Operands<'b> {
    fn of(arguments: Arguments<'b>) -> Result<Self, Failure> {
        let ([_, count], operands) = arguments.split()?;
        let count = number(count)?;
        let count = usize::try_from(count).map_err(|_| refused("ERR Number of keys can't be negative"))?;
        let split = operands.split_at_checked(count);
        let (keys, arguments) =
            split.ok_or_else(|| refused("ERR Number of keys can't be greater than number of args"))?;
        Ok(Self { keys, arguments })
    }

    /// Carries a script out on these elements. `places` are those of the keys among them.
    fn carry_out(&self, row: &ScriptRow, elements: &mut [ScriptElement<'b>], places: &[usize]) -> Answer<'static> {
        let mut run = ScriptRun::new(elements, places, self.arguments);
        (row.handler)(&mut run).map_err(|error| row.refusal(error))
    }
}

fn run<'b>(call: &'b mut Call<'_, '_>, row: &'static ScriptRow, arguments: Arguments<'b>) -> Answer<'b> {
    let operands = Operands::of(arguments)?;
    let key = match (operands.keys, row.keys) {
        ([], _) => return operands.carry_out(row, &mut [], &[]),
        ([key], _) | ([key, ..], ScriptKeys::First) => key,
        (_, ScriptKeys::All) => return run_on_several(call, row, arguments, &operands),
    };
    let bounds = ScriptBounds { times: call.times(), value_max: call.value_max() };
    let carry_out = |old| {
        let mut element = [ScriptElement::new(bounds, old)];
        let answer = operands.carry_out(row, &mut element, &[0]);
        let [element] = element;
        (element.into_edit(), answer)
    };
    match call.batch.edit(&call.client.table, key, carry_out) {
        Ok((answer, _)) => answer,
        // A table is made for a value alone.
        Err(Refusal::TableNotFound) => match carry_out(None) {
            (Edit::Store { .. }, _) => Err(Failure::NoTable),
            (Edit::Keep | Edit::Delete, answer) => answer,
        },
        Err(refusal) => Err(refusal.into()),
    }
}

/// Carries a script out on several keys, as a transaction.
fn run_on_several<'b>(
    call: &'b mut Call<'_, '_>,
    row: &'static ScriptRow,
    arguments: Arguments<'b>,
    operands: &Operands<'b>,
) -> Answer<'b> {
    let table = call.client.table.clone();
    // Before the latch: a table that is missing is made, and the command comes again.
    call.batch.count(&table)?;
    let bounds = ScriptBounds { times: call.times(), value_max: call.value_max() };
    let mut keys = operands.keys.to_vec();
    keys.sort_unstable();
    keys.dedup();
    let places: Vec<usize> = operands.keys.iter().filter_map(|key| keys.binary_search(key).ok()).collect();
    atomically(call, arguments, &[&table], |call| {
        let mut elements = Vec::with_capacity(keys.len());
        for key in &keys {
            elements.push(ScriptElement::copied(bounds, call.element(key)?));
        }
        let answer = operands.carry_out(row, &mut elements, &places);
        for (key, element) in keys.iter().zip(elements) {
            let edit = element.into_edit();
            call.batch.insist(|batch| batch.edit(&table, key, |_| (edit.clone(), ())).map(drop))?;
        }
        Ok(answer)
    })?
}

pub(in super::super) fn script<'b>(_: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let ([verb], rest) = arguments.split()?;
    match (&*lower(verb), rest) {
        ("load", [text]) => {
            let row = scripts::find_text(text).ok_or_else(|| refused(UNKNOWN))?;
            Ok(Reply::string(row.digest))
        }
        ("exists", digests @ [_, ..]) => {
            Ok(Reply::Array(digests.iter().map(|digest| scripts::find(digest).is_some().into()).collect()))
        }
        // Known scripts stay known, and no script runs for long.
        ("flush", []) => Ok(OK),
        ("flush", [mode]) if is(mode, "sync") || is(mode, "async") => Ok(OK),
        ("flush", _) => Err(refused("ERR SCRIPT FLUSH only support SYNC|ASYNC option")),
        ("kill", []) => Err(refused("NOTBUSY No scripts in execution right now.")),
        ("help", []) => Ok(Reply::Array(HELP.into_iter().map(Reply::Simple).collect())),
        (known @ ("load" | "exists" | "kill" | "help"), _) => Err(wrong_number("script", known)),
        _ => Err(unknown_subcommand(arguments)),
    }
}

const HELP: [&str; 11] = [
    "SCRIPT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "EXISTS <sha1> [<sha1> ...]",
    "    Return for each digest whether its script is known.",
    "FLUSH [ASYNC|SYNC]",
    "    Do nothing: known scripts stay known.",
    "KILL",
    "    Return an error: no script runs for long.",
    "LOAD <script>",
    "    Return the digest of a known script.",
    "HELP",
    "    Print this help.",
];
