//! Whether every store can store: a probe writes a record to the server's own store and syncs it, and inserts an event
//! into a database and rolls it back.
//!
//! ```text
//! /ready ─┐                             ┌─► StoreProber, in a thread of its own: Tasks::probe
//! /ready ─┴─► all that wait share one ──┴─► DatabaseProbe: a transaction
//! ```
//! A request is answered by a probe that begins after the request has come. While one probe is under way, later requests
//! wait for the next one together. So a store has one probe at a time, and a stuck one has one waiting thread.

use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, bounded};
use tokio::sync::mpsc;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::limits::{PROBE_TIME, PROBES_WAITING_MAX};
use crate::clock::Clock;
use crate::protocols::events::mysql::DatabaseProbe;
use crate::store;
use crate::tasks::Tasks;

/// The result of a probe: why a store cannot store, in a sentence.
pub(super) type Readiness = Result<(), String>;

/// A request for a probe of the server's own store.
type StoreOrder = oneshot::Sender<Readiness>;

/// Probes the server's own store, ready to run in a thread of its own, because a sync blocks. It ends when the service
/// has ended.
pub struct StoreProber {
    tasks: Tasks,
    orders: Receiver<StoreOrder>,
}

impl StoreProber {
    /// The loop of the thread.
    ///
    /// # Errors
    /// [`store::Error`] if a record cannot be stored. The store takes no more changes then.
    pub fn run(self) -> Result<(), store::Error> {
        let clock = Clock::start();
        while let Ok(order) = self.orders.recv() {
            let readiness = match self.tasks.probe(|| clock.reading())? {
                Some(Ok(())) => Ok(()),
                Some(Err(why)) => Err(format!("nothing can be added to the store: {why}")),
                None => Err("the store has failed, and the server ends".to_owned()),
            };
            // The request is not answered if its connection has ended.
            let _gone = order.send(readiness);
        }
        Ok(())
    }
}

/// The stores that a probe tries.
pub(super) struct ProbedStores {
    own: Option<Sender<StoreOrder>>,
    database: Option<DatabaseProbe>,
    /// How long a probe waits for a store.
    patience: Duration,
}

impl ProbedStores {
    /// The stores of this server, and the prober of its own one.
    pub(super) fn new(tasks: Option<Tasks>, database: Option<DatabaseProbe>) -> (Self, Option<StoreProber>) {
        let (sender, orders) = bounded(1);
        let prober = tasks.map(|tasks| StoreProber { tasks, orders });
        (Self { own: prober.is_some().then_some(sender), database, patience: PROBE_TIME }, prober)
    }

    async fn probe(&mut self) -> Readiness {
        if let Some(own) = &self.own {
            let (order, answer) = oneshot::channel();
            own.try_send(order).map_err(|_| stuck("store", self.patience))?;
            match timeout(self.patience, answer).await {
                Ok(Ok(readiness)) => readiness?,
                Ok(Err(_)) => return Err("the store has failed, and the server ends".to_owned()),
                Err(_) => return Err(stuck("store", self.patience)),
            }
        }
        match &mut self.database {
            Some(database) => {
                timeout(self.patience, database.check()).await.unwrap_or_else(|_| Err(stuck("database", self.patience)))
            }
            None => Ok(()),
        }
    }
}

fn stuck(what: &str, patience: Duration) -> String {
    format!("the {what} has not answered for {} s", patience.as_secs_f64())
}

/// A handle for requests. Cheap to clone.
#[derive(Clone)]
pub(super) struct Probes(mpsc::Sender<oneshot::Sender<Readiness>>);

impl Probes {
    /// The handle, and the task that probes until the last handle is gone.
    pub(super) fn new(stores: ProbedStores) -> (Self, impl Future<Output = ()>) {
        let (sender, orders) = mpsc::channel(PROBES_WAITING_MAX);
        (Self(sender), answer(stores, orders))
    }

    /// The result of a probe that begins after this call.
    pub(super) async fn ask(&self) -> Readiness {
        let (order, answer) = oneshot::channel();
        let ending = || "the server ends".to_owned();
        self.0.send(order).await.map_err(|_| ending())?;
        answer.await.map_err(|_| ending())?
    }
}

async fn answer(mut stores: ProbedStores, mut orders: mpsc::Receiver<oneshot::Sender<Readiness>>) {
    let mut waiting = Vec::new();
    while orders.recv_many(&mut waiting, PROBES_WAITING_MAX).await > 0 {
        let readiness = stores.probe().await;
        for order in waiting.drain(..) {
            // The request is not answered if its connection has ended.
            let _gone = order.send(readiness.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use tokio::runtime::Builder;
    use tokio::task::{LocalSet, spawn_local, yield_now};

    use super::*;

    /// Passes in a test.
    const SHORT: Duration = Duration::from_millis(10);
    /// Longer than any test.
    const LONG: Duration = Duration::from_secs(600);

    fn locally<T>(work: impl Future<Output = T>) -> T {
        let runtime = Builder::new_current_thread().enable_time().build();
        LocalSet::new().block_on(&runtime.unwrap(), work)
    }

    #[test]
    fn a_server_without_a_store_is_ready() {
        let (stores, prober) = ProbedStores::new(None, None);
        assert!(prober.is_none());
        let (probes, answering) = Probes::new(stores);
        locally(async {
            spawn_local(answering);
            assert_eq!(probes.ask().await, Ok(()));
        });
    }

    #[test]
    fn requests_that_wait_for_a_probe_share_the_next_one() {
        let (sender, orders) = bounded(1);
        let (probes, answering) = Probes::new(ProbedStores { own: Some(sender), database: None, patience: LONG });
        locally(async {
            spawn_local(answering);
            let ask = |probes: Probes| spawn_local(async move { probes.ask().await });
            let first = ask(probes.clone());
            while orders.is_empty() {
                yield_now().await;
            }
            let later: Vec<_> = (0..5).map(|_| ask(probes.clone())).collect();
            yield_now().await;
            orders.recv().unwrap().send(Ok(())).unwrap();
            assert_eq!(first.await.unwrap(), Ok(()));
            while orders.is_empty() {
                yield_now().await;
            }
            orders.recv().unwrap().send(Err("full".to_owned())).unwrap();
            for asked in later {
                assert_eq!(asked.await.unwrap(), Err("full".to_owned()), "it came after the first probe began");
            }
            assert!(orders.is_empty(), "one probe for all of them");
        });
    }

    #[test]
    fn a_store_that_does_not_answer_is_not_ready_and_is_not_asked_again() {
        let (sender, orders) = bounded(1);
        let (probes, answering) = Probes::new(ProbedStores { own: Some(sender), database: None, patience: SHORT });
        locally(async {
            spawn_local(answering);
            for _ in 0..3 {
                assert_eq!(probes.ask().await, Err("the store has not answered for 0.01 s".to_owned()));
            }
            assert_eq!(orders.len(), 1);
        });
    }
}
