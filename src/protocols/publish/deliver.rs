//! Handing a burst to a subscriber: to the system at once if nothing waits before it, else to the end of its queue.
//!
//! ```text
//! its runs of the burst ─► Portion, gathered once for all who get the same ─► the system
//!                                                 what that does not take  └─► its queue, within its room
//! ```
//! As long as all subscribers keep up nothing is allocated or copied here.
//!
//! What is not here: who gets what.

use std::io::IoSlice;
use std::sync::Arc;

use rustix::io::Errno;

use super::burst::{Burst, Run};
use super::queue::{Buffer, Held, send};
use super::subscriber::Subscriber;
use crate::limits::SHARED_BYTES_MIN;

/// What may wait for a subscriber.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) messages: usize,
    pub(super) bytes: usize,
}

/// Messages of a burst for one subscriber, and for all others who get the same.
#[derive(Debug, Default)]
pub(super) struct Portion {
    runs: Vec<Run>,
    messages: usize,
    /// The bytes of the runs, if they are more than one.
    gathered: Vec<u8>,
    /// The same bytes for queues, once one needs them.
    buffer: Option<Arc<Buffer>>,
}

impl Portion {
    /// Becomes what these runs are.
    fn load(&mut self, burst: &Burst, runs: &[Run]) {
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
            [Run { start, end, .. }] => burst.bytes().get(start..end).unwrap_or_default(),
            _ => &self.gathered,
        }
    }

    fn buffer(&mut self, burst: &Burst, held: &Held) -> Arc<Buffer> {
        let buffer = self.buffer.take().unwrap_or_else(|| Arc::new(Buffer::new(self.bytes(burst), held)));
        Arc::clone(self.buffer.insert(buffer))
    }

    /// The burst is over.
    pub(super) fn clear(&mut self) {
        self.runs.clear();
        self.gathered.clear();
        self.buffer = None;
        self.messages = 0;
    }
}

/// Hands a subscriber its runs of the burst. How many messages it loses.
///
/// # Errors
/// The connection is broken.
pub(super) fn deliver(
    subscriber: &mut Subscriber,
    (burst, portion): (&Burst, &mut Portion),
    room: Room,
    held: &Held,
) -> Result<usize, Errno> {
    portion.load(burst, &subscriber.runs);
    subscriber.runs.clear();
    let queue = &mut subscriber.queue;
    let Some(descriptor) = &subscriber.descriptor else { return Ok(0) };
    let mut sent = 0;
    if queue.is_empty() {
        let bytes = portion.bytes(burst);
        sent = send(descriptor, &[IoSlice::new(bytes)])?;
        if sent == bytes.len() {
            return Ok(0);
        }
    } else if queue.bytes() >= room.bytes
        || (queue.messages_at_most() >= room.messages && queue.messages() >= room.messages)
    {
        return Ok(portion.messages);
    }
    if portion.bytes(burst).len() < SHARED_BYTES_MIN {
        queue.push_copy(portion.bytes(burst), portion.messages, held);
    } else {
        queue.push_shared(&portion.buffer(burst, held), portion.messages);
    }
    queue.advance(sent);
    if queue.messages_at_most() > room.messages || queue.bytes() > room.bytes {
        return Ok(queue.shorten(room.messages, room.bytes));
    }
    Ok(0)
}
