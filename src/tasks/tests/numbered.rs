//! A queue whose tasks are named by their numbers, compared with a model. Numbers have no gaps and never repeat, over
//! crashes. A task that is dropped at once is there with its value and is never leased.

use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof, proptest};

use super::{ReadAnswer, RealQueues, token_of};
use crate::store::Value;
use crate::store::tests::fake_disk::FakeDisk;
use crate::tasks::{LeaseOrder, Outcome, Policy, Request, Settlement};

/// A task of the model.
#[derive(Clone, Debug, Default)]
struct NumberedModelTask {
    value: Vec<u8>,
    dropped: bool,
    token: Option<u64>,
}

#[derive(Clone, Debug)]
enum NumberedOperation {
    /// Several tasks in one batch.
    Append(Vec<(u8, bool)>),
    Lease,
    /// Ends the oldest lease: with a value, or back to the queue.
    Settle(Option<u8>),
    Crash,
}

fn operation() -> impl Strategy<Value = NumberedOperation> {
    prop_oneof![
        4 => vec(any::<(u8, bool)>(), 1..5).prop_map(NumberedOperation::Append),
        3 => Just(NumberedOperation::Lease),
        3 => proptest::option::weighted(0.7, any::<u8>()).prop_map(NumberedOperation::Settle),
        1 => Just(NumberedOperation::Crash),
    ]
}

fn key(number: usize) -> Box<[u8]> {
    number.to_string().into_bytes().into()
}

fn append((byte, dropped): (u8, bool)) -> Request {
    Request::Append { value: Value::from(&[byte][..]), dropped }
}

/// Checks that the visible state of the queue equals the model.
fn assert_same(real: &mut RealQueues, model: &[NumberedModelTask]) {
    let count = real.commit_one(Request::CountAll, 0);
    assert_eq!(count, ReadAnswer::Plain(Outcome::Counted(model.len() as u64)));
    let looks = (1..=model.len() + 1).map(|number| Request::LookDropped { key: key(number) });
    let answers: Vec<ReadAnswer> =
        real.commit(looks.collect(), 0).unwrap().into_iter().map(|(_, answer)| answer).collect();
    let standing = |task: &NumberedModelTask| {
        if task.dropped { ReadAnswer::Found(task.value.clone()) } else { ReadAnswer::Plain(Outcome::Found(None)) }
    };
    let absent = ReadAnswer::Plain(Outcome::Refused);
    let expected: Vec<ReadAnswer> = model.iter().map(standing).chain([absent]).collect();
    assert_eq!(answers, expected);
}

fn step(real: &mut RealQueues, model: &mut Vec<NumberedModelTask>, operation: &NumberedOperation) {
    match operation {
        NumberedOperation::Append(inputs) => {
            let answers = real.commit(inputs.iter().copied().map(append).collect(), 0).unwrap();
            for ((byte, dropped), (_, answer)) in inputs.iter().zip(answers) {
                model.push(NumberedModelTask { value: vec![*byte], dropped: *dropped, token: None });
                assert_eq!(answer, ReadAnswer::Plain(Outcome::Added(model.len() as u64)));
            }
        }
        NumberedOperation::Lease => {
            let answer = real.commit_one(Request::Lease { timeout: u64::MAX, wait: false }, 0);
            let is_free = |task: &NumberedModelTask| !task.dropped && task.token.is_none();
            match (token_of(&answer), answer) {
                (token @ Some(_), ReadAnswer::Leased { key, value, .. }) => {
                    let number: usize = String::from_utf8(key).unwrap().parse().unwrap();
                    let task = &mut model[number - 1];
                    assert!(is_free(task) && task.value == value);
                    task.token = token;
                }
                _ => assert!(!model.iter().any(is_free)),
            }
        }
        NumberedOperation::Settle(value) => {
            let leased = model.iter_mut().enumerate().filter_map(|(at, task)| Some((task.token?, at)));
            let Some((token, at)) = leased.min() else { return };
            let how = if value.is_some() { Settlement::Drop } else { Settlement::Penalty };
            let value = value.map(|byte| Value::from(&[byte][..]));
            model[at].token = None;
            if let Some(value) = &value {
                (model[at].dropped, model[at].value) = (true, value.to_vec());
            }
            let answer = real.commit_one(Request::Settle { token, key: key(at + 1), value, how }, 0);
            assert_eq!(answer, ReadAnswer::Plain(Outcome::Done));
        }
        NumberedOperation::Crash => {
            real.store.crash(0);
            *real = RealQueues::open(real.store.clone(), LeaseOrder::Priority, Policy::Always, 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_numbered_queue_does_as_the_model_does(operations in vec(operation(), 1..40)) {
        let mut real = RealQueues::open(FakeDisk::new(), LeaseOrder::Priority, Policy::Always, 0);
        let mut model = Vec::new();
        for operation in &operations {
            step(&mut real, &mut model, operation);
            assert_eq!(real.store.unsynced(), 0, "answered before it was on disk");
            assert_same(&mut real, &model);
        }
    }
}

#[test]
fn a_number_that_somebody_has_used_as_a_key_is_kept() {
    let mut real = RealQueues::open(FakeDisk::new(), LeaseOrder::Priority, Policy::Always, 0);
    let two =
        Request::Add { key: key(2), value: Value::from(&b""[..]), end: crate::tasks::QueueEnd::Tail, terms: None };
    real.commit(vec![two], 0).unwrap();
    assert_eq!(real.commit_one(append((1, true)), 0), ReadAnswer::Plain(Outcome::Refused));
}
