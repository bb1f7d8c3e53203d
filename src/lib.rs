//! Tables, timers and task queues over ZeroMQ, jobs over TCP, and events over HTTP, for a multicore host.
//!
//! This crate is the server `spindle`, and the library that it is made of. [`Client`] asks a server about its tables:
//!
//! ```no_run
//! # fn main() -> Result<(), spindle::ClientError> {
//! let mut client = spindle::Client::connect("tcp://127.0.0.1:5555")?;
//! client.create_table(b"users")?;
//! client.update(b"users", b"ada", b"countess", Some(spindle::Ttl::from_secs(60)))?;
//! assert_eq!(client.get(b"users", b"ada")?, b"countess");
//! # Ok(())
//! # }
//! ```
//! The other clients are beside it: [`clients::rust::tables`] has subscribers and mirrors,
//! [`clients::rust::tasks`] tasks, [`clients::rust::jobs`] jobs.
//!
//! These modules include pages that are Markdown files beside the code:
//!
//! - [`services::tables`], [`services::resp`], [`services::lockstep`], [`services::tasks`], [`services::jobs`],
//!   [`services::events`], [`services::operator::admin`]: each protocol
//! - [`tables`], [`tasks`]: guarantees
//! - [`server`]: operation (flags, limits, signals, logs, STATS) and tuning
//!
//! # Floors
//!
//! ```text
//! 7  main, cli, server        arguments; the composition root, which makes the server's threads and connects them
//! 6  load                     the load generator
//!    worker                   gives events their values
//!    clients                  speak the protocols from outside, with sockets of their own
//! 5  services                 bytes to verbs and back; permissions
//! 4  net                      the sockets of the server: accept, read, bound, write
//! 3  tables, tasks            no socket, no flag; the caller passes the time in
//! 2  store                    durable batches; the only files that the server keeps
//!    security                 users and what they may do; knows no socket
//! 1  threads, zmtp, resp3     the only place that spawns; ZMTP 3.1 and RESP without I/O
//!    descriptors              how many connections may take
//!    feed                     the numbered states that subscribers receive
//! 0  wheel                    pure: the caller passes the time in
//!    chunked_map              an ordered map for keys that come in their order
//!    messages                 positions of frames in received bytes
//!    limits, clock, lock, stats, log, allocator, byte_reader
//! ```
//! Imports go down only, and rooms of one floor do not import each other. `tests/it/tidy.rs` checks this, and names the
//! steps within a floor by which some do. `tests/it/dependency_places.rs` says which files may name a dependency.
//!
//! # A GET through the queue
//!
//! The client connects to `--kv`. A step begins with the name of its thread where the thread changes.
//!
//! 1. `tables-queue`: `TablesQueue::wait` waits in `Connections::wait` for the connections and for the ROUTER, on one
//!    epoll. `Connections::note` queues each readable connection.
//! 2. `TablesQueue::round` has each of them join a batch with `Connections::send_out`. `Connection::take` receives its
//!    bytes into the memory of the batch, and `MessageCutter::cut` finds the messages in them. The connection keeps
//!    nothing but the note that a turn of it is out.
//! 3. `QueueEnd::send` gives the batch to the worker with the fewest. libzmq passes a pointer to it on.
//! 4. `table-worker-N`: `QueueWorker::run` calls `receive`. `WorkerState::prefetch_first` decodes the first request of
//!    each turn (`Request::decode`, without copying). `Batch::prefetch` loads their slots, so that the cache misses
//!    overlap.
//! 5. `TurnBatch::answer` hands each turn to `WorkerState::answer_turn`, which reads the clock. `answer_requests` pins the
//!    thread (`Session::batch`), decodes up to [`limits::LOOK_AHEAD`] messages, fetches what they read, and notes where
//!    it is. `Batch::expect` has the next look-up begin there.
//! 6. `Responder::respond` calls `handle`, which calls `Batch::get`. That finds the table (`Catalog::reach`), and
//!    `find_live` finds the slot, at its place (`Table::at`) or by its hash (`Table::find`), and loads its word
//!    (`SlotRef::load`). The value is borrowed from the entry, and the guard keeps it.
//!
//!    Below `Table::find` a flurry map owns the segments of buckets of a table with more than some 5,000 elements. It
//!    decides which thread makes a segment, and lists the segments when the table goes. Look-ups read the cells that
//!    show them. Through the map they took more than the 3 % that were allowed: see `tables/index.rs`.
//! 7. `Reply::encode` hands each frame to `ReplyBuffer::push`. `WorkerEnd::send` sends the batch back.
//! 8. `tables-queue`: `Connections::take_back` gives each connection its replies (`ReplyBuffer::take_over` swaps the two
//!    buffers), and `Connections::flush` writes them.
//!
//! # A native GET
//!
//! With `--frontend native` a worker reads its connections itself. Only the worker's thread handles the request.
//!
//! 1. `tables-accept`: `Acceptor::run` accepts the connection, and `hand_over` gives it to the worker with the fewest.
//!    `table-worker-N`: `NativeWorker::admit` takes it over with `Connections::insert`.
//! 2. `NativeWorker::wait` waits in `Connections::wait` for epoll. `Connections::note` queues each readable connection.
//! 3. `NativeWorker::serve` gives each a turn with `Connections::receive`. `Connection::take` receives its bytes into
//!    the thread's buffer, and `MessageCutter::cut` finds the messages in them.
//! 4. `WorkerState::answer_turn` answers the turn into the connection's own buffer, as in steps 5 to 7 of the walk above.
//! 5. `Connections::flush` writes the send buffer, with all replies of the turn together, to the connection.
//!
//! # A GET of a Redis client
//!
//! With `--resp` native workers serve Redis clients too. Only the worker's thread handles the command.
//!
//! 1. `tables-accept`: `Acceptor::run` accepts the connection. With TLS `BoundListener::arrival` begins a session, which
//!    `TlsSession::open` and `TlsSession::seal` carry on. `NativeWorker::admit` takes the connection over, and
//!    `RespShared::enter` enters it in the registry that CLIENT LIST shows.
//! 2. `NativeWorker::serve` gives it a turn with `Connections::receive`, as in the walk above. `CommandCutter::cut` finds
//!    the commands in its bytes.
//! 3. `RespWorker::answer_turn` finds the row of each command (`resp/commands.rs`), and prefetches what up to
//!    [`limits::LOOK_AHEAD`] of them read.
//! 4. `check` asks whether this client may have the command carried out. The handler of the row, `strings::get`, calls
//!    `Batch::get`, as in step 6 of the first walk. It borrows the value.
//! 5. `Reply::encode` appends the reply to the connection's own buffer, and `Connections::flush` writes all replies of the
//!    turn together. `ClientCard::note` stores the last command in one word.
//!
//! # An UPDATE in lock step
//!
//! With `--lockstep` the first client sends five requests for an UPDATE. One thread, `lockstep`, serves all such clients.
//!
//! 1. `LockstepFrontend::wait` waits in `Connections::wait`, and `serve` gives each readable connection a turn.
//! 2. `Answering::answer_all` finds the argument of each message (`Argument::of`) and gives it to the connection's
//!    `Conversation::take`. That begins a command (`Argument::opening`), or checks and keeps an argument
//!    (`CollectedCommand::add`). Both are answered `ok`.
//! 3. The last argument makes a request of the `kv` protocol (`CollectedCommand::request`). `lockstep/handle.rs` has
//!    `handle` carry it out, as in step 6 of the walk above. If it is busy, the connection is parked (`WaitingClients`)
//!    and the argument comes again.
//! 4. The outcome is `ok` or `error`. The value or the reason stays in the conversation until a `6` asks for it.
//! 5. `publisher`: each change goes to `OneFramePublisher::announce` too, which has `encode_notification` make its frame.
//!
//! # A page of a SCAN
//!
//! 1. `tables-queue`: the request goes to a worker as in steps 1 to 3 above. A page ends its turn, so all other clients have
//!    theirs after it.
//! 2. `table-worker-N`: `handle` calls `handle/scan.rs`, and that calls `Batch::scan`. `CursorSeal::open` checks the cursor
//!    and returns the position in the table at which the page begins.
//! 3. `Ops::scan` reads bucket after bucket with `IndexWalk::read`, and sorts the slots of each by their position.
//!    `Ops::scanned` makes a row of a slot that has an element, and marks an entry whose deadline has passed. The page
//!    ends after so many slots, buckets or bytes.
//! 4. The table must still be open. `CursorSeal::seal` makes the next cursor.
//! 5. `ScanRows::encode` hands over the frames, which are appended to the replies.
//!
//! # An Add of a task
//!
//! 1. `tasks`: `SpiderqFrontend::wait` waits in `Connections::wait`, and `serve` calls `take`, which gives each
//!    readable connection a turn with `Connections::receive`.
//! 2. `TaskResponder::take` decodes the last frame (`Request::decode`), and `Access::task_request` makes a request of
//!    [`tasks`] of it. It notes a pending request under a ticket and appends the request to the burst.
//! 3. `SpiderqFrontend::try_commit`: while the committer is idle, a frontend may commit by itself (`Tasks::try_commit`,
//!    `CommitterState::commit_for`). It does so if the burst has at most [`limits::TRY_COMMIT_MAX`] requests, every
//!    submitted request is answered, no other thread commits, and no commit of this frontend was slow in the last
//!    second. Otherwise it sends the burst to the inbox (`Tasks::submit`), and the thread `committer` drains the inbox
//!    (`Committer::step`). Steps 4 to 6 are the same in both cases.
//! 4. First `CommitterState::begin` ends the leases whose deadline has passed. Then `CommitterState::apply` calls
//!    `Engine::apply` for each request. That finds the queue by its [`tasks::QueueName`] and calls `TaskQueue::add`:
//!    the task is in its queue, in memory. The outcome is `Added`, or `Refused` if the key exists.
//! 5. `CommitterState::commit` collects the effects of all requests as one batch (`Engine::drain`), and `Store::commit`
//!    writes and syncs it.
//! 6. `Engine::stored` updates the metrics of the changed queues and removes queues that are over.
//!    `CommitterState::answer` returns the answers, or hands them to the frontend with `ReplySink::deliver`, which
//!    wakes it.
//! 7. `tasks`: `SpiderqFrontend::receive_delivery` finds the pending request by its ticket (`TaskResponder::answered`).
//!    `ClientState::write` makes the reply from the verb of the request and the outcome (`handle::reply`) and encodes it
//!    into the send buffer, and `Connections::flush` writes it.
//!
//! # The end of a lease
//!
//! 1. `committer`: `Committer::wait` sleeps until the first deadline of a lease or of a delayed sync
//!    (`CommitterState::wake`). If the commit of a frontend brings an earlier one, it wakes the committer.
//! 2. The thread that commits next, the committer or a frontend, first calls `CommitterState::begin`
//!    (`tasks/state.rs`). `Engine::expire` takes the due leases out of the engine's [`wheel`].
//! 3. `TaskQueue::expire` puts each task back at the position that `tasks/order.rs` gives (`LeaseOrder::expired`).
//!    `Engine::grant` lends ready tasks to the requests that wait. Then the batch is stored and answered, as in steps 5
//!    to 7 above.
//!
//! Requests end a lease earlier: Repay (`TaskQueue::settle`), ACK (`finish`), Remove (`remove`), and a Heartbeat of 0
//! (`cut_short`). Any other Heartbeat gives it a new deadline (`extend`). When a connection closes, the frontend takes
//! back the leases whose replies were not sent (`undo`). The leases in replies that were sent end by their deadline.
//!
//! # A change to its subscriber
//!
//! 1. `table-worker-N`: `Deadline::after` makes a deadline of the TTL and the batch's reading of the clock, rounded up to
//!    a millisecond. `Batch::update` calls `Ops::put`.
//! 2. `Ops::overwrite` takes a credit and swaps the new entry in by a compare-and-swap of the slot's word
//!    (`SlotRef::replace`). The change is committed. Its version is one higher, also for a deleted key that still has
//!    its slot. A key without a slot, new or come back, goes to `Ops::create`. The version of its new slot is above the
//!    version floor, above the key's dead slot, and above the key's versions in older tables of the name
//!    (`Ops::settle_in_predecessors`).
//! 3. `Ops::committed` pushes the slot and the version into the worker's ring (`ChangeWriter::push`). If the wheel
//!    would look at the slot later than its deadline, `Ops::arm` notes the deadline in the slot (`SlotRef::arm`,
//!    `tables/slot/deadline.rs`) and sends the slot to the thread `expiry`.
//! 4. At the end of the batch `ChangeWriter::wake_publisher` wakes the publisher if it sleeps.
//! 5. `publisher`: `Publisher::run` calls `announce`, and `Changes::drain` takes the changes from all rings.
//!    `Changes::run` holds a change back until the version before it is announced.
//!    With `--feed` `FeedTap::publish` first publishes the change in the feed: see the walk below.
//! 6. `Changes::announce` hands the change to `Subscribers::collect`, which encodes it once if a topic matches
//!    (`Burst::add`). Then it marks the version as announced (`SlotRef::set_announced`).
//! 7. `Rings::give_back` returns the credits to the writers.
//! 8. `Subscribers::send` gives each subscriber its messages. `Subscribers::deliver` (`publish/subscribers.rs`) offers
//!    them to the system at once, and `keep` (`publish/deliver.rs`) queues the rest. A subscriber above its bound
//!    (`PublishLimits`) loses its newest messages. So do those above their share (`Subscribers::cut_to_shares`) when
//!    all queues together are full and a subscriber below its share needs room. STATS counts the lost messages.
//! 9. When the connection is writable, `Subscribers::turn` sends more of the queue with `flush`.
//!
//! # A change to its follower
//!
//! 1. `publisher`: `Changes::run` locks the feed (`FeedTap::log`, `tables/feed.rs`) for a run of up to 256 changes.
//! 2. `FeedTap::publish` reads the state that the slot has by now. `FeedLog::publish` (`feed/log.rs`) drops the change
//!    if a state at least as new was published. Otherwise it gives that state the next sequence of the table's life,
//!    updates the digest, and encodes it into the life's open message. Only then is the change marked as announced.
//! 3. `FeedTap::send_batch` has `FeedLog::seal` end the open messages and keep them in the `History`. It unlocks, and
//!    hands the messages to `FeedPublisher::publish` (`services/tables/publish/feed.rs`). This function publishes the
//!    messages to the feed's own `Subscribers`.
//! 4. `FeedPublisher::send` adds the bookmarks whose times have come (`BookmarkSchedule::next`). `Subscribers::send`
//!    gives each follower its messages, as in step 8 above.
//! 5. `table-worker-N`: `Batch::feed_state`, `Batch::changes` and a SCAN for mirrors lock the feed for a moment. They see
//!    whole batches.
//!
//! # A mirror
//!
//! The mirror is in the client. Its user's thread does all steps, within [`clients::rust::tables::Mirror::next`].
//!
//! 1. `Mirror::connect` opens two links: the feed, with the table's topic, and the requests (`mirror/link.rs`). A link
//!    that is lost opens again after a pause, without waiting.
//! 2. `Mirror::step` takes one message of each link for the `Follower` (`mirror/follower.rs`), which does no I/O.
//!    `Follower::receive` takes a message of the feed, `Follower::answer` a reply, and `Follower::ask` returns the next
//!    request.
//! 3. The first message makes it ask FEED_STATE. `Follower::begin` takes the sequence to begin with, and the pages of a
//!    scan follow. `TableCopy::merge_row` and `TableCopy::merge_change` (`mirror/copy.rs`) let the highest version win.
//! 4. After the last page `TableCopy::sweep` removes what is left of earlier rounds, and FEED_STATE says where the feed
//!    is. When `Follower::judge` finds that the copy has reached that, with nothing ahead, the copy is exact.
//! 5. `Follower::bookmark` compares each digest at the copy's own sequence. A gap makes it ask CHANGES.
//!
//! # The end of an element
//!
//! 1. `expiry`: `Expiry::take_due` takes the slot that `Ops::arm` has sent, and files a record in the thread's
//!    [`wheel`] (`set_timer`, `Wheel::arm`). `Expiry::sleep` waits for the first record to come up, or for a slot with
//!    an earlier deadline.
//! 2. When the record comes up, `come_up` reads the deadline that the slot has then. If it has passed, `Ops::expire`
//!    swaps the element out. If it is later, the thread files the record again. If there is none, it drops the record.
//! 3. The deletion is a change like any other: steps 3 to 9 above. After it is announced, `Changes::retire` makes the
//!    slot dead, unless it has a newer change.
//! 4. `reaper`: `Reaper::retire_dead` raises the version floor, then removes the dead slot from its table's index.
//!
//! No thread waits for this: an element is absent from its deadline on (`look` in `tables/lookup.rs`). An UPDATE or a
//! DELETE that finds such an element calls `Ops::expire` itself.
//!
//! # One job, one event
//!
//! `TcpFrontend::run` accepts a connection for jobs and gives it to a conversation (`TcpProtocol::converse`). The
//! conversation reads until its `wire` says that the request is whole. A GET, ACK or IN need not end with a newline:
//! where `wire` answers `Decoded::Pausing` (`jobs/wire/request.rs`), the conversation waits [`limits::JOB_PAUSE`] (1
//! ms) for further bytes (`JobConversation::read_request`). The committer applies the request, as for tasks, or `jobs-io`
//! itself while the committer is idle. The queue is found by its name. It exists as long as it has a task. The
//! conversation sends the answer, closes its end, and waits for the client to close the other.
//!
//! A request for an event comes in over HTTP, on the same skeleton. The routes of `services::events::handle` ask one
//! of two stores: a database, or the server's own, which is a queue of [`tasks`]. Workers lease pending events from
//! that queue through a spiderq frontend (`events-queue`). The thread `events-io` leaves all commits to the committer,
//! so it answers health checks while the disk is stuck. [`worker`] gives events their values.
//!
//! # Threads
//!
//! | name | count | work |
//! |---|---|---|
//! | `signals` | 1 | reads SIGINT, SIGTERM and SIGHUP, which are blocked in all other threads |
//! | `log` | 1 | writes the log lines of all threads to standard error |
//! | `tables-queue` | 1, `--frontend queue` | the connections of the tables, and the ROUTER to the workers |
//! | `tables-accept` | 1, `--frontend native` or `--resp` | accepts connections and hands each to a worker |
//! | `table-worker-N` | `--workers` | handles requests about tables; pinned (`--pin`) |
//! | `tables-report` | 1 | renders LIST_TABLES and STATS |
//! | `lockstep` | 1, if on | the connections of the lock-step dialect, and their commands |
//! | `resp-worker-N` | `--resp-workers`, with `--resp` and `--frontend queue` | handles commands of Redis clients; pinned |
//! | `publisher` | 1 | drains the changes, orders them per key, sends notifications and the feed |
//! | `expiry` | 1 | owns the wheel of the elements; sleeps until the next deadline |
//! | `reaper` | 1 | retires and removes dead slots, seals deleted tables |
//! | `compactor` | 1 | keeps the process within `--max-memory`: gives memory back, moves elements together |
//! | `committer` | 1, if a durable queue is on | commits (applies, stores, answers); expires leases by its own wheel |
//! | `store` | 1, if a durable queue is on | lays out, summarises and removes segments of the log |
//! | `readers-N` | 4, from the first value on that is not in memory | read values of tasks, jobs and events |
//! | `control` | 1, if a durable queue is on | the requests of the operator: writes backups |
//! | `users` | 1, with `--users` | checks passwords; reads the file of users again when it changes |
//! | `tasks`, `events-queue` | 1 each, if on | the connections of tasks, and of the queue of events |
//! | `jobs-io`, `events-io` | 1 each, if on | the connections of jobs and of events |
//! | `admin`, `admin-probe` | 1 each, if on | the requests of an operator; tries whether the store can store |
//! | `watchdog` | 1, if systemd asks for it | notifies systemd that the threads of the tables work |
//!
//! The durable queues are those of tasks, of jobs, and of events in the server's own store. The threads above are made
//! in `server/mod.rs`, but for `signals` (`server/signals.rs`), `watchdog` (`server/service_manager.rs`), `log`
//! (`cli/log.rs`), `store` (`store/log/chores.rs`) and `readers-N` (`store/readers.rs`).
//!
//! Libraries add threads of their own. libzmq has `ZMQbg/Reaper` with `--frontend queue`, which is idle. With
//! `mysql://` and a host name, the resolver runs on `tokio-rt-worker`.
//!
//! `spindle worker` has `worker-N`, one for each slot, and `signals` and `log` too. With a database and a host name it has
//! the resolver's. `spindle load` has `load-N`. The clients have no threads: they work in those of their users.
//!
//! # Invariants
//!
//! - `wire` knows no domain, and the domains know no wire.
//! - Of the server, only `net` and `services` open sockets, and only `store` keeps files.
//! - The verb that changes an element emits its change and its deadline. No caller can forget either.
//! - A read of an element takes no lock and writes no cache line that another core uses, with two exceptions. At a slot
//!   that is being moved it waits for the bucket's lock. It marks an entry whose deadline it is the first to see pass.
//! - A frontend answers a change of tasks, jobs or events after it is stored. In the server's own store the engine's
//!   memory changes first, under the committer's lock, so no other thread sees it. Then the batch is stored, and then
//!   its requests are answered.
//! - Every queue is bounded. It has a capacity, in [`limits`] or in its own file, and a sentence about its full state,
//!   or the outstanding requests of its users bound it. Durable queues are bounded by disk and memory only.
//! - Only [`threads`] spawns, only [`clock`] reads the clock, and a thread that waits has a waker.
//! - `unsafe` is allowed in `tables/slot`, `allocator`, `threads`, `main`, `net/sockets` and `net/zeromq/inproc` alone.
//!   Each block names the fact that makes it sound and the code that guarantees the fact. The slot protocol is
//!   model-checked (loom).
//!
//! # Where to add
//!
//! | to add | begin at |
//! |---|---|
//! | a command of the tables | `services/tables/mod.rs`, which lists the files in order |
//! | a metric of STATS and OpenMetrics | a field of a line in `services/tables/report`, with its metric: `report/metric.rs` |
//! | | the counter where it happens; the sketch in `report.rs`; `OPERATION.md`, `ADMIN.md`; `tests/it/metrics_names.txt` |
//! | a default of a flag | `limits.rs`, whose heading names the pages; `cli/commands/serve.rs` and `configuration.rs` test it |
//! | a store under tasks and jobs | the three traits in `store/interface.rs`; `store/keyed.rs` implements them |
//! | | `server/tasks.rs` opens the store; `tests/it/dependency_places.rs` says which file may name its crate |
//! | | a choice between stores: `TasksConfig` there; its flags: `cli/flags/store.rs` |
//! | | its log names: `TARGETS` in `cli/log.rs`; its errors: each variant of `store::Error` names a folder |
//! | a store under the tables | no place yet: changes name the key and not the value (`tables/announce.rs`) |
//! | a store of events | a variant of `EventStore` in `services/events/store.rs`: there is no trait |
//! | | beside it `EventsSource` and `EventsBackend` in `serve.rs`; `start_with` in `server/mod.rs`; `cli/commands/serve.rs` |
//! | | for the workers: `WorkerSource` in `worker/mod.rs`; `cli/commands/worker.rs` |
//! | a security mechanism of ZMTP | `zmtp/mod.rs` |
//! | | for the clients nothing else: `clients/rust/socket/shaking.rs` takes what `zmtp` has |
//! | | keys and flags: `cli/commands/serve.rs`, `ServerConfig` in `server/mod.rs`, then under `services` |
//! | | `KvConfig` (`services/tables/serve.rs`) and `SpiderqConfig` (`services/tasks/config.rs`) |
//! | a bound or a delay | `limits.rs`, or the file itself if no other needs it |
//! | | a bound with a flag: `cli/commands/serve.rs` and `ServerConfig` in `server/mod.rs` too |
//! | | bounds that follow the memory: `server/memory.rs`; bounds of descriptors: `descriptors.rs` |
//! | a thread | `server/mod.rs`, through `threads::spawn` |
//! | a protocol | a folder of `services` with the files of the others; a row in `ROOMS` (`tests/it/tidy.rs`) |
//! | | its connections: `net/service.rs` (over ZeroMQ, and the loop `net/zeromq/serve.rs`) or `net/tcp/frontend.rs` |
//! | | its place in the server: `server/services.rs`; what clients make it hold: `net/budget.rs` |
//!
//! # Glossary
//!
//! | word | meaning |
//! |---|---|
//! | frame, message | a ZMTP frame; the frames up to the one without the `more` flag |
//! | envelope | the frames before the body of a message, which the reply carries back |
//! | routing id | the bytes by which a ROUTER addresses a connection; here it addresses workers alone |
//! | frontend | the code that reads the connections of one protocol and sends the replies |
//! | queue | the frontend whose thread owns the connections, with a ROUTER to the DEALERs of the workers |
//! | turn, out | messages of one connection, answered in order; while another thread has the turn |
//! | element, entry | a key with its value in a table; the value, version and deadline that a slot points to |
//! | slot | the place of one key in a table, changed by a compare-and-swap of one word |
//! | version | the number of a change of a key: it grows by one within a slot, and by one or more into a new slot |
//! | version floor | the highest version of all removed slots, in all tables; at first the base of the start |
//! | | the base: `tables/version.rs`; the catalog keeps the floor, the reaper raises it, new slots start above it |
//! | position (of a key) | its hash with the bits reversed: the order of a scan, which no split changes |
//! | page, cursor | the rows of one SCAN; the sealed position at which the next one begins |
//! | guard, epoch | while a thread holds a guard it is pinned to an epoch, and memory retired since is not freed |
//! | batch | requests that share a guard and a clock reading (tables), or a write and a sync (tasks) |
//! | prefetch | to load the slots of a batch's next requests into the cache before handling the first |
//! | change | a committed write of a slot, on its way to the publisher |
//! | ring, credit | the queue of one writer's changes; the right to push one change, returned once it is announced |
//! | announce, notification | to send a change to its subscribers; the message that is sent |
//! | feed, follower | the numbered states of a table's elements; a subscriber that makes a copy of them |
//! | publish, published version | to put an element's state into the feed; the last version that was put there |
//! | conflation | to publish only the latest of several changes of an element |
//! | incarnation, epoch (of the feed) | one life of a table under its name; one start of the server |
//! | bookmark, digest | a message with a sequence and the sum over the elements published before it; that sum |
//! | mirror, exact | a copy of a table that follows the feed; it has what was published before its sequence, and no more |
//! | round, ahead | one scan of a mirror, and the changes since; a key with a version that the feed has not published yet |
//! | TTL, deadline | a relative time to live in milliseconds; an absolute time |
//! | expire | to take an element away because its deadline has passed; to end a lease for that reason |
//! | due message | a writer's message to the expiry thread: this slot has a deadline |
//! | record (of the wheel) | the entry of the wheel that comes up at a deadline |
//! | retire | to hand a dead slot, or replaced memory, over for removal once no thread can read it |
//! | seal | to end a slot of a deleted table, so that its key can be announced in a new table of the name |
//! | predecessor | an older table of the same name whose elements are not all sealed and announced |
//! | memory budget | the count of the bytes that tables take, compared with `--max-memory` |
//! | family | all queues whose names begin with one prefix, such as those of jobs |
//! | task, job, event | an entry of a durable queue; the same under the jobs protocol; a value that a worker provides |
//! | lease | the right to work on a task until a deadline |
//! | settle a lease | its holder ends it, with a result |
//! | settled (table) | no slot of a deleted table waits to be sealed or announced |
//! | settled (connection) | no bytes are on their way in either direction |
//! | ticket | the number under which a frontend notes a request that the committer has not answered |
//! | commit, sync | to write a batch to the store; to wait until it is on disk |
//! | reply sink | the committer's handle for delivering answers to one frontend |
//!
//! # Not in this crate
//!
//! The wheel does not know the clock. The tables do not know frames, and the wire does not know tables. Tables are not
//! stored on disk, and no trait is there for it: a server that starts has none. Tasks do not know tables.

pub mod allocator;
mod byte_reader;
mod chunked_map;
pub mod cli;
pub mod clients;
pub mod clock;
pub mod descriptors;
pub mod feed;
pub mod limits;
pub mod load;
mod lock;
pub mod log;
pub mod messages;
pub mod net;
pub mod resp3;
pub mod security;
#[cfg(test)]
mod seeded_rng;
pub mod server;
pub mod services;
pub mod stats;
pub mod store;
pub mod tables;
pub mod tasks;
pub mod threads;
pub mod wheel;
pub mod worker;
pub mod zmtp;

pub use clients::rust::tables::{Client, Error as ClientError};
pub use clock::Ttl;
