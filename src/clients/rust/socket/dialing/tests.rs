//! Endpoints and their addresses, and listeners of this host at some of them.

#![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

use std::io::Read;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};

use rustix::net::{bind, listen, sockopt};

use super::*;

const PATIENCE: Duration = Duration::from_secs(30);

fn internet(listener: &TcpListener) -> DialAddress {
    DialAddress::Internet(listener.local_addr().unwrap())
}

/// A listener whose backlog is full, so that connections to it get no answer.
fn silent() -> (OwnedFd, DialAddress, Vec<OwnedFd>) {
    let descriptor = socket(&DialAddress::Internet(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))).unwrap();
    bind(&descriptor, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    listen(&descriptor, 0).unwrap();
    let address = DialAddress::Internet(SocketAddr::try_from(getsockname(&descriptor).unwrap()).unwrap());
    let mut inside = Vec::new();
    loop {
        match Dialing::start(vec![address.clone()], Duration::from_millis(50)).wait() {
            Ok(connection) => inside.push(connection),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::TimedOut);
                return (descriptor, address, inside);
            }
        }
    }
}

#[test]
fn each_endpoint_has_its_addresses() {
    let one = |endpoint: &str| match &resolve(endpoint).unwrap()[..] {
        [DialAddress::Internet(address)] => address.to_string(),
        [DialAddress::Unix(address)] => format!("{address:?}"),
        other => panic!("{endpoint}: {other:?}"),
    };
    for address in ["127.0.0.1:5555", "[::1]:5555"] {
        assert_eq!(one(&format!("tcp://{address}")), address);
    }
    assert!(one("ipc:///tmp/s").contains("/tmp/s"));
    assert!(
        matches!(&resolve("ipc://@name").unwrap()[..], [DialAddress::Unix(name)] if name.abstract_name() == Some(b"name"))
    );
    let local = resolve("tcp://LocalHost:5555").unwrap();
    let shown = |address: &DialAddress| {
        if let DialAddress::Internet(address) = address { address.to_string() } else { String::new() }
    };
    assert_eq!(local.iter().map(shown).collect::<Vec<_>>(), ["[::1]:5555", "127.0.0.1:5555"]);
}

#[test]
fn the_mistake_in_an_endpoint_and_an_unknown_host_are_different_errors() {
    let long = format!("ipc://{}", "p".repeat(109));
    for wrong in ["", "here", "tcp://", "tcp://h", "tcp://h:", "tcp://h:65536", "tcp://:1", "tcp://*:1", "udp://h:1"]
        .into_iter()
        .chain(["ipc://", "ipc://a\0b", &long])
    {
        assert_eq!(resolve(wrong).unwrap_err().kind(), ErrorKind::InvalidInput, "{wrong}");
    }
    assert_ne!(resolve("tcp://nohost.invalid:1").unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn the_first_address_that_accepts_is_connected_to() {
    let gone = internet(&TcpListener::bind("127.0.0.1:0").unwrap());
    let there = TcpListener::bind("127.0.0.1:0").unwrap();
    let (_silent, silent, _inside) = silent();
    let dialling = Dialing::start(vec![gone, silent, internet(&there)], Duration::from_secs(2));
    let descriptor = dialling.wait().unwrap();
    rustix::io::write(&descriptor, b"hello").unwrap();
    let mut come = [0; 5];
    there.accept().unwrap().0.read_exact(&mut come).unwrap();
    assert_eq!(&come, b"hello");
    assert!(sockopt::tcp_nodelay(&descriptor).unwrap() && sockopt::socket_keepalive(&descriptor).unwrap());
}

#[test]
fn the_last_refusal_is_reported() {
    let gone = internet(&TcpListener::bind("127.0.0.1:0").unwrap());
    let refused = Dialing::start(vec![gone.clone(), gone.clone()], PATIENCE).wait().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let (_silent, silent, _inside) = silent();
    let late = Dialing::start(vec![gone, silent], Duration::from_millis(30)).wait().unwrap_err();
    assert_eq!(late.kind(), ErrorKind::TimedOut);
    assert_eq!(Dialing::start(Vec::new(), PATIENCE).wait().unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn ipv6_and_both_kinds_of_unix_sockets_are_reached() {
    let accepts = |endpoint: &str| Dialing::start(resolve(endpoint).unwrap(), PATIENCE).wait().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    accepts(&format!("ipc://{}", path.display()));
    listener.accept().unwrap();
    let name = format!("spindle-dialing-{}", std::process::id());
    let listener = UnixListener::bind_addr(&UnixAddress::from_abstract_name(&name).unwrap()).unwrap();
    accepts(&format!("ipc://@{name}"));
    listener.accept().unwrap();
    // A host without IPv6 cannot show it.
    if let Ok(listener) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) {
        accepts(&format!("tcp://{}", listener.local_addr().unwrap()));
        listener.accept().unwrap();
    }
}

/// A Unix socket whose backlog is full refuses for the moment. Without the pause the client reported that no server is
/// there.
#[test]
fn a_unix_socket_with_a_full_backlog_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let descriptor = socket(&DialAddress::Unix(SocketAddrUnix::new(&path).unwrap())).unwrap();
    bind(&descriptor, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&descriptor, 0).unwrap();
    let addresses = resolve(&format!("ipc://{}", path.display())).unwrap();
    let _first = Dialing::start(addresses.clone(), PATIENCE).wait().unwrap();
    let mut second = Dialing::start(addresses, PATIENCE);
    assert!(second.step().unwrap().is_none());
    assert!(second.poll_fd().is_none() && second.patience() > Duration::ZERO);
    rustix::net::accept(&descriptor).unwrap();
    second.wait().unwrap();
}

/// On loopback the system may give a client the port that it connects to: it would speak to itself.
#[test]
fn a_connection_to_itself_is_none() {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let descriptor = socket(&DialAddress::Internet(address)).unwrap();
    bind(&descriptor, &address).unwrap();
    let own = SocketAddr::try_from(getsockname(&descriptor).unwrap()).unwrap();
    let attempt = DialAttempt { address: DialAddress::Internet(own), descriptor, until: Now::from_millis(0) };
    let refused = std::iter::repeat_with(|| attempt.step()).find(|step| *step != Ok(false));
    assert_eq!(refused, Some(Err(Errno::CONNREFUSED)));
}
