//! The flags of `spindle serve` for the store of the events.

use super::password_file::PasswordFile;
use crate::cli::CommandError;
use crate::limits::{STATEMENT_SECONDS, STORE_ANSWER_MAX};
use crate::services::events::mysql::Address;

/// The flags, as typed.
#[derive(Debug, clap::Args)]
pub(crate) struct EventsStoreFlags {
    /// Store of the events: embedded for the store of the tasks, or mysql://USER:PASSWORD@HOST/DATABASE
    #[arg(long, value_name = "embedded|URL", default_value = "embedded", value_parser = events_store)]
    events_store: EventsStore,

    #[command(flatten)]
    password: PasswordFile,

    /// Seconds that a statement of the events' database may take; after that the database ends it
    #[arg(long, value_name = "SECONDS", default_value_t = STORE_ANSWER_MAX.as_secs(), value_parser = clap::value_parser!(u64).range(STATEMENT_SECONDS))]
    events_timeout: u64,
}

/// The database of the events, or `None` for the embedded store.
#[derive(Clone, Debug)]
struct EventsStore(Option<Address>);

fn events_store(typed: &str) -> Result<EventsStore, String> {
    if typed == "embedded" {
        return Ok(EventsStore(None));
    }
    typed.parse().map(|address| EventsStore(Some(address))).map_err(|wrong| format!("{wrong}, or it is embedded"))
}

impl EventsStoreFlags {
    /// Whether the events are in the store of the tasks.
    pub(crate) fn is_embedded(&self) -> bool {
        self.events_store.0.is_none()
    }

    /// The database of the events. `None` for the embedded store.
    ///
    /// # Errors
    /// As [`PasswordFile::complete`].
    pub(crate) fn database(&self) -> Result<Option<Address>, CommandError> {
        let database = self.password.complete(self.events_store.0.clone(), "--events-store")?;
        Ok(database.map(|address| address.with_statement_seconds(self.events_timeout)))
    }
}
