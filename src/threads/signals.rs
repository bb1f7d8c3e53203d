//! Signals from outside. None is lost, from the first instruction of the process on.
//!
//! ```text
//! the loader ── by default, a signal ends the process ──┐
//! .init_array: hold_from_the_start  ═ blocked ══════════╪═► pending ─► signalfd ─► the one thread that reads it
//! every thread: made with them blocked ═════════════════┘
//! ```
//! The system keeps a blocked signal pending until it is read. A handler would have to exist before the first signal,
//! and it would interrupt any call of any thread.
//!
//! This module does not act on a signal; see `server`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// A signal to a server from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT: Ctrl-C.
    Interrupt,
    /// SIGTERM: a service manager.
    Terminate,
    /// SIGHUP: the terminal has gone, or the operator asks for a reload of the settings.
    HangUp,
    /// SIGUSR1: the operator asks for no more jobs.
    Drain,
}

impl Signal {
    const ALL: [Self; 4] = [Self::Interrupt, Self::Terminate, Self::HangUp, Self::Drain];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
            Self::HangUp => "SIGHUP",
            Self::Drain => "SIGUSR1",
        }
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> i32 {
        match self {
            Self::Interrupt => libc::SIGINT,
            Self::Terminate => libc::SIGTERM,
            Self::HangUp => libc::SIGHUP,
            Self::Drain => libc::SIGUSR1,
        }
    }
}

/// Signals that are blocked in all threads, and that this descriptor reads.
#[derive(Debug)]
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks the signals: from here on they do not end the process, and stay pending until they are read. Call it
    /// before there are other threads, which inherit the caller's mask.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    #[expect(unsafe_code, reason = "no safe crate of this project has signalfd(2)")]
    pub fn take_over() -> io::Result<Self> {
        let signals = all();
        block(&signals);
        // SAFETY: `signals` is a live, initialised set, which the call only reads; -1 asks for a new descriptor.
        let descriptor = unsafe { libc::signalfd(-1, &raw const signals, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the system has just made the descriptor, and no other owner has it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }

    /// Returns a pending signal, if there is one. Does not block. The descriptor is readable while a signal is pending.
    #[must_use]
    #[expect(unsafe_code, reason = "no safe crate of this project reads a signalfd(2)")]
    pub fn next(&self) -> Option<Signal> {
        use std::os::fd::AsRawFd;
        // SAFETY: `signalfd_siginfo` is a plain structure of integers, for which zeros are a value.
        let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let bytes = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the call writes at most `bytes` bytes to `info`, a live local of that size.
        let read = unsafe { libc::read(self.0.as_raw_fd(), (&raw mut info).cast(), bytes) };
        let number = (usize::try_from(read) == Ok(bytes)).then(|| i32::try_from(info.ssi_signo).ok()).flatten();
        Signal::ALL.into_iter().find(|signal| number == Some(signal.number()))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The set of all signals that are read here.
#[expect(unsafe_code, reason = "sets of signals are made by the C library")]
fn all() -> libc::sigset_t {
    // SAFETY: `set` is a live local and a plain C structure for which zeros are a value; sigemptyset fills it before
    // sigaddset reads it.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in Signal::ALL {
            libc::sigaddset(&raw mut set, signal.number());
        }
        set
    }
}

/// Blocks these signals in the calling thread, and so in the threads that it makes.
#[expect(unsafe_code, reason = "no safe crate of this project sets a thread's signal mask")]
pub(super) fn block(signals: &libc::sigset_t) {
    // SAFETY: the call only reads the set, which is initialised; a null old mask is allowed.
    let status = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, signals, std::ptr::null_mut()) };
    assert_eq!(status, 0, "SIG_BLOCK is a valid request");
}

/// A function that the C runtime calls before `main`, with the arguments and the environment.
pub type AtStart = unsafe extern "C" fn(i32, *const *const std::ffi::c_char, *const *const std::ffi::c_char);

/// Subcommands that read signals. A signal ends the others, as a user expects of Ctrl-C.
const WAITING: [&[u8]; 2] = [b"serve", b"worker"];

/// Blocks the signals of a process whose first argument is a subcommand that reads them. The program places this
/// function in its section `.init_array`, which glibc runs before any other code of the program. It allocates nothing.
///
/// # Safety
/// `arguments` are `count` pointers to strings that end in NUL, as the C runtime passes them.
#[expect(unsafe_code, reason = "argv comes from the C runtime")]
pub unsafe extern "C" fn hold_from_the_start(
    count: i32,
    arguments: *const *const std::ffi::c_char,
    _environment: *const *const std::ffi::c_char,
) {
    if count < 2 {
        return;
    }
    // SAFETY: the caller guarantees `count` pointers, at least 2 here, to strings that end in NUL.
    let first = unsafe { std::ffi::CStr::from_ptr(*arguments.add(1)) };
    if WAITING.contains(&first.to_bytes()) {
        block(&all());
    }
}
