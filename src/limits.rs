//! Every bound of the server, with its unit and the reason for the number. Nothing here is computed at run time.
//!
//! A page in parentheses promises the number to clients: `kv/PROTOCOL.md` and its like stand in `src/protocols`,
//! `OPERATION.md` in `src`.

use std::time::Duration;

/// Longest name of a table, in bytes, without the NUL that may end it (`kv/PROTOCOL.md`: a frame of 1–255 bytes).
pub const TABLE_NAME_BYTES_MAX: usize = 254;

/// Longest key, in bytes (`kv/PROTOCOL.md`).
pub const KEY_BYTES_MAX: usize = 64;

/// Longest value, in bytes, unless `--max-value` says otherwise (`kv/PROTOCOL.md`).
pub const VALUE_BYTES_DEFAULT: usize = 1024;

/// The most that `--max-value` may say: libzmq closes a connection that sends a larger frame.
pub const VALUE_BYTES_MAX: usize = FRAME_BYTES_MAX;

/// Largest frame that is read at all, in bytes; a larger one closes its connection (`kv/PROTOCOL.md`).
pub const FRAME_BYTES_MAX: usize = 16 << 20;

/// Longest routing id that a peer may choose, in bytes (RFC 37).
pub const IDENTITY_BYTES_MAX: usize = 255;

/// Longest command of a handshake that is kept, in bytes: what libzmq sends takes less than 600.
pub const HANDSHAKE_BYTES_MAX: u64 = 8 << 10;

/// Keys of one GET_MANY and pairs of one UPDATE_MANY (`kv/PROTOCOL.md`).
pub const MANY_MAX: usize = 1024;

/// Frames of the longest body: UPDATE_MANY has a command, a table, a TTL, and two frames for each pair.
pub const BODY_FRAMES_MAX: usize = 3 + 2 * MANY_MAX;

/// Frames of an envelope, its empty frame included. Each hop through a ROUTER adds one; nobody has more hops than this.
pub const ENVELOPE_FRAMES_MAX: usize = 64;

/// Frames of the longest message that is kept while it is read.
pub const MESSAGE_FRAMES_MAX: usize = ENVELOPE_FRAMES_MAX + BODY_FRAMES_MAX;

/// Bytes of the values or names in one reply; a longer one is refused before it is built (`kv/PROTOCOL.md`).
/// GET_MANY of as many keys as there may be, with values of a megabyte, is just not too long. A client that asks for it
/// has nothing else outstanding meanwhile.
pub const REPLY_BYTES_MAX: usize = MANY_MAX << 20;

/// Tables at once, unless `--max-tables` says otherwise (`OPERATION.md`).
pub const TABLES_DEFAULT: usize = 65_536;

/// What one client may have outstanding, in bytes, unless `--client-bytes-max` says otherwise (`OPERATION.md`).
pub const CLIENT_BYTES_DEFAULT: u64 = 64 << 20;

/// How many notifications a subscriber may fall behind, unless `--publish-hwm` says otherwise (`OPERATION.md`).
pub const PUBLISH_HWM_DEFAULT: i32 = 1_000_000;

/// Share of the memory of the host, or of the control group around the server if that has less, that tables may take,
/// in percent, unless `--max-memory` says otherwise (`OPERATION.md`).
pub const MEMORY_PERCENT_DEFAULT: u64 = 80;

/// Changes that one writing thread may have on the way to the publisher. When they are out, the writer waits.
/// 65,536 of 24 bytes are 1.5 MiB a thread, and 60 ms of the fastest writer: longer than any time slice.
pub const CHANGES_PER_WRITER: usize = 1 << 16;

/// Messages to the expiry thread that may wait at once (new earlier deadlines and slots to let go).
/// When it is full, the sender waits: the expiry thread never waits for a sender.
pub const DUES_MAX: usize = 1 << 15;

/// Dead slots that may wait for the reaper. When it is full the publisher waits: the reaper always drains it.
pub const DEAD_MAX: usize = 1 << 15;

/// Timers that the expiry thread looks at before it listens to new ones again.
pub const EXPIRY_BUDGET: usize = 1024;

/// Slots that the reaper seals or frees before it looks at its queue again.
pub const REAPER_CHUNK: usize = 512;

