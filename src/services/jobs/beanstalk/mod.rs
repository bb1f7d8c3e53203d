//! Durable jobs by the protocol of beanstalkd, over connections that stay. A tube is the job queue of its name.
//!
//! ```text
//! serve ─► conversation ─► input ─► command ─► session ─► a request to the queues ═► committer
//!               └◄─ reply ◄──────────────────────────────────────────── its outcome ◄┘
//! ```
//! This module does not contain the guarantees of a queue, see `tasks`, or the store.
//!
#![doc = include_str!("PROTOCOL.md")]

mod apart;
mod command;
mod context;
mod conversation;
mod held;
mod input;
mod reply;
mod room;
pub mod serve;
mod session;
#[cfg(test)]
mod tests;
mod tubes;
