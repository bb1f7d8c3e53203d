//! Replies of RESP2 and RESP3: where a frame ends, its parsed value, and how a report prints the value.
//!
//! ```text
//! +text  -error  :integer  _  ,double  #bool  (big number      a line
//! $5 hello   !7 ERR bad   =7 txt:abc   $-1                     a bulk string, with its length first
//! *2 …   ~2 …   >2 …   %1 …   |1 … value                       many values: a map counts pairs
//! ```
//! The values keep their exact type. A message of a subscription inside another frame is no part of the frame:
//! Redis 7.0 writes such a push in the middle of an EXEC. [`without_messages`] takes it out. Streamed values of RESP3 are
//! malformed here.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::ops::Range;

/// The most values in one frame that a server is believed to send.
const ITEMS_MAX: i64 = 1 << 24;
/// The bytes of a bulk string that a report prints.
const SHOWN_BYTES_MAX: usize = 120;

/// The commands with a confirmation for each argument.
pub(crate) const CONFIRMED: [&str; 4] = ["SUBSCRIBE", "PSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE"];

/// A parsed reply. The kind is the first byte on the wire.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Value {
    Line { kind: u8, text: Vec<u8> },
    Bulk { kind: u8, bytes: Vec<u8> },
    Null { kind: u8 },
    Many { kind: u8, items: Vec<Value> },
}

/// Where a frame ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scan {
    Whole(usize),
    Partial,
    Malformed,
}

impl Scan {
    /// The place behind a whole frame.
    fn end(self) -> Option<usize> {
        if let Self::Whole(end) = self { Some(end) } else { None }
    }
}

/// The place behind the frame that begins at `at`.
pub(crate) fn scan(bytes: &[u8], at: usize) -> Scan {
    let Some((kind, text, mut place)) = head(bytes, at) else { return unfinished(bytes, at) };
    match kind {
        b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => Scan::Whole(place),
        b'$' | b'!' | b'=' => match number(text) {
            Some(-1) => Scan::Whole(place),
            Some(length @ 0..) => scan_bulk(bytes, place, usize::try_from(length).unwrap_or(usize::MAX)),
            _ => Scan::Malformed,
        },
        b'*' | b'~' | b'>' | b'%' | b'|' => {
            let Some(count) = number(text).filter(|count| (-1..=ITEMS_MAX).contains(count)) else {
                return Scan::Malformed;
            };
            for _ in 0..values_of(kind, count) {
                place = skip_messages(bytes, place);
                match scan(bytes, place) {
                    Scan::Whole(end) => place = end,
                    unfinished => return unfinished,
                }
            }
            Scan::Whole(place)
        }
        _ => Scan::Malformed,
    }
}

/// The kind, the text and the place behind the first line of a frame.
fn head(bytes: &[u8], at: usize) -> Option<(u8, &[u8], usize)> {
    let rest = bytes.get(at..)?;
    let kind = *rest.first()?;
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    (end > 1 && rest[end - 1] == b'\r').then(|| (kind, &rest[1..end - 1], at + end + 1))
}

fn unfinished(bytes: &[u8], at: usize) -> Scan {
    let rest = bytes.get(at..).unwrap_or_default();
    let is_cut = !rest.contains(&b'\n') && rest.first().is_none_or(|kind| b"+-:_,#($!=*~>%|".contains(kind));
    if is_cut { Scan::Partial } else { Scan::Malformed }
}

fn scan_bulk(bytes: &[u8], place: usize, length: usize) -> Scan {
    let Some(end) = place.checked_add(length).and_then(|end| end.checked_add(2)) else { return Scan::Malformed };
    match bytes.get(end - 2..end) {
        Some(b"\r\n") => Scan::Whole(end),
        Some(_) => Scan::Malformed,
        None => Scan::Partial,
    }
}

fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The number of values behind the first line. An attribute is followed by the value to which it belongs.
fn values_of(kind: u8, count: i64) -> i64 {
    match kind {
        b'%' => count.max(0) * 2,
        b'|' => count.max(0) * 2 + 1,
        _ => count.max(0),
    }
}

