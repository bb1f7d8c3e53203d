//! Numbers for users that have logged in, so that a request can carry its user in four bytes.
//!
//! ```text
//! a frontend's logins ─► Logins::number ─► the request's number ─► LoginReader::user ─► Identity │ None: no more
//!                                  ▲                                     ▲
//!                 users, as they change (`UsersWatch`) ──────────────────┘
//! ```
//! A number is that of a user with its password, key and permissions: when one of them changes, the user has another
//! number. A number is never given again in this process. So one that a reader does not know is either new, or that
//! of a user that was removed or changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Denied, Identity, PeerAddress, Users, UsersWatch};
use crate::lock::Mutex;

/// The last number that was given out in this process. Four billion changes of users use them up, and then none of
/// those that follow is let in.
static LAST: AtomicU32 = AtomicU32::new(0);

/// The number of no user.
pub const NO_LOGIN: u32 = 0;

/// The users of one frontend that have logged in. Clones are the same.
#[derive(Clone, Debug)]
pub struct Logins {
    users: Users,
    /// One entry for each user, so no more than the file has, and those that were removed since the last call of
    /// [`Logins::take_outdated`].
    numbered: Arc<Mutex<Vec<(u32, Identity)>>>,
}

impl Logins {
    /// Those of a frontend before its first client.
    #[must_use]
    pub fn new(users: &Users) -> Self {
        Self { users: users.clone(), numbered: Arc::default() }
    }

    /// The number of a user, the same for all of its connections.
    #[must_use]
    pub fn number(&self, identity: &Identity) -> u32 {
        let mut numbered = self.numbered.lock();
        if let Some((number, _)) = numbered.iter().find(|(_, known)| Arc::ptr_eq(&known.user, &identity.user)) {
            return *number;
        }
        // Relaxed: the lock, and the way of the request through libzmq, order it.
        let last = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| last.checked_add(1));
        let Ok(last) = last else { return NO_LOGIN };
        numbered.push((last + 1, identity.clone()));
        last + 1
    }

    /// Forgets the users that are no more as they were. Returns their numbers.
    #[must_use]
    pub fn take_outdated(&self) -> Vec<u32> {
        let mut outdated = Vec::new();
        self.numbered.lock().retain(|(number, identity)| {
            let is_current = self.users.is_current(identity);
            if !is_current {
                outdated.push(*number);
            }
            is_current
        });
        outdated
    }

    /// Forgets all users. Returns their numbers.
    #[must_use]
    pub fn take_all(&self) -> Vec<u32> {
        self.numbered.lock().drain(..).map(|(number, _)| number).collect()
    }

    /// A reader for one thread.
    #[must_use]
    pub fn reader(&self) -> LoginReader {
        LoginReader { logins: self.clone(), watch: self.users.watch(), known: Vec::new(), latest: NO_LOGIN }
    }
}

/// The users by their numbers, for one thread: a look-up takes no lock unless the number is new.
#[derive(Debug)]
pub struct LoginReader {
    logins: Logins,
    watch: UsersWatch,
    /// In the order of their numbers.
    known: Vec<(u32, Identity)>,
    /// The highest number that this reader knows or has known.
    latest: u32,
}

impl LoginReader {
    /// Forgets the users that are no more as they were. To be called before each batch of requests: one load.
    #[inline]
    pub fn renew(&mut self) {
        if self.watch.has_moved() {
            let users = self.watch.users();
            self.known.retain(|(_, identity)| users.is_current(identity));
        }
    }

    /// The user with this number. None: there is none, or it is no more as it was.
    #[inline]
    #[must_use]
    pub fn user(&mut self, number: u32) -> Option<&Identity> {
        if number > self.latest {
            self.learn(number);
        }
        self.known(number)
    }

    /// The user with this number, if the reader was asked for it before.
    #[must_use]
    pub fn known(&self, number: u32) -> Option<&Identity> {
        let index = self.known.binary_search_by_key(&number, |(known, _)| *known).ok()?;
        self.known.get(index).map(|(_, identity)| identity)
    }

    /// Counts that a request with this number was refused, and logs it as [`Users::refused`] does.
    pub fn note_denied(&self, number: u32, address: PeerAddress) {
        let name = self.known(number).map_or("a user that was removed or changed", Identity::name);
        self.watch.users().refused(address, Denied::Permission, name);
    }

    #[cold]
    fn learn(&mut self, asked: u32) {
        let (users, latest) = (self.watch.users(), self.latest);
        // Numbers are given in rising order, and this one before its first request: lower ones are here, or gone.
        self.latest = asked;
        for (number, identity) in self.logins.numbered.lock().iter().filter(|(number, _)| *number > latest) {
            self.latest = self.latest.max(*number);
            if users.is_current(identity) {
                self.known.push((*number, identity.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;
    use crate::clock::Clock;
    use crate::zmtp::{PublicKey, SecretKey};

    #[test]
    fn a_user_has_a_number_until_it_changes_and_no_other_user_gets_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("users");
        let keys = [0, 1].map(|_| SecretKey::generate().public_key());
        let write = |count: usize, end: &str| {
            let section = |(name, key): (&str, &PublicKey)| format!("[{name}]\ncurve = \"{key}\"\n");
            let sections: Vec<String> = ["ada", "bob"].into_iter().zip(&keys).take(count).map(section).collect();
            std::fs::write(&file, sections.concat() + end).unwrap();
        };
        write(2, "");
        let users = Users::open(&file, Clock::start()).unwrap();
        let logins = Logins::new(&users);
        let mut reader = logins.reader();
        let log_in = |index: usize| logins.number(&users.curve(keys.get(index).unwrap(), PeerAddress::Local).unwrap());
        let (ada, bob) = (log_in(0), log_in(1));
        assert!(ada != NO_LOGIN && bob > ada && (log_in(0), log_in(1)) == (ada, bob));
        let names = |reader: &mut LoginReader, numbers: &[u32]| {
            numbers.iter().map(|number| reader.user(*number).map(|user| user.name().to_owned())).collect::<Vec<_>>()
        };
        let some = |name: &str| Some(name.to_owned());
        assert_eq!(names(&mut reader, &[ada]), [some("ada")]);
        assert_eq!(names(&mut reader, &[ada, bob, NO_LOGIN]), [some("ada"), some("bob"), None]);
        assert_eq!(reader.known.len(), 2, "each once");
        // Bob is changed.
        write(2, "admin = true\n");
        users.reload();
        reader.renew();
        assert_eq!(names(&mut reader, &[ada, bob]), [some("ada"), None]);
        let changed = log_in(1);
        assert!(changed > bob);
        assert_eq!(logins.take_outdated(), [bob]);
        assert_eq!(names(&mut reader, &[changed, bob]), [some("bob"), None]);
        // Bob is removed. A reader that comes later knows none of its numbers.
        write(1, "");
        users.reload();
        let mut late = logins.reader();
        assert_eq!(names(&mut late, &[changed, bob, ada]), [None, None, some("ada")]);
        assert_eq!((logins.take_outdated(), logins.take_all()), (vec![changed], vec![ada]));
        late.note_denied(ada, PeerAddress::Local);
        late.note_denied(bob, PeerAddress::Local);
        assert_eq!(users.refusals(Denied::Permission), 2);
    }
}
