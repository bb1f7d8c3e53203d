//! Notices that the file of users was replaced or changed, and reads it again.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::task::Waker;

use super::password::HashedPassword;
use super::users::is_read_by_others;
use super::{KnownUsers, UserList, Users};

/// What distinguishes one state of the file from another: device, inode, size and times. None: there is no file.
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

impl Users {
    /// Why the users are not those of the file: it cannot be read, or is broken. A user that was removed from it may
    /// still be admitted.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        self.0.fault.lock().clone()
    }

    /// Whether the file could not be read the last time, and can be now. Its mark need not have changed: the server may
    /// have been out of descriptors.
    pub(super) fn is_readable_again(&self) -> bool {
        self.0.fault.lock().is_some() && UserList::read(&self.0.file).is_ok()
    }

    /// Reads the file again. If it cannot be read, or is broken, the users stay as they are.
    pub(super) fn reload(&self) {
        let mut list = match UserList::read(&self.0.file) {
            Ok(list) => list,
            Err(why) => {
                tracing::error!("{why}; the users stay as they were, and one that was removed is still admitted");
                *self.0.fault.lock() = Some(why);
                return;
            }
        };
        *self.0.fault.lock() = None;
        warn_of_mode(&self.0.file);
        let count = list.sorted().len();
        let mut known = self.0.known.lock();
        list.keep_unchanged(&known.list);
        let KnownUsers { list: earlier, proven } = &mut *known;
        let has_same_password = |name: &str| match (earlier.named(name), list.named(name)) {
            (Some(before), Some(after)) => before.password == after.password,
            _ => false,
        };
        proven.retain(|name, _| has_same_password(name));
        self.0.work.lock().attempts.keep_proven(has_same_password);
        *earlier = list;
        drop(known);
        // Release: pairs with the Acquire in `generation`. A watch that sees it asks for the new list.
        self.0.generation.fetch_add(1, Ordering::Release);
        self.0.on_change.lock().iter().for_each(Waker::wake_by_ref);
        tracing::info!("{}: {count} users", self.0.file.display());
    }
}

/// Logs a warning if others can read the hashes.
pub(super) fn warn_of_mode(path: &Path) {
    if is_read_by_others(path) {
        tracing::warn!("{}: others can read it, and the hashes in it: chmod 640", path.display());
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
