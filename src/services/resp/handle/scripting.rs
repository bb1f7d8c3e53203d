//! Commands about scripts: known ones are carried out, and no others. A script is one change of its element.

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
    let operands = Operands::of(arguments)?;
    run(call, row.ok_or_else(missing)?, operands)
}

pub(in super::super) fn eval<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let ([text], _) = arguments.split()?;
    let operands = Operands::of(arguments)?;
    let row = scripts::find_text(text).ok_or_else(|| refused(UNKNOWN))?;
    run(call, row, operands)
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
}

fn run<'b>(call: &'b mut Call<'_, '_>, row: &'static ScriptRow, operands: Operands<'b>) -> Answer<'b> {
    let bounds = ScriptBounds { times: call.times(), value_max: call.value_max() };
    let carry_out = |elements: &mut [ScriptElement<'b>]| {
        (row.handler)(&mut ScriptRun::new(elements, operands.arguments)).map_err(|error| row.refusal(error))
    };
    let key = match (operands.keys, row.keys) {
        ([], _) => return carry_out(&mut []),
        ([key], _) | ([key, ..], ScriptKeys::First) => key,
        (_, ScriptKeys::All) => return Err(several_keys(row)),
    };
    let edited = call.batch.edit(&call.client.table, key, |old| {
        let mut element = [ScriptElement::new(bounds, old)];
        let answer = carry_out(&mut element);
        let [element] = element;
        (element.into_edit(), answer)
    });
    match edited {
        Ok((answer, _)) => answer,
        Err(Refusal::TableNotFound) => {
            let mut element = [ScriptElement::new(bounds, None)];
            let answer = carry_out(&mut element);
            let [element] = element;
            // A table is made for a value alone.
            match element.into_edit() {
                Edit::Store { .. } => Err(Failure::NoTable),
                Edit::Keep | Edit::Delete => answer,
            }
        }
        Err(refusal) => Err(refusal.into()),
    }
}

/// The refusal of a script with several keys.
fn several_keys(row: &ScriptRow) -> Failure {
    let ScriptRow { library, versions, name, .. } = row;
    refused(format!("ERR {name} of {library} {versions} is for one key here: have a lock for each key"))
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
