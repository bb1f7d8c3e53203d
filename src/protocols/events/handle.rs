//! Turns requests into calls of the store, and its answers into replies. This module does not accept connections and
//! does not send.

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use super::error::EventStoreError;
use super::jitter::Jitter;
use super::store::EventStore;
use super::wire::{Event, Reply, id_of};
use super::words::word;
use crate::protocols::http::{HostRule, guarded, json_response};

/// The state that requests are answered from.
#[derive(Clone)]
pub(super) struct EventsContext {
    pub(super) store: EventStore,
    pub(super) jitter: Arc<Jitter>,
}

/// All paths and their methods. HEAD is answered as GET, without the body.
pub(super) fn routes(context: EventsContext, hosts: HostRule) -> Router {
    let routes = Router::new()
        .route("/events", post(create).get(count))
        .route("/events/async", post(defer))
        .route("/events/{id}", get(find))
        .route("/health", get(health))
        .fallback(|| async { Reply::NoSuchPath })
        .method_not_allowed_fallback(|| async { Reply::NotAllowed })
        .with_state(context);
    guarded(routes, hosts)
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

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status(), self.body());
        if let Some(location) = self.location().and_then(|location| location.try_into().ok()) {
            response.headers_mut().insert(LOCATION, location);
        }
        response
    }
}
