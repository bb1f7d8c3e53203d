//! The atomics, cells and locks of what is model-checked: those of the program, or loom's when a model runs.

#[cfg(all(test, feature = "models"))]
pub(super) use loom::cell::UnsafeCell;
#[cfg(all(test, feature = "models"))]
pub(super) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(all(test, feature = "models")))]
pub(super) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(not(all(test, feature = "models")))]
pub(super) use crate::lock::Mutex;

/// Loom's lock, with the methods of the program's.
#[cfg(all(test, feature = "models"))]
pub(super) struct Mutex<T>(loom::sync::Mutex<T>);

#[cfg(all(test, feature = "models"))]
impl<T> Mutex<T> {
    pub(super) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(all(test, feature = "models"))]
impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self(loom::sync::Mutex::new(T::default()))
    }
}

/// A cell with loom's methods.
#[cfg(not(all(test, feature = "models")))]
pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(all(test, feature = "models")))]
impl<T> UnsafeCell<T> {
    pub(super) fn new(content: T) -> Self {
        Self(std::cell::UnsafeCell::new(content))
    }

    /// Calls `read` with a pointer that it may read.
    #[inline]
    pub(super) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// Calls `write` with a pointer that it may write to.
    #[inline]
    pub(super) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}
