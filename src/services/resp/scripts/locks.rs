//! Scripts of locks. A key has the token of the client that holds the lock, and a deadline.

use super::run::{CallTime, Outcome, ScriptError, ScriptRun, operand, passed, rounded};
use crate::services::resp::answer::{OK, Reply, SYNTAX};
use crate::services::resp::arguments::TimeUnit;

const YES: Reply<'static> = Reply::Integer(1);
const NO: Reply<'static> = Reply::Integer(0);

/// What aioredlock returns to a client that does not hold the lock.
const HELD_BY_ANOTHER: ScriptError = ScriptError::Returned("ERR ERROR");

/// SET NX PX.
pub(super) fn acquire(run: &mut ScriptRun<'_, '_>) -> Outcome {
    let time = CallTime::millis(run.call_argument(1));
    let token = run.call_argument(0);
    Ok(if run.set_if_absent(0, 0, token, time)? { OK } else { Reply::Null })
}

/// GET, DEL.
pub(super) fn release(run: &mut ScriptRun<'_, '_>) -> Outcome {
    let holds = run.has(0, 0, 0)?;
    if holds {
        run.delete(0, 0)?;
    }
    Ok(holds.into())
}

/// GET, PEXPIRE.
pub(super) fn renew(run: &mut ScriptRun<'_, '_>) -> Outcome {
    if !run.has(0, 0, 0)? {
        return Ok(NO);
    }
    let time = run.call_argument(1);
    run.expire(1, 0, CallTime::millis(time))?;
    Ok(YES)
}

/// GET, PTTL, a sum, PEXPIRE: adds to the time that is left, or replaces it.
pub(super) fn extend(run: &mut ScriptRun<'_, '_>) -> Outcome {
    if !run.has(0, 0, 0)? {
        return Ok(NO);
    }
    let left = run.millis_left(1, 0)?;
    if left < 0 {
        return Ok(NO);
    }
    let time = match run.argument(2) {
        Some(b"0") => passed(Some(operand(2, run.argument(1))? + rounded(left))),
        _ => run.call_argument(1),
    };
    run.expire(3, 0, CallTime::millis(time))?;
    Ok(YES)
}

/// GET, PTTL: how long the client still holds the lock.
pub(super) fn time_held(run: &mut ScriptRun<'_, '_>) -> Outcome {
    if !run.has(0, 0, 0)? {
        return Ok(NO);
    }
    Ok(Reply::Integer(run.millis_left(1, 0)?.max(0)))
}

/// GET, SET, of a token with the value of another argument: SET with or without an option for its time.
pub(super) fn replace(run: &mut ScriptRun<'_, '_>) -> Outcome {
    if !run.has(0, 0, 1)? {
        return Ok(NO);
    }
    let value = run.call_argument(0);
    let time = match run.argument_count() {
        4 => {
            let unit = run.argument(2).and_then(TimeUnit::of_option).ok_or(ScriptError::Call(1, SYNTAX))?;
            Some(CallTime { unit, amount: run.call_argument(3) })
        }
        _ => None,
    };
    run.set(1, 0, value, time)?;
    Ok(OK)
}

/// GET, SET PX: takes the lock, or takes it anew.
pub(super) fn take(run: &mut ScriptRun<'_, '_>) -> Outcome {
    if run.exists(0, 0)? && !run.has(0, 0, 0)? {
        return Err(HELD_BY_ANOTHER);
    }
    let time = CallTime::millis(run.call_argument(1));
    let token = run.call_argument(0);
    run.set(1, 0, token, Some(time))?;
    Ok(OK)
}

/// GET, DEL: a lock that nobody holds is released.
pub(super) fn give_back(run: &mut ScriptRun<'_, '_>) -> Outcome {
    if !run.exists(0, 0)? {
        return Ok(OK);
    }
    if !run.has(0, 0, 0)? {
        return Err(HELD_BY_ANOTHER);
    }
    run.delete(0, 0)?;
    Ok(YES)
}

/// GET, TTL: seconds that the client still holds the lock.
pub(super) fn seconds_held(run: &mut ScriptRun<'_, '_>) -> Outcome {
    if !run.has(0, 0, 0)? {
        return Err(HELD_BY_ANOTHER);
    }
    let left = run.millis_left(0, 0)?;
    Ok(Reply::Integer(if left < 0 { left } else { (left + 500) / 1_000 }))
}

/// EXISTS of each key, SET PX of each key.
pub(super) fn acquire_all(run: &mut ScriptRun<'_, '_>) -> Outcome {
    for key in 0..run.key_count() {
        if run.exists(0, key)? {
            return Ok(NO);
        }
    }
    set_all(run)
}

/// GET of each key, SET PX of each key.
pub(super) fn extend_all(run: &mut ScriptRun<'_, '_>) -> Outcome {
    for key in 0..run.key_count() {
        if !run.has(0, key, 0)? {
            return Ok(NO);
        }
    }
    set_all(run)
}

fn set_all(run: &mut ScriptRun<'_, '_>) -> Outcome {
    for key in 0..run.key_count() {
        let time = CallTime::millis(run.call_argument(1));
        let token = run.call_argument(0);
        run.set(1, key, token, Some(time))?;
    }
    Ok(Reply::count(run.key_count()))
}

/// GET and DEL of each key: how many the client has held.
pub(super) fn release_all(run: &mut ScriptRun<'_, '_>) -> Outcome {
    let mut released = 0;
    for key in 0..run.key_count() {
        if run.has(0, key, 0)? {
            run.delete(0, key)?;
            released += 1;
        }
    }
    Ok(Reply::count(released))
}
