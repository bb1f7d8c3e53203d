//! One connection: the server reads a request, submits it and writes the reply. Then it closes the connection in a way
//! that lets the client read the reply.
//!
//! ```text
//! (AUTH ─►) read ─► complete? ─► submit ═► answer ─► write ─► shut down ─► discard input until the client closes ─► close
//!  ▲          │
//!  └── more ──┘       silent for 1 ms: GET, ACK and IN are complete · silent for 5 s, or 60 s in all: ERROR
//!                     half-closed by the client, or slow while others wait: the request ends with what has come
//! ```
//! If the server closed the connection while the client is sending, the system would reset it, and the client might
//! never read its reply. As long as a request fits into a small buffer, its client holds one socket and that buffer. A
//! larger request takes memory from a bounded budget as its bytes come. A large reply takes memory from another one.
//!
//! This module does not know the bytes (`wire`), their meaning (`handle`), or the other connections (`serve`).

mod login;
mod waiting;

use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::SemaphorePermit;
use tokio::time::{sleep, timeout};

use login::Asker;

use super::context::JobsContext;
use super::handle::{reply, task_request};
use super::pace::{LOOK, PaceEntry, PaceStage, RoomKind};
use super::stream::JobStream;
use super::timing::JobTimes;
use super::wire::{Decoded, Reply, Request, Verb, decode};
use crate::clock::{Now, TimeLimit};
use crate::limits::{JOB_BUFFER_BYTES, JOB_DRAINED_BYTES_MAX, JOB_PAUSE, JOB_SILENCE, JOB_STEPS_BYTES, JOB_TIME};
use crate::net::tcp::{Answer, client_name, read_value, unless};
use crate::security::Identity;
use crate::store::{self, StoreSnapshot, Value};
use crate::tasks::{self, Outcome, Payload, QueueName};

/// Period of the check, while the server ends, whether the reply has arrived at the client. TCP reports no arrival, so
/// the server asks: a few times within a round trip of a far client.
const SETTLING: Duration = Duration::from_millis(5);
/// Bytes that are read beyond the missing ones: a CRLF, and one more byte, which makes the request malformed.
const BEHIND: usize = 3;
/// The beginnings of replies to a request that was not carried out.
const REFUSALS: [&[u8]; 2] = [b"ERROR", b"BUSY"];

/// How a wait for bytes has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadOutcome {
    /// There are bytes to read, or the end of the stream.
    Readable,
    /// No byte has come within the time.
    Silent,
    /// The server has stopped reading requests.
    Closing,
    /// The conversation has lost its place.
    Lost,
}

/// Whether a reply was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    /// With all that the committer answered.
    Whole,
    /// The data of the job is lost, or cannot be read at present.
    Unread,
    /// It could not be sent.
    Not,
    /// The lease may have ended meanwhile.
    Late,
}

/// What a request needs before it can be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Nothing: it is complete or malformed.
    Nothing,
    /// Bytes, for which the server waits so long.
    More { missing: usize, patience: Duration },
}

/// The bytes of a request that have come.
#[derive(Default)]
struct RequestBuffer<'h> {
    bytes: Vec<u8>,
    /// The share of `coming` that they take.
    permit: Option<SemaphorePermit<'h>>,
}

/// A connection, and the deadline of its request.
struct JobConversation<'h> {
    shared: &'h JobsContext,
    stream: JobStream,
    end: Now,
    pace: PaceEntry,
    times: JobTimes,
}

/// Serves one connection to its end.
pub(super) async fn converse(shared: Rc<JobsContext>, stream: JobStream) {
    let now = shared.clock.now();
    let pace = shared.paces.begin(now);
    let _present = shared.timer.metrics.enter();
    let times = JobTimes::default();
    let conversation = JobConversation { shared: &shared, stream, end: now.after(JOB_TIME), pace, times };
    let mut inbox = RequestBuffer::default();
    // A client that has reset the connection gets no reply.
    let Ok(asker) = conversation.ask(&mut inbox).await else { return };
    // One that has asked for nothing, and makes place for another, gets no reply that it might leave unread.
    if conversation.pace.is_lost() && conversation.pace.is_silent() {
        return;
    }
    let answered = match asker {
        Asker::Refused(reply) => {
            conversation.times.begin(shared.clock.now());
            conversation.send(&conversation.written(&reply)).await
        }
        Asker::Anybody => conversation.answer(inbox, None).await,
        Asker::User(user) => conversation.answer(inbox, Some(&user)).await,
    };
    if answered {
        conversation.close().await;
    }
}

