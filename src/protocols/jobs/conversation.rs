//! One connection: a request is read, asked and answered, and then the connection is closed so that its client has read the answer.
//!
//! ```text
//! read ─► whole? ─► ask ═► answer ─► write ─► our end is closed ─► what the client still sends is thrown away ─► it closes ─► closed
//!  ▲        │
//!  └─ more ─┘   silent for 1 ms: GET, ACK and IN are whole · for 5 s, or 60 s in all: ERROR · half-closed: what is there is all
//! ```
//! If it were closed while the client is sending, it would be reset, and the client might never read what it was answered.
//! Until a request has grown beyond a small buffer its client has one socket and that buffer; larger ones take their memory from a bounded
//! room, as it comes, and so do answers that their clients are slow to read.
//!
//! What is not here: the bytes (`wire`), what they mean (`handle`), and who else is served (`serve`).

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use rustix::net::{SendFlags, send};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::time::{sleep, timeout};

use super::handle::{asked, reply};
use super::responder::JobResponder;
use super::wire::{AckWording, Decoded, Reply, decode};
use crate::clock::{Clock, Now};
use crate::limits::{JOB_BUFFER_BYTES, JOB_DRAINED_BYTES_MAX, JOB_PAUSE, JOB_SILENCE, JOB_STEPS_BYTES, JOB_TIME};
use crate::protocols::sockets::is_settled;
use crate::protocols::tcp::{Answer, ServeEnd};
use crate::store::{self, StoreSnapshot, Value};
use crate::tasks::{self, Family, Outcome, Payload};

/// How often it is looked, at the end of the server, whether an answer has arrived.
const SETTLING: Duration = Duration::from_millis(5);
/// Bytes that are read behind what is missing: an end, and one more, which is too much.
const BEHIND: usize = 3;

/// What all conversations share.
pub(super) struct JobsContext {
    pub(super) responder: JobResponder,
    pub(super) family: Family,
    /// How long a job is lent out, in milliseconds.
    pub(super) lease: u64,
    pub(super) words: AckWording,
    pub(super) clock: Clock,
    /// Bytes that requests may take beyond their buffers.
    pub(super) coming: Semaphore,
    /// Bytes that large answers may take.
    pub(super) going: Semaphore,
    /// Whether nothing more is taken.
    pub(super) closing: Cell<bool>,
    /// Rung when that is so.
    pub(super) closed: Notify,
    /// Whether nobody is waited for any more: conversations end, and what they were lent and have not told goes back.
    pub(super) over: Cell<bool>,
    /// Rung when that is so.
    pub(super) cut: Notify,
    /// Where it is told that, and why, the server ends.
    pub(super) ending: UnboundedSender<ServeEnd>,
    /// Where bytes go that nobody reads.
    pub(super) scrap: RefCell<Vec<u8>>,
}

impl JobsContext {
    /// The server ends.
    pub(super) fn end(&self, ending: ServeEnd) {
        // The first one counts.
        let _later = self.ending.send(ending);
    }

    /// What has come of requests is all that is taken.
    pub(super) fn close(&self) {
        self.closing.set(true);
        self.closed.notify_waiters();
    }

    /// Conversations end now. Those that wait for the committer hear its answer, and give back what it has lent them; what it was not
    /// asked to lend yet it is not asked any more.
    pub(super) fn cut_short(&self) {
        self.over.set(true);
        self.responder.withdraw_leases();
        self.responder.hand_over_now();
        self.cut.notify_waiters();
    }

    /// What comes of this, unless conversations are cut short before.
    async fn unless_over<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let (mut work, mut cut) = (pin!(work), pin!(self.cut.notified()));
        poll_fn(|context| {
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(Some(done));
            }
            // It is polled first: it is rung only for who has been.
            let is_over = cut.as_mut().poll(context).is_ready() || self.over.get();
            if is_over { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }
}

/// What there was to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadOutcome {
    /// Something, or the end.
    Readable,
    /// Nothing, for as long as it was waited.
    Silent,
    /// The server takes no more.
    Closing,
}

