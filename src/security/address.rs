//! Where a peer connects from.

use std::net::{IpAddr, Ipv6Addr};

/// The bits of an address of IPv6 that a host cannot choose by itself: the others are one address here.
const IPV6_NETWORK: u128 = !0 << 64;

/// Where a peer connects from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeerAddress {
    /// A socket in the file system of this host.
    Local,
    /// A host. Those of one network of IPv6 (64 bits) count as one.
    Host(IpAddr),
}

impl PeerAddress {
    /// The address of a host.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        Self::Host(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & IPV6_NETWORK).into(),
            address => address,
        })
    }

    /// The address of a peer as libzmq writes it: that of a host, or the process at the other end of a local socket.
    #[must_use]
    pub fn of_text(text: &[u8]) -> Self {
        // An address of one link has its interface behind it.
        let text = std::str::from_utf8(text).unwrap_or_default();
        let address = text.split('%').next().and_then(|text| text.parse().ok());
        address.map_or(Self::Local, Self::of)
    }
}

impl std::fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local => f.write_str("a local socket"),
            Self::Host(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;

    #[test]
    fn an_address_is_read_as_libzmq_writes_it() {
        let of = |text: &str| PeerAddress::of(text.parse().unwrap());
        for (text, expected) in [
            ("10.0.0.1", of("10.0.0.1")),
            ("::ffff:10.0.0.1", of("10.0.0.1")),
            ("fe80::1%eth0", of("fe80::2")),
            ("0:0:4711", PeerAddress::Local),
            ("", PeerAddress::Local),
        ] {
            assert_eq!(PeerAddress::of_text(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(PeerAddress::of_text(&[0xff]), PeerAddress::Local);
    }

    #[test]
    fn addresses_of_one_network_are_one() {
        let of = |text: &str| PeerAddress::of(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
