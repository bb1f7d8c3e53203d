//! The end of the frontend: no job stays leased to a connection that it cuts off. And replies that wait: no job is sent
//! after its lease.

#![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::spawn_local;

use super::context::{JobRooms, JobsContext, ServiceEnds};
use super::conversation::converse;
use super::pace::RoomKind;
use super::responder::{JobResponder, LAST_MAX};
use super::serve::{JobsConfig, JobsFrontend, JobsListener};
use super::stream::JobStream;
use super::timing::{self, JobTimer};
use super::wire::AckWording;
use crate::clock::Clock;
use crate::limits::{JOB_BUFFER_BYTES, JOB_ROOM_BYTES_MIN, SUBMIT_BYTES_MAX, SUBMIT_MAX, TASKS_WINDOW_BYTES, UNDO_MAX};
use crate::net::service::{Service, ServiceParts};
use crate::net::tcp::{Burst, ClientStream, RoomSignal};
use crate::store::tests::fake_disk::FakeDisk;
use crate::store::{Space, Store, TaskKey, Value};
use crate::tasks::{
    self, AddTerms, Browse, BrowsedState, Committer, Delivery, Family, LeaseOrder, Outcome, Policy, ReplySink, Request,
    Submission, Tasks, Ticket,
};

fn open() -> (Tasks, Committer, Family) {
    let (tasks, mut committer) = tasks::open(Box::new(FakeDisk::new()), Clock::start().reading()).unwrap();
    let family = committer.family(b"jobs/", LeaseOrder::Fifo, Policy::Always).unwrap();
    (tasks, committer, family)
}

fn begin(address: SocketAddr, request: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request).unwrap();
    stream
}

