//! The totals of a table are those of its elements, whatever has changed them.

use crossbeam::epoch;

use super::super::slot::{NEVER, SlotState};
use super::super::{Addition, Batch, Deadline, Edit, ManyProgress, Refusal, Tables};
use super::{BASE, TablesRig};
use crate::feed::Cause;
use crate::seeded_rng::SeededRng;

/// The number of elements, of those with a deadline, and the mean of the deadlines in milliseconds.
pub(super) type DeadlineTotals = (u64, u64, u64);

/// The totals that a table keeps. `None`: there is no table of this name.
pub(super) fn kept(tables: &Tables, name: &[u8]) -> Option<DeadlineTotals> {
    let summaries = tables.metrics().tables;
    let summary = summaries.into_iter().find(|summary| &*summary.name == name)?;
    Some((summary.elements, summary.expiring, summary.mean_deadline.millis()))
}

/// The totals of the elements that a walk meets.
pub(super) fn counted(tables: &Tables, name: &[u8]) -> Option<DeadlineTotals> {
    let guard = epoch::pin();
    let table = tables.0.catalog.find(name, &guard)?;
    let (walk, mut position, mut slots) = (table.index().walk(&guard), Some(0), Vec::new());
    let (mut elements, mut deadlines) = (0, Vec::new());
    while let Some(from) = position {
        position = walk.read(from, &guard, |key| table.hash(key), &mut slots);
        for (_, slot) in &slots {
            if let SlotState::Live(entry) | SlotState::Expired(entry) = table.present_state(*slot, &guard)? {
                elements += 1;
                deadlines.extend(Some(entry.deadline()).filter(|deadline| *deadline != NEVER));
            }
        }
    }
    let expiring = deadlines.len() as u64;
    let sum: u128 = deadlines.into_iter().map(u128::from).sum();
    Some((elements, expiring, u64::try_from(sum / u128::from(expiring.max(1))).unwrap()))
}

/// A verb, with a deadline, of an element.
type Verb = fn(&mut Batch<'_>, &[u8], Deadline) -> Result<(), Refusal>;

/// All verbs that change elements.
const VERBS: [(&str, Verb); 13] = [
    ("UPDATE", |batch, key, deadline| batch.update(b"t", key, b"1", deadline)),
    ("UPDATE_MANY", |batch, key, deadline| {
        batch.update_many(b"t", deadline, [(key, &b"12"[..])].into_iter(), &mut ManyProgress::default())
    }),
    ("COMPARE_AND_SWAP of none", |batch, key, deadline| batch.compare_and_swap(b"t", key, 0, b"3", deadline).map(drop)),
    ("COMPARE_AND_SWAP", |batch, key, deadline| {
        let now = batch.now();
        let version = batch.get_entry(b"t", key, || now).map_or(0, |entry| entry.version);
        batch.compare_and_swap(b"t", key, version, b"4", deadline).map(drop)
    }),
    ("TOUCH", |batch, key, deadline| batch.touch(b"t", key, deadline)),
    ("GET_AND_TOUCH", |batch, key, deadline| batch.get_and_touch(b"t", key, deadline).map(drop)),
    ("INCREMENT", |batch, key, deadline| {
        batch.increment(b"t", key, Addition { delta: 1, deadline, value_max: 20 }).map(drop)
    }),
    ("edit", |batch, key, deadline| {
        batch.edit(b"t", key, |_| (Edit::Store { value: b"5", deadline, cause: Cause::Set }, ())).map(drop)
    }),
    ("edit to none", |batch, key, _| batch.edit(b"t", key, |_| (Edit::<&[u8]>::Delete, ())).map(drop)),
    ("DELETE", |batch, key, _| batch.delete(b"t", key).map(drop)),
    ("DELETE_MANY", |batch, key, _| batch.delete_many(b"t", [key].into_iter(), &mut ManyProgress::default()).map(drop)),
    ("RESTORE", |batch, key, deadline| batch.restore(b"t", key, b"6", BASE - 1, deadline).map(drop)),
    ("RESTORE of a later version", |batch, key, deadline| {
        batch.restore(b"t", key, b"6", BASE + 500, deadline).map(drop)
    }),
];

#[test]
fn the_deadlines_of_a_table_are_counted_by_all_that_changes_an_element() {
    for seed in 0..6 {
        let (rig, mut random) = (TablesRig::new(), SeededRng(seed));
        let (mut now, mut made) = (1_000, [0; VERBS.len()]);
        for _ in 0..1_500 {
            let number = usize::try_from(random.below(VERBS.len() as u64)).unwrap();
            let (name, verb) = VERBS[number];
            let key = [b'a' + u8::try_from(random.below(6)).unwrap()];
            let in_millis = random.pick(&[1, 20, 1_000, 1 << 22, 1 << 34, 1 << 43]);
            let deadline = random.pick(&[Deadline::KEEP, Deadline::NONE, Deadline::at(now + in_millis)]);
            made[number] += u32::from(verb(&mut rig.0.session.borrow_mut().batch(rig.now()), &key, deadline).is_ok());
            assert_eq!(kept(&rig.0.tables, b"t"), counted(&rig.0.tables, b"t"), "{name}");
            now += random.below(10);
            rig.at(now);
            if random.one_in(10) {
                rig.settle();
                assert_eq!(kept(&rig.0.tables, b"t"), counted(&rig.0.tables, b"t"), "expiry");
            }
            if random.one_in(200) {
                rig.drop_table("t").unwrap();
                assert_eq!(kept(&rig.0.tables, b"t"), None);
                rig.create("t").unwrap();
                assert_eq!(kept(&rig.0.tables, b"t"), Some((0, 0, 0)), "of its own life alone");
            }
        }
        assert!(made.iter().all(|made| *made > 0), "{made:?}");
    }
}

/// A sum of their milliseconds would not have fit.
#[test]
fn the_mean_of_many_of_the_latest_deadlines_is_exact() {
    let (rig, latest, many) = (TablesRig::new(), (1 << 43) - 2, 1_100_000);
    let guard = epoch::pin();
    let table = rig.0.tables.0.catalog.find(b"t", &guard).unwrap();
    (0..many).for_each(|_| table.count_element(None, Some(latest)));
    table.count_element(None, Some(latest - many - 1));
    assert_eq!(kept(&rig.0.tables, b"t"), Some((many + 1, many + 1, latest - 1)));
    (0..many).for_each(|_| table.count_element(Some(latest), Some(NEVER)));
    assert_eq!(kept(&rig.0.tables, b"t"), Some((many + 1, 1, latest - many - 1)));
}
