//! The ZAP handler (RFC 27): libzmq asks it about each peer of the proxy's ROUTER, and it answers with the peer's user.
//!
//! ```text
//! request   address of the asking handshake │ "" │ "1.0" │ id │ domain │ peer's address │ routing id │ mechanism │
//!           NULL: –    PLAIN: name │ password    CURVE: public key (32)
//! reply     the same address │ "" │ "1.0" │ id │ "200", "300" or "400" │ text │ user id │ ""
//!
//! name, password ─► Login, checked by the thread `users` ─► the bell ─┐
//! public key ─────► known or not at once ─────────────────────────────┴► Logins::number ─► "200" │ "400"
//! users have changed ─► the connections of those that are gone, or are another now, end
//! ```
//! The user id is the number of a login ([`Logins`]): the proxy reads it of each connection, and the worker finds the
//! permissions under it. The handler answers in any order, so a password that is being checked delays no other
//! handshake. libzmq also asks about a peer with a mechanism that is not taken, and refuses it whatever the answer is:
//! so it is counted.
//!
//! Requests come from this process alone. One that is not as above is passed over, and its handshake ends by its time.

use std::sync::Arc;
use std::task::Waker;

use crate::clock::Clock;
use crate::log::WarningPace;
use crate::protocols::native::Admission;
use crate::protocols::sockets::{
    Addressed, Frame, RouterMechanisms, ServeError, Socket, SocketContext, Stopper, WakeSignal, ZAP_ENDPOINT,
    allow_login, end_logins, forget_logins, wait,
};
use crate::security::{Denied, Identity, Login, Logins, NO_LOGIN, PeerAddress, Users, UsersWatch};
use crate::zmtp::{ClaimRefusal, Mechanisms, PublicKey};

/// The version of ZAP.
const VERSION: &[u8] = b"1.0";
/// The most frames of a request that are kept, without the first: those of PLAIN.
const FRAMES_MAX: usize = 9;

/// Requests that are taken before the logins that are checked are answered: as many as come while one is answered.
const TURN_MAX: usize = 64;

/// A login that is being checked.
struct PendingLogin {
    /// The routing id of the handshake that has asked.
    asker: Frame,
    /// The number that it gave its request.
    request: Frame,
    login: Login,
}

/// The handler, ready to run.
pub struct ZapHandler {
    socket: Socket,
    users: Users,
    watch: UsersWatch,
    mechanisms: Arc<Mechanisms>,
    logins: Logins,
    /// No more than passwords may wait, beside those of handshakes that have just ended.
    checking: Vec<PendingLogin>,
    stopper: Stopper,
    bell: WakeSignal,
    clock: Clock,
    warned: WarningPace,
}

impl ZapHandler {
    /// A handler for the router of this context. From now on libzmq's requests wait for [`ZapHandler::run`].
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub(super) fn bind(context: &SocketContext, admission: &Admission, clock: Clock) -> Result<Self, ServeError> {
        let bell = WakeSignal::new()?;
        let mut socket = context.router(0)?;
        socket.bind(ZAP_ENDPOINT)?;
        let users = admission.users.clone();
        users.wake_on_change((&bell).into());
        Ok(Self {
            socket,
            watch: users.watch(),
            logins: Logins::new(&users),
            users,
            mechanisms: Arc::clone(&admission.mechanisms),
            checking: Vec::new(),
            stopper: Stopper::new(&bell),
            bell,
            clock,
            warned: WarningPace::default(),
        })
    }

    /// The users that have logged in.
    pub(super) fn logins(&self) -> &Logins {
        &self.logins
    }

    /// It ends the thread.
    pub(super) fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// The loop of the thread. Returns when it was told to stop. Connections that were let in stay, and no further peer
    /// is let in.
    pub fn run(mut self) {
        while !self.stopper.is_told() {
            wait(&[&self.socket], &self.bell, None);
            if self.watch.has_moved() {
                self.end_outdated();
            }
            for _ in 0..TURN_MAX {
                let mut asker = Frame::new();
                if !self.socket.receive(&mut asker) {
                    break;
                }
                self.take(asker);
            }
            self.hear_logins();
        }
    }

    /// Ends the connections of users that are no more as they were.
    fn end_outdated(&self) {
        let ended = end_logins(&self.logins.take_outdated());
        if ended > 0 {
            tracing::info!("{ended} connections of users that have changed are closed");
        }
    }

