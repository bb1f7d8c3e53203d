//! The flags of `spindle serve` for what an operator sees.

use std::time::Duration;

use super::duration::{BareUnit, whole};
use super::endpoint::{Listening, OFF, listening};
use crate::cli::ADMIN_ADDRESS;
use crate::services::operator::admin::serve::AdminConfig;
use crate::stats::slow_log::SLOW_MICROS_DEFAULT;

/// The flags of the operator's service, as typed.
#[derive(Debug, clap::Args)]
pub(crate) struct AdminFlags {
    /// Show the server to an operator over HTTP, at this address or port if one is given; off for not
    #[arg(long, value_name = "ADDR|PORT|off", num_args = 0..=1, default_value = OFF, default_missing_value = ADMIN_ADDRESS, value_parser = listening)]
    admin: Listening,

    /// Name by which requests of an operator may call the server, beside addresses and names without a dot; may be given
    /// several times [default: on loopback none, elsewhere any]
    #[arg(long, value_name = "NAME")]
    admin_host: Vec<String>,

    /// Time of a request, in microseconds, above which it goes to the slow log; `spindle slow` shows it
    #[arg(long, value_name = "MICROS", default_value_t = SLOW_MICROS_DEFAULT, value_parser = whole(BareUnit::Micros, 0, u64::MAX, "a time is whole microseconds"))]
    slow: u64,
}

impl AdminFlags {
    /// The time above which a request is slow.
    pub(crate) fn slow(&self) -> Duration {
        Duration::from_micros(self.slow)
    }

    /// The configuration of the service, if it is on.
    pub(crate) fn config(&self) -> Option<AdminConfig> {
        let hosts = self.admin_host.clone();
        self.admin.0.map(|address| AdminConfig { address, hosts })
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
        flags: AdminFlags,
    }

    fn config(flags: &[&str]) -> Option<(String, Vec<String>)> {
        let parsed = Arguments::try_parse_from([&["serve"], flags].concat()).unwrap();
        parsed.flags.config().map(|config| (config.address.to_string(), config.hosts))
    }

    #[test]
    fn the_service_is_off_unless_asked_for() {
        assert_eq!(config(&[]), None);
        assert_eq!(config(&["--admin", "off"]), None);
        assert_eq!(config(&["--admin"]), Some(("127.0.0.1:8082".to_owned(), vec![])));
        let other = config(&["--admin", "0.0.0.0:9", "--admin-host", "spindle.example"]);
        assert_eq!(other, Some(("0.0.0.0:9".to_owned(), vec!["spindle.example".to_owned()])));
        assert!(Arguments::try_parse_from(["serve", "--admin", "65536"]).is_err());
    }
}
