//! The names and addresses of the proxy's clients, for the slow log and for refusals: a worker knows only the tag of a
//! client.
//!
//! The proxy writes a name when it first hears of a client. A worker reads one for each request that is slow or refused, and for
//! no other.
//! A tag is given again after its client was forgotten, and its new client's name replaces the old one. So there are at
//! most 65,536 names.

use ahash::AHashMap;

use super::report::printable;
use crate::lock::Mutex;
use crate::protocols::sockets::Frame;
use crate::security::PeerAddress;

/// Property in which libzmq keeps the address of a frame's peer, as text.
const PEER_ADDRESS: &std::ffi::CStr = c"Peer-Address";

/// What is known of a client beside its tag.
#[derive(Debug)]
pub(super) struct KnownClient {
    name: Box<str>,
    address: PeerAddress,
}

impl KnownClient {
    /// The client that has this routing id.
    pub(super) fn of(id: &Frame) -> Self {
        let address = id.property(PEER_ADDRESS).and_then(|address| address.to_str().ok()).unwrap_or_default();
        let name = format!("{address} id {}", printable(id)).trim_start().into();
        Self { name, address: PeerAddress::of_text(address.as_bytes()) }
    }
}

/// Each client by its tag.
#[derive(Debug, Default)]
pub(super) struct ClientNames(Mutex<AHashMap<u16, KnownClient>>);

impl ClientNames {
    /// Notes a client.
    pub(super) fn put(&self, tag: u16, client: KnownClient) {
        self.0.lock().insert(tag, client);
    }

    /// The name of a client.
    pub(super) fn get(&self, tag: u16) -> String {
        self.0.lock().get(&tag).map_or_else(|| "gone".to_owned(), |client| client.name.to_string())
    }

    /// The address of a client.
    pub(super) fn address(&self, tag: u16) -> PeerAddress {
        self.0.lock().get(&tag).map_or(PeerAddress::Local, |client| client.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_routing_id_as_text_or_hexadecimal() {
        let names = ClientNames::default();
        names.put(7, KnownClient::of(&Frame::from(&b"reader-7"[..])));
        names.put(8, KnownClient::of(&Frame::from(&[0, 0xff][..])));
        assert_eq!([7, 8, 9].map(|tag| names.get(tag)), ["id reader-7", "id 0x00ff", "gone"]);
        names.put(7, KnownClient::of(&Frame::from(&b"other"[..])));
        assert_eq!(names.get(7), "id other");
    }
}
