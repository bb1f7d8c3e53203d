//! Turns requests into calls of the store, and its answers into replies. This module does not accept connections and
//! does not send.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::time::timeout;

use super::admission::HostRule;
use super::error::EventStoreError;
use super::jitter::Jitter;
use super::store::EventStore;
use super::wire::{Event, Reply, id_of};
use super::words::word;
use crate::limits::{EVENT_BODY_BYTES_MAX, EVENT_BODY_TIME};

/// The state that requests are answered from.
#[derive(Clone)]
pub(super) struct EventsContext {
    pub(super) store: EventStore,
    pub(super) jitter: Arc<Jitter>,
}

/// All paths and their methods. HEAD is answered as GET, without the body.
pub(super) fn routes(context: EventsContext, hosts: HostRule) -> Router {
    Router::new()
        .route("/events", post(create).get(count))
        .route("/events/async", post(defer))
        .route("/events/{id}", get(find))
        .route("/health", get(health))
        .fallback(|| async { Reply::NoSuchPath })
        .method_not_allowed_fallback(|| async { Reply::NotAllowed })
        .layer(from_fn(take_body))
        .layer(from_fn_with_state(Arc::new(hosts), admit))
        .with_state(context)
}

async fn create(State(context): State<EventsContext>) -> Reply {
    let value = word(context.jitter.draw());
    match context.store.add(Some(value)).await {
        Ok(id) => Reply::Created(Event { id, value: Some(value.to_owned()) }),
        Err(trouble) => unavailable(trouble),
    }
}

async fn defer(State(context): State<EventsContext>) -> Reply {
    context.store.add(None).await.map_or_else(unavailable, Reply::Pending)
}

async fn count(State(context): State<EventsContext>) -> Reply {
    context.store.count().await.map_or_else(unavailable, Reply::Counted)
}

async fn find(State(context): State<EventsContext>, id: Result<Path<String>, PathRejection>) -> Reply {
    let Some(id) = id.ok().and_then(|Path(id)| id_of(&id)) else { return Reply::InvalidId };
    match context.store.find(id).await {
        Ok(Some(value)) => Reply::Found(Event { id, value }),
        Ok(None) => Reply::NotFound,
        Err(trouble) => unavailable(trouble),
    }
}

async fn health(State(context): State<EventsContext>) -> Reply {
    context.store.check().await.map_or_else(unavailable, |()| Reply::Healthy)
}

fn unavailable(EventStoreError(why): EventStoreError) -> Reply {
    Reply::Unavailable(why)
}

/// Refuses a request that is not for this server, or comes from a page of another site.
async fn admit(State(hosts): State<Arc<HostRule>>, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    match hosts.check(&head) {
        Ok(()) => next.run(Request::from_parts(head, body)).await,
        Err(reply) => reply.into_response(),
    }
}

/// Reads a short body and drops it. No request needs a body, but the connection can be used again only after its body
/// is read.
async fn take_body(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    if !body.is_end_stream() {
        if body.size_hint().lower() > EVENT_BODY_BYTES_MAX as u64 {
            return Reply::TooLong.into_response();
        }
        match timeout(EVENT_BODY_TIME, discard(body)).await {
            Ok(Ok(())) => {}
            Ok(Err(reply)) => return reply.into_response(),
            Err(_) => return Reply::Late.into_response(),
        }
    }
    next.run(Request::from_parts(parts, Body::empty())).await
}

/// Reads a body to its end.
async fn discard(mut body: Body) -> Result<(), Reply> {
    let mut bytes = 0;
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame = frame.map_err(|_| Reply::BadBody)?;
        bytes += frame.data_ref().map_or(0, |data| data.len());
        if bytes > EVENT_BODY_BYTES_MAX {
            return Err(Reply::TooLong);
        }
    }
    Ok(())
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body()));
        *response.status_mut() = StatusCode::from_u16(self.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(location) = self.location().and_then(|location| location.try_into().ok()) {
            response.headers_mut().insert(LOCATION, location);
        }
        response
    }
}
