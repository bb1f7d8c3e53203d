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

use super::budget::{BufferBudget, ThreadShare};
use super::connection::Connection;
use super::id::ConnectionId;
use super::listen::BoundListener;
use super::listeners::{BELL, LISTENERS, Listeners, wait};
use super::send_buffer::SendBuffer;
use crate::clock::Now;
use crate::limits::{CONNECTIONS_MAX, HANDSHAKE_TIMEOUT, READY_EVENTS, RECEIVE_BYTES};
use crate::log::WarningPace;
use crate::protocols::sockets::WakeSignal;
use crate::zmtp::{MessageBounds, Messages};
use memory::MemoryWatch;
pub use turns::TurnOutcome;

/// What a peer that has left had with whoever serves.
#[derive(Debug)]
pub struct Closed<S> {
    /// Who it was.
    pub id: ConnectionId,
    /// What was kept for it.
    pub state: S,
    /// How many bytes that go to it the system has taken, or is still given ([`SendBuffer::end`]).
    pub sent: u64,
}

/// All connections of a thread, with `S` for each of them.
pub struct Connections<S> {
    epoll: OwnedFd,
    bell: WakeSignal,
    bounds: MessageBounds,
    listeners: Listeners,
    /// What the clock read last.
    now: Now,
    connections_max: usize,
    /// Nothing is received any more.
    deaf: bool,
    /// Nothing is received for now: a peer that sends something is muted.
    muting: bool,
    /// Of whose input the system does not tell, until something is received again.
    muted: Vec<ConnectionId>,
    /// Connections that were closed since somebody last asked.
    closed: usize,
    /// Connections that were closed since all together held too much.
    cut: u64,
    cuts_told: WarningPace,
    connections: Slab<Connection<S>>,
    generation: u32,
    /// Who has to be through with the handshake, or gone, and when.
    deadlines: VecDeque<(Now, ConnectionId)>,
    /// From whom there is something to receive.
    turns: VecDeque<ConnectionId>,
    /// Who has sent more than was taken.
    backlog: VecDeque<ConnectionId>,
    /// How many of these get a turn before the next wait.
    backlog_turns: usize,
    /// Whose outboxes have something new.
    touched: VecDeque<ConnectionId>,
    drained: Vec<ConnectionId>,
    gone: Vec<Closed<S>>,
    /// What all of them hold.
    share: ThreadShare,
    memory: MemoryWatch,
    /// What came last, from whoever it was.
    shared: Vec<u8>,
    messages: Messages,
}

