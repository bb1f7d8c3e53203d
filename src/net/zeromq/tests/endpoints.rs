//! Endpoints: which can be listened at, and how the connections that come there are set up.

use std::os::unix::net::UnixListener;

use rustix::net::sockopt;

use super::*;
use crate::limits::{KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES};
use crate::net::sockets::BindError;

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
    for elsewhere in ["tcp://192.0.2.1:5555", "tcp://[2001:db8::1]:5555", "tcp://nowhere:5555", "tcp://::1:5555"] {
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
fn the_star_and_names_are_bound_as_addresses() {
    for (host, bound) in [
        ("127.0.0.1", "127.0.0.1"),
        ("*", "0.0.0.0"),
        ("localhost", "127.0.0.1"),
        ("[::1]", "[::1]"),
        ("[::]", "[::]"),
        ("[::ffff:127.0.0.1]", "127.0.0.1"),
    ] {
        let listener = BoundListener::bind(&format!("tcp://{host}:*")).unwrap();
        assert!(listener.endpoint().starts_with(&format!("tcp://{bound}:")), "{host}");
    }
}

#[test]
fn all_of_ipv6_is_all_of_ipv4_too() {
    let listener = BoundListener::bind("tcp://[::]:*").unwrap();
    let port = listener.endpoint().rsplit_once(':').unwrap().1;
    for host in ["127.0.0.1", "[::1]"] {
        let client = TcpStream::connect(format!("{host}:{port}")).unwrap();
        let accepted = std::iter::repeat_with(|| listener.accept().unwrap()).find_map(|accepted| accepted).unwrap();
        let ours = rustix::net::getpeername(&accepted).unwrap().unwrap();
        let peer = crate::security::PeerAddress::of(client.local_addr().unwrap().ip());
        let seen = std::net::SocketAddr::try_from(ours).unwrap().ip();
        assert_eq!(crate::security::PeerAddress::of(seen), peer, "{seen}");
    }
}
