//! One connection to a subscriber.
//!
//! ```text
//! its bytes ─► SubscriberInput ─► SubscriberCommand ─► Subscriptions, or a PONG
//! runs of the burst ─► SubscriberOutput: its queue ─► (sealed ─►) the system
//! ```
//! Its slot outlives the connection until its subscriptions are removed.
//!
//! This module does not choose the subscriber's messages, nor the time of its turns; see `burst` and `subscribers`.

use std::sync::Arc;

use rustix::event::epoll::EventFlags;
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{RecvFlags, recv};
use thiserror::Error;

use super::PublishLimits;
use super::burst::ByteRun;
use super::queue::SubscriberQueue;
use super::sealed::SealedOutput;
use super::subscriber_command::SubscriberCommand;
use super::subscriptions::{SubscriberTopics, Subscriptions};
use super::topics::Member;
use crate::clock::Now;
use crate::descriptors::ConnectionDescriptor;
use crate::limits::{CONTROL_BYTES_MAX, SUBSCRIBER_FRAME_BYTES_MAX, SUBSCRIBER_RECEIVE_BYTES};
use crate::net::budget::Budget;
use crate::net::zeromq::{ConnectionStage, Interest, PeerIdentity};
use crate::security::Identity;
use crate::zmtp::{ClaimRefusal, Mechanisms, Opener, ProtocolError, SocketType, encode_error, encode_pong};

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

/// What a subscriber has sent.
#[derive(Debug, Default)]
pub(super) struct SubscriberInput {
    /// The beginning of a command or frame that has not come whole.
    pub(super) unfinished: Vec<u8>,
    /// With CURVE, opens what it sends.
    opener: Option<Opener>,
    /// It is in the list of subscribers with input to receive.
    pub(super) is_queued: bool,
    /// Something was received from it.
    pub(super) has_come: bool,
    /// Bytes that came after its end.
    pub(super) ignored: usize,
}

/// What is sent to a subscriber.
#[derive(Debug, Default)]
pub(super) struct SubscriberOutput {
    /// Its runs of the burst that is being sent.
    pub(super) runs: Vec<ByteRun>,
    pub(super) queue: SubscriberQueue,
    /// With CURVE, what is sent before the queue.
    pub(super) sealed: Option<Box<SealedOutput>>,
}

impl SubscriberOutput {
    /// Whether the system has taken all bytes.
    fn is_sent(&self) -> bool {
        self.queue.is_empty() && self.sealed.as_ref().is_none_or(|sealed| sealed.is_empty())
    }
}

/// A subscriber, with its queue.
#[derive(Debug)]
pub(super) struct SubscriberConnection {
    /// `None`: it is gone. Its slot is not free before its subscriptions are removed.
    pub(super) descriptor: Option<ConnectionDescriptor>,
    stage: ConnectionStage,
    /// Distinguishes it from other subscribers in the same slot.
    pub(super) generation: u32,
    pub(super) peer: PeerIdentity,
    pub(super) input: SubscriberInput,
    pub(super) output: SubscriberOutput,
    pub(super) topics: SubscriberTopics,
    pub(super) interest: Interest,
    /// By then it must be through its handshake, or have ended its parting.
    pub(super) deadline: Now,
}

