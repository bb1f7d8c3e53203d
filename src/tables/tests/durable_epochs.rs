//! Durable tables with writers in several threads: which epoch a change is of. The order of the threads is forced.
//!
//! ```text
//! a writer inside the epoch, or a transaction ─► another thread closes the epoch ─► the writer continues ─► the epoch is written
//! ```
//! The power fails afterwards. What the next opening finds shows the epochs of the changes.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::super::failpoint::{Failpoint, hooks};
use super::durable::{Contents, Life, folder_of, key_of};
use super::*;
use crate::clock::ClockReading;
use crate::store::EffectFolder;
use crate::store::tests::simulated_disk::SimulatedFolder;
use crate::tables::durable::limits::{
    EFFECTS_BYTES_LARGE, EFFECTS_BYTES_MAX, EPOCH_BYTES_MAX, TRANSACTION_EFFECTS_MAX,
};
use crate::tables::{Addition, AudienceKind, Batch, EpochLog, Lack, TransactionNeeds};

const START: u64 = 1_000_000;
const NOW: Now = Now::from_millis(5);

type Step = fn(&mut Batch<'_>) -> Result<(), Refusal>;

/// The steps of a transaction in two tables.
const STEPS: [Step; 7] = [
    |batch| batch.update(b"soon", &key_of(0), b"new", Deadline::NONE),
    |batch| batch.delete(b"always", &key_of(1)).map(drop),
    |batch| batch.touch(b"soon", &key_of(2), Deadline::after(batch.now(), Some(Ttl::from_secs(100)))),
    |batch| {
        let addition = Addition { delta: 1, deadline: Deadline::NONE, value_max: 100 };
        batch.increment(b"always", &key_of(3), addition).map(drop)
    },
    |batch| batch.replace_table(b"soon"),
    |batch| batch.update(b"soon", &key_of(4), b"behind", Deadline::NONE),
    |batch| batch.compare_and_swap(b"always", &key_of(1), 0, b"again", Deadline::NONE).map(drop),
];

/// A life with three durable tables, two of which have elements. All is on disk.
fn begin(folder: &EffectFolder) -> Life {
    let mut life = Life::begin(folder, START);
    let mut batch = life.session.batch(NOW);
    for (name, durability) in
        [(&b"soon"[..], Durability::Soon), (b"always", Durability::Always), (b"free", Durability::Soon)]
    {
        batch.create_table_with(name, name, None, Some(durability)).unwrap();
    }
    for table in [&b"soon"[..], b"always"] {
        (0..4).for_each(|key| batch.update(table, &key_of(key), b"1", Deadline::NONE).unwrap());
    }
    drop(batch);
    life.write(0);
    life
}

/// The power fails. What the next start finds.
fn after_a_power_failure(life: Life, folder: &EffectFolder) -> Contents {
    drop(life);
    Life::begin(folder, START + 10).contents(0)
}

/// Has another thread close the open epoch, write it and sync it. Returns when it is closed.
fn close(mut log: EpochLog, session: &Session) -> JoinHandle<EpochLog> {
    let epochs = Arc::clone(&session.shared().epochs);
    let open = epochs.open_epoch();
    let closing = thread::spawn(move || {
        log.write(ClockReading::from_millis(START + 5)).unwrap();
        log
    });
    while epochs.open_epoch() == open {
        thread::yield_now();
    }
    closing
}

fn transaction_needs(batch: &mut Batch<'_>) -> TransactionNeeds {
    let mut needs = TransactionNeeds::default();
    for table in [&b"soon"[..], b"always"] {
        for key in 0..5 {
            batch.add_change(&mut needs, table, &key_of(key), Some(100)).unwrap();
        }
    }
    batch.add_replacement(&mut needs, b"soon");
    needs
}

#[test]
fn an_opening_finds_a_transaction_whole_or_absent() {
    for closed_before in 0..=STEPS.len() {
        let path = tempfile::tempdir().unwrap();
        let folder = folder_of(path.path());
        let mut life = begin(&folder);
        let (before, mut other) = (life.contents(5), life.another());
        let Life { mut background, mut session, log, start, begun } = life;
        let (mut log, mut closing) = (Some(log), None);
        session.batch(NOW).latch(&[b"soon", b"always"]).unwrap();
        let mut batch = session.batch(NOW);
        let needs = transaction_needs(&mut batch);
        batch.begin_transaction(needs).unwrap();
        for (number, step) in STEPS.into_iter().enumerate() {
            if number == closed_before {
                closing = log.take().map(|log| close(log, &other));
                other.batch(NOW).update(b"free", &key_of(0), b"of the next epoch", Deadline::NONE).unwrap();
            }
            step(&mut batch).unwrap();
        }
        assert!(closing.as_ref().is_none_or(|closing| !closing.is_finished()), "the log waits for the transaction");
        batch.end_transaction();
        drop(batch);
        session.end_latch();
        let log = log.unwrap_or_else(|| closing.unwrap().join().unwrap());
        background.changes.drain(usize::MAX, &mut |_, _, _| {});
        let mut life = Life { background, session, log, start, begun };
        let mut whole = life.contents(5);
        whole.retain(|(table, _), _| table != b"free");
        let expected = if closed_before < STEPS.len() { whole } else { before };
        drop(other);
        assert_eq!(after_a_power_failure(life, &folder), expected, "closed before step {closed_before}");
    }
}

#[test]
fn a_transaction_waits_for_room_before_it_changes_anything() {
    let path = tempfile::tempdir().unwrap();
    let folder = folder_of(path.path());
    let mut life = begin(&folder);
    let value = vec![1; EFFECTS_BYTES_LARGE];
    life.session.batch(NOW).update(b"soon", b"large", &value, Deadline::NONE).unwrap();
    let mut other = life.another();
    let attempt = |session: &mut Session, bytes: usize, changes: usize| {
        session.batch(NOW).latch(&[b"soon"])?;
        let mut batch = session.batch(NOW);
        let mut needs = TransactionNeeds::default();
        (0..changes).try_for_each(|_| batch.add_change(&mut needs, b"soon", b"k", Some(bytes)))?;
        batch.begin_transaction(needs).inspect_err(|refusal| {
            assert!(!batch.is_in_transaction());
            assert!(*refusal != Refusal::Busy || batch.lack() == Lack::Log);
        })
    };
    assert_eq!(attempt(&mut life.session, EFFECTS_BYTES_MAX, 1), Err(Refusal::Busy));
    assert_eq!(other.batch(NOW).get(b"soon", &key_of(0)), Ok(&b"1"[..]), "the latch is released");
    assert!(!life.session.watch(), "nothing is written yet");
    life.write(5);
    assert!(life.session.watch());
    // Small records of other requests do not keep it out.
    life.session.batch(NOW).update(b"soon", b"small", b"1", Deadline::NONE).unwrap();
    assert_eq!(attempt(&mut life.session, EFFECTS_BYTES_MAX, 1), Ok(()));
    life.session.batch(NOW).end_transaction();
    life.session.end_latch();
    life.write(5);
    // One that never finds room is refused: for its bytes, or because it would wait for credits inside the epoch.
    let too_many = settings().changes_per_writer / 3 + 1;
    for (bytes, changes) in [(TRANSACTION_EFFECTS_MAX, 1), (1, too_many)] {
        assert_eq!(attempt(&mut life.session, bytes, changes), Err(Refusal::OutOfMemory));
        assert_ne!(other.batch(NOW).get(b"soon", &key_of(0)), Err(Refusal::Busy), "the latch is released");
    }
    life.write(5);
}

/// Many sessions with large transactions made one epoch of more bytes than a batch can have, and the log failed.
#[test]
fn an_epoch_of_all_sessions_is_bounded() {
    let folder = EffectFolder::simulated(&SimulatedFolder::new(1), 64 << 10);
    let mut life = begin(&folder);
    let bytes = TRANSACTION_EFFECTS_MAX - (1 << 10);
    let attempt = |session: &mut Session| {
        let mut batch = session.batch(NOW);
        let mut needs = TransactionNeeds::default();
        batch.add_change(&mut needs, b"soon", b"k", Some(bytes))?;
        batch.begin_transaction(needs).inspect_err(|_| assert_eq!(batch.lack(), Lack::Log))
    };
    let mut sessions: Vec<Session> = Vec::new();
    loop {
        let mut session = life.another();
        let begun = attempt(&mut session);
        sessions.push(session);
        if begun.is_err() {
            assert_eq!(begun, Err(Refusal::Busy));
            break;
        }
        assert!(sessions.len() as u64 * bytes as u64 <= EPOCH_BYTES_MAX);
    }
    assert!(sessions.len() > 4, "{} sessions", sessions.len());
    sessions.iter_mut().for_each(|session| session.batch(NOW).end_transaction());
    life.write(5);
    let last = sessions.last_mut().unwrap();
    assert_eq!(attempt(last), Ok(()), "the next epoch has room");
    last.batch(NOW).end_transaction();
}

/// A removal makes room for a value of the same transaction. If the element was read from the disk, the value begins a new
/// slot, and the transaction waited for the publisher inside its epoch.
#[test]
fn a_transaction_replaces_an_element_of_the_last_life_and_waits_for_nobody() {
    let path = tempfile::tempdir().unwrap();
    let folder = folder_of(path.path());
    drop(begin(&folder));
    let mut life = Life::begin(&folder, START + 10);
    let audience = life.session.hold_audience(b"soon", AudienceKind::Changes, Box::new(|| {}));
    life.publish();
    let before = life.contents(5)[&(b"soon".to_vec(), key_of(0))].version;
    for (removed_before, expected) in [(false, Ok(())), (true, Err(Refusal::Busy))] {
        life.session.batch(NOW).latch(&[b"soon"]).unwrap();
        let mut batch = life.session.batch(NOW);
        let key = key_of(u64::from(removed_before));
        if removed_before {
            batch.delete(b"soon", &key).unwrap();
        }
        let mut needs = TransactionNeeds::default();
        let added = batch.add_change(&mut needs, b"soon", &key, Some(10));
        assert_eq!(added, expected, "a change that is on its way is waited for before the transaction begins");
        if added.is_ok() {
            batch.begin_transaction(needs).unwrap();
            batch.delete(b"soon", &key).unwrap();
            batch.update(b"soon", &key, b"2", Deadline::NONE).unwrap();
            batch.end_transaction();
        }
        drop(batch);
        life.session.end_latch();
    }
    life.publish();
    life.write(5);
    drop(audience);
    let expected = life.contents(5);
    let element = &expected[&(b"soon".to_vec(), key_of(0))];
    assert!(element.version > before + 1 && element.value == b"2");
    assert_eq!(after_a_power_failure(life, &folder), expected);
}

#[test]
fn a_thread_that_panics_in_a_transaction_leaves_its_epoch() {
    let path = tempfile::tempdir().unwrap();
    let folder = folder_of(path.path());
    let mut life = begin(&folder);
    let mut session = life.another();
    let panicked = thread::spawn(move || {
        session.batch(NOW).latch(&[b"soon"]).unwrap();
        let mut batch = session.batch(NOW);
        let mut needs = TransactionNeeds::default();
        batch.add_change(&mut needs, b"soon", &key_of(0), Some(1)).unwrap();
        batch.begin_transaction(needs).unwrap();
        panic!("the thread ends here");
    });
    assert!(panicked.join().is_err());
    life.write(5);
    let expected = life.contents(5);
    assert_eq!(after_a_power_failure(life, &folder), expected);
}

/// Has the epoch closed when the session is about to CAS the word of a key. The thread of the log is left in `closing`.
fn close_before_cas(life: Life, then: impl FnOnce(&mut Session) + 'static) -> Life {
    let closing = Rc::new(RefCell::new(None));
    let mut other = life.another();
    let Life { background, mut session, log, start, begun } = life;
    let place = Rc::clone(&closing);
    hooks::at(Failpoint::BeforeCas, move || {
        *place.borrow_mut() = Some(close(log, &other));
        then(&mut other);
    });
    session.batch(NOW).update(b"soon", &key_of(0), b"2", Deadline::NONE).unwrap();
    let log = closing.take().unwrap().join().unwrap();
    Life { background, session, log, start, begun }
}

#[test]
fn an_epoch_is_written_with_the_changes_of_the_writers_inside() {
    let path = tempfile::tempdir().unwrap();
    let folder = folder_of(path.path());
    let life = begin(&folder);
    let mut life = close_before_cas(life, |_| {});
    let expected = life.contents(5);
    assert_eq!(expected[&(b"soon".to_vec(), key_of(0))].value, b"2");
    assert_eq!(after_a_power_failure(life, &folder), expected);
}

#[test]
fn a_writer_that_is_overtaken_enters_the_epoch_that_is_open_then() {
    let path = tempfile::tempdir().unwrap();
    let folder = folder_of(path.path());
    let mut life = begin(&folder);
    let before = life.contents(5);
    let life = close_before_cas(life, |other| {
        other.batch(NOW).update(b"soon", &key_of(0), b"of the next epoch", Deadline::NONE).unwrap();
    });
    assert_eq!(after_a_power_failure(life, &folder), before, "neither of the two changes is of the closed epoch");
}
