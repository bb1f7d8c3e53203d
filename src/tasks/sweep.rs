//! Which tasks a kick or a purge of many takes.
//!
//! This module takes none; see `queue/sweeping.rs`.

/// Which of many tasks are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// Kicks dead tasks if there are any when it begins, and otherwise delayed ones.
    Kick {
        /// The most of them.
        most: u64,
    },
    /// Makes dead tasks ready, in the order in which they died.
    KickDead {
        /// The most of them.
        most: u64,
    },
    /// Makes delayed tasks ready, in the order of the ends of their delays.
    KickDelayed {
        /// The most of them.
        most: u64,
    },
    /// Removes tasks.
    Purge {
        /// In these states.
        states: SweptStates,
        /// For at least so many milliseconds.
        age: u64,
    },
}

impl Sweep {
    /// The most tasks that are taken.
    pub(super) fn most(&self) -> u64 {
        match self {
            Self::Kick { most } | Self::KickDead { most } | Self::KickDelayed { most } => *most,
            Self::Purge { .. } => u64::MAX,
        }
    }
}

/// The states of tasks that are purged. Tasks that are lent stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweptStates {
    /// Tasks that may be lent.
    pub ready: bool,
    /// Tasks that are ready later.
    pub delayed: bool,
    /// Tasks that have failed too often, or were buried.
    pub dead: bool,
    /// Tasks that are out of the queue for good.
    pub dropped: bool,
}
