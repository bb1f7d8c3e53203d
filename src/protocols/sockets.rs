//! What the frontends share: the queue of libzmq between threads, wake-ups, the errors of endpoints, and how serving
//! stops.
//!
//! This module does not know any protocol's bytes and does not start threads. No peer reaches libzmq: it is used within
//! the process alone ([`inproc`]).

mod endpoint;
pub mod inproc;
mod mailbox;
mod settled;
mod stop;
mod wait;

pub use endpoint::BindError;
pub(crate) use endpoint::bind_error;
pub use mailbox::Mailbox;
pub(crate) use settled::is_settled;
pub use stop::{ServeError, Stopper};
pub use wait::{WakeSignal, wait};
pub(crate) use wait::{is_readable, timespec};
