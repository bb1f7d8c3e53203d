//! Tasks and queues that are looked at, a page at a time.
//!
//! This module looks at nothing: see `engine/browsing.rs`.

use super::counts::TaskCounts;
use super::payload::Payload;
use super::terms::REASON_BYTES_MAX;
use super::{Policy, QueueTerms, Rate};
use crate::store::TaskKey;

/// Tasks at which a page looks.
pub(super) const BROWSED_MAX: usize = 1 << 10;
/// The bytes of a page, the last task aside.
pub(super) const PAGE_BYTES_MAX: usize = 1 << 20;

/// Which tasks are looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Browse {
    /// In this state.
    pub state: BrowsedState,
    /// Of this group. Empty: of none. `None`: of all.
    pub group: Option<Box<[u8]>>,
    /// Where the page before ended. `None`: from the first one on.
    pub from: Option<BrowsePlace>,
    /// The most tasks.
    pub most: u32,
    /// The most bytes of each value.
    pub first_bytes: u32,
}

/// A state in which tasks are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrowsedState {
    /// The most urgent class first, and in the order of their leases within it. Groups take turns, of which it shows nothing.
    Ready,
    /// In the order of their times.
    Delayed,
    /// In the order in which they were leased, and then those of connections in the order in which they were added.
    Lent,
    /// In the order in which they died.
    Dead,
    /// In the order in which they were added.
    Dropped,
}

/// Where a page begins. Valid for the state, the group and the queue that it came from, also after a start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BrowsePlace(pub [u64; 4]);

/// A task on a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrowsedTask {
    /// Its key.
    pub key: Box<[u8]>,
    /// Its priority class.
    pub class: u32,
    /// The leases since it was added, kicked or repaid.
    pub lent: u32,
    /// The name of its group. Empty: it has none.
    pub group: Box<[u8]>,
    /// The milliseconds since it entered its state.
    pub age: u64,
    /// The milliseconds until it leaves its state by itself, with the end of its delay or lease.
    pub left: Option<u64>,
    /// Why it has failed, if that has brought it into its state.
    pub reason: ShownReason,
    /// The length of its value.
    pub bytes: u64,
    /// The first bytes of its value.
    pub payload: Payload,
    /// Where the store has it.
    pub place: TaskKey,
}

impl BrowsedTask {
    /// The memory that it takes, approximately.
    pub(super) fn memory(&self) -> usize {
        size_of::<Self>() + self.key.len() + self.group.len() + REASON_BYTES_MAX
    }
}

/// A queue in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedQueue {
    /// Its name, with the prefix of its family.
    pub name: Box<[u8]>,
    /// The number of its tasks in each state, and what has happened to them since the server started.
    pub counts: TaskCounts,
    /// Its ready tasks of classes below [`URGENT_CLASS`](super::URGENT_CLASS).
    pub urgent: u64,
    /// The groups that have tasks.
    pub groups: u64,
    /// The requests that wait for a task.
    pub waiting: u64,
    /// The milliseconds for which its oldest ready task has been ready.
    pub oldest: Option<u64>,
    /// The milliseconds until its pause ends. `u64::MAX`: it ends when the queue is resumed.
    pub paused: Option<u64>,
    /// What is set.
    pub terms: QueueTerms,
    /// The most tasks that it lends in a time.
    pub rate: Option<Rate>,
    /// When its changes are on disk, if that is set.
    pub sync: Option<Policy>,
}

/// Why a task on a page has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShownReason {
    /// It has not, or nobody has said why.
    None,
    /// For this reason.
    Fresh(Box<[u8]>),
    /// Its record in the store says why.
    Stored,
}

/// A page of tasks. It may have fewer than asked for, also none, and not be the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrowsedPage {
    /// The tasks.
    pub tasks: Vec<BrowsedTask>,
    /// Where the next page begins. `None`: this was the last one.
    pub next: Option<BrowsePlace>,
    /// The most bytes of each value.
    pub first_bytes: u32,
}
