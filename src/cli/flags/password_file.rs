//! The password of the events' database from a file, for `serve` and `worker`: a password in a URL shows in the list of
//! processes.
//!
//! This module shows no password.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::CommandError;
use crate::services::events::mysql::DatabaseAddress;

/// The longest password, in bytes. A file that is longer is another one.
const PASSWORD_BYTES_MAX: u64 = 4096;

/// The flag, as typed.
#[derive(Debug, Args)]
pub(crate) struct PasswordFile {
    /// File with the password of the events' database, in place of one in its URL; a newline at its end does not count
    #[arg(long, value_name = "FILE")]
    events_store_password_file: Option<PathBuf>,
}

impl PasswordFile {
    /// The database with the password in the file, or as it is without a file. `flag` is the one that names a database.
    ///
    /// # Errors
    /// [`CommandError::Usage`] if there is no database, or its URL has a password too. [`CommandError::Failed`] if the
    /// file has no password.
    pub(crate) fn complete(
        &self,
        database: Option<DatabaseAddress>,
        flag: &str,
    ) -> Result<Option<DatabaseAddress>, CommandError> {
        let Some(file) = &self.events_store_password_file else { return Ok(database) };
        let usage = |what: &str| CommandError::Usage(format!("--events-store-password-file: {what}"));
        let needs = format!("there is no database to log in to: give {flag} mysql://USER@HOST/DATABASE");
        let database = database.ok_or_else(|| usage(&needs))?;
        if database.has_password() {
            return Err(usage("the URL of the database has a password too: leave out one of them"));
        }
        let password = password(file)
            .map_err(|why| CommandError::Failed(format!("--events-store-password-file {}: {why}", file.display())))?;
        Ok(Some(database.with_password(&password)))
    }
}

/// The password in a file.
///
/// # Errors
/// Why it has none. The text shows nothing of the file.
pub(crate) fn password(file: &Path) -> Result<String, String> {
    let read = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(file)?.take(PASSWORD_BYTES_MAX + 3).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|error| format!("the file cannot be read ({error})"))?;
    let line = bytes.strip_suffix(b"\n").map_or(&*bytes, |line| line.strip_suffix(b"\r").unwrap_or(line));
    match std::str::from_utf8(line) {
        _ if line.len() as u64 > PASSWORD_BYTES_MAX => Err(format!("it has more than {PASSWORD_BYTES_MAX} bytes")),
        Ok("") => Err("the file is empty: write the password into it".to_owned()),
        Ok(line) if line.contains(['\n', '\r', '\0']) => Err("it has more than one line: a password is one".to_owned()),
        Ok(line) => Ok(line.to_owned()),
        Err(_) => Err("it is not UTF-8".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::fs;

    use super::*;

    fn written(bytes: &[u8]) -> Result<String, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), bytes).unwrap();
        password(file.path())
    }

    #[test]
    fn the_password_is_the_file_without_the_newline_at_its_end() {
        for bytes in [&b"p/?#@%: \xc3\xa9"[..], b"p/?#@%: \xc3\xa9\n", b"p/?#@%: \xc3\xa9\r\n"] {
            assert_eq!(written(bytes).as_deref(), Ok("p/?#@%: \u{e9}"));
        }
        assert_eq!(written(b" secret ").as_deref(), Ok(" secret "), "spaces are part of it");
        let longest = vec![b'x'; 4096];
        assert_eq!(written(&[&longest[..], b"\r\n"].concat()).unwrap().len(), 4096);
    }

    #[test]
    fn a_file_without_a_password_is_refused_and_not_shown() {
        let long = [b"secret".repeat(1_000), b"\n".to_vec()].concat();
        let rows = [
            (&b""[..], "empty"),
            (b"\n", "empty"),
            (b"\r\n", "empty"),
            (b"secret\nsecret\n", "more than one line"),
            (b"secret\n\n", "more than one line"),
            (b"secret\0", "more than one line"),
            (b"secret\xff", "not UTF-8"),
            (&long, "more than 4096 bytes"),
        ];
        for (bytes, about) in rows {
            let why = written(bytes).unwrap_err();
            assert!(why.contains(about) && !why.contains("secret"), "{}: {why}", bytes.escape_ascii());
        }
        assert!(password(Path::new("/nowhere/at/all")).unwrap_err().contains("No such file"));
        assert!(password(Path::new("/")).unwrap_err().contains("cannot be read"));
        assert!(password(Path::new("/dev/zero")).is_err(), "it ends");
    }

    #[test]
    fn a_password_in_the_url_and_one_in_a_file_exclude_each_other() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), b"secret").unwrap();
        let flag = PasswordFile { events_store_password_file: Some(file.path().to_owned()) };
        let complete = |url: Option<&str>| flag.complete(url.map(|url| url.parse().unwrap()), "--store");
        for url in ["mysql://u:p@h/d", "mysql://u:@h/d", "mysql://:p@h/d"] {
            assert!(matches!(complete(Some(url)), Err(CommandError::Usage(why)) if why.contains("has a password")));
        }
        assert!(matches!(complete(None), Err(CommandError::Usage(why)) if why.contains("give --store mysql://")));
        for url in ["mysql://u@h/d", "mysql://h:3306/d", "mysql://u@h:3306/d?socket=/a:b@c"] {
            let address = complete(Some(url)).unwrap().unwrap();
            assert!(address.has_password() && !format!("{address:?}").contains("secret"), "{url}");
        }
        let none = PasswordFile { events_store_password_file: None };
        assert!(none.complete(None, "--store").unwrap().is_none());
    }
}
