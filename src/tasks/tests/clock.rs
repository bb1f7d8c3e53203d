//! Wall clocks that are set, in both directions, while the server runs and between two starts. A clock that followed
//! the wall clock froze leases, or ended all of them at once.

use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, prop_oneof, proptest};

use super::{ReadAnswer, RealQueues, add, leased, poll};
use crate::clock::ClockReading;
use crate::store::tests::fake_disk::FakeDisk;
use crate::tasks::{LeaseOrder, Outcome, Policy, Request};

const YEAR: i64 = 365 * 86_400_000;
const LEASE: u64 = 60_000;

/// Real time, and the clocks of a machine.
#[derive(Clone, Copy)]
struct Machine {
    /// Milliseconds since the test began, and as many as the machine started at.
    time: u64,
    booted: u64,
    boot: u128,
    /// How far the wall clock is wrong, in milliseconds.
    wrong: i64,
}

impl Machine {
    fn new(wrong: i64) -> Self {
        Self { time: 5_000, booted: 0, boot: 1, wrong }
    }

    fn reading(&self) -> ClockReading {
        let wall = (10 * YEAR).saturating_add_unsigned(self.time) + self.wrong;
        let up = (self.time - self.booted) * 1_000_000;
        ClockReading { wall: u64::try_from(wall).unwrap(), up, boot: self.boot }
    }

    fn wait(&mut self, millis: u64) {
        self.time += millis;
    }

    fn reboot(&mut self, pause: u64) {
        self.time += pause;
        (self.booted, self.boot) = (self.time, self.boot + 1);
    }
}

fn open(store: &FakeDisk, machine: &Machine) -> RealQueues {
    RealQueues::open_at(store.clone(), LeaseOrder::Priority, Policy::Always, machine.reading())
}

/// A queue whose only task is leased now.
fn with_a_lease(store: &FakeDisk, machine: &Machine) -> RealQueues {
    let mut real = open(store, machine);
    let answers = real.commit_at(vec![add("a"), poll(LEASE)], machine.reading()).unwrap();
    leased(answers[1].1.clone());
    real
}

fn is_held(real: &mut RealQueues, machine: &Machine) -> bool {
    let answers = real.commit_at(vec![Request::Count], machine.reading()).unwrap();
    answers == [(answers[0].0, ReadAnswer::Plain(Outcome::Counted(0)))]
}

/// The lease is held for `left` milliseconds from now and no longer.
fn assert_held_for(left: u64, real: &mut RealQueues, mut machine: Machine) {
    machine.wait(left - 1);
    assert!(is_held(real, &machine), "it ended early");
    machine.wait(1);
    assert!(!is_held(real, &machine), "it did not end");
}

#[test]
fn a_clock_that_is_set_while_the_server_runs_changes_no_lease() {
    for (wrong, right) in [(YEAR, 0), (-YEAR, 0), (0, YEAR), (0, -YEAR)] {
        let mut machine = Machine::new(wrong);
        let mut real = with_a_lease(&FakeDisk::new(), &machine);
        machine.wait(1_000);
        machine.wrong = right;
        assert_held_for(LEASE - 1_000, &mut real, machine);
    }
}

#[test]
fn a_clock_that_is_set_between_two_starts_changes_no_lease() {
    for (wrong, right) in [(YEAR, 0), (-YEAR, 0), (0, YEAR), (0, -YEAR)] {
        let (store, mut machine) = (FakeDisk::new(), Machine::new(wrong));
        drop(with_a_lease(&store, &machine));
        store.crash(0);
        machine.wait(1_000);
        machine.wrong = right;
        assert_held_for(LEASE - 1_000, &mut open(&store, &machine), machine);
    }
}

#[test]
fn after_a_reboot_a_lease_continues_by_the_wall_clock() {
    let (store, mut machine) = (FakeDisk::new(), Machine::new(0));
    drop(with_a_lease(&store, &machine));
    store.crash(0);
    machine.reboot(20_000);
    assert_held_for(LEASE - 20_000, &mut open(&store, &machine), machine);
}

