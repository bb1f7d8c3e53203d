//! Tasks over ZeroMQ: a key-value store joined to one queue of tasks that are lent out under a lease.
//!
//! The protocol is spiderq 1.3, and 1.4 for its clients. The verbs, in the order in which every file of this folder lists them:
//!
//! ```text
//! Ping        is anybody there                      Heartbeat  more or less time for a lease
//! Count       how many tasks are ready              Stats      how many requests of each kind were answered
//! Add         a new task                            Terminate  the end of the server
//! Update      a new value for a task                Lookup     the value of a task
//! Lend        the next task, for a time             Flush      everything to disk
//! Repay       a task back, or out of the queue      Remove     no such task any more
//! ```
//! One request, file by file: [`serve`] receives it over a connection of [`native`], [`wire`] decodes its last frame, [`handle`]
//! says what the queue is asked; the committer of [`crate::tasks`] answers; [`handle`] and [`wire`] make a reply of that, and
//! [`serve`] sends it.
//! [`client`] is the other end, for users, the command line and tests.
//!
//! What is not here: what the queue promises (`tasks`), and the store.
//!
//! [`native`]: crate::protocols::native
//!
#![doc = include_str!("PROTOCOL.md")]

pub mod client;
mod client_state;
pub mod handle;
mod pending_replies;
mod responder;
pub mod serve;
pub mod wire;
