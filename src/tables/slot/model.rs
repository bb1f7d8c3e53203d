//! The slot's protocol under loom: every interleaving of two or three threads, and the conditions that hold after each.
//!
//! Run with `cargo test --lib --features models -- tables::model:: tables::slot::model:: tasks::room::model::`. Loom
//! sees the slot's atomics. The epochs, which only delay frees, are the real ones.

#![allow(clippy::unwrap_used, reason = "a model that fails should say where")]

use crossbeam::epoch::{self, Guard};
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::{EntryBox, NEVER, REFERENCE, Ring, SlotCell, SlotHandle, SlotRef, SlotState};
use crate::tables::sync::Ordering;

fn slot_with(deadline: u64) -> Arc<SlotHandle> {
    let mut entry = EntryBox::new(b"v");
    entry.stamp(1, deadline);
    Arc::new(SlotHandle::new(0, b"key", entry))
}

/// The steps of `Ops::arm`.
fn arm(slot: &SlotHandle, deadline: u64) -> bool {
    slot.slot().extend(0);
    slot.slot().arm(deadline)
}

/// Makes one attempt to store. Returns the new version if it succeeded.
fn store_once(slot: &SlotHandle, deadline: u64) -> Option<u64> {
    let guard = epoch::pin();
    let seen = slot.slot().load(&guard);
    if matches!(seen.state(), SlotState::Dead(_) | SlotState::Expired(_)) {
        return None;
    }
    let version = seen.version() + 1;
    let mut entry = EntryBox::new(b"w");
    entry.stamp(version, deadline);
    slot.slot().replace(seen, entry, &guard).ok().map(|()| version)
}

fn vacate_once(slot: &SlotHandle) -> Option<u64> {
    let guard = epoch::pin();
    let seen = slot.slot().load(&guard);
    let SlotState::Live(entry) = seen.state() else { return None };
    let version = entry.version() + 1;
    slot.slot().vacate(seen, version, false, &guard).then_some(version)
}

fn version_of(slot: &SlotHandle) -> u64 {
    let guard = epoch::pin();
    slot.slot().load(&guard).version()
}

#[test]
fn each_version_is_given_out_once() {
    loom::model(|| {
        let slot = slot_with(NEVER);
        let other = Arc::clone(&slot);
        let third = Arc::clone(&slot);
        let writer = thread::spawn(move || store_once(&other, NEVER));
        let deleter = thread::spawn(move || vacate_once(&third));
        let mine = store_once(&slot, NEVER);
        let mut versions: Vec<u64> =
            [mine, writer.join().unwrap(), deleter.join().unwrap()].into_iter().flatten().collect();
        versions.sort_unstable();
        let expected: Vec<u64> = (2..2 + versions.len() as u64).collect();
        assert_eq!(versions, expected, "without a gap, without a repetition");
        assert_eq!(version_of(&slot), 1 + versions.len() as u64);
    });
}

#[test]
fn a_retirement_and_a_re_creation_exclude_each_other() {
    loom::model(|| {
        let slot = slot_with(NEVER);
        assert_eq!(vacate_once(&slot), Some(2));
        let other = Arc::clone(&slot);
        let publisher = thread::spawn(move || {
            let guard = epoch::pin();
            other.slot().set_announced(2);
            let seen = other.slot().load(&guard);
            let SlotState::Absent(version) = seen.state() else { return false };
            other.slot().kill(seen, version, &guard)
        });
        let created = store_once(&slot, NEVER).is_some();
        let retired = publisher.join().unwrap();
        assert!(created != retired, "one of the two wins: created {created}, retired {retired}");
        assert_eq!(slot.slot().is_dead(), retired);
    });
}

/// The audience has ended: a writer stores quietly, and the publisher lets the last change that was received count as
/// announced.
#[test]
fn behind_a_quiet_change_no_version_counts_as_announced() {
    loom::model(|| {
        let slot = slot_with(NEVER);
        let other = Arc::clone(&slot);
        let publisher = thread::spawn(move || other.slot().catch_up(&epoch::pin()));
        let guard = epoch::pin();
        let seen = slot.slot().load(&guard);
        let mut entry = EntryBox::new(b"w");
        entry.stamp(2, NEVER);
        entry.make_quiet();
        assert!(slot.slot().replace(seen, entry, &guard).is_ok());
        publisher.join().unwrap();
        let announced = slot.slot().announced();
        assert!((0..4_u32).all(|version| !announced.is(version.into()) && !announced.is_followed_by(version)));
    });
}

