//! One connection to a subscriber.
//!
//! ```text
//! Shaking ──► Open ──► (it closes, or the connection breaks) gone
//!    │          │ a fault, a bound that it exceeds, or the end of the server
//!    └──────────┴──► Parting: what is left is sent, our end is closed, what still comes is thrown away ──► gone
//! ```
//! What is not here: which messages it gets, and when it has a turn.

use std::os::fd::OwnedFd;

use ahash::AHashSet;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
use thiserror::Error;

use super::PublishLimits;
use super::burst::ByteRun;
use super::queue::{QueuedBytes, SubscriberQueue};
use super::subscriber_command::SubscriberCommand;
use super::topics::{Member, NodeId, Topics};
use crate::clock::Now;
use crate::limits::{CONTROL_BYTES_MAX, SUBSCRIBER_RECEIVE_BYTES};
use crate::zmtp::{Handshake, HandshakeStep, ProtocolError, SocketType, encode_error, encode_pong};

/// How far a connection is.
#[derive(Debug)]
pub(super) enum SubscriberStage {
    Shaking(Handshake),
    Open,
    /// `true`: our end is closed.
    Parting(bool),
}

/// Why a subscriber is served no more.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum CloseReason {
    /// It does not speak ZMTP, or not as a subscriber does.
    #[error(transparent)]
    Fault(#[from] ProtocolError),
    /// It has more topics, or longer ones, than a subscriber may have.
    #[error("too many subscriptions: at most {most}")]
    Subscriptions {
        /// How many it may have.
        most: usize,
    },
    /// Its topics are longer than those of a subscriber may be.
    #[error("subscriptions with too many bytes: at most {most}")]
    TopicBytes {
        /// How many bytes they may have.
        most: usize,
    },
    /// All subscribers together have too many, and it has the most.
    #[error("too many subscriptions of all subscribers")]
    All,
    /// It does not read the answers to its PINGs.
    #[error("too many PINGs of which the answers were not read")]
    Pings,
}

/// A subscriber, and what waits for it.
#[derive(Debug)]
pub(super) struct SubscriberConnection {
    /// None: it is gone, and its place is not free before its subscriptions are removed.
    pub(super) descriptor: Option<OwnedFd>,
    pub(super) stage: SubscriberStage,
    /// Tells it from others that have or had its place.
    pub(super) generation: u32,
    /// The beginning of something that has not come whole.
    pub(super) unfinished: Vec<u8>,
    pub(super) queue: SubscriberQueue,
    /// What it subscribes to, as the trie knows it.
    pub(super) topics: AHashSet<NodeId>,
    /// Bytes of these topics.
    pub(super) topic_bytes: usize,
    /// What it subscribed to is still being removed; its place is not free before that is done.
    pub(super) is_leaving: bool,
    /// What it gets of the burst that is being handed on.
    pub(super) runs: Vec<ByteRun>,
    /// What the system has been asked to tell of.
    pub(super) interest: EventFlags,
    /// It is in the list of those from whom there is something to receive.
    pub(super) queued: bool,
    /// Bytes that came since it is served no more.
    pub(super) ignored: usize,
    /// When it has to be through with the handshake, or gone.
    pub(super) deadline: Now,
}

impl SubscriberConnection {
    /// Greets a peer that has just connected.
    pub(super) fn greet(descriptor: OwnedFd, generation: u32, deadline: Now, held: &QueuedBytes) -> Self {
        let (mut greeting, mut queue) = (Vec::new(), SubscriberQueue::default());
        let handshake = Handshake::begin(SocketType::XPub, &mut greeting);
        queue.push_copy(&greeting, 0, held);
        Self {
            descriptor: Some(descriptor),
            stage: SubscriberStage::Shaking(handshake),
            generation,
            unfinished: Vec::new(),
            queue,
            topics: AHashSet::new(),
            topic_bytes: 0,
            is_leaving: false,
            runs: Vec::new(),
            interest: EventFlags::IN,
            queued: false,
            ignored: 0,
            deadline,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.stage, SubscriberStage::Open) && self.descriptor.is_some()
    }

    pub(super) fn is_parting(&self) -> bool {
        matches!(self.stage, SubscriberStage::Parting(_)) && self.descriptor.is_some()
    }

    /// Receives once, behind what has not come whole before. How many bytes came; none: the connection is at its end.
    pub(super) fn receive(&mut self, buffer: &mut Vec<u8>) -> Option<usize> {
        buffer.clear();
        buffer.append(&mut self.unfinished);
        let start = buffer.len();
        buffer.resize(start + SUBSCRIBER_RECEIVE_BYTES, 0);
        let room = buffer.get_mut(start..).unwrap_or_default();
        let came = match recv(self.descriptor.as_ref()?, room, RecvFlags::DONTWAIT) {
            Ok((0, _)) => None,
            Ok((_, count)) => Some(count),
            Err(Errno::AGAIN | Errno::INTR) => Some(0),
            Err(_) => None,
        };
        buffer.truncate(start + came.unwrap_or(0));
        came
    }

