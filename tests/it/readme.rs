//! The README is true: its terminal script and its Python run as they are printed, it is short, and every link of a
//! page leads to a file. The Python on the page of the protocol of tables runs beside it.
//!
//! The script uses the default ports. So the test runs itself again in a network of its own, where no other server has
//! them.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::harness::{Guarded, PATIENCE, SPINDLE, python_with_pyzmq, real_peer};

/// Lines of the README, at most: it is for a reader with five minutes.
const README_LINES_MAX: usize = 150;
/// Set in the run that has a network of its own.
const APART: &str = "SPINDLE_README_APART";
/// The test of the script, as the test program calls it.
const SCRIPT: &str = "readme::the_terminal_script_prints_what_it_says_twice_in_a_row";
/// The mark before the output of a line of Python.
const PRINTS: &str = "→ ";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn readme() -> String {
    std::fs::read_to_string(root().join("README.md")).unwrap()
}

/// The fenced blocks in this language, in order.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    text.split(&fence).skip(1).filter_map(|rest| rest.split_once("```")).map(|(block, _)| block.to_owned()).collect()
}

/// A command of the terminal, and the lines that it prints.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    command: String,
    printed: String,
}

/// The commands of a block: each line after `$ ` is one, and the lines below it are its output.
fn steps(block: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push(Step { command: command.to_owned(), printed: String::new() }),
            (None, Some(step)) => step.printed += &format!("{line}\n"),
            (None, None) => panic!("a block for the terminal begins with a command: {line}"),
        }
    }
    steps
}

/// A line of the terminal, where `spindle` is the program under test and `mktemp` works in `folder`.
fn shell(line: &str, folder: &Path) -> Command {
    let own = Path::new(SPINDLE).parent().unwrap().to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([own].into_iter().chain(std::env::split_paths(&path))).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", line]).env("PATH", path).env("TMPDIR", folder).current_dir(folder).stdin(Stdio::null());
    command
}

/// Starts the server of the first terminal, and expects the lines that are printed.
fn first_terminal(step: &Step, folder: &Path) -> Guarded {
    // The shell becomes the server, so that Ctrl-C can be sent to it.
    let mut server = shell(&format!("exec {}", step.command), folder);
    let mut server = Guarded(server.stdout(Stdio::piped()).spawn().unwrap());
    let mut output = BufReader::new(server.0.stdout.take().unwrap());
    for expected in step.printed.lines() {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), expected, "{}", step.command);
    }
    server
}

fn second_terminal(steps: &[Step], folder: &Path) {
    for step in steps {
        let output = shell(&step.command, folder).output().unwrap();
        let printed = [output.stdout, output.stderr].concat();
        // `get` ends its line only on a terminal.
        let (printed, expected) = (String::from_utf8_lossy(&printed), &step.printed);
        assert_eq!(printed.trim_end_matches('\n'), expected.trim_end_matches('\n'), "{}", step.command);
        assert!(output.status.success(), "{}: {}", step.command, output.status);
    }
}

/// Runs the Python of a page, and expects the output in its comments.
fn python(program: &str) {
    let Some(python) = python_with_pyzmq() else { return };
    let mut command = Command::new(python);
    command.args(["-B", "-c", program]).env("PYTHONPATH", root().join("src/clients/python")).stdin(Stdio::null());
    let output = command.output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    let expected: Vec<&str> = program.lines().filter_map(|line| Some(line.split_once(PRINTS)?.1)).collect();
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().collect::<Vec<_>>(), expected, "{complaint}");
}

/// Ctrl-C, after which the server exits with status 0.
fn ctrl_c(mut server: Guarded) {
    let process = Pid::from_child(&server.0);
    let ended = pidfd_open(process, PidfdFlags::empty()).unwrap();
    kill_process(process, Signal::INT).unwrap();
    assert_eq!(poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&PATIENCE)), Ok(1), "the server does not end");
    assert!(server.0.wait().unwrap().success());
}

