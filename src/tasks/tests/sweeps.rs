//! Kicks and purges of many tasks: what they take, and that others have their turn meanwhile.

use super::{ReadAnswer, RealQueues, add, leased, poll};
use crate::store::Value;
use crate::store::tests::fake_disk::FakeDisk;
use crate::tasks::engine::sweeps::SWEEP_STEP;
use crate::tasks::{
    AddTerms, Browse, BrowsedState, LeaseOrder, Outcome, Policy, QueueEnd, Request, Settlement, Submission, Sweep,
    SweptStates, Ticket,
};

fn open(order: LeaseOrder) -> RealQueues {
    RealQueues::open(FakeDisk::new(), order, Policy::Always, 0)
}

fn delayed(key: &str, delay: u64) -> Request {
    let terms = Some(Box::new(AddTerms { delay, ..AddTerms::default() }));
    Request::Add { key: key.as_bytes().into(), value: Value::from(&b""[..]), end: QueueEnd::Tail, terms }
}

/// Leases the next task and buries it.
fn bury(real: &mut RealQueues, now: u64) {
    let (token, key) = leased(real.commit_one(poll(1_000), now));
    real.commit(vec![Request::Bury { token, key: key.into(), reason: Box::default() }], now).unwrap();
}

fn counted(answer: ReadAnswer) -> u64 {
    let ReadAnswer::Plain(outcome @ Outcome::Counted(_)) = answer else { panic!("{answer:?}") };
    outcome.counted()
}

/// Runs batches until the sweep is answered.
fn swept(real: &mut RealQueues, sweep: Sweep, now: u64) -> u64 {
    let mut answers = real.commit(vec![Request::Sweep { sweep, client: 0 }], now).unwrap();
    while answers.is_empty() {
        answers = real.commit(vec![], now).unwrap();
    }
    counted(answers.remove(0).1)
}

fn keys_left(real: &mut RealQueues, now: u64) -> Vec<String> {
    let mut keys = Vec::new();
    while let ReadAnswer::Leased { key, .. } = real.commit_one(poll(1_000_000), now) {
        keys.push(String::from_utf8_lossy(&key).into_owned());
    }
    keys
}

#[test]
fn the_dead_are_kicked_in_the_order_of_their_deaths_and_jobs_to_their_places() {
    for (order, expected) in [(LeaseOrder::Priority, ["d", "b", "c"]), (LeaseOrder::Fifo, ["b", "c", "d"])] {
        let mut real = open(order);
        real.commit(["a", "b", "c", "d"].map(add).to_vec(), 0).unwrap();
        let (held, key) = leased(real.commit_one(poll(1_000), 0));
        bury(&mut real, 0);
        bury(&mut real, 0);
        // The first one dies last.
        real.commit(vec![Request::Bury { token: held, key: key.into(), reason: Box::default() }], 0).unwrap();
        assert_eq!(swept(&mut real, Sweep::KickDead { most: 2 }, 0), 2);
        assert_eq!(keys_left(&mut real, 0), expected);
        assert_eq!(swept(&mut real, Sweep::KickDead { most: 5 }, 0), 1);
        assert_eq!(swept(&mut real, Sweep::KickDead { most: 5 }, 0), 0);
    }
}

#[test]
fn delayed_tasks_are_kicked_in_the_order_of_their_times() {
    let mut real = open(LeaseOrder::Priority);
    real.commit(vec![delayed("a", 30), delayed("b", 20), delayed("c", 40), delayed("d", 10)], 0).unwrap();
    assert_eq!(swept(&mut real, Sweep::KickDelayed { most: 2 }, 0), 2);
    assert_eq!(keys_left(&mut real, 0), ["d", "b"]);
    assert_eq!(swept(&mut real, Sweep::KickDelayed { most: u64::MAX }, 0), 2);
    assert_eq!(keys_left(&mut real, 0), ["a", "c"]);
}

