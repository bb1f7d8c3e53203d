//! What flags and operands mean: each is parsed once, here, into a type that cannot be wrong.
//!
//! The flags that several commands share stand here, and the groups of those of `spindle serve`. This folder runs no
//! command.

pub(super) mod admin;
pub(super) mod amount;
pub(super) mod curve;
pub(super) mod duration;
pub(super) mod endpoint;
pub(super) mod endpoint_conflicts;
pub(super) mod events;
pub(super) mod lockstep;
pub(super) mod login;
pub(super) mod number;
pub(super) mod operand;
pub(super) mod password_file;
pub(super) mod resp;
pub(super) mod secret_key;
pub(super) mod security;
pub(super) mod store;
pub(super) mod tables;
pub(super) mod tasks;
pub(super) mod terms;
pub(super) mod time_to_live;
pub(super) mod tls;
pub(super) mod tuning;
pub(super) mod word;
