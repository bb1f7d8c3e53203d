//! Queues.
pub(crate) mod document;
pub(crate) mod words;
