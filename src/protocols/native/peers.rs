//! The connections of one thread.
//!
//! ```text
//! wait ─► drained: outboxes that have room again ─► receive: a turn of one peer, as often as there are turns
//!      ─► outbox: answers ─► flush ─► gone: what peers that have left had with us
//! ```
//! The system tells of a descriptor as long as there is something to do, so nothing is forgotten if a turn is not taken; what
//! was received and not taken is in a list of its own.

mod memory;
mod turns;

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;
use slab::Slab;

use super::budget::{Budget, Share};
use super::gate::{BELL, Gate, LISTENERS, wait};
use super::id::PeerId;
use super::listen::Listener;
use super::outbox::Outbox;
use super::peer::Peer;
use crate::clock::Now;
use crate::limits::{CONNECTIONS_MAX, HANDSHAKE_TIMEOUT, READY_EVENTS, RECEIVE_BYTES};
use crate::log::Pace;
use crate::protocols::sockets::Bell;
use crate::zmtp::{Bounds, Messages};
use memory::Memory;
pub use turns::Taken;

/// What a peer that has left had with whoever serves.
#[derive(Debug)]
pub struct Gone<S> {
    /// Who it was.
    pub id: PeerId,
    /// What was kept for it.
    pub state: S,
    /// How many bytes that go to it the system has taken, or is still given ([`Outbox::end`]).
    pub sent: u64,
}

/// All connections of a thread, with `S` for each of them.
pub struct Peers<S> {
    epoll: OwnedFd,
    bell: Bell,
    bounds: Bounds,
    gate: Gate,
    /// What the clock read last.
    now: Now,
    connections_max: usize,
    /// Nothing is received any more.
    deaf: bool,
    /// Nothing is received for now: a peer that sends something is muted.
    muting: bool,
    /// Of whose input the system does not tell, until something is received again.
    muted: Vec<PeerId>,
    /// Connections that were closed since somebody last asked.
    closed: usize,
    /// Connections that were closed since all together held too much.
    cut: u64,
    cuts_told: Pace,
    peers: Slab<Peer<S>>,
    generation: u32,
    /// Who has to be through with the handshake, or gone, and when.
    deadlines: VecDeque<(Now, PeerId)>,
    /// From whom there is something to receive.
    turns: VecDeque<PeerId>,
    /// Who has sent more than was taken.
    backlog: VecDeque<PeerId>,
    /// How many of these get a turn before the next wait.
    backlog_turns: usize,
    /// Whose outboxes have something new.
    touched: VecDeque<PeerId>,
    drained: Vec<PeerId>,
    gone: Vec<Gone<S>>,
    /// What all of them hold.
    share: Share,
    memory: Memory,
    /// What came last, from whoever it was.
    shared: Vec<u8>,
    messages: Messages,
}

