//! Task queues by name over spiderq: options, many at once, failures with their reasons, and what users may do.

use std::num::NonZeroU32;

use spindle::clients::rust::tasks::TasksClient;
use spindle::services::tasks::wire::{
    AddMode, AnyReply, AnyRequest, Fault, Field, ItemResult, Kicked, LIST_MAX, LeaseEnd, LendMode, NamedLease,
    QueueReply, QueueRequest, RepayStatus, Reply, Request, SeenSettings,
};
use spindle::tasks::{AddTerms, BrowsePlace, BrowsedState, QueueChange, QueueTerms, Rate, SweptStates};

use crate::admin::awaited;
use crate::harness::{Server, spindle_reads};

/// Longer than any test.
const LONG: u64 = 600_000;

/// A task that was lent: which queue of the request, lend key, tries, key and value.
type LentTask = (u16, u64, u32, Vec<u8>, Vec<u8>);

/// A task on a page: key, tries, reason, length of its value and the first bytes of it.
type ShownTask = (Vec<u8>, u32, Vec<u8>, u64, Vec<u8>);

/// A queue in a list: name, ready and dead tasks, settings and pause.
type ListedQueue = (Vec<u8>, u64, u64, SeenSettings, Option<u64>);

fn connect(server: &Server) -> TasksClient {
    TasksClient::connect(server.tasks()).unwrap()
}

fn ask<'c>(client: &'c mut TasksClient, request: QueueRequest<'_>) -> AnyReply<'c> {
    client.ask(&AnyRequest::OfQueues(request)).unwrap()
}

fn in_queue<'c>(client: &'c mut TasksClient, queue: &[u8], request: Request<'_>) -> Reply<'c> {
    let AnyReply::Plain(reply) = client.ask(&AnyRequest::InQueue(queue, request)).unwrap() else {
        panic!("an old request has an old reply")
    };
    reply
}

fn add(client: &mut TasksClient, queues: &[&[u8]], key: &[u8], value: &[u8], terms: AddTerms) -> Vec<ItemResult> {
    let add = QueueRequest::AddMany { queues: queues.to_vec(), key, value, mode: AddMode::Tail, terms };
    let AnyReply::OfQueues(QueueReply::Items(_, items)) = ask(client, add) else { panic!("one for each queue") };
    items
}

fn lend(client: &mut TasksClient, queues: &[&[u8]], count: u32, wait_ms: u64) -> Vec<LentTask> {
    let lend = QueueRequest::LendMany { queues: queues.to_vec(), count, timeout_ms: LONG, wait_ms };
    match ask(client, lend) {
        AnyReply::Plain(Reply::QueueEmpty) => Vec::new(),
        AnyReply::OfQueues(QueueReply::Lent(tasks)) => {
            assert!((1..=count as usize).contains(&tasks.len()));
            tasks
                .iter()
                .map(|task| (task.queue, task.lend_key, task.tries, task.key.into(), task.value.into()))
                .collect()
        }
        other => panic!("{other:?}"),
    }
}

fn settle(client: &mut TasksClient, ends: Vec<(NamedLease<'_>, LeaseEnd<'_>)>) -> Vec<ItemResult> {
    let AnyReply::OfQueues(QueueReply::Items(_, items)) = ask(client, QueueRequest::SettleMany(ends)) else {
        panic!("one for each lease")
    };
    items
}

/// The keys, tries and reasons of the tasks in a state.
fn browse(client: &mut TasksClient, queue: &[u8], state: BrowsedState, most: u32) -> Vec<ShownTask> {
    let (mut tasks, mut from) = (Vec::new(), BrowsePlace::default());
    loop {
        let browse = QueueRequest::Browse { queue, state, group: None, from, most, first_bytes: 4 };
        let AnyReply::OfQueues(QueueReply::Browsed(page, next)) = ask(client, browse) else { panic!("a page") };
        let shown =
            page.iter().map(|task| (task.key.into(), task.tries, task.reason.into(), task.bytes, task.first.into()));
        tasks.extend(shown);
        match next {
            None => return tasks,
            Some(next) => from = next,
        }
    }
}

