//! What frontends with connections that stay ask of jobs, and what they are shown.
//!
//! This module carries nothing out; see `queue/reserving.rs`.

/// Tokens from here on are those of connections. The others never come so far.
pub(super) const RESERVATIONS: u64 = 1 << 63;

/// The history of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JobHistory {
    /// When it was added, in milliseconds of the leases' clock.
    pub(super) added: u64,
    /// The last delay that somebody asked for, in seconds.
    pub(super) delay: u32,
    /// Leases before those that the task itself counts.
    pub(super) lent_before: u32,
    /// Leases that have run out.
    pub(super) timeouts: u32,
    /// How often it was given back.
    pub(super) releases: u32,
    /// How often it has died.
    pub(super) buries: u32,
    pub(super) kicks: u32,
}

/// How a reservation ends, other than by the removal of its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationEnd {
    /// It is given back: the job has failed.
    Released {
        /// The class that the job has from then on.
        class: u32,
        /// The milliseconds until it is ready.
        delay: u64,
    },
    /// The job is dead.
    Buried {
        /// The class that the job has from then on.
        class: u32,
    },
    /// The connection is gone: the job has failed.
    Closed,
}

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// It may be leased.
    Ready,
    /// It is ready later.
    Delayed,
    /// Somebody holds it, by any protocol.
    Reserved,
    /// It is dead, or cannot be read at present.
    Buried,
}

/// A job that is looked at. Times are in milliseconds where nothing else is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownJob {
    /// The name of its queue, with the prefix of the family.
    pub queue: Box<[u8]>,
    /// Its state.
    pub state: JobState,
    /// Its priority class.
    pub class: u32,
    /// The time since it was added.
    pub age: u64,
    /// The last delay that somebody asked for, in seconds.
    pub delay: u32,
    /// The length of its leases, if it has one of its own.
    pub lease: Option<u64>,
    /// The time until its delay or its lease ends.
    pub left: u64,
    /// How often it was leased.
    pub reserves: u32,
    /// How often its lease has run out.
    pub timeouts: u32,
    /// How often it was given back.
    pub releases: u32,
    /// How often it has died.
    pub buries: u32,
    /// How often it was kicked.
    pub kicks: u32,
}
