//! The memory of tables, counted at the allocator, beside the memory budget of `--max-memory`.
//!
//! A thread counts the bytes that it allocates and frees. It may free memory that another thread has retired, since the
//! whole process shares the epochs. So each of these tests runs itself in a process of its own.

#![allow(unsafe_code, reason = "a global allocator that counts is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::Command;

use spindle::allocator::size_class;
use spindle::clock::Now;
use spindle::tables::{BackgroundThreads, Deadline, Durability, Refusal, Session, Tables, TablesConfig};

thread_local! {
    /// Bytes that this thread has allocated and not freed, as the allocator rounds them up.
    static HELD: Cell<i64> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn count(bytes: usize, sign: i64) {
    // A thread that is ending has no counter any more, and no test reads it.
    let _ = HELD.try_with(|held| held.set(held.get() + sign * i64::try_from(size_class(bytes)).unwrap()));
}

// SAFETY: each call goes to the system's allocator unchanged, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(layout.size(), -1);
        count(bytes, 1);
        // SAFETY: as above.
        unsafe { System.realloc(block, layout, bytes) }
    }
}

const NOW: Now = Now::from_millis(1);

/// Tables whose threads this thread plays itself.
struct Ground {
    tables: Tables,
    backstage: BackgroundThreads,
}

impl Ground {
    fn new() -> Self {
        let (tables, backstage) = Tables::new(TablesConfig {
            expected_keys: 0,
            memory_max: 64 << 20,
            tables_max: 1 << 16,
            durability: Durability::None,
            changes_per_writer: 64,
            version_base: 1,
            clock_start: 0,
        });
        Self { tables, backstage }
    }

    fn create(&self, session: &mut Session, number: usize) {
        let name = name(number);
        assert_eq!(session.batch(NOW).create_table(&name, &name), Ok(()), "{}", self.tables.metrics().memory.used);
    }

    fn store(&mut self, session: &mut Session, table: usize, key: usize) {
        let (table, key) = (name(table), format!("{key:016}"));
        while let Err(refusal) = session.batch(NOW).update(&table, key.as_bytes(), &[7; 64], Deadline::KEEP) {
            assert_eq!(refusal, Refusal::Busy);
            self.backstage.changes.drain(1_000, &mut |_, _, _| {});
        }
    }
}

fn name(number: usize) -> Vec<u8> {
    format!("table-{number:06}").into_bytes()
}

/// Set in the process that runs one test.
const ALONE: &str = "SPINDLE_TEST_ALONE";

/// Runs `measure` in a process in which the test of this name is the only one.
fn alone(name: &str, measure: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return measure();
    }
    let mut test = Command::new(std::env::current_exe().unwrap());
    test.args(["--exact", &format!("table_memory::{name}"), "--nocapture"]).env(ALONE, "1");
    let output = test.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{out}");
    assert!(output.status.success() && out.contains("1 passed"), "{out}{err}");
}

/// The growth by `work`, by the allocator's count and by the memory budget.
fn growth(ground: &mut Ground, work: impl FnOnce(&mut Ground, &mut Session)) -> (i64, i64) {
    let before = (HELD.get(), i64::try_from(ground.tables.metrics().memory.used).unwrap());
    let mut session = ground.tables.session();
    let ring = HELD.get() - before.0;
    work(ground, &mut session);
    ground.backstage.changes.drain(1_000, &mut |_, _, _| {});
    let held = HELD.get() - before.0 - ring;
    drop(session); // Its local part of the budget is in it now.
    (held, i64::try_from(ground.tables.metrics().memory.used).unwrap() - before.1)
}

/// The memory budget is right to a tenth.
fn assert_account(what: &str, (held, account): (i64, i64), count: i64) {
    println!("{what}: {} bytes held, {} by the account", held / count, account / count);
    assert!((held - account).abs() * 10 < held, "{what}: {held} bytes held, the account says {account}");
}

#[test]
fn the_account_says_what_tables_take_that_are_empty_or_small() {
    alone("the_account_says_what_tables_take_that_are_empty_or_small", || {
        let mut ground = Ground::new();
        let empty = growth(&mut ground, |ground, session| (0..10_000).for_each(|table| ground.create(session, table)));
        assert_account("an empty table", empty, 10_000);
        assert!(empty.0 / 10_000 < 2_048, "an empty table takes {} bytes", empty.0 / 10_000);
        let one = growth(&mut ground, |ground, session| (0..10_000).for_each(|table| ground.store(session, table, 0)));
        assert_account("the first element of a table", one, 10_000);
        assert!(one.0 / 10_000 < 256, "an element takes {} bytes", one.0 / 10_000);
    });
}

#[test]
fn the_account_says_what_a_table_takes_before_and_after_it_outgrows_its_directory() {
    alone("the_account_says_what_a_table_takes_before_and_after_it_outgrows_its_directory", || {
        let mut ground = Ground::new();
        for elements in [100, 1_000, 5_000, 20_000, 100_000] {
            let table = growth(&mut ground, |ground, session| {
                ground.create(session, elements);
                (0..elements).for_each(|key| ground.store(session, elements, key));
            });
            assert_account(&format!("a table of {elements} elements"), table, i64::try_from(elements).unwrap());
        }
    });
}
