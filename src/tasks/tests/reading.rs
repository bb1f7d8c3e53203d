//! Answers whose values are in the store: all of them are read at once, and leases without their values are apart.

use std::sync::Arc;

use super::{QUEUE, add, at};
use crate::lock::Mutex;
use crate::store::Value;
use crate::store::tests::fake_disk::FakeDisk;
use crate::tasks::record::task_key;
use crate::tasks::{
    Delivery, LeaseOrder, NameKind, Outcome, Payload, Policy, QueueName, ReplySink, Request, Submission, Ticket, open,
};

/// Keeps what is delivered.
#[derive(Clone, Default)]
struct KeepingSink(Arc<Mutex<Vec<Delivery>>>);

impl ReplySink for KeepingSink {
    fn deliver(&self, delivery: Delivery) {
        self.0.lock().push(delivery);
    }

    fn notify_room(&self) {}
}

#[test]
fn of_many_leases_those_without_their_values_are_apart() {
    let store = FakeDisk::new();
    let (tasks, mut committer) = open(Box::new(store.clone()), at(0)).unwrap();
    let sink = KeepingSink::default();
    committer.sink(Box::new(sink.clone()));
    let queue = committer.queue(QUEUE, LeaseOrder::Priority, Policy::Always).unwrap();
    let mut commit = |requests: Vec<Request>| {
        let ticket = Ticket { sink: 0, number: 0 };
        let submission = |request| Submission { queue: queue.clone(), ticket, request };
        tasks.submit(requests.into_iter().map(submission).collect());
        committer.batch(at(0)).unwrap();
        sink.0.lock().pop().unwrap()
    };
    commit(["a", "b", "c", "d"].map(add).to_vec());
    store.rot(task_key(0, 2));
    store.unread(task_key(0, 4), true);
    let queues = vec![QueueName(NameKind::Opened(0))];
    let Delivery { mut answers, before } =
        commit(vec![Request::LeaseMany { queues: queues.into(), count: 9, timeout: 9, wait: 0 }]);
    let (_, mut outcome) = answers.pop().unwrap();
    assert!(outcome.is_stored() && outcome.stored_bytes(before.as_deref()) < 100);
    outcome.fill(before.as_deref());
    let read = outcome.read(before.as_deref()).unwrap();
    let Outcome::LeasedMany(leases) = read.outcome else { panic!("two are there") };
    let found: Vec<_> = leases.iter().map(|lease| (&*lease.key, lease.payload.clone())).collect();
    assert_eq!(found, [b"a", b"c"].map(|key| (&key[..], Payload::Fresh(Value::from(&key[..])))));
    let unread: Vec<_> = read.unread.iter().map(|lease| &*lease.key).collect();
    assert_eq!((unread, read.has_failed), (vec![&b"b"[..], b"d"], false));
}
