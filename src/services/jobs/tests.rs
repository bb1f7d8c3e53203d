//! The end of the frontend: no job stays leased to a connection that it cuts off. And replies that wait: no job is sent
//! after its lease.

#![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

use std::cell::RefCell;
use std::future::Future;
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

use super::context::{EndSignal, JobRooms, JobsContext};
use super::conversation::converse;
use super::pace::RoomKind;
use super::responder::JobResponder;
use super::serve::{JobsConfig, JobsFrontend, JobsListener};
use super::stream::JobStream;
use super::timing::{self, JobTimer};
use super::wire::AckWording;
use crate::clock::Clock;
use crate::limits::{JOB_BUFFER_BYTES, JOB_ROOM_BYTES_MIN, TASKS_WINDOW_BYTES};
use crate::net::service::{Service, ServiceParts};
use crate::net::tcp::{ClientStream, RoomSignal};
use crate::store::Value;
use crate::store::tests::fake_disk::FakeDisk;
use crate::tasks::{self, Committer, Delivery, Family, LeaseOrder, Outcome, Policy, ReplySink, Request, Tasks};

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

/// Two clients got the same job: the first one's lease had ended while its reply waited for memory.
#[test]
fn a_job_whose_lease_ended_while_its_reply_waited_is_not_sent() {
    const LEASE: u64 = 5_000;
    static MILLIS: AtomicU64 = AtomicU64::new(1_000);
    let clock = Clock::fake(&MILLIS);
    let (tasks, mut committer) = tasks::open(Box::new(FakeDisk::new()), clock.reading()).unwrap();
    let family = committer.family(b"jobs/", LeaseOrder::Fifo, Policy::Always).unwrap();
    let sink = committer.sink(Box::new(NoSink));
    let context = Rc::new(JobsContext {
        responder: JobResponder::new(tasks.clone(), sink, RoomSignal::default(), clock),
        family: family.clone(),
        settings: JobsConfig { address: ([127, 0, 0, 1], 0).into(), lease: LEASE, words: AckWording::OkNo },
        users: None,
        clock,
        rooms: JobRooms::new(0),
        paces: super::pace::Paces::new(crate::net::budget::Budget::new(1 << 30)),
        closing: EndSignal::default(),
        over: EndSignal::default(),
        failed: tokio::sync::mpsc::unbounded_channel().0,
        timer: JobTimer { metrics: timing::metrics(), slow: Arc::default(), start_wall_millis: 0 },
        scrap: RefCell::new(vec![0; 64]),
    });
    let data = vec![b'x'; 2 * JOB_BUFFER_BYTES];
    let queue = || tasks.metrics().families().pop().unwrap().counts();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let shared = Rc::clone(&context);
        spawn_local(async move { shared.responder.submit_bursts().await.map(|_| ()) });
        let push = Request::Push { value: Value::from(&data[..]), terms: None };
        context.responder.submit(family.queue(b"q"), push, 0).await.unwrap();
        let mut late = serve(&context, b"GET q\n").await;
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
