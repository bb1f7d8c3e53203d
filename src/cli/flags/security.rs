//! The flags of `spindle serve` for users and reachable endpoints.

use std::path::PathBuf;

use super::secret_key::secret_key;
use crate::cli::CommandError;
use crate::server::SecurityConfig;

/// The flags, as typed.
#[derive(Debug, clap::Args)]
pub(crate) struct SecurityFlags {
    /// File of the users and what they may do; `spindle user add` makes it
    #[arg(long, value_name = "FILE")]
    users: Option<PathBuf>,

    /// Serve everybody who can reach an endpoint, where no users are checked
    #[arg(long)]
    open: bool,

    /// File with the server's secret key of CURVE, which encrypts; `spindle keygen` makes it
    #[arg(long, value_name = "FILE")]
    curve_key: Option<PathBuf>,

    /// Take passwords unencrypted also where others can reach the endpoint
    #[arg(long)]
    plain_anywhere: bool,

    /// File with the certificate of --resp, jobs, events and --admin, which then speak TLS; PEM, read again on SIGHUP
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// File with the private key of --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

impl SecurityFlags {
    /// The configuration.
    ///
    /// # Errors
    /// [`CommandError::Usage`] if a flag needs another, [`CommandError::Failed`] if the file of the key has none.
    pub(crate) fn config(&self) -> Result<SecurityConfig, CommandError> {
        for (flag, is_given) in [("--curve-key", self.curve_key.is_some()), ("--plain-anywhere", self.plain_anywhere)] {
            if is_given && self.users.is_none() {
                return Err(CommandError::Usage(format!("{flag}: there are no users: give --users FILE too")));
            }
        }
        let curve_key = self.curve_key.as_deref().map(secret_key).transpose();
        let curve_key = curve_key.map_err(|why| CommandError::Failed(format!("--curve-key {why}")))?;
        Ok(SecurityConfig {
            users: self.users.clone(),
            open: self.open,
            plain_anywhere: self.plain_anywhere,
            curve_key,
            tls: self.tls_cert.clone().zip(self.tls_key.clone()),
        })
    }
}
