//! `spindle serve`: the flags as typed, and the [`ServerConfig`] that they make.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::allocator::{self, Choice};
use crate::cli::CommandError;
use crate::cli::config::{SettingOrigin, Settings};
use crate::cli::flags::admin::AdminFlags;
use crate::cli::flags::amount::bytes_within;
use crate::cli::flags::endpoint::{OFF, unless_off};
use crate::cli::flags::endpoint_conflicts;
use crate::cli::flags::events::EventsFlags;
use crate::cli::flags::lockstep::LockstepFlags;
use crate::cli::flags::resp::RespFlags;
use crate::cli::flags::security::SecurityFlags;
use crate::cli::flags::store::StoreFlags;
use crate::cli::flags::tables::TablesFlags;
use crate::cli::flags::tasks::{BeanstalkFlags, JobsFlags, TasksFlags};
use crate::cli::flags::tuning::TuningFlags;
use crate::cli::log::{self, LEVEL_FLAG, LogFlags};
use crate::limits::CLIENT_BYTES_DEFAULT;
use crate::server::{
    self, Error, NotificationSettings, OperationConfig, ServerConfig, ServerLimits, TasksConfig, available_bytes,
};
use crate::services::events::wire::is_value;
use crate::services::tasks::handle::Access;
use crate::tables::bytes_for;

/// The environment variable that the allocator reads at the first allocation, if no flag names one.
const ALLOCATOR_VARIABLE: &str = "SPINDLE_ALLOCATOR";
/// The end of the help.
const SETTINGS_HELP: &str = "Each flag can also stand in the environment, as SPINDLE_ and its name (SPINDLE_MAX_MEMORY), \
and in the file of --config (max-memory = \"2G\"). A flag is over the environment, and that over the file. \
`spindle config show` prints what holds.";

/// The flags of the server, as typed. The help shows the groups in this order.
#[derive(Debug, clap::Args)]
#[command(after_help = SETTINGS_HELP)]
pub(crate) struct ServeFlags {
    #[command(flatten, next_help_heading = "Tables")]
    tables: TablesFlags,

    #[command(flatten, next_help_heading = "Tables for Redis clients")]
    resp: RespFlags,

    #[command(flatten, next_help_heading = "Tasks")]
    tasks: TasksFlags,

    #[command(flatten, next_help_heading = "Jobs")]
    jobs: JobsFlags,

    #[command(flatten)]
    beanstalk: BeanstalkFlags,

    #[command(flatten, next_help_heading = "Events")]
    events: EventsFlags,

    #[command(flatten, next_help_heading = "Storage of tasks, jobs, events and durable tables")]
    store: StoreFlags,

    #[command(flatten, next_help_heading = "Users and encryption")]
    security: SecurityFlags,

    #[command(flatten, next_help_heading = "Operation")]
    operation: OperationFlags,

    #[command(flatten, next_help_heading = "Tuning")]
    tuning: TuningFlags,

    #[command(flatten, next_help_heading = "Tables in lock-step, for the first client")]
    lockstep: LockstepFlags,
}

/// The flags of the operation.
#[derive(Debug, clap::Args)]
struct OperationFlags {
    /// File of settings, in TOML: the keys are the flags without their dashes
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    log: LogFlags,

    #[command(flatten)]
    admin: AdminFlags,

    /// Most bytes (K, M, G) of requests and replies that a client may have outstanding; above, it is cut off
    #[arg(long, value_name = "BYTES", default_value_t = CLIENT_BYTES_DEFAULT, value_parser = bytes_within(1, u64::MAX))]
    client_bytes_max: u64,
}

/// Runs the server until a signal ends it.
///
/// # Errors
/// [`CommandError::Usage`] if the flags contradict each other, [`CommandError::Failed`] if the server cannot start.
pub(crate) fn run(flags: ServeFlags, settings: Settings) -> Result<(), CommandError> {
    let level_is_fixed = settings.is_fixed(LEVEL_FLAG);
    let log = flags.operation.log;
    let warnings = flags.tuning.warnings();
    let config = flags.into_config(available_bytes(), &|flag| settings.origin(flag) != SettingOrigin::Default)?;
    begin_with(config.operation.allocator);
    let log = log::begin(log, level_is_fixed)?;
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let hang_up = move || log.reread(|| settings.level_again());
    server::run(config, hang_up).map_err(|error| match error {
        Error::NoSuchCore { .. } => CommandError::Usage(error.to_string()),
        _ => CommandError::Failed(error.to_string()),
    })
}