impl<S: Default> Connections<S> {
    /// No connections yet. Waiting for them ends when the bell rings; messages have these bounds, and memory is shared with all that
    /// have the same budget.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn new(bell: &WakeSignal, bounds: MessageBounds, budget: &Arc<BufferBudget>) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        Ok(Self {
            epoll,
            bell: bell.clone(),
            bounds,
            listeners: Listeners::default(),
            now: Now::from_nanos(0),
            connections_max: CONNECTIONS_MAX,
            deaf: false,
            muting: false,
            muted: Vec::new(),
            closed: 0,
            cut: 0,
            cuts_told: WarningPace::default(),
            connections: Slab::new(),
            generation: 0,
            deadlines: VecDeque::new(),
            turns: VecDeque::new(),
            backlog: VecDeque::new(),
            backlog_turns: 0,
            touched: VecDeque::new(),
            drained: Vec::new(),
            gone: Vec::new(),
            share: budget.share(bell),
            memory: MemoryWatch::default(),
            shared: Vec::with_capacity(RECEIVE_BYTES),
            messages: Messages::default(),
        })
    }

    /// Accepts who connects there.
    ///
    /// # Errors
    /// If the system has no memory left for it.
    pub fn listen(&mut self, listener: BoundListener) -> Result<(), Errno> {
        self.listeners.add(&self.epoll, listener)
    }

    /// Takes over a connection that was just accepted.
    pub fn insert(&mut self, descriptor: OwnedFd, now: Now) {
        self.generation = self.generation.wrapping_add(1);
        let deadline = now.after(HANDSHAKE_TIMEOUT);
        let connection = Connection::greet(descriptor, S::default(), self.generation, deadline);
        let entry = self.connections.vacant_entry();
        let id = ConnectionId::new(entry.key(), self.generation);
        // Without it nothing would ever be heard of the connection: it is closed.
        if epoll::add(&self.epoll, connection.descriptor(), id.data(), connection.interest).is_ok() {
            entry.insert(connection);
            self.deadlines.push_back((deadline, id));
            self.touch(id);
        } else {
            self.closed += 1;
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
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
        self.close_late();
        let mut rung = false;
        for event in events {
            match event.data.u64() {
                BELL => {
                    self.bell.silence();
                    rung = true;
                }
                LISTENERS => self.accept(),
                data => self.note(ConnectionId::of(data), event.flags),
            }
        }
        rung
    }

    /// What an event says of a peer.
    fn note(&mut self, id: ConnectionId, flags: epoll::EventFlags) {
        let Some(connection) = get(&mut self.connections, id) else { return };
        if (connection.waits() || connection.muted) && flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR)
        {
            // What it has asked is still done, and its end is seen after that.
            connection.discard();
            if epoll::delete(&self.epoll, connection.descriptor()).is_ok() {
                (connection.registered, connection.interest) = (false, epoll::EventFlags::empty());
            }
            return;
        }
        if !connection.is_served()
            && !connection.waits()
            && flags.intersects(epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR)
        {
            self.forget(id);
            return;
        }
        let has_input = flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR);
        let muting = self.muting || self.deaf && !connection.is_disconnecting();
        if has_input && muting {
            connection.muted = true;
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
            let Some(connection) = get(&mut self.connections, *id) else { return false };
            let stays = self.deaf && !connection.is_disconnecting();
            if !stays {
                connection.muted = false;
                self.settle(*id);
            }
            stays
        });
        self.muted = muted;
    }

    fn shortened(&self, timeout: Option<Duration>) -> Option<Duration> {
        let deadline = self.deadlines.front().map(|(deadline, _)| *deadline);
        let next = deadline.into_iter().chain(self.listeners.again_at()).chain(self.memory.look_at()).min();
        let left = next.map(|next| Duration::from_nanos(next.nanos().saturating_sub(self.now.nanos())));
        timeout.into_iter().chain(left).min()
    }

    fn close_late(&mut self) {
        let now = self.now;
        while let Some((_, id)) = self.deadlines.pop_front_if(|(deadline, _)| *deadline <= now) {
            // One that has passed its handshake in time may have a later deadline since.
            let Some(connection) =
                get(&mut self.connections, id).filter(|connection| !connection.is_open() && connection.deadline <= now)
            else {
                continue;
            };
            // It has sent in time, and this thread was late to receive it. Handshakes are short: that does not go on for ever.
            if !connection.is_disconnecting() && connection.has_unreceived() {
                connection.deadline = now.after(HANDSHAKE_TIMEOUT);
                self.deadlines.push_back((connection.deadline, id));
            } else {
                self.forget(id);
            }
        }
        self.listeners.reopen(&self.epoll, now);
    }

    fn accept(&mut self) {
        let now = self.now;
        let room = self.connections_max.saturating_sub(self.connections.len());
        let came = self.listeners.admit(&self.epoll, now, room);
        came.into_iter().for_each(|descriptor| self.insert(descriptor, now));
    }

    // ------------------------------------------------------------------------------------------------------- sending

    /// What is kept for a peer, and where answers to it go; they are sent with the next flush. None if it has left.
    pub fn connection(&mut self, id: ConnectionId) -> Option<(&mut S, &mut SendBuffer)> {
        let connection = get(&mut self.connections, id).filter(|connection| connection.is_open())?;
        touch(&mut self.touched, connection, id);
        Some((&mut connection.state, &mut connection.outbox))
    }

    /// A peer of which the outbox was too full and has room again.
    pub fn drained(&mut self) -> Option<ConnectionId> {
        self.drained.pop()
    }

    /// Sends what can be sent of what is new.
    pub fn flush(&mut self) {
        // In the order in which they were touched: who was answered first hears first.
        while let Some(id) = self.touched.pop_front() {
            let Some(connection) = get(&mut self.connections, id) else { continue };
            connection.touched = false;
            if connection.flush() && connection.is_open() {
                self.drained.push(id);
                // It may have sent whole messages before it was paused.
                if connection.holds_input() {
                    self.queue(id);
                }
            }
            self.settle(id);
        }
    }

    /// Whether the system has taken everything that goes to peers who have not left.
    #[must_use]
    pub fn is_all_sent(&self) -> bool {
        self.connections.iter().all(|(_, connection)| !connection.is_open() || connection.outbox.is_empty())
    }

    fn touch(&mut self, id: ConnectionId) {
        if let Some(connection) = get(&mut self.connections, id) {
            touch(&mut self.touched, connection, id);
        }
    }

    /// Counts what a peer holds, and asks the system to tell of what concerns it now.
    fn settle(&mut self, id: ConnectionId) {
        let Some(connection) = get(&mut self.connections, id) else { return };
        let kept = connection.kept();
        self.share.change(kept, std::mem::replace(&mut connection.counted, kept));
        if self.memory.is_tight() {
            self.throttle(id);
        }
        let Some(connection) = get(&mut self.connections, id) else { return };
        let wanted = connection.wanted();
        if wanted != connection.interest && !connection.touched {
            connection.interest = wanted;
            let asked = if std::mem::replace(&mut connection.registered, true) {
                epoll::modify(&self.epoll, connection.descriptor(), id.data(), wanted)
            } else {
                epoll::add(&self.epoll, connection.descriptor(), id.data(), wanted)
            };
            if asked.is_err() {
                self.forget(id);
            }
        }
    }

    // -------------------------------------------------------------------------------------------------------- leaving

    /// What a peer that has left had with us.
    pub fn gone(&mut self) -> Option<Closed<S>> {
        self.gone.pop()
    }

    /// Closes a connection.
    fn forget(&mut self, id: ConnectionId) {
        if get(&mut self.connections, id).is_none() {
            return;
        }
        let connection = self.connections.remove(id.place() as usize);
        self.share.change(0, connection.counted);
        self.closed += 1;
        if !connection.is_disconnecting() {
            self.gone.push(Closed { id, state: connection.state, sent: connection.outbox.sent() });
        }
    }

    /// Takes nothing more from a peer, and closes the connection when it has read what was sent before.
    fn disconnect(&mut self, id: ConnectionId) {
        let Some(connection) = get(&mut self.connections, id) else { return };
        if !connection.is_disconnecting() {
            connection.disconnect();
            connection.deadline = self.now.after(HANDSHAKE_TIMEOUT);
            self.deadlines.push_back((connection.deadline, id));
            // What is in the outbox is still sent.
            self.gone.push(Closed { id, state: std::mem::take(&mut connection.state), sent: connection.outbox.end() });
        }
        self.touch(id);
    }

    /// Takes nothing more from a peer, and closes the connection when it has read what was sent before.
    pub fn refuse(&mut self, id: ConnectionId) {
        self.disconnect(id);
    }

    /// Accepts nobody any more, and parts with all. They are gone when they have read what was sent before, and at once if nothing is on its
    /// way to them or from them.
    pub fn disconnect_all(&mut self) {
        self.stop_accepting();
        let all: Vec<ConnectionId> =
            self.connections.iter().map(|(slot, connection)| ConnectionId::new(slot, connection.generation)).collect();
        for id in all {
            if get(&mut self.connections, id).is_some_and(|connection| connection.is_settled()) {
                self.forget(id);
            } else {
                self.disconnect(id);
            }
        }
    }

    /// Listens no more. Those who are connected are served.
    pub fn stop_accepting(&mut self) {
        self.listeners.close();
    }

    /// What the system has not taken of what goes to anybody is not sent.
    pub fn discard_all(&mut self) {
        self.connections.iter_mut().for_each(|(_, connection)| connection.discard());
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
    pub fn close(&mut self, id: ConnectionId) {
        self.forget(id);
    }
}

/// The peer of this name, if it is there.
fn get<S>(connections: &mut Slab<Connection<S>>, id: ConnectionId) -> Option<&mut Connection<S>> {
    connections.get_mut(id.place() as usize).filter(|connection| connection.generation == id.generation())
}

/// Has the outbox of a peer flushed the next time.
fn touch<S>(touched: &mut VecDeque<ConnectionId>, connection: &mut Connection<S>, id: ConnectionId) {
    if !connection.touched {
        connection.touched = true;
        touched.push_back(id);
    }
}
