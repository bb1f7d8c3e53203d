//! The subscriptions of connections that have closed: they are taken away in portions.
//!
//! This file delivers nothing.

use super::{ConnectionId, Subscriptions, WorkerSubscribers};
use crate::services::resp::limits::NAMES_A_TURN;

impl WorkerSubscribers {
    /// A connection has closed. Its subscriptions go in portions. Until then its messages are counted, and lost.
    pub(in crate::services::resp) fn leave(&mut self, id: ConnectionId, subscriptions: Box<Subscriptions>) {
        self.leaving.push_back((id, subscriptions));
        self.let_some_go();
    }

    /// Takes some subscriptions of closed connections away.
    pub(super) fn let_some_go(&mut self) {
        for _ in 0..NAMES_A_TURN {
            let Some((id, mut subscriptions)) = self.leaving.pop_front() else { return };
            let Some((kind, name)) = subscriptions.pop() else { continue };
            if !subscriptions.stage.has_withdrawn(kind, &name) {
                self.withdraw(kind, &name);
            }
            self.remove(id, kind, &name);
            self.leaving.push_front((id, subscriptions));
        }
        self.mail.wake_signal.raise();
    }
}
