//! The connections of all workers, as CLIENT LIST shows them and CLIENT KILL finds them.
//!
//! ```text
//! worker ─► ClientCard: its last command, a store in each turn; its names, under a lock when they change
//!   ▲           ▲ ClientRegistry: the cards by their numbers
//!   │           └── CLIENT LIST, CLIENT INFO
//!   └─ the connection to close ◄── CLIENT KILL
//! ```
//! A worker enters a connection when it takes the connection over. A connection leaves with its state, or when a client
//! kills it. This module closes no connection.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::command_info::CommandIndex;
use crate::clock::Now;
use crate::lock::Mutex;
use crate::net::sockets::WakingSender;
use crate::net::zeromq::{Arrival, ConnectionId};
use crate::resp3::RespVersion;

/// The bits of [`ClientCard::last`] that hold the number of a command.
const COMMAND_BITS: u32 = 10;
const _: () = assert!(NO_COMMAND < 1 << COMMAND_BITS);
/// The number of no command.
const NO_COMMAND: u64 = 1_000;

/// How the system names a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClientAddresses {
    /// Of the client.
    pub(super) peer: String,
    /// Of this server.
    pub(super) own: String,
    /// The number of the descriptor.
    pub(super) descriptor: i32,
}

impl ClientAddresses {
    pub(super) fn of(arrival: &Arrival) -> Self {
        let [peer, own] = arrival.addresses();
        Self { peer, own, descriptor: arrival.descriptor.as_raw_fd() }
    }
}

/// What a connection has said of itself, and what it has chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ShownClient {
    pub(super) name: Vec<u8>,
    pub(super) library: Vec<u8>,
    pub(super) library_version: Vec<u8>,
    /// `None`: no user is named, or the connection has not named its own.
    pub(super) user: Option<String>,
    /// The number of its table, if that is a database.
    pub(super) database: Option<u8>,
    pub(super) version: RespVersion,
    /// The second word of its last command, if the command has subcommands.
    pub(super) subcommand: Option<String>,
}

/// How many subscriptions a connection has, and how many keys and commands its transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ClientCounts {
    pub(super) channels: usize,
    pub(super) patterns: usize,
    /// Keys that it watches.
    pub(super) watched: usize,
    /// Commands since MULTI. `None`: MULTI has not come.
    pub(super) queued: Option<usize>,
}

impl ClientCounts {
    /// Whether the connection has subscribed to anything.
    pub(super) fn is_subscribed(self) -> bool {
        self.channels + self.patterns > 0
    }

    /// The letters that Redis has for the state of a connection.
    fn flags(self, is_local: bool) -> String {
        let letters = [('P', self.is_subscribed()), ('x', self.queued.is_some()), ('U', is_local)];
        let flags: String = letters.iter().filter(|(_, is_set)| *is_set).map(|(letter, _)| *letter).collect();
        if flags.is_empty() { "N".to_owned() } else { flags }
    }
}

/// A connection as others see it.
#[derive(Debug)]
pub(super) struct ClientCard {
    /// No other connection has it while the server runs.
    pub(super) id: u64,
    worker: usize,
    connection: ConnectionId,
    pub(super) addresses: ClientAddresses,
    since: Now,
    /// The milliseconds of its last turn, and the number of the last command in that. Its worker writes it, and any thread
    /// reads it.
    last: AtomicU64,
    /// Written by its worker, and read by any thread.
    shown: Mutex<ShownClient>,
    /// Written by its worker, and read by any thread.
    counts: Mutex<ClientCounts>,
}

impl ClientCard {
    /// Notes the last command of a turn.
    pub(super) fn note(&self, command: Option<usize>, now: Now) {
        let command = command.map_or(NO_COMMAND, |number| number as u64);
        // Relaxed: nothing else depends on it.
        self.last.store(now.millis() << COMMAND_BITS | command, Ordering::Relaxed);
    }

    /// Shows what the client has chosen.
    pub(super) fn show(&self, shown: ShownClient) {
        *self.shown.lock() = shown;
    }

    /// Its subscriptions and its transaction.
    pub(super) fn counts(&self) -> ClientCounts {
        *self.counts.lock()
    }

