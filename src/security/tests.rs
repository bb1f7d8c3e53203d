//! Users as frontends see them: logging in, changes of the file, and the thread that does both.

#![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

use std::fs;
use std::sync::mpsc;
use std::task::Wake;
use std::time::Duration;

use super::*;
use crate::threads;

const KEY: &str = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID";
const HERE: PeerAddress = PeerAddress::Local;
/// Much longer than any step of these tests.
const LIMIT: Duration = Duration::from_secs(60);

/// A file of users, and the thread that serves it.
struct Served {
    folder: tempfile::TempDir,
    users: Users,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Served {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("users"), text).unwrap();
        let users = Users::open(&folder.path().join("users"), Clock::start()).unwrap();
        let thread = threads::spawn("users", None, {
            let users = users.clone();
            move || users.run()
        });
        Self { folder, users, thread: Some(thread.unwrap()) }
    }

    /// Replaces the file, and returns when the users have changed.
    fn becomes(&self, text: &str) {
        let mut watch = self.users.watch();
        self.write(text);
        while !watch.has_moved() {
            std::thread::yield_now();
        }
    }

    fn write(&self, text: &str) {
        let (new, path) = (self.folder.path().join("new"), self.folder.path().join("users"));
        fs::write(&new, text).unwrap();
        fs::rename(&new, &path).unwrap();
    }

    fn login(&self, name: &str, password: &str) -> Result<Identity, Denied> {
        wait(&self.users.password(name.as_bytes(), password.as_bytes(), HERE))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.users.stop();
        self.thread.take().unwrap().join().unwrap();
    }
}

struct Bell(mpsc::SyncSender<()>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let _full = self.0.try_send(());
    }
}

/// Waits for a login as a loop of a frontend does: woken, it asks again.
fn wait(login: &Login) -> Result<Identity, Denied> {
    let (sender, woken) = mpsc::sync_channel(1);
    let waker = Waker::from(Arc::new(Bell(sender)));
    loop {
        if let Some(result) = login.result(&waker) {
            return result;
        }
        woken.recv_timeout(LIMIT).unwrap();
    }
}

fn section(name: &str, password: &str, more: &str) -> String {
    format!("[{name}]\npassword = '{}'\n{more}\n", HashedPassword::of(password).unwrap().text())
}

#[test]
fn a_right_password_is_let_in_and_a_wrong_one_or_an_unknown_name_is_not() {
    let served = Served::new(&(section("ada", "heron", "tasks = 'read'") + &format!("[key]\ncurve = '{KEY}'\n")));
    let ada = served.login("ada", "heron").unwrap();
    assert_eq!(ada.name(), "ada");
    assert!(ada.may(Access::Read, Resource::Tasks) && !ada.may(Access::Write, Resource::Tasks));
    assert!(served.users.is_current(&ada));
    for (name, password) in [("ada", "herom"), ("bob", "heron"), ("key", ""), ("", "")] {
        assert_eq!(served.login(name, password).map(|user| user.name().to_owned()), Err(Denied::Password), "{name}");
    }
    assert_eq!(served.users.refusals(Denied::Password), 4);
    assert_eq!(served.users.curve(&KEY.parse().unwrap(), HERE).unwrap().name(), "key");
    let other = crate::zmtp::SecretKey::generate().public_key();
    assert!(served.users.curve(&other, HERE).is_err());
    assert_eq!(served.users.refusals(Denied::Key), 1);
}

#[test]
fn a_password_that_was_right_needs_no_second_check_until_its_user_changes() {
    let served = Served::new(&section("ada", "heron", ""));
    served.login("ada", "heron").unwrap();
    let at_once = served.users.password(b"ada", b"heron", HERE);
    assert!(at_once.result(Waker::noop()).is_some_and(|result| result.is_ok()));
    assert!(served.users.password(b"ada", b"herom", HERE).result(Waker::noop()).is_none());
    served.becomes(&section("ada", "other", ""));
    assert!(served.users.password(b"ada", b"heron", HERE).result(Waker::noop()).is_none());
}

#[test]
fn a_user_who_goes_or_changes_is_current_no_more_and_others_stay() {
    let (ada, bob) = (section("ada", "heron", ""), section("bob", "egret", "read = ['a']"));
    let served = Served::new(&(ada.clone() + &bob));
    let (first, second) = (served.login("ada", "heron").unwrap(), served.login("bob", "egret").unwrap());
    served.becomes(&(bob.clone() + &ada));
    assert!(served.users.is_current(&first) && served.users.is_current(&second), "only their order has changed");
    served.becomes(&(ada + &bob.replace("['a']", "['b']")));
    assert!(served.users.is_current(&first) && !served.users.is_current(&second));
    served.becomes(&bob);
    assert!(!served.users.is_current(&first));
}

#[test]
fn a_broken_file_leaves_the_users_as_they_were() {
    let served = Served::new(&section("ada", "heron", ""));
    let ada = served.login("ada", "heron").unwrap();
    served.write("[ada");
    served.users.reread();
    // The thread reads the file before it checks a password that comes later.
    assert_eq!(served.login("ada", "herom").map(|_| ()), Err(Denied::Password));
    assert!(served.users.is_current(&ada));
    served.becomes("");
    assert!(!served.users.is_current(&ada));
}

#[test]
fn a_login_that_is_given_up_costs_no_check_and_too_many_are_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("users"), section("ada", "heron", "")).unwrap();
    let users = Users::open(&folder.path().join("users"), Clock::start()).unwrap();
    let logins: Vec<Login> =
        (0..limits::ATTEMPTS_PER_ADDRESS_MAX).map(|_| users.password(b"ada", b"guess", HERE)).collect();
    let further = users.password(b"ada", b"heron", HERE);
    assert!(further.result(Waker::noop()).is_some_and(|result| matches!(result, Err(Denied::Busy))));
    drop(logins);
    let mut work = users.0.work.lock();
    while let Some(due) = work.attempts.next(users.0.clock.now()) {
        drop(work);
        users.check(&due);
        work = users.0.work.lock();
    }
    assert_eq!(users.refusals(Denied::Password), 0);
}
