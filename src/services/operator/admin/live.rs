//! The metrics as they change: server-sent events, a second apart, to some listeners.
//!
//! ```text
//! GET /events ─► a listener: the metrics now and the last ten minutes
//!            ─► each second the metrics and their point, made once for all ─► its connection
//! ```
//! The history gets a point each second, whether somebody listens or not.
//!
//! The reply of a user that is removed or changed ends within that second.
//!
//! A listener that does not read misses metrics, and gets later ones when it reads again. So a listener holds two
//! messages at most. Without a listener, no other metrics are read.
//!
//! The format is that of the HTML standard, "Server-sent events": each message is a line `data: ` with JSON, and an
//! empty line. This module does not choose the metrics (`sources`).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::Frame;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::sleep;

use super::limits::LISTENERS_MAX;
use super::sources::{AdminSources, Points};
use crate::lock::Mutex;
use crate::security::Identity;
use crate::services::tables::report::VerbTimes;

/// The time from one message to the next.
const PERIOD: Duration = Duration::from_secs(1);

/// The listeners.
pub(super) struct Live {
    sources: Arc<AdminSources>,
    /// None when the service ends.
    listeners: Mutex<Option<Vec<Listener>>>,
}

struct Listener {
    sender: Sender<Bytes>,
    /// None where users are not named.
    user: Option<Identity>,
}

impl Listener {
    /// Whether it gets further messages.
    fn stays(&self) -> bool {
        !self.sender.is_closed() && self.user.as_ref().is_none_or(Identity::is_current)
    }
}

impl Live {
    /// Nobody listens.
    pub(super) fn new(sources: Arc<AdminSources>) -> Arc<Self> {
        Arc::new(Self { sources, listeners: Mutex::new(Some(Vec::new())) })
    }

    /// The body for a further listener, with this user. None: there are enough of them, or the service ends.
    pub(super) fn listen(&self, user: Option<Identity>) -> Option<Body> {
        let mut listeners = self.listeners.lock();
        let listeners = listeners.as_mut()?;
        listeners.retain(Listener::stays);
        if listeners.len() >= LISTENERS_MAX {
            return None;
        }
        let (sender, receiver) = channel(1);
        // It has room for one message.
        let _sent = sender.try_send(self.message(Points::All, self.sources.verb_times()));
        listeners.push(Listener { sender, user });
        Some(Body::new(EventBody(receiver)))
    }

    /// Adds a point and sends the metrics each second, until the end.
    pub(super) async fn run(self: Arc<Self>) {
        self.sources.record();
        loop {
            sleep(PERIOD).await;
            match self.listeners.lock().as_mut() {
                None => return,
                Some(listeners) => listeners.retain(Listener::stays),
            }
            let verbs = self.sources.record();
            self.send(verbs);
        }
    }

    /// Sends the metrics to all listeners, with these times of the verbs.
    fn send(&self, verbs: Vec<VerbTimes>) {
        let listeners = self.listeners.lock();
        let mut listeners = listeners.iter().flatten().peekable();
        if listeners.peek().is_none() {
            return;
        }
        let message = self.message(Points::Latest, verbs);
        for listener in listeners {
            // One that has not read its last message misses this one.
            let _missed = listener.sender.try_send(message.clone());
        }
    }

    /// Ends all bodies.
    pub(super) fn close(&self) {
        drop(self.listeners.lock().take());
    }

    /// The metrics now, as a message. JSON has no line feeds of its own.
    fn message(&self, points: Points, verbs: Vec<VerbTimes>) -> Bytes {
        Bytes::from(format!("data: {}\n\n", self.sources.page_json(points, verbs)))
    }
}

/// The body of a listener's reply. It ends with the service.
struct EventBody(Receiver<Bytes>);

impl HttpBody for EventBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|message| message.map(|message| Ok(Frame::data(message))))
    }
}
