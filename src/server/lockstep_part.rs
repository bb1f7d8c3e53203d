//! Makes the frontend of the lock-step dialect, if it is on.

use std::sync::Arc;

use super::{Error, ServerConfig};
use crate::clock::Clock;
use crate::services::lockstep::serve::{self as lockstep, Lockstep};
use crate::services::lockstep::wire::encode_notification;
use crate::services::tables::serve::{self, LockstepPart, LockstepTally};
use crate::stats::HeldBytes;
use crate::stats::slow_log::SlowLog;
use crate::tables::Tables;

/// The frontend of the lock-step dialect, its held bytes, and the part that runs beside the tables' own frontend.
pub(super) type BoundLockstep = (Option<Lockstep>, Option<HeldBytes>, Option<LockstepPart>);

/// Listens for the lock-step dialect, if any of it is on.
pub(super) fn bind_lockstep(
    config: &ServerConfig,
    settings: &serve::KvConfig,
    (tables, clock): (&Tables, Clock),
    slow: &Arc<SlowLog>,
) -> Result<BoundLockstep, Error> {
    let tally = Arc::new(LockstepTally::new(clock.now()));
    let limits = (settings.value_max, settings.held_bytes_max);
    let bind =
        |config| lockstep::bind(config, limits, (tables.session(), clock), (Arc::clone(&tally), Arc::clone(slow)));
    let (lockstep, held) = config.lockstep.as_ref().map(bind).transpose()?.unzip();
    let publish = config.lockstep_publish.clone();
    let is_on = lockstep.is_some() || publish.is_some();
    Ok((lockstep, held, is_on.then_some(LockstepPart { publish, encode: encode_notification, tally })))
}
