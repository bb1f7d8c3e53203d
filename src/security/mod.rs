//! Users: the identity of a peer, and its permissions.
//!
//! ```text
//! --users FILE ─► users: UserList ─► Users (shared) ─► curve(key), certificate(…) ─► Identity │ Denied
//!        ▲ SIGHUP, or a change           │           └► password(name, …) ─► Login ─► Identity │ Denied
//!        └───── the thread `users` ◄─────┘                (checked by the thread `users`)
//!
//! a request: Identity::may(access, resource)      a loop: UsersWatch::has_moved ─► Users::is_current(identity)
//! ```
//! - A frontend asks for the [`Identity`] of a peer once, at its handshake, and keeps it. A request is checked against
//!   the permissions in it, without a lock.
//! - When the file has changed, the thread `users` replaces the list and raises the generation. Each frontend compares
//!   the generation with the last that it has seen ([`UsersWatch`]: one load). If the generation has moved, the
//!   frontend asks for each connection whether its identity [is current](Users::is_current). It cuts those that are
//!   not.
//! - A file that cannot be read, or is broken, is logged and an [error](Users::fault) of the server. The list before
//!   stays, and the file is tried again each second.
//! - An unknown name takes as long as a known one: it is checked against a hash of its own.
//! - Who guesses is slowed down, and keeps no user out who is known: `attempts` says how.
//!
//! This room knows no socket and no verb. It logs no password, no hash and no secret key.

mod address;
mod attempts;
mod brake;
mod fingerprint;
pub mod limits;
mod login;
mod password;
mod permissions;
mod refusals;
mod reload;
pub mod user_file;
pub mod users;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

pub use address::PeerAddress;
pub use fingerprint::Fingerprint;
pub use login::Login;
pub use password::HashedPassword;
pub use permissions::{Access, Coverage, DEFAULT_QUEUE, Permissions, Prefixes, Resource};
pub use refusals::{Denied, RefusalPace};
pub use users::{User, UserList};

use crate::clock::{Clock, Now};
use crate::lock::{Condvar, Mutex};
use crate::zmtp::PublicKey;
use attempts::Attempts;
use login::LoginAttempt;
use password::{DigestKey, PasswordDigest};
use refusals::Refusals;
use reload::FileMark;

/// The user that a peer has proved to be.
#[derive(Clone, Debug)]
pub struct Identity {
    user: Arc<User>,
    /// Where the peer was admitted, and from where.
    origin: Option<(Users, PeerAddress)>,
}

impl Identity {
    /// The name of the user.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.user.name
    }

    /// An identity without a proof, for tests of permissions.
    #[cfg(test)]
    pub(crate) fn invented(permissions: Permissions) -> Self {
        let user = User { name: "ada".to_owned(), password: None, curve: None, certificate: None, permissions };
        Self { user: Arc::new(user), origin: None }
    }

    /// Everything that the user may do.
    #[must_use]
    pub fn permissions(&self) -> &Permissions {
        &self.user.permissions
    }

    /// Whether the user may use the resource so.
    #[must_use]
    #[inline]
    pub fn may(&self, access: Access, resource: Resource<'_>) -> bool {
        self.user.permissions.allow(access, resource)
    }

    /// Whether the user is still as it was when the peer was admitted: see [`Users::is_current`].
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.origin.as_ref().is_none_or(|(users, _)| users.is_current(self))
    }

    /// The generation of the users by now, for a caller that asks whether this one is current again only when it has
    /// moved.
    #[must_use]
    pub fn users_generation(&self) -> u64 {
        self.origin.as_ref().map_or(0, |(users, _)| users.generation())
    }

    /// Counts that a request was refused for lack of a permission, and logs it as [`Users::refused`] does.
    pub fn note_denied(&self) {
        if let Some((users, address)) = &self.origin {
            users.refused(*address, Denied::Permission, self.name());
        }
    }
}

