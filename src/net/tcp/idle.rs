//! Connections that wait for their clients, and which of them make place for others.
//!
//! ```text
//! begin ─► rest: its client has to send something ─► work: a request is under way ─► rest ─► …
//!           └─ a client waits for a connection ─► make_place: the one that has rested longest ends
//! ```
//! A connection rests during its handshake of TLS, before its first request and between two requests. So clients that
//! send nothing, or do not finish what they send, keep nobody out.
//!
//! This module does not read, send or wait for a client.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::unless;
use crate::clock::{Clock, Now};
use crate::descriptors;
use crate::lock::Mutex;

/// The idle connections of a frontend. Clones are the same.
#[derive(Clone)]
pub(crate) struct IdleConnections {
    resting: Arc<Mutex<Resting>>,
    clock: Clock,
}

/// The connections that rest by their numbers, and so in the order in which they began to rest.
#[derive(Default)]
struct Resting {
    next: u64,
    all: BTreeMap<u64, RestingConnection>,
}

struct RestingConnection {
    /// It keeps its place until then.
    until: Now,
    /// It is to end.
    is_lost: bool,
    /// Wakes the task of the connection.
    waker: Option<Waker>,
}

impl IdleConnections {
    /// No connections yet.
    pub(crate) fn new(clock: Clock) -> Self {
        Self { resting: Arc::default(), clock }
    }

    /// A connection begins. It does not rest yet.
    pub(crate) fn begin(&self) -> IdleEntry {
        IdleEntry { all: self.clone(), number: None }
    }

    /// Ends the connection that has rested longest, because a client waits for its place. False: there is none.
    pub(crate) fn make_place(&self) -> bool {
        let now = self.clock.now();
        let mut resting = self.resting.lock();
        let Some(oldest) = resting.all.values_mut().find(|one| !one.is_lost && one.until <= now) else { return false };
        oldest.is_lost = true;
        let waker = oldest.waker.take();
        drop(resting);
        descriptors::made_place();
        waker.into_iter().for_each(Waker::wake);
        true
    }
}

/// One connection, to its end.
pub(crate) struct IdleEntry {
    all: IdleConnections,
    /// While it rests.
    number: Option<u64>,
}

impl IdleEntry {
    /// The connection waits for its client, and keeps its place for this time. If it rests already, nothing changes.
    pub(crate) fn rest(&mut self, time: Duration) {
        if self.number.is_none() {
            let until = self.all.clock.now().after(time);
            let mut resting = self.all.resting.lock();
            let number = resting.next;
            resting.next += 1;
            resting.all.insert(number, RestingConnection { until, is_lost: false, waker: None });
            self.number = Some(number);
        }
    }

    /// A request is under way. The connection keeps its place.
    pub(crate) fn work(&mut self) {
        if let Some(number) = self.number.take() {
            self.all.resting.lock().all.remove(&number);
        }
    }

    /// Ready when the connection rests and has lost its place.
    pub(crate) fn poll_lost(&self, context: &Context<'_>) -> Poll<()> {
        let mut resting = self.all.resting.lock();
        let Some(own) = self.number.and_then(|number| resting.all.get_mut(&number)) else { return Poll::Pending };
        if own.is_lost {
            return Poll::Ready(());
        }
        own.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// The output of `work`, or `None` if the place is lost before it is ready.
    pub(crate) async fn unless_lost<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        unless(work, poll_fn(|context| self.poll_lost(context))).await
    }
}

impl Drop for IdleEntry {
    fn drop(&mut self) {
        self.work();
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::pin;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const AT_ONCE: Duration = Duration::ZERO;

    fn resting(all: &IdleConnections, millis: u64) -> IdleEntry {
        let mut entry = all.begin();
        entry.rest(Duration::from_millis(millis));
        entry
    }

    fn lost(entries: &[IdleEntry]) -> Vec<usize> {
        let is_lost = |entry: &IdleEntry| entry.poll_lost(&Context::from_waker(Waker::noop())).is_ready();
        (0..entries.len()).filter(|index| entries.get(*index).is_some_and(is_lost)).collect()
    }

    /// A frontend that was full of silent clients took no other client for a minute.
    #[test]
    fn for_each_client_that_waits_the_one_that_rests_longest_makes_place() {
        let all = IdleConnections::new(Clock::start());
        let mut entries: Vec<_> = (0..4).map(|_| resting(&all, 0)).collect();
        assert!(all.make_place());
        assert_eq!(lost(&entries), [0]);
        if let Some(second) = entries.get_mut(1) {
            second.work();
            second.rest(AT_ONCE);
            second.rest(AT_ONCE);
        }
        assert!(all.make_place() && all.make_place());
        assert_eq!(lost(&entries), [0, 2, 3], "the second had a request meanwhile");
        assert!(all.make_place());
        assert!(!all.make_place(), "all of them are on their way");
    }

    #[test]
    fn a_connection_keeps_its_place_for_its_time_and_while_it_works() {
        static MILLIS: AtomicU64 = AtomicU64::new(0);
        let all = IdleConnections::new(Clock::fake(&MILLIS));
        let mut entries = [resting(&all, 1_000), resting(&all, 500)];
        MILLIS.store(499, Ordering::Relaxed);
        assert!(!all.make_place());
        MILLIS.store(500, Ordering::Relaxed);
        assert!(all.make_place());
        assert_eq!(lost(&entries), [1], "it had its time first");
        entries.iter_mut().for_each(IdleEntry::work);
        MILLIS.store(60_000, Ordering::Relaxed);
        assert!(!all.make_place());
        assert_eq!(lost(&entries), [0; 0], "its request came just in time");
        drop(entries);
        assert!(all.resting.lock().all.is_empty());
    }

    #[test]
    fn work_ends_when_the_place_is_lost() {
        let all = IdleConnections::new(Clock::start());
        let entry = resting(&all, 0);
        let mut context = Context::from_waker(Waker::noop());
        let mut work = pin!(entry.unless_lost(pending::<()>()));
        assert!(work.as_mut().poll(&mut context).is_pending());
        assert!(all.make_place());
        assert_eq!(work.as_mut().poll(&mut context), Poll::Ready(None));
    }
}
