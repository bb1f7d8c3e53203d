//! The user of a command: `--user`, and its password from the environment or a file.
//!
//! No password is an argument, since other users of the host see arguments.

use std::ffi::OsStr;
use std::path::PathBuf;

use super::password_file::password;
use crate::cli::CommandError;

/// The variable with the name.
const USER: &str = "SPINDLE_USER";
/// The variable with the password.
const PASSWORD: &str = "SPINDLE_PASSWORD";

/// The flags, as typed.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct LoginFlags {
    /// User to log in as, with the password in SPINDLE_PASSWORD or --password-file
    #[arg(long, value_name = "NAME", env = USER)]
    user: Option<String>,
    /// File with the password of --user, on one line
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,
}

/// Whether a flag was typed: its value is another one than that of its variable.
pub(crate) fn is_typed(value: &OsStr, variable: &str) -> bool {
    std::env::var_os(variable).is_none_or(|set| set != value)
}

impl LoginFlags {
    /// Whether a user is named.
    pub(crate) fn is_given(&self) -> bool {
        self.user.is_some()
    }

    /// Whether a user is named by the flag.
    pub(crate) fn is_typed(&self) -> bool {
        self.user.as_ref().is_some_and(|user| is_typed(OsStr::new(user), USER))
    }

    /// The user that is named, and its password.
    ///
    /// # Errors
    /// [`CommandError`] if there is no password.
    pub(crate) fn name_and_password(&self) -> Result<Option<(String, String)>, CommandError> {
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
}