/// Objects that a thread retires before it has retired ones freed: two bags of crossbeam-epoch, which frees eight at a time.
pub const RETIRED_OBJECTS_MAX: usize = 128;

/// Bytes of retired values after which it does so earlier.
pub const RETIRED_BYTES_MAX: usize = 32 << 10;

/// How long a thread has retired nothing until it frees all that it retired before.
pub const REST_AFTER: Duration = Duration::from_millis(100);

/// How long a thread with nothing to do sleeps before it looks whether memory is to be given back.
pub const REST_MAX: Duration = Duration::from_millis(120);

/// How often the compactor compares what the process has with the account of the tables. At a GiB a second, 50 MB come in between.
pub const COMPACTOR_LOOK: Duration = Duration::from_millis(50);

/// The same while writes wait for memory.
pub const COMPACTOR_HURRY: Duration = Duration::from_millis(10);

/// What the process may have beyond the account of the tables before it counts against `--max-memory`: buffers of connections, and
/// what allocators keep. Less if the host, or the control group, has less than eight times that to spare.
pub const MEMORY_SLACK_BYTES: u64 = 64 << 20;

/// Requests that a worker handles under one guard and one reading of the clock.
pub const BATCH_MAX: usize = 64;

/// Requests whose elements are fetched together before the first of them is handled: enough for their cache misses to
/// overlap, few enough to be in the nearest cache when their turn comes.
pub const LOOK_AHEAD: usize = 16;

/// How long each of the two stages of the end may take: faces answer what they have taken, and then the publisher tells what was
/// committed. Peers that do not read cost no more than that.
pub const LINGER: Duration = Duration::from_secs(2);

/// How long the end may take, whatever peers do (`OPERATION.md`).
pub const STOP_MAX: Duration = Duration::from_secs(5);

/// Bytes of lines of the log that wait for a reader of standard error that is slow; those beyond are dropped and counted.
pub const LOG_BYTES_MAX: usize = 1 << 20;

/// How long the process waits at its end for the last lines of the log to be written.
pub const LOG_LAST_WORDS: Duration = Duration::from_millis(200);

/// How long the elements of tables that were deleted before are still announced once no client is served any more.
pub const SEALING_MAX: Duration = Duration::from_millis(500);

const _: () =
    assert!(2 * LINGER.as_millis() + SEALING_MAX.as_millis() + LOG_LAST_WORDS.as_millis() < STOP_MAX.as_millis());

/// What a frame costs in memory beside its bytes: the structure in which libzmq keeps it (`zmq_msg_t`).
pub const FRAME_OVERHEAD_BYTES: u64 = 64;

/// Bytes of an envelope that are kept while a message is read; a longer message is answered BAD REQUEST.
pub const ENVELOPE_BYTES_MAX: usize = 64 << 10;

/// Frames of one client that may be on their way to its worker. The client's further requests wait their turn, so that
/// no client fills the pipe of a worker that others share. 2,048 frames are 682 GETs, or two of the longest GET_MANY.
pub const WINDOW_FRAMES: u32 = 2_048;

/// What all clients of a face together may have outstanding and unread, in bytes, where there is memory for it: a server with less has a
/// share of what the tables leave. Two clients may have what `--client-bytes-max` grants even if that is more.
///
/// A frontend that reads connections itself does not read those that hold much as long as it is exceeded. The queue of the other one
/// ends clients that do not read, the largest first, if they have half of it, and else takes no request until some are answered. Clients
/// with much outstanding are held back before.
pub const HELD_BYTES_MAX: u64 = 1 << 30;

/// What one client may have outstanding, in bytes, while all together have more than half of [`HELD_BYTES_MAX`]: above it nothing
/// more is taken from it until some is answered. So 512 clients that ask faster than they are answered leave the other half to those
/// who have little outstanding. It is several of the longest requests with values as long as they usually are.
pub const CROWDED_CLIENT_BYTES: u64 = 1 << 20;

/// Clients with nothing outstanding that are remembered all the same, about 300 bytes each: it saves the making of an
/// entry for each request.
pub const IDLE_CLIENTS_MAX: usize = 1 << 16;

/// Requests for reports (LIST_TABLES, STATS) that are with the reporter at once, or on their way back from it: it has the next one at
/// hand when it has answered one, and no more than two replies lie between it and the queue.
pub const REPORTS_MAX: usize = 2;

