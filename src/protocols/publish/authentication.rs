//! What the publisher keeps of the users of an endpoint. This module does not let anybody in; see `identity`.

use std::sync::Arc;
use std::task::Waker;

use crate::protocols::native::{Admission, ConnectionId};
use crate::protocols::sockets::WakeSignal;
use crate::security::UsersWatch;
use crate::zmtp::Mechanisms;

/// The users of an endpoint, and the logins that are being checked.
pub(super) struct Authentication {
    pub(super) watch: UsersWatch,
    pub(super) mechanisms: Arc<Mechanisms>,
    /// Wakes the publisher when a password is checked.
    pub(super) waker: Waker,
    /// Subscribers whose passwords are being checked.
    pub(super) checking: Vec<ConnectionId>,
}

impl Authentication {
    /// Nobody is let in yet. A publisher that waits for the bell hears of the checks.
    pub(super) fn new(Admission { users, mechanisms }: &Admission, bell: &WakeSignal) -> Self {
        Self { watch: users.watch(), mechanisms: Arc::clone(mechanisms), waker: bell.into(), checking: Vec::new() }
    }
}
