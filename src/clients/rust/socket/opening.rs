//! A connection that is being made: to one of the addresses, then the handshake.
//!
//! ```text
//! start ─► Dialing ── accepted ──► Shaking ── over ──► ClientSocket
//!             └─► Lost: no server there, Unreached: its host is silent
//!                                     └─► Closed, Denied, Busy, Foreign
//! ```

use std::io::{self, ErrorKind};
use std::time::Duration;

use rustix::event::PollFd;
use rustix::io::Errno;

use super::dialing::{Dialing, resolve};
use super::shaking::{ShakeError, Shaking};
use super::{ClientSocket, ConnectError, ConnectTarget, LOGIN};
use crate::zmtp::encode_subscribe;

/// A connection that is being made.
pub(in super::super) struct OpeningSocket {
    stage: Stage,
    target: ConnectTarget,
}

enum Stage {
    Dialing(Box<Dialing>),
    Shaking(Box<Shaking>),
}

/// What a step has brought.
pub(in super::super) enum OpeningStep {
    /// The connection is still being made.
    Waiting(OpeningSocket),
    /// The connection is there.
    Open(ClientSocket),
}

impl OpeningSocket {
    /// Begins to connect. One of the addresses has to accept within this time.
    ///
    /// # Errors
    /// `Endpoint`. `UnknownHost`: it may be known later.
    pub(in super::super) fn start(target: &ConnectTarget, connect: Duration) -> Result<Self, ConnectError> {
        let addresses = resolve(&target.endpoint).map_err(unresolved)?;
        Ok(Self { stage: Stage::Dialing(Box::new(Dialing::start(addresses, connect))), target: target.clone() })
    }

    /// Continues, without waiting.
    ///
    /// # Errors
    /// `Lost`: no server is there. `Unreached`: its host is silent. `Closed`: the other end has accepted the connection
    /// and closed it. `Denied`, `Foreign`.
    pub(in super::super) fn step(mut self) -> Result<OpeningStep, ConnectError> {
        if let Stage::Dialing(dialing) = &mut self.stage {
            let Some(descriptor) = dialing.step().map_err(unreached)? else { return Ok(OpeningStep::Waiting(self)) };
            let ConnectTarget { socket_type, frame_bytes, .. } = self.target;
            let credentials = LOGIN.lock().clone();
            self.stage = Stage::Shaking(Box::new(Shaking::begin(descriptor, socket_type, credentials, frame_bytes)));
        }
        if let Stage::Shaking(shaking) = &mut self.stage
            && !shaking.step()?
        {
            return Ok(OpeningStep::Waiting(self));
        }
        match self.stage {
            Stage::Dialing(_) => Ok(OpeningStep::Waiting(self)),
            Stage::Shaking(shaking) => {
                let mut stream = shaking.into_stream();
                self.target.prefixes.iter().for_each(|prefix| encode_subscribe(stream.outbox(), prefix));
                let mut socket = ClientSocket::new(stream, self.target.frame_bytes);
                socket.flush();
                Ok(OpeningStep::Open(socket))
            }
        }
    }

    /// Whether an address has accepted the connection.
    pub(super) fn is_accepted(&self) -> bool {
        matches!(self.stage, Stage::Shaking(_))
    }

    /// The descriptor to poll before continuing, and the longest wait.
    pub(in super::super) fn waits(&self) -> (Option<PollFd<'_>>, Duration) {
        match &self.stage {
            Stage::Dialing(dialing) => (dialing.poll_fd(), dialing.patience()),
            Stage::Shaking(shaking) => (Some(shaking.poll_fd()), Duration::MAX),
        }
    }
}

/// The error for an endpoint without an address.
fn unresolved(error: io::Error) -> ConnectError {
    match error.kind() {
        ErrorKind::InvalidInput => ConnectError::Endpoint(error.to_string()),
        _ => ConnectError::UnknownHost(error.to_string()),
    }
}

/// The error for addresses of which none has accepted.
fn unreached(error: io::Error) -> ConnectError {
    let short_of = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    match Errno::from_io_error(&error) {
        Some(Errno::TIMEDOUT) => ConnectError::Unreached,
        Some(errno) if short_of.contains(&errno) => ConnectError::Socket(errno),
        _ => ConnectError::Lost,
    }
}

impl From<ShakeError> for ConnectError {
    fn from(error: ShakeError) -> Self {
        match error {
            ShakeError::Late => Self::Late,
            ShakeError::Ended(_) => Self::Closed,
            ShakeError::Denied(_) => Self::Denied,
            ShakeError::Busy => Self::Busy,
            ShakeError::Foreign(problem) => Self::Foreign(problem),
        }
    }
}
