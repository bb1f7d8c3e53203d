//! A command that is carried out: the client, the batch, and the service. What several commands ask of the tables
//! stands here.

use std::borrow::Cow;

use super::answer::{Failure, OUT_OF_MEMORY, TOO_LONG, refused};
use super::arguments::Times;
use super::client::RespClient;
use super::context::RespContext;
use super::metrics::RespMetrics;
use super::subscribers::WorkerSubscribers;
use crate::clock::Now;
use crate::net::zeromq::ConnectionId;
use crate::security::{Access, Resource};
use crate::tables::{Batch, Durability, Edit, ElementView, Refusal};

/// Everything that a handler uses beside the arguments.
pub(super) struct Call<'c, 's> {
    pub(super) batch: &'c mut Batch<'s>,
    pub(super) client: &'c mut RespClient,
    /// The connection.
    pub(super) id: ConnectionId,
    pub(super) subscribers: &'c mut WorkerSubscribers,
    /// Whether the command may wait for the publisher, and come again.
    pub(super) may_wait: bool,
    pub(super) context: &'c RespContext,
    pub(super) metrics: &'c RespMetrics,
    /// Reads the clock, for a time that is left.
    pub(super) now: &'c dyn Fn() -> Now,
}

impl Call<'_, '_> {
    /// The clock of this batch.
    pub(super) fn times(&self) -> Times {
        Times::new(self.context.clock, self.batch.now().millis())
    }

    /// Whether the client may read this table.
    pub(super) fn may_read(&self, table: &[u8]) -> bool {
        self.client.may_read(table)
    }

    /// Refuses a command to a user who may not administer the server.
    pub(super) fn check_admin(&self, command: &str) -> Result<(), Failure> {
        match &self.client.user {
            Some(user) if !user.may(Access::Admin, Resource::Server) => {
                user.note_denied();
                let name = user.name();
                Err(refused(format!("NOPERM User {name} has no permissions to run the '{command}' command")))
            }
            _ => Ok(()),
        }
    }

    /// The longest value, in bytes.
    pub(super) fn value_max(&self) -> usize {
        self.context.limits.value
    }

    /// The value of a key in the client's table.
    pub(super) fn get(&mut self, key: &[u8]) -> Result<Option<&[u8]>, Failure> {
        let value = present(self.batch.get(&self.client.table, key))?;
        self.metrics.count_read(value.is_some());
        Ok(value)
    }

    /// The element of a key in the client's table.
    pub(super) fn element(&mut self, key: &[u8]) -> Result<Option<ElementView<'_>>, Failure> {
        present(self.batch.element(&self.client.table, key))
    }

    /// Makes the table of a database that a command may store in. If there may be no more tables, the command is refused
    /// later.
    pub(super) fn make_database(&mut self, table: &[u8]) -> Result<(), Failure> {
        if self.batch.count(table).is_ok() {
            return Ok(());
        }
        let durability = self.durability();
        match self.batch.create_table_with(table, table, None, Some(durability)) {
            Err(Refusal::Busy) => Err(Failure::Busy),
            Err(Refusal::OutOfMemory) => Err(OUT_OF_MEMORY),
            _ => Ok(()),
        }
    }

    /// What is on disk of a database that is made.
    pub(super) fn durability(&self) -> Durability {
        self.context.appending.durability(self.batch.durability())
    }

    /// Changes the element of a key, as [`Batch::edit`] does.
    pub(super) fn edit<'b, R>(
        &'b mut self,
        key: &[u8],
        edit: impl FnMut(Option<ElementView<'b>>) -> (Edit<Cow<'b, [u8]>>, R),
    ) -> Result<(R, u64), Failure> {
        Ok(self.batch.edit(&self.client.table, key, edit)?)
    }

    /// As [`Call::edit`], of an element that exists. `None`: there is none, and no table is made for it.
    pub(super) fn edit_present<'b, R>(
        &'b mut self,
        key: &[u8],
        mut edit: impl FnMut(ElementView<'b>) -> (Edit<Cow<'b, [u8]>>, R),
    ) -> Result<Option<R>, Failure> {
        let edited = self.batch.edit(&self.client.table, key, |old| match old {
            None => (Edit::Keep, None),
            Some(old) => {
                let (edit, answer) = edit(old);
                (edit, Some(answer))
            }
        });
        Ok(present(edited)?.and_then(|(answer, _)| answer))
    }
}

/// What a look found. No element, and no table, is `None`.
pub(super) fn present<T>(found: Result<T, Refusal>) -> Result<Option<T>, Failure> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(Refusal::TableNotFound | Refusal::KeyNotFound) => Ok(None),
        Err(refusal) => Err(refusal.into()),
    }
}

/// Refuses a value that is longer than a value may be.
pub(super) fn check_length(length: usize, most: usize) -> Result<(), Failure> {
    if length > most { Err(TOO_LONG) } else { Ok(()) }
}