/// Begins the program anew with this allocator if another one is in use: a file names it too late for the first
/// allocation. The new program keeps the process and its blocked signals, and finds the name in the environment.
fn begin_with(asked: Choice) {
    let is_restarted = std::env::var_os(ALLOCATOR_VARIABLE).is_some_and(|name| name == asked.name());
    if asked == allocator::in_use() || is_restarted {
        return;
    }
    if let Ok(program) = std::env::current_exe() {
        // This returns only if it fails. The server then warns of its allocator.
        let _failed =
            Command::new(program).args(std::env::args_os().skip(1)).env(ALLOCATOR_VARIABLE, asked.name()).exec();
    }
}

impl ServeFlags {
    /// The configuration of the server, for this much available memory. `is_given` says which settings are no defaults.
    fn into_config(self, available_bytes: u64, is_given: &dyn Fn(&str) -> bool) -> Result<ServerConfig, CommandError> {
        let limits = self.limits(available_bytes, is_given);
        let kv = self.tables.endpoints()?;
        self.check(&limits, &kv)?;
        let config = ServerConfig {
            kv,
            notifications: NotificationSettings {
                publish: unless_off(&self.tables.publish),
                lockstep: self.lockstep.publish(),
                hwm: self.tuning.publish_hwm,
            },
            feed: self.tables.feed.config(),
            lockstep: self.lockstep.config(),
            limits,
            workers: self.tuning.workers(self.resp.settings()?),
            events: self.events.config()?,
            security: self.security.config()?,
            operation: OperationConfig {
                admin: self.operation.admin.config(),
                slow: self.operation.admin.slow(),
                allocator: self.tuning.allocator.unwrap_or_else(allocator::in_use),
            },
            storage: self.store.config(self.tables.durability.settings()),
            tasks: self.durable()?,
        };
        endpoint_conflicts::check(&server::listening(&config))?;
        Ok(config)
    }

    fn limits(&self, available_bytes: u64, is_given: &dyn Fn(&str) -> bool) -> ServerLimits {
        ServerLimits {
            elements: self.tables.element_bounds(),
            resp_elements: self.tables.resp_bounds(is_given),
            memory_bytes: self.tables.max_memory.of(available_bytes),
            evict: self.tables.evict,
            tables: self.tables.max_tables,
            client_bytes: self.operation.client_bytes_max,
            expected_keys: self.tuning.expected_keys,
        }
    }

