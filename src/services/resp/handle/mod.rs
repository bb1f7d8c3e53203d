//! The handlers: each carries out one command, and returns its reply. None of them sends.

pub(super) mod channels;
mod clients;
pub(super) mod connection;
pub(super) mod counters;
pub(super) mod expiry;
pub(super) mod keys;
pub(super) mod many;
pub(super) mod names;
pub(super) mod objects;
pub(super) mod scripting;
pub(super) mod server;
pub(super) mod strings;
pub(super) mod transactions;
pub(super) mod versions;
