//! The reaper's part of ALTER_TABLE: it finishes what nobody carries on, since the client that asked is gone.
//!
//! ```text
//! a table is coming ─► nobody has made a step for a second ─► left: a step in each turn ─► durable, or in memory again
//! ```
//! A client that comes back makes steps too: all of them share one walk.
//!
//! This file decides no durability: see `batch/alter.rs`.

use std::time::Duration;

use super::RECHECK;
use crate::clock::Now;
use crate::tables::TablesShared;
use crate::tables::batch::Session;
use crate::tables::table::canonical;

/// How long a table may stand still that is coming.
const STANDSTILL_MAX: Duration = Duration::from_secs(1);

/// A table that is coming.
struct ComingTable {
    /// The life in its records.
    incarnation: u64,
    name: Box<[u8]>,
    /// The position of the walk when it was last seen to move.
    walked: Option<u64>,
    moved: Now,
    /// Nobody carries it on.
    is_left: bool,
}

/// The tables that are coming.
#[derive(Default)]
pub(super) struct Finisher {
    coming: Vec<ComingTable>,
}

impl Finisher {
    /// How long the reaper may wait before its next step.
    pub(super) fn patience(&self) -> Duration {
        match self.coming.iter().any(|table| table.is_left) {
            true => RECHECK,
            false if self.coming.is_empty() => Duration::MAX,
            false => STANDSTILL_MAX,
        }
    }

    /// Makes the next step of one table that is left.
    pub(super) fn step(&mut self, shared: &TablesShared, session: &mut Session, now: Now) {
        if shared.epochs.take_coming() {
            self.gather(shared, now);
        }
        if self.coming.is_empty() {
            return;
        }
        self.look(shared, now);
        if let Some(left) = self.coming.iter().find(|table| table.is_left) {
            // Whatever has come of it, the next look shows it.
            let _outcome = session.batch(now).finish_altering(&left.name);
        } else {
            session.give_up_latch();
        }
        session.forget_met_latches();
    }

    /// Finds the tables that have begun to come.
    fn gather(&mut self, shared: &TablesShared, now: Now) {
        for (incarnation, table) in shared.epochs.tables().iter().filter(|(_, table)| table.durability.is_coming()) {
            if !self.coming.iter().any(|known| known.incarnation == incarnation) {
                let (name, walked) = (canonical(table.announced_name()).into(), table.durability.walked());
                self.coming.push(ComingTable { incarnation, name, walked, moved: now, is_left: false });
            }
        }
    }

    /// Forgets the tables that have come or are gone, and sees which of the others stand still.
    fn look(&mut self, shared: &TablesShared, now: Now) {
        let tables = shared.epochs.tables();
        self.coming.retain_mut(|known| {
            let table = tables.get(known.incarnation).filter(|table| table.durability.is_coming());
            let Some(table) = table else { return false };
            let walked = table.durability.walked();
            if walked != known.walked {
                (known.walked, known.moved) = (walked, now);
            }
            known.is_left |= now >= known.moved.after(STANDSTILL_MAX);
            true
        });
    }
}
