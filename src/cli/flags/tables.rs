//! The flags of `spindle serve` for the tables and their feed.

use std::time::Duration;

use clap::builder::TypedValueParser;

use super::amount::{Amount, amount, bytes_within};
use super::duration::{BareUnit, whole};
use super::endpoint::{OFF, endpoint_or_off, unless_off};
use crate::cli::{CommandError, FEED_ENDPOINT, KV_ENDPOINT, PUBLISH_ENDPOINT};
use crate::limits::{
    KEY_BYTES_DEFAULT, KEY_BYTES_MAX, MEMORY_PERCENT_DEFAULT, TABLES_DEFAULT, VALUE_BYTES_DEFAULT, VALUE_BYTES_MAX,
};
use crate::server::{DurabilitySettings, ElementBounds, FeedSettings};
use crate::tables::{Durability, EvictionPolicy};

/// Bytes of the history, unless a flag says otherwise (`OPERATION.md`).
const HISTORY_BYTES_DEFAULT: u64 = 64 << 20;
/// The longest interval of durable tables: an hour.
const INTERVAL_MILLIS_MAX: u64 = 3_600_000;

/// The flags of the tables, as typed.
#[derive(Debug, clap::Args)]
pub(crate) struct TablesFlags {
    /// Endpoint for requests, tcp://HOST:PORT or ipc://PATH; may be given several times; off for none
    #[arg(long, value_name = "ENDPOINT|off", default_value = KV_ENDPOINT, value_parser = endpoint_or_off)]
    pub(crate) kv: Vec<String>,

    /// Endpoint for changes; off for none
    #[arg(long, value_name = "ENDPOINT|off", default_value = PUBLISH_ENDPOINT, value_parser = endpoint_or_off)]
    pub(crate) publish: String,

    #[command(flatten)]
    pub(crate) feed: FeedFlags,

    /// Longest key, in bytes (K), from 64 to 4K; 4K for Redis clients if not given
    #[arg(long, value_name = "BYTES", default_value_t = KEY_BYTES_DEFAULT, value_parser = size(KEY_BYTES_DEFAULT, KEY_BYTES_MAX))]
    max_key: usize,

    /// Longest value, in bytes (K, M, G), up to 16M; 16M for Redis clients if not given
    #[arg(long, value_name = "BYTES", default_value_t = VALUE_BYTES_DEFAULT, value_parser = size(0, VALUE_BYTES_MAX))]
    max_value: usize,

    /// Most memory of all tables, in bytes (K, M, G) or as a share of the memory of the host or its control group
    #[arg(long, value_name = "BYTES|PERCENT", default_value_t = Amount::Percent(MEMORY_PERCENT_DEFAULT), value_parser = amount)]
    pub(crate) max_memory: Amount,

    /// At the limit, tables without options of their own evict elements that were not used for long (lru), or refuse
    /// writes (none)
    #[arg(long, value_name = "none|lru", default_value = "none", value_parser = eviction)]
    pub(crate) evict: EvictionPolicy,

    #[command(flatten)]
    pub(crate) durability: DurabilityFlags,

    /// Most tables at once
    #[arg(long, value_name = "TABLES", default_value_t = TABLES_DEFAULT, value_parser = at_least_one)]
    pub(crate) max_tables: usize,
}

/// The flags of durable tables, as typed.
#[derive(Debug, clap::Args)]
pub(crate) struct DurabilityFlags {
    /// Durability of tables without options of their own: in memory (none), on disk within --durable-interval (soon),
    /// on disk before the reply (always)
    #[arg(long, value_name = "none|soon|always", default_value = "none", value_parser = durability)]
    durability: Durability,

    /// The most that a crash may take of a table with the durability soon, in milliseconds, or a time such as 1s
    #[arg(long, value_name = "MILLISECONDS", default_value = "1s", value_parser = interval)]
    durable_interval: Duration,
}

/// The flags of the feed, as typed.
#[derive(Debug, clap::Args)]
pub(crate) struct FeedFlags {
    /// Serve the feed of the tables, at this endpoint if one is given; off for no feed
    #[arg(long, value_name = "ENDPOINT|off", num_args = 0..=1, default_value = OFF, default_missing_value = FEED_ENDPOINT, value_parser = endpoint_or_off)]
    feed: String,