#[test]
fn a_purge_takes_the_named_states_of_this_age_and_nothing_that_is_lent() {
    let mut real = open(LeaseOrder::Priority);
    let drop = |real: &mut RealQueues, now| {
        let (token, key) = leased(real.commit_one(poll(1_000), now));
        real.commit(vec![Request::Settle { token, key: key.into(), value: None, how: Settlement::Drop }], now).unwrap();
    };
    real.commit(["lent", "dead", "old", "young", "ready"].map(add).to_vec(), 0).unwrap();
    real.commit(vec![delayed("delayed", 1_000)], 0).unwrap();
    leased(real.commit_one(poll(1_000_000), 0));
    bury(&mut real, 0);
    drop(&mut real, 10);
    drop(&mut real, 50);
    let purge = |states, age| Sweep::Purge { states, age };
    let dropped = SweptStates { dropped: true, ..SweptStates::default() };
    let others = SweptStates { ready: true, delayed: true, dead: true, dropped: false };
    assert_eq!(swept(&mut real, purge(dropped, 60), 100), 1, "the old one: its age is that in this state");
    assert_eq!(counted(real.commit_one(Request::CountAll, 100)), 5);
    assert_eq!(swept(&mut real, purge(others, 0), 100), 3);
    assert_eq!(counted(real.commit_one(Request::CountAll, 100)), 2, "one is lent and one was dropped lately");
    assert_eq!(swept(&mut real, purge(SweptStates::default(), 0), 100), 0);
    let removed = |real: &RealQueues| real.tasks.metrics().queues().pop().unwrap().counts().ever.removed;
    assert_eq!(removed(&real), 4);
    let answer = real.commit_one(Request::Remove { key: b"young".as_slice().into() }, 100);
    assert_eq!((answer, removed(&real)), (ReadAnswer::Plain(Outcome::Done), 5));
}

/// What a purge of a million did in one step, nobody else could do meanwhile.
#[test]
fn others_have_their_turn_and_what_comes_meanwhile_stays() {
    let mut real = open(LeaseOrder::Fifo);
    let names: Vec<String> = (0..3 * SWEEP_STEP).map(|number| format!("old-{number}")).collect();
    for chunk in names.chunks(1_000) {
        real.commit(chunk.iter().map(|name| add(name)).collect(), 0).unwrap();
    }
    while counted(real.commit_one(Request::CountAll, 0)) < names.len() as u64 {}
    let states = SweptStates { ready: true, ..SweptStates::default() };
    let sweep = real.submitted;
    assert_eq!(
        real.commit(vec![Request::Sweep { sweep: Sweep::Purge { states, age: 0 }, client: 0 }], 10).unwrap(),
        []
    );
    let (mut sizes, mut answer) = (Vec::new(), None);
    for step in 0_u8..5 {
        let request = Request::Add {
            key: Box::from([b'n', step]),
            value: Value::from(&b""[..]),
            end: QueueEnd::Tail,
            terms: None,
        };
        let answers = real.commit(vec![request, Request::CountAll], 11).unwrap();
        let of_sweep = answers.iter().find(|(number, _)| *number == sweep);
        answer = answer.or(of_sweep.map(|(_, answer)| counted(answer.clone())));
        let last = answers.into_iter().max_by_key(|(number, _)| *number);
        sizes.push(last.map(|(_, answer)| counted(answer)));
    }
    let step = SWEEP_STEP as u64;
    assert_eq!(sizes[..3], [Some(2 * step + 1), Some(step + 2), Some(3)], "one step in each batch");
    assert_eq!(sizes[4], Some(5), "what came meanwhile stays");
    assert_eq!(answer, Some(3 * step));
}

/// What died after a kick had begun was kicked too, and one that failed at once had no end.
#[test]
fn a_kick_leaves_who_dies_after_it_has_begun() {
    // Enough for a third step, behind the death of another one.
    const DEAD: usize = 2 * SWEEP_STEP + 10;
    let mut real = open(LeaseOrder::Fifo);
    let names: Vec<String> = (0..DEAD + 10).map(|number| number.to_string()).collect();
    for chunk in names.chunks(100) {
        real.commit(chunk.iter().map(|name| add(name)).collect(), 0).unwrap();
    }
    for _ in 0..DEAD {
        bury(&mut real, 0);
    }
    let sweep = real.submitted;
    assert_eq!(
        real.commit(vec![Request::Sweep { sweep: Sweep::KickDead { most: u64::MAX }, client: 0 }], 1).unwrap(),
        []
    );
    let (mut answer, mut steps) = (None, 0);
    while answer.is_none() {
        // Another one dies between two steps.
        let mut answers = real.commit(vec![poll(1_000)], 1).unwrap();
        let is_lease = |(_, answer): &mut (u64, ReadAnswer)| matches!(answer, ReadAnswer::Leased { .. });
        let (token, key) = leased(answers.extract_if(.., is_lease).next().unwrap().1);
        answers.extend(real.commit(vec![Request::Bury { token, key: key.into(), reason: Box::default() }], 1).unwrap());
        answer = answers.into_iter().find(|(number, _)| *number == sweep).map(|(_, answer)| counted(answer));
        steps += 1;
        assert!(steps < 10, "it comes to an end");
    }
    assert_eq!(answer, Some(DEAD as u64), "those that were dead when it began");
}