/// The names of the queues, with the numbers of their ready and dead tasks, and what is set.
fn queues(client: &mut TasksClient) -> Vec<ListedQueue> {
    let (mut all, mut from) = (Vec::new(), 0);
    loop {
        let AnyReply::OfQueues(QueueReply::Queues(page, next)) = ask(client, QueueRequest::Queues { from, most: 1 })
        else {
            panic!("a page")
        };
        all.extend(page.iter().map(|queue| {
            (queue.name.to_vec(), queue.figures.0[0], queue.figures.0[3], queue.settings, queue.paused_ms)
        }));
        match next {
            None => break,
            Some(next) => from = next,
        }
    }
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

fn configure(client: &mut TasksClient, queue: &[u8], change: QueueChange) {
    let configured = ask(client, QueueRequest::Configure { queue, change });
    assert_eq!(configured, AnyReply::OfQueues(QueueReply::Configured));
}

#[test]
fn each_queue_has_its_own_keys_and_the_old_requests_in_it_their_old_replies() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_tasks(folder.path(), &[]);
    let mut client = connect(&server);
    assert!(client.add(b"k", b"of default", AddMode::Tail).unwrap());
    let value = b"of mail";
    assert_eq!(in_queue(&mut client, b"mail", Request::Count), Reply::Counted(0));
    assert_eq!(in_queue(&mut client, b"mail", Request::Add { key: b"k", value, mode: AddMode::Tail }), Reply::Added);
    assert_eq!(in_queue(&mut client, b"mail", Request::Add { key: b"k", value, mode: AddMode::Head }), Reply::Kept);
    assert_eq!(in_queue(&mut client, b"mail", Request::Lookup { key: b"k" }), Reply::ValueFound(b"of mail"));
    assert_eq!(in_queue(&mut client, b"default", Request::Lookup { key: b"k" }), Reply::ValueFound(b"of default"));
    assert_eq!(client.count().unwrap(), 1);
    let poll = Request::Lend { timeout_ms: LONG, mode: LendMode::Poll };
    let Reply::Lent { lend_key, .. } = in_queue(&mut client, b"mail", poll) else { panic!("it is ready") };
    assert_eq!(in_queue(&mut client, b"mail", poll), Reply::QueueEmpty);
    let heartbeat = Request::Heartbeat { lend_key, key: b"k", timeout_ms: LONG };
    assert_eq!(in_queue(&mut client, b"default", heartbeat), Reply::Skipped, "it is of another queue");
    assert_eq!(in_queue(&mut client, b"mail", heartbeat), Reply::Heartbeaten);
    let remove = Request::Remove { key: b"k" };
    assert_eq!(in_queue(&mut client, b"mail", remove), Reply::Removed);
    assert_eq!(in_queue(&mut client, b"mail", Request::Ping), Reply::Pong);
    let names: Vec<_> = queues(&mut client).into_iter().map(|queue| queue.0).collect();
    assert_eq!(names, [b"default"], "a queue goes with its last task");
    let unknown = Reply::Error(Fault::Offending { field: Field::UnknownTag, offending: 8 });
    assert_eq!(in_queue(&mut client, b"mail", Request::Terminate), unknown);
    server.stop();
}

/// The page of the protocol names the number.
#[test]
fn a_page_has_no_more_than_the_first_kilobyte_of_a_value() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_tasks(folder.path(), &[]);
    let mut client = connect(&server);
    add(&mut client, &[b"mail"], b"k", &[b'v'; 2_000], AddTerms::default());
    for (first_bytes, shown) in [(0, 0), (1_023, 1_023), (1_024, 1_024), (u32::MAX, 1_024)] {
        let (queue, state, from) = (&b"mail"[..], BrowsedState::Ready, BrowsePlace::default());
        let browse = QueueRequest::Browse { queue, state, group: None, from, most: 1, first_bytes };
        let AnyReply::OfQueues(QueueReply::Browsed(page, _)) = ask(&mut client, browse) else { panic!("a page") };
        assert_eq!((page[0].bytes, page[0].first), (2_000, &[b'v'; 2_000][..shown]));
    }
    server.stop();
}

