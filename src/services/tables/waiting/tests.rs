//! Waiting clients before tables whose publisher and reaper are run by hand, so each state lasts until it is checked.

#![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

use super::*;
use crate::clock::Now;
use crate::net::sockets::wait;
use crate::security::Access;
use crate::services::tables::wire::Command;
use crate::tables::{BackgroundThreads, Changes, Deadline, Durability, Reaper, Refusal, Tables, TablesConfig};

const NOW: Now = Now::from_millis(1);
const CHANGES: usize = 64;

struct WaitingRig {
    tables: Tables,
    changes: Changes,
    /// Not run: it holds the tables that are to be removed.
    _reaper: Reaper,
    session: Session,
    wake_signal: WakeSignal,
    line: WaitingClients<u8>,
}

impl WaitingRig {
    /// Tables that have no room for changes, and no waiting client.
    fn new() -> Self {
        let (tables, BackgroundThreads { changes, reaper, .. }) = Tables::new(TablesConfig {
            expected_keys: 0,
            memory_max: 1 << 30,
            tables_max: 100,
            durability: Durability::None,
            changes_per_writer: CHANGES,
            version_base: 0,
            clock_start: 0,
        });
        let mut session = tables.session();
        let wake_signal = WakeSignal::new().unwrap();
        let line = WaitingClients::new(&mut session, &wake_signal);
        session.batch(NOW).create_table(b"t", b"t").unwrap();
        let mut rig = Self { tables, changes, _reaper: reaper, session, wake_signal, line };
        while rig.update() {}
        rig
    }

    /// Whether the tables take a change.
    fn update(&mut self) -> bool {
        let updated = self.session.batch(NOW).update(b"t", b"k", b"", Deadline::KEEP);
        assert!(matches!(updated, Ok(()) | Err(Refusal::Busy)));
        updated.is_ok()
    }

    fn begin(&mut self) {
        self.line.begin(&mut self.session, NOW);
    }

    fn patience(&mut self) -> Option<Duration> {
        self.line.patience(&mut self.session, || NOW)
    }

    /// Announces all changes. Returns whether that has raised the wake signal.
    fn announce(&mut self) -> bool {
        self.changes.drain(1_000, &mut |_, _, _| {});
        let raised = rustix::event::poll(
            &mut [rustix::event::PollFd::new(&self.wake_signal, rustix::event::PollFlags::IN)],
            Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }),
        );
        wait(&[], &self.wake_signal, Some(Duration::ZERO));
        raised == Ok(1)
    }
}

#[test]
fn those_that_wait_are_called_and_tried_in_their_order() {
    let mut rig = WaitingRig::new();
    assert_eq!(rig.patience(), None);
    (1..=3).for_each(|client| rig.line.join(client, Lack::Credits));
    assert_eq!((rig.line.len(), rig.patience()), (3, Some(RECHECK)));
    rig.begin();
    assert_eq!(rig.line.next(), None);
    assert!(rig.announce(), "who waits is called");
    rig.begin();
    assert_eq!(rig.line.next(), Some(1));
    assert!(rig.update());
    assert_eq!(rig.line.next(), Some(2));
    while rig.update() {}
    rig.line.stay(2, Lack::Credits);
    assert_eq!(rig.line.next(), None, "what is out is out for all");
    rig.line.join(1, Lack::Credits);
    assert_eq!(rig.patience(), Some(RECHECK));
    assert!(rig.announce());
    rig.begin();
    assert_eq!(std::iter::from_fn(|| rig.line.next()).collect::<Vec<_>>(), [2, 3, 1]);
    assert!(rig.line.is_empty());
}

