//! Tasks over ZeroMQ: a key-value store joined to one queue of tasks that clients lease.
//!
//! The protocol is spiderq 1.3, and 1.4 for its clients. Every file of this folder lists the verbs in this order:
//!
//! ```text
//! Ping        is the server there                    Heartbeat  set a new deadline for a lease
//! Count       how many tasks are ready               Stats      how many requests of each kind were answered
//! Add         add a task                             Terminate  end the server
//! Update      replace the value of a task            Lookup     read the value of a task
//! Lend        lease the next task                    Flush      sync everything to disk
//! Repay       give a task back, or drop it           Remove     remove a task
//! ```
//! Those about queues by name follow: AddMany, LendMany, SettleMany, ExtendMany, Browse, Kick, Purge, Configure, Queues.
//!
//! A request passes through these files: [`serve`] receives it over a connection of [`zeromq`], [`wire`] decodes its
//! last frame, and [`calls`] turns it into a request to its queue, by [`handle`]. The committer of [`crate::tasks`]
//! answers it. [`calls`] and [`wire`] make a reply of the outcome, and [`serve`] sends the reply. `clients/rust/tasks.rs` is the
//! other end, for users, the command line and tests.
//!
//! This module does not contain the guarantees of the queue, see `tasks`, or the store.
//!
//! [`zeromq`]: crate::net::zeromq
//!
#![doc = include_str!("PROTOCOL.md")]

pub mod calls;
mod client_state;
mod config;
pub mod handle;
mod leases;
mod metrics;
mod pending_replies;
pub mod permission;
mod read_pace;
mod responder;
pub mod serve;
mod waiting_places;
mod window;
pub mod wire;
