//! One connection: commands are read, submitted to the queues and answered, in their order, until the client has gone.
//!
//! ```text
//! read ─► commands ─► Ask, Ask, Ask ═► one batch ═► answers ─► sent together ─► read …
//!                  └─► Wait, Apart: those before are answered and sent first
//! the end: what is reserved is given back; a job whose answer was not sent was never lent
//! ```
//! A silent client may stay for ever. One that leaves a body unfinished, or its answers unread, may do so for a minute.
//!
//! This module does not know the bytes of commands (`input`, `command`), or their meaning (`session`).

mod ending;
mod waiting;

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::context::{BeanstalkContext, TimedCommand};
use super::input::Input;
use super::reply::{self, JobPlace};
use super::room::RoomPermit;
use super::session::{Begun, Client, Question, Session};
use crate::clock::Now;
use crate::limits::{JOB_BUFFER_BYTES, JOB_DATA_BYTES_MAX, JOB_SILENCE, JOB_TIME, PLACE_SILENT_TIME, TASKS_OWN_BYTES};
use crate::net::sockets::keep_alive;
use crate::net::tcp::{Answer, ClientStream, IdleEntry, read_value, unless};
use crate::services::jobs::handle;
use crate::services::jobs::pace::RoomKind;
use crate::services::jobs::responder::StartedRequest;
use crate::store::{self, Value};
use crate::tasks::{GrantedLease, Outcome, Payload, QueueName, Request};

/// Bytes that a busy connection reads at once.
const BUSY_BYTES: u16 = 16 << 10;
/// Answers that are made before they are sent.
const ANSWERS_MAX: usize = 256;
/// Bytes of answers that are made before they are sent, and the most that an idle connection keeps room for.
const ANSWER_BYTES: usize = 8 << 10;

/// How a reservation was answered.
enum Granted {
    Job,
    None,
    /// Its data cannot be read: the next one is asked for.
    Unread,
}

/// A command whose answer is not made yet.
enum PendingReply {
    Known(Vec<u8>),
    Asked { question: Question, started: StartedRequest },
}

/// A connection.
pub(super) struct BeanstalkConversation<'s> {
    pub(super) shared: &'s BeanstalkContext,
    pub(super) stream: ClientStream,
    pub(super) session: Session,
    input: Input,
    pub(super) output: Vec<u8>,
    batch: VecDeque<PendingReply>,
    body: Option<ComingBody<'s>>,
    /// The room that the buffer of a busy connection takes.
    busy: Option<RoomPermit<'s>>,
    /// The room that answers take which are not sent.
    going: Option<RoomPermit<'s>>,
    last_read: LastRead,
    unsent: Vec<TimedCommand>,
    batch_bytes: BatchBytes,
}

/// The bytes of the batch.
#[derive(Default)]
struct BatchBytes {
    /// Of the answers that are known.
    known: usize,
    /// For which the requests count.
    asked: usize,
}

/// When bytes were read last, and whether they have filled the buffer.
struct LastRead {
    at: Now,
    has_filled: bool,
}

/// A body that has begun.
struct ComingBody<'s> {
    number: u64,
    /// The room that a large one takes.
    room: Option<RoomPermit<'s>>,
    /// Its client has to have sent it.
    until: Now,
}

/// Serves a connection to its end. A client that has sent nothing makes place for others.
pub(super) async fn converse(shared: Rc<BeanstalkContext>, stream: ClientStream, mut idle: IdleEntry, client: Client) {
    let _present = shared.metrics.enter();
    // Answers are small, and each may be waited for. A dead client is found by probes.
    stream.hurry();
    let _kept = keep_alive(&stream);
    let mut conversation = BeanstalkConversation {
        session: Session::new(shared.next_holder(), client, shared.family.clone(), shared.tubes.clone()),
        shared: &shared,
        stream,
        input: Input::default(),
        output: Vec::new(),
        batch: VecDeque::new(),
        body: None,
        busy: None,
        going: None,
        last_read: LastRead { at: shared.clock.now(), has_filled: false },
        unsent: Vec::new(),
        batch_bytes: BatchBytes::default(),
    };
    idle.rest(PLACE_SILENT_TIME);
    let first = idle.unless_lost(conversation.fill(1)).await;
    idle.work();
    if let Some(Ok(true)) = first {
        // An error is one of the connection, which ends.
        let _ended = conversation.run().await;
    }
    conversation.end().await;
}

