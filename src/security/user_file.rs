//! Changes the file of users: one writer at a time, and a reader sees the file before or after a change.
//!
//! ```text
//! lock FILE ─► still FILE? ─► read, check ─► FILE.new: write, sync ─► rename over FILE ─► sync the folder
//!                └ another writer has replaced it: again
//! ```
//! The new file has the mode 0600, and the owner of the one before: a server that runs as another user of the host can
//! still read it. The new text is checked first, so that no edit breaks a file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use super::User;
use super::users::{UserList, section};

/// Readable and writable for its owner alone.
const MODE: u32 = 0o600;

/// Adds a user to the file, which is made if there is none.
///
/// # Errors
/// One line that says what is wrong. The file is as it was then.
pub fn add(path: &Path, user: User) -> Result<(), String> {
    let text = section(&user);
    edit(path, true, |list, before| {
        let mut list = list.clone();
        list.add(user.clone())?;
        let gap = if before.is_empty() || before.ends_with("\n\n") { "" } else { "\n" };
        let end = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
        Ok(format!("{before}{end}{gap}{text}"))
    })
}

/// Removes a user from the file. False: there is no such user.
///
/// # Errors
/// One line that says what is wrong. The file is as it was then.
pub fn remove(path: &Path, name: &str) -> Result<bool, String> {
    let mut is_there = false;
    edit(path, false, |list, before| {
        is_there = list.named(name).is_some();
        Ok(if is_there { without(list, before, name) } else { before.to_owned() })
    })?;
    Ok(is_there)
}

/// The text without the section of a user. Comments elsewhere stay, unless the text is laid out in a way that this
/// function does not understand: then all users are written anew.
fn without(list: &UserList, before: &str, name: &str) -> String {
    let mut inside = false;
    let mut kept = String::new();
    for line in before.split_inclusive('\n') {
        if line.trim_start().starts_with('[') {
            inside = UserList::parse_header(line).as_deref() == Some(name);
        }
        if !inside {
            kept.push_str(line);
        }
    }
    let others: Vec<&User> = list.sorted().into_iter().filter(|user| user.name != name).collect();
    match UserList::parse(&kept) {
        Ok(left) if left.sorted() == others => kept,
        _ => others.iter().map(|user| section(user) + "\n").collect(),
    }
}

/// Replaces the text of the file by what `change` makes of it.
fn edit(
    path: &Path,
    makes_file: bool,
    mut change: impl FnMut(&UserList, &str) -> Result<String, String>,
) -> Result<(), String> {
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let locked = lock(path, makes_file).map_err(failed)?;
    let list = UserList::read(path)?;
    let before = fs::read_to_string(path).map_err(failed)?;
    let after = change(&list, &before).map_err(|why| format!("{}: {why}", path.display()))?;
    if after == before {
        return Ok(());
    }
    UserList::parse(&after).map_err(|(line, why)| format!("{}: line {line} would be wrong: {why}", path.display()))?;
    replace(path, &locked, after.as_bytes()).map_err(failed)
}

/// The file, locked against other writers until it is dropped.
fn lock(path: &Path, makes_file: bool) -> io::Result<File> {
    loop {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(makes_file).mode(MODE);
        let file = options.open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "it is no regular file: name another one"));
        }
        file.lock()?;
        // Another writer may have replaced the file before this one had the lock.
        let (ours, there) = (file.metadata()?, fs::metadata(path));
        match there {
            Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => return Ok(file),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound && makes_file => {}
            Err(error) => return Err(error),
        }
    }
}

