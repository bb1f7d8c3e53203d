//! Finds two flags that name the same place to listen at, before the first of them is bound.
//!
//! ```text
//! tcp://127.0.0.1:5555   tcp://*:5555   0.0.0.0:5555     one place: the port, and hosts that meet
//! tcp://[::]:5555        any of these                    one place: all of IPv6 and of IPv4
//! tcp://127.0.0.1:5555   tcp://127.0.0.2:5555            two
//! tcp://127.0.0.1:*      127.0.0.1:0                     as many as are asked for: the system chooses
//! ```
//! A host that is a name or an interface is compared as text. The system finds what this module does not.

use std::net::{IpAddr, Ipv4Addr};

use crate::cli::CommandError;

/// A place to listen at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListenPlace<'e> {
    Port { host: Host<'e>, port: u16 },
    Path(&'e str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Host<'e> {
    Address(IpAddr),
    Named(&'e str),
}

impl Host<'_> {
    /// Whether connections to one host may be connections to the other.
    fn meets(self, other: Self) -> bool {
        let holds = |host, other| match host {
            Host::Address(IpAddr::V6(address)) => address.is_unspecified(),
            // A name is that of an address of IPv4.
            Host::Address(IpAddr::V4(address)) => {
                address.is_unspecified() && !matches!(other, Host::Address(IpAddr::V6(_)))
            }
            Host::Named(_) => false,
        };
        self == other || holds(self, other) || holds(other, self)
    }
}

impl<'e> ListenPlace<'e> {
    /// The place of an endpoint of ZeroMQ or an address of TCP. `None`: the system chooses one.
    fn of(endpoint: &'e str) -> Option<Self> {
        if let Some(path) = endpoint.strip_prefix("ipc://") {
            return Some(Self::Path(path));
        }
        let (host, port) = endpoint.strip_prefix("tcp://").unwrap_or(endpoint).rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port != 0)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let host = match bare {
            "*" => Host::Address(Ipv4Addr::UNSPECIFIED.into()),
            _ if bare.eq_ignore_ascii_case("localhost") => Host::Address(Ipv4Addr::LOCALHOST.into()),
            _ => {
                let address = bare.parse().map(|address: IpAddr| address.to_canonical());
                address.map_or(Host::Named(bare), Host::Address)
            }
        };
        Some(Self::Port { host, port })
    }

    fn meets(self, other: Self) -> bool {
        match (self, other) {
            (Self::Port { host, port }, Self::Port { host: other, port: same }) => port == same && host.meets(other),
            _ => self == other,
        }
    }
}

/// Checks that no two flags name the same place. `endpoints`: the flags and what they say.
///
/// # Errors
/// [`CommandError::Usage`] with both flags.
pub(crate) fn check(endpoints: &[(&str, String)]) -> Result<(), CommandError> {
    let mut taken: Vec<(&str, &String, ListenPlace<'_>)> = Vec::new();
    for (flag, endpoint) in endpoints {
        let Some(place) = ListenPlace::of(endpoint) else { continue };
        if let Some((other, theirs, _)) = taken.iter().find(|(.., taken)| taken.meets(place)) {
            return Err(CommandError::Usage(if other == flag {
                format!("{flag} names {endpoint} twice: give it once, or another endpoint")
            } else if *theirs == endpoint {
                format!("{other} and {flag} have the same endpoint {endpoint}: give one of them another one, or off")
            } else {
                format!("{other} {theirs} and {flag} {endpoint} are one place: give one of them another one, or off")
            }));
        }
        taken.push((flag, endpoint, place));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused<'e>(endpoints: &[(&'e str, &'e str)]) -> Option<String> {
        match check(&endpoints.iter().map(|(flag, endpoint)| (*flag, (*endpoint).to_owned())).collect::<Vec<_>>()) {
            Ok(()) => None,
            Err(CommandError::Usage(why)) => Some(why),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_place_for_two_flags_is_bad_usage() {
        for (first, second) in [
            ("tcp://127.0.0.1:5555", "tcp://127.0.0.1:5555"),
            ("tcp://127.0.0.1:5555", "127.0.0.1:5555"),
            ("tcp://*:5555", "tcp://127.0.0.1:5555"),
            ("tcp://10.0.0.1:5555", "0.0.0.0:5555"),
            ("tcp://[::]:5555", "tcp://[::1]:5555"),
            ("tcp://[::]:5555", "tcp://127.0.0.1:5555"),
            ("tcp://[::]:5555", "tcp://*:5555"),
            ("tcp://[::]:5555", "tcp://eth0:5555"),
            ("tcp://[::1]:5555", "[::1]:5555"),
            ("tcp://[::ffff:127.0.0.1]:5555", "tcp://localhost:5555"),
            ("tcp://localhost:5555", "tcp://127.0.0.1:5555"),
            ("tcp://eth0:5555", "tcp://eth0:5555"),
            ("tcp://eth0:5555", "tcp://*:5555"),
            ("ipc:///run/s", "ipc:///run/s"),
        ] {
            let why = refused(&[("--kv", first), ("--jobs", second)]).unwrap_or_default();
            assert!(why.contains("--kv") && why.contains("--jobs") && why.contains("another one"), "{first}: {why}");
            assert!(refused(&[("--jobs", second), ("--kv", first)]).is_some(), "{first}");
        }
        let twice = refused(&[("--kv", "ipc://a"), ("--publish", "ipc://b"), ("--kv", "ipc://a")]);
        assert_eq!(twice.as_deref(), Some("--kv names ipc://a twice: give it once, or another endpoint"));
    }

    #[test]
    fn other_places_are_free() {
        let free = [
            ("--kv", "tcp://127.0.0.1:5555"),
            ("--kv", "tcp://127.0.0.2:5555"),
            ("--kv", "tcp://[::1]:5555"),
            ("--kv", "tcp://*:5557"),
            ("--kv", "tcp://[::1]:5557"),
            ("--publish", "tcp://127.0.0.1:5556"),
            ("--feed", "tcp://127.0.0.1:*"),
            ("--lockstep", "tcp://127.0.0.1:*"),
            ("--jobs", "127.0.0.1:0"),
            ("--events", "127.0.0.1:0"),
            ("--tasks", "ipc:///run/s"),
            ("--events-queue", "ipc:///run/t"),
            ("--publish", "off"),
        ];
        assert_eq!(refused(&free), None);
    }
}
