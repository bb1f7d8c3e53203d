//! Points between two steps of an operation, at which a test makes another thread's operation happen.
//!
//! The test's hook runs on the spot, on the same thread, so each interleaving is forced and none is left to chance.
//! Outside of tests there is nothing here.

/// A point between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failpoint {
    /// A write has seen the word of a slot, and is about to CAS it.
    BeforeCas,
    /// A write has found no slot, and is about to let one in.
    BeforeEnter,
    /// A slot of a deleted table has been seen, and is about to be sealed.
    BeforeSeal,
    /// The expiry thread has seen that a deadline has passed, and is about to look the table up.
    BeforeExpire,
    /// A change is committed, and not yet pushed.
    Committed,
    /// A name has been added or removed, and that is not answered yet.
    Renamed,
    /// A split has taken a slot out of the old bucket.
    HandedOver,
    /// A slot has left its index.
    SlotLeft,
    /// A slot has become Moved, and its bucket, whose lock is held, does not show the other one yet.
    MovedOut,
    /// The expiry thread has decided when to look again, and has not yet written it.
    BeforeRearm,
    /// The expiry thread has written when to look again, and has not yet read the word again.
    AfterRearm,
}

/// The operation has come to `point`.
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

    /// The next time that this thread comes to `point`, `hook` runs there, once.
    pub(in crate::tables) fn at(point: Failpoint, hook: impl FnOnce() + 'static) {
        HOOK.set(Some((point, Box::new(hook))));
    }

    /// Whether a hook is still waiting for its point.
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