fn ask(address: SocketAddr, request: &[u8]) -> String {
    let mut answer = String::new();
    begin(address, request).read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_job_that_its_client_has_not_received_at_the_end_is_free_for_the_next() {
    const BYTES: usize = 1_000_000;
    let (tasks, mut committer, family) = open();
    let settings = JobsConfig { address: ([127, 0, 0, 1], 0).into(), lease: 600_000, words: AckWording::OkNo };
    let [ending, staying] = [(); 2].map(|()| {
        let listener = JobsListener::bind(&settings, ServiceParts::default()).unwrap();
        listener.serve(JOB_ROOM_BYTES_MIN, &mut committer, tasks.clone(), family.clone())
    });
    drop(tasks);
    // Accepted connections inherit the buffer size, so the system takes only a small part of a large reply.
    set_socket_send_buffer_size(ending.front.listener(), 4_096).unwrap();
    std::thread::scope(|scope| {
        let committer = scope.spawn(|| committer.run(|| Clock::start().reading()));
        let run = |Service { front, stopper, endpoint, .. }: Service<JobsFrontend>| {
            (scope.spawn(|| front.run()), stopper, endpoint.parse().unwrap())
        };
        let ((ending, stop, first), (staying, stop_staying, second)) = (run(ending), run(staying));
        let add = [format!("ADD q {BYTES} ").as_bytes(), &[b'x'; BYTES]].concat();
        let ids = [0, 1].map(|_| ask(second, &add));
        let silent = [0, 1].map(|_| begin(first, b"GET q\n"));
        assert_eq!(ask(first, b"GET nothing\n"), "NONE", "what came before has been read");
        assert_eq!(ask(second, b"GET q\n"), "NONE", "both are handed out");
        stop.stop();
        ending.join().unwrap().unwrap();
        for id in ids {
            assert!(ask(second, b"GET q\n").starts_with(&id), "{id} is free again, and in its place");
        }
        stop_staying.stop();
        staying.join().unwrap().unwrap();
        committer.join().unwrap().unwrap();
        drop(silent);
    });
}

#[test]
fn a_lease_that_was_not_asked_for_yet_is_withdrawn_and_nothing_else_is() {
    let (tasks, _committer, family) = open();
    let responder = JobResponder::new(tasks, 0, RoomSignal::default(), Clock::start());
    let mut context = Context::from_waker(Waker::noop());
    let queue = || family.queue(b"q");
    let mut add = pin!(responder.submit(queue(), Request::Push { value: Value::from(&b"d"[..]), terms: None }, 10));
    let mut get = pin!(responder.submit(queue(), Request::Lease { timeout: 9, wait: false }, 10));
    assert!(add.as_mut().poll(&mut context).is_pending() && get.as_mut().poll(&mut context).is_pending());
    responder.take_back(queue(), 7, Box::from(*b"key"));
    responder.withdraw_leases();
    assert!(matches!(get.poll(&mut context), Poll::Ready(None)), "it gets no answer");
    assert!(add.poll(&mut context).is_pending());
    assert_eq!(responder.burst_len(), 2, "the job, and the one that goes back");
}

/// Beside jobs of a megabyte others waited for all of them.
#[test]
fn large_jobs_are_submitted_in_portions_and_small_ones_come_in_between() {
    let (tasks, mut committer, family) = open();
    let metrics = Arc::clone(tasks.metrics());
    let responder = JobResponder::new(tasks, 0, RoomSignal::default(), Clock::start());
    let mut context = Context::from_waker(Waker::noop());
    let submit = |bytes| {
        let push = Request::Push { value: Value::from(&b"d"[..]), terms: None };
        Box::pin(responder.submit(family.queue(b"q"), push, bytes))
    };
    let mut stored = || {
        committer.batch(Clock::start().reading()).unwrap();
        metrics.families().pop().unwrap().counts().ready
    };
    let [mut first, mut second, mut third] = [TASKS_WINDOW_BYTES / 2; 3].map(submit);
    for add in [&mut first, &mut second, &mut third] {
        assert!(add.as_mut().poll(&mut context).is_pending());
    }
    assert_eq!(stored(), 2);
    let mut small = submit(1_000);
    assert!(small.as_mut().poll(&mut context).is_pending());
    responder.submit_burst();
    assert_eq!(stored(), 3);
    assert!(third.as_mut().poll(&mut context).is_pending());
    assert_eq!(stored(), 3, "no large one is answered");
    responder.receive_delivery(Delivery { answers: vec![(0, Outcome::Added(1))], before: None });
    assert!(first.as_mut().poll(&mut context).is_ready());
    drop(first);
    assert!(third.as_mut().poll(&mut context).is_pending());
    assert_eq!(stored(), 4);
}

/// Each portion was copied behind the one before, and kept the memory of all: half a million requests took half a minute.
#[test]
fn a_long_burst_is_submitted_in_portions_in_the_order_of_its_requests() {
    let (tasks, _committer, family) = open();
    let (mut burst, count) = (Burst::default(), 3 * SUBMIT_MAX + 1);
    for number in 0..count as u64 {
        let ticket = Ticket { sink: 0, number };
        let request = if number % 2 == 0 { Request::Nothing } else { Request::Lease { timeout: 9, wait: false } };
        burst.push(Submission { queue: family.queue(b"q"), ticket, request }, 1);
    }
    let mut first = burst.take_portion();
    assert_eq!((first.len(), first.capacity() < 2 * SUBMIT_MAX, burst.len()), (SUBMIT_MAX, true, count - SUBMIT_MAX));
    let leases = burst.extract(|submission| submission.request != Request::Nothing);
    assert_eq!((leases.len(), burst.len()), (SUBMIT_MAX, SUBMIT_MAX + 1), "half of them");
    first.extend(std::iter::repeat_with(|| burst.take_portion()).take_while(|portion| !portion.is_empty()).flatten());
    assert!(burst.is_empty() && first.is_sorted_by_key(|submission| submission.ticket.number));
    for number in 0..4 {
        let ticket = Ticket { sink: 0, number };
        let submission = Submission { queue: family.queue(b"q"), ticket, request: Request::Nothing };
        burst.push(submission, SUBMIT_BYTES_MAX / 2);
    }
    assert_eq!((burst.take_portion().len(), burst.bytes()), (2, SUBMIT_BYTES_MAX), "it has as many bytes");
    drop(tasks);
}

/// A connection with half a million reservations gave them back before anybody else had a turn.
#[test]
fn connections_that_end_give_back_so_much_at_once_and_take_turns() {
    let (tasks, _committer, family) = open();
    let responder = JobResponder::new(tasks, 0, RoomSignal::default(), Clock::start());
    let mut context = Context::from_waker(Waker::noop());
    let last = || {
        let requests = (0..LAST_MAX).map(|_| (family.queue(b"q"), Request::Undo { token: 7, key: Box::from(*b"key") }));
        Box::pin(responder.submit_last(requests.collect()))
    };
    let mut ending: Vec<_> = std::iter::repeat_with(last).take(2 * UNDO_MAX / LAST_MAX).collect();
    for one in &mut ending {
        assert!(one.as_mut().poll(&mut context).is_pending());
    }
    assert_eq!(responder.burst_len(), UNDO_MAX);
    // The answer to the last request of the first one.
    responder.receive_delivery(Delivery { answers: vec![(0, Outcome::Done)], before: None });
    let ended: Vec<bool> = ending.iter_mut().map(|one| one.as_mut().poll(&mut context).is_ready()).collect();
    assert_eq!(ended.iter().filter(|is_ended| **is_ended).count(), 1);
    assert_eq!((ended.first(), responder.burst_len()), (Some(&true), UNDO_MAX + LAST_MAX), "the next one has its turn");
}

/// Takes no answers: the thread of the test commits by itself.
struct NoSink;

impl ReplySink for NoSink {
    fn deliver(&self, _: Delivery) {
        panic!("the committer is idle")
    }

    fn notify_room(&self) {}
}

/// A client whose request has been sent, and the task that serves it.
async fn serve(context: &Rc<JobsContext>, request: &[u8]) -> tokio::net::TcpStream {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    client.write_all(request).await.unwrap();
    let stream = JobStream::new(ClientStream::Plain(listener.accept().await.unwrap().0));
    spawn_local(converse(Rc::clone(context), stream));
    client
}

/// Conversations about the jobs on this disk, without a committer's thread.
fn conversations(disk: &FakeDisk, clock: Clock, lease: u64) -> (Rc<JobsContext>, Tasks) {
    let (tasks, mut committer) = tasks::open(Box::new(disk.clone()), clock.reading()).unwrap();
    let family = committer.family(b"jobs/", LeaseOrder::Fifo, Policy::Always).unwrap();
    let sink = committer.sink(Box::new(NoSink));
    let context = Rc::new(JobsContext {
        responder: Rc::new(JobResponder::new(tasks.clone(), sink, RoomSignal::default(), clock)),
        family,
        settings: JobsConfig { address: ([127, 0, 0, 1], 0).into(), lease, words: AckWording::OkNo },
        users: None,
        clock,
        rooms: JobRooms::new(0),
        paces: super::pace::Paces::new(crate::net::budget::Budget::new(1 << 30)),
        ends: ServiceEnds::new(tokio::sync::mpsc::unbounded_channel().0),
        timer: JobTimer { metrics: timing::metrics(), slow: Arc::default(), start_wall_millis: 0 },
        scrap: RefCell::new(vec![0; 64]),
    });
    (context, tasks)
}

/// Runs a test of conversations.
fn converse_in(context: &Rc<JobsContext>, test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let shared = Rc::clone(context);
        spawn_local(async move { shared.responder.submit_bursts().await.map(|_| ()) });
        test.await;
    });
}

