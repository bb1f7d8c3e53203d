//! Assembles the native workers: their sockets, and the work of their threads.
//!
//! ```text
//! listeners ─► acceptor ═► connections ◄─ worker i ── session i ── tables
//! ```
//! [`bind`] makes all parts that can fail, and starts none of them. Dropping the parts closes the endpoints.

use std::sync::Arc;

use super::worker::NativeWorker;
use crate::net::budget::Budget;
use crate::net::sockets::{ServeError, Stopper, WakeSignal};
use crate::net::zeromq::{Acceptor, BoundListener, ConnectionProtocol, Connections};
use crate::services::resp::{RespConfig, RespService};
use crate::services::tables::serve::{FrontendKind, Kv, KvConfig};

/// What the threads run.
pub struct NativeThreads {
    /// For the thread `tables-accept`.
    pub acceptor: Box<Acceptor>,
    /// For the threads of the workers.
    pub workers: Vec<NativeWorker>,
}

/// All parts that are to run, and their endpoints.
pub struct Native {
    /// What the threads run.
    pub threads: NativeThreads,
    /// They stop the acceptor and the workers.
    pub stoppers: Vec<Stopper>,
    /// The endpoints of requests over ZeroMQ, with the ports that the system chose.
    pub kv: Vec<String>,
    /// The endpoints of Redis clients.
    pub resp: Vec<String>,
    /// Bytes that clients have not taken.
    pub budget: Arc<Budget>,
}

/// Listens at the endpoints of Redis clients, and with the native frontend at those over ZeroMQ. `None`: there are no
/// native workers.
///
/// # Errors
/// [`ServeError`] if an endpoint cannot be bound, or the system has no descriptor left.
pub fn bind(settings: &KvConfig, resp: RespConfig, kv: &mut Kv) -> Result<Option<Native>, ServeError> {
    if settings.cores.native.is_empty() {
        return Ok(None);
    }
    let wake_signal = WakeSignal::new()?;
    let stopper = Stopper::new(&wake_signal);
    let mut acceptor = Acceptor::new(stopper.clone(), &wake_signal, kv.report.clock())?;
    let mut listen = |endpoints: &[String], protocol| {
        let bound = endpoints.iter().map(|endpoint| {
            let listener = BoundListener::bind(endpoint)?.speaking(protocol);
            let of_protocol = resp.certificate.as_ref().filter(|_| protocol == ConnectionProtocol::Resp);
            let listener = listener.encrypted_by(of_protocol);
            let endpoint = listener.endpoint().to_owned();
            acceptor.listen(listener)?;
            Ok(endpoint)
        });
        bound.collect::<Result<Vec<String>, ServeError>>()
    };
    let of_zeromq = if settings.frontend == FrontendKind::Native { &settings.endpoints[..] } else { &[] };
    let kv_endpoints = listen(of_zeromq, ConnectionProtocol::Zmtp)?;
    let resp_endpoints = listen(&resp.endpoints, ConnectionProtocol::Resp)?;
    let wake_signals = settings.cores.native.iter().map(|_| WakeSignal::new());
    let wake_signals = wake_signals.collect::<Result<Vec<_>, _>>()?;
    let service = RespService::new(resp, &resp_endpoints, &kv.report, &wake_signals);
    let budget = Budget::new(settings.held_bytes_max);
    let messages_max = usize::try_from(settings.publish_hwm).unwrap_or(usize::MAX);
    let (shared, mail) = service.workers(&budget, messages_max);
    kv.publisher.hand_to(mail);
    let (mut stoppers, mut workers) = (vec![stopper], Vec::new());
    for ((number, shared), wake_signal) in shared.into_iter().enumerate().zip(&wake_signals) {
        let stopper = Stopper::new(wake_signal);
        let state = kv.native_state(settings, number, wake_signal);
        let admission = settings.admissions.requests.as_ref();
        let mut connections = Connections::new(wake_signal, settings.message_bounds(), &budget, admission)?;
        connections.bound_commands(service.bounds());
        let handoff = acceptor.handoff(wake_signal);
        stoppers.push(stopper.clone());
        workers.push(NativeWorker::new(connections, handoff, stopper, wake_signal, state, shared));
    }
    let threads = NativeThreads { acceptor: Box::new(acceptor), workers };
    Ok(Some(Native { threads, stoppers, kv: kv_endpoints, resp: resp_endpoints, budget }))
}
