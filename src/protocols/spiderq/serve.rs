//! The loop between the clients and the queue: it receives, decodes, asks, and sends what is answered.
//!
//! ```text
//! connections ─► Peers ─► messages ─► Desk: decode ─► Tasks::ask, a burst at a time ═► committer
//!      ▲                                 │ pending: peer, envelope, tag                   │
//!      └── outboxes ◄── Seat: encode ◄── read the value ◄═════════ deliveries ◄═══════════╝
//! ```
//! The thread sleeps on its connections and a bell, which the committer rings; while the committer has too much to do it
//! does not receive, and what clients send waits in their connections.
//!
//! What is not here: the bytes (`wire`), what requests mean (`handle`, `tasks`), and what is kept for each client (`seat`).

use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, unbounded};

use super::desk::{Desk, Manners, Pending};
use super::handle::Access;
use super::letters::Letters;
use super::seat::{Estate, Letter, Patience, Seat};
use super::wire::tag;
use crate::clock::{Clock, Now};
use crate::limits::{
    ASK_BURST, CLIENT_BYTES_DEFAULT, ENVELOPE_BYTES_MAX, ENVELOPE_FRAMES_MAX, LINGER, ROOM_RECHECK,
    TASK_FRAME_BYTES_MAX,
};
use crate::log::Pace;
use crate::protocols::native::{Budget, Listener, PeerId, Peers, Taken};
use crate::protocols::sockets::{Bell, ServeError, Stopper};
use crate::stats::HeldBytes;
use crate::store;
use crate::tasks::{Committer, Delivery, Face, QueueId, Tasks};
use crate::zmtp::Bounds;

/// How often the face looks whether answers can still come, whether some wait for too long, and whether the committer has room and has not said so.
const SWEEP: Duration = ROOM_RECHECK;
/// What is kept of a message: the longest request, and an envelope of which nobody needs more.
const BOUNDS: Bounds = Bounds {
    frame_bytes: TASK_FRAME_BYTES_MAX as u64,
    frames: ENVELOPE_FRAMES_MAX + 1,
    bytes: ENVELOPE_BYTES_MAX + TASK_FRAME_BYTES_MAX,
};

/// Which version of the protocol StatsGot is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Eight counters.
    V1_3,
    /// Ten.
    V1_4,
}

/// What the face is told to be.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where requests come in.
    pub endpoint: String,
    /// How Stats are answered.
    pub version: Version,
    /// Whether clients may end the server.
    pub terminate: bool,
    /// What they may ask.
    pub access: Access,
}

/// What runs, and where it listens.
pub struct Spiderq {
    /// For the thread `spiderq`.
    pub front: Front,
    /// Tells it to take no more.
    pub stopper: Stopper,
    /// Where requests come in, with the port that the system chose.
    pub endpoint: String,
}

/// Listens, and has the committer deliver answers about `queue` here; connections and letters each take half of `held_bytes_max`.
/// `terminated` is called when a client has ended the server. Gives back as well what says how much clients have not taken.
///
/// # Errors
/// [`ServeError`] if the endpoint cannot be had, or the system has no descriptor left.
pub fn bind(
    settings: &Settings,
    held_bytes_max: u64,
    (committer, tasks, queue): (&mut Committer, Tasks, QueueId),
    terminated: Box<dyn Fn() + Send>,
) -> Result<(Spiderq, HeldBytes), ServeError> {
    let listener = Listener::bind(&settings.endpoint)?;
    let endpoint = listener.endpoint().to_owned();
    let stopper = Stopper::new()?;
    let budget = Budget::new(held_bytes_max / 2);
    let mut peers = Peers::new(stopper.bell(), BOUNDS, &budget).map_err(std::io::Error::from)?;
    peers.listen(listener).map_err(std::io::Error::from)?;
    let (sender, deliveries) = unbounded();
    let clock = Clock::start();
    let face = committer.face(Box::new(Mailbox { sender, bell: stopper.bell().clone() }));
    let front = Front {
        peers,
        desk: Desk::new(tasks, queue, face, Manners::new(settings)),
        stopper: stopper.clone(),
        deliveries,
        terminated: Some(terminated),
        late: Vec::new(),
        letters: Letters::default(),
        letters_bytes_max: held_bytes_max / 2,
        clock,
        sweep_at: clock.now().after(SWEEP),
        refused_ever: 0,
        refusals_told: Pace::default(),
        closures_told: Pace::default(),
    };
    let letters = front.letters.figure();
    let held = Box::new(move || budget.held() + letters.get());
    Ok((Spiderq { front, stopper, endpoint }, held))
}

/// The committer's end. There are never more answers in it than requests are pending.
struct Mailbox {
    sender: Sender<Delivery>,
    bell: Bell,
}

impl Face for Mailbox {
    fn deliver(&self, delivery: Delivery) {
        // The face outlives the committer; if it has failed, the process is about to end.
        let _failed = self.sender.send(delivery);
        self.bell.ring();
    }

