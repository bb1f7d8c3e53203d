//! Runs a test that counts objects of the whole process in a process of its own. No other test creates, retires or pins
//! there.

use std::process::Command;
use std::sync::atomic::Ordering;

use super::super::slot::count::ENTRIES;

/// The environment variable that names the test of the process.
const ALONE: &str = "SPINDLE_TEST_ALONE";

/// Runs `body`, the body of the test with this full name, in a process of its own.
pub(crate) fn alone(name: &str, body: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some_and(|test| test == *name) {
        return body();
    }
    let this = std::env::current_exe().expect("the test program has a path");
    let output = Command::new(this).args(["--exact", name, "--nocapture"]).env(ALONE, name).output().expect("it runs");
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success() && said[0].contains("1 passed"), "{name}: {}\n{}", said[0], said[1]);
}

/// Entries of this process that take memory.
pub(crate) fn entries() -> i64 {
    ENTRIES.load(Ordering::Relaxed)
}
