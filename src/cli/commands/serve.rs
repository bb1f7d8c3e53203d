//! `spindle serve`: the flags as typed, and the [`ServerConfig`] that they make.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::builder::TypedValueParser;

use crate::allocator::{self, Choice};
use crate::cli::CommandError;
use crate::cli::config::Settings;
use crate::cli::flags::admin::AdminFlags;
use crate::cli::flags::amount::{Amount, amount, bytes_within};
use crate::cli::flags::endpoint::{Listening, OFF, endpoint, endpoint_or_off, listening, unless_off};
use crate::cli::flags::endpoint_conflicts;
use crate::cli::flags::events_store::EventsStoreFlags;
use crate::cli::flags::feed::FeedFlags;
use crate::cli::flags::heading;
use crate::cli::flags::lockstep::LockstepFlags;
use crate::cli::flags::pin::pin;
use crate::cli::flags::security::SecurityFlags;
use crate::cli::flags::serve_words::{
    FrontendWord, Terminate, ack_words, at_least_one, frontend, key_bytes, terminate, value_bytes, version,
};
use crate::cli::flags::store::StoreFlags;
use crate::cli::log::{self, LEVEL_FLAG, LogFlags};
use crate::cli::{EVENTS_ADDRESS, EVENTS_ENDPOINT, JOBS_ADDRESS, KV_ENDPOINT, PUBLISH_ENDPOINT, TASKS_ENDPOINT};
use crate::limits::{
    CLIENT_BYTES_DEFAULT, JOB_LEASE_SECONDS, KEY_BYTES_DEFAULT, MEMORY_PERCENT_DEFAULT, PUBLISH_HWM_DEFAULT,
    TABLES_DEFAULT, VALUE_BYTES_DEFAULT,
};
use crate::server::{self, Error, EventsConfig, Pin, ServerConfig, TasksConfig, available_bytes};
use crate::services::events::wire::is_value;
use crate::services::jobs::serve as jobs;
use crate::services::jobs::wire::AckWording;
use crate::services::tasks::handle::Access;
use crate::services::tasks::serve::{SpiderqConfig, Version};
use crate::tables::bytes_for;

/// Most threads of libzmq, and most workers: more than any host has use for.
const THREADS_MAX: i64 = 1_024;
/// The longest lease of a job: more than 300 years, and no deadline overflows.
const LEASE_SECONDS_MAX: u64 = 10_000_000_000;
/// Milliseconds in a second.
const MILLIS_PER_SECOND: u64 = 1_000;
/// The environment variable that the allocator reads at the first allocation, if no flag names one.
const ALLOCATOR_VARIABLE: &str = "SPINDLE_ALLOCATOR";
/// The end of the help.
const SETTINGS_HELP: &str = "Each flag can also stand in the environment, as SPINDLE_ and its name (SPINDLE_MAX_MEMORY), \
and in the file of --config (max-memory = \"2G\"). A flag is over the environment, and that over the file. \
`spindle config show` prints what holds.";

/// The flags of the server, as typed.
#[derive(Debug, clap::Args)]
#[command(after_help = SETTINGS_HELP)]
pub(crate) struct ServeFlags {
    /// Endpoint for requests, tcp://HOST:PORT or ipc://PATH; may be given several times; off for none
    #[arg(long, help_heading = heading::TABLES, value_name = "ENDPOINT|off", default_value = KV_ENDPOINT, value_parser = endpoint_or_off)]
    kv: Vec<String>,

    /// Endpoint for changes; off for none
    #[arg(long, help_heading = heading::TABLES, value_name = "ENDPOINT|off", default_value = PUBLISH_ENDPOINT, value_parser = endpoint_or_off)]
    publish: String,

    #[command(flatten, next_help_heading = heading::TABLES)]
    feed: FeedFlags,

    /// Longest key, in bytes (K), from 64 to 4K
    #[arg(long, help_heading = heading::TABLES, value_name = "BYTES", default_value_t = KEY_BYTES_DEFAULT, value_parser = key_bytes())]
    max_key: usize,

    /// Longest value, in bytes (K, M, G), up to 16M
    #[arg(long, help_heading = heading::TABLES, value_name = "BYTES", default_value_t = VALUE_BYTES_DEFAULT, value_parser = value_bytes())]
    max_value: usize,

    /// Most memory of all tables, in bytes (K, M, G) or as a share of the memory of the host or its control group
    #[arg(long, help_heading = heading::TABLES, value_name = "BYTES|PERCENT", default_value_t = Amount::Percent(MEMORY_PERCENT_DEFAULT), value_parser = amount)]
    max_memory: Amount,

