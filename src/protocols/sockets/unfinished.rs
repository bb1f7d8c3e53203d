//! The bytes of messages that libzmq has received in part, and their bound.
//!
//! A router sees a message when its last frame has come. Until then its frames are memory that no flow control counts,
//! and a client may never send the last one. So libzmq (`.cargo/libzmq`) reports what it has received of a message, and
//! this module ends connections while all together hold more than [`bound_received`] has set:
//!
//! ```text
//! I/O thread: bytes of a frame of more than 8 KiB ─► spindle_frame_grows ───┐
//!             further 8 KiB of a message ──────────► spindle_message_grows ─┼─► Unfinished ─► too much: shutdown(2)
//!             before it closes a connection ───────► spindle_connection_ends┘
//! ```
//! The connection that ends is the one with the highest product of bytes and age. A large message that keeps coming is
//! whole soon. So those that hold much for long end first, whoever was the one to exceed the bound.
//!
//! A client may hold a little more than this module counts: up to 8 KiB of a message, and a buffer of 8 KiB. Small frames
//! share the buffer into which they were received. It has 8 KiB, of which at least a quarter was filled.
//!
//! Whole messages that wait in libzmq's pipes have the same bound. Above it, libzmq stops reading from a client that
//! has 128 KiB there, and ends no connection.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, RawFd};

use libc::c_int;
use rustix::net::{Shutdown, shutdown};

use crate::clock::{Clock, Now};
use crate::lock::Mutex;
use crate::log::WarningPace;

/// What is unfinished in this process. libzmq passes no context to its hooks.
static UNFINISHED: Mutex<Option<(Clock, Unfinished, WarningPace)>> = Mutex::new(None);

/// Bounds the bytes that libzmq keeps for the routers of this process: `bytes` of unfinished messages, and as many of
/// whole messages that the routers have not taken.
pub fn bound_received(bytes: u64) {
    // SAFETY: the function stores a number.
    #[expect(unsafe_code, reason = "libzmq compares with it")]
    unsafe {
        spindle_bound_piped(bytes);
    }
    with(|unfinished| unfinished.bytes_max = bytes);
}

/// The bytes that libzmq keeps for the routers of this process: whole messages in pipes, and unfinished messages.
pub fn received_bytes() -> (u64, u64) {
    // SAFETY: the function loads a number.
    #[expect(unsafe_code, reason = "libzmq counts them")]
    let piped = unsafe { spindle_piped() };
    (piped, with(|unfinished| unfinished.bytes))
}

/// The bytes that one connection holds of an unfinished message.
#[cfg(test)]
pub(super) fn unfinished_bytes(fd: RawFd) -> u64 {
    with(|unfinished| unfinished.connections.get(&fd).map_or(0, UnfinishedRequest::bytes))
}

#[expect(unsafe_code, reason = "libzmq counts and compares")]
unsafe extern "C" {
    fn spindle_bound_piped(bytes: u64);
    fn spindle_piped() -> u64;
}

/// Called by libzmq with the bytes that it has received of a large frame, or 0 when the frame is whole.
#[unsafe(no_mangle)]
#[expect(unsafe_code, reason = "libzmq calls it")]
extern "C" fn spindle_frame_grows(fd: c_int, bytes: u64) {
    grow(fd, |connection| connection.frame = bytes);
}

/// Called by libzmq with the bytes of an unfinished message's whole frames, or 0 when the message is whole.
#[unsafe(no_mangle)]
#[expect(unsafe_code, reason = "libzmq calls it")]
extern "C" fn spindle_message_grows(fd: c_int, bytes: u64) {
    grow(fd, |connection| connection.frames = bytes);
}

/// Called by libzmq before it closes a connection of a router.
#[unsafe(no_mangle)]
#[expect(unsafe_code, reason = "libzmq calls it")]
extern "C" fn spindle_connection_ends(fd: c_int) {
    super::logged_in::forget(fd);
    with(|unfinished| unfinished.forget(fd));
}

fn with<R>(work: impl FnOnce(&mut Unfinished) -> R) -> R {
    let mut all = UNFINISHED.lock();
    work(&mut all.get_or_insert_with(start).1)
}

fn start() -> (Clock, Unfinished, WarningPace) {
    (Clock::start(), Unfinished::default(), WarningPace::default())
}

/// Notes what a connection holds, and ends connections if all together hold too much.
fn grow(fd: RawFd, note: impl FnOnce(&mut UnfinishedRequest)) {
    let mut all = UNFINISHED.lock();
    let (clock, unfinished, pace) = all.get_or_insert_with(start);
    let now = clock.now();
    unfinished.grow(fd, now, note);
    while let Some(largest) = unfinished.excess(now) {
        // SAFETY: libzmq reports a connection's end before it closes it, and waits for the lock that is held here.
        #[expect(unsafe_code, reason = "the descriptor is libzmq's")]
        let connection = unsafe { BorrowedFd::borrow_raw(largest) };
        // An error says that the connection has ended already.
        let _ended = shutdown(connection, Shutdown::Both);
        if pace.is_time(now) {
            tracing::warn!(
                "a client of the tables was disconnected: unfinished requests of all clients together held more than \
                 {} bytes; more memory beside --max-memory raises that bound",
                unfinished.bytes_max
            );
        }
    }
}

