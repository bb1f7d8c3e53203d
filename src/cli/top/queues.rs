//! Queues in `spindle top`: the chosen one, the dead tasks of the first ones, and what keys change.
//!
//! ```text
//! ↑ ↓ ─► chosen ─► k: kick    p: pause    r: resume    x x: purge ─► /queues/… ─► a line in the head
//! ```
//! This module draws nothing.

use serde_json::Value;

use super::document::{list, whole, word};
use crate::cli::commands::slow::answered;
use crate::cli::flags::operand::Hex;
use crate::clients::rust::operator::admin::AdminClient;
use crate::security::DEFAULT_QUEUE;
use crate::services::operator::admin::queues::parameter;
use crate::services::operator::admin::queues::words::WorkFamily;

/// Queues whose dead tasks are shown, and how many of each.
const DEAD_QUEUES: usize = 4;
const DEAD_OF_EACH: usize = 4;

/// The queue that is chosen, and what has become of the last key.
#[derive(Debug, Default)]
pub(super) struct QueueCursor {
    /// Its name in STATS.
    pub(super) chosen: Option<String>,
    /// What has become of the last change.
    pub(super) said: Option<String>,
    /// Whether the next `x` purges.
    is_armed: bool,
}

/// A change that a key asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KeyChange {
    path: &'static str,
    parameters: String,
}

/// The queues of STATS.
pub(super) fn queues(stats: &Value) -> &[Value] {
    stats.get("tasks").map_or(&[][..], |tasks| list(tasks, "queues"))
}

/// The parameters of a queue by its name in STATS. `None`: it is none of tasks or jobs.
fn target(name: &str) -> Option<String> {
    let of = |family: WorkFamily, queue: &[u8]| format!("?family={}{}", family.word(), parameter("queue", queue));
    if name == WorkFamily::Tasks.word() {
        return Some(of(WorkFamily::Tasks, DEFAULT_QUEUE));
    }
    // A stored name begins with that of its family, so one that begins with 0x is no text.
    let name = Hex::of_shown(name)?;
    [WorkFamily::Tasks, WorkFamily::Jobs].into_iter().find_map(|family| {
        let queue = name.strip_prefix(format!("{}/", family.word()).as_bytes())?;
        (!queue.is_empty()).then(|| of(family, queue))
    })
}

/// What is dead in the first queues that have something dead, with the name of its queue as `queue`.
pub(super) fn dead(client: &AdminClient, stats: &Value) -> Vec<Value> {
    let queues = queues(stats).iter().filter(|queue| whole(queue, "dead") > 0);
    let named = queues.filter_map(|queue| Some((word(queue, "name"), target(word(queue, "name"))?)));
    let mut dead = Vec::new();
    for (name, target) in named.take(DEAD_QUEUES) {
        let path = format!("/queues/peek{target}&state=dead&most={DEAD_OF_EACH}&bytes=0");
        // A server that does not show it is shown as before.
        let Ok(page) = answered(client, client.get(&path)) else { continue };
        dead.extend(list(&page, "tasks").iter().cloned().map(|mut task| {
            if let Value::Object(members) = &mut task {
                members.insert("queue".to_owned(), name.into());
            }
            task
        }));
    }
    dead
}

impl QueueCursor {
    /// Chooses the next queue, or the one before.
    pub(super) fn step(&mut self, stats: &Value, is_down: bool) {
        let names: Vec<&str> = queues(stats).iter().map(|queue| word(queue, "name")).collect();
        let at = names.iter().position(|name| Some(*name) == self.chosen.as_deref());
        let next = match at {
            None => 0,
            Some(at) if is_down => (at + 1).min(names.len().saturating_sub(1)),
            Some(at) => at.saturating_sub(1),
        };
        self.chosen = names.get(next).map(|name| (*name).to_owned());
        (self.is_armed, self.said) = (false, None);
    }

    /// The change that a key asks for. `None`: no queue is chosen, or it is no such key, or is to be pressed again.
    pub(super) fn change(&mut self, key: char) -> Option<KeyChange> {
        let was_armed = std::mem::take(&mut self.is_armed);
        let (path, what) = match key {
            'k' => ("/queues/kick", "&state=dead"),
            'p' => ("/queues/configure", "&pause=on"),
            'r' => ("/queues/configure", "&pause=off"),
            'x' => ("/queues/purge", "&states=dead"),
            _ => return None,
        };
        let Some(name) = &self.chosen else {
            self.said = Some("choose a queue first, with the arrows".to_owned());
            return None;
        };
        let Some(target) = target(name) else {
            self.said = Some(format!("{name} is no queue of tasks or jobs"));
            return None;
        };
        if key == 'x' && !was_armed {
            self.is_armed = true;
            self.said = Some(format!("x again purges what is dead in {name}"));
            return None;
        }
        Some(KeyChange { path, parameters: target + what })
    }
}

impl KeyChange {
    /// Has the server make the change. Returns what has become of it.
    pub(super) fn make(&self, client: &AdminClient) -> String {
        match answered(client, client.change(&format!("{}{}", self.path, self.parameters))) {
            Ok(done) if self.path == "/queues/kick" => format!("{} kicked", whole(&done, "kicked")),
            Ok(done) if self.path == "/queues/purge" => format!("{} removed", whole(&done, "removed")),
            Ok(_) if self.parameters.ends_with("on") => "paused until it is resumed".to_owned(),
            Ok(_) => "resumed".to_owned(),
            Err(error) => error.sentence(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_queue_is_found_by_its_name_in_stats() {
        for (name, expected) in [
            ("tasks", Some("?family=tasks&queue=default")),
            ("tasks/mail", Some("?family=tasks&queue=mail")),
            ("jobs/a&b", Some("?family=jobs&queue=a%26b")),
            ("0x6a6f62732fff", Some("?family=jobs&queue=%FF")),
            ("events", None),
            ("jobs/", None),
            ("0xzz", None),
        ] {
            assert_eq!(target(name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn keys_change_the_queue_that_is_chosen_and_a_purge_is_asked_for_twice() {
        let stats = json!({ "tasks": { "queues": [{ "name": "events" }, { "name": "jobs/mail" }] } });
        let mut cursor = QueueCursor::default();
        assert_eq!(cursor.change('k'), None);
        assert!(cursor.said.as_ref().is_some_and(|said| said.contains("choose a queue")));
        cursor.step(&stats, true);
        assert_eq!(cursor.chosen.as_deref(), Some("events"));
        assert_eq!(cursor.change('p'), None);
        cursor.step(&stats, true);
        cursor.step(&stats, true);
        let of = |path, what: &str| Some(KeyChange { path, parameters: format!("?family=jobs&queue=mail{what}") });
        assert_eq!(cursor.change('k'), of("/queues/kick", "&state=dead"));
        assert_eq!(cursor.change('p'), of("/queues/configure", "&pause=on"));
        assert_eq!(cursor.change('r'), of("/queues/configure", "&pause=off"));
        assert_eq!((cursor.change('x'), cursor.change('k').is_some(), cursor.change('x')), (None, true, None));
        assert_eq!(cursor.change('x'), of("/queues/purge", "&states=dead"));
        assert_eq!(cursor.change('x'), None, "each purge anew");
        cursor.step(&stats, false);
        assert_eq!(cursor.chosen.as_deref(), Some("events"));
    }
}
