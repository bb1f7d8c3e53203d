//! Tables, timers and task queues over ZeroMQ, jobs over TCP, and events over HTTP, for a multicore host.
//!
//! This crate is the server `spindle`, and the library that it is made of. These modules include pages that are
//! Markdown files beside the code:
//!
//! - [`protocols::kv`], [`protocols::spiderq`], [`protocols::jobs`], [`protocols::events`]: each protocol, byte by byte
//! - [`tables`], [`tasks`]: guarantees
//! - [`server`]: operation (flags, limits, signals, logs, STATS) and tuning
//!
//! # Floors
//!
//! ```text
//! 6  main, cli, server        arguments; the composition root, which makes every thread and channel
//!    load                     the load generator
//!    worker                   gives events their values
//! 5  protocols                bytes to verbs and back; the only sockets
//! 4  tables, tasks            no socket, no argument; told the time
//! 3  store                    durable batches; the only files
//! 2  threads, zmtp            the only place that spawns; ZMTP 3.1 without I/O
//!    descriptors              how many connections may take
//! 1  wheel                    a pure data structure
//! 0  limits, clock, lock, stats, log, allocator, byte_reader
//! ```
//! Imports go down only. A test of the source text (`tests/it/tidy.rs`) checks this, and which files may name a
//! dependency.
//!
//! # A GET through the proxy
//!
//! The client connects to `--kv`, and libzmq reads the connection (`--frontend proxy`). A step begins with the name of
//! its thread where the thread changes.
//!
//! 1. `kv-queue`: `Proxy::run` wakes up and calls `take_requests`. It receives the routing id, and `take_request`
//!    receives the other frames with `read_message`.
//! 2. `FlowControl::find` looks up the client by its routing id. `FlowControl::take` charges the request to it and
//!    decides: forward it, hold it, or drop it. A client always has the same worker.
//! 3. `MessageWriter::send` packs the frames into one and sends it over the inproc pipe of that worker.
//! 4. `kv-worker-N`: `Worker::run` calls `receive`, where `BatchInbox::wait` and `BatchInbox::fill` take up to
//!    [`limits::BATCH_MAX`] messages.
//! 5. `Worker::answer_all` reads the clock, and `Session::batch` pins the thread. Both are for the whole batch.
//! 6. `WorkerReplies::answer_some` has `WorkerMessage::read` decode up to [`limits::LOOK_AHEAD`] messages
//!    (`Request::decode`, without copying). `Batch::prefetch` then loads their slots, so that the cache misses overlap.
//! 7. `Responder::answer_if` calls `handle`, which calls `Batch::get`. That finds the table (`Batch::on`), and
//!    `find_live` finds the slot (`Table::find`) and loads its word (`SlotRef::load`). The value is borrowed from the
//!    entry, and the guard keeps it.
//! 8. `Reply::encode` hands each frame to `Socket::send_bytes`, which copies it into a message to the proxy.
//! 9. `kv-queue`: `Proxy::return_replies` receives it. `FlowControl::answered` names the client: a worker answers in
//!    the order of the requests. `Proxy::address` begins a message to the client, and `pass_reply` sends it.
//!
//! # A native GET
//!
//! With `--frontend native` a worker reads its connections itself. Only the worker's thread handles the request.
//!
//! 1. `kv-accept`: `Acceptor::run` accepts the connection, and `hand_over` gives it to the worker with the fewest.
//!    `kv-worker-N`: `NativeWorker::let_in` takes it over with `Connections::insert`.
//! 2. `NativeWorker::wait` waits in `Connections::wait` for epoll. `Connections::note` queues each readable connection.
//! 3. `NativeWorker::serve` gives each a turn with `Connections::receive`. `Connection::take` receives its bytes into
//!    the thread's buffer, and `MessageCutter::cut` finds the messages in them.
//! 4. `WorkerState::answer_all` reads the clock and makes the batch (`Session::batch`). Then it goes through steps 6
//!    and 7 of the walk above.
//! 5. `Reply::encode` hands each frame to `SendBuffer::push`.
//! 6. `Connections::flush` writes the send buffer, with all replies of the turn together, to the connection.
//!
//! # An Add of a task
//!
//! 1. `spiderq`: `SpiderqFrontend::run` calls `rest`, which waits in `Connections::wait`, and `take`, which gives each
//!    readable connection a turn with `Connections::receive`.
//! 2. `TaskResponder::take` decodes the last frame (`Request::decode`), and `Access::task_request` makes a request of
//!    [`tasks`] of it. It notes a pending request under a ticket and appends the request to the burst.
//! 3. `SpiderqFrontend::try_commit` calls `Tasks::try_commit`: while the committer is idle, a frontend may commit by
//!    itself. This thread commits a burst of at most [`limits::TRY_COMMIT_MAX`] requests (`CommitterState::commit_for`)
//!    if all requests that were submitted are answered, no other thread commits, and the last commit was not slow.
//!    Otherwise it sends the burst to the inbox (`Tasks::submit`), and the thread `committer` drains the inbox
//!    (`Committer::step`). Steps 4 to 6 are the same in both cases.
//! 4. `CommitterState::apply` calls `Engine::apply` for each request. That finds the queue by its name and calls
//!    `TaskQueue::add`: the task is in its queue, in memory. The outcome is `Added`, or `Refused` if the key exists.
//! 5. `CommitterState::commit` collects the effects of all requests as one batch (`Engine::drain`), and `Store::commit`
//!    writes and syncs it.
//! 6. `Engine::stored` updates the metrics of the changed queues and removes queues that are over.
//!    `CommitterState::answer` returns the answers, or hands them to the frontend with `ReplySink::deliver`, which
//!    wakes it.
//! 7. `spiderq`: `SpiderqFrontend::hear` finds the pending request by its ticket (`TaskResponder::answered`).
//!    `ClientState::send` makes the reply from the verb of the request and the outcome (`handle::reply`) and encodes it
//!    into the send buffer, and `Connections::flush` writes it.
//!
//! # A change to its subscriber
//!
//! 1. `kv-worker-N`: `Batch::update` calls `Ops::put`. `Ops::overwrite` takes a credit and swaps the new entry in by a
//!    compare-and-swap of the slot's word (`SlotRef::replace`). The change is committed. For a new key `Ops::create`
//!    lets a new slot in.
//! 2. `Ops::committed` pushes the slot and the version into the worker's ring (`ChangeWriter::push`). If the deadline
//!    is earlier than the timer, `Ops::arm` sends it to the thread `expiry`, which keeps it in the [`wheel`] and swaps
//!    the element out when it comes up.
//! 3. At the end of the batch `ChangeWriter::tell` wakes the publisher if it sleeps.
//! 4. `publisher`: `Publisher::run` calls `announce`, and `Changes::drain` takes the changes from all rings.
//!    `Changes::run` holds a change back until the version before it is announced.
//! 5. `Changes::announce` hands the change to `Subscribers::publish`, which encodes it once if a topic matches
//!    (`Burst::add`). Then it marks the version as announced (`SlotRef::set_announced`).
//! 6. `Changes::give_back` returns the credits to the writers.
//! 7. `Subscribers::send` gives each subscriber its messages. `Subscribers::deliver` offers them to the system at once,
//!    and `keep` (`publish/deliver.rs`) queues the bytes that the system has not taken. A slow subscriber beyond its
//!    bound loses the newest messages, which are counted.
//! 8. When the connection is writable, `Subscribers::turn` sends more of the queue with `flush`.
//!
//! # One job, one event
//!
//! `TcpFrontend::run` accepts a connection for jobs and gives it to a conversation (`TcpProtocol::converse`), which
//! reads it until its `wire` says that the request is whole. The same committer applies the request, or `jobs-io`
//! itself while the committer is idle, to a queue that is found by its name and exists as long as it has a task. The
//! conversation sends the answer, closes its end, and waits for the client to close the other.
//!
//! A request for an event comes in over HTTP, on the same skeleton. The routes of `protocols::events::serve` ask one of
//! two stores. The server's own is a queue of [`tasks`], whose spiderq frontend leases pending events to workers. The
//! thread `events-io` leaves all commits to the committer, so it answers health checks while the disk is stuck. The
//! other is a database. [`worker`] gives events their values.
//!
//! # Threads
//!
//! | name | count | work |
//! |---|---|---|
//! | `signals` | 1 | reads SIGINT, SIGTERM and SIGHUP, which are blocked in all other threads |
//! | `log` | 1 | writes the log lines of all threads to standard error |
//! | `kv-queue` | 1, `--frontend proxy` | moves messages between the ROUTER and the workers |
//! | `kv-accept` | 1, `--frontend native` | accepts connections and hands each to a worker |
//! | `kv-worker-N` | `--workers` | handles requests about tables; pinned |
//! | `kv-report` | 1 | renders LIST_TABLES and STATS |
//! | `publisher` | 1 | drains the changes, orders them per key, sends notifications |
//! | `expiry` | 1 | owns the wheel; sleeps until the next deadline |
//! | `reaper` | 1 | retires and removes dead slots, seals deleted tables |
//! | `compactor` | 1 | keeps the process within `--max-memory`: gives memory back, moves elements together |
//! | `committer` | 1, with tasks, jobs or embedded events | commits requests about tasks: applies, stores, answers |
//! | `spiderq`, `events-queue` | 1 each, if on | the connections of tasks, and of the queue of events |
//! | `jobs-io`, `events-io` | 1 each, if on | the connections of jobs and of events |
//!
//! libzmq has I/O threads of its own with `--frontend proxy`, and the store has one that writes its trees
//! (`fjall:worker`). `spindle worker` has the threads `worker-N`, one for each slot, and `spindle load` `load-N`.
//! The threads of a server are made in `server/mod.rs`, but for `signals` (`server/signals.rs`) and `log`
//! (`cli/log.rs`).
//!
//! # Invariants
//!
//! - `wire` knows no domain, and the domains know no wire. Only `protocols` opens sockets. Only `store` keeps files.
//! - The verb that changes an element emits its change and its deadline. No caller can forget either.
//! - A read of an element takes no lock and writes no cache line that another core uses.
//! - A frontend answers a change of tasks, jobs or events after the batch is stored: store, then memory, then answer.
//! - Every queue has a capacity in [`limits`] and a sentence about its full state.
//! - Only [`threads`] spawns, only [`clock`] reads the clock, and a thread that waits has a waker.
//! - `unsafe` is allowed in `tables/slot`, `allocator`, `threads`, `main` and `protocols/sockets` alone. Each block
//!   names the fact that makes it sound and the code that guarantees the fact. The slot protocol is model-checked
//!   (loom).
//!
//! # Where to add
//!
//! | to add | begin at |
//! |---|---|
//! | a command of the tables | `protocols/kv/mod.rs`, which lists the files in order |
//! | a store under tasks and jobs | the traits in `store.rs`; `server/tasks.rs` opens it |
//! | a store of events | the trait in `protocols/events/store.rs` |
//! | a security mechanism of ZMTP | `zmtp/mod.rs` |
//! | a bound or a delay | `limits.rs`; bounds that follow the memory, in `server/memory.rs` |
//! | a thread | `server/mod.rs`, through `threads::spawn` |
//!
//! # Glossary
//!
//! | word | meaning |
//! |---|---|
//! | frame, message | a ZMTP frame; the frames up to the one without the `more` flag |
//! | envelope | the frames before the body of a message, which the reply carries back |
//! | routing id | the bytes by which a ROUTER addresses a connection |
//! | frontend | the code that reads the connections of one protocol and sends the replies |
//! | proxy | the frontend with libzmq: one ROUTER towards the clients, one DEALER towards each worker |
//! | flow control | the proxy's record of each client's outstanding requests and unread replies, and its verdicts |
//! | element, entry | a key with its value in a table; the value, version and deadline that a slot points to |
//! | slot | the place of one key in a table, changed by a compare-and-swap of one word |
//! | version | the number of a change of a key: it grows by one with each change of a slot |
//! | version floor | the highest version of all removed slots, in all tables: a key that comes back starts above it |
//! | guard, epoch | while a thread holds a guard it is pinned to an epoch, and memory retired since is not freed |
//! | batch | requests that share a guard and a clock reading (tables), or a write and a sync (tasks) |
//! | prefetch | to load the slots of a batch's next requests into the cache before handling the first |
//! | change | a committed write of a slot, on its way to the publisher |
//! | ring, credit | the queue of one writer's changes; the right to push one change, returned once it is announced |
//! | announce, notification | to send a change to its subscribers; the message that is sent |
//! | TTL, deadline | a relative time to live in seconds; an absolute time |
//! | expire | to take an element away because its deadline has passed; to end a lease for that reason |
//! | due message | a writer's message to the expiry thread: this slot has a deadline |
//! | record (of the wheel) | the entry of the wheel that comes up at a deadline |
//! | retire | to hand a dead slot, or replaced memory, over for removal once no thread can read it |
//! | seal | to end a slot of a deleted table, so that its key can be announced in a new table of the name |
//! | predecessor | an older table of the same name whose elements are not all sealed and announced |
//! | memory budget | the count of the bytes that tables take, compared with `--max-memory` |
//! | settled (table) | no slot of a deleted table waits to be sealed or announced |
//! | family | all queues whose names begin with one prefix, such as those of jobs |
//! | task, job, event | an entry of a durable queue; the same under the jobs protocol; a value that a worker provides |
//! | lease, settle | the right to work on a task until a deadline; to end it with a result |
//! | ticket | the number under which a frontend notes a request that the committer has not answered |
//! | commit, sync | to write a batch to the store; to wait until it is on disk |
//! | reply sink | the committer's handle for delivering answers to one frontend |
//!
//! # Not in this crate
//!
//! The wheel does not know the clock. The tables do not know frames, and the wire does not know tables. Tables are not
//! stored on disk: a server that starts has none. Tasks do not know tables.

pub mod allocator;
mod byte_reader;
pub mod cli;
pub mod clock;
pub mod descriptors;
pub mod limits;
pub mod load;
mod lock;
pub mod log;
pub mod protocols;
pub mod server;
pub mod stats;
pub mod store;
pub mod tables;
pub mod tasks;
pub mod threads;
pub mod wheel;
pub mod worker;
pub mod zmtp;
