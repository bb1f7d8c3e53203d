//! File descriptors: each connection is one, and libzmq spins when they run out.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::log::say;

/// With fewer than this the server says so: a few thousand connections are nothing unusual.
const LOW: u64 = 4096;

/// Raises the limit of this process to what it is allowed, and warns on standard error when that is little.
pub fn raise() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        say(&format!("the limit of open files stays as it is: {error}"));
    }
    // `None` is without a limit.
    if let Some(most) = getrlimit(Resource::Nofile).current.filter(|most| *most < LOW) {
        say(&format!("only {most} files may be open, so about that many connections; raise it (ulimit -Hn)"));
    }
}
