//! Tables, timers and task queues over ZeroMQ, and jobs over TCP, for a multicore host.
//!
//! This crate is the server `spindle`, and the library that it is made of. These modules include pages that stand as Markdown
//! beside the code:
//!
//! - [`protocols::kv`], [`protocols::spiderq`], [`protocols::jobs`], [`protocols::events`]: each protocol, byte by byte
//! - [`tables`], [`tasks`]: guarantees
//! - [`server`]: operation (flags, limits, signals, logs, STATS) and tuning
//!
//! # One request
//!
//! A client's frames come in at the ROUTER of `protocols::kv::queue`, which forwards them, always to the same worker
//! for the same client, and keeps an account of what the client has outstanding. `protocols::kv::worker` takes what
//! waits, reads the clock once, and pins itself once. `wire::decode` makes a request of the frames without copying;
//! `handle::handle` runs the verb on a [`tables::Batch`], which finds the slot and swaps in a new entry;
//! `wire::encode` writes the reply, which goes back the way that the request came.
//!
//! # One change
//!
//! After the swap the worker pushes the change into its ring. `protocols::kv::publish` drains the rings through
//! [`tables::Changes`], which puts the changes of each key in order; `protocols::publish` encodes each once and sends it to all
//! who subscribe. An earlier
//! deadline goes to the expiry thread, which keeps it in the [`wheel`] and swaps the element out when it comes up.
//!
//! # One task
//!
//! A request about tasks comes in at the ROUTER of `protocols::spiderq::serve`, which decodes its last frame and hands it, with others that
//! came with it, to the committer of [`tasks`]. The committer applies what waits to the queues, which are in memory, writes the effects as
//! one batch to the [`store`], syncs it, and then delivers the answers; `serve` reads values that are not fresh and sends the replies.
//!
//! # One job
//!
//! A connection for jobs is accepted by `protocols::jobs::serve`, and a conversation reads it until its `wire` says that the request is
//! whole. The same committer applies it, to a queue that is found by its name and there as long as it has a task; the conversation sends the answer,
//! closes its end, and waits for the client to close the other.
//!
//! # One event
//!
//! A request for an event comes in over HTTP at `protocols::events::serve`; its routes ask one of two stores. The server's own is a queue of
//! [`tasks`], whose face of the spiderq protocol lends pending events to workers; the other is a database. [`worker`] gives them values.
//!
//! # Floors
//!
//! ```text
//! 6  main, cli, server, load  arguments, and the composition root: every thread and channel is made there; the load generator
//!    worker                   gives events their values
//! 5  protocols                bytes to verbs and back; the only sockets
//! 4  tables, tasks            no socket, no argument; told the time
//! 3  store                    durable batches; the only files
//! 2  threads, zmtp            the only place that spawns; ZMTP 3.1 without I/O
//!    descriptors              how many connections may take
//! 1  wheel                    a pure data structure
//! 0  limits, clock, stats, log, allocator
//! ```
//! Imports go down only. A test of the source text (`tests/it/tidy.rs`) checks this, and which files may name a dependency.
//!
//! # Threads
//!
//! | name | count | work |
//! |---|---|---|
//! | `signals` | 1 | reads SIGINT, SIGTERM and SIGHUP; they are blocked in all others |
//! | `log` | 1 | writes to standard error what the others have to say |
//! | `kv-queue` | 1, `--frontend proxy` | moves messages between the ROUTER and the workers |
//! | `kv-accept` | 1, `--frontend native` | accepts connections and hands each to a worker |
//! | `kv-worker-N` | `--workers` | handles requests about tables; pinned |
//! | `kv-report` | 1 | renders LIST_TABLES and STATS |
//! | `publisher` | 1 | drains the changes, orders them per key, sends notifications |
//! | `expiry` | 1 | owns the wheel; sleeps until the next deadline |
//! | `reaper` | 1 | retires and removes dead slots, seals deleted tables |
//! | `compactor` | 1 | keeps the process within `--max-memory`: gives memory back, moves elements together |
//! | `committer` | 1, with tasks, jobs or embedded events | owns the queues of tasks: applies, stores, answers |
//! | `spiderq`, `events-queue` | 1 each, if on | the connections of tasks, and of the queue of events |
//! | `jobs-io`, `events-io` | 1 each, if on | the connections of jobs and of events |
//!
//! libzmq has I/O threads of its own with `--frontend proxy`.
//!
//! # Invariants
//!
//! - `wire` knows no domain, and the domains know no wire. Only `protocols` opens sockets. Only `store` keeps files.
//! - The verb that changes an element emits its change and its deadline. No caller can forget either.
//! - A read of an element takes no lock and writes no cache line that another core uses.
//! - A frontend answers a change of tasks, jobs or events after the batch is stored: store, then memory, then answer.
//! - Every queue has a capacity in [`limits`] and a sentence on what happens when it is full.
//! - Only [`threads`] spawns, only [`clock`] reads the clock, and a thread that waits has a waker.
//! - `unsafe` stands in `tables/slot`, `allocator`, `threads`, `main` and `protocols/sockets` alone. Each block says which
//!   fact makes it sound and which code guarantees it; the slot protocol is model-checked (loom).
//!
//! # What is not here
//!
//! The wheel does not know the clock. The tables do not know frames, and the wire does not know tables. Tables are not
//! stored on disk: a server that starts has none. Tasks do not know tables.

pub mod allocator;
pub mod cli;
pub mod clock;
pub mod descriptors;
pub mod limits;
pub mod load;
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
