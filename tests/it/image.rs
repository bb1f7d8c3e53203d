//! The OCI image from scratch: made by buildah, and run from it as its settings say.

use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use spindle::clients::rust::tables::Client;

use crate::admin::get;
use crate::harness::{SPINDLE, Server, real_peer};
use crate::monitoring::packaged;

/// The name of the image.
const TAG: &str = "localhost/spindle-test";

/// buildah with a storage of its own, which is removed with its folder.
struct Buildah {
    folder: tempfile::TempDir,
}

impl Buildah {
    /// The command with its options, as words.
    fn words(&self) -> [String; 7] {
        let of = |name: &str| self.folder.path().join(name).to_str().unwrap().to_owned();
        let (root, run) = (of("root"), of("run"));
        ["buildah", "--root", &root, "--runroot", &run, "--storage-driver", "vfs"].map(str::to_owned)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let [program, options @ ..] = self.words();
        let mut command = Command::new(program);
        command.args(options).args(arguments);
        command
    }

    fn output(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

/// The process under this one that has the name of the server.
fn server_under(pid: i32) -> Option<i32> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    if name.trim() == "spindle" {
        return Some(pid);
    }
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let children = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let children: Vec<i32> =
        children.flat_map(|line| line.split(' ').flat_map(str::parse).collect::<Vec<_>>()).collect();
    children.into_iter().find_map(server_under)
}

#[test]
fn the_image_is_made_from_scratch_and_its_server_runs_as_a_user_without_rights() {
    if real_peer("buildah").is_none() || !rustix::process::geteuid().is_root() {
        return println!("skipped: it needs root and buildah");
    }
    let buildah = Buildah { folder: tempfile::tempdir().unwrap() };
    let mut make = Command::new(packaged("image"));
    let made = make.args([SPINDLE, TAG]).env("BUILDAH", buildah.words().join(" ")).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    assert!(buildah.output(&["containers", "--quiet"]).is_empty(), "the container of the build is removed");

    let image: Value = serde_json::from_str(&buildah.output(&["inspect", "--type", "image", TAG])).unwrap();
    let config = &image["OCIv1"]["config"];
    assert_eq!(config["User"], "65532:65532", "{config}");
    let words = |name: &str| -> Vec<String> { serde_json::from_value(config[name].clone()).unwrap() };
    let command = [words("Entrypoint"), words("Cmd")].concat();
    assert_eq!(command, ["/usr/bin/spindle", "serve"]);
    assert_eq!(config["StopSignal"], "SIGTERM");

    // Without a runtime of containers: in the image's files, with the network of this host.
    let container = buildah.output(&["from", TAG]);
    let any = "tcp://127.0.0.1:*";
    let flags = ["--kv", any, "--publish", "off", "--tasks", any, "--admin", "0"];
    let run = ["run", "--isolation", "chroot", &container, "--"];
    let words: Vec<&str> = run.into_iter().chain(command.iter().map(String::as_str)).chain(flags).collect();
    let server = Server::start_by(&mut buildah.command(&words));
    let mut client = Client::connect(server.kv()).unwrap();
    client.create_table(b"users").unwrap();
    client.update(b"users", b"ada", b"1", None).unwrap();
    assert_eq!(client.get(b"users", b"ada").unwrap(), b"1");
    assert_eq!(get(server.admin(), "/ready"), (200, r#"{"status":"ready"}"#.to_owned()), "it can store");
    let pid = server_under(server.pid().as_raw_nonzero().get()).expect("the server is a process under buildah");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let uid = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
    assert!(uid.split_whitespace().skip(1).all(|number| number == "65532"), "{uid}");
    kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    assert!(server.wait().0.success());
}
