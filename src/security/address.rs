//! Where a peer connects from.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The bits of an address of IPv6 that a host cannot choose by itself: the others are one address here.
const IPV6_NETWORK: u128 = !0 << 64;

/// Where a peer connects from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeerAddress {
    /// A socket in the file system of this host.
    Local,
    /// A host that is not known any more, since the client has reset its connection. Nobody else is slowed down with it.
    Gone,
    /// A host. Those of one network of IPv6 (64 bits) count as one, but for this host itself.
    Host(IpAddr),
}

impl PeerAddress {
    /// The address of a client over TCP. None: it has gone.
    #[must_use]
    pub fn of_client(address: Option<SocketAddr>) -> Self {
        address.map_or(Self::Gone, |address| Self::of(address.ip()))
    }

    /// The address of a host.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        Self::Host(match address.to_canonical() {
            IpAddr::V6(address) if !address.is_loopback() => {
                Ipv6Addr::from_bits(address.to_bits() & IPV6_NETWORK).into()
            }
            address => address,
        })
    }
}

impl std::fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local => f.write_str("a local socket"),
            Self::Gone => f.write_str("a client that is gone"),
            Self::Host(IpAddr::V6(network)) if !network.is_loopback() => write!(f, "{network}/64"),
            Self::Host(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;

    #[test]
    fn addresses_of_one_network_are_one() {
        let of = |text: &str| PeerAddress::of(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        assert_ne!(of("::1"), of("::2"), "loopback is a network of its own");
        let shown = ["::1", "2001:db8::1", "::ffff:10.0.0.1"].map(|text| of(text).to_string());
        assert_eq!(shown, ["::1", "2001:db8::/64", "10.0.0.1"]);
    }
}
