//! The guarantee of SCAN: an element that is there from the first page to the last is shown, whatever happens between
//! the pages and within them.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::failpoint::{Failpoint, hooks};
use super::super::{Deadline, Refusal, ScanContent, ScanPage, ScanProgress, Session, TablesConfig};
use super::{TablesRig, set, settings};
use crate::clock::Now;

const PAGE: ScanPage<'_> =
    ScanPage { cursor: b"", count: 100, bytes_max: 1 << 20, prefix: b"", content: ScanContent::WithoutValues };

/// A row with its key and value as text.
type Row = (String, String);

/// The rows of a page, and the cursor of the next one.
fn page(session: &mut Session, now: Now, page: &ScanPage<'_>) -> Result<(Vec<Row>, Vec<u8>), Refusal> {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let mut rows = Vec::new();
    let next = session.batch(now).scan(b"t", page, |row| rows.push((text(row.key), text(row.value))))?;
    Ok((rows, next.map_or_else(Vec::new, |cursor| cursor.as_bytes().to_vec())))
}

/// The keys of all pages, and the number of pages.
fn all(rig: &TablesRig, of: &ScanPage<'_>) -> (Vec<String>, usize) {
    let (mut keys, mut pages, mut cursor) = (Vec::new(), 0, Vec::new());
    loop {
        let of = ScanPage { cursor: &cursor, ..*of };
        let (rows, next) = page(&mut rig.0.session.borrow_mut(), rig.now(), &of).unwrap();
        keys.extend(rows.into_iter().map(|(key, _)| key));
        pages += 1;
        if next.is_empty() {
            return (keys, pages);
        }
        assert!(pages < 100_000 && next != cursor, "each page gets further");
        cursor = next;
    }
}

fn filled(keys: usize) -> TablesRig {
    let rig = TablesRig::with(TablesConfig { changes_per_writer: 1 << 14, ..settings() });
    for key in 0..keys {
        rig.set(&key.to_string(), &format!("value {key}"), None).unwrap();
        if key % 10_000 == 0 {
            rig.publish();
        }
    }
    rig.publish();
    rig.notified();
    rig
}

#[test]
fn every_element_is_shown_once_while_nothing_changes() {
    // Nothing, a part of one bucket, some buckets, and buckets beyond the directory.
    for keys in [0, 1, 16, 300, 9_000] {
        let rig = filled(keys);
        let expected: BTreeSet<String> = (0..keys).map(|key| key.to_string()).collect();
        for count in [1, 2, 15, 1_000, 10_000] {
            let (shown, pages) = all(&rig, &ScanPage { count, ..PAGE });
            assert_eq!((shown.len(), shown.into_iter().collect()), (keys, expected.clone()), "{count} at once");
            assert!(pages >= keys.div_ceil(count).max(1), "a page looks at {count} at most: {pages} pages");
        }
    }
}

#[test]
fn a_prefix_shows_a_part_and_a_page_may_be_empty_before_the_end() {
    let rig = filled(1_000);
    let (mut shown, pages) = all(&rig, &ScanPage { prefix: b"99", count: 10, ..PAGE });
    shown.sort();
    let expected = ["99", "990", "991", "992", "993", "994", "995", "996", "997", "998", "999"];
    assert_eq!((shown, pages >= 100), (expected.map(str::to_owned).to_vec(), true), "{pages} pages");
}

#[test]
fn a_page_ends_at_its_bytes_also_within_a_bucket_and_has_a_row() {
    let rig = TablesRig::new();
    for key in 0..10 {
        rig.set(&key.to_string(), &"v".repeat(1_000), None).unwrap();
    }
    let with_values = ScanPage { content: ScanContent::WithValues, ..PAGE };
    for (bytes_max, pages) in [(1, 10), (1_032, 10), (2_066, 5), (5_200, 2), (10_330, 1)] {
        let (shown, came) = all(&rig, &ScanPage { bytes_max, ..with_values });
        assert_eq!((shown.len(), came.abs_diff(pages) <= 1), (10, true), "{came} pages of {bytes_max} bytes");
    }
    let (shown, pages) = all(&rig, &ScanPage { bytes_max: 2_000, ..PAGE });
    assert_eq!((shown.len(), pages), (10, 1), "values that are not shown take no room");
    // The last row that fits is the last of its page.
    let (first, _) = page(&mut rig.another(), rig.now(), &ScanPage { bytes_max: 2_066, ..with_values }).unwrap();
    assert_eq!(first.len(), 2);
}

#[test]
fn empty_buckets_are_bounded_too() {
    let rig = filled(30_000);
    for key in 0..30_000 {
        rig.delete(&key.to_string()).unwrap();
        if key % 1_000 == 0 {
            rig.settle();
        }
    }
    for _ in 0..40 {
        rig.settle();
    }
    let (shown, pages) = all(&rig, &ScanPage { count: 1, ..PAGE });
    assert!(shown.is_empty() && (2..10).contains(&pages), "{pages} pages");
}

