//! The bounds of the server, with their units and the reasons for the numbers. The compiler computes all of them. A
//! bound that a single file needs may stand there instead, with its reason.
//!
//! A page in parentheses promises the number to clients. `tables/PROTOCOL.md` and its like are in `src/services`,
//! `OPERATION.md` is in `src`. The headings: tables, kv, zeromq, publish, tasks, spiderq, jobs, events, control,
//! sockets, log, start and end.

use std::ops::RangeInclusive;
use std::time::Duration;

// ------------------------------------------------------------------------------------------------------------- tables

/// Longest name of a table, in bytes, without the NUL that may end it (`tables/PROTOCOL.md`: a frame of 1–255 bytes).
pub const TABLE_NAME_BYTES_MAX: usize = 254;
/// Longest key, in bytes, unless `--max-key` sets another (`tables/PROTOCOL.md`). A slot has room for its length in a
/// word that it has anyway.
pub const KEY_BYTES_DEFAULT: usize = 64;
/// Largest `--max-key`. A key is stored once and sent with each change, so it is no place for documents.
pub const KEY_BYTES_MAX: usize = 4_096;
const _: () = assert!(KEY_BYTES_DEFAULT <= KEY_BYTES_MAX);
/// Longest value, in bytes, unless `--max-value` sets another (`tables/PROTOCOL.md`).
pub const VALUE_BYTES_DEFAULT: usize = 1024;
/// Largest `--max-value`: libzmq closes a connection that sends a larger frame.
pub const VALUE_BYTES_MAX: usize = FRAME_BYTES_MAX;
const _: () = assert!(VALUE_BYTES_DEFAULT <= VALUE_BYTES_MAX);
/// Longest TTL, in milliseconds (`tables/PROTOCOL.md`): each number of seconds below 2^32 fits, and in the first 139
/// years of a server's run it ends at a deadline that an entry holds in 43 bits.
pub const TTL_MILLIS_MAX: u64 = (1 << 42) - 1;

/// Tables at once, unless `--max-tables` sets another number (`OPERATION.md`).
pub const TABLES_DEFAULT: usize = 65_536;

/// Share of the memory that tables may take, in percent, unless `--max-memory` sets another (`OPERATION.md`). It is a
/// share of the host's memory, or of the limit of the control group around the server if that is lower.
pub const MEMORY_PERCENT_DEFAULT: u64 = 80;

/// Bytes that the process may have beyond the memory budget of the tables before they count against `--max-memory`:
/// buffers of connections, and free memory that allocators keep. Where `--max-memory` leaves less than eight times that
/// of the memory of the host or the control group, the slack is an eighth of the rest.
pub const MEMORY_SLACK_BYTES: u64 = 64 << 20;

/// How often the compactor compares the memory of the process with the memory budget of the tables, at least. Writes
/// that might exceed the limit in between have it look at once.
pub const COMPACTOR_LOOK: Duration = Duration::from_millis(50);
/// The same while writes wait for memory.
pub const COMPACTOR_HURRY: Duration = Duration::from_millis(10);

/// Credits of one writing thread: changes that it may have on the way to the publisher. A writer without credits waits.
/// 65,536 changes of 16 bytes take 1 MiB a thread. The fastest writer fills them in 60 ms, which is longer than any
/// time slice.
pub const CHANGES_PER_WRITER: usize = 1 << 16;
// An UPDATE_MANY may commit an expiry and an update for each pair, and must find its credits in one ring.
const _: () = assert!(CHANGES_PER_WRITER >= 4 * MANY_MAX);
const _: () = assert!(CHANGES_PER_WRITER.is_power_of_two());

/// Messages to the expiry thread that may be queued at once: new earlier deadlines, and slots whose timers it is to
/// drop. When the queue is full, the sender waits. The expiry thread never waits for a sender.
pub const DUES_MAX: usize = 1 << 15;
/// Dead slots that may wait for the reaper. When the queue is full, the publisher waits: the reaper always drains it.
pub const DEAD_MAX: usize = 1 << 15;
/// Timers that the expiry thread handles before it takes new messages again.
pub const EXPIRY_BUDGET: usize = 1024;
/// Slots that the reaper seals or frees before it looks at its queue again.
pub const REAPER_CHUNK: usize = 512;

