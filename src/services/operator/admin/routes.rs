//! The paths of the service, and their replies. This module does not accept connections and does not send.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::response::Response;
use axum::routing::get;
use serde_json::json;

use super::live::Live;
use super::metrics::{Exposition, exposition};
use super::page::with_page;
use super::probe::Probes;
use super::queues::{AdminQueues, is_of_queues, with_queues};
use super::replies::{refused, uncached};
use super::sources::AdminSources;
use crate::net::http::{Guard, Needed, guarded, json_response, one_at_a_time};
use crate::security::{Access, Resource, Users};

/// The state that requests are answered from.
#[derive(Clone)]
pub(super) struct AdminContext {
    pub(super) sources: Arc<AdminSources>,
    /// The users, if there are any: the server is not ready while it cannot read their file.
    pub(super) users: Option<Users>,
    pub(super) probes: Probes,
    pub(super) live: Arc<Live>,
}

/// All paths. HEAD is answered as GET, without the body.
pub(super) fn routes(context: AdminContext, queues: Option<AdminQueues>, guard: Guard) -> Router {
    let documents = one_at_a_time(
        Router::new().route("/stats", get(stats)).route("/metrics", get(metrics)).route("/slow", get(slow)),
    );
    let routes = Router::new().route("/health", get(health)).route("/ready", get(ready)).route("/events", get(events));
    let routes = with_page(with_queues(routes.merge(documents), queues))
        .fallback(|| async {
            refused(404, "no such path: there are /, /health, /ready, /stats, /slow, /events, /metrics and /queues")
        })
        .method_not_allowed_fallback(|| async {
            refused(405, "this path does not have this method: see the header Allow")
        })
        .with_state(context);
    guarded(routes, guard)
}

/// What a request needs where users are named. A prober of a load balancer has no password, so health is for all.
pub(super) fn needed(_: &Method, path: &str) -> Needed {
    match path {
        path if is_health(path) => Needed::Nothing,
        path if is_of_queues(path) => Needed::User,
        _ => Needed::Access(Access::Admin, Resource::Server),
    }
}

/// Whether a path is about the server's health. It is answered at any time.
pub(super) fn is_health(path: &str) -> bool {
    matches!(path, "/health" | "/ready")
}

/// The process lives, and this thread too. It asks no store: a server with a stuck disk is not to be restarted for it.
async fn health() -> Response {
    uncached(json_response(200, json!({ "status": "ok" }).to_string()))
}

async fn ready(State(context): State<AdminContext>) -> Response {
    if context.users.as_ref().is_some_and(|users| users.fault().is_some()) {
        return refused(
            503,
            "the users are those of before: their file cannot be read or is broken, and the log says why",
        );
    }
    match context.probes.ask().await {
        Ok(()) => uncached(json_response(200, json!({ "status": "ready" }).to_string())),
        Err(why) => refused(503, &why),
    }
}

async fn stats(State(context): State<AdminContext>) -> Response {
    uncached(json_response(200, context.sources.json()))
}

async fn slow(State(context): State<AdminContext>) -> Response {
    uncached(json_response(200, context.sources.slow_json()))
}

async fn metrics(State(context): State<AdminContext>, headers: HeaderMap) -> Response {
    let Exposition { text, content_type } = exposition(context.sources.document(), &accepted(&headers));
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    uncached(response)
}

/// What the page shows, live.
async fn events(State(context): State<AdminContext>, request: Request) -> Response {
    let Some(body) = context.live.listen(request.extensions().get().cloned()) else {
        return refused(503, "enough pages are shown live: close one, or ask again later");
    };
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    uncached(response)
}

/// What the client accepts: all its lines as one list.
fn accepted(headers: &HeaderMap) -> String {
    let lines: Vec<&str> = headers.get_all(ACCEPT).iter().filter_map(|accept| accept.to_str().ok()).collect();
    lines.join(",")
}
