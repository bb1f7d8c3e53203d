//! `spindle keygen`: a key of CURVE in a file, for a user or a server.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::cli::CommandError;
use crate::cli::show::Format;
use crate::security::user_file;
use crate::zmtp::SecretKey;

#[derive(Debug, Args)]
pub(crate) struct KeygenArguments {
    /// File for the secret key, readable for its owner alone; it must not be there yet
    #[arg(value_name = "FILE")]
    to: PathBuf,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Makes a key, and prints its public key.
///
/// # Errors
/// [`CommandError::AlreadyThere`] if the file is there, [`CommandError::Failed`] if it cannot be written.
pub(crate) fn keygen(arguments: &KeygenArguments, out: &mut impl Write) -> Result<(), CommandError> {
    let key = SecretKey::generate();
    let at = arguments.to.display();
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => CommandError::AlreadyThere(format!(
            "{at}: it is there already, and no key is overwritten: name another file"
        )),
        _ => CommandError::Failed(format!("{at}: {error}")),
    };
    user_file::write_secret(&arguments.to, &(key.to_secret_text() + "\n")).map_err(failed)?;
    let public = key.public_key().to_string();
    Format::of(arguments.json).print(out, &format!("{public}\n"), &json!({ "public_key": public }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::path::Path;

    use super::*;
    use crate::cli::flags::secret_key::secret_key;

    #[test]
    fn a_key_that_was_made_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let mut out = Vec::new();
        keygen(&KeygenArguments { to: path.clone(), json: false }, &mut out).unwrap();
        let key = secret_key(&path).unwrap();
        assert_eq!(String::from_utf8(out).unwrap().trim(), key.public_key().to_string());
        let again = keygen(&KeygenArguments { to: path.clone(), json: false }, &mut Vec::new());
        assert!(matches!(again, Err(CommandError::AlreadyThere(_))));
        std::fs::write(&path, "a secret that is no key").unwrap();
        assert!(!secret_key(&path).unwrap_err().contains("a secret"));
        assert!(secret_key(Path::new("/dev/zero")).is_err());
    }
}