/// Objects that a thread retires before it has retired ones freed. With the object that counts them, these are two bags
/// of crossbeam-epoch, which frees eight at a time.
pub const RETIRED_OBJECTS_MAX: usize = 127;
/// Bytes of retired values after which a thread has them freed earlier.
pub const RETIRED_BYTES_MAX: usize = 32 << 10;
/// After this long without retiring, a thread frees all that it retired before.
pub const REST_AFTER: Duration = Duration::from_millis(100);
/// Longest sleep of an idle thread before it checks whether it has memory to give back.
pub const REST_MAX: Duration = Duration::from_millis(120);

/// Elements that a page of a scan may look at (`tables/PROTOCOL.md`). Each costs a few cache misses, so a page takes
/// the worker a few milliseconds at most.
pub const SCAN_COUNT_MAX: u32 = 10_000;
/// Bytes of a cursor (`tables/PROTOCOL.md`).
pub const CURSOR_BYTES_MAX: usize = 32;
/// Bytes of the rows of a page, about (`tables/PROTOCOL.md`). A single row may be longer.
pub const SCAN_BYTES_MAX: usize = 1 << 20;
/// Buckets that a page of a scan may read. A page may read one bucket for each four elements of its limit if that is
/// more. After most of a table's elements are deleted, most buckets are empty.
pub const SCAN_BUCKETS_MIN: usize = 250;

/// Requests whose elements are prefetched together, before the worker handles the first of them. Their cache misses
/// overlap, and they are few enough to be still in the nearest cache when their turn comes.
pub const LOOK_AHEAD: usize = 16;

// ----------------------------------------------------------------------------------------------------------------- kv

/// Largest frame that is read at all, in bytes. A larger one closes its connection (`tables/PROTOCOL.md`).
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// Keys of one GET_MANY or DELETE_MANY, pairs of one UPDATE_MANY (`tables/PROTOCOL.md`). Python's client has it too.
pub const MANY_MAX: usize = 1024;
/// Frames of the longest body: UPDATE_MANY has a command, a table, a TTL, and two frames for each pair.
pub const BODY_FRAMES_MAX: usize = 3 + 2 * MANY_MAX;
/// Frames of an envelope, its empty frame included. Each hop through a ROUTER adds one: no route has more hops.
pub const ENVELOPE_FRAMES_MAX: usize = 64;
/// Frames of the longest message that is kept while it is read.
pub const MESSAGE_FRAMES_MAX: usize = ENVELOPE_FRAMES_MAX + BODY_FRAMES_MAX;
/// Bytes of an envelope that are kept while a message is read. A longer message is answered BAD REQUEST.
pub const ENVELOPE_BYTES_MAX: usize = 64 << 10;
/// Memory that a request takes beside its bytes while it waits for its answer, about.
pub const REQUEST_OVERHEAD_BYTES: u64 = 64;

/// Bytes of the values or names in one reply, where there is memory for it, else a quarter of the memory that the
/// tables leave. A longer reply is refused before it is built (`tables/PROTOCOL.md`). A GET_MANY of the most keys, with
/// values of a megabyte, just fits. Its client has nothing else outstanding meanwhile.
pub const REPLY_BYTES_MAX: usize = 1 << 30;
const _: () = assert!(MANY_MAX << 20 <= REPLY_BYTES_MAX);

/// Bytes that one client may have outstanding, unless `--client-bytes-max` sets another number (`OPERATION.md`).
pub const CLIENT_BYTES_DEFAULT: u64 = 64 << 20;

/// Bytes that all clients of a frontend together may have outstanding and unread, where there is memory for it. A
/// server with less memory gives each frontend a share of the memory that the tables leave. If `--client-bytes-max` is
/// more than half of it, the bound is twice `--client-bytes-max` instead.
///
/// Above it, a frontend does not read connections that hold much.
pub const HELD_BYTES_MAX: u64 = 1 << 30;

/// Batches of a worker behind the queue: the batch at work, and the next.
pub const BATCHES_OF_A_WORKER: usize = 2;
/// Turns of a batch. Those of a round of the epoll, if a single worker has room.
pub const BATCH_TURNS: usize = READY_EVENTS;
/// Bytes received for a batch, after which it takes no further turn. The last one may exceed it by a receive buffer.
pub const BATCH_BYTES: usize = 256 << 10;
/// Requests that a worker handles under one guard and one reading of the clock.
pub const BATCH_MAX: usize = 64;