async fn add(context: &JobsContext, queue: &[u8], data: &[u8], lease: Option<u64>) {
    let terms = Some(Box::new(AddTerms { lease, ..AddTerms::default() }));
    let push = Request::Push { value: Value::from(data), terms };
    let answer = context.responder.submit(context.family.queue(queue), push, 0).await.unwrap();
    assert!(answer.outcome.added().is_some());
}

/// Two clients got the same job: the first one's lease had ended while its reply waited for memory. Of a job with a lease
/// of its own only the usual length was known.
#[test]
fn a_job_whose_lease_ended_while_its_reply_waited_is_not_sent() {
    const LEASE: u64 = 5_000;
    static MILLIS: AtomicU64 = AtomicU64::new(1_000);
    let data = vec![b'x'; 2 * JOB_BUFFER_BYTES];
    for (request, usual, own) in [
        (&b"GET q\n"[..], LEASE, None),
        (b"GET q\n", 10 * LEASE, Some(LEASE)),
        (b"WAIT q 5\n", LEASE, None),
        (b"WAIT q 5\n", 10 * LEASE, Some(LEASE)),
    ] {
        let (context, tasks) = conversations(&FakeDisk::new(), Clock::fake(&MILLIS), usual);
        let queue = || tasks.metrics().families().pop().unwrap().counts();
        converse_in(&context, async {
            add(&context, b"q", &data, own).await;
            let mut late = serve(&context, request).await;
            while queue().leased == 0 {
                tokio::task::yield_now().await;
            }
            MILLIS.fetch_add(LEASE, Ordering::Relaxed);
            let mut next = serve(&context, b"GET q\n").await;
            while queue().ever.ran_out == 0 {
                tokio::task::yield_now().await;
            }
            context.rooms.of(RoomKind::Going).add_permits(data.len());
            let (mut first, mut second) = (Vec::new(), Vec::new());
            late.read_to_end(&mut first).await.unwrap();
            next.read_to_end(&mut second).await.unwrap();
            assert_eq!(first, b"NONE", "the job is the next client's");
            assert!(second.ends_with(&data), "its lease is held");
            assert_eq!(queue().leased, 1);
        });
    }
}

