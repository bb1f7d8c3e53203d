//! The members of the documents that the server sends. This module asks for none.

use serde_json::Value;

/// The number of this name, or 0.
pub(super) fn number(json: &Value, name: &str) -> f64 {
    json.get(name).and_then(Value::as_f64).unwrap_or(0.0)
}

/// The whole number of this name, or 0.
pub(super) fn whole(json: &Value, name: &str) -> u64 {
    json.get(name).and_then(Value::as_u64).unwrap_or(0)
}

/// The list of this name, or none.
pub(super) fn list<'j>(json: &'j Value, name: &str) -> &'j [Value] {
    json.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The text of this name, or none.
pub(super) fn word<'j>(json: &'j Value, name: &str) -> &'j str {
    json.get(name).and_then(Value::as_str).unwrap_or_default()
}
