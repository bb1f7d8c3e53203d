//! Elements that are evicted when the memory is full: which, how many, and how that is announced.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::collections::HashMap;

use super::super::failpoint::{Failpoint, hooks};
use super::super::{Deadline, EvictionPolicy, Refusal, Session, TablesConfig, TransactionNeeds};
use super::{TablesRig, in_seconds, set, settings};

const LIMIT: i64 = 4 << 20;
const VALUE: &[u8] = &[7; 200];

/// A rig with an empty table "t" that may lose elements.
fn full_rig() -> TablesRig {
    let rig = TablesRig::with(TablesConfig { memory_max: LIMIT.cast_unsigned(), ..settings() });
    rig.0.tables.set_eviction(EvictionPolicy::Lru);
    rig
}

impl TablesRig {
    /// Stores a value. What it waits for is done: changes are announced, elements are evicted, the compactor looks.
    fn store(&self, table: &str, key: &str, value: &[u8]) -> Result<(), Refusal> {
        for _ in 0..100 {
            let mut session = self.0.session.borrow_mut();
            let stored = session.batch(self.now()).update(table.as_bytes(), key.as_bytes(), value, Deadline::NONE);
            drop(session);
            if stored != Err(Refusal::Busy) {
                return stored;
            }
            self.settle();
            self.look_once(0);
        }
        panic!("the write waits for ever")
    }

    fn create_with(&self, table: &str, policy: EvictionPolicy) {
        let mut session = self.0.session.borrow_mut();
        session.batch(self.now()).create_table_with(table.as_bytes(), table.as_bytes(), Some(policy), None).unwrap();
    }

    fn store_many(&self, table: &str, keys: std::ops::Range<u32>) {
        keys.for_each(|key| self.store(table, &key.to_string(), VALUE).unwrap());
    }

    fn elements(&self, table: &str) -> u64 {
        let tables = self.tables_metrics().tables;
        tables.iter().find(|other| *other.name == *table.as_bytes()).unwrap().elements
    }

    fn evicted(&self) -> u64 {
        self.tables_metrics().evicted
    }
}

#[test]
fn writes_at_the_limit_succeed_and_a_reserve_stays_free() {
    let rig = full_rig();
    rig.store_many("t", 0..100_000);
    rig.settle();
    let (used, reserve) = (rig.budget().used(), rig.budget().reserve());
    assert!((LIMIT - 3 * reserve..LIMIT - reserve / 2).contains(&used), "{used} of {LIMIT}");
    let (elements, evicted) = (rig.elements("t"), rig.evicted());
    assert_eq!(elements + evicted, 100_000);
    assert!(elements > 10_000, "{elements}");
    assert!(rig.get("99999").is_some(), "the last element has just come");
}

#[test]
fn an_element_in_use_stays_while_others_go() {
    let rig = full_rig();
    rig.store_many("t", 0..100);
    for round in 1..40 {
        rig.store_many("t", round * 1_000..round * 1_000 + 1_000);
        for key in 0..100 {
            assert!(rig.get(&key.to_string()).is_some(), "{key} in round {round}");
        }
    }
    assert!(rig.evicted() > 20_000, "{}", rig.evicted());
    rig.store_many("t", 100_000..200_000);
    let left = (0..100).filter(|key: &u32| rig.get(&key.to_string()).is_some()).count();
    assert_eq!(left, 0, "they are not used any more");
}

#[test]
fn a_new_value_is_a_use() {
    let rig = full_rig();
    for round in 0..40 {
        rig.store_many("t", 0..100);
        rig.store_many("t", round * 1_000 + 1_000..round * 1_000 + 2_000);
    }
    assert!(rig.evicted() > 20_000, "{}", rig.evicted());
    assert!((0..100).all(|key| rig.get(&key.to_string()).is_some()));
}

#[test]
fn without_a_table_that_may_lose_elements_writes_are_refused_as_ever() {
    let rig = full_rig();
    rig.0.tables.set_eviction(EvictionPolicy::None);
    let stored = (0..100_000).take_while(|key: &u32| rig.store("t", &key.to_string(), VALUE).is_ok()).count();
    assert_eq!(rig.store("t", "more", VALUE), Err(Refusal::OutOfMemory));
    assert_eq!((rig.elements("t"), rig.evicted()), (stored as u64, 0));
    // The policy holds at once.
    rig.0.tables.set_eviction(EvictionPolicy::Lru);
    rig.store("t", "more", VALUE).unwrap();
    assert!(rig.evicted() > 0);
}