#[test]
fn two_who_end_a_slot_do_it_once() {
    loom::model(|| {
        let slot = slot_with(NEVER);
        let other = Arc::clone(&slot);
        let seal = |slot: &SlotHandle| {
            let guard = epoch::pin();
            let seen = slot.slot().load(&guard);
            !matches!(seen.state(), SlotState::Dead(_)) && slot.slot().kill(seen, seen.version() + 1, &guard)
        };
        let reaper = thread::spawn(move || seal(&other));
        let mine = seal(&slot);
        assert!(mine != reaper.join().unwrap());
        assert_eq!(version_of(&slot), 2);
    });
}

#[test]
fn what_a_reader_has_called_expired_is_not_extended() {
    loom::model(|| {
        let slot = slot_with(10);
        let other = Arc::clone(&slot);
        let reader = thread::spawn(move || {
            // The reader's clock has passed deadline 10. It calls the element absent once that is visible in the slot.
            let guard = epoch::pin();
            let seen = other.slot().load(&guard);
            matches!(seen.state(), SlotState::Live(entry) if entry.deadline() == 10) && other.slot().mark(seen)
        });
        // This writer's clock is older: it takes the element for live, and tries to extend it.
        let extended = store_once(&slot, 100).is_some();
        let called_expired = reader.join().unwrap();
        assert!(!(extended && called_expired), "extended after somebody had called it expired");
        assert!(extended || called_expired, "nobody else is there to make both fail");
    });
}

#[test]
fn a_use_beside_the_hand_and_a_reference_is_not_lost_and_loses_none() {
    loom::model(|| {
        let slot = slot_with(NEVER);
        let count = |slot: &SlotHandle| slot.slot().header().references.load(Ordering::Relaxed) / REFERENCE;
        let before = count(&slot);
        let [user, writer] = [Arc::clone(&slot), Arc::clone(&slot)];
        let user = thread::spawn(move || user.slot().note_use());
        let writer = thread::spawn(move || drop(writer.slot().handle()));
        let went = slot.slot().is_unused();
        user.join().unwrap();
        writer.join().unwrap();
        assert!(!slot.slot().is_unused(), "the element was used: it stays");
        assert_eq!(slot.slot().is_unused(), !went, "it stays one round more if the use came after the hand");
        assert_eq!(count(&slot), before);
    });
}

/// The steps of `expiry::come_up` on the slot alone. Returns the deadline of the record that it files, if any.
fn come_up(slot: &SlotHandle, now: u64) -> Option<u64> {
    let guard = epoch::pin();
    let deadline = || match slot.slot().load(&guard).state() {
        SlotState::Live(entry) => entry.deadline(),
        _ => NEVER,
    };
    loop {
        let armed = slot.slot().armed()?;
        let next = deadline();
        assert!(next > now, "nothing expires in this model");
        if !slot.slot().rearm(armed, next) {
            return None;
        }
        if deadline() >= next {
            return (next != NEVER).then_some(next);
        }
    }
}

fn no_deadline_is_forgotten(before: u64, set: u64) {
    loom::model(move || {
        let slot = slot_with(before);
        assert!(arm(&slot, 5), "a record at 5, whose element now has the deadline `before`");
        assert_eq!(slot.slot().take_due(), 5);
        let other = Arc::clone(&slot);
        let writer = thread::spawn(move || {
            let stored = store_once(&other, set).is_some();
            (stored, arm(&other, set))
        });
        let record = come_up(&slot, 5);
        let (stored, is_sent) = writer.join().unwrap();
        assert!(stored);
        let filed_in_time = record.is_some_and(|record| record <= set);
        assert!(is_sent || filed_in_time, "deadline {set} is neither filed ({record:?}) nor on its way");
    });
}

#[test]
fn a_deadline_set_while_the_record_is_cleared_is_not_forgotten() {
    no_deadline_is_forgotten(NEVER, 7);
}

#[test]
fn a_nearer_deadline_set_while_the_record_is_raised_is_not_forgotten() {
    no_deadline_is_forgotten(100, 7);
}

