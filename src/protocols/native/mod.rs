//! Connections of ZeroMQ peers without libzmq: the thread that serves them reads and writes them itself.
//!
//! ```text
//! Listener ─► accept ─► Peer: handshake (zmtp) ─► messages ─► whoever serves ─► Outbox ─► the peer
//!                        └─ Peers: all of one thread, on one epoll, with deadlines for handshakes and partings
//! Acceptor: for several threads that serve; each connection goes to one that has the fewest
//! ```
//! - To a peer it is a ROUTER socket of libzmq: REQ, DEALER and ROUTER sockets may connect, in ZMTP 3.0 and 3.1, over `tcp://` and
//!   `ipc://`. An answer goes over the connection that asked, whatever routing id its peer has chosen.
//! - **Nothing is dropped.** Of a peer that does not read, no more requests are taken once [`OUTBOX_BYTES_MAX`] lie in its
//!   outbox; they wait in the peer. While all connections of a frontend together hold more than its [`BufferBudget`], those that hold much
//!   have no turns, whatever thread has them, and large answers wait; a connection is closed only if nothing of it moves meanwhile.
//! - A peer that closes its connection is known as gone as soon as what it has sent is taken, and what it left with whoever serves
//!   is given back.
//! - Connections are bounded, and so is the time of a handshake; a silent connection whose host has vanished is found by the system
//!   (keepalive) within [`KEEPALIVE_IDLE`] and a little; one that has something on its way to that host when the system gives up
//!   sending it.
//!
//! What is not here: what messages mean, and threads.
//!
//! [`OUTBOX_BYTES_MAX`]: crate::limits::OUTBOX_BYTES_MAX
//! [`KEEPALIVE_IDLE`]: crate::limits::KEEPALIVE_IDLE

mod acceptor;
mod budget;
mod connection;
mod connections;
mod id;
mod interface;
mod listen;
mod listeners;
mod receive_buffer;
mod send_buffer;
#[cfg(test)]
pub(crate) mod tests;

pub use acceptor::{Acceptor, HandoffReceiver};
pub use budget::BufferBudget;
pub use connections::{Closed, Connections, TurnOutcome};
pub use id::ConnectionId;
pub use listen::BoundListener;
pub(crate) use listeners::{BELL, LISTENERS, Listeners, wait};
pub use send_buffer::SendBuffer;
