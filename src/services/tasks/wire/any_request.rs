//! Any request: about the queue `default`, about a queue by name, or about many.

use super::fault::{Fault, Field};
use super::fields::{Fields, encode_name};
use super::queues::{Kicked, QueueRequest};
use super::request::tag::{IN_QUEUE, TERMINATE};
use super::request::{Request, Verb};

/// Any request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnyRequest<'b> {
    /// A request about the queue `default`.
    Plain(Request<'b>),
    /// The same about the queue with this name.
    InQueue(&'b [u8], Request<'b>),
    /// A request that names its queues.
    OfQueues(QueueRequest<'b>),
}

impl<'b> AnyRequest<'b> {
    /// Decodes a request, as [`Request::decode`].
    ///
    /// # Errors
    /// The first [`Fault`], from left to right.
    pub fn decode(bytes: &'b [u8]) -> Result<Self, Fault> {
        match bytes.first() {
            Some(&IN_QUEUE) => {
                let fields = &mut Fields::new(bytes.get(1..).unwrap_or_default());
                let queue = fields.name()?;
                let is_whole = fields.rest().first().is_none_or(|tag| *tag != TERMINATE);
                let request = Request::read(fields)?;
                // It ends the server, and no queue.
                let whole = is_whole.then_some(Self::InQueue(queue, request));
                whole.ok_or(Fault::Offending { field: Field::UnknownTag, offending: TERMINATE })
            }
            Some(&tag) if tag > IN_QUEUE => {
                let fields = &mut Fields::new(bytes.get(1..).unwrap_or_default());
                QueueRequest::decode(tag, fields).map(Self::OfQueues)
            }
            _ => Request::decode(bytes).map(Self::Plain),
        }
    }

    /// Appends the encoded request.
    ///
    /// # Panics
    /// As [`Request::encode`]. If a name has more than 255 bytes, or a list more than 65,535 entries.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Plain(request) => request.encode(out),
            Self::InQueue(queue, request) => {
                out.push(IN_QUEUE);
                encode_name(queue, out);
                request.encode(out);
            }
            Self::OfQueues(request) => {
                out.push(self.verb().tag());
                request.encode(out);
            }
        }
    }

    /// Whether this is true of each queue that the request names, `default` among them.
    pub fn all_queues(&self, default: &[u8], mut is_true: impl FnMut(&[u8]) -> bool) -> bool {
        match self {
            Self::Plain(_) => is_true(default),
            Self::InQueue(queue, _) => is_true(queue),
            Self::OfQueues(request) => match request {
                QueueRequest::AddMany { queues, .. } | QueueRequest::LendMany { queues, .. } => {
                    queues.iter().all(|queue| is_true(queue))
                }
                QueueRequest::SettleMany(items) => items.iter().all(|(lease, _)| is_true(lease.queue)),
                QueueRequest::ExtendMany(items) => items.iter().all(|(lease, _)| is_true(lease.queue)),
                QueueRequest::Browse { queue, .. }
                | QueueRequest::Kick { queue, .. }
                | QueueRequest::Purge { queue, .. }
                | QueueRequest::Configure { queue, .. } => is_true(queue),
                // The answer shows those that its user may read.
                QueueRequest::Queues { .. } => true,
            },
        }
    }

    /// Whether the request kicks or purges many tasks, in steps.
    #[must_use]
    pub fn is_sweep(&self) -> bool {
        match self {
            Self::OfQueues(QueueRequest::Kick { what, .. }) => !matches!(what, Kicked::One(_)),
            request => request.verb() == Verb::Purge,
        }
    }

    /// The kind of the request.
    #[must_use]
    pub fn verb(&self) -> Verb {
        match self {
            Self::Plain(request) | Self::InQueue(_, request) => request.verb(),
            Self::OfQueues(request) => match request {
                QueueRequest::AddMany { .. } => Verb::AddMany,
                QueueRequest::LendMany { .. } => Verb::LendMany,
                QueueRequest::SettleMany(_) => Verb::SettleMany,
                QueueRequest::ExtendMany(_) => Verb::ExtendMany,
                QueueRequest::Browse { .. } => Verb::Browse,
                QueueRequest::Kick { .. } => Verb::Kick,
                QueueRequest::Purge { .. } => Verb::Purge,
                QueueRequest::Configure { .. } => Verb::Configure,
                QueueRequest::Queues { .. } => Verb::Queues,
            },
        }
    }
}
