//! Changes the file of users: one writer at a time, and a reader sees the file before or after a change.
//!
//! ```text
//! lock FILE ─► still FILE? ─► read, check ─► FILE.new: write, sync ─► rename over FILE ─► sync the folder
//!                └ another writer has replaced it: again
//! ```
//! The new file has the owner, the group and the mode of the one before, at most 0640: a server that runs as another
//! user of the host can still read it. If they cannot be kept, the file is as it was. The new text is checked first, so
//! that no edit breaks a file.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use super::User;
use super::users::{UserList, section};

/// Of a new file: readable and writable for its owner alone.
const MODE: u32 = 0o600;
/// What a file keeps of its mode.
const MODE_MAX: u32 = 0o640;
/// The bit that lets the group read.
const READ_BY_GROUP: u32 = 0o040;
/// The bit that lets all others read.
const READ_BY_ALL: u32 = 0o004;

/// A warning beside the result of a change: it names who may not be able to read the file.
pub type Warning = Option<String>;

/// Adds a user to the file, which is made if there is none.
///
/// # Errors
/// One line that says what is wrong. The file is as it was then.
pub fn add(path: &Path, user: User) -> Result<Warning, String> {
    let text = section(&user);
    edit(path, true, |list, before| {
        let mut list = list.clone();
        list.add(user.clone())?;
        let gap = if before.is_empty() || before.ends_with("\n\n") { "" } else { "\n" };
        let end = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
        Ok(format!("{before}{end}{gap}{text}"))
    })
}

/// Why a user was not changed.
#[derive(Debug, PartialEq, Eq)]
pub enum NotChanged {
    /// There is no user of this name.
    NoUser,
    /// One line that says what is wrong.
    Failed(String),
}

/// Removes a user from the file.
///
/// # Errors
/// [`NotChanged`]. The file is as it was then.
pub fn remove(path: &Path, name: &str) -> Result<Warning, NotChanged> {
    replace_user(path, name, |_| Ok(None))
}

/// Changes a user of the file.
///
/// # Errors
/// [`NotChanged`], also if `change` fails. The file is as it was then.
pub fn change(path: &Path, name: &str, change: impl Fn(User) -> Result<User, String>) -> Result<Warning, NotChanged> {
    replace_user(path, name, |user| change(user.clone()).map(Some))
}

fn replace_user(
    path: &Path,
    name: &str,
    change: impl Fn(&User) -> Result<Option<User>, String>,
) -> Result<Warning, NotChanged> {
    let mut is_there = false;
    let warning = edit(path, false, |list, before| {
        let user = list.named(name);
        is_there = user.is_some();
        user.map_or_else(|| Ok(before.to_owned()), |user| Ok(with(list, before, name, change(user)?.as_ref())))
    });
    let warning = warning.map_err(NotChanged::Failed)?;
    if is_there { Ok(warning) } else { Err(NotChanged::NoUser) }
}

/// The text with another section for a user, or none. Comments stay, but for those of a user who goes. If the text is
/// laid out in a way that this function does not understand, all users are written anew.
fn with(list: &UserList, before: &str, name: &str, new: Option<&User>) -> String {
    let mut inside = false;
    let mut text = String::new();
    for line in before.split_inclusive('\n') {
        let is_header = line.trim_start().starts_with('[');
        if is_header {
            inside = UserList::parse_header(line).as_deref() == Some(name);
            if let (true, Some(new)) = (inside, new) {
                text.push_str(&section(new));
            }
        }
        let is_remark = new.is_some() && (line.trim().is_empty() || line.trim_start().starts_with('#'));
        if !inside || (is_remark && !is_header) {
            text.push_str(line);
        }
    }
    let mut users: Vec<&User> = list.sorted().into_iter().filter(|user| user.name != name).chain(new).collect();
    users.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    match UserList::parse(&text) {
        Ok(parsed) if parsed.sorted() == users => text,
        _ => users.iter().map(|user| section(user) + "\n").collect(),
    }
}

/// Replaces the text of the file by what `change` makes of it.
fn edit(
    path: &Path,
    makes_file: bool,
    mut change: impl FnMut(&UserList, &str) -> Result<String, String>,
) -> Result<Warning, String> {
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let locked = lock(path, makes_file).map_err(failed)?;
    let list = UserList::read(path)?;
    let before = fs::read_to_string(path).map_err(failed)?;
    let after = change(&list, &before).map_err(|why| format!("{}: {why}", path.display()))?;
    if after == before {
        return Ok(None);
    }
    UserList::parse(&after).map_err(|(line, why)| format!("{}: line {line} would be wrong: {why}", path.display()))?;
    let readers = locked.metadata().map_err(failed)?;
    replace(path, &locked, after.as_bytes()).map_err(failed)?;
    Ok(warning(&readers).map(|who| format!("{}: {who}", path.display())))
}

