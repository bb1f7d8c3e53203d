//! The settings that CONFIG shows, under the names that Redis has for them. A flag of the server sets each of them, but
//! for the events, which are always published. The policy of the eviction, and what is on disk of the databases, may be set at any time.

use super::answer::{Failure, refused, refused_with};
use super::appending::AppendingChange;
use super::arguments::{is, shown};
use super::call::{Call, present};
use super::client::DATABASES;
use crate::descriptors::DescriptorBudget;
use crate::limits::CONNECTIONS_MAX;
use crate::tables::{EvictionPolicy, ManyProgress};

/// A setting.
pub(super) struct Setting {
    pub(super) name: &'static str,
    pub(super) value: String,
}

/// All settings.
pub(super) fn all(call: &Call<'_, '_>) -> Vec<Setting> {
    let context = call.context;
    let setting = |name, value: &str| Setting { name, value: value.to_owned() };
    let (only, fsync) = context.appending.values(call.batch.durability());
    vec![
        setting("appendfsync", fsync),
        setting("appendonly", only),
        setting("databases", "16"),
        setting("maxclients", &clients_max().to_string()),
        setting("maxmemory", &context.report.tables_metrics().memory.max.to_string()),
        setting("maxmemory-policy", policy_name(call.batch.eviction())),
        setting("notify-keyspace-events", "AKE"),
        setting("proto-max-bulk-len", &context.limits.value.to_string()),
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
pub(super) fn set(call: &mut Call<'_, '_>, pairs: &[[&[u8]; 2]]) -> Result<(), Failure> {
    let (mut policies, mut appending) = (Vec::new(), AppendingChange::default());
    for [name, value] in pairs {
        if is(name, "maxmemory-policy") {
            call.check_admin("config|set")?;
            let policy = POLICIES.into_iter().find(|(known, _)| is(value, known));
            policies.push(policy.ok_or_else(no_such_policy)?.1);
        } else if is(name, "appendonly") || is(name, "appendfsync") {
            call.check_admin("config|set")?;
            if !appending.take(name, value) {
                return Err(no_such_value(name));
            }
        } else if !is(name, "notify-keyspace-events") {
            let before = "ERR Unknown option or number of arguments for CONFIG SET - '";
            return Err(refused_with(before, shown(name, usize::MAX), "'"));
        }
    }
    if appending != AppendingChange::default() {
        append(call, appending)?;
    }
    policies.into_iter().for_each(|policy| call.batch.set_eviction(policy));
    Ok(())
}

/// Sets what is on disk of the databases, present and future ones.
fn append(call: &mut Call<'_, '_>, change: AppendingChange) -> Result<(), Failure> {
    if call.batch.is_in_transaction() {
        return Err(refused("ERR appendonly and appendfsync are not set inside a transaction"));
    }
    alter_databases(call, change)?;
    call.context.appending.set(change);
    // A database may have come meanwhile.
    alter_databases(call, change)
}

/// Each attempt comes to the database that is next.
fn alter_databases(call: &mut Call<'_, '_>, change: AppendingChange) -> Result<(), Failure> {
    let durability = call.context.appending.durability_with(change, call.batch.durability());
    DATABASES.iter().try_for_each(|database| {
        let altered = call.batch.alter_table(database, durability, &mut ManyProgress::default());
        present(altered).map(drop)
    })
}

/// In Redis's words.
fn no_such_value(name: &[u8]) -> Failure {
    let words = match is(name, "appendonly") {
        true => "argument must be 'yes' or 'no'",
        false => "argument(s) must be one of the following: everysec, always, no",
    };
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    refused(format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {words}"))
}

/// In Redis's words, with the policies that there are.
fn no_such_policy() -> Failure {
    let names = POLICIES.map(|(name, _)| name).join(", ");
    refused(format!(
        "ERR CONFIG SET failed (possibly related to argument 'maxmemory-policy') - argument(s) must be one of the following: {names}"
    ))
}
