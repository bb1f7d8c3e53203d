//! A whole server in a process of its own: values that were replaced under load are freed once there are no more
//! requests.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a trial that fails should say where")]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::{OperationConfig, Pin, SecurityConfig, ServerConfig, ServerLimits, WorkersConfig, start};
use crate::allocator;
use crate::clients::rust::tables::Client;
use crate::clock::{Now, TimeLimit};
use crate::limits::{LINGER, LOG_LAST_WORDS, SEALING_MAX, STOP_MAX};
use crate::server::{DurabilitySettings, ElementBounds, NotificationSettings, RespSettings, StorageConfig};
use crate::services::tables::serve::FrontendKind;
use crate::store::StoreConfig;
use crate::tables::Durability;
use crate::tables::tests::alone::{alone, entries};

const KEYS: u64 = 1_000;
/// Much longer than the test takes.
const LIMIT: Duration = Duration::from_secs(60);

/// No folder is there, and no table is durable.
fn storage() -> StorageConfig {
    let store = StoreConfig { segment_bytes: 1 << 20, max_disk: None, repair: false, copied: false };
    let tables = DurabilitySettings { durability: Durability::None, interval: Duration::from_secs(1) };
    StorageConfig { data: PathBuf::from("/nonexistent/spindle"), store, tables }
}

pub(super) fn config(frontend: FrontendKind) -> ServerConfig {
    ServerConfig {
        kv: vec!["tcp://127.0.0.1:*".to_owned()],
        notifications: NotificationSettings { publish: None, lockstep: None, hwm: 1_000 },
        feed: None,
        lockstep: None,
        limits: ServerLimits {
            evict: crate::tables::EvictionPolicy::None,
            elements: ElementBounds { key_bytes: 64, value_bytes: 1024 },
            resp_elements: ElementBounds { key_bytes: 4_096, value_bytes: 16 << 20 },
            memory_bytes: 1 << 30,
            tables: 10,
            client_bytes: 64 << 20,
            expected_keys: 0,
        },
        workers: WorkersConfig { frontend, count: 2, pin: Pin::Off, resp: RespSettings::default() },
        storage: storage(),
        tasks: None,
        events: None,
        security: SecurityConfig::default(),
        operation: OperationConfig { admin: None, slow: Duration::from_millis(10), allocator: allocator::in_use() },
    }
}

/// Waits until there are `expected` entries, without any request. Returns whether the number is reached.
fn settles_at(expected: i64) -> bool {
    let start = Instant::now();
    while entries() != expected && start.elapsed() < LIMIT {
        std::thread::yield_now();
    }
    entries() == expected
}

fn load_then_rest(frontend: FrontendKind) {
    let running = start(config(frontend)).unwrap();
    let endpoint = running.endpoints("kv").first().unwrap().clone();
    let mut clients = [(); 2].map(|()| Client::connect(&endpoint).unwrap());
    clients[0].create_table(b"t").unwrap();
    for number in 0..20 * KEYS {
        let client = &mut clients[usize::from(number % 2 == 0)];
        client.update(b"t", &(number % KEYS).to_be_bytes(), b"value", None).unwrap();
    }
    assert!(settles_at(KEYS.cast_signed()), "{} entries, {KEYS} of them in the table", entries());
    for number in 0..KEYS {
        clients[0].delete(b"t", &number.to_be_bytes()).unwrap();
    }
    assert!(settles_at(0), "{} entries, none of them in the table", entries());
    running.stop();
}

#[test]
fn what_was_replaced_is_freed_when_the_proxy_and_its_workers_rest() {
    alone("server::tests::what_was_replaced_is_freed_when_the_proxy_and_its_workers_rest", || {
        load_then_rest(FrontendKind::Queue);
    });
}

#[test]
fn what_was_replaced_is_freed_when_workers_with_connections_rest() {
    alone("server::tests::what_was_replaced_is_freed_when_workers_with_connections_rest", || {
        load_then_rest(FrontendKind::Native);
    });
}

/// A publisher that was stuck kept the server from its end, and a signal did nothing.
#[test]
fn a_thread_that_is_stuck_does_not_keep_the_server_from_its_end() {
    let mut running = start(config(FrontendKind::Native)).unwrap();
    let (stuck, wait) = std::sync::mpsc::channel::<()>();
    running.start_background("stuck", move || _ = wait.recv()).unwrap();
    running.stop();
    drop(stuck);
}

/// The stages of the server's end follow one another. In none of them does a peer do anything.
#[test]
fn an_end_whose_stages_use_up_their_time_takes_no_longer_than_it_may() {
    let start = Now::from_millis(7);
    // How long a thread waits at once, and how late it wakes up.
    for (wait, late) in [(1, 0), (1, 5), (64, 0), (64, 50), (5_000, 0), (5_000, 70)] {
        let mut now = start;
        for most in [LINGER, SEALING_MAX, LINGER, LOG_LAST_WORDS] {
            let limit = TimeLimit::begin(now, most);
            while !limit.is_over(now) {
                now = now.after(limit.left(now).min(Duration::from_millis(wait))).after(Duration::from_millis(late));
            }
        }
        assert!(now <= start.after(STOP_MAX), "waits of {wait} ms, {late} ms late: {now:?}");
    }
}
