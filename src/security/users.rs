//! The file of `--users`: TOML with a table for each user.
//!
//! ```text
//! [ada]                                    the name: 1–64 bytes without white space
//! password = "$argon2id$v=19$m=19456…"     a hash; and/or
//! curve = "Yne@$w-vo<fVvi]a<NY6T1ed…"      a public key of CURVE; and/or
//! certificate = "9f86d081884c7d659a2f…"    a certificate of TLS: its SHA-256, 64 hexadecimal digits
//! admin = true                             everything; otherwise:
//! read = ["eu-"]                           tables by the beginnings of their names
//! write = ["eu-orders"]                    as read, and changes of elements
//! own = ["eu-mine"]                        as write, and to create and delete the tables
//! tasks = "write"                          the task queue `default`: read, write or admin
//! tasks-read = ["mail"]                    task queues, by the beginnings of their names
//! tasks-write = [""]
//! jobs-read = [""]                         queues of jobs, by the beginnings of their names
//! jobs-write = ["mail"]
//! events = "read"
//! ```
//! The keys are the flags of `spindle user add`. Every key and value is checked, and an error names the line.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use toml::de::{DeTable, DeValue};

use super::fingerprint::Fingerprint;
use super::limits::{PREFIX_BYTES_MAX, PREFIXES_MAX, USER_NAME_BYTES_MAX, USERS_FILE_BYTES_MAX, USERS_MAX};
use super::password::HashedPassword;
use super::permissions::{Access, Permissions, Prefixes};
use crate::zmtp::PublicKey;

/// The keys of a user.
const KEYS: [&str; 13] = [
    "password",
    "curve",
    "certificate",
    "admin",
    "read",
    "write",
    "own",
    "tasks",
    "tasks-read",
    "tasks-write",
    "jobs-read",
    "jobs-write",
    "events",
];
/// The bit of a file's mode that lets others than its owner and its group read it.
const READ_BY_OTHERS: u32 = 0o004;
/// Letters in which a typed name may differ from the name that is suggested for it.
const SLIPS_MAX: usize = 2;

/// A user: how it is known, and what it may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The name, of at most 64 bytes.
    pub name: String,
    /// The hash of its password, if it has one.
    pub password: Option<HashedPassword>,
    /// Its public key, if it has one.
    pub curve: Option<PublicKey>,
    /// Its certificate for handshakes of TLS, if it has one.
    pub certificate: Option<Fingerprint>,
    /// What it may do.
    pub permissions: Permissions,
}

impl User {
    /// Whether anybody can prove to be this user.
    #[must_use]
    pub fn has_proof(&self) -> bool {
        self.password.is_some() || self.curve.is_some() || self.certificate.is_some()
    }
}

/// All users of a file, by name, by key and by certificate.
#[derive(Clone, Debug, Default)]
pub struct UserList {
    by_name: HashMap<String, Arc<User>>,
    /// The names of the users with a key.
    by_key: HashMap<PublicKey, Arc<User>>,
    /// The names of the users with a certificate.
    by_certificate: HashMap<Fingerprint, Arc<User>>,
}

