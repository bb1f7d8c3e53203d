//! Makes the frontend of the lock-step dialect, if it is on.

use std::sync::Arc;

use super::services::BoundService;
use super::{Error, ServerConfig};
use crate::clock::Clock;
use crate::net::service::ServiceParts;
use crate::services::lockstep::serve as lockstep;
use crate::services::lockstep::wire::encode_notification;
use crate::services::tables::serve::{LockstepMetrics, LockstepPart};
use crate::tables::Tables;

/// Listens for the lock-step dialect, if any of it is on. Also returns the part that runs beside the tables' own
/// frontend.
pub(super) fn bind_lockstep(
    config: &ServerConfig,
    tables: &Tables,
    clock: Clock,
    parts: ServiceParts,
) -> Result<(Option<BoundService>, Option<LockstepPart>), Error> {
    let metrics = Arc::new(LockstepMetrics::new(clock.now()));
    let bind = |settings| {
        lockstep::bind(
            settings,
            config.limits.elements.value_bytes,
            tables.session(),
            clock,
            Arc::clone(&metrics),
            parts,
        )
        .map(|service| {
            BoundService::new("lockstep", "lockstep", service, |front| {
                front.run();
                Ok(())
            })
        })
    };
    let lockstep = config.lockstep.as_ref().map(bind).transpose()?;
    let publish = config.notifications.lockstep.clone();
    let is_on = lockstep.is_some() || publish.is_some();
    Ok((lockstep, is_on.then_some(LockstepPart { publish, encode: encode_notification, metrics })))
}
