//! A script that is carried out: its elements, its arguments, and the calls of commands that it makes.
//!
//! Calls change a copy of each element. The copy is stored when the script ends. A script that ends with an error has
//! changed what it had changed before, as in Redis.
//!
//! ```text
//! element ─► ScriptElement ─► calls of the script ─► Edit
//! ```
//! This module does not know the tables, and reads no clock.

use std::borrow::Cow;

use super::lua;
use crate::feed::Cause;
use crate::resp3::integer;
use crate::services::resp::answer::{Failure, NOT_AN_INTEGER, Reply, refused};
use crate::services::resp::arguments::{TimeUnit, Times, invalid_time, number};
use crate::services::resp::call::check_length;
use crate::tables::{Deadline, Edit, ElementView};

/// What a script comes to.
pub(super) type Outcome = Result<Reply<'static>, ScriptError>;

/// An argument of a call. `None` is nil, which no command takes.
pub(super) type CallArgument<'b> = Option<Cow<'b, [u8]>>;

/// Why a script has ended before its end. A place is the number of a line among [`ScriptRow::lines`](super::ScriptRow).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum ScriptError {
    /// The call at this place was refused.
    Call(usize, Failure),
    /// Lua ends the script there.
    Lua(usize, Cow<'static, str>),
    /// The script returns an error.
    Returned(&'static str),
}

/// What a script cannot do with a value of another type.
pub(super) fn compares(place: usize, types: &'static str) -> ScriptError {
    ScriptError::Lua(place, format!("attempt to compare {types}").into())
}

/// A number that `tonumber` has read, in a sum or a product.
pub(super) fn factor(place: usize, number: Option<f64>) -> Result<f64, ScriptError> {
    number.ok_or_else(|| ScriptError::Lua(place, "attempt to perform arithmetic on a nil value".into()))
}

/// An argument of the script as a number, in a sum or a product.
pub(super) fn operand(place: usize, argument: Option<&[u8]>) -> Result<f64, ScriptError> {
    let kind = if argument.is_none() { "nil" } else { "string" };
    let words =
        || ScriptError::Lua(place, format!("attempt to perform arithmetic on field '?' (a {kind} value)").into());
    argument.and_then(lua::number).ok_or_else(words)
}

/// A number as an argument of a call.
pub(super) fn passed(number: Option<f64>) -> CallArgument<'static> {
    number.map(|number| Cow::Owned(lua::text(number).into_bytes()))
}

/// A number as Lua has it. Beyond 2^53 it is rounded.
#[allow(clippy::cast_precision_loss, reason = "Lua rounds it too")]
pub(super) fn rounded(number: i64) -> f64 {
    number as f64
}

/// The reply of a script that returns this number.
pub(super) fn returned(number: f64) -> Reply<'static> {
    Reply::Integer(lua::integer(number))
}

/// What a script may do, and when it is carried out.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct ScriptBounds {
    pub(in super::super) times: Times,
    /// The longest value, in bytes.
    pub(in super::super) value_max: usize,
}

/// An element as the calls of a script leave it.
#[derive(Debug)]
pub(in super::super) struct ScriptElement<'b> {
    bounds: ScriptBounds,
    value: Option<Cow<'b, [u8]>>,
    /// Milliseconds since 1970.
    deadline: Option<i64>,
    /// Whether the deadline is not the one that the element had.
    is_deadline_new: bool,
    /// Why it changes. `None`: it stays as it is.
    cause: Option<Cause>,
}

impl<'b> ScriptElement<'b> {
    /// The element as the script finds it.
    pub(in super::super) fn new(bounds: ScriptBounds, old: Option<ElementView<'b>>) -> Self {
        Self::of(bounds, old.map(|old| Cow::Borrowed(old.value)), old)
    }

    /// As [`ScriptElement::new`], with a copy of the value.
    pub(in super::super) fn copied(bounds: ScriptBounds, old: Option<ElementView<'_>>) -> Self {
        Self::of(bounds, old.map(|old| Cow::Owned(old.value.to_vec())), old)
    }

    fn of(bounds: ScriptBounds, value: Option<Cow<'b, [u8]>>, old: Option<ElementView<'_>>) -> Self {
        Self {
            bounds,
            value,
            deadline: old.and_then(|old| old.deadline).map(|deadline| bounds.times.unix_millis(deadline)),
            is_deadline_new: old.is_none(),
            cause: None,
        }
    }