/// Messages that the queue moves in one direction before it looks in the other.
pub const QUEUE_BURST: usize = 256;

/// Frames of them: some of the longest requests, about a millisecond.
pub const QUEUE_BURST_FRAMES: u32 = 1 << 13;

/// Frames that a worker takes in one batch before it stops at the next message: 32 of the largest messages would
/// otherwise wait for the answer to the first.
pub const BATCH_FRAMES_MAX: usize = 2_048;

/// Changes that the publisher announces before it looks for new subscriptions.
pub const PUBLISH_BURST: usize = 1_024;

/// Subscribers of an endpoint at once. Those beyond wait to be accepted.
pub const SUBSCRIBERS_MAX: usize = CONNECTIONS_MAX;

/// Messages are handed to subscribers when they take so many bytes, also in the middle of a burst: they are still in
/// the nearest caches.
pub const BURST_BYTES_MAX: usize = 128 << 10;

/// Messages are handed to subscribers when their lists of subscribers have so many places together: 1 MiB.
pub const BURST_MEMBERS_MAX: usize = 1 << 18;

/// Bytes of messages from which on those that wait are kept once for all subscribers. Fewer are copied to each: a copy
/// costs less than the bookkeeping, and a message keeps no other messages in memory.
pub const SHARED_BYTES_MIN: usize = 4 << 10;

/// Bytes that may wait for a subscriber, beside `--publish-hwm`: a million notifications of usual length take 40 MiB.
pub const SUBSCRIBER_BYTES_MAX: usize = 256 << 20;

/// Bytes that may wait for all subscribers of an endpoint together; above it those lose messages for which more than
/// their share waits.
pub const SUBSCRIBERS_BYTES_MAX: usize = 1 << 30;

/// Bytes that are sent to a subscriber in a turn of those that wait for it: others have their turns meanwhile.
pub const SEND_BYTES_A_TURN: usize = 128 << 10;

/// Bytes that are received from a subscriber in a turn: some hundred subscriptions.
pub const SUBSCRIBER_RECEIVE_BYTES: usize = 8 << 10;

/// The same of all subscribers together: with subscriptions of usual length about half of the time of a burst of
/// changes.
pub const SUBSCRIBERS_RECEIVE_BYTES: usize = 16 << 10;

/// Longest frame of a subscriber, in bytes. No topic that fits anything is longer than 255 bytes; a larger frame closes
/// its connection.
pub const SUBSCRIBER_FRAME_BYTES_MAX: u64 = 8 << 10;

/// Answers to PINGs that may wait for a subscriber, in bytes: more than two thousand.
pub const CONTROL_BYTES_MAX: usize = 64 << 10;

/// Bytes that a subscriber may go on sending after it was refused; one that sends more may not read why.
pub const IGNORED_BYTES_MAX: usize = 1 << 20;

/// Topics of a subscriber: one for each of the tables that there may be by default.
pub const SUBSCRIPTIONS_MAX: usize = TABLES_DEFAULT;

/// Bytes of the topics of a subscriber: 128 for each.
pub const TOPIC_BYTES_MAX: usize = 8 << 20;

/// Topics of all subscribers of an endpoint together: about 150 bytes each. Above it the subscriber with the most is
/// closed.
pub const SUBSCRIPTIONS_ALL_MAX: usize = 1 << 20;

/// Bytes of the topics of all subscribers of an endpoint together. Above it the subscriber with the most is closed.
pub const TOPIC_BYTES_ALL_MAX: usize = 64 << 20;

/// Subscriptions of a subscriber that has left which are removed in a turn: as many as may come in one.
pub const SUBSCRIPTIONS_REMOVED_A_TURN: usize = SUBSCRIBERS_RECEIVE_BYTES / 4;

const _: () = assert!(SUBSCRIBERS_RECEIVE_BYTES >= SUBSCRIBER_RECEIVE_BYTES);

/// Replies that the pipe to a client may hold. Of large ones fewer: the queue bounds their bytes. With a tenth of it the
/// queue and the I/O thread would take turns.
pub const REPLIES_IN_PIPE: i32 = 1_000;

// A request of UPDATE_MANY may commit an expiry and an update for each pair, and must find its credits in one ring.
const _: () = assert!(CHANGES_PER_WRITER >= 4 * MANY_MAX);
const _: () = assert!(CHANGES_PER_WRITER.is_power_of_two());
const _: () = assert!(VALUE_BYTES_DEFAULT <= VALUE_BYTES_MAX);

