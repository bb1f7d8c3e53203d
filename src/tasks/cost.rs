//! What requests cost beside the memory that they take: bytes of a batch that would take as much time.
//!
//! This module looks at nothing.

use super::shown::{BROWSED_MAX, BrowsedTask, ListedQueue, PAGE_BYTES_MAX};

/// A look at a queue or a task takes as long as the writing of so many bytes.
const LOOK_BYTES: usize = 1 << 6;

/// The cost of a look at each of so many queues.
#[must_use]
pub fn looks_cost(queues: usize) -> usize {
    queues.saturating_mul(LOOK_BYTES)
}

/// The cost of a page of at most so many tasks, with so many bytes of the value of each. `of_group`: of a group alone,
/// among as many others as a page looks at.
#[must_use]
pub fn page_cost(of_group: bool, most: u32, first_bytes: u32) -> usize {
    let shown = BROWSED_MAX.min(most as usize);
    let looks = if of_group { BROWSED_MAX } else { shown };
    looks_cost(looks) + PAGE_BYTES_MAX.min(shown.saturating_mul(size_of::<BrowsedTask>() + first_bytes as usize))
}

/// The cost of a list of at most so many queues, among as many others as a page looks at.
#[must_use]
pub fn list_cost(most: u32) -> usize {
    looks_cost(BROWSED_MAX) + BROWSED_MAX.min(most as usize) * size_of::<ListedQueue>()
}
