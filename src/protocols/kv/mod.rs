//! Tables over ZeroMQ: fourteen commands, and a notification for every change.
//!
//! A request is a message of a few frames, and so is its reply; both carry the same envelope. The verbs, in the order in
//! which every file of this folder lists them:
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
//! One request, file by file: a frontend receives frames; [`wire`] tells the envelope from the body and decodes the
//! body, borrowing from the frames; [`handle`] asks the tables and returns a reply that borrows from them; [`wire`]
//! encodes the reply into a sink; the frontend sends. [`client`] is the other end, for users, the command line and
//! tests.
//!
//! There are two frontends, which [`serve`] puts together. That of libzmq has the *queue* (between the clients and the workers, with
//! an *account* of who has what outstanding, and small messages as one *packet*) and the *workers* (receive, decode, handle, encode,
//! send). In the *native* one the workers own their connections, and there is no queue. Both *answer* in the same way, and both
//! have the *publisher* (a notification for each change, to the subscribers of `protocols/publish`) and the *report* (STATS), which a
//! thread of its own makes, as it answers LIST_TABLES: the *reporter*, beside native workers; a further worker, behind the queue.
//!
//! What is not here: [`wire`] knows no table and does no I/O; [`handle`] knows no socket and never sends.
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
