//! `spindle user` and `spindle keygen`: the file of users, and keys of CURVE.
//!
//! No password is an argument, since other users of the host see arguments. It is asked for on the terminal, without
//! showing it, or comes from standard input.

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use serde_json::{Value, json};

use super::CommandError;
use super::show::Format;
use crate::security::limits::PASSWORD_BYTES_MAX;
use crate::security::user_file;
use crate::security::users::{UserList, check_name};
use crate::security::{Access, HashedPassword, Permissions, Prefixes, User};
use crate::zmtp::{PublicKey, SecretKey};

/// A command about users.
#[derive(Debug, Subcommand)]
pub(super) enum UserCommand {
    /// Add a user, with a password that is asked for, or with a key; the server notices it within a second
    Add(Box<UserAdd>),
    /// Print the users and what they may do
    List(UserListing),
    /// Remove a user; the server cuts its connections within a second
    Remove(UserRemove),
}

/// The file.
#[derive(Debug, Args)]
struct UsersFile {
    /// File of users, as that of `spindle serve --users`
    #[arg(long, value_name = "FILE", env = "SPINDLE_USERS")]
    users: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct UserAdd {
    /// Name of the user: 1 to 64 bytes without white space
    name: String,
    #[command(flatten)]
    file: UsersFile,
    /// Read tables whose names begin so; "" for all; may be given several times
    #[arg(long, value_name = "PREFIX", num_args = 1..)]
    read: Vec<String>,
    /// Read and change tables whose names begin so
    #[arg(long, value_name = "PREFIX", num_args = 1..)]
    write: Vec<String>,
    /// Read, change, create and delete tables whose names begin so
    #[arg(long, value_name = "PREFIX", num_args = 1..)]
    own: Vec<String>,
    /// Do everything: all tables and queues, statistics, the end of the server
    #[arg(long)]
    admin: bool,
    /// Use the queue of tasks
    #[arg(long, value_name = "read|write|admin")]
    tasks: Option<Level>,
    /// Look into queues of jobs whose names begin so
    #[arg(long, value_name = "PREFIX", num_args = 1..)]
    jobs_read: Vec<String>,
    /// Add, get and finish jobs in queues whose names begin so
    #[arg(long, value_name = "PREFIX", num_args = 1..)]
    jobs_write: Vec<String>,
    /// Use the events
    #[arg(long, value_name = "read|write|admin")]
    events: Option<Level>,
    /// Public key of the user, as `spindle keygen` prints it; without --password-stdin it then has no password
    #[arg(long, value_name = "PUBLIC-KEY", allow_hyphen_values = true)]
    curve: Option<PublicKey>,
    /// Read the password from standard input, up to the end of its line
    #[arg(long)]
    password_stdin: bool,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct UserListing {
    #[command(flatten)]
    file: UsersFile,
    /// Print JSON, one line for each user
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct UserRemove {
    /// Name of the user
    name: String,
    #[command(flatten)]
    file: UsersFile,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct KeygenArguments {
    /// File for the secret key, readable for its owner alone; it must not be there yet
    #[arg(value_name = "FILE")]
    to: PathBuf,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// A word of the flags.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Level {
    Read,
    Write,
    Admin,
}

impl From<Level> for Access {
    fn from(level: Level) -> Self {
        match level {
            Level::Read => Self::Read,
            Level::Write => Self::Write,
            Level::Admin => Self::Admin,
        }
    }
}

/// Carries out the command.
///
/// # Errors
/// [`CommandError`] if the file cannot be changed. It is as it was then.
pub(super) fn run(command: UserCommand, out: &mut impl Write) -> Result<(), CommandError> {
    match command {
        UserCommand::Add(arguments) => add(*arguments, out),
        UserCommand::List(arguments) => list(&arguments, out),
        UserCommand::Remove(arguments) => remove(&arguments, out),
    }
}

fn add(arguments: UserAdd, out: &mut impl Write) -> Result<(), CommandError> {
    check_name(&arguments.name).map_err(CommandError::Usage)?;
    let permissions = arguments.permissions();
    let password = match (arguments.password_stdin, arguments.curve) {
        (true, _) => Some(read_line(&mut io::stdin().lock())?),
        (false, Some(_)) => None,
        (false, None) => Some(ask(&arguments.name)?),
    };
    let hash = password.map(|password| HashedPassword::of(&password)).transpose();
    let password = hash.map_err(|why| CommandError::Usage(why.to_owned()))?;
    let user = User { name: arguments.name, password, curve: arguments.curve, permissions };
    let shown = described(&user);
    user_file::add(&arguments.file.users, user).map_err(CommandError::Failed)?;
    Format::of(arguments.json).print(out, "OK\n", &shown)
}

impl UserAdd {
    fn permissions(&self) -> Permissions {
        let granted = |lists: &[(Access, &Vec<String>)]| {
            let mut prefixes = Prefixes::default();
            for (access, list) in lists {
                list.iter().for_each(|prefix| prefixes.grant(*access, prefix.as_bytes()));
            }
            prefixes
        };
        Permissions {
            admin: self.admin,
            tables: granted(&[(Access::Read, &self.read), (Access::Write, &self.write), (Access::Admin, &self.own)]),
            tasks: self.tasks.map(Access::from),
            jobs: granted(&[(Access::Read, &self.jobs_read), (Access::Write, &self.jobs_write)]),
            events: self.events.map(Access::from),
        }
    }
}

fn list(arguments: &UserListing, out: &mut impl Write) -> Result<(), CommandError> {
    let users = UserList::read(&arguments.file.users).map_err(CommandError::Failed)?;
    let format = Format::of(arguments.json);
    let users = users.sorted().into_iter();
    format.print_all(out, users.map(|user| format.answer(|| line(user), || described(user))))
}

fn remove(arguments: &UserRemove, out: &mut impl Write) -> Result<(), CommandError> {
    let file = &arguments.file.users;
    if user_file::remove(file, &arguments.name).map_err(CommandError::Failed)? {
        Format::of(arguments.json).done(out)
    } else {
        Err(CommandError::NotFound(format!("{}: there is no user {:?}", file.display(), arguments.name)))
    }
}

/// Makes a key, and prints its public key.
///
/// # Errors
/// [`CommandError::Failed`] if the file is there, or cannot be written.
pub(super) fn keygen(arguments: &KeygenArguments, out: &mut impl Write) -> Result<(), CommandError> {
    let key = SecretKey::generate();
    let failed = |error: io::Error| {
        let why = match error.kind() {
            io::ErrorKind::AlreadyExists => {
                "it is there already, and no key is overwritten: name another file".to_owned()
            }
            _ => error.to_string(),
        };
        CommandError::Failed(format!("{}: {why}", arguments.to.display()))
    };
    user_file::write_secret(&arguments.to, &(key.to_secret_text() + "\n")).map_err(failed)?;
    let public = key.public_key().to_string();
    Format::of(arguments.json).print(out, &format!("{public}\n"), &json!({ "public_key": public }))
}

/// What a user is known by, and may do: no hash is shown.
fn described(user: &User) -> Value {
    let permissions = &user.permissions;
    let list = |prefixes: &Prefixes, access| {
        prefixes.granted(access).map(|prefix| String::from_utf8_lossy(prefix).into_owned()).collect::<Vec<_>>()
    };
    json!({
        "name": user.name,
        "password": user.password.is_some(),
        "curve": user.curve.map(|key| key.to_string()),
        "admin": permissions.admin,
        "read": list(&permissions.tables, Access::Read),
        "write": list(&permissions.tables, Access::Write),
        "own": list(&permissions.tables, Access::Admin),
        "tasks": permissions.tasks.map(Access::word),
        "jobs_read": list(&permissions.jobs, Access::Read),
        "jobs_write": list(&permissions.jobs, Access::Write),
        "events": permissions.events.map(Access::word),
    })
}

/// A user on one line: the name, then each key of the file that says something.
fn line(user: &User) -> String {
    let mut text = user.name.clone();
    if let Value::Object(members) = described(user) {
        for (key, value) in &members {
            match value {
                Value::Bool(true) => text.push_str(&format!("  {key}")),
                Value::String(value) if key != "name" => text.push_str(&format!("  {key} {value}")),
                Value::Array(list) if !list.is_empty() => {
                    text.push_str(&format!("  {key} {}", Value::Array(list.clone())));
                }
                _ => {}
            }
        }
    }
    text + "\n"
}

/// A password up to the end of its line.
fn read_line(input: &mut impl BufRead) -> Result<String, CommandError> {
    let mut bytes = Vec::new();
    let failed = |why: String| CommandError::Failed(format!("cannot read the password: {why}"));
    let most = PASSWORD_BYTES_MAX as u64 + 3;
    input.take(most).read_until(b'\n', &mut bytes).map_err(|error| failed(error.to_string()))?;
    let line = bytes.strip_suffix(b"\n").map_or(&*bytes, |line| line.strip_suffix(b"\r").unwrap_or(line));
    String::from_utf8(line.to_vec()).map_err(|_| failed("it is not UTF-8".to_owned()))
}

/// Asks twice on the terminal, which does not show what is typed.
fn ask(name: &str) -> Result<String, CommandError> {
    let input = io::stdin();
    if !input.is_terminal() {
        let what = "there is no terminal to ask for a password on: give --password-stdin, or --curve PUBLIC-KEY";
        return Err(CommandError::Usage(what.to_owned()));
    }
    let shown = tcgetattr(&input).map_err(|error| CommandError::Failed(format!("the terminal: {error}")))?;
    let mut hidden = shown.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    hidden.local_modes.insert(LocalModes::ECHONL);
    let set = |modes| tcsetattr(&input, OptionalActions::Flush, modes);
    set(&hidden).map_err(|error| CommandError::Failed(format!("the terminal: {error}")))?;
    let asked: Result<_, CommandError> = (|| {
        eprint!("Password of {name}: ");
        let first = read_line(&mut input.lock())?;
        eprint!("Once more: ");
        Ok((first, read_line(&mut input.lock())?))
    })();
    // If the terminal has gone, nothing can be shown on it.
    let _gone = set(&shown);
    let (first, second) = asked?;
    if first == second { Ok(first) } else { Err(CommandError::Failed("the two passwords differ".to_owned())) }
}

/// The secret key in a file that `spindle keygen` has written.
///
/// # Errors
/// One line that names the file. It shows nothing of the key.
pub(super) fn secret_key(path: &Path) -> Result<SecretKey, String> {
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    // A key, and the ends of lines around it.
    let read = file.take(128).read_to_string(&mut text);
    let key = read.ok().and_then(|_| text.trim().parse().ok());
    key.ok_or_else(|| format!("{}: this is no secret key, as `spindle keygen FILE` writes it", path.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;

    #[test]
    fn a_password_is_one_line_without_its_end() {
        let read = |bytes: &[u8]| read_line(&mut &*bytes);
        for bytes in [&b"heron"[..], b"heron\n", b"heron\r\n", b"heron\nmore"] {
            assert_eq!(read(bytes).unwrap(), "heron");
        }
        assert_eq!(read(b" he ron ").unwrap(), " he ron ");
        assert!(read(b"\xff\n").is_err());
        let long = read(&[b'x'; 1_000]).unwrap();
        assert!(HashedPassword::of(&long).is_err(), "a long one is not cut to one that is taken");
    }

    #[test]
    fn a_line_shows_what_a_user_may_do_and_no_hash() {
        let password = HashedPassword::of("heron").unwrap();
        let hash = password.text().to_owned();
        let mut permissions = Permissions { tasks: Some(Access::Write), ..Permissions::default() };
        permissions.tables.grant(Access::Read, b"eu-");
        let user = User { name: "ada".to_owned(), password: Some(password), curve: None, permissions };
        assert_eq!(line(&user), "ada  password  read [\"eu-\"]  tasks write\n");
        assert!(!described(&user).to_string().contains(&hash));
    }

    #[test]
    fn a_key_may_begin_with_a_dash() {
        #[derive(clap::Parser)]
        struct Parsed {
            #[command(flatten)]
            add: UserAdd,
        }
        let key = format!("-{}", "0".repeat(39));
        let typed = ["add", "ada", "--users", "u", "--curve", &key, "--admin"];
        let parsed = <Parsed as clap::Parser>::try_parse_from(typed).unwrap().add;
        assert_eq!((parsed.curve.unwrap().to_string(), parsed.admin), (key, true));
        assert!(
            <Parsed as clap::Parser>::try_parse_from(["add", "ada", "--users", "u", "--curve", "--admin"]).is_err()
        );
    }

    #[test]
    fn a_key_that_was_made_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let mut out = Vec::new();
        keygen(&KeygenArguments { to: path.clone(), json: false }, &mut out).unwrap();
        let key = secret_key(&path).unwrap();
        assert_eq!(String::from_utf8(out).unwrap().trim(), key.public_key().to_string());
        assert!(keygen(&KeygenArguments { to: path.clone(), json: false }, &mut Vec::new()).is_err());
        std::fs::write(&path, "a secret that is no key").unwrap();
        assert!(!secret_key(&path).unwrap_err().contains("a secret"));
        assert!(secret_key(Path::new("/dev/zero")).is_err());
    }
}
