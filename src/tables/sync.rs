//! The atomics of what is model-checked: the standard ones, or loom's when a model runs.

#[cfg(all(test, feature = "models"))]
pub(super) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(all(test, feature = "models")))]
pub(super) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
