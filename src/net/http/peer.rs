//! Gives the layers and routes the peer: its address and its certificate go with each of its requests. Begins the
//! activity of each request. This module judges neither.

use std::net::SocketAddr;

use axum::http::Request;
use hyper::service::Service;

use super::activity::Activity;
use crate::net::tcp::ClientStream;
use crate::security::Fingerprint;

/// The peer that has sent a request, among its extensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// The certificate whose key it has, if it has shown one.
    pub(crate) certificate: Option<Fingerprint>,
}

impl Peer {
    /// None if the system does not know its address any more.
    pub(super) fn of(stream: &ClientStream) -> Option<Self> {
        Some(Self { address: stream.address()?, certificate: stream.certificate() })
    }
}

/// A service whose requests come from one peer.
pub(super) struct FromPeer<S> {
    pub(super) service: S,
    /// None if the system does not know its address any more.
    pub(super) peer: Option<Peer>,
    pub(super) activity: Activity,
}

impl<S: Service<Request<B>>, B> Service<Request<B>> for FromPeer<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn call(&self, mut request: Request<B>) -> Self::Future {
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(peer);
        }
        request.extensions_mut().insert(self.activity.begin());
        self.service.call(request)
    }
}