/// Bytes of a request that have come.
#[derive(Default)]
struct RequestBuffer<'h> {
    bytes: Vec<u8>,
    /// What they take of the room.
    permit: Option<SemaphorePermit<'h>>,
}

/// A connection, and until when a request may take.
struct Conversation<'h> {
    shared: &'h JobsContext,
    stream: TcpStream,
    end: Now,
}

/// Serves one connection to its end.
pub(super) async fn converse(shared: Rc<JobsContext>, stream: TcpStream) {
    let end = shared.clock.now().after(JOB_TIME);
    let conversation = Conversation { shared: &shared, stream, end };
    // A client that has reset the connection hears nothing.
    let Ok(inbox) = conversation.hear().await else { return };
    if conversation.answer(inbox).await {
        conversation.close().await;
    }
}

impl<'h> Conversation<'h> {
    // ------------------------------------------------------------------------------------------------------- requests

    /// Reads until the request is whole, is none, has taken too long, or the server ends.
    async fn hear(&self) -> io::Result<RequestBuffer<'h>> {
        let mut inbox = RequestBuffer::default();
        loop {
            let (missing, patience) = match decode(&inbox.bytes, false) {
                Decoded::Whole(_) | Decoded::Wrong(_) => return Ok(inbox),
                Decoded::Pausing => (1, JOB_PAUSE),
                Decoded::Short { missing } => (missing, JOB_SILENCE),
            };
            match timeout(self.left(), self.shared.unless_over(self.make_room(&mut inbox, missing))).await {
                Ok(Some(())) => {}
                Ok(None) => return Err(ErrorKind::Interrupted.into()),
                Err(_) => return Ok(inbox),
            }
            if self.sign(patience.min(self.left())).await != ReadOutcome::Readable {
                return Ok(inbox);
            }
            match self.stream.try_read_buf(&mut inbox.bytes) {
                Ok(0) => return Ok(inbox),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes room for some of the bytes that are missing, at most four times what has come, and waits until that may be had. Who has
    /// much already takes all the rest at once: nobody who holds much waits for more.
    async fn make_room(&self, inbox: &mut RequestBuffer<'h>, missing: usize) {
        let (length, wanted) = (inbox.bytes.len(), missing + BEHIND);
        let spare = inbox.bytes.capacity() - length;
        if length == 0 && spare == 0 {
            inbox.bytes.reserve_exact(JOB_BUFFER_BYTES);
        } else if spare < wanted && (spare < length || spare >= missing) {
            let more = if length < JOB_STEPS_BYTES { wanted.min(3 * length) } else { wanted };
            let bytes = u32::try_from(more).unwrap_or(u32::MAX);
            // It is never closed.
            let Ok(permit) = self.shared.coming.acquire_many(bytes).await else { return };
            match &mut inbox.permit {
                Some(held) => held.merge(permit),
                none => *none = Some(permit),
            }
            inbox.bytes.reserve_exact(more);
        }
    }

    /// Waits until there is something to read, at most so long.
    async fn sign(&self, patience: Duration) -> ReadOutcome {
        let mut silence = pin!(sleep(patience));
        let mut closed = pin!(self.shared.closed.notified());
        poll_fn(|context| {
            if self.stream.poll_read_ready(context).is_ready() {
                return Poll::Ready(ReadOutcome::Readable);
            }
            if closed.as_mut().poll(context).is_ready() || self.shared.closing.get() {
                return Poll::Ready(ReadOutcome::Closing);
            }
            silence.as_mut().poll(context).map(|()| ReadOutcome::Silent)
        })
        .await
    }

    /// What is left of its time.
    fn left(&self) -> Duration {
        Duration::from_nanos(self.end.nanos().saturating_sub(self.shared.clock.now().nanos()))
    }

    // -------------------------------------------------------------------------------------------------------- answers

    /// Answers what has come, to which nothing will be added. False: the answer could not be sent.
    async fn answer(&self, mut inbox: RequestBuffer<'h>) -> bool {
        let Decoded::Whole(request) = decode(&inbox.bytes, true) else {
            return self.send(&self.written(&Reply::Error)).await;
        };
        let (queue, request) = match asked(&request, &self.shared.family, self.shared.lease) {
            Ok(asked) => asked,
            Err(known) => return self.send(&self.written(&known)).await,
        };
        if self.shared.over.get() {
            return false;
        }
        let lends = matches!(request, tasks::Request::Lease { .. }).then(|| queue.clone());
        let bytes = std::mem::take(&mut inbox.bytes).len();
        // Without an answer of the committer nothing may be said.
        let Some(answer) = self.shared.responder.ask(queue, request, bytes).await else { return false };
        drop(inbox);
        let sent = self.send_outcome(&answer).await;
        if let (false, Outcome::Leased { token, key, .. }, Some(queue)) = (sent, answer.outcome, lends) {
            self.shared.responder.take_back(queue, token, key);
        }
        sent
    }

    /// Sends what the committer has answered. False: it could not be sent.
    async fn send_outcome(&self, Answer { outcome, before }: &Answer) -> bool {
        let Some(payload) = outcome.payload() else {
            return self.send(&self.written(&reply(outcome, &[]))).await;
        };
        match self.read(payload, before.as_deref()).await {
            Ok(Some((value, _permit))) => self.send(&self.written(&reply(outcome, &value))).await,
            Ok(None) => false,
            Err(error) => {
                self.shared.end(Err(error));
                false
            }
        }
    }

    /// Reads a value, and waits until there is room for a large one; meanwhile it is not held. None: conversations are cut short.
    async fn read(
        &self,
        payload: &Payload,
        before: Option<&dyn StoreSnapshot>,
    ) -> Result<Option<(Value, Option<SemaphorePermit<'h>>)>, store::Error> {
        let value = payload.read(before)?;
        if value.len() <= JOB_BUFFER_BYTES {
            return Ok(Some((value, None)));
        }
        let bytes = u32::try_from(value.len()).unwrap_or(u32::MAX);
        if let Ok(permit) = self.shared.going.try_acquire_many(bytes) {
            return Ok(Some((value, Some(permit))));
        }
        drop(value);
        let Some(permit) = self.shared.unless_over(self.shared.going.acquire_many(bytes)).await else {
            return Ok(None);
        };
        // It is never closed.
        Ok(Some((payload.read(before)?, permit.ok())))
    }

    fn written(&self, reply: &Reply<'_>) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        reply.encode(self.shared.words, &mut bytes);
        bytes
    }

    /// Sends an answer, in one write if the system takes it. False: it is gone, or does not read. The last bytes of it go out when our end
    /// is closed, in one packet with that, which wakes the client once and not twice.
    async fn send(&self, bytes: &[u8]) -> bool {
        let (end, mut rest) = (self.shared.clock.now().after(JOB_TIME), bytes);
        while !rest.is_empty() && self.shared.clock.now() < end {
            let write = || Ok(send(&self.stream, rest, SendFlags::MORE | SendFlags::NOSIGNAL)?);
            match self.stream.try_io(Interest::WRITABLE, write) {
                Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let writable = timeout(JOB_SILENCE, self.stream.writable());
                    if !matches!(self.shared.unless_over(writable).await, Some(Ok(_))) {
                        break;
                    }
                }
                Err(_) => break,
            }
        }
        rest.is_empty()
    }

    /// Says that this was all, and throws away what the client still sends until it closes too, for a time; at the end of the server, until
    /// it has the answer.
    async fn close(mut self) {
        if self.stream.shutdown().await.is_err() {
            return;
        }
        let (end, mut thrown) = (self.shared.clock.now().after(JOB_TIME), 0);
        while thrown < JOB_DRAINED_BYTES_MAX && self.shared.clock.now() < end && !self.shared.over.get() {
            match self.sign(JOB_SILENCE).await {
                ReadOutcome::Readable => {}
                ReadOutcome::Silent => return,
                ReadOutcome::Closing if is_settled(&self.stream) => return,
                // The answer is on its way. Of its arrival the system tells nobody.
                ReadOutcome::Closing => sleep(SETTLING).await,
            }
            match self.stream.try_read(&mut self.shared.scrap.borrow_mut()) {
                Ok(0) => return,
                Ok(bytes) => thrown += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }
}