impl<S: Default> Peers<S> {
    /// No connections yet. Waiting for them ends when the bell rings; messages have these bounds, and memory is shared with all that
    /// have the same budget.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn new(bell: &Bell, bounds: Bounds, budget: &Arc<Budget>) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        Ok(Self {
            epoll,
            bell: bell.clone(),
            bounds,
            gate: Gate::default(),
            now: Now::from_nanos(0),
            connections_max: CONNECTIONS_MAX,
            deaf: false,
            muting: false,
            muted: Vec::new(),
            closed: 0,
            cut: 0,
            cuts_told: Pace::default(),
            peers: Slab::new(),
            generation: 0,
            deadlines: VecDeque::new(),
            turns: VecDeque::new(),
            backlog: VecDeque::new(),
            backlog_turns: 0,
            touched: VecDeque::new(),
            drained: Vec::new(),
            gone: Vec::new(),
            share: budget.share(bell),
            memory: Memory::default(),
            shared: Vec::with_capacity(RECEIVE_BYTES),
            messages: Messages::default(),
        })
    }

    /// Accepts who connects there.
    ///
    /// # Errors
    /// If the system has no memory left for it.
    pub fn listen(&mut self, listener: Listener) -> Result<(), Errno> {
        self.gate.add(&self.epoll, listener)
    }

    /// Takes over a connection that was just accepted.
    pub fn adopt(&mut self, descriptor: OwnedFd, now: Now) {
        self.generation = self.generation.wrapping_add(1);
        let deadline = now.after(HANDSHAKE_TIMEOUT);
        let peer = Peer::greet(descriptor, S::default(), self.generation, deadline);
        let entry = self.peers.vacant_entry();
        let id = PeerId::new(entry.key(), self.generation);
        // Without it nothing would ever be heard of the connection: it is closed.
        if epoll::add(&self.epoll, peer.descriptor(), id.data(), peer.interest).is_ok() {
            entry.insert(peer);
            self.deadlines.push_back((deadline, id));
            self.touch(id);
        } else {
            self.closed += 1;
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.peers.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    /// What the clock read when the last wait was over.
    #[must_use]
    pub fn now(&self) -> Now {
        self.now
    }

    /// What they hold, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.share.bytes()
    }

    /// How many connections were closed, ever, since all together held too much and they stood still.
    #[must_use]
    pub fn cut(&self) -> u64 {
        self.cut
    }

    // ------------------------------------------------------------------------------------------------------- waiting

    /// Waits until there is something to do, the bell rings, or the time is up; accepts who has come, and sends what can be sent.
    /// Whether the bell has rung: it is silent then. `clock` is read when the wait is over.
    ///
    /// # Panics
    /// If the system cannot wait.
    pub fn wait(&mut self, timeout: Option<Duration>, clock: impl Fn() -> Now) -> bool {
        self.muting = false;
        self.unmute();
        self.wait_for_events(timeout, clock)
    }

    /// The same where nothing will be received after it: what peers send, or have sent, is nothing to do.
    ///
    /// # Panics
    /// If the system cannot wait.
    pub fn wait_without_receiving(&mut self, timeout: Option<Duration>, clock: impl Fn() -> Now) -> bool {
        self.muting = true;
        self.wait_for_events(timeout, clock)
    }

    fn wait_for_events(&mut self, timeout: Option<Duration>, clock: impl Fn() -> Now) -> bool {
        self.flush();
        self.ease();
        let has_input = !self.backlog.is_empty() && !self.muting;
        let idle = !has_input && self.drained.is_empty() && self.gone.is_empty();
        let timeout = if idle { self.shortened(timeout) } else { Some(Duration::ZERO) };
        self.turns.clear();
        self.backlog_turns = self.backlog.len();
        let mut room = [const { MaybeUninit::uninit() }; READY_EVENTS];
        let events = wait(&self.epoll, &mut room, timeout);
        self.now = clock();
        self.end_those_who_are_late();
        let mut rung = false;
        for event in events {
            match event.data.u64() {
                BELL => {
                    self.bell.silence();
                    rung = true;
                }
                LISTENERS => self.accept(),
                data => self.note(PeerId::of(data), event.flags),
            }
        }
        rung
    }

    /// What an event says of a peer.
    fn note(&mut self, id: PeerId, flags: epoll::EventFlags) {
        let Some(peer) = get(&mut self.peers, id) else { return };
        if (peer.waits() || peer.muted) && flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            // What it has asked is still done, and its end is seen after that.
            peer.discard();
            if epoll::delete(&self.epoll, peer.descriptor()).is_ok() {
                (peer.registered, peer.interest) = (false, epoll::EventFlags::empty());
            }
            return;
        }
        if !peer.is_served()
            && !peer.waits()
            && flags.intersects(epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR)
        {
            self.forget(id);
            return;
        }
        let has_input = flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR);
        let muting = self.muting || self.deaf && !peer.is_parting();
        if has_input && muting {
            peer.muted = true;
            self.muted.push(id);
        }
        if flags.contains(epoll::EventFlags::OUT) {
            self.touch(id);
        }
        if has_input && !muting {
            self.turns.push_back(id);
        } else if has_input {
            self.settle(id);
        }
    }

    /// Has the system tell again of the input of muted peers that the thread receives from again.
    fn unmute(&mut self) {
        let mut muted = std::mem::take(&mut self.muted);
        muted.retain(|id| {
            let Some(peer) = get(&mut self.peers, *id) else { return false };
            let stays = self.deaf && !peer.is_parting();
            if !stays {
                peer.muted = false;
                self.settle(*id);
            }
            stays
        });
        self.muted = muted;
    }

    fn shortened(&self, timeout: Option<Duration>) -> Option<Duration> {
        let deadline = self.deadlines.front().map(|(deadline, _)| *deadline);
        let next = deadline.into_iter().chain(self.gate.again_at()).chain(self.memory.look_at()).min();
        let left = next.map(|next| Duration::from_nanos(next.nanos().saturating_sub(self.now.nanos())));
        timeout.into_iter().chain(left).min()
    }

    fn end_those_who_are_late(&mut self) {
        let now = self.now;
        while let Some((_, id)) = self.deadlines.pop_front_if(|(deadline, _)| *deadline <= now) {
            // One that has passed its handshake in time may have a later deadline since.
            let Some(peer) = get(&mut self.peers, id).filter(|peer| !peer.is_open() && peer.deadline <= now) else {
                continue;
            };
            // It has sent in time, and this thread was late to receive it. Handshakes are short: that does not go on for ever.
            if !peer.is_parting() && peer.has_unreceived() {
                peer.deadline = now.after(HANDSHAKE_TIMEOUT);
                self.deadlines.push_back((peer.deadline, id));
            } else {
                self.forget(id);
            }
        }
        self.gate.reopen(&self.epoll, now);
    }

    fn accept(&mut self) {
        let now = self.now;
        let room = self.connections_max.saturating_sub(self.peers.len());
        let came = self.gate.let_in(&self.epoll, now, room);
        came.into_iter().for_each(|descriptor| self.adopt(descriptor, now));
    }

    // ------------------------------------------------------------------------------------------------------- sending

    /// What is kept for a peer, and where answers to it go; they are sent with the next flush. None if it has left.
    pub fn peer(&mut self, id: PeerId) -> Option<(&mut S, &mut Outbox)> {
        let peer = get(&mut self.peers, id).filter(|peer| peer.is_open())?;
        touch(&mut self.touched, peer, id);
        Some((&mut peer.state, &mut peer.outbox))
    }

    /// A peer of which the outbox was too full and has room again.
    pub fn drained(&mut self) -> Option<PeerId> {
        self.drained.pop()
    }

    /// Sends what can be sent of what is new.
    pub fn flush(&mut self) {
        // In the order in which they were touched: who was answered first hears first.
        while let Some(id) = self.touched.pop_front() {
            let Some(peer) = get(&mut self.peers, id) else { continue };
            peer.touched = false;
            if peer.flush() && peer.is_open() {
                self.drained.push(id);
                // It may have sent whole messages before it was paused.
                if peer.holds_input() {
                    self.queue(id);
                }
            }
            self.settle(id);
        }
    }

    /// Whether the system has taken everything that goes to peers who have not left.
    #[must_use]
    pub fn is_all_sent(&self) -> bool {
        self.peers.iter().all(|(_, peer)| !peer.is_open() || peer.outbox.is_empty())
    }

    fn touch(&mut self, id: PeerId) {
        if let Some(peer) = get(&mut self.peers, id) {
            touch(&mut self.touched, peer, id);
        }
    }

    /// Counts what a peer holds, and asks the system to tell of what concerns it now.
    fn settle(&mut self, id: PeerId) {
        let Some(peer) = get(&mut self.peers, id) else { return };
        let kept = peer.kept();
        self.share.change(kept, std::mem::replace(&mut peer.counted, kept));
        if self.memory.is_tight() {
            self.throttle(id);
        }
        let Some(peer) = get(&mut self.peers, id) else { return };
        let wanted = peer.wanted();
        if wanted != peer.interest && !peer.touched {
            peer.interest = wanted;
            let asked = if std::mem::replace(&mut peer.registered, true) {
                epoll::modify(&self.epoll, peer.descriptor(), id.data(), wanted)
            } else {
                epoll::add(&self.epoll, peer.descriptor(), id.data(), wanted)
            };
            if asked.is_err() {
                self.forget(id);
            }
        }
    }

    // -------------------------------------------------------------------------------------------------------- leaving

    /// What a peer that has left had with us.
    pub fn gone(&mut self) -> Option<Gone<S>> {
        self.gone.pop()
    }

    /// Closes a connection.
    fn forget(&mut self, id: PeerId) {
        if get(&mut self.peers, id).is_none() {
            return;
        }
        let peer = self.peers.remove(id.place() as usize);
        self.share.change(0, peer.counted);
        self.closed += 1;
        if !peer.is_parting() {
            self.gone.push(Gone { id, state: peer.state, sent: peer.outbox.sent() });
        }
    }

    /// Takes nothing more from a peer, and closes the connection when it has read what was sent before.
    fn part(&mut self, id: PeerId) {
        let Some(peer) = get(&mut self.peers, id) else { return };
        if !peer.is_parting() {
            peer.part();
            peer.deadline = self.now.after(HANDSHAKE_TIMEOUT);
            self.deadlines.push_back((peer.deadline, id));
            // What is in the outbox is still sent.
            self.gone.push(Gone { id, state: std::mem::take(&mut peer.state), sent: peer.outbox.end() });
        }
        self.touch(id);
    }

    /// Takes nothing more from a peer, and closes the connection when it has read what was sent before.
    pub fn refuse(&mut self, id: PeerId) {
        self.part(id);
    }

    /// Accepts nobody any more, and parts with all. They are gone when they have read what was sent before, and at once if nothing is on its
    /// way to them or from them.
    pub fn part_all(&mut self) {
        self.stop_accepting();
        let all: Vec<PeerId> = self.peers.iter().map(|(slot, peer)| PeerId::new(slot, peer.generation)).collect();
        for id in all {
            if get(&mut self.peers, id).is_some_and(|peer| peer.is_settled()) {
                self.forget(id);
            } else {
                self.part(id);
            }
        }
    }

    /// Listens no more. Those who are connected are served.
    pub fn stop_accepting(&mut self) {
        self.gate.close();
    }

    /// What the system has not taken of what goes to anybody is not sent.
    pub fn discard_all(&mut self) {
        self.peers.iter_mut().for_each(|(_, peer)| peer.discard());
    }

    /// Receives no more. What was received before still has its turns.
    pub fn stop_receiving(&mut self) {
        self.deaf = true;
    }

    /// Whether something was received that was not taken, but for what is parked.
    #[must_use]
    pub fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// How many connections have been closed since this was asked last.
    pub fn closed(&mut self) -> usize {
        std::mem::take(&mut self.closed)
    }

    /// Closes a connection at once.
    pub fn close(&mut self, id: PeerId) {
        self.forget(id);
    }
}

/// The peer of this name, if it is there.
fn get<S>(peers: &mut Slab<Peer<S>>, id: PeerId) -> Option<&mut Peer<S>> {
    peers.get_mut(id.place() as usize).filter(|peer| peer.generation == id.generation())
}

/// Has the outbox of a peer flushed the next time.
fn touch<S>(touched: &mut VecDeque<PeerId>, peer: &mut Peer<S>, id: PeerId) {
    if !peer.touched {
        peer.touched = true;
        touched.push_back(id);
    }
}
