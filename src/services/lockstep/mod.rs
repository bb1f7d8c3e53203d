//! Tables over ZeroMQ in the dialect of the first client, which sends one argument at a time and waits for an answer to
//! each.
//!
//! A command that is one message of the `kv` protocol is several requests here. The verbs, in the order in which every
//! file of this folder lists them:
//!
//! ```text
//! 0  CREATE_TABLE    table                       2  UPDATE    table, key, value, ttl
//! 1  DELETE_TABLE    table                       3  DELETE    table, key
//!                                                4  GET       table, key
//! ```
//! The state belongs to the connection, because every such client announces the same routing id. One argument, file by
//! file: [`serve`] receives a message over a connection of [`zeromq`](crate::net::zeromq), [`wire`] finds the
//! argument in it, and the `conversation` of the connection keeps it. With the last argument, `handle` carries out the
//! whole request as `kv` does, with its reasons. `memory` bounds what all conversations keep.
//!
//! The publisher of `kv` sends the notifications, in a frame that [`wire`] encodes.
//!
//! This module has no client: the client is the one that there was first.
//!
#![doc = include_str!("PROTOCOL.md")]

mod conversation;
mod handle;
mod memory;
pub mod serve;
pub mod wire;
