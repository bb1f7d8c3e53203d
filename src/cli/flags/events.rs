//! The flags of `spindle serve` for the events and their store.

use super::duration::statement_seconds;
use super::endpoint::{Listening, OFF, endpoint, listening};
use super::password_file::PasswordFile;
use crate::cli::{CommandError, EVENTS_ADDRESS, EVENTS_ENDPOINT};
use crate::limits::STORE_ANSWER_MAX;
use crate::server::EventsConfig;
use crate::services::events::mysql::DatabaseAddress;

/// The flags of the events, as typed.
#[derive(Debug, clap::Args)]
pub(crate) struct EventsFlags {
    /// Serve events over HTTP, at this address or port if one is given; off for no events
    #[arg(long, value_name = "ADDR|PORT|off", num_args = 0..=1, default_value = OFF, default_missing_value = EVENTS_ADDRESS, value_parser = listening)]
    pub(crate) events: Listening,

    #[command(flatten)]
    events_store: EventsStoreFlags,

    /// Name by which requests for events may call the server, beside addresses and names without a dot; may be given
    /// several times [default: on loopback none, elsewhere any]
    #[arg(long, value_name = "NAME")]
    events_host: Vec<String>,

    /// Endpoint at which workers lease pending events, with --events-store embedded
    #[arg(long, value_name = "ENDPOINT", default_value = EVENTS_ENDPOINT, value_parser = endpoint)]
    pub(crate) events_queue: String,
}

/// The flags of their store, as typed.
#[derive(Debug, clap::Args)]
struct EventsStoreFlags {
    /// Store of the events: embedded for the store of the tasks, or mysql://USER:PASSWORD@HOST/DATABASE
    #[arg(long, value_name = "embedded|URL", default_value = "embedded", value_parser = events_store)]
    events_store: EventsStore,

    #[command(flatten)]
    password: PasswordFile,

    /// Seconds that a statement of the events' database may take; after that the database ends it
    #[arg(long, value_name = "SECONDS", default_value_t = STORE_ANSWER_MAX.as_secs(), value_parser = statement_seconds())]
    events_timeout: u64,
}

/// The database of the events, or `None` for the embedded store.
#[derive(Clone, Debug)]
struct EventsStore(Option<DatabaseAddress>);

fn events_store(typed: &str) -> Result<EventsStore, String> {
    if typed == "embedded" {
        return Ok(EventsStore(None));
    }
    typed.parse().map(|address| EventsStore(Some(address))).map_err(|wrong| format!("{wrong}, or it is embedded"))
}

impl EventsFlags {
    /// The settings of the events, if they are on.
    pub(crate) fn config(&self) -> Result<Option<EventsConfig>, CommandError> {
        let database = self.events_store.database()?;
        let hosts = self.events_host.clone();
        Ok(self.events.0.map(|address| EventsConfig { address, hosts, database }))
    }

    /// Whether the events are served, and kept in the store of the tasks.
    pub(crate) fn are_kept_here(&self) -> bool {
        self.events.0.is_some() && self.events_store.events_store.0.is_none()
    }
}

impl EventsStoreFlags {
    /// The database of the events. `None` for the embedded store.
    ///
    /// # Errors
    /// As [`PasswordFile::complete`].
    fn database(&self) -> Result<Option<DatabaseAddress>, CommandError> {
        let database = self.password.complete(self.events_store.0.clone(), "--events-store")?;
        Ok(database.map(|address| address.with_statement_seconds(self.events_timeout)))
    }
}
