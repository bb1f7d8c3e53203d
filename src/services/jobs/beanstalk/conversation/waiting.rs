//! A reserve that waits: for a job, until there is a reason not to.
//!
//! ```text
//! ReserveNext ─► answered ─► RESERVED
//!             └─► its time is over ─► TIMED_OUT
//!             └─► a reservation ends soon, the client sends no more ─► Withdraw ─► DEADLINE_SOON, TIMED_OUT, or the job
//! ```
//! This module does not know the other commands.

use std::future::{Future, pending, poll_fn};
use std::io::{self, ErrorKind};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use tokio::io::AsyncReadExt;
use tokio::time::sleep;

use super::super::reply;
use super::super::tubes::TubeRole;
use super::{BeanstalkConversation, Granted};
use crate::clock::Now;
use crate::limits::JOB_SILENCE;
use crate::net::sockets::has_hung_up;
use crate::net::tcp::Answer;
use crate::services::jobs::responder::StartedRequest;
use crate::tasks::QueueName;

/// Bytes that a client may send behind a reserve that waits. Further ones stay with the system.
const BEHIND_MAX: usize = 4 << 10;

/// Why a reserve does not wait any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitEnd {
    /// A reservation of its own ends soon.
    Margin,
    /// The client sends no more.
    HalfClosed,
    /// The client is gone, or the server ends.
    Over,
}

impl BeanstalkConversation<'_> {
    /// Waits for a job of the tubes that it watches.
    pub(super) async fn reserve(&mut self, seconds: Option<u32>) -> io::Result<()> {
        let tubes: Vec<Rc<[u8]>> = self.session.waits_in().iter().map(|tube| Rc::clone(tube.name())).collect();
        let place = self.shared.rooms.place_to_wait(tubes.len());
        if tubes.is_empty() || place.is_none() {
            self.settle().await?;
            self.output.extend(if tubes.is_empty() { reply::NOT_ALLOWED } else { reply::OUT_OF_MEMORY });
            return Ok(());
        }
        let begun = self.shared.clock.now();
        loop {
            let waited = u64::try_from(begun.time_until(self.shared.clock.now()).as_millis()).unwrap_or(u64::MAX);
            let wait = seconds.map_or(u64::MAX, |seconds| (u64::from(seconds) * 1_000).saturating_sub(waited).max(1));
            let asked = self.session.reserve_next(self.shared.settings.lease, wait);
            let (queue, request) = asked.ok_or(ErrorKind::PermissionDenied)?;
            let started = self.shared.responder.start(queue.clone(), request);
            if let Err(error) = self.answer_before().await {
                return Err(self.abandon(queue, started, error).await);
            }
            let _waiting = self.shared.waits();
            let _waited: Vec<_> = tubes.iter().map(|name| self.shared.tubes.refer(name, TubeRole::Waited)).collect();
            let (answer, ended) = self.wait_for_answer(queue, started).await?;
            let now = self.shared.clock.now();
            self.unsent.last_mut().into_iter().for_each(|command| command.arrived = now);
            if ended == Some(WaitEnd::Over) || self.has_lost_user() {
                self.undo_unsent(&answer.outcome);
                return Err(ErrorKind::ConnectionAborted.into());
            }
            match self.grant(&answer).await? {
                Granted::Job => return Ok(()),
                Granted::Unread => {}
                Granted::None => {
                    let is_soon = ended == Some(WaitEnd::Margin);
                    self.output.extend(if is_soon { reply::DEADLINE_SOON } else { reply::TIMED_OUT });
                    return Ok(());
                }
            }
        }
    }

    /// Sends the answers to the commands before one that waits.
    async fn answer_before(&mut self) -> io::Result<()> {
        self.settle().await?;
        let waiting = self.unsent.pop();
        let flushed = self.flush().await;
        self.unsent.extend(waiting);
        flushed
    }

    /// Nobody waits for this request any more. A job that it has been granted goes back.
    async fn abandon(&self, queue: QueueName, started: StartedRequest, error: io::Error) -> io::Error {
        self.shared.responder.withdraw(queue, started.number);
        if let Ok(answer) = started.answer.await {
            self.undo_unsent(&answer.outcome);
        }
        error
    }

    /// Waits for the answer to a reserve, until there is a reason not to: then it is withdrawn, and answered.
    async fn wait_for_answer(
        &mut self,
        queue: QueueName,
        started: StartedRequest,
    ) -> io::Result<(Answer, Option<WaitEnd>)> {
        let StartedRequest { number, answer } = started;
        let mut answer = pin!(answer);
        let margin = self.session.held.next_margin(self.shared.clock.now());
        let ended = self.until_ended(margin);
        let ended = {
            let mut ended = pin!(ended);
            poll_fn(|context| match answer.as_mut().poll(context) {
                Poll::Ready(answered) => Poll::Ready(Err(answered)),
                Poll::Pending => ended.as_mut().poll(context).map(Ok),
            })
            .await
        };
        match ended {
            Err(answered) => Ok((answered.map_err(|_| ErrorKind::BrokenPipe)?, None)),
            Ok(end) => {
                self.shared.responder.withdraw(queue, number);
                Ok((answer.await.map_err(|_| ErrorKind::BrokenPipe)?, Some(end)))
            }
        }
    }

    /// Ready when a reserve is not to wait any longer.
    async fn until_ended(&mut self, margin: Option<Now>) -> WaitEnd {
        let shared = self.shared;
        let soon = async {
            match margin {
                Some(margin) => sleep(shared.clock.now().time_until(margin)).await,
                None => pending().await,
            }
            WaitEnd::Margin
        };
        let closing = async {
            shared.ends.until_closed().await;
            WaitEnd::Over
        };
        let gone = async {
            while self.input.len() < BEHIND_MAX {
                self.input.make_room(BEHIND_MAX);
                match self.stream.read_buf(&mut self.input.bytes).await {
                    Ok(0) => return WaitEnd::HalfClosed,
                    Ok(bytes) => {
                        self.last_read.at = shared.clock.now();
                        shared.count_in(bytes);
                    }
                    Err(_) => return WaitEnd::Over,
                }
            }
            while !has_hung_up(&self.stream) {
                // It sends more and more.
                sleep(JOB_SILENCE).await;
            }
            WaitEnd::HalfClosed
        };
        let (mut soon, mut closing, mut gone) = (pin!(soon), pin!(closing), pin!(gone));
        poll_fn(|context| {
            for ended in [closing.as_mut().poll(context), gone.as_mut().poll(context), soon.as_mut().poll(context)] {
                if ended.is_ready() {
                    return ended;
                }
            }
            Poll::Pending
        })
        .await
    }
}
