//! The client's requests about the feed.

use super::{Client, Error};
use crate::feed::{FeedMessage, FeedPosition};
use crate::services::tables::wire::{FeedEvent, FeedState, Reply, Request, TableName};

impl Client {
    /// FEED_STATE: how far the feed of a table is, at one moment.
    ///
    /// # Errors
    /// TABLE NOT FOUND, FEED OFF
    pub fn feed_state(&mut self, table: &[u8]) -> Result<FeedState, Error> {
        match self.call(&Request::FeedState { table: TableName::spelt(table) })? {
            Reply::FeedState(state) => Ok(state),
            _ => Err(self.wrong_shape()),
        }
    }

    /// CHANGES: what the feed has published from this position on, about a megabyte of it. The first message contains
    /// the position. There is none if the position is the one that comes next.
    ///
    /// Each message is one of changes, of the epoch and incarnation that were asked for, and they have no gap.
    ///
    /// # Errors
    /// TABLE NOT FOUND, FEED OFF, COMPACTED with the oldest sequence that is kept
    pub fn changes(&mut self, table: &[u8], position: FeedPosition) -> Result<Vec<FeedMessage<'_>>, Error> {
        self.begin(&Request::Changes { table: TableName::spelt(table), position })?;
        let timeout = self.pipeline.timeout();
        self.pipeline.receive(timeout, |awaited, frames| match awaited.decode(frames)? {
            Reply::Changes(payloads) => FeedEvent::replayed(position, &payloads).map(Ok),
            Reply::Refused(reason) => Ok(Err(Error::Refused(reason))),
            _ => unreachable!("a granted CHANGES is decoded as payloads"),
        })?
    }
}
