//! The flags of `spindle serve` that tune it.

use clap::builder::TypedValueParser;

use super::word::one_of;
use crate::allocator::Choice;
use crate::limits::PUBLISH_HWM_DEFAULT;
use crate::server::{self, Pin, RespSettings, WorkersConfig};
use crate::services::tables::serve::FrontendKind;

/// Most threads of libzmq, and most workers: more than any host has use for.
const THREADS_MAX: i64 = 1_024;
/// Bound of the numbers of cores: more than the largest host has.
const CORES_MAX: usize = 1 << 16;

/// The words of `--frontend`.
const FRONTENDS: [(&str, FrontendWord); 3] =
    [("queue", FrontendWord::Queue), ("proxy", FrontendWord::Proxy), ("native", FrontendWord::Native)];

/// The word of `--frontend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrontendWord {
    Queue,
    /// The old name of `queue`.
    Proxy,
    Native,
}

/// The flags of the tuning, as typed.
#[derive(Debug, clap::Args)]
pub(crate) struct TuningFlags {
    /// Who reads connections: queue for a thread with the workers behind its queue, native for the workers themselves
    #[arg(long, value_name = "queue|native", default_value = "queue", value_parser = one_of(&FRONTENDS, "it is queue or native"))]
    frontend: FrontendWord,

    /// Threads that answer requests
    #[arg(long, value_name = "THREADS", default_value_t = server::workers_default(), value_parser = threads())]
    workers: usize,

    /// Cores for the workers: auto for those that this process may use, off for no pinning, or a list as 0,2,4-7
    #[arg(long, value_name = "auto|off|LIST", default_value = "auto", value_parser = pin)]
    pin: Pin,

    /// How many elements a new table has room for before it must grow; takes memory for each table
    #[arg(long, value_name = "ELEMENTS", default_value_t = 0)]
    pub(crate) expected_keys: usize,

    /// How many messages a subscriber may fall behind before it loses changes; costs memory while it does
    #[arg(long, value_name = "MESSAGES", default_value_t = PUBLISH_HWM_DEFAULT, value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) publish_hwm: i32,

    /// Allocator of the process: mimalloc, jemalloc or system [default: mimalloc]
    #[arg(long, value_name = "NAME")]
    pub(crate) allocator: Option<Choice>,

    /// Without effect: libzmq has no thread that reads or writes any more
    #[arg(long, value_name = "THREADS", hide = true, value_parser = threads())]
    io_threads: Option<usize>,
}

impl TuningFlags {
    /// The warnings about flags of older command lines.
    pub(crate) fn warnings(&self) -> Vec<&'static str> {
        let old_flags = [
            (
                self.frontend == FrontendWord::Proxy,
                "--frontend proxy is called queue now: write --frontend queue, or leave it out",
            ),
            (self.io_threads.is_some(), "--io-threads has no effect any more: leave it out"),
        ];
        old_flags.into_iter().filter_map(|(is_old, warning)| is_old.then_some(warning)).collect()
    }

    /// The workers of the tables.
    pub(crate) fn workers(&self, resp: RespSettings) -> WorkersConfig {
        let frontend = match self.frontend {
            FrontendWord::Queue | FrontendWord::Proxy => FrontendKind::Queue,
            FrontendWord::Native => FrontendKind::Native,
        };
        WorkersConfig { frontend, count: self.workers, pin: self.pin.clone(), resp }
    }
}

fn threads() -> impl TypedValueParser<Value = usize> {
    clap::value_parser!(u16).range(1..=THREADS_MAX).map(usize::from)
}

/// Parses `auto`, `off`, or numbers and ranges of cores.
fn pin(typed: &str) -> Result<Pin, String> {
    match typed {
        "auto" => Ok(Pin::Auto),
        "off" => Ok(Pin::Off),
        list => {
            let cores: Option<Vec<Vec<usize>>> = list.split(',').map(cores).collect();
            cores.map(|cores| Pin::Cores(cores.concat())).ok_or("cores are auto, off, or a list as 0,2,4-7".to_owned())
        }
    }
}

/// One core, or a range of them, both ends included.
fn cores(typed: &str) -> Option<Vec<usize>> {
    let (first, last) = typed.split_once('-').unwrap_or((typed, typed));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last < CORES_MAX).then(|| (first..=last).collect())
}
