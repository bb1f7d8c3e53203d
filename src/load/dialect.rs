//! The protocols of the servers: how a request is encoded, and how a reply is decoded.
//!
//! Each connection has one. It keeps no queue: replies come in the order of the requests, and the caller knows the next
//! one.
//!
//! This module has Spindle's own protocol. Those of the servers that it is compared with are in `benches/loading`.

mod kv;

pub(super) use kv::create_table;

use super::source::{LoadRequest, RequestKind};
use super::{Error, Workload};
use crate::limits::KEY_BYTES_DEFAULT;

/// A protocol of a server.
#[derive(Clone, Copy, Debug)]
pub enum Protocol {
    /// Spindle's own, over ZMTP.
    Kv,
    /// The protocol of another server, for a comparison.
    Other(&'static OtherProtocol),
}

/// The protocol of another server. Its connections have no handshake, and it answers in the order of the requests.
#[derive(Debug)]
pub struct OtherProtocol {
    /// The name of the protocol.
    pub name: &'static str,
    /// The verbs that it has.
    pub verbs: &'static [RequestKind],
    /// Encodes a request.
    pub encode: fn(LoadRequest, &Workload, &mut Payloads, &mut Vec<u8>),
    /// Decodes the reply to a request of this kind.
    pub decode: fn(RequestKind, &[u8]) -> DecodedReply<'_>,
}

impl Protocol {
    /// Checks that the protocol has these verbs.
    ///
    /// # Errors
    /// [`Error::NoSuchVerb`].
    pub(super) fn knows(self, mut verbs: impl Iterator<Item = RequestKind>) -> Result<(), Error> {
        let Self::Other(other) = self else { return Ok(()) };
        match verbs.find(|verb| !other.verbs.contains(verb)) {
            Some(verb) => Err(Error::NoSuchVerb { protocol: other.name, verb: verb.name() }),
            None => Ok(()),
        }
    }
}

/// The kind of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyKind<'b> {
    /// The request was executed, or the key was found.
    Done,
    /// The request was executed, and the element has this version now.
    Version(u64),
    /// No reply, but bytes that had to be read: the caller decodes the bytes behind them.
    Nothing,
    /// The request was refused for this reason. After a version mismatch, the version of the element follows.
    Refused(&'b [u8], Option<u64>),
}

/// Why the bytes of a server violate its protocol.
pub type ProtocolViolation = String;

/// The number of bytes of a reply and its kind, or `None` if the reply is not complete.
pub type DecodedReply<'b> = Result<Option<(usize, ReplyKind<'b>)>, ProtocolViolation>;

/// The protocol of one connection.
pub(super) enum Dialect {
    Kv(kv::KvDialect),
    Other(&'static OtherProtocol),
}

impl Dialect {
    /// The protocol of a connection whose handshake is over.
    pub(super) fn new(protocol: Protocol, table: &[u8]) -> Self {
        match protocol {
            Protocol::Kv => Self::Kv(kv::KvDialect::new(table)),
            Protocol::Other(other) => Self::Other(other),
        }
    }

    /// Encodes a request. `expected` is the version that a CAS compares with.
    pub(super) fn encode(
        &mut self,
        ask: LoadRequest,
        work: &Workload,
        words: &mut Payloads,
        expected: u64,
        out: &mut Vec<u8>,
    ) {
        match self {
            Self::Kv(kv) => kv.encode(ask, work, words, expected, out),
            Self::Other(other) => (other.encode)(ask, work, words, out),
        }
    }

    /// Decodes the reply to the oldest outstanding request.
    ///
    /// # Errors
    /// The violation of the protocol.
    pub(super) fn decode<'b>(&mut self, verb: RequestKind, bytes: &'b [u8], out: &mut Vec<u8>) -> DecodedReply<'b> {
        match self {
            Self::Kv(kv) => kv.decode(verb, bytes, out),
            Self::Other(other) => (other.decode)(verb, bytes),
        }
    }
}

