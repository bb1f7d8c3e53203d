//! The part of the compactor that sessions share: its calls to collect, and the writes that wait for memory or a look.
//!
//! The flags and counters are Relaxed: they carry no other data, and a late reading costs one look. `closed` alone
//! pairs with a load elsewhere. This module measures no memory and gives none back but the calling thread's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::thread::Thread;

use super::super::sleeper::Sleeper;
use super::super::slot::give_back_memory;
use crate::allocator;
use crate::lock::{Mutex, MutexGuard};
use crate::stats::SharedCounter;

/// The part of the compactor that sessions share.
#[derive(Default)]
pub(in crate::tables) struct CompactorShared {
    /// The number of calls to collect. Written by the compactor; read by sessions.
    calls: AtomicU64,
    /// Sessions that have acknowledged the last call. Added to by sessions; set to 0 and read by the compactor.
    acknowledged: AtomicUsize,
    /// Wakes the sessions' threads at each call.
    sessions: Mutex<Vec<Arc<Sleeper>>>,
    /// A write waits for memory. Set by writers. Cleared by the compactor, under the lock of `sleepers`, when it has
    /// done all it can.
    pub(super) wanted: AtomicBool,
    /// The compactor's looks so far. Written by the compactor under the lock of `sleepers`; read by writers.
    looks: AtomicU64,
    /// A write waits for the next look. Set by writers. Cleared by the compactor with `looks`.
    look_wanted: AtomicBool,
    /// Sessions with writes that wait. The compactor wakes them when it clears `wanted` or `look_wanted`.
    sleepers: Mutex<Vec<Arc<Sleeper>>>,
    /// No more memory can be given back. Written by the compactor; read by writers.
    pub(super) exhausted: AtomicBool,
    /// With fewer bytes in use than that it may be otherwise: the compactor looks again. Written by it before
    /// `exhausted`.
    pub(super) exhausted_below: AtomicI64,
    /// Entries that were moved. Added to by the compactor.
    pub(super) moved: SharedCounter,
    /// Set once, when the tables are closed. Read by the compactor.
    pub(super) closed: AtomicBool,
    /// The thread of the compactor. Set when it begins.
    pub(super) thread: Mutex<Option<Thread>>,
}

impl CompactorShared {
    pub(in crate::tables) fn enter(&self, sleeper: &Arc<Sleeper>) {
        self.sessions().push(Arc::clone(sleeper));
    }