#[test]
fn a_writer_that_lowers_the_deadline_sends_a_message_whatever_others_do() {
    loom::model(|| {
        let slot = slot_with(NEVER);
        let other = Arc::clone(&slot);
        let writer = thread::spawn(move || arm(&other, 20));
        let mine = arm(&slot, 10);
        writer.join().unwrap();
        assert!(mine, "the earlier deadline may have to wake the expiry thread");
        assert_eq!(slot.slot().take_due(), 10, "which files the earlier one, whichever message comes first");
    });
}

#[test]
fn the_last_of_several_references_frees_the_slot() {
    loom::model(|| {
        let slot = slot_with(NEVER);
        let handle = slot.slot().handle();
        let other = thread::spawn(move || {
            let again = handle.slot().handle();
            drop(handle);
            assert_eq!(again.slot().key(), b"key");
        });
        assert_eq!(slot.slot().key(), b"key");
        drop(slot);
        other.join().unwrap();
    });
}

/// The steps of `Expiry::take_due` on the slot alone. Returns whether it files a record.
fn takes_due(slot: &SlotHandle) -> bool {
    slot.slot().take_due();
    !slot.slot().is_dead()
}

fn no_record_of_a_slot_that_dies_is_left(made_with: u64) {
    loom::model(move || {
        let slot = slot_with(made_with);
        let other = Arc::clone(&slot);
        // A writer that has set deadline 7 is late to arm it. Its due message reaches the expiry thread at once.
        let filed = thread::spawn(move || arm(&other, 7) && takes_due(&other));
        // In the meantime the publisher retires the slot, and the reaper takes it out.
        assert!(vacate_once(&slot).is_some());
        let guard = epoch::pin();
        let seen = slot.slot().load(&guard);
        assert!(slot.slot().kill(seen, 2, &guard));
        let cancelled = slot.slot().is_armed();
        let filed = filed.join().unwrap();
        assert!(!filed || cancelled, "a record of a dead slot is left to its deadline");
    });
}

#[test]
fn a_record_of_a_slot_that_dies_is_not_filed_or_cancelled() {
    no_record_of_a_slot_that_dies_is_left(7);
}

#[test]
fn a_record_of_a_slot_that_is_extended_while_it_dies_is_not_filed_or_cancelled() {
    no_record_of_a_slot_that_dies_is_left(NEVER);
}

#[test]
fn an_extension_is_charged_once_and_is_given_back_if_it_was_charged() {
    loom::model(|| {
        let slot = slot_with(NEVER);
        let others = [Arc::clone(&slot), Arc::clone(&slot)];
        let writers = others.map(|slot| thread::spawn(move || slot.slot().extend(0)));
        let given_back = slot.slot().settle();
        let charged = writers.map(|writer| writer.join().unwrap()).into_iter().filter(|charged| *charged).count();
        assert_eq!(charged, usize::from(given_back));
        assert!(slot.slot().has_deadline_part() && slot.slot().armed() == Some(NEVER));
    });
}

#[test]
fn a_record_that_is_filed_anew_for_a_slot_that_dies_is_cancelled() {
    loom::model(|| {
        let slot = slot_with(7);
        let other = Arc::clone(&slot);
        // The expiry thread found no element, then one with deadline 7. It changes `armed` from never to 7.
        let filed = thread::spawn(move || other.slot().rearm(NEVER, 7) && !other.slot().is_dead());
        let guard = epoch::pin();
        let seen = slot.slot().load(&guard);
        assert!(slot.slot().kill(seen, 2, &guard));
        let cancelled = slot.slot().is_armed();
        assert!(!filed.join().unwrap() || cancelled, "a record of a dead slot is left to its deadline");
    });
}

// ----------------------------------------------------------------------------------------------------- slots that move

/// A bucket of the index with one slot in it. The thread that moves the slot holds the lock until the cell shows the
/// new slot.
struct ModelBucket {
    cell: SlotCell,
    lock: Mutex<()>,
    /// Keeps the first slot, at which other threads may still look.
    _first: SlotHandle,
}

/// The guard under which cells are written here: released references are dropped at once. The bucket keeps the only
/// slot that is ever released.
fn at_once() -> &'static Guard {
    // SAFETY: the deferred closures only drop a reference to the first slot, which the bucket's own handle keeps.
    unsafe { epoch::unprotected() }
}

