//! The configuration of the frontend `spiderq`.

use super::handle::Access;

/// The version of the protocol, which determines the counters of StatsGot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Eight counters.
    V1_3,
    /// Ten counters.
    V1_4,
}

/// The configuration of the frontend.
#[derive(Clone, Debug)]
pub struct SpiderqConfig {
    /// The endpoint to listen at.
    pub endpoint: String,
    /// The version in which Stats are answered.
    pub version: Version,
    /// Whether clients may end the server.
    pub terminate: bool,
    /// The requests that clients may make.
    pub access: Access,
}
