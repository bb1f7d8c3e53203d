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

use super::burst::{Burst, ByteRun};
use super::queue::{SharedBuffer, SubscriberQueue, send};
use super::subscriber::SubscriberConnection;
use crate::limits::SHARED_BYTES_MIN;
use crate::net::budget::Budget;

/// Bounds of the messages that wait for a subscriber.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueBounds {
    pub(super) messages: usize,
    pub(super) bytes: usize,
}

/// Messages of a burst for one subscriber, and for all others with the same runs.
#[derive(Debug, Default)]
pub(super) struct BurstPortion {
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
    pub(super) fn clear(&mut self) {
        self.runs.clear();
        self.gathered.clear();
        self.buffer = None;
        self.messages = 0;
    }
}

/// Offers the system a subscriber's runs of the burst, if its queue is empty. Returns the bytes taken, or `None` if the
/// system took all.
///
/// # Errors
/// The connection is broken.
pub(super) fn offer(
    subscriber: &mut SubscriberConnection,
    (burst, portion): (&Burst, &mut BurstPortion),
) -> Result<Option<usize>, Errno> {
    portion.load(burst, &subscriber.runs);
    subscriber.runs.clear();
    let Some(descriptor) = subscriber.descriptor.as_ref().filter(|_| subscriber.queue.is_empty()) else {
        return Ok(Some(0));
    };
    let bytes = portion.bytes(burst);
    let sent = match &mut subscriber.sealed {
        None => send(descriptor, &[IoSlice::new(bytes)])?,
        Some(sealed) => sealed.offer(bytes, descriptor)?,
    };
    Ok((sent < bytes.len()).then_some(sent))
}

/// Whether the buffers of all subscribers lack room for the delivery.
pub(super) fn lacks_room(
    queue: &mut SubscriberQueue,
    (burst, portion): (&Burst, &BurstPortion),
    held: &Budget,
) -> bool {
    !held.has_room_for(portion.cost(burst, queue))
}

/// Appends the delivery, of which the system has taken `sent` bytes, to a subscriber's queue. Returns how many messages
/// the subscriber loses.
///
/// If all buffers together would exceed their bound, the queue keeps the messages that fit, and in any case a message
/// of which the system has taken a part.
pub(super) fn keep(
    queue: &mut SubscriberQueue,
    (burst, portion): (&Burst, &mut BurstPortion),
    sent: usize,
    room: QueueBounds,
    held: &Arc<Budget>,
) -> usize {
    let is_full = |queue: &mut SubscriberQueue| {
        queue.bytes() >= room.bytes || (queue.messages_at_most() >= room.messages && queue.messages() >= room.messages)
    };
    if !queue.is_empty() && is_full(queue) {
        return portion.messages;
    }
    let mut lost = 0;
    if lacks_room(queue, (burst, portion), held) {
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
    if queue.messages_at_most() > room.messages || queue.bytes() > room.bytes {
        lost += queue.shorten(room.messages, room.bytes);
    }
    lost
}