#[test]
fn a_sweep_is_answered_when_the_server_ends() {
    let mut real = open(LeaseOrder::Fifo);
    real.commit((0..SWEEP_STEP + 10).map(|number| add(&number.to_string())).collect(), 0).unwrap();
    while counted(real.commit_one(Request::CountAll, 0)) < (SWEEP_STEP + 10) as u64 {}
    let states = SweptStates { ready: true, ..SweptStates::default() };
    real.commit(vec![Request::Sweep { sweep: Sweep::Purge { states, age: 0 }, client: 0 }], 0).unwrap();
    real.tasks.dismiss();
    let answers = real.commit(vec![], 0).unwrap();
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(counted(answers[0].1.clone()), SWEEP_STEP as u64, "as far as it came");
}

#[test]
fn a_step_alone_waits_for_no_sync_and_the_next_answer_shows_nothing_that_is_not_on_disk() {
    let mut real = open(LeaseOrder::Fifo);
    real.commit((0..4 * SWEEP_STEP).map(|number| add(&number.to_string())).collect(), 0).unwrap();
    let states = SweptStates { ready: true, ..SweptStates::default() };
    assert_eq!(real.commit(vec![Request::Sweep { sweep: Sweep::Purge { states, age: 0 }, client: 0 }], 0).unwrap(), []);
    real.commit(vec![], 0).unwrap();
    assert!(real.store.unsynced() > 0, "nobody waits for the steps");
    let left = counted(real.commit_one(Request::Count, 0));
    assert!(left < 3 * SWEEP_STEP as u64, "a part is gone");
    assert_eq!(real.store.unsynced(), 0, "and that is on disk");
    real.commit(vec![], 0).unwrap();
    // The step behind the answer is lost.
    real.store.crash(0);
    let mut real = RealQueues::open(real.store.clone(), LeaseOrder::Fifo, Policy::Always, 0);
    assert_eq!(counted(real.commit_one(Request::Count, 0)), left);
}

/// A step that takes nothing stores nothing, and so needs no sync of its own.
#[test]
fn an_answer_beside_a_step_that_takes_nothing_shows_only_what_is_on_disk() {
    let mut real = open(LeaseOrder::Fifo);
    let names: Vec<String> = (0..3 * SWEEP_STEP).map(|number| number.to_string()).collect();
    real.commit(names.iter().map(|name| add(name)).collect(), 0).unwrap();
    // The first step takes all that it looks at, and the others find tasks that are lent.
    let mut lent = 0;
    while lent < names.len() {
        leased(real.commit_one(poll(1_000), 0));
        lent += 1;
    }
    for name in names.iter().take(SWEEP_STEP) {
        let give_back =
            Request::GiveBack { token: None, key: name.as_bytes().into(), delay: None, reason: Box::default() };
        assert_eq!(real.commit_one(give_back, 0), ReadAnswer::Plain(Outcome::Done));
    }
    let states = SweptStates { ready: true, ..SweptStates::default() };
    assert_eq!(real.commit(vec![Request::Sweep { sweep: Sweep::Purge { states, age: 0 }, client: 0 }], 0).unwrap(), []);
    real.commit(vec![], 0).unwrap();
    assert!(real.store.unsynced() > 0, "nobody waits for the step");
    assert_eq!(counted(real.commit_one(Request::Count, 0)), 0);
    assert_eq!(real.store.unsynced(), 0, "what is gone is gone on disk");
}

/// What was added in the batch of a purge, and acknowledged, was purged too.
#[test]
fn what_is_added_behind_a_sweep_in_its_batch_stays() {
    let names: Vec<String> = (0..3 * SWEEP_STEP).map(|number| format!("old-{number}")).collect();
    let states = SweptStates { ready: true, delayed: true, ..SweptStates::default() };
    let sweeps = [Sweep::Purge { states, age: 0 }, Sweep::KickDelayed { most: u64::MAX }];
    for order in [LeaseOrder::Priority, LeaseOrder::Fifo] {
        for sweep in sweeps {
            let mut real = open(order);
            real.commit(names.iter().map(|name| delayed(name, 1_000)).collect(), 5).unwrap();
            let number = real.submitted;
            let requests =
                vec![delayed("before", 3_000), Request::Sweep { sweep, client: 0 }, delayed("behind", 3_000)];
            let mut answers = real.commit(requests, 5).unwrap();
            while !answers.iter().any(|(of, _)| *of == number + 1) {
                answers = real.commit(vec![], 5).unwrap();
            }
            let taken = answers.into_iter().find(|(of, _)| *of == number + 1).unwrap().1;
            assert_eq!(counted(taken), names.len() as u64 + 1, "{sweep:?}");
            let shown = keys_delayed(&mut real, 5);
            assert_eq!(shown, ["behind"], "{sweep:?}");
        }
    }
}

