//! The flags of `spindle serve` for tasks and jobs.

use super::duration::{BareUnit, whole};
use super::endpoint::{Listening, OFF, endpoint_or_off, listening};
use super::word::one_of;
use crate::cli::{JOBS_ADDRESS, TASKS_ENDPOINT};
use crate::limits::JOB_LEASE_SECONDS;
use crate::net::zeromq::is_local;
use crate::services::jobs::serve::JobsConfig;
use crate::services::jobs::wire::AckWording;
use crate::services::tasks::handle::Access;
use crate::services::tasks::serve::{SpiderqConfig, Version};

/// The longest lease of a job: more than 300 years, and no deadline overflows.
const LEASE_SECONDS_MAX: u64 = 10_000_000_000;
/// Milliseconds in a second.
const MILLIS_PER_SECOND: u64 = 1_000;

/// The words of `--spiderq-version`.
const VERSIONS: [(&str, Version); 2] = [("1.3", Version::V1_3), ("1.4", Version::V1_4)];
/// The words of `--terminate`.
const TERMINATES: [(&str, Terminate); 3] =
    [("local", Terminate::Local), ("allow", Terminate::Allow), ("deny", Terminate::Deny)];
/// The words of `--jobs-ack`.
const ACK_WORDINGS: [(&str, AckWording); 2] = [("ok", AckWording::OkNo), ("yes-no", AckWording::YesNo)];

/// The flags of the tasks, as typed.
#[derive(Debug, clap::Args)]
pub(crate) struct TasksFlags {
    /// Serve durable tasks, at this endpoint if one is given; off for no tasks
    #[arg(long, value_name = "ENDPOINT|off", num_args = 0..=1, default_value = OFF, default_missing_value = TASKS_ENDPOINT, value_parser = endpoint_or_off)]
    pub(crate) tasks: String,

    /// Version of the protocol in which the Stats of tasks are answered
    #[arg(long, value_name = "1.3|1.4", default_value = "1.3", value_parser = one_of(&VERSIONS, "there are 1.3 and 1.4"))]
    spiderq_version: Version,

    /// Whether clients of the tasks may end the server; local: those of an endpoint that only this host can reach
    #[arg(long, value_name = "local|allow|deny", default_value = "local", value_parser = one_of(&TERMINATES, "it is local, allow or deny"))]
    terminate: Terminate,
}

/// The flags of the jobs, as typed.
#[derive(Debug, clap::Args)]
pub(crate) struct JobsFlags {
    /// Serve durable jobs over TCP, at this address or port if one is given; off for no jobs
    #[arg(long, value_name = "ADDR|PORT|off", num_args = 0..=1, default_value = OFF, default_missing_value = JOBS_ADDRESS, value_parser = listening)]
    pub(crate) jobs: Listening,

    /// How long a job is leased, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = JOB_LEASE_SECONDS, value_parser = whole(BareUnit::Seconds, 1, LEASE_SECONDS_MAX, "a lease is whole seconds"))]
    lease: u64,

    /// Words of the replies to ACK of a job: OK and NO, or YES and NO
    #[arg(long, value_name = "ok|yes-no", default_value = "ok", value_parser = one_of(&ACK_WORDINGS, "it is ok or yes-no"))]
    jobs_ack: AckWording,
}

/// Whether clients of the tasks may end the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Terminate {
    /// Those that connect from this host.
    Local,
    Allow,
    Deny,
}

impl Terminate {
    /// Whether clients of this endpoint may.
    fn at(self, endpoint: &str) -> bool {
        match self {
            Self::Local => is_local(endpoint),
            Self::Allow => true,
            Self::Deny => false,
        }
    }
}

impl TasksFlags {
    /// The settings of a service of tasks at this endpoint.
    pub(crate) fn settings(&self, endpoint: String, access: Access) -> SpiderqConfig {
        SpiderqConfig { terminate: self.terminate.at(&endpoint), endpoint, version: self.spiderq_version, access }
    }
}

impl JobsFlags {
    /// The settings of the jobs, if they are on.
    pub(crate) fn config(&self) -> Option<JobsConfig> {
        let lease = self.lease * MILLIS_PER_SECOND;
        self.jobs.0.map(|address| JobsConfig { address, lease, words: self.jobs_ack })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terminate(typed: &str) -> Result<Terminate, &str> {
        one_of(&TERMINATES, "unknown")(typed)
    }

    /// Otherwise any host could end the server.
    #[test]
    fn a_client_ends_the_server_from_this_host_alone_unless_it_is_allowed() {
        for endpoint in ["tcp://127.0.0.1:1", "tcp://[::1]:1", "ipc://@a"] {
            assert_eq!(terminate("local").map(|terminate| terminate.at(endpoint)), Ok(true), "{endpoint}");
        }
        for endpoint in ["tcp://*:1", "tcp://10.0.0.1:1", "tcp://[::]:1"] {
            assert_eq!(terminate("local").map(|terminate| terminate.at(endpoint)), Ok(false), "{endpoint}");
            assert_eq!(terminate("allow").map(|terminate| terminate.at(endpoint)), Ok(true), "{endpoint}");
        }
        assert_eq!(terminate("deny").map(|terminate| terminate.at("ipc://@a")), Ok(false));
        assert!(terminate("always").is_err());
    }
}
