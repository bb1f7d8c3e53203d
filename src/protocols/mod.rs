//! The five protocols: each translates between the bytes of its clients and the verbs of a domain. Beside them,
//! [`control`] takes the requests of the operator, and [`admin`] shows the server to them.
//!
//! Of the server, only this module and its children open sockets. Those of the clients and of the load generator are
//! made by `client_socket`.

pub mod admin;
pub mod control;