#[test]
fn a_task_that_fails_too_often_is_dead_with_its_reason_also_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start_tasks(folder.path(), &[]);
    let mut client = connect(&server);
    let terms = AddTerms { tries: Some(NonZeroU32::new(2)), ..AddTerms::default() };
    assert_eq!(add(&mut client, &[b"mail"], b"k", b"value", terms), [ItemResult::Done]);
    for (tries, reason) in [(1, &b"first"[..]), (2, b"second")] {
        let [(0, lend_key, lent, key, value)] = &lend(&mut client, &[b"mail"], 9, 5_000)[..] else {
            panic!("one task")
        };
        assert_eq!((*lent, &value[..]), (tries, &b"value"[..]));
        let lease = NamedLease { queue: b"mail", lend_key: *lend_key, key };
        let failed = LeaseEnd::GiveBack { delay_ms: Some(1), reason };
        assert_eq!(
            settle(&mut client, vec![(lease, failed), (lease, failed)]),
            [ItemResult::Done, ItemResult::Refused]
        );
    }
    assert_eq!(lend(&mut client, &[b"mail"], 1, 0), []);
    let dead = vec![(b"k".to_vec(), 2, b"second".to_vec(), 5, b"valu".to_vec())];
    assert_eq!(browse(&mut client, b"mail", BrowsedState::Dead, 10), dead);
    drop(server);
    server = Server::start_tasks(folder.path(), &[]);
    let mut client = connect(&server);
    assert_eq!(browse(&mut client, b"mail", BrowsedState::Dead, 10), dead);
    let kick = |what| QueueRequest::Kick { queue: b"mail", what };
    let counted = |reply: AnyReply<'_>| {
        let AnyReply::OfQueues(QueueReply::Counted(_, count)) = reply else { panic!("{reply:?}") };
        count
    };
    assert_eq!(counted(ask(&mut client, kick(Kicked::One(b"none")))), 0);
    assert_eq!(counted(ask(&mut client, kick(Kicked::Dead(10)))), 1);
    let [(_, lend_key, 1, key, _)] = &lend(&mut client, &[b"mail"], 1, 0)[..] else { panic!("its tries begin anew") };
    let lease = NamedLease { queue: b"mail", lend_key: *lend_key, key };
    let extend = QueueRequest::ExtendMany(vec![(lease, LONG), (NamedLease { lend_key: 7, ..lease }, LONG)]);
    let AnyReply::OfQueues(QueueReply::Items(_, items)) = ask(&mut client, extend) else { panic!("one for each") };
    assert_eq!(items, [ItemResult::Done, ItemResult::Refused]);
    assert_eq!(settle(&mut client, vec![(lease, LeaseEnd::NotBegun)]), [ItemResult::Done]);
    let [(_, lend_key, 1, key, _)] = &lend(&mut client, &[b"mail"], 1, 0)[..] else { panic!("that was no try") };
    let lease = NamedLease { queue: b"mail", lend_key: *lend_key, key };
    assert_eq!(settle(&mut client, vec![(lease, LeaseEnd::Bury { reason: b"bad" })]), [ItemResult::Done]);
    assert_eq!(browse(&mut client, b"mail", BrowsedState::Dead, 1)[0].2, b"bad");
    let states = SweptStates { dead: true, ..SweptStates::default() };
    assert_eq!(counted(ask(&mut client, QueueRequest::Purge { queue: b"mail", states, age_ms: 0 })), 1);
    assert_eq!(queues(&mut client).len(), 1);
    server.stop();
}

/// More than fits into the memory of a batch, in two queues, with values that are read from the disk.
#[test]
fn many_are_added_to_many_queues_lent_at_once_and_done_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_tasks(folder.path(), &[]);
    let mut client = connect(&server);
    let value = |number: usize| vec![u8::try_from(number % 251).unwrap(); 30_000];
    for number in 0..100 {
        let key = format!("{number:03}");
        let added = add(&mut client, &[b"a", b"b"], key.as_bytes(), &value(number), AddTerms::default());
        assert_eq!(added, [ItemResult::Done; 2]);
    }
    assert_eq!(
        add(&mut client, &[b"a", b"c"], b"000", b"", AddTerms::default()),
        [ItemResult::Refused, ItemResult::Done]
    );
    server.stop();
    let server = Server::start_tasks(folder.path(), &[]);
    let mut client = connect(&server);
    let mut seen: [Vec<Vec<u8>>; 2] = Default::default();
    while seen[0].len() + seen[1].len() < 200 {
        let tasks = lend(&mut client, &[b"b", b"a"], 64, 0);
        // A megabyte of values behind the first.
        assert!(tasks.len() <= 36, "{}", tasks.len());
        let ends = tasks.iter().map(|(queue, lend_key, tries, key, found)| {
            let number: usize = String::from_utf8_lossy(key).parse().unwrap();
            assert_eq!((*tries, found), (1, &value(number)), "{number}");
            seen[usize::from(*queue)].push(key.clone());
            let queue: &[u8] = if *queue == 0 { b"b" } else { b"a" };
            (NamedLease { queue, lend_key: *lend_key, key }, LeaseEnd::Repay(RepayStatus::Done, b""))
        });
        let ends: Vec<_> = ends.collect();
        assert_eq!(settle(&mut client, ends), vec![ItemResult::Done; tasks.len()]);
    }
    for keys in &seen {
        assert!(keys.len() == 100 && keys.is_sorted(), "in their order, and each once");
    }
    assert_eq!(lend(&mut client, &[b"b", b"a"], 64, 0), []);
    server.stop();
}

