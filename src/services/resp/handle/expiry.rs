//! Commands about the time that an element has left.

use std::borrow::Cow;

use crate::feed::Cause;
use crate::services::resp::answer::{Answer, Failure, Reply, refused, refused_with};
use crate::services::resp::arguments::{Arguments, TimeUnit, invalid_time, is, number, shown};
use crate::services::resp::call::Call;
use crate::tables::{Deadline, Edit};

/// When EXPIRE and its kin set a deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Conditions {
    /// There is none.
    none: bool,
    /// There is one.
    some: bool,
    /// It is later than the one that there is. No deadline is the latest.
    later: bool,
    /// It is earlier.
    earlier: bool,
}

impl Conditions {
    fn parse(options: &[&[u8]]) -> Result<Self, Failure> {
        let mut parsed = Self::default();
        for option in options {
            let words = [("nx", &mut parsed.none), ("xx", &mut parsed.some)];
            let words = words.into_iter().chain([("gt", &mut parsed.later), ("lt", &mut parsed.earlier)]);
            let known = words.into_iter().find(|(word, _)| is(option, word));
            let unknown = || refused_with("ERR Unsupported option ", shown(option, usize::MAX), "");
            *known.ok_or_else(unknown)?.1 = true;
        }
        if parsed.none && (parsed.some || parsed.later || parsed.earlier) {
            return Err(refused("ERR NX and XX, GT or LT options at the same time are not compatible"));
        }
        if parsed.later && parsed.earlier {
            return Err(refused("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(parsed)
    }

    /// Whether a deadline of this time replaces the old one, both in milliseconds since 1970.
    fn hold(self, old: Option<i64>, new: i64) -> bool {
        !(self.none && old.is_some()
            || self.some && old.is_none()
            || self.later && old.is_none_or(|old| new <= old)
            || self.earlier && old.is_some_and(|old| new >= old))
    }
}

pub(in super::super) fn expire<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    set_deadline(call, arguments, TimeUnit::Seconds)
}

pub(in super::super) fn pexpire<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    set_deadline(call, arguments, TimeUnit::Millis)
}

pub(in super::super) fn expireat<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    set_deadline(call, arguments, TimeUnit::UnixSeconds)
}

pub(in super::super) fn pexpireat<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    set_deadline(call, arguments, TimeUnit::UnixMillis)
}

fn set_deadline<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>, unit: TimeUnit) -> Answer<'b> {
    let ([key, time], options) = arguments.split()?;
    let conditions = Conditions::parse(options)?;
    let (time, times) = (number(time)?, call.times());
    let invalid = || invalid_time(&arguments.name());
    let at = unit.unix_millis(time, times.now()).ok_or_else(invalid)?;
    let is_set = call.edit_present(key, |old| {
        let holds = conditions.hold(old.deadline.map(|deadline| times.unix_millis(deadline)), at);
        match times.deadline(at).filter(|_| holds) {
            // A deadline that has passed deletes at once, as in Redis.
            Some(_) if at <= times.now() => (Edit::Delete, Ok(true)),
            Some(deadline) => {
                let value = Cow::Borrowed(old.value);
                (Edit::Store { value, deadline, cause: Cause::Touch }, Ok(true))
            }
            None if holds => (Edit::Keep, Err(invalid())),
            None => (Edit::Keep, Ok(false)),
        }
    })?;
    Ok(Reply::from(is_set.transpose()? == Some(true)))
}

pub(in super::super) fn persist<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [key] = arguments.exactly()?;
    let had_one = call.edit_present(key, |old| {
        let stays = Edit::Store { value: old.value.into(), deadline: Deadline::NONE, cause: Cause::Persist };
        (if old.deadline.is_some() { stays } else { Edit::Keep }, old.deadline.is_some())
    })?;
    Ok(Reply::from(had_one == Some(true)))
}

pub(in super::super) fn ttl<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    remaining(call, arguments, |millis| (millis + 500) / 1_000)
}

pub(in super::super) fn pttl<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    remaining(call, arguments, |millis| millis)
}

fn remaining<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>, unit: fn(i64) -> i64) -> Answer<'b> {
    let [key] = arguments.exactly()?;
    let now = call.now;
    let left = call.element(key)?.map(|element| element.deadline.map(|deadline| now().millis_until(deadline)));
    Ok(Reply::Integer(match left {
        None => -2,
        Some(None) => -1,
        Some(Some(millis)) => unit(i64::try_from(millis).unwrap_or(i64::MAX)),
    }))
}

pub(in super::super) fn expiretime<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    deadline_of(call, arguments, |millis| (millis + 500) / 1_000)
}

pub(in super::super) fn pexpiretime<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    deadline_of(call, arguments, |millis| millis)
}

fn deadline_of<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>, unit: fn(i64) -> i64) -> Answer<'b> {
    let [key] = arguments.exactly()?;
    let times = call.times();
    Ok(Reply::Integer(match call.element(key)?.map(|element| element.deadline) {
        None => -2,
        Some(None) => -1,
        Some(Some(deadline)) => unit(times.unix_millis(deadline)),
    }))
}
