//! The settings that CONFIG shows, under the names that Redis has for them. A flag of the server sets each of them, but
//! for the events, which are always published.

use super::answer::{Failure, refused_with};
use super::arguments::{is, shown};
use super::context::RespContext;
use super::info::clients_max;

/// A setting.
pub(super) struct Setting {
    pub(super) name: &'static str,
    pub(super) value: String,
}

/// All settings.
pub(super) fn all(context: &RespContext) -> Vec<Setting> {
    let setting = |name, value: &str| Setting { name, value: value.to_owned() };
    vec![
        setting("appendonly", "no"),
        setting("databases", "16"),
        setting("maxclients", &clients_max().to_string()),
        setting("maxmemory", &context.report.tables_metrics().memory.max.to_string()),
        setting("maxmemory-policy", "noeviction"),
        setting("notify-keyspace-events", "AKE"),
        setting("proto-max-bulk-len", &context.value_max.to_string()),
        setting("save", ""),
        setting("slowlog-log-slower-than", &(context.report.slow.bound_nanos() / 1_000).to_string()),
        setting("timeout", "0"),
    ]
}

/// Sets a setting: a name and a value.
///
/// # Errors
/// A refusal: only a flag of the server sets it, or there is none of this name.
pub(super) fn set(pair: &[&[u8]]) -> Result<(), Failure> {
    let [name, value] = pair else { return Ok(()) };
    let is_accepted = is(name, "notify-keyspace-events") || is(name, "maxmemory-policy") && is(value, "noeviction");
    if is_accepted {
        return Ok(());
    }
    let before = "ERR Unknown option or number of arguments for CONFIG SET - '";
    Err(refused_with(before, shown(name, usize::MAX), "'"))
}
