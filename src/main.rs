//! The program `spindle`: see [`spindle::cli`] for its arguments.

use std::process::ExitCode;

use spindle::allocator::Switch;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
use spindle::threads::signals::{AtStart, hold_from_the_start};

#[global_allocator]
static ALLOCATOR: Switch = Switch;

/// Blocks signals before `main`, so that an early signal is not lost. Only glibc hands the arguments to the functions
/// of `.init_array`. Elsewhere signals are blocked a moment later.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "the section says when it is called")]
#[used]
// SAFETY: glibc calls each entry of this section once, before main, with (argc, argv, envp): this function's type.
#[unsafe(link_section = ".init_array")]
static HOLD_SIGNALS: AtStart = hold_from_the_start;

fn main() -> ExitCode {
    spindle::cli::run(std::env::args_os())
}
