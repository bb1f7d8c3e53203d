//! A slot that works off a database: it claims some events, stores their values and commits, in one transaction.
//!
//! An event for which there was no good value is pending again at once, and would be the first that is found again, before all others:
//! so the slot goes on behind it, and begins again from the front when it finds nothing more.
//!
//! What is not here: the statements (`protocols::events`).

use super::{PAUSE, SourceNotice, WorkerShared};
use crate::limits::{CLAIM_JITTER, CLAIM_PAUSE};
use crate::protocols::events::mysql::claims::{Claims, StoreOutcome};

/// Works until it is told to stop.
pub(super) fn work(shared: &WorkerShared, mut claims: Claims) {
    let mut notice = SourceNotice::default();
    // Behind this event it is looked next; 0: from the front.
    let mut after = 0;
    while !shared.stopper.is_told() {
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

/// The values of those that get a good one. When it is told to stop the rest is left out.
fn values(shared: &WorkerShared, ids: &[u64], after: &mut u64) -> Vec<(u64, String)> {
    let mut values = Vec::with_capacity(ids.len());
    for &id in ids {
        if shared.config.command.is_some() && shared.stopper.is_told() {
            break;
        }
        match shared.value(id, || true) {
            Ok(value) => values.push((id, value)),
            Err(why) => {
                shared.given_back(id, &why);
                *after = id.max(*after);
            }
        }
    }
    values
}

/// Whether they are stored, or may be.
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