    /// What becomes of the element.
    pub(in super::super) fn into_edit(self) -> Edit<Cow<'b, [u8]>> {
        let deadline = match self.is_deadline_new {
            true => self.deadline.and_then(|at| self.bounds.times.deadline(at)).unwrap_or(Deadline::NONE),
            false => Deadline::KEEP,
        };
        match (self.cause, self.value) {
            (None, _) => Edit::Keep,
            (Some(_), None) => Edit::Delete,
            (Some(cause), Some(value)) => Edit::Store { value, deadline, cause },
        }
    }

    fn delete(&mut self) {
        (self.value, self.deadline, self.is_deadline_new) = (None, None, true);
        self.cause = Some(Cause::Delete);
    }

    fn set(&mut self, value: Cow<'b, [u8]>, deadline: Option<i64>) -> Result<(), Failure> {
        check_length(value.len(), self.bounds.value_max)?;
        (self.value, self.deadline, self.is_deadline_new) = (Some(value), deadline, true);
        self.cause = Some(Cause::Set);
        Ok(())
    }

    fn increment(&mut self, delta: &[u8]) -> Result<i64, Failure> {
        let delta = number(delta)?;
        let old = self.value.as_ref().map_or(Some(0), |value| integer(value)).ok_or(NOT_AN_INTEGER)?;
        let sum = old.checked_add(delta).ok_or_else(|| refused("ERR increment or decrement would overflow"))?;
        self.value = Some(Cow::Owned(sum.to_string().into_bytes()));
        self.cause = Some(Cause::Increment);
        Ok(sum)
    }

    /// When the time of a SET is over.
    fn end_of_set(&self, unit: TimeUnit, time: &[u8]) -> Result<i64, Failure> {
        let times = self.bounds.times;
        let at = Some(number(time)?).filter(|time| *time > 0).and_then(|time| unit.unix_millis(time, times.now()));
        at.filter(|at| times.deadline(*at).is_some()).ok_or_else(|| invalid_time("set"))
    }

    fn expire(&mut self, unit: TimeUnit, time: &[u8]) -> Result<bool, Failure> {
        let times = self.bounds.times;
        let invalid = || invalid_time(if unit == TimeUnit::Seconds { "expire" } else { "pexpire" });
        let at = unit.unix_millis(number(time)?, times.now()).ok_or_else(invalid)?;
        if self.value.is_none() {
            return Ok(false);
        }
        times.deadline(at).ok_or_else(invalid)?;
        if at <= times.now() {
            self.delete();
        } else {
            (self.deadline, self.is_deadline_new) = (Some(at), true);
            self.cause = self.cause.or(Some(Cause::Touch));
        }
        Ok(true)
    }

    fn millis_left(&self) -> i64 {
        match (&self.value, self.deadline) {
            (None, _) => -2,
            (Some(_), None) => -1,
            (Some(_), Some(deadline)) => deadline.saturating_sub(self.bounds.times.now()).max(0),
        }
    }
}

/// A time as an argument of a call.
pub(super) struct CallTime<'t> {
    pub(super) unit: TimeUnit,
    pub(super) amount: CallArgument<'t>,
}

impl<'t> CallTime<'t> {
    pub(super) fn seconds(amount: CallArgument<'t>) -> Self {
        Self { unit: TimeUnit::Seconds, amount }
    }

    pub(super) fn millis(amount: CallArgument<'t>) -> Self {
        Self { unit: TimeUnit::Millis, amount }
    }
}

/// A script that is carried out. Each call names its place for its error.
pub(in super::super) struct ScriptRun<'r, 'b> {
    /// What KEYS names, each once.
    elements: &'r mut [ScriptElement<'b>],
    /// The element of each key.
    places: &'r [usize],
    /// What is ARGV in the script, from number 0 on.
    arguments: &'b [&'b [u8]],
}

