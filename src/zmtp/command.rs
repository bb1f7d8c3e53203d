//! Commands: the control frames that peers send between messages.
//!
//! ```text
//! command    name length (1) │ name │ data
//! READY      properties       name length (1) │ name │ value length (4, big-endian) │ value    …
//! ERROR      reason length (1) │ reason
//! PING       time to live (2, big-endian, tenths of a second) │ context of 0–16 bytes
//! PONG       the context of the PING
//! SUBSCRIBE  the prefix            CANCEL  the prefix
//! ```

use super::ProtocolError;
use super::frame::encode_command_header;
use crate::byte_reader::ByteReader;

/// The longest context of a PING, in bytes, as ZMTP 3.1 sets it.
const CONTEXT_BYTES_MAX: usize = 16;

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZmtpCommand<'b> {
    /// The peer is ready.
    Ready(Properties<'b>),
    /// The peer ends the handshake and gives the reason.
    Error {
        /// The peer's own text.
        reason: &'b [u8],
    },
    /// The peer asks for a PONG with this context.
    Ping {
        /// Goes into the PONG.
        context: &'b [u8],
    },
    /// The answer to a PING.
    Pong,
    /// The peer wants messages that begin with this prefix.
    Subscribe(&'b [u8]),
    /// The peer no longer wants messages that begin with this prefix.
    Cancel(&'b [u8]),
    /// An unknown command. The receiver may ignore it.
    Other,
}

impl<'b> ZmtpCommand<'b> {
    /// Decodes the body of a command frame.
    ///
    /// # Errors
    /// [`ProtocolError::Command`].
    pub(super) fn decode(body: &'b [u8]) -> Result<Self, ProtocolError> {
        let mut fields = ByteReader::new(body);
        let name = fields.run_u8().ok_or(ProtocolError::Command { what: "its name is cut off" })?;
        let data = fields.rest();
        match name {
            b"" => Err(ProtocolError::Command { what: "it has no name" }),
            b"READY" => Properties::decode(data).map(Self::Ready),
            b"ERROR" => match fields.run_u8() {
                Some(reason) => Ok(Self::Error { reason }),
                None => Err(ProtocolError::Command { what: "the reason of an ERROR is cut off" }),
            },
            b"PING" => match fields.u16_be().map(|_| fields.rest()) {
                Some(context) if context.len() <= CONTEXT_BYTES_MAX => Ok(Self::Ping { context }),
                Some(_) => Err(ProtocolError::Command { what: "the context of a PING has more than 16 bytes" }),
                None => Err(ProtocolError::Command { what: "a PING has no time to live" }),
            },
            b"PONG" => Ok(Self::Pong),
            b"SUBSCRIBE" => Ok(Self::Subscribe(data)),
            b"CANCEL" => Ok(Self::Cancel(data)),
            _ => Ok(Self::Other),
        }
    }
}

/// The properties that a READY gives of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties<'b>(&'b [u8]);

impl<'b> Properties<'b> {
    pub(super) fn decode(data: &'b [u8]) -> Result<Self, ProtocolError> {
        let mut fields = ByteReader::new(data);
        while !fields.is_empty() {
            let what = "the properties of a READY do not add up";
            property(&mut fields).ok_or(ProtocolError::Command { what })?;
        }
        Ok(Self(data))
    }

    /// The value of a property. The name is compared without regard to case.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'b [u8]> {
        let mut fields = ByteReader::new(self.0);
        let mut properties = std::iter::from_fn(|| property(&mut fields));
        properties.find(|(this, _)| this.eq_ignore_ascii_case(name.as_bytes())).map(|(_, value)| value)
    }
}

/// The next property: its name and its value.
fn property<'b>(fields: &mut ByteReader<'b>) -> Option<(&'b [u8], &'b [u8])> {
    let name = fields.run_u8().filter(|name| !name.is_empty())?;
    Some((name, fields.run_u32_be()?))
}

/// A peer's bytes as readable text: at most 255, with `?` for each byte that is not printable ASCII.
pub(super) fn text(bytes: &[u8]) -> String {
    bytes
        .iter()
        .take(255)
        .map(|byte| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '?' })
        .collect()
}

fn encode(out: &mut Vec<u8>, name: &str, data: &[&[u8]]) {
    let size = 1 + name.len() + data.iter().map(|part| part.len()).sum::<usize>();
    encode_command_header(out, size);
    push_short(out, name.as_bytes());
    data.iter().for_each(|part| out.extend_from_slice(part));
}