// ------------------------------------------------------------------------------------------------------------- zeromq

/// Longest routing id that a peer may choose, in bytes (RFC 37).
pub const IDENTITY_BYTES_MAX: usize = 255;
/// Longest command of a handshake that is kept, in bytes: libzmq sends less than 600.
pub const HANDSHAKE_BYTES_MAX: u64 = 8 << 10;
/// Time that a peer has for its handshake, and for reading its last replies before it is disconnected.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// While a client waits for room, another one that has sent nothing at all loses its connection after this time. Clients
/// send the first bytes of their handshakes without waiting for the server, most of them before they are accepted. An
/// HTTP connection with a part of a head keeps its place for this time.
pub const PLACE_SILENT_TIME: Duration = Duration::from_millis(100);
/// While a client waits for room, another one that has not finished its handshake loses its connection after this time.
/// A handshake takes two round trips, even from the other side of the world.
pub const PLACE_HANDSHAKE_TIME: Duration = Duration::from_secs(1);
/// While a client waits for room, and all others are through their handshakes, one that has sent no request for this
/// time loses its connection.
pub const PLACE_IDLE_TIME: Duration = Duration::from_secs(2);
/// Connections that make place before the thread continues with other work.
pub const PLACES_AT_ONCE: usize = 16;
const _: () = assert!(PLACE_SILENT_TIME.as_millis() <= PLACE_HANDSHAKE_TIME.as_millis());
const _: () = assert!(PLACE_HANDSHAKE_TIME.as_millis() < HANDSHAKE_TIMEOUT.as_millis());

/// Connections of a frontend that reads them itself, if there are descriptors. Further ones wait to be accepted.
pub const CONNECTIONS_MAX: usize = 1 << 16;
/// Connections that one wait may report as ready.
pub const READY_EVENTS: usize = 256;

/// Bytes by which the connections of a thread may differ from the frontend's common count, written once for so much.
pub const HELD_PORTION_BYTES: u64 = 1 << 20;
/// While a frontend holds too much, it closes a large connection that moves fewer than [`STALLED_BYTES`] in this time.
pub const STALLED_MAX: Duration = Duration::from_secs(10);
/// See [`STALLED_MAX`]: 6 KiB a second. Any link in use today is faster, and a peer that holds memory on purpose has to
/// read faster than it would like.
pub const STALLED_BYTES: u64 = 64 << 10;
/// Bytes that each lock-step conversation may hold in any case: the longest command with a value of usual length.
pub const CONVERSATION_BYTES_MIN: usize = 2 << 10;
const _: () = assert!(TABLE_NAME_BYTES_MAX + 1 + KEY_BYTES_DEFAULT + VALUE_BYTES_DEFAULT <= CONVERSATION_BYTES_MIN);

/// Bytes that are received at once: some hundred small requests.
pub const RECEIVE_BYTES: usize = 64 << 10;
/// Bytes of buffer that a connection keeps for its next messages. It gives the room of larger messages back.
pub const BUFFER_KEPT_BYTES: usize = 16 << 10;
/// Bytes in the send buffer of a connection above which no more requests are taken from it. It holds thousands of small
/// replies, and is small enough for [`CONNECTIONS_MAX`] connections.
pub const OUTBOX_BYTES_MAX: usize = 1 << 20;
/// Bytes that a connection is sent in one turn: others have their turns meanwhile.
pub const SENT_BYTES_A_TURN: usize = 256 << 10;
/// Bytes of replies in one turn of a connection after which the turn ends.
pub const LARGE_REPLIES_BYTES: u64 = 256 << 10;

// ------------------------------------------------------------------------------------------------------------ publish

/// Notifications that a subscriber may fall behind, unless `--publish-hwm` sets another number (`OPERATION.md`).
pub const PUBLISH_HWM_DEFAULT: i32 = 1_000_000;
/// Changes that the publisher announces before it looks for new subscriptions.
pub const PUBLISH_BURST: usize = 512;
/// Subscribers of an endpoint at once. Further ones wait to be accepted.
pub const SUBSCRIBERS_MAX: usize = CONNECTIONS_MAX;

