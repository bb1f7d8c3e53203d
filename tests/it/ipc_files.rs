//! The files of `ipc://` endpoints: removed at the end, replaced after a kill, and no other file is touched.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use rustix::process::Signal;

use crate::endpoints::{ANY_EVENTS, FLAGS, command_of};
use crate::harness::{FRONTENDS, SPINDLE, Server};
use crate::peer::Peer;

/// A server with all of its endpoints in this folder.
fn start(frontend: &str, folder: &Path) -> Server {
    let at = |flag: &str| format!("ipc://{}", folder.join(flag).display());
    Server::start_by(&mut command_of(frontend, &folder.join("data"), ANY_EVENTS, at))
}

/// Which of the endpoints have a file.
fn files(folder: &Path) -> Vec<&'static str> {
    FLAGS.into_iter().filter(|flag| folder.join(flag).symlink_metadata().is_ok()).collect()
}

#[test]
fn the_files_of_all_endpoints_are_gone_after_an_end_under_load() {
    for frontend in FRONTENDS {
        let folder = tempfile::tempdir().unwrap();
        let server = start(frontend, folder.path());
        assert_eq!(files(folder.path()), FLAGS);
        let kv = server.kv().to_owned();
        let context = zmq::Context::new();
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let peer = Peer::connect_with(&context, &kv, |socket| socket.set_sndtimeo(1_000).unwrap());
                assert_eq!(peer.call(&[&[5]]), [[1]]);
                thread::spawn(move || (0..10_000_000).all(|_| peer.offer(&[&[5]])))
            })
            .collect();
        server.signal(Signal::TERM);
        assert!(server.wait().0.success());
        assert!(files(folder.path()).is_empty(), "{:?}", files(folder.path()));
        clients.into_iter().for_each(|client| assert!(!client.join().unwrap(), "the server was to end meanwhile"));
    }
}

#[test]
fn a_server_that_was_killed_leaves_files_that_the_next_one_replaces() {
    for frontend in FRONTENDS {
        let folder = tempfile::tempdir().unwrap();
        let killed = start(frontend, folder.path());
        killed.signal(Signal::KILL);
        assert!(!killed.wait().0.success());
        assert_eq!(files(folder.path()), FLAGS);
        let server = start(frontend, folder.path());
        let context = zmq::Context::new();
        assert_eq!(Peer::connect(&context, server.kv()).call(&[&[5]]), [[1]]);
        server.stop();
        assert!(files(folder.path()).is_empty());
    }
}

/// Starts a server in this folder that cannot start. Returns what it says.
fn refused(frontend: &str, folder: &Path, endpoint: &str) -> String {
    let mut command = Command::new(SPINDLE);
    command.args(["serve", "--frontend", frontend, "--kv", endpoint, "--publish", "off"]);
    let output = command.current_dir(folder).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{endpoint}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A file whose name begins with `*` was removed.
#[test]
fn a_file_that_is_no_socket_stays_and_so_does_a_server() {
    for frontend in FRONTENDS {
        let folder = tempfile::tempdir().unwrap();
        for name in ["letter", "*star"] {
            let path = folder.path().join(name);
            fs::write(&path, "a letter").unwrap();
            let said = refused(frontend, folder.path(), &format!("ipc://{name}"));
            assert!(said.contains("is no socket"), "{said}");
            assert_eq!(fs::read_to_string(&path).unwrap(), "a letter");
        }
        let server = start(frontend, folder.path());
        let said = refused(frontend, folder.path(), server.kv());
        assert!(said.contains("is in use"), "{said}");
        let context = zmq::Context::new();
        assert_eq!(Peer::connect(&context, server.kv()).call(&[&[5]]), [[1]]);
        // What has taken the place of a file is not the server's.
        fs::remove_file(folder.path().join("--kv")).unwrap();
        fs::write(folder.path().join("--kv"), "a letter").unwrap();
        server.stop();
        assert_eq!(files(folder.path()), ["--kv"]);
    }
}
