//! The user of a command that speaks ZMTP itself: a name and a password, or a key of CURVE.

use std::path::PathBuf;

use clap::Args;

use super::CommandError;
use super::login_flags::LoginFlags;
use super::user::secret_key;
use crate::zmtp::{Credentials, PublicKey};

/// The flags, as typed.
#[derive(Clone, Debug, Args)]
pub(super) struct CurveFlags {
    /// File with the secret key of the user, as `spindle keygen` writes it: the connections are encrypted with CURVE
    #[arg(long, value_name = "FILE", requires = "curve_server", conflicts_with = "user")]
    curve_key: Option<PathBuf>,
    /// Public key of the server, as `spindle keygen` prints it
    #[arg(long, value_name = "PUBLIC-KEY", requires = "curve_key", allow_hyphen_values = true)]
    curve_server: Option<PublicKey>,
}

impl CurveFlags {
    /// What the connections tell of their user.
    ///
    /// # Errors
    /// [`CommandError`] if the name has no password, or the file no key.
    pub(super) fn credentials(&self, login: &LoginFlags) -> Result<Credentials, CommandError> {
        if let (Some(file), Some(server)) = (&self.curve_key, self.curve_server) {
            let own = secret_key(file).map_err(|why| CommandError::Failed(format!("--curve-key {why}")))?;
            return Ok(Credentials::Curve { own, server });
        }
        let named = login.name_and_password()?;
        Ok(named.map_or(Credentials::None, |(name, password)| Credentials::Plain { name, password }))
    }
}
