//! Replies to requests that no route has answered: a status, and a reason as JSON. This module does no I/O.
//!
//! ```text
//! 400, 401, 403, 408, 413, 414, 431, 503  {"error":"the head of the request did not come in time"}
//! ```

use super::limits::{BODY_BYTES_MAX, HEAD_BYTES_MAX};
use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::security::limits::WRONG_PASSWORD_PAUSE_MAX;

/// The way in which a client names its user.
const CHALLENGE: &str = "Basic realm=\"spindle\", charset=\"UTF-8\"";

/// Why a request is not handed to the routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HttpRefusal {
    /// The body did not come in time.
    Late,
    /// The body is too long.
    TooLong,
    /// The body is malformed, or ends before its end.
    BadBody,
    /// The head did not come in time.
    HeadLate,
    /// hyper refuses the head, with this status.
    Unparsed(u16),
    /// There is not one valid `Host`.
    NoHost,
    /// The server does not go by this name.
    ForeignHost {
        /// The name.
        host: String,
        /// The flag that would give the server the name.
        flag: &'static str,
    },
    /// A page of another site has sent the request.
    CrossSite,
    /// The request names no user, or has a wrong password.
    NoUser,
    /// The user may not do this.
    Forbidden,
    /// The password was not checked: it may be right.
    Busy,
    /// All connections are at work, but those that are kept for health.
    Full,
}

impl HttpRefusal {
    /// The status code.
    pub(super) fn status(&self) -> u16 {
        match self {
            Self::BadBody | Self::NoHost => 400,
            Self::NoUser => 401,
            Self::ForeignHost { .. } | Self::CrossSite | Self::Forbidden => 403,
            Self::Late | Self::HeadLate => 408,
            Self::TooLong => 413,
            Self::Busy | Self::Full => 503,
            Self::Unparsed(status) => *status,
        }
    }

    /// The body.
    fn body(&self) -> String {
        let body = match self {
            Self::Late => error("the body did not come in time: send it with the request, or none"),
            Self::TooLong => error(&format!("the body is longer than {BODY_BYTES_MAX} bytes: none is needed")),
            Self::BadBody => error("the body is malformed, or ends before its end: none is needed"),
            Self::HeadLate => error("the head of the request did not come in time"),
            Self::Unparsed(414) => error("the path of the request is too long"),
            Self::Unparsed(431) => error(&format!("the head of the request is longer than {HEAD_BYTES_MAX} bytes")),
            Self::Unparsed(_) => error("the request is malformed: the server speaks HTTP/1.1"),
            Self::NoHost => error("a request of HTTP/1.1 has one header Host, with the name of the server"),
            Self::ForeignHost { host, flag } => {
                error(&format!("the server does not go by the name {host}: use its address, or start it with {flag}"))
            }
            Self::NoUser => error("name a user and its password, by Authorization: Basic"),
            Self::Forbidden => error("this user may not do this"),
            Self::Busy => error("too many passwords wait to be checked: try again"),
            Self::Full => error("all connections are at work: try again"),
            Self::CrossSite => error("a page of another site has sent this request: it changes nothing"),
        };
        body.to_string()
    }
}

/// The body of a reply that says why there is no better one.
pub(crate) fn error(what: &str) -> Value {
    json!({ "error": what })
}

/// A reply with a JSON body.
pub(crate) fn json_response(status: u16, body: String) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

impl IntoResponse for HttpRefusal {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status(), self.body());
        let header = match self {
            Self::NoUser => Some((WWW_AUTHENTICATE, HeaderValue::from_static(CHALLENGE))),
            Self::Busy => Some((RETRY_AFTER, WRONG_PASSWORD_PAUSE_MAX.as_secs().into())),
            _ => None,
        };
        response.headers_mut().extend(header);
        response
    }
}

/// The bytes of a refusal that ends its connection: the reply to a request that no route has seen. `date` is the time
/// of the header `Date`.
pub(super) fn encode(refusal: &HttpRefusal, date: &str) -> Vec<u8> {
    let (status, body) = (refusal.status(), refusal.body());
    let reason = match status {
        408 => "Request Timeout",
        414 => "URI Too Long",
        431 => "Request Header Fields Too Large",
        _ => "Bad Request",
    };
    let length = body.len();
    format!(
        "HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\ndate: {date}\r\n\r\n{body}"
    )
    .into_bytes()
}