#[test]
fn an_expiry_is_made_visible_before_it_is_left_out() {
    let rig = TablesRig::new();
    rig.set("a", "1", Some(1)).unwrap();
    rig.set("b", "1", None).unwrap();
    assert_eq!(all(rig.at(1_000), &PAGE).0.len(), 2, "never early");
    assert_eq!(all(rig.at(1_001), &PAGE).0, ["b"]);
    assert_eq!(rig.at(1_000).get("a"), None, "an older reading of the clock does not bring it back");
    // A writer with an earlier clock comes between the look and the mark.
    rig.set("c", "1", Some(1)).unwrap();
    let mut earlier = rig.another();
    let before = rig.now();
    hooks::at(Failpoint::BeforeMark, move || set(&mut earlier, before, "c", "2", Some(100)).unwrap());
    let mut shown = all(rig.at(2_000), &PAGE).0;
    shown.sort();
    assert_eq!((shown, hooks::is_waiting()), (vec!["b".to_owned(), "c".to_owned()], false));
}

#[test]
fn a_split_within_a_page_hides_no_element() {
    for stored in 12..60 {
        for point in [Failpoint::DepthRead, Failpoint::HandedOver] {
            let rig = filled(stored);
            let (inner, mut scanner, mut writer) = (rig.clone(), rig.another(), rig.another());
            let now = rig.now();
            let expected: BTreeSet<String> = (0..stored).map(|key| key.to_string()).collect();
            let check = |shown: Vec<Row>| {
                let shown: BTreeSet<String> = shown.into_iter().map(|(key, _)| key).collect();
                assert!(shown.is_superset(&expected), "{point:?}: {shown:?} of {stored}");
            };
            let grow = move |writer: &mut Session| {
                for key in 0..100 {
                    set(writer, now, &format!("new {key}"), "1", None).unwrap();
                }
            };
            let whole = ScanPage { count: 10_000, ..PAGE };
            if point == Failpoint::DepthRead {
                // The scan has read a depth, and then the bucket is split, perhaps several times.
                hooks::at(point, move || grow(&mut writer));
                check(page(&mut scanner, now, &whole).unwrap().0);
            } else {
                // The split has cleared one of the old cells.
                let found = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
                let rows = std::rc::Rc::clone(&found);
                hooks::at(point, move || rows.replace(page(&mut scanner, now, &whole).unwrap().0).clear());
                grow(&mut writer);
                check(found.take());
            }
            assert!(!hooks::is_waiting());
            inner.publish();
        }
    }
}

#[test]
fn a_page_that_meets_the_deletion_of_its_table_is_none() {
    let rig = filled(500);
    let (inner, mut scanner) = (rig.clone(), rig.another());
    let (_, cursor) = page(&mut scanner, rig.now(), &PAGE).unwrap();
    hooks::at(Failpoint::DepthRead, move || {
        inner.drop_table("t").unwrap();
        inner.settle();
    });
    let next = ScanPage { cursor: &cursor, ..PAGE };
    assert_eq!(page(&mut scanner, rig.now(), &next), Err(Refusal::TableNotFound));
    assert!(!hooks::is_waiting());
    rig.create("t").unwrap();
    rig.set("0", "new", None).unwrap();
    assert_eq!(page(&mut scanner, rig.now(), &next), Err(Refusal::BadCursor), "of another life of the table");
    assert_eq!(page(&mut scanner, rig.now(), &PAGE).unwrap().0.len(), 1);
    let (other, mut session) = (filled(500), rig.another());
    let (_, cursor) = page(&mut other.another(), other.now(), &PAGE).unwrap();
    let foreign = ScanPage { cursor: &cursor, ..PAGE };
    assert_eq!(page(&mut session, rig.now(), &foreign), Err(Refusal::BadCursor), "of another start of the server");
}

#[test]
fn a_mirror_is_shown_what_has_not_been_published_yet() {
    let rig = TablesRig::new();
    let rows = || {
        let mut rows = BTreeMap::new();
        let mut session = rig.0.session.borrow_mut();
        let of = ScanPage { content: ScanContent::ForMirror, ..PAGE };
        let next = session.batch(rig.now()).scan(b"t", &of, |row| {
            let key = String::from_utf8_lossy(row.key).into_owned();
            rows.insert(key, (row.value.to_vec(), row.version, row.deadline, row.progress));
        });
        assert_eq!(next, Ok(None));
        rows
    };
    rig.set("a", "1", Some(1)).unwrap();
    rig.set("b", "1", None).unwrap();
    let (a, b) = (rig.version("a"), rig.version("b"));
    let expected = |a_is: ScanProgress| (b"1".to_vec(), a, Some(1_001), a_is);
    assert_eq!(rows()["a"], expected(ScanProgress::Ahead));
    rig.publish();
    assert_eq!(rows()["a"], expected(ScanProgress::Published));
    assert_eq!(rig.at(1_001).get("a"), None);
    assert_eq!(rows()["a"], expected(ScanProgress::Published), "its expiry is not committed");
    rig.delete("b").unwrap();
    assert_eq!(rows()["b"], (Vec::new(), b + 1, None, ScanProgress::Deleted));
    rig.settle();
    assert_eq!(rows(), BTreeMap::new());
}

