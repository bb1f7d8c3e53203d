//! What asks a server, from outside: [`rust`], and beside it `python`, a package of its own.
//!
//! The clients use the `wire` of the services, and have sockets of their own. The server uses none of them.

pub mod rust;
