//! How connections are told apart, also from those that had their place before.

use rustix::event::epoll;

/// A connection; none is ever called the same, as long as fewer than 4,000 million came since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId {
    slot: u32,
    generation: u32,
}

impl ConnectionId {
    pub(crate) fn new(slot: usize, generation: u32) -> Self {
        Self { slot: u32::try_from(slot).expect("connections are bounded"), generation }
    }

    /// Its place among the connections of its thread.
    pub(crate) fn place(self) -> u32 {
        self.slot
    }

    /// Tells it from others that have or had its place.
    pub(crate) fn generation(self) -> u32 {
        self.generation
    }

    /// How the system names it.
    pub(crate) fn data(self) -> epoll::EventData {
        epoll::EventData::new_u64(u64::from(self.generation) << 32 | u64::from(self.slot))
    }

    /// The connection that the system names so.
    pub(crate) fn of(data: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
        Self { slot: data as u32, generation: (data >> 32) as u32 }
    }
}
