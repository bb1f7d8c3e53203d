//! `spindle load` for comparisons: it also speaks the protocols of other servers, and draws its measurements.
//!
//! ```text
//! cargo bench --bench load -- --protocol redis --connect tcp://127.0.0.1:6379 --rate 50000,100000 --plot load.svg
//! cargo bench --bench load -- --help
//! ```

#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs, reason = "a bench that fails should say where")]

mod loading;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::SIGINT;
use signal_hook::flag;
use spindle::allocator::Switch;

/// As in `spindle load`.
#[global_allocator]
static ALLOCATOR: Switch = Switch;

/// The exit status after a second Ctrl-C.
const INTERRUPTED: i32 = 130;

fn main() -> ExitCode {
    let stop = Arc::new(AtomicBool::new(false));
    flag::register_conditional_shutdown(SIGINT, INTERRUPTED, Arc::clone(&stop)).unwrap();
    flag::register(SIGINT, Arc::clone(&stop)).unwrap();
    // Cargo adds a flag of its own.
    let arguments = std::env::args().filter(|argument| argument != "--bench");
    match loading::run(arguments, &stop, &mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("load: {}", error.sentence());
            ExitCode::FAILURE
        }
    }
}