    /// The user, as Redis names the one of those that name none.
    pub(super) fn user(&self) -> String {
        self.shown.lock().user.clone().unwrap_or_else(|| "default".to_owned())
    }

    /// The line of CLIENT LIST.
    pub(super) fn line(&self, commands: &CommandIndex, now: Now) -> String {
        let Self { id, addresses: ClientAddresses { peer, own, descriptor }, since, .. } = self;
        let last = self.last.load(Ordering::Relaxed);
        let ShownClient { name, library, library_version, user, database, version, subcommand } =
            self.shown.lock().clone();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let row = usize::try_from(last & ((1 << COMMAND_BITS) - 1)).ok().and_then(|number| commands.all.get(number));
        let command = match (row, subcommand) {
            (None, _) => "NULL".to_owned(),
            (Some(row), Some(subcommand)) if row.has_subcommands() => format!("{}|{subcommand}", row.name),
            (Some(row), _) => row.name.to_owned(),
        };
        let counts = self.counts();
        let ClientCounts { channels, patterns, watched, queued } = counts;
        let queued = queued.map_or(-1, |queued| i64::try_from(queued).unwrap_or(i64::MAX));
        let seconds = |from: u64| now.millis().saturating_sub(from) / 1_000;
        format!(
            "id={id} addr={peer} laddr={own} fd={descriptor} name={} age={} idle={} flags={} db={} sub={channels} \
             psub={patterns} ssub=0 multi={queued} watch={watched} cmd={command} user={} redir=-1 resp={} lib-name={} lib-ver={}\n",
            text(&name),
            seconds(since.millis()),
            seconds(last >> COMMAND_BITS),
            // Both ends of a Unix socket have its path.
            counts.flags(peer == own && !own.is_empty()),
            database.map_or(-1, i32::from),
            user.as_deref().unwrap_or("default"),
            if version == RespVersion::Three { 3 } else { 2 },
            text(&library),
            text(&library_version),
        )
    }
}

/// All connections.
#[derive(Debug)]
pub(super) struct ClientRegistry {
    cards: Mutex<BTreeMap<u64, Arc<ClientCard>>>,
    /// The last number that a connection was given.
    last_id: AtomicU64,
    /// The way to each worker. It holds no more than there were connections to kill.
    workers: Vec<WakingSender<ConnectionId>>,
}

impl ClientRegistry {
    pub(super) fn new(workers: Vec<WakingSender<ConnectionId>>) -> Self {
        Self { cards: Mutex::default(), last_id: AtomicU64::new(0), workers }
    }

    /// A connection that the worker with this number has.
    pub(super) fn enter(
        self: &Arc<Self>,
        worker: usize,
        connection: ConnectionId,
        addresses: ClientAddresses,
        now: Now,
    ) -> ClientPlace {
        // Relaxed: the numbers differ, and nothing else depends on them.
        let id = 1 + self.last_id.fetch_add(1, Ordering::Relaxed);
        let last = AtomicU64::new(now.millis() << COMMAND_BITS | NO_COMMAND);
        let shown = ShownClient { database: Some(0), ..ShownClient::default() };
        let card = ClientCard {
            id,
            worker,
            connection,
            addresses,
            since: now,
            last,
            shown: Mutex::new(shown),
            counts: Mutex::default(),
        };
        let card = Arc::new(card);
        self.cards.lock().insert(id, Arc::clone(&card));
        ClientPlace { card, counts: ClientCounts::default(), registry: Some(Arc::clone(self)) }
    }

    /// The connection with this number.
    pub(super) fn get(&self, id: u64) -> Option<Arc<ClientCard>> {
        self.cards.lock().get(&id).cloned()
    }

    /// All connections, by their numbers.
    pub(super) fn all(&self) -> Vec<Arc<ClientCard>> {
        self.cards.lock().values().cloned().collect()
    }

    /// At most so many connections behind the one with this number, by their numbers.
    pub(super) fn page(&self, after: u64, most: usize) -> Vec<Arc<ClientCard>> {
        self.cards.lock().range(after + 1..).take(most).map(|(_, card)| Arc::clone(card)).collect()
    }

