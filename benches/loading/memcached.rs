//! The text protocol of memcached, as far as a comparison needs it (its `doc/protocol.txt`).
//!
//! ```text
//! get KEY…\r\n                            VALUE KEY FLAGS LENGTH\r\n BYTES \r\n for each key found, then END\r\n
//! set KEY 0 SECONDS LENGTH\r\n BYTES \r\n   STORED\r\n
//! delete KEY\r\n                          DELETED\r\n │ NOT_FOUND\r\n
//! ```

use spindle::clock::Ttl;
use spindle::load::{DecodedReply, LoadRequest, OtherProtocol, Payloads, ReplyKind, RequestKind, Workload};

use super::{ABSENT, line, number, push_number};

pub(crate) static MEMCACHED: OtherProtocol = OtherProtocol {
    name: "memcached",
    verbs: &[RequestKind::Get, RequestKind::Set, RequestKind::Delete, RequestKind::Many],
    encode,
    decode,
};

fn encode(ask: LoadRequest, work: &Workload, words: &mut Payloads, out: &mut Vec<u8>) {
    let LoadRequest { verb, key, value_bytes, ttl } = ask;
    match verb {
        RequestKind::Get => {
            out.extend_from_slice(b"get ");
            out.extend_from_slice(words.key(key));
        }
        RequestKind::Delete => {
            out.extend_from_slice(b"delete ");
            out.extend_from_slice(words.key(key));
        }
        RequestKind::Set | RequestKind::Cas | RequestKind::Incr | RequestKind::Scan => {
            out.extend_from_slice(b"set ");
            out.extend_from_slice(words.key(key));
            out.extend_from_slice(b" 0 ");
            push_number(out, ttl.and_then(Ttl::whole_secs).map_or(0, |seconds| seconds as usize));
            out.push(b' ');
            push_number(out, value_bytes);
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(words.value(value_bytes));
        }
        RequestKind::Many => {
            out.extend_from_slice(b"get");
            words.keys(key, work, |key| {
                out.push(b' ');
                out.extend_from_slice(key);
            });
        }
    }
    out.extend_from_slice(b"\r\n");
}

fn decode(verb: RequestKind, bytes: &[u8]) -> DecodedReply<'_> {
    let mut start = 0;
    let mut found = false;
    loop {
        let Some((first, length)) = line(bytes.get(start..).unwrap_or_default()) else { return Ok(None) };
        start += length;
        match first {
            b"END" if found || verb == RequestKind::Many => return Ok(Some((start, ReplyKind::Done))),
            b"END" | b"NOT_FOUND" => return Ok(Some((start, ReplyKind::Refused(ABSENT, None)))),
            b"STORED" | b"DELETED" => return Ok(Some((start, ReplyKind::Done))),
            value if value.starts_with(b"VALUE ") => {
                let size = value.rsplit(|byte| *byte == b' ').next().and_then(number);
                let size = size.and_then(|size| usize::try_from(size).ok()).ok_or("a value without a length")?;
                start += size + 2;
                found = true;
            }
            refused => return Ok(Some((start, ReplyKind::Refused(refused, None)))),
        }
    }
}

#[cfg(test)]
#[allow(dead_code, unused_imports, reason = "a bench has no harness: `tests/it` runs these tests")]
mod tests {
    use super::super::tests::written;
    use super::*;

    #[test]
    fn requests_are_lines() {
        let wrote = |verb, ttl| written(&MEMCACHED, verb, ttl);
        assert_eq!(wrote(RequestKind::Get, None), r"get 099\r\n");
        assert_eq!(wrote(RequestKind::Delete, None), r"delete 099\r\n");
        assert_eq!(wrote(RequestKind::Set, Some(Ttl::from_secs(9))), r"set 099 0 9 4\r\nabcd\r\n");
        assert_eq!(wrote(RequestKind::Many, None), r"get 099 000\r\n");
    }

    #[test]
    fn answers_are_read_when_they_are_whole() {
        let absent = ReplyKind::Refused(ABSENT, None);
        for (verb, bytes, outcome) in [
            (RequestKind::Get, &b"VALUE a 0 5\r\nEND\r\n\r\nEND\r\n"[..], ReplyKind::Done),
            (RequestKind::Get, b"END\r\n", absent),
            (RequestKind::Many, b"END\r\n", ReplyKind::Done),
            (RequestKind::Many, b"VALUE a 0 1\r\nx\r\nVALUE b 0 0\r\n\r\nEND\r\n", ReplyKind::Done),
            (RequestKind::Set, b"STORED\r\n", ReplyKind::Done),
            (
                RequestKind::Set,
                b"SERVER_ERROR out of memory\r\n",
                ReplyKind::Refused(b"SERVER_ERROR out of memory", None),
            ),
            (RequestKind::Delete, b"NOT_FOUND\r\n", absent),
        ] {
            assert_eq!(decode(verb, &[bytes, b"S"].concat()), Ok(Some((bytes.len(), outcome))));
            for end in 0..bytes.len() {
                assert_eq!(decode(verb, bytes.get(..end).unwrap_or_default()), Ok(None), "{bytes:?} {end}");
            }
        }
    }
}
