//! The commands: the arguments of each as typed, its work, and its output.
//!
//! A command returns a [`CommandError`](super::CommandError), or nothing. It does not end the process, and names no
//! socket.

pub(super) mod backup;
pub(super) mod check;
pub(super) mod client;
pub(super) mod config_show;
pub(super) mod dump;
mod durabilities;
pub(super) mod feed;
pub(super) mod flush;
pub(super) mod job;
pub(super) mod keygen;
pub(super) mod load;
pub(super) mod manual;
pub(super) mod mirror;
pub(super) mod monitor;
mod queues;
mod refusal;
pub(super) mod serve;
pub(super) mod session;
pub(super) mod shell;
pub(super) mod slow;
pub(super) mod task;
pub(super) mod user;
pub(super) mod watch;
mod work;
pub(super) mod worker;