/// The work of the thread `users`.
struct LoginWork {
    attempts: Attempts<LoginAttempt>,
    /// When the thread wakes by itself, if it sleeps. The thread writes it, and the caller that adds an attempt reads
    /// it.
    wakes_at: Now,
    /// The file is to be read again, whether or not it has changed.
    reread: bool,
    is_over: bool,
}

/// The users, and the digests of passwords that were right.
struct KnownUsers {
    list: UserList,
    /// By the names of their users. A changed user loses its digest.
    proven: HashMap<String, PasswordDigest>,
}

struct Shared {
    file: PathBuf,
    clock: Clock,
    /// Raised after each change of `known`.
    generation: AtomicU64,
    known: Mutex<KnownUsers>,
    digests: DigestKey,
    work: Mutex<LoginWork>,
    /// Signalled after each change of `work`.
    work_came: Condvar,
    refusals: Refusals,
    /// Why the users are not those of the file. The thread `users` writes it, `/ready` reads it.
    fault: Mutex<Option<String>>,
    /// Woken after each change of the generation.
    on_change: Mutex<Vec<Waker>>,
}

/// All users of a server. Clones are the same users.
#[derive(Clone)]
pub struct Users(Arc<Shared>);

impl std::fmt::Debug for Users {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Users({})", self.0.file.display())
    }
}

impl Users {
    /// Reads the file. Passwords are checked once a thread calls [`Users::run`].
    ///
    /// # Errors
    /// One line that names the file, the line in the file, and the mistake.
    pub fn open(file: &Path, clock: Clock) -> Result<Self, String> {
        Ok(Self::of(UserList::read(file)?, file, clock))
    }

