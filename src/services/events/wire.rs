//! The HTTP of the protocol: ids in paths, and replies as a status and JSON. This module does no I/O and knows no
//! store. `net/http` has the replies to requests that no route has seen.
//!
//! ```text
//! POST /events        201  Location: /events/7   {"id":7,"value":"heron"}
//! POST /events/async  202  Location: /events/8   {"id":8}
//! GET  /events        200  {"count":8}
//! GET  /events/8      200  {"id":8,"value":null}
//! GET  /health        200  {"status":"ok"}
//! otherwise           400, 404, 405, 503              {"error":"event not found"}
//! ```

use serde_json::json;

use crate::limits::EVENT_VALUE_CHARS_MAX;
use crate::net::http::error;

/// Bytes of the longest character in UTF-8.
const CHAR_BYTES_MAX: usize = 4;

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// From 1, without gaps.
    pub id: u64,
    /// None while the event is pending.
    pub value: Option<String>,
}

/// A reply of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The event is stored, with its value.
    Created(Event),
    /// An event of this id is stored, and a worker will give it a value.
    Pending(u64),
    /// The number of events.
    Counted(u64),
    /// The event.
    Found(Event),
    /// The store answers.
    Healthy,
    /// There is no event of this id.
    NotFound,
    /// The id in the path is malformed.
    InvalidId,
    /// There is no such path.
    NoSuchPath,
    /// The path exists, but does not have this method.
    NotAllowed,
    /// The store does not answer, or the outcome is unknown. The text is the reason.
    Unavailable(String),
}

impl Reply {
    /// The status code.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::Counted(_) | Self::Found(_) | Self::Healthy => 200,
            Self::Created(_) => 201,
            Self::Pending(_) => 202,
            Self::InvalidId => 400,
            Self::NotFound | Self::NoSuchPath => 404,
            Self::NotAllowed => 405,
            Self::Unavailable(_) => 503,
        }
    }

    /// The path of the event, if it is new.
    #[must_use]
    pub fn location(&self) -> Option<String> {
        match self {
            Self::Created(Event { id, .. }) | Self::Pending(id) => Some(format!("/events/{id}")),
            _ => None,
        }
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> String {
        let body = match self {
            Self::Created(Event { id, value }) | Self::Found(Event { id, value }) => {
                json!({ "id": id, "value": value })
            }
            Self::Pending(id) => json!({ "id": id }),
            Self::Counted(count) => json!({ "count": count }),
            Self::Healthy => json!({ "status": "ok" }),
            Self::NotFound => error("event not found"),
            Self::InvalidId => error("invalid id"),
            Self::NoSuchPath => error("no such path: there are /events, /events/async, /events/{id} and /health"),
            Self::NotAllowed => error("this path does not have this method: see the header Allow"),
            Self::Unavailable(why) => error(why),
        };
        body.to_string()
    }
}

/// Parses an id of any number of digits. A number that is too large for `u64` becomes `u64::MAX`.
#[must_use]
pub fn id_of(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

/// Whether these bytes may be the value of an event: UTF-8 text of at most 255 characters.
#[must_use]
pub fn is_value(bytes: &[u8]) -> bool {
    bytes.len() <= EVENT_VALUE_CHARS_MAX * CHAR_BYTES_MAX
        && std::str::from_utf8(bytes).is_ok_and(|text| text.chars().count() <= EVENT_VALUE_CHARS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_as_specified() {
        let event = |value: Option<&str>| Event { id: 7, value: value.map(str::to_owned) };
        for (reply, status, body) in [
            (Reply::Created(event(Some("heron"))), 201, r#"{"id":7,"value":"heron"}"#),
            (Reply::Pending(8), 202, r#"{"id":8}"#),
            (Reply::Counted(8), 200, r#"{"count":8}"#),
            (Reply::Found(event(None)), 200, r#"{"id":7,"value":null}"#),
            (Reply::Healthy, 200, r#"{"status":"ok"}"#),
            (Reply::NotFound, 404, r#"{"error":"event not found"}"#),
            (Reply::InvalidId, 400, r#"{"error":"invalid id"}"#),
            (Reply::Unavailable("\"gone\"".to_owned()), 503, r#"{"error":"\"gone\""}"#),
        ] {
            assert_eq!((reply.status(), &*reply.body()), (status, body));
            assert_eq!(reply.location().is_some(), matches!(status, 201 | 202));
        }
        assert_eq!(Reply::Pending(8).location().as_deref(), Some("/events/8"));
    }

    #[test]
    fn ids_are_digits_alone() {
        assert_eq!((id_of("7"), id_of("007"), id_of("0")), (Some(7), Some(7), Some(0)));
        assert_eq!(id_of("99999999999999999999999"), Some(u64::MAX));
        for other in ["", "-1", "+1", "1.0", "1 ", "x", "٣", "1/2"] {
            assert_eq!(id_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_value_is_text_of_at_most_255_characters() {
        assert!(is_value(b"") && is_value("🦩".repeat(255).as_bytes()));
        assert!(!is_value("🦩".repeat(256).as_bytes()) && !is_value(&[b'x'; 256]) && !is_value(b"\xFF"));
    }
}