fn run_script() {
    let text = readme();
    let terminals: Vec<Vec<Step>> = blocks(&text, "console").iter().map(|block| steps(block)).collect();
    let [first, second] = &terminals[..] else { panic!("the script has two terminals, not {}", terminals.len()) };
    let [serve] = &first[..] else { panic!("the first terminal has one command") };
    let [program] = &blocks(&text, "python")[..] else { panic!("there is one program in Python") };
    let protocol = std::fs::read_to_string(root().join("src/services/tables/PROTOCOL.md")).unwrap();
    let [with_pyzmq] = &blocks(&protocol, "python")[..] else { panic!("the protocol has one program in Python") };
    let folder = tempfile::tempdir().unwrap();
    let server = first_terminal(serve, folder.path());
    second_terminal(second, folder.path());
    python(program);
    python(with_pyzmq);
    ctrl_c(server);
}

/// How this user makes a network of its own, if it may.
fn unshare() -> Option<Command> {
    [&["--net"][..], &["--map-root-user", "--net"]].into_iter().find_map(|flags| {
        let own_network = |script: &str| {
            let mut command = Command::new("unshare");
            command.args(flags).args(["sh", "-c", script]).stdin(Stdio::null());
            command
        };
        let tried = own_network("ip link set lo up").stderr(Stdio::null()).status();
        tried.is_ok_and(|status| status.success()).then(|| own_network("ip link set lo up && exec \"$0\" \"$@\""))
    })
}

/// Whether no server has a port of the script.
fn ports_are_free() -> bool {
    [5555, 5556, 5557, 5558, 8080, 8081].into_iter().all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok())
}

#[test]
fn the_terminal_script_prints_what_it_says_twice_in_a_row() {
    if real_peer("curl").is_none() {
        return;
    }
    let is_apart = std::env::var_os(APART).is_some();
    if let Some(mut command) = unshare().filter(|_| !is_apart) {
        let again = command.arg(std::env::current_exe().unwrap()).args(["--exact", SCRIPT, "--nocapture"]);
        let output = again.env(APART, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}{complaint}");
    } else if is_apart || ports_are_free() {
        run_script();
        run_script();
    } else {
        eprintln!(
            "skipped: another server has the ports of the README, and this user cannot make a network of its own"
        );
    }
}

#[test]
fn the_readme_is_for_five_minutes() {
    let lines = readme().lines().count();
    assert!(
        lines <= README_LINES_MAX,
        "{lines} lines, above {README_LINES_MAX}: move some to the pages beside the code"
    );
}

/// The pages of the repository: Markdown at the top, beside the code and among the numbers.
fn pages() -> Vec<PathBuf> {
    let mut found = vec![root().join("README.md")];
    let mut folders = vec![root().join("src"), root().join("perf")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found
}

/// The targets of the links of a page that lead to files.
fn links(page: &str) -> impl Iterator<Item = &str> {
    let targets = page.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
    targets.filter(|target| !target.contains("://")).filter_map(|target| target.split('#').next())
}

#[test]
fn every_link_of_a_page_leads_to_a_file() {
    let pages = pages();
    assert!(pages.len() > 10, "the pages are looked for in the wrong place");
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        for target in links(&text) {
            assert!(page.parent().unwrap().join(target).exists(), "{}: no file {target}", page.display());
        }
    }
}

#[test]
fn a_block_for_the_terminal_has_commands_and_their_output() {
    let step = |command: &str, printed: &str| Step { command: command.to_owned(), printed: printed.to_owned() };
    let text = "words\n```console\n$ a\nb\nc\n$ d\n```\n```sh\n$ e\n```\n";
    let [block] = &blocks(text, "console")[..] else { panic!("one block is for the terminal") };
    assert_eq!(steps(block), [step("a", "b\nc\n"), step("d", "")]);
}
