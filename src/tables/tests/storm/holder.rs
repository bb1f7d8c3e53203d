//! A client of a storm that holds audiences for a while, and finds that they receive changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::listener::PROBE;
use super::{KEPT, NAMES, OLD, PATIENCE, Stage, until};
use crate::seeded_rng::SeededRng;
use crate::tables::{AudienceKind, Batch, ChangeKind, Deadline, Refusal, Session};

/// A thread that holds audiences.
pub(super) struct Holder {
    stage: Arc<Stage>,
    session: Session,
    random: SeededRng,
    /// The number of its last probe, which no other holder's has.
    probes: u64,
}

impl Holder {
    pub(super) fn new(stage: &Arc<Stage>, seed: u64, number: u64) -> Self {
        let session = stage.tables.session();
        Self { stage: Arc::clone(stage), session, random: SeededRng(seed), probes: number << 32 }
    }

    /// Holds audiences until the round is over. Returns how many probes were received.
    pub(super) fn run(mut self) -> u64 {
        let mut received = 0;
        while !self.stage.is_over() {
            let table = if self.random.one_in(3) { KEPT } else { self.random.pick(NAMES) };
            let table = if self.random.one_in(5) { OLD } else { table };
            let holds_ends = self.stage.plan.holds_ends && self.random.one_in(2);
            received +=
                u64::from(self.hold(table, if holds_ends { AudienceKind::Ends } else { AudienceKind::Changes }));
        }
        received
    }

    /// Holds an audience of a table, and returns whether a change was made and received.
    fn hold(&mut self, table: &'static [u8], audience: AudienceKind) -> bool {
        let begun = Arc::new(AtomicBool::new(false));
        let (flag, waiter) = (Arc::clone(&begun), thread::current());
        let on_begun = Box::new(move || {
            flag.store(true, Ordering::Release);
            waiter.unpark();
        });
        let topic = if self.random.one_in(2) { [table, b"\0"].concat() } else { table.to_vec() };
        let _hold = self.session.hold_audience(&topic, audience, on_begun);
        if self.random.one_in(4) {
            return false;
        }
        assert!(until(PATIENCE, || begun.load(Ordering::Acquire)), "the audience of {topic:?} does not begin");
        self.probes += 1;
        let key = [PROBE, self.probes.to_string().as_bytes()].concat();
        let stored = self.change(|batch| batch.update(table, &key, b"probe", Deadline::NONE));
        let _deleted = self.change(|batch| batch.delete(table, &key).map(drop));
        // A deletion ends it, whether by this client or with its table.
        let kind = if audience == AudienceKind::Ends { ChangeKind::Deleted } else { ChangeKind::Updated };
        let probe = ((table.to_vec(), key), kind == ChangeKind::Updated);
        let is_received = || self.stage.received.lock().probes.remove(&probe);
        assert!(!stored || until(PATIENCE, is_received), "the audience of {topic:?} has not received {probe:?}");
        stored
    }

    /// Makes a change, unless it is refused.
    fn change(&mut self, mut change: impl FnMut(&mut Batch<'_>) -> Result<(), Refusal>) -> bool {
        loop {
            let outcome = change(&mut self.session.batch(self.stage.now()));
            match outcome {
                Err(Refusal::Busy) if !self.stage.is_over() => self.session.wait(),
                outcome => return outcome.is_ok(),
            }
        }
    }
}
