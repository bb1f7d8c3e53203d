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