    fn go_on(&self) {
        self.bell.ring();
    }
}

/// The face, ready to run.
pub struct Front {
    peers: Peers<Seat>,
    desk: Desk,
    stopper: Stopper,
    deliveries: Receiver<Delivery>,
    /// To be called once.
    terminated: Option<Box<dyn Fn() + Send>>,
    /// Clients who have letters that wait for them to read, or had.
    late: Vec<PeerId>,
    /// What all letters that wait take.
    letters: Letters,
    /// What they may take, in bytes.
    letters_bytes_max: u64,
    clock: Clock,
    sweep_at: Now,
    /// Connections that were closed for an envelope without end.
    refused_ever: u64,
    refusals_told: Pace,
    closures_told: Pace,
}

impl Front {
    /// The loop of the thread. Returns when it was told to stop and everything that was taken is answered.
    ///
    /// # Errors
    /// [`store::Error`] if a value cannot be read, or something cannot be stored.
    pub fn run(mut self) -> Result<(), store::Error> {
        while !self.stopper.is_told() {
            self.rest(None);
            self.answer()?;
            self.sweep()?;
            if self.desk.has_room() {
                self.take();
            }
            self.ask_now()?;
        }
        self.end()
    }

    /// Answers everything that was taken, takes back what reaches nobody, and parts with the clients.
    fn end(&mut self) -> Result<(), store::Error> {
        self.peers.stop_accepting();
        self.desk.tasks().dismiss();
        // What has come until now is taken.
        let clock = self.clock;
        self.peers.wait(Some(Duration::ZERO), || clock.now());
        self.take();
        self.desk.ask();
        self.peers.stop_receiving();
        let end = clock.now().after(LINGER);
        while self.peers.has_backlog() && clock.now() < end {
            self.rest(Some(end));
            self.answer_and_settle()?;
            self.take();
            self.desk.ask();
        }
        while !(self.is_all_answered() && self.peers.is_all_sent()) && clock.now() < end {
            self.wait_for_answers(Some(end));
            self.answer_and_settle()?;
        }
        // What they have not read by now goes back.
        self.peers.discard_all();
        self.peers.part_all();
        self.settle();
        self.desk.ask();
        while !self.desk.is_empty() {
            self.wait_for_answers(None);
            self.answer_and_settle()?;
        }
        while !self.peers.is_empty() && clock.now() < end {
            self.peers.wait(Some(left_until(end, clock.now())), || clock.now());
            while self.peers.receive(1, |_, _, _, _, _| Taken::All).is_some() {}
        }
        Ok(())
    }

    /// Whether nothing is left to be written to anybody.
    fn is_all_answered(&mut self) -> bool {
        let Self { peers, late, .. } = self;
        late.retain(|peer| peers.peer(*peer).is_some_and(|(seat, _)| seat.letters_bytes() > 0));
        self.desk.is_empty() && self.late.is_empty()
    }

    fn answer_and_settle(&mut self) -> Result<(), store::Error> {
        self.answer()?;
        self.sweep()?;
        self.desk.ask();
        Ok(())
    }

    /// Sleeps until there is something to do, or it is `end`.
    fn rest(&mut self, end: Option<Now>) {
        if self.desk.has_room() {
            let idle = self.desk.is_empty() && self.late.is_empty() && end.is_none();
            let (clock, patience) = (self.clock, self.patience(end));
            self.peers.wait((!idle).then_some(patience), || clock.now());
        } else {
            self.wait_for_answers(end);
            if self.desk.has_room() {
                // Clients that have sent something meanwhile have their turns at once.
                let clock = self.clock;
                self.peers.wait(Some(Duration::ZERO), || clock.now());
            }
        }
    }

    /// As long as nothing is taken, clients that have sent something must not wake the thread.
    fn wait_for_answers(&mut self, end: Option<Now>) {
        let (clock, patience) = (self.clock, self.patience(end));
        let start = clock.now();
        let rung = self.peers.wait_without_receiving(Some(patience), || clock.now());
        if !rung && start.after(ROOM_RECHECK) <= self.peers.now() {
            self.desk.has_overslept();
        }
    }

    fn patience(&self, end: Option<Now>) -> Duration {
        end.map_or(SWEEP, |end| left_until(end, self.clock.now()).min(SWEEP))
    }

    // ------------------------------------------------------------------------------------------------------- requests

    /// Takes what clients have sent, and asks it.
    fn take(&mut self) {
        let Self { peers, desk, refused_ever, refusals_told, .. } = self;
        while desk.has_room() {
            let mut refused = None;
            let turn = peers.receive(ASK_BURST, |peer, seat, _, messages, bytes| {
                let all_taken = messages.iter(bytes).all(|message| desk.take(peer, seat, &message));
                refused = (!all_taken).then_some(peer);
                Taken::All
            });
            if turn.is_none() {
                break;
            }
            if let Some(peer) = refused {
                peers.refuse(peer);
                *refused_ever += 1;
                if refusals_told.is_time(peers.now()) {
                    tracing::warn!(
                        "a message about tasks has an envelope of more than {ENVELOPE_FRAMES_MAX} frames, or {ENVELOPE_BYTES_MAX} bytes: its connection is closed; \
                         {refused_ever} by now"
                    );
                }
            }
        }
        self.settle();
    }

