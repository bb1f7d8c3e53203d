//! Descriptors: one pool for the whole process, with a share for each service and a reserve that no connection takes.
//!
//! ```text
//! 0 ……………………………………………………………… common ……………………………… line …………………… limit
//! │ descriptors of the start, and any connections │ shares of services │ the reserve │
//! ```
//! The system gives out the lowest free number. A connection whose number is below `common` takes nothing from anybody.
//! One with a higher number was accepted when all numbers below were taken: it takes a place in the share of its
//! service, until it is closed. A service without a free place has no room. So connections of one service, however many
//! and however idle, leave each other service its share, and the store its reserve. Only places are counted.
//!
//! The accepting thread checks for room before it accepts, and pauses when there is none. Connections of libzmq have no
//! share, because it closes them without a word.
//!
//! An acceptor that found no room is woken when a frontend closes a connection. libzmq closes its own without a word,
//! so an acceptor also checks again after a pause.
//!
//! This module does not pause accepting, and does not choose the idle connections that make place. See `net`.

use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::task::Waker;

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::limits::{DESCRIPTORS_RESERVED_MAX, STORE_FILES_MAX};
use crate::lock::Mutex;
use crate::log::say;
use crate::stats::SharedCounter;

/// Below this limit the server prints a warning: a few thousand connections are usual.
const LOW: u64 = 4096;

/// Most descriptors of the share of a service. All shares together are half of the descriptors that are free at the
/// start, if that is less.
const DESCRIPTORS_SHARE_MAX: usize = 512;

/// The budget of the process. Written at the start, before anything is accepted, read by the threads that accept.
static POOL: Pool = Pool::unbounded();

/// Held between the look for room and the number that the system gives out.
static ACCEPTING: Mutex<()> = Mutex::new(());

/// How often an accepting thread found no room. Added to by those threads, read by STATS.
static PAUSES: SharedCounter = SharedCounter::new();

