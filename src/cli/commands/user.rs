//! `spindle user`: the file of users.
//!
//! No password is an argument, since other users of the host see arguments. It is asked for on the terminal, without
//! showing it, or comes from standard input.

mod grants;

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use grants::Grants;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use serde_json::{Value, json};
use signal_hook::low_level::emulate_default_handler;

use crate::cli::CommandError;
use crate::cli::show::Format;
use crate::net::tcp::fingerprint_of_file;
use crate::security::limits::PASSWORD_BYTES_MAX;
use crate::security::user_file::{self, NotChanged, Warning};
use crate::security::users::{UserList, check_name};
use crate::security::{Access, Fingerprint, HashedPassword, Permissions, Prefixes, User};
use crate::threads::signals::Signals;
use crate::zmtp::PublicKey;

/// A command about users.
#[derive(Debug, Subcommand)]
pub(crate) enum UserCommand {
    /// Add a user, with a password that is asked for, a key or a certificate; the server notices it within a second
    Add(Box<UserAdd>),
    /// Print the users and what they may do
    List(UserListing),
    /// Give a user another password, which is asked for; the server cuts its connections within a second
    Passwd(UserPasswd),
    /// Change the rights, the key or the certificate of a user: each flag replaces the right that it names, and a list
    /// without a prefix takes it away
    Edit(Box<UserEdit>),
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
pub(crate) struct UserAdd {
    /// Name of the user: 1 to 64 bytes without white space
    name: String,
    #[command(flatten)]
    file: UsersFile,
    #[command(flatten)]
    grants: Grants,
    /// Public key of the user, as `spindle keygen` prints it; without --password-stdin it then has no password
    #[arg(long, value_name = "PUBLIC-KEY", allow_hyphen_values = true)]
    curve: Option<PublicKey>,
    /// File in PEM with the certificate that the user shows in TLS; without --password-stdin it then has no password
    #[arg(long, value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// Read the password from standard input, up to the end of its line
    #[arg(long)]
    password_stdin: bool,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UserEdit {
    /// Name of the user
    name: String,
    #[command(flatten)]
    file: UsersFile,
    #[command(flatten)]
    grants: Grants,
    /// Another public key of the user, as `spindle keygen` prints it
    #[arg(long, value_name = "PUBLIC-KEY", allow_hyphen_values = true, conflicts_with = "no_curve")]
    curve: Option<PublicKey>,
    /// Take its key from the user, who is known by its password then
    #[arg(long)]
    no_curve: bool,
    /// File in PEM with another certificate of the user
    #[arg(long, value_name = "FILE", conflicts_with = "no_certificate")]
    certificate: Option<PathBuf>,
    /// Take its certificate from the user
    #[arg(long)]
    no_certificate: bool,
    /// Take its password from the user, who is known by its key or its certificate then
    #[arg(long)]
    no_password: bool,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UserPasswd {
    /// Name of the user
    name: String,
    #[command(flatten)]
    file: UsersFile,
    /// Read the password from standard input, up to the end of its line
    #[arg(long)]
    password_stdin: bool,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UserListing {
    #[command(flatten)]
    file: UsersFile,
    /// Print JSON, one line for each user
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UserRemove {
    /// Name of the user
    name: String,
    #[command(flatten)]
    file: UsersFile,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Carries out the command.
///
/// # Errors
/// [`CommandError`] if the file cannot be changed. It is as it was then.
pub(crate) fn run(command: UserCommand, out: &mut impl Write) -> Result<(), CommandError> {
    match command {
        UserCommand::Add(arguments) => add(*arguments, out),
        UserCommand::List(arguments) => list(&arguments, out),
        UserCommand::Passwd(arguments) => passwd(&arguments, out),
        UserCommand::Edit(arguments) => edit(&arguments, out),
        UserCommand::Remove(arguments) => remove(&arguments, out),
    }
}

fn add(arguments: UserAdd, out: &mut impl Write) -> Result<(), CommandError> {
    check_name(&arguments.name).map_err(CommandError::Usage)?;
    if arguments.grants.has_empty_list() {
        return Err(CommandError::Usage("a list of prefixes is empty: give one, or \"\" for all names".to_owned()));
    }
    let (file, name) = (&arguments.file.users, &arguments.name);
    // Nobody is asked for a password that is not taken. A file that is not there yet has no users.
    if file.is_file() && UserList::read(file).is_ok_and(|users| users.named(name).is_some()) {
        let why = format!("{}: there is a user {name:?} already: `spindle user edit` changes it", file.display());
        return Err(CommandError::AlreadyThere(why));
    }
    let permissions = arguments.grants.applied_to(&Permissions::default());
    let certificate = fingerprint(arguments.certificate.as_deref())?;
    let has_proof = arguments.curve.is_some() || certificate.is_some();
    let password = match (arguments.password_stdin, has_proof) {
        (false, true) => None,
        (stdin, _) => Some(new_password(&arguments.name, stdin)?),
    };
    let user = User { name: arguments.name, password, curve: arguments.curve, certificate, permissions };
    let shown = described(&user);
    warn(user_file::add(&arguments.file.users, user).map_err(CommandError::Failed)?);
    Format::of(arguments.json).print(out, "OK\n", &shown)
}

fn passwd(arguments: &UserPasswd, out: &mut impl Write) -> Result<(), CommandError> {
    let (file, name) = (&arguments.file.users, &arguments.name);
    let users = UserList::read(file).map_err(CommandError::Failed)?;
    // Nobody is asked for a password of no user.
    if users.named(name).is_none() {
        return Err(no_user(file, name));
    }
    let password = Some(new_password(name, arguments.password_stdin)?);
    let changed = user_file::change(file, name, |user| Ok(User { password: password.clone(), ..user }));
    done(changed, file, name, arguments.json, out)
}

fn edit(arguments: &UserEdit, out: &mut impl Write) -> Result<(), CommandError> {
    let (file, name) = (&arguments.file.users, &arguments.name);
    let certificate = fingerprint(arguments.certificate.as_deref())?;
    let changed = user_file::change(file, name, |user| {
        let permissions = arguments.grants.applied_to(&user.permissions);
        let password = user.password.filter(|_| !arguments.no_password);
        let curve = arguments.curve.or(user.curve.filter(|_| !arguments.no_curve));
        let certificate = certificate.or(user.certificate.filter(|_| !arguments.no_certificate));
        let user = User { name: user.name, password, curve, certificate, permissions };
        let why = || format!("{name:?} would have no password, key or certificate: `spindle user remove` removes it");
        user.has_proof().then_some(user).ok_or_else(why)
    });
    done(changed, file, name, arguments.json, out)
}

/// That of the certificate in a file, if one is given.
fn fingerprint(file: Option<&Path>) -> Result<Option<Fingerprint>, CommandError> {
    let given = file.map(fingerprint_of_file).transpose();
    given.map_err(|why| CommandError::Failed(format!("--certificate {why}")))
}

/// Prints that a user was changed, or why it was not.
fn done(
    changed: Result<Warning, NotChanged>,
    file: &Path,
    name: &str,
    json: bool,
    out: &mut impl Write,
) -> Result<(), CommandError> {
    match changed {
        Ok(warning) => {
            warn(warning);
            Format::of(json).done(out)
        }
        Err(NotChanged::NoUser) => Err(no_user(file, name)),
        Err(NotChanged::Failed(why)) => Err(CommandError::Failed(why)),
    }
}

fn no_user(file: &Path, name: &str) -> CommandError {
    CommandError::NotFound(format!("{}: there is no user {name:?}", file.display()))
}

/// Says that a server may not be able to read the file that was just written.
fn warn(warning: Warning) {
    if let Some(warning) = warning {
        eprintln!("warning: {warning}");
    }
}

/// The hash of a password that is read from standard input or asked for.
fn new_password(name: &str, from_stdin: bool) -> Result<HashedPassword, CommandError> {
    let password = if from_stdin { read_line(&mut io::stdin().lock())? } else { ask(name)? };
    HashedPassword::of(&password).map_err(|why| CommandError::Usage(why.to_owned()))
}

fn list(arguments: &UserListing, out: &mut impl Write) -> Result<(), CommandError> {
    let users = UserList::read(&arguments.file.users).map_err(CommandError::Failed)?;
    let format = Format::of(arguments.json);
    let users = users.sorted().into_iter();
    format.print_all(out, users.map(|user| format.answer(|| line(user), || described(user))))
}

fn remove(arguments: &UserRemove, out: &mut impl Write) -> Result<(), CommandError> {
    let (file, name) = (&arguments.file.users, &arguments.name);
    done(user_file::remove(file, name), file, name, arguments.json, out)
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
        "certificate": user.certificate.map(|own| own.to_string()),
        "admin": permissions.admin,
        "read": list(&permissions.tables, Access::Read),
        "write": list(&permissions.tables, Access::Write),
        "own": list(&permissions.tables, Access::Admin),
        "tasks": permissions.tasks.map(Access::word),
        "tasks_read": list(&permissions.task_queues, Access::Read),
        "tasks_write": list(&permissions.task_queues, Access::Write),
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

/// Waits until a line was typed, or a signal has come, which stays pending.
fn wait_for_line(signals: &Signals) -> Result<(), CommandError> {
    let input = io::stdin();
    let mut polled = [PollFd::new(&input, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
    poll(&mut polled, None).map_err(|error| CommandError::Failed(format!("the terminal: {error}")))?;
    let [_, came] = &polled;
    if came.revents().is_empty() { Ok(()) } else { Err(CommandError::Failed("interrupted".to_owned())) }
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
    // Ctrl-C must not leave a terminal behind that does not show what is typed.
    let signals = Signals::take_over().map_err(|error| CommandError::Failed(format!("the signals: {error}")))?;
    let set = |modes| tcsetattr(&input, OptionalActions::Flush, modes);
    set(&hidden).map_err(|error| CommandError::Failed(format!("the terminal: {error}")))?;
    let asked: Result<_, CommandError> = (|| {
        eprint!("Password of {name}: ");
        wait_for_line(&signals)?;
        let first = read_line(&mut input.lock())?;
        eprint!("Once more: ");
        wait_for_line(&signals)?;
        Ok((first, read_line(&mut input.lock())?))
    })();
    // If the terminal has gone, nothing can be shown on it.
    let _gone = set(&shown);
    if let Some(signal) = signals.next() {
        // It ends the process, as it would have done at once.
        let _ended = emulate_default_handler(signal.number());
    }
    let (first, second) = asked?;
    if first == second { Ok(first) } else { Err(CommandError::Failed("the two passwords differ".to_owned())) }
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
        let user =
            User { name: "ada".to_owned(), password: Some(password), curve: None, certificate: None, permissions };
        assert_eq!(line(&user), "ada  password  read [\"eu-\"]  tasks write\n");
        assert!(!described(&user).to_string().contains(&hash));
    }

    #[test]
    fn a_flag_replaces_what_it_names_and_others_change_nothing() {
        #[derive(clap::Parser)]
        struct Parsed {
            #[command(flatten)]
            edit: UserEdit,
        }
        let mut before = Permissions { tasks: Some(Access::Write), admin: true, ..Permissions::default() };
        before.tables.grant(Access::Read, b"eu-");
        before.tables.grant(Access::Admin, b"own");
        before.jobs.grant(Access::Write, b"mail");
        let edited = |flags: &[&str]| {
            let typed = [&["edit", "ada", "--users", "u"], flags].concat();
            <Parsed as clap::Parser>::try_parse_from(typed).unwrap().edit.grants.applied_to(&before)
        };
        assert_eq!(edited(&[]), before);
        let shown = |flags: &[&str]| {
            let permissions = edited(flags);
            line(&User { name: "ada".to_owned(), password: None, curve: None, certificate: None, permissions })
        };
        let expected = "ada  jobs_write [\"mail\"]  own [\"own\"]  read [\"us-\",\"\"]  tasks write\n";
        assert_eq!(shown(&["--read", "us-", "", "--admin=false"]), expected);
        let flags = ["--tasks", "none", "--own", "--read", "--jobs-write", "--events", "read", "--admin"];
        assert_eq!(shown(&flags), "ada  admin  events read\n");
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
        assert_eq!((parsed.curve.unwrap().to_string(), parsed.grants.admin), (key, Some(true)));
        assert!(
            <Parsed as clap::Parser>::try_parse_from(["add", "ada", "--users", "u", "--curve", "--admin"]).is_err()
        );
    }
}
