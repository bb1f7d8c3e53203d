//! The load generator: many connections on each thread, without libzmq, so that it costs less than the server it
//! measures.
//!
//! ```text
//! Plan ─► prepare: table, --prefill ─► for each phase (one of the rates, or the closed loop):
//!
//!   load-N:  source (verb, key, value) ─► dialect.encode ─► socket ══ server
//!            recorder ◄── latency ◄────── dialect.decode ◄─ socket ══
//!
//!   the caller's thread: once a second drains the recorders into a line and a log interval, at the end a report
//! ```
//! **Closed loop**: each connection keeps `depth` requests outstanding, and the latency counts from the time of
//! sending. A server that stalls then gets fewer requests, and the stall counts once for each connection. This is good
//! for throughput and bad for percentiles.
//!
//! **Open loop**: each request is due at a fixed time, independent of the server, and the latency counts from that
//! time. A stall counts for every request that was due in it.
//!
//! This module does not parse arguments (`cli`), and does not contain the protocols (`zmtp`, `services::tables::wire`).
//! It connects, sends and receives as the clients do (`clients/rust/socket`). `benches/loading` adds the protocols of
//! other servers, and draws the reports.

mod connection;
mod dialect;
mod driver;
mod log;
mod phase;
mod record;
mod source;

use std::time::Duration;

pub use dialect::{DecodedReply, OtherProtocol, Payloads, Protocol, ProtocolViolation, ReplyKind};
pub use phase::{Observer, run};
pub use record::{LatencyHistogram, PhaseReport, Second, VerbReport};
pub use source::{Distribution, LoadRequest, Mix, RequestKind};

use crate::clock::Ttl;
use crate::zmtp::Credentials;

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What the connections lead to.
    pub server: LoadTarget,
    /// Connections of all threads together.
    pub connections: usize,
    /// Threads that drive the connections.
    pub threads: usize,
    /// Requests that a connection has outstanding: exactly in a closed loop, at most in an open one.
    pub depth: usize,
    /// Requests a second of all connections together, one phase for each rate. Empty for a closed loop.
    pub rates: Vec<f64>,
    /// The requests.
    pub work: Workload,
    /// Whether every key is stored before the first measurement.
    pub prefill: bool,
    /// How long requests are sent at the beginning of each phase before they count.
    pub warm_up: Duration,
    /// How long each phase is measured.
    pub duration: Duration,
    /// The file of the interval log.
    pub hdr: Option<std::path::PathBuf>,
}

/// What the connections of a run lead to.
#[derive(Clone, Debug)]
pub struct LoadTarget {
    /// The address of the server: `HOST:PORT`.
    pub address: String,
    /// How long each connection may take until the host has accepted it.
    pub connect_timeout: Duration,
    /// The protocol of the server.
    pub protocol: Protocol,
    /// The user of Spindle that all connections name.
    pub credentials: Credentials,
    /// The table that the requests use, created if it is missing. Redis and memcached have none.
    pub table: Vec<u8>,
}

/// The requests of a run.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The shares of the verbs.
    pub mix: Mix,
    /// The number of keys.
    pub keys: u32,
    /// Bytes of a key. Numbers are padded with zeros in front, and longer numbers make longer keys.
    pub key_bytes: usize,
    /// How often each key is chosen.
    pub distribution: Distribution,
    /// Bytes of a value, evenly distributed.
    pub value_bytes: std::ops::RangeInclusive<usize>,
    /// Time to live of the writes that have one.
    pub ttl: Ttl,
    /// Share of the writes that have a time to live, 0 to 1.
    pub ttl_share: f64,
    /// Keys of a GET_MANY.
    pub many: usize,
    /// Seed of the random numbers: the same seed makes the same requests.
    pub seed: u64,
}

/// Why a run has no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server cannot be reached.
    #[error("no connection to {address}: {error}; is the server running there?")]
    Unreachable {
        /// The address of the server.
        address: String,
        /// The error of the system.
        error: std::io::Error,
    },
    /// A connection was lost.
    #[error("the connection to {address} was lost: {why}")]
    Lost {
        /// The address of the server.
        address: String,
        /// The reason.
        why: String,
    },
    /// The server refuses the user.
    #[error("{address} refuses this client ({why}): name a user with --user or --curve-key")]
    Denied {
        /// The address of the server.
        address: String,
        /// What the server said.
        why: String,
    },
    /// The server was too busy to check the password.
    #[error("{0} is busy with other passwords, or slows down wrong ones: try again in some seconds")]
    Busy(String),
    /// The server refuses a request that the run needs.
    #[error("{address} refuses: {why}")]
    Refused {
        /// The address of the server.
        address: String,
        /// The refused request, and the server's reason.
        why: String,
    },
    /// The server sends no reply.
    #[error("{address} has not answered for {seconds} s")]
    Silent {
        /// The address of the server.
        address: String,
        /// How long the generator has waited.
        seconds: u64,
    },
    /// The system refuses a resource.
    #[error("{what}: {error}")]
    System {
        /// The resource.
        what: &'static str,
        /// The error of the system.
        error: std::io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {path}: {why}")]
    File {
        /// The path of the file.
        path: String,
        /// The error of the system.
        why: String,
    },
    /// The protocol does not have a verb of the mix.
    #[error("{protocol} has no {verb}: leave it out of the mix")]
    NoSuchVerb {
        /// The protocol.
        protocol: &'static str,
        /// The verb.
        verb: &'static str,
    },
}
