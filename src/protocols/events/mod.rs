//! Events over HTTP: each has an id, from 1 without gaps, and a value, at once or from a worker.
//!
//! The verbs, in the order in which every file of this folder lists them:
//!
//! ```text
//! create   POST /events         an event with a generated value      count    GET /events        how many there are
//! defer    POST /events/async   an event that waits for a worker     find     GET /events/{id}   one event
//!                                                                    health   GET /health        does the store answer
//! ```
//! One request, file by file: [`serve`] accepts its connection and hands it to the routes of `handle`, which ask one of two stores:
//! `embedded` has the committer of [`crate::tasks`] add a task to a queue, `mysql` stores rows in a database; [`wire`] is what is
//! answered. A pending event of the first is a task that anybody can work off by the spiderq protocol; of the second it is a row that
//! `mysql::claims` locks. [`client`] is the other end, for tests and benches.
//!
//! What is not here: the face of the queue (`spiderq`), and what a worker does with an event (`worker`).
//!
#![doc = include_str!("PROTOCOL.md")]

pub mod client;
mod embedded;
mod handle;
pub mod jitter;
pub mod mysql;
pub mod serve;
mod store;
pub mod wire;
pub mod words;
mod write_timeout;
