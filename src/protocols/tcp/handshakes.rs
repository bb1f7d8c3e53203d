//! The handshakes of TLS in progress, and which of them lose their connections to other clients.
//!
//! A client that does not finish its handshake holds a connection until `HANDSHAKE_TIMEOUT`. While others wait for a
//! connection, the oldest handshakes that take longer than [`HANDSHAKE_PACE`] end at once.
//!
//! This module is told the time. It does not read, send or wait for a client.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::clock::Now;
use crate::lock::Mutex;

/// Time in which a client makes its handshake, which takes two round trips, even from the other side of the world.
const HANDSHAKE_PACE: Duration = Duration::from_secs(1);
/// Handshakes that end at once: the system tells that a client waits, and not how many do.
const PLACES_AT_ONCE: usize = 16;

/// All handshakes of a frontend. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct Handshakes(Arc<Mutex<Running>>);

/// The handshakes by their numbers, and so in the order in which they began.
#[derive(Default)]
struct Running {
    next: u64,
    all: BTreeMap<u64, Entry>,
}

struct Entry {
    since: Now,
    /// None: the handshake has been told to end.
    lose: Option<oneshot::Sender<()>>,
}

impl Handshakes {
    /// A handshake begins.
    pub(super) fn begin(&self, now: Now) -> Handshake {
        let (lose, lost) = oneshot::channel();
        let mut running = self.0.lock();
        let number = running.next;
        running.next += 1;
        running.all.insert(number, Entry { since: now, lose: Some(lose) });
        Handshake { all: self.clone(), number, lost }
    }

    /// Ends the oldest handshakes, because clients wait for their connections. False: none takes too long.
    pub(super) fn make_place(&self, now: Now) -> bool {
        let mut running = self.0.lock();
        let old = running.all.values_mut().take_while(|entry| entry.since.time_until(now) >= HANDSHAKE_PACE);
        let mut is_any = false;
        for entry in old.take(PLACES_AT_ONCE) {
            is_any = true;
            // Those that were told are ending.
            entry.lose.take().map(|lose| lose.send(()));
        }
        is_any
    }
}

/// A handshake, to its end.
pub(super) struct Handshake {
    all: Handshakes,
    number: u64,
    lost: oneshot::Receiver<()>,
}

impl Handshake {
    /// The output of `work`, or `None` if the connection is lost to another client before it is ready.
    pub(super) async fn unless_lost<T>(mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => Pin::new(&mut self.lost).poll(context).map(|_| None),
        })
        .await
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.all.0.lock().all.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::task::{Context, Waker};

    use super::*;

    fn at(millis: u64) -> Now {
        Now::from_millis(millis)
    }

    /// Whether the handshake has lost its connection.
    fn is_lost(handshake: &mut Pin<Box<impl Future<Output = Option<()>>>>) -> bool {
        handshake.as_mut().poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(None)
    }

    /// A frontend that was full of them took no other client for 10 s.
    #[test]
    fn the_oldest_handshakes_make_place_when_they_have_had_their_time() {
        let all = Handshakes::default();
        let mut silent: Vec<_> =
            (0..20).map(|number| Box::pin(all.begin(at(number)).unless_lost(pending::<()>()))).collect();
        let _young = all.begin(at(1_000));
        assert!(!all.make_place(at(999)), "none is old");
        assert!(all.make_place(at(1_010)));
        assert!(all.make_place(at(1_010)), "their connections are on their way");
        let lost = |silent: &mut Vec<_>| silent.iter_mut().map(is_lost).collect::<Vec<_>>();
        let told = lost(&mut silent);
        assert_eq!(told, [[true; 11].as_slice(), &[false; 9]].concat(), "those that began a second ago");
        silent.drain(..11);
        assert!(!all.make_place(at(1_010)));
        assert!(all.make_place(at(1_999)));
        assert_eq!(lost(&mut silent), [true; 9]);
        drop(silent);
        assert!(!all.make_place(at(1_999)));
    }

    #[test]
    fn not_more_make_place_at_once_than_clients_may_wait() {
        let all = Handshakes::default();
        let mut silent: Vec<_> = (0..40).map(|_| Box::pin(all.begin(at(0)).unless_lost(pending::<()>()))).collect();
        for _ in 0..2 {
            assert!(all.make_place(at(5_000)));
        }
        assert_eq!(silent.iter_mut().filter_map(|handshake| is_lost(handshake).then_some(())).count(), PLACES_AT_ONCE);
    }

    #[test]
    fn a_handshake_that_is_done_holds_no_place() {
        let all = Handshakes::default();
        let mut done = Box::pin(all.begin(at(0)).unless_lost(ready(7)));
        assert_eq!(done.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Some(7)));
        drop(done);
        assert!(!all.make_place(at(60_000)));
    }
}
