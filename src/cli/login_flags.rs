//! The user of a command: `--user`, and its password from the environment or a file.
//!
//! No password is an argument, since other users of the host see arguments.

use std::path::PathBuf;

use super::CommandError;
use super::password_file::password;
use crate::protocols::kv::client::log_in;

/// The variable with the password.
const PASSWORD: &str = "SPINDLE_PASSWORD";

/// The flags, as typed.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct LoginFlags {
    /// User to log in as, with the password in SPINDLE_PASSWORD or --password-file
    #[arg(long, value_name = "NAME", env = "SPINDLE_USER")]
    user: Option<String>,
    /// File with the password of --user, on one line
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,
}

impl LoginFlags {
    /// Whether a user is named.
    pub(super) fn is_given(&self) -> bool {
        self.user.is_some()
    }

    /// The user that is named, and its password.
    ///
    /// # Errors
    /// [`CommandError`] if there is no password.
    pub(super) fn name_and_password(&self) -> Result<Option<(String, String)>, CommandError> {
        let Some(user) = &self.user else { return Ok(None) };
        let password = match &self.password_file {
            Some(file) => password(file)
                .map_err(|why| CommandError::Failed(format!("--password-file {}: {why}", file.display())))?,
            None => std::env::var(PASSWORD).map_err(|_| {
                CommandError::Usage(format!("--user {user}: put the password into {PASSWORD}, or give --password-file"))
            })?,
        };
        Ok(Some((user.clone(), password)))
    }

    /// Has all connections from now on log in as the user, if one is named.
    ///
    /// # Errors
    /// [`CommandError`] if there is no password.
    pub(super) fn log_in(&self) -> Result<(), CommandError> {
        if let Some((user, password)) = self.name_and_password()? {
            log_in(&user, &password);
        }
        Ok(())
    }
}
