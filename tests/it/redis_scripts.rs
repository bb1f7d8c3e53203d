//! Libraries that send scripts to Redis: each does a chapter of work on redis-server and on Spindle.
//!
//! Their sources are in `peers`. `tests/run` installs them.

use std::path::Path;
use std::process::Command;

use crate::harness::{is_made, real_peer};
use crate::redis_clients::{on_both, python_with, source};

#[test]
fn locks_counters_and_limiters_of_python() {
    let modules = "aiocache, cashews, django_redis, limits, pottery, redis, redlock";
    let Some(python) = python_with(modules) else { return };
    on_both("native", || {
        let mut command = Command::new(&python);
        command.arg("-B").arg(source("redis_scripts.py"));
        command
    });
}

#[test]
fn locks_and_limiters_of_node() {
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/node/node_modules");
    let Some(node) = real_peer("node").filter(|_| is_made(&modules.join("redis-semaphore"))) else { return };
    on_both("queue", || {
        let mut command = Command::new(&node);
        command.arg(source("redis_scripts.cjs")).env("NODE_PATH", &modules);
        command
    });
}
