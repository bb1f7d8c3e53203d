//! The settings of a queue in the model: its rate is a bucket of tokens.

use super::ModelQueue;
use crate::tasks::{QueueChange, Rate};

/// A bucket of tokens, which is full in the beginning. Each lease takes one.
pub(super) struct ModelBucket {
    pub(super) rate: Rate,
    /// In nanoseconds of the time in which they come.
    pub(super) level: u64,
    pub(super) at: u64,
    /// The level, and its time, before the leases below.
    pub(super) base: (u64, u64),
    /// The tokens and times of leases that were not undone, since a start or the setting of the rate.
    pub(super) lends: Vec<(u64, u64)>,
}

impl ModelBucket {
    pub(super) fn interval(&self) -> u64 {
        (u64::from(self.rate.per) * 1_000_000).div_ceil(u64::from(self.rate.count))
    }

    pub(super) fn size(&self) -> u64 {
        self.interval() * u64::from(self.rate.burst)
    }

    pub(super) fn refill(&mut self, now: u64) {
        let came = (now - self.at).saturating_mul(1_000_000);
        (self.level, self.at) = (self.level.saturating_add(came).min(self.size()), now);
    }

    pub(super) fn lend(&mut self, token: u64, now: u64) {
        self.refill(now);
        self.level -= self.interval();
        self.lends.push((token, now));
    }

    /// All is as if there had been no such lease.
    fn undo(&mut self, undone: u64, now: u64) {
        let before = self.lends.clone();
        (self.level, self.at) = self.base;
        self.lends.clear();
        for (token, at) in before.into_iter().filter(|(token, _)| *token != undone) {
            self.lend(token, at);
        }
        self.refill(now);
    }

    /// What was lent before is known no more.
    pub(super) fn begin(&mut self) {
        self.base = (self.level, self.at);
        self.lends.clear();
    }
}

impl ModelQueue {
    /// The lease of a task was no try.
    pub(super) fn untry(&mut self, key: &[u8], token: u64) {
        self.tasks.get_mut(key).unwrap().lent -= 1;
        if let Some(bucket) = &mut self.bucket {
            bucket.undo(token, self.now);
        }
    }

    pub(super) fn configure(&mut self, change: &QueueChange) {
        let &QueueChange { tries, backoff, group_limit, rate, pause, .. } = change;
        if let Some(limit) = group_limit {
            self.terms.group_limit = limit;
            self.take_turns(None);
        }
        self.terms.tries = tries.unwrap_or(self.terms.tries);
        self.terms.backoff = backoff.unwrap_or(self.terms.backoff);
        if let Some(pause) = pause {
            self.paused_until = if pause == 0 { 0 } else { self.now.saturating_add(pause) };
        }
        if let Some(rate) = rate {
            let mut before = self.bucket.take();
            let missing = before.as_mut().map_or(0, |bucket| {
                bucket.refill(self.now);
                bucket.size() - bucket.level
            });
            self.bucket = rate.map(|rate| {
                let mut bucket = ModelBucket { rate, level: 0, at: self.now, base: (0, 0), lends: Vec::new() };
                bucket.level = bucket.size().saturating_sub(missing);
                bucket.begin();
                bucket
            });
        }
    }
}