/// The whole answer. No more than so many jobs are lent until it is there.
async fn answer(mut client: tokio::net::TcpStream, tasks: &Tasks, most: u64) -> String {
    let read = async {
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let mut read = pin!(read);
    poll_fn(|context| {
        let lent = tasks.metrics().families().pop().unwrap().counts().ever.lent;
        assert!(lent <= most, "jobs are lent again and again: {lent}");
        context.waker().wake_by_ref();
        read.as_mut().poll(context)
    })
    .await
}

/// Whoever waits would be given the same job without an end, since it is the first one.
#[test]
fn a_wait_passes_over_a_job_that_cannot_be_read_until_its_pause_is_over() {
    static MILLIS: AtomicU64 = AtomicU64::new(1_000);
    let mut disk = FakeDisk::new();
    let (context, tasks) = conversations(&disk, Clock::fake(&MILLIS), 600_000);
    let counts = || tasks.metrics().families().pop().unwrap().counts();
    converse_in(&context, async {
        add(&context, b"q", b"first", None).await;
        let mut key = None;
        disk.take(Space::Tasks, &mut |found, _| key = TaskKey::try_from(found).ok());
        disk.unread(key.unwrap(), true);
        // With another job behind it.
        add(&context, b"q", b"second", None).await;
        let client = serve(&context, b"WAIT q 5\n").await;
        assert!(answer(client, &tasks, 2).await.ends_with(" second"));
        assert_eq!((counts().unread, counts().leased, counts().ready), (1, 1, 0));
        assert_eq!(answer(serve(&context, b"WAIT q 0\n").await, &tasks, 2).await, "NONE", "its pause is not over");
        // Alone, it is given as soon as it can be read: whoever waits has kept its place.
        MILLIS.fetch_add(1_000, Ordering::Relaxed);
        let client = serve(&context, b"WAIT q 60\n").await;
        while counts().unread == 0 || counts().ever.lent < 3 {
            tokio::task::yield_now().await;
        }
        disk.unread(key.unwrap(), false);
        MILLIS.fetch_add(2_000, Ordering::Relaxed);
        add(&context, b"other", b"a batch", None).await;
        assert!(answer(client, &tasks, 4).await.ends_with(" first"));
        let lent = Browse { state: BrowsedState::Lent, group: None, from: None, most: 9, first_bytes: 0 };
        let page = context.responder.submit(context.family.queue(b"q"), Request::Browse(lent), 0).await.unwrap();
        let Outcome::Browsed(page) = page.outcome else { panic!("a page") };
        let tries: Vec<u32> = page.tasks.iter().map(|task| task.lent).collect();
        assert_eq!(tries, [1, 1], "what could not be read was no try");
    });
}

/// Without a bound, the memory of requests that are not complete yet was as much as clients had a mind to send.
#[test]
fn a_large_job_waits_for_the_room_of_those_that_came_before() {
    const DATA: usize = 1_000_000;
    let (tasks, mut committer, family) = open();
    let settings = JobsConfig { address: ([127, 0, 0, 1], 0).into(), lease: 600_000, words: AckWording::OkNo };
    let listener = JobsListener::bind(&settings, ServiceParts::default()).unwrap();
    let Service { front, stopper, endpoint, .. } = listener.serve(JOB_ROOM_BYTES_MIN, &mut committer, tasks, family);
    let address = endpoint.parse().unwrap();
    std::thread::scope(|scope| {
        let committer = scope.spawn(|| committer.run(|| Clock::start().reading()));
        let front = scope.spawn(|| front.run());
        // Each takes room for all of its data when a part of it has come.
        let begun = [format!("ADD slow {DATA} ").as_bytes(), &[b'x'; DATA / 2]].concat();
        let slow: Vec<TcpStream> = (0..JOB_ROOM_BYTES_MIN / DATA).map(|_| begin(address, &begun)).collect();
        let add = [format!("ADD q {DATA} ").as_bytes(), &[b'y'; DATA]].concat();
        let answer = ask(address, &add);
        let is_answered = |stream: &TcpStream| {
            stream.set_nonblocking(true).unwrap();
            stream.peek(&mut [0]).is_ok_and(|bytes| bytes > 0)
        };
        let lost = slow.iter().filter(|stream| is_answered(stream)).count();
        stopper.stop();
        front.join().unwrap().unwrap();
        committer.join().unwrap().unwrap();
        assert_eq!(answer.len(), 20, "it is added");
        assert!(lost > 0, "one of them has lost its room before");
    });
}

#[test]
fn a_large_answer_waits_for_the_room_of_those_that_nobody_reads() {
    const DATA: usize = 1_000_000;
    let (tasks, mut committer, family) = open();
    let settings = JobsConfig { address: ([127, 0, 0, 1], 0).into(), lease: 600_000, words: AckWording::OkNo };
    let listener = JobsListener::bind(&settings, ServiceParts::default()).unwrap();
    let Service { front, stopper, endpoint, .. } =
        listener.serve(JOB_ROOM_BYTES_MIN, &mut committer, tasks.clone(), family);
    let address = endpoint.parse().unwrap();
    set_socket_send_buffer_size(front.listener(), 4_096).unwrap();
    std::thread::scope(|scope| {
        let committer = scope.spawn(|| committer.run(|| Clock::start().reading()));
        let front = scope.spawn(|| front.run());
        let add = [format!("ADD q {DATA} ").as_bytes(), &[b'x'; DATA]].concat();
        let unread_count = JOB_ROOM_BYTES_MIN / DATA;
        (0..=unread_count).for_each(|_| assert_eq!(ask(address, &add).len(), 20));
        let leased = || tasks.metrics().families().pop().unwrap().counts().leased;
        let unread: Vec<TcpStream> = (1..=unread_count)
            .map(|number| {
                let stream = begin(address, b"GET q\n");
                // Its answer takes its room in the order of the leases.
                while leased() < number as u64 {
                    std::thread::yield_now();
                }
                stream
            })
            .collect();
        let lengths = [(); 2].map(|()| ask(address, b"GET q\n").len());
        drop((unread, tasks));
        stopper.stop();
        front.join().unwrap().unwrap();
        committer.join().unwrap().unwrap();
        assert!(
            lengths[0] > DATA && lengths[1] > DATA,
            "one has lost its room before, and its job is free: {lengths:?}"
        );
    });
}