/// Bytes of encoded messages at which the publisher sends them to the subscribers, also in the middle of a burst: they
/// are still in the nearest caches.
pub const BURST_BYTES_MAX: usize = 128 << 10;
/// Places in the subscriber lists of a burst at which the publisher sends it: 1 MiB.
pub const BURST_MEMBERS_MAX: usize = 1 << 18;

/// Bytes of queued messages from which all subscribers share one buffer. Fewer bytes are copied for each subscriber: a
/// copy costs less than the bookkeeping, and a message keeps no other messages in memory.
pub const SHARED_BYTES_MIN: usize = 4 << 10;
/// Bytes that may be queued for a subscriber, beside `--publish-hwm`: a million usual notifications take 40 MiB.
pub const SUBSCRIBER_BYTES_MAX: usize = 256 << 20;
/// Bytes that may be queued for all subscribers of an endpoint together. Above it, subscribers with more than their
/// share lose messages.
pub const SUBSCRIBERS_BYTES_MAX: usize = 1 << 30;

/// Bytes of its queue that a subscriber is sent in one turn: others have their turns meanwhile.
pub const SEND_BYTES_A_TURN: usize = 128 << 10;
/// Bytes that are received from a subscriber in one turn: some hundred subscriptions.
pub const SUBSCRIBER_RECEIVE_BYTES: usize = 8 << 10;
/// The same of all subscribers together. Subscriptions of usual length then take about half of the time of a burst of
/// changes.
pub const SUBSCRIBERS_RECEIVE_BYTES: usize = 16 << 10;
const _: () = assert!(SUBSCRIBERS_RECEIVE_BYTES >= SUBSCRIBER_RECEIVE_BYTES);

/// Longest frame of a subscriber, in bytes. A topic that matches any message has at most 255 bytes. A larger frame
/// closes its connection.
pub const SUBSCRIBER_FRAME_BYTES_MAX: u64 = 8 << 10;
/// Answers to PINGs that may be queued for a subscriber, in bytes: more than two thousand.
pub const CONTROL_BYTES_MAX: usize = 64 << 10;
/// Bytes that a refused subscriber may still send. One that sends more may not read the reason.
pub const IGNORED_BYTES_MAX: usize = 1 << 20;

/// Topics of a subscriber: one for each table of a server with the default `--max-tables`.
pub const SUBSCRIPTIONS_MAX: usize = TABLES_DEFAULT;
/// Bytes of the topics of a subscriber: 128 for each.
pub const TOPIC_BYTES_MAX: usize = 8 << 20;
/// Topics of all subscribers of an endpoint, about 150 bytes each. Above it, the subscriber with the most is closed.
pub const SUBSCRIPTIONS_ALL_MAX: usize = 1 << 20;
/// Bytes of the topics of all subscribers of an endpoint. Above it, the subscriber with the most is closed.
pub const TOPIC_BYTES_ALL_MAX: usize = 64 << 20;
/// Subscriptions of closed subscribers that are removed in one turn: as many as one turn may bring.
pub const SUBSCRIPTIONS_REMOVED_A_TURN: usize = SUBSCRIBERS_RECEIVE_BYTES / 4;

// -------------------------------------------------------------------------------------------------------------- tasks

/// Requests about tasks that may be unanswered at once: those that wait for a task, and as many others.
pub const TASK_REQUESTS_MAX: usize = 2 * WAITERS_MAX;
/// Requests of one queue that wait for a task. A further one is answered that there is none (`tasks/PROTOCOL.md`). A
/// connection may have as many of them as there are places left.
pub const WAITERS_MAX: usize = 100_000;

/// Bursts of requests in the committer's inbox above which a frontend takes no more requests. It never waits with the
/// requests that it has: the inbox itself has no end, and each frontend bounds the bytes of its unanswered requests.
pub const INBOX_MAX: usize = 1 << 9;
/// Requests that a frontend submits to the committer at once.
pub const SUBMIT_MAX: usize = 256;
/// Bytes of requests after which a frontend submits its burst: a small part of a batch.
pub const SUBMIT_BYTES_MAX: usize = 1 << 20;
const _: () = assert!(SUBMIT_BYTES_MAX as u64 * 4 <= TASKS_BATCH_BYTES);
/// Bytes of requests that may wait for the committer, about, and of the envelopes of a frontend's unanswered requests.
pub const INBOX_BYTES_MAX: u64 = 256 << 20;