impl UserList {
    /// The user of a name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Arc<User>> {
        self.by_name.get(name)
    }

    /// The user of a public key.
    #[must_use]
    pub fn with_key(&self, key: &PublicKey) -> Option<&Arc<User>> {
        self.by_key.get(key)
    }

    /// The user of a certificate.
    #[must_use]
    pub fn with_certificate(&self, certificate: &Fingerprint) -> Option<&Arc<User>> {
        self.by_certificate.get(certificate)
    }

    /// All users, by their names.
    #[must_use]
    pub fn sorted(&self) -> Vec<&User> {
        let mut users: Vec<&User> = self.by_name.values().map(|user| &**user).collect();
        users.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        users
    }

    /// Adds a user.
    ///
    /// # Errors
    /// If its name, its key or its certificate is another's, or there are too many users.
    pub fn add(&mut self, user: User) -> Result<(), String> {
        if self.by_name.contains_key(&user.name) {
            return Err(format!("there is a user {:?} already", user.name));
        }
        if let Some(other) = user.curve.as_ref().and_then(|key| self.by_key.get(key)) {
            return Err(format!("the key of {:?} is that of {:?} too", user.name, other.name));
        }
        if let Some(other) = user.certificate.as_ref().and_then(|own| self.by_certificate.get(own)) {
            return Err(format!("the certificate of {:?} is that of {:?} too", user.name, other.name));
        }
        if self.by_name.len() >= USERS_MAX {
            return Err(format!("there are more than {USERS_MAX} users"));
        }
        let user = Arc::new(user);
        if let Some(key) = user.curve {
            self.by_key.insert(key, Arc::clone(&user));
        }
        if let Some(certificate) = user.certificate {
            self.by_certificate.insert(certificate, Arc::clone(&user));
        }
        self.by_name.insert(user.name.clone(), user);
        Ok(())
    }

    /// Shares the users with an earlier list that are the same there. Connections of a user that is not the same any
    /// more end.
    pub(super) fn keep_unchanged(&mut self, earlier: &Self) {
        for user in self.by_name.values_mut() {
            if let Some(same) = earlier.named(&user.name).filter(|same| *same == user) {
                *user = Arc::clone(same);
            }
        }
        let Self { by_name, by_key, by_certificate } = self;
        by_key.values_mut().chain(by_certificate.values_mut()).for_each(|user| {
            if let Some(same) = by_name.get(&user.name) {
                *user = Arc::clone(same);
            }
        });
    }

    /// Reads the file.
    ///
    /// # Errors
    /// One line that names the file, the line in the file, and the mistake. It shows no hash.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = text(path).map_err(|why| format!("{}: {why}", path.display()))?;
        Self::parse(&text).map_err(|(line, why)| format!("{}:{line}: {why}", path.display()))
    }

    /// Reads the text of the file. An error has its line, from 1.
    ///
    /// # Errors
    /// What is wrong, with its line.
    pub fn parse(text: &str) -> Result<Self, (usize, String)> {
        let line = |at: usize| 1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count();
        let table = DeTable::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            (line(at), format!("this is no TOML: {}", error.message()))
        })?;
        let mut entries: Vec<_> = table.get_ref().iter().collect();
        entries.sort_by_key(|(name, _)| name.span().start);
        let mut users = Self::default();
        for (name, value) in entries {
            let at = name.span().start;
            let DeValue::Table(settings) = value.get_ref() else {
                return Err((line(at), format!("{:?} is outside of a user: begin one with [NAME]", name.get_ref())));
            };
            let user = user(name.get_ref(), settings).map_err(|(inside, why)| (line(inside.unwrap_or(at)), why))?;
            users.add(user).map_err(|why| (line(at), why))?;
        }
        Ok(users)
    }

    /// The name in the line that begins a user.
    pub(super) fn parse_header(line: &str) -> Option<String> {
        let table = DeTable::parse(line).ok()?;
        table.get_ref().keys().next().map(|name| name.get_ref().to_string())
    }
}

/// Whether others than its owner and its group can read the file.
#[must_use]
pub fn is_read_by_others(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.mode() & READ_BY_OTHERS != 0)
}

