//! Finds the address of a network interface by its name, as libzmq does: the first address of IPv4 that the system
//! lists.
//!
//! ```text
//! asked     length:4 type:2 flags:2 sequence:4 port:4 │ family:1 …:7                       netlink(7), rtnetlink(7)
//! answered  length:4 type:2 flags:2 sequence:4 port:4 │ family:1 …:3 index:4 │ length:2 kind:2 value │ length:2 …
//!           one such message for each address, each part at a multiple of 4, until one of the type DONE
//! ```
//! This module does not listen; see [`BoundListener`](super::BoundListener).

use std::net::Ipv4Addr;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netdevice, recv, send, socket_with};

const HEADER_BYTES: usize = 16;
/// Bytes of the fixed part of an address message, behind the header.
const ABOUT_BYTES: usize = 8;
/// Bytes of an answer read at once. The system splits its answer so that this is enough.
const ANSWER_BYTES: usize = 32 << 10;

const ERROR: u16 = 2;
const DONE: u16 = 3;
const NEW_ADDRESS: u16 = 20;
const GET_ADDRESS: u16 = 22;
/// A request for all addresses that the system has (NLM_F_REQUEST and NLM_F_DUMP).
const FLAGS: u16 = 0x301;
/// The kind of the value that holds an interface's own address.
const LOCAL: u16 = 2;
const IPV4: u8 = 2;

/// The first address of the interface with this name, if there is one.
pub(super) fn address_of(name: &str) -> Option<Ipv4Addr> {
    // Netlink's protocol 0 is NETLINK_ROUTE. `None` stands for it here.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None).ok()?;
    let index = netdevice::name_to_index(&socket, name).ok()?;
    send(&socket, &question(), SendFlags::empty()).ok()?;
    let mut bytes = vec![0; ANSWER_BYTES];
    loop {
        let (count, _) = recv(&socket, bytes.as_mut_slice(), RecvFlags::empty()).ok()?;
        let (found, is_end) = look(bytes.get(..count)?, index);
        if found.is_some() || is_end || count == 0 {
            return found;
        }
    }
}

#[expect(clippy::host_endian_bytes, reason = "netlink has the order of the host")]
fn question() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + ABOUT_BYTES);
    bytes.extend(24_u32.to_ne_bytes());
    bytes.extend(GET_ADDRESS.to_ne_bytes());
    bytes.extend(FLAGS.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([IPV4, 0, 0, 0, 0, 0, 0, 0]);
    bytes
}

/// Searches one part of the answer for the first address of the interface with this index. The flag says whether the
/// answer is complete.
fn look(mut answer: &[u8], index: u32) -> (Option<Ipv4Addr>, bool) {
    while let Some((message, rest)) = long(answer, 0).and_then(|length| split(answer, length as usize, HEADER_BYTES)) {
        match short(message, 4) {
            Some(NEW_ADDRESS) if long(message, HEADER_BYTES + 4) == Some(index) => {
                if let Some(address) = message.get(HEADER_BYTES + ABOUT_BYTES..).and_then(local) {
                    return (Some(address), false);
                }
            }
            Some(DONE | ERROR) | None => return (None, true),
            Some(_) => {}
        }
        answer = rest;
    }
    (None, false)
}

/// The interface's own address among these values.
fn local(mut values: &[u8]) -> Option<Ipv4Addr> {
    while let Some((value, rest)) = short(values, 0).and_then(|length| split(values, length.into(), 4)) {
        if short(value, 2) == Some(LOCAL) {
            return at::<4>(value, 4).map(Ipv4Addr::from);
        }
        values = rest;
    }
    None
}

/// Splits off a part of this length, which must have at least `least` bytes. Returns it and the bytes that follow it.
fn split(bytes: &[u8], length: usize, least: usize) -> Option<(&[u8], &[u8])> {
    let part = bytes.get(..length).filter(|part| part.len() >= least)?;
    Some((part, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

fn at<const N: usize>(bytes: &[u8], start: usize) -> Option<[u8; N]> {
    bytes.get(start..start + N)?.try_into().ok()
}

// Netlink's numbers are in the order of the host.
fn short(bytes: &[u8], start: usize) -> Option<u16> {
    at(bytes, start).map(u16::from_ne_bytes)
}

fn long(bytes: &[u8], start: usize) -> Option<u32> {
    at(bytes, start).map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use bolero::check;

    use super::*;
    use crate::net::zeromq::BoundListener;

    #[test]
    fn an_interface_has_its_first_address_and_a_name_of_none_has_no_address() {
        assert_eq!(address_of("lo"), Some(Ipv4Addr::LOCALHOST));
        for name in ["", "nowhere0", "localhost", "a name that is much too long for an interface"] {
            assert_eq!(address_of(name), None, "{name}");
        }
        let listens = |endpoint| BoundListener::bind(endpoint).map(|listener| listener.endpoint().to_owned());
        assert!(listens("tcp://lo:*").is_ok_and(|endpoint| endpoint.starts_with("tcp://127.0.0.1:")));
        let refused = listens("tcp://nowhere0:*").map_err(|error| error.to_string());
        assert!(refused.is_err_and(|said| said.contains("the name of an interface")));
    }

    #[test]
    fn any_answer_is_read_to_an_end() {
        check!().with_type().for_each(|(answer, index): &(Vec<u8>, u32)| {
            look(answer, *index);
        });
    }

    /// One message of an answer: the address of an interface, with these values.
    #[expect(clippy::host_endian_bytes, reason = "netlink has the order of the host")]
    fn address_message(index: u32, values: &[(u16, [u8; 4])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(u32::try_from(HEADER_BYTES + ABOUT_BYTES + 8 * values.len()).unwrap_or(0).to_ne_bytes());
        bytes.extend(NEW_ADDRESS.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend([IPV4, 8, 0, 0]);
        bytes.extend(index.to_ne_bytes());
        for (kind, value) in values {
            bytes.extend(8_u16.to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(value);
        }
        bytes
    }

    #[test]
    fn of_an_answer_the_first_own_address_of_the_interface_counts() {
        let peer = (1, [10, 0, 0, 1]);
        let answer = [
            address_message(1, &[(LOCAL, [127, 0, 0, 1])]),
            address_message(2, &[peer]),
            address_message(2, &[peer, (LOCAL, [10, 0, 0, 2])]),
            address_message(2, &[(LOCAL, [10, 0, 0, 3])]),
        ]
        .concat();
        assert_eq!(look(&answer, 2), (Some(Ipv4Addr::new(10, 0, 0, 2)), false));
        assert_eq!(look(&answer, 1), (Some(Ipv4Addr::LOCALHOST), false));
        assert_eq!(look(&answer, 3), (None, false), "another part of the answer may have it");
    }
}
