//! Requests of the operator to a running server, over a Unix socket in the folder of its store. There is one: a backup.
//!
//! ```text
//! spindle backup DIR ─► client ─► FOLDER/control ─► thread "control" ─► Tasks::backup: one sync, under the lock
//!                                                          └─► StoreBackup::write_to: links and copies ─► reply
//! ```
//! The socket is named `control`. Only the owner of the folder may connect. The server makes it when it has locked the
//! folder, and removes it at its end. One that a killed server has left is replaced by the next one.
//!
//! The server serves one client at a time. While a backup is written, further clients are refused at once. A client
//! that hangs up cancels its backup.
//!
//! [`wire`] has the bytes, [`serve`] the server's end, `clients/rust/operator/control.rs` the other. This module does
//! not write a backup; see `store/backup.rs`.

pub(crate) mod address;
pub mod serve;
pub mod wire;