/// Requests that a frontend commits itself while the committer is idle. With one client that saves a third of the time
/// until its answer, with 64 clients it makes no difference. Larger bursts are received, committed and answered in
/// parallel.
pub const TRY_COMMIT_MAX: usize = 64;
/// The same for the jobs frontend, which also sets up and ends a connection for each request. A larger burst leaves
/// that work to it while another thread commits.
pub const JOBS_TRY_COMMIT_MAX: usize = 4;

/// Longest sleep of a frontend that waits for the committer to have room. After it, the frontend checks whether it was
/// woken. It counts a lost wake-up (`lost_wakeups` of the tasks in STATS). There should be none.
pub const ROOM_RECHECK: Duration = Duration::from_secs(5);

/// A longer commit means a slow disk. Frontends then leave commits to the committer's thread, so that they
/// accept, receive and send during a sync.
pub const SLOW_COMMIT: Duration = Duration::from_millis(20);
/// They do so for this many times the time of the slow commit, and until the committer had a fast one: a disk that
/// stalls now and then costs a frontend at most a fiftieth of its time.
pub const SLOW_DISK_PAUSE_FACTOR: u64 = 50;
/// The longest such pause. After it, the committer finds out whether the disk is fast again.
pub const SLOW_DISK_PAUSE_MAX: Duration = Duration::from_secs(5 * 60);

/// Requests of one batch. Those that gather during a sync go with the next one. The first answer waits for no burst.
pub const TASKS_PER_BATCH: usize = 1 << 12;
const _: () = assert!(TASKS_PER_BATCH / 2 >= SUBMIT_MAX);
/// Bytes of a batch after which it takes no more requests and expires no more leases: a few milliseconds of writing. One
/// request may be larger.
pub const TASKS_BATCH_BYTES: u64 = 4 << 20;
/// Leases that one batch expires. Requests have their turn between two such batches.
pub const EXPIRE_BUDGET: usize = 1 << 13;
/// Leases of one batch to requests for many tasks, or that have waited. The next one goes on.
pub const LEASES_PER_BATCH: usize = 1 << 13;
/// Leases that a frontend gives back at once after their connections closed: half of the requests of a batch.
pub const UNDO_MAX: usize = TASKS_PER_BATCH / 4;

/// Bytes of requests that the clients of a frontend have at the committer together, beside [`TASKS_OWN_BYTES`] for each of
/// them. One batch is written while the next one gathers. A larger request is there alone.
pub const TASKS_WINDOW_BYTES: usize = 8 << 20;
const _: () = assert!(TASKS_WINDOW_BYTES as u64 == 2 * TASKS_BATCH_BYTES);
/// Bytes of requests that each client may have at the committer whatever others have there.
pub const TASKS_OWN_BYTES: usize = 64 << 10;
/// The least for which a request counts: as many requests as a batch may have are as much as its bytes.
pub const TASK_BYTES_MIN: usize = 1 << 10;
const _: () = assert!((TASK_BYTES_MIN * TASKS_PER_BATCH) as u64 == TASKS_BATCH_BYTES);
const _: () = assert!(TASK_BYTES_MIN < TASKS_OWN_BYTES && TASKS_OWN_BYTES < TASKS_WINDOW_BYTES);

/// Tokens that are reserved at once: one more sync for half a million leases. The server never uses the rest of a
/// reservation after it ends. There are enough for 17 million million starts.
pub const TOKENS_RESERVED: u64 = 1 << 20;
// Those left when more are reserved suffice for one batch: for its leases, and the numbers of the tasks that it adds.
const _: () = assert!(TOKENS_RESERVED / 2 > (3 * TASKS_PER_BATCH + EXPIRE_BUDGET + LEASES_PER_BATCH) as u64);

/// Pause of a task whose value could not be read, in milliseconds: time for others, and for a device to come back.
pub const UNREAD_PAUSE: u64 = 1_000;
/// The longest such pause. Each pause is twice as long as the one before.
pub const UNREAD_PAUSE_MAX: u64 = 60_000;