/// What a connection holds of a message that is not whole.
struct UnfinishedRequest {
    /// Bytes of the frame that is being received.
    frame: u64,
    /// Bytes of the frames before it.
    frames: u64,
    since: Now,
    /// The connection was ended. libzmq will see that, and free what it holds.
    is_ended: bool,
}

impl UnfinishedRequest {
    fn bytes(&self) -> u64 {
        self.frame + self.frames
    }
}

/// The connections with unfinished messages.
struct Unfinished {
    connections: HashMap<RawFd, UnfinishedRequest, ahash::RandomState>,
    /// Bytes of all connections that were not ended.
    bytes: u64,
    bytes_max: u64,
}

impl Default for Unfinished {
    fn default() -> Self {
        Self { connections: HashMap::default(), bytes: 0, bytes_max: u64::MAX }
    }
}

impl Unfinished {
    /// Has a connection's bytes set, and forgets the connection when there are none.
    fn grow(&mut self, fd: RawFd, now: Now, set: impl FnOnce(&mut UnfinishedRequest)) {
        let new = UnfinishedRequest { frame: 0, frames: 0, since: now, is_ended: false };
        let connection = self.connections.entry(fd).or_insert(new);
        let before = connection.bytes();
        set(connection);
        let after = connection.bytes();
        if !connection.is_ended {
            self.bytes = self.bytes - before + after;
        }
        // An ended one is kept, so that what still comes of it does not count as new.
        if after == 0 && !connection.is_ended {
            self.connections.remove(&fd);
        }
    }

    fn forget(&mut self, fd: RawFd) {
        if let Some(connection) = self.connections.remove(&fd)
            && !connection.is_ended
        {
            self.bytes -= connection.bytes();
        }
    }

    /// The connection to end, if all together hold too much. It counts as ended.
    fn excess(&mut self, now: Now) -> Option<RawFd> {
        if self.bytes <= self.bytes_max {
            return None;
        }
        let open = self.connections.iter_mut().filter(|(_, connection)| !connection.is_ended);
        let weight = |connection: &UnfinishedRequest| {
            u128::from(connection.bytes()) * (1 + connection.since.time_until(now).as_nanos())
        };
        let (fd, connection) = open.max_by_key(|(fd, connection)| (weight(connection), **fd))?;
        connection.is_ended = true;
        self.bytes -= connection.bytes();
        Some(*fd)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// What each of these connections holds, and when it began.
    fn unfinished(bytes_max: u64, connections: &[(RawFd, u64, u64)]) -> (Unfinished, Now) {
        let began = Clock::start().now();
        let mut unfinished = Unfinished { bytes_max, ..Unfinished::default() };
        for &(fd, bytes, second) in connections {
            unfinished.grow(fd, began.after(Duration::from_secs(second)), |connection| connection.frames = bytes);
        }
        (unfinished, began)
    }

    fn ended(unfinished: &mut Unfinished, now: Now) -> Vec<RawFd> {
        std::iter::from_fn(|| unfinished.excess(now)).collect()
    }

    #[test]
    fn nothing_ends_within_the_bound() {
        let (mut unfinished, now) = unfinished(100, &[(3, 60, 0), (4, 40, 0)]);
        assert_eq!((ended(&mut unfinished, now), unfinished.bytes), (Vec::new(), 100));
    }

    #[test]
    fn those_that_hold_much_for_long_end_first() {
        let (mut unfinished, began) = unfinished(100, &[(3, 50, 0), (4, 50, 1), (5, 90, 9)]);
        // 50 × 10 s, 50 × 9 s, 90 × 1 s.
        let now = began.after(Duration::from_secs(10));
        assert_eq!((ended(&mut unfinished, now), unfinished.bytes), (vec![3, 4], 90));
    }

    #[test]
    fn what_still_comes_of_an_ended_connection_does_not_count() {
        let (mut unfinished, now) = unfinished(100, &[(3, 101, 0)]);
        assert_eq!(ended(&mut unfinished, now), [3]);
        unfinished.grow(3, now, |connection| connection.frames = 0);
        unfinished.grow(3, now, |connection| connection.frame = 500);
        assert_eq!((ended(&mut unfinished, now), unfinished.bytes), (Vec::new(), 0));
        unfinished.forget(3);
        assert!(unfinished.connections.is_empty());
        unfinished.grow(3, now, |connection| connection.frame = 7);
        assert_eq!(unfinished.bytes, 7, "the next connection of that number counts");
    }

    #[test]
    fn a_whole_message_is_forgotten_and_a_frame_and_its_message_count_together() {
        let (mut unfinished, now) = unfinished(100, &[(3, 40, 0), (4, 10, 0)]);
        unfinished.grow(3, now, |connection| connection.frame = 45);
        assert_eq!(unfinished.bytes, 95);
        unfinished.grow(3, now, |connection| connection.frame = 0);
        unfinished.grow(3, now, |connection| connection.frames = 0);
        assert_eq!((unfinished.bytes, unfinished.connections.len()), (10, 1));
        unfinished.forget(4);
        unfinished.forget(5);
        assert_eq!((unfinished.bytes, unfinished.connections.len()), (0, 0));
    }
}