/// What happens between two pages.
#[derive(Clone, Debug)]
enum Step {
    Page(usize),
    Insert(usize),
    Delete(usize),
    Later(u64),
    Settle,
    Move,
    DropAndCreate,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (1_usize..400).prop_map(Step::Page),
        4 => (1_usize..600).prop_map(Step::Insert),
        3 => (1_usize..600).prop_map(Step::Delete),
        2 => (1_u64..3_000).prop_map(Step::Later),
        2 => Just(Step::Settle),
        1 => Just(Step::Move),
        1 => Just(Step::DropAndCreate),
    ];
    vec(step, 1..60)
}

/// The tables, and the scan in progress.
struct ScanModel {
    rig: TablesRig,
    scanner: Session,
    /// Keys that have been there since the scan began.
    stable: BTreeSet<String>,
    /// Keys that are there and go at some time, with their deadlines.
    passing: BTreeMap<String, u64>,
    shown: BTreeSet<String>,
    cursor: Vec<u8>,
    next_key: usize,
}

impl ScanModel {
    fn new(stable: usize) -> Self {
        let rig = filled(0);
        let scanner = rig.another();
        let mut model = Self {
            rig,
            scanner,
            stable: BTreeSet::new(),
            passing: BTreeMap::new(),
            shown: BTreeSet::new(),
            cursor: Vec::new(),
            next_key: 0,
        };
        model.fill(stable);
        model
    }

    fn fill(&mut self, stable: usize) {
        self.stable = (0..stable).map(|key| format!("stable {key}")).collect();
        for key in &self.stable {
            self.rig.set(key, "1", None).unwrap();
        }
        self.rig.publish();
    }

    fn is_due(&self, key: &str) -> bool {
        self.passing.get(key).is_some_and(|deadline| *deadline <= self.rig.now().millis())
    }

    fn step(&mut self, step: &Step) {
        let now = *self.rig.0.now.borrow();
        match step {
            Step::Page(count) => self.page(*count),
            Step::Insert(count) => {
                for _ in 0..*count {
                    // Now and then a long one.
                    let more = if self.next_key.is_multiple_of(9) { 50 + self.next_key % 500 } else { 0 };
                    let key = format!("passing {}{:more$}", self.next_key, "");
                    // At now, too: such an element is absent at once.
                    let later = self.next_key as u64 * 37 % 2_000;
                    let deadline = self.next_key.is_multiple_of(3).then_some(now + later);
                    let mut session = self.rig.0.session.borrow_mut();
                    let given = deadline.map_or(Deadline::NONE, Deadline::at);
                    session.batch(self.rig.now()).update(b"t", key.as_bytes(), b"1", given).unwrap();
                    self.passing.insert(key, deadline.unwrap_or(u64::MAX));
                    self.next_key += 1;
                }
                self.rig.publish();
            }
            Step::Delete(count) => {
                let keys: Vec<String> = self.passing.keys().take(*count).cloned().collect();
                for key in keys {
                    assert_eq!(self.rig.delete(&key).is_ok(), !self.is_due(&key), "{key}");
                    self.passing.remove(&key);
                }
                self.rig.publish();
            }
            Step::Later(millis) => drop(self.rig.at(now + millis)),
            Step::Settle => self.rig.settle(),
            Step::Move => self.rig.0.compactor.borrow_mut().move_all(self.rig.now()),
            Step::DropAndCreate => {
                let old = std::mem::take(&mut self.cursor);
                self.rig.drop_table("t").unwrap();
                self.rig.create("t").unwrap();
                if !old.is_empty() {
                    let of = ScanPage { cursor: &old, ..PAGE };
                    assert_eq!(page(&mut self.scanner, self.rig.now(), &of), Err(Refusal::BadCursor));
                }
                self.passing.clear();
                self.shown.clear();
                self.fill(self.stable.len());
            }
        }
    }

    fn page(&mut self, count: usize) {
        let of = ScanPage { cursor: &self.cursor, count, ..PAGE };
        let (rows, next) = page(&mut self.scanner, self.rig.now(), &of).unwrap();
        for (key, _) in rows {
            let is_there = self.stable.contains(&key) || self.passing.contains_key(&key) && !self.is_due(&key);
            assert!(is_there, "{key} is shown, and is not there");
            self.shown.insert(key);
        }
        self.cursor = next;
        if self.cursor.is_empty() {
            let missed: Vec<&String> = self.stable.difference(&self.shown).collect();
            assert!(missed.is_empty(), "{missed:?} were there all the time");
            self.shown.clear();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn an_element_that_stays_is_shown_whatever_happens_between_pages(stable in 0_usize..1_500, steps in steps()) {
        let mut model = ScanModel::new(stable);
        for step in &steps {
            model.step(step);
        }
        // To the end of the scan, in pages of other lengths.
        let mut pages = 0;
        while pages == 0 || !model.cursor.is_empty() {
            model.step(&Step::Insert(7));
            model.page(1 + 37 * pages % 300);
            pages += 1;
        }
    }
}
