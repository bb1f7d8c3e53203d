//! The connections of a native worker: those over ZeroMQ, and those of Redis clients.

use crate::messages::MessageView;
use crate::net::zeromq::{ConnectionState, Connections, ReplyBuffer, TurnOutcome};
use crate::security::{Denied, Identity};
use crate::services::resp::{self, RespClient, RespShared};
use crate::services::tables::handle::HandlerContext;
use crate::services::tables::turn::{ConnectionTurn, TableClient, WorkerState};
use crate::zmtp::Claim;

/// The state of a connection of a worker that serves both protocols.
#[derive(Debug)]
pub(crate) enum WorkerClient {
    /// It speaks ZMTP.
    Tables(TableClient),
    /// It speaks RESP.
    Resp(Box<RespClient>),
}

impl WorkerClient {
    /// The state of a connection that speaks RESP.
    pub(super) fn resp(&mut self) -> Option<&mut RespClient> {
        if let Self::Resp(client) = self { Some(client) } else { None }
    }
}

impl Default for WorkerClient {
    fn default() -> Self {
        Self::Tables(TableClient::default())
    }
}

impl ConnectionState for WorkerClient {
    fn admit(&mut self, identity: Identity) {
        match self {
            Self::Tables(client) => client.admit(identity),
            Self::Resp(client) => client.admit(identity),
        }
    }

    fn take_claim(&mut self) -> Option<Claim> {
        match self {
            Self::Tables(_) => None,
            Self::Resp(client) => client.take_claim(),
        }
    }

    fn kept_bytes(&self) -> usize {
        match self {
            Self::Tables(_) => 0,
            Self::Resp(client) => client.kept_bytes(),
        }
    }

    fn is_idle(&self) -> bool {
        !matches!(self, Self::Resp(client) if client.is_subscribed())
    }

    fn refuse(&mut self, why: Denied) -> Option<Identity> {
        match self {
            Self::Tables(_) => None,
            Self::Resp(client) => client.refuse(why),
        }
    }
}

/// Answers the messages of a turn.
pub(super) fn answer_turn(
    shared: &mut RespShared,
    state: &mut WorkerState,
    messages: MessageView<'_>,
    outbox: &mut ReplyBuffer,
    turn: ConnectionTurn<'_, WorkerClient>,
    context: &HandlerContext<'_>,
) -> TurnOutcome {
    let turn = turn.split(|client| match client {
        WorkerClient::Tables(client) => Ok(client),
        WorkerClient::Resp(client) => Err(&mut **client),
    });
    match turn {
        Ok(turn) => state.answer_turn(messages, outbox, turn, context),
        Err(turn) => shared.answer_turn(state, messages, outbox, turn, context.now),
    }
}

/// Lets the processor fetch what the first requests of the gathered turns read, so that their cache misses overlap.
pub(super) fn prefetch_first(state: &mut WorkerState, connections: &Connections<WorkerClient>) {
    let of_tables = connections.gathered().filter_map(|(client, messages)| match client {
        WorkerClient::Tables(client) => Some((client, messages)),
        WorkerClient::Resp(_) => None,
    });
    state.prefetch_first(of_tables, connections.now());
    let of_resp = connections.gathered().filter_map(|(client, messages)| match client {
        WorkerClient::Tables(_) => None,
        WorkerClient::Resp(client) => Some((&**client, messages)),
    });
    resp::prefetch_first(state, of_resp, connections.now());
}
