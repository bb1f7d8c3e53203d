//! What a task may be added with: its class, a delay, how often it is tried, how long it waits between, and its end.
//!
//! ```text
//! lend 1 ─► fails ─► backoff ─► lend 2 ─► fails ─► twice the backoff ─► … ─► lend `tries` ─► fails ─► dead
//! ```
//! This module keeps no task; see `queue/failure.rs`.

use std::num::NonZeroU32;

use super::Policy;

impl Policy {
    /// The policy as a number of milliseconds: 0 always, `u64::MAX` never.
    #[must_use]
    pub fn millis(self) -> u64 {
        match self {
            Self::Always => 0,
            Self::Within(millis) => millis.clamp(1, u64::MAX - 1),
            Self::Never => u64::MAX,
        }
    }

    /// The policy of a number of milliseconds.
    #[must_use]
    pub fn of_millis(millis: u64) -> Self {
        match millis {
            0 => Self::Always,
            u64::MAX => Self::Never,
            millis => Self::Within(millis),
        }
    }
}

/// The number of a group in its queue, valid as long as the group has a task.
pub(super) type GroupNumber = u32;

/// The number of a unique name in its queue, valid as long as its task is there.
pub(super) type UniqueNumber = u32;

/// The most bytes of a reason: why a task has failed.
pub const REASON_BYTES_MAX: usize = 256;

/// Why a task has failed, where nobody has said it.
pub(super) mod reason {
    /// Its lease has expired.
    pub(in crate::tasks) const RAN_OUT: &[u8] = b"lease ran out";
    /// The connection that held it is gone.
    pub(in crate::tasks) const CLOSED: &[u8] = b"connection closed";
    /// The bytes of its value are lost.
    pub(in crate::tasks) const DAMAGED: &[u8] = b"value damaged";
}

/// How a lease has failed.
#[derive(Clone, Copy, Debug)]
pub(super) enum FailureCause<'r> {
    /// Its time is over.
    RanOut,
    /// The connection of its holder is gone.
    Closed,
    /// Its holder has given it back, for this reason.
    GivenBack(&'r [u8]),
}

/// Jobs of smaller classes are urgent: beanstalkd counts them.
pub const URGENT_CLASS: u32 = 1 << 10;

/// The class of a task that names none.
pub const USUAL_CLASS: u32 = 1 << 16;

/// What a task is added with. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddTerms {
    /// Its priority class: a smaller one is leased first, wherever the others stand.
    pub class: u32,
    /// The time until it is ready. 0: it is at once.
    pub delay: u64,
    /// The time until it goes, if nobody holds it then. `None`: it stays.
    pub lifetime: Option<u64>,
    /// The number of leases after which it is dead if the last one fails. `None`: that of its queue. `Some(None)`: there
    /// is no bound.
    pub tries: Option<Option<NonZeroU32>>,
    /// How long it waits after a lease that failed. `None`: as its queue says.
    pub backoff: Option<Backoff>,
    /// The name of its group. Empty: it has none.
    pub group: Box<[u8]>,
    /// The length of its leases. `None`: as the request says that leases it.
    pub lease: Option<u64>,
    /// A name that no other task of its queue may have. Empty: it has none.
    pub unique: Box<[u8]>,
}

impl Default for AddTerms {
    fn default() -> Self {
        let (group, unique) = (Box::default(), Box::default());
        let (lifetime, tries, backoff, lease) = (None, None, None, None);
        Self { class: USUAL_CLASS, delay: 0, lifetime, tries, backoff, group, lease, unique }
    }
}

/// How long a task waits after a lease that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// After the first failure, in milliseconds.
    pub first: u32,
    /// Doubled with each failure up to this one. As long as `first`: it is always the same.
    pub most: u32,
}

impl Backoff {
    /// The time after the failure of so many leases. A doubled time is scattered between its half and itself, so that tasks
    /// do not come back together. It follows from the number of the task, so the model of the tests knows it.
    #[must_use]
    pub fn after(self, tries: u32, number: u64) -> u64 {
        let doubled = u64::from(self.first) << tries.saturating_sub(1).min(u32::BITS);
        let whole = doubled.min(u64::from(self.most));
        if self.most <= self.first {
            return u64::from(self.first);
        }
        let half = whole / 2;
        half + scattered(number ^ u64::from(tries).rotate_right(16)) % (whole - half + 1)
    }
}