    /// What clients who have left had goes back.
    fn settle(&mut self) {
        let mut estate = Estate::default();
        while let Some(gone) = self.peers.gone() {
            self.letters.change(gone.id, gone.state.letters_bytes(), 0);
            gone.state.leave(gone.sent, &mut estate);
        }
        self.desk.settle(estate);
    }

    /// Asks what is to be asked, and sends what is answered at once, until nothing is left of it.
    fn ask_now(&mut self) -> Result<(), store::Error> {
        while let Some(own) = self.desk.ask_now(self.clock)? {
            // What was delivered before is older.
            self.hear_deliveries()?;
            self.hear(own)?;
            self.send_all()?;
        }
        Ok(())
    }

    // -------------------------------------------------------------------------------------------------------- answers

    /// Sends what has been answered, and what there is room for now.
    fn answer(&mut self) -> Result<(), store::Error> {
        self.hear_deliveries()?;
        self.send_all()
    }

    fn hear_deliveries(&mut self) -> Result<(), store::Error> {
        while let Ok(delivery) = self.deliveries.try_recv() {
            self.hear(delivery)?;
        }
        Ok(())
    }

    fn hear(&mut self, Delivery { answers, before }: Delivery) -> Result<(), store::Error> {
        let at = self.clock.now();
        for (ticket, outcome) in answers {
            if let Pending::Answer { peer, envelope, asked, waits } = self.desk.answered(ticket) {
                let letter = Letter { envelope, asked, outcome, before: before.clone(), at };
                self.write(peer, waits.then_some(ticket), letter)?;
            }
        }
        Ok(())
    }

    fn send_all(&mut self) -> Result<(), store::Error> {
        self.peers.flush();
        while let Some(peer) = self.peers.drained() {
            if let Some((seat, outbox)) = self.peers.peer(peer) {
                let before = seat.letters_bytes();
                seat.write(outbox, |tag| self.desk.manners.own(tag))?;
                self.letters.change(peer, before, seat.letters_bytes());
            }
            self.peers.flush();
        }
        self.settle();
        Ok(())
    }

    /// Writes a letter, or has it wait; `waited`: its request has waited under this ticket.
    fn write(&mut self, peer: PeerId, waited: Option<u64>, letter: Letter) -> Result<(), store::Error> {
        if let Ok(tag) = letter.asked {
            self.desk.manners.count(tag);
        }
        if letter.asked == Ok(tag::TERMINATE)
            && let Some(terminated) = self.terminated.take()
        {
            terminated();
        }
        let Some((seat, outbox)) = self.peers.peer(peer) else {
            letter.into_lease().into_iter().for_each(|lease| self.desk.take_back(lease));
            return Ok(());
        };
        waited.into_iter().for_each(|ticket| seat.has_heard_of(ticket));
        let before = seat.letters_bytes();
        seat.send(letter, outbox, |tag| self.desk.manners.own(tag))?;
        let after = seat.letters_bytes();
        self.letters.change(peer, before, after);
        if after > 0 && before == 0 {
            self.late.push(peer);
        }
        if after > CLIENT_BYTES_DEFAULT {
            self.close(peer, after);
        }
        while self.letters.bytes() > self.letters_bytes_max
            && let Some((largest, bytes)) = self.letters.largest()
        {
            self.close(largest, bytes);
        }
        Ok(())
    }

    /// Closes the connection of a client for whom so many bytes of letters wait; what it had goes back.
    fn close(&mut self, peer: PeerId, bytes: u64) {
        self.peers.close(peer);
        self.settle();
        if self.closures_told.is_time(self.clock.now()) {
            tracing::warn!(
                "a client that does not read has {bytes} bytes of answers waiting: its connection is closed"
            );
        }
    }

    /// Looks now and then whether answers can still come; and closes the connections of those who have let them wait for too long.
    fn sweep(&mut self) -> Result<(), store::Error> {
        let now = self.clock.now();
        if now < self.sweep_at {
            return Ok(());
        }
        self.sweep_at = now.after(SWEEP);
        self.desk.tasks().check()?;
        let mut late = std::mem::take(&mut self.late);
        late.sort_unstable();
        late.dedup();
        for peer in late {
            match self.peers.peer(peer).map(|(seat, outbox)| seat.patience(outbox, now)) {
                Some(Patience::Over) => self.peers.close(peer),
                Some(Patience::Some) => self.late.push(peer),
                Some(Patience::NoNeed) | None => {}
            }
        }
        Ok(())
    }
}

fn left_until(end: Now, now: Now) -> Duration {
    Duration::from_nanos(end.nanos().saturating_sub(now.nanos()))
}
