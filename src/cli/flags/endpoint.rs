//! Endpoints as typed, `tcp://HOST:PORT` or `ipc://PATH`, and addresses of plain TCP, `HOST:PORT` or `PORT`.
//!
//! A command that connects takes `HOST:PORT`, `:PORT` and `PORT` too: there is only one way to connect to them. A server
//! takes `HOST:PORT` alone of these, since the others do not say who may reach it.

use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use super::curve::ZeromqLogin;
use super::duration::{BareUnit, duration};
use crate::cli::{KV_ENDPOINT, PUBLISH_ENDPOINT};

use crate::clients::rust::tables::{ClientTimeouts, TIMEOUT_DEFAULT};

/// How long a command waits until the host of its server has accepted the connection, unless a flag says otherwise.
/// Hosts that are far away accept within this time, and a person does not notice it.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(300);

/// The longest time to wait that a flag accepts, in seconds: a day.
const TIMEOUT_SECONDS_MAX: u64 = 86_400;

/// The word for no endpoint.
pub(crate) const OFF: &str = "off";

/// Bytes of the longest path of a Unix socket.
const IPC_PATH_BYTES_MAX: usize = 107;

/// Checks an endpoint, so that a mistyped one is bad usage and not a server that cannot be found. The listener or the
/// client makes the final check. `HOST:PORT` becomes an endpoint of TCP.
///
/// # Errors
/// The mistake in the text.
pub(crate) fn endpoint(typed: &str) -> Result<String, String> {
    let whole = if typed.contains("://") { typed.to_owned() } else { format!("tcp://{typed}") };
    let is_good = match whole.split_once("://") {
        Some(("tcp", address)) => is_address(address),
        Some(("ipc", path)) => (1..=IPC_PATH_BYTES_MAX).contains(&path.len()),
        _ => false,
    };
    if !is_good {
        return Err("an endpoint is tcp://HOST:PORT or ipc://PATH, with an address of IPv6 in brackets".to_owned());
    }
    Ok(whole)
}

/// An endpoint to connect to: as [`endpoint`], or `HOST:PORT`, `:PORT` and `PORT`, to which `tcp://` is added.
///
/// # Errors
/// The mistake in the text.
pub(crate) fn connection(typed: &str) -> Result<String, String> {
    match endpoint(&to_connect(typed)) {
        Ok(endpoint) if !endpoint.starts_with("tcp://*") && !endpoint.ends_with(":*") => Ok(endpoint),
        _ => Err("an endpoint to connect to is HOST:PORT, tcp://HOST:PORT or ipc://PATH".to_owned()),
    }
}

/// The address of a server of plain TCP: as [`address`], or `:PORT`.
///
/// # Errors
/// The mistake in the text.
pub(crate) fn address_to_connect(typed: &str) -> Result<String, String> {
    address(&to_connect(typed))
}

/// The address with this host in place of none.
fn to_connect(typed: &str) -> String {
    let port = typed.strip_prefix(':').unwrap_or(typed);
    if port.parse::<u16>().is_ok() { format!("127.0.0.1:{port}") } else { typed.to_owned() }
}

/// A time to wait: seconds, or with a unit.
///
/// # Errors
/// If it is no time, or too long.
pub(crate) fn seconds(typed: &str) -> Result<Duration, String> {
    let bounds = Duration::from_millis(1)..=Duration::from_secs(TIMEOUT_SECONDS_MAX);
    let time = duration(typed, BareUnit::Seconds).filter(|time| bounds.contains(time));
    time.ok_or_else(|| format!("0.001 to {TIMEOUT_SECONDS_MAX} seconds, or with a unit as in 500ms or 10s"))
}

/// How long a command waits. Only a time that was asked for is spent on a server that is not there yet.
pub(crate) fn timeouts(asked: Option<Duration>) -> ClientTimeouts {
    let usual = ClientTimeouts { connect: CONNECT_TIMEOUT, answer: TIMEOUT_DEFAULT, retries: false };
    asked.map_or(usual, ClientTimeouts::from)
}

