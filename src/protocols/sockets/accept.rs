//! Accepts connections for libzmq while there are descriptors for them, and pauses while there are none.
//!
//! When the system has no descriptor for a connection, plain libzmq tries to accept again and again, and leaves no
//! descriptor to others. Spindle builds it so that it calls the two functions here in place of `accept4` and
//! `epoll_ctl` (`.cargo/config.toml`). Without that setting, libzmq calls the system's functions.
//!
//! ```text
//! listener readable ─► spindle_accept4 ─► room ─► accept4
//!        ▲                    └─ none ─► the listener is not watched any more, a timer is in its place
//!        └──────── room ◄─ spindle_accept4 ◄─ the timer ─┘        all in libzmq's I/O thread
//! ```
//! Clients wait in the system's backlog meanwhile, as they do before Spindle's own listeners.
//!
//! The loop around `accept4` is libzmq's, in C. So this is no user of `native::Listeners`: both obey the same budget of
//! descriptors and make the same pause.
//!
//! This module does not count the descriptors that connections may use; see `descriptors`.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLIN, c_int, epoll_event, sockaddr, socklen_t};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::timespec;
use crate::clock::Clock;
use crate::descriptors::{has_common_room, in_common};
use crate::limits::ACCEPT_PAUSE;
use crate::lock::Mutex;
use crate::log::WarningPace;

/// A listener of libzmq, and the way its I/O thread watches it.
struct PausableListener {
    listener: c_int,
    epoll: c_int,
    /// The value by which libzmq recognizes the listener's events.
    data: u64,
    /// Set while accepting is paused.
    timer: Option<OwnedFd>,
}

/// All listeners. Written by the I/O threads of libzmq, each for its own listeners.
static WATCHED: Mutex<Vec<PausableListener>> = Mutex::new(Vec::new());

/// Called by libzmq in place of `epoll_ctl`. Remembers listeners.
///
/// # Safety
/// As `epoll_ctl(2)`.
#[unsafe(no_mangle)]
#[expect(unsafe_code, reason = "libzmq calls it")]
unsafe extern "C" fn spindle_epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    match operation {
        EPOLL_CTL_ADD if is_listener(fd) => {
            // SAFETY: epoll_ctl(2) takes an event to add.
            let data = unsafe { (*event).u64 };
            with(|watched| watched.push(PausableListener { listener: fd, epoll, data, timer: None }));
        }
        // Dropping the timer, if there is one, closes it, and so the epoll watches it no more.
        EPOLL_CTL_DEL => with(|watched| watched.retain(|one| one.listener != fd || one.epoll != epoll)),
        _ => {}
    }
    // SAFETY: the caller keeps the contract of epoll_ctl(2).
    unsafe { libc::epoll_ctl(epoll, operation, fd, event) }
}

/// Called by libzmq in place of `accept4` when a listener or its timer is readable.
///
/// # Safety
/// As `accept4(2)`.
#[unsafe(no_mangle)]
#[expect(unsafe_code, reason = "libzmq calls it")]
unsafe extern "C" fn spindle_accept4(
    listener: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: libzmq calls this for a listener of its own, which is open until it returns.
    let any = unsafe { BorrowedFd::borrow_raw(listener) };
    if !has_common_room(any) {
        pause(listener);
        return refuse(libc::EMFILE);
    }
    go_on(listener);
    if !is_readable(any) {
        return refuse(libc::EAGAIN);
    }
    // SAFETY: the caller keeps the contract of accept4(2).
    let accepted = unsafe { libc::accept4(listener, address, length, flags) };
    if accepted < 0 {
        return accepted;
    }
    // SAFETY: the system has just made this descriptor, and no other code knows it.
    match in_common(unsafe { OwnedFd::from_raw_fd(accepted) }) {
        Some(connection) => std::os::fd::IntoRawFd::into_raw_fd(connection),
        None => refuse(libc::EMFILE),
    }
}

fn with<R>(work: impl FnOnce(&mut Vec<PausableListener>) -> R) -> R {
    work(&mut WATCHED.lock())
}

/// Watches a timer in place of the listener. A timer that has fired is set again.
fn pause(listener: c_int) {
    warn();
    with(|watched| {
        for one in watched.iter_mut().filter(|one| one.listener == listener) {
            if one.timer.is_none() {
                // The timer's descriptor lies in the reserve as long as the pause lasts.
                one.timer =
                    timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK).ok();
                let Some(timer) = &one.timer else { continue };
                control(one, EPOLL_CTL_ADD, timer.as_raw_fd(), EPOLLIN);
                control(one, EPOLL_CTL_MOD, listener, 0);
            }
            if let Some(timer) = &one.timer {
                let once =
                    Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: timespec(ACCEPT_PAUSE) };
                // The time is valid. Setting it makes the timer unreadable until then.
                let _set = timerfd_settime(timer, TimerfdTimerFlags::empty(), &once);
            }
        }
    });
}

/// Warns now and then that there is no room.
fn warn() {
    static TOLD: Mutex<Option<(Clock, WarningPace)>> = Mutex::new(None);
    let mut told = TOLD.lock();
    let (clock, pace) = told.get_or_insert_with(|| (Clock::start(), WarningPace::default()));
    if pace.is_time(clock.now()) {
        tracing::warn!("no further connection to the tables is accepted for now: there is no file for it");
    }
}

/// Watches the listener again, if it is paused.
fn go_on(listener: c_int) {
    with(|watched| {
        for one in watched.iter_mut().filter(|one| one.listener == listener) {
            // Dropping the timer closes it, and so the epoll watches it no more.
            if one.timer.take().is_some() {
                control(one, EPOLL_CTL_MOD, listener, EPOLLIN);
            }
        }
    });
}

/// Makes the epoll report this descriptor to the I/O thread as if it were the listener.
#[expect(unsafe_code, reason = "the epoll is libzmq's")]
fn control(one: &PausableListener, operation: c_int, fd: c_int, events: c_int) {
    let mut event = epoll_event { events: events.cast_unsigned(), u64: one.data };
    // SAFETY: the epoll is open, since its I/O thread calls this. The call only reads the event, a live local.
    let _told = unsafe { libc::epoll_ctl(one.epoll, operation, fd, &raw mut event) };
}

fn is_listener(fd: c_int) -> bool {
    // SAFETY: libzmq adds an open descriptor. A descriptor of another kind only makes the call fail.
    #[expect(unsafe_code, reason = "the descriptor is libzmq's")]
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::net::sockopt::socket_acceptconn(fd).unwrap_or(false)
}

/// Whether a client waits to be accepted. After an event of the timer that is not known.
fn is_readable(listener: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(listener, PollFlags::IN)], Some(&now)) == Ok(1)
}

#[expect(unsafe_code, reason = "libzmq reads errno")]
fn refuse(error: c_int) -> c_int {
    // SAFETY: the location is the calling thread's own, and valid as long as the thread runs.
    unsafe { *libc::__errno_location() = error };
    -1
}
