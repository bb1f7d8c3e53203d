//! The connections of one thread.
//!
//! ```text
//! wait ─► drained: send buffers that have room again ─► receive: a turn of one connection, as often as there are turns
//!      ─► connection: replies ─► flush ─► gone: the state of connections that have closed
//! ```
//! Epoll is level-triggered here: it reports a descriptor as long as it is ready, so a skipped turn is not lost.
//! Connections with input that was received and not handled are in a list of their own.

mod identity;
mod idle;
mod leaving;
mod memory;
mod out;
mod sending;
mod turns;

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;
use slab::Slab;

use super::authentication::{Admission, Authentication};
use super::connection::Connection;
use super::id::ConnectionId;
use super::listen::BoundListener;
use super::listeners::{BELL, LISTENERS, Listeners, SOURCE, wait};
use super::spin::SpinRecord;
use super::timed::TimedReply;
use super::turn::TurnOutcome;
use crate::clock::Now;
use crate::descriptors::ConnectionDescriptor;
use crate::limits::{CONNECTIONS_MAX, HANDSHAKE_TIMEOUT, READY_EVENTS};
use crate::log::WarningPace;
use crate::net::budget::{Budget, ThreadShare};
use crate::net::sockets::WakeSignal;
use crate::security::limits::USERS_LOOK;
use crate::zmtp::MessageBounds;
pub use identity::ConnectionState;
use memory::MemoryWatch;
use turns::{BegunTurn, TurnInput};

/// The state that a closed connection leaves to the frontend.
#[derive(Debug)]
pub struct Closed<S> {
    /// The connection.
    pub id: ConnectionId,
    /// The frontend's state for it.
    pub state: S,
    /// Bytes of the stream to it that the system has taken, or is still given (see [`ReplyBuffer::end`]).
    pub sent: u64,
}

/// Bytes of all connections of a thread, ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Received.
    pub received: u64,
    /// Taken by the system, before they are sealed.
    pub sent: u64,
}

/// All connections of a thread, with a state `S` for each.
pub struct Connections<S> {
    epoll: OwnedFd,
    bell: WakeSignal,
    bounds: MessageBounds,
    listeners: Listeners,
    /// The last reading of the clock.
    now: Now,
    connections_max: usize,
    /// The thread receives no more.
    deaf: bool,
    /// The thread does not receive for now, and mutes a connection with input.
    muting: bool,
    /// Connections whose input the system does not report, until the thread receives again.
    muted: Vec<ConnectionId>,
    /// Connections closed since the last call of [`Connections::closed`].
    closed: usize,
    /// Connections accepted, ever.
    accepted: u64,
    /// Bytes received and sent, ever.
    traffic: Traffic,
    /// Connections closed, ever, because all together held too much.
    cut: u64,
    cuts_told: WarningPace,
    /// How often a connection got no turn, ever.
    held_back: u64,
    connections: Slab<Connection<S>>,
    generation: u32,
    /// Connections that must finish their handshake or their parting, with the deadline.
    deadlines: VecDeque<(Now, ConnectionId)>,
    /// Connections that have input to receive.
    turns: VecDeque<ConnectionId>,
    /// Connections with input that was received and not handled.
    backlog: VecDeque<ConnectionId>,
    /// How many of the backlog have a turn before the next wait.
    backlog_turns: usize,
    /// Connections with input whose last turn was long, and whether the thread receives for the next one. A few of them
    /// have a turn between two waits, after all others.
    long: VecDeque<(ConnectionId, bool)>,
    /// How many of them have a turn before the next wait.
    long_turns: usize,
    /// How many of them may have one.
    long_turns_max: usize,
    /// Connections with new bytes to flush.
    touched: VecDeque<ConnectionId>,
    drained: Vec<ConnectionId>,
    gone: Vec<Closed<S>>,
    /// Timed replies that the system has taken since the frontend asked.
    pub(super) timed: Vec<(ConnectionId, TimedReply)>,
    /// Memory that all of them hold.
    share: ThreadShare,
    memory: MemoryWatch,
    /// The thread may look for work before it sleeps.
    spin: Option<SpinRecord>,
    /// Turns that have received and wait to be handled, in their order.
    gathered: VecDeque<BegunTurn>,
    /// Memory for the input of turns.
    spare_inputs: Vec<TurnInput>,
    /// Memory for replies, which no idle connection keeps.
    spare_replies: Vec<Vec<u8>>,
    /// How many connections have a turn out.
    turns_out: usize,
    /// Who may connect. None: everybody.
    authentication: Option<Authentication>,
}