/// One is closed with its lease on the way, and one while it waits in two queues.
#[test]
fn what_a_client_has_left_goes_back_to_its_queue() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_tasks(folder.path(), &[]);
    let mut client = connect(&server);
    // The client reads few of them: more than buffers hold.
    let value = vec![7; 8 << 20];
    for number in 0..6_u8 {
        add(&mut client, &[b"a"], &[number], &value, AddTerms::default());
    }
    let raw = |requests: &[AnyRequest<'_>]| {
        let socket = zmq::Context::new().socket(zmq::DEALER).unwrap();
        socket.set_linger(0).unwrap();
        socket.set_rcvhwm(1).unwrap();
        socket.connect(server.tasks()).unwrap();
        for request in requests {
            let mut bytes = Vec::new();
            request.encode(&mut bytes);
            socket.send(bytes, 0).unwrap();
        }
        socket
    };
    let lend_many = |queues: Vec<&'static [u8]>| {
        AnyRequest::OfQueues(QueueRequest::LendMany { queues, count: 1, timeout_ms: LONG, wait_ms: LONG })
    };
    let mut requests = vec![lend_many(vec![b"none", b"a"]); 6];
    requests.push(lend_many(vec![b"none", b"other"]));
    let waiting = raw(&requests);
    awaited("the leases", || Some(browse(&mut client, b"a", BrowsedState::Lent, 9)).filter(|lent| lent.len() == 6));
    drop(waiting);
    let back = lend(&mut client, &[b"a"], 1, 60_000);
    assert!(back.len() == 1 && back[0].4 == value, "it is lent again");
    assert_eq!(back[0].2, 1, "an undone lease is no try");
    assert!(add(&mut client, &[b"other"], b"k", b"", AddTerms::default()) == [ItemResult::Done]);
    assert_eq!(lend(&mut client, &[b"other"], 1, 60_000).len(), 1, "nobody waits for it any more");
    server.stop();
}

/// A request that waits in 1,024 queues takes as much memory as 1,024 that wait in one.
#[test]
fn who_waits_in_many_queues_takes_a_place_in_each() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_tasks(folder.path(), &[]);
    let names: Vec<String> = (0..LIST_MAX).map(|number| format!("queue-{number}")).collect();
    let queues: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    let socket = zmq::Context::new().socket(zmq::DEALER).unwrap();
    socket.set_linger(0).unwrap();
    socket.connect(server.tasks()).unwrap();
    let mut bytes = Vec::new();
    AnyRequest::OfQueues(QueueRequest::LendMany { queues, count: 1, timeout_ms: LONG, wait_ms: LONG })
        .encode(&mut bytes);
    (0..100).for_each(|_| socket.send(&bytes, 0).unwrap());
    socket.send(&b"\x0b"[..], 0).unwrap();
    // A connection has at most as many places as it leaves: 49 times 1,024 of 100,000.
    let replies: Vec<Vec<u8>> = (0..52).map(|_| socket.recv_bytes(0).unwrap()).collect();
    assert_eq!((replies.iter().filter(|reply| **reply == [0x10]).count(), &replies[51][..]), (51, &[0x11][..]));
    let mut other = connect(&server);
    assert_eq!(lend(&mut other, &[b"queue-0"], 1, 50), [], "another one waits, until its time is over");
    add(&mut other, &[b"queue-7"], b"k", b"v", AddTerms::default());
    assert_eq!(&socket.recv_bytes(0).unwrap()[..7], [0x22, 0, 0, 0, 1, 0, 7], "the first that waits has it");
    drop(socket);
    awaited("the task", || Some(browse(&mut other, b"queue-7", BrowsedState::Lent, 1)).filter(|lent| !lent.is_empty()));
    server.stop();
}