/// Queues of tasks at once: with three kilobytes for each, 12 GiB. A task for a further queue is refused.
pub const QUEUES_MAX: usize = 1 << 22;
/// Queues of a family that STATS list one by one. The family's totals include all of them.
pub const QUEUES_LISTED: usize = 100;

// ------------------------------------------------------------------------------------------------------------ spiderq

/// Longest key of a task, in bytes (`tasks/PROTOCOL.md`).
pub const TASK_KEY_BYTES_MAX: usize = 32 << 10;
/// Longest value of a task, in bytes (`tasks/PROTOCOL.md`).
pub const TASK_VALUE_BYTES_MAX: usize = 16 << 20;
/// Largest frame of a request about tasks, in bytes. The longest value and the longest key fit, and somewhat longer
/// ones, so that the server can answer them. A larger frame closes its connection.
pub const TASK_FRAME_BYTES_MAX: usize = TASK_VALUE_BYTES_MAX + (1 << 20);

/// How long replies may wait for a client that does not read at all. Then its connection is closed: the store keeps for
/// them the values that have changed since.
pub const CLIENT_STALLS_MAX: Duration = Duration::from_secs(60);
/// Time in which a client with pending replies must read [`SLOW_READER_BYTES`]. Otherwise its connection is closed. So
/// a client that reads a byte now and then keeps its values in the store no longer than that.
pub const SLOW_READER_MAX: Duration = Duration::from_secs(15 * 60);
/// See [`SLOW_READER_MAX`]: as much as four of the longest values.
pub const SLOW_READER_BYTES: u64 = 64 << 20;
/// A client that reads this many bytes a second is never closed for its pace: 0.8 Mbit/s, which any link in use today
/// exceeds.
pub const SLOW_READER_PACE: u64 = 96 << 10;
/// Bytes of its buffer that the system may send before it takes further ones: a third of 4 MiB, its usual largest
/// size, rounded up to 2 MiB.
const TAKEN_AT_ONCE_BYTES: u64 = 2 << 20;
const _: () = assert!(SLOW_READER_PACE * SLOW_READER_MAX.as_secs() >= SLOW_READER_BYTES + TAKEN_AT_ONCE_BYTES);
const _: () = assert!(SLOW_READER_PACE * CLIENT_STALLS_MAX.as_secs() >= TAKEN_AT_ONCE_BYTES);

// --------------------------------------------------------------------------------------------------------------- jobs

/// Longest name of a queue of jobs, in bytes (`jobs/PROTOCOL.md`).
pub const JOB_QUEUE_BYTES_MAX: usize = 255;
/// Longest data of a job, in bytes (`jobs/PROTOCOL.md`).
pub const JOB_DATA_BYTES_MAX: usize = 1_000_000;
/// Longest line of GET, ACK or IN, in bytes: a queue, and an invented id of any length.
pub const JOB_LINE_BYTES_MAX: usize = 1 << 10;
/// Bytes that a connection for jobs may buffer without a permit: a line, and an ADD of little data.
pub const JOB_BUFFER_BYTES: usize = 2 << 10;
/// Bytes that larger requests for jobs may take together, where there is memory for it, else an eighth of the memory
/// that the tables leave. Answers have as much again. When it is used up, such requests and answers wait, and slow
/// clients lose theirs. Small requests do not wait.
pub const JOB_ROOM_BYTES: usize = 256 << 20;
/// The least room for larger requests for jobs: the longest one fits.
pub const JOB_ROOM_BYTES_MIN: usize = 2 << 20;
const _: () = assert!(JOB_LINE_BYTES_MAX < JOB_BUFFER_BYTES && JOB_ROOM_BYTES_MIN < JOB_ROOM_BYTES);
const _: () = assert!(JOB_DATA_BYTES_MAX + JOB_LINE_BYTES_MAX < JOB_ROOM_BYTES_MIN);
/// Received bytes of a request for a job from which its connection takes room for all the rest at once.
pub const JOB_STEPS_BYTES: usize = 64 << 10;

/// Connections for jobs at once, if there are descriptors for them. Further ones wait to be accepted.
pub const JOB_CONNECTIONS_MAX: usize = 1 << 14;
/// Connections for jobs that may wait to be accepted. The system cuts it to its own limit (net.core.somaxconn).
pub const JOB_BACKLOG: i32 = 4_096;

