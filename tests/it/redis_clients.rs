//! Redis clients of other projects. Each does a chapter of work on redis-server, so that the chapter itself is right,
//! and on Spindle with one of the frontends.
//!
//! Their sources are in `peers`. `tests/run` installs them.

use std::collections::HashSet;
use std::io::{Seek, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{Guarded, REAL_PEERS, Server, free_port, is_made, python_with_pyzmq, real_peer};

/// What the chapters store is at most as long as the longest value of Spindle.
const BULK_BYTES_MAX: &str = "16777216";
/// How long redis-server may take to start.
const START: Duration = Duration::from_secs(60);

pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/peers").join(name)
}

/// Runs a chapter to its end on redis-server, and on Spindle.
pub(crate) fn on_both(frontend: &str, chapter: impl Fn() -> Command) {
    let run = |server: &str, port: &str| {
        let output = chapter().args(["127.0.0.1", port]).stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        println!("{server}:\n{text}");
        assert!(output.status.success(), "{server}: {text}{}", String::from_utf8_lossy(&output.stderr));
    };
    let Some(program) = real_peer("redis-server") else { return };
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let mut redis = Command::new(program);
    redis.current_dir(folder.path()).args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""]);
    redis.args(["--proto-max-bulk-len", BULK_BYTES_MAX]);
    let redis = Guarded(redis.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
    let begin = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(begin.elapsed() < START, "redis-server does not start");
    }
    run("redis-server", &port.to_string());
    drop(redis);
    on_spindle(frontend, |server| run("spindle", port_of(server)));
}

/// Runs a chapter on a server with this frontend.
fn on_spindle(frontend: &str, chapter: impl Fn(&Server)) {
    let off = ["--kv", "off", "--publish", "off", "--workers", "2", "--resp", "127.0.0.1:0"];
    let server = Server::start_exactly(&[&off[..], &["--frontend", frontend]].concat());
    chapter(&server);
    server.stop();
}

fn port_of(server: &Server) -> &str {
    server.resp().rsplit_once(':').unwrap().1
}

/// The Python that has these modules. Without it this prints a notice, unless real peers are demanded.
pub(crate) fn python_with(modules: &str) -> Option<PathBuf> {
    let python = python_with_pyzmq()?;
    let has_all = Command::new(&python).args(["-c", &format!("import {modules}")]).stderr(Stdio::null()).status();
    let has_all = has_all.unwrap().success();
    assert!(has_all || std::env::var_os(REAL_PEERS).is_none(), "{REAL_PEERS} is set, and Python has no {modules}");
    has_all.then_some(python).or_else(|| {
        eprintln!("skipped: Python has no {modules}; tests/run installs them");
        None
    })
}

#[test]
fn redis_py_by_each_parser_and_with_asyncio() {
    let Some(python) = python_with("redis, hiredis") else { return };
    on_both("queue", || {
        let mut command = Command::new(&python);
        command.arg("-B").arg(source("redis_py.py"));
        command
    });
}

#[test]
fn django_flask_caching_aiocache_and_celery() {
    let Some(python) = python_with("aiocache, celery, django, flask_caching, redis") else { return };
    on_both("queue", || {
        let mut command = Command::new(&python);
        command.arg("-B").arg(source("redis_frameworks.py"));
        command
    });
}

#[test]
fn ioredis_and_node_redis_of_two_versions() {
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/node/node_modules");
    let Some(node) = real_peer("node").filter(|_| is_made(&modules.join("ioredis6"))) else { return };
    on_both("native", || {
        let mut command = Command::new(&node);
        command.arg(source("redis_node.cjs")).env("NODE_PATH", &modules);
        command
    });
}

/// Runs redis-cli with these arguments and this input. Returns its output.
fn redis_cli(program: &Path, server: &Server, arguments: &[&str], input: &[u8]) -> String {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(input).unwrap();
    file.rewind().unwrap();
    let mut command = Command::new(program);
    let output = command.args(["-p", port_of(server)]).args(arguments).stdin(file).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn redis_cli_reads_commands_and_looks_for_large_keys() {
    let Some(program) = real_peer("redis-cli") else { return };
    on_spindle("native", |server| {
        let cli = |arguments: &[&str], input: &[u8]| redis_cli(&program, server, arguments, input);
        let lines =
            b"SET k \"a b\"\nGET k\nINCR n\nLPUSH n 1\nSELECT 1\nGET k\nSET \"\\x00\" v EX 100\nTTL \"\\x00\"\n";
        let unknown = "ERR unknown command 'LPUSH', with args beginning with: 'n' '1' ";
        let expected = format!("OK\na b\n1\n{unknown}\n\nOK\n\nOK\n100\n");
        assert_eq!(cli(&[], lines), expected);
        assert_eq!(cli(&["-3", "--no-raw", "GET", "absent"], b""), "(nil)\n");
        assert_eq!(cli(&["-x", "SET", "from-input"], &[7; 100_000]), "OK\n");
        assert_eq!(cli(&["STRLEN", "from-input"], b""), "100000\n");
        let mass: Vec<u8> = (0..10_000).flat_map(|number| format!("SET m:{number} v\r\n").into_bytes()).collect();
        assert!(cli(&["--pipe"], &mass).ends_with("errors: 0, replies: 10000\n"));
        let found = cli(&["--scan", "--pattern", "m:*"], b"");
        assert_eq!(found.lines().collect::<HashSet<_>>().len(), 10_000);
        let large = cli(&["--bigkeys"], b"");
        assert!(large.contains("Biggest string found '\"from-input\"' has 100000 bytes"), "{large}");
        let memory = cli(&["--memkeys"], b"");
        assert!(memory.contains("Biggest string found '\"from-input\"' has "), "{memory}");
    });
}

#[test]
fn redis_cli_shuts_the_server_down() {
    let Some(program) = real_peer("redis-cli") else { return };
    let server = Server::start_exactly(&["--kv", "off", "--publish", "off", "--resp", "127.0.0.1:0"]);
    assert_eq!(redis_cli(&program, &server, &["SHUTDOWN", "NOSAVE"], b""), "");
    let (status, _) = server.wait();
    assert!(status.success());
}

#[test]
fn redis_benchmark_meets_no_error() {
    let Some(program) = real_peer("redis-benchmark") else { return };
    on_spindle("native", |server| {
        for more in [&["-P", "1"][..], &["-P", "16", "--threads", "2"], &["-P", "64", "-d", "10000", "-r", "1000"]] {
            let mut command = Command::new(&program);
            command.args(["-p", port_of(server), "-n", "4000", "-q", "-t", "ping,set,get,incr,mset"]).args(more);
            let output = command.stdin(Stdio::null()).output().unwrap();
            let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            assert!(output.status.success() && !text.to_lowercase().contains("err"), "{more:?}: {text}");
            assert_eq!(text.matches("requests per second").count(), 6, "{text}");
        }
    });
}