#[test]
fn a_table_that_says_how_it_evicts_does_not_follow_the_policy() {
    let rig = full_rig();
    rig.create_with("never", EvictionPolicy::None);
    rig.create_with("always", EvictionPolicy::Lru);
    rig.0.tables.set_eviction(EvictionPolicy::None);
    rig.store_many("t", 0..1_000);
    rig.store_many("never", 0..1_000);
    rig.store_many("always", 0..50_000);
    assert_eq!((rig.elements("t"), rig.elements("never")), (1_000, 1_000));
    assert!(rig.elements("always") < 20_000 && rig.evicted() > 20_000);
    // Another life of a table keeps what it says.
    rig.0.session.borrow_mut().batch(rig.now()).replace_table(b"always").unwrap();
    rig.settle();
    let before = rig.evicted();
    rig.store_many("always", 0..50_000);
    assert!(rig.evicted() > before + 20_000);
}

#[test]
fn a_table_that_is_deleted_leaves_none_to_evict_from() {
    let rig = full_rig();
    rig.0.tables.set_eviction(EvictionPolicy::None);
    rig.create_with("u", EvictionPolicy::Lru);
    rig.drop_table("u").unwrap();
    rig.settle();
    assert!(!rig.0.tables.0.catalog.eviction.has_tables());
    rig.create_with("u", EvictionPolicy::Lru);
    assert!(rig.0.tables.0.catalog.eviction.has_tables());
    rig.0.session.borrow_mut().batch(rig.now()).replace_table(b"u").unwrap();
    assert!(rig.0.tables.0.catalog.eviction.has_tables());
}

#[test]
fn tables_give_way_in_proportion_to_their_bytes_whichever_is_written() {
    let rig = full_rig();
    rig.create("u").unwrap();
    rig.create_with("n", EvictionPolicy::None);
    rig.store_many("t", 0..2_500);
    rig.store_many("u", 0..7_500);
    rig.store_many("n", 0..1_500);
    assert_eq!(rig.evicted(), 0);
    rig.store_many("n", 1_500..7_000);
    let [t, u, n] = ["t", "u", "n"].map(|table| rig.elements(table));
    assert_eq!(n, 7_000);
    let lost = [2_500 - t, 7_500 - u];
    assert!(lost[0] > 300 && (lost[1] as f64 / lost[0] as f64 - 3.0).abs() < 0.3, "{lost:?}");
}

#[test]
fn small_tables_beside_a_large_one_lose_their_share_and_no_more() {
    let rig = TablesRig::with(TablesConfig { memory_max: LIMIT.cast_unsigned(), tables_max: 100, ..settings() });
    rig.0.tables.set_eviction(EvictionPolicy::Lru);
    let small: Vec<String> = (0..50).map(|number| format!("s{number}")).collect();
    for table in &small {
        rig.create(table).unwrap();
        rig.store_many(table, 0..20);
    }
    rig.store_many("t", 0..9_000);
    assert_eq!(rig.evicted(), 0);
    rig.store_many("t", 9_000..16_000);
    let left: u64 = small.iter().map(|table| rig.elements(table)).sum();
    assert!((700..950).contains(&left), "{left} of 1000: about as many as of the large table");
}

#[test]
fn an_eviction_is_announced_once_in_the_order_of_the_key() {
    let rig = full_rig();
    for key in 0..40_000 {
        rig.store("t", &(key % 25_000).to_string(), VALUE).unwrap();
        rig.publish();
    }
    rig.settle();
    let mut last: HashMap<String, char> = HashMap::new();
    let (mut deleted, mut updated) = (0, 0);
    for notified in rig.notified() {
        let (key, sign) = notified.split_at(notified.len() - 1);
        let sign = sign.chars().next().unwrap();
        let before = last.insert(key.to_owned(), sign);
        assert!(sign == '+' || before == Some('+'), "{key} is deleted twice, or before it came");
        (deleted, updated) = (deleted + u64::from(sign == '-'), updated + u64::from(sign == '+'));
    }
    assert_eq!((updated, deleted), (40_000, rig.evicted()));
    for (key, sign) in &last {
        assert_eq!(rig.get(key).is_some(), *sign == '+', "{key}");
    }
}

#[test]
fn a_large_value_has_as_much_evicted_as_it_needs_and_one_that_cannot_fit_nothing() {
    let rig = full_rig();
    rig.store_many("t", 0..20_000);
    let before = rig.evicted();
    assert_eq!(rig.store("t", "huge", &vec![7; 5 << 20]), Err(Refusal::OutOfMemory));
    assert_eq!(rig.evicted(), before);
    rig.store("t", "large", &vec![7; 2 << 20]).unwrap();
    assert!(rig.budget().used() <= LIMIT && rig.elements("t") > 3_000, "{}", rig.elements("t"));
    rig.create_with("n", EvictionPolicy::None);
    rig.store("n", "large", &vec![7; 2 << 20]).unwrap();
    assert_eq!(rig.store("n", "another", &vec![7; 2 << 20]), Err(Refusal::OutOfMemory), "no eviction makes such room");
}