/// Whether a frame is a message of a subscription, not its confirmation.
pub(crate) fn is_message(frame: &[u8]) -> bool {
    let [b'*' | b'>', rest @ ..] = frame else { return false };
    rest.starts_with(b"3\r\n$7\r\nmessage\r\n") || rest.starts_with(b"4\r\n$8\r\npmessage\r\n")
}

/// The name of the command that this frame confirms.
pub(crate) fn confirmation(frame: &[u8]) -> Option<&'static str> {
    let rest = frame.strip_prefix(b"*3\r\n$").or_else(|| frame.strip_prefix(b">3\r\n$"))?;
    let names = [
        (&b"9\r\nsubscribe\r\n"[..], "SUBSCRIBE"),
        (b"10\r\npsubscribe\r\n", "PSUBSCRIBE"),
        (b"11\r\nunsubscribe\r\n", "UNSUBSCRIBE"),
        (b"12\r\npunsubscribe\r\n", "PUNSUBSCRIBE"),
    ];
    names.iter().find(|(head, _)| rest.starts_with(head)).map(|(_, name)| *name)
}

/// The place behind the messages that stand at this place inside another frame.
fn skip_messages(bytes: &[u8], mut place: usize) -> usize {
    while is_message(bytes.get(place..).unwrap_or_default()) {
        let Scan::Whole(end) = scan(bytes, place) else { break };
        place = end;
    }
    place
}

/// A whole frame without the messages inside it, which are moved to `messages`, in their order.
pub(crate) fn without_messages<'f>(frame: &'f [u8], messages: &mut Vec<Vec<u8>>) -> Cow<'f, [u8]> {
    let mut found = Vec::new();
    find_messages(frame, 0, &mut found);
    if found.is_empty() {
        return Cow::Borrowed(frame);
    }
    let mut rest = Vec::new();
    let mut place = 0;
    for message in found {
        rest.extend_from_slice(&frame[place..message.start]);
        place = message.end;
        messages.push(frame[message].to_vec());
    }
    rest.extend_from_slice(&frame[place..]);
    Cow::Owned(rest)
}

/// The place behind the whole frame that begins at `at`, and the places of the messages inside it.
fn find_messages(frame: &[u8], at: usize, found: &mut Vec<Range<usize>>) -> usize {
    let (kind, text, mut place) = head(frame, at).expect("the frame is whole");
    if !b"*~>%|".contains(&kind) {
        return scan(frame, at).end().expect("the frame is whole");
    }
    for _ in 0..values_of(kind, number(text).expect("it was scanned")) {
        while is_message(&frame[place..]) {
            let Some(end) = scan(frame, place).end() else { break };
            found.push(place..end);
            place = end;
        }
        place = find_messages(frame, place, found);
    }
    place
}

/// The value of a whole frame without messages inside it.
pub(crate) fn parse(frame: &[u8]) -> Value {
    parse_at(frame, &mut 0)
}

fn parse_at(frame: &[u8], at: &mut usize) -> Value {
    let (kind, text, mut place) = head(frame, *at).expect("the frame is whole");
    let value = match kind {
        b'$' | b'!' | b'=' | b'*' | b'~' | b'>' | b'%' | b'|' if text == b"-1" => Value::Null { kind },
        b'$' | b'!' | b'=' => {
            let length = usize::try_from(number(text).expect("it was scanned")).expect("it was scanned");
            let bytes = frame[place..place + length].to_vec();
            place += length + 2;
            Value::Bulk { kind, bytes }
        }
        b'*' | b'~' | b'>' | b'%' | b'|' => {
            let count = values_of(kind, number(text).expect("it was scanned"));
            let items = (0..count).map(|_| parse_at(frame, &mut place)).collect();
            Value::Many { kind, items }
        }
        b'_' => Value::Null { kind },
        _ => Value::Line { kind, text: text.to_vec() },
    };
    *at = place;
    value
}

impl Value {
    /// The number of an integer reply.
    pub(crate) fn integer(&self) -> Option<i64> {
        match self {
            Self::Line { kind: b':', text } => number(text),
            _ => None,
        }
    }

