//! Commands that need more than one request, or a long one.
//!
//! This module reads no bytes of a client.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};

use super::command;
use super::conversation::BeanstalkConversation;
use super::reply::{self, JobSums};
use super::session::{Apart, Client};
use super::tubes::TubeFigures;
use crate::limits::{JOB_DATA_BYTES_MAX, JOB_TIME};
use crate::security::Denied;
use crate::tasks::{ListedQueue, Outcome, QueueChange, Request, Sweep};

/// Queues of one page.
const PAGE: u32 = 1_024;
/// Tubes of a list. A list of more would be an answer of megabytes.
const LISTED_MAX: usize = 1 << 16;

impl BeanstalkConversation<'_> {
    /// Carries out a command whose predecessors are answered.
    pub(super) async fn answer_apart(&mut self, apart: Apart) -> io::Result<Vec<u8>> {
        Ok(match apart {
            Apart::Kick(most) => {
                let queue = self.session.queue(self.session.used());
                let sweep = Request::Sweep { sweep: Sweep::Kick { most }, client: self.session.holder };
                let kicked = self.outcome(queue, sweep).await?.counted();
                reply::numbered("KICKED", kicked)
            }
            Apart::Stats => self.stats().await?,
            Apart::ListTubes => {
                // As much as any answer takes, before the list is made.
                self.take_room(JOB_DATA_BYTES_MAX).await?;
                let names = self.tubes().await?;
                names.map_or(reply::OUT_OF_MEMORY.to_vec(), |names| reply::list(names.iter().map(|name| &**name)))
            }
            Apart::StatsTube(tube) => match self.tube(&tube).await? {
                (None, None) => {
                    self.shared.tubes.forget_pauses(&tube);
                    reply::NOT_FOUND.to_vec()
                }
                (queue, figures) => {
                    let (figures, pauses) = (figures.unwrap_or_default(), self.shared.tubes.pauses(&tube));
                    reply::stats_tube(&tube, queue.as_ref(), figures, pauses)
                }
            },
            Apart::PauseTube(tube, seconds) => self.pause(&tube, seconds).await?,
            Apart::Auth(name, password) => self.log_in(&name, &password).await?,
        })
    }

    async fn outcome(&self, queue: crate::tasks::QueueName, request: Request) -> io::Result<Outcome> {
        let bytes = usize::try_from(request.bytes()).unwrap_or(usize::MAX);
        let answer = self.shared.responder.submit(queue, request, bytes).await;
        Ok(answer.ok_or(ErrorKind::BrokenPipe)?.outcome)
    }

    /// A tube as a queue, and as connections refer to it. Both are `None`: there is no such tube.
    async fn tube(&self, tube: &[u8]) -> io::Result<(Option<ListedQueue>, Option<TubeFigures>)> {
        let outcome = self.outcome(self.session.queue(tube), Request::ShowQueue).await?;
        let queue = if let Outcome::Queues { mut queues, .. } = outcome { queues.pop() } else { None };
        Ok((queue, self.shared.tubes.figures(tube)))
    }

    async fn pause(&self, tube: &[u8], seconds: u32) -> io::Result<Vec<u8>> {
        if matches!(self.tube(tube).await?, (None, None)) {
            return Ok(reply::NOT_FOUND.to_vec());
        }
        let change = QueueChange { pause: Some(u64::from(seconds) * 1_000), ..QueueChange::default() };
        let change = Request::Configure { change: Box::new(change) };
        if self.outcome(self.session.queue(tube), change).await? != Outcome::Done {
            return Ok(reply::OUT_OF_MEMORY.to_vec());
        }
        self.shared.tubes.note_pause(tube, seconds);
        Ok(reply::PAUSED.to_vec())
    }

    /// Calls `each` with all queues that the client may read and whose names are those of tubes.
    async fn for_each_queue(&self, mut each: impl FnMut(&[u8], &ListedQueue)) -> io::Result<()> {
        let mut from = 0;
        loop {
            let request = Request::ListQueues { prefixes: self.session.may_read().to_vec(), from, most: PAGE };
            let outcome = self.outcome(self.session.queue(self.session.used()), request).await?;
            let Outcome::Queues { queues, next } = outcome else { return Ok(()) };
            for queue in &queues {
                let name = self.shared.tube_name(&queue.name);
                if command::tube(name).is_some() {
                    each(name, queue);
                }
            }
            match next {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    /// The names of all tubes that the client may read, those without jobs included. `None`: there are too many for an
    /// answer.
    async fn tubes(&self) -> io::Result<Option<BTreeSet<Box<[u8]>>>> {
        let (mut all, mut are_listed) = (BTreeSet::new(), true);
        self.for_each_queue(|name, _| {
            are_listed &= all.len() < LISTED_MAX;
            if are_listed {
                all.insert(name.into());
            }
        })
        .await?;
        Ok(Some(all).filter(|_| are_listed))
    }

    async fn stats(&self) -> io::Result<Vec<u8>> {
        let mut sums = JobSums::default();
        self.for_each_queue(|_, queue| {
            sums.tubes += 1;
            sums.urgent += queue.urgent;
            sums.ready += queue.counts.ready;
            sums.reserved += queue.counts.leased;
            sums.delayed += queue.counts.delayed;
            sums.buried += queue.counts.dead + queue.counts.unread;
        })
        .await?;
        let families = self.shared.responder.tasks().metrics().families();
        if let Some(family) = families.iter().find(|family| family.name() == self.shared.family.prefix()) {
            let ever = family.counts().ever;
            (sums.timeouts, sums.total) = (ever.ran_out, ever.added);
        }
        let mut figures = self.shared.figures();
        figures.jobs = sums;
        Ok(reply::stats(&figures))
    }

    async fn log_in(&mut self, name: &[u8], password: &[u8]) -> io::Result<Vec<u8>> {
        let Some(users) = &self.shared.users else { return Ok(reply::AUTHENTICATED.to_vec()) };
        let login = users.password(name, password, self.stream.peer());
        let checked = tokio::time::timeout(JOB_TIME, self.shared.ends.unless_over(login)).await;
        Ok(match checked.ok().flatten() {
            Some(Ok(user)) => {
                self.session.be(Client::User(user));
                reply::AUTHENTICATED.to_vec()
            }
            Some(Err(Denied::Busy)) | None => reply::BUSY.to_vec(),
            Some(Err(_)) => reply::NOT_AUTHENTICATED.to_vec(),
        })
    }
}