/// An endpoint, or `off`.
///
/// # Errors
/// The mistake in the text.
pub(crate) fn endpoint_or_off(typed: &str) -> Result<String, String> {
    if typed == OFF {
        return Ok(typed.to_owned());
    }
    endpoint(typed).map_err(|wrong| format!("{wrong}, or {OFF}"))
}

/// The endpoint in the value of a flag, unless that is `off`.
pub(crate) fn unless_off(typed: &str) -> Option<String> {
    (typed != OFF).then(|| typed.to_owned())
}

/// The address to listen at, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listening(pub(crate) Option<SocketAddr>);

/// An address to listen at, a port of this host alone, or `off`.
///
/// # Errors
/// The mistake in the text.
pub(crate) fn listening(typed: &str) -> Result<Listening, String> {
    if typed == OFF {
        return Ok(Listening(None));
    }
    let known: Vec<SocketAddr> = address(typed)?.to_socket_addrs().map(Iterator::collect).unwrap_or_default();
    // As in an endpoint, a name is that of an address of IPv4 if it has one.
    let one = known.iter().find(|address| address.is_ipv4()).or(known.first()).copied();
    one.map(|first| Listening(Some(first))).ok_or_else(|| format!("this host knows no address for {typed}"))
}

/// `HOST:PORT`, or a port of this host.
///
/// # Errors
/// The mistake in the text.
pub(crate) fn address(typed: &str) -> Result<String, String> {
    if typed.parse::<u16>().is_ok() {
        return Ok(format!("127.0.0.1:{typed}"));
    }
    let parts = typed.rsplit_once(':');
    let good = parts.is_some_and(|(host, port)| !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok());
    if good { Ok(typed.to_owned()) } else { Err("an address is HOST:PORT or PORT".to_owned()) }
}

/// Whether this is `HOST:PORT`. A server binds any port for `*`. An address of IPv6 stands in brackets.
fn is_address(address: &str) -> bool {
    let Some((host, port)) = address.rsplit_once(':') else { return false };
    let is_host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        // The address of a link has its interface behind it.
        Some(inside) => inside.split('%').next().is_some_and(|address| address.parse::<Ipv6Addr>().is_ok()),
        None => !host.is_empty() && !host.contains([':', '[', ']']),
    };
    is_host && (port == "*" || port.parse::<u16>().is_ok())
}

/// How long to wait for the server.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct TimeoutFlag {
    /// Seconds to wait for the server to be there, and for each answer [default: 0.3 until it is there, 5 for an
    /// answer]
    #[arg(long, value_name = "SECONDS", env = "SPINDLE_TIMEOUT", value_parser = seconds)]
    timeout: Option<Duration>,
}

impl TimeoutFlag {
    /// The times.
    pub(crate) fn timeouts(&self) -> ClientTimeouts {
        timeouts(self.timeout)
    }

    /// The time that was asked for, if one was.
    pub(crate) fn asked(&self) -> Option<Duration> {
        self.timeout
    }
}

/// The server to connect to.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Connect {
    /// Endpoint at which the server answers requests: HOST:PORT, tcp://HOST:PORT or ipc://PATH
    #[arg(long, value_name = "ENDPOINT", env = "SPINDLE_CONNECT", default_value = KV_ENDPOINT, value_parser = connection)]
    pub(crate) connect: String,
    #[command(flatten)]
    pub(crate) patience: TimeoutFlag,
    #[command(flatten)]
    pub(crate) login: ZeromqLogin,
}

