//! The error of both event stores.

/// Why the store has failed, as a sentence for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EventStoreError(pub(super) String);
