//! Whether every store can store: a probe writes a record to the server's own store and syncs it, and inserts an event
//! into a database and rolls it back.
//!
//! ```text
//! /ready ─┐                             ┌─► StoreProber, in a thread of its own: Tasks::probe
//! /ready ─┴─► all that wait share one ──┴─► DatabaseProbe: a transaction
//! ```
//! A probe begins at most once in [`PROBE_PERIOD`], however many ask: requests that come within it share its result. So a
//! store has one probe at a time, a stuck one has one waiting thread, and nobody can keep a disk busy with probes.

use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, bounded};
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::limits::{PROBE_PERIOD, PROBE_TIME, PROBES_WAITING_MAX};
use crate::clock::{Clock, Now};
use crate::lock::Mutex;
use crate::services::events::mysql::DatabaseProbe;
use crate::store;
use crate::tables::{EffectMetrics, LogStage};
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
    /// The metrics of the log of durable tables.
    tables: Box<dyn Fn() -> EffectMetrics + Send>,
    own: Option<Sender<StoreOrder>>,
    database: Option<DatabaseProbe>,
    /// How long a probe waits for a store.
    patience: Duration,
}

impl ProbedStores {
    /// The stores of this server, and the prober of its own one.
    pub(super) fn new(
        tables: Box<dyn Fn() -> EffectMetrics + Send>,
        tasks: Option<Tasks>,
        database: Option<DatabaseProbe>,
    ) -> (Self, Option<StoreProber>) {
        let (sender, orders) = bounded(1);
        let prober = tasks.map(|tasks| StoreProber { tasks, orders });
        (Self { tables, own: prober.is_some().then_some(sender), database, patience: PROBE_TIME }, prober)
    }