    /// Takes a request whose first frame has been received.
    fn take(&mut self, asker: Frame) {
        let (mut frames, mut more) = (Vec::with_capacity(FRAMES_MAX), asker.more());
        let mut is_long = false;
        while more {
            let mut frame = Frame::new();
            self.socket.receive_rest(&mut frame);
            more = frame.more();
            is_long |= frames.len() == FRAMES_MAX;
            if !is_long {
                frames.push(frame);
            }
        }
        match ZapRequest::read(&frames).filter(|_| !is_long) {
            Some(request) => self.judge(asker, &request),
            None if self.warned.is_time(self.clock.now()) => {
                tracing::warn!("a peer is not let in: libzmq asks about it, and not as ZAP 1.0 says");
            }
            None => {}
        }
    }

    /// Answers a request, or begins to check what its peer claims.
    fn judge(&mut self, asker: Frame, request: &ZapRequest<'_>) {
        let Mechanisms::Users { plain, curve } = &*self.mechanisms else { return };
        let address = PeerAddress::of_text(request.address);
        let result = match (request.mechanism, request.credentials) {
            (b"PLAIN", [name, password]) if *plain => {
                let login = self.users.password(name, password, address);
                self.checking.push(PendingLogin { asker, request: Frame::from(request.id), login });
                return;
            }
            (b"CURVE", [key]) if curve.is_some() => match <[u8; 32]>::try_from(&**key) {
                Ok(key) => self.users.curve(&PublicKey::of_bytes(key), address),
                Err(_) => return,
            },
            (mechanism, _) => {
                self.users.refused(address, Denied::Anonymous, &mechanism.escape_ascii().to_string());
                Err(Denied::Anonymous)
            }
        };
        self.reply(&asker, request.id, &result);
    }

    /// Answers about the peers whose passwords are checked, and forgets those that have gone meanwhile.
    fn hear_logins(&mut self) {
        let waker: Waker = (&self.bell).into();
        for pending in std::mem::take(&mut self.checking) {
            match pending.login.result(&waker) {
                Some(result) => self.reply(&pending.asker, &pending.request, &result),
                None if self.socket.has_peer(&pending.asker) => self.checking.push(pending),
                None => {}
            }
        }
    }

    /// Answers a handshake that waits, unless it has ended.
    fn reply(&self, asker: &Frame, request: &[u8], result: &Result<Identity, Denied>) {
        let login = result.as_ref().map_or(NO_LOGIN, |identity| self.logins.number(identity));
        let (status, text, user): (&[u8], _, _) = match result {
            Ok(_) if login != NO_LOGIN => (b"200", "OK".to_owned(), login.to_string()),
            Ok(_) => (b"400", "no more users are let in".to_owned(), String::new()),
            Err(why) => (ClaimRefusal::from(*why).status().as_bytes(), why.to_string(), String::new()),
        };
        if login != NO_LOGIN {
            allow_login(login);
        }
        if self.socket.address(asker) == Addressed::Ready {
            for frame in [b"", VERSION, request, status, text.as_bytes(), user.as_bytes()] {
                self.socket.send_bytes(frame, true);
            }
            self.socket.send_bytes(b"", false);
        }
    }
}

impl Drop for ZapHandler {
    fn drop(&mut self) {
        // Only what was noted of them goes: the connections end with their router, which may still have replies to send.
        forget_logins(&self.logins.take_all());
    }
}

/// Makes a router take only the users of the handler.
pub(super) fn ask_for_users(router: &Socket, admission: &Admission) {
    if let Mechanisms::Users { plain, curve } = &*admission.mechanisms {
        router.ask_for_users(RouterMechanisms { plain: *plain, curve: curve.as_ref() });
    }
}

/// A request, as far as the handler reads it.
struct ZapRequest<'f> {
    id: &'f [u8],
    address: &'f [u8],
    mechanism: &'f [u8],
    credentials: &'f [Frame],
}

impl<'f> ZapRequest<'f> {
    /// The request in these frames, behind the asker. None: it is not one of ZAP 1.0.
    fn read(frames: &'f [Frame]) -> Option<Self> {
        let [delimiter, version, id, _domain, address, _routing_id, mechanism, credentials @ ..] = frames else {
            return None;
        };
        let is_zap = delimiter.is_empty() && **version == *VERSION;
        is_zap.then_some(Self { id, address, mechanism, credentials })
    }
}

#[cfg(test)]
mod tests;
