//! Spindle's own protocol: ZMTP 3.1 frames from a DEALER without a delimiter, the cheapest form of a request.

use super::super::Workload;
use super::super::source::{LoadRequest, RequestKind};
use super::{DecodedReply, Payloads, ProtocolViolation, ReplyKind};
use crate::byte_reader::ByteReader;
use crate::limits::FRAME_BYTES_MAX;
use crate::services::tables::wire::{Command as Code, Request, ScanFields, TableName, TtlField};
use crate::zmtp::{Part, ZmtpCommand, encode_frame, encode_pong};

const OK: &[u8] = &[1];

pub(in crate::load) struct KvDialect {
    table: Vec<u8>,
    /// The cursor of the next page. Empty: the first one.
    cursor: Vec<u8>,
}

impl KvDialect {
    pub(super) fn new(table: &[u8]) -> Self {
        Self { table: table.to_vec(), cursor: Vec::new() }
    }

    pub(super) fn encode(
        &self,
        ask: LoadRequest,
        work: &Workload,
        words: &mut Payloads,
        expected: u64,
        out: &mut Vec<u8>,
    ) {
        let LoadRequest { verb, key, value_bytes, ttl } = ask;
        let code = match verb {
            RequestKind::Get => Code::Get,
            RequestKind::Set => Code::Update,
            RequestKind::Delete => Code::Delete,
            RequestKind::Cas => Code::CompareAndSwap,
            RequestKind::Many => Code::GetMany,
            RequestKind::Incr => Code::Increment,
            RequestKind::Scan => Code::Scan,
        };
        encode_frame(out, &[code.code()], true);
        encode_frame(out, &self.table, true);
        let last_ttl = |out: &mut Vec<u8>| {
            if let Some(ttl) = ttl {
                encode_frame(out, TtlField::new(ttl).bytes(), false);
            }
        };
        match verb {
            RequestKind::Get | RequestKind::Delete => encode_frame(out, words.key(key), false),
            RequestKind::Set | RequestKind::Cas => {
                encode_frame(out, words.key(key), true);
                if verb == RequestKind::Cas {
                    encode_frame(out, &expected.to_be_bytes(), true);
                }
                encode_frame(out, words.value(value_bytes), ttl.is_some());
                last_ttl(out);
            }
            RequestKind::Incr => {
                encode_frame(out, words.counter(key), true);
                encode_frame(out, &1_i64.to_be_bytes(), ttl.is_some());
                last_ttl(out);
            }
            RequestKind::Scan => {
                encode_frame(out, &self.cursor, true);
                encode_frame(out, &(work.many as u64).to_be_bytes(), true);
                encode_frame(out, &[ScanFields::Key.code()], false);
            }
            RequestKind::Many => {
                let mut left = work.many;
                words.keys(key, work, |key| {
                    left -= 1;
                    encode_frame(out, key, left > 0);
                });
            }
        }
    }

    pub(super) fn decode<'b>(&mut self, verb: RequestKind, bytes: &'b [u8], out: &mut Vec<u8>) -> DecodedReply<'b> {
        let mut reply = ReplyFrames::default();
        let mut taken = 0;
        loop {
            let rest = bytes.get(taken..).unwrap_or_default();
            let part = Part::decode(rest, FRAME_BYTES_MAX as u64).map_err(|fault| fault.to_string())?;
            let Some((part, length)) = part else { return Ok(None) };
            taken += length;
            match part {
                Part::Frame { body, more } => {
                    reply.push(body);
                    if !more {
                        self.turn_page(verb, &reply);
                        return reply.outcome(verb).map(|outcome| Some((taken, outcome)));
                    }
                }
                // Commands stand between messages. If the reply behind a Ping is not complete, the caller decodes the
                // same bytes again, and would answer the Ping again. So a Ping is taken alone, before the reply that
                // follows.
                Part::Command(ZmtpCommand::Ping { context }) if reply.count == 0 => {
                    encode_pong(out, context);
                    return Ok(Some((taken, ReplyKind::Nothing)));
                }
                Part::Command(_) => {}
            }
        }
    }
}

impl KvDialect {
    /// Keeps the cursor of a page. After a refusal the next page is the first one.
    fn turn_page(&mut self, verb: RequestKind, reply: &ReplyFrames<'_>) {
        if verb == RequestKind::Scan {
            let [status, cursor, _] = reply.frames;
            self.cursor.clear();
            self.cursor.extend_from_slice(if status == OK { cursor } else { b"" });
        }
    }
}

/// The first frames of a reply.
#[derive(Default)]
struct ReplyFrames<'b> {
    frames: [&'b [u8]; 3],
    count: usize,
}

impl<'b> ReplyFrames<'b> {
    fn push(&mut self, frame: &'b [u8]) {
        if let Some(slot) = self.frames.get_mut(self.count) {
            *slot = frame;
        }
        self.count += 1;
    }

    fn outcome(&self, verb: RequestKind) -> Result<ReplyKind<'b>, ProtocolViolation> {
        let [status, first, second] = self.frames;
        let version = |frame| ByteReader::new(frame).u64_be();
        match (status, verb) {
            (OK, RequestKind::Cas) => {
                version(first).map(ReplyKind::Version).ok_or_else(|| "a CAS without a version".to_owned())
            }
            (OK, _) => Ok(ReplyKind::Done),
            ([0], _) => Ok(ReplyKind::Refused(first, version(second))),
            _ => Err("an answer without a status".to_owned()),
        }
    }
}