impl<'h> JobConversation<'h> {
    // ------------------------------------------------------------------------------------------------------- requests

    /// Reads the user, if one is needed, and the request.
    async fn ask(&self, inbox: &mut RequestBuffer<'h>) -> io::Result<Asker> {
        let asker = match &self.shared.users {
            None => Asker::Anybody,
            Some(users) => self.log_in(users, inbox).await?,
        };
        if !matches!(asker, Asker::Refused(_)) {
            self.read_request(inbox).await?;
        }
        Ok(asker)
    }

    async fn read_request(&self, inbox: &mut RequestBuffer<'h>) -> io::Result<()> {
        self.read_until(inbox, |bytes| match decode(bytes, false) {
            Decoded::Whole(_) | Decoded::Save | Decoded::Wrong(_) => Need::Nothing,
            // A long line comes in steps, each as long as what has come.
            Decoded::Pausing => Need::More { missing: bytes.len().max(1), patience: JOB_PAUSE },
            Decoded::Short { missing } => Need::More { missing, patience: JOB_SILENCE },
        })
        .await
    }

    /// Reads until nothing more is needed, the client is silent or half-closes, the time is over, or the server ends.
    async fn read_until(&self, inbox: &mut RequestBuffer<'h>, need: impl Fn(&[u8]) -> Need) -> io::Result<()> {
        while let Need::More { missing, patience } = need(&inbox.bytes) {
            match timeout(self.left(), self.shared.ends.unless_over(self.make_room(inbox, missing))).await {
                Ok(Some(true)) => {}
                Ok(None) => return Err(ErrorKind::Interrupted.into()),
                Ok(Some(false)) | Err(_) => return Ok(()),
            }
            if self.wait_for_bytes(patience.min(self.left())).await != ReadOutcome::Readable {
                return Ok(());
            }
            match self.stream.try_read_buf(&mut inbox.bytes) {
                Ok(0) => return Ok(()),
                Ok(bytes) => {
                    let now = self.shared.clock.now();
                    self.pace.moved(bytes, now);
                    self.times.received(bytes, now);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes room for missing bytes, and waits until `coming` allows it. False: the place is lost. Below `JOB_STEPS_BYTES` the buffer grows to at
    /// most four times the bytes that have come. Above, the request takes room for all the rest at once, so that no
    /// request that holds much waits for more.
    async fn make_room(&self, inbox: &mut RequestBuffer<'h>, missing: usize) -> bool {
        let (length, wanted) = (inbox.bytes.len(), missing + BEHIND);
        let spare = inbox.bytes.capacity() - length;
        if length == 0 && spare == 0 {
            inbox.bytes.reserve_exact(JOB_BUFFER_BYTES);
        } else if spare < wanted && (spare < length || spare >= missing) {
            let more = if length < JOB_STEPS_BYTES { wanted.min(3 * length) } else { wanted };
            let Some(permit) = self.room(RoomKind::Coming, more).await else { return false };
            match &mut inbox.permit {
                Some(held) => held.merge(permit),
                none => *none = Some(permit),
            }
            self.pace.enter(PaceStage::Reading, self.shared.clock.now());
            self.pace.hold(inbox.permit.as_ref().map_or(0, SemaphorePermit::num_permits));
            inbox.bytes.reserve_exact(more);
        }
        true
    }

    /// Waits for this much room. While it waits, slow conversations lose theirs. None: the place is lost.
    async fn room(&self, kind: RoomKind, bytes: usize) -> Option<SemaphorePermit<'h>> {
        let (room, permits) = (self.shared.rooms.of(kind), u32::try_from(bytes).unwrap_or(u32::MAX));
        if let Ok(permit) = room.try_acquire_many(permits) {
            return Some(permit);
        }
        self.pace.enter(PaceStage::Waiting, self.shared.clock.now());
        let _wanted = self.shared.paces.want(kind, bytes);
        let mut acquired = pin!(room.acquire_many(permits));
        loop {
            self.shared.paces.make_room(kind, self.shared.clock.now());
            if self.pace.is_lost() {
                return None;
            }
            if let Ok(permit) = timeout(LOOK, acquired.as_mut()).await {
                // The semaphore is never closed.
                return permit.ok();
            }
        }
    }

    /// Waits for `patience` at most until there are bytes to read.
    async fn wait_for_bytes(&self, patience: Duration) -> ReadOutcome {
        let mut silence = pin!(sleep(patience));
        let mut closed = pin!(self.shared.ends.until_closed());
        let mut lost = pin!(self.pace.lost());
        poll_fn(|context| {
            if self.stream.poll_read_ready(context).is_ready() {
                return Poll::Ready(ReadOutcome::Readable);
            }
            if closed.as_mut().poll(context).is_ready() {
                return Poll::Ready(ReadOutcome::Closing);
            }
            if lost.as_mut().poll(context).is_ready() {
                return Poll::Ready(ReadOutcome::Lost);
            }
            silence.as_mut().poll(context).map(|()| ReadOutcome::Silent)
        })
        .await
    }

    /// The time that is left for the request.
    fn left(&self) -> Duration {
        self.shared.clock.now().time_until(self.end)
    }

    // -------------------------------------------------------------------------------------------------------- answers

    /// Answers a request to which no byte will be added. False: the reply could not be sent.
    async fn answer(&self, mut inbox: RequestBuffer<'h>, user: Option<&Identity>) -> bool {
        let now = self.shared.clock.now();
        self.pace.enter(PaceStage::Busy, now);
        self.times.begin(now);
        let request = match decode(&inbox.bytes, true) {
            Decoded::Whole(request) => request,
            Decoded::Save => return self.send(&self.written(&Reply::Saved)).await,
            _ => return self.send(&self.written(&Reply::Error)).await,
        };
        if !self.is_allowed(user, &request) {
            return self.send(&self.written(&Reply::Error)).await;
        }
        let verb = request.verb();
        self.times.is_for(&request);
        if let Request::Wait { queues, seconds, with_tries } = request {
            let names = Box::from(queues);
            drop(std::mem::take(&mut inbox));
            return self.wait_for_job(names, seconds, with_tries, user).await;
        }
        let (queue, request) = match task_request(&request, &self.shared.family, self.shared.settings.lease) {
            Ok(submission) => submission,
            Err(known) => return self.send(&self.written(&known)).await,
        };
        if self.shared.ends.over.is_given() {
            return false;
        }
        let bytes = std::mem::take(&mut inbox.bytes).len();
        if matches!(request, tasks::Request::Lease { .. }) {
            drop(inbox);
            return self.lease(&queue, request, bytes).await;
        }
        // Without an answer of the committer the outcome is unknown, so no reply is sent.
        let Some(answer) = self.shared.responder.submit(queue, request, bytes).await else { return false };
        drop(inbox);
        self.pace.hold(0);
        self.send(&self.written(&reply(verb, &answer.outcome, &[]))).await
    }

    /// Answers a Get. A job whose lease may have ended before the reply is sent goes back, and the queue is asked again. A
    /// job whose data cannot be read gives way to the next one.
    /// False: the reply could not be sent.
    async fn lease(&self, queue: &QueueName, first: tasks::Request, bytes: usize) -> bool {
        let (timeout, wait) = (self.shared.settings.lease, false);
        let mut request = first.clone();
        loop {
            // The lease begins later, when it is granted.
            let begun = self.shared.clock.now();
            let submitted = self.shared.responder.submit(queue.clone(), request, bytes);
            let Some(answer) = submitted.await else { return false };
            self.pace.hold(0);
            let Outcome::Leased { token, key, lease, payload, .. } = &answer.outcome else {
                return self.send(&self.written(&reply(Verb::Get, &answer.outcome, &[]))).await;
            };
            let limit = TimeLimit::begin(begun, Duration::from_millis(*lease));
            let sent = self.send_job(false, &answer, payload, limit).await;
            let has_time = !self.left().is_zero() && !self.shared.ends.over.is_given();
            let asks_again = has_time && matches!(sent, Sent::Late | Sent::Unread);
            if asks_again && sent == Sent::Unread {
                request = tasks::Request::LeaseNext { token: *token, key: key.clone(), timeout, wait };
                continue;
            }
            if sent != Sent::Whole {
                self.shared.responder.take_back(queue.clone(), *token, key.clone());
            }
            if !asks_again {
                return sent == Sent::Whole;
            }
            request = first.clone();
        }
    }

    /// Sends a job that was leased, with its tries or without, unless its lease may be over.
    async fn send_job(&self, with_tries: bool, answer: &Answer, payload: &Payload, lease: TimeLimit) -> Sent {
        let Answer { outcome, before } = answer;
        let sent = |is_sent: bool, whole: Sent| if is_sent { whole } else { Sent::Not };
        match self.read(payload, before.as_ref()).await {
            Ok(Some(_)) if lease.is_over(self.shared.clock.now()) => Sent::Late,
            Ok(Some((value, _permit))) => {
                let reply = reply(Verb::Wait, outcome, &value);
                let reply = if with_tries { reply } else { reply.without_tries() };
                sent(self.send(&self.written(&reply)).await, Sent::Whole)
            }
            Ok(None) => Sent::Not,
            Err(error) if error.loses_one_value() || error.may_pass() => Sent::Unread,
            Err(error) => {
                self.shared.ends.fail(error);
                Sent::Not
            }
        }
    }

    /// Reads a value. For a large value it waits first until `going` has room. None: conversations are cut short.
    async fn read(
        &self,
        payload: &Payload,
        before: Option<&Arc<dyn StoreSnapshot>>,
    ) -> Result<Option<(Value, Option<SemaphorePermit<'h>>)>, store::Error> {
        let (bytes, mut permit) = (payload.bytes(before.map(|before| &**before)), None);
        if bytes > JOB_BUFFER_BYTES {
            let room = self.room(RoomKind::Going, bytes);
            let Some(Some(taken)) = self.shared.ends.unless_over(room).await else { return Ok(None) };
            permit = Some(taken);
            self.pace.hold(bytes);
        }
        Ok(Some((read_value(self.shared.responder.tasks(), payload, before).await?, permit)))
    }

    fn written(&self, reply: &Reply<'_>) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        reply.encode(self.shared.settings.words, &mut bytes);
        bytes
    }

    /// Sends a reply, in one write if the system takes it. False: the client is gone, or does not read.
    /// `SendFlags::MORE` holds the last bytes back until our end is shut down, so they leave in one packet with the
    /// end. The client wakes once and not twice.
    async fn send(&self, bytes: &[u8]) -> bool {
        let now = self.shared.clock.now();
        self.pace.enter(PaceStage::Sending, now);
        let (end, mut rest) = (now.after(JOB_TIME), bytes);
        while !rest.is_empty() && self.shared.clock.now() < end {
            let sending = poll_fn(|context| self.stream.poll_send(context, rest));
            let Some(sent) = self.in_time(sending).await else { break };
            self.pace.moved(sent, self.shared.clock.now());
            rest = rest.get(sent..).unwrap_or_default();
        }
        let flushed = poll_fn(|context| self.stream.poll_flush(context));
        let is_sent = rest.is_empty() && self.in_time(flushed).await.is_some();
        if is_sent {
            let is_refused = REFUSALS.iter().any(|refusal| bytes.starts_with(refusal));
            self.times.answered(now);
            let client = || client_name(self.stream.address());
            self.shared.timer.sent(&self.times, bytes.len(), is_refused, self.shared.clock.now(), client);
        }
        is_sent
    }

    /// The output of `work`, unless it fails, takes too long, or the conversation is over or loses its place meanwhile.
    async fn in_time<T>(&self, work: impl Future<Output = io::Result<T>>) -> Option<T> {
        let work = unless(timeout(JOB_SILENCE, work), self.pace.lost());
        self.shared.ends.unless_over(work).await??.ok()?.ok()
    }

    /// Shuts our end down, and discards the bytes that the client still sends until it closes too, within bounds of
    /// time and bytes. While the server ends, it waits only until the client has the reply.
    async fn close(self) {
        if self.in_time(poll_fn(|context| self.stream.poll_end(context))).await.is_none() {
            return;
        }
        let now = self.shared.clock.now();
        self.pace.enter(PaceStage::Leaving, now);
        self.pace.hold(0);
        let (end, mut thrown) = (now.after(JOB_TIME), 0);
        while thrown < JOB_DRAINED_BYTES_MAX && self.shared.clock.now() < end && !self.shared.ends.over.is_given() {
            match self.wait_for_bytes(JOB_SILENCE).await {
                ReadOutcome::Readable => {}
                ReadOutcome::Silent | ReadOutcome::Lost => return,
                ReadOutcome::Closing if self.stream.is_settled() => return,
                // The reply is on its way. The system does not notify of its arrival.
                ReadOutcome::Closing => sleep(SETTLING).await,
            }
            match self.stream.try_discard(&mut self.shared.scrap.borrow_mut()) {
                Ok(0) => return,
                Ok(bytes) => thrown += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }
}