/// Descriptors that connections leave to others, at most; a quarter of all if that is less: the files of the store, twice, and the
/// connections to a database.
pub const DESCRIPTORS_RESERVED_MAX: u64 = 1_200;

/// Files of its trees that the store keeps open, at most: with 64 MiB in each of them, some 30 GB are at hand.
pub const STORE_FILES_MAX: usize = 512;

const _: () = assert!(2 * STORE_FILES_MAX as u64 <= DESCRIPTORS_RESERVED_MAX);

/// How long nothing is accepted when there is no descriptor for it.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long the same warning about connections is not repeated.
pub const WARNING_PAUSE: Duration = Duration::from_secs(10);

/// How many connections may wait to be accepted. The system cuts it to its own limit (net.core.somaxconn).
pub const ACCEPT_BACKLOG: i32 = 4096;

/// Connections that are accepted before others get their turn.
pub const ACCEPT_BURST: usize = 64;

/// Connections of a frontend that reads them itself, if there are descriptors for them. Those beyond wait to be accepted.
pub const CONNECTIONS_MAX: usize = 1 << 16;

/// Connections of which the system tells at once that there is something to do.
pub const READY_EVENTS: usize = 256;

/// What a thread's connections may hold more, or less, than the frontend has counted, in bytes: the common count is written once for
/// so much.
pub const HELD_PORTION_BYTES: u64 = 1 << 20;

/// How long a connection that holds much may neither read nor send [`STALLED_BYTES`] while the frontend holds too much: then it is
/// closed.
pub const STALLED_MAX: Duration = Duration::from_secs(10);

/// See [`STALLED_MAX`]: 6 KiB a second, slower than any line that is used today, and faster than a peer that wants to hold memory
/// for nothing would like.
pub const STALLED_BYTES: u64 = 64 << 10;

/// How long a peer may take for its handshake, and for reading what it was sent before it is parted with.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a connection may be silent before the system asks whether its host is still there.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);

/// How long the host has for an answer before it is asked again.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Questions without an answer after which the connection is gone.
pub const KEEPALIVE_PROBES: u32 = 3;

/// Bytes that are received at once: some hundred small requests.
pub const RECEIVE_BYTES: usize = 64 << 10;

/// What a connection keeps for what it receives and sends next, in bytes; after larger messages their room is given back.
pub const BUFFER_KEPT_BYTES: usize = 16 << 10;

/// Bytes that may lie in the outbox of a connection before no more requests are taken from its peer: thousands of small replies,
/// and little enough for as many connections as there may be.
pub const OUTBOX_BYTES_MAX: usize = 1 << 20;

/// Longest key of a task, in bytes (`spiderq/PROTOCOL.md`).
pub const TASK_KEY_BYTES_MAX: usize = 32 << 10;

/// Longest value of a task, in bytes (`spiderq/PROTOCOL.md`).
pub const TASK_VALUE_BYTES_MAX: usize = 16 << 20;

/// Largest frame of a request about tasks, in bytes: the longest value and the longest key fit, and somewhat longer ones, so that
/// they can be answered. A larger one closes its connection.
pub const TASK_FRAME_BYTES_MAX: usize = TASK_VALUE_BYTES_MAX + (1 << 20);

/// Bytes of a request for a job from which on room is made for all of it at once.
pub const JOB_STEPS_BYTES: usize = 64 << 10;

/// Replies of one turn of a connection from which on it gets fewer, in bytes.
pub const LARGE_REPLIES_BYTES: u64 = 256 << 10;

/// How long answers may wait for a client that does not read at all. Then its connection is closed: the store keeps for them what has
/// changed since.
pub const CLIENT_STALLS_MAX: Duration = Duration::from_secs(60);

/// How long an answer may wait for a client that reads, but slowly.
pub const ANSWER_WAITS_MAX: Duration = Duration::from_secs(15 * 60);

/// How long a face that waits for the committer to have room sleeps at most: then it looks whether it was told. What it finds so is counted
/// (`lost_wakeups` of the tasks in STATS), and there should be none.
pub const ROOM_RECHECK: Duration = Duration::from_secs(5);

