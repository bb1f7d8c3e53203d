//! What requests cost beside the memory that they take: bytes of a batch that would take as much time.
//!
//! This module looks at nothing.

/// A look at a queue or a task takes as long as the writing of so many bytes.
const LOOK_BYTES: usize = 1 << 6;

/// The cost of a look at each of so many queues.
#[must_use]
pub fn looks_cost(queues: usize) -> usize {
    queues.saturating_mul(LOOK_BYTES)
}
