//! Commands that add to a number.

use std::borrow::Cow;

use crate::feed::Cause;
use crate::services::resp::answer::{Answer, Failure, Reply, refused};
use crate::services::resp::arguments::{Arguments, number};
use crate::services::resp::call::{Call, check_length};
use crate::services::resp::decimal::{AddError, add};
use crate::tables::{Addition, Deadline, Edit};

pub(in super::super) fn incr<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [key] = arguments.exactly()?;
    increment(call, key, 1)
}

pub(in super::super) fn decr<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [key] = arguments.exactly()?;
    increment(call, key, -1)
}

pub(in super::super) fn incrby<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [key, delta] = arguments.exactly()?;
    increment(call, key, number(delta)?)
}

pub(in super::super) fn decrby<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [key, delta] = arguments.exactly()?;
    let delta = number(delta)?.checked_neg().ok_or_else(|| refused("ERR decrement would overflow"))?;
    increment(call, key, delta)
}

fn increment<'b>(call: &'b mut Call<'_, '_>, key: &[u8], delta: i64) -> Answer<'b> {
    let addition = Addition { delta, deadline: Deadline::NONE, value_max: call.value_max() };
    let (sum, _) = call.batch.increment(&call.client.table, key, addition)?;
    Ok(Reply::Integer(sum))
}

pub(in super::super) fn incrbyfloat<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [key, increment] = arguments.exactly()?;
    let most = call.value_max();
    let (sum, _) = call.edit(key, |old| {
        let sum = add(old.map_or(&b"0"[..], |old| old.value), increment).map_err(float_refused);
        let sum = sum.and_then(|sum| check_length(sum.len(), most).map(|()| sum));
        match sum {
            Ok(sum) => {
                let deadline = if old.is_some() { Deadline::KEEP } else { Deadline::NONE };
                let value = Cow::Owned(sum.clone());
                (Edit::Store { value, deadline, cause: Cause::IncrementByFloat }, Ok(sum))
            }
            Err(failure) => (Edit::Keep, Err(failure)),
        }
    })?;
    Ok(Reply::bulk(sum?))
}

fn float_refused(error: AddError) -> Failure {
    match error {
        AddError::NotAFloat => refused("ERR value is not a valid float"),
        AddError::NotFinite => refused("ERR increment would produce NaN or Infinity"),
    }
}