#[test]
fn what_may_change_elements_does_not_overtake_what_waits() {
    let mut rig = WaitingRig::new();
    let overtakes = |rig: &WaitingRig| -> Vec<Command> {
        Command::ALL.into_iter().filter(|command| !rig.line.is_ahead_of(command.may_change_elements())).collect()
    };
    assert_eq!(overtakes(&rig).len(), Command::COUNT);
    rig.line.join(1, Lack::Tables);
    assert_eq!(overtakes(&rig).len(), Command::COUNT, "a table that has to be taken down is in the way of no change");
    rig.line.join(2, Lack::Credits);
    let others: Vec<Command> =
        Command::ALL.into_iter().filter(|command| command.access() != Some(Access::Write)).collect();
    assert_eq!(overtakes(&rig), others);
}

/// A CREATE_TABLE of the session must not clear the watch for room for changes.
#[test]
fn a_table_made_meanwhile_takes_no_wake_up_from_those_that_wait_for_credits() {
    let mut rig = WaitingRig::new();
    rig.line.join(1, Lack::Credits);
    rig.session.batch(NOW).create_table(b"u", b"u").unwrap();
    assert_eq!(rig.patience(), Some(RECHECK));
    rig.session.batch(NOW).create_table(b"v", b"v").unwrap();
    assert!(rig.announce());
    rig.begin();
    assert_eq!(rig.line.next(), Some(1));
}

#[test]
fn a_rest_that_ends_by_its_time_out_with_credits_there_is_a_lost_wake_up() {
    for (rested, lost) in [(RECHECK - Duration::from_millis(1), 0), (RECHECK, 1)] {
        let mut rig = WaitingRig::new();
        rig.line.join(1, Lack::Credits);
        assert_eq!(rig.patience(), Some(RECHECK));
        assert!(rig.announce());
        rig.session.lose_wake_up();
        rig.line.begin(&mut rig.session, NOW.after(rested));
        assert_eq!((rig.line.next(), rig.tables.metrics().lost_wakeups), (Some(1), lost));
    }
}

#[test]
fn those_that_wait_for_memory_hold_nobody_up_and_are_all_tried() {
    let mut rig = WaitingRig::new();
    rig.line.join(1, Lack::Memory);
    rig.line.join(2, Lack::Memory);
    assert!(!rig.line.is_ahead_of(true), "a change that needs no memory can be made");
    assert_eq!(rig.line.len(), 2);
    // The compactor has not been asked for memory, so each waiting client may be tried again.
    assert_eq!(rig.patience(), Some(Duration::ZERO));
    rig.begin();
    assert_eq!(rig.line.next(), Some(1));
    rig.line.stay(1, Lack::Memory);
    assert_eq!(rig.line.next(), Some(2));
    assert_eq!(rig.line.next(), None, "each once in a round");
    rig.begin();
    assert_eq!(rig.line.next(), Some(1));
    assert!(rig.line.is_empty());
}

#[test]
fn clients_that_met_a_latch_are_tried_once_before_the_next_one() {
    let mut rig = WaitingRig::new();
    let mut holder = rig.tables.session();
    let latch = |holder: &mut Session| holder.batch(NOW).latch(&[b"t"]);
    latch(&mut holder).unwrap();
    (1..=2).for_each(|client| {
        assert_eq!(rig.session.batch(NOW).get(b"t", b"none"), Err(Refusal::Busy));
        rig.line.join(client, Lack::Latch);
    });
    assert_eq!((rig.line.len(), rig.patience()), (2, Some(RECHECK)));
    rig.begin();
    assert_eq!(rig.line.next(), None, "it is held");
    holder.end_latch();
    assert_eq!(latch(&mut holder), Err(Refusal::Busy), "two clients have not been tried");
    rig.begin();
    assert_eq!(rig.line.next(), Some(1));
    rig.line.sleep_time(&mut rig.session, || NOW);
    assert_eq!(latch(&mut holder), Err(Refusal::Busy), "one has not been tried");
    assert_eq!((rig.line.next(), rig.line.next()), (Some(2), None));
    rig.line.sleep_time(&mut rig.session, || NOW);
    assert_eq!(latch(&mut holder), Ok(()));
    assert!(rig.line.is_empty());
}