impl<'s> BeanstalkConversation<'s> {
    /// Serves the client until it has gone, or an error of the connection.
    async fn run(&mut self) -> io::Result<()> {
        loop {
            if self.has_lost_user() {
                self.settle().await?;
                return self.flush().await;
            }
            let bounds = self.shared.bounds();
            let (tube, before) = (Rc::clone(self.session.used_name()), self.session.roles());
            let body_bytes_max = self.session.may_put().then_some(bounds.job_bytes_max);
            let (verb, begun) = self.session.begin(self.input.next(body_bytes_max), &bounds);
            if !matches!(begun, Begun::Short(_)) {
                self.shared.count(verb);
                self.unsent.push(TimedCommand { verb, tube, arrived: self.last_read.at });
                self.shared.note_roles(before, self.session.roles());
            }
            match begun {
                Begun::Reply(known) => {
                    self.batch_bytes.known += known.len();
                    self.batch.push_back(PendingReply::Known(known));
                }
                Begun::Ask(question, queue, request) => self.ask(question, queue, request).await?,
                Begun::Wait(seconds) => self.reserve(seconds).await?,
                Begun::Apart(apart) => {
                    self.settle().await?;
                    let answer = self.answer_apart(apart).await?;
                    self.output.extend(answer);
                }
                Begun::Quit => {
                    self.settle().await?;
                    return self.flush().await;
                }
                Begun::Short(missing) => {
                    self.settle().await?;
                    self.flush().await?;
                    if !self.fill(missing).await? {
                        return Ok(());
                    }
                }
            }
            let is_crowded = self.shared.responder.is_crowded();
            let is_long = self.batch.len() >= ANSWERS_MAX || self.output.len() + self.batch_bytes.known >= ANSWER_BYTES;
            if is_long || is_crowded {
                self.settle().await?;
                self.flush().await?;
                self.shared.responder.relief().await;
            }
        }
    }

    /// Submits a request of the batch, up to a bound of bytes. A large one waits for its place until those before it are
    /// answered.
    async fn ask(&mut self, question: Question, queue: QueueName, request: Request) -> io::Result<()> {
        let bytes = usize::try_from(request.bytes()).unwrap_or(usize::MAX);
        if self.batch_bytes.asked + bytes > TASKS_OWN_BYTES {
            self.settle().await?;
        }
        if bytes <= TASKS_OWN_BYTES {
            self.batch_bytes.asked += bytes;
            let started = self.shared.responder.start(queue, request);
            self.batch.push_back(PendingReply::Asked { question, started });
            return Ok(());
        }
        let answer = self.shared.responder.submit(queue, request, bytes).await.ok_or(ErrorKind::BrokenPipe)?;
        self.finish(question, answer).await
    }

    /// Makes the answers of the batch.
    pub(super) async fn settle(&mut self) -> io::Result<()> {
        while let Some(next) = self.batch.pop_front() {
            match next {
                PendingReply::Known(known) => {
                    self.batch_bytes.known -= known.len();
                    if known.len() > JOB_BUFFER_BYTES {
                        self.take_room(known.len()).await?;
                    }
                    self.output.extend(known);
                }
                PendingReply::Asked { question, started } => {
                    let answer = started.answer.await.map_err(|_| ErrorKind::BrokenPipe)?;
                    self.finish(question, answer).await?;
                }
            }
        }
        self.batch_bytes.asked = 0;
        Ok(())
    }

    /// Makes the answer to a question.
    async fn finish(&mut self, question: Question, answer: Answer) -> io::Result<()> {
        let is_refused = answer.outcome.is_refused();
        let known: &[u8] = match question {
            Question::Put => return self.finish_put(&answer.outcome),
            Question::Reserve => return self.finish_reserve(answer).await,
            Question::ReserveJob => {
                if !matches!(self.grant(&answer).await?, Granted::Job) {
                    self.output.extend(reply::NOT_FOUND);
                }
                return Ok(());
            }
            Question::Peek(id) => return self.finish_peek(id, answer).await,
            Question::StatsJob(id) => {
                if let Outcome::Shown { job, payload } = &answer.outcome {
                    let tube = self.shared.tube_name(&job.queue);
                    let file =
                        payload.segment(answer.before.as_deref()).map_or_else(|| self.shared.newest_file(), u64::from);
                    self.output.extend(reply::stats_job(
                        id,
                        tube,
                        job,
                        JobPlace { file, lease: self.shared.settings.lease },
                    ));
                    return Ok(());
                }
                reply::NOT_FOUND
            }
            _ if is_refused => reply::NOT_FOUND,
            Question::Touch(id) => {
                self.session.held.touch(id, self.shared.clock.now());
                reply::TOUCHED
            }
            Question::KickJob => reply::KICKED,
            Question::Delete(id) => self.lets_go(id, reply::DELETED),
            Question::Bury(id) => self.lets_go(id, reply::BURIED),
            Question::Release(id) if answer.outcome == Outcome::Died => self.lets_go(id, reply::BURIED),
            Question::Release(id) => self.lets_go(id, reply::RELEASED),
        };
        self.output.extend(known);
        Ok(())
    }

