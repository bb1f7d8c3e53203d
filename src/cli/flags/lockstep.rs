//! The flags of `spindle serve` for the lock-step dialect of the first client.

use super::endpoint::{OFF, endpoint_or_off, unless_off};
use crate::cli::CommandError;
use crate::services::lockstep::serve::LockstepConfig;

/// The flags of the dialect, as typed.
#[derive(Debug, clap::Args)]
pub(crate) struct LockstepFlags {
    /// Serve the tables in the lock-step dialect of the first client, at this endpoint; off for not. The client's port
    /// is 5555, which --kv has by default
    #[arg(long, value_name = "ENDPOINT|off", default_value = OFF, value_parser = endpoint_or_off)]
    lockstep: String,

    /// Endpoint for changes in the lock-step dialect; off for none. The client's port is 5556, which --publish has by
    /// default
    #[arg(long, value_name = "ENDPOINT|off", default_value = OFF, value_parser = endpoint_or_off)]
    lockstep_publish: String,

    /// End each reply in the lock-step dialect with a NUL
    #[arg(long)]
    lockstep_nul: bool,
}

impl LockstepFlags {
    /// The configuration of the requests, if they are on.
    pub(crate) fn config(&self) -> Option<LockstepConfig> {
        unless_off(&self.lockstep).map(|endpoint| LockstepConfig { endpoint, nul: self.lockstep_nul })
    }

    /// The endpoint of the notifications, if they are on.
    pub(crate) fn publish(&self) -> Option<String> {
        unless_off(&self.lockstep_publish)
    }

    /// Checks that no flag asks for something of a dialect that is off.
    pub(crate) fn check(&self) -> Result<(), CommandError> {
        if self.lockstep_nul && self.lockstep == OFF {
            return Err(CommandError::Usage(
                "--lockstep-nul says how the lock-step dialect ends its replies: give --lockstep ENDPOINT too, or leave it out"
                    .to_owned(),
            ));
        }
        Ok(())
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
        flags: LockstepFlags,
    }

    fn flags(typed: &[&str]) -> LockstepFlags {
        Arguments::try_parse_from([&["serve"], typed].concat()).unwrap().flags
    }

    #[test]
    fn the_dialect_is_off_unless_asked_for() {
        assert_eq!((flags(&[]).config(), flags(&[]).publish()), (None, None));
        let off = flags(&["--lockstep", "off", "--lockstep-publish", "off"]);
        assert_eq!((off.config(), off.publish()), (None, None));
        let on = flags(&["--lockstep", "tcp://h:1", "--lockstep-publish", "ipc:///tmp/p"]);
        assert_eq!(on.config(), Some(LockstepConfig { endpoint: "tcp://h:1".to_owned(), nul: false }));
        assert_eq!(on.publish().as_deref(), Some("ipc:///tmp/p"));
        assert!(flags(&["--lockstep", "tcp://h:1", "--lockstep-nul"]).config().unwrap().nul);
        for bad in [["--lockstep", "5555"], ["--lockstep-publish", "5556"], ["--lockstep-nul", "yes"]] {
            assert!(Arguments::try_parse_from([&["serve"], &bad[..]].concat()).is_err(), "{bad:?}");
        }
        assert!(Arguments::try_parse_from(["serve", "--lockstep"]).is_err(), "the port is the client's choice");
    }

    #[test]
    fn a_flag_of_a_dialect_that_is_off_is_bad_usage() {
        for typed in [&["--lockstep-nul"][..], &["--lockstep", "off", "--lockstep-nul"]] {
            let refused = flags(typed).check();
            assert!(
                matches!(&refused, Err(CommandError::Usage(why)) if why.contains("--lockstep ENDPOINT")),
                "{refused:?}"
            );
        }
        flags(&["--lockstep", "ipc:///a", "--lockstep-nul"]).check().unwrap();
        flags(&["--lockstep-publish", "ipc:///a"]).check().unwrap();
        flags(&[]).check().unwrap();
    }
}