    /// The bytes of a bulk string or a line.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Line { text: bytes, .. } | Self::Bulk { bytes, .. } => Some(bytes),
            Self::Null { .. } | Self::Many { .. } => None,
        }
    }

    /// The values inside it. None for a single value.
    pub(crate) fn items(&self) -> &[Value] {
        match self {
            Self::Many { items, .. } => items,
            _ => &[],
        }
    }

    /// Its first byte on the wire.
    pub(crate) fn kind(&self) -> u8 {
        match self {
            Self::Line { kind, .. } | Self::Bulk { kind, .. } | Self::Null { kind } | Self::Many { kind, .. } => *kind,
        }
    }

    /// Whether it is an error.
    pub(crate) fn is_error(&self) -> bool {
        matches!(self.kind(), b'-' | b'!')
    }
}

/// On one line: `+OK`, `-ERR bad`, `:5`, `"bulk"`, `(nil)`, `*["a", :1]`.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { kind, text } => write!(f, "{}{}", char::from(*kind), text.escape_ascii()),
            Self::Bulk { kind: b'$', bytes } => f.write_str(&quoted(bytes)),
            Self::Bulk { kind, bytes } => write!(f, "{}{}", char::from(*kind), quoted(bytes)),
            Self::Null { kind: b'*' } => f.write_str("(nil array)"),
            Self::Null { kind: b'_' } => f.write_str("(null)"),
            Self::Null { .. } => f.write_str("(nil)"),
            Self::Many { kind, items } => {
                let items: Vec<String> = items.iter().map(Self::to_string).collect();
                write!(f, "{}[{}]", char::from(*kind), items.join(", "))
            }
        }
    }
}

/// Bytes in quotes, as redis-cli prints and reads them. Long ones are cut, with their length.
pub(crate) fn quoted(bytes: &[u8]) -> String {
    let mut text = String::from("\"");
    for byte in bytes.iter().take(SHOWN_BYTES_MAX) {
        match byte {
            b'"' | b'\\' => text.extend(['\\', char::from(*byte)]),
            b'\r' => text += "\\r",
            b'\n' => text += "\\n",
            b'\t' => text += "\\t",
            b' '..=b'~' => text.push(char::from(*byte)),
            _ => write!(text, "\\x{byte:02x}").expect("a string takes all"),
        }
    }
    text.push('"');
    if bytes.len() > SHOWN_BYTES_MAX {
        write!(text, "… of {} bytes", bytes.len()).expect("a string takes all");
    }
    text
}

#[test]
fn a_frame_of_each_type_is_whole_at_its_last_byte_alone() {
    let samples: [&[u8]; 12] = [
        b"+OK\r\n",
        b":-1\r\n",
        b"$5\r\nab\r\nc\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*2\r\n*0\r\n$0\r\n\r\n",
        b"%1\r\n+a\r\n:1\r\n",
        b"|1\r\n+a\r\n:1\r\n+value\r\n",
        b"=7\r\ntxt:abc\r\n",
        b"!3\r\nERR\r\n",
        b"(123456789012345678901234567890\r\n",
        b"*2\r\n>3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n:1\r\n:2\r\n",
    ];
    for sample in samples {
        assert_eq!(scan(sample, 0), Scan::Whole(sample.len()), "{}", sample.escape_ascii());
        for end in 0..sample.len() {
            let cut = scan(&sample[..end], 0);
            assert_eq!(cut, Scan::Partial, "{} at {end}", sample.escape_ascii());
        }
    }
    let mut messages = Vec::new();
    assert_eq!(parse(&without_messages(samples[11], &mut messages)).to_string(), "*[:1, :2]");
    assert_eq!(messages, [&samples[11][4..35]]);
    assert_eq!(parse(samples[7]).to_string(), "|[+a, :1, +value]");
}

#[test]
fn bytes_that_no_server_may_send_are_malformed() {
    for sample in [&b"HTTP/1.1 400\r\n"[..], b"$x\r\n", b"*?\r\n", b"$1\r\nabc", b"+OK\n"] {
        assert_eq!(scan(sample, 0), Scan::Malformed, "{}", sample.escape_ascii());
    }
}