    fn lets_go(&mut self, id: u64, known: &'static [u8]) -> &'static [u8] {
        self.session.held.remove(id);
        known
    }

    fn finish_put(&mut self, outcome: &Outcome) -> io::Result<()> {
        match outcome {
            Outcome::Added(id) => self.output.extend(reply::numbered("INSERTED", *id)),
            // The disk is full, or there would be one task or queue too many.
            _ => self.output.extend(reply::OUT_OF_MEMORY),
        }
        Ok(())
    }

    async fn finish_peek(&mut self, id: Option<u64>, answer: Answer) -> io::Result<()> {
        let (id, payload) = match &answer.outcome {
            Outcome::Peeked { key, payload } => (handle::id(key).0, payload),
            Outcome::Found(Some(payload)) => (id.unwrap_or_default(), payload),
            _ => {
                self.output.extend(reply::NOT_FOUND);
                return Ok(());
            }
        };
        match self.read(payload, &answer).await? {
            Some(value) => self.output.extend(reply::job("FOUND", id, &value)),
            None => self.output.extend(reply::NOT_FOUND),
        }
        Ok(())
    }

    /// Answers a reserve that does not wait. Jobs whose data cannot be read are passed over.
    async fn finish_reserve(&mut self, mut answer: Answer) -> io::Result<()> {
        loop {
            match self.grant(&answer).await? {
                Granted::Job => return Ok(()),
                Granted::Unread => {}
                Granted::None => {
                    let now = self.shared.clock.now();
                    let is_soon = self.session.held.next_margin(now).is_some_and(|margin| margin <= now);
                    self.output.extend(if is_soon { reply::DEADLINE_SOON } else { reply::TIMED_OUT });
                    return Ok(());
                }
            }
            let asked = self.session.reserve_next(self.shared.settings.lease, 0).ok_or(ErrorKind::PermissionDenied)?;
            let started = self.shared.responder.start(asked.0, asked.1);
            answer = started.answer.await.map_err(|_| ErrorKind::BrokenPipe)?;
        }
    }

    /// Takes a job that was granted, if one was.
    async fn grant(&mut self, answer: &Answer) -> io::Result<Granted> {
        let Outcome::LeasedMany(granted) = &answer.outcome else { return Ok(Granted::None) };
        let Some(GrantedLease { key, lease, payload, .. }) = granted.first() else { return Ok(Granted::None) };
        let (id, holder) = (handle::id(key).0, self.session.holder);
        let (now, lease) = (self.shared.clock.now(), Duration::from_millis(*lease));
        // From here on it goes back when the connection ends.
        self.session.held.add(id, now, lease);
        match self.read(payload, answer).await? {
            Some(value) => {
                // Earlier answers may have been sent meanwhile, and this one was not among them.
                self.session.held.add(id, now, lease);
                self.output.extend(reply::job("RESERVED", id, &value));
                Ok(Granted::Job)
            }
            None => {
                self.session.held.remove(id);
                self.shared.responder.set_unread(self.session.queue_of_held(id), holder, key.clone());
                Ok(Granted::Unread)
            }
        }
    }

    /// The value of a job. `None`: it is lost, or cannot be read at present.
    async fn read(&mut self, payload: &Payload, answer: &Answer) -> io::Result<Option<Value>> {
        let bytes = payload.bytes(answer.before.as_deref());
        if self.output.len() + bytes > ANSWER_BYTES {
            self.flush().await?;
        }
        if bytes > JOB_BUFFER_BYTES {
            self.take_room(bytes).await?;
        }
        match read_value(self.shared.responder.tasks(), payload, answer.before.as_ref()).await {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.loses_one_value() || error.may_pass() => Ok(None),
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Takes room for an answer, until it is sent. A longer one than the longest job takes no more.
    pub(super) async fn take_room(&mut self, bytes: usize) -> io::Result<()> {
        let permits = u32::try_from(bytes.min(JOB_DATA_BYTES_MAX)).unwrap_or(u32::MAX);
        let rooms = &self.shared.rooms;
        let permit = match rooms.try_take(RoomKind::Going, permits) {
            Some(permit) => permit,
            None => {
                // Whoever waits for room holds none.
                self.flush().await?;
                let taken = unless(rooms.take(RoomKind::Going, permits), self.shared.ends.until_closed()).await;
                taken.ok_or(ErrorKind::Interrupted)?
            }
        };
        match &mut self.going {
            Some(held) => held.merge(permit),
            none => *none = Some(permit),
        }
        Ok(())
    }

    fn fail(&self, error: store::Error) -> io::Error {
        self.shared.ends.fail(error);
        ErrorKind::Other.into()
    }

    // ---------------------------------------------------------------------------------------------------------- bytes

    /// Reads bytes, at least one. False: the client sends no more, or the server ends.
    async fn fill(&mut self, missing: usize) -> io::Result<bool> {
        let shared = self.shared;
        let body = self.input.body();
        self.body = self.body.take().filter(|begun| body.is_some_and(|(number, _)| number == begun.number));
        if let (Some((number, bytes)), None) = (body, &self.body) {
            let mut room = None;
            if bytes > JOB_BUFFER_BYTES {
                let taken = shared.rooms.take(RoomKind::Coming, u32::try_from(bytes).unwrap_or(u32::MAX));
                let Some(taken) = unless(taken, shared.ends.until_closed()).await else { return Ok(false) };
                room = Some(taken);
            }
            self.body = Some(ComingBody { number, room, until: shared.clock.now().after(JOB_TIME) });
        }
        // A connection whose last bytes have filled its buffer gets a larger one, if there is room.
        let is_busy = self.last_read.has_filled && self.body.is_none();
        self.busy = self.busy.take().filter(|_| is_busy);
        if is_busy && self.busy.is_none() {
            self.busy = shared.rooms.try_take(RoomKind::Coming, u32::from(BUSY_BYTES));
        }
        self.input.make_room(match (&self.body, &self.busy) {
            (Some(_), _) => missing + JOB_BUFFER_BYTES,
            (None, Some(_)) => usize::from(BUSY_BYTES),
            (None, None) => JOB_BUFFER_BYTES,
        });
        let read = loop {
            let reading = unless(self.stream.read_buf(&mut self.input.bytes), shared.ends.until_closed());
            let Some(ComingBody { room, until, .. }) = &self.body else { break reading.await };
            match timeout(JOB_SILENCE, reading).await {
                Ok(read) => break read,
                Err(_) if shared.clock.now() >= *until => return Ok(false),
                Err(_) if room.is_some() && shared.rooms.is_short(RoomKind::Coming) => return Ok(false),
                Err(_) => {}
            }
        };
        let Some(read) = read else { return Ok(false) };
        let bytes = read?;
        let has_filled = self.input.bytes.len() == self.input.bytes.capacity();
        self.last_read = LastRead { at: shared.clock.now(), has_filled };
        shared.count_in(bytes);
        Ok(bytes > 0)
    }

    /// Sends all answers that are made.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        let (shared, mut from) = (self.shared, 0);
        let until = shared.clock.now().after(JOB_TIME);
        while let Some(rest) = self.output.get(from..).filter(|rest| !rest.is_empty()) {
            let sending = timeout(JOB_SILENCE, shared.ends.unless_over(self.stream.write(rest))).await;
            let is_late = shared.clock.now() >= until;
            match sending {
                Ok(sent) => from += sent.ok_or(ErrorKind::Interrupted)??,
                Err(_) if self.going.is_some() && shared.rooms.is_short(RoomKind::Going) => {
                    return Err(ErrorKind::TimedOut.into());
                }
                Err(_) => {}
            }
            if is_late && from < self.output.len() {
                return Err(ErrorKind::TimedOut.into());
            }
        }
        if from > 0 {
            self.stream.flush().await?;
        }
        self.output.clear();
        self.going = None;
        if self.output.capacity() > JOB_BUFFER_BYTES {
            self.output = Vec::new();
        }
        self.session.held.has_sent();
        self.shared.count_out(from, &mut self.unsent, &self.stream);
        Ok(())
    }

    /// Whether its user has changed. Then the connection ends, as everywhere.
    fn has_lost_user(&self) -> bool {
        matches!(&self.session.client, Client::User(user) if !user.is_current())
    }
}
