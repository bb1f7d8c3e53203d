//! The state of a connection: its table, its version of the protocol, its user, and what it has begun.

use super::arguments::{Arguments, lower};
use super::channels::{ChannelSearch, SubscriberCount, SubscriptionKind};
use super::registry::{ClientCounts, ClientPlace, ShownClient};
use super::subscriptions::Subscriptions;
use super::transaction::{CommandQueue, Transaction};
use super::walk::KeyWalk;
use crate::resp3::RespVersion;
use crate::security::{Access, Denied, Identity, Resource};
use crate::tables::ManyProgress;
use crate::zmtp::Claim;

/// Which replies a client wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ReplyMode {
    /// All of them.
    #[default]
    On,
    /// None.
    Off,
    /// None to this command and to the next one.
    SkipNext,
    /// None to this command.
    Skip,
}

/// The name of a client, and the name of its library, as the client has sent them.
#[derive(Debug, Default)]
pub(super) struct ClientNames {
    pub(super) name: Vec<u8>,
    pub(super) library: Vec<u8>,
    pub(super) library_version: Vec<u8>,
}

/// How far the proof of the client's user has come.
#[derive(Debug, Default)]
pub(super) enum Login {
    /// The client has claimed nothing since its last proof.
    #[default]
    None,
    /// The client claims to be a user, and the connection has not taken the claim.
    Claimed(Claim),
    /// The claim is being checked.
    Checked,
    /// The claim is decided. The command that made it comes again.
    Decided(Result<(), Denied>),
}

/// What a client has queued or collected.
#[derive(Debug, Default)]
pub(super) struct Collected {
    /// The keys that its next command has collected.
    pub(super) walk: Option<Box<KeyWalk>>,
    /// The subscribers of the message that it publishes, as far as they are counted.
    pub(super) count: Option<Box<SubscriberCount>>,
    /// The channels that it has asked for, as far as they are found.
    pub(super) search: Option<Box<ChannelSearch>>,
    /// What it watches and has queued, if it does.
    pub(super) transaction: Option<Box<Transaction>>,
    /// Commands of a transaction are carried out: they were admitted when they were queued.
    pub(super) is_in_exec: bool,
}

/// The state of a connection.
#[derive(Debug)]
pub struct RespClient {
    /// How others see the connection.
    pub(super) place: ClientPlace,
    /// The table that commands are about.
    pub(super) table: Box<[u8]>,
    /// What the client speaks.
    pub(super) version: RespVersion,
    /// Which replies it wants.
    pub(super) replies: ReplyMode,
    pub(super) names: ClientNames,
    /// The user, where users are named.
    pub(super) user: Option<Identity>,
    /// The generation of the users at which this one was last found to be as it was.
    judged: u64,
    pub(super) login: Login,
    /// How far its next command has come.
    pub(super) progress: ManyProgress,
    /// What it has subscribed to, if anything.
    pub(super) subscriptions: Option<Box<Subscriptions>>,
    /// What it has queued or collected.
    pub(super) collected: Collected,
    /// The client has taken its leave.
    pub(super) ends: bool,
}

impl RespClient {
    pub(super) fn new(place: ClientPlace) -> Self {
        Self {
            place,
            table: Box::from(*b"0"),
            version: RespVersion::default(),
            replies: ReplyMode::default(),
            names: ClientNames::default(),
            user: None,
            judged: 0,
            login: Login::default(),
            progress: ManyProgress::default(),
            subscriptions: None,
            collected: Collected::default(),
            ends: false,
        }
    }

    /// The number of the database, if the table is one.
    pub(super) fn database(&self) -> Option<u8> {
        database_of(&self.table)
    }

    /// Whether it has subscribed, and its version does not mark messages as such.
    pub(super) fn is_restricted(&self) -> bool {
        self.version == RespVersion::Two && self.is_subscribed()
    }

    /// Whether it has subscribed to anything.
    pub(crate) fn is_subscribed(&self) -> bool {
        self.subscriptions.as_ref().is_some_and(|all| all.count() > 0)
    }

    /// Memory that it keeps for what the client has begun, in bytes.
    pub(crate) fn kept_bytes(&self) -> usize {
        let Collected { count, search, .. } = &self.collected;
        let of_channels =
            count.as_ref().map_or(0, |count| count.bytes()) + search.as_ref().map_or(0, |search| search.bytes());
        let subscribed = self.subscriptions.as_ref().map_or(0, |all| all.kept_bytes());
        subscribed + of_channels + self.held_bytes() + self.walk_bytes()
    }

    /// Bytes that its walk has collected.
    pub(super) fn walk_bytes(&self) -> usize {
        self.collected.walk.as_ref().map_or(0, |walk| walk.bytes)
    }

    /// Whether the client may read this table.
    pub(super) fn may_read(&self, table: &[u8]) -> bool {
        self.user.as_ref().is_none_or(|user| user.may(Access::Read, Resource::Table(table)))
    }

    /// Whether the user is still as it was when it was proved.
    pub(super) fn is_current(&mut self) -> bool {
        let Some(user) = &self.user else { return true };
        // Read first: a change that comes meanwhile is noticed at the next turn.
        let generation = user.users_generation();
        let is_current = self.judged == generation || user.is_current();
        if is_current {
            self.judged = generation;
        }
        is_current
    }

    /// The client has proved to be this user, by a command or by the certificate that it began with.
    pub(crate) fn admit(&mut self, user: Identity) {
        // No generation is this one, so the next turn looks.
        (self.user, self.judged) = (Some(user), u64::MAX);
        self.decide(Ok(()));
    }

    /// The client has not proved its claim. Returns the user that it still is.
    pub(crate) fn refuse(&mut self, why: Denied) -> Option<Identity> {
        self.decide(Err(why));
        self.user.clone()
    }