/// A number whose bits depend on all bits of this one: the finalizer of SplitMix64.
fn scattered(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// What holds for the tasks of a queue that have no terms of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueTerms {
    /// The number of leases after which a task is dead if the last one fails. `None`: that of the server. `Some(None)`:
    /// there is no bound.
    pub tries: Option<Option<NonZeroU32>>,
    /// How long a task waits after a lease that failed. `None`: not at all.
    pub backoff: Option<Backoff>,
    /// The tasks of a group that may be lent at a time. `None`: there is no bound.
    pub group_limit: Option<NonZeroU32>,
}

/// How many tasks a queue lends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The tasks that are lent in the time of `per`. At least 1.
    pub count: u32,
    /// Milliseconds. At least 1.
    pub per: u32,
    /// The tasks that may be lent at once, after a time without any. At least 1.
    pub burst: u32,
}

impl Rate {
    /// The rate of these numbers. `None`: one of them is 0.
    #[must_use]
    pub fn of(count: u32, per: u32, burst: u32) -> Option<Self> {
        (count > 0 && per > 0 && burst > 0).then_some(Self { count, per, burst })
    }

    /// The nanoseconds between two tasks, rounded up.
    pub(super) fn interval(self) -> u128 {
        (u128::from(self.per) * 1_000_000).div_ceil(u128::from(self.count))
    }
}

/// Changes of a queue's settings. `None`: the setting stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueChange {
    /// See [`QueueTerms::tries`].
    pub tries: Option<Option<Option<NonZeroU32>>>,
    /// See [`QueueTerms::backoff`].
    pub backoff: Option<Option<Backoff>>,
    /// The tasks of a group that may be lent at a time. `Some(None)`: there is no bound.
    pub group_limit: Option<Option<NonZeroU32>>,
    /// `Some(None)`: there is no bound.
    pub rate: Option<Option<Rate>>,
    /// Milliseconds from now until the queue lends again. 0: it is resumed. `u64::MAX`: until it is.
    pub pause: Option<u64>,
    /// When its changes are on disk. `Some(None)`: as the server has it for queues of this kind.
    pub sync: Option<Option<Policy>>,
}

/// What a task keeps of its terms while it is there. Most tasks have none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TaskTerms {
    /// When it goes if nobody holds it, in milliseconds of the leases' clock.
    pub(super) expires: Option<u64>,
    pub(super) tries: Option<Option<NonZeroU32>>,
    pub(super) backoff: Option<Backoff>,
    pub(super) group: Option<GroupNumber>,
    pub(super) lease: Option<u64>,
    pub(super) unique: Option<UniqueNumber>,
}

impl TaskTerms {
    /// Those of a task that is added now. `None`: it has none of its own.
    pub(super) fn of(
        terms: &AddTerms,
        now: u64,
        group: Option<GroupNumber>,
        unique: Option<UniqueNumber>,
    ) -> Option<Box<Self>> {
        let &AddTerms { lifetime, tries, backoff, lease, .. } = terms;
        let expires = lifetime.map(|lifetime| now.saturating_add(lifetime));
        Self { expires, tries, backoff, group, lease, unique }.boxed()
    }

    /// For a task. `None`: it has none of its own.
    pub(super) fn boxed(self) -> Option<Box<Self>> {
        (self != Self::default()).then(|| Box::new(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backoff_doubles_up_to_its_bound_and_scatters() {
        let backoff = Backoff { first: 1_000, most: 600_000 };
        for (tries, whole) in [(1, 1_000), (2, 2_000), (3, 4_000), (10, 512_000), (11, 600_000), (u32::MAX, 600_000)] {
            let delays: Vec<u64> = (0..1_000).map(|number| backoff.after(tries, number)).collect();
            assert!(delays.iter().all(|delay| (whole / 2..=whole).contains(delay)), "{tries}");
            let (least, most) = (delays.iter().min(), delays.iter().max());
            assert!(
                least < Some(&(whole / 100 * 52)) && most > Some(&(whole / 100 * 98)),
                "{tries}: {least:?} {most:?}"
            );
        }
        let same = Backoff { first: 700, most: 700 };
        assert_eq!([1, 2, 99].map(|tries| same.after(tries, 5)), [700; 3]);
        assert_eq!(Backoff { first: 0, most: 0 }.after(3, 1), 0);
    }
}
