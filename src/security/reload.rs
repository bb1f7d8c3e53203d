//! Notices that the file of users was replaced or changed.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;

use super::password::HashedPassword;
use super::users::is_read_by_others;

/// What tells one state of the file from another: device, inode, size and times. None: there is no file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileMark(Option<[i128; 6]>);

impl FileMark {
    pub(super) fn of(path: &Path) -> Self {
        Self(std::fs::metadata(path).ok().map(|file| {
            let (device, inode, size) = (file.dev().into(), file.ino().into(), file.size().into());
            let changed = nanos(file.ctime(), file.ctime_nsec());
            [device, inode, size, nanos(file.mtime(), file.mtime_nsec()), changed, file.mode().into()]
        }))
    }
}

fn nanos(seconds: i64, nanos: i64) -> i128 {
    i128::from(seconds) * 1_000_000_000 + i128::from(nanos)
}

/// Logs a warning if others can read the hashes.
pub(super) fn warn_of_mode(path: &Path) {
    if is_read_by_others(path) {
        tracing::warn!("{}: others can read it, and the hashes in it: chmod 600", path.display());
    }
}

/// The hash that an unknown name is checked against.
pub(super) fn nobody() -> HashedPassword {
    static NOBODY: OnceLock<HashedPassword> = OnceLock::new();
    NOBODY.get_or_init(|| HashedPassword::of("nobody has this password").expect("it is a valid password")).clone()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;

    #[test]
    fn a_file_that_is_written_again_in_its_place_has_changed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = || std::fs::write(file.path(), "as long as before").unwrap();
        write();
        let before = FileMark::of(file.path());
        assert_eq!(before, FileMark::of(file.path()));
        // The system may give two writes the same time when they follow each other quickly.
        while FileMark::of(file.path()) == before {
            write();
        }
        assert_ne!(before, FileMark::of(Path::new("/nowhere/users")));
    }
}
