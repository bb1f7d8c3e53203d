//! Whether a connection is idle: no request is under way, and its client has read the last reply.
//!
//! ```text
//! a head is whole ─► begin ─► Working, with the reply's body to its end ─► the system has taken the last byte ─► idle
//! ```
//! A head that is not whole is no request, however many bytes of it have come, but its connection keeps its place for a
//! moment: a head may come in pieces. All of this happens while the task of the connection polls hyper, so what the task
//! sees behind that is exact.
//!
//! This module does not choose the connections that make place; see `tcp/idle`.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::Response;
use hyper::body::{Frame, SizeHint};
use tokio::task::yield_now;

/// What one connection is doing. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Activity(Arc<ActivityState>);

/// Written and read by the task of the connection alone. Relaxed everywhere: the runtime orders the steps of a task.
#[derive(Debug, Default)]
struct ActivityState {
    /// Requests under way.
    requests: AtomicUsize,
    /// Requests that there were, ever.
    asked: AtomicUsize,
    /// Whether the task has taken up a request in its turn of the runtime.
    has_taken: AtomicBool,
    /// Whether bytes have come that are no whole head yet.
    is_begun: AtomicBool,
    /// Whether the system takes no more bytes of a reply.
    is_stuck: AtomicBool,
    /// Whether the connection is one of those that are kept for health.
    is_reserved: bool,
}

impl Activity {
    /// A connection that has just come.
    pub(super) fn new(is_reserved: bool) -> Self {
        Self(Arc::new(ActivityState { is_reserved, ..ActivityState::default() }))
    }

    /// A request is under way until the result is dropped.
    pub(super) fn begin(&self) -> Working {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        self.0.asked.fetch_add(1, Ordering::Relaxed);
        self.0.is_begun.store(false, Ordering::Relaxed);
        Working(Arc::new(RequestUnderWay(self.clone())))
    }

    /// Notes that bytes have come.
    pub(super) fn received(&self) {
        self.0.is_begun.store(true, Ordering::Relaxed);
    }

    /// Whether a part of a head has come.
    pub(super) fn is_begun(&self) -> bool {
        self.0.is_begun.load(Ordering::Relaxed)
    }

    /// Notes whether the system takes no more bytes of a reply.
    pub(super) fn set_stuck(&self, is_stuck: bool) {
        self.0.is_stuck.store(is_stuck, Ordering::Relaxed);
    }

    /// Whether the connection may make place for another one.
    pub(super) fn is_idle(&self) -> bool {
        self.0.requests.load(Ordering::Relaxed) == 0 && !self.0.is_stuck.load(Ordering::Relaxed)
    }

    /// The task of the connection has a turn of the runtime.
    pub(super) fn begin_turn(&self) {
        self.0.has_taken.store(false, Ordering::Relaxed);
    }

    /// How many requests have come, ever.
    pub(super) fn asked(&self) -> usize {
        self.0.asked.load(Ordering::Relaxed)
    }
}

/// A request under way. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Working(Arc<RequestUnderWay>);

#[derive(Debug)]
struct RequestUnderWay(Activity);

impl Working {
    /// Whether its connection is one of those that are kept for health.
    pub(super) fn is_reserved(&self) -> bool {
        self.0.0.0.is_reserved
    }
}

/// Ready when the task has taken up no other request in its turn of the runtime. So a client that does not wait for
/// replies has one request taken up, then all other clients have their turn.
pub(super) async fn own_turn(Working(request): &Working) {
    while request.0.0.has_taken.swap(true, Ordering::Relaxed) {
        yield_now().await;
    }
}

impl Drop for RequestUnderWay {
    fn drop(&mut self) {
        self.0.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of a reply, with its request, which is under way until the body is sent.
struct WorkingBody {
    body: Body,
    _working: Working,
}

/// The same reply. Its request is under way until the body is sent.
pub(super) fn with_its_request(response: Response<Body>, working: Working) -> Response<Body> {
    response.map(|body| Body::new(WorkingBody { body, _working: working }))
}

impl HttpBody for WorkingBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_works_until_the_body_of_each_reply_is_sent_and_read() {
        let activity = Activity::new(false);
        assert!(activity.is_idle() && activity.asked() == 0);
        let reply = with_its_request(Response::new(Body::from("reply")), activity.begin());
        assert_eq!(reply.body().size_hint().exact(), Some(5), "its length is known as before");
        let second = activity.begin();
        drop(reply);
        assert!(!activity.is_idle() && activity.asked() == 2);
        activity.set_stuck(true);
        drop(second);
        assert!(!activity.is_idle());
        activity.set_stuck(false);
        assert!(activity.is_idle());
    }
}
