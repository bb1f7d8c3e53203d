//! A ring for one writer and one reader.
//!
//! ```text
//! reader: taken ──►┌──┬──┬──┬──┬──┬──┬──┬──┐◄── pushed: writer
//!                  │  │ 7│ 8│ 9│  │  │  │  │    the cell of a message is its count modulo the cells
//!                  └──┴──┴──┴──┴──┴──┴──┴──┘
//! ```
//! Each end writes its own count and reads the other's only when its last reading of that is used up. So a message costs
//! each end two plain stores, and the lines with messages go from the writer to the reader once. Counts do not wrap: 64
//! bits last for centuries. The design is Lamport's ("Specifying Concurrent Program Modules", 1983), with the remembered
//! counts of FastForward and MCRingBuffer.
//!
//! This module wakes no thread, and does not know the messages.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

use crossbeam::utils::CachePadded;

use super::{prefetch, prefetch_to_write};
use crate::tables::sync::{AtomicU64, Ordering, UnsafeCell};

/// How far ahead of a message the cell is that is fetched, to be written or to be read.
const FETCHED_AHEAD: u64 = 16;

/// What both ends share.
pub(in crate::tables) struct Ring<T> {
    /// A power of two. The messages `taken .. pushed` are there.
    cells: Box<[UnsafeCell<MaybeUninit<T>>]>,
    /// Messages pushed so far. Stored by the writer.
    pushed: CachePadded<AtomicU64>,
    /// Messages taken so far. Stored by the reader.
    taken: CachePadded<AtomicU64>,
}

// SAFETY: a cell is written by the writer alone before `pushed` covers it, and read by the reader alone afterwards, until
// `taken` covers it. There is one of each, because neither can be cloned. So a message only moves between threads.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: the ring owns its messages.
unsafe impl<T: Send> Send for Ring<T> {}

/// The end that pushes.
pub(in crate::tables) struct RingWriter<T> {
    ring: Arc<Ring<T>>,
    pushed: u64,
    /// The last reading of the reader's count: a lower bound.
    taken: u64,
}

/// The end that takes.
pub(in crate::tables) struct RingReader<T> {
    ring: Arc<Ring<T>>,
    taken: u64,
    /// The last reading of the writer's count: a lower bound.
    pushed: u64,
}

impl<T> Ring<T> {
    /// A ring with room for at least `capacity` messages, and its ends.
    pub(in crate::tables) fn new(capacity: usize) -> (Arc<Self>, RingWriter<T>, RingReader<T>) {
        let cells = (0..capacity.max(1).next_power_of_two()).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
        let [pushed, taken] = [const { 0 }; 2].map(|zero| CachePadded::new(AtomicU64::new(zero)));
        let ring = Arc::new(Self { cells, pushed, taken });
        let writer = RingWriter { ring: Arc::clone(&ring), pushed: 0, taken: 0 };
        let reader = RingReader { ring: Arc::clone(&ring), taken: 0, pushed: 0 };
        (ring, writer, reader)
    }

    /// Messages pushed so far.
    pub(in crate::tables) fn pushed(&self) -> u64 {
        // Acquire: pairs with the Release in `push`.
        self.pushed.load(Ordering::Acquire)
    }

    /// Messages in the ring. Both ends may be busy, so it is a recent count for any but them.
    pub(in crate::tables) fn len(&self) -> usize {
        // Acquire: pairs with the Release in `pop`. Loaded first, so that the difference is never negative.
        let taken = self.taken.load(Ordering::Acquire);
        usize::try_from(self.pushed() - taken).unwrap_or(usize::MAX)
    }

    pub(in crate::tables) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[expect(clippy::indexing_slicing, clippy::cast_possible_truncation, reason = "masked by the number of cells")]
    fn cell(&self, number: u64) -> &UnsafeCell<MaybeUninit<T>> {
        &self.cells[number as usize & (self.cells.len() - 1)]
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // Both ends are gone, since each holds the ring.
        // Relaxed: the last reference to the ring has synchronized with the ends.
        for number in self.taken.load(Ordering::Relaxed)..self.pushed.load(Ordering::Relaxed) {
            // SAFETY: the message is there and was not taken.
            self.cell(number).with_mut(|cell| unsafe { (*cell).assume_init_drop() });
        }
    }
}

