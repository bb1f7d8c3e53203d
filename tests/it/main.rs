//! All integration tests in one program: each chapter is a module, and each module line says what the chapter shows.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

/// What an operator sees: health, readiness, STATS and metrics over HTTP, read by a real Prometheus too.
mod admin;
/// Queues over `--admin`, and who may change them.
mod admin_queues;
/// Tables that become durable while they live, and are in memory again.
mod altering;
/// Tables that are on disk before they are answered: syncs of a pipeline, kills, and who waits.
mod always;
/// Hostile peers at every frontend, while a client of each protocol counts wrong answers.
mod attack;
/// Backups that a running server writes, under load too, and servers on them.
mod backup;
/// Backups of a log that has lost bytes, and who may read a backup.
mod backup_damaged;
mod beanstalk;
/// A real Chromium, driven by tests.
mod browser;
/// Decides whether a history of one element is possible as one operation after the other.
mod checker;
/// The checker rejects broken histories and accepts tricky ones, so it can be believed.
mod checker_trial;
/// What a check says of folders without a store, and what an opening says of the end that it cuts off.
mod checking;
/// No circle among sibling modules.
mod circles;
/// The exit statuses of the commands, their errors for programs, how they find their server, and bytes.
mod commands;
/// The settings of a server, from flags, the environment and a file, and what is said of wrong ones.
mod configuration;
/// Every command, error, limit and order of faults, with our own client.
mod conformance;
/// Output without a reader, nonsense arguments, and the owner of the store's files.
mod conventions;
/// A folder that was copied while no server used it, announced and not.
mod copied;
/// A server that is killed under load, and the number of rounds and clients for it.
mod crash;
/// A link to a database that is cut between a COMMIT and its answer.
mod cut_link;
/// Where each dependency may be named.
mod dependency_places;
/// Few descriptors: connections leave the store its reserve and each service its share, and idle ones make place.
mod descriptors;
/// Tables in files: dumped, loaded, damaged.
mod dump;
/// Dumps that are loaded with their versions, or with new ones.
mod dump_versions;
/// Durable tables after kills, clean ends, full disks, and with more than the memory limit.
mod durable;
/// A disk that fails under durable tables: who is refused, what goes on, and what is there after the next start.
mod durable_failing;
/// The history over all lives of a server that is killed is linearizable, where tables are always on disk.
mod durable_linearizability;
/// Many durable tables: created, killed, opened, ended and deleted.
mod durable_many;
/// Transactions on durable tables are whole or absent after a kill, and wait for nobody.
mod durable_transactions;
/// A server that ends answers the requests that it took, and publishes the changes that it committed.
mod ending;
/// A server with all of its ZeroMQ endpoints, and what clients say there.
mod endpoints;
/// Events over HTTP: every row, values, restrictions of the queue, and refusals.
mod events;
/// Events when clients, workers, servers and databases go away in the middle.
mod events_crash;
/// Events in a database that is busy, refuses, is slow, or is full, and passwords that no message shows.
mod events_database;
/// Events at the edges of HTTP: requests that are cut, malformed, late, or sent by pages of other sites.
mod events_http;
/// Tables that give way at the limit of memory, over ZeroMQ and over Redis's protocol.
mod eviction;
/// The feed: an exact copy from its changes, its replay, its bookmarks, and the lives of tables.
mod feed;
/// Mirrors that join, stall and lose their connection under load end equal to the table; the commands that show one.
mod feed_mirrors;
/// The folder of a running server is taken away, becomes read-only, or has no room for a while.
mod folder_gone;
/// Starts the real server, stops it, runs scripts of real peers.
mod harness;
/// Records the requests and answers of racing clients, for the checker.
mod history;
/// Recording and checking finds stores with a flaw.
mod history_trial;
/// Large answers of several workers, within the bytes that the frontend may hold.
mod holding;
/// Peers that do their worst while the server ends.
mod hostile;
/// The OCI image: made by buildah from scratch, and run.
mod image;
/// The files of `ipc://` endpoints: removed, replaced, and left alone.
mod ipc_files;
/// Endpoints of IPv6 and of `localhost`, under every flag.
mod ipv6;
/// The words of the command line for queues of jobs.
mod job_commands;
/// Durable jobs over TCP: the states of a job, queues, leases, the end of the server, the command line.
mod jobs;
/// The bytes of the jobs, on raw sockets: every end of a request, every cut, any data, and malformed requests.
mod jobs_bytes;
/// Clients of the jobs that are slow, silent, still sending, or gone, by the thousand.
mod jobs_clients;
/// Jobs after a server was killed, again and again, under load.
mod jobs_crash;
/// Jobs with options, clients that wait for a job, and jobs that are given back.
mod jobs_waiting;
/// Servers and clients notice a host that has vanished.
mod keepalive;
/// How the server starts, its message when it cannot, and how it ends.
mod lifecycle;
/// Histories of racing clients, in process and over sockets, are linearizable.
mod linearizability;
/// The load generator: its counts, its output, and its message when it cannot work.
mod load;
/// The load generator of comparisons, with its protocols of other servers and its charts.
#[path = "../../benches/loading/mod.rs"]
mod loading;
/// The lock of the tests.
mod lock;
/// The lock-step dialect of the first client, over pyzmq and beside a client of `kv`.
mod lockstep;
/// Keys of up to `--max-key` bytes: commands, scans, the feed, mirrors and dumps.
mod long_keys;
/// A MariaDB of a test's own.
mod mariadb;
/// A memory limit holds for the process, with every allocator and frontend.
mod memory;
/// Each command of the tables by the method of our client, and by the words of the command line.
mod methods;
/// Each metric, and each path in STATS, keeps its name.
mod metrics_names;
/// A subscriber that only listens knows the content of the tables.
mod mirror;
/// The dashboard, the alerts and the manifests of the package, asked of a real Prometheus and of schemas.
mod monitoring;
/// A function that a text names with its type is there.
mod named_functions;
/// Native workers serve a client as those behind the queue do.
mod native;
/// Nonsense on the command line, to every command.
mod nonsense;
/// Clients that wait for nothing, and clients of which each byte comes by itself.
mod one_packet;
/// The Debian package: built, installed, run as its unit runs it, and removed.
mod package;
/// The page for an operator, in a real browser.
mod page;
/// A client that does things that a well-behaved one does not.
mod peer;
/// The list of planted faults.
mod planted_faults;
/// Long requests and replies go in portions, and others have their turn in between.
mod portions;
/// A real Prometheus, which scrapes a server.
mod prometheus;
/// The Python package: its wheel is built, installed and tested against the server.
mod python_package;
/// The same protocol as seen by pyzmq, from `PROTOCOL.md` alone.
mod pyzmq;
/// The README: its terminal script and its Python as they are printed, its length, and the links of all pages.
mod readme;
/// Clients of other projects: the `zmq` crate, C, Node, Java, and Python with CURVE.
mod real_peers;
/// Redis clients of other projects, on Spindle and on Redis: redis-cli, redis-benchmark, Python, Node, frameworks.
mod redis_clients;
/// Libraries whose scripts are known: locks, counters and limiters of Python and Node.
mod redis_scripts;
/// Redis clients beside others: what they share, their limits, slow ones, and users.
mod resp;
/// Bytes of Redis clients that were changed on their way: cut alike however they are divided, answered as by Redis.
mod resp_bytes;
/// Channels and the events of keys: order, slow subscribers, a busy worker, and who may read.
mod resp_channels;
/// A client that speaks RESP byte by byte.
mod resp_client;
/// Random programs of Redis commands, on Redis and on Spindle: every reply is the same.
mod resp_difference;
/// What Redis clients have the server keep is bounded in memory.
mod resp_kept;
/// Racing transactions of Redis clients are linearizable.
mod resp_linearizability;
/// A Redis of a few keys, for the checker of histories.
mod resp_model;
/// Redis clients as an operator sees them: connections, INFO, the metrics of their commands, an exporter.
mod resp_operation;
/// Redis clients over TLS: values of all sizes, and handshakes that stop halfway.
mod resp_tls;
/// Transactions of Redis clients: all of their commands or none, and nobody sees a part.
mod resp_transactions;
/// Versions for Redis clients, and changes on a condition.
mod resp_versions;
/// Backup and restore as the page prints them, with the paths of the Debian package.
mod restore;
/// Scans beside writers: an element that stays is in one of the pages.
mod scanning;
/// Lines of the shell from a file or a pipe share a connection, and each has its answer.
mod scripts;
/// Random choices from a seed, so that a failure can be repeated.
#[path = "../../src/seeded_rng.rs"]
mod seeded_rng;
/// Sentences of pages and doc comments chain few pronouns. They and the names use the words of the field.
mod sentences;
/// systemd's notify protocol over a real socket: the start, the end, and the watchdog.
mod service_manager;
/// Order under pipelining, and clients that disturb no other: by not reading, vanishing, or being two thousand.
mod serving;
/// Signals at any moment of a server's life: each has its effect, and none disturbs the server.
mod signals;
/// Latency from end to end, and the slow log.
mod slow;
/// Rust source as the tidy rules see it: code without comments, and the paths that it names.
mod source;
/// The places of events in a test, and their workers: one suite for both stores.
mod stage;
/// A subscriber that never reads does no harm to others.
mod stalled_subscriber;
/// A folder whose bytes have changed: its check, its repair, and the answers about values that are lost.
mod store;
/// Subscribers that flood, never read, or lie, and the end of a server that has them.
mod subscribers;
/// The memory budget of the tables agrees with the bytes counted at the allocator.
mod table_memory;
/// A table of a million elements is deleted while others work.
mod taking_down;
/// Logins whose bytes were changed on their way let no other in.
mod tampered;
/// The words of the command line for queues of tasks.
mod task_commands;
/// Durable tasks: the protocol, leases, the command line, and the tasks that are there after the end.
mod task_queues;
mod task_queues_crash;
mod tasks;
/// Clients of the tasks that do not behave: they do not read, vanish, or come back under the same name.
mod tasks_clients;
/// Tasks after a server was killed, again and again, under load.
mod tasks_crash;
/// Tasks on a disk that is full, damaged or in use, and the sync before each answer.
mod tasks_disk;
/// The source text keeps the floors, the places of the dependencies and the house rules.
mod tidy;
/// TLS of jobs, events and `--admin`.
mod tls;
/// `spindle top` in a terminal and without one.
mod top;
/// Unread replies, and the memory of the tables.
mod unfinished;
/// Peers that speak something else than ZMTP 3: refused, and named in the log.
mod unknown_peers;
mod unread;
/// Users: the commands that edit their file, and what each may reach.
mod users;
/// Users whom a certificate proves, over each service with TLS.
mod users_certified;
/// A file of users that is edited while a server reads it.
mod users_edited;
/// Guessers of passwords, and the users whom they would keep out.
mod users_guessing;
/// Users over plain TCP: jobs and HTTP.
mod users_tcp;
/// Clients that wait for room in the tables, and others that need not wait.
mod waiting;
/// Commands that do the work of queues: they fail, hang, print megabytes, fork, and lose their leases.
mod work;
/// Our ZMTP and libzmq's understand each other.
mod zmtp;
