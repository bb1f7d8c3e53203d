//! Commands about a value: it is read, stored, and changed in part.

use std::borrow::Cow;

use crate::feed::Cause;
use crate::services::resp::answer::{Answer, Failure, OK, Reply, SYNTAX, refused};
use crate::services::resp::arguments::{Arguments, TimeUnit, invalid_time, is, number};
use crate::services::resp::call::{Call, check_length};
use crate::tables::{Deadline, Edit, ElementView};

pub(in super::super) fn get<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [key] = arguments.exactly()?;
    Ok(call.get(key)?.into())
}

pub(in super::super) fn strlen<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [key] = arguments.exactly()?;
    Ok(Reply::count(call.get(key)?.map_or(0, <[u8]>::len)))
}

/// When SET stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition<'b> {
    Always,
    /// The key has no element.
    Absent,
    /// It has one.
    Present,
    /// It has this value.
    Equal(&'b [u8]),
    /// It has not.
    Unequal(&'b [u8]),
}

impl Condition<'_> {
    fn holds(self, old: Option<ElementView<'_>>) -> bool {
        match self {
            Self::Always => true,
            Self::Absent => old.is_none(),
            Self::Present => old.is_some(),
            Self::Equal(value) => old.is_some_and(|old| old.value == value),
            Self::Unequal(value) => old.is_none_or(|old| old.value != value),
        }
    }
}

/// What SET is asked for.
#[derive(Clone, Copy, Debug)]
struct SetOptions<'b> {
    condition: Condition<'b>,
    returns_old: bool,
    keeps_ttl: bool,
    time: Option<(TimeUnit, &'b [u8])>,
}

impl<'b> SetOptions<'b> {
    const NONE: Self = Self { condition: Condition::Always, returns_old: false, keeps_ttl: false, time: None };

    fn parse(mut options: &'b [&'b [u8]]) -> Result<Self, Failure> {
        let mut parsed = Self::NONE;
        while let Some((option, rest)) = options.split_first() {
            let is_free = |condition| [Condition::Always, condition].contains(&parsed.condition);
            options = rest;
            if is(option, "nx") && is_free(Condition::Absent) {
                parsed.condition = Condition::Absent;
            } else if is(option, "xx") && is_free(Condition::Present) {
                parsed.condition = Condition::Present;
            } else if is(option, "get") {
                parsed.returns_old = true;
            } else if is(option, "keepttl") && parsed.time.is_none() {
                parsed.keeps_ttl = true;
            } else {
                let (value, behind) = rest.split_first().ok_or(SYNTAX)?;
                options = behind;
                parsed.add_with_value(option, value)?;
            }
        }
        Ok(parsed)
    }

    fn add_with_value(&mut self, option: &[u8], value: &'b [u8]) -> Result<(), Failure> {
        let is_condition = self.condition == Condition::Always;
        match TimeUnit::of_option(option) {
            Some(unit) if !self.keeps_ttl && self.time.is_none_or(|(other, _)| other == unit) => {
                self.time = Some((unit, value));
            }
            None if is(option, "ifeq") && is_condition => self.condition = Condition::Equal(value),
            None if is(option, "ifne") && is_condition => self.condition = Condition::Unequal(value),
            _ => return Err(SYNTAX),
        }
        Ok(())
    }
}

/// The deadline of a time that must be in the future, or may not be: at least 1.
pub(super) fn deadline_of(
    call: &Call<'_, '_>,
    unit: TimeUnit,
    time: &[u8],
    command: &str,
) -> Result<Deadline, Failure> {
    let times = call.times();
    let millis = Some(number(time)?).filter(|time| *time > 0).and_then(|time| unit.unix_millis(time, times.now()));
    millis.and_then(|millis| times.deadline(millis)).ok_or_else(|| invalid_time(command))
}

pub(in super::super) fn set<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let ([key, value], options) = arguments.split()?;
    let options = SetOptions::parse(options)?;
    let deadline = match options.time {
        _ if options.keeps_ttl => Deadline::KEEP,
        None => Deadline::NONE,
        Some((unit, time)) => deadline_of(call, unit, time, "set")?,
    };
    store(call, key, value, deadline, options)
}

/// Stores a value on a condition.
fn store<'b>(
    call: &'b mut Call<'_, '_>,
    key: &[u8],
    value: &'b [u8],
    deadline: Deadline,
    options: SetOptions<'b>,
) -> Answer<'b> {
    check_length(value.len(), call.value_max())?;
    if options.condition == Condition::Always && !options.returns_old {
        call.batch.update(&call.client.table, key, value, deadline)?;
        return Ok(OK);
    }
    let ((old, is_stored), _) = call.edit(key, |old| {
        let is_stored = options.condition.holds(old);
        let edit = match is_stored {
            true => Edit::Store { value: Cow::Borrowed(value), deadline, cause: Cause::Set },
            false => Edit::Keep,
        };
        (edit, (old.map(|old| old.value), is_stored))
    })?;
    Ok(match (options.returns_old, is_stored) {
        (true, _) => old.into(),
        (false, true) => OK,
        (false, false) => Reply::Null,
    })
}

