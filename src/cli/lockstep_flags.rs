//! The flags of `spindle serve` for the lock-step dialect of the first client.

use super::CommandError;
use super::endpoint::{OFF, endpoint_or_off};
use crate::protocols::lockstep::serve::LockstepConfig;

/// The flags of the dialect, as typed.
#[derive(Debug, clap::Args)]
pub(super) struct LockstepFlags {
    /// Serve the tables in the lock-step dialect of the first client, at this endpoint; off for not
    #[arg(long, value_name = "ENDPOINT|off", default_value = OFF, value_parser = endpoint_or_off)]
    lockstep: String,

    /// Endpoint for changes in the lock-step dialect; off for none
    #[arg(long, value_name = "ENDPOINT|off", default_value = OFF, value_parser = endpoint_or_off)]
    lockstep_publish: String,

    /// End each reply in the lock-step dialect with a NUL
    #[arg(long)]
    lockstep_nul: bool,
}

impl LockstepFlags {
    /// The configuration of the requests, if they are on.
    pub(super) fn config(&self) -> Option<LockstepConfig> {
        let endpoint = Some(self.lockstep.clone()).filter(|endpoint| endpoint != OFF);
        endpoint.map(|endpoint| LockstepConfig { endpoint, nul: self.lockstep_nul })
    }

    /// The endpoint of the notifications, if they are on.
    pub(super) fn publish(&self) -> Option<String> {
        Some(self.lockstep_publish.clone()).filter(|endpoint| endpoint != OFF)
    }

    /// Checks that the endpoints are no others': those of the client are the defaults of `kv` and `publish`.
    pub(super) fn check(&self, kv: &[String], publish: &str) -> Result<(), CommandError> {
        let others = kv.iter().map(|endpoint| ("kv", &**endpoint)).chain([("publish", publish)]);
        let own = [("lockstep", &*self.lockstep), ("lockstep-publish", &*self.lockstep_publish)];
        for (flag, endpoint) in own.into_iter().filter(|(_, endpoint)| is_one_place(endpoint)) {
            let all = others.clone().chain(own);
            let taken =
                all.filter(|(other, taken)| *other != flag && *taken == endpoint).map(|(other, _)| other).next();
            if let Some(other) = taken {
                return Err(CommandError::Usage(format!(
                    "--{flag} and --{other} have the same endpoint {endpoint}: give --{other} another one, or off"
                )));
            }
        }
        Ok(())
    }
}

/// Whether only one socket can listen at the endpoint: the system picks a port for `*` and for 0.
fn is_one_place(endpoint: &str) -> bool {
    endpoint != OFF && !endpoint.ends_with(":*") && !endpoint.ends_with(":0")
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
        let off = flags(&["--lockstep", "off", "--lockstep-publish", "off", "--lockstep-nul"]);
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
    fn an_endpoint_that_another_flag_has_is_bad_usage() {
        let (kv, publish) = (["tcp://127.0.0.1:5555".to_owned()], "tcp://127.0.0.1:5556");
        let refused = |typed: &[&str]| match flags(typed).check(&kv, publish) {
            Err(CommandError::Usage(why)) => why,
            other => panic!("{typed:?}: {other:?}"),
        };
        assert!(
            refused(&["--lockstep", &kv[0]])
                .contains("--lockstep and --kv have the same endpoint tcp://127.0.0.1:5555")
        );
        assert!(refused(&["--lockstep-publish", publish]).contains("--lockstep-publish and --publish"));
        assert!(refused(&["--lockstep", publish]).contains("--lockstep and --publish"));
        assert!(refused(&["--lockstep", "ipc:///a", "--lockstep-publish", "ipc:///a"]).contains("--lockstep-publish"));
        flags(&["--lockstep", &kv[0]]).check(&[], publish).unwrap();
        flags(&["--lockstep", &kv[0], "--lockstep-publish", publish]).check(&[], OFF).unwrap();
        flags(&["--lockstep", "tcp://h:*", "--lockstep-publish", "tcp://h:*"]).check(&kv, publish).unwrap();
        flags(&[]).check(&[], OFF).unwrap();
    }
}