    /// Checks that the flags do not contradict each other.
    fn check(&self, limits: &ServerLimits, kv: &[String]) -> Result<(), CommandError> {
        let ServerLimits { expected_keys, memory_bytes, .. } = limits;
        let least = bytes_for(*expected_keys);
        if least > *memory_bytes {
            return Err(CommandError::Usage(format!(
                "--expected-keys {expected_keys}: so many elements take {least} bytes at least, and --max-memory is {memory_bytes}; expect fewer"
            )));
        }
        self.store.check()?;
        self.lockstep.check()?;
        let has_resp = !self.resp.settings()?.endpoints.is_empty();
        let has_tables = !kv.is_empty() || has_resp || self.lockstep.config().is_some();
        let has_jobs = self.jobs.jobs.0.is_some() || self.beanstalk.is_on();
        if !has_tables && self.tasks.tasks == OFF && !has_jobs && self.events.events.0.is_none() {
            return Err(CommandError::Usage(
                "nothing is to be served: give --kv, --resp, --lockstep, --tasks, --jobs, --beanstalk or --events"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// The configuration of tasks, jobs, and events of the embedded store.
    fn durable(self) -> Result<Option<TasksConfig>, CommandError> {
        let settings = |endpoint, access| self.tasks.settings(endpoint, access);
        let spiderq = unless_off(&self.tasks.tasks).map(|endpoint| settings(endpoint, Access::Full));
        let jobs = self.jobs.config();
        let segment_bytes = self.store.config(self.tables.durability.settings()).store.segment_bytes;
        let beanstalk = self.beanstalk.config(self.jobs.lease(), segment_bytes)?;
        let kept_here = self.events.are_kept_here();
        let events = kept_here.then(|| settings(self.events.events_queue, Access::WorkOff { accepts: is_value }));
        let is_on = spiderq.is_some() || jobs.is_some() || beanstalk.is_some() || events.is_some();
        let (sync, tries, tasks_max) = (self.store.sync(), self.store.tries(), self.store.tasks_max());
        Ok(is_on.then_some(TasksConfig { spiderq, jobs, beanstalk, events, sync, tries, tasks_max }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use clap::Parser;

    use super::*;
    use crate::server::Pin;
    use crate::services::jobs::wire::AckWording;
    use crate::services::tables::serve::FrontendKind;
    use crate::tables::EvictionPolicy;

    #[derive(Debug, Parser)]
    struct ServeArguments {
        #[command(flatten)]
        flags: ServeFlags,
    }

    const HOST: u64 = 1_000_000;

    fn parsed(flags: &[&str]) -> Result<ServeFlags, clap::Error> {
        ServeArguments::try_parse_from([&["serve"], flags].concat()).map(|serve| serve.flags)
    }

    fn config(flags: &[&str]) -> ServerConfig {
        parsed(flags).unwrap().into_config(HOST, &|_| false).unwrap()
    }

    #[test]
    fn without_flags_the_defaults_are_those_of_the_specification() {
        let config = config(&[]);
        assert_eq!(config.kv, ["tcp://127.0.0.1:5555"]);
        assert_eq!(config.notifications.publish.as_deref(), Some("tcp://127.0.0.1:5556"));
        assert_eq!(config.notifications.hwm, 1_000_000);
        assert_eq!((config.limits.elements.key_bytes, config.limits.elements.value_bytes), (64, 1_024));
        assert_eq!((config.limits.memory_bytes, config.limits.evict), (800_000, EvictionPolicy::None));
        assert_eq!(config.limits.tables, 65_536);
        assert_eq!(config.limits.client_bytes, 64 << 20);
        assert_eq!(config.workers.count, server::workers_default());
        assert_eq!(config.workers.pin, Pin::Auto);
        assert_eq!(config.workers.frontend, FrontendKind::Queue);
    }

    #[test]
    fn flags_say_otherwise() {
        let config = config(&[
            "--kv=tcp://*:1",
            "--kv",
            "ipc:///tmp/s",
            "--publish",
            "off",
            "--publish-hwm",
            "5",
            "--max-key",
            "4K",
            "--max-value",
            "1M",
            "--max-memory",
            "2G",
            "--evict",
            "lru",
            "--max-tables",
            "7",
            "--client-bytes-max",
            "9K",
            "--expected-keys",
            "11",
            "--workers",
            "3",
            "--pin",
            "0,2-4",
            "--io-threads",
            "2",
            "--allocator",
            "jemalloc",
        ]);
        assert_eq!(config.kv, ["tcp://*:1", "ipc:///tmp/s"]);
        assert_eq!(config.notifications.publish, None);
        assert_eq!(
            (config.notifications.hwm, config.limits.elements.key_bytes, config.limits.elements.value_bytes),
            (5, 4_096, 1 << 20)
        );
        assert_eq!((config.limits.memory_bytes, config.limits.tables), (2 << 30, 7));
        assert_eq!(config.limits.evict, EvictionPolicy::Lru);
        assert_eq!((config.limits.client_bytes, config.limits.expected_keys), (9 << 10, 11));
        assert_eq!(config.workers.count, 3);
        assert_eq!(config.workers.pin, Pin::Cores(vec![0, 2, 3, 4]));
        assert_eq!(config.operation.allocator, Choice::Jemalloc);
    }

    #[test]
    fn no_requests_at_all_is_said_by_off_alone() {
        assert!(config(&["--kv", "off", "--tasks"]).kv.is_empty());
        let both = parsed(&["--kv", "off", "--kv", "tcp://h:1"]).unwrap();
        assert!(matches!(both.into_config(HOST, &|_| false), Err(CommandError::Usage(_))));
    }

    fn refused(flags: &[&str]) -> String {
        match parsed(flags).unwrap().into_config(HOST, &|_| false) {
            Err(CommandError::Usage(why)) => why,
            other => panic!("{flags:?}: {other:?}"),
        }
    }

    #[test]
    fn a_server_with_nothing_to_serve_is_refused() {
        assert!(refused(&["--kv", "off"]).contains("--tasks, --jobs, --beanstalk or --events"));
        for frontend in ["--tasks", "--jobs", "--events"] {
            parsed(&["--kv", "off", frontend]).unwrap().into_config(HOST, &|_| false).unwrap();
        }
    }

    #[test]
    fn more_keys_than_fit_into_memory_are_not_expected() {
        assert_eq!(config(&["--expected-keys", "9000"]).limits.expected_keys, 9_000);
        for flags in [["--expected-keys", "15000"], ["--expected-keys", "18446744073709551615"]] {
            assert!(refused(&flags).contains("--max-memory is 800000"), "{flags:?}");
        }
        assert_eq!(config(&["--expected-keys", "15000", "--max-memory", "2M"]).limits.expected_keys, 15_000);
    }

    #[test]
    fn jobs_are_off_unless_asked_for_and_share_the_data_of_the_tasks() {
        assert!(config(&[]).tasks.is_none());
        let jobs = |flags: &[&str]| config(flags).tasks.unwrap().jobs.unwrap();
        let plain = jobs(&["--jobs"]);
        assert_eq!(
            (plain.address.to_string(), plain.lease, plain.words),
            ("127.0.0.1:8080".into(), 300_000, AckWording::OkNo)
        );
        let other = jobs(&["--jobs", "0.0.0.0:9", "--lease", "2", "--jobs-ack", "yes-no"]);
        assert_eq!(
            (other.address.to_string(), other.lease, other.words),
            ("0.0.0.0:9".into(), 2_000, AckWording::YesNo)
        );
        let both = config(&["--jobs", "81", "--tasks", "--data", "here"]);
        assert_eq!(both.storage.data.to_str(), Some("here"));
        let both = both.tasks.unwrap();
        assert!(both.spiderq.is_some() && both.jobs.is_some_and(|jobs| jobs.address.to_string() == "127.0.0.1:81"));
        assert!(config(&["--tasks"]).tasks.unwrap().jobs.is_none());
    }

    #[test]
    fn events_are_off_unless_asked_for_and_kept_with_the_tasks_or_in_a_database() {
        let off = config(&[]);
        assert!(off.events.is_none() && off.tasks.is_none());
        let plain = config(&["--events"]);
        assert_eq!(plain.events.unwrap().address.to_string(), "127.0.0.1:8081");
        let kept = plain.tasks.unwrap();
        assert!(kept.spiderq.is_none());
        assert_eq!(kept.events.unwrap().endpoint, "tcp://127.0.0.1:5558");
        let other = config(&["--events", "0.0.0.0:9", "--events-store", "mysql://u:p@h/d"]);
        assert!(other.tasks.is_none());
        let events = other.events.unwrap();
        assert_eq!((events.address.to_string(), events.database.is_some()), ("0.0.0.0:9".to_owned(), true));
    }

    #[test]
    fn values_out_of_range_are_bad_usage() {
        let bad = [
            ["--kv", "5555"],
            ["--publish", "tcp://"],
            ["--publish-hwm", "0"],
            ["--max-value", "17M"],
            ["--max-memory", "0"],
            ["--max-memory", "101%"],
            ["--max-tables", "0"],
            ["--max-tasks", "0"],
            ["--tries", "-1"],
            ["--evict", "lfu"],
            ["--client-bytes-max", "0"],
            ["--expected-keys", "-1"],
            ["--workers", "0"],
            ["--workers", "1025"],
            ["--pin", "1-"],
            ["--pin", "2-1"],
            ["--pin", ""],
            ["--pin", "0-99999999"],
            ["--io-threads", "0"],
            ["--allocator", "malloc"],
            ["--jobs", "65536"],
            ["--jobs", "tcp://127.0.0.1:8080"],
            ["--lease", "0"],
            ["--jobs-ack", "no"],
            ["--events", "65536"],
            ["--events-store", "sqlite"],
            ["--events-store", "mysql://h"],
            ["--events-queue", "off"],
            ["--frontend", "zmq"],
        ];
        for flags in bad {
            assert!(parsed(&flags).is_err(), "{flags:?}");
        }
    }
}