/// How many idle connections have made place, ever. Added to by the threads that close them, read by STATS.
static PLACES_MADE: SharedCounter = SharedCounter::new();

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
        // SeqCst, here and in `wake_all`. The acceptor stores, then checks the descriptors. The closing thread closes one,
        // then loads. If the check does not see the closed one, the system handled the check first, and so the load
        // sees the store.
        self.any.store(true, Ordering::SeqCst);
    }

    fn wake_all(&self) {
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

/// The numbers that connections may have.
struct Pool {
    /// The first number that no connection of the common part has.
    common: AtomicI32,
    /// Places of each share.
    share: AtomicUsize,
    /// Shares that there are.
    shares: AtomicUsize,
}

impl Pool {
    const fn unbounded() -> Self {
        Self { common: AtomicI32::new(i32::MAX), share: AtomicUsize::new(0), shares: AtomicUsize::new(0) }
    }

    /// Connections have the numbers below `line`, and no service has a share.
    fn bound(&self, line: i32) {
        // Relaxed, here and below: the threads that accept are spawned later.
        self.common.store(line, Ordering::Relaxed);
    }

    /// Gives each service its share of the numbers from `own` on, which are free: together half of them, at most.
    fn share_out(&self, own: i32) {
        let line = self.common.load(Ordering::Relaxed);
        let shares = self.shares.load(Ordering::Relaxed);
        let spare = usize::try_from(line.saturating_sub(own)).unwrap_or(0);
        let share = (spare / 2 / shares.max(1)).min(DESCRIPTORS_SHARE_MAX);
        self.share.store(share, Ordering::Relaxed);
        self.common.store(line - i32::try_from(share * shares).unwrap_or(0), Ordering::Relaxed);
    }

    fn is_common(&self, number: i32) -> bool {
        number < self.common.load(Ordering::Relaxed)
    }

    fn is_bounded(&self) -> bool {
        self.common.load(Ordering::Relaxed) < i32::MAX
    }

    /// Whether a descriptor opened now would be one of the common part. `any` is any open descriptor.
    fn has_common_room(&self, any: impl AsFd) -> bool {
        // The copy has the number that the connection would have.
        !self.is_bounded() || fcntl_dupfd_cloexec(any, 0).is_ok_and(|copy| self.is_common(copy.as_raw_fd()))
    }
}

/// The descriptors that only connections of one service take. Clones are the same.
#[derive(Clone, Debug)]
pub struct ServiceShare {
    /// Places that are taken. Written by the threads that accept and close.
    taken: Arc<AtomicUsize>,
}

impl ServiceShare {
    /// A share for one service more. It has places from [`share_out`] on.
    #[must_use]
    pub fn register() -> Self {
        // Relaxed: `share_out` is called by the same thread later.
        POOL.shares.fetch_add(1, Ordering::Relaxed);
        Self { taken: Arc::default() }
    }

    /// Whether a further connection may be accepted. `any` is any open descriptor.
    #[must_use]
    pub fn has_room(&self, any: impl AsFd) -> bool {
        let has_room = POOL.has_common_room(any) || self.has_place(&POOL);
        PAUSES.add(u64::from(!has_room));
        has_room
    }

    /// Calls `accept`, which does not block, if there is room, and gives the connection its place. No other connection
    /// takes the room meanwhile: one that was accepted would have to be closed, and its client would see a reset.
    ///
    /// # Errors
    /// The error of `accept`, or EMFILE without room.
    pub fn admit<C: AsFd, E: From<Errno>>(
        &self,
        listener: impl AsFd,
        accept: impl FnOnce() -> Result<Option<C>, E>,
    ) -> Result<Option<(C, Place)>, E> {
        let _alone = ACCEPTING.lock();
        if !self.has_room(listener) {
            return Err(Errno::MFILE.into());
        }
        let Some(connection) = accept()? else { return Ok(None) };
        let place = self.enter(&connection).ok_or(Errno::MFILE)?;
        Ok(Some((connection, place)))
    }

    /// The place of an accepted connection, unless a file of the server has taken the room at the same time.
    fn enter(&self, connection: impl AsFd) -> Option<Place> {
        let place = self.take(&POOL, connection.as_fd().as_raw_fd());
        PAUSES.add(u64::from(place.is_none()));
        place
    }

    fn has_place(&self, pool: &Pool) -> bool {
        // SeqCst: as in `PausedAcceptors::wait`. An acceptor that does not see a place given back is woken by it.
        self.taken.load(Ordering::SeqCst) < pool.share.load(Ordering::Relaxed)
    }

    fn take(&self, pool: &Pool, number: i32) -> Option<Place> {
        if pool.is_common(number) {
            return Some(Place { share: None });
        }
        let most = pool.share.load(Ordering::Relaxed);
        let further = |taken| (taken < most).then_some(taken + 1);
        self.taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, further).ok()?;
        Some(Place { share: Some(self.clone()) })
    }
}

/// Held by a connection until it is closed. Dropping it wakes the acceptors that wait for room.
#[derive(Debug)]
pub struct Place {
    /// The share that it is in. None: the number is of the common part.
    share: Option<ServiceShare>,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(share) = &self.share {
            // SeqCst: as in `ServiceShare::has_place`.
            share.taken.fetch_sub(1, Ordering::SeqCst);
        }
        PAUSED.wake_all();
    }
}

/// The descriptor of a connection, with its place.
#[derive(Debug)]
pub struct ConnectionDescriptor {
    /// Closed before its place is given back.
    descriptor: OwnedFd,
    _place: Option<Place>,
}

impl ConnectionDescriptor {
    /// A connection in its place.
    #[must_use]
    pub fn new(descriptor: OwnedFd, place: Place) -> Self {
        Self { descriptor, _place: Some(place) }
    }
}

impl From<OwnedFd> for ConnectionDescriptor {
    /// A connection that was not accepted, and needs no place.
    fn from(descriptor: OwnedFd) -> Self {
        Self { descriptor, _place: None }
    }
}

impl Deref for ConnectionDescriptor {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        &self.descriptor
    }
}

