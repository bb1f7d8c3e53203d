//! Submissions: a request with its queue and its ticket, and the messages that carry them to the committer.

use super::{QueueId, QueueName, Request, Ticket};

/// A message to the committer.
pub(super) enum InboxMessage {
    /// Requests of one frontend, in their order.
    Asked(Vec<Submission>),
    /// Requests of one frontend about queues of families, in their order.
    AskedNamed(Vec<Submission<QueueName>>),
    /// From now on no request waits for a task.
    Dismiss,
    /// A deadline now comes before the end of the committer's sleep.
    Wake,
}

impl InboxMessage {
    /// The memory that the message takes while it waits, approximately.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Asked(asked) => asked.iter().map(|ask| ask.request.bytes()).sum(),
            Self::AskedNamed(asked) => asked.iter().map(|ask| ask.request.bytes()).sum(),
            Self::Dismiss | Self::Wake => 0,
        }
    }
}

/// A request with its queue and its receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission<Q = QueueId> {
    /// The queue.
    pub queue: Q,
    /// The receiver of the answer.
    pub ticket: Ticket,
    /// The request.
    pub request: Request,
}
