//! `spindle shell`: a prompt that takes the words of all commands, with history and completion.
//!
//! ```text
//! a line ─► words ─► spindle WORDS, in a process of its own, which Ctrl-C ends without the shell
//!    └ Tab: commands and flags, as they are declared
//! ```
//! Without a terminal the lines are a [`script`], which ends with the first that fails.
//!
//! This module carries out no command itself.

mod script;

use std::env;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};

use clap::{Args, Command};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Context, Editor, Helper};
use signal_hook::consts::SIGINT;
use signal_hook::flag;

use script::Script;

use crate::cli::CommandError;
use crate::cli::flags::endpoint::connection;

/// What stands before each line.
const PROMPT: &str = "spindle> ";
/// Lines of the history, in memory and in its file. A line is as long as its user has typed it.
const HISTORY_LINES_MAX: usize = 1_000;
/// The variable by which a command finds the server of the tables.
const CONNECT: &str = "SPINDLE_CONNECT";
/// The name of the program, which may stand before a command.
const PROGRAM: &str = "spindle";

#[derive(Debug, Args)]
pub(crate) struct ShellArguments {
    /// Endpoint of the server for commands about tables, unless a line has its own --connect
    #[arg(long, value_name = "ENDPOINT", value_parser = connection)]
    connect: Option<String>,
}

/// Reads lines and carries them out, until `exit` or the end of the input.
///
/// # Errors
/// [`CommandError::Failed`] if there is nothing to read from, or a line of a script fails.
pub(crate) fn run(arguments: &ShellArguments, mut declared: Command, out: &mut impl Write) -> Result<(), CommandError> {
    let failed = |why: String| CommandError::Failed(why);
    let program = env::current_exe().map_err(|error| failed(format!("cannot find this program: {error}")))?;
    let start = |words: &[String], input: Stdio| {
        let mut command = process::Command::new(&program);
        command.args(words).stdin(input).envs(arguments.connect.iter().map(|endpoint| (CONNECT, endpoint)));
        let status = command.status().map_err(|error| failed(format!("cannot start a command: {error}")))?;
        Ok(status.success())
    };
    if !io::stdin().is_terminal() {
        // The lines of a script are not the input of its commands.
        let script = Script::new(arguments.connect.as_deref(), out, |words| start(words, Stdio::null()));
        return script.run(io::stdin().lock());
    }
    // The terminal sends Ctrl-C to the command and to the shell, which continues.
    flag::register(SIGINT, std::sync::Arc::default()).map_err(|error| failed(error.to_string()))?;
    declared.build();
    let mut editor = editor(declared).map_err(|error| failed(format!("cannot edit lines: {error}")))?;
    let history = history_file();
    if let Some(path) = &history {
        // The first shell finds none.
        let _absent = editor.load_history(path);
    }
    let done = read_lines(&mut editor, |words| start(words, Stdio::inherit()));
    if let Some(path) = &history {
        // A shell without a place for its history is one all the same.
        let _unkept = keep(&mut editor, path);
    }
    done
}

type ShellEditor = Editor<Declared, FileHistory>;

fn editor(declared: Command) -> rustyline::Result<ShellEditor> {
    let config = Config::builder().max_history_size(HISTORY_LINES_MAX)?.completion_type(CompletionType::List);
    // A line that begins with a space is not kept.
    let mut editor = Editor::with_config(config.auto_add_history(true).history_ignore_space(true).build())?;
    editor.set_helper(Some(Declared(declared)));
    Ok(editor)
}

fn read_lines(
    editor: &mut ShellEditor,
    carry_out: impl Fn(&[String]) -> Result<bool, CommandError>,
) -> Result<(), CommandError> {
    loop {
        let line = match editor.readline(PROMPT) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(CommandError::Failed(format!("cannot read a line: {error}"))),
        };
        match ShellLine::read(&line) {
            ShellLine::Empty => {}
            ShellLine::Exit => return Ok(()),
            ShellLine::Command(words) => {
                // The command itself has reported its failure.
                let _is_good = carry_out(&words)?;
            }
            ShellLine::Wrong(why) => crate::log::say(why),
        }
    }
}