fn text(path: &Path) -> Result<String, String> {
    let unreadable = |error| format!("it cannot be read: {error}");
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(USERS_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > USERS_FILE_BYTES_MAX {
        return Err(format!("it has more than {USERS_FILE_BYTES_MAX} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())
}

/// Checks a name.
///
/// # Errors
/// The mistake in it.
pub fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > USER_NAME_BYTES_MAX {
        return Err(format!("the name of a user has 1 to {USER_NAME_BYTES_MAX} bytes"));
    }
    // `Basic` of HTTP ends the name at a colon, and a line of AUTH at white space.
    if name.contains(|letter: char| letter.is_whitespace() || letter.is_control() || letter == ':') {
        return Err(format!("{name:?}: the name of a user has no white space and no colon"));
    }
    Ok(())
}

/// A user from its settings. An error may have an offset in the text.
fn user(name: &str, settings: &DeTable<'_>) -> Result<User, (Option<usize>, String)> {
    check_name(name).map_err(|why| (None, why))?;
    let permissions = Permissions::default();
    let mut user = User { name: name.to_owned(), password: None, curve: None, certificate: None, permissions };
    for (key, value) in settings {
        let wrong = |why: String| (Some(key.span().start), why);
        set(&mut user, key.get_ref(), value.get_ref()).map_err(wrong)?;
    }
    if !user.has_proof() {
        let why = format!("{name:?} has no password, no curve key and no certificate, so nobody could be this user");
        return Err((None, why));
    }
    Ok(user)
}

fn set(user: &mut User, key: &str, value: &DeValue<'_>) -> Result<(), String> {
    let permissions = &mut user.permissions;
    match key {
        "password" => {
            let hash = HashedPassword::parse(string(value).ok_or("password: it takes a string")?);
            user.password = Some(hash.map_err(|why| format!("password: {why}"))?);
        }
        "curve" => {
            let key = string(value).and_then(|text| text.parse().ok());
            user.curve =
                Some(key.ok_or("curve: it takes a public key of 40 characters, as `spindle keygen` prints it")?);
        }
        "certificate" => {
            let certificate = string(value).and_then(Fingerprint::parse);
            let digits =
                "certificate: it takes 64 hexadecimal digits, as `openssl x509 -sha256 -fingerprint` prints it";
            user.certificate = Some(certificate.ok_or(digits)?);
        }
        "admin" => {
            let DeValue::Boolean(admin) = value else { return Err("admin: it takes true or false".to_owned()) };
            permissions.admin = *admin;
        }
        "read" => grant(&mut permissions.tables, Access::Read, key, value)?,
        "write" => grant(&mut permissions.tables, Access::Write, key, value)?,
        "own" => grant(&mut permissions.tables, Access::Admin, key, value)?,
        "tasks-read" => grant(&mut permissions.task_queues, Access::Read, key, value)?,
        "tasks-write" => grant(&mut permissions.task_queues, Access::Write, key, value)?,
        "jobs-read" => grant(&mut permissions.jobs, Access::Read, key, value)?,
        "jobs-write" => grant(&mut permissions.jobs, Access::Write, key, value)?,
        "tasks" => permissions.tasks = Some(access(key, value)?),
        "events" => permissions.events = Some(access(key, value)?),
        unknown => return Err(unknown_key(unknown)),
    }
    Ok(())
}

fn unknown_key(unknown: &str) -> String {
    let similar = KEYS.into_iter().min_by_key(|key| slips(unknown, key)).filter(|key| slips(unknown, key) <= SLIPS_MAX);
    match similar {
        Some(key) => format!("there is no key {unknown:?}: did you mean {key}?"),
        None => format!("there is no key {unknown:?}: the keys are {}", KEYS.join(", ")),
    }
}

/// How many letters must be added, left out or replaced to make one name of the other (Levenshtein's distance).
fn slips(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.chars().count()).collect();
    for (line, letter) in one.chars().enumerate() {
        let mut left = line + 1;
        let mut next = vec![left];
        for (pair, known) in row.windows(2).zip(other.chars()) {
            let (before, above) = (pair.first().copied().unwrap_or_default(), pair.last().copied().unwrap_or_default());
            left = (before + usize::from(letter != known)).min(above + 1).min(left + 1);
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

fn string<'v>(value: &'v DeValue<'_>) -> Option<&'v str> {
    if let DeValue::String(text) = value { Some(text) } else { None }
}

fn access(key: &str, value: &DeValue<'_>) -> Result<Access, String> {
    let access = string(value).and_then(Access::of_word);
    access.ok_or_else(|| format!("{key}: it takes \"read\", \"write\" or \"admin\""))
}

fn grant(prefixes: &mut Prefixes, access: Access, key: &str, value: &DeValue<'_>) -> Result<(), String> {
    let shape = || format!("{key}: it takes an array of strings, the beginnings of names");
    let DeValue::Array(list) = value else { return Err(shape()) };
    if list.len() > PREFIXES_MAX {
        return Err(format!("{key}: it has more than {PREFIXES_MAX} prefixes"));
    }
    for prefix in list {
        let prefix = string(prefix.get_ref()).ok_or_else(shape)?;
        if prefix.len() > PREFIX_BYTES_MAX {
            return Err(format!("{key}: a prefix has more than {PREFIX_BYTES_MAX} bytes"));
        }
        // A name is granted without the NUL at its end, and a topic is followed by one.
        if prefix.contains('\0') {
            return Err(format!("{key}: a prefix has a NUL, and names are granted without the one at their ends"));
        }
        prefixes.grant(access, prefix.as_bytes());
    }
    Ok(())
}

/// The text of a user in the file.
#[must_use]
pub fn section(user: &User) -> String {
    let mut text = format!("[{}]\n", quoted(&user.name));
    let mut line = |key: &str, value: String| writeln!(text, "{key} = {value}").expect("a string takes any text");
    if let Some(password) = &user.password {
        line("password", quoted(password.text()));
    }
    if let Some(curve) = &user.curve {
        line("curve", quoted(&curve.to_string()));
    }
    if let Some(certificate) = &user.certificate {
        line("certificate", quoted(&certificate.to_string()));
    }
    let permissions = &user.permissions;
    if permissions.admin {
        line("admin", "true".to_owned());
    }
    let lists = [
        ("read", &permissions.tables, Access::Read),
        ("write", &permissions.tables, Access::Write),
        ("own", &permissions.tables, Access::Admin),
        ("tasks-read", &permissions.task_queues, Access::Read),
        ("tasks-write", &permissions.task_queues, Access::Write),
        ("jobs-read", &permissions.jobs, Access::Read),
        ("jobs-write", &permissions.jobs, Access::Write),
    ];
    for (key, prefixes, access) in lists {
        let list: Vec<String> =
            prefixes.granted(access).map(|prefix| quoted(&String::from_utf8_lossy(prefix))).collect();
        if !list.is_empty() {
            line(key, format!("[{}]", list.join(", ")));
        }
    }
    for (key, access) in [("tasks", permissions.tasks), ("events", permissions.events)] {
        if let Some(access) = access {
            line(key, quoted(access.word()));
        }
    }
    text
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter.is_control() => {
                write!(quoted, "\\U{:08X}", u32::from(letter)).expect("a string takes any text");
            }
            letter => quoted.push(letter),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests;
