//! One connection to a subscriber.
//!
//! ```text
//! Shaking ──► Open ──► (the client closes, or the connection breaks) closed
//!    │          │ a protocol fault, an exceeded bound, or the end of the server
//!    └──────────┴──► Parting: send the rest, shut down our end, throw later input away ──► closed
//! ```
//! This module does not choose the subscriber's messages, nor the time of its turns; see `burst` and `subscribers`.

use std::sync::Arc;

use ahash::AHashSet;
use rustix::event::epoll::EventFlags;
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
use thiserror::Error;

use super::PublishLimits;
use super::burst::ByteRun;
use super::queue::SubscriberQueue;
use super::readers::Readers;
use super::sealed::SealedOutput;
use super::subscriber_command::SubscriberCommand;
use super::topics::{Member, NodeId, Topics};
use crate::clock::Now;
use crate::descriptors::ConnectionDescriptor;
use crate::limits::{CONTROL_BYTES_MAX, SUBSCRIBER_FRAME_BYTES_MAX, SUBSCRIBER_RECEIVE_BYTES};
use crate::net::budget::Budget;
use crate::security::{Identity, Login};
use crate::zmtp::{
    Claim, ClaimRefusal, Handshake, HandshakeStep, Mechanisms, Opener, ProtocolError, SocketType, encode_error,
    encode_pong,
};

/// The subscriptions of all, and which subscriber these are of.
type Subscriptions<'s> = (Member, &'s mut Topics, &'s mut Readers);

/// Stage of a connection.
#[derive(Debug)]
pub(super) enum SubscriberStage {
    Shaking(Handshake),
    Open,
    /// `true`: our end is shut down.
    Parting(bool),
}

/// Why the publisher ends a subscriber.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum CloseReason {
    /// It does not speak ZMTP, or not as a subscriber does.
    #[error(transparent)]
    Fault(#[from] ProtocolError),
    /// It has more topics than a subscriber may have.
    #[error("too many subscriptions: at most {most}")]
    Subscriptions {
        /// How many it may have.
        most: usize,
    },
    /// Its topics have more bytes than those of a subscriber may have.
    #[error("subscriptions with too many bytes: at most {most}")]
    TopicBytes {
        /// How many bytes they may have.
        most: usize,
    },
    /// All subscribers together exceed a bound of their topics, and this one has the most.
    #[error("too many subscriptions of all subscribers")]
    All,
    /// It does not read the PONGs that it asked for.
    #[error("too many PINGs of which the answers were not read")]
    Pings,
}

/// A subscriber, with its queue.
#[derive(Debug)]
pub(super) struct SubscriberConnection {
    /// `None`: it is gone. Its slot is not free before its subscriptions are removed.
    pub(super) descriptor: Option<ConnectionDescriptor>,
    pub(super) stage: SubscriberStage,
    /// Tells it from other subscribers in the same slot.
    pub(super) generation: u32,
    /// The beginning of a command or frame that has not come whole.
    pub(super) unfinished: Vec<u8>,
    pub(super) queue: SubscriberQueue,
    /// What the peer claims, until the publisher begins to check it.
    pub(super) claim: Option<Claim>,
    /// The check of its password, while it lasts. Meanwhile nothing is received.
    pub(super) login: Option<Login>,
    /// The user, where users are named.
    pub(super) identity: Option<Identity>,
    /// With CURVE, opens what it sends.
    opener: Option<Opener>,
    /// With CURVE, what is sent to it, before the queue.
    pub(super) sealed: Option<Box<SealedOutput>>,
    /// Nodes of its topics in the trie.
    pub(super) topics: AHashSet<NodeId>,
    /// Bytes of these topics.
    pub(super) topic_bytes: usize,
    /// Its subscriptions are still being removed. Its slot is not free before that is done.
    pub(super) is_leaving: bool,
    /// Its runs of the burst that is being sent.
    pub(super) runs: Vec<ByteRun>,
    /// Events that the system has been asked to report.
    pub(super) interest: EventFlags,
    /// It is in the list of subscribers with input to receive.
    pub(super) queued: bool,
    /// Nothing was received from it.
    pub(super) is_silent: bool,
    /// Bytes that came after its end.
    pub(super) ignored: usize,
    /// By then it must be through its handshake, or have ended its parting.
    pub(super) deadline: Now,
}

