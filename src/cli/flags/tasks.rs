//! The flags of `spindle serve` for tasks and jobs.

use super::amount::bytes_within;
use super::duration::{BareUnit, whole};
use super::endpoint::{Listening, OFF, endpoint_or_off, listening};
use super::word::one_of;
use crate::cli::{BEANSTALK_PORT, CommandError, JOBS_ADDRESS, TASKS_ENDPOINT};
use crate::limits::{JOB_DATA_BYTES_MAX, JOB_LEASE_SECONDS};
use crate::net::sockets::ListenAddress;
use crate::net::zeromq::is_local;
use crate::security::users::check_name;
use crate::services::jobs::beanstalk::serve::{BODY_BYTES_DEFAULT, BeanstalkConfig, BeanstalkListening, DrainSwitch};
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

/// The word before the path of a listener, as beanstalkd writes it.
const UNIX: &str = "unix:";
/// The word before the user of a listener.
const USER: &str = ",user=";

/// The flags of beanstalkd's protocol, as typed.
#[derive(Debug, clap::Args)]
pub(crate) struct BeanstalkFlags {
    /// Serve jobs by beanstalkd's protocol, at 127.0.0.1:11300 if no address, port or path is given; may be given several times.
    /// With a user, every client of that address is this user
    #[arg(long, value_name = "ADDR|PORT|unix:PATH[,user=NAME]|off", num_args = 0..=1, default_missing_value = BEANSTALK_PORT, value_parser = beanstalk_listening)]
    beanstalk: Vec<BeanstalkAddress>,

    /// Most bytes (K, M) of a job that is put by beanstalkd's protocol
    #[arg(long, value_name = "BYTES", default_value_t = u64::from(BODY_BYTES_DEFAULT), value_parser = bytes_within(1, JOB_DATA_BYTES_MAX as u64))]
    beanstalk_job_max: u64,
}

/// One value of `--beanstalk`. `None`: off.
type BeanstalkAddress = Option<BeanstalkListening>;

/// An address to listen at, and the user of its clients, or `off`.
fn beanstalk_listening(typed: &str) -> Result<BeanstalkAddress, String> {
    let (address, user) = match typed.split_once(USER) {
        Some((address, user)) => (address, Some(user)),
        None => (typed, None),
    };
    if let Some(user) = user {
        check_name(user)?;
    }
    let address = match address.strip_prefix(UNIX) {
        Some(path) => Some(ListenAddress::local(path)?),
        None => listening(address)?.0.map(ListenAddress::Tcp),
    };
    match address {
        None if user.is_some() => Err("off has no user".to_owned()),
        address => Ok(address.map(|address| BeanstalkListening { address, user: user.map(str::to_owned) })),
    }
}

impl BeanstalkFlags {
    /// Whether it is on.
    pub(crate) fn is_on(&self) -> bool {
        self.beanstalk.iter().any(Option::is_some)
    }

    /// The settings of beanstalkd's protocol, if it is on. `off` excludes any other address.
    pub(crate) fn config(&self, lease: u64, segment_bytes: u64) -> Result<Option<BeanstalkConfig>, CommandError> {
        let listening: Vec<_> = self.beanstalk.iter().flatten().cloned().collect();
        if !listening.is_empty() && self.beanstalk.iter().any(Option::is_none) {
            return Err(CommandError::Usage("--beanstalk off and --beanstalk ADDR exclude each other".to_owned()));
        }
        let job_bytes_max = u32::try_from(self.beanstalk_job_max).unwrap_or(u32::MAX);
        let drain = DrainSwitch::default();
        let config = BeanstalkConfig { listening, lease, job_bytes_max, segment_bytes, drain };
        Ok(Some(config).filter(|config| !config.listening.is_empty()))
    }
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
    /// The length of a lease, in milliseconds.
    pub(crate) fn lease(&self) -> u64 {
        self.lease * MILLIS_PER_SECOND
    }

    /// The settings of the jobs, if they are on.
    pub(crate) fn config(&self) -> Option<JobsConfig> {
        let lease = self.lease();
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
