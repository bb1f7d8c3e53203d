//! All integration tests in one program: each chapter is a module, each module line says what it shows.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

/// Hostile peers on every face, while a client of each protocol counts what is wrong.
mod attack;
/// Chance that a seed decides, so that a failure can be had again.
mod chance;
/// Says whether a history of one element can have happened one operation after the other.
mod checker;
/// Broken histories are rejected and tricky ones accepted: the checker can be believed.
mod checker_trial;
/// Every command, error, limit and order of faults, with our own client.
mod conformance;
/// A server that is killed under load, and what may be wrong afterwards.
mod crash;
/// A subscriber that never reads harms nobody.
mod deaf;
/// Few descriptors: connections leave the store what it needs, and those beyond wait without a cost.
mod descriptors;
/// A server that ends answers what it took and publishes what it committed.
mod ending;
/// Events over HTTP: every row, values, restrictions of the queue, and what is refused.
mod events;
/// Events when clients, workers, servers and databases go away in the middle.
mod events_crash;
/// Starts the real server, stops it, runs scripts of real peers.
mod harness;
/// Records what racing clients ask and are answered, for the checker.
mod history;
/// Stores with a flaw are found out by recording and checking what they do.
mod history_trial;
/// Large answers of several workers, within what the frontend may hold.
mod holding;
/// Peers that do their worst while the server ends.
mod hostile;
/// Durable jobs over TCP: what a job goes through, queues, leases, the end of the server, the command line.
mod jobs;
/// The bytes of the jobs, on raw sockets: every end of a request, every cut, any data, and what is no request.
mod jobs_bytes;
/// Clients of the jobs that are slow, silent, still sending, or gone, by the thousand.
mod jobs_clients;
/// Jobs after a server was killed, again and again, under load.
mod jobs_crash;
/// Hosts that have vanished are noticed, by servers and clients.
mod keepalive;
/// How the server starts, what it says when it cannot, and how it ends.
mod lifecycle;
/// Histories of racing clients, in process and over sockets, are linearizable.
mod linearizability;
/// The load generator: what it counts, what it prints, and what it says when it cannot.
mod load;
/// What is said to nobody, nonsense that is asked for, and whose the store is.
mod manners;
/// A MariaDB of a test's own.
mod mariadb;
/// A limit of memory holds for what the process has, with every allocator and frontend.
mod memory;
/// A subscriber that only listens knows what is in the tables.
mod mirror;
/// Workers that speak ZMTP themselves are to a client what the queue is.
mod native;
/// A client that does what a well-behaved one does not.
mod peer;
/// The same protocol as seen by pyzmq, from `PROTOCOL.md` alone.
mod pyzmq;
/// The README: its terminal script and its Python as they are printed, its length, and the links of all pages.
mod readme;
/// Order under pipelining, and no client that others could disturb: by not reading, vanishing, or being two thousand.
mod serving;
/// Signals at any moment of a server's life: none is lost, none disturbs.
mod signals;
/// Rust source as the tidy rules see it: code without comments, and the paths that it names.
mod source;
/// Where events are in a test, and who works on them: one suite for both stores.
mod stage;
/// Subscribers that flood, never read, or lie, and the end of a server that has them.
mod subscribers;
/// What tables take, at the allocator, is what the account says.
mod table_memory;
/// A table of a million elements goes while others work.
mod taking_down;
/// Durable tasks: the protocol, leases, the command line, and what is there after the end.
mod tasks;
/// Clients of the tasks that do not behave: they do not read, vanish, or come back under the same name.
mod tasks_clients;
/// Tasks after a server was killed, again and again, under load.
mod tasks_crash;
/// Tasks on a disk that is full, damaged or in use, and the sync before each answer.
mod tasks_disk;
/// The source text keeps the floors, the places of the dependencies and the house rules.
mod tidy;
/// What clients have not read, and the memory of the tables.
mod unread;
/// Clients that wait for room in the tables, and others that do not.
mod waiting;
/// Our ZMTP and libzmq's understand each other.
mod zmtp;
