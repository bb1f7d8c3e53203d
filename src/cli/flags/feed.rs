//! The flags of `spindle serve` for the feed.

use super::amount::bytes_within;
use super::endpoint::{OFF, endpoint_or_off, unless_off};
use crate::cli::FEED_ENDPOINT;
use crate::server::FeedConfig;

/// Bytes of the history, unless a flag says otherwise (`OPERATION.md`).
const HISTORY_BYTES_DEFAULT: u64 = 64 << 20;

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

impl FeedFlags {
    /// The configuration of the feed, if it is on.
    pub(crate) fn config(&self) -> Option<FeedConfig> {
        let history_bytes = usize::try_from(self.feed_history).unwrap_or(usize::MAX);
        unless_off(&self.feed).map(|endpoint| FeedConfig { endpoint, history_bytes })
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
