//! The bounds of users. [`crate::limits`] has those that they share with others, and says how they read.

use std::time::Duration;

/// Bytes of the file of users (`OPERATION.md`): 4 KiB for each of [`USERS_MAX`] users.
pub const USERS_FILE_BYTES_MAX: u64 = 4 << 20;
/// Users of one file (`OPERATION.md`). A change of the file compares all of them in some milliseconds.
pub const USERS_MAX: usize = 1_024;
/// Longest name of a user, in bytes (`OPERATION.md`). ZMTP has 255 for a name of PLAIN.
pub const USER_NAME_BYTES_MAX: usize = 64;
/// Longest password, in bytes: that of a name or a password of PLAIN (RFC 24).
pub const PASSWORD_BYTES_MAX: usize = 255;
/// Prefixes of one list of a user. A request looks at all of them.
pub const PREFIXES_MAX: usize = 64;
/// Longest prefix, in bytes: as long as the longest name of a queue.
pub const PREFIX_BYTES_MAX: usize = 255;

/// Bytes of the certificates that a client sends, its own and those behind it. Each of its connections keeps them. Four
/// of RSA with 4,096 bits are shorter.
pub const CLIENT_CERTIFICATES_BYTES_MAX: usize = 8 << 10;

/// Memory of one check of a password, in KiB: a hash in the file that needs more is refused. A server checks one
/// password at a time.
pub const HASH_KIBIBYTES_MAX: u32 = 256 << 10;
/// Passes of one check of a password over its memory. With the memory above, a check takes a second or so.
pub const HASH_PASSES_MAX: u32 = 16;

/// How often the file is looked at for a change.
pub const USERS_LOOK: Duration = Duration::from_secs(1);

/// Tries that wait to be checked, some 500 bytes each. One more displaces one of the address with the most.
pub const ATTEMPTS_MAX: usize = 1_024;
/// Tries of one address that wait, but for those below. One more displaces one at the name with the most.
pub const ATTEMPTS_PER_ADDRESS_MAX: usize = 64;
/// Tries that wait at a name from an address at which it was right. One more displaces the oldest.
pub const ATTEMPTS_PER_PROVEN_MAX: usize = 8;
/// How long an address, or a name, waits for the next check after its first wrong password. Each further one doubles it.
pub const WRONG_PASSWORD_PAUSE: Duration = Duration::from_millis(250);
/// The longest such pause of an address: shorter than a handshake may take, so that a right password still comes
/// through. A reply that the server is busy asks the client to wait so long.
pub const WRONG_PASSWORD_PAUSE_MAX: Duration = Duration::from_secs(8);
/// The longest pause of a name at addresses that were never right with the name. It is short, since others cause it
/// for the user.
pub const NAME_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Time after which wrong passwords of an address or at a name are forgotten.
pub const WRONG_PASSWORD_MEMORY: Duration = Duration::from_secs(60);
/// Addresses whose wrong passwords are remembered, 150 bytes each. If there are more, those that failed the longest
/// time ago are forgotten.
pub const ADDRESSES_MAX: usize = 4_096;
/// Pairs of a name and an address at which it was right, 150 bytes each. If there are more, one of the name with the
/// most is forgotten.
pub const PROVEN_MAX: usize = 4_096;
/// A refusal of an address is logged at most once in this time (`OPERATION.md`).
pub const REFUSAL_LOG_PAUSE: Duration = Duration::from_secs(1);
/// Refusals of all addresses that are logged in that time (`OPERATION.md`).
pub const REFUSAL_LINES_MAX: usize = 10;

const _: () = assert!(ATTEMPTS_PER_PROVEN_MAX < ATTEMPTS_PER_ADDRESS_MAX && ATTEMPTS_PER_ADDRESS_MAX < ATTEMPTS_MAX);
const _: () = assert!(NAME_PAUSE_MAX.as_millis() < WRONG_PASSWORD_PAUSE_MAX.as_millis());
const _: () = assert!(WRONG_PASSWORD_PAUSE_MAX.as_millis() < crate::limits::HANDSHAKE_TIMEOUT.as_millis());
