//! The loop of a thread that serves connections of ZeroMQ, from its first wait to its end.
//!
//! ```text
//! wait ─► serve ─► wait ─► … stop request ─► what has come until now is served ─► receives no more
//!   ─► serves what waits ─► parts with all clients ─► sees them leave ─► ends, at most LINGER after the request
//! ```
//! This module does not know what is served.

use std::time::Duration;

use super::{ConnectionState, Connections, TurnOutcome};
use crate::clock::{Clock, TimeLimit};
use crate::limits::LINGER;
use crate::net::sockets::Stopper;

/// What the loop needs of a frontend.
pub(crate) struct ServingParts<'f, S> {
    /// Its connections.
    pub(crate) connections: &'f mut Connections<S>,
    /// Stops it.
    pub(crate) stopper: &'f Stopper,
    /// Its clock.
    pub(crate) clock: Clock,
}

/// A frontend with connections of its own, and a state `S` for each.
pub(crate) trait Serving<S: ConnectionState> {
    /// What the loop needs of it.
    fn parts(&mut self) -> ServingParts<'_, S>;

    /// Waits until there is work, or until `limit` is over.
    fn wait(&mut self, limit: Option<TimeLimit>);

    /// Whether messages that were received wait for an answer, beside those that the connections hold.
    fn has_waiting(&mut self) -> bool;

    /// It is to stop, and takes what has come until now.
    fn stop_accepting(&mut self) {
        self.parts().connections.stop_accepting();
    }

    /// Runs it in this thread. `serve` does the work that a wait has found, and has a limit after
    /// [`Stopper::stop`]. `settle` ends what is left of it, before the clients are parted with.
    ///
    /// # Errors
    /// Those of `serve` and `settle`.
    fn run<E>(
        &mut self,
        mut serve: impl FnMut(&mut Self, Option<TimeLimit>) -> Result<(), E>,
        settle: impl FnOnce(&mut Self, TimeLimit) -> Result<(), E>,
    ) -> Result<(), E> {
        while !self.parts().stopper.is_stopping() {
            self.wait(None);
            serve(self, None)?;
        }
        self.stop_accepting();
        let ServingParts { connections, clock, .. } = self.parts();
        let limit = TimeLimit::begin(clock.now(), LINGER);
        // What has come until now.
        connections.wait(Some(Duration::ZERO), || clock.now());
        serve(self, Some(limit))?;
        self.parts().connections.stop_receiving();
        while (self.parts().connections.has_backlog() || self.has_waiting()) && !limit.is_over(clock.now()) {
            self.wait(Some(limit));
            serve(self, Some(limit))?;
        }
        settle(self, limit)?;
        let ServingParts { connections, .. } = self.parts();
        connections.disconnect_all();
        while !connections.is_empty() && !limit.is_over(clock.now()) {
            connections.wait(Some(limit.left(clock.now())), || clock.now());
            while connections.receive(1, |_, _, _, _| TurnOutcome::All).is_some() {}
        }
        Ok(())
    }
}
