//! Descriptors: one budget for the whole process, with a reserve that connections never take.
//!
//! ```text
//! 0 ……………………………………………………………………………… line ………………… limit
//! │ what is made at the start, and connections │ the reserve │
//! ```
//! The system gives out the lowest number that is free. So a connection whose number is on the line or above it has come when all
//! numbers below were taken; it is not kept, and whoever accepts pauses before that. What is opened later, the files of the store above
//! all, always finds the reserve. No counting is needed, and it holds for whoever accepts, libzmq too.
//!
//! What is not here: how accepting pauses (`protocols`).

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::limits::{DESCRIPTORS_RESERVED_MAX, STORE_FILES_MAX};
use crate::log::say;
use crate::stats::SharedCounter;

/// With fewer than this the server says so: a few thousand connections are nothing unusual.
const LOW: u64 = 4096;

/// The first number that no connection has. Written once, before anything is accepted; read by whoever accepts.
static LINE: AtomicI32 = AtomicI32::new(i32::MAX);

/// How often somebody who accepts has found no room. Added to by them; read by STATS.
static PAUSES: SharedCounter = SharedCounter::new();

/// How many descriptors there are, and what they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorBudget {
    /// Descriptors of the process.
    pub limit: u64,
    /// As many of them as connections leave to others.
    pub reserve: u64,
}

impl DescriptorBudget {
    const fn of(limit: u64) -> Self {
        let share = limit / 4;
        Self { limit, reserve: if share < DESCRIPTORS_RESERVED_MAX { share } else { DESCRIPTORS_RESERVED_MAX } }
    }

    /// Of the process as it is now.
    #[must_use]
    pub fn now() -> Self {
        // `None` is without a limit; the system has one all the same.
        Self::of(getrlimit(Resource::Nofile).current.unwrap_or(u64::from(u32::MAX >> 1)))
    }

    /// Files of the store that may be kept open: half of the reserve, since merging its trees takes others.
    #[must_use]
    pub fn store_files(self) -> usize {
        usize::try_from(self.reserve / 2).unwrap_or(usize::MAX).clamp(1, STORE_FILES_MAX)
    }
}

/// Raises the limit of this process to what it is allowed.
pub fn raise() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        say(&format!("the limit of open files stays as it is: {error}"));
    }
}

/// Raises the limit, and from now on keeps the reserve free of connections. Says so where that leaves few.
pub fn reserve() {
    raise();
    let budget = DescriptorBudget::now();
    let line = i32::try_from(budget.limit - budget.reserve).unwrap_or(i32::MAX);
    // Relaxed: the threads that accept are made later.
    LINE.store(line, Ordering::Relaxed);
    let DescriptorBudget { limit, reserve } = budget;
    let told = format!("{limit} files may be open: {reserve} are kept for the store, the others are for connections");
    tracing::info!("{told}");
    if limit < LOW {
        say(&format!("only {told}; raise the limit (ulimit -Hn)"));
    }
}

/// Whether a further connection may be accepted. `any` is some descriptor that is open.
#[must_use]
pub fn has_room(any: impl AsFd) -> bool {
    let line = line();
    // The copy has the number that the connection would have.
    let has_room = line == i32::MAX || fcntl_dupfd_cloexec(any, 0).is_ok_and(|copy| copy.as_raw_fd() < line);
    if !has_room {
        PAUSES.add(1);
    }
    has_room
}

/// Says so if what the server needs itself leaves nothing for connections.
pub fn warn_if_full() {
    if !has_room(std::io::stdin()) {
        say("no file is left for connections: raise the limit (ulimit -Hn)");
    }
}

/// A connection that was accepted, unless it is in the reserve: another was accepted at the same time.
#[must_use]
pub fn outside_the_reserve<D: AsFd>(connection: D) -> Option<D> {
    let is_outside = connection.as_fd().as_raw_fd() < line();
    if !is_outside {
        PAUSES.add(1);
    }
    is_outside.then_some(connection)
}

/// How often somebody who accepts has found no room.
#[must_use]
pub fn pauses() -> u64 {
    PAUSES.get()
}

fn line() -> i32 {
    // Relaxed: as in `reserve`.
    LINE.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_is_kept_for_the_store_and_no_more_than_it_needs() {
        assert_eq!(DescriptorBudget::of(64), DescriptorBudget { limit: 64, reserve: 16 });
        assert_eq!(DescriptorBudget::of(64).store_files(), 8);
        assert_eq!(DescriptorBudget::of(1 << 20).reserve, DESCRIPTORS_RESERVED_MAX);
        assert!(DescriptorBudget::of(1 << 20).store_files() as u64 <= DESCRIPTORS_RESERVED_MAX / 2);
    }

    #[test]
    fn without_a_budget_all_connections_are_kept() {
        let file = tempfile::tempfile().map(std::os::fd::OwnedFd::from).ok();
        assert!(file.as_ref().is_some_and(has_room));
        assert!(file.and_then(outside_the_reserve).is_some());
    }
}
