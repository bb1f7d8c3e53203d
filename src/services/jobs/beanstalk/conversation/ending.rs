//! The end of a connection: its jobs go back.
//!
//! ```text
//! the requests of the batch are answered ─► jobs that were not sent were never lent ─► those that are held, in portions
//! ```
//! This module reads and answers nothing.

use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::{BeanstalkConversation, PendingReply};
use crate::limits::JOB_SILENCE;
use crate::services::jobs::handle;
use crate::services::jobs::responder::LAST_MAX;
use crate::tasks::{GrantedLease, Outcome, Request, ReservationEnd};

impl BeanstalkConversation<'_> {
    pub(super) fn undo_unsent(&self, outcome: &Outcome) {
        let Outcome::LeasedMany(granted) = outcome else { return };
        for GrantedLease { key, .. } in granted {
            let queue = self.session.queue_of_held(handle::id(key).0);
            self.shared.responder.take_back(queue, self.session.holder, key.clone());
        }
    }

    /// The connection is over: what it has reserved is given back. While the server ends nothing is: no reservation is
    /// stored, and so no try is counted.
    pub(super) async fn end(mut self) {
        while let Some(next) = self.batch.pop_front() {
            if let PendingReply::Asked { started, .. } = next
                && let Ok(answer) = started.answer.await
            {
                self.undo_unsent(&answer.outcome);
            }
        }
        self.shared.leave(self.session.roles());
        if self.shared.ends.closing.is_given() {
            return;
        }
        self.give_back().await;
        // With TLS it has an end of its own.
        let _gone = timeout(JOB_SILENCE, self.stream.shutdown()).await;
    }

    /// Gives back what is reserved, in portions, until the server ends.
    async fn give_back(&mut self) {
        let (holder, held) = (self.session.holder, self.session.held.take());
        for portion in held.chunks(LAST_MAX) {
            let ended = portion.iter().map(|(id, is_sent)| {
                let key = Box::from(id.to_be_bytes());
                let request = match is_sent {
                    true => Request::EndReservation { key, holder, how: ReservationEnd::Closed },
                    false => Request::Undo { token: holder, key },
                };
                (self.session.queue_of_held(*id), request)
            });
            let is_given = self.shared.responder.submit_last(ended.collect()).await;
            if !is_given || self.shared.ends.closing.is_given() {
                return;
            }
        }
    }
}