    async fn probe(&mut self) -> Readiness {
        of_tables(&(self.tables)())?;
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

/// Whether durable tables are loaded, and take what is stored. Their log reports a failure by itself.
fn of_tables(log: &EffectMetrics) -> Readiness {
    match log.stage {
        LogStage::Loading => Err(format!("the durable tables are being loaded: {} % are read", log.loaded_percent)),
        LogStage::Failing | LogStage::Failed => {
            Err("durable tables take no writes: the disk of their log has failed".to_owned())
        }
        LogStage::On if log.is_full => Err("nothing can be added to durable tables: their log has no room".to_owned()),
        LogStage::On | LogStage::Off | LogStage::Wanted | LogStage::Unopened => Ok(()),
    }
}

fn stuck(what: &str, patience: Duration) -> String {
    format!("the {what} has not answered for {} s", patience.as_secs_f64())
}

/// A handle for requests. Cheap to clone.
#[derive(Clone)]
pub(super) struct Probes {
    orders: mpsc::Sender<oneshot::Sender<Readiness>>,
    last: LastProbe,
    clock: Clock,
}

/// When the last probe began, and its result. Written by the task that probes.
type LastProbe = Arc<Mutex<Option<(Now, Readiness)>>>;

impl Probes {
    /// The handle, and the task that probes until the last handle is gone.
    pub(super) fn new(stores: ProbedStores, clock: Clock) -> (Self, impl Future<Output = ()>) {
        let (sender, orders) = mpsc::channel(PROBES_WAITING_MAX);
        let last = LastProbe::default();
        (Self { orders: sender, last: Arc::clone(&last), clock }, answer(stores, orders, last, clock))
    }

    /// The result of a probe that began at most [`PROBE_PERIOD`] before this call, or of the next one. If as many
    /// requests wait for that as may, the result of the last one.
    pub(super) async fn ask(&self) -> Readiness {
        let last = self.last.lock().clone();
        if let Some((begun, readiness)) = &last
            && self.clock.now() < begun.after(PROBE_PERIOD)
        {
            return readiness.clone();
        }
        let (order, answer) = oneshot::channel();
        let ending = || Err("the server ends".to_owned());
        match self.orders.try_send(order) {
            Ok(()) => answer.await.unwrap_or_else(|_| ending()),
            Err(TrySendError::Full(_)) => {
                last.map_or_else(|| Err("the store has not answered yet".to_owned()), |(_, readiness)| readiness)
            }
            Err(TrySendError::Closed(_)) => ending(),
        }
    }
}

/// Probes when requests wait, and answers all of those that wait by then.
async fn answer(
    mut stores: ProbedStores,
    mut orders: mpsc::Receiver<oneshot::Sender<Readiness>>,
    last: LastProbe,
    clock: Clock,
) {
    while let Some(first) = orders.recv().await {
        let begun = clock.now();
        let readiness = stores.probe().await;
        *last.lock() = Some((begun, readiness.clone()));
        let others = std::iter::from_fn(|| orders.try_recv().ok());
        for order in std::iter::once(first).chain(others) {
            // The request is not answered if its connection has ended.
            let _gone = order.send(readiness.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::sync::atomic::{AtomicU64, Ordering};

    use tokio::runtime::Builder;
    use tokio::task::{JoinHandle, LocalSet, spawn_local, yield_now};

    use super::*;
    use crate::store::LogMetrics;

    /// Passes in a test.
    const SHORT: Duration = Duration::from_millis(10);
    /// Longer than any test.
    const LONG: Duration = Duration::from_secs(600);

    fn locally<T>(work: impl Future<Output = T>) -> T {
        let runtime = Builder::new_current_thread().enable_time().build();
        LocalSet::new().block_on(&runtime.unwrap(), work)
    }

    fn ask(probes: &Probes) -> JoinHandle<Readiness> {
        let probes = probes.clone();
        spawn_local(async move { probes.ask().await })
    }

    fn no_log() -> EffectMetrics {
        let log = LogMetrics::default();
        let (stage, is_full) = (LogStage::Off, true);
        EffectMetrics { stage, loaded_percent: 0, is_full, waits: 0, epochs: 0, moment: 0, is_ordered: false, log }
    }

    #[test]
    fn a_server_is_ready_when_durable_tables_are_loaded_and_take_what_is_stored() {
        for (stage, is_full, why) in [
            (LogStage::Off, true, None),
            (LogStage::Wanted, true, None),
            (LogStage::Unopened, true, None),
            (LogStage::On, false, None),
            (LogStage::Loading, true, Some("70 %")),
            (LogStage::On, true, Some("no room")),
            (LogStage::Failed, false, Some("has failed")),
        ] {
            let log = EffectMetrics { stage, is_full, loaded_percent: 70, ..no_log() };
            assert_eq!(of_tables(&log).err().map(|said| why.is_some_and(|why| said.contains(why))), why.map(|_| true));
        }
    }

    /// A server's own store, whose probes a test answers.
    fn own_store(patience: Duration) -> (ProbedStores, Receiver<StoreOrder>) {
        let (sender, orders) = bounded(1);
        (ProbedStores { tables: Box::new(no_log), own: Some(sender), database: None, patience }, orders)
    }

    async fn next(orders: &Receiver<StoreOrder>) -> StoreOrder {
        loop {
            match orders.try_recv() {
                Ok(order) => return order,
                Err(_) => yield_now().await,
            }
        }
    }

    #[test]
    fn a_server_without_a_store_is_ready() {
        let (stores, prober) = ProbedStores::new(Box::new(no_log), None, None);
        assert!(prober.is_none());
        let (probes, answering) = Probes::new(stores, Clock::start());
        locally(async {
            spawn_local(answering);
            assert_eq!(probes.ask().await, Ok(()));
        });
    }

    /// Each request had the store write and sync.
    #[test]
    fn whoever_asks_within_a_second_shares_one_probe() {
        static MILLIS: AtomicU64 = AtomicU64::new(0);
        let (stores, orders) = own_store(LONG);
        let (probes, answering) = Probes::new(stores, Clock::fake(&MILLIS));
        locally(async {
            spawn_local(answering);
            let first = ask(&probes);
            let order = next(&orders).await;
            let during = ask(&probes);
            yield_now().await;
            order.send(Ok(())).unwrap();
            assert_eq!((first.await.unwrap(), during.await.unwrap()), (Ok(()), Ok(())));
            MILLIS.store(999, Ordering::Relaxed);
            assert_eq!(probes.ask().await, Ok(()));
            assert!(orders.is_empty(), "there was one probe");
            MILLIS.store(1_000, Ordering::Relaxed);
            let next_second = ask(&probes);
            next(&orders).await.send(Err("full".to_owned())).unwrap();
            assert_eq!(next_second.await.unwrap(), Err("full".to_owned()));
            assert_eq!(probes.ask().await, Err("full".to_owned()), "a failure is shared, too");
        });
    }

    #[test]
    fn those_beyond_the_ones_that_may_wait_get_the_last_result() {
        static MILLIS: AtomicU64 = AtomicU64::new(0);
        let (stores, orders) = own_store(LONG);
        let (probes, answering) = Probes::new(stores, Clock::fake(&MILLIS));
        locally(async {
            spawn_local(answering);
            let first = ask(&probes);
            next(&orders).await.send(Ok(())).unwrap();
            assert_eq!(first.await.unwrap(), Ok(()));
            MILLIS.store(5_000, Ordering::Relaxed);
            let mut waiting = vec![ask(&probes)];
            let stuck = next(&orders).await;
            waiting.extend((0..PROBES_WAITING_MAX).map(|_| ask(&probes)));
            yield_now().await;
            assert_eq!(probes.ask().await, Ok(()));
            stuck.send(Err("stuck".to_owned())).unwrap();
            for asked in waiting {
                assert_eq!(asked.await.unwrap(), Err("stuck".to_owned()));
            }
        });
    }

    #[test]
    fn a_store_that_does_not_answer_is_not_ready_and_is_not_asked_again() {
        static MILLIS: AtomicU64 = AtomicU64::new(0);
        let (stores, orders) = own_store(SHORT);
        let (probes, answering) = Probes::new(stores, Clock::fake(&MILLIS));
        locally(async {
            spawn_local(answering);
            for second in 0..3 {
                MILLIS.store(1_000 * second, Ordering::Relaxed);
                assert_eq!(probes.ask().await, Err("the store has not answered for 0.01 s".to_owned()));
            }
            assert_eq!(orders.len(), 1);
        });
    }
}
