//! A try to log in, from its first byte to its answer.
//!
//! ```text
//! password ─► has the digest of the right one, was right from here, no brake ─► in, at once
//!                └ no ─► Attempts ─► the thread `users`: the digest, else argon2id ─► in │ refused: wrong
//!                            └ one too many: that one is refused: busy
//! ```
//! The order of the checks, and the time until each, is that of [`Attempts`](super::attempts).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::attempts::{LoginOrigin, Put, Try};
use super::{Denied, Identity, PeerAddress, User, Users, reload};
use crate::lock::Mutex;

/// An attempt to log in, checked by the thread `users`. It is a future, and can be polled from any loop that has a
/// waker. Dropping it gives the attempt up, which counts as a failed attempt.
#[derive(Debug)]
pub struct Login {
    state: Arc<Mutex<LoginState>>,
    waits: Option<WaitingLogin>,
}

/// The place of a login among those that wait.
#[derive(Debug)]
struct WaitingLogin {
    users: Users,
    number: u64,
}

#[derive(Debug, Default)]
struct LoginState {
    result: Option<Result<Identity, Denied>>,
    /// Woken when the result is there.
    waker: Option<Waker>,
}

/// A password that waits to be checked, and where its result goes.
pub(super) struct LoginAttempt {
    password: Box<[u8]>,
    state: Arc<Mutex<LoginState>>,
}

impl Login {
    /// The result, if it is there. Otherwise `waker` is woken when it is.
    pub fn result(&self, waker: &Waker) -> Option<Result<Identity, Denied>> {
        let mut state = self.state.lock();
        if state.result.is_none() {
            state.waker = Some(waker.clone());
        }
        state.result.clone()
    }

    fn finished(result: Result<Identity, Denied>) -> Self {
        let state = LoginState { result: Some(result), waker: None };
        Self { state: Arc::new(Mutex::new(state)), waits: None }
    }
}

impl Future for Login {
    type Output = Result<Identity, Denied>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.result(context.waker()).map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Login {
    fn drop(&mut self) {
        let is_answered = self.state.lock().result.is_some();
        if let Some(WaitingLogin { users, number }) = self.waits.take().filter(|_| !is_answered) {
            let now = users.0.clock.now();
            users.0.work.lock().attempts.give_up(number, now);
        }
    }
}

impl LoginAttempt {
    /// Gives the result to the login.
    fn answer(self, result: Result<Identity, Denied>) {
        let mut state = self.state.lock();
        state.result = Some(result);
        if let Some(waker) = state.waker.take() {
            drop(state);
            waker.wake();
        }
    }
}

impl Users {
    /// Begins to check a name and a password. One that was right from this address before is known at once, unless it is
    /// braked.
    #[must_use]
    pub fn password(&self, name: &[u8], password: &[u8], address: PeerAddress) -> Login {
        let shared = &self.0;
        let name = std::str::from_utf8(name).unwrap_or_default();
        let origin = LoginOrigin { address, name: name.into(), guess: shared.digests.of_guess(name, password) };
        let known = self.known_password(name, password, address);
        let now = shared.clock.now();
        let mut work = shared.work.lock();
        if work.is_over {
            drop(work);
            self.refused(address, Denied::Busy, name);
            return Login::finished(Err(Denied::Busy));
        }
        if let Some(identity) = known.filter(|_| work.attempts.is_free(&origin, now)) {
            return Login::finished(Ok(identity));
        }
        let state = Arc::default();
        let attempt = LoginAttempt { password: password.into(), state: Arc::clone(&state) };
        let Put { number, due, displaced } = work.attempts.put(origin, attempt, now);
        // A flood of tries that must wait does not wake the thread for each.
        let is_early = due.is_none_or(|due| due < work.wakes_at);
        drop(work);
        if is_early {
            shared.work_came.notify_one();
        }
        if let Some(Try { origin, attempt, .. }) = displaced {
            self.refused(origin.address, Denied::Busy, &origin.name);
            attempt.answer(Err(Denied::Busy));
        }
        Login { state, waits: Some(WaitingLogin { users: self.clone(), number }) }
    }

    /// Checks one password and answers its login.
    pub(super) fn check(&self, due: Try<LoginAttempt>) {
        let Try { origin, attempt, .. } = due;
        let begun = self.0.clock.now();
        let result = match self.known_password(&origin.name, &attempt.password, origin.address) {
            Some(identity) => Ok(identity),
            None => self.compare(&origin.name, &attempt.password, origin.address),
        };
        let now = self.0.clock.now();
        match &result {
            Ok(_) => self.0.work.lock().attempts.right(&origin, now),
            Err(why) => {
                self.0.work.lock().attempts.wrong(&origin, begun.time_until(now), now);
                self.refused(origin.address, *why, &origin.name);
            }
        }
        attempt.answer(result);
    }

    /// Compares a password with that of the user. Takes as long if there is none.
    pub(super) fn compare(&self, name: &str, password: &[u8], address: PeerAddress) -> Result<Identity, Denied> {
        let user = self.0.known.lock().list.named(name).cloned();
        let hash = user.as_ref().and_then(|user| user.password.clone());
        let is_known = hash.is_some();
        let is_right = hash.unwrap_or_else(reload::nobody).is_of(password);
        match user.filter(|_| is_known && is_right) {
            Some(user) => self.prove(&user, password, address),
            None => Err(Denied::Password),
        }
    }

    /// Admits a user whose password was right, and remembers it, unless the list was replaced during the check.
    pub(super) fn prove(&self, user: &Arc<User>, password: &[u8], address: PeerAddress) -> Result<Identity, Denied> {
        let digest = self.0.digests.digest(password);
        let mut known = self.0.known.lock();
        if known.list.named(&user.name).is_none_or(|now| !Arc::ptr_eq(now, user)) {
            return Err(Denied::Password);
        }
        known.proven.insert(user.name.clone(), digest);
        Ok(self.identity(user, address))
    }

    /// The user, if this password of it was right before.
    pub(super) fn known_password(&self, name: &str, password: &[u8], address: PeerAddress) -> Option<Identity> {
        let digest = self.0.digests.digest(password);
        let known = self.0.known.lock();
        let user = known.list.named(name)?;
        known.proven.get(name).filter(|right| right.is(&digest)).map(|_| self.identity(user, address))
    }
}