/// The board has no clock of its own: it starts with a wrong time, and a time server corrects it.
#[test]
fn a_clock_that_was_corrected_in_an_idle_server_is_known_after_a_reboot() {
    for wrong in [YEAR, -YEAR] {
        let (store, mut machine) = (FakeDisk::new(), Machine::new(wrong));
        let mut real = with_a_lease(&store, &machine);
        machine.wait(1_000);
        machine.wrong = 0;
        assert_eq!(real.commit_at(vec![], machine.reading()).unwrap(), []);
        assert_eq!(store.unsynced(), 0, "the step is on disk");
        store.crash(0);
        machine.reboot(20_000);
        assert_held_for(LEASE - 21_000, &mut open(&store, &machine), machine);
    }
}

#[test]
fn after_a_reboot_with_a_clock_that_went_back_a_lease_has_at_most_its_length() {
    let (store, mut machine) = (FakeDisk::new(), Machine::new(YEAR));
    drop(with_a_lease(&store, &machine));
    store.crash(0);
    machine.reboot(20_000);
    machine.wrong = -YEAR;
    let mut real = open(&store, &machine);
    let oldest = || real.tasks.metrics().queues().pop().unwrap().oldest();
    assert_eq!(oldest(), None);
    let since = real.tasks.metrics().time(machine.reading());
    machine.wait(LEASE - 1);
    assert!(is_held(&mut real, &machine));
    machine.wait(1);
    assert!(!is_held(&mut real, &machine));
    let queue = real.tasks.metrics().queues().pop().unwrap();
    assert_eq!(queue.oldest(), Some(since + LEASE), "ages are by the same clock");
}

#[test]
fn a_delayed_sync_does_not_follow_the_wall_clock() {
    let (store, mut machine) = (FakeDisk::new(), Machine::new(0));
    let now = machine.reading();
    let mut real = RealQueues::open_at(store.clone(), LeaseOrder::Priority, Policy::Within(50), now);
    let before = (store.counts(), real.tasks.metrics().commits(), real.tasks.metrics().syncs());
    real.commit_at(vec![add("a")], now).unwrap();
    machine.wait(49);
    machine.wrong = -900;
    real.commit_at(vec![Request::Count], machine.reading()).unwrap();
    assert_eq!((store.counts().1, store.unsynced()), (before.0.1, 1));
    machine.wait(1);
    real.commit_at(vec![], machine.reading()).unwrap();
    assert_eq!((store.counts().1, store.unsynced()), (before.0.1 + 1, 0));
    let metrics = real.tasks.metrics();
    assert_eq!((metrics.commits() - before.1, metrics.syncs() - before.2), (1, 1));
}

#[derive(Clone, Debug)]
enum ClockOperation {
    Wait(u64),
    /// The wall clock is set. The server notices it before it ends.
    Set(i64),
    Crash,
    Reboot(u64),
}

fn operation() -> impl Strategy<Value = ClockOperation> {
    prop_oneof![
        4 => (0..LEASE / 4).prop_map(ClockOperation::Wait),
        3 => (-2 * YEAR..2 * YEAR).prop_map(ClockOperation::Set),
        1 => Just(ClockOperation::Crash),
        1 => (0..LEASE / 4).prop_map(ClockOperation::Reboot),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_lease_ends_in_time_whenever_its_server_saw_the_clock_being_set(operations in vec(operation(), 1..20)) {
        let (store, mut machine) = (FakeDisk::new(), Machine::new(0));
        let mut real = with_a_lease(&store, &machine);
        let end = machine.time + LEASE;
        for operation in operations {
            match operation {
                ClockOperation::Wait(millis) => machine.wait(millis),
                ClockOperation::Set(wrong) => machine.wrong = wrong,
                ClockOperation::Crash | ClockOperation::Reboot(_) => {
                    store.crash(0);
                    if let ClockOperation::Reboot(pause) = operation {
                        machine.reboot(pause);
                    }
                    real = open(&store, &machine);
                }
            }
            proptest::prop_assert_eq!(is_held(&mut real, &machine), machine.time < end, "at {}", machine.time);
        }
    }
}
