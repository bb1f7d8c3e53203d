//! Scripts of sliding windows: two counters, that of the window of before and that of the window of now.
//!
//! ```text
//! KEYS[1]  previous   counts for the time that it has left: count × left / length
//! KEYS[2]  current    lives for two lengths, and becomes the previous one when a length is over
//! ```

use std::borrow::Cow;

use super::lua;
use super::run::{CallTime, Outcome, ScriptError, ScriptRun, compares, factor, passed, rounded};
use crate::services::resp::answer::Reply;

const PREVIOUS: usize = 0;
const CURRENT: usize = 1;

/// PTTL, RENAME, SET PX: if the current window is over, it becomes the previous one. The place is that of SET.
fn shift(run: &mut ScriptRun<'_, '_>, place: usize, left: i64, length: f64) -> Result<(), ScriptError> {
    if left > 0 && rounded(left) < length {
        run.rename(place, [CURRENT, PREVIOUS])?;
        let time = CallTime::millis(passed(Some(rounded(left) + length)));
        run.set(place, CURRENT, Some(Cow::Borrowed(b"0")), Some(time))?;
    }
    Ok(())
}

/// GET and PTTL of both windows.
pub(super) fn look(run: &mut ScriptRun<'_, '_>) -> Outcome {
    let length = factor(0, run.number(0))? * 1_000.0;
    run.get(1, PREVIOUS)?;
    let left = run.millis_left(2, CURRENT)?;
    shift(run, 3, left, length)?;
    let mut reply = Vec::with_capacity(4);
    for window in [PREVIOUS, CURRENT] {
        reply.push(run.get(1, window)?.map_or(Reply::Null, |count| Reply::bulk(count.to_vec())));
        reply.push(Reply::Integer(run.millis_left(1, window)?));
    }
    Ok(Reply::Array(reply))
}

/// Counts hits, if both windows together have room for them.
pub(super) fn acquire(run: &mut ScriptRun<'_, '_>) -> Outcome {
    let (limit, length, amount) = (run.number(0), factor(0, run.number(1))? * 1_000.0, run.number(2));
    let (limit, amount) = match (limit, amount) {
        (Some(limit), Some(amount)) => (limit, amount),
        (Some(_), None) => return Err(compares(1, "number with nil")),
        (None, Some(_)) => return Err(compares(1, "nil with number")),
        (None, None) => return Err(compares(1, "two nil values")),
    };
    if amount > limit {
        return Ok(Reply::Null);
    }
    let left = run.millis_left(2, CURRENT)?;
    shift(run, 3, left, length)?;
    let mut count =
        |window| -> Result<f64, ScriptError> { Ok(run.get(2, window)?.and_then(lua::number).unwrap_or_default()) };
    let (previous, current) = (count(PREVIOUS)?, count(CURRENT)?);
    let left = rounded(run.millis_left(2, PREVIOUS)?.max(0));
    if (previous * left / length).floor() + current + amount > limit {
        return Ok(Reply::Null);
    }
    if run.exists(2, CURRENT)? {
        run.increment(4, CURRENT, passed(Some(amount)))?;
    } else {
        let time = CallTime::millis(passed(Some(length * 2.0)));
        run.set(5, CURRENT, passed(Some(amount)), Some(time))?;
    }
    Ok(Reply::Integer(1))
}
