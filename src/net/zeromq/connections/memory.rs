//! Limits a thread's connections while all connections of its frontend hold too much memory.
//!
//! ```text
//! above the budget ─► tight: large connections get no turns, large replies wait ─► at ¾ of the budget: all continue
//!                       └─► large connections that have not moved in STALLED_MAX are closed, the largest first
//! ```
//! - **A client that reads is not closed**, nor is one that sends. It frees memory as fast as it moves, and at most
//!   waits.
//! - If that frees too little at once, each thread exempts one connection at a time. The exempt connection may finish
//!   its message and have one large reply, however much is held. Without the exemption, incomplete messages and
//!   requests whose replies wait could wait for each other for ever.
//! - Connections that hold little are served, so a few clients that do not read do not disturb the others.
//!
//! So a frontend holds at most its budget, plus for each thread the rest of one message, two replies and one portion,
//! plus for each connection the small buffers that every connection may keep.

use std::cmp::Reverse;
use std::time::Duration;

use super::super::connection::{Connection, MemoryWait};
use super::{ConnectionId, ConnectionState, Connections};
use crate::clock::Now;
use crate::limits::{BUFFER_KEPT_BYTES, STALLED_BYTES, STALLED_MAX};
use crate::log::WarningPace;
use crate::net::budget::ThreadShare;

/// Interval at which the thread checks which connections have moved.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Whether memory is tight, and which connection is exempt.
#[derive(Debug, Default)]
pub(super) struct MemoryWatch {
    /// Time of the next check. `None`: memory is not tight.
    look_at: Option<Now>,
    /// The connection that may finish its message and have a reply.
    exempt: Option<ConnectionId>,
    /// The exempt connection has had no large reply yet.
    may_answer: bool,
    /// After this time a large reply no longer keeps the connection exempt. An unfinished message does.
    until: Option<Now>,
    /// Slot of the last exempt connection. Exemption goes round by slots.
    last: u32,
}

/// The memory of all connections of a thread.
pub(super) struct ConnectionMemory {
    /// Memory that all of them hold.
    pub(super) share: ThreadShare,
    pub(super) watch: MemoryWatch,
    cut_warnings: WarningPace,
}

impl ConnectionMemory {
    pub(super) fn new(share: ThreadShare) -> Self {
        Self { share, watch: MemoryWatch::default(), cut_warnings: WarningPace::default() }
    }
}

impl MemoryWatch {
    #[inline]
    pub(super) fn is_tight(&self) -> bool {
        self.look_at.is_some()
    }

    pub(super) fn look_at(&self) -> Option<Now> {
        self.look_at
    }

    /// Whether a large reply to this connection must wait.
    pub(super) fn is_tight_for(&self, id: ConnectionId) -> bool {
        self.is_tight() && !self.is_exempt(id)
    }

    /// Whether a large reply to this connection need not wait although memory is tight.
    pub(super) fn is_exempt(&self, id: ConnectionId) -> bool {
        self.may_answer && self.exempt == Some(id)
    }

    /// Notes that a connection has had a turn and has `bytes` in its send buffer.
    pub(super) fn note_answer(&mut self, id: ConnectionId, bytes: usize) {
        self.may_answer &= self.exempt != Some(id) || bytes <= BUFFER_KEPT_BYTES;
    }
}

impl<S: ConnectionState> Connections<S> {
    /// Detects, at each turn, that the frontend holds too much.
    #[inline]
    pub(super) fn notice(&mut self) {
        if !self.memory.watch.is_tight() && self.memory.share.is_over() {
            self.tighten();
        }
    }

    /// Begins the tight phase. It ends when enough is free.
    pub(super) fn tighten(&mut self) {
        self.memory.watch.look_at = Some(self.now.after(LOOK_EVERY));
        for connection in self.connections.iter_mut() {
            connection.watch_moves(self.now);
        }
        self.connections.ids().into_iter().for_each(|id| self.renew_interest(id));
    }

