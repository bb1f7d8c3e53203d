//! The connections of one thread.
//!
//! ```text
//! wait ─► drained: send buffers that have room again ─► receive: a turn of one connection, as often as there are turns
//!      ─► connection: replies ─► flush ─► gone: the state of connections that have closed
//! ```
//! Epoll is level-triggered here: it reports a descriptor as long as it is ready, so a skipped turn is not lost.
//! Connections with input that was received and not handled are in a list of their own.

mod gates;
mod identity;
mod idle;
mod leaving;
mod memory;
mod out;
mod schedule;
mod sending;
mod slots;
mod turns;

use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;

use super::authentication::{Admission, Authentication};
use super::connection::Connection;
use super::event_port::EventPort;
use super::id::ConnectionId;
use super::listen::BoundListener;
use super::listeners::{LISTENERS, SOURCE, WAKE_SIGNAL, wait};
use super::protocol::{Arrival, ConnectionProtocol, InputBounds};
use super::spin::SpinRecord;
use super::turn::TurnOutcome;
use crate::clock::Now;
use crate::descriptors::ConnectionDescriptor;
use crate::limits::READY_EVENTS;
use crate::net::budget::Budget;
use crate::net::sockets::WakeSignal;
use crate::resp3::CommandBounds;
use crate::security::limits::USERS_LOOK;
use crate::zmtp::MessageBounds;
pub use identity::ConnectionState;
use leaving::Endings;
use memory::ConnectionMemory;
use schedule::Schedule;
use sending::Sending;
use slots::Slots;
use turns::BegunTurns;

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

/// The connections of a thread that speak one protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Connections at this moment.
    pub connections: u64,
    /// Connections ever.
    pub accepted: u64,
    /// Bytes received.
    pub received: u64,
    /// Bytes taken by the system, before they are sealed.
    pub sent: u64,
}

/// All connections of a thread, with a state `S` for each.
pub struct Connections<S> {
    port: EventPort,
    bounds: InputBounds,
    /// The last reading of the clock.
    now: Now,
    gate: InputGate,
    counts: ConnectionCounts,
    connections: Slots<S>,
    schedule: Schedule,
    begun: BegunTurns,
    sending: Sending,
    endings: Endings<S>,
    memory: ConnectionMemory,
    /// Who may connect. None: everybody.
    authentication: Option<Authentication>,
}

/// Whether the thread receives.
#[derive(Default)]
struct InputGate {
    /// The thread receives no more.
    shut: bool,
    /// The thread does not receive for now, and mutes a connection with input.
    muting: bool,
    /// Connections whose input the system does not report, until the thread receives again.
    muted: Vec<ConnectionId>,
}

/// Counts of all connections of a thread, ever.
#[derive(Default)]
struct ConnectionCounts {
    /// By protocol, in the order of [`ConnectionProtocol`].
    traffic: [Traffic; 2],
    /// Connections closed because all together held too much.
    cut: u64,
    /// How often a connection got no turn.
    held_back: u64,
}

impl ConnectionCounts {
    fn of(&mut self, protocol: ConnectionProtocol) -> &mut Traffic {
        let [of_zmtp, of_resp] = &mut self.traffic;
        match protocol {
            ConnectionProtocol::Zmtp => of_zmtp,
            ConnectionProtocol::Resp => of_resp,
        }
    }
}

