//! The one kind of lock of this program: a mutex that is never poisoned, and its condition variable.
//!
//! A standard mutex remembers that a thread panicked while it held the lock, and hands the question to every later
//! holder. Here no later holder exists: a panic in a thread of `threads::spawn` ends the process. Only a test continues
//! after a panic, and it looks at nothing that the panicking thread had locked. So `lock` returns the guard itself.
//!
//! The mutex takes one byte, because a bucket of the tables has no room for more. A thread that finds it locked spins a
//! little, then sleeps in the system.
//!
//! This module knows nothing of the guarded data, or of the order in which a thread takes two locks. The `events`
//! frontend holds some locks across an `await`: those are the locks of its runtime.

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