    /// Whether memory is tight and one connection is exempt.
    #[cfg(test)]
    pub(in super::super) fn memory_is_tight_for_one(&self) -> bool {
        self.memory.watch.exempt.is_some()
    }

    /// Before each sleep: has waiting connections continue if memory allows, and closes those that stand still.
    pub(super) fn ease(&mut self) {
        self.notice();
        let Some(look_at) = self.memory.watch.look_at else { return };
        let is_time = look_at <= self.now;
        if is_time {
            self.memory.watch.look_at = Some(self.now.after(LOOK_EVERY));
            self.look();
        }
        if self.memory.share.is_enough() {
            self.loosen();
        } else if is_time || self.memory.watch.exempt.is_some() {
            self.exempt_one();
        }
    }

    /// While memory is tight: takes the turns from a connection that holds much, and gives them back when it holds
    /// little.
    pub(super) fn throttle(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        let holds_much = connection.bytes() > BUFFER_KEPT_BYTES
            && self.memory.watch.exempt != Some(id)
            && !connection.is_disconnecting();
        let was_throttled = connection.turn.is_throttled();
        connection.turn.throttle(holds_much);
        self.counts.held_back += u64::from(connection.turn.is_throttled() && !was_throttled);
        if was_throttled && connection.is_served() && connection.input.may_come() {
            self.queue(id);
        }
    }

    /// Ends the tight phase: all connections continue.
    fn loosen(&mut self) {
        self.memory.watch = MemoryWatch::default();
        for id in self.connections.ids() {
            let Some(connection) = self.connections.get_mut(id) else { continue };
            let was_throttled = connection.turn.is_throttled();
            connection.turn.memory = MemoryWait::No;
            if was_throttled && connection.is_served() && connection.input.may_come() {
                self.queue(id);
            }
            self.renew_interest(id);
        }
    }

    /// Exempts one connection, if any waits for memory.
    fn exempt_one(&mut self) {
        if self.is_exempt_progressing() {
            return;
        }
        let waits = |connection: &Connection<S>| {
            let holds_much = connection.turn.is_starved() || connection.unfinished() > BUFFER_KEPT_BYTES;
            connection.turn.is_throttled() && holds_much && !connection.outbox.is_paused && !connection.turn.is_busy()
        };
        let waiting = || self.connections.iter().filter(|(_, connection)| waits(connection));
        let next = waiting().find(|(id, _)| id.slot() > self.memory.watch.last).or_else(|| waiting().next());
        let next = next.map(|(id, _)| id);
        let last = std::mem::replace(&mut self.memory.watch.exempt, next);
        if let Some(id) = next {
            self.memory.watch.may_answer = true;
            self.memory.watch.last = id.slot();
            self.memory.watch.until = Some(self.now.after(STALLED_MAX));
            if let Some(connection) = self.connections.get_mut(id) {
                connection.turn.feed();
                connection.watch_moves(self.now);
            }
        }
        last.into_iter().chain(next).for_each(|id| self.renew_interest(id));
    }

    /// Whether the exempt connection still has an unfinished message, or a large reply and time left for it.
    fn is_exempt_progressing(&mut self) -> bool {
        let MemoryWatch { exempt, may_answer, until, .. } = self.memory.watch;
        let Some(connection) = exempt.and_then(|id| self.connections.get_mut(id)) else { return false };
        let has_time = until.is_some_and(|until| self.now < until);
        connection.unfinished() > BUFFER_KEPT_BYTES
            || has_time && (connection.outbox.held() > BUFFER_KEPT_BYTES || may_answer && connection.has_messages())
    }

