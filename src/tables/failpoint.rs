//! Failpoints: points between two steps of an operation, at which a test runs another thread's operation.
//!
//! The test's hook runs at the point itself, on the same thread, so the test forces each interleaving. Outside of tests
//! a failpoint does nothing.

/// A point between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failpoint {
    /// A write has loaded the word of a slot, and is about to CAS it.
    BeforeCas,
    /// A write has seen that a slot may be left, and is about to take the lock of its bucket.
    BeforeJump,
    /// A thread has seen that a deadline has passed, and is about to mark the word.
    BeforeMark,
    /// A write has found no slot, and is about to insert one.
    BeforeEnter,
    /// A thread has loaded the word of a deleted table's slot, and is about to seal it.
    BeforeSeal,
    /// The expiry thread has seen that a deadline has passed, and is about to look the table up.
    BeforeExpire,
    /// A change is committed, and not yet pushed.
    Committed,
    /// A name has been added or removed, and the request is not answered yet.
    Renamed,
    /// A split has taken a slot out of the old bucket.
    HandedOver,
    /// Slots that move to another line are shown on both.
    Doubled,
    /// A slot that has moved to another line is no longer shown on the old one.
    Drawn,
    /// A scan has read the depth of a bucket, and is about to read its cells.
    DepthRead,
    /// A reader has read one line of a bucket, and is about to read the others.
    LineRead,
    /// The eviction is about to commit.
    BeforeEvict,
    /// A slot has left its index.
    SlotLeft,
    /// A slot has become Moved. Its bucket, whose lock is held, does not show the other slot yet.
    MovedOut,
    /// The expiry thread has decided when to look again, and has not stored it yet.
    BeforeRearm,
    /// The expiry thread has stored when to look again, and has not loaded the word again yet.
    AfterRearm,
}

/// Marks that the operation has reached `point`.
#[inline]
pub(super) fn reach(point: Failpoint) {
    #[cfg(test)]
    hooks::run(point);
    #[cfg(not(test))]
    let _ = point;
}

#[cfg(test)]
pub(super) mod hooks {
    use super::Failpoint;
    use std::cell::RefCell;

    type Hook = (Failpoint, Box<dyn FnOnce()>);

    thread_local! {
        static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    }

    /// Sets the hook: it runs once, the next time that this thread reaches `point`.
    pub(in crate::tables) fn at(point: Failpoint, hook: impl FnOnce() + 'static) {
        HOOK.set(Some((point, Box::new(hook))));
    }

    /// Whether a hook still waits for its point.
    pub(in crate::tables) fn is_waiting() -> bool {
        HOOK.with_borrow(Option::is_some)
    }

    pub(super) fn run(point: Failpoint) {
        let hook = HOOK.with_borrow_mut(|hook| hook.take_if(|(at, _)| *at == point));
        if let Some((_, hook)) = hook {
            hook();
        }
    }
}