impl SubscriberConnection {
    /// Greets a client that has just connected. It has to name a user by one of these mechanisms, if there are any.
    pub(super) fn greet(
        descriptor: ConnectionDescriptor,
        generation: u32,
        deadline: Now,
        (mechanisms, held): (Option<&Arc<Mechanisms>>, &Arc<Budget>),
    ) -> Self {
        let (mut greeting, mut queue) = (Vec::new(), SubscriberQueue::default());
        let handshake = match mechanisms {
            None => Handshake::open(SocketType::XPub, &mut greeting),
            Some(mechanisms) => Handshake::serve(SocketType::XPub, mechanisms, &mut greeting),
        };
        queue.push_copy(&greeting, 0, held);
        Self {
            descriptor: Some(descriptor),
            stage: SubscriberStage::Shaking(handshake),
            generation,
            unfinished: Vec::new(),
            queue,
            claim: None,
            login: None,
            identity: None,
            opener: None,
            sealed: None,
            topics: AHashSet::new(),
            topic_bytes: 0,
            is_leaving: false,
            runs: Vec::new(),
            interest: EventFlags::IN,
            queued: false,
            is_silent: true,
            ignored: 0,
            deadline,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.stage, SubscriberStage::Open) && self.descriptor.is_some()
    }

    /// Whether no client misses it: nobody is through the handshake, or has a subscription.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_leaving && self.login.is_none() && self.descriptor.is_some() && self.topics.is_empty()
    }

    /// Whether it has sent bytes that the publisher has not received.
    pub(super) fn has_unreceived(&self) -> bool {
        self.descriptor.as_ref().is_some_and(|descriptor| ioctl_fionread(descriptor).is_ok_and(|bytes| bytes > 0))
    }

    pub(super) fn is_parting(&self) -> bool {
        matches!(self.stage, SubscriberStage::Parting(_)) && self.descriptor.is_some()
    }

    /// Receives once, behind the unfinished bytes. Returns the number of bytes received, or `None` if the connection
    /// has ended.
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
        self.is_silent &= came.is_none_or(|count| count == 0);
        came
    }

    /// Obeys the commands in the bytes, and keeps an incomplete one.
    pub(super) fn listen(
        &mut self,
        bytes: &[u8],
        subscriptions: Subscriptions<'_>,
        bounds: (&PublishLimits, &Arc<Budget>),
    ) -> Result<(), CloseReason> {
        let mut taken = self.shake(bytes, bounds.1)?;
        let rest = bytes.get(taken..).unwrap_or_default();
        if let Some(opener) = &mut self.opener {
            let mut opened = Vec::new();
            taken += opener.open(rest, SUBSCRIBER_FRAME_BYTES_MAX, &mut opened)?;
            // Each sealed frame is a whole frame, so nothing is left of the opened ones.
            self.obey(&opened, subscriptions, bounds)?;
        } else if matches!(self.stage, SubscriberStage::Open) {
            taken += self.obey(rest, subscriptions, bounds)?;
        }
        if !self.is_parting() {
            self.unfinished.extend_from_slice(bytes.get(taken..).unwrap_or_default());
        }
        Ok(())
    }

    /// Obeys the commands that have come whole. Returns how many bytes they are.
    fn obey(
        &mut self,
        bytes: &[u8],
        (member, topics, readers): Subscriptions<'_>,
        (limits, held): (&PublishLimits, &Arc<Budget>),
    ) -> Result<usize, CloseReason> {
        let mut taken = 0;
        while let Some((said, length)) = SubscriberCommand::decode(bytes.get(taken..).unwrap_or_default())? {
            taken += length;
            match said {
                SubscriberCommand::Subscribe(topic) => self.subscribe(topic, (member, topics, readers), limits)?,
                SubscriberCommand::Cancel(topic) => self.cancel(topic, (member, topics)),
                SubscriberCommand::Ping(context) => self.answer(context, held)?,
                SubscriberCommand::Other => {}
            }
        }
        Ok(taken)
    }

    /// Continues the handshake, if it is not over. Returns the number of bytes used.
    fn shake(&mut self, bytes: &[u8], held: &Arc<Budget>) -> Result<usize, CloseReason> {
        let SubscriberStage::Shaking(handshake) = &mut self.stage else { return Ok(0) };
        let mut out = Vec::new();
        let went_on = handshake.advance(bytes, &mut out);
        self.queue.push_copy(&out, 0, held);
        let (taken, step) = went_on?;
        match step {
            HandshakeStep::More => {}
            HandshakeStep::Claimed(claim) => self.claim = Some(claim),
            HandshakeStep::Done(_) => self.stage = SubscriberStage::Open,
        }
        Ok(taken)
    }

    /// Lets the peer in after its claim. False: the handshake has failed.
    pub(super) fn admit(&mut self, identity: Identity, held: &Arc<Budget>) -> bool {
        let SubscriberStage::Shaking(handshake) = &mut self.stage else { return false };
        let mut out = Vec::new();
        let admitted = handshake.admit(&mut out);
        self.queue.push_copy(&out, 0, held);
        let Ok(step) = admitted else { return false };
        self.identity = Some(identity);
        if let HandshakeStep::Done(_) = step {
            if let Some(cipher) = handshake.cipher() {
                let clear = self.queue.take_bytes();
                self.sealed = Some(Box::new(SealedOutput::new(cipher.sealer, clear, held)));
                self.opener = Some(cipher.opener);
            }
            self.stage = SubscriberStage::Open;
        }
        true
    }

    /// Refuses the peer after its claim.
    pub(super) fn deny(&mut self, why: ClaimRefusal, held: &Arc<Budget>) {
        if let SubscriberStage::Shaking(handshake) = &mut self.stage {
            let mut out = Vec::new();
            handshake.refuse(why, &mut out);
            self.queue.push_copy(&out, 0, held);
        }
    }

    fn subscribe(
        &mut self,
        topic: &[u8],
        (member, topics, readers): Subscriptions<'_>,
        limits: &PublishLimits,
    ) -> Result<(), CloseReason> {
        if self.identity.as_ref().is_some_and(|user| !readers.admit(member, user, topic)) {
            return Ok(());
        }
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

    fn answer(&mut self, context: &[u8], held: &Arc<Budget>) -> Result<(), CloseReason> {
        let mut pong = Vec::new();
        encode_pong(&mut pong, context);
        self.queue.push_copy(&pong, 0, held);
        if self.queue.control_bytes() > CONTROL_BYTES_MAX { Err(CloseReason::Pings) } else { Ok(()) }
    }

    /// Writes as many bytes as the system takes, of about `most` bytes. Shuts down our end of a parting connection when
    /// all bytes are sent.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) fn flush(&mut self, most: usize) -> Result<(), Errno> {
        let Some(descriptor) = &self.descriptor else { return Ok(()) };
        if let Some(sealed) = &mut self.sealed {
            let mut left = most;
            while sealed.send(descriptor)? && left > 0 && !self.queue.is_empty() {
                left = left.saturating_sub(self.queue.hand_over(|frames| sealed.seal(frames)));
            }
        } else if !self.queue.is_empty() {
            self.queue.flush(descriptor, most)?;
        }
        let is_sent = self.is_sent();
        if let SubscriberStage::Parting(closed @ false) = &mut self.stage
            && is_sent
        {
            *closed = true;
            // It fails if the connection is gone. Epoll reports that end.
            let _gone = shutdown(descriptor, Shutdown::Write);
        }
        Ok(())
    }

    /// Whether the system has taken all bytes.
    fn is_sent(&self) -> bool {
        self.queue.is_empty() && self.sealed.as_ref().is_none_or(|sealed| sealed.is_empty())
    }

    /// Events that the system is to report.
    pub(super) fn wanted(&self) -> EventFlags {
        let reading = if self.login.is_some() { EventFlags::RDHUP } else { EventFlags::IN };
        if self.is_sent() { reading } else { reading | EventFlags::OUT }
    }

    /// Ends its service. A refused subscriber gets no further messages, but an ERROR with the reason.
    pub(super) fn part(&mut self, refusal: Option<&CloseReason>, held: &Arc<Budget>) {
        if let Some(refusal) = refusal {
            let mut error = Vec::new();
            // The handshake itself reports its faults, in a form that the client can read.
            if matches!(self.stage, SubscriberStage::Open) {
                self.queue.discard();
                encode_error(&mut error, &refusal.to_string());
            }
            self.queue.push_copy(&error, 0, held);
        }
        self.stage = SubscriberStage::Parting(false);
        self.unfinished = Vec::new();
        (self.claim, self.login) = (None, None);
    }
}
