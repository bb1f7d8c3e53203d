//! What a request that was refused as `Busy` waits for, and who wakes its session.
//!
//! This file carries out no request.

use std::sync::Arc;

use super::{Batch, LATCH, LATCH_RECHECK, LOG, MEMORY, Session, WAIT_RECHECK};

/// What a request waits for that was refused as `Busy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// For changes to be announced.
    Credits,
    /// For a table to be taken down.
    Tables,
    /// For memory that other threads give back. Changes that need no memory go on in the meantime.
    Memory,
    /// For a latch: another session holds that of the table, or this one waits for one.
    Latch,
    /// For the log to take what the session has recorded.
    Log,
}

impl Batch<'_> {
    /// What the request that was last refused as `Busy` waits for.
    #[must_use]
    pub fn lack(&self) -> Lack {
        match self.session.wanted.resource {
            0 => Lack::Tables,
            MEMORY => Lack::Memory,
            LATCH => Lack::Latch,
            LOG => Lack::Log,
            _ => Lack::Credits,
        }
    }
}

impl Session {
    /// Waits until a request that was refused as `Busy` is worth another try. The caller holds no guard.
    pub fn wait(&mut self) {
        if matches!(self.wanted.resource, 0 | MEMORY | LATCH | LOG) {
            let sleeper = Arc::clone(self.writer.sleeper());
            let recheck = if self.wanted.resource == LATCH { LATCH_RECHECK } else { WAIT_RECHECK };
            sleeper.park(recheck, || self.watch());
            if self.wanted.resource == LATCH {
                self.begin_tries();
            }
        } else {
            self.writer.wait(self.wanted.resource);
        }
    }

    /// Sets the waker of [`Session::watch`]. Other threads call it, so it must not block. The first waker stays.
    pub fn set_waker(&mut self, wake: Box<dyn Fn() + Send + Sync>) {
        self.writer.sleeper().set_waker(wake);
    }

    /// Whether the request that was last refused as `Busy` is worth another try now. If not, another thread calls the
    /// waker once when it is: when the missing credits and a portion more have come back, when a table has been taken
    /// down, or when memory was given back. The waker may be called at other times, and more often.
    ///
    /// Until then the session refuses as `Busy` every operation that needs credits, so that no later request
    /// overtakes a refused one. Reads continue. The caller calls this after each `Busy`, without a batch. To call it again
    /// while waiting for the waker registers the session only once.
    #[must_use]
    pub fn watch(&mut self) -> bool {
        match self.wanted.resource {
            0 => self.shared.reaper.watch(self.reaper_steps, self.writer.sleeper()),
            MEMORY => self.watch_memory(),
            LATCH => self.watch_latch(),
            LOG => self.effects.watch(self.writer.sleeper()),
            wanted => self.writer.watch(wanted, false),
        }
    }

    /// As [`Session::watch`], for the change that was last refused as `Busy` for want of credits, whichever request was
    /// refused after it. For an owner with waiting requests of several clients. The waker is called for a CREATE_TABLE
    /// that is `Busy` in any case. `overslept`: the owner has slept until its time-out, so credits that are there without
    /// a wake-up for it are counted as a lost wake-up.
    #[must_use]
    pub fn watch_changes(&mut self, overslept: bool) -> bool {
        self.writer.watch(self.wanted.credits, overslept)
    }

    #[cfg(test)]
    pub(crate) fn lose_wake_up(&mut self) {
        self.writer.lose_wake_up();
    }

    /// As [`Session::watch`], for the changes that were refused as `Busy` because memory has to be given back or
    /// measured first ([`Lack::Memory`]).
    #[must_use]
    pub fn watch_memory(&mut self) -> bool {
        self.garbage.sweep();
        self.acknowledge();
        let has_room = self.effects.watch(self.writer.sleeper());
        self.shared.compactor.watch(self.writer.sleeper(), self.local_budget.awaited_look()) && has_room
    }
}