/// A commit that takes longer is on a slow disk: for [`SLOW_DISK_PAUSE`] faces leave commits to the committer's thread, so that they can
/// answer what needs no commit, such as whether they are there.
pub const SLOW_COMMIT: Duration = Duration::from_millis(20);

/// See [`SLOW_COMMIT`].
pub const SLOW_DISK_PAUSE: Duration = Duration::from_secs(1);

/// Requests about tasks that may be unanswered at once: those that wait for a task, and as many others.
pub const TASK_REQUESTS_MAX: usize = 2 * WAITERS_MAX;

/// Requests that wait for a task in one queue; a further one is answered that there is none (`spiderq/PROTOCOL.md`).
pub const WAITERS_MAX: usize = 100_000;

/// Bursts of requests that may wait for the committer. When they are more, who asks waits.
pub const ASKED_MAX: usize = 1 << 10;

/// Requests that a face hands to the committer at once.
pub const ASK_BURST: usize = 256;

/// Requests that a face commits itself if nothing else is to do: with one client that spares a third of the time until its answer,
/// with 64 it makes no difference. More of them are received, committed and answered side by side.
pub const ASK_NOW_MAX: usize = 64;

/// The same of the face of jobs, which also has a connection to set up and to end for each of them: with more at once, that goes on
/// while another thread commits.
pub const JOBS_NOW_MAX: usize = 4;

/// Bytes of requests after which it hands over what it has.
pub const ASK_BURST_BYTES: usize = 16 << 20;

/// Bytes of requests that may wait for the committer, about: a face that sees more asks no further until some are answered.
pub const ASKED_BYTES_MAX: u64 = 256 << 20;

/// Requests of one batch: enough that all that gathers during a sync goes with the next, few enough that the first answer does
/// not wait for a burst.
pub const TASKS_PER_BATCH: usize = 1 << 12;

const _: () = assert!(TASKS_PER_BATCH / 2 >= ASK_BURST);

/// Leases that end in one batch because their time is up.
pub const RUN_OUT_BUDGET: usize = 1 << 13;

/// Tokens that are reserved at once: one more sync for half a million leases. What is left of them when the server ends is not
/// used; there are enough for 17 million million starts.
pub const TOKENS_RESERVED: u64 = 1 << 20;

// The tokens that are left when more are reserved suffice for the leases of one batch: each takes a task that was ready, came
// back, or was brought by a request; and for the numbers of the tasks that it brings.
const _: () = assert!(TOKENS_RESERVED / 2 > (3 * TASKS_PER_BATCH + RUN_OUT_BUDGET) as u64);

/// Queues of tasks at once: with a kilobyte for each, 16 GiB. A task for a further one is refused.
pub const QUEUES_MAX: usize = 1 << 24;

/// Queues of a family that STATS list one by one; all of them are in its totals.
pub const QUEUES_LISTED: usize = 100;

/// Longest name of a queue of jobs, in bytes (`jobs/PROTOCOL.md`).
pub const JOB_QUEUE_BYTES_MAX: usize = 255;

/// Most data of a job, in bytes (`jobs/PROTOCOL.md`).
pub const JOB_DATA_BYTES_MAX: usize = 1_000_000;

/// Longest line of GET, ACK or IN, in bytes: a queue and an id of any length that somebody may have made up.
pub const JOB_LINE_BYTES_MAX: usize = 1 << 10;

/// What a connection for jobs may buffer without asking, in bytes: a line, and an ADD of little data.
pub const JOB_BUFFER_BYTES: usize = 2 << 10;

/// What requests for jobs that are larger than that may take together, in bytes, and answers that are as much again. When it is out,
/// they wait their turn, requests until their time is up; small ones do not.
pub const JOB_ROOM_BYTES: usize = 256 << 20;

/// Connections for jobs at once, if there are descriptors for them. Above it they wait to be accepted.
pub const JOB_CONNECTIONS_MAX: usize = 1 << 14;

/// Connections for jobs that may wait to be accepted. The system cuts it to its own limit (net.core.somaxconn).
pub const JOB_BACKLOG: u32 = 4_096;

/// How long nothing more comes after a GET, ACK or IN without an end until it is answered (`jobs/PROTOCOL.md`).
pub const JOB_PAUSE: Duration = Duration::from_millis(1);

