//! Which changes of a table somebody receives.
//!
//! This module decides nothing: see `announce/audience.rs`.

use std::sync::atomic::{AtomicBool, Ordering};

/// The changes of a table that an audience receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AudienceKind {
    /// Only that elements end: deletions and expiries. Stored values stay quiet beside it, and cost no push. The ends of a
    /// key may be announced in another order than they were committed.
    Ends,
    /// All changes, in the commit order of each key.
    Changes,
}

/// Whether somebody may receive the changes of a table. Written by the publisher's thread.
pub(super) struct TableAudience {
    /// All changes. Read by each write.
    changes: AtomicBool,
    /// Ends alone. Read by the publisher's thread.
    ends: AtomicBool,
}

impl TableAudience {
    pub(super) fn new(changes: bool, ends: bool) -> Self {
        Self { changes: AtomicBool::new(changes), ends: AtomicBool::new(ends) }
    }

    /// Whether somebody may receive all changes. Asked under the guard under which a change is committed and pushed.
    #[inline]
    pub(super) fn has_changes(&self) -> bool {
        // Relaxed: the guard was pinned before, and `announce/audience.rs` waits for the guards that may see the old state.
        self.changes.load(Ordering::Relaxed)
    }

    /// Publisher: whether somebody may receive all changes from now on. It waits for the guards of before afterwards.
    /// Returns whether that is new.
    pub(super) fn set_changes(&self, has_changes: bool) -> bool {
        // SeqCst, and the fence of the pin behind it: a guard that is pinned later sees the store. A store is avoided,
        // since all writers read the line.
        self.has_changes() != has_changes && self.changes.swap(has_changes, Ordering::SeqCst) != has_changes
    }

    /// Publisher: whether somebody receives ends alone.
    pub(super) fn has_ends(&self) -> bool {
        // Relaxed: the publisher's thread alone writes it, but for a new table.
        self.ends.load(Ordering::Relaxed)
    }

    /// Publisher: whether somebody receives ends alone from now on.
    pub(super) fn set_ends(&self, has_ends: bool) {
        // Relaxed: see `has_ends`.
        self.ends.store(has_ends, Ordering::Relaxed);
    }

    /// Publisher: somebody receives these changes from now on. Returns whether writers see a new state.
    pub(super) fn begin(&self, kind: AudienceKind) -> bool {
        match kind {
            AudienceKind::Ends => {
                self.set_ends(true);
                false
            }
            AudienceKind::Changes => self.set_changes(true),
        }
    }
}
