//! The program `spindle`: see [`spindle::cli`] for what it can be told.

use std::process::ExitCode;

use spindle::allocator::Switch;

#[global_allocator]
static ALLOCATOR: Switch = Switch;

fn main() -> ExitCode {
    spindle::cli::run(std::env::args_os())
}
