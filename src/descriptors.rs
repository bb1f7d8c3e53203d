//! Descriptors: one budget for the whole process, with a reserve that connections never take.
//!
//! ```text
//! 0 …………………………………………………………………………………………………………… line …………………… limit
//! │ descriptors of the start, and connections │ the reserve │
//! ```
//! The system gives out the lowest free number. A connection whose number is on the line or above it was accepted when
//! all numbers below were taken. It is not kept. The accepting thread checks for room before it accepts, and pauses
//! when there is none. Descriptors that are opened later, above all the files of the store, always find the reserve.
//! This needs no counting, and it holds for every accepting thread, those of libzmq too.
//!
//! An acceptor that found no room is woken when a frontend closes a connection. libzmq closes its own without a word,
//! so an acceptor also checks again after a pause.
//!
//! This module does not pause accepting. See `protocols`.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::task::Waker;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::limits::{DESCRIPTORS_RESERVED_MAX, STORE_FILES_MAX};
use crate::lock::Mutex;
use crate::log::say;
use crate::stats::SharedCounter;

/// Below this limit the server prints a warning: a few thousand connections are usual.
const LOW: u64 = 4096;

/// The first number that no connection has. Written once, before anything is accepted, read by the threads that accept.
static LINE: AtomicI32 = AtomicI32::new(i32::MAX);

/// How often an accepting thread found no room. Added to by those threads, read by STATS.
static PAUSES: SharedCounter = SharedCounter::new();

/// The acceptors that found no room.
static PAUSED: PausedAcceptors = PausedAcceptors::new();

/// Acceptors that wait for the next connection to close.
struct PausedAcceptors {
    /// Whether there are any. Written under the lock, read by the threads that close connections.
    any: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl PausedAcceptors {
    const fn new() -> Self {
        Self { any: AtomicBool::new(false), wakers: Mutex::new(Vec::new()) }
    }

    fn wait(&self, waker: &Waker) {
        let mut wakers = self.wakers.lock();
        if !wakers.iter().any(|other| other.will_wake(waker)) {
            wakers.push(waker.clone());
        }
        // SeqCst, here and in `tell`. The acceptor stores, then checks the descriptors. The closing thread closes one,
        // then loads. If the check does not see the closed one, the system handled the check first, and so the load
        // sees the store.
        self.any.store(true, Ordering::SeqCst);
    }

    fn tell(&self) {
        if !self.any.load(Ordering::SeqCst) {
            return;
        }
        let mut wakers = self.wakers.lock();
        self.any.store(false, Ordering::SeqCst);
        let woken = std::mem::take(&mut *wakers);
        drop(wakers);
        woken.into_iter().for_each(Waker::wake);
    }
}

/// Has the next [`closed`] wake `waker`, once. The acceptor checks for room after this call.
pub fn wait_for_room(waker: &Waker) {
    PAUSED.wait(waker);
}

/// Notes that a connection is closed, and wakes the acceptors that wait for room.
pub fn closed() {
    PAUSED.tell();
}

/// The descriptors of the process, and the part of them that connections never take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorBudget {
    /// Descriptors of the process.
    pub limit: u64,
    /// The part of them that connections never take.
    pub reserve: u64,
}

impl DescriptorBudget {
    const fn of(limit: u64) -> Self {
        let share = limit / 4;
        Self { limit, reserve: if share < DESCRIPTORS_RESERVED_MAX { share } else { DESCRIPTORS_RESERVED_MAX } }
    }

    /// The budget of the process as it is now.
    #[must_use]
    pub fn now() -> Self {
        // `None` means without a limit. The system has a limit all the same.
        Self::of(getrlimit(Resource::Nofile).current.unwrap_or(u64::from(u32::MAX >> 1)))
    }

    /// Files that the store may keep open for readers: half of the reserve. It opens a few others to write.
    #[must_use]
    pub fn store_files(self) -> usize {
        usize::try_from(self.reserve / 2).unwrap_or(usize::MAX).clamp(1, STORE_FILES_MAX)
    }
}

/// Raises the soft limit of open files to the hard limit.
pub fn raise() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        say(&format!("the limit of open files stays as it is: {error}"));
    }
}

/// Raises the limit, and from now on keeps the reserve free of connections. Prints a line if few descriptors are left.
pub fn reserve() {
    raise();
    let budget = DescriptorBudget::now();
    let line = i32::try_from(budget.limit - budget.reserve).unwrap_or(i32::MAX);
    // Relaxed: the threads that accept are spawned later.
    LINE.store(line, Ordering::Relaxed);
    let DescriptorBudget { limit, reserve } = budget;
    let told = format!("{limit} files may be open: {reserve} are kept for the store, the others are for connections");
    tracing::debug!("{told}");
    if limit < LOW {
        say(&format!("only {told}; raise the limit (ulimit -Hn)"));
    }
}

/// Whether a further connection may be accepted. `any` is any open descriptor.
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

/// Prints a warning if the server's own descriptors leave none for connections.
pub fn warn_if_full() {
    if !has_room(std::io::stdin()) {
        say("no file is left for connections: raise the limit (ulimit -Hn)");
    }
}

/// Returns an accepted connection, unless its number is in the reserve because another was accepted at the same time.
#[must_use]
pub fn outside_the_reserve<D: AsFd>(connection: D) -> Option<D> {
    let is_outside = connection.as_fd().as_raw_fd() < line();
    if !is_outside {
        PAUSES.add(1);
    }
    is_outside.then_some(connection)
}

/// How often an accepting thread found no room.
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
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_acceptor_that_waits_for_room_is_woken_once() {
        let paused = PausedAcceptors::new();
        let wakes = [(); 2].map(|()| Arc::<Wakes>::default());
        let counts = || wakes.each_ref().map(|wakes| wakes.0.load(Ordering::Relaxed));
        let [first, second] = wakes.each_ref().map(|wakes| Waker::from(Arc::clone(wakes)));
        paused.tell();
        paused.wait(&first);
        paused.wait(&first);
        paused.wait(&second);
        assert_eq!(counts(), [0, 0], "a close before it began to wait tells it nothing");
        paused.tell();
        assert_eq!(counts(), [1, 1]);
        paused.tell();
        assert_eq!(counts(), [1, 1], "it has to ask again");
        paused.wait(&second);
        paused.tell();
        assert_eq!(counts(), [1, 2]);
    }

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
