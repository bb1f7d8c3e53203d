//! The only place that makes threads: their names, cores, signal masks, and the handling of a panic.
//!
//! - A thread is named as the crate's page lists it. `top -H` and panic messages show the name.
//! - A pinned thread runs on one core, and one that stays on some cores on these. The system places the other threads.
//! - Signals are blocked in it. They arrive in the one thread that reads them (`signals`), and never interrupt a call.
//!   Signals that a fault of the thread itself raises are not blocked: blocked, they would end the process without a
//!   message.
//! - A panic in it ends the process at once, with a message. A server without one of its threads would only look alive.
//!
//! This module connects no threads (`server` makes the channels) and makes no thread of a library.

pub mod signals;

use std::cell::Cell;
use std::io;
use std::os::unix::process::CommandExt;
use std::panic::{PanicHookInfo, set_hook, take_hook};
use std::process::Command;
use std::sync::Once;
use std::thread::{Builder, JoinHandle};

use core_affinity::CoreId;
use rustix::thread::{CpuSet, sched_setaffinity};

/// The exit status after a panic in a thread: EX_SOFTWARE of sysexits.h.
const PANIC_STATUS: i32 = 70;

thread_local! {
    /// Whether [`spawn`] made this thread. Written once, by the thread itself, before its work begins.
    static IS_OURS: Cell<bool> = const { Cell::new(false) };
}

/// The cores that this process may use, by the system's numbers.
///
/// Call it once, before any thread is pinned: a pinned thread sees only its own core.
#[must_use]
pub fn cores() -> Vec<usize> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    cores.into_iter().map(|core| core.id).collect()
}

/// The number of cores whose time this process may use: at most the number of [`cores`], fewer under a quota.
#[must_use]
pub fn parallelism() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Starts a thread. A panic in it ends the process with status 70.
///
/// # Errors
/// If the system makes no more threads.
pub fn spawn<F>(name: &str, core: Option<usize>, work: F) -> io::Result<JoinHandle<()>>
where
    F: FnOnce() + Send + 'static,
{
    stop_the_process_on_panic();
    Builder::new().name(name.to_owned()).spawn(move || {
        IS_OURS.set(true);
        block_signals();
        if let Some(id) = core {
            pin(id);
        }
        work();
    })
}

/// Pins the calling thread to a core. If the system refuses, the thread logs a warning and stays unpinned.
fn pin(id: usize) {
    if !core_affinity::set_for_current(CoreId { id }) {
        tracing::warn!(core = id, "the system does not let a thread run on this core");
    }
}

/// Keeps the calling thread on these cores. Without any, or if the system refuses, it may run on all.
pub fn stay_on(cores: &[usize]) {
    let mut set = CpuSet::new();
    cores.iter().filter(|core| **core < CpuSet::MAX_CPU).for_each(|core| set.set(*core));
    if set.count() > 0
        && let Err(why) = sched_setaffinity(None, &set)
    {
        tracing::warn!(?cores, "the system does not let a thread stay on these cores: {why}");
    }
}

/// Signals that a fault of a thread raises in it.
const FAULTS: [i32; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];

/// Blocks all signals but [`FAULTS`] in the calling thread, and so in the threads that it makes.
#[expect(unsafe_code, reason = "sets of signals are made by the C library")]
fn block_signals() {
    // SAFETY: `outside` is a live local and a plain C structure for which zeros are a value; sigfillset fills it before
    // the others read it.
    let outside = unsafe {
        let mut outside: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut outside);
        for fault in FAULTS {
            libc::sigdelset(&raw mut outside, fault);
        }
        outside
    };
    signals::block(&outside);
}

/// Unblocks all signals in a command, which would otherwise inherit this thread's mask.
#[expect(unsafe_code, reason = "no safe way is there to set the signal mask of a process before it begins")]
pub fn with_all_signals(command: &mut Command) -> &mut Command {
    let unblock = || {
        // SAFETY: `none` is a live local and a plain C structure for which zeros are a value; a null old mask is
        // allowed.
        let status = unsafe {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut())
        };
        if status == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(status)) }
    };
    // SAFETY: between fork and exec the closure calls only sigemptyset and pthread_sigmask, which signal-safety(7)
    // allows there, and it allocates nothing.
    unsafe { command.pre_exec(unblock) }
}

/// Makes a panic in a thread of [`spawn`] end the process. Panics in other threads, such as a test's, keep their
/// effect.
fn stop_the_process_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = take_hook();
        set_hook(Box::new(move |panic| {
            if IS_OURS.get() {
                stop(panic);
            }
            others(panic);
        }));
    });
}

/// Logs the reason and ends the process with this status, at once and without destructors. For a thread that can no
/// longer answer requests.
pub fn give_up(why: &str, status: i32) -> ! {
    crate::log::say(why);
    crate::log::finish();
    signal_hook::low_level::exit(status)
}

/// Logs the panic and ends the process, without destructors: they might wait for the lost thread.
fn stop(panic: &PanicHookInfo<'_>) -> ! {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("unnamed");
    give_up(&format!("thread {name} failed, the server stops: {panic}"), PANIC_STATUS)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;
    use std::sync::mpsc;

    /// The environment variable of the process that a test starts in order to see it fail.
    const TO_FAIL: &str = "SPINDLE_TEST_THREAD_TO_FAIL";

    #[test]
    fn a_thread_has_its_name_and_its_core() {
        let core = cores().into_iter().next();
        let (sender, receiver) = mpsc::channel();
        let thread = spawn("named", core, move || {
            let name = std::thread::current().name().map(str::to_owned);
            sender.send((name, cores())).unwrap();
        });
        let (name, seen) = receiver.recv().unwrap();
        thread.unwrap().join().unwrap();
        assert_eq!(name.as_deref(), Some("named"));
        assert_eq!(seen, core.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn a_thread_stays_on_its_cores_if_there_are_any() {
        let all = cores();
        let (sender, receiver) = mpsc::channel();
        let (last, wanted) = (all.last().copied(), all.clone());
        let thread = spawn("staying", None, move || {
            stay_on(&[]);
            stay_on(&[usize::MAX]);
            let before = cores();
            stay_on(&last.into_iter().collect::<Vec<_>>());
            sender.send((before, cores())).unwrap();
        });
        let (before, after) = receiver.recv().unwrap();
        thread.unwrap().join().unwrap();
        assert_eq!((before, after), (wanted, all.into_iter().next_back().into_iter().collect()));
    }

    #[test]
    fn a_thread_takes_no_signals() {
        let (sender, receiver) = mpsc::channel();
        let thread = spawn("blocked", None, move || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            sender.send(status).unwrap();
        });
        let status = receiver.recv().unwrap();
        thread.unwrap().join().unwrap();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        let mask = u64::from_str_radix(blocked.unwrap().trim(), 16).unwrap();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE] {
            assert_ne!(mask & (1 << (signal - 1)), 0, "signal {signal}");
        }
    }

    /// The body of the process that [`a_panic_in_a_thread_stops_the_process`] starts. Does nothing when run by itself.
    #[test]
    fn fails_when_asked_to() {
        if std::env::var_os(TO_FAIL).is_some() {
            let thread = spawn("doomed", None, || panic!("on purpose"));
            thread.unwrap().join().unwrap();
            std::process::exit(0);
        }
    }

    #[test]
    fn a_panic_in_a_thread_stops_the_process() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "threads::tests::fails_when_asked_to", "--nocapture"])
            .env(TO_FAIL, "1")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(PANIC_STATUS));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("doomed") && said.contains("on purpose"), "{said}");
    }
}