    /// Does what the bytes ask for, and keeps what has not come whole.
    pub(super) fn listen(
        &mut self,
        bytes: &[u8],
        (member, topics): (Member, &mut Topics),
        (limits, held): (&PublishLimits, &QueuedBytes),
    ) -> Result<(), CloseReason> {
        let mut taken = self.shake(bytes, held)?;
        while matches!(self.stage, SubscriberStage::Open)
            && let Some((said, length)) = SubscriberCommand::decode(bytes.get(taken..).unwrap_or_default())?
        {
            taken += length;
            match said {
                SubscriberCommand::Subscribe(topic) => self.subscribe(topic, (member, topics), limits)?,
                SubscriberCommand::Cancel(topic) => self.cancel(topic, (member, topics)),
                SubscriberCommand::Ping(context) => self.answer(context, held)?,
                SubscriberCommand::Other => {}
            }
        }
        if !self.is_parting() {
            self.unfinished.extend_from_slice(bytes.get(taken..).unwrap_or_default());
        }
        Ok(())
    }

    /// Goes on with the handshake, if it is not over. How many bytes that takes.
    fn shake(&mut self, bytes: &[u8], held: &QueuedBytes) -> Result<usize, CloseReason> {
        let SubscriberStage::Shaking(handshake) = &mut self.stage else { return Ok(0) };
        let mut out = Vec::new();
        let went_on = handshake.advance(bytes, &mut out);
        self.queue.push_copy(&out, 0, held);
        let (taken, step) = went_on?;
        if matches!(step, HandshakeStep::Done(_)) {
            self.stage = SubscriberStage::Open;
        }
        Ok(taken)
    }

    fn subscribe(
        &mut self,
        topic: &[u8],
        (member, topics): (Member, &mut Topics),
        limits: &PublishLimits,
    ) -> Result<(), CloseReason> {
        let Some(id) = topics.subscribe(topic, member) else { return Ok(()) };
        self.topics.insert(id);
        self.topic_bytes += topic.len();
        if self.topics.len() > limits.subscriptions {
            return Err(CloseReason::Subscriptions { most: limits.subscriptions });
        }
        if self.topic_bytes > limits.topic_bytes {
            return Err(CloseReason::TopicBytes { most: limits.topic_bytes });
        }
        Ok(())
    }

    fn cancel(&mut self, topic: &[u8], (member, topics): (Member, &mut Topics)) {
        if let Some(id) = topics.cancel(topic, member) {
            self.topics.remove(&id);
            self.topic_bytes -= topic.len();
        }
    }

    fn answer(&mut self, context: &[u8], held: &QueuedBytes) -> Result<(), CloseReason> {
        let mut pong = Vec::new();
        encode_pong(&mut pong, context);
        self.queue.push_copy(&pong, 0, held);
        if self.queue.control_bytes() > CONTROL_BYTES_MAX { Err(CloseReason::Pings) } else { Ok(()) }
    }

    /// Has the system take what it takes of about `most` bytes, and closes our end of a connection that is parting when
    /// all is sent.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) fn flush(&mut self, most: usize) -> Result<(), Errno> {
        let Some(descriptor) = &self.descriptor else { return Ok(()) };
        if !self.queue.is_empty() {
            self.queue.flush(descriptor, most)?;
        }
        if let SubscriberStage::Parting(closed @ false) = &mut self.stage
            && self.queue.is_empty()
        {
            *closed = true;
            // It fails if the connection is gone, which is heard of otherwise.
            let _gone = shutdown(descriptor, Shutdown::Write);
        }
        Ok(())
    }

    /// What the system is to tell of.
    pub(super) fn wanted(&self) -> EventFlags {
        if self.queue.is_empty() { EventFlags::IN } else { EventFlags::IN | EventFlags::OUT }
    }

    /// Serves it no more. One that is refused gets no further messages, and is told why.
    pub(super) fn part(&mut self, refusal: Option<&CloseReason>, held: &QueuedBytes) {
        if let Some(refusal) = refusal {
            let mut error = Vec::new();
            // A fault of the handshake has been told by it, where the peer can read it.
            if matches!(self.stage, SubscriberStage::Open) {
                self.queue.discard();
                encode_error(&mut error, &refusal.to_string());
            }
            self.queue.push_copy(&error, 0, held);
        }
        self.stage = SubscriberStage::Parting(false);
        self.unfinished = Vec::new();
    }
}