fn keys_delayed(real: &mut RealQueues, now: u64) -> Vec<String> {
    let browse = Browse { state: BrowsedState::Delayed, group: None, from: None, most: 100, first_bytes: 0 };
    let answer = real.commit_one(Request::Browse(browse), now);
    let ReadAnswer::Plain(Outcome::Browsed(page)) = answer else { panic!("{answer:?}") };
    page.tasks.into_iter().map(|task| String::from_utf8_lossy(&task.key).into_owned()).collect()
}

fn purge_of_nothing() -> Request {
    let states = SweptStates { dead: true, ..SweptStates::default() };
    Request::Sweep { sweep: Sweep::Purge { states, age: 0 }, client: 0 }
}

/// Twenty thousand purges of a client that was gone went on, and each had as many turns as a purge of somebody else.
#[test]
fn sweeps_of_a_client_follow_one_another_and_end_when_it_is_gone() {
    const SWEEPS: u64 = 100;
    let mut real = open(LeaseOrder::Fifo);
    let another = real.committer.queue(b"another", LeaseOrder::Fifo, Policy::Always).unwrap();
    real.commit((0..3 * SWEEP_STEP).map(|number| add(&number.to_string())).collect(), 0).unwrap();
    // A client names two queues in turn.
    let queues = [real.queue.clone(), another];
    let of_nothing = |number: u64| {
        let queue = queues[usize::from(number.is_multiple_of(2))].clone();
        Submission { queue, ticket: Ticket { sink: 0, number }, request: purge_of_nothing() }
    };
    let first = real.submitted;
    real.tasks.submit((first..first + SWEEPS).map(of_nothing).collect());
    real.submitted += SWEEPS;
    // A sweep of another client has every second turn.
    let states = SweptStates { ready: true, ..SweptStates::default() };
    let other = real.submitted;
    let mut answers =
        real.commit(vec![Request::Sweep { sweep: Sweep::Purge { states, age: 0 }, client: 1 }], 0).unwrap();
    for _ in 0..12 {
        answers.extend(real.commit(vec![], 0).unwrap());
    }
    let (of_other, answered): (Vec<_>, Vec<_>) = answers.into_iter().partition(|(number, _)| *number == other);
    assert_eq!(
        of_other.into_iter().map(|(_, answer)| counted(answer)).collect::<Vec<_>>(),
        [3 * SWEEP_STEP as u64],
        "it has taken all, in twelve turns of both"
    );
    let numbers: Vec<u64> = answered.into_iter().map(|(number, _)| number).collect();
    let next = first + numbers.len() as u64;
    assert!(numbers.iter().copied().eq(first..next) && numbers.len() <= 9, "{numbers:?}");
    let left: Vec<u64> = (next..first + SWEEPS - 1).collect();
    let answers = real.commit(vec![Request::Withdraw { tickets: left.clone() }], 0).unwrap();
    assert!(left.iter().all(|number| answers.iter().any(|(answered, _)| answered == number)), "each is answered");
    let mut last = Vec::new();
    for _ in 0..4 {
        last.extend(real.commit(vec![], 0).unwrap());
    }
    assert_eq!(last.into_iter().map(|(number, _)| number).collect::<Vec<_>>(), [first + SWEEPS - 1]);
}

/// A sweep that came after the beginning of the end went on, and the server did not end in time.
#[test]
fn no_sweep_begins_when_the_server_ends() {
    let mut real = open(LeaseOrder::Fifo);
    real.commit((0..3 * SWEEP_STEP).map(|number| add(&number.to_string())).collect(), 0).unwrap();
    real.tasks.dismiss();
    let answers = real.commit(vec![purge_of_nothing()], 0).unwrap();
    assert_eq!(answers.into_iter().map(|(_, answer)| counted(answer)).collect::<Vec<_>>(), [0]);
}
