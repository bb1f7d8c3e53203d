//! Durable jobs over TCP: first-in-first-out queues by name, one command a connection.
//!
//! The verbs, in the order in which every file of this folder lists them:
//!
//! ```text
//! Add   a job into a queue          Ack   a job that was handed out is done and gone
//! Get   the next job of a queue     In    is this job in the queue
//! ```
//! One request, file by file: [`serve`] accepts the connection, `conversation` reads it until [`wire`] says that the request is whole,
//! [`handle`] says what the queues are asked, and `desk` asks the committer of [`crate::tasks`] and brings its answer back;
//! [`handle`] and [`wire`] make a reply of that, and `conversation` sends it and closes. [`client`] is the other end, for users,
//! the command line and tests.
//!
//! What is not here: what a queue promises (`tasks`), and the store.
//!
#![doc = include_str!("PROTOCOL.md")]

pub mod client;
mod conversation;
pub mod handle;
mod responder;
pub mod serve;
#[cfg(test)]
mod tests;
pub mod wire;
