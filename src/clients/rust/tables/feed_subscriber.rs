//! The subscriber of the feed: it receives and decodes one message at a time.

use std::time::Duration;

use super::mirror::FRAME_MAX;
use super::receiver::Receiver;
use super::{ClientTimeouts, Error, TIMEOUT_DEFAULT};
use crate::clients::rust::socket::ConnectTarget;
use crate::feed::{table_of_topic, topic_of_table};
use crate::services::tables::wire::{FeedEvent, Reason};

/// Receives the messages of the feed (`--feed`), of one table or of all.
///
/// It shows each message as it comes, and neither orders them nor fills gaps: for a copy of a table see
/// [`super::Mirror`].
///
/// ```no_run
/// use std::time::Duration;
/// use spindle::feed::FeedContent;
/// use spindle::clients::rust::tables::{Error, FeedSubscriber};
///
/// # fn main() -> Result<(), Error> {
/// let mut subscriber = FeedSubscriber::connect("tcp://127.0.0.1:5559", Some(b"users"))?;
/// while let Some(event) = subscriber.receive(Duration::from_secs(60))? {
///     if let FeedContent::Changes(changes) = event.message.content {
///         changes.for_each(|change| println!("{:?} {:?} {:?}", change.cause, change.key, change.value));
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub struct FeedSubscriber(Receiver);

impl FeedSubscriber {
    /// Connects, and waits up to [`TIMEOUT_DEFAULT`] for a server to be there. Subscribes to a table, or to all.
    ///
    /// # Errors
    /// [`Error::Disconnected`], [`Error::Refused`] with BAD TABLE NAME if no table can have this name
    pub fn connect(endpoint: &str, table: Option<&[u8]>) -> Result<Self, Error> {
        Self::connect_within(endpoint, table, TIMEOUT_DEFAULT)
    }

    /// Connects, and waits so long for a server to be there.
    ///
    /// # Errors
    /// [`Error::Disconnected`]
    pub fn connect_within(
        endpoint: &str,
        table: Option<&[u8]>,
        timeouts: impl Into<ClientTimeouts>,
    ) -> Result<Self, Error> {
        let topic = table.map(topic_of_table).unwrap_or_default();
        if table.is_some() && table_of_topic(&topic).is_none() {
            return Err(Error::Refused(Reason::BadTableName));
        }
        let target = ConnectTarget::feed(endpoint, &topic, FRAME_MAX);
        Receiver::connect(target, timeouts).map(Self)
    }

    /// Waits for the next message. Returns `None` if there was none within `timeout`.
    ///
    /// After an error the next call connects again. The messages in between are missed.
    ///
    /// # Errors
    /// [`Error::Disconnected`], [`Error::Malformed`]
    pub fn receive(&mut self, timeout: Duration) -> Result<Option<FeedEvent<'_>>, Error> {
        self.0.receive(timeout, FeedEvent::decode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_table_has_is_refused_before_it_connects() {
        for name in [&b""[..], b"a\0b", &[b'n'; 255]] {
            let refused = FeedSubscriber::connect("no endpoint", Some(name));
            assert!(matches!(refused, Err(Error::Refused(Reason::BadTableName))), "{}", name.escape_ascii());
        }
    }
}
