//! The bounds of an HTTP service, whichever it is.

use std::time::Duration;

/// Connections of an HTTP service that are kept for requests about its health, beyond those for all requests.
pub(crate) const HEALTH_CONNECTIONS_MAX: usize = 32;
/// Longest head of an HTTP request, in bytes: room for the cookies of a browser, and the least that hyper takes.
pub(super) const HEAD_BYTES_MAX: usize = 8 << 10;
/// Longest body of an HTTP request, in bytes. None is needed. A client that sends one by habit is served.
pub(super) const BODY_BYTES_MAX: usize = 64 << 10;
/// How long an HTTP connection may take to send the head of its first request. Then it is closed.
pub(super) const FIRST_HEAD_TIME: Duration = Duration::from_secs(5);
/// How long an HTTP connection may take to send the head of its next request. Then it is closed.
pub(super) const HEAD_TIME: Duration = Duration::from_secs(60);
/// How long a client may take to send the body of an HTTP request.
pub(super) const BODY_TIME: Duration = Duration::from_secs(10);
/// How long a client may leave the reply to its HTTP request unread.
pub(super) const REPLY_TIME: Duration = Duration::from_secs(30);
/// How long an HTTP client may still send after its last reply. Then the connection is closed.
pub(super) const DRAIN_TIME: Duration = Duration::from_secs(5);
/// Bytes that an HTTP client may still send after its last reply. A reset answers later ones.
pub(super) const DRAINED_BYTES_MAX: usize = 64 << 20;