impl<T> RingWriter<T> {
    /// Messages pushed so far.
    pub(in crate::tables) fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Pushes a message.
    ///
    /// # Errors
    /// The message, if the ring is full.
    #[inline]
    pub(in crate::tables) fn push(&mut self, message: T) -> Result<(), T> {
        let room = self.ring.cells.len() as u64;
        if self.pushed - self.taken == room {
            // Acquire: pairs with the Release in `pop`. The reader has moved the message out of the cell.
            self.taken = self.ring.taken.load(Ordering::Acquire);
            if self.pushed - self.taken == room {
                return Err(message);
            }
        }
        // The reader's core has the line of a cell that comes. A store to it would hold up all stores behind it.
        prefetch_to_write(ptr::from_ref(self.ring.cell(self.pushed + FETCHED_AHEAD)).cast(), 1);
        // SAFETY: the cell has no message, and the reader does not read it before the store below.
        self.ring.cell(self.pushed).with_mut(|cell| unsafe { (*cell).write(message) });
        self.pushed += 1;
        // Release: pairs with the Acquire of the reader. The message is in its cell.
        self.ring.pushed.store(self.pushed, Ordering::Release);
        Ok(())
    }
}

impl<T> RingReader<T> {
    /// Takes the oldest message.
    #[inline]
    pub(in crate::tables) fn pop(&mut self) -> Option<T> {
        if self.taken == self.pushed {
            self.pushed = self.ring.pushed();
            if self.taken == self.pushed {
                return None;
            }
        }
        // Not behind the known ones: the writer would have to get the line back.
        if self.pushed - self.taken > FETCHED_AHEAD {
            prefetch(self.ring.cell(self.taken + FETCHED_AHEAD));
        }
        // SAFETY: the message is there, and the writer does not write to the cell before the store below. It is read
        // once, because the count rises.
        let message = self.ring.cell(self.taken).with(|cell| unsafe { (*cell).assume_init_read() });
        self.taken += 1;
        // Release: pairs with the Acquire in `push`. The message is out of its cell.
        self.ring.taken.store(self.taken, Ordering::Release);
        Some(message)
    }
}

#[cfg(all(test, not(feature = "models")))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_that_are_not_taken_are_dropped_with_the_ring() {
        let message = Arc::new(());
        let (ring, mut writer, mut reader) = Ring::new(4);
        (0..4).for_each(|_| writer.push(Arc::clone(&message)).unwrap());
        assert!(writer.push(Arc::clone(&message)).is_err(), "it is full");
        assert_eq!((Arc::strong_count(&message), ring.len(), ring.pushed()), (5, 4, 4));
        drop(reader.pop());
        writer.push(Arc::clone(&message)).unwrap();
        assert_eq!((Arc::strong_count(&message), ring.len(), writer.pushed()), (5, 4, 5));
        drop((ring, writer));
        assert_eq!(Arc::strong_count(&message), 5, "the reader holds the ring");
        drop(reader);
        assert_eq!(Arc::strong_count(&message), 1);
    }

    #[test]
    fn another_thread_takes_all_messages_in_their_order() {
        const COUNT: usize = 200_000;
        let (ring, mut writer, mut reader) = Ring::new(64);
        let taker = std::thread::spawn(move || {
            let mut taken = Vec::new();
            while taken.len() < COUNT {
                taken.extend(reader.pop().map(|message: Box<usize>| *message));
            }
            (taken, reader.pop())
        });
        for number in 0..COUNT {
            let mut message = Box::new(number);
            while let Err(back) = writer.push(message) {
                message = back;
                std::thread::yield_now();
            }
        }
        let (taken, none) = taker.join().unwrap();
        assert!(taken.into_iter().eq(0..COUNT) && none.is_none() && ring.is_empty());
    }

    proptest! {
        #[test]
        fn it_is_a_bounded_queue(capacity in 1_usize..9, steps in prop::collection::vec(any::<bool>(), 0..200)) {
            let (ring, mut writer, mut reader) = Ring::new(capacity);
            let (mut queue, room) = (VecDeque::new(), capacity.next_power_of_two());
            for (number, pushes) in steps.into_iter().enumerate() {
                if pushes {
                    let pushed = writer.push(number);
                    prop_assert_eq!(pushed.is_ok(), queue.len() < room);
                    if pushed.is_ok() {
                        queue.push_back(number);
                    }
                } else {
                    prop_assert_eq!(reader.pop(), queue.pop_front());
                }
                prop_assert_eq!((ring.len(), ring.is_empty()), (queue.len(), queue.is_empty()));
            }
        }
    }
}
