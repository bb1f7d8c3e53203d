//! The five protocols: each translates between the bytes of its clients and the verbs of a domain. Beside them,
//! [`control`] takes the requests of the operator, and [`admin`] shows the server to them.
//!
//! Of the server, only this module and its children open sockets. The load generator has its own
//! (`load/connection.rs`).

pub mod admin;
mod client_socket;
pub mod control;
pub mod events;
mod http;
pub mod jobs;
pub mod kv;
pub mod lockstep;
pub mod native;
pub mod publish;
pub mod sockets;
pub mod spiderq;
pub mod tcp;