    /// Notes which connections have moved. Closes large connections that have stood still too long, the largest first,
    /// until memory is enough.
    fn look(&mut self) {
        for connection in self.connections.iter_mut() {
            let moved = connection.moved();
            if connection.bytes() <= BUFFER_KEPT_BYTES || connection.watch.moved.abs_diff(moved) >= STALLED_BYTES {
                connection.watch_moves(self.now);
            }
        }
        if self.memory.share.is_enough() {
            return;
        }
        let (before, mut bytes) = (self.counts.cut, 0);
        for (id, held) in self.those_that_stand_still() {
            if self.memory.share.is_enough() {
                break;
            }
            self.counts.cut += 1;
            bytes += held;
            self.close(id);
        }
        let count = self.counts.cut - before;
        if count > 0 && self.memory.cut_warnings.is_time(self.now) {
            tracing::warn!(
                "the connections of a frontend hold too much: {count} with {bytes} bytes, of peers that do not read or do not \
                 finish a message, are closed; {} by now",
                self.counts.cut
            );
        }
    }

    /// Large connections that have stood still for [`STALLED_MAX`], the largest first.
    fn those_that_stand_still(&self) -> Vec<(ConnectionId, usize)> {
        let (now, exempt) = (self.now, self.memory.watch.exempt);
        let still = self.connections.iter().filter(|(id, connection)| {
            // Only the client can move this connection: it must read, or send the rest of its message. All other
            // connections wait for this server, even if their clients have sent more.
            let may_move = !connection.outbox.is_empty() || exempt == Some(*id) && !connection.has_unreceived();
            may_move
                && !connection.turn.is_busy()
                && connection.bytes() > BUFFER_KEPT_BYTES
                && connection.watch.moved_at.after(STALLED_MAX) <= now
        });
        let mut still: Vec<_> = still.map(|(id, connection)| (id, connection.bytes())).collect();
        still.sort_unstable_by_key(|(_, bytes)| Reverse(*bytes));
        still
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::net::budget::Budget;
    use crate::net::sockets::WakeSignal;
    use crate::net::zeromq::connection::ReceivedMessages;
    use crate::net::zeromq::tests::introduction;
    use crate::zmtp::{MessageBounds, Messages, SocketType};

    const BOUNDS: MessageBounds = MessageBounds { frame_bytes: 1 << 20, frames: 8, bytes: 2 << 20 };
    const START: Now = Now::from_millis(1_000);

    /// The connections of a thread, with the clients' ends.
    struct Fixture {
        connections: Connections<()>,
        ids: Vec<ConnectionId>,
        clients: Vec<UnixStream>,
    }

    impl Fixture {
        /// This many connections that hold no bytes.
        fn new(count: u32) -> Self {
            let wake_signal = WakeSignal::new().unwrap();
            let mut connections = Connections::new(&wake_signal, BOUNDS, &Budget::new(1), None).unwrap();
            connections.now = START;
            let mut clients = Vec::new();
            for _ in 0..count {
                let (ours, theirs) = UnixStream::pair().unwrap();
                connections.insert(OwnedFd::from(ours).into(), START);
                clients.push(theirs);
            }
            let ids = connections.connections.ids();
            connections.connections.iter_mut().for_each(|connection| connection.outbox.discard());
            Self { connections, ids, clients }
        }

        fn at(&mut self, slot: usize) -> &mut Connection<()> {
            let id = self.ids[slot];
            self.connections.connections.get_mut(id).unwrap()
        }

        /// The send buffer of a connection holds this many bytes, all unsent.
        fn fill(&mut self, slot: usize, bytes: usize) {
            self.at(slot).outbox.discard();
            self.at(slot).outbox.push_encoded(&vec![7; bytes]);
        }

        /// A connection holds a message, or none.
        fn hold(&mut self, slot: usize, held: bool) {
            let messages = || Box::new(ReceivedMessages { messages: Messages::default(), bytes: Vec::new() });
            self.at(slot).input.held = held.then(messages);
        }

        /// The client sends these bytes, and the connection keeps what is not a whole message.
        fn receive(&mut self, slot: usize, bytes: &[u8]) {
            self.clients[slot].write_all(bytes).unwrap();
            let Connections { connections, bounds, .. } = &mut self.connections;
            let (mut shared, mut messages) = (Vec::new(), Messages::default());
            let connection = connections.get_mut(self.ids[slot]).unwrap();
            let left = connection.take(true, bounds, 8, &mut shared, &mut messages).unwrap();
            connection.input.keep(&left, &shared);
        }

        /// The client is done with its handshake, and has sent this many bytes of a large message.
        fn begin(&mut self, slot: usize, bytes: usize) {
            let mut begun = b"\x02\0\0\0\0\0\x01\0\0".to_vec();
            begun.resize(bytes, 7);
            self.receive(slot, &[introduction(SocketType::Dealer), begun].concat());
            self.at(slot).outbox.discard();
            assert_eq!(self.at(slot).unfinished(), bytes);
        }

        /// A connection had moved so much, and at this time.
        fn stands(&mut self, slot: usize, moved: u64, moved_at: Now) {
            let watch = &mut self.at(slot).watch;
            (watch.moved, watch.moved_at) = (moved, moved_at);
        }

        /// The exempt connection, after exempting one if the last is done.
        fn exempt(&mut self) -> Option<ConnectionId> {
            self.connections.exempt_one();
            self.connections.memory.watch.exempt
        }
    }

    #[test]
    fn the_exempt_connection_may_have_one_large_reply() {
        let (id, other) = (ConnectionId::new(1, 1), ConnectionId::new(2, 2));
        let mut memory =
            MemoryWatch { look_at: Some(START), exempt: Some(id), may_answer: true, ..MemoryWatch::default() };
        memory.note_answer(other, BUFFER_KEPT_BYTES + 1);
        memory.note_answer(id, BUFFER_KEPT_BYTES);
        assert!(!memory.is_tight_for(id) && memory.is_tight_for(other));
        memory.note_answer(id, BUFFER_KEPT_BYTES + 1);
        assert!(memory.is_tight_for(id));
    }

    #[test]
    fn a_connection_stays_exempt_for_its_message_and_for_a_time_for_its_reply() {
        let mut fixture = Fixture::new(1);
        fixture.connections.memory.watch.exempt = Some(fixture.ids[0]);
        let progresses = |fixture: &mut Fixture, outbox, (held, may_answer), has_time| {
            fixture.fill(0, outbox);
            fixture.hold(0, held);
            let until = if has_time { START.after(STALLED_MAX) } else { START };
            (fixture.connections.memory.watch.until, fixture.connections.memory.watch.may_answer) =
                (Some(until), may_answer);
            fixture.connections.is_exempt_progressing()
        };
        assert!(!progresses(&mut fixture, 0, (false, true), true));
        assert!(!progresses(&mut fixture, BUFFER_KEPT_BYTES, (false, true), true));
        assert!(progresses(&mut fixture, BUFFER_KEPT_BYTES + 1, (false, false), true));
        assert!(!progresses(&mut fixture, BUFFER_KEPT_BYTES + 1, (false, false), false));
        assert!(progresses(&mut fixture, 0, (true, true), true));
        assert!(!progresses(&mut fixture, 0, (true, false), true));
        assert!(!progresses(&mut fixture, 0, (true, true), false));
        fixture.hold(0, false);
        fixture.begin(0, BUFFER_KEPT_BYTES);
        assert!(!progresses(&mut fixture, 0, (false, true), true));
        fixture.receive(0, b"x");
        assert!(progresses(&mut fixture, 0, (false, false), false));
    }

    #[test]
    fn exemption_goes_round_by_slots() {
        let mut fixture = Fixture::new(3);
        fixture.connections.memory.watch.last = 1;
        for slot in 0..3 {
            fixture.at(slot).turn.memory = MemoryWait::Starved;
        }
        let exempt: Vec<_> = (0..4).map(|_| fixture.exempt()).collect();
        let [first, second, third] = fixture.ids[..] else { panic!() };
        assert_eq!(exempt, [Some(third), Some(first), Some(second), None]);
    }

    #[test]
    fn only_connections_that_wait_for_memory_are_exempt() {
        let mut fixture = Fixture::new(4);
        fixture.at(0).turn.memory = MemoryWait::Throttled;
        fixture.begin(1, BUFFER_KEPT_BYTES);
        fixture.at(1).turn.memory = MemoryWait::Throttled;
        (fixture.at(3).turn.memory, fixture.at(3).turn.is_parked) = (MemoryWait::Starved, true);
        assert_eq!(fixture.exempt(), None);
        fixture.receive(1, b"x");
        assert_eq!(fixture.exempt(), Some(fixture.ids[1]));
    }

    #[test]
    fn throttled_connections_with_input_have_a_turn_when_memory_is_enough() {
        let mut fixture = Fixture::new(3);
        fixture.at(0).turn.memory = MemoryWait::Throttled;
        fixture.hold(1, true);
        fixture.at(2).turn.memory = MemoryWait::Throttled;
        fixture.hold(2, true);
        fixture.connections.loosen();
        fixture.connections.schedule.begin_wait();
        let turns: Vec<_> = std::iter::from_fn(|| fixture.connections.next_turn()).collect();
        assert_eq!(turns, [(fixture.ids[2], false)]);
    }

    #[test]
    fn a_large_connection_that_stands_still_is_closed_and_the_closing_is_warned_of() {
        let mut fixture = Fixture::new(2);
        fixture.fill(1, BUFFER_KEPT_BYTES + 1);
        for slot in 0..2 {
            let moved = fixture.at(slot).moved();
            fixture.stands(slot, moved, START);
        }
        fixture.ids.clone().into_iter().for_each(|id| fixture.connections.renew_interest(id));
        let is_warned = |fixture: &Fixture| {
            let mut pace = fixture.connections.memory.cut_warnings;
            !pace.is_time(fixture.connections.now)
        };
        fixture.connections.now = START.after(STALLED_MAX / 2);
        fixture.connections.look();
        assert_eq!((fixture.connections.cut(), is_warned(&fixture)), (0, false));
        let progress = [0, 1].map(|slot| fixture.at(slot).watch.moved_at);
        assert_eq!(progress, [fixture.connections.now, START], "the first holds little");
        fixture.connections.now = START.after(STALLED_MAX);
        fixture.connections.look();
        assert_eq!((fixture.connections.cut(), is_warned(&fixture), fixture.connections.len()), (1, true, 1));
    }

    #[test]
    fn memory_that_is_tight_is_looked_at_again_soon() {
        let mut fixture = Fixture::new(1);
        assert_eq!(fixture.connections.memory.watch.look_at(), None);
        fixture.fill(0, BUFFER_KEPT_BYTES);
        fixture.ids.clone().into_iter().for_each(|id| fixture.connections.renew_interest(id));
        fixture.connections.notice();
        assert_eq!(fixture.connections.memory.watch.look_at(), Some(START.after(LOOK_EVERY)));
    }

    /// Of two clients that send a large message, one continues. The other one waits for this server.
    #[test]
    fn a_connection_that_waits_for_memory_does_not_stand_still() {
        let mut fixture = Fixture::new(2);
        for slot in 0..2 {
            fixture.begin(slot, BUFFER_KEPT_BYTES + 1);
            fixture.stands(slot, 0, START);
        }
        fixture.connections.now = START.after(STALLED_MAX);
        let still = |fixture: &Fixture| -> Vec<ConnectionId> {
            fixture.connections.those_that_stand_still().into_iter().map(|(id, _)| id).collect()
        };
        assert_eq!(still(&fixture), []);
        fixture.connections.memory.watch.exempt = Some(fixture.ids[1]);
        assert_eq!(still(&fixture), [fixture.ids[1]]);
    }

    #[test]
    fn a_connection_that_holds_as_much_as_it_may_keep_does_not_stand_still() {
        let mut fixture = Fixture::new(2);
        for (slot, bytes) in [(0, BUFFER_KEPT_BYTES), (1, BUFFER_KEPT_BYTES + 1)] {
            fixture.fill(slot, bytes);
            fixture.stands(slot, 0, START);
        }
        fixture.connections.now = START.after(STALLED_MAX);
        assert_eq!(fixture.connections.those_that_stand_still(), [(fixture.ids[1], BUFFER_KEPT_BYTES + 1)]);
    }
}
