//! Endpoints: which can be listened at, and how the connections that come there are set up.

use std::os::unix::net::UnixListener;

use rustix::net::sockopt;

use super::*;
use crate::limits::{KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES};
use crate::protocols::sockets::BindError;

#[test]
fn endpoints_that_cannot_be_had_are_refused_with_their_reason() {
    let refusal = |endpoint: &str| BoundListener::bind(endpoint).unwrap_err();
    let first = BoundListener::bind("tcp://127.0.0.1:*").unwrap();
    assert!(matches!(refusal(first.endpoint()), BindError::InUse { .. }));
    let long = format!("ipc:///tmp/{}", "long".repeat(40));
    assert!(matches!(refusal(&long), BindError::PathTooLong { .. }));
    let nonsense = [
        "nonsense",
        "tcp://",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:70000",
        "udp://127.0.0.1:5",
        "ipc://",
        "ipc://*",
        "ipc://@",
        "ipc://a\0b",
    ];
    for nonsense in nonsense {
        assert!(matches!(refusal(nonsense), BindError::NotAnEndpoint { .. }), "{nonsense}");
    }
    for elsewhere in ["tcp://192.0.2.1:5555", "tcp://localhost:5555", "tcp://::1:5555"] {
        assert!(matches!(refusal(elsewhere), BindError::NoSuchAddress { .. }), "{elsewhere}");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    assert!(matches!(refusal(&format!("ipc://{}", file.path().display())), BindError::NoSocket { .. }));
    assert!(file.path().exists());
    assert!(matches!(refusal("ipc:///nonexistent/socket"), BindError::System { .. }));
}

#[test]
fn a_stale_socket_is_replaced_and_a_living_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let endpoint = format!("ipc://{}", path.display());
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "nobody has removed it");
    let listener = BoundListener::bind(&endpoint).unwrap();
    assert_eq!(listener.endpoint(), endpoint);
    assert!(matches!(BoundListener::bind(&endpoint), Err(BindError::InUse { .. })));
    UnixStream::connect(&path).unwrap();
    assert!(listener.accept().unwrap().is_some());
    drop(listener);
    assert!(!path.exists());
}

/// The clients of TCP get their replies at once, and a host that vanishes is noticed.
#[test]
fn accepted_connections_do_not_delay_replies_and_are_kept_alive() {
    let listener = BoundListener::bind("tcp://127.0.0.1:*").unwrap();
    let address = listener.endpoint().strip_prefix("tcp://").unwrap();
    let _client = TcpStream::connect(address).unwrap();
    let accepted = std::iter::repeat_with(|| listener.accept().unwrap()).find_map(|accepted| accepted).unwrap();
    assert!(sockopt::tcp_nodelay(&accepted).unwrap() && sockopt::socket_keepalive(&accepted).unwrap());
    assert_eq!(sockopt::tcp_keepidle(&accepted).unwrap(), KEEPALIVE_IDLE);
    assert_eq!(sockopt::tcp_keepintvl(&accepted).unwrap(), KEEPALIVE_INTERVAL);
    assert_eq!(sockopt::tcp_keepcnt(&accepted).unwrap(), KEEPALIVE_PROBES);
}

#[test]
fn an_address_stands_for_itself_and_a_star_for_all() {
    let bound = |endpoint| BoundListener::bind(endpoint).unwrap().endpoint().to_owned();
    assert!(bound("tcp://127.0.0.1:*").starts_with("tcp://127.0.0.1:"));
    assert!(bound("tcp://*:*").starts_with("tcp://0.0.0.0:"));
}