impl AsFd for ConnectionDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
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
    let DescriptorBudget { limit, reserve } = DescriptorBudget::now();
    POOL.bound(i32::try_from(limit - reserve).unwrap_or(i32::MAX));
    let limits = format!("{limit} files may be open: {reserve} are kept for the store, the others are for connections");
    tracing::debug!("{limits}");
    if limit < LOW {
        say(&format!("only {limits}; raise the limit (ulimit -Hn)"));
    }
}

/// Gives each service its share, when all of them listen and the store is open. Prints a warning if the server's own
/// descriptors leave none for connections.
pub fn share_out() {
    if !POOL.is_bounded() {
        return;
    }
    // The copy has the lowest free number. Whatever the server needs for itself is open by now.
    let own = fcntl_dupfd_cloexec(std::io::stdin(), 0).map_or(i32::MAX, |copy| copy.as_raw_fd());
    POOL.share_out(own);
    let share = shared();
    tracing::debug!("{own} files are open, and each service has {share} for connections of its own");
    if share == 0 {
        say("no file is left for connections: raise the limit (ulimit -Hn)");
    }
}

/// Descriptors that each service has for its own connections, whatever the others take.
#[must_use]
pub fn shared() -> usize {
    // Relaxed: as in `Pool::bound`.
    POOL.share.load(Ordering::Relaxed)
}

/// How often an accepting thread found no room.
#[must_use]
pub fn pauses() -> u64 {
    PAUSES.get()
}

/// Notes that an idle connection is closed, for one that waits.
pub fn made_place() {
    PLACES_MADE.add(1);
}

/// How many idle connections have made place, ever.
#[must_use]
pub fn places_made() -> u64 {
    PLACES_MADE.get()
}

#[cfg(test)]
mod tests {
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
        paused.wake_all();
        paused.wait(&first);
        paused.wait(&first);
        paused.wait(&second);
        assert_eq!(counts(), [0, 0], "a close before the wait began wakes nobody");
        paused.wake_all();
        assert_eq!(counts(), [1, 1]);
        paused.wake_all();
        assert_eq!(counts(), [1, 1], "it has to ask again");
        paused.wait(&second);
        paused.wake_all();
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
    fn without_a_budget_all_connections_have_room() {
        let file = tempfile::tempfile().map(OwnedFd::from).ok();
        let share = ServiceShare { taken: Arc::default() };
        assert!(file.as_ref().is_some_and(|file| share.has_room(file)));
        assert!(file.as_ref().is_some_and(|file| share.enter(file).is_some()));
    }

    /// Idle connections of the tables took every descriptor, and health, events and jobs had no answer.
    #[test]
    fn a_service_has_its_share_whatever_the_others_take() {
        let pool = Pool::unbounded();
        pool.shares.store(4, Ordering::Relaxed);
        pool.bound(1_125);
        pool.share_out(65);
        assert_eq!(pool.share.load(Ordering::Relaxed), 132, "half of 1,060 for four");
        assert_eq!(pool.common.load(Ordering::Relaxed), 1_125 - 4 * 132);
        let [tables, jobs] = [(), ()].map(|()| ServiceShare { taken: Arc::default() });
        assert!(tables.take(&pool, 596).is_some() && tables.taken.load(Ordering::Relaxed) == 0, "it takes from nobody");
        let mut places: Vec<Place> = (597..597 + 132).filter_map(|number| tables.take(&pool, number)).collect();
        assert_eq!((places.len(), tables.has_place(&pool)), (132, false));
        assert!(tables.take(&pool, 729).is_none());
        assert!(jobs.has_place(&pool) && jobs.take(&pool, 729).is_some());
        places.pop();
        assert!(tables.has_place(&pool) && tables.take(&pool, 729).is_some());
        assert!(tables.take(&pool, 596).is_some());
    }

    #[test]
    fn a_pool_with_nothing_to_share_has_no_shares() {
        for (line, own) in [(48, 48), (48, 60), (48, i32::MAX), (48, 47)] {
            let pool = Pool::unbounded();
            pool.shares.store(3, Ordering::Relaxed);
            pool.bound(line);
            pool.share_out(own);
            assert_eq!((pool.share.load(Ordering::Relaxed), pool.common.load(Ordering::Relaxed)), (0, line), "{own}");
        }
    }
}
