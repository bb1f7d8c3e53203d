//! Around the routes of every HTTP service: a request is judged by its head, and a body that no route needs is read.
//! This module does not accept connections and does not send.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use tokio::time::timeout;

use super::admission::HostRule;
use super::refusal::Refusal;
use super::users::{HttpUsers, authorize};
use crate::limits::{HTTP_BODY_BYTES_MAX, HTTP_BODY_TIME};

/// The routes, behind what judges a request before they see it.
pub(crate) fn guarded(routes: Router, guard: Guard) -> Router {
    let Guard { hosts, users } = guard;
    let routes = match users {
        None => routes,
        Some(users) => routes.layer(from_fn_with_state(users, authorize)),
    };
    routes.layer(from_fn(take_body)).layer(from_fn_with_state(Arc::new(hosts), admit))
}

/// What judges the requests of a service.
pub(crate) struct Guard {
    /// The names that requests may use for the server.
    pub(crate) hosts: HostRule,
    /// The users. None: any client is served.
    pub(crate) users: Option<HttpUsers>,
}

/// Refuses a request that is not for this server, or comes from a page of another site.
async fn admit(State(hosts): State<Arc<HostRule>>, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    match hosts.check(&head) {
        Ok(()) => next.run(Request::from_parts(head, body)).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// Reads a short body and drops it. No request needs a body, but the connection can be used again only after its body
/// is read.
async fn take_body(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    if !body.is_end_stream() {
        if body.size_hint().lower() > HTTP_BODY_BYTES_MAX as u64 {
            return Refusal::TooLong.into_response();
        }
        match timeout(HTTP_BODY_TIME, discard(body)).await {
            Ok(Ok(())) => {}
            Ok(Err(refusal)) => return refusal.into_response(),
            Err(_) => return Refusal::Late.into_response(),
        }
    }
    next.run(Request::from_parts(parts, Body::empty())).await
}

/// Reads a body to its end.
async fn discard(mut body: Body) -> Result<(), Refusal> {
    let mut bytes = 0;
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame = frame.map_err(|_| Refusal::BadBody)?;
        bytes += frame.data_ref().map_or(0, |data| data.len());
        if bytes > HTTP_BODY_BYTES_MAX {
            return Err(Refusal::TooLong);
        }
    }
    Ok(())
}
