//! Pages of tasks: each that stays in its state is shown once, in the order of the state.

use std::collections::HashSet;

use super::{ReadAnswer, RealQueues, add, leased, poll};
use crate::limits::EXPIRE_BUDGET;
use crate::seeded_rng::SeededRng;
use crate::store::Value;
use crate::store::tests::fake_disk::FakeDisk;
use crate::tasks::shown::BROWSED_MAX;
use crate::tasks::{
    AddTerms, Browse, BrowsePlace, BrowsedPage, BrowsedState, BrowsedTask, LeaseOrder, Outcome, Policy, QueueEnd,
    Request, Settlement,
};

fn open() -> RealQueues {
    RealQueues::open(FakeDisk::new(), LeaseOrder::Priority, Policy::Always, 0)
}

fn add_with(key: &str, terms: AddTerms) -> Request {
    let terms = Some(Box::new(terms));
    Request::Add { key: key.as_bytes().into(), value: Value::from(&b"v"[..]), end: QueueEnd::Tail, terms }
}

fn page(
    real: &mut RealQueues,
    state: BrowsedState,
    group: Option<&[u8]>,
    from: Option<BrowsePlace>,
    most: u32,
) -> (Vec<BrowsedTask>, Option<BrowsePlace>) {
    let group = group.map(Box::from);
    let answer = real.commit_one(Request::Browse(Browse { state, group, from, most, first_bytes: 8 }), 0);
    let ReadAnswer::Plain(Outcome::Browsed(BrowsedPage { tasks, next, .. })) = answer else { panic!("{answer:?}") };
    assert!(tasks.len() <= most as usize);
    (tasks, next)
}

fn name(task: &BrowsedTask) -> String {
    String::from_utf8_lossy(&task.key).into_owned()
}

/// The keys of all pages. `between` changes the queue before each next page.
fn keys(
    real: &mut RealQueues,
    state: BrowsedState,
    group: Option<&[u8]>,
    most: u32,
    mut between: impl FnMut(&mut RealQueues),
) -> Vec<String> {
    let (mut keys, mut from) = (Vec::new(), None);
    loop {
        let (tasks, next) = page(real, state, group, from, most);
        keys.extend(tasks.iter().map(name));
        if next.is_none() {
            return keys;
        }
        from = next;
        between(real);
    }
}

#[test]
fn ready_tasks_are_in_the_order_of_classes_and_places() {
    let mut real = open();
    let of = |class, group: &[u8]| AddTerms { class, group: group.into(), ..AddTerms::default() };
    let usual = AddTerms::default().class;
    let adds = [
        ("late", of(usual + 1, b"")),
        ("1", of(usual, b"")),
        ("x2", of(usual, b"x")),
        ("urgent", of(3, b"")),
        ("x1", of(1, b"x")),
        ("2", of(usual, b"")),
        ("y", of(usual, b"y")),
    ];
    real.commit(adds.into_iter().map(|(key, terms)| add_with(key, terms)).collect(), 0).unwrap();
    let expected = ["x1", "urgent", "1", "x2", "2", "y", "late"];
    for most in [1, 2, 3, 100] {
        assert_eq!(keys(&mut real, BrowsedState::Ready, None, most, |_| {}), expected, "{most}");
    }
    for most in [1, 100] {
        assert_eq!(keys(&mut real, BrowsedState::Ready, Some(b"x"), most, |_| {}), ["x1", "x2"]);
        assert!(keys(&mut real, BrowsedState::Ready, Some(b"z"), most, |_| {}).is_empty());
    }
    assert_eq!(keys(&mut real, BrowsedState::Ready, Some(b""), 2, |_| {}), ["urgent", "1", "2", "late"]);
}

#[test]
fn each_state_shows_its_own_tasks_with_what_is_known_of_them() {
    let mut real = open();
    real.commit(vec![add("held"), add("dead"), add("ready")], 0).unwrap();
    for (key, delay) in [("later", 70), ("soon", 50)] {
        real.commit(vec![add_with(key, AddTerms { delay, ..AddTerms::default() })], 0).unwrap();
    }
    leased(real.commit_one(poll(1_000), 0));
    let (token, key) = leased(real.commit_one(poll(1_000), 0));
    real.commit(vec![Request::Bury { token, key: key.into(), reason: Box::default() }], 0).unwrap();
    let mut show = |state| {
        let (tasks, _) = page(&mut real, state, None, None, 9);
        tasks.iter().map(|task| (name(task), task.lent, task.left)).collect::<Vec<_>>()
    };
    assert_eq!(show(BrowsedState::Ready), [("ready".to_owned(), 0, None)]);
    assert_eq!(show(BrowsedState::Delayed), [("soon".to_owned(), 0, Some(50)), ("later".to_owned(), 0, Some(70))]);
    assert_eq!(show(BrowsedState::Lent), [("held".to_owned(), 1, Some(1_000))]);
    assert_eq!(show(BrowsedState::Dead), [("dead".to_owned(), 1, None)]);
    assert_eq!(show(BrowsedState::Dropped), []);
}

