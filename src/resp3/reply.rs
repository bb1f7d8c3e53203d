//! Encodes replies, in the form of the version that the client has chosen.

use super::integer;

/// The version of the protocol that a connection speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RespVersion {
    /// Until the client says otherwise.
    #[default]
    Two,
    /// After `HELLO 3`.
    Three,
}

/// Appends replies to a buffer.
pub struct ReplyWriter<'o> {
    out: &'o mut Vec<u8>,
    version: RespVersion,
}

impl<'o> ReplyWriter<'o> {
    /// A writer that appends to `out`.
    pub fn new(out: &'o mut Vec<u8>, version: RespVersion) -> Self {
        Self { out, version }
    }

    /// A short text without ends of lines, such as `OK`.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// An error: a code in capitals, and what is wrong. Ends of lines become spaces, but for those at its ends, which are
    /// left out, as in Redis.
    pub fn error(&mut self, text: impl AsRef<[u8]>) {
        let mut text = text.as_ref();
        while let [b'\r' | b'\n', rest @ ..] | [rest @ .., b'\r' | b'\n'] = text {
            text = rest;
        }
        self.out.push(b'-');
        let clean = text.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte });
        self.out.extend(clean);
        self.out.extend_from_slice(b"\r\n");
    }

    /// A number.
    #[inline]
    pub fn integer(&mut self, number: i64) {
        self.number(b':', number);
    }

    /// A string of any bytes.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.length(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// No value.
    pub fn null(&mut self) {
        self.choose(b"$-1\r\n", b"_\r\n");
    }

    /// No value, where an array might have been.
    pub fn null_array(&mut self) {
        self.choose(b"*-1\r\n", b"_\r\n");
    }

    /// So many replies follow, and are one.
    pub fn array(&mut self, length: usize) {
        self.length(b'*', length);
    }

    /// So many pairs of replies follow, and are one.
    pub fn map(&mut self, pairs: usize) {
        match self.version {
            RespVersion::Two => self.length(b'*', 2 * pairs),
            RespVersion::Three => self.length(b'%', pairs),
        }
    }

    /// As an array without order.
    pub fn set(&mut self, length: usize) {
        let kind = if self.version == RespVersion::Three { b'~' } else { b'*' };
        self.length(kind, length);
    }

    /// As an array that is the reply to no command.
    pub fn push(&mut self, length: usize) {
        let kind = if self.version == RespVersion::Three { b'>' } else { b'*' };
        self.length(kind, length);
    }

    /// A truth value.
    pub fn boolean(&mut self, is_true: bool) {
        match self.version {
            RespVersion::Two => self.integer(is_true.into()),
            RespVersion::Three => self.line(b'#', if is_true { b"t" } else { b"f" }),
        }
    }

    /// A number with a fraction, in its decimal form.
    pub fn double(&mut self, decimal: &str) {
        match self.version {
            RespVersion::Two => self.bulk(decimal.as_bytes()),
            RespVersion::Three => self.line(b',', decimal.as_bytes()),
        }
    }

    /// A text for people.
    pub fn text(&mut self, text: &str) {
        match self.version {
            RespVersion::Two => self.bulk(text.as_bytes()),
            RespVersion::Three => {
                self.length(b'=', "txt:".len() + text.len());
                self.out.extend_from_slice(b"txt:");
                self.out.extend_from_slice(text.as_bytes());
                self.out.extend_from_slice(b"\r\n");
            }
        }
    }

    fn choose(&mut self, two: &[u8], three: &[u8]) {
        self.out.extend_from_slice(if self.version == RespVersion::Three { three } else { two });
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.out.push(kind);
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }

    fn length(&mut self, kind: u8, length: usize) {
        self.number(kind, i64::try_from(length).unwrap_or(i64::MAX));
    }

    fn number(&mut self, kind: u8, number: i64) {
        self.out.push(kind);
        let mut digits = [0; 20];
        let mut at = digits.len();
        let mut rest = number.unsigned_abs();
        loop {
            at -= 1;
            if let Some(digit) = digits.get_mut(at) {
                *digit = b'0' + (rest % 10) as u8;
            }
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if number < 0 {
            self.out.push(b'-');
        }
        self.out.extend_from_slice(digits.get(at..).unwrap_or_default());
        self.out.extend_from_slice(b"\r\n");
    }
}

/// The length of the reply that begins with these bytes, in bytes. `None`: it is not whole, or is none.
#[must_use]
pub fn reply_length(bytes: &[u8]) -> Option<usize> {
    let (mut at, mut replies) = (0, 1_usize);
    while replies > 0 {
        let rest = bytes.get(at..)?;
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        let count = integer(rest.get(1..end.checked_sub(1)?)?).and_then(|count| usize::try_from(count).ok());
        replies -= 1;
        at += end + 1;
        match rest.first()? {
            b'$' | b'=' => at += count.map_or(0, |length| length + 2),
            b'*' | b'~' | b'>' => replies += count.unwrap_or(0),
            b'%' => replies += 2 * count.unwrap_or(0),
            _ => {}
        }
    }
    (at <= bytes.len()).then_some(at)
}
