//! Queues, and the tasks in them, as JSON: for replies over HTTP, and for the commands.
//!
//! Bytes are text, or `0x…` if they are none or could be taken for that. Times are in milliseconds. This module asks no
//! queue.

use serde_json::{Map, Value, json};

use super::words::{NONE, WorkFamily, state_word};
use crate::services::jobs::wire::JobId;
use crate::services::tables::report::textual;
use crate::services::tasks::wire::{QueueFigures, SeenQueue, SeenSettings, SeenTask};
use crate::tasks::{Backoff, BrowsedState, Policy, Rate};

/// A queue in a list: its figures by their names, and what is set.
pub(crate) fn queue_json(family: WorkFamily, queue: &SeenQueue<'_>) -> Value {
    let &SeenQueue { name, figures, oldest_ms, paused_ms, settings } = queue;
    let figures = QueueFigures::NAMES.into_iter().zip(figures.0).map(|(name, figure)| (name.to_owned(), json!(figure)));
    let mut members: Map<String, Value> = figures.collect();
    members.insert("family".to_owned(), json!(family.word()));
    members.insert("name".to_owned(), json!(textual(name)));
    members.insert("oldest_ready_ms".to_owned(), json!(oldest_ms));
    members.insert("paused".to_owned(), json!(paused_ms.is_some()));
    // Nothing: until it is resumed.
    members.insert("pause_left_ms".to_owned(), json!(paused_ms.filter(|left| *left != u64::MAX)));
    members.insert("settings".to_owned(), settings_json(settings));
    Value::Object(members)
}

fn settings_json(SeenSettings { terms, rate, sync }: SeenSettings) -> Value {
    let backoff = terms.backoff.map(|Backoff { first, most }| json!({ "first_ms": first, "most_ms": most }));
    let rate = rate.map(|Rate { count, per, burst }| json!({ "count": count, "per_ms": per, "burst": burst }));
    let sync = sync.map(|sync| match sync {
        Policy::Always => json!("always"),
        Policy::Never => json!("never"),
        Policy::Within(millis) => json!(millis),
    });
    json!({
        "tries": terms.tries.map(|tries| tries.map_or(0, std::num::NonZeroU32::get)),
        "backoff": backoff,
        "group_limit": terms.group_limit,
        "rate": rate,
        "sync": sync,
    })
}

/// A task in this state.
pub(crate) fn task_json(family: WorkFamily, state: BrowsedState, task: &SeenTask<'_>) -> Value {
    let &SeenTask { key, class, tries, group, age_ms, left_ms, reason, bytes, first } = task;
    let mut json = json!({
        "state": state_word(state),
        "class": class,
        "tries": tries,
        "group": textual(group),
        "age_ms": age_ms,
        "left_ms": left_ms,
        "reason": textual(reason),
        "bytes": bytes,
        "first": textual(whole_characters(first, bytes)),
    });
    if let Value::Object(members) = &mut json {
        let name = match family {
            WorkFamily::Tasks => ("key", textual(key)),
            WorkFamily::Jobs => ("id", job_id(key).map_or(NONE.to_owned(), |id| id.to_string())),
        };
        members.insert(name.0.to_owned(), json!(name.1));
    }
    json
}

/// The id in the key of a job: its number, big-endian.
fn job_id(key: &[u8]) -> Option<JobId> {
    key.try_into().ok().map(|number| JobId(u64::from_be_bytes(number)))
}

/// The first bytes of a text of so many bytes, without a part of a character at their end.
fn whole_characters(first: &[u8], bytes: u64) -> &[u8] {
    match std::str::from_utf8(first) {
        Err(error) if error.error_len().is_none() && bytes > first.len() as u64 => {
            first.get(..error.valid_up_to()).unwrap_or(first)
        }
        _ => first,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::QueueTerms;

    #[test]
    fn a_value_that_is_cut_within_a_character_is_still_text() {
        let word = "Zoë".as_bytes();
        let begin = b"Zo\xc3";
        assert_eq!(whole_characters(begin, 4), b"Zo");
        assert_eq!(whole_characters(begin, 3), begin, "there is no more of it");
        assert_eq!(whole_characters(word, 9), word);
        assert_eq!(whole_characters(b"\xff\xfe", 9), b"\xff\xfe");
    }

    #[test]
    fn a_queue_has_each_figure_by_its_name_and_its_pause_and_settings() {
        let figures = QueueFigures(std::array::from_fn(|number| number as u64));
        let terms = QueueTerms { tries: Some(None), backoff: None, group_limit: None };
        let settings = SeenSettings { terms, rate: Rate::of(10, 1_000, 5), sync: Some(Policy::Never) };
        let queue = SeenQueue { name: b"0xff", figures, oldest_ms: None, paused_ms: Some(u64::MAX), settings };
        let json = queue_json(WorkFamily::Jobs, &queue);
        let of = |name: &str| json.get(name).cloned();
        assert_eq!([of("ready"), of("dead"), of("throttled")], [0, 3, 14].map(|figure| Some(json!(figure))));
        assert_eq!((of("name"), of("family")), (Some(json!("0x30786666")), Some(json!("jobs"))));
        assert_eq!((of("paused"), of("pause_left_ms")), (Some(json!(true)), Some(Value::Null)));
        let rate = json!({ "count": 10, "per_ms": 1_000, "burst": 5 });
        let expected = json!({ "tries": 0, "backoff": null, "group_limit": null, "rate": rate, "sync": "never" });
        assert_eq!(of("settings"), Some(expected));
    }
}
