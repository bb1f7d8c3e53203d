//! Tables over ZeroMQ: commands about elements and tables, and a notification for every change.
//!
//! A request is a message of a few frames, and so is its reply. Both carry the same envelope. The verbs stand below, by
//! their codes. Every file of this folder lists them in this order.
//!
//! One request, file by file: a frontend receives frames. [`wire`] splits the envelope from the body and decodes the
//! body, borrowing from the frames. [`handle`] runs the request against the tables and returns a reply that borrows
//! from them. [`wire`] encodes the reply into a sink, and the frontend sends it. `clients/rust/tables.rs` is the other
//! end, for users, the command line and tests.
//!
//! [`serve`] assembles one of two frontends:
//!
//! - **queue**: one thread owns the connections, and the workers answer behind libzmq's queue, within the process
//!   (`queue`).
//! - **native**: the workers own their connections.
//!
//! Both frontends answer by the same function (`turn`, which calls the `responder`). Both have the publisher (`publish`),
//! which sends a notification for each change to the subscribers of `net/zeromq/publish`. With `--feed` it also sends the
//! messages of [`crate::feed`] (`publish/feed.rs`). Another protocol may have the changes sent in a frame of its own
//! (`publish/one_frame.rs`). A thread of its own, the `reporter`, makes STATS and LIST_TABLES. `report` renders STATS.
//!
//! [`wire`] knows no table and does no I/O. [`handle`] knows no socket and never sends.
//!
//! # A new command
//!
//! 1. `wire.rs`: a row in the list of commands. A new reason is a row in the list below it.
//! 2. `wire/request.rs`, 3. `wire/decode.rs`, 4. `wire/reply.rs`: the request, its reply, and their frames. The compiler
//!    asks for each arm.
//! 5. `handle.rs`: what it calls. A value that the server computes is held to `--max-value`, as that of INCREMENT.
//! 6. `tables/batch.rs`, `tables/ops.rs` and below: its effect. If the feed gives its changes a cause of their own:
//!    `Cause` in `feed/message.rs`, where 10 is reserved for APPEND.
//! 7. `clients/rust/tables.rs`, 8. `cli/commands/client.rs`, 9. `clients/python/spindle/aio/table.py` (and `_kv.py`),
//!    of which `unasync.py` makes `table.py`. `tests/it/conformance_peer.py` fails until the Python tests know its code.
//! 10. `PROTOCOL.md`, README and `CHANGELOG.md`.
//! 11. `wire/fuzz.rs` (a row), `permission.rs` and `tests/it/users.py` (who may send it): their tests fail without it.
//! 12. `tables/tests/verbs.rs`: its effect. For a history of it: `tests/it/checker.rs` and `linearizability.rs`.
//!
#![doc = include_str!("PROTOCOL.md")]

pub mod handle;
pub mod permission;
mod publish;
mod queue;
pub(crate) mod report;
mod reporter;
pub(crate) mod responder;
pub mod serve;
pub(crate) mod timing;
pub(crate) mod turn;
pub(crate) mod waiting;
pub mod wire;
