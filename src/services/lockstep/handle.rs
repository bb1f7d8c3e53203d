//! One request against the tables, on the path of the `kv` protocol. The value that it returns is copied, because the
//! client asks for it later.
//!
//! This module does not receive or send, and does not keep the value.

use super::conversation::Outcome;
use crate::services::tables::handle::{HandlerContext, NotDone, handle, refused};
use crate::services::tables::wire::{Reason, Reply, Request};
use crate::tables::{Batch, ManyProgress};

/// Carries out the request. A value longer than `room` is refused, and is not deleted. A writer that comes in between
/// may make a deleted value longer.
///
/// # Errors
/// [`NotDone`] if the request must be tried again in another batch.
pub(super) fn execute(
    request: &Request<'_>,
    batch: &mut Batch<'_>,
    context: &HandlerContext<'_>,
    room: usize,
) -> Result<Outcome, NotDone> {
    if let Request::Delete { table, key } = request
        && batch.get(table.name(), key).is_ok_and(|value| value.len() > room)
    {
        return Ok(Err(Reason::OutOfMemory));
    }
    let is_read = matches!(request, Request::Get { .. });
    // No request of this dialect goes in portions.
    let reply = handle(request, batch, context, &mut ManyProgress::default()).or_else(refused)?;
    Ok(match reply {
        Reply::Refused(reason) => Err(reason),
        Reply::Value(value) if is_read && value.len() > room => Err(Reason::OutOfMemory),
        Reply::Value(value) => Ok(Some(value.into())),
        _ => Ok(None),
    })
}
