//! Whose turn it is, and what becomes of the messages that a turn has left.
//!
//! ```text
//! readable ─► received, cut ─► handle ─┬─► all taken
//!                 ▲                    ├─► some: the rest is held for another turn, when the outbox has room
//!                 │                    ├─► starved: the rest is held until the frontend holds less
//!                 └── nothing held ◄───┴─► parked: the rest is held until `resume`; the peer is not read from, whatever it does
//! ```

use super::super::outbox::Outbox;
use super::super::peer::{End, Peer};
use super::{PeerId, Peers, get};
use crate::zmtp::Messages;

/// What was done with the messages of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// All were taken.
    All,
    /// So many were taken. The others have another turn, when the outbox has room.
    Some(usize),
    /// So many were taken. The next one's answer is too large as long as [`Outbox::is_tight`]: the others wait so long.
    Starved(usize),
    /// So many were taken. The others wait until [`Peers::resume`], and so does what the peer sends after them.
    Parked(usize),
}

impl Taken {
    /// How many were taken, if not all.
    fn count(self) -> Option<usize> {
        match self {
            Self::All => None,
            Self::Some(count) | Self::Starved(count) | Self::Parked(count) => Some(count),
        }
    }
}

impl<S> Peer<S> {
    /// What is held waits for what it has to wait for.
    fn wait_for(&mut self, taken: Taken) {
        self.parked = matches!(taken, Taken::Parked(_));
        self.starved = matches!(taken, Taken::Starved(_));
        self.throttled |= self.starved;
    }
}

impl<S: Default> Peers<S> {
    /// One turn of a peer: hands at most so many of its messages, and at least one, to `handle`, with the bytes that they lie in.
    /// None: nobody has a turn before the next wait.
    ///
    /// A peer whose outbox is too full has none, nor has one whose messages are parked.
    pub fn receive(
        &mut self,
        most: usize,
        handle: impl FnOnce(PeerId, &mut S, &mut Outbox, &Messages, &[u8]) -> Taken,
    ) -> Option<()> {
        let (id, readable) = self.next_turn()?;
        self.notice();
        match get(&mut self.peers, id).filter(|peer| peer.is_served()) {
            Some(Peer { held: Some(_), .. }) => self.take_held(id, handle),
            Some(_) => self.take_new(id, (readable, most.max(1)), handle),
            None => {}
        }
        Some(())
    }

    /// A turn of a peer whose messages are parked, if it is there and reads what it is sent.
    pub fn resume(&mut self, id: PeerId, handle: impl FnOnce(PeerId, &mut S, &mut Outbox, &Messages, &[u8]) -> Taken) {
        let Some(peer) = get(&mut self.peers, id) else { return };
        peer.parked = false;
        if peer.is_served() {
            self.take_held(id, handle);
        }
    }

    fn take_held(&mut self, id: PeerId, handle: impl FnOnce(PeerId, &mut S, &mut Outbox, &Messages, &[u8]) -> Taken) {
        let Some(peer) = get(&mut self.peers, id) else { return };
        let Some(held) = peer.held.take() else { return };
        peer.outbox.set_tight(self.memory.is_tight_for(id));
        let taken = handle(id, &mut peer.state, &mut peer.outbox, &held.messages, &held.bytes);
        match taken.count() {
            None => {}
            Some(0) => peer.held = Some(held),
            Some(count) => peer.hold(count, &held.messages, &held.bytes),
        }
        peer.wait_for(taken);
        self.memory.note_answer(id, peer.outbox.len());
        let (faulty, more) = (peer.faulty && peer.held.is_none(), peer.holds_input() && peer.is_served());
        self.touch(id);
        if faulty {
            self.part(id);
        } else if more {
            self.queue(id);
        }
        self.settle(id);
    }

    fn take_new(
        &mut self,
        id: PeerId,
        (readable, most): (bool, usize),
        handle: impl FnOnce(PeerId, &mut S, &mut Outbox, &Messages, &[u8]) -> Taken,
    ) {
        let Self { peers, bounds, shared, messages, memory, .. } = self;
        let Some(peer) = get(peers, id) else { return };
        let left = peer.take(readable, (bounds, most), shared, messages);
        if !messages.is_empty() {
            let (bytes, state, outbox) = peer.parts(shared);
            outbox.set_tight(memory.is_tight_for(id));
            let taken = handle(id, state, outbox, messages, bytes);
            if let Some(count) = taken.count() {
                peer.hold_of_shared(count, messages, shared);
            }
            peer.wait_for(taken);
            memory.note_answer(id, peer.outbox.len());
        }
        match left {
            Ok(left) => {
                let unseen = peer.keep(&left, shared);
                let answered = !peer.outbox.is_empty();
                let more = peer.held.is_some() || unseen && messages.len() == most;
                if more && peer.is_served() {
                    self.queue(id);
                }
                if answered {
                    self.touch(id);
                }
                self.settle(id);
            }
            Err(End::Gone) => self.forget(id),
            Err(End::Fault(fault)) => {
                tracing::debug!("a connection ends: {fault}");
                peer.faulty = true;
                if peer.held.is_none() {
                    self.part(id);
                } else if peer.is_served() {
                    self.queue(id);
                }
                // Also of one whose messages wait: the system must not go on telling of what is not received.
                self.touch(id);
            }
        }
    }

    fn next_turn(&mut self) -> Option<(PeerId, bool)> {
        if self.backlog_turns > 0 {
            self.backlog_turns -= 1;
            let id = self.backlog.pop_front()?;
            if let Some(peer) = get(&mut self.peers, id) {
                peer.queued = false;
            }
            return Some((id, false));
        }
        while let Some(id) = self.turns.pop_front() {
            // What was received before comes first, also before an end.
            if get(&mut self.peers, id).is_some_and(|peer| !peer.queued) {
                return Some((id, true));
            }
        }
        None
    }

    pub(super) fn queue(&mut self, id: PeerId) {
        if let Some(peer) = get(&mut self.peers, id).filter(|peer| !peer.queued) {
            peer.queued = true;
            self.backlog.push_back(id);
        }
    }
}
