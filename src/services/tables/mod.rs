//! Tables over ZeroMQ: twenty-one commands, and a notification for every change.
//!
//! A request is a message of a few frames, and so is its reply. Both carry the same envelope. The verbs, in the order
//! in which every file of this folder lists them:
//!
//! ```text
//! code  command             arguments                                  OK reply
//!  0    CREATE_TABLE        table                                      –
//!  1    DELETE_TABLE        table                                      –
//!  2    UPDATE              table key value [ttl]                      –
//!  3    DELETE              table key                                  the value deleted
//!  4    GET                 table key                                  value
//!  5    PING                –                                          –
//!  6    GET_ENTRY           table key                                  value, version, remaining milliseconds
//!  7    COMPARE_AND_SWAP    table key expected-version value [ttl]     the new version
//!  8    COMPARE_AND_DELETE  table key expected-version                 the value deleted
//!  9    TOUCH               table key ttl                              –
//! 10    GET_MANY            table key… (1–1024)                        per key: status, value
//! 11    UPDATE_MANY         table ttl-or-empty (key value)… (1–1024)   –
//! 12    LIST_TABLES         –                                          per table: name, elements
//! 13    STATS               –                                          JSON
//! 14    SCAN                table cursor count fields [prefix]         next cursor, rows
//! 15    INCREMENT           table key delta [ttl]                      the sum, its version
//! 16    GET_AND_TOUCH       table key ttl                              value
//! 17    DELETE_MANY         table key… (1–1024)                        per key: status
//! 18    FEED_STATE          table                                      epoch, incarnation, next, oldest, elements, digest
//! 19    CHANGES             table epoch incarnation sequence           payloads of the feed
//! 20    RESTORE             table key value version ttl                whether it was stored
//! ```
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
//! It starts in `wire.rs`: the code, the name, `Command::may_change_elements`, and `Command::ALL` and `Command::COUNT`,
//! for which the compiler does not ask. The other places, in order:
//!
//! - **The request and its reply**: `wire/request.rs` (the request, its `element`, its encoding), `wire/decode.rs`,
//!   `wire/reply.rs` (`wire/page.rs` for rows), `wire/fuzz.rs`.
//! - **Its effect**: `handle.rs`, `Batch` in `tables/batch.rs`, `Ops` in `tables/ops.rs`, and the files below these.
//! - **Who may make it**: `Command::access` in `permission.rs`.
//! - **A change with a value in its reply**: `value_to_return` in `responder.rs`. The compiler does not ask for that arm.
//!   A value that the server computes is held to `--max-value`, as that of INCREMENT.
//! - **What the feed says of it**: `Cause` in `feed/message.rs`. 10 is reserved for APPEND.
//! - **A new reason**: `Reason` in `wire.rs`, with `Reason::ALL` and `Reason::COUNT`, for which the compiler does not
//!   ask, and its advice in `cli/commands/client.rs`. If the tables give it, also `Refusal` in `tables/mod.rs` and
//!   `refused` in `handle.rs`.
//! - **Clients**: `clients/rust/tables.rs` and `cli/commands/client.rs`, and in `clients/python/spindle` `_kv.py` and
//!   `aio/table.py`, of which `unasync.py` makes `table.py`. The compiler does not ask for these either.
//! - **Pages**: the table and the number on this page, `PROTOCOL.md`, the tables' `GUARANTEES.md`, README,
//!   `CHANGELOG.md`.
//! - **Tests that name codes or commands**: `wire.rs` (`by_code(21)`), `wire/decode.rs` (`&[21]`, `\x15`),
//!   `wire/reply/tests.rs` (`0u8..21`), `clients/rust/tables/tests.rs` (`0..21`), `handle.rs`, `waiting/tests.rs` (the
//!   commands that change elements), and in `tests/it` `conformance_peer.py` (`range(21)`), `conformance.py`
//!   (`range(21, 256)`, the numbers of arguments), `users.py` (a row for each code) and `attack/samples.rs`. `wire.rs`
//!   and `wire/decode.rs` fail without a change. `wire/reply/tests.rs` and `clients/rust/tables/tests.rs` go on
//!   passing, and no longer cover all codes.
//! - **Tests of its effect**: `tables/tests/verbs.rs`, and in `tests/it` `checker.rs` (the model), `history.rs`,
//!   `history_trial.rs` and `linearizability.rs`.
//!
#![doc = include_str!("PROTOCOL.md")]

pub mod handle;
mod native;
pub mod permission;
mod publish;
mod queue;
pub(crate) mod report;
mod reporter;
pub(crate) mod responder;
pub mod serve;
mod timing;
mod turn;
pub(crate) mod waiting;
pub mod wire;
