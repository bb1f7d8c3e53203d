//! Delays and lifetimes that end: by the clock alone, and in bounded steps.

use super::{ReadAnswer, RealQueues};
use crate::limits::EXPIRE_BUDGET;
use crate::store::Value;
use crate::store::tests::fake_disk::FakeDisk;
use crate::tasks::{AddTerms, LeaseOrder, Outcome, Policy, QueueEnd, Request};

fn add(number: usize, terms: AddTerms) -> Request {
    let (key, value) = (Box::from(number.to_be_bytes()), Value::from(&b""[..]));
    Request::Add { key, value, end: QueueEnd::Tail, terms: Some(Box::new(terms)) }
}

fn ready(real: &mut RealQueues, now: u64) -> u64 {
    let ReadAnswer::Plain(outcome) = real.commit_one(Request::Count, now) else { panic!("it was counted") };
    outcome.counted()
}

/// A record for each of two million delays that end together was two million writes.
#[test]
fn a_delay_that_ends_stores_nothing() {
    let mut real = RealQueues::open(FakeDisk::new(), LeaseOrder::Priority, Policy::Always, 0);
    let delayed = AddTerms { delay: 50, ..AddTerms::default() };
    real.commit((0..100).map(|number| add(number, delayed.clone())).collect(), 0).unwrap();
    let (commits, _) = real.store.counts();
    assert_eq!((ready(&mut real, 49), ready(&mut real, 50)), (0, 100));
    assert_eq!(real.store.counts().0, commits);
    // It follows from the clock at an opening too.
    real.store.crash(0);
    let mut real = RealQueues::open(real.store, LeaseOrder::Priority, Policy::Always, 50);
    assert_eq!(ready(&mut real, 50), 100);
}

#[test]
fn what_ends_together_ends_in_bounded_steps() {
    for is_over in [false, true] {
        let mut real = RealQueues::open(FakeDisk::new(), LeaseOrder::Fifo, Policy::Always, 0);
        let most = EXPIRE_BUDGET as u64;
        let terms = match is_over {
            true => AddTerms { lifetime: Some(50), ..AddTerms::default() },
            false => AddTerms { delay: 50, ..AddTerms::default() },
        };
        real.commit((0..EXPIRE_BUDGET + 100).map(|number| add(number, terms.clone())).collect(), 0).unwrap();
        while real.commit_one(Request::CountAll, 0) != ReadAnswer::Plain(Outcome::Counted(most + 100)) {}
        let expected = if is_over { [most + 100, 0, 0] } else { [0, most, most + 100] };
        // An alarm counts for one of a step.
        let first = [ready(&mut real, 49), ready(&mut real, 50)];
        let expired = real.tasks.metrics().queues().pop().unwrap().counts().ever.expired;
        assert!(expired <= most, "those that are over count no more, and go in steps: {expired}");
        let steps = [first[0], first[1], ready(&mut real, 50)];
        let is_near = |(step, expected): (&u64, &u64)| step.abs_diff(*expected) <= 1;
        assert!(steps.iter().zip(&expected).all(is_near), "{steps:?}, {expected:?}");
    }
}
