//! The lock of the tests, which is the program's (`src/lock.rs`): it is never poisoned.
//!
//! A client that panics fails its test when its thread is joined. The other clients and the last check continue with
//! the notes until then.

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
