//! What a queue counts.

/// The number of tasks in each state, and what has happened to tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskCounts {
    /// Tasks that a client can lease.
    pub ready: u64,
    /// Tasks that a client holds.
    pub leased: u64,
    /// Tasks that are out of the queue for good.
    pub dropped: u64,
    /// Tasks that are out of the order for a pause, since their values could not be read.
    pub unread: u64,
    /// Tasks that become ready when their time has come.
    pub delayed: u64,
    /// Tasks that have failed too often, or were buried.
    pub dead: u64,
    /// Since the server started.
    pub ever: TaskTotals,
}

/// What has happened to the tasks of a queue since the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskTotals {
    /// Tasks that were added.
    pub added: u64,
    /// Leases that were granted.
    pub lent: u64,
    /// Tasks that were done.
    pub done: u64,
    /// Leases that have expired.
    pub ran_out: u64,
    /// Leases that have failed: those that have expired, and others.
    pub failed: u64,
    /// Tasks that have gone because their lifetime was over.
    pub expired: u64,
    /// Tasks that a request has removed, in any state: Remove, a purge, or the deletion of a job that nobody held.
    pub removed: u64,
    /// Requests for a task that found one, but the queue was paused, or its rate was reached.
    pub throttled: u64,
}

/// The number of counts.
pub(super) const COUNTS: usize = 14;

impl TaskCounts {
    /// All counts, in a fixed order.
    pub(super) fn all_counts(self) -> [u64; COUNTS] {
        let Self { ready, leased, dropped, unread, delayed, dead, ever } = self;
        let TaskTotals { added, lent, done, ran_out, failed, expired, removed, throttled } = ever;
        let ever = [added, lent, done, ran_out, failed, expired, removed, throttled];
        let [a, b, c, d, e, f, g, h] = ever;
        [ready, leased, dropped, unread, delayed, dead, a, b, c, d, e, f, g, h]
    }

    /// The counts in that order.
    pub(super) fn of(counts: [u64; COUNTS]) -> Self {
        let [ready, leased, dropped, unread, delayed, dead, ever @ ..] = counts;
        let [added, lent, done, ran_out, failed, expired, removed, throttled] = ever;
        let ever = TaskTotals { added, lent, done, ran_out, failed, expired, removed, throttled };
        Self { ready, leased, dropped, unread, delayed, dead, ever }
    }

    /// The number of tasks in all states.
    #[must_use]
    pub fn all(self) -> u64 {
        let Self { ready, leased, dropped, unread, delayed, dead, .. } = self;
        ready + leased + dropped + unread + delayed + dead
    }
}
