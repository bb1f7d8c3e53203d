//! Threads that read values, so that nobody else waits for a slow disk.
//!
//! ```text
//! frontend ─► StoreSnapshot::get_now: the bytes are in memory ─► its reply
//!                  └─ they are not: Readers::read ═► of the oldest requests, a reader takes the next on its way ─► read
//! ```
//! Each frontend bounds the bytes that it asks for, client by client. So what waits is bounded, and no client's requests
//! wait behind all of another's. A reader takes one request at a time, so a slow place holds up no other request.
//!
//! The threads begin with the first request, and end with the last handle.
//!
//! This module interprets no value.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use crossbeam::channel::{Receiver, Sender, unbounded};

use super::interface::ReadOrder;
use crate::lock::Mutex;
use crate::threads::spawn;

/// The number of threads. A disk serves several reads at once, and one that fails may hold each for half a minute.
const READERS: usize = 4;
/// The oldest requests, among which a reader takes the next one behind its last place.
const SORTED: usize = 16;

/// Something to be read.
pub struct ReadRequest {
    /// Where it stands on the disk.
    pub order: ReadOrder,
    /// Reads it, and hands it over, which takes no time.
    pub read: Box<dyn FnOnce() + Send>,
}

impl fmt::Debug for ReadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadRequest").field("order", &self.order).finish_non_exhaustive()
    }
}

/// The requests that wait, the oldest first.
type Waiting = Arc<Mutex<VecDeque<ReadRequest>>>;

/// The readers of a store.
#[derive(Debug, Default)]
pub struct Readers {
    waiting: Waiting,
    /// Carries a token for each request. `None` before the first one.
    sender: Mutex<Option<Sender<()>>>,
}

impl Readers {
    /// Has something read.
    pub fn read(&self, request: ReadRequest) {
        let mut sender = self.sender.lock();
        let sender = sender.get_or_insert_with(|| {
            let (sender, tokens) = unbounded();
            for number in 0..READERS {
                let (tokens, waiting) = (tokens.clone(), Arc::clone(&self.waiting));
                let started = spawn(&format!("readers-{number}"), None, move || read_all(&tokens, &waiting));
                if let Err(error) = started {
                    tracing::error!("the system makes no thread to read values: {error}");
                }
            }
            sender
        });
        self.waiting.lock().push_back(request);
        if sender.send(()).is_err() {
            // There is no thread.
            take(&self.waiting, ReadOrder::default()).into_iter().map(serve).for_each(|_| ());
        }
    }
}

/// Reads until the last handle is gone.
fn read_all(tokens: &Receiver<()>, waiting: &Waiting) {
    let mut last = ReadOrder::default();
    while tokens.recv().is_ok() {
        if let Some(request) = take(waiting, last) {
            last = serve(request);
        }
    }
}

/// Takes one of the oldest requests: the next one behind this place, or the first of all.
fn take(waiting: &Waiting, last: ReadOrder) -> Option<ReadRequest> {
    let mut waiting = waiting.lock();
    let places = waiting.iter().take(SORTED).map(|request| request.order).enumerate();
    let (index, _) = places.min_by_key(|(_, place)| (*place < last, *place))?;
    waiting.remove(index)
}

/// Reads. Returns where it was.
fn serve(ReadRequest { order, read }: ReadRequest) -> ReadOrder {
    read();
    order
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::collections::BTreeSet;

    use super::*;

    fn at(offset: u32) -> ReadOrder {
        ReadOrder { segment: 1, offset }
    }

    #[test]
    fn a_reader_goes_through_the_oldest_requests_by_their_places() {
        let request = |offset| ReadRequest { order: at(offset), read: Box::new(|| ()) };
        let waiting: Waiting = Arc::new(Mutex::new([50, 10, 70, 30].map(request).into()));
        let (mut last, mut order) = (at(40), Vec::new());
        while let Some(request) = take(&waiting, last) {
            last = serve(request);
            order.push(last.offset);
        }
        assert_eq!(order, [50, 70, 10, 30]);
        let places = (0..=SORTED).map(|at| u32::try_from(1_000 - at).unwrap());
        let waiting: Waiting = Arc::new(Mutex::new(places.map(request).collect()));
        assert_eq!(serve(take(&waiting, ReadOrder::default()).unwrap()), at(985), "the youngest one waits");
    }

    #[test]
    fn a_place_that_is_slow_holds_up_no_other_one() {
        let readers = Readers::default();
        let (done, finished) = unbounded();
        // Each is read when the test says so.
        let read = |number: u8, pass: &Receiver<()>| {
            let (done, pass) = (done.clone(), pass.clone());
            let read = move || {
                pass.recv().unwrap();
                done.send(number).unwrap();
            };
            readers.read(ReadRequest { order: at(u32::from(number)), read: Box::new(read) });
        };
        let (release, slow) = unbounded();
        let (pass, fast) = unbounded();
        (0..100).for_each(|_| pass.send(()).unwrap());
        read(100, &slow);
        (0..50).for_each(|number| read(number, &fast));
        let read_first: BTreeSet<u8> = finished.iter().take(50).collect();
        assert_eq!(read_first, (0..50).collect::<BTreeSet<u8>>());
        release.send(()).unwrap();
        assert_eq!(finished.recv().unwrap(), 100);
    }
}