impl ModelBucket {
    /// With a slot that may move: its element has no deadline and is announced.
    fn new() -> Arc<Self> {
        let mut entry = EntryBox::new(b"v");
        entry.stamp(1, NEVER);
        let first = SlotHandle::new(0, b"key", entry);
        first.slot().set_announced(1);
        let cell = SlotCell::empty();
        cell.put(0, first.slot().handle(), at_once());
        Arc::new(Self { cell, lock: Mutex::new(()), _first: first })
    }

    /// The step of `Index::find`.
    fn find<'g>(&self, guard: &'g Guard) -> SlotRef<'g> {
        self.cell.get(guard).unwrap()
    }

    /// The step of `Index::find_settled`.
    fn find_settled<'g>(&self, guard: &'g Guard) -> SlotRef<'g> {
        let _locked = self.lock.lock().unwrap();
        self.find(guard)
    }

    /// The steps of `Index::renew` for the compactor.
    fn renew(&self) {
        let guard = epoch::pin();
        let _locked = self.lock.lock().unwrap();
        let slot = self.find(&guard);
        if let Some(next) = slot.move_out(slot.load(&guard)) {
            self.cell.exchange(next, at_once());
        }
    }

    /// The steps of `Ops::put`. A writer that does not look again takes a slot that has moved for an absent one.
    fn store(&self, looks_again: bool) {
        let guard = epoch::pin();
        let mut slot = self.find(&guard);
        loop {
            let seen = slot.load(&guard);
            let has_moved = matches!(seen.state(), SlotState::Moved(_));
            if has_moved && looks_again {
                slot = self.find_settled(&guard);
                continue;
            }
            let mut entry = EntryBox::new(b"w");
            entry.stamp(seen.version() + 1, NEVER);
            let is_stored = if has_moved {
                slot.exchange(seen, entry.into_raw())
            } else {
                slot.replace(seen, entry, &guard).is_ok()
            };
            if is_stored {
                return;
            }
        }
    }

    /// The steps of `find_live`. Returns the version that it finds.
    fn read(&self) -> u64 {
        let guard = epoch::pin();
        let mut slot = self.find(&guard);
        loop {
            match slot.load(&guard).state() {
                SlotState::Live(entry) => return entry.version(),
                SlotState::Moved(_) => slot = self.find_settled(&guard),
                _ => panic!("nobody deletes the element"),
            }
        }
    }
}

fn a_writer_a_reader_and_a_mover(looks_again: bool) {
    let mut builder = loom::model::Builder::new();
    // A larger bound takes minutes.
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let bucket = ModelBucket::new();
        let (mover, reader) = (Arc::clone(&bucket), Arc::clone(&bucket));
        let mover = thread::spawn(move || mover.renew());
        let reader = thread::spawn(move || [reader.read(), reader.read()]);
        bucket.store(looks_again);
        mover.join().unwrap();
        let [before, after] = reader.join().unwrap();
        assert!(1 <= before && before <= after && after <= 2, "read {before}, then {after}");
        let guard = epoch::pin();
        let slot = bucket.find(&guard);
        let SlotState::Live(entry) = slot.load(&guard).state() else { panic!("the element is gone") };
        assert_eq!((entry.version(), entry.value()), (2, &b"w"[..]), "the change is where the index says");
    });
}

#[test]
fn an_element_that_moves_is_always_there_and_keeps_each_change() {
    a_writer_a_reader_and_a_mover(true);
}

#[test]
#[should_panic(expected = "the change is where the index says")]
fn the_model_finds_out_a_writer_that_writes_into_a_slot_that_has_moved() {
    a_writer_a_reader_and_a_mover(false);
}

/// Loom's cells report a message that is read during its write, and its `Arc`s a message that is never dropped.
#[test]
fn messages_pass_the_ring_whole_and_in_their_order() {
    loom::model(|| {
        let (ring, mut writer, mut reader) = Ring::new(2);
        let writer = thread::spawn(move || {
            let mut number = 0;
            while number < 4 {
                match writer.push(Arc::new(number)) {
                    Ok(()) => number += 1,
                    Err(_) => thread::yield_now(),
                }
            }
        });
        let mut taken = Vec::new();
        while taken.len() < 3 {
            match reader.pop() {
                Some(number) => taken.push(*number),
                None => thread::yield_now(),
            }
        }
        writer.join().unwrap();
        assert_eq!((taken, ring.len()), (vec![0, 1, 2], 1), "the last one is dropped with the ring");
    });
}
