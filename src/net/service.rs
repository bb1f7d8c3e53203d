//! What each service is given before it listens, and what is then to run.
//!
//! ```text
//! ServiceParts ─┐
//! its settings ─┴► bind: it listens ─► serve: what it serves is open ─► Service ─► a thread runs its front
//! ```
//! A service cannot listen without its parts, so none serves a peer before it knows its users. This module does not
//! know which users and bounds a service has: the composition root does.

use std::sync::Arc;

use super::budget::Budget;
use super::sockets::{ServeError, Stopper, WakeSignal};
use super::tcp::Certificate;
use super::zeromq::{Admission, BoundListener, ConnectionState, Connections};
use crate::security::Users;
use crate::stats::slow_log::SlowLog;
use crate::zmtp::MessageBounds;

/// What a service is given before it listens.
#[derive(Clone, Default)]
pub struct ServiceParts {
    /// The users that it checks. None: it serves every peer.
    pub admission: Option<Admission>,
    /// Encrypts connections over plain TCP. Those over ZeroMQ have CURVE.
    pub certificate: Option<Certificate>,
    /// Bytes that a service over ZeroMQ holds for its clients at most.
    pub held_bytes_max: u64,
    /// Its slow requests.
    pub slow: Arc<SlowLog>,
}

impl ServiceParts {
    /// The users, for a service over plain TCP: a password is the only proof there.
    pub(crate) fn users(&self) -> Option<Users> {
        self.admission.as_ref().map(|admission| admission.users.clone())
    }

    /// Listens at an endpoint of ZeroMQ. Buffers take at most half of what the service holds.
    pub(crate) fn listen<S: ConnectionState>(
        &self,
        endpoint: &str,
        bounds: MessageBounds,
    ) -> Result<BoundConnections<S>, ServeError> {
        let listener = BoundListener::bind(endpoint)?;
        let endpoint = listener.endpoint().to_owned();
        let wake_signal = WakeSignal::new()?;
        let budget = Budget::new(self.held_bytes_max / 2);
        let mut connections = Connections::new(&wake_signal, bounds, &budget, self.admission.as_ref())?;
        connections.listen(listener)?;
        Ok(BoundConnections { connections, wake_signal, budget, endpoint })
    }
}

/// The connections of a service over ZeroMQ that has one thread.
pub(crate) struct BoundConnections<S> {
    pub(crate) connections: Connections<S>,
    /// Wakes the thread.
    pub(crate) wake_signal: WakeSignal,
    pub(crate) budget: Arc<Budget>,
    /// With the port that the system chose.
    pub(crate) endpoint: String,
}

/// A service, ready to run.
pub struct Service<F> {
    /// To be run in a thread of its own.
    pub front: F,
    /// Has it take no more requests.
    pub stopper: Stopper,
    /// Where it listens, with the port that the system chose.
    pub endpoint: String,
    /// The bytes that it holds for its clients, as far as the tables' memory limit leaves them out.
    pub budgets: Vec<Arc<Budget>>,
}
