//! A cell that owns one counted reference and lends what it refers to under a guard.
//!
//! It does not know what is in it. A reader writes nothing: it counts nothing and takes no lock.
//!
//! ```text
//! put ─► cell ─► get: borrowed, as long as the guard lives
//!         │
//!         └─ clear, or another put ─► the cell's count is given back one epoch later
//! ```

use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use crossbeam::epoch::{self, Guard};

/// A place for one `Arc<T>`. Writers exclude each other or do not mind which of them wins; readers are any threads.
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
        // Acquire: pairs with the Release of `swap`: what the pointer shows is visible.
        self.pointer.load(Ordering::Acquire)
    }

    /// What is here, for as long as the guard lives.
    #[inline]
    pub(in crate::tables) fn get<'g>(&self, _guard: &'g Guard) -> Option<&'g T> {
        // SAFETY: a pointer that is not null came from `Arc::into_raw`, and the cell holds its count. `swap` gives that
        // count back only after the epoch in which it took the pointer out. The guard of lifetime 'g was pinned before
        // this load, so that epoch does not pass before 'g ends; the cell's own drop goes through `swap` as well.
        unsafe { self.load().as_ref() }
    }

    /// What is here, counted once more: for holders that outlive the guard.
    pub(in crate::tables) fn share(&self, _guard: &Guard) -> Option<Arc<T>> {
        let here = self.load();
        if here.is_null() {
            return None;
        }
        // SAFETY: as in `get`: the cell's count keeps the Arc for as long as the guard lives, so there is a count to add
        // to, and the added one belongs to the Arc that is made here.
        unsafe {
            Arc::increment_strong_count(here);
            Some(Arc::from_raw(here))
        }
    }

    /// Puts `value` here. What was here is let go of when no guard shows it any more.
    pub(in crate::tables) fn put(&self, value: Arc<T>, guard: &Guard) {
        self.swap(Arc::into_raw(value).cast_mut(), guard);
    }

    /// Empties the cell. What was here is let go of when no guard shows it any more.
    pub(in crate::tables) fn clear(&self, guard: &Guard) {
        self.swap(ptr::null_mut(), guard);
    }

    fn swap(&self, next: *mut T, guard: &Guard) {
        // Release: pairs with the Acquire of `load`. Acquire: what was here is dropped by whichever thread comes to it.
        let before = self.pointer.swap(next, Ordering::AcqRel);
        if before.is_null() {
            return;
        }
        // SAFETY: it came from `Arc::into_raw`, and this swap alone took it out of the cell, with the cell's count.
        let before = unsafe { Arc::from_raw(before) };
        guard.defer(move || drop(before));
    }
}

impl<T: Send + Sync + 'static> Drop for ArcCell<T> {
    fn drop(&mut self) {
        if !self.pointer.get_mut().is_null() {
            // A guard of another thread may still show it: `get` lends for the guard's life, not for the cell's.
            self.clear(&epoch::pin());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;

    /// Pins and flushes until `done`: other tests of this process pin as well, so it may take some rounds.
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
