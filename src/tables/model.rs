//! The waiting of the tables' threads for each other, under loom: in every interleaving, no thread waits for ever. And the
//! latch: its holder and the batch of another session are never at work on the same element.
//!
//! Run with `cargo test --lib --features models -- tables::model:: tables::slot::model:: tasks::room::model::`. The
//! server's own code runs here, and only the parking is loom's. A lost wake-up shows as a thread that waits for ever,
//! which loom reports.

#![allow(clippy::unwrap_used, reason = "a model that fails should say where")]

use loom::sync::atomic::{AtomicUsize, Ordering, fence};
use loom::sync::{Arc, Notify};
use loom::thread;

use super::change::Credits;
use super::latch::{BatchWord, Drain, Edition};
use super::sleep_state::{ORDINARY, SleepState, URGENT, Urgency, WAKE_FOR_ANY, WAKE_FOR_URGENT};

/// A sleeper, the length of its queue, and the means by which it is woken.
struct Queue {
    length: AtomicUsize,
    sleep_state: SleepState,
    wake_signal: Notify,
    wake_ups: AtomicUsize,
}

impl Queue {
    fn new() -> Arc<Self> {
        let (length, wake_ups) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Self { length, sleep_state: SleepState::new(), wake_signal: Notify::new(), wake_ups })
    }

    /// The steps of a sender.
    fn send(&self, urgency: Urgency) {
        // AcqRel: no more than the real queues promise.
        self.length.fetch_add(1, Ordering::AcqRel);
        if self.sleep_state.must_wake(|| urgency) {
            self.wake_ups.fetch_add(1, Ordering::Relaxed);
            self.wake_signal.notify();
        }
    }

    /// The steps of a sleeper, until it has received `count` messages. Returns the number of times it slept.
    fn receive(&self, count: usize, level: Urgency) -> usize {
        let mut slept = 0;
        let waits = || self.length.load(Ordering::Acquire) > 0;
        let mut received = 0;
        loop {
            self.sleep_state.end();
            if waits() {
                received += self.length.swap(0, Ordering::AcqRel);
            }
            if received == count {
                return slept;
            }
            if self.sleep_state.prepare(level, waits) {
                slept += 1;
                self.wake_signal.wait();
            }
        }
    }
}

/// Every interleaving with at most three preemptions. More take minutes, and a lost wake-up needs two.
fn bounded(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn a_sleeper_is_woken_for_what_is_sent() {
    loom::model(|| {
        let queue = Queue::new();
        let sender = Arc::clone(&queue);
        let sender = thread::spawn(move || sender.send(ORDINARY));
        queue.receive(1, WAKE_FOR_ANY);
        sender.join().unwrap();
    });
}

#[test]
fn one_of_two_senders_wakes_the_sleeper_and_none_is_forgotten() {
    bounded(|| {
        let queue = Queue::new();
        let senders = [(); 2].map(|()| {
            let sender = Arc::clone(&queue);
            thread::spawn(move || sender.send(ORDINARY))
        });
        queue.receive(2, WAKE_FOR_ANY);
        for sender in senders {
            sender.join().unwrap();
        }
    });
}

#[test]
fn a_sleeper_is_woken_once_for_each_sleep() {
    loom::model(|| {
        let queue = Queue::new();
        assert!(queue.sleep_state.prepare(WAKE_FOR_ANY, || false));
        let sender = Arc::clone(&queue);
        let sender = thread::spawn(move || sender.send(ORDINARY));
        queue.send(ORDINARY);
        sender.join().unwrap();
        assert_eq!(queue.wake_ups.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_sleeper_for_want_of_listeners_is_woken_by_what_is_urgent_alone() {
    loom::model(|| {
        let queue = Queue::new();
        queue.send(ORDINARY);
        let sender = Arc::clone(&queue);
        let sender = thread::spawn(move || {
            sender.send(ORDINARY);
            sender.send(URGENT);
        });
        while queue.length.load(Ordering::Acquire) < 3 {
            if queue.sleep_state.prepare(WAKE_FOR_URGENT, || queue.length.load(Ordering::Acquire) >= 3) {
                queue.wake_signal.wait();
            }
        }
        sender.join().unwrap();
        assert!(queue.wake_ups.load(Ordering::Relaxed) <= 1);
    });
}

#[test]
fn a_writer_that_waits_is_woken_for_its_credits() {
    bounded(|| {
        let shared = Arc::new((Credits::new(), Notify::new()));
        let publisher = Arc::clone(&shared);
        let publisher = thread::spawn(move || {
            let (credits, wake_signal) = &*publisher;
            for announced in 1..=2 {
                if credits.give_back(announced) {
                    wake_signal.notify();
                }
            }
        });
        let (credits, wake_signal) = &*shared;
        // First for a portion, then for all of it.
        for target in [1, 2] {
            if credits.register(target) {
                while credits.is_registered() {
                    wake_signal.wait();
                }
            }
            assert!(credits.announced() >= target, "woken with the credits in sight");
        }
        publisher.join().unwrap();
    });
}

#[test]
fn a_registration_is_either_taken_or_withdrawn() {
    loom::model(|| {
        let credits = Arc::new(Credits::new());
        let publisher = Arc::clone(&credits);
        let publisher = thread::spawn(move || publisher.give_back(1));
        let withdrawn = credits.register(1) && credits.withdraw();
        let woken = publisher.join().unwrap();
        assert!(!(withdrawn && woken), "not both");
        assert!(!credits.is_registered(), "nothing of it is left");
    });
}

/// An element of a table that may be latched. Its content counts its changes, and no order keeps one from being lost.
struct LatchedElement {
    edition: Edition,
    word: std::sync::Arc<BatchWord>,
    changes: AtomicUsize,
}

impl LatchedElement {
    /// Reads, and then writes, as no thread could that is not alone.
    fn change(&self) {
        let changes = self.changes.load(Ordering::Relaxed);
        self.changes.store(changes + 1, Ordering::Relaxed);
    }

    /// A batch with one request, which changes the element unless it meets the latch. Returns how often it did.
    fn change_in_a_batch(&self, number: u64) -> usize {
        self.word.begin(2 * number - 1);
        // SeqCst fence: stands for that of the pin, and pairs with the fence in `Drain::new`.
        fence(Ordering::SeqCst);
        let is_met = Edition::is_latched(self.edition.load());
        if !is_met {
            self.change();
        }
        self.word.end(2 * number);
        usize::from(!is_met)
    }
}

#[test]
fn the_holder_of_a_latch_and_a_batch_are_never_at_work_together() {
    bounded(|| {
        let (edition, word) = (Edition::new(), std::sync::Arc::new(BatchWord::new()));
        let shared = Arc::new(LatchedElement { edition, word, changes: AtomicUsize::new(0) });
        let other = Arc::clone(&shared);
        // The second batch may begin before the latch, under it, or after it.
        let other = thread::spawn(move || other.change_in_a_batch(1) + other.change_in_a_batch(2));
        shared.edition.latch();
        let mut drain = Drain::new(std::iter::once(&shared.word));
        while !drain.is_over() {
            thread::yield_now();
        }
        shared.change();
        shared.edition.unlatch();
        let changes = 1 + other.join().unwrap();
        assert_eq!(shared.changes.load(Ordering::Relaxed), changes, "no change is lost");
    });
}