    pub(in crate::tables) fn leave(&self, sleeper: &Arc<Sleeper>) {
        self.sessions().retain(|other| !Arc::ptr_eq(other, sleeper));
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<Arc<Sleeper>>> {
        self.sessions.lock()
    }

    /// Whether a write waits for memory. Sessions whose threads a call does not wake look for one more often meanwhile.
    pub(in crate::tables) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// The number of the last call. A session that has acknowledged an older call calls [`CompactorShared::collect`].
    #[inline]
    pub(in crate::tables) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    #[cold]
    pub(in crate::tables) fn collect(&self) {
        collect_thread();
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn call(&self) {
        // - A session acknowledges the previous call late: it is counted for this one. The compactor then continues
        //   before that session has collected for this call, and its part comes back later.
        // - A session leaves after its acknowledgment: the count is one too high, with the same result.
        // - A session enters meanwhile: it may take this call for an older one and never count itself. The compactor
        //   continues after `ACKNOWLEDGED_LOOKS_MAX` looks.
        // - A session's thread goes to sleep: the calls rise before it is woken, and its waker is kept if it is awake.
        //   So it acknowledges this call now or when its wait returns.
        self.acknowledged.store(0, Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Relaxed);
        let sessions = self.sessions().clone();
        sessions.iter().for_each(|sleeper| sleeper.wake());
    }

    fn sleepers(&self) -> MutexGuard<'_, Vec<Arc<Sleeper>>> {
        self.sleepers.lock()
    }

    /// Whether a write that waited for memory is worth another try. If not, the compactor wakes `sleeper` when it is.
    /// `awaited_look`: a write waits for the look after this one.
    ///
    /// This call and [`CompactorShared::finish`] take the lock of `sleepers`. If `finish` comes first, this call finds
    /// `wanted` cleared, unless another write has set it since: this one then waits for that one's `finish`. If this
    /// call comes first, `finish` finds `sleeper` and wakes it. `note_look` has the race over a look.
    pub(in crate::tables) fn watch(&self, sleeper: &Arc<Sleeper>, awaited_look: Option<u64>) -> bool {
        let mut sleepers = self.sleepers();
        let waits = awaited_look.map_or_else(|| self.wanted.load(Ordering::Relaxed), |looks| looks == self.looks());
        if !waits {
            return true;
        }
        if !sleepers.iter().any(|other| Arc::ptr_eq(other, sleeper)) {
            sleepers.push(Arc::clone(sleeper));
        }
        false
    }

    /// The compactor has done all it can: waiting writes try again.
    pub(super) fn finish(&self) {
        let mut sleepers = self.sleepers();
        self.wanted.store(false, Ordering::Relaxed);
        let woken = std::mem::take(&mut *sleepers);
        drop(sleepers);
        woken.iter().for_each(|sleeper| sleeper.wake());
    }

    /// The number of looks so far.
    pub(in crate::tables) fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    /// A write waits for a look after the last one that its session knows of. The compactor looks at once.
    pub(in crate::tables) fn want_look(&self) {
        if !self.look_wanted.swap(true, Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Whether a write waits for a look.
    pub(in crate::tables) fn is_look_wanted(&self) -> bool {
        self.look_wanted.load(Ordering::Relaxed)
    }

    /// The compactor has looked: writes that waited for it try again.
    ///
    /// A session reads `looks`, sets `look_wanted`, then calls [`CompactorShared::watch`], which takes the same lock:
    ///
    /// - **This call comes before the session's `watch`.** That finds the looks risen.
    /// - **The session's `watch` comes first.** The lock orders its `look_wanted` before this call, which finds it and
    ///   wakes the session.
    pub(in crate::tables) fn note_look(&self) {
        let mut sleepers = self.sleepers();
        self.looks.fetch_add(1, Ordering::Relaxed);
        let is_wanted = self.look_wanted.swap(false, Ordering::Relaxed);
        let woken = if is_wanted { std::mem::take(&mut *sleepers) } else { Vec::new() };
        drop(sleepers);
        woken.iter().for_each(|sleeper| sleeper.wake());
    }

    pub(super) fn all_have_acknowledged(&self) -> bool {
        self.acknowledged.load(Ordering::Relaxed) >= self.sessions().len()
    }

    /// A write lacks memory that the budget would grant. Returns whether waiting is worthwhile.
    ///
    /// - **The compactor finishes after this returns true**, and before the session calls [`CompactorShared::watch`].
    ///   Then `watch` finds `wanted` cleared, and the write tries again.
    /// - **The compactor gives up.** It sets `exhausted` before it finishes, and the lock of `sleepers` orders that
    ///   before the write's next try. A write that has read the old value here waits once more, in vain.
    /// - **The compactor ends.** No thread would clear `wanted` then. The workers' sessions are dropped before
    ///   (`Tables::close`), so no write comes here any more.
    /// - **Two writes.** One of them finds `wanted` unset and wakes the thread. Before `Compactor::run` has noted the
    ///   thread, the wake-up is lost, but the first look is still to come.
    pub(in crate::tables) fn may_give_back(&self) -> bool {
        if self.exhausted.load(Ordering::Relaxed) {
            return false;
        }
        if !self.wanted.swap(true, Ordering::Relaxed) {
            self.wake();
        }
        true
    }

    /// Whether so much was freed since no more memory could be given back that the next look may show otherwise.
    pub(in crate::tables) fn is_look_worthwhile(&self, used: i64) -> bool {
        self.exhausted.load(Ordering::Relaxed) && used < self.exhausted_below.load(Ordering::Relaxed)
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.lock().as_ref() {
            thread.unpark();
        }
    }

    pub(in crate::tables) fn close(&self) {
        // Release: pairs with the Acquire in `Compactor::run`.
        self.closed.store(true, Ordering::Release);
        self.wake();
    }

    /// Entries that were moved.
    pub(in crate::tables) fn moved(&self) -> u64 {
        self.moved.get()
    }
}

/// Gives the memory that this thread keeps back: that of freed entries to the allocator, and the allocator's to the
/// system.
pub(super) fn collect_thread() {
    give_back_memory();
    allocator::collect_thread();
}