/// The bytes of keys and values, without an allocation for each request.
pub struct Payloads {
    key: Vec<u8>,
    /// The key of a counter: a letter before the key of the same number.
    counter: Vec<u8>,
    value: Vec<u8>,
}

impl Payloads {
    /// The payloads of this work.
    #[must_use]
    pub fn new(work: &Workload) -> Self {
        // The letters change, so that compression or comparison on the way gains little.
        let letters = (0..*work.value_bytes.end()).map(|at| b'a' + u8::try_from(at % 26).unwrap_or(0));
        let digits = work.keys.saturating_sub(1).to_string().len();
        Self { key: vec![b'0'; work.key_bytes.max(digits)], counter: Vec::new(), value: letters.collect() }
    }

    /// The key of this number: decimal, padded with zeros in front.
    pub fn key(&mut self, number: u32) -> &[u8] {
        const DIGITS_MAX: usize = 10;
        let mut rest = number;
        for digit in self.key.iter_mut().rev().take(DIGITS_MAX) {
            *digit = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            rest /= 10;
        }
        &self.key
    }

    /// The key of the counter of this number.
    pub fn counter(&mut self, number: u32) -> &[u8] {
        self.key(number);
        self.counter.clear();
        self.counter.push(b'c');
        // The server takes keys of 64 bytes in any case, and otherwise as long ones as the other keys.
        let bytes_max = self.key.len().max(KEY_BYTES_DEFAULT);
        self.counter.extend(self.key.iter().skip((self.key.len() + 1).saturating_sub(bytes_max)));
        &self.counter
    }

    /// A value of this many bytes.
    #[must_use]
    pub fn value(&self, bytes: usize) -> &[u8] {
        self.value.get(..bytes).unwrap_or(&self.value)
    }

    /// Hands each key of a GET_MANY to `each`.
    pub fn keys(&mut self, first: u32, work: &Workload, mut each: impl FnMut(&[u8])) {
        for number in 0..work.many {
            let number = u32::try_from(number).unwrap_or(0);
            each(self.key((first + number) % work.keys));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Ttl;
    use crate::load::{Distribution, Mix};

    pub(super) fn work(key_bytes: usize) -> Workload {
        Workload {
            mix: Mix::only(RequestKind::Get),
            keys: 100,
            key_bytes,
            distribution: Distribution::Uniform,
            value_bytes: 0..=30,
            ttl: Ttl::from_secs(9),
            ttl_share: 0.0,
            many: 2,
            seed: 0,
        }
    }

    /// The bytes of a dialect for this request, escaped.
    pub(super) fn written(dialect: &mut Dialect, verb: RequestKind, ttl: Option<Ttl>) -> String {
        let work = work(3);
        let mut out = Vec::new();
        let ask = LoadRequest { verb, key: 99, value_bytes: 4, ttl };
        dialect.encode(ask, &work, &mut Payloads::new(&work), 7, &mut out);
        out.escape_ascii().to_string()
    }

    #[test]
    fn keys_have_their_length_or_more() {
        let mut words = Payloads::new(&work(16));
        assert_eq!(words.key(0), b"0000000000000000");
        assert_eq!(words.key(u32::MAX), b"0000004294967295");
        let mut short = Payloads::new(&Workload { keys: 1_001, ..work(2) });
        assert_eq!(short.key(1_000), b"1000");
        assert_eq!(short.key(7), b"0007", "as long as the longest");
        assert_eq!(short.value(28), b"abcdefghijklmnopqrstuvwxyzab");
    }

    #[test]
    fn counters_have_keys_of_their_own_within_the_limit() {
        for bytes in [2, 63, 64] {
            let mut words = Payloads::new(&work(bytes));
            let counters = [3, 99].map(|number| words.counter(number).to_vec());
            assert!(counters[0] != counters[1] && counters[0] != words.key(3));
            assert!(counters.iter().all(|key| key.starts_with(b"c") && key.len() == (bytes + 1).min(64)));
        }
    }

    #[test]
    fn spindle_has_all_verbs() {
        assert!(Protocol::Kv.knows(RequestKind::ALL.into_iter()).is_ok());
    }
}