    /// Most bytes (K, M, G) of the feed's latest messages that are kept for replay, of all tables together
    #[arg(long, value_name = "BYTES", default_value_t = HISTORY_BYTES_DEFAULT, value_parser = bytes_within(0, u64::MAX))]
    feed_history: u64,
}

impl TablesFlags {
    /// The bounds of elements over ZeroMQ.
    pub(crate) fn element_bounds(&self) -> ElementBounds {
        ElementBounds { key_bytes: self.max_key, value_bytes: self.max_value }
    }

    /// The bounds of elements of Redis clients: the same if they were given, else the highest.
    pub(crate) fn resp_bounds(&self, is_given: &dyn Fn(&str) -> bool) -> ElementBounds {
        ElementBounds {
            key_bytes: if is_given("max-key") { self.max_key } else { KEY_BYTES_MAX },
            value_bytes: if is_given("max-value") { self.max_value } else { VALUE_BYTES_MAX },
        }
    }

    /// The endpoints of requests. `off` excludes any other.
    pub(crate) fn endpoints(&self) -> Result<Vec<String>, CommandError> {
        match &*self.kv {
            [only] if only == OFF => Ok(Vec::new()),
            several if several.iter().any(|endpoint| endpoint == OFF) => {
                Err(CommandError::Usage("--kv off and --kv ENDPOINT exclude each other".to_owned()))
            }
            several => Ok(several.to_vec()),
        }
    }
}

impl DurabilityFlags {
    pub(crate) fn settings(&self) -> DurabilitySettings {
        DurabilitySettings { durability: self.durability, interval: self.durable_interval }
    }
}

impl FeedFlags {
    /// The configuration of the feed, if it is on.
    pub(crate) fn config(&self) -> Option<FeedSettings> {
        let history_bytes = usize::try_from(self.feed_history).unwrap_or(usize::MAX);
        unless_off(&self.feed).map(|endpoint| FeedSettings { endpoint, history_bytes })
    }
}

/// Parses a number of bytes in a range.
fn size(least: usize, most: usize) -> impl TypedValueParser<Value = usize> {
    bytes_within(least as u64, most as u64).map(move |bytes| usize::try_from(bytes).unwrap_or(most))
}

/// Parses a durability.
pub(crate) fn durability(typed: &str) -> Result<Durability, String> {
    let found = Durability::ALL.into_iter().find(|durability| durability.word() == typed);
    found.ok_or_else(|| "it must be none, soon or always".to_owned())
}

fn eviction(typed: &str) -> Result<EvictionPolicy, String> {
    match typed {
        "none" => Ok(EvictionPolicy::None),
        "lru" => Ok(EvictionPolicy::Lru),
        _ => Err("it must be none or lru".to_owned()),
    }
}

fn interval(typed: &str) -> Result<Duration, String> {
    let millis =
        whole(BareUnit::Millis, 1, INTERVAL_MILLIS_MAX, "an interval is a whole number of milliseconds")(typed)?;
    Ok(Duration::from_millis(millis))
}

fn at_least_one(typed: &str) -> Result<usize, String> {
    match typed.parse() {
        Ok(0) | Err(_) => Err("it must be a number, at least 1".to_owned()),
        Ok(number) => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Arguments {
        #[command(flatten)]
        flags: FeedFlags,
    }

    fn config(flags: &[&str]) -> Option<(String, usize)> {
        let parsed = Arguments::try_parse_from([&["serve"], flags].concat()).unwrap();
        parsed.flags.config().map(|config| (config.endpoint, config.history_bytes))
    }

    #[test]
    fn the_feed_is_off_unless_asked_for() {
        assert_eq!(config(&[]), None);
        assert_eq!(config(&["--feed", "off"]), None);
        assert_eq!(config(&["--feed"]), Some(("tcp://127.0.0.1:5559".to_owned(), 64 << 20)));
        let other = config(&["--feed", "ipc:///tmp/f", "--feed-history", "1M"]);
        assert_eq!(other, Some(("ipc:///tmp/f".to_owned(), 1 << 20)));
        assert!(Arguments::try_parse_from(["serve", "--feed", "5559"]).is_err());
    }
}
