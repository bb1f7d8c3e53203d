//! The client's ear: notifications, decoded, one at a time.

use std::time::Duration;

use zmq::{Context, Message};

use super::{Error, TIMEOUT_DEFAULT};
use crate::protocols::client_socket::{ClientSocket, ConnectError, ConnectTarget};
use crate::protocols::kv::wire::Notification;

/// Hears the changes of tables.
///
/// Subscriptions match the beginning of a table's name as CREATE_TABLE gave it: `users` hears `users2` too, `users\0`
/// hears one table if it was created with its NUL, and the empty prefix hears all.
///
/// ```no_run
/// use std::time::Duration;
/// use spindle::protocols::kv::client::{Error, Subscriber};
///
/// # fn main() -> Result<(), Error> {
/// let mut subscriber = Subscriber::connect("tcp://127.0.0.1:5556", &[b"users"])?;
/// while let Some(change) = subscriber.receive(Duration::from_secs(60))? {
///     println!("{:?} {:?}", change.kind, change.key);
/// }
/// # Ok(())
/// # }
/// ```
///
/// A subscriber that hears the last change of a key knows its state, as long as it missed none. It misses what happens
/// while it is not connected, which [`super::Disconnected::Lost`] tells, and what goes past `--publish-hwm`, which
/// only STATS count.
pub struct Subscriber {
    target: ConnectTarget,
    /// `None` after an error.
    connection: Option<ClientSocket>,
    /// The last message received; notifications borrow from it.
    frames: Vec<Message>,
}

impl Subscriber {
    /// Connects, waiting up to [`TIMEOUT_DEFAULT`] for a server to be there, and subscribes to tables by the beginning
    /// of their names. Changes are heard from a moment after it returns.
    ///
    /// # Errors
    /// [`Error::Disconnected`]
    pub fn connect(endpoint: &str, prefixes: &[&[u8]]) -> Result<Self, Error> {
        Self::connect_in(&Context::new(), endpoint, prefixes, TIMEOUT_DEFAULT)
    }

    /// Connects within a context that is shared with others. A subscriber takes three of the context's sockets.
    ///
    /// # Errors
    /// [`Error::Disconnected`]
    pub fn connect_in(context: &Context, endpoint: &str, prefixes: &[&[u8]], timeout: Duration) -> Result<Self, Error> {
        let target = ConnectTarget::notifications(context, endpoint, prefixes);
        let connection = ClientSocket::open(&target, timeout).map_err(|trouble| target.error(trouble, 0, timeout))?;
        Ok(Self { target, connection: Some(connection), frames: Vec::new() })
    }

    /// Waits for the next change; `None` if there was none within `timeout`.
    ///
    /// After an error it connects anew. What changed in between went unheard: read the tables again.
    ///
    /// # Errors
    /// [`Error::Disconnected`], [`Error::Malformed`]
    pub fn receive(&mut self, timeout: Duration) -> Result<Option<Notification<'_>>, Error> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => {
                let made = ClientSocket::open(&self.target, TIMEOUT_DEFAULT)
                    .map_err(|trouble| self.target.error(trouble, 0, TIMEOUT_DEFAULT))?;
                self.connection.insert(made)
            }
        };
        match connection.receive(&mut self.frames, timeout) {
            Ok(()) => {}
            Err(ConnectError::Late) => return Ok(None),
            Err(trouble) => {
                self.connection = None;
                return Err(self.target.error(trouble, 0, timeout).into());
            }
        }
        match Notification::decode(&self.frames) {
            Ok(notification) => Ok(Some(notification)),
            Err(malformed) => {
                self.connection = None;
                Err(Error::malformed(&self.target, malformed))
            }
        }
    }
}
