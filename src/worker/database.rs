//! A slot on a database: it claims some events, stores their values and commits, in one transaction.
//!
//! An event without a good value is pending again at once, and would be the first that the next search finds. So the
//! slot continues behind it, and begins again from the front when it finds no more events.
//!
//! This module contains no SQL statements; see `services::events`.

use super::{PAUSE, SourceNotice, WorkerShared};
use crate::limits::{CLAIM_JITTER, CLAIM_PAUSE};
use crate::services::events::mysql::claims::{Claims, StoreOutcome};

/// Runs the slot until the worker is stopped.
pub(super) fn work(shared: &WorkerShared, mut claims: Claims) {
    let mut notice = SourceNotice::default();
    // The next search begins behind this event. 0: from the front.
    let mut after = 0;
    while !shared.control.stopper.is_stopping() {
        match claims.claim(shared.config.claim, after) {
            Ok(ids) if ids.is_empty() => {
                notice.back();
                after = 0;
                shared.pause(CLAIM_PAUSE, CLAIM_JITTER);
            }
            Ok(ids) => {
                notice.back();
                let values = values(shared, &ids, &mut after);
                if !store(shared, &mut claims, &values) {
                    after = values.iter().map(|(id, _)| *id).fold(after, u64::max);
                    shared.pause(PAUSE, PAUSE);
                }
            }
            Err(error) => {
                notice.gone(&error.to_string());
                shared.pause(PAUSE, PAUSE);
            }
        }
    }
    shared.retried(claims.retries());
}

/// Returns the values of the events that got a good one. Leaves out the rest when the worker is stopped.
fn values(shared: &WorkerShared, ids: &[u64], after: &mut u64) -> Vec<(u64, String)> {
    let mut values = Vec::with_capacity(ids.len());
    for &id in ids {
        if shared.config.command.is_some() && shared.control.stopper.is_stopping() {
            break;
        }
        // The rows are locked as long as the transaction lasts.
        match shared.value(id, || Some(shared.config.lease)) {
            Ok(value) => values.push((id, value)),
            Err(why) => {
                shared.given_back(id, &why);
                *after = id.max(*after);
            }
        }
    }
    values
}

/// Stores the values. Returns whether the database stored them.
fn store(shared: &WorkerShared, claims: &mut Claims, values: &[(u64, String)]) -> bool {
    match claims.store(values) {
        StoreOutcome::Done => {
            values.iter().for_each(|(id, value)| shared.stored(*id, value));
            true
        }
        StoreOutcome::Lost(why) => {
            values.iter().for_each(|(id, _)| shared.lost(*id, &why));
            false
        }
        StoreOutcome::Unknown(why) => {
            let why = format!("the database went away while it committed: {why}");
            values.iter().for_each(|(id, _)| shared.lost(*id, &why));
            false
        }
    }
}
