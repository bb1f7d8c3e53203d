//! The bounds of this service, and the version of Redis whose commands it has.

/// The version of Redis whose commands clients may expect.
pub(super) const REDIS_VERSION: &str = "7.4.0";
/// The longest argument that is always taken, in bytes.
pub(super) const ARGUMENT_BYTES_MIN: usize = 16 << 10;
/// The longest channel, and the longest pattern of channels, in bytes: a channel of a key has fewer.
pub(super) const CHANNEL_BYTES_MAX: usize = 8 << 10;
/// Bytes of a pattern of keys or names behind its first special one: each is compared with them thousands of times.
pub(super) const PATTERN_BYTES_MAX: usize = 1 << 10;
/// Bytes of a pattern times bytes of keys in a page of a walk: some milliseconds.
pub(super) const PAGE_STEPS_MAX: usize = 4 << 20;
/// Patterns of channels of one connection. Those that begin as a channel are compared with its messages.
pub(super) const CHANNEL_PATTERNS_MAX: usize = 1_024;
/// Bytes of the channels and patterns of one connection.
pub(super) const SUBSCRIPTION_BYTES_MAX: usize = 8 << 20;
/// Channels or patterns that a client subscribes to, or leaves, before others have turns: a millisecond.
pub(super) const NAMES_A_TURN: usize = 256;
/// Steps that a worker takes to deliver messages, and as many for changes, before its clients have turns: a millisecond. A
/// step is a byte that is compared.
pub(super) const DELIVERY_STEPS: usize = 512 << 10;
/// Steps of a client that has subscribers counted, or channels found, before others have turns.
pub(super) const COUNT_STEPS: usize = 128 << 10;
/// What a push costs before its bytes are copied, in steps. So a subscriber gets some hundred messages in a turn, before it
/// is sent any of them.
pub(super) const PUSH_STEPS: usize = 512;
/// Bytes that are copied in one step.
pub(super) const PUSH_BYTES_A_STEP: usize = 16;
/// The longest name of a client, of its library, and of the version of that, in bytes.
pub(super) const CLIENT_NAME_BYTES_MAX: usize = 1 << 10;
/// The most arguments of which an unknown command is shown, in bytes, as Redis does.
pub(super) const SHOWN_BYTES: usize = 128;
/// Tables of one transaction. Their names are compared with each other.
pub(super) const TRANSACTION_TABLES_MAX: usize = 256;
