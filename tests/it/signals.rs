//! Signals at any moment of a server's life: none is lost, from its first instruction on. None disturbs a start, or
//! ends a server that it should not end.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use crate::harness::{Guarded, SPINDLE, Server};
use crate::seeded_rng::SeededRng;

/// Servers that receive the signal to end while they start.
const ROUNDS: usize = 60;
/// How long such a server may take to end.
const PATIENCE: Duration = Duration::from_secs(60);

fn start(data: &std::path::Path) -> Child {
    let any = "tcp://127.0.0.1:*";
    let mut command = Command::new(SPINDLE);
    command.args(["serve", "--kv", any, "--publish", any, "--tasks", any, "--jobs", "0", "--data"]).arg(data);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until the process ends, at most this long. Returns whether it has.
fn ends_within(child: &Child, time: Duration) -> bool {
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).unwrap();
    poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&Timespec::try_from(time).unwrap())) == Ok(1)
}

/// Whether the process has blocked SIGTERM, which it then waits for (proc_pid_status(5), SigBlk of its first thread).
fn blocks_term(child: &Child) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
    u64::from_str_radix(blocked.trim(), 16).unwrap() >> (Signal::TERM.as_raw() - 1) & 1 == 1
}

#[test]
fn a_server_that_receives_sigterm_while_it_starts_ends() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = SeededRng(3);
    let mut well = 0;
    for round in 0..ROUNDS {
        let mut server = Guarded(start(folder.path()));
        // Half of them in the first milliseconds, when the server has started least.
        let most = if round % 2 == 0 { 8_000 } else { 200_000 };
        let micros = u64::try_from(rng.index(most)).unwrap();
        assert!(!ends_within(&server.0, Duration::from_micros(micros)), "it ended by itself");
        let blocks = blocks_term(&server.0);
        kill_process(Pid::from_child(&server.0), Signal::TERM).unwrap();
        assert!(ends_within(&server.0, PATIENCE), "round {round}: the signal after {micros} µs is lost");
        let status = server.0.wait().unwrap();
        // Before its first instruction the system ends it.
        let may_die = !blocks && status.signal() == Some(15);
        assert!(status.success() || may_die, "round {round}, after {micros} µs: {status}");
        well += usize::from(status.success());
    }
    assert!(well > ROUNDS / 3, "{well} of {ROUNDS} ended well: all do that received it late");
}

#[test]
fn signals_that_end_nothing_do_not_disturb_a_start() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..5 {
        let mut server = Guarded(start(folder.path()));
        let process = pidfd_open(Pid::from_child(&server.0), PidfdFlags::empty()).unwrap();
        let output = server.0.stdout.take().unwrap();
        let is_ready = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Relaxed: no other data is published with the flag. SIGHUP only when it is blocked: before that it
                // ends any program.
                while !is_ready.load(Ordering::Relaxed) {
                    for signal in [Signal::STOP, Signal::CONT, Signal::CHILD, Signal::WINCH] {
                        pidfd_send_signal(&process, signal).unwrap();
                    }
                }
            });
            let last = BufReader::new(output).lines().map(Result::unwrap).find(|line| line == "ready");
            is_ready.store(true, Ordering::Relaxed);
            assert_eq!(last.as_deref(), Some("ready"));
        });
        kill_process(Pid::from_child(&server.0), Signal::CONT).unwrap();
        kill_process(Pid::from_child(&server.0), Signal::TERM).unwrap();
        assert!(server.0.wait().unwrap().success());
    }
}

#[test]
fn the_end_of_a_terminal_is_not_the_end_of_a_server() {
    let server = Server::start(&[]);
    for _ in 0..10 {
        server.signal(Signal::HUP);
        assert!(server.stats()["log"]["dropped_lines"].is_u64());
    }
    server.stop();
}

#[test]
fn a_command_dies_of_a_signal_at_once() {
    // No server accepts there, and none refuses: the command waits for an answer.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp://{}", silent.local_addr().unwrap());
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        // Under nohup, and in the background of a script, signals are ignored that a command would inherit so.
        let mut command = Command::new("env");
        command.args(["--default-signal", SPINDLE]);
        let child =
            command.args(["ping", "--timeout", "60", "--connect", &endpoint]).stderr(Stdio::null()).spawn().unwrap();
        let mut child = Guarded(child);
        let _connection = silent.accept().unwrap();
        kill_process(Pid::from_child(&child.0), signal).unwrap();
        assert_eq!(child.0.wait().unwrap().signal(), Some(signal.as_raw()));
    }
}