fn replace(path: &Path, before: &File, text: &[u8]) -> io::Result<()> {
    // A link to the file stays one.
    let path = fs::canonicalize(path)?;
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let written = write(&new, before, text).and_then(|()| fs::rename(&new, &path));
    if written.is_err() {
        let _was_not_made = fs::remove_file(&new);
    }
    written?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

fn write(new: &Path, before: &File, text: &[u8]) -> io::Result<()> {
    // Left by a writer that was killed. No other writer is at work: this one has the lock.
    let _none = fs::remove_file(new);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(new)?;
    let (owner, ours) = (before.metadata()?, file.metadata()?);
    if (owner.uid(), owner.gid()) != (ours.uid(), ours.gid()) {
        fchown(&file, Some(owner.uid()), Some(owner.gid()))?;
    }
    file.write_all(text)?;
    file.sync_all()
}

/// Writes a secret into a file that must not be there yet, readable for its owner alone.
///
/// # Errors
/// The system's error.
pub fn write_secret(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::security::Permissions;
    use crate::zmtp::SecretKey;

    fn user(name: &str) -> User {
        let curve = Some(SecretKey::generate().public_key());
        User { name: name.to_owned(), password: None, curve, permissions: Permissions::default() }
    }

    fn names(path: &Path) -> Vec<String> {
        UserList::read(path).unwrap().sorted().into_iter().map(|user| user.name.clone()).collect()
    }

    #[test]
    fn users_come_and_go_and_comments_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        add(&path, user("ada")).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("# who may what\n{text}\n# the robots")).unwrap();
        for name in ["bob", "b.c", "ä\"d"] {
            add(&path, user(name)).unwrap();
        }
        assert_eq!(names(&path), ["ada", "b.c", "bob", "ä\"d"]);
        assert!(add(&path, user("bob")).unwrap_err().contains("a user \"bob\" already"));
        assert!(remove(&path, "b.c").unwrap() && remove(&path, "ä\"d").unwrap() && !remove(&path, "b").unwrap());
        assert_eq!(names(&path), ["ada", "bob"]);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("# who may what") && text.contains("# the robots"), "{text}");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn sections_stand_apart_by_one_line_and_their_owner_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        let (ada, bob, eve) = (user("ada"), user("bob"), user("eve"));
        add(&path, ada.clone()).unwrap();
        // Only root may give it away. Others see that it stays theirs.
        let _ = std::os::unix::fs::chown(&path, Some(1), Some(2));
        let owner = || fs::metadata(&path).map(|file| (file.uid(), file.gid())).unwrap();
        let before = owner();
        add(&path, bob.clone()).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, section(&ada) + "\n" + &section(&bob));
        fs::write(&path, text.trim_end()).unwrap();
        add(&path, eve.clone()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), text + "\n" + &section(&eve));
        assert_eq!(owner(), before);
    }

    #[test]
    fn a_user_goes_and_one_whose_name_is_longer_stays_as_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        let (bo, bob) = (user("bo"), user("bob"));
        let text = format!("# the first\n{}# the second\n{}", section(&bob), section(&bo));
        fs::write(&path, &text).unwrap();
        assert!(add(&path, user("b o")).unwrap_err().contains("no white space"));
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        assert!(remove(&path, "bo").unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("# the first\n{}# the second\n", section(&bob)));
    }

    #[test]
    fn a_layout_of_ones_own_is_understood_or_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        let key = || SecretKey::generate().public_key();
        let inline = format!("bob = {{ curve = '{}' }}\n[ada]\ncurve = '{}'\nread = [\n'x',\n]\n", key(), key());
        fs::write(&path, inline).unwrap();
        assert!(remove(&path, "bob").unwrap());
        assert_eq!(names(&path), ["ada"]);
        assert!(remove(&path, "ada").unwrap());
        assert!(names(&path).is_empty());
    }

    #[test]
    fn a_file_that_is_broken_or_missing_is_not_touched() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        assert!(remove(&path, "ada").is_err() && !path.exists());
        fs::write(&path, "[ada").unwrap();
        assert!(add(&path, user("bob")).is_err() && remove(&path, "ada").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "[ada");
    }

    #[test]
    fn writers_at_the_same_time_lose_no_user() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let path = &path;
                scope.spawn(move || (0..10).for_each(|n| add(path, user(&format!("u{writer}-{n}"))).unwrap()));
            }
        });
        assert_eq!(names(&path).len(), 40);
    }

    #[test]
    fn a_secret_replaces_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        write_secret(&path, "one").unwrap();
        assert_eq!(write_secret(&path, "two").unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
    }
}