/// Brings a ready task into a state.
fn settle(real: &mut RealQueues, state: BrowsedState) {
    if matches!(state, BrowsedState::Ready | BrowsedState::Delayed) {
        return;
    }
    let (token, key) = leased(real.commit_one(poll(1_000_000), 0));
    let key: Box<[u8]> = key.into();
    let request = match state {
        BrowsedState::Dead => Request::Bury { token, key, reason: Box::default() },
        BrowsedState::Dropped => Request::Settle { token, key, value: None, how: Settlement::Drop },
        _ => Request::Extend { token: Some(token), key, timeout: 2_000_000 },
    };
    assert_eq!(real.commit_one(request, 0), ReadAnswer::Plain(Outcome::Done));
}

/// Between two pages tasks come, go, and change their state, and the server starts.
#[test]
fn what_stays_in_its_state_is_shown_once_whatever_happens_between_pages() {
    use BrowsedState::{Dead, Delayed, Dropped, Lent, Ready};
    for (seed, state) in (0..25).zip([Ready, Delayed, Lent, Dead, Dropped].into_iter().cycle()) {
        let (mut real, mut rng) = (open(), SeededRng(seed));
        let stays: Vec<String> = (0..200).map(|number| format!("stays-{number}")).collect();
        let terms = |rng: &mut SeededRng| AddTerms {
            class: u32::try_from(rng.below(3)).unwrap() + AddTerms::default().class - 1,
            group: [&b""[..], b"x", b"y"][usize::try_from(rng.below(3)).unwrap()].into(),
            delay: if state == Delayed { 1 + rng.below(1_000) } else { 0 },
            ..AddTerms::default()
        };
        for (number, key) in stays.iter().enumerate() {
            for key in [key.clone(), format!("goes-{number}")] {
                real.commit(vec![add_with(&key, terms(&mut rng))], 0).unwrap();
                settle(&mut real, state);
            }
        }
        let mut came = 0;
        let shown = keys(&mut real, state, None, 7, |real| {
            let key = format!("goes-{}", rng.below(200)).into_bytes().into();
            came += 1;
            let comes = add_with(&format!("came-{came}"), terms(&mut rng));
            real.commit(vec![Request::Remove { key }, comes], 0).unwrap();
            settle(real, state);
            if rng.below(4) == 0 {
                *real = RealQueues::open(real.store.clone(), LeaseOrder::Priority, Policy::Always, 0);
            }
        });
        let all: HashSet<&String> = shown.iter().collect();
        assert_eq!(all.len(), shown.len(), "seed {seed}: a task is shown twice");
        assert!(stays.iter().all(|key| all.contains(key)), "seed {seed}");
        let in_order =
            stays.iter().filter(|key| all.contains(key)).eq(shown.iter().filter(|key| key.starts_with("stays")));
        assert!(in_order || matches!(state, Ready | Delayed), "seed {seed}: each was leased before the next one came");
    }
}

#[test]
fn a_page_looks_at_a_bounded_number_of_tasks() {
    let mut real = open();
    let names: Vec<String> = (0..3 * BROWSED_MAX).map(|number| number.to_string()).collect();
    for chunk in names.chunks(1_000) {
        let later = |name: &String| add_with(name, AddTerms { delay: 9, ..AddTerms::default() });
        real.commit(chunk.iter().map(later).collect(), 0).unwrap();
    }
    while real.commit_one(Request::CountAll, 0) != ReadAnswer::Plain(Outcome::Counted(names.len() as u64)) {}
    let (tasks, next) = page(&mut real, BrowsedState::Delayed, Some(b"none"), None, 9);
    assert!(tasks.is_empty() && next.is_some(), "it is short, and not the last");
    assert_eq!(keys(&mut real, BrowsedState::Delayed, None, u32::MAX, |_| {}), names);
}

/// They were counted and shown until the alarm had come to each of them.
#[test]
fn a_task_whose_lifetime_is_over_is_neither_counted_nor_shown_however_many_go() {
    let mut real = open();
    let expiring = |number: usize, delay| {
        let lifetime = Some(100 + (number % 2) as u64);
        add_with(&number.to_string(), AddTerms { delay, lifetime, ..AddTerms::default() })
    };
    let all: Vec<usize> = (0..6 * EXPIRE_BUDGET).collect();
    for chunk in all.chunks(1_000) {
        let adds = chunk.iter().map(|&number| expiring(number, if number % 4 < 2 { 0 } else { 9_000 }));
        real.commit(adds.collect(), 0).unwrap();
    }
    let counted = |real: &mut RealQueues, request, now| {
        let answer = real.commit_one(request, now);
        let ReadAnswer::Plain(Outcome::Counted(count)) = answer else { panic!("{answer:?}") };
        usize::try_from(count).unwrap()
    };
    while counted(&mut real, Request::CountAll, 0) < all.len() {}
    assert_eq!(
        counted(&mut real, Request::Count, 100),
        all.len() / 4,
        "a half is over, and of the others a half is delayed"
    );
    let request = |state| Request::Browse(Browse { state, group: None, from: None, most: 100, first_bytes: 0 });
    let requests = vec![Request::CountAll, request(BrowsedState::Ready), request(BrowsedState::Delayed)];
    for (_, answer) in real.commit(requests, 101).unwrap() {
        match answer {
            ReadAnswer::Plain(Outcome::Browsed(page)) => assert_eq!(page.tasks, []),
            answer => assert_eq!(answer, ReadAnswer::Plain(Outcome::Counted(0))),
        }
    }
}
