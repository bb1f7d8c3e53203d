//! Shared by the services over HTTP/1.1: events, and what an operator sees.
//!
//! ```text
//! TcpFrontend accepts ─► service: a task ─► connection: hyper ─► layers: the head is judged, the body read ─► routes
//! ```
//! [`HttpService::accept`] is the one place where a connection begins, and [`guarded`] the one place where the head of a
//! request is judged. `admission` says which requests are taken up, and `users` which of them a user may send. `own_errors` gives a body to the errors that hyper
//! answers by itself, and `write_timeout` ends a connection whose client does not read.
//!
//! **Nobody is kept out.** `activity` knows which connections are idle. The longest idle connection makes place for a
//! client that waits. Beyond the connections at work there is a reserve of connections and descriptors for requests
//! about health (`layers`). Each reserved connection has one request about health. Other requests are refused there.
//!
//! This module has no routes.

mod activity;
mod admission;
mod connection;
mod layers;
pub(crate) mod limits;
mod own_errors;
mod peer;
mod refusal;
mod service;
mod users;
mod write_timeout;

pub(crate) use admission::HostRule;
pub(crate) use layers::{Guard, guarded, one_at_a_time};
pub(crate) use peer::Peer;
pub(crate) use refusal::{HttpRefusal, error, json_response};
pub(crate) use service::HttpService;
pub(crate) use users::{HttpUsers, Needed, authorization, permitted};
