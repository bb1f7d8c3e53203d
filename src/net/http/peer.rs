//! Gives the layers and routes the peer: its address goes with each of its requests. Begins the activity of each request.
//! This module judges neither.

use std::net::SocketAddr;

use axum::http::Request;
use hyper::service::Service;

use super::activity::Activity;

/// The address of the peer that has sent a request, among its extensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// A service whose requests come from one peer.
pub(super) struct FromPeer<S> {
    pub(super) service: S,
    /// None if the system does not know it any more.
    pub(super) peer: Option<SocketAddr>,
    pub(super) activity: Activity,
}

impl<S: Service<Request<B>>, B> Service<Request<B>> for FromPeer<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn call(&self, mut request: Request<B>) -> Self::Future {
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(Peer(peer));
        }
        request.extensions_mut().insert(self.activity.begin());
        self.service.call(request)
    }
}
