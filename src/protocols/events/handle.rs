//! Requests as questions to the store, and its answers as replies. Nothing here accepts, waits for a clock or sends.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, HttpBody, to_bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::time::timeout;

use super::chance::Chance;
use super::store::{Store, Trouble};
use super::wire::{Event, Reply, id_of};
use super::words::word;
use crate::limits::{EVENT_BODY_BYTES_MAX, EVENT_BODY_TIME};

/// What a request is answered from.
#[derive(Clone)]
pub(super) struct House {
    pub(super) store: Store,
    pub(super) chance: Arc<Chance>,
}

/// All paths and their methods. HEAD is answered as GET is, without the body.
pub(super) fn routes(house: House) -> Router {
    Router::new()
        .route("/events", post(create).get(count))
        .route("/events/async", post(defer))
        .route("/events/{id}", get(find))
        .route("/health", get(health))
        .fallback(|| async { Reply::NoSuchPath })
        .method_not_allowed_fallback(|| async { Reply::NotAllowed })
        .layer(from_fn(take_body))
        .with_state(house)
}

async fn create(State(house): State<House>) -> Reply {
    let value = word(house.chance.draw());
    match house.store.add(Some(value)).await {
        Ok(id) => Reply::Created(Event { id, value: Some(value.to_owned()) }),
        Err(trouble) => unavailable(trouble),
    }
}

async fn defer(State(house): State<House>) -> Reply {
    house.store.add(None).await.map_or_else(unavailable, Reply::Pending)
}

async fn count(State(house): State<House>) -> Reply {
    house.store.count().await.map_or_else(unavailable, Reply::Counted)
}

async fn find(State(house): State<House>, id: Result<Path<String>, PathRejection>) -> Reply {
    let Some(id) = id.ok().and_then(|Path(id)| id_of(&id)) else { return Reply::InvalidId };
    match house.store.find(id).await {
        Ok(Some(value)) => Reply::Found(Event { id, value }),
        Ok(None) => Reply::NotFound,
        Err(trouble) => unavailable(trouble),
    }
}

async fn health(State(house): State<House>) -> Reply {
    house.store.check().await.map_or_else(unavailable, |()| Reply::Healthy)
}

fn unavailable(Trouble(why): Trouble) -> Reply {
    Reply::Unavailable(why)
}

/// Nobody needs a body, and a connection can be used again only when it is read: a short one is, and thrown away.
async fn take_body(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    if !body.is_end_stream() {
        if body.size_hint().lower() > EVENT_BODY_BYTES_MAX as u64 {
            return Reply::TooLong.into_response();
        }
        match timeout(EVENT_BODY_TIME, to_bytes(body, EVENT_BODY_BYTES_MAX)).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) => return Reply::TooLong.into_response(),
            Err(_) => return Reply::Late.into_response(),
        }
    }
    next.run(Request::from_parts(parts, Body::empty())).await
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
