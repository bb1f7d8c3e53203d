//! A cell that owns one counted reference, and lends the value behind it under a guard.
//!
//! A reader writes no memory: it takes no reference and no lock.
//!
//! ```text
//! put ─► cell ─► get: borrowed, as long as the guard lives
//!         │
//!         └─ clear, or another put ─► the cell's reference is released one epoch later
//! ```
//! This module does not look at the value.

use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use crossbeam::epoch::{self, Guard};

/// A cell for one `Arc<T>`. Any thread may read it. Of several writers the last one wins; callers that need more
/// exclude each other.
pub(in crate::tables) struct ArcCell<T: Send + Sync + 'static> {
    /// From [`Arc::into_raw`], or null. Written by `swap` alone.
    pointer: AtomicPtr<T>,
    _owns: PhantomData<Arc<T>>,
}

impl<T: Send + Sync + 'static> ArcCell<T> {
    pub(in crate::tables) fn empty() -> Self {
        Self { pointer: AtomicPtr::new(ptr::null_mut()), _owns: PhantomData }
    }

    fn load(&self) -> *mut T {
        // Acquire: pairs with the Release of `swap`. The value behind the pointer is visible.
        self.pointer.load(Ordering::Acquire)
    }

    /// The value, for as long as the guard lives.
    #[inline]
    pub(in crate::tables) fn get<'g>(&self, _guard: &'g Guard) -> Option<&'g T> {
        // SAFETY: a pointer that is not null came from `Arc::into_raw`, and the cell holds its reference. `swap`
        // releases that reference only after the epoch in which it took the pointer out. The guard of lifetime 'g was
        // pinned before this load, so that epoch does not pass before 'g ends. The cell's own drop goes through `swap`
        // as well.
        unsafe { self.load().as_ref() }
    }

    /// The value with one more reference: for holders that outlive the guard.
    pub(in crate::tables) fn share(&self, _guard: &Guard) -> Option<Arc<T>> {
        let here = self.load();
        if here.is_null() {
            return None;
        }
        // SAFETY: as in `get`, the cell's reference keeps the Arc while the guard lives, so the count is above zero.
        // The added reference belongs to the Arc that this function returns.
        unsafe {
            Arc::increment_strong_count(here);
            Some(Arc::from_raw(here))
        }
    }

    /// Puts `value` here. The old value's reference is released when no guard shows it any more.
    pub(in crate::tables) fn put(&self, value: Arc<T>, guard: &Guard) {
        self.swap(Arc::into_raw(value).cast_mut(), guard);
    }

    /// Empties the cell. The old value's reference is released when no guard shows it any more.
    pub(in crate::tables) fn clear(&self, guard: &Guard) {
        self.swap(ptr::null_mut(), guard);
    }

    fn swap(&self, next: *mut T, guard: &Guard) {
        // Release: pairs with the Acquire of `load`. Acquire: pairs with the Release of the swap that stored the old
        // value, which any thread may drop.
        let before = self.pointer.swap(next, Ordering::AcqRel);
        if before.is_null() {
            return;
        }
        // SAFETY: the pointer came from `Arc::into_raw`, and this swap alone took it out of the cell, with the cell's
        // reference.
        let before = unsafe { Arc::from_raw(before) };
        guard.defer(move || drop(before));
    }
}

impl<T: Send + Sync + 'static> Drop for ArcCell<T> {
    fn drop(&mut self) {
        if !self.pointer.get_mut().is_null() {
            // A guard of another thread may still show the value: `get` lends it for the guard's life, not the cell's.
            self.clear(&epoch::pin());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;

    /// Pins and flushes until `done`. Other tests of this process pin as well, so it may take some rounds.
    fn collect_until(done: impl Fn() -> bool) {
        for _ in 0..1_000_000 {
            if done() {
                return;
            }
            epoch::pin().flush();
            std::thread::yield_now();
        }
        panic!("the epochs do not move on");
    }

    #[test]
    fn what_is_lent_outlives_the_cell_and_is_freed_when_the_guard_goes() {
        let value = Arc::new(7);
        let cell = ArcCell::empty();
        let guard = epoch::pin();
        assert!(cell.get(&guard).is_none() && cell.share(&guard).is_none());
        cell.put(Arc::clone(&value), &guard);
        let lent = cell.get(&guard).unwrap();
        cell.clear(&guard);
        assert!(cell.get(&guard).is_none());
        drop(cell);
        guard.flush();
        assert_eq!((*lent, Arc::strong_count(&value)), (7, 2), "the guard shows it, so its count stands");
        drop(guard);
        collect_until(|| Arc::strong_count(&value) == 1);
    }

    #[test]
    fn a_cell_counts_once_however_often_it_is_read_and_gives_its_count_back_when_it_goes() {
        let value = Arc::new(7);
        let cell = ArcCell::empty();
        cell.put(Arc::clone(&value), &epoch::pin());
        for _ in 0..10 {
            cell.get(&epoch::pin());
        }
        assert_eq!(Arc::strong_count(&value), 2);
        let shared = cell.share(&epoch::pin());
        assert_eq!(Arc::strong_count(&value), 3);
        drop((cell, shared));
        collect_until(|| Arc::strong_count(&value) == 1);
    }
}
