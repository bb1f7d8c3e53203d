//! The user of a command over ZeroMQ: a name and a password, or a key of CURVE.
//!
//! ```text
//! --curve-key ─► CURVE     --user ─► PLAIN     SPINDLE_CURVE_KEY ─► CURVE     SPINDLE_USER ─► PLAIN     else NULL
//! ```
//! The first that is given holds. Both flags together are a mistake.

use std::ffi::OsStr;
use std::path::PathBuf;

use clap::Args;

use super::login::{LoginFlags, is_typed};
use super::secret_key::secret_key;
use crate::cli::CommandError;
use crate::clients::rust::tables::log_in;
use crate::zmtp::{Credentials, PublicKey};

/// The variables of the flags.
const CURVE_KEY: &str = "SPINDLE_CURVE_KEY";
const CURVE_SERVER: &str = "SPINDLE_CURVE_SERVER";

/// The flags, as typed.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub(crate) struct ZeromqLogin {
    #[command(flatten)]
    login: LoginFlags,
    /// File with the secret key of the user, as `spindle keygen` writes it: the connections are encrypted with CURVE
    #[arg(long, value_name = "FILE", env = CURVE_KEY)]
    curve_key: Option<PathBuf>,
    /// Public key of the server, as `spindle keygen` prints it
    #[arg(long, value_name = "PUBLIC-KEY", env = CURVE_SERVER, allow_hyphen_values = true)]
    curve_server: Option<PublicKey>,
}

impl ZeromqLogin {
    /// Whether a user is named.
    pub(crate) fn is_given(&self) -> bool {
        self.login.is_given() || self.curve_key.is_some()
    }

    /// Whether a user is named by a flag.
    pub(crate) fn is_typed(&self) -> bool {
        self.login.is_typed() || self.is_key_typed()
    }

    fn is_key_typed(&self) -> bool {
        self.curve_key.as_ref().is_some_and(|file| is_typed(file.as_os_str(), CURVE_KEY))
    }

    /// What the connections claim of their user.
    ///
    /// # Errors
    /// [`CommandError`] if flags contradict each other, the name has no password, or the file no key.
    pub(crate) fn credentials(&self) -> Result<Credentials, CommandError> {
        let usage = |what: &str| Err(CommandError::Usage(what.to_owned()));
        let is_server_typed =
            self.curve_server.is_some_and(|server| is_typed(OsStr::new(&server.to_string()), CURVE_SERVER));
        match &self.curve_key {
            Some(_) if self.is_key_typed() && self.login.is_typed() => {
                usage("--user and --curve-key are two ways to log in: leave out one of them")
            }
            Some(file) if !self.login.is_typed() => {
                let Some(server) = self.curve_server else {
                    return usage("--curve-key: give the public key of the server too, as --curve-server");
                };
                let own = secret_key(file).map_err(|why| CommandError::Failed(format!("--curve-key {why}")))?;
                Ok(Credentials::Curve { own, server })
            }
            None if is_server_typed => {
                usage("--curve-server: give the file of your own secret key too, as --curve-key")
            }
            _ => {
                let named = self.login.name_and_password()?;
                Ok(named.map_or(Credentials::None, |(name, password)| Credentials::Plain { name, password }))
            }
        }
    }

    /// Has all connections from now on log in as the user, if one is named.
    ///
    /// # Errors
    /// As [`ZeromqLogin::credentials`].
    pub(crate) fn log_in(&self) -> Result<(), CommandError> {
        log_in(self.credentials()?);
        Ok(())
    }
}
