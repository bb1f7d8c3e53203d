//! What a connection speaks: ZMTP, or RESP where the frontend serves that too.
//!
//! The two differ in three places: how a connection begins, how its bytes are cut into messages, and what a client is
//! sent that breaks the protocol. All else about connections and turns is the same.

use std::fmt;
use std::net::SocketAddr;

use rustix::net::{SocketAddrUnix, getpeername, getsockname};

use super::tls::{TlsFault, TlsSession};
use crate::descriptors::ConnectionDescriptor;
use crate::messages::{Messages, Unconsumed};
use crate::resp3;
use crate::resp3::{CommandBounds, CommandCutter};
use crate::zmtp::{MessageBounds, MessageCutter, ProtocolError};

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionProtocol {
    /// ZMTP, with a handshake.
    #[default]
    Zmtp,
    /// RESP. There is no handshake: the client names a user by a command.
    Resp,
}

/// A connection that was just accepted.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) descriptor: ConnectionDescriptor,
    pub(crate) protocol: ConnectionProtocol,
    /// With TLS, the session.
    pub(super) tls: Option<TlsSession>,
}

impl Arrival {
    /// A connection in the clear.
    pub(super) fn in_the_clear(descriptor: ConnectionDescriptor, protocol: ConnectionProtocol) -> Self {
        Self { descriptor, protocol, tls: None }
    }

    /// The addresses of the client and of this server. Where the endpoint is a file, both are its path, and the port 0.
    pub(crate) fn addresses(&self) -> [String; 2] {
        let own = getsockname(&self.descriptor).ok();
        let path = own.clone().and_then(|own| SocketAddrUnix::try_from(own).ok());
        if let Some(path) = path {
            let path = path.path().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
            return [format!("{path}:0"), format!("{path}:0")];
        }
        let peer = getpeername(&self.descriptor).ok().flatten();
        [peer, own].map(|address| {
            let address = address.and_then(|address| SocketAddr::try_from(address).ok());
            address.map_or_else(
                || "?:0".to_owned(),
                |address| SocketAddr::new(address.ip().to_canonical(), address.port()).to_string(),
            )
        })
    }
}

#[cfg(test)]
impl Arrival {
    /// A connection over this socket that speaks ZMTP.
    pub(super) fn of(socket: impl Into<std::os::fd::OwnedFd>) -> Self {
        Self::in_the_clear(socket.into().into(), ConnectionProtocol::Zmtp)
    }
}

/// The bounds of what a connection sends.
#[derive(Clone, Copy, Debug)]
pub(super) struct InputBounds {
    /// Of ZMTP.
    pub(super) messages: MessageBounds,
    /// Of RESP. Whether a peer has named its user is decided for each connection.
    pub(super) commands: CommandBounds,
}

impl InputBounds {
    /// Those of messages. No connection speaks RESP.
    pub(super) fn of_messages(messages: MessageBounds) -> Self {
        Self { messages, commands: CommandBounds { argument_bytes: 0, bytes: 0, is_proven: false } }
    }
}

/// Why a connection ends: its client broke the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InputFault {
    Zmtp(ProtocolError),
    Resp(resp3::Fault),
    Tls(TlsFault),
}

impl fmt::Display for InputFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zmtp(fault) => write!(f, "{fault}"),
            Self::Resp(fault) => write!(f, "{fault}"),
            Self::Tls(fault) => write!(f, "{fault}"),
        }
    }
}

impl From<TlsFault> for InputFault {
    fn from(fault: TlsFault) -> Self {
        Self::Tls(fault)
    }
}

impl From<ProtocolError> for InputFault {
    fn from(fault: ProtocolError) -> Self {
        Self::Zmtp(fault)
    }
}

/// Cuts the input of a connection into messages.
#[derive(Debug)]
pub(super) enum InputCutter {
    Zmtp(MessageCutter),
    Resp(Box<CommandCutter>),
}

impl Default for InputCutter {
    fn default() -> Self {
        Self::Zmtp(MessageCutter::default())
    }
}

impl InputCutter {
    pub(super) fn new(protocol: ConnectionProtocol) -> Self {
        match protocol {
            ConnectionProtocol::Zmtp => Self::default(),
            ConnectionProtocol::Resp => Self::Resp(Box::default()),
        }
    }

    pub(super) fn protocol(&self) -> ConnectionProtocol {
        match self {
            Self::Zmtp(_) => ConnectionProtocol::Zmtp,
            Self::Resp(_) => ConnectionProtocol::Resp,
        }
    }

    /// Cuts `bytes` into at most `most` messages. Answers to PINGs are appended to `out`.
    pub(super) fn cut(
        &mut self,
        bytes: &mut [u8],
        bounds: &InputBounds,
        most: usize,
        messages: &mut Messages,
        out: &mut Vec<u8>,
    ) -> Result<Unconsumed, InputFault> {
        match self {
            Self::Zmtp(cutter) => cutter.cut(bytes, &bounds.messages, most, messages, out).map_err(InputFault::Zmtp),
            Self::Resp(cutter) => cutter.cut(bytes, &bounds.commands, most, messages).map_err(InputFault::Resp),
        }
    }

    /// Bytes of memory that a message of many frames takes which has not come whole.
    pub(super) fn kept_bytes(&self) -> usize {
        match self {
            Self::Zmtp(cutter) => cutter.kept_bytes(),
            Self::Resp(cutter) => cutter.kept_bytes(),
        }
    }

    /// The cutter of a protocol with PINGs.
    pub(super) fn zmtp(&self) -> Option<&MessageCutter> {
        if let Self::Zmtp(cutter) = self { Some(cutter) } else { None }
    }
}
