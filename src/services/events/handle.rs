//! Turns requests into calls of the store, and its answers into replies. This module does not accept connections and
//! does not send.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Method;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};

use super::error::EventStoreError;
use super::jitter::Jitter;
use super::store::EventStore;
use super::timing::{EventTimer, Verb};
use super::wire::{Event, Reply, id_of};
use super::words::word;
use crate::net::http::{Guard, Needed, Peer, guarded, json_response};
use crate::security::{Access, Resource};

/// The state that requests are answered from.
#[derive(Clone)]
pub(super) struct EventsContext {
    pub(super) store: EventStore,
    pub(super) jitter: Arc<Jitter>,
    pub(super) timer: Arc<EventTimer>,
}

/// The peer that has sent a request.
type From = Option<Extension<Peer>>;

/// All paths and their methods. HEAD is answered as GET, without the body.
pub(super) fn routes(context: EventsContext, guard: Guard) -> Router {
    let (no_path, no_method) = (Arc::clone(&context.timer), Arc::clone(&context.timer));
    let routes = Router::new()
        .route("/events", post(create).get(count))
        .route("/events/async", post(defer))
        .route("/events/{id}", get(find))
        .route("/health", get(health))
        .fallback(move || {
            no_path.count_other();
            async { Reply::NoSuchPath }
        })
        .method_not_allowed_fallback(move || {
            no_method.count_other();
            async { Reply::NotAllowed }
        })
        .with_state(context);
    guarded(routes, guard)
}

/// What a request needs where users are named. A prober of a load balancer has no password, so health is for all.
pub(super) fn needed(method: &Method, path: &str) -> Needed {
    let access = if matches!(*method, Method::GET | Method::HEAD) { Access::Read } else { Access::Write };
    if is_health(path) { Needed::Nothing } else { Needed::Access(access, Resource::Events) }
}

/// Whether a path is about the health of the store. It is answered at any time.
pub(super) fn is_health(path: &str) -> bool {
    path == "/health"
}

async fn create(State(context): State<EventsContext>, peer: From) -> Reply {
    let value = word(context.jitter.draw());
    let stored = async {
        match context.store.add(Some(value)).await {
            Ok(id) => Reply::Created(Event { id, value: Some(value.to_owned()) }),
            Err(error) => unavailable(error),
        }
    };
    context.timer.timed(Verb::Create, &peer, stored).await
}

async fn defer(State(context): State<EventsContext>, peer: From) -> Reply {
    let stored = async { context.store.add(None).await.map_or_else(unavailable, Reply::Pending) };
    context.timer.timed(Verb::Defer, &peer, stored).await
}

async fn count(State(context): State<EventsContext>, peer: From) -> Reply {
    let counted = async { context.store.count().await.map_or_else(unavailable, Reply::Counted) };
    context.timer.timed(Verb::Count, &peer, counted).await
}

async fn find(State(context): State<EventsContext>, peer: From, id: Result<Path<String>, PathRejection>) -> Reply {
    let found = async {
        let Some(id) = id.ok().and_then(|Path(id)| id_of(&id)) else { return Reply::InvalidId };
        match context.store.find(id).await {
            Ok(Some(value)) => Reply::Found(Event { id, value }),
            Ok(None) => Reply::NotFound,
            Err(error) => unavailable(error),
        }
    };
    context.timer.timed(Verb::Find, &peer, found).await
}

async fn health(State(context): State<EventsContext>, peer: From) -> Reply {
    let checked = async { context.store.check().await.map_or_else(unavailable, |()| Reply::Healthy) };
    context.timer.timed(Verb::Health, &peer, checked).await
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