/// A line of the shell.
#[derive(Debug, PartialEq, Eq)]
enum ShellLine {
    /// Nothing, or a comment after `#`.
    Empty,
    /// The end of the shell.
    Exit,
    /// The words of a command.
    Command(Vec<String>),
    /// A line that cannot be carried out, and why.
    Wrong(&'static str),
}

impl ShellLine {
    /// Splits the line as a POSIX shell does, with quotes and backslashes and without expansions.
    fn read(line: &str) -> Self {
        let Some(mut words) = shlex::split(line) else {
            return Self::Wrong("a quote is open: end it, or write a backslash before it");
        };
        if words.first().is_some_and(|word| word == PROGRAM) {
            words.remove(0);
        }
        match words.first().map(String::as_str) {
            None => Self::Empty,
            Some("exit" | "quit") => Self::Exit,
            Some("shell") => Self::Wrong("this is the shell: type a command, or `help`"),
            Some(_) => Self::Command(words),
        }
    }
}

/// The file of the history, in the place that the XDG Base Directory Specification gives.
fn history_file() -> Option<PathBuf> {
    let folder = |variable| env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = folder("XDG_STATE_HOME").or_else(|| folder("HOME").map(|home| home.join(".local/state")));
    state.map(|state| state.join("spindle/history"))
}

/// Adds the lines to the file, which its user alone may read.
fn keep(editor: &mut ShellEditor, path: &Path) -> rustyline::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    editor.append_history(path)
}

/// The commands and flags that Tab completes.
struct Declared(Command);

impl Completer for Declared {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(completions(&self.0, line.get(..at).unwrap_or(line)))
    }
}

impl Hinter for Declared {
    type Hint = String;
}

impl Highlighter for Declared {}
impl Validator for Declared {}
impl Helper for Declared {}

/// The words that the last one of a line may become, and where it begins.
fn completions(declared: &Command, line: &str) -> (usize, Vec<String>) {
    let begin = line.rfind(' ').map_or(0, |space| space + 1);
    let (before, part) = line.split_at(begin);
    let inner = |command, word| Command::find_subcommand(command, word).unwrap_or(command);
    let command = before.split_whitespace().fold(declared, inner);
    let flags = command.get_arguments().filter_map(clap::Arg::get_long).map(|flag| format!("--{flag}"));
    let commands = command.get_subcommands().map(|inner| inner.get_name().to_owned());
    let words: Vec<String> = if part.starts_with('-') { flags.collect() } else { commands.collect() };
    let fitting = words.into_iter().filter(|word| word.starts_with(part));
    (begin, fitting.map(|word| word + " ").collect())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Arguments;

    fn completed(line: &str) -> (usize, Vec<String>) {
        let mut declared = Arguments::command();
        declared.build();
        completions(&declared, line)
    }

    #[test]
    fn tab_completes_commands_and_their_flags() {
        assert_eq!(completed("inc"), (0, vec!["incr ".to_owned()]));
        assert_eq!(completed("spindle inc"), (8, vec!["incr ".to_owned()]));
        assert_eq!(completed("task le"), (5, vec!["lend ".to_owned()]));
        assert_eq!(completed("task lend --wa"), (10, vec!["--wait ".to_owned()]));
        assert_eq!(completed("get t k --connect-"), (8, Vec::new()));
        assert_eq!(completed("get t k --he"), (8, vec!["--hex ".to_owned(), "--help ".to_owned()]));
        assert!(completed("").1.len() > 20);
        assert_eq!(completed("ünknown x"), (9, Vec::new()));
    }

    #[test]
    fn a_line_is_split_as_a_shell_does() {
        let command = |words: &[&str]| ShellLine::Command(words.iter().map(|word| (*word).to_owned()).collect());
        assert_eq!(ShellLine::read("set t 'a b' \"c d\" e\\ f"), command(&["set", "t", "a b", "c d", "e f"]));
        assert_eq!(ShellLine::read("spindle get t ''"), command(&["get", "t", ""]));
        for line in ["", "   ", "# a comment", "spindle"] {
            assert_eq!(ShellLine::read(line), ShellLine::Empty);
        }
        assert_eq!((ShellLine::read(" exit"), ShellLine::read("quit")), (ShellLine::Exit, ShellLine::Exit));
        assert!(matches!(ShellLine::read("get t 'k"), ShellLine::Wrong(why) if why.contains("quote")));
        assert!(matches!(ShellLine::read("shell"), ShellLine::Wrong(_)));
    }
}
