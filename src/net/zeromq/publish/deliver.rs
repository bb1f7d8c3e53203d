//! Hands a burst to a subscriber: to the system at once if the subscriber's queue is empty, else to the end of that
//! queue.
//!
//! ```text
//! its runs of the burst ─► BurstPortion, gathered once for all with the same runs ─┬─► the system, as much as it takes
//!                                                                              └─► its queue, within the bounds
//! ```
//! As long as all subscribers keep up, the publisher makes no buffers for queues. It copies bytes only to gather
//! several runs.
//!
//! This module does not choose the subscribers of a message; see `burst` and `topics`.

use std::io::IoSlice;
use std::sync::Arc;

use rustix::io::Errno;

use super::PublishLimits;
use super::burst::{Burst, ByteRun};
use super::queue::{SharedBuffer, SubscriberQueue, send};
use super::subscriber::SubscriberConnection;
use super::topics::Member;
use crate::limits::SHARED_BYTES_MIN;
use crate::net::budget::Budget;

/// Messages of a burst for one subscriber, and for all others with the same runs.
#[derive(Debug, Default)]
struct BurstPortion {
    runs: Vec<ByteRun>,
    messages: usize,
    /// The bytes of the runs, if there are several runs.
    gathered: Vec<u8>,
    /// The same bytes for queues. Made when a queue first needs them.
    buffer: Option<Arc<SharedBuffer>>,
}

impl BurstPortion {
    /// Loads these runs of the burst.
    fn load(&mut self, burst: &Burst, runs: &[ByteRun]) {
        if self.runs == runs {
            return;
        }
        self.clear();
        self.runs.extend_from_slice(runs);
        self.messages = runs.iter().map(|run| run.messages).sum();
        if runs.len() > 1 {
            let parts = runs.iter().map(|run| burst.bytes().get(run.start..run.end).unwrap_or_default());
            parts.for_each(|part| self.gathered.extend_from_slice(part));
        }
    }

    fn bytes<'b>(&'b self, burst: &'b Burst) -> &'b [u8] {
        match *self.runs {
            [ByteRun { start, end, .. }] => burst.bytes().get(start..end).unwrap_or_default(),
            _ => &self.gathered,
        }
    }

    /// Bytes by which all buffers grow if it is appended to a queue.
    fn cost(&self, burst: &Burst, queue: &mut SubscriberQueue) -> usize {
        match self.bytes(burst).len() {
            _ if self.buffer.is_some() => 0,
            short @ ..SHARED_BYTES_MIN => queue.cost_of_copy(short),
            long => long,
        }
    }

    fn buffer(&mut self, burst: &Burst, held: &Arc<Budget>) -> Arc<SharedBuffer> {
        let buffer = self.buffer.take().unwrap_or_else(|| Arc::new(SharedBuffer::new(self.bytes(burst), held)));
        Arc::clone(self.buffer.insert(buffer))
    }

    /// Forgets the burst.
    fn clear(&mut self) {
        self.runs.clear();
        self.gathered.clear();
        self.buffer = None;
        self.messages = 0;
    }
}

/// The messages on their way to subscribers.
pub(super) struct Delivery {
    pub(super) burst: Burst,
    portion: BurstPortion,
    /// Subscribers with messages in the burst that is being sent.
    pub(super) touched: Vec<Member>,
    /// Deliveries to subscribers since the last pass of receiving.
    pub(super) count: usize,
    /// Bytes that wait for all subscribers.
    pub(super) held: Arc<Budget>,
    /// Whether this burst has already cut the queues down to their shares.
    has_made_room: bool,
}

impl Delivery {
    /// Nothing is on its way. At most so many bytes may wait.
    pub(super) fn new(held_bytes: usize) -> Self {
        Self {
            burst: Burst::default(),
            portion: BurstPortion::default(),
            touched: Vec::new(),
            count: 0,
            held: Budget::new(held_bytes as u64),
            has_made_room: false,
        }
    }

    /// Offers the system a subscriber's runs of the burst, if its queue is empty. Returns the bytes taken, or `None` if
    /// the system took all.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) fn offer(&mut self, subscriber: &mut SubscriberConnection) -> Result<Option<usize>, Errno> {
        let Self { burst, portion, count, .. } = self;
        let SubscriberConnection { descriptor, output, .. } = subscriber;
        *count += 1;
        portion.load(burst, &output.runs);
        output.runs.clear();
        let Some(descriptor) = descriptor.as_ref().filter(|_| output.queue.is_empty()) else {
            return Ok(Some(0));
        };
        let bytes = portion.bytes(burst);
        let sent = match &mut output.sealed {
            None => send(descriptor, &[IoSlice::new(bytes)])?,
            Some(sealed) => sealed.offer(bytes, descriptor)?,
        };
        Ok((sent < bytes.len()).then_some(sent))
    }

    /// Whether the buffers of all subscribers lack room for the delivery, for the first time in this burst.
    pub(super) fn begins_to_lack_room(&mut self, queue: &mut SubscriberQueue) -> bool {
        let begins = !self.has_made_room && self.lacks_room(queue);
        self.has_made_room |= begins;
        begins
    }

    fn lacks_room(&self, queue: &mut SubscriberQueue) -> bool {
        !self.held.has_room_for(self.portion.cost(&self.burst, queue))
    }

    /// Appends the delivery, of which the system has taken `sent` bytes, to a subscriber's queue. Returns how many
    /// messages the subscriber loses.
    ///
    /// If all buffers together would exceed their bound, the queue keeps the messages that fit, and in any case a
    /// message of which the system has taken a part.
    pub(super) fn keep(&mut self, queue: &mut SubscriberQueue, sent: usize, limits: &PublishLimits) -> usize {
        let is_full = |queue: &mut SubscriberQueue| {
            queue.bytes() >= limits.bytes
                || (queue.messages_at_most() >= limits.messages && queue.messages() >= limits.messages)
        };
        if !queue.is_empty() && is_full(queue) {
            return self.portion.messages;
        }
        let lacks_room = self.lacks_room(queue);
        let Self { burst, portion, held, .. } = self;
        let mut lost = 0;
        if lacks_room {
            let left = usize::try_from(held.left()).unwrap_or(usize::MAX);
            lost = portion.messages - queue.push_fitting(portion.bytes(burst), sent, left, held);
        } else {
            if portion.bytes(burst).len() < SHARED_BYTES_MIN {
                queue.push_copy(portion.bytes(burst), portion.messages, held);
            } else {
                queue.push_shared(&portion.buffer(burst, held), portion.messages);
            }
            queue.advance(sent);
        }
        if queue.messages_at_most() > limits.messages || queue.bytes() > limits.bytes {
            lost += queue.shorten(limits.messages, limits.bytes);
        }
        lost
    }

    /// Forgets the burst, which is sent.
    pub(super) fn clear(&mut self) {
        self.portion.clear();
        self.burst.clear();
        self.has_made_room = false;
    }
}