pub(in super::super) fn setnx<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [key, value] = arguments.exactly()?;
    let options = SetOptions { condition: Condition::Absent, ..SetOptions::NONE };
    Ok(Reply::from(store(call, key, value, Deadline::NONE, options)? == OK))
}

pub(in super::super) fn setex<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [key, time, value] = arguments.exactly()?;
    let deadline = deadline_of(call, TimeUnit::Seconds, time, "setex")?;
    store(call, key, value, deadline, SetOptions::NONE)
}

pub(in super::super) fn psetex<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [key, time, value] = arguments.exactly()?;
    let deadline = deadline_of(call, TimeUnit::Millis, time, "psetex")?;
    store(call, key, value, deadline, SetOptions::NONE)
}

pub(in super::super) fn getset<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [key, value] = arguments.exactly()?;
    store(call, key, value, Deadline::NONE, SetOptions { returns_old: true, ..SetOptions::NONE })
}

pub(in super::super) fn getdel<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [key] = arguments.exactly()?;
    Ok(call.edit_present(key, |old| (Edit::Delete, old.value))?.into())
}

pub(in super::super) fn getex<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let ([key], options) = arguments.split()?;
    let (mut time, mut persists, mut left) = (None, false, options);
    while let Some((option, rest)) = left.split_first() {
        left = rest;
        if is(option, "persist") && time.is_none() {
            persists = true;
            continue;
        }
        let unit = TimeUnit::of_option(option).filter(|_| !persists).ok_or(SYNTAX)?;
        let (value, behind) = rest.split_first().ok_or(SYNTAX)?;
        if time.is_some_and(|(other, _)| other != unit) {
            return Err(SYNTAX);
        }
        (time, left) = (Some((unit, *value)), behind);
    }
    let Some((unit, value)) = time else {
        return if persists { persist_and_get(call, key) } else { Ok(call.get(key)?.into()) };
    };
    // Of an absent key the time is not looked at, as in Redis.
    if call.get(key)?.is_none() {
        return Ok(Reply::Null);
    }
    let deadline = deadline_of(call, unit, value, "getex")?;
    let now = call.times().now();
    let has_passed = unit.unix_millis(number(value)?, now).is_some_and(|at| at <= now);
    let value = call.edit_present(key, |old| {
        let edit = Edit::Store { value: Cow::Borrowed(old.value), deadline, cause: Cause::Touch };
        // A deadline that has passed deletes at once, as in Redis.
        (if has_passed { Edit::Delete } else { edit }, old.value)
    })?;
    Ok(value.into())
}

fn persist_and_get<'b>(call: &'b mut Call<'_, '_>, key: &[u8]) -> Answer<'b> {
    let value = call.edit_present(key, |old| {
        let stays = Edit::Store { value: old.value.into(), deadline: Deadline::NONE, cause: Cause::Persist };
        (if old.deadline.is_some() { stays } else { Edit::Keep }, old.value)
    })?;
    Ok(value.into())
}

pub(in super::super) fn append<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [key, end] = arguments.exactly()?;
    let most = call.value_max();
    let (length, _) = call.edit(key, |old| {
        let value = [old.map_or(&[][..], |old| old.value), end].concat();
        let length = check_length(value.len(), most).map(|()| value.len());
        let deadline = if old.is_some() { Deadline::KEEP } else { Deadline::NONE };
        let edit = Edit::Store { value: Cow::Owned(value), deadline, cause: Cause::Append };
        (if length.is_ok() { edit } else { Edit::Keep }, length)
    })?;
    Ok(Reply::count(length?))
}

pub(in super::super) fn getrange<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [key, start, end] = arguments.exactly()?;
    let (start, end) = (number(start)?, number(end)?);
    let value = call.get(key)?.unwrap_or_default();
    let length = i64::try_from(value.len()).unwrap_or(i64::MAX);
    // A negative place counts from the end.
    let place = |at: i64| if at < 0 { at.saturating_add(length).max(0) } else { at };
    let is_empty = start < 0 && end < 0 && start > end;
    let (start, end) = (place(start), place(end).min(length - 1));
    let range = usize::try_from(start).ok().zip(usize::try_from(end).ok()).filter(|_| !is_empty);
    Ok(Reply::bulk(range.and_then(|(start, end)| value.get(start..=end)).unwrap_or_default()))
}

pub(in super::super) fn setrange<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [key, offset, part] = arguments.exactly()?;
    let offset = number(offset)?;
    let offset = usize::try_from(offset).map_err(|_| refused("ERR offset is out of range"))?;
    if part.is_empty() {
        return Ok(Reply::count(call.get(key)?.map_or(0, <[u8]>::len)));
    }
    let end = offset.saturating_add(part.len());
    check_length(end, call.value_max())?;
    let (length, _) = call.edit(key, |old| {
        let mut value = old.map_or_else(Vec::new, |old| old.value.to_vec());
        value.resize(value.len().max(end), 0);
        if let Some(place) = value.get_mut(offset..end) {
            place.copy_from_slice(part);
        }
        let length = value.len();
        let deadline = if old.is_some() { Deadline::KEEP } else { Deadline::NONE };
        (Edit::Store { value: Cow::Owned(value), deadline, cause: Cause::SetRange }, length)
    })?;
    Ok(Reply::count(length))
}
