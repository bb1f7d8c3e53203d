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
//! (`publish/one_frame.rs`), and workers may have them as they are (`change_mail`). A thread of its own, the `reporter`, makes STATS and LIST_TABLES. `report` renders STATS.
//!
//! [`wire`] knows no table and does no I/O. [`handle`] knows no socket and never sends.
//!
//! # A new command
//!
//! Two lists have a row for each command: the table on the page below, and `commands!` in `wire/request.rs`. From the
//! page the tests learn codes, names, arguments and access, so a mistake in one of the two makes them fail.
//!
//! | file | what | what asks for it |
//! |---|---|---|
//! | `PROTOCOL.md` | a row in the notation of the others, and a line about what it does | a test, for the row |
//! | `README.md` | its code, name and arguments | a test |
//! | `wire/request.rs` | a row of `commands!` | a test |
//! | `wire/reply.rs` | the reply and its frames; a new reason is a row in `wire.rs` | the compiler |
//! | `handle.rs` | what it calls; a computed value is held to `--max-value`, as that of INCREMENT | the compiler |
//! | `handle/tests.rs` | a request, and its reply byte by byte | a test |
//! | `tests/it/methods.rs` | our client's method, and the words on the command line | the compiler |
//! | `clients/rust/tables.rs` | the method | the row before |
//! | `cli/commands/client.rs` | the words, if people need them | the row in `methods.rs` |
//! | `clients/python/spindle/_kv.py` | its code, its frames and its results | a Python test |
//! | `clients/python/spindle/aio/table.py` | a method with an example, of which `unasync.py` makes `table.py` | a Python test |
//! | `CHANGELOG.md` | a line | nothing |
//!
//! A new kind of field is also a kind in `wire/fields.rs`, `wire/specified.rs`, `wire/fuzz.rs` and
//! `tests/it/conformance.py`. The tests panic at a word of the page that they do not know.
//!
//! A command that does something new to elements also has `tables/batch.rs`, `tables/ops.rs` and below, and its tests in
//! `tables/tests/verbs.rs`. For a history of it: `tests/it/checker.rs` and `linearizability.rs`. If the feed gives its
//! changes a cause of their own: `Cause` in `feed/message.rs`, where 10 is reserved for APPEND.
//!
//! The Python tests run only where `tests/run` has made `target/venv` in this checkout. Otherwise they are skipped, and
//! with `SPINDLE_REAL_PEERS=1` they fail.
//!
#![doc = include_str!("PROTOCOL.md")]

pub(crate) mod change_mail;
pub(crate) mod disk_gates;
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
