//! RESP, the protocol of Redis, as far as a comparison needs it (see
//! <https://redis.io/docs/latest/develop/reference/protocol-spec/>).
//!
//! ```text
//! request   *N\r\n, then N times $LENGTH\r\n BYTES \r\n
//! answer    +text\r\n │ -reason\r\n │ :number\r\n │ $LENGTH\r\n BYTES \r\n │ $-1\r\n │ *N\r\n answers
//! ```

use spindle::load::{DecodedReply, LoadRequest, OtherProtocol, Payloads, ReplyKind, RequestKind, Workload};

use super::{ABSENT, line, number, push_number};

pub(crate) static REDIS: OtherProtocol = OtherProtocol {
    name: "redis",
    verbs: &[RequestKind::Get, RequestKind::Set, RequestKind::Delete, RequestKind::Many, RequestKind::Incr],
    encode,
    decode: |_, bytes| decode(bytes),
};

/// The same, and a `many` is a transaction: it stores so many keys, each with its name as its value.
pub(super) static TRANSACTIONS: OtherProtocol = OtherProtocol {
    name: "redis-exec",
    verbs: &[RequestKind::Many],
    encode: encode_transaction,
    decode: |_, bytes| decode_transaction(bytes),
};

/// The same transactions, each of which selects database 1 first.
pub(super) static TRANSACTIONS_ELSEWHERE: OtherProtocol = OtherProtocol {
    name: "redis-exec-1",
    verbs: &[RequestKind::Many],
    encode: |ask, work, words, out| {
        begin(out, 2, b"SELECT");
        bulk(out, b"1");
        encode_transaction(ask, work, words, out);
    },
    decode: |_, bytes| decode_transaction(bytes),
};

fn encode_transaction(ask: LoadRequest, work: &Workload, words: &mut Payloads, out: &mut Vec<u8>) {
    begin(out, 1, b"MULTI");
    words.keys(ask.key, work, |key| {
        begin(out, 3, b"SET");
        bulk(out, key);
        bulk(out, key);
    });
    begin(out, 1, b"EXEC");
}

/// The answer of EXEC, and those before it.
fn decode_transaction(bytes: &[u8]) -> DecodedReply<'_> {
    let mut end = 0;
    loop {
        let rest = bytes.get(end..).unwrap_or_default();
        let Some((length, kind)) = decode(rest)? else { return Ok(None) };
        end += length;
        match kind {
            ReplyKind::Done if !rest.starts_with(b"*") => {}
            ReplyKind::Done => return Ok(Some((end, ReplyKind::Done))),
            other => return Err(format!("a transaction is answered with {other:?}")),
        }
    }
}

fn encode(ask: LoadRequest, work: &Workload, words: &mut Payloads, out: &mut Vec<u8>) {
    let LoadRequest { verb, key, value_bytes, ttl } = ask;
    match verb {
        RequestKind::Get => {
            begin(out, 2, b"GET");
            bulk(out, words.key(key));
        }
        RequestKind::Delete => {
            begin(out, 2, b"DEL");
            bulk(out, words.key(key));
        }
        RequestKind::Incr => {
            begin(out, 2, b"INCR");
            bulk(out, words.counter(key));
        }
        RequestKind::Set | RequestKind::Cas | RequestKind::Scan => {
            begin(out, if ttl.is_some() { 5 } else { 3 }, b"SET");
            bulk(out, words.key(key));
            bulk(out, words.value(value_bytes));
            if let Some(ttl) = ttl {
                let (unit, number) = ttl.whole_secs().map_or((b"PX", ttl.millis()), |secs| (b"EX", u64::from(secs)));
                bulk(out, unit);
                bulk(out, number.to_string().as_bytes());
            }
        }
        RequestKind::Many => {
            begin(out, work.many + 1, b"MGET");
            words.keys(key, work, |key| bulk(out, key));
        }
    }
}

fn begin(out: &mut Vec<u8>, count: usize, name: &[u8]) {
    out.push(b'*');
    push_number(out, count);
    out.extend_from_slice(b"\r\n");
    bulk(out, name);
}

fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'$');
    push_number(out, bytes.len());
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// A missing key has the answer nil or zero.
fn decode(bytes: &[u8]) -> DecodedReply<'_> {
    let Some((first, start)) = line(bytes) else { return Ok(None) };
    let (kind, rest) = first.split_first().ok_or("an empty line")?;
    let count = || number(rest).ok_or_else(|| "a length that is no number".to_owned());
    match kind {
        b'+' => Ok(Some((start, ReplyKind::Done))),
        b'-' => Ok(Some((start, ReplyKind::Refused(rest, None)))),
        b':' => Ok(Some((start, if rest == b"0" { ReplyKind::Refused(ABSENT, None) } else { ReplyKind::Done }))),
        b'$' => {
            let Ok(length) = usize::try_from(count()?) else {
                return Ok(Some((start, ReplyKind::Refused(ABSENT, None))));
            };
            let end = start + length + 2;
            Ok((bytes.len() >= end).then_some((end, ReplyKind::Done)))
        }
        b'*' => {
            let mut end = start;
            for _ in 0..count()? {
                let Some((length, _)) = decode(bytes.get(end..).unwrap_or_default())? else { return Ok(None) };
                end += length;
            }
            Ok(Some((end, ReplyKind::Done)))
        }
        _ => Err("an answer of no known kind".to_owned()),
    }
}

#[cfg(test)]
#[allow(dead_code, unused_imports, reason = "a bench has no harness: `tests/it` runs these tests")]
mod tests {
    use spindle::clock::Ttl;

    use super::super::tests::written;
    use super::*;

    #[test]
    fn requests_are_arrays_of_bulk_strings() {
        let wrote = |verb, ttl| written(&REDIS, verb, ttl);
        assert_eq!(wrote(RequestKind::Get, None), r"*2\r\n$3\r\nGET\r\n$3\r\n099\r\n");
        assert_eq!(wrote(RequestKind::Delete, None), r"*2\r\n$3\r\nDEL\r\n$3\r\n099\r\n");
        assert_eq!(wrote(RequestKind::Set, None), r"*3\r\n$3\r\nSET\r\n$3\r\n099\r\n$4\r\nabcd\r\n");
        assert_eq!(
            wrote(RequestKind::Set, Some(Ttl::from_secs(9))),
            r"*5\r\n$3\r\nSET\r\n$3\r\n099\r\n$4\r\nabcd\r\n$2\r\nEX\r\n$1\r\n9\r\n"
        );
        assert_eq!(
            wrote(RequestKind::Set, Ttl::from_millis(1_500)),
            r"*5\r\n$3\r\nSET\r\n$3\r\n099\r\n$4\r\nabcd\r\n$2\r\nPX\r\n$4\r\n1500\r\n"
        );
        assert_eq!(wrote(RequestKind::Incr, None), r"*2\r\n$4\r\nINCR\r\n$4\r\nc099\r\n");
        assert_eq!(wrote(RequestKind::Many, None), r"*3\r\n$4\r\nMGET\r\n$3\r\n099\r\n$3\r\n000\r\n");
    }

    #[test]
    fn a_transaction_is_answered_when_its_last_answer_is_whole() {
        let sets = r"*3\r\n$3\r\nSET\r\n$3\r\n099\r\n$3\r\n099\r\n*3\r\n$3\r\nSET\r\n$3\r\n000\r\n$3\r\n000\r\n";
        let transaction = format!(r"*1\r\n$5\r\nMULTI\r\n{sets}*1\r\n$4\r\nEXEC\r\n");
        assert_eq!(written(&TRANSACTIONS, RequestKind::Many, None), transaction);
        let elsewhere = format!(r"*2\r\n$6\r\nSELECT\r\n$1\r\n1\r\n{transaction}");
        assert_eq!(written(&TRANSACTIONS_ELSEWHERE, RequestKind::Many, None), elsewhere);
        let answers = b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n+OK\r\n";
        for end in 0..answers.len() {
            assert_eq!(decode_transaction(answers.get(..end).unwrap_or_default()), Ok(None), "{end}");
        }
        assert_eq!(decode_transaction(answers), Ok(Some((answers.len(), ReplyKind::Done))));
        assert!(decode_transaction(b"+OK\r\n-ERR no\r\n").is_err());
    }

    #[test]
    fn answers_are_read_when_they_are_whole() {
        let absent = ReplyKind::Refused(ABSENT, None);
        for (bytes, outcome) in [
            (&b"+OK\r\n"[..], ReplyKind::Done),
            (b"$4\r\na\r\nb\r\n", ReplyKind::Done),
            (b"$-1\r\n", absent),
            (b":1\r\n", ReplyKind::Done),
            (b":0\r\n", absent),
            (b"-ERR no\r\n", ReplyKind::Refused(b"ERR no", None)),
            (b"*2\r\n$1\r\na\r\n$-1\r\n", ReplyKind::Done),
        ] {
            assert_eq!(decode(&[bytes, b"+"].concat()), Ok(Some((bytes.len(), outcome))));
            for end in 0..bytes.len() {
                assert_eq!(decode(bytes.get(..end).unwrap_or_default()), Ok(None), "{bytes:?} {end}");
            }
        }
        assert!(decode(b"what\r\n").is_err());
        assert!(decode(b"$x\r\n").is_err());
        assert!(decode(b"\r\n").is_err());
    }
}