    /// Most tables at once
    #[arg(long, help_heading = heading::TABLES, value_name = "TABLES", default_value_t = TABLES_DEFAULT, value_parser = at_least_one)]
    max_tables: usize,

    /// Serve durable tasks, at this endpoint if one is given; off for no tasks
    #[arg(long, help_heading = heading::TASKS, value_name = "ENDPOINT|off", num_args = 0..=1, default_value = OFF, default_missing_value = TASKS_ENDPOINT, value_parser = endpoint_or_off)]
    tasks: String,

    /// Version of the protocol in which the Stats of tasks are answered
    #[arg(long, help_heading = heading::TASKS, value_name = "1.3|1.4", default_value = "1.3", value_parser = version)]
    spiderq_version: Version,

    /// Whether clients of the tasks may end the server; local: those of an endpoint that only this host can reach
    #[arg(long, help_heading = heading::TASKS, value_name = "local|allow|deny", default_value = "local", value_parser = terminate)]
    terminate: Terminate,

    /// Serve durable jobs over TCP, at this address or port if one is given; off for no jobs
    #[arg(long, help_heading = heading::JOBS, value_name = "ADDR|PORT|off", num_args = 0..=1, default_value = OFF, default_missing_value = JOBS_ADDRESS, value_parser = listening)]
    jobs: Listening,

    /// How long a job is leased, in seconds
    #[arg(long, help_heading = heading::JOBS, value_name = "SECONDS", default_value_t = JOB_LEASE_SECONDS, value_parser = clap::value_parser!(u64).range(1..=LEASE_SECONDS_MAX))]
    lease: u64,

    /// Words of the replies to ACK of a job: OK and NO, or YES and NO
    #[arg(long, help_heading = heading::JOBS, value_name = "ok|yes-no", default_value = "ok", value_parser = ack_words)]
    jobs_ack: AckWording,

    /// Serve events over HTTP, at this address or port if one is given; off for no events
    #[arg(long, help_heading = heading::EVENTS, value_name = "ADDR|PORT|off", num_args = 0..=1, default_value = OFF, default_missing_value = EVENTS_ADDRESS, value_parser = listening)]
    events: Listening,

    #[command(flatten, next_help_heading = heading::EVENTS)]
    events_store: EventsStoreFlags,

    /// Name by which requests for events may call the server, beside addresses and names without a dot; may be given
    /// several times [default: on loopback none, elsewhere any]
    #[arg(long, help_heading = heading::EVENTS, value_name = "NAME")]
    events_host: Vec<String>,

    /// Endpoint at which workers lease pending events, with --events-store embedded
    #[arg(long, help_heading = heading::EVENTS, value_name = "ENDPOINT", default_value = EVENTS_ENDPOINT, value_parser = endpoint)]
    events_queue: String,

    #[command(flatten, next_help_heading = heading::STORE)]
    store: StoreFlags,

    #[command(flatten, next_help_heading = heading::SECURITY)]
    security: SecurityFlags,

    /// File of settings, in TOML: the keys are the flags without their dashes
    #[arg(long, help_heading = heading::OPERATION, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten, next_help_heading = heading::OPERATION)]
    log: LogFlags,

    #[command(flatten, next_help_heading = heading::OPERATION)]
    admin: AdminFlags,

    /// Most bytes (K, M, G) of requests and replies that a client may have outstanding; above, it is cut off
    #[arg(long, help_heading = heading::OPERATION, value_name = "BYTES", default_value_t = CLIENT_BYTES_DEFAULT, value_parser = bytes_within(1, u64::MAX))]
    client_bytes_max: u64,

    /// Who reads connections: queue for a thread with the workers behind its queue, native for the workers themselves
    #[arg(long, help_heading = heading::TUNING, value_name = "queue|native", default_value = "queue", value_parser = frontend)]
    frontend: FrontendWord,

    /// Threads that answer requests
    #[arg(long, help_heading = heading::TUNING, value_name = "THREADS", default_value_t = server::workers_default(), value_parser = threads())]
    workers: usize,

    /// Cores for the workers: auto for those that this process may use, off for no pinning, or a list as 0,2,4-7
    #[arg(long, help_heading = heading::TUNING, value_name = "auto|off|LIST", default_value = "auto", value_parser = pin)]
    pin: Pin,

    /// How many elements a new table has room for before it must grow; takes memory for each table
    #[arg(long, help_heading = heading::TUNING, value_name = "ELEMENTS", default_value_t = 0)]
    expected_keys: usize,

