//! What a slot knows of its announced changes.
//!
//! This module does not announce, and does not interpret a change.

use crossbeam::epoch::Guard;

use super::{ANNOUNCED_MASK, ENDED, IN_ORDER, LENGTH_BITS, LENGTH_MASK, SlotRef};
use crate::tables::sync::{Ordering, fence};

/// Low bits of the last version of a slot that was announced. None: it does not count, since quiet changes came behind.
#[derive(Clone, Copy)]
pub(in crate::tables) struct Announced(pub(super) Option<u32>);

impl Announced {
    /// This version, if it counts.
    pub(super) fn new(version: Option<u64>) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "only the low bits are kept")]
        let low_bits = |version: u64| version as u32 & ANNOUNCED_MASK;
        Self(version.map(low_bits))
    }

    /// Whether it is this version. The low bits decide, since fewer changes are on their way than they count.
    pub(in crate::tables) fn is(self, version: u64) -> bool {
        self.0.is_some_and(|announced| version & u64::from(ANNOUNCED_MASK) == u64::from(announced))
    }

    /// Whether the version with these low bits comes next.
    pub(in crate::tables) fn is_followed_by(self, version: u32) -> bool {
        self.0.is_some_and(|announced| announced.wrapping_add(1) & ANNOUNCED_MASK == version & ANNOUNCED_MASK)
    }
}

impl<'g> SlotRef<'g> {
    /// After the CAS of a quiet change behind one that was not: the announced version counts no more. The caller's
    /// guard is the one under which it has asked for the audience. So this is done before the next audience has begun,
    /// and before a change is committed that is received.
    pub(super) fn fall_silent(&self) {
        // SeqCst: pairs with the fence in `catch_up`. Either that call sees the quiet word, or this one comes behind it.
        fence(Ordering::SeqCst);
        // Relaxed: the fence orders it.
        self.header().references.fetch_and(!IN_ORDER, Ordering::Relaxed);
    }

    /// Low bits of the last version that was announced.
    pub(in crate::tables) fn announced(&self) -> Announced {
        // Acquire, both: pairs with the Releases of `set_announced`. The flag is read first, so the version is that of
        // the flag or a later one.
        let counts = self.header().references.load(Ordering::Acquire) & IN_ORDER != 0;
        let version = self.header().announced_and_length.load(Ordering::Acquire) >> LENGTH_BITS;
        Announced(counts.then_some(version & ANNOUNCED_MASK))
    }

    /// Publisher: `version` (low bits) has been announced.
    pub(in crate::tables) fn set_announced(&self, version: u32) {
        // Relaxed: no other thread writes this field.
        let length = self.header().announced_and_length.load(Ordering::Relaxed) & LENGTH_MASK;
        // Release: pairs with the Acquire of `announced`. A thread that reads the version also sees the publisher's
        // earlier writes.
        self.header().announced_and_length.store(version << LENGTH_BITS | length, Ordering::Release);
        // Relaxed: only this thread sets the flag, and no writer clears it while there is an audience.
        if self.header().references.load(Ordering::Relaxed) & IN_ORDER == 0 {
            // Release: as above, for a thread that reads the flag.
            self.header().references.fetch_or(IN_ORDER, Ordering::Release);
        }
    }

    /// Publisher, when the audience has ended, and all changes of this slot that were received are taken from the
    /// rings: the last of them counts as announced, unless quiet ones came behind it.
    ///
    /// **A quiet change comes meanwhile.** Its writer stores the word, then clears the flag. This call sets the flag, then
    /// reads the word again. There is a fence between the two on each side. So either this call sees the quiet word, and
    /// clears the flag itself, or the writer's step comes behind it.
    pub(in crate::tables) fn catch_up(&self, guard: &'g Guard) {
        let seen = self.load(guard);
        if seen.is_quiet() {
            return;
        }
        #[expect(clippy::cast_possible_truncation, reason = "only the low bits are kept")]
        self.set_announced(seen.version() as u32);
        // SeqCst: pairs with the fence in `fall_silent`.
        fence(Ordering::SeqCst);
        if self.load(guard).is_quiet() {
            // Relaxed: only writers of quiet changes do the same.
            self.header().references.fetch_and(!IN_ORDER, Ordering::Relaxed);
        }
    }

    /// Publisher: the slot is dead, and its last change has been announced.
    pub(in crate::tables) fn set_ended(&self) {
        // Relaxed: only this thread reads it.
        self.header().references.fetch_or(ENDED, Ordering::Relaxed);
    }

    /// Publisher: whether [`SlotRef::set_ended`] was called.
    pub(in crate::tables) fn has_ended(&self) -> bool {
        // Relaxed: this thread has set it.
        self.header().references.load(Ordering::Relaxed) & ENDED != 0
    }
}
