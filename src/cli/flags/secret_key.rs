//! The secret key of a user or a server, from its file.

use std::io::Read;
use std::path::Path;

use crate::zmtp::SecretKey;

/// The secret key in a file that `spindle keygen` has written.
///
/// # Errors
/// One line that names the file. It shows nothing of the key.
pub(crate) fn secret_key(path: &Path) -> Result<SecretKey, String> {
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    // A key, and the ends of lines around it.
    let read = file.take(128).read_to_string(&mut text);
    let key = read.ok().and_then(|_| text.trim().parse().ok());
    key.ok_or_else(|| format!("{}: this is no secret key, as `spindle keygen FILE` writes it", path.display()))
}