    /// Has the worker of a connection close it, unless another client has done so. Others see it no more.
    pub(super) fn kill(&self, card: &ClientCard) -> bool {
        let is_first = self.cards.lock().remove(&card.id).is_some();
        if is_first && let Some(worker) = self.workers.get(card.worker) {
            worker.send(card.connection);
        }
        is_first
    }
}

/// The place of a connection in the registry. Dropping it takes the connection out.
#[derive(Debug)]
pub(super) struct ClientPlace {
    pub(super) card: Arc<ClientCard>,
    /// What the card shows.
    counts: ClientCounts,
    /// `None` in tests of a connection alone.
    registry: Option<Arc<ClientRegistry>>,
}

impl ClientPlace {
    /// Shows the subscriptions and the transaction, if they have changed.
    pub(super) fn show_counts(&mut self, counts: ClientCounts) {
        if self.counts != counts {
            self.counts = counts;
            *self.card.counts.lock() = counts;
        }
    }
}

impl Drop for ClientPlace {
    fn drop(&mut self) {
        if let Some(registry) = &self.registry {
            registry.cards.lock().remove(&self.card.id);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

    use super::*;
    use crate::net::sockets::WakeSignal;
    use crate::services::resp::commands::INDEX;

    /// The place of a connection that no registry has.
    pub(in super::super) fn place() -> ClientPlace {
        let registry = Arc::new(ClientRegistry::new(Vec::new()));
        let place = registry.enter(0, ConnectionId::new(0, 0), ClientAddresses::default(), Now::from_millis(0));
        ClientPlace { registry: None, counts: ClientCounts::default(), card: Arc::clone(&place.card) }
    }

    #[test]
    fn a_line_says_who_the_client_is_and_what_it_did_last() {
        let mut place = place();
        assert!(place.card.line(&INDEX, Now::from_millis(1)).contains(
            " age=0 idle=0 flags=N db=0 sub=0 psub=0 ssub=0 multi=-1 watch=0 cmd=NULL user=default redir=-1 resp=2 "
        ));
        let number = |name: &str| INDEX.number(name.as_bytes());
        place.card.note(number("get"), Now::from_millis(61_000));
        let shown = ShownClient { subcommand: Some("list".to_owned()), ..ShownClient::default() };
        place.card.show(ShownClient { name: b"ada".to_vec(), user: Some("bob".to_owned()), ..shown });
        let line = place.card.line(&INDEX, Now::from_millis(63_999));
        assert!(line.contains(" name=ada age=63 idle=2 flags=N db=-1 sub=0 "), "{line}");
        assert!(line.contains(" watch=0 cmd=get user=bob "), "{line}");
        place.show_counts(ClientCounts { channels: 2, patterns: 1, watched: 3, queued: Some(0) });
        let line = place.card.line(&INDEX, Now::from_millis(63_999));
        assert!(line.contains(" flags=Px db=-1 sub=2 psub=1 ssub=0 multi=0 watch=3 cmd=get "), "{line}");
        place.card.note(number("client"), Now::from_millis(63_999));
        assert!(place.card.line(&INDEX, Now::from_millis(63_999)).contains(" cmd=client|list "));
    }

    #[test]
    fn a_connection_is_killed_once_and_its_worker_is_woken() {
        let wake_signals = [(); 2].map(|()| WakeSignal::new().unwrap());
        let (senders, receivers): (Vec<_>, Vec<_>) = wake_signals.iter().map(WakingSender::new).unzip();
        let registry = Arc::new(ClientRegistry::new(senders));
        let [first, second] = [0, 1].map(|slot| {
            registry.enter(slot, ConnectionId::new(slot, 7), ClientAddresses::default(), Now::from_millis(1))
        });
        let ids = || registry.all().iter().map(|card| card.id).collect::<Vec<_>>();
        assert_eq!(ids(), [1, 2]);
        let card = registry.get(2).unwrap();
        assert_eq!([(); 2].map(|()| registry.kill(&card)), [true, false]);
        assert_eq!((ids(), receivers[0].len()), (vec![1], 0));
        assert_eq!(receivers[1].try_iter().collect::<Vec<_>>(), [ConnectionId::new(1, 7)]);
        drop(second);
        drop(first);
        assert!(ids().is_empty());
    }
}