impl<S: ConnectionState> Connections<S> {
    /// No connections yet. A wait ends when `wake_signal` is raised. Messages have these bounds. Threads with the same
    /// budget share its memory. A peer has to prove that it is a user, if there is an admission.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn new(
        wake_signal: &WakeSignal,
        bounds: MessageBounds,
        budget: &Arc<Budget>,
        admission: Option<&Admission>,
    ) -> Result<Self, Errno> {
        Ok(Self {
            port: EventPort::new(wake_signal)?,
            bounds: InputBounds::of_messages(bounds),
            now: Now::from_nanos(0),
            gate: InputGate::default(),
            counts: ConnectionCounts::default(),
            connections: Slots::new(),
            schedule: Schedule::new(),
            begun: BegunTurns::default(),
            sending: Sending::default(),
            endings: Endings::default(),
            memory: ConnectionMemory::new(budget.share(wake_signal)),
            authentication: admission.map(|admission| Authentication::new(admission, wake_signal)),
        })
    }

    /// Accepts the clients that connect to this listener.
    ///
    /// # Errors
    /// If the system has no memory left for it.
    pub fn listen(&mut self, listener: BoundListener) -> Result<(), Errno> {
        self.port.listen(listener)
    }

    /// A wait ends when this descriptor is readable, too. The caller then makes it unreadable.
    ///
    /// # Errors
    /// If the system has no memory left for it.
    pub fn watch(&mut self, source: &impl AsFd) -> Result<(), Errno> {
        epoll::add(&self.port.epoll, source, epoll::EventData::new_u64(SOURCE), epoll::EventFlags::IN)
    }

    /// From now on the thread looks for work before it sleeps, as long as that is worth while.
    pub fn spin_before_sleep(&mut self) {
        self.port.spin = Some(SpinRecord::new());
    }

    /// The bounds of the commands of connections that speak RESP.
    pub fn bound_commands(&mut self, bounds: CommandBounds) {
        self.bounds.commands = bounds;
    }

    /// Takes over a connection that was just accepted, and speaks ZMTP.
    pub fn insert(&mut self, descriptor: ConnectionDescriptor, now: Now) {
        let arrival = Arrival::in_the_clear(descriptor, ConnectionProtocol::Zmtp);
        self.insert_arrival(arrival, now, |_, _| S::default());
    }

    /// Takes over a connection that was just accepted. `state` makes the frontend's state for it.
    pub(crate) fn insert_arrival(
        &mut self,
        arrival: Arrival,
        now: Now,
        state: impl FnOnce(ConnectionId, &Arrival) -> S,
    ) {
        let mechanisms = self.authentication.as_ref().map(Authentication::mechanisms);
        let protocol = arrival.protocol;
        let (epoll, deadlines) = (&self.port.epoll, &mut self.endings.deadlines);
        let id = self.connections.insert(|id| {
            let (state, deadline) = (state(id, &arrival), deadlines.begin(id, now));
            let mut connection = Connection::greet(arrival, state, id.generation(), deadline, mechanisms);
            connection.watch.active = now;
            // Without epoll no event of the connection would reach the thread, so it closes the connection.
            connection.interest.change(epoll, &connection.descriptor, id, epoll::EventFlags::IN).ok()?;
            Some(connection)
        });
        let Some(id) = id else {
            self.endings.closed += 1;
            return;
        };
        let traffic = self.counts.of(protocol);
        traffic.accepted += 1;
        traffic.connections += 1;
        self.touch(id);
    }

    /// So many turns that may be long go between two waits: as many as there are threads that answer.
    pub fn allow_long_turns(&mut self, most: usize) {
        self.schedule.allow_long_turns(most);
    }

    /// How many connections there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether there is no connection.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The clock's reading when the last wait ended.
    #[must_use]
    pub fn now(&self) -> Now {
        self.now
    }

    /// Memory that the connections hold, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memory.share.bytes()
    }

    /// The connections that speak this protocol.
    #[must_use]
    pub fn traffic(&self, protocol: ConnectionProtocol) -> Traffic {
        let [of_zmtp, of_resp] = self.counts.traffic;
        match protocol {
            ConnectionProtocol::Zmtp => of_zmtp,
            ConnectionProtocol::Resp => of_resp,
        }
    }

    /// How many connections were closed, ever, because all together held too much and they stood still.
    #[must_use]
    pub fn cut(&self) -> u64 {
        self.counts.cut
    }

    /// How often a connection got no turn, ever, because it held much or its client did not read.
    #[must_use]
    pub fn held_back(&self) -> u64 {
        self.counts.held_back
    }

    /// How many connections may have a turn before the next wait.
    #[must_use]
    pub fn turns_waiting(&self) -> usize {
        self.schedule.turns()
    }

    // ------------------------------------------------------------------------------------------------------- waiting

    /// Flushes, then waits until there is work, the wake signal is raised, or the timeout ends, and accepts new
    /// connections. Returns whether the signal was raised. It is cleared. The thread reads `clock` when the wait is
    /// over.
    ///
    /// # Panics
    /// If the system cannot wait.
    pub fn wait(&mut self, timeout: Option<Duration>, clock: impl Fn() -> Now) -> bool {
        self.gate.muting = false;
        self.unmute();
        self.wait_for_events(timeout, clock)
    }

    /// As [`Connections::wait`], for a caller that will not receive afterwards. Input of clients does not end this
    /// wait.
    ///
    /// # Panics
    /// If the system cannot wait.
    pub fn wait_without_receiving(&mut self, timeout: Option<Duration>, clock: impl Fn() -> Now) -> bool {
        self.gate.muting = true;
        self.wait_for_events(timeout, clock)
    }

    fn wait_for_events(&mut self, timeout: Option<Duration>, clock: impl Fn() -> Now) -> bool {
        self.flush();
        self.ease();
        let has_input = self.has_backlog() && !self.gate.muting;
        let idle = !has_input && self.sending.drained.is_empty() && self.endings.gone.is_empty();
        let timeout = if idle { self.shortened(timeout) } else { Some(Duration::ZERO) };
        self.schedule.begin_wait();
        let mut room = [const { MaybeUninit::uninit() }; READY_EVENTS];
        let mut search = match &mut self.port.spin {
            Some(spin) if timeout != Some(Duration::ZERO) => spin.begin(self.now, &clock),
            _ => None,
        };
        let events = loop {
            let events =
                wait(&self.port.epoll, &mut room, if search.is_some() { Some(Duration::ZERO) } else { timeout });
            let Some(going) = search.take() else { break events };
            if !events.is_empty() {
                going.succeed();
                break events;
            }
            search = going.search_again(&clock, thread::yield_now);
        };
        self.now = clock();
        self.close_late();
        self.refresh_users();
        let mut raised = false;
        for event in events {
            match event.data.u64() {
                WAKE_SIGNAL => {
                    self.port.wake_signal.clear();
                    raised = true;
                }
                LISTENERS => self.accept(),
                SOURCE => {}
                data => self.note(ConnectionId::of(data), event.flags),
            }
        }
        self.schedule.end_wait();
        raised
    }

    /// Handles the event of one connection.
    fn note(&mut self, id: ConnectionId, flags: epoll::EventFlags) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        let sends_no_more = flags.contains(epoll::EventFlags::RDHUP);
        let is_gone = flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR)
            || sends_no_more && connection.outbox.is_paused && !connection.outbox.is_gated;
        if is_gone {
            // Nobody reads the replies to what has come, and what waited until the client has read waits no more.
            connection.outbox.give_up();
        }
        if (connection.waits() || connection.input.muted) && is_gone {
            // Its requests are still handled, and the thread sees its end after them. The descriptor leaves the epoll,
            // which would report HUP and ERR again and again.
            connection.interest.end(&self.port.epoll, &connection.descriptor);
            return;
        }
        if !connection.is_served() && !connection.waits() && (is_gone || sends_no_more) {
            self.close(id);
            return;
        }
        let has_input = is_gone || flags.contains(epoll::EventFlags::IN);
        let muting = self.gate.muting || self.gate.shut && !connection.is_disconnecting();
        if has_input && muting {
            connection.input.muted = true;
            self.gate.muted.push(id);
        }
        if flags.contains(epoll::EventFlags::OUT) {
            touch(&mut self.sending, connection, id);
        }
        if has_input && !muting {
            self.schedule.note_input(id, connection);
        } else if has_input {
            self.renew_interest(id);
        }
    }

    /// Asks the system again for the input of muted connections from which the thread receives again.
    fn unmute(&mut self) {
        let mut muted = std::mem::take(&mut self.gate.muted);
        muted.retain(|id| {
            let Some(connection) = self.connections.get_mut(*id) else { return false };
            let stays = self.gate.shut && !connection.is_disconnecting();
            if !stays {
                connection.input.muted = false;
                self.renew_interest(*id);
            }
            stays
        });
        self.gate.muted = muted;
    }

    fn shortened(&self, timeout: Option<Duration>) -> Option<Duration> {
        let next = self
            .endings
            .deadlines
            .next()
            .into_iter()
            .chain(self.port.listeners.again_at())
            .chain(self.memory.watch.look_at());
        let next = next.chain(self.authentication.as_ref().map(|_| self.now.after(USERS_LOOK / 2))).min();
        let left = next.map(|next| self.now.time_until(next));
        timeout.into_iter().chain(left).min()
    }

    fn close_late(&mut self) {
        let now = self.now;
        while let Some(id) = self.endings.deadlines.take_late(now) {
            // A connection that has finished its handshake in time may have a later deadline by now.
            let Some(connection) = self
                .connections
                .get_mut(id)
                .filter(|connection| !connection.is_open() && connection.watch.deadline <= now)
            else {
                continue;
            };
            // The client sent in time, and this thread was late to receive it. Handshakes are short, so this extension
            // ends.
            if !connection.is_disconnecting() && connection.has_unreceived() {
                connection.watch.deadline = self.endings.deadlines.begin(id, now);
            } else {
                self.close(id);
            }
        }
        self.port.listeners.reopen(&self.port.epoll, now);
    }

    fn admit(&mut self) {
        let now = self.now;
        let came = self.port.listeners.admit(&self.port.epoll, now, self.connections.room());
        came.into_iter().for_each(|arrival| self.insert_arrival(arrival, now, |_, _| S::default()));
    }

    /// Counts the memory of a connection, which may throttle the connection, and asks the system for the events that
    /// matter now.
    fn renew_interest(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        let kept = connection.kept() + connection.state.kept_bytes();
        self.memory.share.change(kept, std::mem::replace(&mut connection.watch.counted, kept));
        if self.memory.watch.is_tight() {
            self.throttle(id);
        }
        let Some(connection) = self.connections.get_mut(id) else { return };
        let wanted = connection.wanted();
        if !connection.outbox.is_touched
            && connection.interest.change(&self.port.epoll, &connection.descriptor, id, wanted).is_err()
        {
            self.close(id);
        }
    }
}

/// Puts a connection into the list for the next flush.
fn touch<S>(sending: &mut Sending, connection: &mut Connection<S>, id: ConnectionId) {
    if !connection.outbox.is_touched {
        connection.outbox.is_touched = true;
        sending.touched.push_back(id);
    }
    if connection.outbox.awaited().is_some() {
        sending.gated.note(connection, id);
    }
}
