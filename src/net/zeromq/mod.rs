//! Serves ZeroMQ connections without libzmq, and connections of Redis clients beside them ([`ConnectionProtocol`]). The
//! serving thread reads and writes the descriptors itself.
//!
//! ```text
//! BoundListener ─► accept ─► Connection: handshake (zmtp) ─► messages ─► frontend ─► SendBuffer ─► client
//!                             └─ Connections: all of one thread, on one epoll, with deadlines: handshakes, parting
//! Acceptor: for several serving threads, gives each new connection to the thread with the fewest
//! ```
//! - To a client, Spindle is a ROUTER socket of libzmq. REQ, DEALER and ROUTER sockets may connect, in ZMTP 3.0 and
//!   3.1, over `tcp://` and `ipc://`. A reply goes over the connection that sent the request, regardless of the routing
//!   id that the client has chosen.
//! - **No message is dropped.** While more than [`OUTBOX_BYTES_MAX`] bytes lie in a client's send buffer, the thread
//!   takes no further requests from it, and they wait in the client. While all connections of a frontend together hold
//!   more than its [`Budget`](super::budget::Budget), the connections that hold much get no turns, in every thread, and large replies
//!   wait. The thread closes a connection for memory only if it stands still for [`STALLED_MAX`].
//! - When a client closes its connection, the thread learns of it as soon as it has taken all that the client sent. It
//!   then hands the state of that connection back to the frontend as [`Closed`].
//! - The number of connections is bounded, and so is the time for a handshake. When a client waits for room, an idle
//!   connection makes place, and never one with work under way (`connections::idle`). If the host of a silent connection
//!   vanishes, keepalive finds it soon after [`KEEPALIVE_IDLE`]. If bytes were on their way to this host, the system
//!   notices when it gives up sending.
//!
//! [`publish`] has the connections of subscribers. No peer reaches libzmq. It is the queue between threads, within the
//! process alone ([`inproc`]).
//!
//! This module does not interpret messages and does not start threads.
//!
//! [`OUTBOX_BYTES_MAX`]: crate::limits::OUTBOX_BYTES_MAX
//! [`KEEPALIVE_IDLE`]: crate::limits::KEEPALIVE_IDLE
//! [`STALLED_MAX`]: crate::limits::STALLED_MAX

mod acceptor;
mod authentication;
mod connection;
mod connections;
mod deadlines;
mod event_port;
mod fault;
mod id;
pub mod inproc;
mod interest;
mod interface;
mod listen;
mod listeners;
mod protocol;
pub mod publish;
mod receive_buffer;
mod reply_buffer;
mod reply_gates;
mod send_buffer;
mod serve;
mod spin;
mod stage;
#[cfg(test)]
pub(crate) mod tests;
mod timed;
mod tls;
mod turn;
mod turn_batch;

pub use acceptor::{Acceptor, HandoffReceiver};
pub use authentication::Admission;
pub(crate) use authentication::{Authentication, PeerIdentity};
pub use connections::{Closed, ConnectionState, Connections, Traffic};
pub(crate) use deadlines::Deadlines;
pub(crate) use event_port::EventPort;
pub(crate) use fault::note_fault;
pub use id::ConnectionId;
pub(crate) use interest::Interest;
pub(crate) use listen::prepare as prepare_tcp;
pub use listen::{BoundListener, is_local};
pub(crate) use listeners::{LISTENERS, WAKE_SIGNAL, wait};
pub(crate) use protocol::Arrival;
pub use protocol::ConnectionProtocol;
pub use reply_buffer::{ReplyBuffer, TAKEN_AT_ONCE_BYTES};
pub use reply_gates::WaitingReply;
pub(crate) use serve::{Serving, ServingParts};
pub(crate) use stage::ConnectionStage;
pub use timed::TimedReply;
pub use turn::TurnOutcome;
pub use turn_batch::{TurnBatch, TurnOut, TurnParts};
