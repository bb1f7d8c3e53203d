//! The settings that CONFIG shows, under the names that Redis has for them. A flag of the server sets each of them, but
//! for the events, which are always published. The policy of the eviction may be set at any time.

use super::answer::{Failure, refused, refused_with};
use super::arguments::{is, shown};
use super::call::Call;
use crate::descriptors::DescriptorBudget;
use crate::limits::CONNECTIONS_MAX;
use crate::tables::EvictionPolicy;

/// A setting.
pub(super) struct Setting {
    pub(super) name: &'static str,
    pub(super) value: String,
}

/// All settings.
pub(super) fn all(call: &Call<'_, '_>) -> Vec<Setting> {
    let context = call.context;
    let setting = |name, value: &str| Setting { name, value: value.to_owned() };
    vec![
        setting("appendonly", "no"),
        setting("databases", "16"),
        setting("maxclients", &clients_max().to_string()),
        setting("maxmemory", &context.report.tables_metrics().memory.max.to_string()),
        setting("maxmemory-policy", policy_name(call.batch.eviction())),
        setting("notify-keyspace-events", "AKE"),
        setting("proto-max-bulk-len", &context.value_max.to_string()),
        setting("save", ""),
        setting("slowlog-log-slower-than", &(context.report.slow.bound_nanos() / 1_000).to_string()),
        setting("timeout", "0"),
    ]
}

/// How many connections there may be: as many as a frontend may have, if there are descriptors.
pub(super) fn clients_max() -> u64 {
    let DescriptorBudget { limit, reserve } = DescriptorBudget::now();
    limit.saturating_sub(reserve).min(CONNECTIONS_MAX as u64)
}

/// The policies by Redis's names.
const POLICIES: [(&str, EvictionPolicy); 2] =
    [("noeviction", EvictionPolicy::None), ("allkeys-lru", EvictionPolicy::Lru)];

/// The name that Redis has for a policy.
pub(super) fn policy_name(policy: EvictionPolicy) -> &'static str {
    POLICIES.into_iter().find(|(_, known)| *known == policy).map_or("", |(name, _)| name)
}

/// Sets settings, each a name and a value: all of them, or none.
///
/// # Errors
/// A refusal: only a flag of the server sets it, there is none of this name, or the user may not set it.
pub(super) fn set(call: &Call<'_, '_>, pairs: &[[&[u8]; 2]]) -> Result<(), Failure> {
    let mut policies = Vec::new();
    for [name, value] in pairs {
        if is(name, "maxmemory-policy") {
            call.check_admin("config|set")?;
            let policy = POLICIES.into_iter().find(|(known, _)| is(value, known));
            policies.push(policy.ok_or_else(no_such_policy)?.1);
        } else if !is(name, "notify-keyspace-events") {
            let before = "ERR Unknown option or number of arguments for CONFIG SET - '";
            return Err(refused_with(before, shown(name, usize::MAX), "'"));
        }
    }
    policies.into_iter().for_each(|policy| call.batch.set_eviction(policy));
    Ok(())
}

/// In Redis's words, with the policies that there are.
fn no_such_policy() -> Failure {
    let names = POLICIES.map(|(name, _)| name).join(", ");
    refused(format!(
        "ERR CONFIG SET failed (possibly related to argument 'maxmemory-policy') - argument(s) must be one of the following: {names}"
    ))
}
