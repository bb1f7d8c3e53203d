//! WAIT: the connection waits for a job, longer than other requests may take.
//!
//! ```text
//! LeaseMany ─► answered ─► the job is sent ─► done
//!           └─► the client has gone, the place is lost, or the server ends ─► Withdraw ─► NONE, or the job all the same
//! ```
//! A client that has closed its half may still read. If it has gone, the system says so when the job is sent: then the job
//! goes back.
//!
//! This module does not know the other verbs.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::time::Duration;

use tokio::time::sleep;

use super::super::handle::{queues_of, reply, wait_request};
use super::super::pace::PaceStage;
use super::super::wire::{Reply, Verb};
use super::{JobConversation, SETTLING, Sent};
use crate::clock::TimeLimit;
use crate::limits::JOB_SILENCE;
use crate::net::tcp::{Answer, unless};
use crate::security::Identity;
use crate::tasks::{GrantedLease, Outcome};

/// Bytes that a client may send behind its request while it waits. Further ones stay with the system.
const BEHIND_MAX: usize = 4 << 10;

impl JobConversation<'_> {
    /// Answers a WAIT. A job whose data cannot be read gives way to the next one. False: the reply could not be sent.
    pub(super) async fn wait_for_job(
        &self,
        names: Box<[u8]>,
        seconds: u32,
        with_tries: bool,
        user: Option<&Identity>,
    ) -> bool {
        let length = Duration::from_secs(u64::from(seconds));
        let end = self.shared.clock.now().after(length);
        // Without a place the client is answered at once.
        let place = self.shared.rooms.place_to_wait(queues_of(&names, &self.shared.family).len());
        let has_closed = Cell::new(false);
        self.stream.keep_alive();
        loop {
            let left = if place.is_some() { self.shared.clock.now().time_until(end) } else { Duration::ZERO };
            let Some(answer) = self.wait_once(&names, left, &has_closed).await else { return false };
            let now = self.shared.clock.now();
            self.times.received(0, now);
            self.times.begin(now);
            let Outcome::LeasedMany(granted) = &answer.outcome else {
                return self.send(&self.written(&reply(Verb::Wait, &answer.outcome, &[]))).await;
            };
            let Some(GrantedLease { queue, token, key, lease, payload, .. }) = granted.first() else { return false };
            let limit = TimeLimit::begin(now, Duration::from_millis(*lease));
            // Named anew, so that no names are kept in memory for those that wait.
            let Some(queue) = queues_of(&names, &self.shared.family).into_iter().nth(*queue) else { return false };
            if user.is_some_and(|user| !user.is_current()) {
                // It has changed while it waited.
                self.shared.responder.take_back(queue, *token, key.clone());
                return self.send(&self.written(&Reply::Error)).await;
            }
            let sent = self.send_job(with_tries, &answer, payload, limit).await;
            if sent == Sent::Whole && (!has_closed.get() || self.has_arrived().await) {
                return true;
            }
            if sent == Sent::Unread {
                self.shared.responder.set_unread(queue, *token, key.clone());
            } else {
                self.shared.responder.take_back(queue, *token, key.clone());
            }
            if !matches!(sent, Sent::Late | Sent::Unread) || self.shared.ends.over.is_given() {
                return false;
            }
        }
    }

    /// Asks for a job, and waits so long for one. None: there is no answer.
    async fn wait_once(&self, names: &[u8], left: Duration, has_closed: &Cell<bool>) -> Option<Answer> {
        let wait = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        let (queues, lease) = (queues_of(names, &self.shared.family), self.shared.settings.lease);
        let queue = queues.first()?.clone();
        let request = wait_request(queues, lease, wait);
        self.pace.hold(0);
        self.pace.enter(PaceStage::Awaiting, self.shared.clock.now());
        let ended = unless(self.until_gone(has_closed), self.shared.ends.until_closed());
        let answer = self.shared.responder.submit_until(queue, request, async {
            unless(ended, self.pace.lost()).await;
        });
        let answer = answer.await;
        self.pace.enter(PaceStage::Busy, self.shared.clock.now());
        answer
    }

    /// Ready when the client is gone. `has_closed` says whether it has closed its half. Then the system finds out by its
    /// probes, and is asked from time to time.
    async fn until_gone(&self, has_closed: &Cell<bool>) {
        let mut behind = 0;
        while !has_closed.get() && behind < BEHIND_MAX {
            poll_fn(|context| self.stream.poll_read_ready(context)).await;
            match self.stream.try_discard(&mut self.shared.scrap.borrow_mut()) {
                Ok(0) => has_closed.set(true),
                Ok(bytes) => behind += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
        while !has_closed.get() && !self.stream.has_hung_up() {
            // It sends more and more.
            sleep(JOB_SILENCE).await;
        }
        has_closed.set(true);
        while !self.stream.is_broken() {
            sleep(JOB_SILENCE).await;
        }
    }

    /// Whether a client that has closed its half has taken the reply.
    async fn has_arrived(&self) -> bool {
        if self.in_time(poll_fn(|context| self.stream.poll_end(context))).await.is_none() {
            return false;
        }
        let end = self.shared.clock.now().after(JOB_SILENCE);
        while !self.stream.is_broken() {
            if self.stream.is_settled() || self.shared.ends.over.is_given() || self.shared.clock.now() >= end {
                return true;
            }
            sleep(SETTLING).await;
        }
        false
    }
}
