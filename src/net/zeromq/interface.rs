//! Finds the address of a network interface by its name, as libzmq does: the first address of IPv4 that the system
//! lists.
//!
//! This module does not listen; see [`BoundListener`](super::BoundListener).

use std::net::{IpAddr, Ipv4Addr};

use if_addrs::get_if_addrs;

/// The first address of the interface with this name, if there is one.
pub(super) fn address_of(name: &str) -> Option<Ipv4Addr> {
    let mut interfaces = get_if_addrs().ok()?.into_iter();
    interfaces.find_map(|interface| match interface.ip() {
        IpAddr::V4(address) if without_alias(&interface.name) == without_alias(name) => Some(address),
        _ => None,
    })
}

/// The name of the interface: `eth0` of its further address `eth0:1`.
fn without_alias(name: &str) -> &str {
    name.split(':').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::zeromq::BoundListener;

    #[test]
    fn an_interface_has_its_first_address_and_a_name_of_none_has_no_address() {
        assert_eq!(address_of("lo"), Some(Ipv4Addr::LOCALHOST));
        for name in ["", "nowhere0", "localhost", "a name that is much too long for an interface"] {
            assert_eq!(address_of(name), None, "{name}");
        }
        assert_eq!(without_alias("eth0:1"), "eth0");
        let listens = |endpoint| BoundListener::bind(endpoint).map(|listener| listener.endpoint().to_owned());
        assert!(listens("tcp://lo:*").is_ok_and(|endpoint| endpoint.starts_with("tcp://127.0.0.1:")));
        let refused = listens("tcp://nowhere0:*").map_err(|error| error.to_string());
        assert!(refused.is_err_and(|said| said.contains("the name of an interface")));
    }
}
