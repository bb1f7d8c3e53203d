//! The atomics of the slot: the standard ones, or loom's when the protocol is model-checked.

#[cfg(all(test, feature = "slot-model"))]
pub(super) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(all(test, feature = "slot-model")))]
pub(super) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