#[test]
fn a_queue_keeps_its_settings_and_its_pause_over_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start_tasks(folder.path(), &[]);
    let mut client = connect(&server);
    let limit = NonZeroU32::new(1);
    let change = QueueChange {
        group_limit: Some(limit),
        pause: Some(u64::MAX),
        tries: Some(Some(None)),
        ..QueueChange::default()
    };
    configure(&mut client, b"mail", change);
    drop(server);
    server = Server::start_tasks(folder.path(), &[]);
    let mut client = connect(&server);
    let terms = QueueTerms { tries: Some(None), backoff: None, group_limit: limit };
    let settings = SeenSettings { terms, ..SeenSettings::default() };
    let [_, (name, 0, 0, seen, Some(u64::MAX))] = &queues(&mut client)[..] else { panic!("{:?}", queues(&mut client)) };
    assert_eq!((&name[..], *seen), (&b"mail"[..], settings));
    for (key, group) in [(b"1", &b"x"[..]), (b"2", b"x"), (b"3", b"y")] {
        let terms = AddTerms { group: group.into(), ..AddTerms::default() };
        assert_eq!(add(&mut client, &[b"mail"], key, b"", terms), [ItemResult::Done]);
    }
    assert_eq!(lend(&mut client, &[b"mail"], 9, 0), [], "it is paused");
    configure(&mut client, b"mail", QueueChange { pause: Some(0), ..QueueChange::default() });
    let keys: Vec<_> = lend(&mut client, &[b"mail"], 9, 0).into_iter().map(|task| task.3).collect();
    assert_eq!(keys, [b"1", b"3"], "one of each group");
    server.stop();
}

#[test]
fn groups_take_turns_and_a_rate_bounds_what_is_lent_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_tasks(folder.path(), &[]);
    let mut client = connect(&server);
    let of = |group: &[u8]| AddTerms { group: group.into(), ..AddTerms::default() };
    for (key, group) in [(b"x1", &b"x"[..]), (b"x2", b"x"), (b"x3", b"x"), (b"y1", b"y"), (b"n1", b"")] {
        assert_eq!(add(&mut client, &[b"mail"], key, b"", of(group)), [ItemResult::Done]);
    }
    let page = |client: &mut TasksClient, group: Option<&[u8]>| -> Vec<Vec<u8>> {
        let (queue, state, from) = (&b"mail"[..], BrowsedState::Ready, BrowsePlace::default());
        let browse = QueueRequest::Browse { queue, state, group, from, most: 9, first_bytes: 0 };
        let AnyReply::OfQueues(QueueReply::Browsed(page, None)) = ask(client, browse) else { panic!("a page") };
        page.iter().map(|task| [task.group, b":", task.key].concat()).collect()
    };
    assert_eq!(page(&mut client, None), [&b"x:x1"[..], b"x:x2", b"x:x3", b"y:y1", b":n1"]);
    assert_eq!(page(&mut client, Some(b"x")), [b"x:x1", b"x:x2", b"x:x3"]);
    assert_eq!((page(&mut client, Some(b"")), page(&mut client, Some(b"z"))), (vec![b":n1".to_vec()], vec![]));
    let keys = |tasks: Vec<LentTask>| -> Vec<Vec<u8>> { tasks.into_iter().map(|task| task.3).collect() };
    // Two at once, and then one in a second.
    let rate = |rate| QueueChange { rate: Some(rate), ..QueueChange::default() };
    configure(&mut client, b"mail", rate(Rate::of(1, 1_000, 2)));
    assert_eq!(keys(lend(&mut client, &[b"mail"], 9, 0)), [b"x1", b"y1"], "each group has its turn");
    assert_eq!(keys(lend(&mut client, &[b"mail"], 1, LONG)), [b"n1"], "who waits has the next one in its time");
    configure(&mut client, b"mail", rate(None));
    assert_eq!(keys(lend(&mut client, &[b"mail"], 9, 0)), [b"x2", b"x3"]);
    server.stop();
}

