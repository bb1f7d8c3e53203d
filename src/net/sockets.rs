//! What the frontends share: wake-ups, the errors of endpoints, and how serving stops.
//!
//! This module does not know any protocol's bytes and does not start threads.

mod endpoint;
mod listen;
mod settled;
mod socket_file;
mod stop;
mod wait;
mod waking_sender;

pub use endpoint::BindError;
pub(crate) use endpoint::bind_error;
pub use listen::ListenAddress;
pub(crate) use listen::ListeningSocket;
pub(crate) use settled::{has_hung_up, is_settled, keep_alive};
pub(crate) use socket_file::SocketFile;
pub use stop::{ServeError, Stopper};
pub use wait::{WakeSignal, wait};
pub(crate) use wait::{is_readable, timespec};
pub use waking_sender::WakingSender;
