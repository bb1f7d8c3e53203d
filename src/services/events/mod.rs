//! Events over HTTP: each event has an id, from 1 without gaps, and a value, which the server or a worker gives it.
//!
//! Every file of this folder lists the verbs in this order:
//!
//! ```text
//! create   POST /events         an event with a generated value      count    GET /events        the number of events
//! defer    POST /events/async   an event that waits for a worker     find     GET /events/{id}   one event
//!                                                                    health   GET /health        does the store answer
//! ```
//! A request passes through these files: [`serve`] accepts its connection, and `net/http` has hyper parse it,
//! judges it, and hands it to the routes of `handle`. The routes call one of two stores. `embedded` has the committer of
//! [`crate::tasks`] add a task to a queue, and `mysql` stores rows in a database. [`wire`] makes the reply. A pending
//! event of `embedded` is a task, which any client can work off by the spiderq protocol. A pending event of `mysql` is a
//! row, which `mysql::claims` locks. `clients/rust/events.rs` is the other end, for tests and benches.
//!
//! This module does not serve the queue of pending events, see `services/tasks`, and does not work events off, see
//! `worker`.
//!
#![doc = include_str!("PROTOCOL.md")]

mod embedded;
mod error;
mod handle;
pub mod jitter;
pub mod mysql;
pub mod serve;
mod store;
mod timing;
pub mod wire;
pub mod words;
