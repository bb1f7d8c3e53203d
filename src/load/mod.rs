//! The load generator: many connections a thread, without libzmq, so that it costs less than the server it measures.
//!
//! ```text
//! Plan ─► prepare: table, --prefill ─► for each phase (a rate of the ramp, or the closed loop):
//!
//!   load-N:  source (verb, key, value) ─► dialect.encode ─► socket ══ server
//!            recorder ◄── latency ◄────── dialect.decode ◄─ socket ══
//!
//!   the caller's thread: once a second takes what the recorders have: a line, an interval of the log; at the end a Report
//! ```
//! **Closed loop**: each connection keeps `depth` requests outstanding, and the latency is counted from the sending. A server
//! that stalls is then asked less, and the stall counts once for each connection: good for throughput, bad for percentiles.
//! **Open loop**: requests have a time at which they are due, whatever the server does, and the latency is counted from that
//! time. A stall counts for every request that was due in it.
//!
//! What is not here: arguments and their text (`cli`), the protocols themselves (`zmtp`, `protocols::kv::wire`); RESP and the
//! text protocol of memcached are spoken as far as a comparison needs them.

mod connection;
mod dialect;
mod driver;
mod log;
mod phase;
mod plot;
mod record;
mod source;

use std::time::Duration;

pub use dialect::Protocol;
pub use phase::{Observer, run};
pub use record::{PhaseReport, Second, VerbReport};
pub use source::{Distribution, Mix, RequestKind};

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where the server is: `HOST:PORT`.
    pub address: String,
    /// What it speaks.
    pub protocol: Protocol,
    /// The table that is worked on; made if need be. Redis and memcached have none.
    pub table: Vec<u8>,
    /// Connections of all threads together.
    pub connections: usize,
    /// Threads that drive them.
    pub threads: usize,
    /// Requests that a connection has outstanding: exactly, in a closed loop; at most, in an open one.
    pub depth: usize,
    /// Requests a second, of all connections together, one phase each; none for a closed loop.
    pub rates: Vec<f64>,
    /// What is asked.
    pub work: Workload,
    /// Whether every key is stored before anything is measured.
    pub prefill: bool,
    /// How long requests are sent before they count, at the beginning of each phase.
    pub warm_up: Duration,
    /// How long each phase is measured.
    pub duration: Duration,
    /// Where the interval log goes.
    pub hdr: Option<std::path::PathBuf>,
    /// Where the plot goes.
    pub plot: Option<std::path::PathBuf>,
}

/// What requests look like.
#[derive(Clone, Debug)]
pub struct Workload {
    /// How many of each verb.
    pub mix: Mix,
    /// How many keys there are.
    pub keys: u32,
    /// Bytes of a key; numbers are filled up with zeros in front, and grow beyond it if they must.
    pub key_bytes: usize,
    /// How often each is chosen.
    pub distribution: Distribution,
    /// Bytes of a value, evenly distributed.
    pub value_bytes: std::ops::RangeInclusive<usize>,
    /// Seconds to live of those writes that have a TTL.
    pub ttl: u32,
    /// Share of the writes that have a TTL, 0 to 1.
    pub ttl_share: f64,
    /// Keys of a GET_MANY.
    pub many: usize,
    /// Where chance begins: the same seed asks the same.
    pub seed: u64,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server cannot be reached.
    #[error("no connection to {address}: {error}; is the server running there?")]
    Unreachable {
        /// Where it should be.
        address: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// A connection was lost.
    #[error("the connection to {address} was lost: {why}")]
    Lost {
        /// Where the server was.
        address: String,
        /// What happened.
        why: String,
    },
    /// The server does not do what the run needs.
    #[error("{address} refuses: {why}")]
    Refused {
        /// Where the server is.
        address: String,
        /// What it refuses, and its reason.
        why: String,
    },
    /// The server does not answer.
    #[error("{address} has not answered for {seconds} s")]
    Silent {
        /// Where it is.
        address: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// The system refuses what it takes.
    #[error("{what}: {error}")]
    System {
        /// What was wanted.
        what: &'static str,
        /// What the system says.
        error: std::io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {path}: {why}")]
    File {
        /// Which one.
        path: String,
        /// What the system says.
        why: String,
    },
    /// The protocol has no such thing.
    #[error("{protocol} has no {verb}: leave it out of the mix")]
    NoSuchVerb {
        /// What is spoken.
        protocol: &'static str,
        /// What it does not have.
        verb: &'static str,
    },
}
