//! The waiting of the tables' threads for each other, under loom: in every interleaving, no thread waits for ever. And the
//! latch: its holder and the batch of another session are never at work on the same element. And the epochs: the log takes
//! no buffer with a writer inside, and no effect is of an earlier epoch than its cause. And the disk: who waits for an epoch is
//! woken behind its sync, and behind a failure.
//!
//! Run with `cargo test --lib --features models -- tables::model:: tables::slot::model:: tasks::room::model::`. The
//! server's own code runs here, and only the parking is loom's. A lost wake-up shows as a thread that waits for ever,
//! which loom reports.

#![allow(clippy::unwrap_used, reason = "a model that fails should say where")]

use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use loom::sync::{Arc, Mutex, Notify};
use loom::thread;

use super::change::Credits;
use super::durable::disk::{DiskEpochs, DiskState};
use super::durable::epochs::{OpenEpoch, WriterPlace};
use super::latch::{BatchWord, Drain, Edition};
use super::sleep_state::{ORDINARY, SleepState, URGENT, Urgency, WAKE_FOR_ANY, WAKE_FOR_URGENT};
use super::sleeper::Sleeper;

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

/// A change in a writer's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RecordedChange {
    word: usize,
    version: usize,
    epoch: u64,
}

/// A writer's place, and its buffers by the parity of the epoch.
struct EpochWriter {
    place: WriterPlace,
    buffers: [Mutex<Vec<RecordedChange>>; 2],
}

/// Two writers, and the versions of two elements.
struct WrittenEpochs {
    open: OpenEpoch,
    writers: [EpochWriter; 2],
    words: [AtomicUsize; 2],
}

impl WrittenEpochs {
    fn new() -> Arc<Self> {
        let writer = || EpochWriter { place: WriterPlace::new(), buffers: [(); 2].map(|()| Mutex::new(Vec::new())) };
        let words = [(); 2].map(|()| AtomicUsize::new(0));
        Arc::new(Self { open: OpenEpoch::behind(0), writers: [writer(), writer()], words })
    }

    /// The steps of a change by a writer. Returns it.
    fn change(&self, writer: &EpochWriter, word: usize) -> RecordedChange {
        loop {
            // Acquire and AcqRel: as those of a slot's word.
            let seen = self.words[word].load(Ordering::Acquire);
            let epoch = self.open.enter(&writer.place);
            let changed = self.words[word].compare_exchange(seen, seen + 1, Ordering::AcqRel, Ordering::Acquire);
            let change = RecordedChange { word, version: seen + 1, epoch };
            if changed.is_ok() {
                writer.buffers[(epoch % 2) as usize].lock().unwrap().push(change);
            }
            writer.place.leave();
            if changed.is_ok() {
                return change;
            }
        }
    }

    /// The steps of the log. Returns the changes of the epoch that it has closed.
    fn take(&self) -> Vec<RecordedChange> {
        let closed = self.open.close();
        let mut taken = Vec::new();
        for writer in &self.writers {
            while !writer.place.is_left(closed) {
                thread::yield_now();
            }
            taken.append(&mut writer.buffers[(closed % 2) as usize].lock().unwrap());
        }
        assert!(taken.iter().all(|change| change.epoch == closed), "an epoch has its own changes: {taken:?}");
        taken
    }
}

#[test]
fn an_epoch_is_taken_without_its_writers_and_no_effect_is_before_its_cause() {
    bounded(|| {
        let epochs = WrittenEpochs::new();
        let [first, second] = [(); 2].map(|()| Arc::clone(&epochs));
        let first = thread::spawn(move || first.change(&first.writers[0], 0));
        let second = thread::spawn(move || {
            // It may see the change of the other writer, and then makes one that replaces it, or one of another element.
            let seen = second.words[0].load(Ordering::Acquire);
            let change = second.change(&second.writers[1], usize::from(seen > 0));
            (seen > 0 || change.version > 1, change)
        });
        let mut taken = [epochs.take(), epochs.take()].concat();
        let first = first.join().unwrap();
        let (has_seen, second) = second.join().unwrap();
        assert!(!has_seen || first.epoch <= second.epoch, "{first:?} is a cause of {second:?}");
        let is_effect = first.word == second.word && first.version > second.version;
        assert!(!is_effect || second.epoch <= first.epoch, "{second:?} is a cause of {first:?}");
        taken.append(&mut epochs.take());
        taken.append(&mut epochs.take());
        assert!(taken.len() == 2 && taken.contains(&first) && taken.contains(&second), "nothing is lost: {taken:?}");
    });
}

/// What is on disk, and whether the log has failed.
struct WatchedDisk {
    epochs: DiskEpochs,
    has_failed: AtomicBool,
}

impl WatchedDisk {
    fn new() -> Arc<Self> {
        Arc::new(Self { epochs: DiskEpochs::new(0), has_failed: AtomicBool::new(false) })
    }

    /// The steps of a thread that waits for this epoch. Returns whether it is on disk.
    fn wait(&self, epoch: u64) -> bool {
        let (sleeper, wake_signal) = (std::sync::Arc::new(Sleeper::default()), Arc::new(Notify::new()));
        let waker = Arc::clone(&wake_signal);
        sleeper.set_waker(Box::new(move || waker.notify()));
        loop {
            // Acquire: as that of the log's stage.
            let has_failed = || self.has_failed.load(Ordering::Acquire);
            let look = || DiskState { synced: self.epochs.synced(), has_failed: has_failed() };
            let disk = self.epochs.watch(epoch, look, &sleeper);
            if disk.synced >= epoch || disk.has_failed {
                return disk.synced >= epoch;
            }
            wake_signal.wait();
        }
    }

    /// The steps of a log that fails.
    fn fail(&self) {
        // Release: as that of the log's stage.
        self.epochs.change(|| self.has_failed.store(true, Ordering::Release));
    }
}

#[test]
fn threads_that_wait_for_an_epoch_are_woken_when_it_is_on_disk() {
    bounded(|| {
        let disk = WatchedDisk::new();
        let waiting = [1, 2].map(|epoch| {
            let disk = Arc::clone(&disk);
            thread::spawn(move || disk.wait(epoch))
        });
        disk.epochs.note_synced(1);
        disk.epochs.note_synced(2);
        for waiting in waiting {
            assert!(waiting.join().unwrap());
        }
    });
}

#[test]
fn a_thread_that_waits_for_an_epoch_is_woken_when_the_log_fails() {
    loom::model(|| {
        let disk = WatchedDisk::new();
        let waiting = Arc::clone(&disk);
        let waiting = thread::spawn(move || waiting.wait(2));
        disk.epochs.note_synced(1);
        disk.fail();
        assert!(!waiting.join().unwrap());
    });
}