/// Appends bytes after their length of one byte. Longer ones are cut.
fn push_short(out: &mut Vec<u8>, bytes: &[u8]) {
    let length = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
    out.push(length);
    out.extend_from_slice(bytes.get(..usize::from(length)).unwrap_or(bytes));
}

/// Appends a READY with these properties.
///
/// # Panics
/// If a value is longer than 4 GiB.
pub(super) fn encode_ready(out: &mut Vec<u8>, properties: &[(&str, &[u8])]) {
    encode(out, "READY", &[&encode_properties(properties)]);
}

/// Appends a command whose body begins with its name.
pub(super) fn encode_body(out: &mut Vec<u8>, body: &[u8]) {
    encode_command_header(out, body.len());
    out.extend_from_slice(body);
}

/// These properties, as a READY has them.
///
/// # Panics
/// If a value is longer than 4 GiB.
pub(super) fn encode_properties(properties: &[(&str, &[u8])]) -> Vec<u8> {
    let mut data = Vec::new();
    for (name, value) in properties {
        push_short(&mut data, name.as_bytes());
        let length = u32::try_from(value.len()).expect("a property is a name or an identity");
        data.extend_from_slice(&length.to_be_bytes());
        data.extend_from_slice(value);
    }
    data
}

/// Appends an ERROR: the handshake is over, for this reason. A longer reason is cut to 255 bytes.
pub fn encode_error(out: &mut Vec<u8>, reason: &str) {
    let mut data = Vec::new();
    push_short(&mut data, reason.as_bytes());
    encode(out, "ERROR", &[&data]);
}

/// Appends a PONG, the answer to a PING with this context.
pub fn encode_pong(out: &mut Vec<u8>, context: &[u8]) {
    encode(out, "PONG", &[context]);
}

/// Appends a SUBSCRIBE for messages that begin with this prefix. For peers of version 3.0, a message of one byte `01`
/// and the prefix has the same meaning.
pub fn encode_subscribe(out: &mut Vec<u8>, prefix: &[u8]) {
    encode(out, "SUBSCRIBE", &[prefix]);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;
    use crate::zmtp::Part;

    fn decoded(bytes: &[u8]) -> ZmtpCommand<'_> {
        match Part::decode(bytes, 1 << 20).unwrap().unwrap() {
            (Part::Command(command), length) if length == bytes.len() => command,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ready_has_its_properties() {
        let mut out = Vec::new();
        encode_ready(&mut out, &[("Socket-Type", b"DEALER"), ("Identity", b"")]);
        assert_eq!(out, b"\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0");
        let ZmtpCommand::Ready(properties) = decoded(&out) else { panic!("{out:?}") };
        assert_eq!(properties.get("socket-type"), Some(&b"DEALER"[..]));
        assert_eq!(properties.get("Identity"), Some(&b""[..]));
        assert_eq!(properties.get("Resource"), None);
    }

    #[test]
    fn what_is_written_is_read() {
        let written = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            write(&mut out);
            out
        };
        let error = written(&|out| encode_error(out, "no"));
        assert_eq!(decoded(&error), ZmtpCommand::Error { reason: b"no" });
        assert_eq!(decoded(&written(&|out| encode_pong(out, b"context"))), ZmtpCommand::Pong);
        let subscribe = written(&|out| encode_subscribe(out, b"birds"));
        assert_eq!(decoded(&subscribe), ZmtpCommand::Subscribe(b"birds"));
        let long = written(&|out| encode_error(out, &"x".repeat(300)));
        assert_eq!(decoded(&long), ZmtpCommand::Error { reason: &[b'x'; 255] });
    }

    #[test]
    fn commands_that_do_not_add_up_are_refused() {
        for body in
            [&b""[..], b"\0", b"\x05READ", b"\x05READY\x01", b"\x05READY\x01a\0\0\0\x02x", b"\x05READY\0\0\0\0\0"]
        {
            assert!(matches!(ZmtpCommand::decode(body), Err(ProtocolError::Command { .. })), "{body:?}");
        }
        for body in [&b"\x05ERROR"[..], b"\x05ERROR\x02a", b"\x04PING\0", b"\x04PING\0\0aaaaaaaaaaaaaaaaa"] {
            assert!(matches!(ZmtpCommand::decode(body), Err(ProtocolError::Command { .. })), "{body:?}");
        }
        assert_eq!(ZmtpCommand::decode(b"\x03NEW..."), Ok(ZmtpCommand::Other));
        assert_eq!(ZmtpCommand::decode(b"\x04PING\0\x0aabc"), Ok(ZmtpCommand::Ping { context: b"abc" }));
        assert_eq!(ZmtpCommand::decode(b"\x06CANCELx"), Ok(ZmtpCommand::Cancel(b"x")));
    }
}