    /// Whether there is a user of this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.known.lock().list.named(name).is_some()
    }

    /// The user of this name, which every client of a listener is. `None`: there is none.
    #[must_use]
    pub fn bound(&self, name: &str, address: PeerAddress) -> Option<Identity> {
        self.0.known.lock().list.named(name).map(|user| self.identity(user, address))
    }

    fn of(list: UserList, file: &Path, clock: Clock) -> Self {
        let work = LoginWork { attempts: Attempts::new(), wakes_at: Now::from_nanos(0), reread: false, is_over: false };
        Self(Arc::new(Shared {
            file: file.to_owned(),
            clock,
            generation: AtomicU64::new(0),
            known: Mutex::new(KnownUsers { list, proven: HashMap::new() }),
            digests: DigestKey::new(),
            work: Mutex::new(work),
            work_came: Condvar::new(),
            refusals: Refusals::default(),
            fault: Mutex::new(None),
            on_change: Mutex::new(Vec::new()),
        }))
    }

    /// Users without a file, and an identity whose refusals they count, for tests of frontends.
    #[cfg(test)]
    pub(crate) fn invented(permissions: Permissions) -> (Self, Identity) {
        let users = Self::of(UserList::default(), Path::new(""), Clock::start());
        let origin = Some((users.clone(), PeerAddress::Local));
        (users, Identity { origin, ..Identity::invented(permissions) })
    }

    /// Whether the file is to be read again, for tests of the caller of [`Users::reread`].
    #[cfg(test)]
    pub(crate) fn is_to_be_reread(&self) -> bool {
        self.0.work.lock().reread
    }

    /// The user of a public key.
    ///
    /// # Errors
    /// [`Denied::Key`] if no user has it, which is counted.
    pub fn curve(&self, key: &PublicKey, address: PeerAddress) -> Result<Identity, Denied> {
        let found = self.0.known.lock().list.with_key(key).map(|user| self.identity(user, address));
        found.ok_or_else(|| {
            self.refused(address, Denied::Key, &key.to_string());
            Denied::Key
        })
    }

    /// The user of a certificate, whose key the peer has.
    ///
    /// # Errors
    /// [`Denied::Certificate`] if no user has it, which is counted.
    pub fn certificate(&self, own: &Fingerprint, address: PeerAddress) -> Result<Identity, Denied> {
        let found = self.0.known.lock().list.with_certificate(own).map(|user| self.identity(user, address));
        found.ok_or_else(|| {
            self.refused(address, Denied::Certificate, &own.to_string());
            Denied::Certificate
        })
    }

    /// Whether the user is still in the file, with the same password, key, certificate and permissions.
    #[must_use]
    pub fn is_current(&self, identity: &Identity) -> bool {
        let known = self.0.known.lock();
        known.list.named(identity.name()).is_some_and(|user| Arc::ptr_eq(user, &identity.user))
    }

    /// Counts a refusal, and logs it if the [`RefusalPace`] allows. `who` is a name or a key as the peer gave it.
    pub fn refused(&self, address: PeerAddress, why: Denied, who: &str) {
        if let Some(unlogged) = self.0.refusals.note(address, why, self.0.clock.now()) {
            tracing::warn!("{}", refusals::line(address, why, who, unlogged));
        }
    }

    /// Refusals for this reason since the start.
    #[must_use]
    pub fn refusals(&self, why: Denied) -> u64 {
        self.0.refusals.count(why)
    }

    /// A watch that has seen the users as they are.
    #[must_use]
    pub fn watch(&self) -> UsersWatch {
        UsersWatch { users: self.clone(), seen: self.generation() }
    }

    /// Has this loop woken after each change of the users. One for each loop that may sleep for long.
    pub fn wake_on_change(&self, waker: Waker) {
        self.0.on_change.lock().push(waker);
    }

    /// Has the file read again.
    pub fn reread(&self) {
        self.0.work.lock().reread = true;
        self.0.work_came.notify_one();
    }

    /// Ends the thread that calls [`Users::run`]. Passwords that wait are refused.
    pub fn stop(&self) {
        self.0.work.lock().is_over = true;
        self.0.work_came.notify_one();
    }

    /// The loop of the thread `users`: checks passwords one after the other, and reads the file again when it has
    /// changed. Returns after [`Users::stop`].
    pub fn run(&self) {
        let mut mark = FileMark::of(&self.0.file);
        reload::warn_of_mode(&self.0.file);
        // Made before the first password comes: the first unknown name would otherwise take longer than the others.
        let _made = reload::nobody();
        let mut look = self.0.clock.now().after(limits::USERS_LOOK);
        loop {
            let now = self.0.clock.now();
            if now >= look {
                look = now.after(limits::USERS_LOOK);
                let latest = FileMark::of(&self.0.file);
                if latest != mark || self.is_readable_again() {
                    mark = latest;
                    self.reload();
                }
            }
            let mut work = self.0.work.lock();
            if work.is_over {
                return;
            }
            if std::mem::take(&mut work.reread) {
                drop(work);
                mark = FileMark::of(&self.0.file);
                self.reload();
                continue;
            }
            if let Some(due) = work.attempts.next(now) {
                drop(work);
                self.check(due);
                continue;
            }
            let until = work.attempts.next_due().into_iter().chain([look]).min().unwrap_or(look);
            work.wakes_at = until;
            self.0.work_came.wait_for(&mut work, now.time_until(until));
        }
    }

    fn identity(&self, user: &Arc<User>, address: PeerAddress) -> Identity {
        Identity { user: Arc::clone(user), origin: Some((self.clone(), address)) }
    }

    fn generation(&self) -> u64 {
        // Acquire: pairs with the Release in `reload`.
        self.0.generation.load(Ordering::Acquire)
    }
}

/// Notices that users have changed, by one load.
#[derive(Debug)]
pub struct UsersWatch {
    users: Users,
    /// The last generation that this watch has seen.
    seen: u64,
}

impl UsersWatch {
    /// Whether users have changed since the last call. If so, each identity may be outdated.
    #[must_use]
    pub fn has_moved(&mut self) -> bool {
        let generation = self.users.generation();
        std::mem::replace(&mut self.seen, generation) != generation
    }

    /// The users.
    #[must_use]
    pub fn users(&self) -> &Users {
        &self.users
    }
}

#[cfg(test)]
mod tests;
