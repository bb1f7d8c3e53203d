//! Durable jobs over TCP: named first-in-first-out queues, one command for each connection.
//!
//! Every file of this folder lists the verbs in this order:
//!
//! ```text
//! Add   add a job to a queue           Ack   mark a leased job as done, which removes it
//! Get   lease the next job of a queue  In    whether a job is in a queue
//! ```
//! A request passes through these files: [`serve`] accepts the connection, `conversation` reads until [`wire`] says
//! that the request is complete, and [`handle`] turns it into a request to a queue. `responder` submits this to the
//! committer of [`crate::tasks`] and brings the answer back. [`handle`] and [`wire`] make a reply of the outcome, and
//! `conversation` sends it and closes the connection. `clients/rust/jobs.rs` is the other end, for users, the command
//! line and tests.
//!
//! This module does not contain the guarantees of a queue, see `tasks`, or the store.
//!
#![doc = include_str!("PROTOCOL.md")]

pub mod beanstalk;
mod context;
mod conversation;
pub mod handle;
mod pace;
pub mod permission;
mod responder;
pub mod serve;
mod stream;
#[cfg(test)]
mod tests;
mod timing;
pub mod wire;