#[test]
fn a_transaction_and_a_table_have_room_made_for_them() {
    let rig = full_rig();
    rig.store_many("t", 0..20_000);
    rig.create("u").unwrap();
    let mut holder = rig.another();
    let begun = (0..100).find_map(|_| {
        holder.batch(rig.now()).latch(&[b"t"]).unwrap();
        let mut needs = TransactionNeeds::of_changes(1);
        needs.add(super::super::ElementGrowth { key: 1, value: None, longest: 1 << 20, has_deadline: false });
        let begun = holder.batch(rig.now()).begin_transaction(needs);
        if begun == Err(Refusal::Busy) {
            rig.settle();
            rig.look_once(0);
            return None;
        }
        Some(begun)
    });
    assert_eq!(begun, Some(Ok(())));
    holder.batch(rig.now()).end_transaction();
    holder.end_latch();
}

#[test]
fn an_element_whose_deadline_has_passed_expires_when_the_hand_comes_by() {
    let rig = full_rig();
    rig.store_many("t", 0..8_000);
    let mut toucher = rig.another();
    for key in 0..8_000 {
        let deadline = in_seconds(rig.now(), 1);
        while toucher.batch(rig.now()).touch(b"t", key.to_string().as_bytes(), deadline) == Err(Refusal::Busy) {
            rig.settle();
            rig.look_once(0);
        }
    }
    rig.at(2_000);
    rig.create_with("u", EvictionPolicy::None);
    let mut writer = rig.another();
    let mut store = |key: u32| writer.batch(rig.now()).update(b"u", &key.to_be_bytes(), VALUE, Deadline::NONE);
    let mut is_refused = |key| store(key) == Err(Refusal::Busy);
    let is_full = (0..20_000).any(|key| {
        is_refused(key) && {
            rig.publish();
            is_refused(key)
        }
    });
    assert!(is_full, "it has credits, and waits for memory");
    for _ in 0..100 {
        rig.reap();
        rig.publish();
    }
    let metrics = rig.tables_metrics();
    assert!(metrics.expired > 100, "{}", metrics.expired);
    assert_eq!(metrics.evicted, 0);
}

#[test]
fn a_latched_table_is_left_alone_until_the_latch_is_gone() {
    let rig = full_rig();
    rig.store_many("t", 0..12_000);
    rig.create("u").unwrap();
    let mut holder = rig.another();
    holder.batch(rig.now()).latch(&[b"t"]).unwrap();
    let (before, evicted) = (rig.elements("t"), rig.evicted());
    rig.store_many("u", 0..5_000);
    assert_eq!(rig.elements("t"), before);
    assert!(rig.evicted() > evicted, "the other table gives way");
    holder.end_latch();
    rig.store_many("u", 5_000..8_000);
    assert!(rig.elements("t") < before);
}

/// Fills the table, then runs `race` when the hand of the eviction is about to commit.
fn race_with_eviction(race: impl FnOnce(&TablesRig, &mut Session) + 'static) -> TablesRig {
    let rig = full_rig();
    rig.store_many("t", 0..20_000);
    rig.settle();
    let (inner, mut other) = (rig.clone(), rig.another());
    hooks::at(Failpoint::BeforeEvict, move || race(&inner, &mut other));
    rig.store_many("t", 20_000..25_000);
    assert!(!hooks::is_waiting());
    rig.settle();
    let updated = rig.0.notified.borrow().len() as u64;
    assert!(updated > 0);
    rig
}

#[test]
fn an_element_that_is_stored_deleted_or_expires_before_its_eviction_has_one_end() {
    race_with_eviction(|rig, other| {
        for key in 0..20_000 {
            let stored = set(other, rig.now(), &key.to_string(), "new", None);
            assert!(stored.is_ok() || stored == Err(Refusal::Busy));
            rig.publish();
        }
    });
    race_with_eviction(|rig, other| {
        for key in 0..20_000 {
            other.batch(rig.now()).delete(b"t", key.to_string().as_bytes()).ok();
            rig.publish();
        }
    });
    let rig = race_with_eviction(|rig, other| {
        for key in 0..20_000 {
            let deadline = in_seconds(rig.now(), 1);
            other.batch(rig.now()).touch(b"t", key.to_string().as_bytes(), deadline).ok();
            rig.publish();
        }
        rig.at(2_000).expire();
    });
    let mut there: HashMap<String, bool> = HashMap::new();
    for notified in rig.notified() {
        let (key, sign) = notified.split_at(notified.len() - 1);
        let before = there.insert(key.to_owned(), sign == "+");
        assert!(sign == "+" || before == Some(true), "{key} ends twice");
    }
    assert!(there.iter().all(|(key, is_there)| rig.get(key).is_some() == *is_there));
}
