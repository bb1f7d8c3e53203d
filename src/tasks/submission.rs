//! Submissions: a request with its queue and its ticket, and the messages that carry them to the committer.

use super::{QueueName, Request, Ticket};

/// A message to the committer.
pub(super) enum InboxMessage {
    /// Requests of one frontend, in their order.
    Submitted(Vec<Submission>),
    /// From now on no request waits for a task.
    Dismiss,
    /// A deadline now comes before the end of the committer's sleep.
    Wake,
}

impl InboxMessage {
    /// The memory that the message takes while it waits, approximately.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Submitted(submissions) => submissions.iter().map(|submission| submission.request.bytes()).sum(),
            Self::Dismiss | Self::Wake => 0,
        }
    }
}

/// A request with its queue and its receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// The queue.
    pub queue: QueueName,
    /// The receiver of the answer.
    pub ticket: Ticket,
    /// The request.
    pub request: Request,
}
