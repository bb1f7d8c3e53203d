//! Commands about how a value is kept, and values in the format of Redis.

use std::borrow::Cow;

use crate::feed::Cause;
use crate::resp3::integer;
use crate::services::resp::answer::{Answer, Failure, OK, Reply, SYNTAX, TOO_LONG, refused};
use crate::services::resp::arguments::{Arguments, TimeUnit, is, lower, number};
use crate::services::resp::call::Call;
use crate::services::resp::dump::{RestoreError, dump as dumped, restore as restored};
use crate::services::resp::subcommands::{unknown_subcommand, wrong_number};
use crate::tables::{Deadline, Edit, bytes_of_element};

/// The longest value that Redis keeps together with its head, in bytes.
const EMBEDDED_BYTES_MAX: usize = 44;
/// The longest number that Redis keeps as one, in bytes.
const NUMBER_BYTES_MAX: usize = 20;

pub(in super::super) fn object<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let ([verb], rest) = arguments.split()?;
    match (&*lower(verb), rest) {
        ("encoding", [key]) => Ok(call.get(key)?.map_or(Reply::Null, |value| Reply::string(encoding(value)))),
        ("refcount", [key]) => Ok(call.get(key)?.map_or(Reply::Null, |_| Reply::Integer(1))),
        ("encoding" | "refcount", _) => Err(wrong_number("object", &lower(verb))),
        _ => Err(unknown_subcommand(arguments)),
    }
}

/// How Redis would keep a value.
fn encoding(value: &[u8]) -> &'static str {
    if value.len() <= NUMBER_BYTES_MAX && integer(value).is_some() {
        "int"
    } else if value.len() <= EMBEDDED_BYTES_MAX {
        "embstr"
    } else {
        "raw"
    }
}

pub(in super::super) fn memory<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let ([verb], rest) = arguments.split()?;
    match (&*lower(verb), rest) {
        ("usage", [key]) => usage(call, key),
        ("usage", [key, option, samples]) if is(option, "samples") => {
            let _ = number(samples)?;
            usage(call, key)
        }
        ("usage", [_, _, ..]) => Err(SYNTAX),
        ("usage", _) => Err(wrong_number("memory", "usage")),
        _ => Err(unknown_subcommand(arguments)),
    }
}

fn usage<'b>(call: &'b mut Call<'_, '_>, key: &[u8]) -> Answer<'b> {
    let element = call.element(key)?;
    let bytes = element.map(|element| bytes_of_element(key.len(), element.value.len(), element.deadline.is_some()));
    Ok(bytes.map_or(Reply::Null, |bytes| Reply::Integer(i64::try_from(bytes).unwrap_or(i64::MAX))))
}

pub(in super::super) fn dump<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [key] = arguments.exactly()?;
    Ok(call.get(key)?.map_or(Reply::Null, |value| Reply::bulk(dumped(value))))
}

/// What RESTORE is asked for.
#[derive(Clone, Copy, Debug, Default)]
struct RestoreOptions {
    replaces: bool,
    is_absolute: bool,
}

impl RestoreOptions {
    fn parse(mut options: &[&[u8]]) -> Result<Self, Failure> {
        let (mut parsed, mut has_idle, mut has_frequency) = (Self::default(), false, false);
        while let Some((option, rest)) = options.split_first() {
            options = rest;
            if is(option, "replace") {
                parsed.replaces = true;
            } else if is(option, "absttl") {
                parsed.is_absolute = true;
            } else if is(option, "idletime") && !has_frequency {
                let (seconds, behind) = rest.split_first().ok_or(SYNTAX)?;
                if number(seconds)? < 0 {
                    return Err(refused("ERR Invalid IDLETIME value, must be >= 0"));
                }
                (has_idle, options) = (true, behind);
            } else if is(option, "freq") && !has_idle {
                let (frequency, behind) = rest.split_first().ok_or(SYNTAX)?;
                if !(0..=255).contains(&number(frequency)?) {
                    return Err(refused("ERR Invalid FREQ value, must be >= 0 and <= 255"));
                }
                (has_frequency, options) = (true, behind);
            } else {
                return Err(SYNTAX);
            }
        }
        Ok(parsed)
    }
}

pub(in super::super) fn restore<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    const BUSY: &str = "BUSYKEY Target key name already exists.";
    let ([key, ttl, payload], options) = arguments.split()?;
    let options = RestoreOptions::parse(options)?;
    if !options.replaces && call.get(key)?.is_some() {
        return Err(refused(BUSY));
    }
    let ttl = number(ttl)?;
    if ttl < 0 {
        return Err(refused("ERR Invalid TTL value, must be >= 0"));
    }
    let times = call.times();
    let unit = if options.is_absolute { TimeUnit::UnixMillis } else { TimeUnit::Millis };
    let value = restored(payload, call.value_max()).map_err(|error| match error {
        RestoreError::Checksum => refused("ERR DUMP payload version or checksum are wrong"),
        RestoreError::Format => refused("ERR Bad data format"),
        RestoreError::NotAString => refused("ERR only strings can be restored: the payload is of another type"),
        RestoreError::TooLong => TOO_LONG,
    })?;
    let deadline = match ttl {
        0 => Deadline::NONE,
        _ => unit
            .unix_millis(ttl, times.now())
            .and_then(|millis| times.deadline(millis))
            .ok_or_else(|| refused("ERR Invalid TTL value: the deadline is too far"))?,
    };
    let has_passed = ttl > 0 && unit.unix_millis(ttl, times.now()).is_some_and(|at| at <= times.now());
    let (is_stored, _) = call.edit(key, |old| {
        let stores = options.replaces || old.is_none();
        let edit = match stores {
            // A deadline that has passed deletes at once, as in Redis.
            true if has_passed => Edit::Delete,
            true => Edit::Store { value: Cow::Owned(value.clone()), deadline, cause: Cause::Restore },
            false => Edit::Keep,
        };
        (edit, stores)
    })?;
    if is_stored { Ok(OK) } else { Err(refused(BUSY)) }
}
