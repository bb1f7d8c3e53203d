//! All connections of an HTTP service: each is accepted here, and runs in a task of its own until it ends or the
//! service does. This module does not know the routes.

use std::mem::take;

use axum::Router;
use tokio::sync::watch;

use super::activity::Activity;
use super::connection::{ClientTimes, converse, ended};
use super::limits::{FIRST_HEAD_TIME, HEAD_TIME, REPLY_TIME};
use crate::net::tcp::{Accepted, ConnectionLimit};

/// The connections, with their shared state.
pub(crate) struct HttpService {
    router: Router,
    /// Dropped when the connections are to end with the requests that have come.
    running: Option<watch::Sender<()>>,
}

impl HttpService {
    /// A service without a connection.
    pub(crate) fn new(router: Router) -> Self {
        Self { router, running: Some(watch::Sender::new(())) }
    }

    /// Serves a client that was accepted. `permit` is dropped when its connection ends.
    pub(crate) fn accept(&self, accepted: Accepted, permit: impl Send + 'static) {
        // Nothing is accepted after the sender is dropped.
        let Some(running) = &self.running else { return };
        let times = ClientTimes { first_head: FIRST_HEAD_TIME, head: HEAD_TIME, reply: REPLY_TIME };
        let activity = Activity::new(accepted.is_reserved);
        let (router, mut running) = (self.router.clone(), running.subscribe());
        // The task is not a local one, since a connection needs nothing that is.
        tokio::spawn(async move {
            if let Some((stream, idle)) = accepted.open(ended(&mut running)).await {
                converse(stream, idle, router, activity, times, running).await;
            }
            drop(permit);
        });
    }

    /// Lets the connections end with the requests that have come. From here on only these hold the state of the routes.
    pub(crate) async fn finish(&mut self, connections: &ConnectionLimit) {
        drop(take(&mut self.router));
        drop(self.running.take());
        connections.all_closed().await;
    }
}
