//! The tables, and the settings of their frontends, made of those of the server.

use super::gate::{self, Admissions};
use super::tables_log::TablesLog;
use super::{ElementBounds, ServerConfig, ServerLimits, available_bytes, memory};
use crate::clock::wall_nanos;
use crate::limits::CLIENT_BYTES_DEFAULT;
use crate::services::resp::RespConfig;
use crate::services::tables::serve::{self, TablesAdmissions, WorkerCores};
use crate::tables::{BackgroundThreads, FeedConfig, Tables, TablesConfig, changes_per_writer, version_base};

/// The settings of the tables' frontend. A client may have at most half of the bytes that all clients may have.
pub(super) fn kv_settings(config: &ServerConfig, cores: WorkerCores, admissions: &Admissions) -> serve::KvConfig {
    let frontends = gate::epoll_services(config);
    let ServerLimits { memory_bytes, client_bytes, .. } = config.limits;
    let held_bytes_max = memory::held_bytes_max(available_bytes(), memory_bytes, frontends, client_bytes);
    let client_bytes_max = client_bytes.min(held_bytes_max / 2);
    if client_bytes_max < client_bytes && client_bytes != CLIENT_BYTES_DEFAULT {
        tracing::warn!(
            "a client may have {client_bytes_max} bytes outstanding: there is no memory for more beside the tables"
        );
    }
    serve::KvConfig {
        frontend: config.workers.frontend,
        endpoints: config.kv.clone(),
        publish: config.notifications.publish.clone(),
        publish_hwm: config.notifications.hwm,
        feed: config.feed.as_ref().map(|feed| feed.endpoint.clone()),
        key_max: config.limits.elements.key_bytes,
        value_max: config.limits.elements.value_bytes,
        reply_bytes_max: memory::reply_bytes_max(available_bytes(), memory_bytes)
            .min(usize::try_from(client_bytes_max).unwrap_or(usize::MAX)),
        client_bytes_max,
        held_bytes_max,
        cores,
        admissions: TablesAdmissions {
            requests: admissions.of_flag("--kv").or_else(|| admissions.of_flag("--resp")),
            publish: admissions.of_flag("--publish"),
            feed: admissions.of_flag("--feed"),
            one_frame: admissions.of_flag("--lockstep-publish"),
        },
    }
}

/// Returns a function that makes the settings of Redis clients, from what ends the server.
pub(super) fn resp_config(
    config: &ServerConfig,
    admissions: &Admissions,
    client_bytes_max: u64,
) -> impl FnOnce(Box<dyn Fn() + Send + Sync>) -> RespConfig + use<> {
    let ElementBounds { key_bytes, value_bytes } = config.limits.resp_elements;
    let endpoints = config.workers.resp.endpoints.clone();
    let (has_users, certificate) = (admissions.users.is_some(), admissions.certificate.clone());
    move |terminate| RespConfig {
        endpoints,
        key_max: key_bytes,
        value_max: value_bytes,
        client_bytes_max,
        has_users,
        certificate,
        terminate,
    }
}

/// The tables. Their clock is that of the log. The time of the wall clock is the epoch of their feed.
pub(super) fn tables_of(config: &ServerConfig, cores: &WorkerCores, log: &TablesLog) -> (Tables, BackgroundThreads) {
    let wall_nanos = wall_nanos();
    let settings = TablesConfig {
        expected_keys: config.limits.expected_keys,
        memory_max: config.limits.memory_bytes,
        tables_max: config.limits.tables,
        durability: config.storage.tables.durability,
        changes_per_writer: changes_per_writer(cores.all().count()),
        version_base: version_base(wall_nanos),
        clock_start: log.clock_start,
    };
    let feed = config.feed.as_ref().map(|feed| FeedConfig { epoch: wall_nanos, history_bytes: feed.history_bytes });
    let (tables, background) = Tables::with_feed(settings, feed);
    tables.set_eviction(config.limits.evict);
    if log.is_there() {
        tables.expect_log();
    }
    (tables, background)
}
