//! The subscriber: it receives and decodes one notification at a time.

use std::time::Duration;

use super::receiver::Receiver;
use super::{ClientTimeouts, Error, TIMEOUT_DEFAULT};
use crate::clients::rust::socket::ConnectTarget;
use crate::services::tables::wire::Notification;

/// Receives the changes of tables.
///
/// Subscriptions match the beginning of a table's name as CREATE_TABLE gave it. `users` matches `users2` too, `users\0`
/// matches one table if it was created with its NUL, and the empty prefix matches all.
///
/// ```no_run
/// use std::time::Duration;
/// use spindle::clients::rust::tables::{Error, Subscriber};
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
/// A subscriber that has received the last change of a key knows the key's state, as long as it missed none. It misses
/// the changes while it is not connected, which [`super::Disconnected::Lost`] reports. It also misses notifications
/// beyond `--publish-hwm`, which only STATS counts.
pub struct Subscriber(Receiver);

impl Subscriber {
    /// Connects, and waits up to [`TIMEOUT_DEFAULT`] for a server to be there. Subscribes to tables by the beginning of
    /// their names. The server sends changes from a moment after this function returns.
    ///
    /// # Errors
    /// [`Error::Disconnected`]
    pub fn connect(endpoint: &str, prefixes: &[&[u8]]) -> Result<Self, Error> {
        Self::connect_within(endpoint, prefixes, TIMEOUT_DEFAULT)
    }

    /// Connects, and waits so long for a server to be there.
    ///
    /// # Errors
    /// [`Error::Disconnected`]
    pub fn connect_within(
        endpoint: &str,
        prefixes: &[&[u8]],
        timeouts: impl Into<ClientTimeouts>,
    ) -> Result<Self, Error> {
        let target = ConnectTarget::notifications(endpoint, prefixes);
        Receiver::connect(target, timeouts).map(Self)
    }

    /// Waits for the next change. Returns `None` if there was none within `timeout`.
    ///
    /// After an error the next call connects again. Changes in between are missed, so read the tables again.
    ///
    /// # Errors
    /// [`Error::Disconnected`], [`Error::Malformed`]
    pub fn receive(&mut self, timeout: Duration) -> Result<Option<Notification<'_>>, Error> {
        self.0.receive(timeout, Notification::decode)
    }
}
