//! Tables over ZeroMQ: fourteen commands, and a notification for every change.
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
//! ```
//!
//! One request, file by file: a frontend receives frames. [`wire`] splits the envelope from the body and decodes the
//! body, borrowing from the frames. [`handle`] runs the request against the tables and returns a reply that borrows
//! from them. [`wire`] encodes the reply into a sink, and the frontend sends it. [`client`] is the other end, for
//! users, the command line and tests.
//!
//! [`serve`] assembles one of two frontends:
//!
//! - **proxy**, over libzmq. The `proxy` stands between the clients and the workers. Its `flow_control` bounds the
//!   bytes that each client has outstanding, and `packet` packs small messages into one frame. Each `worker` receives,
//!   decodes, handles, encodes and sends.
//! - **native**, without libzmq. The workers own their connections, and there is no proxy.
//!
//! Both frontends answer through the `responder`, and both have the publisher (`publish`), which sends a notification
//! for each change to the subscribers of `protocols/publish`. A thread of its own answers STATS and LIST_TABLES: with
//! native workers the `reporter`, behind the proxy one more worker. `report` renders STATS.
//!
//! A new command starts in `wire.rs`: a code, a name, and its answer to `Command::may_change_elements`, which the
//! compiler does not ask for. Then `wire/request.rs` (the request and its encoding), `wire/decode.rs`, `wire/reply.rs`,
//! `wire/fuzz.rs`, `handle.rs`, `Batch` and `Ops` of the tables with `Refusal` for a new reason, `client.rs`,
//! `cli/client.rs`; then `PROTOCOL.md`, the tables' `GUARANTEES.md`, README and `CHANGELOG.md`; then the tests:
//! `tables/trials/verbs.rs`, and `conformance.py` and `history.rs` in `tests/it`.
//!
//! [`wire`] knows no table and does no I/O. [`handle`] knows no socket and never sends.
//!
#![doc = include_str!("PROTOCOL.md")]

pub mod client;
mod flow_control;
pub mod handle;
mod native;
mod packet;
mod proxy;
mod publish;
mod report;
mod reporter;
mod responder;
pub mod serve;
mod waiting;
pub mod wire;
mod worker;