/// The server to subscribe to.
#[derive(Debug, clap::Args)]
pub(crate) struct Subscribe {
    /// Endpoint at which the server announces changes: HOST:PORT, tcp://HOST:PORT or ipc://PATH
    #[arg(long, value_name = "ENDPOINT", env = "SPINDLE_SUBSCRIBE", default_value = PUBLISH_ENDPOINT, value_parser = connection)]
    pub(crate) subscribe: String,
    #[command(flatten)]
    pub(crate) patience: TimeoutFlag,
    #[command(flatten)]
    pub(crate) login: ZeromqLogin,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;

    #[test]
    fn addresses_and_paths_are_endpoints() {
        let good = ["tcp://127.0.0.1:5555", "tcp://*:0", "tcp://[::1]:*", "tcp://[::]:1", "tcp://[fe80::1%eth0]:1"];
        for good in good.into_iter().chain(["tcp://localhost:1", "tcp://eth0:1", "ipc:///tmp/s"]) {
            assert_eq!(endpoint(good), Ok(good.to_owned()));
            if let Some(short) = good.strip_prefix("tcp://") {
                assert_eq!(endpoint(short), Ok(good.to_owned()));
            }
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

    /// A name with addresses of both versions was listened at on one of IPv6 alone.
    #[test]
    fn a_name_is_listened_at_on_its_address_of_ipv4() {
        let at = |typed| listening(typed).map(|Listening(address)| address.map(|address| address.to_string()));
        assert_eq!(at("localhost:1"), Ok(Some("127.0.0.1:1".to_owned())));
        assert_eq!(at("[::]:1"), Ok(Some("[::]:1".to_owned())));
    }

    #[test]
    fn a_command_connects_to_addresses_without_a_scheme() {
        for (typed, endpoint) in [
            ("localhost:5555", "tcp://localhost:5555"),
            ("[::1]:5555", "tcp://[::1]:5555"),
            (":5555", "tcp://127.0.0.1:5555"),
            ("5555", "tcp://127.0.0.1:5555"),
            ("tcp://h:1", "tcp://h:1"),
            ("ipc:///tmp/s", "ipc:///tmp/s"),
        ] {
            assert_eq!(connection(typed).as_deref(), Ok(endpoint));
        }
        for bad in ["", "h", "h:", "*:1", "tcp://*:1", "h:*", "tcp://:1", "udp://h:1", "h:65536", "/tmp/s"] {
            assert!(connection(bad).is_err(), "{bad}");
        }
        for typed in ["8080", ":8080", "127.0.0.1:8080"] {
            assert_eq!(address_to_connect(typed).as_deref(), Ok("127.0.0.1:8080"));
        }
        assert!(address_to_connect("ipc:///tmp/s").is_err());
    }

    #[test]
    fn a_time_that_was_asked_for_holds_for_everything() {
        let usual = timeouts(None);
        assert!((usual.connect, usual.retries) == (Duration::from_millis(300), false) && usual.answer > usual.connect);
        let asked = seconds("1.5").unwrap();
        assert_eq!(timeouts(Some(asked)), ClientTimeouts::from(Duration::from_millis(1_500)));
        assert_eq!((seconds("10s"), seconds("500ms")), (Ok(Duration::from_secs(10)), Ok(Duration::from_millis(500))));
        for bad in ["", "0", "-1", "nan", "inf", "86401", "soon"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        let long = format!("ipc://{}", "p".repeat(108));
        let bad = ["", "5555", ":5555", "/tmp/s", "tcp://", "tcp://:1", "tcp://h:65536", "ipc://", "udp://h:1", &long];
        for bad in bad.into_iter().chain(["tcp://::1:1", "tcp://[::1]", "tcp://[h]:1", "tcp://[::1:1", "tcp://::1]:1"])
        {
            assert!(endpoint(bad).is_err(), "{bad}");
        }
        assert!(endpoint(OFF).is_err());
        assert_eq!(endpoint_or_off(OFF), Ok(OFF.to_owned()));
        assert_eq!((unless_off(OFF), unless_off("ipc://off").as_deref()), (None, Some("ipc://off")));
    }
}
