//! Pieces of the replies of all routes. This module knows no path.

use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS};
use axum::response::Response;

use crate::net::http::{error, json_response};

/// A reply that says why there is no better one.
pub(super) fn refused(status: u16, why: &str) -> Response {
    uncached(json_response(status, error(why).to_string()))
}

/// Adds the headers that forbid caches to keep the reply and browsers to guess its type.
pub(super) fn uncached(mut response: Response) -> Response {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