/// How long a client for jobs may be silent in its request, not read its answer, or not close after it
/// (`jobs/PROTOCOL.md` for the first).
pub const JOB_SILENCE: Duration = Duration::from_secs(5);

/// How long a request for jobs may take to come, and its answer to be read (`jobs/PROTOCOL.md` for the first).
pub const JOB_TIME: Duration = Duration::from_secs(60);

/// Bytes that a client may go on sending after its answer; of what comes later it hears by a reset. Longer than the longest request.
pub const JOB_DRAINED_BYTES_MAX: usize = 64 << 20;

/// How long a job is lent out, in seconds, unless `--lease` says otherwise (`jobs/PROTOCOL.md`).
pub const JOB_LEASE_SECONDS: u64 = 300;

const _: () = assert!(JOB_LINE_BYTES_MAX < JOB_BUFFER_BYTES && JOB_DATA_BYTES_MAX < JOB_ROOM_BYTES);
/// Longest value of an event, in characters (`events/PROTOCOL.md`).
pub const EVENT_VALUE_CHARS_MAX: usize = 255;

/// Connections for events at once, if there are descriptors for them. Above it they wait to be accepted.
pub const EVENT_CONNECTIONS_MAX: usize = 1 << 13;

/// Connections for events that may wait to be accepted. The system cuts it to its own limit (net.core.somaxconn).
pub const EVENT_BACKLOG: u32 = 4_096;

/// Longest head of a request for events, in bytes: room for the cookies of a browser, and the least that hyper takes.
pub const EVENT_HEAD_BYTES_MAX: usize = 8 << 10;

/// Longest body of a request for events, in bytes. None is needed; a client that sends one by habit is not turned away.
pub const EVENT_BODY_BYTES_MAX: usize = 64 << 10;

/// How long a connection for events may take until the head of its next request is there: silent ones are closed after it.
pub const EVENT_HEAD_TIME: Duration = Duration::from_secs(60);

/// How long the body of a request for events may take.
pub const EVENT_BODY_TIME: Duration = Duration::from_secs(10);

/// How long a client may leave the reply to its request unread.
pub const EVENT_REPLY_TIME: Duration = Duration::from_secs(30);

/// How often it is looked whether the store of the events can still answer.
pub const EVENT_SWEEP: Duration = Duration::from_secs(5);

/// How long a store may take for an answer: a statement of a database, or a turn in the queue of events when its health is asked for.
pub const STORE_ANSWER_MAX: Duration = Duration::from_secs(10);

/// How long a connection to a database may take. Less than a client of HTTP usually waits, so that it hears why.
pub const DATABASE_CONNECT_MAX: Duration = Duration::from_secs(5);

/// Events that share a transaction: as many as come while another commits; some tens of kilobytes of statement.
pub const EVENTS_PER_TRANSACTION: usize = 1 << 10;

/// Transactions for new events at once: while the first is being synced the second has the row with the last id. A third would only
/// wait for it.
pub const EVENT_WRITERS: usize = 2;

/// Requests about events that may wait for a transaction, or for the committer: as many as there may be connections, each of which asks for
/// one at a time.
pub const EVENTS_WAITING_MAX: usize = EVENT_CONNECTIONS_MAX;

/// Connections on which a database is asked for events at once.
pub const EVENT_READERS: usize = 8;

/// How often a transaction is tried that the database ends for the sake of another. Where each try waits for a lock, that is as long
/// as a client of HTTP has patience for.
pub const TRANSACTION_TRIES: u32 = 10;

/// The longest wait before it is tried again: about as long as some transactions.
pub const TRANSACTION_JITTER: Duration = Duration::from_millis(5);

/// Seconds that a statement waits for a lock until the database gives it up: less than an answer may take.
pub const LOCK_WAIT_SECONDS: u64 = 2;

const _: () = assert!(LOCK_WAIT_SECONDS < STORE_ANSWER_MAX.as_secs());

/// Events that a worker claims in a transaction, at most: the statement that stores them has two places for each.
pub const CLAIM_MAX: usize = 1_000;

/// How long a worker waits when no event is pending in a database, and how much longer at most
/// (`events/PROTOCOL.md`).
pub const CLAIM_PAUSE: Duration = Duration::from_secs(1);

/// See [`CLAIM_PAUSE`].
pub const CLAIM_JITTER: Duration = Duration::from_millis(500);
