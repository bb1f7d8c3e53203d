//! The native workers: each owns its connections, and runs a request from socket to slot and back. They serve the tables
//! over ZeroMQ (`--frontend native`), and Redis clients (`--resp`).
//!
//! This room knows neither protocol. It hands each turn to the service of its connection.

mod client;
pub mod serve;
mod worker;
