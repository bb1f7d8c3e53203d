//! Scripts of counters that expire, of limiters of rates, and of numbers that only grow.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::lua;
use super::run::{
    CallArgument, CallTime, Outcome, ScriptError, ScriptRun, compares, operand, passed, returned, rounded,
};
use crate::services::resp::answer::Reply;

const ONE: CallArgument<'static> = Some(Cow::Borrowed(b"1"));

/// INCRBY.
pub(super) fn increment(run: &mut ScriptRun<'_, '_>) -> Outcome {
    let delta = run.call_argument(0);
    Ok(returned(rounded(run.increment(0, 0, delta)?)))
}

/// EXISTS, INCRBY.
pub(super) fn increment_present(run: &mut ScriptRun<'_, '_>) -> Outcome {
    if !run.exists(0, 0)? {
        return Ok(Reply::Null);
    }
    let delta = run.call_argument(0);
    Ok(returned(rounded(run.increment(1, 0, delta)?)))
}

/// INCR, and EXPIRE of a new counter.
pub(super) fn count_for_seconds(run: &mut ScriptRun<'_, '_>) -> Outcome {
    let sum = run.increment(0, 0, ONE)?;
    if sum == 1 {
        let time = run.call_argument(0);
        run.expire(1, 0, CallTime::seconds(time))?;
    }
    Ok(returned(rounded(sum)))
}

/// INCRBY, and EXPIRE of a new counter.
pub(super) fn add_for_seconds(run: &mut ScriptRun<'_, '_>) -> Outcome {
    let amount = run.number(1);
    let sum = rounded(run.increment(0, 0, passed(amount))?);
    if Some(sum) == amount {
        let time = run.call_argument(0);
        run.expire(1, 0, CallTime::seconds(time))?;
    }
    Ok(returned(sum))
}

/// INCRBY, and PEXPIRE if the sum is 1.
pub(super) fn add_for_millis(run: &mut ScriptRun<'_, '_>) -> Outcome {
    let delta = run.call_argument(0);
    let sum = run.increment(0, 0, delta)?;
    if sum == 1 {
        let time = run.call_argument(1);
        run.expire(1, 0, CallTime::millis(time))?;
    }
    Ok(returned(rounded(sum)))
}

/// The reply of a limiter: the hits, and the milliseconds until they count no longer.
fn hits(hits: i64, left: f64) -> Reply<'static> {
    Reply::Array(vec![returned(rounded(hits)), returned(left)])
}

/// INCR, PTTL, PEXPIRE.
pub(super) fn hit(run: &mut ScriptRun<'_, '_>) -> Outcome {
    let count = run.increment(0, 0, ONE)?;
    let left = run.millis_left(0, 0)?;
    if left > 0 && run.argument(0) != Some(b"1") {
        return Ok(hits(count, rounded(left)));
    }
    let window = run.number(1);
    run.expire(1, 0, CallTime::millis(passed(window)))?;
    Ok(hits(count, window.unwrap_or_default()))
}

/// PTTL, SET PX or INCR, and PEXPIRE if the client wants it.
pub(super) fn hit_or_begin(run: &mut ScriptRun<'_, '_>) -> Outcome {
    let begins_anew = run.argument(0) == Some(b"1");
    let (window, outcome) = hit_in_window(run, 1)?;
    if begins_anew && let Reached::Counted(count, _) = outcome {
        run.expire(3, 0, CallTime::millis(passed(window)))?;
        return Ok(hits(count, window.unwrap_or_default()));
    }
    Ok(outcome.reply())
}

/// PTTL, SET PX or INCR.
pub(super) fn hit_until_end(run: &mut ScriptRun<'_, '_>) -> Outcome {
    Ok(hit_in_window(run, 0)?.1.reply())
}

/// What a hit has come to: it has begun a window of this length, or counts in one.
enum Reached {
    Begun(f64),
    Counted(i64, i64),
}

impl Reached {
    fn reply(self) -> Reply<'static> {
        match self {
            Self::Begun(window) => hits(1, window),
            Self::Counted(count, left) => hits(count, rounded(left)),
        }
    }
}

/// Counts a hit in a window as long as the argument of this number. Returns the length too.
fn hit_in_window(run: &mut ScriptRun<'_, '_>, argument: usize) -> Result<(Option<f64>, Reached), ScriptError> {
    let window = run.number(argument);
    let left = run.millis_left(0, 0)?;
    if left <= 0 {
        run.set(1, 0, ONE, Some(CallTime::millis(passed(window))))?;
        return Ok((window, Reached::Begun(window.unwrap_or_default())));
    }
    Ok((window, Reached::Counted(run.increment(2, 0, ONE)?, left)))
}

/// GET, PTTL.
pub(super) fn hits_and_time(run: &mut ScriptRun<'_, '_>) -> Outcome {
    let count = run.get(0, 0)?.map_or(Reply::Null, |value| Reply::bulk(value.to_vec()));
    Ok(Reply::Array(vec![count, Reply::Integer(run.millis_left(0, 0)?)]))
}

/// SET EX NX, INCRBY, PTTL, EXPIRE, a product.
pub(super) fn consume(run: &mut ScriptRun<'_, '_>) -> Outcome {
    let (points, seconds) = (run.call_argument(0), run.call_argument(1));
    run.set_if_absent(0, 0, Some(Cow::Borrowed(b"0")), CallTime::seconds(seconds.clone()))?;
    let consumed = run.increment(0, 0, points)?;
    let left = run.millis_left(0, 0)?;
    if left != -1 {
        return Ok(hits(consumed, rounded(left)));
    }
    run.expire(0, 0, CallTime::seconds(seconds))?;
    Ok(hits(consumed, 1_000.0 * operand(0, run.argument(1))?))
}

/// GET, PTTL or INCR, SET PX: the time until a caller may come again, or 0.
pub(super) fn wait_for_limit(run: &mut ScriptRun<'_, '_>) -> Outcome {
    const NOW: Reply<'static> = Reply::Integer(0);
    let (limit, time) = (run.number(0), run.call_argument(1));
    let current = run.get(0, 0)?.map_or(Some(0.0), lua::number);
    let current = current.ok_or_else(|| compares(1, "number with nil"))?;
    if current > 0.0 {
        let limit = limit.ok_or_else(|| compares(2, "nil with number"))?;
        if current + 1.0 > limit {
            return Ok(Reply::Integer(run.millis_left(0, 0)?));
        }
        run.increment(3, 0, ONE)?;
    } else {
        run.set(4, 0, ONE, Some(CallTime::millis(time)))?;
    }
    Ok(NOW)
}

/// GET, SET: stores a number that is greater than the value.
pub(super) fn raise(run: &mut ScriptRun<'_, '_>) -> Outcome {
    let next = run.number(0);
    if let Some(current) = run.get(0, 0)?.and_then(lua::number) {
        let next = next.ok_or_else(|| compares(1, "number with nil"))?;
        // A number that is none is below no other.
        if current.partial_cmp(&next) != Some(Ordering::Less) {
            return Ok(Reply::Null);
        }
    }
    run.set(2, 0, passed(next), None)?;
    Ok(returned(next.unwrap_or_default()))
}