impl SubscriberConnection {
    /// Greets a client that has just connected. It has to name a user by one of these mechanisms, if there are any.
    pub(super) fn greet(
        descriptor: ConnectionDescriptor,
        generation: u32,
        deadline: Now,
        interest: Interest,
        mechanisms: Option<&Arc<Mechanisms>>,
        held: &Arc<Budget>,
    ) -> Self {
        let (mut greeting, mut output) = (Vec::new(), SubscriberOutput::default());
        let stage = ConnectionStage::greet(SocketType::XPub, mechanisms, &mut greeting);
        output.queue.push_copy(&greeting, 0, held);
        Self {
            descriptor: Some(descriptor),
            stage,
            generation,
            peer: PeerIdentity::default(),
            input: SubscriberInput::default(),
            output,
            topics: SubscriberTopics::default(),
            interest,
            deadline,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.stage.is_open() && self.descriptor.is_some()
    }

    /// Whether no client misses it: nobody is through the handshake, or has a subscription.
    pub(super) fn is_idle(&self) -> bool {
        !self.topics.is_leaving && !self.peer.is_checked() && self.descriptor.is_some() && self.topics.nodes.is_empty()
    }

    /// Whether it has sent bytes that the publisher has not received.
    pub(super) fn has_unreceived(&self) -> bool {
        self.descriptor.as_ref().is_some_and(|descriptor| ioctl_fionread(descriptor).is_ok_and(|bytes| bytes > 0))
    }

    pub(super) fn is_parting(&self) -> bool {
        self.stage.is_parting() && self.descriptor.is_some()
    }

    /// Receives once, behind the unfinished bytes. Returns the number of bytes received, or `None` if the connection
    /// has ended.
    pub(super) fn receive(&mut self, buffer: &mut Vec<u8>) -> Option<usize> {
        buffer.clear();
        buffer.append(&mut self.input.unfinished);
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
        self.input.has_come |= came.is_some_and(|count| count > 0);
        came
    }

    /// Obeys the commands in the bytes, and keeps an incomplete one.
    pub(super) fn listen(
        &mut self,
        bytes: &[u8],
        member: Member,
        subscriptions: &mut Subscriptions,
        limits: &PublishLimits,
        held: &Arc<Budget>,
    ) -> Result<(), CloseReason> {
        let mut taken = self.shake(bytes, held)?;
        let rest = bytes.get(taken..).unwrap_or_default();
        if let Some(opener) = &mut self.input.opener {
            let mut opened = Vec::new();
            taken += opener.open(rest, SUBSCRIBER_FRAME_BYTES_MAX, &mut opened)?;
            // Each sealed frame is a whole frame, so nothing is left of the opened ones.
            self.obey(&opened, member, subscriptions, limits, held)?;
        } else if self.stage.is_open() {
            taken += self.obey(rest, member, subscriptions, limits, held)?;
        }
        if !self.is_parting() {
            self.input.unfinished.extend_from_slice(bytes.get(taken..).unwrap_or_default());
        }
        Ok(())
    }

    /// Obeys the commands that have come whole. Returns how many bytes they are.
    fn obey(
        &mut self,
        bytes: &[u8],
        member: Member,
        subscriptions: &mut Subscriptions,
        limits: &PublishLimits,
        held: &Arc<Budget>,
    ) -> Result<usize, CloseReason> {
        let mut taken = 0;
        while let Some((said, length)) = SubscriberCommand::decode(bytes.get(taken..).unwrap_or_default())? {
            taken += length;
            match said {
                SubscriberCommand::Subscribe(topic) => {
                    subscriptions.subscribe(member, &mut self.topics, self.peer.user(), topic);
                    self.check_topics(limits)?;
                }
                SubscriberCommand::Cancel(topic) => subscriptions.cancel(member, &mut self.topics, topic),
                SubscriberCommand::Ping(context) => self.answer(context, held)?,
                SubscriberCommand::Other => {}
            }
        }
        Ok(taken)
    }

    /// Continues the handshake, if it is not over. Returns the number of bytes used.
    fn shake(&mut self, bytes: &[u8], held: &Arc<Budget>) -> Result<usize, CloseReason> {
        let mut out = Vec::new();
        let taken = self.stage.advance(bytes, &mut out, &mut self.peer);
        self.output.queue.push_copy(&out, 0, held);
        Ok(taken?)
    }

    /// Lets the peer in after its claim. False: the handshake has failed.
    pub(super) fn admit(&mut self, identity: Identity, held: &Arc<Budget>) -> bool {
        let mut out = Vec::new();
        let admitted = self.stage.admit(&mut out);
        self.output.queue.push_copy(&out, 0, held);
        let Ok(cipher) = admitted else { return false };
        self.peer = PeerIdentity::User(identity);
        if let Some(cipher) = cipher {
            let clear = self.output.queue.take_bytes();
            self.output.sealed = Some(Box::new(SealedOutput::new(cipher.sealer, clear, held)));
            self.input.opener = Some(cipher.opener);
        }
        true
    }

    /// Refuses the peer after its claim.
    pub(super) fn deny(&mut self, why: ClaimRefusal, held: &Arc<Budget>) {
        let mut out = Vec::new();
        self.stage.refuse(why, &mut out);
        self.output.queue.push_copy(&out, 0, held);
    }

    fn check_topics(&self, limits: &PublishLimits) -> Result<(), CloseReason> {
        if self.topics.nodes.len() > limits.subscriptions {
            return Err(CloseReason::Subscriptions { most: limits.subscriptions });
        }
        if self.topics.bytes > limits.topic_bytes {
            return Err(CloseReason::TopicBytes { most: limits.topic_bytes });
        }
        Ok(())
    }

    fn answer(&mut self, context: &[u8], held: &Arc<Budget>) -> Result<(), CloseReason> {
        let mut pong = Vec::new();
        encode_pong(&mut pong, context);
        self.output.queue.push_copy(&pong, 0, held);
        if self.output.queue.control_bytes() > CONTROL_BYTES_MAX { Err(CloseReason::Pings) } else { Ok(()) }
    }

    /// Writes as many bytes as the system takes, of about `most` bytes. Shuts down our end of a parting connection when
    /// all bytes are sent.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) fn flush(&mut self, most: usize) -> Result<(), Errno> {
        let Some(descriptor) = &self.descriptor else { return Ok(()) };
        let SubscriberOutput { queue, sealed, .. } = &mut self.output;
        if let Some(sealed) = sealed {
            let mut left = most;
            while sealed.send(descriptor)? && left > 0 && !queue.is_empty() {
                left = left.saturating_sub(queue.hand_over(|frames| sealed.seal(frames)));
            }
        } else if !queue.is_empty() {
            queue.flush(descriptor, most)?;
        }
        if self.output.is_sent() {
            self.stage.shut_down(descriptor);
        }
        Ok(())
    }

    /// Events that the system is to report.
    pub(super) fn wanted(&self) -> EventFlags {
        let reading = if self.peer.is_checked() { EventFlags::RDHUP } else { EventFlags::IN };
        if self.output.is_sent() { reading } else { reading | EventFlags::OUT }
    }

    /// Ends its service. A refused subscriber gets no further messages, but an ERROR with the reason.
    pub(super) fn part(&mut self, refusal: Option<&CloseReason>, held: &Arc<Budget>) {
        if let Some(refusal) = refusal {
            let mut error = Vec::new();
            // The handshake itself reports its faults, in a form that the client can read.
            if self.stage.is_open() {
                self.output.queue.discard();
                encode_error(&mut error, &refusal.to_string());
            }
            self.output.queue.push_copy(&error, 0, held);
        }
        self.stage = ConnectionStage::Parting(false);
        self.input.unfinished = Vec::new();
        self.peer.end_check();
    }
}
