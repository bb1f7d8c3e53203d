//! Around the routes of every HTTP service: a request is judged by its head, and a body that no route needs is read.
//! This module does not accept connections and does not send.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use tokio::sync::Semaphore;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::activity::{Working, own_turn, with_its_request};
use super::admission::HostRule;
use super::limits::{BODY_BYTES_MAX, BODY_TIME};
use super::refusal::HttpRefusal;
use super::users::{HttpUsers, authorize};

/// The routes, behind what judges a request before they see it.
pub(crate) fn guarded(routes: Router, guard: Guard) -> Router {
    let Guard { hosts, users, health } = guard;
    let routes = match users {
        None => routes,
        Some(users) => routes.layer(from_fn_with_state(users, authorize)),
    };
    let routes = routes.layer(from_fn(take_body)).layer(from_fn_with_state(Arc::new(hosts), admit));
    routes.layer(from_fn_with_state(health, begin))
}

/// The paths that are answered at any time.
type HealthPaths = fn(&str) -> bool;

/// The same routes, of which one is answered at a time. Their replies take milliseconds of the thread, and all other
/// requests that have come have their turns between two of them.
pub(crate) fn one_at_a_time<S: Clone + Send + Sync + 'static>(routes: Router<S>) -> Router<S> {
    let turns = Arc::new(Semaphore::new(1));
    routes.route_layer(from_fn(move |request: Request, next: Next| {
        let turns = Arc::clone(&turns);
        async move {
            // The semaphore is never closed.
            let _turn = turns.acquire().await;
            let response = next.run(request).await;
            yield_now().await;
            response
        }
    }))
}

/// What judges the requests of a service.
pub(crate) struct Guard {
    /// The names that requests may use for the server.
    pub(crate) hosts: HostRule,
    /// The users. None: any client is served.
    pub(crate) users: Option<HttpUsers>,
    /// The paths of the service that are about its health.
    pub(crate) health: HealthPaths,
}

/// The request is under way until its reply is sent. A connection of the reserve has one request, about health.
async fn begin(State(is_health): State<HealthPaths>, mut request: Request, next: Next) -> Response {
    let Some(working) = request.extensions_mut().remove::<Working>() else { return next.run(request).await };
    own_turn(&working).await;
    let is_refused = working.is_reserved() && !is_health(request.uri().path());
    let mut response = if is_refused { HttpRefusal::Full.into_response() } else { next.run(request).await };
    if working.is_reserved() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    with_its_request(response, working)
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
        if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
            return HttpRefusal::TooLong.into_response();
        }
        match timeout(BODY_TIME, discard(body)).await {
            Ok(Ok(())) => {}
            Ok(Err(refusal)) => return refusal.into_response(),
            Err(_) => return HttpRefusal::Late.into_response(),
        }
    }
    next.run(Request::from_parts(parts, Body::empty())).await
}

/// Reads a body to its end.
async fn discard(mut body: Body) -> Result<(), HttpRefusal> {
    let mut bytes = 0;
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame = frame.map_err(|_| HttpRefusal::BadBody)?;
        bytes += frame.data_ref().map_or(0, |data| data.len());
        if bytes > BODY_BYTES_MAX {
            return Err(HttpRefusal::TooLong);
        }
    }
    Ok(())
}