impl<S: ConnectionState> Connections<S> {
    /// No connections yet. A wait ends when `bell` rings. Messages have these bounds. Threads with the same budget
    /// share its memory. A peer has to prove that it is a user, if there is an admission.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn new(
        bell: &WakeSignal,
        bounds: MessageBounds,
        budget: &Arc<Budget>,
        admission: Option<&Admission>,
    ) -> Result<Self, Errno> {
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
            accepted: 0,
            traffic: Traffic::default(),
            cut: 0,
            cuts_told: WarningPace::default(),
            held_back: 0,
            connections: Slab::new(),
            generation: 0,
            deadlines: VecDeque::new(),
            turns: VecDeque::new(),
            backlog: VecDeque::new(),
            backlog_turns: 0,
            long: VecDeque::new(),
            long_turns: 0,
            long_turns_max: 1,
            touched: VecDeque::new(),
            drained: Vec::new(),
            gone: Vec::new(),
            timed: Vec::new(),
            share: budget.share(bell),
            memory: MemoryWatch::default(),
            spin: None,
            gathered: VecDeque::new(),
            spare_inputs: Vec::new(),
            spare_replies: Vec::new(),
            turns_out: 0,
            authentication: admission.map(|admission| Authentication::new(admission, bell)),
        })
    }

    /// Accepts the clients that connect to this listener.
    ///
    /// # Errors
    /// If the system has no memory left for it.
    pub fn listen(&mut self, listener: BoundListener) -> Result<(), Errno> {
        self.listeners.add(&self.epoll, listener)
    }

    /// A wait ends when this descriptor is readable, too. The caller then makes it unreadable.
    ///
    /// # Errors
    /// If the system has no memory left for it.
    pub fn watch(&mut self, source: &impl AsFd) -> Result<(), Errno> {
        epoll::add(&self.epoll, source, epoll::EventData::new_u64(SOURCE), epoll::EventFlags::IN)
    }

    /// From now on the thread looks for work before it sleeps, as long as that is worth while.
    pub fn spin_before_sleep(&mut self) {
        self.spin = Some(SpinRecord::new());
    }

    /// Takes over a connection that was just accepted.
    pub fn insert(&mut self, descriptor: ConnectionDescriptor, now: Now) {
        self.generation = self.generation.wrapping_add(1);
        let deadline = now.after(HANDSHAKE_TIMEOUT);
        let mechanisms = self.authentication.as_ref().map(Authentication::mechanisms);
        let mut connection = Connection::greet(descriptor, S::default(), self.generation, deadline, mechanisms);
        connection.active = now;
        let entry = self.connections.vacant_entry();
        let id = ConnectionId::new(entry.key(), self.generation);
        // Without epoll the thread would never hear of the connection, so it closes it.
        if epoll::add(&self.epoll, connection.descriptor(), id.data(), connection.interest).is_ok() {
            entry.insert(connection);
            self.accepted += 1;
            self.deadlines.push_back((deadline, id));
            self.touch(id);
        } else {
            self.closed += 1;
        }
    }

    /// So many turns that may be long go between two waits: as many as there are threads that answer.
    pub fn allow_long_turns(&mut self, most: usize) {
        self.long_turns_max = most;
    }

    /// How many connections there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether there is no connection.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// The clock's reading when the last wait ended.
    #[must_use]
    pub fn now(&self) -> Now {
        self.now
    }

    /// Memory that the connections hold, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.share.bytes()
    }

    /// How many connections there were, ever.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Bytes received and sent, ever.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// How many connections were closed, ever, because all together held too much and they stood still.
    #[must_use]
    pub fn cut(&self) -> u64 {
        self.cut
    }

    /// How often a connection got no turn, ever, because it held much or its client did not read.
    #[must_use]
    pub fn held_back(&self) -> u64 {
        self.held_back
    }

    /// How many connections may have a turn before the next wait.
    #[must_use]
    pub fn turns_waiting(&self) -> usize {
        self.turns.len() + self.backlog_turns + self.long_turns
    }

    // ------------------------------------------------------------------------------------------------------- waiting

    /// Flushes, then waits until there is work, the bell rings, or the timeout ends, and accepts new connections.
    /// Returns whether the bell has rung. The bell is silent afterwards. The thread reads `clock` when the wait is
    /// over.
    ///
    /// # Panics
    /// If the system cannot wait.
    pub fn wait(&mut self, timeout: Option<Duration>, clock: impl Fn() -> Now) -> bool {
        self.muting = false;
        self.unmute();
        self.wait_for_events(timeout, clock)
    }

    /// As [`Connections::wait`], for a caller that will not receive afterwards. Input of clients does not end this
    /// wait.
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
        let has_input = self.has_backlog() && !self.muting;
        let idle = !has_input && self.drained.is_empty() && self.gone.is_empty();
        let timeout = if idle { self.shortened(timeout) } else { Some(Duration::ZERO) };
        self.turns.clear();
        self.backlog_turns = self.backlog.len();
        let mut room = [const { MaybeUninit::uninit() }; READY_EVENTS];
        let mut search = match &mut self.spin {
            Some(spin) if timeout != Some(Duration::ZERO) => spin.begin(self.now, &clock),
            _ => None,
        };
        let events = loop {
            let events = wait(&self.epoll, &mut room, if search.is_some() { Some(Duration::ZERO) } else { timeout });
            let Some(going) = search.take() else { break events };
            if !events.is_empty() {
                going.succeed();
                break events;
            }
            search = going.go_on(&clock, thread::yield_now);
        };
        self.now = clock();
        self.close_late();
        self.hear_users();
        let mut rung = false;
        for event in events {
            match event.data.u64() {
                BELL => {
                    self.bell.silence();
                    rung = true;
                }
                LISTENERS => self.accept(),
                SOURCE => {}
                data => self.note(ConnectionId::of(data), event.flags),
            }
        }
        // A connection that joins them in this round has its turn in the next one.
        self.long_turns = self.long_turns_max.min(self.long.len());
        rung
    }

    /// Handles the event of one connection.
    fn note(&mut self, id: ConnectionId, flags: epoll::EventFlags) {
        let Some(connection) = get(&mut self.connections, id) else { return };
        if (connection.waits() || connection.muted) && flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR)
        {
            // Its requests are still handled, and the thread sees its end after them. The descriptor leaves the epoll,
            // which would report HUP and ERR again and again.
            self.deregister(id);
            return;
        }
        if !connection.is_served()
            && !connection.waits()
            && flags.intersects(epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR)
        {
            self.close(id);
            return;
        }
        let has_input = flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR);
        let muting = self.muting || self.deaf && !connection.is_disconnecting();
        if has_input && muting {
            connection.muted = true;
            self.muted.push(id);
        }
        if flags.contains(epoll::EventFlags::OUT) {
            touch(&mut self.touched, connection, id);
        }
        if flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            // Nobody reads the replies to what has come.
            connection.discard();
        }
        if has_input && !muting && connection.is_long && !connection.queued {
            connection.queued = true;
            self.long.push_back((id, true));
        } else if has_input && !muting {
            self.turns.push_back(id);
        } else if has_input {
            self.renew_interest(id);
        }
    }

    /// Nobody reads what is sent to the connection, and the system reports nothing of it any more.
    fn deregister(&mut self, id: ConnectionId) {
        let Some(connection) = get(&mut self.connections, id) else { return };
        connection.discard();
        if connection.registered && epoll::delete(&self.epoll, connection.descriptor()).is_ok() {
            (connection.registered, connection.interest) = (false, epoll::EventFlags::empty());
        }
    }

    /// Asks the system again for the input of muted connections from which the thread receives again.
    fn unmute(&mut self) {
        let mut muted = std::mem::take(&mut self.muted);
        muted.retain(|id| {
            let Some(connection) = get(&mut self.connections, *id) else { return false };
            let stays = self.deaf && !connection.is_disconnecting();
            if !stays {
                connection.muted = false;
                self.renew_interest(*id);
            }
            stays
        });
        self.muted = muted;
    }

    fn shortened(&self, timeout: Option<Duration>) -> Option<Duration> {
        let deadline = self.deadlines.front().map(|(deadline, _)| *deadline);
        let next = deadline.into_iter().chain(self.listeners.again_at()).chain(self.memory.look_at());
        let next = next.chain(self.authentication.as_ref().map(|_| self.now.after(USERS_LOOK / 2))).min();
        let left = next.map(|next| self.now.time_until(next));
        timeout.into_iter().chain(left).min()
    }

    fn close_late(&mut self) {
        let now = self.now;
        while let Some((_, id)) = self.deadlines.pop_front_if(|(deadline, _)| *deadline <= now) {
            // A connection that has finished its handshake in time may have a later deadline by now.
            let Some(connection) =
                get(&mut self.connections, id).filter(|connection| !connection.is_open() && connection.deadline <= now)
            else {
                continue;
            };
            // The client sent in time, and this thread was late to receive it. Handshakes are short, so this extension
            // ends.
            if !connection.is_disconnecting() && connection.has_unreceived() {
                connection.deadline = now.after(HANDSHAKE_TIMEOUT);
                self.deadlines.push_back((connection.deadline, id));
            } else {
                self.close(id);
            }
        }
        self.listeners.reopen(&self.epoll, now);
    }

    fn admit(&mut self) {
        let now = self.now;
        let room = self.connections_max.saturating_sub(self.connections.len());
        let came = self.listeners.admit(&self.epoll, now, room);
        came.into_iter().for_each(|descriptor| self.insert(descriptor, now));
    }

    /// Counts the memory of a connection, which may throttle the connection, and asks the system for the events that
    /// matter now.
    fn renew_interest(&mut self, id: ConnectionId) {
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
                self.close(id);
            }
        }
    }
}

/// The connection with this id, if it is open.
fn get<S>(connections: &mut Slab<Connection<S>>, id: ConnectionId) -> Option<&mut Connection<S>> {
    connections.get_mut(id.slot() as usize).filter(|connection| connection.generation == id.generation())
}

/// Puts a connection into the list for the next flush.
fn touch<S>(touched: &mut VecDeque<ConnectionId>, connection: &mut Connection<S>, id: ConnectionId) {
    if !connection.touched {
        connection.touched = true;
        touched.push_back(id);
    }
}
