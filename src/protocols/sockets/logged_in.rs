//! The connections over which users have logged in to routers, so that a user that is removed loses them.
//!
//! ```text
//! ZAP handler: allow_login ─► its reply ─► I/O thread, the handshake is over: spindle_connection_logs_in ─► LOGGED_IN
//! ZAP handler, users have changed: end_logins ─────────────► shutdown(2) ◄──────────────────────────────────────┘
//! I/O thread, before it closes a connection: spindle_connection_ends ─► forget
//! ```
//! The user id that the handler gives libzmq is the number of a login. Numbers are those of the whole process
//! (`security`), since libzmq passes no context to its hooks. A handshake that ends after its login was ended is ended
//! too: so it does not matter which of the two comes first.

use std::collections::{HashMap, HashSet};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::LazyLock;

use libc::c_int;
use rustix::net::{Shutdown, shutdown};

use crate::lock::Mutex;

/// The logins of this process, and their connections.
static LOGGED_IN: LazyLock<Mutex<LoggedIn>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct LoggedIn {
    /// Logins that have not been ended.
    allowed: HashSet<u32, ahash::RandomState>,
    /// The login of each open connection.
    connections: HashMap<RawFd, u32, ahash::RandomState>,
}

/// Connections with this login stand from now on.
pub fn allow_login(login: u32) {
    LOGGED_IN.lock().allowed.insert(login);
}

/// Ends the connections with these logins, also those whose handshakes are not over. Returns how many stood.
pub fn end_logins(logins: &[u32]) -> usize {
    let mut all = LOGGED_IN.lock();
    all.allowed.retain(|login| !logins.contains(login));
    let outdated = all.connections.iter().filter(|(_, login)| logins.contains(login));
    outdated.map(|(fd, _)| end(*fd)).count()
}

/// Connections with these logins stand as long as their router. No further one does.
pub fn forget_logins(logins: &[u32]) {
    LOGGED_IN.lock().allowed.retain(|login| !logins.contains(login));
}

/// Called before libzmq closes a connection of a router.
pub(super) fn forget(fd: RawFd) {
    LOGGED_IN.lock().connections.remove(&fd);
}

/// Called by libzmq when a peer's handshake is over, with the user id that the ZAP handler gave it.
///
/// # Safety
/// There are `size` bytes at `user`.
#[unsafe(no_mangle)]
#[expect(unsafe_code, reason = "libzmq calls it")]
unsafe extern "C" fn spindle_connection_logs_in(fd: c_int, user: *const u8, size: usize) {
    // SAFETY: libzmq passes its copy of the id, which is not empty, and which no other thread knows.
    let user = unsafe { std::slice::from_raw_parts(user, size) };
    let login = login_of(user);
    let mut all = LOGGED_IN.lock();
    if all.allowed.contains(&login) {
        all.connections.insert(fd, login);
    } else {
        end(fd);
    }
}

/// The number of a login as its text in libzmq has it, or 0.
pub(super) fn login_of(user: &[u8]) -> u32 {
    std::str::from_utf8(user).ok().and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// Ends a connection. libzmq sees the end, and closes it.
fn end(fd: RawFd) {
    // SAFETY: libzmq reports a connection's end before it closes it, and waits for the lock that is held here.
    #[expect(unsafe_code, reason = "the descriptor is libzmq's")]
    let connection = unsafe { BorrowedFd::borrow_raw(fd) };
    // An error says that the connection has ended already.
    let _ended = shutdown(connection, Shutdown::Both);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::io::{ErrorKind, Read};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// A connection that has logged in with this user id, and the end of its peer.
    fn logged_in(user: &str) -> (UnixStream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        // SAFETY: the text is as long as it says.
        #[expect(unsafe_code, reason = "it is called as libzmq calls it")]
        unsafe {
            spindle_connection_logs_in(ours.as_raw_fd(), user.as_ptr(), user.len());
        }
        (ours, theirs)
    }

    fn stands((_ours, theirs): &mut (UnixStream, UnixStream)) -> bool {
        match theirs.read(&mut [0]) {
            Ok(0) => false,
            end => end.is_err_and(|error| error.kind() == ErrorKind::WouldBlock),
        }
    }

    #[test]
    fn a_connection_ends_with_its_login_and_others_stand() {
        // Higher than any number that other tests of this process give out.
        let [ada, bob] = [u32::MAX - 1, u32::MAX];
        [ada, bob].into_iter().for_each(allow_login);
        let (mut first, mut second) = (logged_in(&ada.to_string()), logged_in(&bob.to_string()));
        let mut gone = logged_in(&ada.to_string());
        forget(gone.0.as_raw_fd());
        assert!(stands(&mut first) && stands(&mut second));
        assert_eq!(end_logins(&[ada]), 1);
        assert!(!stands(&mut first) && stands(&mut second));
        assert!(stands(&mut gone), "its descriptor may be another connection's now");
        assert!(!stands(&mut logged_in(&ada.to_string())), "a handshake that ends later");
        forget_logins(&[bob]);
        assert!(stands(&mut second) && !stands(&mut logged_in(&bob.to_string())));
        for wrong in ["0", "", "ada", "-1", "4294967296"] {
            assert!(!stands(&mut logged_in(wrong)), "{wrong}");
        }
        forget(first.0.as_raw_fd());
        forget(second.0.as_raw_fd());
    }
}
