//! The bounds of this service, and the version of Redis whose commands it has.

/// The version of Redis whose commands clients may expect.
pub(super) const REDIS_VERSION: &str = "7.4.0";
/// The longest argument that is always taken, in bytes.
pub(super) const ARGUMENT_BYTES_MIN: usize = 16 << 10;
/// The most arguments of which an unknown command is shown, in bytes, as Redis does.
pub(super) const SHOWN_BYTES: usize = 128;
