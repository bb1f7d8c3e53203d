//! The connection of a subscriber, which comes back after an error.

use std::time::Duration;

use super::{Error, TIMEOUT_DEFAULT};
use crate::clients::rust::socket::{ClientSocket, ClientTimeouts, ConnectError, ConnectTarget};
use crate::services::tables::wire::Malformed;

/// Receives one message at a time from a publisher.
pub(super) struct Receiver {
    target: ConnectTarget,
    /// `None` after an error.
    connection: Option<ClientSocket>,
    /// The last message received; what is decoded borrows from it.
    frames: Vec<Vec<u8>>,
}

impl Receiver {
    /// Connects, and waits so long for a server to be there.
    ///
    /// # Errors
    /// [`Error::Disconnected`]
    pub(super) fn connect(target: ConnectTarget, timeouts: impl Into<ClientTimeouts>) -> Result<Self, Error> {
        let connection = open(&target, timeouts.into())?;
        Ok(Self { target, connection: Some(connection), frames: Vec::new() })
    }

    /// Waits for the next message, and decodes it. Returns `None` if there was none within `timeout`. After an error
    /// the next call connects again.
    ///
    /// # Errors
    /// [`Error::Disconnected`], [`Error::Malformed`]
    pub(super) fn receive<'m, M>(
        &'m mut self,
        timeout: Duration,
        decode: impl FnOnce(&'m [Vec<u8>]) -> Result<M, Malformed>,
    ) -> Result<Option<M>, Error> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => self.connection.insert(open(&self.target, TIMEOUT_DEFAULT.into())?),
        };
        match connection.receive(&mut self.frames, timeout) {
            Ok(()) => {}
            Err(ConnectError::Late) => return Ok(None),
            Err(error) => {
                self.connection = None;
                return Err(self.target.error(error, 0, timeout).into());
            }
        }
        match decode(&self.frames) {
            Ok(decoded) => Ok(Some(decoded)),
            Err(malformed) => {
                self.connection = None;
                Err(Error::malformed(&self.target, malformed))
            }
        }
    }
}

fn open(target: &ConnectTarget, timeouts: ClientTimeouts) -> Result<ClientSocket, Error> {
    Ok(ClientSocket::open(target, timeouts).map_err(|error| target.error(error, 0, timeouts))?)
}