/// The request that creates the table.
pub(in crate::load) fn create_table(table: &[u8], out: &mut Vec<u8>) {
    let request: Request<'_> = Request::CreateTable { table: TableName::spelt(table), options: None };
    request.encode(|frame, more| encode_frame(out, frame, more));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::super::Dialect;
    use super::super::tests::{work, written};
    use super::*;
    use crate::clock::Ttl;
    use crate::services::tables::wire::FieldLimits;

    fn kv() -> KvDialect {
        KvDialect::new(b"t")
    }

    #[test]
    fn requests_are_those_of_the_specification() {
        let wrote = |verb, ttl| written(&mut Dialect::Kv(kv()), verb, ttl);
        assert_eq!(wrote(RequestKind::Get, None), r"\x01\x01\x04\x01\x01t\x00\x03099");
        assert_eq!(wrote(RequestKind::Delete, None), r"\x01\x01\x03\x01\x01t\x00\x03099");
        assert_eq!(wrote(RequestKind::Set, None), r"\x01\x01\x02\x01\x01t\x01\x03099\x00\x04abcd");
        let ttl = r"\x00\x08\x00\x00\x00\x00\x00\x00\x00\t";
        assert_eq!(
            wrote(RequestKind::Set, Some(Ttl::from_secs(9))),
            [r"\x01\x01\x02\x01\x01t\x01\x03099\x01\x04abcd", ttl].concat()
        );
        let cas = r"\x01\x01\x07\x01\x01t\x01\x03099\x01\x08\x00\x00\x00\x00\x00\x00\x00\x07\x00\x04abcd";
        assert_eq!(wrote(RequestKind::Cas, None), cas);
        assert_eq!(wrote(RequestKind::Many, None), r"\x01\x01\n\x01\x01t\x01\x03099\x00\x03000");
        let incr = r"\x01\x01\x0f\x01\x01t\x01\x04c099\x00\x08\x00\x00\x00\x00\x00\x00\x00\x01";
        assert_eq!(wrote(RequestKind::Incr, None), incr);
        let scan = r"\x01\x01\x0e\x01\x01t\x01\x00\x01\x08\x00\x00\x00\x00\x00\x00\x00\x02\x00\x01\x00";
        assert_eq!(wrote(RequestKind::Scan, None), scan);
    }

    #[test]
    fn requests_are_what_the_server_decodes() {
        for verb in RequestKind::ALL {
            let work = work(16);
            let mut bytes = Vec::new();
            let ask = LoadRequest { verb, key: 3, value_bytes: 7, ttl: None };
            kv().encode(ask, &work, &mut Payloads::new(&work), 7, &mut bytes);
            let mut frames = Vec::new();
            let mut rest = bytes.as_slice();
            while let Some((Part::Frame { body, .. }, length)) = Part::decode(rest, 100).unwrap() {
                frames.push(body);
                rest = rest.get(length..).unwrap();
            }
            assert!(Request::decode(&frames, FieldLimits { key: 64, value: 100 }).is_ok(), "{verb:?}");
        }
    }

    #[test]
    fn answers_are_read_when_they_are_whole() {
        let read = |verb, bytes: &'static [u8]| kv().decode(verb, bytes, &mut Vec::new());
        assert_eq!(read(RequestKind::Get, b"\x01\x01\x01\x00\x02hi\x01"), Ok(Some((7, ReplyKind::Done))));
        assert_eq!(read(RequestKind::Get, b"\x01\x01\x01\x00\x02h"), Ok(None));
        let refused = b"\x01\x01\0\x00\x0dKEY NOT FOUND";
        assert_eq!(read(RequestKind::Get, refused), Ok(Some((18, ReplyKind::Refused(b"KEY NOT FOUND", None)))));
        let swapped = b"\x01\x01\x01\x00\x08\0\0\0\0\0\0\0\x05";
        assert_eq!(read(RequestKind::Cas, swapped), Ok(Some((13, ReplyKind::Version(5)))));
        let mismatch = b"\x01\x01\0\x01\x10VERSION MISMATCH\x00\x08\0\0\0\0\0\0\0\x06";
        assert_eq!(read(RequestKind::Cas, mismatch), Ok(Some((31, ReplyKind::Refused(b"VERSION MISMATCH", Some(6))))));
        assert!(read(RequestKind::Get, b"\x00\x01\x07").is_err());
    }

    #[test]
    fn a_scan_continues_with_the_cursor_of_the_last_page() {
        let mut dialect = kv();
        for (reply, cursor) in [
            (&b"\x01\x01\x01\x01\x04next\x00\x01k"[..], &b"next"[..]),
            (b"\x01\x01\x01\x00\x00", b""),
            (b"\x01\x01\x01\x00\x01n", b"n"),
            (b"\x01\x01\0\x00\x0aBAD CURSOR", b""),
        ] {
            assert!(dialect.decode(RequestKind::Scan, reply, &mut Vec::new()).unwrap().is_some());
            assert_eq!(dialect.cursor, cursor);
        }
    }

    #[test]
    fn a_ping_between_answers_is_answered() {
        let mut out = Vec::new();
        let bytes = b"\x04\x09\x04PING\0\0ab\x00\x01\x01";
        assert_eq!(kv().decode(RequestKind::Set, bytes, &mut out), Ok(Some((11, ReplyKind::Nothing))));
        assert_eq!(out, b"\x04\x07\x04PONGab");
    }
}
