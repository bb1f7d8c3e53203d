//! The services: each translates between the bytes of its clients and the verbs of a domain.
//!
//! ```text
//! tables     tables over ZeroMQ: the dialect `kv`
//! lockstep   tables over ZeroMQ, one argument at a time
//! tasks      tasks over ZeroMQ: the dialect `spiderq`
//! jobs       jobs over TCP
//! events     events over HTTP
//! resp       tables for Redis clients
//! native     the workers that own their connections, for tables and resp
//! operator   what an operator sees and asks for: metrics, health, backups
//! ```
//! A service knows the permission that each of its requests needs. It starts no thread. Its sockets are
//! made in `net`, but for the Unix socket of `control`, and those to a database of events.

pub mod events;
pub mod jobs;
pub mod lockstep;
pub mod native;
pub mod operator;
pub mod resp;
pub mod tables;
pub mod tasks;
