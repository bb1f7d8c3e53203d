//! A queue to a thread that sleeps on its sockets or in a runtime: each message wakes that thread.
//!
//! The queue has no bound of its own. The thread bounds the queue: it takes one message for each of its requests.

use std::task::Waker;

use crossbeam::channel::{Receiver, Sender, unbounded};

use crate::tasks::{Delivery, ReplySink};

/// The sending side of the queue.
#[derive(Debug)]
pub struct WakingSender<T> {
    sender: Sender<T>,
    waker: Waker,
}

impl<T> Clone for WakingSender<T> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), waker: self.waker.clone() }
    }
}

impl<T> WakingSender<T> {
    /// An empty queue to the thread that `waker` wakes, and the side from which the thread takes the messages.
    #[must_use]
    pub fn new(waker: impl Into<Waker>) -> (Self, Receiver<T>) {
        let (sender, receiver) = unbounded();
        (Self { sender, waker: waker.into() }, receiver)
    }

    /// Adds a message. If the thread has ended, the message is dropped.
    pub fn send(&self, message: T) {
        let _ended = self.sender.send(message);
        self.waker.wake_by_ref();
    }
}

/// The committer's way to a frontend. It never holds more answers than the frontend has pending requests. The frontend
/// outlives the committer. If the frontend has failed, the process is about to end.
impl ReplySink for WakingSender<Delivery> {
    fn deliver(&self, delivery: Delivery) {
        self.send(delivery);
    }

    fn notify_room(&self) {
        self.waker.wake_by_ref();
    }
}