    /// How many messages a subscriber may fall behind before it loses changes; costs memory while it does
    #[arg(long, help_heading = heading::TUNING, value_name = "MESSAGES", default_value_t = PUBLISH_HWM_DEFAULT, value_parser = clap::value_parser!(i32).range(1..))]
    publish_hwm: i32,

    /// Allocator of the process: mimalloc, jemalloc or system [default: mimalloc]
    #[arg(long, help_heading = heading::TUNING, value_name = "NAME")]
    allocator: Option<Choice>,

    /// Without effect: libzmq has no thread that reads or writes any more
    #[arg(long, help_heading = heading::TUNING, value_name = "THREADS", hide = true, value_parser = threads())]
    io_threads: Option<usize>,

    #[command(flatten, next_help_heading = heading::LOCKSTEP)]
    lockstep: LockstepFlags,
}

fn threads() -> impl TypedValueParser<Value = usize> {
    clap::value_parser!(u16).range(1..=THREADS_MAX).map(usize::from)
}

/// Runs the server until a signal ends it.
///
/// # Errors
/// [`CommandError::Usage`] if the flags contradict each other, [`CommandError::Failed`] if the server cannot start.
pub(crate) fn run(flags: ServeFlags, settings: Settings) -> Result<(), CommandError> {
    let level_is_fixed = settings.is_fixed(LEVEL_FLAG);
    let log = flags.log;
    let warnings = flags.warnings();
    let config = flags.into_config(available_bytes())?;
    begin_with(config.allocator);
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
    let is_told = std::env::var_os(ALLOCATOR_VARIABLE).is_some_and(|name| name == asked.name());
    if asked == allocator::in_use() || is_told {
        return;
    }
    if let Ok(program) = std::env::current_exe() {
        // This returns only if it fails. The server then warns of its allocator.
        let _failed =
            Command::new(program).args(std::env::args_os().skip(1)).env(ALLOCATOR_VARIABLE, asked.name()).exec();
    }
}

impl ServeFlags {
    /// What is said of flags that older command lines have.
    fn warnings(&self) -> Vec<&'static str> {
        let is_told = [
            (self.frontend.is_old, "--frontend proxy is called queue now: write --frontend queue, or leave it out"),
            (self.io_threads.is_some(), "--io-threads has no effect any more: leave it out"),
        ];
        is_told.into_iter().filter_map(|(is_old, warning)| is_old.then_some(warning)).collect()
    }

    /// The configuration of the server, for this much available memory.
    fn into_config(self, available_bytes: u64) -> Result<ServerConfig, CommandError> {
        let allocator = self.allocator.unwrap_or_else(allocator::in_use);
        let kv = endpoints(self.kv.clone())?;
        let max_memory = self.max_memory.of(available_bytes);
        self.check(max_memory, &kv)?;
        let database = self.events_store.database()?;
        let hosts = self.events_host.clone();
        let events = self.events.0.map(|address| EventsConfig { address, hosts, database });
        let config = ServerConfig {
            kv,
            frontend: self.frontend.kind,
            publish: unless_off(&self.publish),
            publish_hwm: self.publish_hwm,
            feed: self.feed.config(),
            lockstep: self.lockstep.config(),
            lockstep_publish: self.lockstep.publish(),
            max_key: self.max_key,
            max_value: self.max_value,
            max_memory,
            max_tables: self.max_tables,
            client_bytes_max: self.client_bytes_max,
            expected_keys: self.expected_keys,
            workers: self.workers,
            pin: self.pin.clone(),
            allocator,
            events,
            security: self.security.config()?,
            admin: self.admin.config(),
            slow: self.admin.slow(),
            tasks: self.durable(),
        };
        endpoint_conflicts::check(&server::listening(&config))?;
        Ok(config)
    }

    /// Checks that the flags do not contradict each other.
    fn check(&self, max_memory: u64, kv: &[String]) -> Result<(), CommandError> {
        let least = bytes_for(self.expected_keys);
        if least > max_memory {
            return Err(CommandError::Usage(format!(
                "--expected-keys {}: so many elements take {least} bytes at least, and --max-memory is {max_memory}; expect fewer",
                self.expected_keys
            )));
        }
        self.store.check()?;
        self.lockstep.check()?;
        let has_tables = !kv.is_empty() || self.lockstep.config().is_some();
        if !has_tables && self.tasks == OFF && self.jobs.0.is_none() && self.events.0.is_none() {
            return Err(CommandError::Usage(
                "nothing is to be served: give --kv, --lockstep, --tasks, --jobs or --events".to_owned(),
            ));
        }
        Ok(())
    }

    /// The configuration of tasks, jobs, and events of the embedded store.
    fn durable(self) -> Option<TasksConfig> {
        let settings = |endpoint: String, access| SpiderqConfig {
            terminate: self.terminate.at(&endpoint),
            endpoint,
            version: self.spiderq_version,
            access,
        };
        let spiderq = unless_off(&self.tasks).map(|endpoint| settings(endpoint, Access::Full));
        let jobs = self.jobs.0.map(|address| jobs::JobsConfig {
            address,
            lease: self.lease * MILLIS_PER_SECOND,
            words: self.jobs_ack,
        });
        let kept_here = self.events.0.is_some() && self.events_store.is_embedded();
        let events = kept_here.then(|| settings(self.events_queue, Access::WorkOff { accepts: is_value }));
        let is_on = spiderq.is_some() || jobs.is_some() || events.is_some();
        is_on.then_some(TasksConfig {
            spiderq,
            jobs,
            events,
            data: self.store.data(),
            store: self.store.config(),
            sync: self.store.sync(),
        })
    }
}

