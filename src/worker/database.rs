//! A slot that works off a database: it claims some events, stores their values and commits, in one transaction.
//!
//! An event for which there was no good value is pending again at once. It would be the first that is found again, before all others: so
//! for a while this slot asks for those that are not.
//!
//! What is not here: the statements (`protocols::events`).

use std::collections::VecDeque;

use super::{Notice, PAUSE, Shop};
use crate::clock::{Clock, Now};
use crate::limits::{CLAIM_JITTER, CLAIM_PAUSE, FAILED_EVENT_PAUSE, FAILED_EVENTS_MAX};
use crate::protocols::events::mysql::claims::{Claims, Stored};

/// Works until it is told to stop.
pub(super) fn work(shop: &Shop, mut claims: Claims) {
    let mut notice = Notice::default();
    let mut failed = Failed { clock: Clock::start(), events: VecDeque::new() };
    while !shop.stopper.is_told() {
        match claims.claim(shop.config.claim, &failed.recent()) {
            Ok(ids) if ids.is_empty() => {
                notice.back();
                shop.pause(CLAIM_PAUSE, CLAIM_JITTER);
            }
            Ok(ids) => {
                notice.back();
                let values = values(shop, &ids, &mut failed);
                store(shop, &mut claims, values);
            }
            Err(error) => {
                notice.gone(&error.to_string());
                shop.pause(PAUSE, PAUSE);
            }
        }
    }
    shop.retried(claims.retries());
}

/// The values of those that get a good one. When it is told to stop the rest is left out.
fn values(shop: &Shop, ids: &[u64], failed: &mut Failed) -> Vec<(u64, String)> {
    let mut values = Vec::with_capacity(ids.len());
    for &id in ids {
        if shop.config.command.is_some() && shop.stopper.is_told() {
            break;
        }
        match shop.value(id, || true) {
            Ok(value) => values.push((id, value)),
            Err(why) => {
                shop.given_back(id, &why);
                failed.push(id);
            }
        }
    }
    values
}

fn store(shop: &Shop, claims: &mut Claims, values: Vec<(u64, String)>) {
    match claims.store(&values) {
        Stored::Done => values.iter().for_each(|(id, value)| shop.stored(*id, value)),
        Stored::Lost(why) => values.iter().for_each(|(id, _)| shop.lost(*id, &why)),
        Stored::Unknown(why) => {
            let why = format!("the database went away while it committed: {why}");
            values.iter().for_each(|(id, _)| shop.lost(*id, &why));
        }
    }
}

/// Events that have failed lately, and until when they are left to others.
struct Failed {
    clock: Clock,
    events: VecDeque<(u64, Now)>,
}

impl Failed {
    fn push(&mut self, id: u64) {
        self.events.push_back((id, self.clock.now().after(FAILED_EVENT_PAUSE)));
        if self.events.len() > FAILED_EVENTS_MAX {
            self.events.pop_front();
        }
    }

    fn recent(&mut self) -> Vec<u64> {
        let now = self.clock.now();
        while self.events.pop_front_if(|(_, until)| *until <= now).is_some() {}
        self.events.iter().map(|(id, _)| *id).collect()
    }
}