/// Who may need the file and cannot read it, as far as the file shows.
fn warning(before: &fs::Metadata) -> Warning {
    const CHECK: &str =
        "if the server is one of them, it keeps the users as they were: chgrp it to its group, and chmod 640";
    if before.mode() & READ_BY_ALL != 0 {
        return Some(format!("others than its owner and its group can read it no more: {CHECK}"));
    }
    let has_group_of_its_own = before.uid() == 0 && before.gid() != 0;
    (has_group_of_its_own && before.mode() & READ_BY_GROUP == 0)
        .then(|| format!("its group {} cannot read it: {CHECK}", before.gid()))
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
        let kept = fchown(&file, Some(owner.uid()), Some(owner.gid()));
        kept.map_err(|error| io::Error::new(error.kind(), format!("its owner and group cannot be kept: {error}")))?;
    }
    // After the owner: no other group may read it meanwhile.
    file.set_permissions(Permissions::from_mode(owner.mode() & MODE_MAX))?;
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

    use super::*;
    use crate::zmtp::SecretKey;

    fn user(name: &str) -> User {
        let curve = Some(SecretKey::generate().public_key());
        let permissions = crate::security::Permissions::default();
        User { name: name.to_owned(), password: None, curve, certificate: None, permissions }
    }

    /// Writes a file by hand, with the mode of one that a command has made.
    fn write_by_hand(path: &Path, text: &str) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, Permissions::from_mode(MODE)).unwrap();
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
        ["b.c", "ä\"d"].iter().for_each(|name| assert_eq!(remove(&path, name), Ok(None)));
        assert_eq!(remove(&path, "b"), Err(NotChanged::NoUser));
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
        write_by_hand(&path, &text);
        assert!(add(&path, user("b o")).unwrap_err().contains("no white space"));
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        assert_eq!(remove(&path, "bo"), Ok(None));
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("# the first\n{}# the second\n", section(&bob)));
    }

    #[test]
    fn a_layout_of_ones_own_is_understood_or_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        let key = || SecretKey::generate().public_key();
        let inline = format!("bob = {{ curve = '{}' }}\n[ada]\ncurve = '{}'\nread = [\n'x',\n]\n", key(), key());
        write_by_hand(&path, &inline);
        let renewed = change(&path, "bob", |user| Ok(User { curve: Some(key()), ..user }));
        assert_eq!((renewed, names(&path)), (Ok(None), vec!["ada".to_owned(), "bob".to_owned()]));
        assert_eq!(remove(&path, "bob"), Ok(None));
        assert_eq!(names(&path), ["ada"]);
        assert_eq!(remove(&path, "ada"), Ok(None));
        assert!(names(&path).is_empty());
    }

    #[test]
    fn a_user_changes_in_its_place_and_comments_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        let (ada, bob) = (user("ada"), user("bob"));
        write_by_hand(&path, &format!("# all\n{}# her laptop\n\n# robots\n{}", section(&ada), section(&bob)));
        let tasks = |user: User| User {
            permissions: crate::security::Permissions { admin: true, ..user.permissions.clone() },
            ..user
        };
        assert_eq!(change(&path, "ada", |user| Ok(tasks(user))), Ok(None));
        let expected = format!("# all\n{}# her laptop\n\n# robots\n{}", section(&tasks(ada)), section(&bob));
        assert_eq!(fs::read_to_string(&path).unwrap(), expected);
        assert_eq!(change(&path, "eve", Ok), Err(NotChanged::NoUser));
        let both = |_: User| Ok(User { name: "ada".to_owned(), ..bob.clone() });
        let twice = change(&path, "ada", both);
        assert!(matches!(&twice, Err(NotChanged::Failed(why)) if why.contains("the key of")), "{twice:?}");
        assert_eq!(
            change(&path, "ada", |_| Err("no".to_owned())),
            Err(NotChanged::Failed(format!("{}: no", path.display())))
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), expected, "as it was");
    }

    /// A server that runs as another user read the file no more, and kept the users that it knew.
    #[test]
    fn owner_group_and_mode_stay_and_the_mode_is_0640_at_most() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        add(&path, user("ada")).unwrap();
        // Only root may give it away. Others see that it stays theirs.
        let is_root = std::os::unix::fs::chown(&path, Some(0), Some(2)).is_ok();
        let owner = fs::metadata(&path).map(|file| (file.uid(), file.gid())).unwrap();
        let rows = [(0o600, 0o600, is_root), (0o640, 0o640, false), (0o664, 0o640, true), (0o646, 0o640, true)];
        for (number, (mode, expected, warns)) in rows.into_iter().enumerate() {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let warning = add(&path, user(&format!("user{number}"))).unwrap();
            let after = fs::metadata(&path).unwrap();
            assert_eq!((after.permissions().mode() & 0o777, (after.uid(), after.gid())), (expected, owner), "{mode:o}");
            assert_eq!(warning.is_some(), warns, "{mode:o}: {warning:?}");
        }
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
                scope.spawn(move || (0..10).for_each(|n| _ = add(path, user(&format!("u{writer}-{n}"))).unwrap()));
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
