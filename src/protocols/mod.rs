//! The four protocols: bytes on one side, verbs on the other. The only sockets of the crate are in here.

mod client_socket;
pub mod events;
pub mod jobs;
pub mod kv;
pub mod native;
pub mod publish;
pub mod sockets;
pub mod spiderq;
mod tcp;