/// Silence after which a GET, ACK or IN without an end is answered (`jobs/PROTOCOL.md`).
pub const JOB_PAUSE: Duration = Duration::from_millis(1);
/// How long a client for jobs may be silent in its request, leave its answer unread, or leave the connection open after
/// it (`jobs/PROTOCOL.md` for the first).
pub const JOB_SILENCE: Duration = Duration::from_secs(5);
/// How long a client may take to send a request for jobs, and to read its answer (`jobs/PROTOCOL.md` for the first).
pub const JOB_TIME: Duration = Duration::from_secs(60);
/// The period in which the pace of a client for jobs is measured. While others wait for its room or its connection, a
/// slow one loses it (`jobs/PROTOCOL.md`).
pub const JOB_PACE_TIME: Duration = Duration::from_secs(1);
/// Bytes that a client moves in [`JOB_PACE_TIME`] if it is not slow. At a slower pace the longest request would not come
/// in its time.
pub const JOB_PACE_BYTES: usize = 20_000;
const _: () = assert!((JOB_DATA_BYTES_MAX / JOB_PACE_BYTES) as u64 * JOB_PACE_TIME.as_secs() < JOB_TIME.as_secs());
/// How often slow clients are looked for while others wait.
pub const JOB_PACE_CHECK: Duration = Duration::from_millis(100);
/// Bytes that a client may still send after its answer. A reset answers later ones. Longer than the longest request.
pub const JOB_DRAINED_BYTES_MAX: usize = 64 << 20;
/// Length of a job's lease, in seconds, unless `--lease` sets another (`jobs/PROTOCOL.md`).
pub const JOB_LEASE_SECONDS: u64 = 300;

// ------------------------------------------------------------------------------------------------------------- events

/// Longest value of an event, in characters (`events/PROTOCOL.md`).
pub const EVENT_VALUE_CHARS_MAX: usize = 255;
/// Connections for events at once, if there are descriptors for them. Further ones wait to be accepted.
pub const EVENT_CONNECTIONS_MAX: usize = 1 << 13;
/// Connections for events that may wait to be accepted. The system cuts it to its own limit (net.core.somaxconn).
pub const EVENT_BACKLOG: i32 = 4_096;

/// How often a frontend over plain TCP looks for a conversation that loses its connection while all are taken.
pub const PLACE_RECHECK: Duration = Duration::from_millis(10);
/// How often the frontends of jobs and of events check whether their store can still answer.
pub const STORE_SWEEP: Duration = Duration::from_secs(5);
/// How long a store may take for an answer: a statement of a database, unless a flag says otherwise, or a turn in the
/// queue of events for a health check.
pub const STORE_ANSWER_MAX: Duration = Duration::from_secs(10);
/// How long a connection to a database may take. HTTP clients usually wait longer, so they receive the reason.
pub const DATABASE_CONNECT_MAX: Duration = Duration::from_secs(5);

/// Events of one transaction: as many as arrive while another commits. The statement has some tens of kilobytes.
pub const EVENTS_PER_TRANSACTION: usize = 1 << 10;
/// Transactions for new events at once. While the first is being synced, the second has the row with the last id. A
/// third would only wait for it.
pub const EVENT_WRITERS: usize = 2;
/// Requests about events that may wait for a transaction or for the committer: one for each possible connection.
pub const EVENTS_WAITING_MAX: usize = EVENT_CONNECTIONS_MAX;
/// Connections on which a database is asked for events at once.
pub const EVENT_READERS: usize = 8;

/// Attempts at a transaction that the database ends in favour of another. If each attempt waits for a lock, they take
/// as long as an HTTP client is patient.
pub const TRANSACTION_TRIES: u32 = 10;
/// Longest wait before the next attempt: about as long as some transactions.
pub const TRANSACTION_JITTER: Duration = Duration::from_millis(5);
/// How much longer the server waits for a statement than the database runs it, so that the database's word comes first.
pub const STATEMENT_GRACE: Duration = Duration::from_secs(1);
/// How long a start may wait to insert the row with the last id, while others do so or have locked its table.
pub const FIRST_ROW_MAX: Duration = Duration::from_secs(30);
/// Seconds that a statement waits for a lock before the database gives it up: less than an answer may take.
pub const LOCK_WAIT_SECONDS: u64 = 2;
/// Seconds that a flag may grant a statement: more than it may wait for a lock, and at most a day.
pub const STATEMENT_SECONDS: RangeInclusive<u64> = LOCK_WAIT_SECONDS + 1..=86_400;
const _: () = assert!(LOCK_WAIT_SECONDS < STORE_ANSWER_MAX.as_secs());