#[test]
fn a_purge_takes_the_named_states_alone() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_tasks(folder.path(), &[]);
    let mut client = connect(&server);
    let delayed = AddTerms { delay: LONG, ..AddTerms::default() };
    for key in [b"lent", b"dead"] {
        add(&mut client, &[b"mail"], key, b"", AddTerms::default());
    }
    let [_, (_, lend_key, _, key, _)] = &lend(&mut client, &[b"mail"], 2, 0)[..] else { panic!("both are ready") };
    let lease = NamedLease { queue: b"mail", lend_key: *lend_key, key };
    assert_eq!(settle(&mut client, vec![(lease, LeaseEnd::Bury { reason: b"no" })]), [ItemResult::Done]);
    add(&mut client, &[b"mail"], b"late", b"", delayed);
    add(&mut client, &[b"mail"], b"ready", b"", AddTerms::default());
    let mut purge = |states, age_ms| {
        let purge = QueueRequest::Purge { queue: b"mail", states, age_ms };
        let AnyReply::OfQueues(QueueReply::Counted(_, count)) = ask(&mut client, purge) else { panic!("a count") };
        count
    };
    let none = SweptStates::default();
    assert_eq!(purge(SweptStates { ready: true, delayed: true, dead: true, dropped: true }, LONG), 0, "all are young");
    assert_eq!(purge(SweptStates { dropped: true, ..none }, 0), 0);
    assert_eq!(purge(SweptStates { dead: true, ..none }, 0), 1);
    assert_eq!(purge(SweptStates { ready: true, delayed: true, ..none }, 0), 2);
    assert_eq!(browse(&mut client, b"mail", BrowsedState::Lent, 9).len(), 1, "what is lent stays");
    server.stop();
}

/// A client of libzmq that logs in.
struct LoggedIn(zmq::Socket);

impl LoggedIn {
    fn connect(server: &Server, name: &str) -> Self {
        let socket = zmq::Context::new().socket(zmq::DEALER).unwrap();
        socket.set_linger(0).unwrap();
        socket.set_plain_username(Some(name)).unwrap();
        socket.set_plain_password(Some("secret")).unwrap();
        socket.connect(server.tasks()).unwrap();
        Self(socket)
    }

    fn ask(&self, request: QueueRequest<'_>) -> Vec<u8> {
        self.ask_any(&AnyRequest::OfQueues(request))
    }

    fn ask_any(&self, request: &AnyRequest<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        self.0.send(bytes, 0).unwrap();
        self.0.recv_bytes(0).unwrap()
    }

    fn queues(&self) -> Vec<Vec<u8>> {
        let reply = self.ask(QueueRequest::Queues { from: 0, most: 9 });
        let Ok(AnyReply::OfQueues(QueueReply::Queues(page, None))) = AnyReply::decode(&reply) else { panic!("a page") };
        page.iter().map(|queue| queue.name.to_vec()).collect()
    }
}

#[test]
fn a_user_has_the_queues_whose_names_begin_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users");
    let users = file.to_str().unwrap();
    let add_user = |arguments: &[&str]| {
        let arguments = [&["user", "add", "--users", users, "--password-stdin"][..], arguments].concat();
        let done = spindle_reads(&arguments, b"secret");
        assert!(done.status.success(), "{done:?}");
    };
    add_user(&["reader", "--tasks-read", "ma"]);
    add_user(&["writer", "--tasks-write", "mail", "--tasks", "write"]);
    let server = Server::start_tasks(&folder.path().join("data"), &["--users", users]);
    let [reader, writer] = ["reader", "writer"].map(|name| LoggedIn::connect(&server, name));
    let add = |queues: Vec<&'static [u8]>| {
        let terms = AddTerms::default();
        QueueRequest::AddMany { queues, key: b"k", value: b"", mode: AddMode::Tail, terms }
    };
    assert_eq!(writer.ask(add(vec![b"mail", b"default"])), [0x21, 0, 0, 0, 2, 1, 1]);
    assert_eq!(writer.ask(add(vec![b"mail", b"other"])), [0x0b, 2, 0x21], "one of the queues is not granted");
    let remove = AnyRequest::InQueue(b"mail", Request::Remove { key: b"k" });
    assert_eq!(reader.ask_any(&remove), [0x0b, 2, 0x20]);
    assert_eq!(reader.ask_any(&AnyRequest::InQueue(b"mail", Request::Count)), [1, 0, 0, 0, 1]);
    assert_eq!(reader.ask_any(&AnyRequest::Plain(Request::Count)), [0x0b, 2, 1]);
    assert_eq!(reader.queues(), [b"mail"]);
    assert_eq!(writer.queues().len(), 2);
    let states = SweptStates { ready: true, ..SweptStates::default() };
    let purge = QueueRequest::Purge { queue: b"mail", states, age_ms: 0 };
    assert_eq!(writer.ask(purge), [0x0b, 2, 0x27], "that is for admins");
    assert_eq!(writer.ask_any(&AnyRequest::InQueue(b"mail", Request::Count)), [1, 0, 0, 0, 1]);
    drop((reader, writer));
    server.stop();
}
