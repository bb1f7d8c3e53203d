//! Events in the server's own store: each is a task, whose key is its id and whose number is too.
//!
//! ```text
//! create ─► a task that is dropped with its value        GET: dropped ─► its value
//! defer  ─► a ready task, value empty ─► Lend ─► Drop          otherwise ─► null
//!
//! request ─► burst ─► hand_over ═► committer ═► Mailbox ─► hand_out ─► the request that waits
//! ```
//! All that is asked before the runtime has been round is one burst, and so one batch and one sync. A client that goes away takes
//! nothing back: what it has asked is done, and nobody hears of it.
//!
//! What is not here: who works off the pending ones, and how the queue is committed (`tasks`).

use std::sync::{Arc, Mutex, MutexGuard};

use slab::Slab;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};

use super::store::Trouble;
use crate::limits::{ASK_BURST, EVENT_SWEEP, EVENT_TASKS_RETRY, STORE_ANSWER_MAX};
use crate::protocols::tcp::Ending;
use crate::store::{self, Moment, Value};
use crate::tasks::{Ask, Delivery, Face, Outcome, QueueId, Request, Tasks, Ticket};

/// The committer's end. There are never more answers in it than requests wait.
pub(super) struct Mailbox(pub(super) UnboundedSender<Delivery>);

impl Face for Mailbox {
    fn deliver(&self, delivery: Delivery) {
        // The face outlives the committer; if it has failed, the process is about to end.
        let _failed = self.0.send(delivery);
    }
}

/// What is answered.
struct Answer {
    outcome: Outcome,
    /// The store before the batch, if the answer refers to it.
    before: Option<Arc<dyn Moment>>,
}

/// Where the queue is, and which face asks.
pub(super) struct Place {
    pub(super) tasks: Tasks,
    pub(super) queue: QueueId,
    pub(super) face: usize,
}

/// The store. Cheap to clone; clones are the same store.
#[derive(Clone)]
pub(super) struct Embedded(Arc<Desk>);

struct Desk {
    place: Place,
    /// By the number of the ticket.
    waiting: Mutex<Slab<oneshot::Sender<Answer>>>,
    /// What is to be asked next.
    burst: Mutex<Vec<Ask>>,
    /// Rung when there is a burst.
    bell: Notify,
    /// Hears that the store has failed.
    ending: UnboundedSender<Ending>,
}

impl Embedded {
    pub(super) fn new(place: Place, ending: UnboundedSender<Ending>) -> Self {
        let (waiting, burst, bell) = (Mutex::default(), Mutex::default(), Notify::new());
        Self(Arc::new(Desk { place, waiting, burst, bell, ending }))
    }

    pub(super) async fn add(&self, value: Option<&'static str>) -> Result<u64, Trouble> {
        let dropped = value.is_some();
        let value = Value::from(value.unwrap_or_default().as_bytes());
        match self.ask(Request::Append { value, dropped }).await?.outcome {
            Outcome::Added(id) => Ok(id),
            _ => Err(Trouble("the queue of the events has tasks that are no events: start with another --data".into())),
        }
    }

    pub(super) async fn count(&self) -> Result<u64, Trouble> {
        match self.ask(Request::CountAll).await?.outcome {
            Outcome::Counted(count) => Ok(count),
            _ => Err(gone()),
        }
    }

    pub(super) async fn find(&self, id: u64) -> Result<Option<Option<String>>, Trouble> {
        let key = id.to_string().into_bytes().into();
        let Answer { outcome, before } = self.ask(Request::LookDropped { key }).await?;
        Ok(match outcome {
            Outcome::Found(payload) => {
                let value = payload.read(before.as_deref()).map_err(|error| self.fail(error))?;
                Some(Some(String::from_utf8_lossy(&value).into_owned()))
            }
            Outcome::Present => Some(None),
            _ => None,
        })
    }

    pub(super) async fn check(&self) -> Result<(), Trouble> {
        self.0.place.tasks.check().map_err(|error| Trouble(error.to_string()))?;
        let turn = timeout(STORE_ANSWER_MAX, self.ask(Request::Nothing)).await;
        turn.map_err(|_| Trouble(format!("the store has not answered for {} s", STORE_ANSWER_MAX.as_secs())))?.map(drop)
    }

    /// Asks, and waits for the answer. Err: the committer has failed, and the process is about to end.
    async fn ask(&self, request: Request) -> Result<Answer, Trouble> {
        let (sender, answer) = oneshot::channel();
        let Place { queue, face, .. } = self.0.place;
        let number = lock(&self.0.waiting).insert(sender) as u64;
        lock(&self.0.burst).push(Ask { queue, ticket: Ticket { face, number }, request });
        self.0.bell.notify_one();
        answer.await.map_err(|_| gone())
    }

    fn fail(&self, error: store::Error) -> Trouble {
        let trouble = Trouble(error.to_string());
        // It fails when the server ends already.
        let _ending = self.0.ending.send(Err(error));
        trouble
    }

    /// Hands over each burst, for ever. Nothing is committed here: whoever asks how it stands is answered also while the disk is not.
    pub(super) async fn hand_over(self) {
        let Place { tasks, .. } = &self.0.place;
        loop {
            self.0.bell.notified().await;
            while tasks.is_full() {
                sleep(EVENT_TASKS_RETRY).await;
            }
            let mut burst = std::mem::take(&mut *lock(&self.0.burst));
            while !burst.is_empty() {
                let rest = burst.split_off(burst.len().min(ASK_BURST));
                tasks.ask(std::mem::replace(&mut burst, rest));
            }
        }
    }

    /// Hands out answers, until nobody is left to give any.
    pub(super) async fn hand_out(self, mut deliveries: UnboundedReceiver<Delivery>) {
        while let Some(delivery) = deliveries.recv().await {
            self.hear(delivery);
        }
    }

    fn hear(&self, Delivery { answers, before }: Delivery) {
        let mut waiting = lock(&self.0.waiting);
        for (number, outcome) in answers {
            let number = usize::try_from(number).expect("a ticket is a place in the slab");
            let before = outcome.payload().and(before.clone());
            // Who has gone meanwhile hears nothing.
            let _gone = waiting.remove(number).send(Answer { outcome, before });
        }
    }

    /// Looks now and then whether answers can still come.
    pub(super) async fn watch(self) {
        loop {
            sleep(EVENT_SWEEP).await;
            if let Err(error) = self.0.place.tasks.check() {
                drop(self.fail(error));
            }
        }
    }
}

fn gone() -> Trouble {
    Trouble("the store has failed, and the server ends".to_owned())
}

/// A thread that panics ends the process: nobody sees what it has left.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it has this")
}
