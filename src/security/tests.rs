//! Users as frontends see them: logging in, changes of the file, and the thread that does both.

#![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

use std::fs;
use std::sync::mpsc;
use std::task::Wake;
use std::time::Duration;

use super::password::tests::CHECKS;
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

/// Users whose passwords no thread checks, and their file.
fn opened(text: &str) -> (tempfile::TempDir, PathBuf, Users) {
    opened_by(text, Clock::start())
}

fn opened_by(text: &str, clock: Clock) -> (tempfile::TempDir, PathBuf, Users) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users");
    fs::write(&file, text).unwrap();
    let users = Users::open(&file, clock).unwrap();
    (folder, file, users)
}

fn section(name: &str, password: &str, more: &str) -> String {
    format!("[{name}]\npassword = '{}'\n{more}\n", HashedPassword::of(password).unwrap().text())
}

#[test]
fn a_right_password_is_admitted_and_a_wrong_one_or_an_unknown_name_is_not() {
    let served = Served::new(&(section("ada", "heron", "tasks = 'read'") + &format!("[key]\ncurve = '{KEY}'\n")));
    let ada = served.login("ada", "heron").unwrap();
    assert_eq!(ada.name(), "ada");
    assert!(
        ada.may(Access::Read, Resource::TaskQueue(DEFAULT_QUEUE))
            && !ada.may(Access::Write, Resource::TaskQueue(DEFAULT_QUEUE))
    );
    assert!(served.users.is_current(&ada));
    for (name, password) in [("ada", "herom"), ("bob", "heron"), ("key", ""), ("key", "nobody has this password")] {
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
    let same = fs::read_to_string(served.folder.path().join("users")).unwrap();
    served.becomes(&(same + "# the team\n"));
    let at_once = served.users.password(b"ada", b"heron", HERE);
    assert!(at_once.result(Waker::noop()).is_some(), "it is as it was");
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
    served.becomes(&(section("ada", "other", "") + &bob));
    assert!(!served.users.is_current(&first), "its password is another");
    served.becomes(&bob);
    assert!(!served.users.is_current(&first));
}

/// Its name may be another person's now.
#[test]
fn a_user_who_goes_and_comes_again_has_its_new_password_alone() {
    let served = Served::new(&section("ada", "heron", ""));
    served.login("ada", "heron").unwrap();
    served.becomes("");
    served.becomes(&section("ada", "other", ""));
    assert_eq!(served.login("ada", "heron").map(|_| ()), Err(Denied::Password));
    assert!(served.login("ada", "other").is_ok());
}

#[test]
fn a_user_who_changes_while_its_password_is_checked_is_not_admitted() {
    let (_folder, file, users) = opened(&section("ada", "heron", ""));
    let before = users.0.known.lock().list.named("ada").cloned().unwrap();
    assert!(users.prove(&before, b"heron", HERE).is_ok());
    for text in [section("ada", "other", ""), String::new()] {
        fs::write(&file, text).unwrap();
        users.reload();
        assert_eq!(users.prove(&before, b"heron", HERE).map(|_| ()), Err(Denied::Password));
        assert!(users.known_password("ada", b"heron", HERE).is_none());
    }
}

/// The time that an answer takes would reveal which names there are.
#[test]
fn a_name_without_a_password_costs_a_check_as_any_other() {
    let (_folder, _file, users) = opened(&(section("ada", "heron", "") + &format!("[key]\ncurve = '{KEY}'\n")));
    for (name, expected) in [("ada", true), ("bob", false), ("key", false), ("", false)] {
        let before = CHECKS.get();
        assert_eq!(users.compare(name, b"heron", HERE).is_ok(), expected, "{name}");
        assert_eq!(CHECKS.get() - before, 1, "{name}");
    }
}

#[test]
fn the_file_is_read_again_on_demand_and_who_sleeps_is_woken() {
    let served = Served::new(&section("ada", "heron", ""));
    let (sender, woken) = mpsc::sync_channel(1);
    served.users.wake_on_change(Waker::from(Arc::new(Bell(sender))));
    let mut watch = served.users.watch();
    // The file is as it was, so only the demand has it read.
    served.users.reread();
    woken.recv_timeout(LIMIT).unwrap();
    assert!(watch.has_moved() && !watch.has_moved());
}

/// The next password that is due is checked. False: there is none.
fn check_next(users: &Users) -> bool {
    let due = users.0.work.lock().attempts.next(users.0.clock.now());
    due.map(|due| users.check(due)).is_some()
}

/// Whether the login has succeeded. None: it has not ended.
fn is_in(login: &Login) -> Option<bool> {
    login.result(Waker::noop()).map(|result| result.is_ok())
}

/// A user who had logged in once was not braked: each guess was compared with the digest of the right password.
#[test]
fn the_right_password_is_found_by_no_flood_of_guesses_also_if_it_was_right_before() {
    static NOW: AtomicU64 = AtomicU64::new(0);
    let (_folder, _file, users) = opened_by(&section("ada", "heron", ""), Clock::fake(&NOW));
    let elsewhere = PeerAddress::of([10, 0, 0, 1].into());
    let first = users.password(b"ada", b"heron", HERE);
    assert!(check_next(&users) && is_in(&first) == Some(true));
    assert_eq!(is_in(&users.password(b"ada", b"heron", HERE)), Some(true), "at once");
    for address in [HERE, elsewhere] {
        let parked: Vec<Login> =
            (0..64).map(|number| users.password(b"ada", format!("{number}").as_bytes(), address)).collect();
        let mut before = CHECKS.get();
        for number in 0..1_000 {
            let wrong = users.password(b"ada", format!("more {number}").as_bytes(), address);
            let right = users.password(b"ada", b"heron", address);
            assert_ne!(is_in(&right), Some(true), "{number}");
            drop((wrong, right));
        }
        assert_eq!(CHECKS.get(), before, "and the checker has not worked");
        drop(parked);
        // Each of them has counted, and the last one has begun the longest pause.
        let right = users.password(b"ada", b"heron", address);
        let wrong = users.password(b"ada", b"egret", address);
        before = CHECKS.get();
        for _ in 0..2 {
            NOW.fetch_add(7_999, Ordering::Relaxed);
            assert!(!check_next(&users) && is_in(&right).is_none());
            NOW.fetch_add(1, Ordering::Relaxed);
            if is_in(&wrong).is_none() {
                assert!(check_next(&users) && is_in(&wrong) == Some(false) && CHECKS.get() == before + 1, "the latest");
            }
        }
        assert!(check_next(&users) && is_in(&right) == Some(true), "the longest pause is over");
    }
}

#[test]
fn a_wrong_password_pauses_its_address_and_a_right_one_does_not() {
    static NOW: AtomicU64 = AtomicU64::new(0);
    let (_folder, _file, users) = opened_by(&section("ada", "heron", ""), Clock::fake(&NOW));
    let check = |name: &[u8], password: &[u8]| {
        let login = users.password(name, password, HERE);
        (check_next(&users), is_in(&login))
    };
    assert_eq!(check(b"ada", b"heron"), (true, Some(true)));
    assert_eq!(check(b"bob", b"heron"), (true, Some(false)), "the first wrong one");
    // A user that was admitted is not slowed down by others. The next unknown name is.
    assert_eq!(check(b"ada", b"heron"), (false, Some(true)), "at once");
    assert_eq!(check(b"ada", b"herom"), (true, Some(false)));
    assert_eq!(check(b"bob", b"heron"), (false, None));
    assert_eq!(check(b"ada", b"heron"), (false, None), "the way of a user is braked too");
}

/// A pause of a second check would be longer.
#[test]
fn a_wrong_password_that_comes_again_counts_once() {
    static NOW: AtomicU64 = AtomicU64::new(0);
    let (_folder, _file, users) = opened_by(&section("ada", "heron", ""), Clock::fake(&NOW));
    for _ in 0..5 {
        let login = users.password(b"ada", b"egret", HERE);
        assert!(check_next(&users) && is_in(&login) == Some(false));
        NOW.fetch_add(250, Ordering::Relaxed);
    }
    assert_eq!(users.refusals(Denied::Password), 5, "and each is refused");
}

#[test]
fn a_login_after_the_end_is_refused_at_once_and_every_refusal_is_counted() {
    let (_folder, _file, users) = opened(&section("ada", "heron", ""));
    let ada = users.compare("ada", b"heron", HERE).unwrap();
    ada.note_denied();
    users.stop();
    let late = users.password(b"ada", b"herom", HERE);
    assert!(late.result(Waker::noop()).is_some_and(|result| matches!(result, Err(Denied::Busy))));
    assert_eq!(Denied::ALL.map(|why| users.refusals(why)), [0, 0, 0, 1, 0, 1]);
}

#[test]
fn a_certificate_is_its_users_until_the_file_says_otherwise() {
    let own = Fingerprint::of(b"a certificate");
    let file = |name: &str| format!("[{name}]\ncertificate = '{own}'\n");
    let served = Served::new(&file("ada"));
    let found = |own: &Fingerprint| served.users.certificate(own, HERE);
    let ada = found(&own).unwrap();
    assert!(ada.name() == "ada" && ada.is_current());
    assert_eq!(found(&Fingerprint::of(b"another")).map(|_| ()), Err(Denied::Certificate));
    assert_eq!(served.users.refusals(Denied::Certificate), 1);
    // The thread may not have looked at the file yet, so it is asked to read it.
    let becomes = |text: &str| {
        let mut watch = served.users.watch();
        served.write(text);
        served.users.reread();
        while !watch.has_moved() {
            std::thread::yield_now();
        }
    };
    becomes(&file("eve"));
    assert!(found(&own).unwrap().name() == "eve" && !ada.is_current());
    becomes("");
    assert_eq!(found(&own).map(|_| ()), Err(Denied::Certificate));
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
fn a_login_that_is_given_up_costs_no_check_and_one_too_many_is_busy() {
    let (_folder, _file, users) = opened(&section("ada", "heron", ""));
    let logins: Vec<Login> =
        (0..limits::ATTEMPTS_PER_ADDRESS_MAX).map(|_| users.password(b"ada", b"guess", HERE)).collect();
    let further = users.password(b"ada", b"heron", HERE);
    let first = logins.first().unwrap().result(Waker::noop());
    assert!(is_in(&further).is_none() && matches!(first, Some(Err(Denied::Busy))), "the oldest gives its place");
    assert_eq!(users.refusals(Denied::Busy), 1);
    drop((logins, further));
    assert!(users.0.work.lock().attempts.next_due().is_none());
    assert_eq!(users.refusals(Denied::Password), 0);
}

/// A removed user would be admitted, and nobody would know.
#[test]
fn a_file_that_cannot_be_read_is_a_fault_until_it_can_be() {
    let (_folder, file, users) = opened(&section("ada", "heron", ""));
    assert_eq!(users.fault(), None);
    for text in [None, Some("[ada")] {
        fs::remove_file(&file).unwrap();
        text.iter().for_each(|text| fs::write(&file, text).unwrap());
        users.reload();
        let fault = users.fault().unwrap();
        assert!(fault.contains(file.to_str().unwrap()) && !users.is_readable_again(), "{fault}");
        fs::write(&file, "").unwrap();
        assert!(users.is_readable_again());
        users.reload();
        assert!(users.fault().is_none() && !users.is_readable_again());
    }
}

/// Its address has proved nothing else by it.
#[test]
fn a_user_with_other_permissions_keeps_its_way_in_and_one_with_another_password_does_not() {
    let (_folder, file, users) = opened(&section("ada", "heron", ""));
    let proven = || users.known_password("ada", b"heron", HERE).is_some();
    let ada = users.compare("ada", b"heron", HERE).unwrap();
    let same = fs::read_to_string(&file).unwrap();
    fs::write(&file, same + "tasks = 'read'\n").unwrap();
    users.reload();
    assert!(proven() && !users.is_current(&ada));
    fs::write(&file, section("ada", "egret", "")).unwrap();
    users.reload();
    assert!(!proven());
}
