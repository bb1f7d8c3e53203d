//! Which changes of a table somebody receives.
//!
//! This module decides nothing: see `announce/audience.rs`.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// The changes of a table that an audience receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AudienceKind {
    /// Only that elements end: deletions and expiries. Stored values stay quiet beside it, and cost no push. The ends of a
    /// key may be announced in another order than they were committed.
    Ends,
    /// All changes, in the commit order of each key.
    Changes,
}

/// In `changes`: a subscriber may receive the changes.
const SUBSCRIBED: u8 = 1;
/// In `changes`: the changes are pushed for the table itself, since an announced version is on disk. Stays set.
const KEPT: u8 = 2;
/// In `changes`: the last subscriber has left, and the publisher drains the changes of before. No writer sees this bit alone.
const ENDING: u8 = 4;

/// Whether somebody may receive the changes of a table. Written by the publisher's thread.
pub(super) struct TableAudience {
    /// All changes: some of the bits above. Read by each write. Sessions set one of them.
    changes: AtomicU8,
    /// Ends alone. Read by the publisher's thread.
    ends: AtomicBool,
}

impl TableAudience {
    /// `is_kept`: its changes are pushed as long as there is the table.
    pub(super) fn new(changes: bool, ends: bool, is_kept: bool) -> Self {
        let bits = if changes { SUBSCRIBED } else { 0 } | if is_kept { KEPT } else { 0 };
        Self { changes: AtomicU8::new(bits), ends: AtomicBool::new(ends) }
    }

    /// Whether somebody may receive all changes. Asked under the guard under which a change is committed and pushed.
    #[inline]
    pub(super) fn has_changes(&self) -> bool {
        // Relaxed: the guard was pinned before, and `announce/audience.rs` waits for the guards that may see the old state.
        self.changes.load(Ordering::Relaxed) & (SUBSCRIBED | KEPT) != 0
    }

    /// Publisher: whether somebody may receive all changes, but for the table itself.
    pub(super) fn is_subscribed(&self) -> bool {
        // Relaxed: the publisher's thread alone writes this bit, but for a new table.
        self.changes.load(Ordering::Relaxed) & SUBSCRIBED != 0
    }

    /// Publisher: somebody may receive all changes from now on. It waits for the guards of before afterwards. Returns
    /// whether that is new.
    fn begin_changes(&self) -> bool {
        // SeqCst, and the fence of the pin behind it: a guard that is pinned later sees the store. A store is avoided,
        // since all writers read the line.
        !self.is_subscribed() && self.changes.fetch_or(SUBSCRIBED, Ordering::SeqCst) & KEPT == 0
    }

    /// Publisher: nobody may receive changes from now on, but for the table itself. Returns whether nobody does. Then it
    /// waits for the guards of before, and calls [`TableAudience::note_ended`] when all is settled that was on its way.
    pub(super) fn end_changes(&self) -> bool {
        // SeqCst: as above.
        if self.changes.compare_exchange(SUBSCRIBED, ENDING, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            return true;
        }
        self.changes.fetch_and(!SUBSCRIBED, Ordering::SeqCst);
        false
    }

    /// Publisher: all changes are settled that were on their way when the audience ended.
    pub(super) fn note_ended(&self) {
        // SeqCst: as above.
        self.changes.fetch_and(!ENDING, Ordering::SeqCst);
    }

    /// Session: changes are pushed from now on, also without a subscriber. The caller waits for the guards of before
    /// afterwards. False: the audience is just ending, and the caller tries again.
    pub(super) fn keep_changes(&self) -> bool {
        // SeqCst: as above. The publisher ends no audience that has this bit.
        let kept = |bits| (bits & ENDING == 0).then_some(bits | KEPT);
        self.changes.fetch_update(Ordering::SeqCst, Ordering::Relaxed, kept).is_ok()
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
            AudienceKind::Changes => self.begin_changes(),
        }
    }
}