/// Events that a worker claims in one transaction, at most: the statement that stores their values has two places for
/// each.
pub const CLAIM_MAX: usize = 1_000;
/// How long a worker waits when no event is pending in a database (`events/PROTOCOL.md`).
pub const CLAIM_PAUSE: Duration = Duration::from_secs(1);
/// Longest random addition to [`CLAIM_PAUSE`] (`events/PROTOCOL.md`).
pub const CLAIM_JITTER: Duration = Duration::from_millis(500);

// ------------------------------------------------------------------------------------------------------------ control

/// Bytes of the longest path in a request of the operator: the longest that the system takes (PATH_MAX).
pub const CONTROL_PATH_BYTES_MAX: usize = 4096;
/// Bytes that a client of the operator reads of a reply: a sentence with some of the longest paths.
pub const CONTROL_REPLY_BYTES_MAX: u64 = 64 << 10;
const _: () = assert!(CONTROL_REPLY_BYTES_MAX > 4 * CONTROL_PATH_BYTES_MAX as u64);
/// How long a client of the operator may take to send its request. Another one waits meanwhile.
pub const CONTROL_REQUEST_TIME: Duration = Duration::from_secs(5);
/// How long it may take to send the first byte: a client sends its request at once, and silent ones are served one
/// after the other.
pub const CONTROL_FIRST_BYTE_TIME: Duration = Duration::from_secs(1);
/// Clients of the operator that may wait to be accepted.
pub const CONTROL_BACKLOG: i32 = 16;

// ------------------------------------------------------------------------------------------------------------ sockets

/// Most descriptors of the reserve that connections never take: the files of the store, twice, and the connections to a
/// database. The reserve is a quarter of all descriptors if that is less.
pub const DESCRIPTORS_RESERVED_MAX: u64 = 1_200;
/// Segments that the store keeps open for readers, at most: with 64 MiB in each of them, some 30 GB are at hand.
pub const STORE_FILES_MAX: usize = 512;
const _: () = assert!(2 * STORE_FILES_MAX as u64 <= DESCRIPTORS_RESERVED_MAX);

/// Pause in accepting when there is no descriptor for a connection.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections that may wait to be accepted. The system cuts it to its own limit (net.core.somaxconn).
pub const ACCEPT_BACKLOG: i32 = 4096;
/// Connections that are accepted before others have their turn.
pub const ACCEPT_BURST: usize = 64;

/// Silence of a connection after which the system probes whether its host is still there.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Time that the host has to answer a probe before the next one.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Probes without an answer after which the connection is closed.
pub const KEEPALIVE_PROBES: u32 = 3;

// ---------------------------------------------------------------------------------------------------------------- log

/// Bytes of log lines that may wait for a slow reader of standard error. Further lines are dropped and counted.
pub const LOG_BYTES_MAX: usize = 1 << 20;
/// How long the process waits at its end until the last lines of the log are written.
pub const LOG_LAST_WORDS: Duration = Duration::from_millis(200);
/// Interval in which the same warning about connections is not repeated.
pub const WARNING_PAUSE: Duration = Duration::from_secs(10);

// ------------------------------------------------------------------------------------------------------ start and end

/// How long each of the two stages of the end may take. In the first, frontends answer the requests that they have
/// taken. In the second, the publisher announces the committed changes. Peers that do not read cost no more than that.
pub const LINGER: Duration = Duration::from_secs(2);
/// How long the reaper continues to seal the elements of deleted tables after the last client is served.
pub const SEALING_MAX: Duration = Duration::from_millis(500);
/// How long the end may take, independent of the peers (`OPERATION.md`).
pub const STOP_MAX: Duration = Duration::from_secs(5);
const _: () =
    assert!(2 * LINGER.as_millis() + SEALING_MAX.as_millis() + LOG_LAST_WORDS.as_millis() < STOP_MAX.as_millis());