impl<'r, 'b> ScriptRun<'r, 'b> {
    pub(in super::super) fn new(
        elements: &'r mut [ScriptElement<'b>],
        places: &'r [usize],
        arguments: &'b [&'b [u8]],
    ) -> Self {
        Self { elements, places, arguments }
    }

    /// How many keys there are.
    pub(super) fn key_count(&self) -> usize {
        self.places.len()
    }

    /// How many arguments there are.
    pub(super) fn argument_count(&self) -> usize {
        self.arguments.len()
    }

    /// The argument of this number. `None` is nil.
    pub(super) fn argument(&self, number: usize) -> Option<&'b [u8]> {
        self.arguments.get(number).copied()
    }

    /// The argument of this number, for a call.
    pub(super) fn call_argument(&self, number: usize) -> CallArgument<'b> {
        self.argument(number).map(Cow::Borrowed)
    }

    /// The argument of this number as `tonumber` reads it.
    pub(super) fn number(&self, number: usize) -> Option<f64> {
        self.argument(number).and_then(lua::number)
    }

    /// The element of this number.
    fn element(&mut self, place: usize, key: usize) -> Result<&mut ScriptElement<'b>, ScriptError> {
        let element = self.places.get(key).and_then(|element| self.elements.get_mut(*element));
        element.ok_or_else(|| nil(place))
    }

    pub(super) fn get(&mut self, place: usize, key: usize) -> Result<Option<&[u8]>, ScriptError> {
        Ok(self.element(place, key)?.value.as_deref())
    }

    /// Whether GET returns the argument of this number.
    pub(super) fn has(&mut self, place: usize, key: usize, argument: usize) -> Result<bool, ScriptError> {
        let argument = self.argument(argument);
        Ok(self.get(place, key)?.is_some_and(|value| argument == Some(value)))
    }

    pub(super) fn exists(&mut self, place: usize, key: usize) -> Result<bool, ScriptError> {
        Ok(self.get(place, key)?.is_some())
    }

    /// Deletes an element that exists.
    pub(super) fn delete(&mut self, place: usize, key: usize) -> Result<(), ScriptError> {
        self.element(place, key)?.delete();
        Ok(())
    }

    /// RENAME of an element that exists.
    pub(super) fn rename(&mut self, place: usize, [from, to]: [usize; 2]) -> Result<(), ScriptError> {
        let old = self.element(place, from)?;
        let moved = (old.value.clone(), old.deadline);
        old.delete();
        let new = self.element(place, to)?;
        (new.value, new.deadline) = moved;
        (new.is_deadline_new, new.cause) = (true, Some(Cause::RenameTo));
        Ok(())
    }

    /// PTTL. -1: there is no deadline. -2: there is no element.
    pub(super) fn millis_left(&mut self, place: usize, key: usize) -> Result<i64, ScriptError> {
        Ok(self.element(place, key)?.millis_left())
    }

    pub(super) fn increment(&mut self, place: usize, key: usize, delta: CallArgument<'_>) -> Result<i64, ScriptError> {
        let delta = given(place, delta)?;
        self.element(place, key)?.increment(&delta).map_err(at(place))
    }

    /// EXPIRE or PEXPIRE: whether there is an element.
    pub(super) fn expire(&mut self, place: usize, key: usize, time: CallTime<'_>) -> Result<bool, ScriptError> {
        let (unit, time) = (time.unit, given(place, time.amount)?);
        self.element(place, key)?.expire(unit, &time).map_err(at(place))
    }

    pub(super) fn set(
        &mut self,
        place: usize,
        key: usize,
        value: CallArgument<'b>,
        time: Option<CallTime<'_>>,
    ) -> Result<(), ScriptError> {
        let value = given(place, value)?;
        let deadline = match time {
            None => None,
            Some(time) => Some(self.end_of_set(place, key, time)?),
        };
        self.element(place, key)?.set(value, deadline).map_err(at(place))
    }

    /// SET with NX: whether there was no element.
    pub(super) fn set_if_absent(
        &mut self,
        place: usize,
        key: usize,
        value: CallArgument<'b>,
        time: CallTime<'_>,
    ) -> Result<bool, ScriptError> {
        let value = given(place, value)?;
        let deadline = self.end_of_set(place, key, time)?;
        let is_absent = !self.exists(place, key)?;
        if is_absent {
            self.element(place, key)?.set(value, Some(deadline)).map_err(at(place))?;
        }
        Ok(is_absent)
    }

    fn end_of_set(&mut self, place: usize, key: usize, time: CallTime<'_>) -> Result<i64, ScriptError> {
        let (unit, time) = (time.unit, given(place, time.amount)?);
        self.element(place, key)?.end_of_set(unit, &time).map_err(at(place))
    }
}

/// The error of a call with an argument that is nil.
fn nil(place: usize) -> ScriptError {
    ScriptError::Call(place, refused("ERR Lua redis lib command arguments must be strings or integers"))
}

/// An argument of a call that is not nil.
fn given(place: usize, argument: CallArgument<'_>) -> Result<Cow<'_, [u8]>, ScriptError> {
    argument.ok_or_else(|| nil(place))
}

/// The error of a call at this place.
fn at(place: usize) -> impl FnOnce(Failure) -> ScriptError {
    move |failure| ScriptError::Call(place, failure)
}
