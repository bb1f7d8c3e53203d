//! The settings of a server, as `cli` makes them of its flags. This file parses none of them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::{Pin, SecurityConfig, TasksConfig};
use crate::allocator;
use crate::services::events::mysql::DatabaseAddress;
use crate::services::lockstep::serve::LockstepConfig;
use crate::services::operator::admin::serve::AdminConfig;
use crate::services::tables::serve::FrontendKind;
use crate::store::StoreConfig;
use crate::tables::{Durability, EvictionPolicy};

/// The settings of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Endpoints for requests about tables. Empty: off.
    pub kv: Vec<String>,
    /// Notifications.
    pub notifications: NotificationSettings,
    /// The feed of the tables, if it is on.
    pub feed: Option<FeedSettings>,
    /// The lock-step dialect of the first client, if it is on.
    pub lockstep: Option<LockstepConfig>,
    /// The bounds of elements, tables and clients.
    pub limits: ServerLimits,
    /// The threads that answer requests about tables.
    pub workers: WorkersConfig,
    /// What is on disk.
    pub storage: StorageConfig,
    /// Durable tasks, jobs, and events in the same store, if at least one is on.
    pub tasks: Option<TasksConfig>,
    /// Events over HTTP, if they are on.
    pub events: Option<EventsConfig>,
    /// Who may do what.
    pub security: SecurityConfig,
    /// What an operator sees of the process.
    pub operation: OperationConfig,
}

/// What is on disk, and where.
#[derive(Clone, Debug)]
pub struct StorageConfig {
    /// The folder of the store of tasks, jobs and events. That of durable tables is in it.
    pub data: PathBuf,
    /// The settings of both stores.
    pub store: StoreConfig,
    /// Durable tables.
    pub tables: DurabilitySettings,
}

/// The settings of durable tables.
#[derive(Clone, Copy, Debug)]
pub struct DurabilitySettings {
    /// That of tables that do not say.
    pub durability: Durability,
    /// The most that a crash may take of a table with the durability `soon`.
    pub interval: Duration,
}

/// Where notifications are published.
#[derive(Clone, Debug)]
pub struct NotificationSettings {
    /// The endpoint, if they are on.
    pub publish: Option<String>,
    /// The endpoint of those in the dialect of the first client, if they are on.
    pub lockstep: Option<String>,
    /// The number of notifications that a subscriber may fall behind.
    pub hwm: i32,
}

/// The bounds of an element.
#[derive(Clone, Copy, Debug)]
pub struct ElementBounds {
    /// The longest key, in bytes.
    pub key_bytes: usize,
    /// The longest value, in bytes.
    pub value_bytes: usize,
}

/// Where Redis clients connect, and who serves them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RespSettings {
    /// The endpoints. Empty: off.
    pub endpoints: Vec<String>,
    /// The number of threads that serve them beside the queue's workers. 0: as many as those. The native workers serve
    /// them by themselves.
    pub workers: usize,
}

/// The limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// The bounds of elements over ZeroMQ.
    pub elements: ElementBounds,
    /// The bounds of elements of Redis clients.
    pub resp_elements: ElementBounds,
    /// The memory that all elements together may take, in bytes.
    pub memory_bytes: u64,
    /// What becomes of the elements of tables that do not say, when that is full.
    pub evict: EvictionPolicy,
    /// The number of tables at once.
    pub tables: usize,
    /// The bytes that a client may have outstanding.
    pub client_bytes: u64,
    /// The number of elements that a new table is sized for.
    pub expected_keys: usize,
}

/// The threads that answer requests about tables.
#[derive(Clone, Debug)]
pub struct WorkersConfig {
    /// The threads that read the clients' connections.
    pub frontend: FrontendKind,
    /// The number of worker threads. 0 means [`workers_default`].
    pub count: usize,
    /// The cores that the workers are pinned to.
    pub pin: Pin,
    /// Redis clients.
    pub resp: RespSettings,
}

/// What an operator sees of the process.
#[derive(Clone, Debug)]
pub struct OperationConfig {
    /// The service over HTTP, if it is on.
    pub admin: Option<AdminConfig>,
    /// A request that takes longer goes to the slow log.
    pub slow: Duration,
    /// The requested allocator. The allocator is chosen before the process begins, and this setting does not change it.
    pub allocator: allocator::Choice,
}

/// The settings of the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedSettings {
    /// The endpoint.
    pub endpoint: String,
    /// Bytes of the messages that are kept for replay, of all tables together.
    pub history_bytes: usize,
}

/// The settings of events.
#[derive(Clone, Debug)]
pub struct EventsConfig {
    /// The address for requests.
    pub address: SocketAddr,
    /// Names by which requests may call the server, beside addresses and names without a dot.
    pub hosts: Vec<String>,
    /// The database of the events. Without one they are in the store of the tasks.
    pub database: Option<DatabaseAddress>,
}
