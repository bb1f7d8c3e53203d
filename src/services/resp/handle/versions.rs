//! Commands about the version of an element, by Garnet's names, and DELEX, which deletes on a condition.
//!
//! A version is a bulk string: it passes 2^53, beyond which JavaScript rounds numbers. Absent elements have version 0.

use std::borrow::Cow;

use super::strings::deadline_of;
use crate::feed::Cause;
use crate::resp3::integer;
use crate::services::resp::answer::{Answer, Failure, Reply, SYNTAX, refused};
use crate::services::resp::arguments::{Arguments, TimeUnit, is};
use crate::services::resp::call::{Call, check_length};
use crate::tables::{Deadline, Edit};

/// A version as clients get it.
fn version<'b>(version: u64) -> Reply<'b> {
    Reply::owned(version.to_string())
}

pub(in super::super) fn getwithetag<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [key] = arguments.exactly()?;
    let element = call.element(key)?;
    Ok(element.map_or(Reply::Null, |found| Reply::Array(vec![version(found.version), Reply::bulk(found.value)])))
}

/// What SETWITHETAG and SETIFMATCH are asked for behind their values.
struct Options {
    deadline: Deadline,
    /// The value is not returned when the version is another.
    is_silent: bool,
}

impl Options {
    fn parse(call: &Call<'_, '_>, command: &str, mut options: &[&[u8]]) -> Result<Self, Failure> {
        let mut parsed = Self { deadline: Deadline::NONE, is_silent: false };
        while let Some((option, rest)) = options.split_first() {
            options = rest;
            if is(option, "noget") && command == "setifmatch" {
                parsed.is_silent = true;
                continue;
            }
            let units = [TimeUnit::Seconds, TimeUnit::Millis];
            let unit = TimeUnit::of_option(option).filter(|unit| units.contains(unit)).ok_or(SYNTAX)?;
            let (time, behind) = rest.split_first().ok_or(SYNTAX)?;
            if parsed.deadline != Deadline::NONE {
                return Err(SYNTAX);
            }
            (parsed.deadline, options) = (deadline_of(call, unit, time, command)?, behind);
        }
        Ok(parsed)
    }
}

pub(in super::super) fn setwithetag<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let ([key, value], options) = arguments.split()?;
    let deadline = Options::parse(call, "setwithetag", options)?.deadline;
    check_length(value.len(), call.value_max())?;
    let ((), stored) =
        call.edit(key, |_| (Edit::Store { value: Cow::Borrowed(value), deadline, cause: Cause::Set }, ()))?;
    Ok(version(stored))
}

/// Stores a value if the element has this version, or, with version 0, if there is none. A version from before the
/// element was deleted matches nothing.
pub(in super::super) fn setifmatch<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let ([key, value, expected], options) = arguments.split()?;
    let expected = integer(expected).and_then(|version| u64::try_from(version).ok());
    let expected = expected.ok_or_else(|| refused("ERR the version is not an integer or out of range"))?;
    let Options { deadline, is_silent } = Options::parse(call, "setifmatch", options)?;
    check_length(value.len(), call.value_max())?;
    let (current, now) = call.edit(key, |old| {
        if old.map_or(0, |old| old.version) == expected {
            return (Edit::Store { value: Cow::Borrowed(value), deadline, cause: Cause::CompareAndSwap }, None);
        }
        (Edit::Keep, old.map(|old| old.value).filter(|_| !is_silent))
    })?;
    Ok(Reply::Array(vec![version(now), current.into()]))
}

/// Deletes a key, if its value is this one, or is another.
pub(in super::super) fn delex<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let ([key], condition) = arguments.split()?;
    let (value, wants_equal) = match condition {
        [] => (None, true),
        [option, value] if is(option, "ifeq") => (Some(*value), true),
        [option, value] if is(option, "ifne") => (Some(*value), false),
        _ => return Err(SYNTAX),
    };
    let is_deleted = call.edit_present(key, |old| {
        let is_deleted = value.is_none_or(|value| (old.value == value) == wants_equal);
        (if is_deleted { Edit::Delete } else { Edit::Keep }, is_deleted)
    })?;
    Ok(Reply::from(is_deleted == Some(true)))
}
