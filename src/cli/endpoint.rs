//! Endpoints as typed, `tcp://HOST:PORT` or `ipc://PATH`, and addresses of plain TCP, `HOST:PORT` or `PORT`.

use std::net::{SocketAddr, ToSocketAddrs};

use super::{KV_ENDPOINT, PUBLISH_ENDPOINT};

/// The word for no endpoint.
pub(super) const OFF: &str = "off";

/// Bytes of the longest path of a Unix socket.
const IPC_PATH_BYTES_MAX: usize = 107;

/// Checks an endpoint, so that a mistyped one is bad usage and not a server that cannot be found. libzmq makes the
/// final check.
///
/// # Errors
/// The mistake in the text.
pub(super) fn endpoint(typed: &str) -> Result<String, String> {
    let good = match typed.split_once("://") {
        Some(("tcp", address)) => is_address(address),
        Some(("ipc", path)) => (1..=IPC_PATH_BYTES_MAX).contains(&path.len()),
        _ => false,
    };
    if !good {
        return Err("an endpoint is tcp://HOST:PORT or ipc://PATH".to_owned());
    }
    Ok(typed.to_owned())
}

/// An endpoint, or `off`.
///
/// # Errors
/// The mistake in the text.
pub(super) fn endpoint_or_off(typed: &str) -> Result<String, String> {
    if typed == OFF {
        return Ok(typed.to_owned());
    }
    endpoint(typed).map_err(|wrong| format!("{wrong}, or {OFF}"))
}

/// The address to listen at, or none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listening(pub(super) Option<SocketAddr>);

/// An address to listen at, a port of this host alone, or `off`.
///
/// # Errors
/// The mistake in the text.
pub(super) fn listening(typed: &str) -> Result<Listening, String> {
    if typed == OFF {
        return Ok(Listening(None));
    }
    let first = address(typed)?.to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
    first.map(|first| Listening(Some(first))).ok_or_else(|| format!("this host knows no address for {typed}"))
}

/// `HOST:PORT`, or a port of this host.
///
/// # Errors
/// The mistake in the text.
pub(super) fn address(typed: &str) -> Result<String, String> {
    if typed.parse::<u16>().is_ok() {
        return Ok(format!("127.0.0.1:{typed}"));
    }
    let parts = typed.rsplit_once(':');
    let good = parts.is_some_and(|(host, port)| !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok());
    if good { Ok(typed.to_owned()) } else { Err("an address is HOST:PORT or PORT".to_owned()) }
}

/// Whether this is `HOST:PORT`. A server binds any port for `*`.
fn is_address(address: &str) -> bool {
    address
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && (port == "*" || port.parse::<u16>().is_ok()))
}

/// The server to connect to.
#[derive(Debug, clap::Args)]
pub(super) struct Connect {
    /// Endpoint at which the server answers requests
    #[arg(long, value_name = "ENDPOINT", default_value = KV_ENDPOINT, value_parser = endpoint)]
    pub(super) connect: String,
}

/// The server to subscribe to.
#[derive(Debug, clap::Args)]
pub(super) struct Subscribe {
    /// Endpoint at which the server announces changes
    #[arg(long, value_name = "ENDPOINT", default_value = PUBLISH_ENDPOINT, value_parser = endpoint)]
    pub(super) subscribe: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_paths_are_endpoints() {
        for good in ["tcp://127.0.0.1:5555", "tcp://*:0", "tcp://[::1]:*", "tcp://eth0:1", "ipc:///tmp/s"] {
            assert_eq!(endpoint(good), Ok(good.to_owned()));
        }
    }

    #[test]
    fn a_port_alone_is_one_of_this_host() {
        assert_eq!(address("8080"), Ok("127.0.0.1:8080".to_owned()));
        assert_eq!(address("[::1]:80"), Ok("[::1]:80".to_owned()));
        for bad in ["", ":80", "host", "h:65536", "65536", "tcp://h:1"] {
            assert!(address(bad).is_err() && listening(bad).is_err(), "{bad}");
        }
        assert!(listening(OFF).is_ok_and(|Listening(address)| address.is_none()));
        let listening = listening("0").map(|Listening(address)| address.map(|address| address.to_string()));
        assert_eq!(listening, Ok(Some("127.0.0.1:0".to_owned())));
    }

    #[test]
    fn anything_else_is_refused() {
        let long = format!("ipc://{}", "p".repeat(108));
        let bad = ["", "5555", "127.0.0.1:5555", "tcp://", "tcp://:1", "tcp://h:65536", "ipc://", "udp://h:1", &long];
        for bad in bad {
            assert!(endpoint(bad).is_err(), "{bad}");
        }
        assert!(endpoint(OFF).is_err());
        assert_eq!(endpoint_or_off(OFF), Ok(OFF.to_owned()));
    }
}
