//! The socket and its clients, on a store whose backups take as long as a test says.

#![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::{JoinHandle, spawn};

use super::{Error, backup};
use crate::clock::Clock;
use crate::net::sockets::Stopper;
use crate::services::operator::control::serve::{ControlListener, has_hung_up};
use crate::services::operator::control::wire::{Reply, Request};
use crate::store;
use crate::store::tests::fake_disk::FakeDisk;
use crate::tasks::{Committer, open};

/// A folder with a socket, and the thread behind it.
struct Served {
    folder: tempfile::TempDir,
    store: FakeDisk,
    stopper: Stopper,
    thread: JoinHandle<Result<(), store::Error>>,
    _committer: Committer,
}

fn serve() -> Served {
    let folder = tempfile::tempdir().unwrap();
    let store = FakeDisk::new();
    let (tasks, committer) = open(Box::new(store.clone()), Clock::start().reading()).unwrap();
    let control = ControlListener::bind(folder.path()).unwrap().serve(Box::new(move || tasks.backup())).unwrap();
    let thread = spawn(|| control.front.run());
    Served { folder, store, stopper: control.stopper, thread, _committer: committer }
}

impl Served {
    fn ask(&self) -> Result<store::BackupReport, Error> {
        let mut done = backup(self.folder.path(), Path::new("/backup"))?;
        assert_eq!(done.len(), 1);
        Ok(done.remove(0).report)
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(self.folder.path().join("control")).unwrap()
    }

    fn send(&self) -> UnixStream {
        let mut client = self.connect();
        client.write_all(&Request::Backup(PathBuf::from("/backup")).encode()).unwrap();
        client
    }

    /// A client whose backup runs until the test ends it.
    fn begin(&self) -> UnixStream {
        self.store.hold_backups(true);
        let client = self.send();
        // Another one is refused only while the first is served.
        while !matches!(self.probe(), Some(Reply::Refused(why)) if why.contains("another backup")) {}
        client
    }

    /// The reply to a client that asks for nothing, but closes its half.
    fn probe(&self) -> Option<Reply> {
        let client = self.connect();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        reply(client)
    }

    fn end(self) -> Result<(), store::Error> {
        self.stopper.stop();
        self.thread.join().unwrap()
    }
}

fn reply(mut client: UnixStream) -> Option<Reply> {
    let mut bytes = Vec::new();
    client.read_to_end(&mut bytes).unwrap();
    Reply::decode(&bytes)
}

#[test]
fn the_socket_is_for_its_owner_replaces_one_that_was_left_and_goes_with_its_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    drop(UnixListener::bind(&path).unwrap());
    assert!(matches!(backup(folder.path(), Path::new("/b")), Err(Error::NoServer { .. })), "its server was killed");
    let bound = ControlListener::bind(folder.path()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    drop(bound);
    assert!(!path.exists());
    assert!(matches!(backup(folder.path(), Path::new("/b")), Err(Error::NoServer { .. })));
    fs::write(&path, "a file of the user").unwrap();
    assert!(ControlListener::bind(folder.path()).is_err());
    assert_eq!(fs::read(&path).unwrap(), b"a file of the user");
    let missing = backup(&folder.path().join("missing"), Path::new("/b"));
    assert!(matches!(missing, Err(Error::Missing { .. })));
}

#[test]
fn a_folder_whose_path_is_longer_than_an_address_is_reached() {
    let folder = tempfile::tempdir().unwrap();
    for length in [1, 60, 90, 200] {
        let long = folder.path().join("d".repeat(length)).join("e".repeat(length));
        fs::create_dir_all(&long).unwrap();
        let (tasks, _committer) = open(Box::new(FakeDisk::new()), Clock::start().reading()).unwrap();
        let control = ControlListener::bind(&long).unwrap().serve(Box::new(move || tasks.backup())).unwrap();
        assert!(long.join("control").exists(), "{length}");
        let (front, stopper) = (control.front, control.stopper);
        let thread = spawn(|| front.run());
        assert!(backup(&long, Path::new("/backup")).is_ok(), "{length}");
        stopper.stop();
        thread.join().unwrap().unwrap();
        assert!(!long.join("control").exists(), "{length}");
    }
}

#[test]
fn while_a_backup_is_written_others_are_refused_at_once() {
    let served = serve();
    let first = served.begin();
    let second = served.ask();
    assert!(matches!(&second, Err(Error::Refused(why)) if why.contains("another backup")), "{second:?}");
    served.store.hold_backups(false);
    assert!(matches!(reply(first), Some(Reply::Done { .. })));
    assert!(served.ask().is_ok());
    served.end().unwrap();
}

#[test]
fn a_client_that_hangs_up_cancels_its_backup() {
    let served = serve();
    drop(served.begin());
    // The server is free again although the backup would run for ever.
    while served.probe().is_some() {}
    served.store.hold_backups(false);
    assert!(served.ask().is_ok());
    served.end().unwrap();
}

#[test]
fn the_end_of_the_server_leaves_a_backup_at_once_and_says_so() {
    let served = serve();
    let client = served.begin();
    let path = served.folder.path().join("control");
    served.stopper.stop();
    let Some(Reply::Refused(why)) = reply(client) else { panic!("it is not whole") };
    assert!(why.contains("the server ends"), "{why}");
    served.end().unwrap();
    assert!(!path.exists());
}

#[test]
fn clients_that_send_nothing_or_nonsense_get_no_backup_and_do_no_harm() {
    let served = serve();
    assert_eq!(served.probe(), None);
    for nonsense in [&[7][..], &[1, 0xff, 0, 0, 0], &[0; 5000]] {
        let mut client = served.connect();
        // The server may have closed it.
        let _closed = client.write_all(nonsense);
        let mut bytes = Vec::new();
        let _reset = client.read_to_end(&mut bytes);
        assert!(matches!(Reply::decode(&bytes), Some(Reply::Refused(_))), "{nonsense:?}: {bytes:?}");
    }
    let silent = served.connect();
    let waiting = served.send();
    assert!(!has_hung_up(&waiting));
    drop(silent);
    assert!(matches!(reply(waiting), Some(Reply::Done { .. })), "it had its turn");
    // A silent client does not hold up the end.
    let _silent = served.connect();
    served.end().unwrap();
}

#[test]
fn a_sync_that_fails_ends_the_thread_with_its_error() {
    let served = serve();
    served.store.fail_after(0);
    assert!(matches!(served.ask(), Err(Error::NoReply { .. })));
    assert!(served.thread.join().unwrap().is_err());
}
