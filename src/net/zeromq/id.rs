//! Names that distinguish connections, including connections that used the same slot earlier.

use rustix::event::epoll;

/// Names a connection. A name is unique as long as fewer than 4,000 million connections have come since it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId {
    slot: u32,
    generation: u32,
}

impl ConnectionId {
    pub(crate) fn new(slot: usize, generation: u32) -> Self {
        Self { slot: u32::try_from(slot).expect("connections are bounded"), generation }
    }

    /// Slot among the connections of its thread.
    pub(crate) fn slot(self) -> u32 {
        self.slot
    }

    /// Distinguishes it from other connections in the same slot.
    pub(crate) fn generation(self) -> u32 {
        self.generation
    }

    /// Both in one number.
    pub(crate) fn number(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// Value that names it to epoll.
    pub(crate) fn data(self) -> epoll::EventData {
        epoll::EventData::new_u64(self.number())
    }

    /// The connection that this epoll value names.
    pub(crate) fn of(data: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
        Self { slot: data as u32, generation: (data >> 32) as u32 }
    }
}