/// The endpoints of requests. `off` excludes any other.
fn endpoints(typed: Vec<String>) -> Result<Vec<String>, CommandError> {
    match &*typed {
        [only] if only == OFF => Ok(Vec::new()),
        several if several.iter().any(|endpoint| endpoint == OFF) => {
            Err(CommandError::Usage("--kv off and --kv ENDPOINT exclude each other".to_owned()))
        }
        _ => Ok(typed),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use clap::Parser;

    use super::*;
    use crate::services::tables::serve::FrontendKind;

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
        parsed(flags).unwrap().into_config(HOST).unwrap()
    }

    #[test]
    fn without_flags_the_defaults_are_those_of_the_specification() {
        let config = config(&[]);
        assert_eq!(config.kv, ["tcp://127.0.0.1:5555"]);
        assert_eq!(config.publish.as_deref(), Some("tcp://127.0.0.1:5556"));
        assert_eq!(config.publish_hwm, 1_000_000);
        assert_eq!((config.max_key, config.max_value), (64, 1_024));
        assert_eq!(config.max_memory, 800_000);
        assert_eq!(config.max_tables, 65_536);
        assert_eq!(config.client_bytes_max, 64 << 20);
        assert_eq!(config.workers, server::workers_default());
        assert_eq!(config.pin, Pin::Auto);
        assert_eq!(config.frontend, FrontendKind::Queue);
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
        assert_eq!(config.publish, None);
        assert_eq!((config.publish_hwm, config.max_key, config.max_value), (5, 4_096, 1 << 20));
        assert_eq!((config.max_memory, config.max_tables), (2 << 30, 7));
        assert_eq!((config.client_bytes_max, config.expected_keys), (9 << 10, 11));
        assert_eq!(config.workers, 3);
        assert_eq!(config.pin, Pin::Cores(vec![0, 2, 3, 4]));
        assert_eq!(config.allocator, Choice::Jemalloc);
    }

    #[test]
    fn no_requests_at_all_is_said_by_off_alone() {
        assert!(config(&["--kv", "off", "--tasks"]).kv.is_empty());
        let both = parsed(&["--kv", "off", "--kv", "tcp://h:1"]).unwrap();
        assert!(matches!(both.into_config(HOST), Err(CommandError::Usage(_))));
    }

    fn refused(flags: &[&str]) -> String {
        match parsed(flags).unwrap().into_config(HOST) {
            Err(CommandError::Usage(why)) => why,
            other => panic!("{flags:?}: {other:?}"),
        }
    }

    #[test]
    fn a_server_with_nothing_to_serve_is_refused() {
        assert!(refused(&["--kv", "off"]).contains("--tasks, --jobs or --events"));
        for frontend in ["--tasks", "--jobs", "--events"] {
            parsed(&["--kv", "off", frontend]).unwrap().into_config(HOST).unwrap();
        }
    }

    #[test]
    fn more_keys_than_fit_into_memory_are_not_expected() {
        assert_eq!(config(&["--expected-keys", "9000"]).expected_keys, 9_000);
        for flags in [["--expected-keys", "15000"], ["--expected-keys", "18446744073709551615"]] {
            assert!(refused(&flags).contains("--max-memory is 800000"), "{flags:?}");
        }
        assert_eq!(config(&["--expected-keys", "15000", "--max-memory", "2M"]).expected_keys, 15_000);
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
        let both = config(&["--jobs", "81", "--tasks", "--data", "here"]).tasks.unwrap();
        assert!(both.spiderq.is_some() && both.jobs.is_some_and(|jobs| jobs.address.to_string() == "127.0.0.1:81"));
        assert_eq!(both.data.to_str(), Some("here"));
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