    /// A claim is decided. No command waits for that of a certificate, so the next AUTH has its own.
    fn decide(&mut self, result: Result<(), Denied>) {
        if matches!(self.login, Login::Checked) {
            self.login = Login::Decided(result);
        }
    }

    /// The claim of the client, if the connection has not taken it.
    pub(crate) fn take_claim(&mut self) -> Option<Claim> {
        match std::mem::take(&mut self.login) {
            Login::Claimed(claim) => {
                self.login = Login::Checked;
                Some(claim)
            }
            other => {
                self.login = other;
                None
            }
        }
    }

    /// Whether commands are queued for EXEC.
    pub(super) fn is_collecting(&self) -> bool {
        self.collected.transaction.as_ref().is_some_and(|transaction| transaction.queue.is_some())
    }

    /// Whether a part of the reply to its next command is written, so that no other reply may stand before the rest.
    pub(super) fn has_partial_reply(&self) -> bool {
        self.progress.has_partial_answer() || self.is_executing()
    }

    /// Whether a part of the replies to EXEC is written.
    fn is_executing(&self) -> bool {
        let queue = self.collected.transaction.as_ref().and_then(|transaction| transaction.queue.as_ref());
        queue.is_some_and(|queue| queue.done.is_some())
    }

    /// A command is refused, so the transaction that is being collected will be. Nothing more is kept for it.
    pub(super) fn refuse_transaction(&mut self) {
        let queue = self.collected.transaction.as_mut().and_then(|transaction| transaction.queue.as_mut());
        queue.into_iter().for_each(CommandQueue::refuse);
    }

    /// The table of the next command, behind the SELECTs that are queued.
    pub(super) fn next_table(&self) -> &[u8] {
        let queue = self.collected.transaction.as_ref().and_then(|transaction| transaction.queue.as_ref());
        queue.map_or(&self.table, |queue| &queue.table)
    }

    /// Bytes that its transaction takes.
    pub(super) fn held_bytes(&self) -> usize {
        self.collected.transaction.as_ref().map_or(0, |transaction| transaction.bytes())
    }

    /// Whether the client wants the reply that is being made.
    pub(super) fn wants_replies(&self) -> bool {
        self.replies == ReplyMode::On
    }

    /// As [`RespClient::wants_replies`]. It is asked once for each command, after that was carried out.
    pub(super) fn take_reply(&mut self) -> bool {
        match self.replies {
            ReplyMode::On => true,
            ReplyMode::Off => false,
            ReplyMode::SkipNext => {
                self.replies = ReplyMode::Skip;
                false
            }
            ReplyMode::Skip => {
                self.replies = ReplyMode::On;
                false
            }
        }
    }

    /// The connection is as it was when it began, but for its place.
    pub(super) fn reset(&mut self) {
        (self.table, self.version) = (Box::from(*b"0"), RespVersion::default());
        // The reply to the present command is still skipped, if the client has said so.
        if self.replies != ReplyMode::Skip {
            self.replies = ReplyMode::default();
        }
        (self.names, self.user, self.login) = (ClientNames::default(), None, Login::default());
        (self.progress, self.collected) = (ManyProgress::default(), Collected::default());
    }

    /// Shows others how many subscriptions it has, and how far its transaction has come. EXEC shows what it carries out.
    pub(super) fn show_counts(&mut self) {
        if self.collected.is_in_exec {
            return;
        }
        let of_kind = |kind| self.subscriptions.as_ref().map_or(0, |all| all.names(kind).len());
        let transaction = self.collected.transaction.as_deref();
        let counts = ClientCounts {
            channels: of_kind(SubscriptionKind::Channel),
            patterns: of_kind(SubscriptionKind::Pattern),
            watched: transaction.map_or(0, |transaction| transaction.watched().len()),
            queued: transaction.and_then(|transaction| Some(transaction.queue.as_ref()?.commands.len())),
        };
        self.place.show_counts(counts);
    }

    /// Shows others what the client has chosen, and the second word of this command.
    pub(super) fn show(&self, command: Arguments<'_>) {
        let Self { names: ClientNames { name, library, library_version }, user, version, .. } = self;
        self.place.card.show(ShownClient {
            name: name.clone(),
            library: library.clone(),
            library_version: library_version.clone(),
            user: user.as_ref().map(|user| user.name().to_owned()),
            database: self.database(),
            version: *version,
            subcommand: command.behind(1).first().map(|word| lower(word)),
        });
    }
}

/// The names of all databases.
pub(super) const DATABASES: [&[u8]; 16] =
    [b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8", b"9", b"10", b"11", b"12", b"13", b"14", b"15"];

/// The number of the database that this table is: 0 to 15.
pub(super) fn database_of(table: &[u8]) -> Option<u8> {
    match table {
        [digit @ b'0'..=b'9'] => Some(digit - b'0'),
        [b'1', digit @ b'0'..=b'5'] => Some(10 + digit - b'0'),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::resp::registry::tests::place;

    #[test]
    fn sixteen_tables_are_databases() {
        for number in 0..16_u8 {
            assert_eq!(database_of(number.to_string().as_bytes()), Some(number));
        }
        for table in ["", "00", "01", "16", "-1", "1a", "birds"] {
            assert_eq!(database_of(table.as_bytes()), None, "{table}");
        }
    }

    #[test]
    fn replies_are_skipped_for_one_command_or_until_they_are_wanted_again() {
        let mut client = RespClient { replies: ReplyMode::SkipNext, ..RespClient::new(place()) };
        assert_eq!([(); 3].map(|()| client.take_reply()), [false, false, true], "of SKIP, of the next, of the third");
        client.replies = ReplyMode::Off;
        assert_eq!([(); 2].map(|()| client.take_reply()), [false, false]);
    }
}
